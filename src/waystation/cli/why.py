"""`waystation why`: explain what happened to a message."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Final

import click
import msgspec

from waystation.cli.options import DIRECTORY, check_is_journal, json_option
from waystation.core.message import check_message_id
from waystation.errors import LocalError

_HELP: Final = """Explain where a message went, hop by hop, and why.

MESSAGE_ID has 32 hexadecimal digits: `waystation send` prints it, and `waystation journal cat`
lists the ids in a journal. Give --journal or --tables.

\b
Examples:
  waystation why 4bf92f3577b34da6a3ce929d0e0e4736 --journal J
  waystation why 4bf92f3577b34da6a3ce929d0e0e4736 --tables T --json
"""


@click.command(help=_HELP)
@click.argument("message_id")
@click.option(
    "--journal",
    envvar="WAYSTATION_JOURNAL",
    metavar="DIR",
    type=DIRECTORY,
    help="Journal of one or more nodes.",
)
@click.option(
    "--tables",
    envvar="WAYSTATION_TABLES",
    metavar="DIR",
    type=DIRECTORY,
    help="Tables built by `waystation pipeline build`.",
)
@json_option
def why(message_id: str, journal: Path | None, tables: Path | None, as_json: bool) -> None:
    """Explain a message."""
    if (journal is None) == (tables is None):
        raise click.UsageError("give --journal DIR or --tables DIR")
    try:
        check_message_id(message_id.lower())
    except LocalError as error:
        raise click.UsageError(str(error)) from error
    import_module("waystation.journal")  # raises an error that says what to install
    from waystation.why import explain, explanation_lines  # noqa: PLC0415 - it needs pyarrow

    if journal is None:
        from waystation.why.tables import explain_from_tables  # noqa: PLC0415

        assert tables is not None
        explanation = explain_from_tables(tables, message_id.lower())
    else:
        check_is_journal(journal)
        explanation = explain(journal, message_id.lower())
    if as_json:
        click.echo(msgspec.json.encode(explanation).decode())
    else:
        click.echo("\n".join(explanation_lines(explanation)))
