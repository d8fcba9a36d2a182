"""Listening and TLS options of servers; for `broker` and `router`.

No command is defined here.
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
