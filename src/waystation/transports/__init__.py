"""What carries messages between nodes: one file each, all behind one small protocol."""

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
