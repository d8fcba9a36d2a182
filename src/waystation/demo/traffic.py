"""What the leaves of the fleet do: trucks, a dispatcher and an archive.

A role gets a running node, generates traffic with it, and executes commands that cause faults. How
the node is connected is in its configuration file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from itertools import cycle
from typing import Any, Final, Protocol, TypeAlias

from waystation.core.directory import Scope
from waystation.core.message import Message
from waystation.demo.fleet import ARCHIVE, DISPATCHER, TRUCKS, Pace
from waystation.errors import WaystationError
from waystation.node import FAIL, Context, Node

DOMAIN: Final = "fleet"
POSITION: Final = "position"
ALARM: Final = "alarm"
NOWHERE: Final = "eu/xx/nowhere"
"""The partition of alarms, which has no subscribers."""

ALARMS: Final = 6
"""Number of alarms published at a time."""

REPLY_TIMEOUT: Final = 10.0
"""Seconds that the dispatcher waits for a reply."""

ROOM: Final = 6
"""Size of the archive's queue; further positions are dropped."""

_LIFE: Final = 60.0  # time to live of a position in seconds
_BETWEEN_ALARMS: Final = 0.02

Orders: TypeAlias = Mapping[str, Callable[[], None]]
Work: TypeAlias = Coroutine[Any, Any, None]


async def tell_position(message: Message, context: Context) -> None:
    """Reply with a position: the worker of every truck."""
    del message
    await context.reply(b"48.1 N 11.6 E")


class TrafficPeriod:
    """The period in which traffic is generated."""

    def __init__(self) -> None:
        self._over = asyncio.Event()

    def end(self) -> None:
        """Start no new work."""
        self._over.set()

    async def over(self) -> None:
        """Wait for the end of the period."""
        await self._over.wait()

    async def goes_on(self, seconds: float) -> bool:
        """Sleep for some seconds; return whether the period still goes on."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), seconds)
        return not self._over.is_set()


class Role(Protocol):
    """What a leaf does, and the commands that it executes."""

    orders: Orders
    settled: asyncio.Event  # set when it has found the others it needs

    def traffic(self, period: TrafficPeriod) -> list[Work]:
        """Coroutines to run side by side until the period ends and their work is done."""
        ...


class Truck:
    """Publishes its position, and registers itself in the directory."""

    def __init__(self, node: Node, pace: Pace) -> None:
        self._node = node
        self._pace = pace
        self._partition = next(truck.partition for truck in TRUCKS if truck.name == node.name)
        self._is_listed = True
        self.settled = _at_once()
        self.orders: Orders = {
            "unlist": lambda: self._be_listed(False),
            "list": lambda: self._be_listed(True),
        }
        node.subscribe(node.name, POSITION, "*", callback=_look)

    def traffic(self, period: TrafficPeriod) -> list[Work]:
        """Publish positions, and renew the registration."""
        return [self._publish(period), self._register(period)]

    async def _publish(self, period: TrafficPeriod) -> None:
        node = self._node
        payload = f"{node.name} is here".encode()
        while await period.goes_on(1 / self._pace.positions):
            await node.publish(POSITION, payload, partition=self._partition, ttl=_LIFE, policy=FAIL)

    async def _register(self, period: TrafficPeriod) -> None:
        node, listed = self._node, self._pace.listed
        pause = 0.0
        while await period.goes_on(pause):
            pause = listed / 4
            if self._is_listed:
                with suppress(WaystationError):  # its hub is away; it registers again soon
                    await node.register(node.name, DOMAIN, POSITION, everywhere=True, ttl=listed)

    def _be_listed(self, wanted: bool) -> None:
        self._is_listed = wanted


class Dispatcher:
    """Requests the positions of the trucks, and subscribes to what they publish."""

    def __init__(self, node: Node, pace: Pace) -> None:
        self._node = node
        self._pace = pace
        self._begun: set[asyncio.Task[None]] = set()
        self.settled = asyncio.Event()
        self.orders: Orders = {"alarm": lambda: self._begin(self._sound_alarm())}
        for truck in TRUCKS:
            node.subscribe(truck.name, POSITION, "eu/*", callback=_look)
        node.subscribe("truck-3", POSITION, "eu/fr/+", callback=_look)

    def traffic(self, period: TrafficPeriod) -> list[Work]:
        """Publish positions, and renew the registration."""
        return [self._ask_around(period), self._discover(period)]

    async def _ask_around(self, period: TrafficPeriod) -> None:
        await self.settled.wait()
        trucks = cycle(TRUCKS)
        while await period.goes_on(1 / self._pace.questions):
            self._begin(self._ask(next(trucks).name))
        if self._begun:
            await asyncio.wait(self._begun)

    async def _ask(self, truck: str) -> None:
        with suppress(WaystationError):  # the journals record it
            await self._node.request(f"hub-a => {truck}", b"where are you?", timeout=REPLY_TIMEOUT)

    async def _discover(self, period: TrafficPeriod) -> None:
        while await period.goes_on(self._pace.listed / 8):
            with suppress(WaystationError):  # the next request may succeed
                found = await self._node.discover(DOMAIN, POSITION, Scope.GLOBAL_ONLY)
                if len(found) == len(TRUCKS):
                    self.settled.set()

    async def _sound_alarm(self) -> None:
        """Publish a few alarms without subscribers."""
        for _ in range(ALARMS):
            await self._node.publish(
                ALARM, b"is anybody there?", partition=NOWHERE, ttl=_LIFE, visible=False
            )
            await asyncio.sleep(_BETWEEN_ALARMS)

    def _begin(self, work: Work) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)


class Archive:
    """Subscribes to everything, and stops reading when told to stall."""

    def __init__(self, node: Node, pace: Pace) -> None:
        del pace
        self._reading = _at_once()
        self.settled = _at_once()
        self.orders: Orders = {"stall": self._reading.clear, "read": self._reading.set}
        for truck in TRUCKS:
            node.subscribe(truck.name, POSITION, "*", callback=self._keep, inbox=ROOM)

    def traffic(self, period: TrafficPeriod) -> list[Work]:
        """None: it only receives."""
        del period
        return []

    async def _keep(self, message: Message) -> None:
        del message
        await self._reading.wait()


ROLES: Final[Mapping[str, Callable[[Node, Pace], Role]]] = {
    "truck": Truck,
    DISPATCHER: Dispatcher,
    ARCHIVE: Archive,
}
"""The roles of leaves, by name."""


def _at_once() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


def _look(message: Message) -> None:
    """Ignore a position."""
    del message
