"""One life of a program on a machine of the lab: what all kinds of them do."""

from __future__ import annotations

import asyncio
import random
import re
from abc import ABC, abstractmethod
from collections import Counter
from typing import TYPE_CHECKING, Final

from waystation.core.budget import OVERHEAD
from waystation.testing.lab.history import KINDS, Got, Sent

if TYPE_CHECKING:
    from waystation.testing.lab.around import Around


_BEGINNING: Final = re.compile(
    rf'(?:^|")(reply )?({"|".join(sorted(KINDS))}) ([^ "]+) '.encode()
)  # in joynr's JSON it stands in quotation marks
_LONGEST: Final = 400


class Life(ABC):
    """From the start of a process to its end."""

    def __init__(self, fleet: Around, name: str, number: int) -> None:
        self.fleet = fleet
        self.name = name
        self.number = number
        self.chance = random.Random(f"{fleet.history.seed} {name} {number}")  # noqa: S311
        self._sequence: Counter[str] = Counter()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.own_waiting = 0  # bytes that it has sent itself and that may still wait here

    @abstractmethod
    async def run(self) -> None:
        """Be what it is until the machine goes."""

    @abstractmethod
    def draw(self) -> tuple[str, str]:
        """What to send next: its kind, and to whom."""

    @abstractmethod
    async def send(self, sent: Sent, payload: bytes) -> str:
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
        payload = f"{kind} {uid} ".encode() + b"." * self.chance.choice(self.fleet.sizes)
        size = len(payload) + OVERHEAD
        self.own_waiting += size
        sent.outcome = await self.send(sent, payload)
        self.own_waiting -= size
        sent.ended = self.fleet.now()
        self.fleet.told(sent)

    async def take_time(self) -> None:
        """Handle a message as slowly as a fault demands."""
        seconds = self.fleet.slow.get(self.name)
        if seconds is not None:
            await asyncio.sleep(seconds)

    def note_received(
        self, payload: bytes, receiver: str, attempt: int = 1, *, is_late: bool = False
    ) -> None:
        """Remember that somebody here received something."""
        uid, now = uid_of(payload), self.fleet.now()
        got = Got(uid, now, self.name, self.number, receiver, attempt, is_late)
        self.fleet.history.got.append(got)


def kind_of(payload: bytes) -> str:
    """The kind of what was sent; `reply` for a reply, and nothing for what is not the lab's."""
    found = _BEGINNING.search(payload, 0, _LONGEST)
    return "" if found is None else (found[1] or found[2]).decode().strip()


def uid_of(payload: bytes) -> str:
    """The uid in a payload; a reply has one of its own."""
    found = _BEGINNING.search(payload, 0, _LONGEST)
    if found is None:
        return ""
    uid = found[3].decode()
    return f"reply to {uid}" if found[1] else uid
