"""What the leaves of the fleet do: trucks, a dispatcher and an archive.

A role gets a running node, makes traffic with it, and takes orders, which is how things go wrong on
purpose. Where the node is and how it is connected is the business of its file.
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
"""Where an alarm goes that nobody wants to hear."""

ALARMS: Final = 6
"""So many of them are sounded at a time."""

ANSWER: Final = 10.0
"""Seconds that the dispatcher waits for an answer."""

ROOM: Final = 6
"""So many positions of a truck wait for the archive; then it does without more."""

_LIFE: Final = 60.0  # seconds after which a position is of no use
_BETWEEN_ALARMS: Final = 0.02

Orders: TypeAlias = Mapping[str, Callable[[], None]]
Work: TypeAlias = Coroutine[Any, Any, None]


async def tell_position(message: Message, context: Context) -> None:
    """Answer a question: the worker of every truck."""
    del message
    await context.reply(b"48.1 N 11.6 E")


class TrafficPeriod:
    """The time in which traffic is made."""

    def __init__(self) -> None:
        self._over = asyncio.Event()

    def end(self) -> None:
        """Begin nothing more."""
        self._over.set()

    async def over(self) -> None:
        """Return when nothing more is begun."""
        await self._over.wait()

    async def goes_on(self, seconds: float) -> bool:
        """Let so much time pass; says whether there is anything to do then."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), seconds)
        return not self._over.is_set()


class Role(Protocol):
    """What a leaf does, and which orders it obeys."""

    orders: Orders
    settled: asyncio.Event  # it has found whom it needs

    def traffic(self, period: TrafficPeriod) -> list[Work]:
        """Coroutines to run side by side until the period ends and their work is done."""
        ...


class Truck:
    """Publishes where it is, shows it to its driver, and has itself listed for everybody."""

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
        """Two things at a time."""
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
                with suppress(WaystationError):  # its hub is away; it is told again soon
                    await node.register(node.name, DOMAIN, POSITION, everywhere=True, ttl=listed)

    def _be_listed(self, wanted: bool) -> None:
        self._is_listed = wanted


class Dispatcher:
    """Asks the trucks where they are, wherever they are, and hears what they publish."""

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
        """Two things at a time."""
        return [self._ask_around(period), self._discover(period)]

    async def _ask_around(self, period: TrafficPeriod) -> None:
        await self.settled.wait()
        trucks = cycle(TRUCKS)
        while await period.goes_on(1 / self._pace.questions):
            self._begin(self._ask(next(trucks).name))
        if self._begun:
            await asyncio.wait(self._begun)

    async def _ask(self, truck: str) -> None:
        with suppress(WaystationError):  # the journals tell of it
            await self._node.request(f"hub-a => {truck}", b"where are you?", timeout=ANSWER)

    async def _discover(self, period: TrafficPeriod) -> None:
        while await period.goes_on(self._pace.listed / 8):
            with suppress(WaystationError):  # the next question will be answered
                found = await self._node.discover(DOMAIN, POSITION, Scope.GLOBAL_ONLY)
                if len(found) == len(TRUCKS):
                    self.settled.set()

    async def _sound_alarm(self) -> None:
        """Publish a few times to nobody."""
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
    """Hears everything that is published, and stops reading when it is told to stall."""

    def __init__(self, node: Node, pace: Pace) -> None:
        del pace
        self._reading = _at_once()
        self.settled = _at_once()
        self.orders: Orders = {"stall": self._reading.clear, "read": self._reading.set}
        for truck in TRUCKS:
            node.subscribe(truck.name, POSITION, "*", callback=self._keep, inbox=ROOM)

    def traffic(self, period: TrafficPeriod) -> list[Work]:
        """It only listens."""
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
"""What a leaf can be, by name."""


def _at_once() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


def _look(message: Message) -> None:
    """See a position; nothing is kept of it."""
    del message
