"""What commands that serve share: where to listen, with which TLS, how to be monitored.

No command lives here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from waystation.cli.options import FILE
from waystation.errors import LocalError
from waystation.net.monitor import Monitor, Monitored
from waystation.net.place import parse_place
from waystation.net.tls import Tls

Command = TypeVar("Command", bound=Callable[..., Any])

_TLS: Final = (
    click.option("--tls-certificate", metavar="FILE", type=FILE, help="Turns TLS on."),
    click.option("--tls-key", metavar="FILE", type=FILE, help="The key of the certificate."),
    click.option(
        "--tls-authorities",
        metavar="FILE",
        type=FILE,
        help="Clients must bring a certificate that one of these signed.",
    ),
)


def metrics_option(command: Command) -> Command:
    """Add the option for the HTTP port of monitoring."""
    return click.option(
        "--metrics",
        metavar="HOST:PORT",
        callback=check_place,
        help="Where to answer GET /metrics (Prometheus) and GET /health.",
    )(command)


@asynccontextmanager
async def monitoring(subject: Monitored, place: str | None) -> AsyncIterator[None]:
    """Answer for a program where the option says, and say so; None is nowhere."""
    monitor = Monitor(subject)
    if place is not None:
        await monitor.start(place)
        click.echo(f"metrics on http://{monitor.place}/metrics")
    try:
        yield
    finally:
        monitor.close()


def tls_options(command: Command) -> Command:
    """Add the options for TLS."""
    for option in reversed(_TLS):
        command = option(command)
    return command


def tls_of(certificate: Path | None, key: Path | None, authorities: Path | None) -> Tls | None:
    """The TLS that the options ask for."""
    if certificate is None:
        if key or authorities:
            raise click.UsageError("TLS needs --tls-certificate")
        return None
    return Tls(
        certificate=certificate, key=key, authorities=authorities, mutual=authorities is not None
    )


def check_place(_: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse what is no host and port."""
    if value is not None:
        try:
            parse_place(value)
        except LocalError as error:
            raise click.BadParameter(str(error), param=parameter) from error
    return value
