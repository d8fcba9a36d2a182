"""Options of commands that serve: where to listen, TLS, and monitoring.

No command is defined here, and nothing of the live half is imported before something is served.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from waystation.cli.options import FILE, print_json
from waystation.errors import LocalError
from waystation.net.place import parse_place

if TYPE_CHECKING:
    from waystation.net.monitor import Monitored
    from waystation.net.tls import Tls

_log = logging.getLogger("waystation.cli")
Command = TypeVar("Command", bound=Callable[..., Any])

_TLS: Final = (
    click.option(
        "--tls-certificate",
        metavar="FILE",
        type=FILE,
        help="Certificate of the server (PEM); enables TLS.",
    ),
    click.option(
        "--tls-key", metavar="FILE", type=FILE, help="Private key of the certificate (PEM)."
    ),
    click.option(
        "--tls-authorities",
        metavar="FILE",
        type=FILE,
        help="CA certificates (PEM); clients must present a certificate signed by one of them.",
    ),
)


@contextmanager
def reloading(reload: Callable[[], None], what: str) -> Iterator[None]:
    """Read files again at SIGHUP, and say what came of it; a mistake in them changes nothing."""
    from waystation.node.runner import hangup_signals  # noqa: PLC0415 - the live half

    def try_to() -> None:
        try:
            reload()
        except (LocalError, OSError) as error:
            _log.error("not reloaded: %s", " ".join(str(error).split()))
        else:
            _log.warning("%s: files were read again", what)

    with hangup_signals(try_to):
        yield


def metrics_option(command: Command) -> Command:
    """Add the option for the monitoring port to a command."""
    return click.option(
        "--metrics",
        metavar="HOST:PORT",
        callback=check_place,
        help="Address on which to serve GET /metrics (Prometheus) and GET /health.",
    )(command)


@asynccontextmanager
async def monitoring(subject: Monitored, place: str | None) -> AsyncIterator[str | None]:
    """Serve the metrics of a program at a place, and yield their URL; do nothing if it is None."""
    from waystation.net.monitor import Monitor  # noqa: PLC0415 - the live half

    monitor = Monitor(subject)
    if place is not None:
        await monitor.start(place)
    try:
        yield None if place is None else f"http://{monitor.place}/metrics"
    finally:
        monitor.close()


def announce(metrics: str | None, *listening: str, as_json: bool, **more: Any) -> None:
    """Print where a program listens, and where its metrics are: as lines, or as one of JSON."""
    if as_json:
        fields = more | {"listening": listening} if listening else more
        print_json(fields if metrics is None else fields | {"metrics": metrics})
        return
    if metrics is not None:
        click.echo(f"metrics on {metrics}")
    for place in listening:
        click.echo(f"listening on {place}")


def tls_options(command: Command) -> Command:
    """Add the TLS options to a command."""
    for option in reversed(_TLS):
        command = option(command)
    return command


def tls_of(certificate: Path | None, key: Path | None, authorities: Path | None) -> Tls | None:
    """The TLS settings that the options describe, or None."""
    if certificate is None:
        if key or authorities:
            raise click.UsageError("--tls-key and --tls-authorities need --tls-certificate")
        return None
    from waystation.net.tls import Tls  # noqa: PLC0415 - the live half

    return Tls(
        certificate=certificate, key=key, authorities=authorities, mutual=authorities is not None
    )


def check_place(_: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Reject a value that is not host:port."""
    if value is not None:
        try:
            parse_place(value)
        except LocalError as error:
            raise click.BadParameter(str(error), param=parameter) from error
    return value
