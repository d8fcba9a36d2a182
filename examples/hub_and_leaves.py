"""A hub and two leaves: a truck that is found by its name, is heard of, goes away, and comes back.

    phone (leaf) --- hub --- truck (leaf)

The phone knows nothing of the truck but its name. Printed is what happens, and each change of the
truck's routing entry at the hub.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import waystation
from waystation import Message, Node
from waystation.core.routing import RouteChange, RouteKind
from waystation.errors import UndeliverableError
from waystation.node import ChangeRecord, Context, Queue, Record

TRUCK = "truck-7"


class Entry:
    """The truck's routing entry at the hub, as an observer hears of it."""

    def __init__(self, hub: Node) -> None:
        self.gone = asyncio.Event()
        hub.observe(self.hear)

    def hear(self, record: Record) -> None:
        """Print what happened to it."""
        change = record.change if isinstance(record, ChangeRecord) else None
        if isinstance(change, RouteChange) and change.entry.participant == TRUCK:
            print(f"hub: {change.kind} {TRUCK}")
            if change.kind is RouteKind.REMOVE:
                self.gone.set()


@asynccontextmanager
async def truck(hub: str) -> AsyncIterator[Node]:
    """A truck that is connected to the hub."""
    async with Node("truck") as node:
        await node.connect(hub, name="hub", parent=True)

        @node.worker(TRUCK)
        async def handle(message: Message, context: Context) -> None:
            print(f"truck: {message.payload.decode()}")
            await context.reply(b"yes")

        yield node


async def main() -> None:
    async with Node("hub", hub=True) as hub, Node("phone") as phone:
        entry = Entry(hub)
        door = await hub.listen("tcp://127.0.0.1:0")
        await phone.connect(door.url, name="hub", parent=True)

        async with phone.subscribe(TRUCK, "position", "eu/*") as positions, truck(door.url) as node:
            reply = await phone.request(TRUCK, b"are you locked?")  # as soon as it has come
            print(f"phone: {reply.payload.decode()}")
            await node.publish("position", b"48.1,11.6", partition="eu/munich", provider=TRUCK)
            position = await anext(positions)
            print(f"phone: it is at {position.payload.decode()}")

        await entry.gone.wait()
        try:
            await phone.request(TRUCK, b"are you locked?", timeout=1)
        except UndeliverableError as error:
            print(f"phone: {error.reason}")
        verdict = await hub.send(TRUCK, b"drive safely!", policy=Queue(60, persist=True))
        print(f"hub: {verdict.outcome}")

        async with truck(door.url):
            await phone.request(TRUCK, b"welcome back!")


if __name__ == "__main__":
    waystation.run(main())
