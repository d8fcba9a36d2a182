"""Options that say how to reach a peer, and the node that does: for `send`, `listen` and `top`.

No command lives here.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from waystation.cli.options import FILE, Checked
from waystation.config.schemes import SCHEMES, split_url
from waystation.net.tls import Tls
from waystation.node import Node

Command = TypeVar("Command", bound=Callable[..., Any])

URL: Final = Checked("url", split_url)
"""A place on the network with its transport: `tcp://host:port`."""

_OPTIONS: Final = (
    click.option("--token", help="The shared secret; better in WAYSTATION_TOKEN or a file."),
    click.option("--token-file", type=FILE, help="A file whose first line is the token."),
    click.option("--tls", is_flag=True, help="Use TLS, and believe whom the system believes."),
    click.option("--tls-authorities", type=FILE, help="Use TLS, and believe these instead."),
    click.option("--tls-certificate", type=FILE, help="Who we are; a TLS listener needs it."),
    click.option("--tls-key", type=FILE, help="The key of the certificate."),
    click.option("--tls-name", help="The name in the peer's certificate, if not its host."),
)


def peer_options(command: Command) -> Command:
    """Add the options for tokens and TLS; the command gets them all as `peer`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def node_for(name: str, urls: Iterable[str], options: dict[str, Any], **more: Any) -> Node:
    """A node that can reach these places."""
    tls = _tls(options)
    schemes = {"tcp"} | {split_url(url)[0] for url in urls}
    transports = []
    for scheme in sorted(schemes):
        kind = SCHEMES[scheme]
        transports.append(kind.load_transport()(**({"tls": tls} if kind.has_tls else {})))
        if tls is not None and not kind.has_tls:
            raise click.UsageError(f"{scheme} cannot be encrypted; leave the --tls options out")
    return Node(name, transports=transports, token=_token(options), **more)


def payload_fields(payload: bytes) -> dict[str, str]:
    """A payload in JSON: as text if it is one.

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
        raise click.UsageError("--token and --token-file are both given; give one of them")
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
    tls = Tls(**given)
    tls.for_dialler()  # files that cannot be used are told of at once, not when somebody dials
    return tls
