"""Members that come and go at a router, many at a time: who is suspected, how long a list takes.

For the tests and for the benchmark, which counts in another process and at a steady pace.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections import deque
from functools import partial
from typing import cast

from msgspec import Struct

from tests.gossip_router.clients import HERE, PATIENCE, uuid
from waystation.net.place import parse_place
from waystation.wire.jgroups5 import (
    Decoder,
    GetMembers,
    Members,
    Message,
    Register,
    Suspect,
    Unregister,
    encode,
)

GROUP = "churn"
RELEASE = (5 << 11 | 5 << 6 | 7).to_bytes(2, "big")  # so that the router knows how to say SUSPECT
_RESET = struct.pack("ii", 1, 0)


class Seen(Struct):
    """What all members together have seen."""

    suspects: int = 0
    lists: deque[int] = deque()  # how many members were on each


class Visitor(asyncio.Protocol):
    """A member that registers at once, and notes what it hears."""

    def __init__(self, number: int, seen: Seen) -> None:
        self.number = number
        self.answered = asyncio.Event()
        self._seen = seen
        self._decoder = Decoder()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        address = uuid(self.number)
        self.transport.write(
            encode(Register(GROUP, address, "m", HERE))
            + encode(Message(GROUP, address, address, RELEASE))
        )

    def data_received(self, data: bytes) -> None:
        for value in self._decoder.feed(data):
            if isinstance(value, Suspect):
                self._seen.suspects += 1
            elif isinstance(value, Members):
                self._seen.lists.append(len(value.members))
                self.answered.set()

    def say_to_all(self, text: bytes) -> None:
        """Have the router write to everybody."""
        self.transport.write(encode(Message(GROUP, None, uuid(self.number), RELEASE + text)))

    async def ask(self) -> float:
        """The seconds that a list of the members took."""
        self.answered.clear()
        before = time.perf_counter()
        self.transport.write(encode(GetMembers(GROUP)))
        await asyncio.wait_for(self.answered.wait(), PATIENCE)
        return time.perf_counter() - before

    def stop_reading(self) -> None:
        """From now on something will be unread when it closes."""
        self.transport.pause_reading()

    def leave(self) -> None:
        """Leave in order, and be gone at once, with what was not read."""
        self.transport.write(encode(Unregister(GROUP, uuid(self.number))))
        self.vanish()

    def vanish(self) -> None:
        """Go without a word."""
        found = self.transport.get_extra_info("socket")
        found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()


def _itself(made: Visitor) -> Visitor:
    return made


class Crowd:
    """The members of a group, of which the oldest leave and new ones come."""

    def __init__(self, place: str) -> None:
        self.seen = Seen()
        self.members: deque[Visitor] = deque()
        self._place = parse_place(place)
        self._number = 0

    async def enter(self, count: int = 1) -> None:
        """Let new ones come."""
        loop = asyncio.get_running_loop()
        for _ in range(count):
            self._number += 1
            visitor = Visitor(self._number, self.seen)
            await loop.create_connection(partial(_itself, visitor), *self._place)
            self.members.append(visitor)

    async def change(self, *, news: bool = True) -> None:
        """The oldest leaves, with news while the router writes to it, and a new one comes."""
        oldest = self.members.popleft()
        if news:
            oldest.stop_reading()
            self.members[0].say_to_all(b"news")
            await asyncio.sleep(0)
        oldest.leave()
        if news:
            self.members[-1].say_to_all(b"more news")
        await self.enter()

    async def settle(self) -> float:
        """Wait until the router lists those who are here and nobody else; how long a list took."""
        asker = self.members[-1]
        async with asyncio.timeout(PATIENCE * 3):
            while True:
                seconds = await asker.ask()
                if self.seen.lists[-1] == len(self.members):
                    return seconds
                await asyncio.sleep(0.01)

    def end(self) -> None:
        """Let all go."""
        for member in self.members:
            member.transport.abort()
        self.members.clear()
