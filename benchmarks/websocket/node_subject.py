"""Waystation: two nodes with a session over a WebSocket between them."""

from __future__ import annotations

import time

import waystation
from benchmarks.live import measure
from benchmarks.live.measure import Company, LiveError, Part, Subject, Work
from waystation import Message, Node
from waystation.node import Context
from waystation.transports.websocket import WebSocket

PACKAGES = ("waystation", "uvloop", "websockets")
_HOST = "ws://127.0.0.1"


def stage(company: Company) -> int:
    """Start the sink."""
    return company.start("sink")


async def _sink(part: Part) -> None:
    every = part.work.answer_every
    seen = every - 1  # so that the greeting is answered
    async with Node("sink", transports=[WebSocket()]) as node:

        @node.worker("sink")
        async def sink(message: Message, context: Context) -> None:
            nonlocal seen
            seen += 1
            if seen == every:
                seen = 0
                await context.reply(message.payload)

        listening = await node.listen(f"{_HOST}:0")
        measure.say_ready(int(listening.place.rpartition(":")[2]))
        await node.serve()


async def _driver(part: Part) -> None:
    async with Node("driver", transports=[WebSocket()]) as node:
        await node.connect(f"{_HOST}:{part.port}", name="next")
        await node.request("next => sink", b"greeting")
        if part.work.kind == "one way":
            await _one_way(node, part.work)
        else:
            await _round_trips(node, part.work)


async def _one_way(node: Node, work: Work) -> None:
    payload = measure.payload_of(work.size)
    start = time.perf_counter()
    for _ in range(work.count - 1):
        await node.send("next => sink", payload)
    answer = await node.request("next => sink", payload)
    seconds = time.perf_counter() - start
    _check(answer, payload)
    measure.say_rate(work.count, seconds)


async def _round_trips(node: Node, work: Work) -> None:
    payload = measure.payload_of(work.size)
    trips = []
    for _ in range(measure.WARM_UP + work.count):
        before = time.perf_counter_ns()
        answer = await node.request("next => sink", payload)
        trips.append(time.perf_counter_ns() - before)
        _check(answer, payload)
    measure.say_trips(trips[measure.WARM_UP :])


def _check(answer: Message, payload: bytes) -> None:
    if answer.payload != payload:
        raise LiveError(f"the answer has {len(answer.payload)} B, not {len(payload)}")


NODE = Subject("waystation, WebSocket", "benchmarks.websocket.node_subject", PACKAGES, stage)


if __name__ == "__main__":
    measure.play(lambda part: waystation.run({"sink": _sink, "driver": _driver}[part.role](part)))
