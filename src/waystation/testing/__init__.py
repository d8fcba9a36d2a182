"""What we test with, and you can too: a clock, a network in memory, a conformance kit."""

from waystation.testing.clock import ManualClock
from waystation.testing.conformance import Conformance, NotConformingError, check_transport
from waystation.testing.datagram_path import udp_path
from waystation.testing.memory import MemoryNetwork, MemoryTransport
from waystation.testing.path import FaultyPath, TcpPath, tcp_path

__all__ = [
    "Conformance",
    "FaultyPath",
    "ManualClock",
    "MemoryNetwork",
    "MemoryTransport",
    "NotConformingError",
    "TcpPath",
    "check_transport",
    "tcp_path",
    "udp_path",
]
