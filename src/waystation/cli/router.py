"""`waystation router`: a gossip router for JGroups' members, until it is told to end.

The journal is an extra (pyarrow): it is imported when it is asked for, not by this module.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import click
from msgspec import Struct

from waystation.cli.options import FILE, SETTINGS, Numbers
from waystation.cli.process import allow_files, log_to_stderr
from waystation.cli.serving import check_place, tls_of, tls_options
from waystation.gossip_router import Admission, GossipServer, Settings
from waystation.net.monitor import Monitor
from waystation.node.runner import run, stop_signals

_DEFAULT: Final = Settings()
_SETTINGS: Final = {
    "max_groups": "groups",
    "max_members": "members_per_group",
    "max_connection_members": "members_per_connection",
    "max_connections": "connections",
    "max_message": "message",
}
"""Options that are called otherwise than the settings they stand for."""

_number = click.IntRange(min=1)
_seconds = Numbers(min=0, min_open=True)


class Options(Struct, frozen=True, kw_only=True):
    """What the command line says beside the settings."""

    listen: str
    metrics: str | None
    journal: Path | None
    journal_messages: bool
    name: str
    tls_certificate: Path | None
    tls_key: Path | None
    tls_authorities: Path | None
    admission: Path | None
    verbose: bool


_HELP: Final = """Run a gossip router for JGroups 2.12 and 5.x, both on one port.

It ends on SIGTERM or SIGINT, after writing what still waits.

\b
Examples:
  waystation router --listen 127.0.0.1:12001
  waystation router --listen 0.0.0.0:12001 --metrics 127.0.0.1:9090 --journal J
"""


@click.command(
    help=_HELP,
    context_settings=SETTINGS,
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    required=True,
    callback=check_place,
    help="Where members connect; JGroups' own default port is 12001.",
)
@click.option(
    "--metrics",
    metavar="HOST:PORT",
    callback=check_place,
    help="Where to answer GET /metrics (Prometheus) and GET /health.",
)
@click.option(
    "--journal",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep a journal of all changes of membership, and of messages that were dropped.",
)
@click.option(
    "--journal-messages",
    is_flag=True,
    help="Also of messages that were passed on; the router is several times slower then.",
)
@click.option("--name", default="router", help="The router's name in the journal.")
@tls_options
@click.option("--admission", metavar="FILE", type=FILE, help="Who may use which group (TOML).")
@click.option(
    "--max-groups", type=_number, default=_DEFAULT.groups, help="So many groups at the same time."
)
@click.option(
    "--max-members",
    type=_number,
    default=_DEFAULT.members_per_group,
    help="So many members of a group.",
)
@click.option(
    "--max-connection-members",
    type=_number,
    default=_DEFAULT.members_per_connection,
    help="So many members over one connection.",
)
@click.option(
    "--max-connections",
    type=_number,
    default=_DEFAULT.connections,
    help="So many connections at the same time.",
)
@click.option(
    "--max-message", type=_number, default=_DEFAULT.message, help="So many bytes in a message."
)
@click.option(
    "--queue",
    type=_number,
    default=_DEFAULT.queue,
    help="So many bytes may wait for one receiver.",
)
@click.option(
    "--patience",
    type=Numbers(min=0),
    default=_DEFAULT.patience,
    help="So many seconds are senders held back while a receiver catches up; 0: never.",
)
@click.option(
    "--slow-receiver",
    type=click.Choice(["shed", "disconnect"]),
    default=_DEFAULT.slow_receiver,
    help="A full queue sheds; `disconnect` also gives up who takes nothing for --stall.",
)
@click.option(
    "--stall",
    type=_seconds,
    default=_DEFAULT.stall,
    help="So many seconds may a receiver take nothing; see --slow-receiver.",
)
@click.option(
    "--silence",
    type=_seconds,
    default=_DEFAULT.silence,
    help="So many seconds without a word, and a client that sends heartbeats is dead.",
)
@click.option("--verbose", is_flag=True, help="Log who joins and leaves, to stderr.")
def router(**given: Any) -> None:
    """Run a gossip router."""
    options = Options(**{name: given.pop(name) for name in Options.__struct_fields__})
    settings = Settings(**{_SETTINGS.get(name, name): value for name, value in given.items()})
    log_to_stderr(verbose=options.verbose)
    allow_files(settings.connections)
    with ExitStack() as ends:
        if options.journal_messages and options.journal is None:
            raise click.UsageError("--journal-messages needs --journal")
        note = None if options.journal is None else _journal(options, ends)
        server = GossipServer(
            settings,
            tls=tls_of(options.tls_certificate, options.tls_key, options.tls_authorities),
            admission=_admission(options),
            observe=note,
            observe_messages=note,
            journal_messages=options.journal_messages,
        )
        run(_serve(server, options))


def _journal(options: Options, ends: ExitStack) -> Any:
    from waystation.journal import Journal  # noqa: PLC0415

    assert options.journal is not None
    return ends.enter_context(Journal(options.journal, options.name)).note


def _admission(options: Options) -> Admission | None:
    return None if options.admission is None else Admission.load(options.admission)


async def _serve(server: GossipServer, options: Options) -> None:
    with stop_signals() as told_to_end:
        await server.start(options.listen)
        monitor = Monitor(server)
        if options.metrics is not None:
            await monitor.start(options.metrics)
            click.echo(f"metrics on http://{monitor.place}/metrics")
        click.echo(f"listening on {server.place}")
        await told_to_end.wait()
        await server.drain()
        monitor.close()
