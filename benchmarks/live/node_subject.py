"""Waystation: nodes over TCP, and workers of one node.

Three subjects. Over TCP every role is a node of its own; the middle is a node with a session to the
sink, through which messages pass without a worker. In process, the sink is a worker of the driver's
node, and the middle another that forwards. The id of a message is the node's own. The last message
of one-way work is a request, whose answer the driver waits for; the others are plain sends. The
third subject is the first with a journal of every message, at both ends.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import waystation
from benchmarks.live import measure
from benchmarks.live.measure import Company, LiveError, Part, Subject, Work
from waystation import Message, Node, Route
from waystation.node import Context

PACKAGES = ("waystation", "uvloop")
_HOST = "tcp://127.0.0.1"
JOURNALLED = "journalled"


def stage(company: Company) -> int:
    """Start the sink, and the middle behind which it stands when there is one."""
    port = company.start("sink")
    return port if company.work.hops == 1 else company.start("middle", port)


def count_on(node: Node, every: int) -> None:
    """Have a node answer the last of every so many messages."""
    seen = every - 1  # so that the greeting is answered

    @node.worker("sink")
    async def sink(message: Message, context: Context) -> None:
        nonlocal seen
        seen += 1
        if seen == every:
            seen = 0
            await context.reply(message.payload)


@asynccontextmanager
async def _node(part: Part) -> AsyncIterator[Node]:
    """The node of a role; with a journal of every message where the subject keeps one."""
    if part.style != JOURNALLED:
        async with Node(part.role) as node:
            yield node
        return
    with tempfile.TemporaryDirectory(prefix="live-") as folder:
        async with Node(part.role, journal=folder) as node:
            yield node


async def _sink(part: Part) -> None:
    async with _node(part) as node:
        count_on(node, part.work.answer_every)
        listening = await node.listen(f"{_HOST}:0")
        measure.say_ready(int(listening.place.rpartition(":")[2]))
        await node.serve()


async def _middle(part: Part) -> None:
    async with _node(part) as node:
        await node.connect(f"{_HOST}:{part.port}", name="onward")
        listening = await node.listen(f"{_HOST}:0")
        measure.say_ready(int(listening.place.rpartition(":")[2]))
        await node.serve()


async def _driver(part: Part) -> None:
    work = part.work
    async with _node(part) as node:
        await node.connect(f"{_HOST}:{part.port}", name="next")
        await drive(node, "next => sink" if work.hops == 1 else "next => onward => sink", work)


async def _in_process(part: Part) -> None:
    work = part.work
    async with Node("driver") as node:
        count_on(node, work.answer_every)
        node.start_worker(("middle",), print)  # never called: what passes is forwarded without it
        await drive(node, "sink" if work.hops == 1 else "middle => sink", work)


async def drive(node: Node, route: str | Route, work: Work) -> None:
    """Do the work along a route, and tell the result."""
    payload = measure.payload_of(work.size)
    await node.request(route, b"greeting")
    if work.kind == "one way":
        start = time.perf_counter()
        for _ in range(work.count - 1):
            await node.send(route, payload)
        answer = await node.request(route, payload)
        seconds = time.perf_counter() - start
        _check(answer, payload)
        measure.say_rate(work.count, seconds)
        return
    trips = []
    for _ in range(measure.WARM_UP + work.count):
        before = time.perf_counter_ns()
        answer = await node.request(route, payload)
        trips.append(time.perf_counter_ns() - before)
        _check(answer, payload)
    measure.say_trips(trips[measure.WARM_UP :])


def _check(answer: Message, payload: bytes) -> None:
    if answer.payload != payload:
        raise LiveError(f"the answer has {len(answer.payload)} B, not {len(payload)}")


def _nothing_to_start(company: Company) -> int:
    del company
    return 0


_MODULE = "benchmarks.live.node_subject"
TCP = Subject("waystation, TCP", _MODULE, PACKAGES, stage)
TCP_JOURNALLED = Subject(
    "waystation, TCP, both nodes journalling", _MODULE, PACKAGES, stage, JOURNALLED
)
IN_PROCESS = Subject("waystation, in process", _MODULE, PACKAGES, _nothing_to_start, "in process")
SUBJECTS = (TCP, TCP_JOURNALLED, IN_PROCESS)


def _play(part: Part) -> None:
    roles = {
        "sink": _sink,
        "middle": _middle,
        "driver": _in_process if part.style == "in process" else _driver,
    }
    waystation.run(roles[part.role](part))


if __name__ == "__main__":
    measure.play(_play)
