"""Claims between processes: hubs in a circle, a hub that is killed, and a leaf that roams."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

import pytest

from waystation.errors import NoReplyError, UndeliverableError
from waystation.node import Limits, Node
from waystation.testing import DEADLINE, async_test

ROOT = Path(__file__).resolve().parents[2]
START = 60.0  # seconds for a process to start, on a busy machine


class Child:
    """A process of a test, which answers every line with one."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.url = ""

    @classmethod
    async def start(cls, stack: AsyncExitStack, kind: str, argument: str) -> Self:
        """Start one that is killed in the end, stopped or not; returns when it listens."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.node.claims_processes", kind, argument),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        child = cls(process)
        stack.push_async_callback(child.end)
        child.url = await child.hear()
        return child

    async def end(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()

    async def hear(self) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(START):
            return (await self.process.stdout.readline()).decode().strip()

    async def do(self, *words: str) -> str:
        """Give a command; returns what is said to it."""
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(words).encode() + b"\n")
        return await self.hear()


async def asks(stack: AsyncExitStack, hub: Child) -> Node:
    """A leaf of a hub in this process, that asks."""
    node = await stack.enter_async_context(Node("asks", limits=Limits(heartbeat=0.0)))
    await node.connect(hub.url, parent=True, wait=START)
    return node


async def answers(node: Node, name: str) -> None:
    """Wait until somebody is reached."""
    async with asyncio.timeout(DEADLINE):
        while True:
            try:
                reply = await node.request(f"work-{name}", b"?", timeout=1.0)
            except (UndeliverableError, NoReplyError):
                await asyncio.sleep(0.05)
            else:
                assert reply.payload == name.encode()
                return


@pytest.mark.rule("CL-2", "CL-3")
@async_test
async def test_three_processes_in_a_ring_settle() -> None:
    async with AsyncExitStack() as stack:
        hubs = [await Child.start(stack, "hub", f"hub-{letter}") for letter in "abc"]
        for number, hub in enumerate(hubs):
            await hub.do("parent", hubs[(number + 1) % 3].url)
        leaf = await Child.start(stack, "leaf", "leaf")
        await leaf.do("parent", hubs[0].url)
        for hub in hubs:
            node = await asks(stack, hub)
            for name in ("leaf", "hub-a", "hub-b", "hub-c"):
                await answers(node, name)
            await node.close()
        before, after = [""], [await hub.do("count") for hub in hubs]
        async with asyncio.timeout(DEADLINE):
            while before != after:
                await asyncio.sleep(1)
                before, after = after, [await hub.do("count") for hub in hubs]
        assert max(map(int, after)) < 200


@pytest.mark.rule("CL-1")
@async_test
async def test_a_leaf_with_two_parents_is_reached_when_the_process_of_one_is_killed() -> None:
    async with AsyncExitStack() as stack:
        top, left, right = [
            await Child.start(stack, "hub", name) for name in ("top", "left", "right")
        ]
        for hub in (left, right):
            await hub.do("parent", top.url)
        leaf = await Child.start(stack, "leaf", "leaf")
        for hub in (left, right):
            await leaf.do("parent", hub.url)
        node = await asks(stack, top)
        await answers(node, "leaf")
        left.process.kill()
        await answers(node, "leaf")
        right.process.send_signal(signal.SIGSTOP)  # so it was not by way of the other
        with pytest.raises((UndeliverableError, NoReplyError)):
            await node.request("work-leaf", b"?", timeout=1.0)


@pytest.mark.rule("CL-6")
@async_test
async def test_a_leaf_that_roams_is_reached_while_its_old_session_is_half_open() -> None:
    async with AsyncExitStack() as stack:
        top, left, right = [
            await Child.start(stack, "hub", name) for name in ("top", "left", "right")
        ]
        for hub in (left, right):
            await hub.do("parent", top.url)
        path = await Child.start(stack, "path", left.url)
        leaf = await Child.start(stack, "leaf", "leaf")
        await leaf.do("parent", path.url)
        node = await asks(stack, top)
        await answers(node, "leaf")
        path.process.send_signal(signal.SIGSTOP)
        await leaf.do("drop")
        await leaf.do("parent", right.url)
        await answers(node, "leaf")
        beside = await stack.enter_async_context(Node("beside", limits=Limits(heartbeat=0.0)))
        await beside.connect(left.url, parent=True, wait=START)
        await answers(beside, "leaf")  # also from the hub that had the old session
