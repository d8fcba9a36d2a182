"""One life of a program on a machine of the lab: what all kinds of them do."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections import Counter
from typing import TYPE_CHECKING

from waystation.testing.lab.history import Got, Sent

if TYPE_CHECKING:
    from waystation.testing.lab.fleet import Fleet

_KINDS = {b"send", b"request", b"publish", b"to-one", b"to-all"}


class Life(ABC):
    """From the start of a process to its end."""

    def __init__(self, fleet: Fleet, name: str, number: int) -> None:
        self.fleet = fleet
        self.name = name
        self.number = number
        self.chance = random.Random(f"{fleet.history.seed} {name} {number}")  # noqa: S311
        self._sequence: Counter[str] = Counter()
        self._tasks: dict[asyncio.Task[None], None] = {}

    @abstractmethod
    async def run(self) -> None:
        """Be what it is until the machine goes."""

    @abstractmethod
    def draw(self) -> tuple[str, str]:
        """What to send next: its kind, and to whom."""

    @abstractmethod
    async def send(self, kind: str, to: str, payload: bytes) -> str:
        """Send something; what came of it."""

    async def send_all(self) -> None:
        """Send now and then, until nobody is to send any more; then wait for the end."""
        fleet, loop = self.fleet, asyncio.get_running_loop()
        while fleet.now() < fleet.history.quiet_from:
            await asyncio.sleep(self.chance.expovariate(fleet.rate))
            if fleet.now() < fleet.history.quiet_from:
                task = loop.create_task(self._send_one())
                self._tasks[task] = None
                task.add_done_callback(self._tasks.pop)
        await asyncio.Event().wait()

    async def _send_one(self) -> None:
        kind, to = self.draw()
        self._sequence[to] += 1
        number = self._sequence[to]
        uid = f"{self.name}.{self.number}>{to}:{number}"
        sent = Sent(uid, self.fleet.now(), self.name, self.number, kind, to, number)
        self.fleet.history.sent.append(sent)
        payload = f"{kind} {uid} ".encode() + bytes(self.chance.choice((10, 100, 1000)))
        sent.outcome = await self.send(kind, to, payload)
        sent.ended = self.fleet.now()

    async def take_time(self) -> None:
        """Handle a message as slowly as a fault demands."""
        seconds = self.fleet.slow.get(self.name)
        if seconds is not None:
            await asyncio.sleep(seconds)

    def note_received(self, payload: bytes, receiver: str) -> None:
        """Remember that somebody here received something."""
        got = Got(uid_of(payload), self.fleet.now(), self.name, self.number, receiver)
        self.fleet.history.got.append(got)


def uid_of(payload: bytes) -> str:
    """The uid in a payload; a reply has one of its own."""
    words = payload.split(b" ", 3)
    if words[0] == b"reply" and len(words) > 2:
        return f"reply to {words[2].decode()}"
    return words[1].decode() if len(words) > 1 and words[0] in _KINDS else ""
