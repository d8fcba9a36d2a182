"""Injects faults into the fleet, one after the other, and records each.

A fault lasts until its effect is in the journals, so that slow and fast machines show the same. The
records say what was done and when, but not what it caused: that is derived from the tables
(findings.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from msgspec import Struct, structs

from waystation.demo.fleet import ARCHIVE, DISPATCHER, Fleet
from waystation.demo.live_counts import LiveCounts
from waystation.demo.traffic import ALARMS

EFFECT_TIMEOUT: Final = 30.0
"""Maximum seconds to wait for the effect of a fault."""

_MIN_DROPS: Final = 3  # minimum number of messages that a fault must cost


class FaultKind(StrEnum):
    """Kinds of faults."""

    KILLED = "killed"
    EXPIRED = "expired"
    STALLED = "stalled"
    RESTARTED = "restarted"
    UNHEARD = "unheard"


class Fault(Struct, frozen=True):
    """An injected fault, its subject, and its start and end in microseconds since the epoch."""

    kind: FaultKind
    subject: str
    words: str
    began: int
    ended: int


class FaultInjector:
    """Injects all faults into a running fleet; uses the caller's `wait` and `say`."""

    def __init__(
        self,
        fleet: Fleet,
        live: LiveCounts,
        wait: Callable[[Callable[[], bool], float], bool],
        say: Callable[[str], None],
    ) -> None:
        self.done: list[Fault] = []
        self._fleet = fleet
        self._live = live
        self._wait = wait
        self._say = say

    def inject_all(self) -> None:
        """Inject one fault after the other, with a pause around each."""
        for act in (
            self._kill_a_truck,
            self._let_a_route_expire,
            self._stall_a_receiver,
            self._restart_a_hub,
            self._publish_to_nobody,
        ):
            self._pause()
            act()
        self._pause()

    def _kill_a_truck(self) -> None:
        fleet, drops = self._fleet, self._drops("hub-a", "NO_ROUTE", "0#truck-2")
        fault = self._begin(
            FaultKind.KILLED, "truck-2", "truck-2 is killed (SIGKILL) and started again"
        )
        fleet.kill("truck-2")
        self._hold(lambda: drops() >= _MIN_DROPS)
        fleet.restart("truck-2")
        self._end(fault)

    def _let_a_route_expire(self) -> None:
        truck, drops = (
            self._fleet.processes["truck-3"],
            self._drops("hub-a", "NO_ROUTE", "0#truck-3"),
        )
        words = f"truck-3 does not renew its directory entry, which is valid for {self._listed} s"
        fault = self._begin(FaultKind.EXPIRED, "truck-3", words)
        truck.order("unlist")
        self._hold(lambda: drops() >= _MIN_DROPS)
        truck.order("list")
        self._end(fault)

    def _stall_a_receiver(self) -> None:
        archive, drops = self._fleet.processes[ARCHIVE], self._drops(ARCHIVE, "QUEUE_FULL")
        fault = self._begin(FaultKind.STALLED, ARCHIVE, "the archive stops reading its messages")
        archive.order("stall")
        self._hold(lambda: drops() >= 4 * _MIN_DROPS)
        archive.order("read")
        self._end(fault)

    def _restart_a_hub(self) -> None:
        drops = self._drops("hub-a", "TRANSPORT_DOWN")
        fault = self._begin(FaultKind.RESTARTED, "hub-b", "hub-b is stopped and started again")
        self._fleet.stop("hub-b")
        self._hold(lambda: drops() >= _MIN_DROPS)
        counts = self._live.counts[ARCHIVE]
        before = counts["DELIVERED"]
        self._fleet.restart("hub-b")
        self._wait(lambda: counts["DELIVERED"] >= before + _MIN_DROPS, EFFECT_TIMEOUT)
        self._end(fault)

    def _publish_to_nobody(self) -> None:
        drops = self._drops("hub-a", "NO_SUBSCRIBER")
        words = f"the dispatcher publishes {ALARMS} alarms without subscribers"
        fault = self._begin(FaultKind.UNHEARD, DISPATCHER, words)
        self._fleet.processes[DISPATCHER].order("alarm")
        self._wait(lambda: drops() >= ALARMS, EFFECT_TIMEOUT)
        self._end(fault)

    # Internals

    @property
    def _listed(self) -> str:
        return f"{self._fleet.pace.listed:g}"

    def _drops(self, node: str, reason: str, onward: str = "") -> Callable[[], int]:
        """A function that counts what a node drops from now on."""
        live = self._live
        since = len(live.drops)
        return lambda: live.dropped(node, reason, onward, since)

    def _hold(self, shows: Callable[[], bool]) -> None:
        """Keep a fault for its minimum time, and until its effect shows."""
        self._wait(lambda: False, self._fleet.pace.hold)
        self._wait(shows, EFFECT_TIMEOUT)

    def _pause(self) -> None:
        self._wait(lambda: False, self._fleet.pace.calm)

    def _begin(self, kind: FaultKind, subject: str, words: str) -> Fault:
        self._say(f"fault: {words}")
        return Fault(kind, subject, words, _now(), 0)

    def _end(self, fault: Fault) -> None:
        self.done.append(structs.replace(fault, ended=_now()))


def _now() -> int:
    return time.time_ns() // 1000
