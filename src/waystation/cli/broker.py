"""`waystation broker`: run a small MQTT 5 broker until it is told to stop.

MQTT support is an optional extra (mqtt5), so it is imported only when the command runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec import Raw, Struct

from waystation.cli.options import FILE, SETTINGS, json_option, print_json
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
from waystation.core.grants import Grants
from waystation.node.runner import run, stop_signals

if TYPE_CHECKING:
    from waystation.mqtt.broker import Broker, Passwords

_number = click.IntRange(min=1)


class Options(Struct, frozen=True, kw_only=True):
    """Command-line options that are not broker settings."""

    listen: str
    metrics: str | None
    passwords: Path | None
    grants: Path | None
    tls_certificate: Path | None
    tls_key: Path | None
    tls_authorities: Path | None
    verbose: bool
    as_json: bool


_HELP: Final = """Run a small MQTT 5 broker, for trials and small fleets.

It supports QoS 0 and 1 and keeps everything in memory. SIGTERM and SIGINT stop it after it has
written what is queued; it then prints its counters. SIGHUP reads passwords, grants and certificates
again; a file with a mistake changes nothing. In production use Mosquitto, EMQX or HiveMQ.

\b
Examples:
  waystation broker --listen 127.0.0.1:1883
  waystation broker --listen 0.0.0.0:8883 --tls-certificate B.pem --tls-key B.key --passwords P
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
    help="Address to listen on; the standard MQTT port is 1883, or 8883 with TLS.",
)
@click.option("--passwords", metavar="FILE", type=FILE, help="Password file in Mosquitto's format.")
@click.option(
    "--grants",
    metavar="FILE",
    type=FILE,
    help="Grants: which users may publish and subscribe to what (TOML; a user is a token there).",
)
@metrics_option
@tls_options
@click.option(
    "--max-connections", type=_number, default=10_000, help="Maximum number of connected clients."
)
@click.option(
    "--max-sessions",
    type=_number,
    default=20_000,
    help="Maximum number of sessions, including those of disconnected clients.",
)
@click.option("--max-packet", type=_number, default=17 << 20, help="Maximum packet size in bytes.")
@click.option(
    "--max-subscriptions",
    type=_number,
    default=100_000,
    help="Maximum number of subscriptions per client.",
)
@click.option(
    "--queue", type=_number, default=10_000, help="Maximum number of messages queued per client."
)
@click.option(
    "--queue-bytes",
    type=_number,
    default=64 << 20,
    help="Maximum number of bytes queued per client.",
)
@click.option(
    "--budget",
    type=_number,
    default=256 << 20,
    help="Maximum number of bytes queued for all clients together.",
)
@click.option(
    "--max-retained", type=_number, default=100_000, help="Maximum number of retained messages."
)
@click.option(
    "--session-expiry",
    type=_number,
    default=7 * 24 * 3600,
    help="Maximum session expiry interval in seconds.",
)
@click.option("--verbose", is_flag=True, help="Log details to stderr.")
@json_option
def broker(**given: Any) -> None:
    """Run a broker."""
    from waystation.mqtt.broker import Broker, Settings  # noqa: PLC0415 - it needs mqtt5

    options = Options(**{name: given.pop(name) for name in Options.__struct_fields__})
    settings = Settings(**{name.removeprefix("max_"): value for name, value in given.items()})
    log_to_stderr(verbose=options.verbose)
    allow_files(settings.connections)
    users = _users(options)
    server = Broker(
        settings,
        tls=tls_of(options.tls_certificate, options.tls_key, options.tls_authorities),
        authenticate=None if users is None else users.allows,
        grants=_grants(options),
    )
    run(_serve(server, users, options))


def _users(options: Options) -> Passwords | None:
    from waystation.mqtt.broker import Passwords  # noqa: PLC0415 - it needs mqtt5

    return None if options.passwords is None else Passwords.load(options.passwords)


def _grants(options: Options) -> Grants | None:
    return None if options.grants is None else read_grants(options.grants, users=True)[0]


class _Reload:
    """Reads the files of a broker again: all of them first, so that a mistake changes nothing."""

    def __init__(self, server: Broker, users: Passwords | None, options: Options) -> None:
        self._server, self._users, self._options = server, users, options

    def __call__(self) -> None:
        server, before = self._server, self._users
        users, grants = _users(self._options), _grants(self._options)
        server.renew_certificate()
        if users is not None and before is not None:
            server.change_users(users.allows, users.changed(before))
            self._users = users
        server.change_grants(grants)


async def _serve(server: Broker, users: Passwords | None, options: Options) -> None:
    from waystation.mqtt.broker import BrokerMetrics  # noqa: PLC0415 - it needs mqtt5

    with stop_signals() as stop, reloading(_Reload(server, users, options), "broker"):
        await server.start(options.listen)
        async with monitoring(BrokerMetrics(server), options.metrics) as metrics:
            announce(metrics, server.place, as_json=options.as_json)
            await stop.wait()
            await server.drain()
        counted = server.counts.as_json()
        if options.as_json:
            print_json({"counted": Raw(counted)})
        else:
            click.echo(f"counted {counted.decode()}")
