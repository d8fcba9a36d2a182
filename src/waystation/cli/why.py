"""`waystation why`: one message, explained."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from waystation.core.message import check_message_id
from waystation.errors import LocalError


@click.command(epilog="Example: waystation why 4bf92f3577b34da6a3ce929d0e0e4736 --journal journal/")
@click.argument("message_id")
@click.option(
    "--journal",
    envvar="WAYSTATION_JOURNAL",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The journal of one or many nodes.",
)
@click.option(
    "--tables",
    envvar="WAYSTATION_TABLES",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="What `waystation pipeline build` wrote.",
)
@click.option("--json", "as_json", is_flag=True, envvar="WAYSTATION_JSON", help="Print JSON.")
def why(message_id: str, journal: Path | None, tables: Path | None, as_json: bool) -> None:
    """Say where a message went, hop by hop, and why.

    MESSAGE_ID has 32 hexadecimal digits, as `waystation journal cat` shows them.
    """
    if (journal is None) == (tables is None):
        raise click.UsageError("give --journal DIR or --tables DIR")
    try:
        check_message_id(message_id.lower())
    except LocalError as error:
        raise click.UsageError(str(error)) from error
    from waystation.why import explain, tell  # noqa: PLC0415 - it needs pyarrow

    if journal is None:
        from waystation.why.tables import explain_from_tables  # noqa: PLC0415

        assert tables is not None
        account = explain_from_tables(tables, message_id.lower())
    else:
        account = explain(journal, message_id.lower())
    if as_json:
        click.echo(msgspec.json.encode(account).decode())
    else:
        click.echo("\n".join(tell(account)))
