"""`waystation lost`: list what was lost, and why."""

from __future__ import annotations

import csv
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from waystation.cli.options import PLACE, SETTINGS, Instant, check_is_journal, json_option

if TYPE_CHECKING:
    from waystation.pipeline.lost import Answer, LostCopy
    from waystation.pipeline.reach import Reach

_HELP: Final = """List what was lost, and why: every copy that did not reach its receiver.

Give --journal or --tables. A small journal needs no Spark. The first line says which nodes have
records, and until when: where there is no record, nothing counts as lost.

\b
Examples:
  waystation lost --journal J --participant truck-7 --since 2026-11-15T14:00 --until 1h
  waystation lost --tables T --by reason,node
  waystation lost --tables T --reason NO_ROUTE --csv > lost.csv
"""
_GROUPS: Final = (
    *("reason", "node", "participant", "topic", "incident", "cause", "sender", "hour", "day"),
)
_INDENT: Final = "    "
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Groups(click.ParamType[tuple[str, ...]]):
    """Names of groups, with commas between them."""

    name = "groups"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """The names, if all are known."""
        names = tuple(part.strip() for part in str(value).split(","))
        for name in names:
            if name not in _GROUPS:
                self.fail(f"{name!r} is none of {', '.join(_GROUPS)}", param, ctx)
        return names


@click.command(help=_HELP, context_settings=SETTINGS)
@click.option("--journal", metavar="DIR|URI", type=PLACE, help="Journal of one or more nodes.")
@click.option(
    "--tables",
    metavar="DIR|URI",
    type=PLACE,
    help="Tables built by `waystation pipeline build`.",
)
@click.option("--participant", metavar="NAME", help="Only messages that NAME did not get.")
@click.option(
    "--topic", metavar="PATTERN", help="Only messages published under it; + and * are wildcards."
)
@click.option("--node", metavar="NAME", help="Only messages that ended at this node.")
@click.option("--reason", metavar="REASON", help="Only this reason, such as NO_ROUTE or VANISHED.")
@click.option("--since", type=Instant(), metavar="TIME", help="Only losses from this time on.")
@click.option("--until", type=Instant(), metavar="TIME", help="Only losses before this time.")
@click.option(
    "--by",
    type=Groups(),
    metavar="GROUPS",
    help=f"Count instead: by {', '.join(_GROUPS)}, or several with commas.",
)
@click.option("--internal", is_flag=True, help="Also messages between the nodes themselves.")
@json_option
@click.option("--csv", "as_csv", is_flag=True, envvar="WAYSTATION_CSV", help="Print CSV only.")
def lost(
    *,
    journal: str | Path | None,
    tables: str | Path | None,
    by: tuple[str, ...] | None,
    as_json: bool,
    as_csv: bool,
    **asked: Any,
) -> None:
    """List what was lost."""
    if (journal is None) == (tables is None):
        raise click.UsageError("give --journal DIR or --tables DIR")
    if as_json and as_csv:
        raise click.UsageError("give --json or --csv, not both")
    import_module("waystation.pipeline").check_columns_installed()
    from waystation.pipeline.lost import (  # noqa: PLC0415
        Question,
        lost_in_journal,
        lost_in_tables,
    )

    question = Question(**asked)
    if tables is not None:
        answer = lost_in_tables(tables, question)
    else:
        assert journal is not None
        check_is_journal(journal)
        answer = lost_in_journal(str(journal), question)
    if as_json:
        click.echo(_json(answer, by))
    elif as_csv:
        _write_csv(answer, by)
    else:
        for line in _lines(answer, by, question.participant):
            click.echo(line)
        if answer.losses and by is None:
            click.echo(f"to explain one: {_how_to_explain(answer, journal, tables)}")
    if answer.unread and not as_json:
        click.echo(f"note: {_incomplete(answer.unread)}", err=True)


# For programs


def _json(answer: Answer, by: tuple[str, ...] | None) -> str:
    fields: dict[str, Any] = {"reach": reach_fields(answer.reach), "unread_files": answer.unread}
    if by is not None:
        fields["groups"] = [
            {**dict(zip(by, key, strict=True)), "lost": count}
            for key, count in _counted(answer.losses, by)
        ]
    else:
        fields["losses"] = [_fields(loss) for loss in answer.losses]
    fields["incidents"] = [
        {
            **msgspec.to_builtins(incident),
            "started": _text(incident.started),
            "ended": _text(incident.ended),
        }
        for incident in answer.incidents
    ]
    return msgspec.json.encode(fields).decode()


def reach_fields(reach: Reach) -> dict[str, Any]:
    """How far the record reaches, for programs."""
    return {**msgspec.to_builtins(reach), "complete_until": _text(reach.complete_until)}


def _fields(loss: LostCopy) -> dict[str, Any]:
    return {
        **msgspec.to_builtins(loss),
        "event_time": _text(loss.event_time),
        "at_visit": _text(loss.at_visit),
    }


