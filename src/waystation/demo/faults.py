"""What is done to the fleet on purpose, one thing after the other, and a note of each.

A fault lasts until its effect is in the journals, so that a slow machine shows the same as a fast
one. The notes say what was done and when, and nothing of what came of it: that is found out from
the tables (comparison.py).
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
"""Seconds after which the effect of a fault will not show any more."""

_MIN_DROPS: Final = 3  # messages that a fault costs at least


class FaultKind(StrEnum):
    """What can be done to a fleet."""

    KILLED = "killed"
    EXPIRED = "expired"
    STALLED = "stalled"
    RESTARTED = "restarted"
    UNHEARD = "unheard"


class Fault(Struct, frozen=True):
    """Something that was done, to whom, and from when to when in microseconds since the epoch."""

    kind: FaultKind
    subject: str
    words: str
    began: int
    ended: int


class FaultInjector:
    """Does all of it to a fleet that works; `wait` and `say` are those of whoever shows it."""

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
        """Break one thing after the other, with some calm around each."""
        for act in (
            self._kill_a_truck,
            self._let_a_route_expire,
            self._stall_a_receiver,
            self._restart_a_hub,
            self._publish_to_nobody,
        ):
            self._calm()
            act()
        self._calm()

    def _kill_a_truck(self) -> None:
        fleet, drops = self._fleet, self._drops("hub-a", "NO_ROUTE", "0#truck-2")
        fault = self._begin(
            FaultKind.KILLED, "truck-2", "truck-2 is killed (SIGKILL), and started again"
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
        words = f"truck-3 does not renew its place in the directory, which holds {self._listed} s"
        fault = self._begin(FaultKind.EXPIRED, "truck-3", words)
        truck.order("unlist")
        self._hold(lambda: drops() >= _MIN_DROPS)
        truck.order("list")
        self._end(fault)

    def _stall_a_receiver(self) -> None:
        archive, drops = self._fleet.processes[ARCHIVE], self._drops(ARCHIVE, "QUEUE_FULL")
        fault = self._begin(FaultKind.STALLED, ARCHIVE, "the archive stops reading what it is sent")
        archive.order("stall")
        self._hold(lambda: drops() >= 4 * _MIN_DROPS)
        archive.order("read")
        self._end(fault)

    def _restart_a_hub(self) -> None:
        drops = self._drops("hub-a", "TRANSPORT_DOWN")
        fault = self._begin(FaultKind.RESTARTED, "hub-b", "hub-b is stopped, and started again")
        self._fleet.stop("hub-b")
        self._hold(lambda: drops() >= _MIN_DROPS)
        counts = self._live.counts[ARCHIVE]
        before = counts["DELIVERED"]
        self._fleet.restart("hub-b")
        self._wait(lambda: counts["DELIVERED"] >= before + _MIN_DROPS, EFFECT_TIMEOUT)
        self._end(fault)

    def _publish_to_nobody(self) -> None:
        drops = self._drops("hub-a", "NO_SUBSCRIBER")
        words = f"the dispatcher publishes {ALARMS} alarms that nobody subscribed to"
        fault = self._begin(FaultKind.UNHEARD, DISPATCHER, words)
        self._fleet.processes[DISPATCHER].order("alarm")
        self._wait(lambda: drops() >= ALARMS, EFFECT_TIMEOUT)
        self._end(fault)

    # Inside

    @property
    def _listed(self) -> str:
        return f"{self._fleet.pace.listed:g}"

    def _drops(self, node: str, reason: str, onward: str = "") -> Callable[[], int]:
        """Counts what a node drops from now on."""
        live = self._live
        since = len(live.drops)
        return lambda: live.dropped(node, reason, onward, since)

    def _hold(self, shows: Callable[[], bool]) -> None:
        """Let a fault last its time, and until it shows."""
        self._wait(lambda: False, self._fleet.pace.hold)
        self._wait(shows, EFFECT_TIMEOUT)

    def _calm(self) -> None:
        self._wait(lambda: False, self._fleet.pace.calm)

    def _begin(self, kind: FaultKind, subject: str, words: str) -> Fault:
        self._say(f"on purpose: {words}")
        return Fault(kind, subject, words, _now(), 0)

    def _end(self, fault: Fault) -> None:
        self.done.append(structs.replace(fault, ended=_now()))


def _now() -> int:
    return time.time_ns() // 1000
