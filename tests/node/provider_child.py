"""A process that is a leaf of a hub and offers `truck-7`, until it is killed.

It answers with its process id, publishes when it is told to, and says when it is registered.
"""

from __future__ import annotations

import asyncio
import os
import sys

from waystation.core.message import Message
from waystation.node import Context, Node


async def main(url: str) -> None:
    async with Node("truck") as node:
        await node.connect(url, name="hub", parent=True)

        @node.worker("truck-7")
        async def who(message: Message, context: Context) -> None:
            if message.payload == b"publish":
                await node.publish("position", b"%d" % os.getpid())
            await context.reply(b"%d" % os.getpid())

        await node.register("truck-7", "fleet", "position", everywhere=True, ttl=3_600)
        print("registered", flush=True)  # noqa: T201
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
