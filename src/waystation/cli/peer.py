"""Options for connecting to peers, and a node configured with them; for `send`, `listen`, `top`.

No command is defined here, and nothing of the live half is imported before a node is needed: some
commands have these options and mostly read files.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from waystation.cli.options import FILE, Checked

if TYPE_CHECKING:
    from waystation.net.tls import Tls
    from waystation.node import Node

Command = TypeVar("Command", bound=Callable[..., Any])


def _check_url(url: str) -> None:
    from waystation.transports.schemes import split_url  # noqa: PLC0415 - the live half

    split_url(url)


URL: Final = Checked("url", _check_url)
"""A network address with its transport: `tcp://host:port`."""

_OPTIONS: Final = (
    click.option("--token", help="Shared secret; prefer WAYSTATION_TOKEN or --token-file."),
    click.option("--token-file", type=FILE, help="File whose first line is the token."),
    click.option("--identity", type=FILE, help="Key file of the identity to prove to peers."),
    click.option("--tls", is_flag=True, help="Use TLS with the system's trusted certificates."),
    click.option(
        "--tls-authorities", type=FILE, help="Use TLS and trust only these CA certificates (PEM)."
    ),
    click.option(
        "--tls-certificate",
        type=FILE,
        help="Certificate of this side (PEM); required to listen with TLS.",
    ),
    click.option("--tls-key", type=FILE, help="Private key of the certificate (PEM)."),
    click.option("--tls-name", help="Name expected in the peer's certificate, if not its host."),
)


def peer_options(command: Command) -> Command:
    """Add the options for tokens, identity and TLS to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def node_for(name: str, urls: Iterable[str], options: dict[str, Any], **more: Any) -> Node:
    """A node with the transports, token and TLS settings to reach these URLs."""
    from waystation.node import Node  # noqa: PLC0415 - the live half
    from waystation.transports.schemes import SCHEMES, split_url  # noqa: PLC0415

    tls = _tls(options)
    schemes = {"tcp"} | {split_url(url)[0] for url in urls}
    transports = []
    for scheme in sorted(schemes):
        kind = SCHEMES[scheme]
        transports.append(kind.load_transport()(**({"tls": tls} if kind.has_tls else {})))
        if tls is not None and not kind.has_tls:
            raise click.UsageError(f"{scheme} does not support TLS; remove the --tls options")
    proof = {"token": _token(options), "identity": options["identity"]}
    return Node(name, transports=transports, **proof, **more)


def payload_fields(payload: bytes) -> dict[str, str]:
    """The JSON fields of a payload: as text if it is UTF-8, otherwise in base64.

    >>> payload_fields(b"hello"), payload_fields(bytes([255]))
    ({'payload': 'hello'}, {'payload_base64': '/w=='})
    """
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": b64encode(payload).decode()}


def _token(options: dict[str, Any]) -> str | None:
    token: str | None = options["token"]
    file: Path | None = options["token_file"]
    if file is None:
        return token
    if token is not None:
        raise click.UsageError("both --token and --token-file are given; give only one")
    lines = file.read_text("utf-8").splitlines()
    if not lines or not lines[0].strip():
        raise click.UsageError(
            f"the first line of --token-file {file} is empty; put the token there"
        )
    return lines[0].strip()


def _tls(options: dict[str, Any]) -> Tls | None:
    given = {name: options[f"tls_{name}"] for name in ("authorities", "certificate", "key", "name")}
    if not options["tls"] and not any(given.values()):
        return None
    from waystation.net.tls import Tls  # noqa: PLC0415 - the live half

    tls = Tls(**given)
    tls.for_dialler()  # report unusable files now, not when dialing
    return tls
