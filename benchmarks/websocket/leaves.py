"""Many leaves on one hub, over WebSockets: what they cost, and how long until all are back.

    python -m benchmarks.websocket.leaves hub PORT LEAVES
    python -m benchmarks.websocket.leaves leaves PORT LEAVES

The hub is one process. The leaves are nodes in another process, each with a worker that it
announces at the hub and a connection of its own, so that the back-off of each is its own. The hub
says its port at once, and the seconds since it listens when it knows all their workers.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from typing import NamedTuple

import waystation
from benchmarks.harness import resident_bytes
from benchmarks.live.measure import end_with_parent
from waystation import Message, Node
from waystation.node import Context, Limits
from waystation.transports.websocket import WebSocket, WebSocketLimits

AT_ONCE = 500  # so many leaves dial at the same time when the fleet starts


class Figures(NamedTuple):
    """What was measured."""

    bytes_each: float
    seconds_first: float
    seconds_again: float


def measure(leaves: int) -> Figures:
    """Start a hub and its leaves, end the hub without a word, and start it again."""
    hub = _start("hub", 0, leaves)
    fleet = None
    try:
        port = int(_said(hub))
        before = resident_bytes(hub.pid)
        fleet = _start("leaves", port, leaves)
        first = float(_said(hub))
        each = (resident_bytes(hub.pid) - before) / leaves
        hub.kill()
        hub.wait()
        hub = _start("hub", port, leaves)
        _said(hub)
        return Figures(each, first, float(_said(hub)))
    finally:
        for process in (hub, fleet):
            if process is not None:
                process.kill()
                process.wait()
                assert process.stdout is not None
                process.stdout.close()


def _start(role: str, port: int, leaves: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", __name__, role, str(port), str(leaves)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 - ourselves


def _said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def _node(name: str, leaves: int, *, hub: bool) -> Node:
    transport = WebSocket(limits=WebSocketLimits(dial=60, greeting=60, backlog=4096))
    limits = Limits(sessions=leaves + 10, heartbeat=60.0)
    return Node(name, transports=[transport], limits=limits, hub=hub)


async def _hub(port: int, leaves: int) -> None:
    async with _node("hub", leaves, hub=True) as node:
        start = time.perf_counter()
        listening = await node.listen(f"ws://127.0.0.1:{port}")
        print(listening.place.rpartition(":")[2], flush=True)
        # Nobody tells when they are complete. Each leaf is two entries: its session, its worker.
        while len(node.router.table) < 2 * leaves:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        print(time.perf_counter() - start, flush=True)
        await asyncio.Event().wait()


async def _leaves(port: int, leaves: int) -> None:
    url = f"ws://127.0.0.1:{port}"
    nodes = [_node(f"leaf-{number}", leaves, hub=False) for number in range(leaves)]
    for number, node in enumerate(nodes):
        node.start_worker((f"truck-{number}",), _ignore)
    for first in range(0, leaves, AT_ONCE):
        some = nodes[first : first + AT_ONCE]
        await asyncio.gather(*(n.connect(url, name="hub", parent=True, wait=60) for n in some))
    await asyncio.Event().wait()


async def _ignore(message: Message, context: Context) -> None:
    pass


if __name__ == "__main__":
    end_with_parent()
    play = {"hub": _hub, "leaves": _leaves}[sys.argv[1]]
    waystation.run(play(int(sys.argv[2]), int(sys.argv[3])))
