"""`waystation why`: explain what happened to a message."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from waystation.cli.options import (
    PLACE,
    SETTINGS,
    Instant,
    LocalPath,
    check_is_journal,
    json_option,
    print_json,
)
from waystation.core.message import NO_ID
from waystation.errors import LocalError
from waystation.locations import is_remote

if TYPE_CHECKING:
    from waystation.why import Explanation
    from waystation.why.finding import Candidate

_HELP: Final = """Explain where a message went, hop by hop, and why.

MESSAGE_ID has 32 hexadecimal digits: `waystation send` prints it, and `waystation lost` and
`waystation journal cat` list ids. Its first digits are enough if no other message has them.
Without an id, give --participant and --at: if several messages are within five minutes of that
time, the nearest ten are listed. Or give --last-loss. Give --journal or --tables.

\b
Examples:
  waystation why 4bf92f35 --journal J
  waystation why --participant truck-7 --at 2026-11-15T14:03 --journal J
  waystation why --last-loss --tables T --json
"""
_BEGINNING: Final = re.compile("[0-9a-f]{1,32}")
_COLOURS: Final = {
    "DELIVERED": "green",
    "FORWARDED": "cyan",
    "QUEUED": "yellow",
    "DROPPED": "red",
}


class LocalJournal(LocalPath):
    """The directory of a journal on this machine; for one in a store it says what to do."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The directory, if it is a local one."""
        if is_remote(value):
            self.fail(
                f"{value} is in a store; build its tables with `waystation pipeline build` and "
                "give --tables, or copy the journal to a directory",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)


@click.command(help=_HELP, context_settings=SETTINGS)
@click.argument("message_id", required=False)
@click.option(
    "--journal",
    metavar="DIR",
    type=LocalJournal(exists=True, file_okay=False, path_type=Path),
    help="Journal of one or more nodes.",
)
@click.option(
    "--tables",
    metavar="DIR|URI",
    type=PLACE,
    help="Tables built by `waystation pipeline build`.",
)
@click.option("--participant", metavar="NAME", help="A message for NAME; with --at.")
@click.option("--at", type=Instant(), metavar="TIME", help="About when it was sent.")
@click.option("--last-loss", is_flag=True, help="Explain the message that was lost last.")
@json_option
def why(
    message_id: str | None,
    journal: Path | None,
    tables: str | Path | None,
    participant: str | None,
    at: int | None,
    last_loss: bool,
    as_json: bool,
) -> None:
    """Explain a message."""
    if (journal is None) == (tables is None):
        raise click.UsageError("give --journal DIR or --tables DIR")
    beginning = _checked(message_id, participant, at, last_loss=last_loss)
    import_module("waystation.journal")  # raises an error that says what to install
    if journal is not None:
        check_is_journal(journal)
    if last_loss:
        id = _last_loss(journal, tables, participant)
    elif beginning is None:
        assert participant is not None
        assert at is not None
        found = _near(journal, tables, participant, at)
        if len(found) > 1:
            _list(found, as_json=as_json)
            return
        id = found[0].message_id
    else:
        id = _whole(journal, tables, beginning)
    explanation = _explained(journal, tables, id)
    if as_json:
        print_json(explanation)
    else:
        for line in _lines(explanation):
            click.echo(line)


def _checked(
    message_id: str | None, participant: str | None, at: int | None, *, last_loss: bool
) -> str | None:
    """The beginning of the id, if one is given; raises if it is not clear what is asked for."""
    if message_id is None:
        if last_loss and at is None:
            return None
        if last_loss or participant is None or at is None:
            raise click.UsageError(
                "give MESSAGE_ID, or --participant NAME and --at TIME, or --last-loss"
            )
        return None
    if participant is not None or at is not None or last_loss:
        raise click.UsageError("give MESSAGE_ID, or options that find one, not both")
    if not _BEGINNING.fullmatch(message_id.lower()) or message_id == NO_ID:
        raise click.UsageError(
            f"invalid message id {message_id!r}; give 32 hexadecimal digits, not all zero, or "
            "the first of them"
        )
    return message_id.lower()


