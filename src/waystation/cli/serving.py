"""Options that say where a server listens and with which TLS: for `broker` and `router`.

No command lives here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from waystation.cli.options import FILE
from waystation.errors import LocalError
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
