"""Worker A sends a message to worker C through worker B, and C replies.

    [(A) -> (B) -> (C)]
         1      2

    [(A) <- (B) <- (C)]
         4      3

Printed is each message as it entered the node, as an observer of the node hears of it.
"""

import asyncio

import waystation
from waystation import Message, Node, Route
from waystation.node import Context, MessageRecord, Record


def written(route: Route) -> str:
    return " -> ".join(address.name for address in route)


def show(number: int, message: Message) -> None:
    print(f"{number}:")
    print("{")
    print(f"  onward_route: {written(message.onward_route)}")
    print(f"  return_route: {written(message.return_route)}")
    print("}")


async def main() -> None:
    entered: list[Message] = []

    def hear(record: Record) -> None:
        if isinstance(record, MessageRecord):
            entered.append(record.arrival.message)

    async with Node("home") as node:
        node.observe(hear)
        replied = asyncio.Event()

        @node.worker("A")
        def take_reply(message: Message, context: Context) -> None:
            del message, context
            replied.set()

        @node.worker("B")
        def never_called(message: Message, context: Context) -> None:
            """B is not the last on any route here, and the node forwards for it."""
            raise AssertionError((message, context))

        @node.worker("C")
        async def greet(message: Message, context: Context) -> None:
            await context.reply(b"hello, " + message.payload)

        await node.route(Message(Route.parse("B => C"), Route.parse("A"), b"A", node.new_id()))
        await replied.wait()

    for number, message in enumerate(entered, 1):
        show(number, message)


if __name__ == "__main__":
    waystation.run(main())
