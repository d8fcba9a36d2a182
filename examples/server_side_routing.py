"""A device sends a message to a phone, and does not know how to reach it; its server does.

    [(Dev1)] -> [(DevServer)] -> [(Broker)] -> [(PhoneRegistry)] -> [(Phone1)]
             1                2                                  3

    [(Dev1)] <- [(DevServer)] <- [(Broker)] <- [(PhoneRegistry)] <- [(Phone1)]
                                                                 4

The server and the registry look at what passes and rewrite its routes; the broker just forwards.
Printed are the numbered messages as they entered the node; an observer of the node hears of them.
"""

import asyncio

import waystation
from waystation import Address, Message, Node, Route
from waystation.node import Context, MessageRecord, Record

PHONE = Address.parse("Phone")
DEVICES = {Address.parse("Dev"): Address.parse("Dev1")}
PHONES = {PHONE: Address.parse("Phone1")}


def written(route: Route) -> str:
    return " -> ".join(address.name for address in route)


def show(number: int, message: Message) -> None:
    print(f"{number}:")
    print("{")
    print(f"  onward_route: {written(message.onward_route)}")
    print(f"  return_route: {written(message.return_route)}")
    print("}")


def is_for_a_phone(message: Message) -> bool:
    return message.onward_route.addresses[-1] == PHONE


async def serve_devices(message: Message, context: Context) -> None:
    """Send what is for a phone to the registry, with the device's identity on the way back."""
    if not is_for_a_phone(message):
        await context.forward()
        return
    onward = Route.parse("Broker => PhoneRegistry => Phone")
    identified = Route(tuple(DEVICES.get(hop, hop) for hop in message.return_route))
    await context.reroute(onward, identified.pushed(context.address))


async def find_phone(message: Message, context: Context) -> None:
    """Send what is for a phone to the one that it is."""
    if not is_for_a_phone(message):
        await context.forward()
        return
    back = message.return_route.pushed(context.address)
    await context.reroute(Route((PHONES[PHONE],)), back)


async def main() -> None:
    entered: list[Message] = []

    def hear(record: Record) -> None:
        if isinstance(record, MessageRecord):
            entered.append(record.arrival.message)

    async with Node("cloud") as node:
        node.observe(hear)
        replied = asyncio.Event()

        @node.worker("Dev", "Dev1")
        def take_reply(message: Message, context: Context) -> None:
            del message, context
            replied.set()

        @node.worker("Broker")
        def never_called(message: Message, context: Context) -> None:
            """The broker is not the last on any route here, and the node forwards for it."""
            raise AssertionError((message, context))

        @node.worker("Phone1")
        async def greet(message: Message, context: Context) -> None:
            await context.reply(b"hello, " + message.payload)

        node.start_worker(("DevServer",), serve_devices, passing=True)
        node.start_worker(("PhoneRegistry",), find_phone, passing=True)

        onward, back = Route.parse("DevServer => Phone"), Route.parse("Dev")
        await node.route(Message(onward, back, b"Dev", node.new_id()))
        await replied.wait()

    to_server, to_broker, _, to_phone, from_phone, *_ = entered
    for number, message in enumerate((to_server, to_broker, to_phone, from_phone), 1):
        show(number, message)


if __name__ == "__main__":
    waystation.run(main())
