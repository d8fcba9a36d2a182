"""A hub, a leaf, or a path between them, run as a program of a test; it does what it is told.

It prints its address first. Then each line of its input is a command: `parent URL` connects,
`drop` closes the first session, `count` prints how many changes of routes there were.
"""

from __future__ import annotations

import asyncio
import sys

from waystation.core.record import ChangeRecord, Record
from waystation.core.routing import RouteChange
from waystation.node import Context, Node
from waystation.testing import tcp_path


def say(line: object) -> None:
    print(line, flush=True)  # noqa: T201 - the test reads it


async def node(name: str, *, is_hub: bool) -> None:
    changes = 0

    def note(record: Record) -> None:
        nonlocal changes
        changes += isinstance(record, ChangeRecord) and isinstance(record.change, RouteChange)

    async with Node(name, hub=is_hub) as made:
        made.observe(note)

        @made.worker(f"work-{name}")
        async def tell(message: object, context: Context) -> None:
            del message
            await context.reply(name.encode())

        say((await made.listen("tcp://127.0.0.1:0")).url)
        while line := (await asyncio.to_thread(sys.stdin.readline)).split():
            if line[0] == "parent":
                await made.connect(line[1], parent=True, wait=60)
            elif line[0] == "drop":
                await made.sessions[0].close()
            say(changes)


async def path(url: str) -> None:
    async with tcp_path(url.removeprefix("tcp://")) as made:
        say(f"tcp://{made.place}")
        await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    kind, argument = sys.argv[1:]
    asyncio.run(path(argument) if kind == "path" else node(argument, is_hub=kind == "hub"))
