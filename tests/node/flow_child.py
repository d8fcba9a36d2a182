"""A node with a small budget, workers that never finish, and an echo; run as a program."""

from __future__ import annotations

import asyncio
import sys

from waystation.core.message import Message
from waystation.node import Context, Limits, Node
from waystation.testing import echo

STUCK = 40


async def main(budget: int) -> None:
    limits = Limits(heartbeat=0, budget=budget, receiver=budget // 8, share=budget // 4)
    async with Node("small", limits=limits, hub=True) as node:
        echo(node)

        async def never(_: Message, context: Context) -> None:  # noqa: ARG001
            await asyncio.Event().wait()

        for number in range(STUCK):
            node.start_worker((f"stuck-{number}",), never)
        listening = await node.listen("tcp://127.0.0.1:0")
        print(listening.place, flush=True)  # noqa: T201
        while await asyncio.to_thread(sys.stdin.readline):  # a line asks how full it is
            print(node.flow.used, node.flow.shed, flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
