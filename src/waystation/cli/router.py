"""`waystation router`: run a gossip router for JGroups members until it is told to stop.

The journal is an optional extra (pyarrow), so it is imported only if --journal is given.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import click
from msgspec import Struct

from waystation.cli.options import FILE, OUTPUT, SETTINGS, Numbers, json_option
from waystation.cli.process import allow_files, log_to_stderr
from waystation.cli.serving import (
    announce,
    check_place,
    metrics_option,
    monitoring,
    reloading,
    tls_of,
    tls_options,
)
from waystation.config import read_grants
from waystation.gossip_router import (
    Admission,
    GossipServer,
    GrantedAdmission,
    RouterMetrics,
    Settings,
)
from waystation.node.runner import run, stop_signals

_DEFAULT: Final = Settings()
_SETTINGS: Final = {
    "max_groups": "groups",
    "max_members": "members_per_group",
    "max_connection_members": "members_per_connection",
    "max_connections": "connections",
    "max_message": "message",
}
"""The settings of options that have another name."""

_number = click.IntRange(min=1)
_seconds = Numbers(min=0, min_open=True)


class Options(Struct, frozen=True, kw_only=True):
    """Command-line options that are not router settings."""

    listen: str
    metrics: str | None
    journal: Path | None
    journal_messages: bool
    name: str
    tls_certificate: Path | None
    tls_key: Path | None
    tls_authorities: Path | None
    admission: Path | None
    grants: Path | None
    verbose: bool
    as_json: bool


_HELP: Final = """Run a gossip router for JGroups 2.12 and 4.0 to 5.x, on one port.

SIGTERM and SIGINT stop it after it has written what is queued. SIGHUP reads admission rules or
grants and certificates again; a file with a mistake changes nothing.

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
    help="Address to listen on; the JGroups default port is 12001.",
)
@metrics_option
@click.option(
    "--journal",
    metavar="DIR",
    type=OUTPUT,
    help="Write a journal of membership changes and dropped messages.",
)
@click.option(
    "--journal-messages",
    is_flag=True,
    help="Also journal forwarded messages; this makes the router several times slower.",
)
@click.option("--name", default="router", help="Name of the router in the journal.")
@tls_options
@click.option(
    "--admission",
    metavar="FILE",
    type=FILE,
    help="Admission rules: who may use which group (TOML).",
)
@click.option(
    "--grants",
    metavar="FILE",
    type=FILE,
    help="Grants: who may register in which group, instead of --admission (TOML).",
)
@click.option(
    "--max-groups", type=_number, default=_DEFAULT.groups, help="Maximum number of groups."
)
@click.option(
    "--max-members",
    type=_number,
    default=_DEFAULT.members_per_group,
    help="Maximum number of members per group.",
)
@click.option(
    "--max-connection-members",
    type=_number,
    default=_DEFAULT.members_per_connection,
    help="Maximum number of members per connection.",
)
@click.option(
    "--max-connections",
    type=_number,
    default=_DEFAULT.connections,
    help="Maximum number of connections.",
)
@click.option(
    "--max-message", type=_number, default=_DEFAULT.message, help="Maximum message size in bytes."
)
@click.option(
    "--queue",
    type=_number,
    default=_DEFAULT.queue,
    help="Maximum number of bytes queued per receiver.",
)
@click.option(
    "--budget",
    type=_number,
    default=_DEFAULT.budget,
    help="Maximum number of bytes queued for all receivers together.",
)
@click.option(
    "--patience",
    type=Numbers(min=0),
    default=_DEFAULT.patience,
    help="Seconds to hold back senders while a receiver catches up; 0 to never do so.",
)
@click.option(
    "--slow-receiver",
    type=click.Choice(["shed", "disconnect"]),
    default=_DEFAULT.slow_receiver,
    help="When a queue is full: drop messages (`shed`), or also `disconnect` after --stall.",
)
@click.option(
    "--stall",
    type=_seconds,
    default=_DEFAULT.stall,
    help="Seconds without progress after which --slow-receiver disconnect applies.",
)
@click.option(
    "--silence",
    type=_seconds,
    default=_DEFAULT.silence,
    help="Seconds of silence after which a client that sends heartbeats is considered dead;"
    " three of its own heartbeat intervals if that is longer.",
)
@click.option(
    "--suspect/--no-suspect",
    default=_DEFAULT.suspect,
    help="Tell the members of a group when the connection of one of them is lost.",
)
@click.option(
    "--suspect-after",
    type=Numbers(min=0),
    default=_DEFAULT.suspect_after,
    help="Seconds that a member has to come back before the others are told that it is lost.",
)
@click.option("--verbose", is_flag=True, help="Log members that join and leave to stderr.")
@json_option
def router(**given: Any) -> None:
    """Run a gossip router."""
    options = Options(**{name: given.pop(name) for name in Options.__struct_fields__})
    settings = Settings(**{_SETTINGS.get(name, name): value for name, value in given.items()})
    log_to_stderr(verbose=options.verbose)
    secured = 1 if options.tls_certificate is None else 2  # net/last_words.py
    allow_files(settings.connections * secured)
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
            observe_denials=note,
        )
        run(_serve(server, options))


def _journal(options: Options, ends: ExitStack) -> Any:
    from waystation.journal import Journal  # noqa: PLC0415

    assert options.journal is not None
    return ends.enter_context(Journal(options.journal, options.name)).note


def _admission(options: Options) -> Admission | GrantedAdmission | None:
    if options.grants is not None:
        if options.admission is not None:
            raise click.UsageError("give either --admission or --grants")
        return GrantedAdmission(*read_grants(options.grants))
    return None if options.admission is None else Admission.load(options.admission)


async def _serve(server: GossipServer, options: Options) -> None:
    def reload() -> None:
        admission = _admission(options)  # first, so that a mistake changes nothing
        server.renew_certificate()
        server.change_admission(admission)

    with stop_signals() as stop, reloading(reload, "gossip router"):
        await server.start(options.listen)
        async with monitoring(RouterMetrics(server), options.metrics) as metrics:
            announce(metrics, server.place, as_json=options.as_json)
            await stop.wait()
            await server.drain()
