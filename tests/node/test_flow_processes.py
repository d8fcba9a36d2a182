"""A leaf whose process is stopped: others of its hub are served, and it gets the rest in order."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from waystation.core.outcome import Outcome
from waystation.node import Node, Wait
from waystation.testing import async_test, until

ROOT = Path(__file__).resolve().parents[2]
START = 60.0  # seconds for a process to start, on a busy machine
ANSWER = 20.0  # below the 30 s after which what waits for a stopped leaf is dropped
MESSAGES = 1_600
SIZE = 10_000
LAST = b"999999"


class Child:
    """A process of a test, and the lines that it has printed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.lines.append(line.decode().strip())


@asynccontextmanager
async def child(*arguments: str) -> AsyncIterator[Child]:
    """A process that has said its first line; it is killed in the end, stopped or not."""
    program = (sys.executable, "-m", "tests.node.flow_processes", *arguments)
    process = await asyncio.create_subprocess_exec(
        *program, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    started = Child(process)
    reading = asyncio.create_task(started.read())
    try:
        await until(lambda: started.lines, seconds=START)
        yield started
    finally:
        process.kill()
        await process.wait()
        await reading


@pytest.mark.rule("FL-3")
@async_test
async def test_a_stopped_process_delays_nobody_and_gets_what_waited_in_order() -> None:
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(child("hub"))
        (url,) = hub.lines
        await stack.enter_async_context(child("leaf", "good", url))
        stopped = await stack.enter_async_context(child("leaf", "stopped", url))
        node = await stack.enter_async_context(Node("T", hub=True))
        session = await node.connect(url, parent=True, wait=START)
        stopped.process.send_signal(signal.SIGSTOP)

        async def send(number: int) -> Outcome:
            payload = b"%06d" % number + bytes(SIZE - 6)
            return (await node.send("stopped", payload, policy=Wait(START))).outcome

        sending = [asyncio.ensure_future(send(number)) for number in range(MESSAGES)]
        await until(lambda: session.held_names == ("0#stopped",))
        for number in range(20):
            answer = await node.request("good", b"%d" % number, timeout=ANSWER)
            assert answer.payload == b"%d" % number
        assert session.held_names == ("0#stopped",)  # it was stopped, and known to be, all the time
        assert len(stopped.lines) == 1
        stopped.process.send_signal(signal.SIGCONT)
        assert set(await asyncio.gather(*sending)) == {Outcome.FORWARDED}
        await node.send("stopped", LAST)
        ended = MESSAGES + 1
        await until(lambda: len(stopped.lines) + len(hub.lines) - 2 == ended, seconds=START)
        got, dropped = ([int(line) for line in one.lines[1:]] for one in (stopped, hub))
        assert got == [*sorted(set(range(MESSAGES)) - set(dropped)), int(LAST)]
        assert len(dropped) == len(set(dropped)) <= MESSAGES // 2  # what waits alone is 8 MiB
