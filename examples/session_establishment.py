"""Worker A1 on node A sends a message to worker C1 on node C: a TCP session opens, and stays.

    [(A1) -> (TCPClientA) -> (TCPClientConnectionA1)] -> [(TCPServerConnectionC1) -> (C1)]
          1               2                           3                           4
    [(A1) <- (TCPClientConnectionA1)] <- [(TCPServerConnectionC1) <- (C1)]
          7                           6                           5

Printed is each message as it entered its node, as an observer of the node hears of it. Message 2 is
message 1 as the session gets it: with its own name instead of the address that it was opened for.
`TCPClientConnectionA1` and `TCPServerConnectionC1` stand for the names of the two sessions, which
the nodes chose, `AddressOfC` for the place where node C listens, and `AddressOfA` for the port from
which A has connected.
"""

import asyncio

import waystation
from waystation import Address, Message, Node, Route
from waystation.node import Context, MessageRecord, Record, Session

names: dict[Address, str] = {}


def written(route: Route) -> str:
    return " -> ".join(names.get(address, address.name) for address in route)


def show(number: int, message: Message) -> None:
    print(f"{number}:")
    print("{")
    print(f"  onward_route: {written(message.onward_route)}")
    print(f"  return_route: {written(message.return_route)}")
    print("}")


def show_link(number: int, record: MessageRecord) -> None:
    verdict = record.verdict
    assert verdict.address is not None  # it was forwarded
    print(f"{number}:")
    print(f"TCP transport specific; {verdict.outcome} to {names[verdict.address]}")


def observed(node: Node) -> list[MessageRecord]:
    """What a node will tell about messages."""
    records: list[MessageRecord] = []

    def hear(record: Record) -> None:
        if isinstance(record, MessageRecord):
            records.append(record)

    node.observe(hear)
    return records


def in_session(message: Message, session: Session) -> Message:
    """The message as the session gets it."""
    onward = message.onward_route.rest().pushed(session.address)
    return message.rerouted(onward, message.return_route)


async def main() -> None:
    async with Node("A") as node_a, Node("C") as node_c:
        at_a, at_c = observed(node_a), observed(node_c)
        replied = asyncio.Event()

        @node_a.worker("A1")
        def take_reply(message: Message, context: Context) -> None:
            del message, context
            replied.set()

        @node_c.worker("C1")
        async def greet(message: Message, context: Context) -> None:
            await context.reply(b"hello, " + message.payload)

        address_of_c = (await node_c.listen("tcp://127.0.0.1:0")).address
        onward = Route((address_of_c, Address.parse("C1")))
        await node_a.route(Message(onward, Route.parse("A1"), b"A1", node_a.new_id()))
        await replied.wait()
        [client], [server] = node_a.sessions, node_c.sessions
        names[address_of_c] = "{type: #TCP, data: AddressOfC}"
        names[server.place] = "{type: #TCP, data: AddressOfA}"
        names[client.address] = "TCPClientConnectionA1"
        names[server.address] = "TCPServerConnectionC1"

    request, reply_arrived = sorted(at_a, key=lambda record: record.arrival.received_at)
    request_arrived, reply = sorted(at_c, key=lambda record: record.arrival.received_at)
    show(1, request.arrival.message)
    show(2, in_session(request.arrival.message, client))
    show_link(3, request)
    show(4, request_arrived.arrival.message)
    show(5, reply.arrival.message)
    show_link(6, reply)
    show(7, reply_arrived.arrival.message)


if __name__ == "__main__":
    waystation.run(main())
