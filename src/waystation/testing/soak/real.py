"""Real minutes: two nodes and a path between them that is cut every few seconds."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Final

from waystation.core.message import Message
from waystation.errors import WaystationError
from waystation.node import Context, Limits, Node
from waystation.testing.path import TcpPath, tcp_path
from waystation.testing.soak.watching import Watch, of_process

CUT: Final = 5.0
"""Seconds between two cuts."""

LOOKS: Final = 40


async def soak_real(seconds: float) -> Watch:
    """Let them run; what this process had at each look."""
    watch, end = Watch(), time.monotonic() + seconds
    limits = Limits(heartbeat=2.0)
    with tempfile.TemporaryDirectory(prefix="waystation-soak-") as name:
        place = Path(name)
        async with Node("hub", hub=True, limits=limits, journal=place / "hub") as hub:
            door = await hub.listen("tcp://127.0.0.1:0")

            async def echo(message: Message, context: Context) -> None:
                await context.reply(message.payload)

            hub.start_worker(("echo",), echo)
            async with (
                tcp_path(door.place) as path,
                Node("leaf", limits=limits, journal=place / "leaf") as leaf,
            ):
                await leaf.connect(f"tcp://{path.place}", name="way", parent=True)
                while time.monotonic() < end:
                    await _round(leaf, path, min(CUT, seconds / LOOKS))
                    watch.note(**of_process(), tasks=len(asyncio.all_tasks()))
    return watch


async def _round(leaf: Node, path: TcpPath, seconds: float) -> None:
    """Send and request until the path is cut."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(50):
            await leaf.send("echo", bytes(1_000), ttl=10.0)
        try:
            await leaf.request("echo", b"?", timeout=10.0)
        except WaystationError:
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.01)
    path.cut()
