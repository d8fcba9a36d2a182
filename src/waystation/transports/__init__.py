"""What carries messages between nodes: one file each, all behind one small protocol."""

from waystation.transports.tcp import Tcp, TcpLimits
from waystation.transports.tls import Tls
from waystation.transports.transport import Link, LinkOwner, Listener, Transport

__all__ = ["Link", "LinkOwner", "Listener", "Tcp", "TcpLimits", "Tls", "Transport"]
