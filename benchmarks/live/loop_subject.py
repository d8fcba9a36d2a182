"""The floor: uvloop and a socket, bytes sent back as they come, without any message in them.

Nothing that is written in Python on asyncio can be faster than this on the machine of the run.
"""

from __future__ import annotations

import asyncio
import socket
import time
from typing import cast

import uvloop

from benchmarks.live import measure
from benchmarks.live.measure import Company, LiveError, Part, Subject

PACKAGES = ("uvloop",)


class _Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        found = transport.get_extra_info("socket")
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


class _Asker(asyncio.Protocol):
    def __init__(self, size: int, count: int) -> None:
        self.trips: list[int] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._payload = measure.payload_of(max(1, size))
        self._count = count
        self._missing = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        found = transport.get_extra_info("socket")
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._ask()

    def data_received(self, data: bytes) -> None:
        self._missing -= len(data)
        if self._missing:
            return
        self.trips.append(time.perf_counter_ns() - self._start)
        if len(self.trips) < self._count:
            self._ask()
        elif not self.done.done():
            self.done.set_result(None)

    def _ask(self) -> None:
        self._missing = len(self._payload)
        self._start = time.perf_counter_ns()
        self._transport.write(self._payload)


async def _sink() -> None:
    server = await asyncio.get_running_loop().create_server(_Echo, "127.0.0.1", 0)
    measure.say_ready(server.sockets[0].getsockname()[1])
    await server.serve_forever()


async def _driver(part: Part) -> None:
    work = part.work
    if work.kind != "round trip" or work.hops != 1:
        raise LiveError("only round trips over one hop")
    loop = asyncio.get_running_loop()
    _, asker = await loop.create_connection(
        lambda: _Asker(work.size, measure.WARM_UP + work.count), "127.0.0.1", part.port
    )
    await asker.done
    measure.say_trips(asker.trips[measure.WARM_UP :])


def _stage(company: Company) -> int:
    return company.start("sink")


LOOP = Subject("uvloop alone, bytes echoed", "benchmarks.live.loop_subject", PACKAGES, _stage)


def _play(part: Part) -> None:
    uvloop.run(_sink() if part.role == "sink" else _driver(part))


if __name__ == "__main__":
    measure.play(_play)