def _whole(journal: Path | None, tables: str | Path | None, beginning: str) -> str:
    if len(beginning) == len(NO_ID):
        return beginning
    from waystation.why.finding import (  # noqa: PLC0415 - it needs pyarrow
        ids_in_journal,
        ids_in_tables,
        the_only_one,
    )

    if journal is not None:
        return the_only_one(ids_in_journal(journal, beginning), beginning, journal)
    assert tables is not None
    return the_only_one(ids_in_tables(tables, beginning), beginning, tables)


def _near(
    journal: Path | None, tables: str | Path | None, participant: str, at: int
) -> list[Candidate]:
    from waystation.why.finding import near_in_journal, near_in_tables  # noqa: PLC0415

    if journal is not None:
        found = near_in_journal(journal, participant, at)
    else:
        assert tables is not None
        found = near_in_tables(tables, participant, at)
    if not found:
        from waystation.why.text import instant  # noqa: PLC0415

        raise LocalError(
            f"no message for {participant} within five minutes of {instant(at)}",
            rule="OB-4",
            hint="see `waystation lost --participant NAME` for what was lost and when",
        )
    return found


def _last_loss(journal: Path | None, tables: str | Path | None, participant: str | None) -> str:
    if tables is not None:
        from waystation.why.finding import last_loss_in_tables  # noqa: PLC0415

        found = last_loss_in_tables(tables, participant)
    else:
        assert journal is not None
        import_module("waystation.pipeline").check_columns_installed()
        from waystation.pipeline.lost import Question, lost_in_journal  # noqa: PLC0415

        losses = lost_in_journal(str(journal), Question(participant=participant)).losses
        sure = [loss for loss in losses if not loss.may_have_missed]
        found = sure[-1].message_id if sure else None
    if found is None:
        raise LocalError(
            f"nothing was lost{f' for {participant}' if participant else ''}",
            rule="OB-4",
            hint="`waystation lost` tells how far the records reach",
        )
    return found


def _explained(journal: Path | None, tables: str | Path | None, id: str) -> Explanation:
    if journal is not None:
        from waystation.why import explain  # noqa: PLC0415 - it needs pyarrow

        return explain(journal, id)
    from waystation.why.tables import explain_from_tables  # noqa: PLC0415

    assert tables is not None
    return explain_from_tables(tables, id)


def _list(found: list[Candidate], *, as_json: bool) -> None:
    """The messages that may be meant, the nearest first."""
    from waystation.why.text import instant  # noqa: PLC0415

    if as_json:
        print_json(found)
        return
    click.echo(f"{len(found)} messages are near that time; explain one with its id:")
    for one in found:
        reason = f" {one.reason}" if one.reason else ""
        click.echo(f"  {one.message_id}  {instant(one.at)}  {one.outcome}{reason} at {one.node}")


def _lines(explanation: Explanation) -> Iterator[str]:
    """Plain lines for a pipe; in a terminal with a timeline before them, and with colours."""
    from waystation.why import explanation_lines  # noqa: PLC0415 - it needs pyarrow
    from waystation.why.text import timeline  # noqa: PLC0415

    if not sys.stdout.isatty():
        yield from explanation_lines(explanation)
        return
    for at, node, outcome, rest in timeline(explanation):
        colour = _COLOURS.get(outcome.strip())
        yield f"{click.style(at, dim=True)}  {node}  {click.style(outcome, fg=colour)}  {rest}"
    yield ""
    for number, line in enumerate(explanation_lines(explanation)):
        yield click.style(line, bold=True) if number == 0 or line[:1].isdigit() else _coloured(line)


def _coloured(line: str) -> str:
    def styled(found: re.Match[str]) -> str:
        return click.style(found[0], fg=_COLOURS[found[0]])

    return re.sub(rf"\b({'|'.join(_COLOURS)})\b", styled, line)
