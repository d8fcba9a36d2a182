"""A hub, a leaf that answers, or a leaf that tells what it got; run as a program of a test.

Messages begin with six digits, which the hub prints of those that it drops, and the last leaf of
those that it gets.
"""

from __future__ import annotations

import asyncio
import sys

from waystation.core.message import Message
from waystation.core.outcome import Reason
from waystation.core.record import MessageRecord, Record
from waystation.node import Context, Node
from waystation.testing import echo


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - the test reads it


async def hub() -> None:
    def note(record: Record) -> None:
        if isinstance(record, MessageRecord) and record.verdict.reason is Reason.QUEUE_FULL:
            say(record.arrival.message.payload[:6].decode())

    async with Node("H", hub=True) as node:
        node.observe(note)
        say((await node.listen("tcp://127.0.0.1:0")).url)
        await asyncio.Event().wait()


async def leaf(name: str, url: str) -> None:
    async with Node(f"leaf-{name}") as node:
        if name == "good":
            echo(node, name)
        else:

            @node.worker(name)
            async def tell(message: Message, context: Context) -> None:
                del context
                say(message.payload[:6].decode())

        await node.connect(url, parent=True, wait=60)
        say("connected")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(hub() if sys.argv[1] == "hub" else leaf(*sys.argv[2:]))