def _write_csv(answer: Answer, by: tuple[str, ...] | None) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    if by is not None:
        writer.writerow([*by, "lost"])
        writer.writerows([*key, count] for key, count in _counted(answer.losses, by))
        return
    from waystation.pipeline.lost import LostCopy as Columns  # noqa: PLC0415

    writer.writerow(Columns.__struct_fields__)
    writer.writerows(_fields(loss).values() for loss in answer.losses)


# For people


def _lines(answer: Answer, by: tuple[str, ...] | None, participant: str | None) -> Iterator[str]:
    yield answer.reach.said()
    sure = [loss for loss in answer.losses if not loss.may_have_missed]
    whom = f" for {participant}" if participant else ""
    if not answer.losses:
        yield f"nothing was lost{whom}"
        return
    yield f"{len(sure):,} {'loss' if len(sure) == 1 else 'losses'}{whom}"
    missed = len(answer.losses) - len(sure)
    if missed:
        yield f"{missed:,} more that {participant} may have missed: nobody is named"
    yield ""
    if by is not None:
        yield from _table([(*by, "lost"), *((*key, f"{n:,}") for key, n in _counted(sure, by))])
        return
    yield from _listed(answer.losses, _terminal_width())
    yield ""
    yield from _incidents(answer)


def _incomplete(unread: int) -> str:
    files = "1 file" if unread == 1 else f"{unread:,} files"
    return f"{files} could not be read, so losses may be missing; `waystation journal check` tells"


def _listed(losses: list[LostCopy], width: int | None) -> Iterator[str]:
    """A line for each loss; a few for each if a line would not fit into a terminal's width."""
    head = ("time (UTC)", "reason", "for", "at", "message", "why")
    rows = [
        (
            _text(loss.event_time) or "",
            loss.reason,
            _whom(loss),
            loss.node,
            loss.message_id,
            loss.cause,
        )
        for loss in losses
    ]
    lines = list(_table([head, *rows]))
    if width is None or max(map(len, lines)) <= width:
        yield from lines
        return
    for at, reason, whom, node, id, cause in rows:
        for text, indent in ((f"{at}  {reason}  for {whom} at {node}", ""), (id, _INDENT)):
            yield from wrap(text, width, initial_indent=indent, subsequent_indent=_INDENT)
        yield from wrap(cause, width, initial_indent=_INDENT, subsequent_indent=_INDENT)


def _terminal_width() -> int | None:
    """How many characters fit into a line; None where nothing is cut or wrapped, as in a pipe."""
    return get_terminal_size().columns if sys.stdout.isatty() else None


def _incidents(answer: Answer) -> Iterator[str]:
    """The incidents behind these losses, each with how many of these it explains."""
    behind = Counter(loss.incident_id for loss in answer.losses)
    for incident in answer.incidents:
        cost = f"{behind[incident.incident_id]:,} of these"
        yield f"{_clock(incident.started)} {incident.kind}: {incident.cause} ({cost})"


def _how_to_explain(answer: Answer, journal: str | Path | None, tables: str | Path | None) -> str:
    """The command that explains the last loss; `why` does not read journals in stores."""
    why = f"waystation why {answer.losses[-1].message_id}"
    place = shlex.quote(str(tables if journal is None else journal))
    if isinstance(journal, str):
        build = f"waystation pipeline build --journal {place} --out TABLES"
        return f"{build}, then {why} --tables TABLES"
    return f"{why} --{'tables' if journal is None else 'journal'} {place}"


def _whom(loss: LostCopy) -> str:
    if loss.may_have_missed:
        return f"(may have missed) {loss.multicast_id}"
    return loss.recipient or loss.multicast_id or "-"


def _table(rows: list[tuple[str, ...]]) -> Iterator[str]:
    """Columns that stand under each other; the last is not padded."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]) - 1)]
    for row in rows:
        cells = [text.ljust(width) for text, width in zip(row[:-1], widths, strict=True)]
        yield "  ".join([*cells, row[-1]]).rstrip()


def _counted(losses: list[LostCopy], by: tuple[str, ...]) -> list[tuple[tuple[str, ...], int]]:
    """The groups, the largest first."""
    counts = Counter(tuple(_group(loss, name) for name in by) for loss in losses)
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _group(loss: LostCopy, name: str) -> str:
    told = {
        "participant": loss.recipient,
        "topic": loss.multicast_id,
        "incident": loss.incident_id,
        "hour": (_text(loss.event_time) or "")[:13],
        "day": (_text(loss.event_time) or "")[:10],
    }
    found = told[name] if name in told else getattr(loss, name)
    return "-" if found is None else str(found)


def _text(at: int | None) -> str | None:
    if at is None:
        return None
    moment = _EPOCH + timedelta(microseconds=at)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _clock(at: int) -> str:
    return (_EPOCH + timedelta(microseconds=at)).strftime("%Y-%m-%d %H:%M:%S UTC")
