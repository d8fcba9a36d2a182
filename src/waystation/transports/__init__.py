"""What carries messages between nodes: one file each, all behind one small protocol."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from waystation.net.tls import Tls
    from waystation.transports.http import Http, HttpCounts, HttpLimits
    from waystation.transports.tcp import Tcp, TcpLimits
    from waystation.transports.transport import Broadcaster, Link, LinkOwner, Listener, Transport
    from waystation.transports.udp import Udp, UdpCounts, UdpLimits

__all__ = [
    "Broadcaster",
    "Http",
    "HttpCounts",
    "HttpLimits",
    "Link",
    "LinkOwner",
    "Listener",
    "Tcp",
    "TcpLimits",
    "Tls",
    "Transport",
    "Udp",
    "UdpCounts",
    "UdpLimits",
]

_HOMES: Final = {
    "waystation.net.tls": ("Tls",),
    "waystation.transports.http": ("Http", "HttpCounts", "HttpLimits"),
    "waystation.transports.tcp": ("Tcp", "TcpLimits"),
    "waystation.transports.transport": (
        *("Broadcaster", "Link", "LinkOwner", "Listener", "Transport"),
    ),
    "waystation.transports.udp": ("Udp", "UdpCounts", "UdpLimits"),
}
"""Where each name is at home. They are imported on demand: most nodes use one transport."""

_MODULES: Final = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a transport on demand."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
