"""The package websockets by itself, on uvloop: a client and a server that pass on the same bytes.

A message has as many bytes as one of our nodes writes for the same payload: routes, id and expiry
with it. Nothing is made of them. No compression, and no pings of its own.
"""

from __future__ import annotations

import asyncio
import time

from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve

import waystation
from benchmarks.live import measure
from benchmarks.live.measure import Company, LiveError, Part, Subject, Work
from waystation import Message, Route
from waystation.wire import bare

PACKAGES = ("websockets", "uvloop")
_HOST = "127.0.0.1"


def stage(company: Company) -> int:
    """Start the sink."""
    return company.start("sink")


def _body(size: int) -> bytes:
    """What a node writes for a payload of this size."""
    back = Route.parse("request-0123456789abcdef")
    id, expiry = "4bf92f3577b34da6a3ce929d0e0e4736", 1_700_000_000_000
    return bare.encode(Message(Route.parse("sink"), back, measure.payload_of(size), id, expiry))


async def _sink(part: Part) -> None:
    every = part.work.answer_every

    async def handle(peer: ServerConnection) -> None:
        seen = every - 1
        async for message in peer:
            seen += 1
            if seen == every:
                seen = 0
                await peer.send(message)

    async with serve(handle, _HOST, 0, compression=None, ping_interval=None) as server:
        measure.say_ready(server.sockets[0].getsockname()[1])
        await asyncio.Event().wait()


async def _driver(part: Part) -> None:
    url = f"ws://{_HOST}:{part.port}"
    async with connect(url, compression=None, ping_interval=None) as peer:
        await peer.send(b"greeting")
        await peer.recv()
        if part.work.kind == "one way":
            await _one_way(peer, part.work)
        else:
            await _round_trips(peer, part.work)


async def _one_way(peer: ClientConnection, work: Work) -> None:
    body = _body(work.size)
    start = time.perf_counter()
    for _ in range(work.count):
        await peer.send(body)
    answer = await peer.recv()
    seconds = time.perf_counter() - start
    _check(answer, body)
    measure.say_rate(work.count, seconds)


async def _round_trips(peer: ClientConnection, work: Work) -> None:
    body = _body(work.size)
    trips = []
    for _ in range(measure.WARM_UP + work.count):
        before = time.perf_counter_ns()
        await peer.send(body)
        answer = await peer.recv()
        trips.append(time.perf_counter_ns() - before)
        _check(answer, body)
    measure.say_trips(trips[measure.WARM_UP :])


def _check(answer: str | bytes, body: bytes) -> None:
    if answer != body:
        raise LiveError(f"the answer has {len(answer)} B, not {len(body)}")


BARE = Subject("websockets alone", "benchmarks.websocket.bare_subject", PACKAGES, stage)


if __name__ == "__main__":
    measure.play(lambda part: waystation.run({"sink": _sink, "driver": _driver}[part.role](part)))
