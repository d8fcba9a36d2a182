"""What the tests of the router share: a running one, and clients of raw bytes for both dialects."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

from waystation.core.record import ChangeRecord
from waystation.gossip_router import Admission, GossipServer, GrantedAdmission, Settings
from waystation.net.place import parse_place
from waystation.net.tls import Tls
from waystation.wire import jgroups2, jgroups5
from waystation.wire.jgroups import PhysicalAddress, UuidAddress

PATIENCE = 80.0  # seconds, on a busy machine as well
HERE = PhysicalAddress("127.0.0.1", 7800)


def uuid(number: int) -> UuidAddress:
    """A member's address."""
    return UuidAddress(number.to_bytes(16, "big"))


@asynccontextmanager
async def serving(
    *,
    tls: Tls | None = None,
    admission: Admission | GrantedAdmission | None = None,
    **settings: Any,
) -> AsyncIterator[tuple[GossipServer, list[ChangeRecord]]]:
    """A router that listens, and what it told of its members; of deaths it tells at once."""
    told: list[ChangeRecord] = []
    server = GossipServer(
        Settings(**{"linger": 1.0, "suspect_after": 0, **settings}),
        tls=tls,
        admission=admission,
        observe=told.append,
    )
    await server.start("127.0.0.1:0")
    try:
        yield server, told
    finally:
        await server.drain()


class Raw:
    """A TCP connection whose bytes the test chooses."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, server: GossipServer, **options: Any) -> Self:
        """Connect."""
        host, port = parse_place(server.place)
        return cls(*await asyncio.open_connection(host, port, limit=1 << 24, **options))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()
        await asyncio.sleep(0)

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def get(self, size: int) -> bytes:
        """Exactly so many bytes."""
        return await asyncio.wait_for(self.reader.readexactly(size), PATIENCE)

    async def ended(self) -> bytes:
        """What still comes until the router closes."""
        try:
            return await asyncio.wait_for(self.reader.read(), PATIENCE)
        except ConnectionResetError:
            return b""

    def reset(self) -> None:
        """Vanish: the router gets a reset."""
        found = self.writer.get_extra_info("socket")
        found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def stop_reading(self) -> None:
        """From now on nobody takes what comes."""
        self.writer.transport.pause_reading()  # type: ignore[attr-defined]

    def read_again(self) -> None:
        """Take what comes."""
        self.writer.transport.resume_reading()  # type: ignore[attr-defined]


class Client5(Raw):
    """A client of 5.x."""

    async def frame(self) -> jgroups5.Value:
        """The next frame."""
        prefix = await self.get(4)
        length = int.from_bytes(prefix, "big", signed=True)
        return jgroups5.decode(prefix + (await self.get(length) if length > 0 else b""))

    def say(self, *values: jgroups5.Value) -> None:
        self.send(b"".join(map(jgroups5.encode, values)))

    async def sync(self) -> list[jgroups5.Value]:
        """What came before the router answered a heartbeat: it has done all that was asked."""
        self.say(jgroups5.Heartbeat())
        found: list[jgroups5.Value] = []
        while (value := await self.frame()) != jgroups5.Heartbeat():
            found.append(value)
        return found

    async def join(self, group: str, number: int, name: str = "m") -> Self:
        self.say(jgroups5.Register(group, uuid(number), name, HERE))
        await self.sync()
        return self


class Client2(Raw):
    """A client of 2.12."""

    def __init__(self, *streams: Any) -> None:
        super().__init__(*streams)
        self.decoder = jgroups2.AnswerDecoder()
        self.found: list[jgroups2.Answer] = []

    def say(self, *requests: jgroups2.Request) -> None:
        for request in requests:
            if isinstance(request, jgroups2.Connect):
                self.decoder.expect_connect_answer()
            if isinstance(request, jgroups2.GossipGet):
                self.decoder.expect_members()
        self.send(b"".join(map(jgroups2.encode, requests)))

    async def answer(self) -> jgroups2.Answer:
        """The next answer or notice."""
        while not self.found:
            data = await asyncio.wait_for(self.reader.read(65536), PATIENCE)
            assert data, "the router closed"
            self.found += self.decoder.feed(data)
        return self.found.pop(0)

    async def sync(self) -> list[jgroups2.Answer]:
        """What came before the router answered a question."""
        self.say(jgroups2.GossipGet("nobody is here"))
        found: list[jgroups2.Answer] = []
        while (value := await self.answer()) != jgroups2.Members():
            found.append(value)
        return found

    async def join(self, group: str, number: int, name: str = "m") -> Self:
        self.say(jgroups2.Connect(group, uuid(number), name, (HERE,)))
        assert await self.answer() == jgroups2.ConnectAnswer(ok=True)
        return self
