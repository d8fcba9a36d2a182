"""A node with a small budget under floods of several kinds: its memory stays within what is said.

The stated bound is the memory at rest and 1.5 times the budget (FL-1).
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.node.flow_child import STUCK
from waystation.core.address import Address
from waystation.node import Limits, Node
from waystation.testing import async_test, until
from waystation.testing.hostile import HostilePeer
from waystation.transports.tcp import Tcp

Send = Callable[[HostilePeer, int], int]

PEERS = 16
BUDGET = 32 * 1024 * 1024
"""So much that what 16 connections cost by themselves, some 2 MB, is little beside it."""

ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536"}
"""So that glibc returns a large block when it is freed: else it keeps up to 13 MB of them."""

FLOOD = 4 * BUDGET
"""Bytes that the peers try to send, so that a node that keeps them all is found."""

CHILD = Path(__file__).with_name("flow_child.py")
ECHO = Address(0, b"echo")

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="needs /proc to tell the memory of a process"
)


class Child:
    """A node in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, place: str) -> None:
        self._process = process
        self.place = place

    @property
    def resident(self) -> int:
        """Bytes of memory that it has."""
        pages = Path(f"/proc/{self._process.pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    async def ask(self) -> tuple[int, int]:
        """Bytes that it says to hold, and how many messages it shed; it must still answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        async with asyncio.timeout(30):
            used, shed = (await self._process.stdout.readline()).split()
        return int(used), int(shed)


@asynccontextmanager
async def child() -> AsyncIterator[Child]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(CHILD),
        str(BUDGET),
        stdin=pipe,
        stdout=pipe,
        env=os.environ | ALLOCATOR,
    )
    assert process.stdout is not None
    try:
        place = (await process.stdout.readline()).decode().strip()
        yield Child(process, place)
    finally:
        process.kill()
        await process.wait()


def stuck(number: int) -> Address:
    return Address(0, f"stuck-{number % STUCK}".encode())


def small(peer: HostilePeer, number: int) -> int:
    """A small message to one of many workers that never finish."""
    peer.send(bytes(64), stuck(number))
    return 64


def medium(peer: HostilePeer, number: int) -> int:
    """A message of a size that inboxes do not count one by one."""
    peer.send(bytes(8_000), stuck(number))
    return 8_000


def large(peer: HostilePeer, number: int) -> int:
    """A large message to one of many workers that never finish."""
    peer.send(bytes(200_000), stuck(number))
    return 200_000


def huge(peer: HostilePeer, number: int) -> int:
    """A message that is as much more than its part as the largest is with the default limits.

    All workers together have more than the budget in hand.
    """
    peer.send(bytes(2_000_000), stuck(number))
    return 2_000_000


def unread(peer: HostilePeer, number: int) -> int:
    """A request whose answer is never read."""
    del number
    peer.send(bytes(50_000), ECHO)
    return 50_000


async def flood(place: str, send: Send, peer: HostilePeer) -> None:
    """Send until the peer is held back for a while, or has sent enough."""
    peer.link = await Tcp().dial([place], peer)
    peer.link.pause_reading()
    sent = number = 0
    while sent < FLOOD // PEERS * 4 and number < 20_000:
        sent += send(peer, number)
        number += 1
        if number % 20 == 0:
            await asyncio.sleep(0)
        if peer.is_held:
            await asyncio.sleep(0.1)
            if peer.is_held:
                break


@pytest.mark.rule("FL-1")
@pytest.mark.parametrize("send", [small, medium, large, huge, unread])
def test_memory_stays_within_the_stated_bound(send: Send) -> None:
    @async_test
    async def scenario() -> None:
        async with child() as node, Node("honest", limits=Limits(heartbeat=0)) as honest:
            for _ in range(100):  # let it come to rest
                await honest.request(f"tcp#{node.place} => echo", bytes(5_000), timeout=30)
            rest = node.resident
            peers = [HostilePeer() for _ in range(PEERS)]
            try:
                await asyncio.gather(*(flood(node.place, send, peer) for peer in peers))
                used, _ = await node.ask()
                grown = node.resident - rest
                most = 1.5 * BUDGET
                assert grown <= most, f"{grown} bytes more than at rest, of which {used} known"
                answer = await honest.request(f"tcp#{node.place} => echo", b"well?", timeout=30)
                assert answer.payload == b"well?"
            finally:
                for peer in peers:
                    if peer.link is not None:
                        peer.link.abort()
                await until(lambda: all(peer.is_over for peer in peers))

    scenario()
