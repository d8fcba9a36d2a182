"""The test kit: fleets with faults, waits without sleeps, outcomes recorded, transports checked.

Waystation's own tests use it, and yours can too. It needs no test framework; the fixtures for
pytest are in `waystation.testing.fixtures`.
"""

from waystation.testing.checks import Conformance, NotConformingError
from waystation.testing.clock import ManualClock
from waystation.testing.conformance import CHECKS, LOSSY_CHECKS, check_transport
from waystation.testing.datagram_path import udp_path
from waystation.testing.fleet import Fleet, has_route
from waystation.testing.hostile import HOSTILE_CHECKS
from waystation.testing.listener import (
    LISTENER_CHECKS,
    ListenerCase,
    StartedListener,
    check_listener,
)
from waystation.testing.memory import MemoryNetwork, MemoryPath, MemoryTransport
from waystation.testing.path import FaultyPath, TcpPath, tcp_path
from waystation.testing.recorder import Recorder, reason_or_outcome
from waystation.testing.running import async_test, run_checked
from waystation.testing.waiting import DEADLINE, settle, until, wait_until
from waystation.testing.workers import Gate, collect, echo

__all__ = [
    "CHECKS",
    "DEADLINE",
    "HOSTILE_CHECKS",
    "LISTENER_CHECKS",
    "LOSSY_CHECKS",
    "Conformance",
    "FaultyPath",
    "Fleet",
    "Gate",
    "ListenerCase",
    "ManualClock",
    "MemoryNetwork",
    "MemoryPath",
    "MemoryTransport",
    "NotConformingError",
    "Recorder",
    "StartedListener",
    "TcpPath",
    "async_test",
    "check_listener",
    "check_transport",
    "collect",
    "echo",
    "has_route",
    "reason_or_outcome",
    "run_checked",
    "settle",
    "tcp_path",
    "udp_path",
    "until",
    "wait_until",
]
