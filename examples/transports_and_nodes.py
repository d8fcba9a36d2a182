"""Worker A1 on node A sends a message to worker C1 on node C, over a transport of our own.

    [(A1) -> (TransportA)] -> [(TransportC) -> C1]
          1                2                3

    [(A1) <- (TransportA)] <- [(TransportC) <- C1]
          6                5                4

The transport writes `or:C1,rr:A1,payload:...` into datagrams. It has no sessions: whoever has a
message for an address of its type sends it there, and what comes in is posted to the node. Printed
is what the transports and the workers get to see; `AddressOfC` stands for the place of C's socket.
"""

import asyncio
from collections.abc import Iterator
from itertools import count

import waystation
from waystation import Address, Message, Node, Reason, Route
from waystation.node import Context

numbers: Iterator[int] = count(1)
names: dict[bytes, str] = {}


def written(route: Route) -> str:
    return " -> ".join(
        f"{{type: TransportType, data: {names[address.data]}}}" if address.type else address.name
        for address in route
    )


def read(text: str) -> Route:
    return Route.parse(text.replace("->", "=>"))


def show(message: Message) -> None:
    print(f"{next(numbers)}:")
    print("{")
    print(f"  onward_route: {written(message.onward_route)}")
    print(f"  return_route: {written(message.return_route)}")
    print("}")


class TextTransport(asyncio.DatagramProtocol):
    """Carries messages between nodes, one in a datagram."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._type = node.register_type("text", self.carry)
        self._socket: asyncio.DatagramTransport | None = None

    async def open(self) -> Address:
        """Take a free port; returns the address of this node."""
        loop = asyncio.get_running_loop()
        socket, _ = await loop.create_datagram_endpoint(lambda: self, ("127.0.0.1", 0))
        self._socket = socket
        return self._address(socket.get_extra_info("sockname"))

    def close(self) -> None:
        """Give the port back."""
        if self._socket is not None:
            self._socket.close()

    def carry(self, message: Message, address: Address) -> Reason | None:
        """Take a message to an address: without that address, which has done its duty."""
        if self._socket is None:
            return Reason.TRANSPORT_DOWN
        show(message)
        onward, back = message.onward_route.rest(), message.return_route
        if not all(hop.type == 0 for hop in (*onward, *back)):
            return Reason.MALFORMED  # the format knows names only
        header = ",".join(f"{field}:{written(r)}" for field, r in (("or", onward), ("rr", back)))
        host, _, port = address.name.rpartition(":")
        print(f"{next(numbers)}:")
        print(f"{header},payload:...")
        self._socket.sendto(f"{header},payload:".encode() + message.payload, (host, int(port)))
        return None

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        """Let a message in: with the address that it came from as the first way back."""
        header, _, payload = data.partition(b",payload:")
        try:
            onward, back = (read(field[3:]) for field in header.decode().split(","))
        except ValueError:  # whoever it was, it was no transport of this kind
            return
        message = Message(onward, back, payload, self._node.new_id())
        self._node.post(message.arrived(self._address(addr)))

    def _address(self, place: tuple[str, int]) -> Address:
        return Address(self._type, "{}:{}".format(*place).encode())


async def main() -> None:
    async with Node("A") as node_a, Node("C") as node_c:
        transport_a, transport_c = TextTransport(node_a), TextTransport(node_c)
        address_of_a, address_of_c = await transport_a.open(), await transport_c.open()
        names.update({address_of_a.data: "AddressOfA", address_of_c.data: "AddressOfC"})
        replied = asyncio.Event()

        @node_a.worker("A1")
        def take_reply(message: Message, context: Context) -> None:
            del context
            show(message)
            replied.set()

        @node_c.worker("C1")
        async def greet(message: Message, context: Context) -> None:
            show(message)
            await context.reply(b"hello, " + message.payload)

        onward = Route((address_of_c, Address.parse("C1")))
        await node_a.route(Message(onward, Route.parse("A1"), b"A1", node_a.new_id()))
        async with asyncio.timeout(10):  # a datagram may be lost
            await replied.wait()
        transport_a.close()
        transport_c.close()


if __name__ == "__main__":
    waystation.run(main())
