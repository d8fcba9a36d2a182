"""A node of the fleet in `test_durable_kills`, which is killed at any moment and started again.

What it saw is appended to files, line by line: a line that was written survives its process.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from functools import partial
from pathlib import Path

import msgspec

from waystation.core.custody import CustodyArrival
from waystation.core.message import Message
from waystation.core.outcome import Outcome
from waystation.core.record import MessageRecord, Record
from waystation.node import Context, Limits, Node, StoreSettings

BROKEN = "broken"
"""The end of a payload whose handler always raises."""


class Plan(msgspec.Struct):
    """What a node of the fleet is and does."""

    name: str
    directory: str  # where its lines are
    store: str
    journal: str
    listen: str = ""
    parents: list[str] = []
    worker: str = ""
    receivers: list[str] = []  # to send to, until the file `stop` is there


class Lines:
    """A file to which lines are appended."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def add(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


async def main(plan: Plan) -> None:
    """Run until killed."""
    directory = Path(plan.directory)
    lines = Lines(directory / "lines")
    store = StoreSettings(directory=plan.store, attempts=2, pause=0.05, receiver_messages=500)
    async with Node(
        plan.name,
        hub=bool(plan.listen),
        limits=Limits(heartbeat=2.0),
        journal=plan.journal,
        store=store,
    ) as node:
        node.observe(partial(note, lines))
        if plan.worker:

            @node.worker(plan.worker)
            async def handle(message: Message, context: Context) -> None:
                lines.add("begun", message.payload.decode(), context.attempt, int(context.late))
                await asyncio.sleep(0.0005)
                if message.payload.endswith(BROKEN.encode()):
                    raise ValueError("as always")
                lines.add("handled", message.payload.decode(), context.attempt)

        if plan.listen:
            await node.listen(plan.listen)
        for parent in plan.parents:
            await node.connect(parent, parent=True, wait=None)
        lines.add("started")
        if plan.receivers:
            await send(node, plan, directory, lines)
        await asyncio.Event().wait()


def note(lines: Lines, record: Record) -> None:
    """Write down the final outcome of a durable message."""
    if isinstance(record, MessageRecord) and isinstance(record.arrival, CustodyArrival):
        payload = record.arrival.message.payload.decode()
        if record.verdict.outcome is Outcome.DELIVERED:
            lines.add("recorded", payload)
        elif record.verdict.outcome is Outcome.DROPPED:
            lines.add("dropped", payload, record.verdict.reason)


async def send(node: Node, plan: Plan, directory: Path, lines: Lines) -> None:
    """Send numbered messages to each receiver in turn."""
    text = (directory / "lines").read_text().splitlines()
    number = 1 + max([0, *(int(line.split("/")[1]) for line in text if line.startswith("try "))])
    while not (directory / "stop").exists():
        for receiver in plan.receivers:
            payload = f"{receiver}/{number}/{'' if number % 50 else BROKEN}"
            lines.add("try", payload)
            sent = await node.send(receiver, payload.encode(), durable=True)
            word = "acknowledged" if sent.outcome is Outcome.QUEUED else "refused"
            lines.add(word, payload, sent.id)
            if word == "refused":  # the workers are slower than this, or the disk is full
                await asyncio.sleep(0.05)
        number += 1
        await asyncio.sleep(0.002)
    lines.add("stopped")


def run(plan: Plan) -> None:
    """Be a node of the fleet, until killed or the fleet ends."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)  # with the one that forks
    log = os.open(Path(plan.directory) / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    asyncio.run(main(plan))
