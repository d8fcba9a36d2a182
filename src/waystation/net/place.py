"""Places on the network: `host:port`, with an IPv6 host in brackets."""

from __future__ import annotations

from waystation.errors import LocalError, quote


def parse_place(text: str) -> tuple[str, int]:
    """The host and the port.

    >>> parse_place("127.0.0.1:4000"), parse_place("[::1]:0")
    (('127.0.0.1', 4000), ('::1', 0))
    >>> parse_place("localhost")
    Traceback (most recent call last):
    waystation.errors.LocalError: invalid address 'localhost'; write host:port...
    """
    host, mark, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not (mark and host and port.isascii() and port.isdigit() and int(port) <= 65535):
        raise LocalError(
            f"invalid address {quote(text)}",
            rule="AD-1",
            hint="write host:port, with a port up to 65535, and an IPv6 address in brackets",
        )
    return host, int(port)


def place_of(address: tuple[object, ...]) -> str:
    """The place of a socket's address.

    >>> place_of(("::1", 4000, 0, 0)), place_of(("127.0.0.1", 4000))
    ('[::1]:4000', '127.0.0.1:4000')
    """
    host, port = str(address[0]), address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
