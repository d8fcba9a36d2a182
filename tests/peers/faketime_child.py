"""A node in a process of its own, which does what its standard input says, line by line."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from typing import Any

from waystation.core.message import Message
from waystation.node import Context, Limits, Node
from waystation.testing import Recorder, echo, until


class Driven:
    """What it can be asked for."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.heard = Recorder(node)

    async def clock(self) -> list[Any]:
        """The node's time and the wall clock's, in seconds, and whether they are too far apart."""
        return [self.node.now() / 1000, time.time(), self.node.clock_off]

    async def connect(self, url: str) -> bool:
        """Open a session, and wait until the peer's clock was measured."""
        session = await self.node.connect(url, name="far", wait=30)
        await until(lambda: session.clock_rtt_us is not None)
        return True

    async def send(self, number: int, ttl: float) -> bool:
        """Send to the peer's inbox."""
        for _ in range(number):
            await self.node.send("far => inbox", b"x", ttl=ttl)
        return True

    async def outcomes(self) -> Counter[str]:
        """What became of messages here."""
        return self.heard.counts()


async def main() -> None:
    async with Node("child", limits=Limits(heartbeat=1.0)) as node:
        echo(node)

        @node.worker("slow")
        async def slow(message: Message, context: Context) -> None:
            del message, context
            await asyncio.sleep(3)

        driven = Driven(node)
        while line := await asyncio.to_thread(sys.stdin.readline):
            what, *words = json.loads(line)
            sys.stdout.write(json.dumps(await getattr(driven, what)(*words)) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
