"""The transport of each URL scheme; each is imported only when a file uses it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar, Final

from msgspec import Struct

from waystation.errors import LocalError, quote
from waystation.net.place import parse_place
from waystation.transports.transport import Link, LinkOwner, Listener, Transport


class Scheme(Struct, frozen=True):
    """The module and classes of a transport, and the extra to install for it."""

    module: str
    transport: str
    limits: str = ""
    extra: str = ""
    has_tls: bool = True

    def load_transport(self) -> Any:
        """Import the class of the transport."""
        return self._load(self.transport)

    def load_limits(self) -> Any:
        """Import the class of its limits."""
        return self._load(self.limits)

    def _load(self, name: str) -> Any:
        try:
            return getattr(import_module(self.module), name)
        except ImportError as error:
            if not self.extra:
                raise
            raise LocalError(
                f"{self.module} cannot be loaded ({error})",
                rule="AD-2",
                hint=f"pip install 'waystation[{self.extra}]'",
            ) from error


SCHEMES: Final[Mapping[str, Scheme]] = {
    "tcp": Scheme("waystation.transports.tcp", "Tcp", "TcpLimits"),
    "ws": Scheme("waystation.transports.websocket", "WebSocket", "WebSocketLimits", "ws"),
    "udp": Scheme("waystation.transports.udp", "Udp", "UdpLimits", has_tls=False),
    "http": Scheme("waystation.transports.http", "Http", "HttpLimits", "http"),
    "joynr": Scheme("waystation.transports.joynr", "JoynrWebSocket", "JoynrLimits", "ws"),
}

OVER: Final = {"joynr": "joynr+ws"}
"""Schemes that are written otherwise in URLs, with what they run over."""

MQTT: Final = Scheme("waystation.transports.mqtt", "Mqtt", extra="mqtt")
GOSSIP: Final = Scheme("waystation.transports.gossip", "Gossip")
SERVICES: Final = {"mqtt": "mqtt", "gossip": "groups"}
"""Schemes that need an intermediary (a broker or a router), and the table that configures it."""


def split_url(url: str) -> tuple[str, str]:
    """Split a URL into its scheme and place; raises LocalError if no transport has the scheme.

    >>> split_url("tcp://127.0.0.1:4000")
    ('tcp', '127.0.0.1:4000')
    >>> split_url("wss://hub")
    Traceback (most recent call last):
    waystation.errors.LocalError: unsupported URL 'wss://hub'; write ws:// and ...
    """
    written, mark, place = url.partition("://")
    scheme = written.partition("+")[0]
    if not mark or scheme not in SCHEMES or written != OVER.get(scheme, scheme):
        secure = {"wss": "ws", "https": "http", "tls": "tcp", "joynr+wss": "joynr+ws"}.get(written)
        raise LocalError(
            f"unsupported URL {quote(url)}",
            rule="AD-2",
            hint=f"write {secure}:// and configure TLS"
            if secure
            else f"start with {', '.join(f'{OVER.get(known, known)}://' for known in SCHEMES)}",
        )
    parse_place(place.partition("/")[0])
    return scheme, place


def by_place(usual: Transport, others: Mapping[str, Transport]) -> Transport:
    """A transport that uses others of its type for some places, for instance with other TLS."""

    class ByPlace:
        """Selects the transport by place; all have the same address type."""

        type_name: ClassVar[str] = usual.type_name
        scheme: ClassVar[str] = getattr(usual, "scheme", usual.type_name)

        async def listen(self, place: str, accept: Callable[[], LinkOwner | None]) -> Listener:
            """Listen with the transport of this place."""
            return await others.get(place, usual).listen(place, accept)

        async def dial(self, places: Sequence[str], owner: LinkOwner) -> Link:
            """Dial with the transport of these places, which all belong to one peer."""
            return await others.get(places[0], usual).dial(places, owner)

    return ByPlace() if others else usual
