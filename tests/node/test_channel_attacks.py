"""Attacks on secure channels: by a hub between the ends, by a stranger, and by a peer (ID-4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from waystation import (
    ANYONE,
    Message,
    Node,
    NoReplyError,
    Route,
    UndeliverableError,
    UnreachableError,
)
from waystation.core.outcome import Reason
from waystation.core.record import MessageRecord, Record
from waystation.node import Context
from waystation.node.channels import HALF_OPEN, SecureChannel
from waystation.testing import async_test, until
from waystation.wire.secure_channel import REKEY, WINDOW


class Tampered:
    """A truck with a listener, an office, and a hub between them that keeps what it carries."""

    def __init__(self, truck: Node, hub: Node, office: Node) -> None:
        self.truck, self.hub, self.office = truck, hub, office
        self.carried: list[Message] = []
        self.handled: list[bytes] = []
        hub.observe(self._keep)

        @truck.worker("note")
        async def note(message: Message, _: Context) -> None:
            self.handled.append(message.payload)

        @truck.worker("echo")
        async def echo(message: Message, _: Context) -> bytes:
            return message.payload

        truck.secure_listener("secure", trust=ANYONE)

    def _keep(self, record: Record) -> None:
        if isinstance(record, MessageRecord):
            self.carried.append(record.arrival.message)

    async def open(self) -> SecureChannel:
        """A channel by way of the hub."""
        return await self.office.secure_channel("hub => truck => secure", trust=ANYONE)

    async def again(self, message: Message, payload: bytes | None = None) -> None:
        """Have the hub send something once more that it carried."""
        copy = payload if payload is not None else message.payload
        back = message.return_route
        await self.hub.route(Message(message.onward_route, back, copy, self.hub.new_id()))


def names_of(node: Node) -> set[str]:
    """What a node has entries for."""
    return set(node.router.table.snapshot(node.now()))


@asynccontextmanager
async def tampered() -> AsyncIterator[Tampered]:
    async with Node("truck") as truck, Node("hub") as hub, Node("office") as office:
        await hub.connect((await truck.listen("tcp://127.0.0.1:0")).url, name="truck")
        await office.connect((await hub.listen("tcp://127.0.0.1:0")).url, name="hub")
        yield Tampered(truck, hub, office)


@pytest.mark.rule("ID-4")
@async_test
async def test_messages_of_a_handshake_that_come_again_open_nothing() -> None:
    async with tampered() as made, await made.open() as channel:
        await channel.request("echo", b"")
        first, second, third = made.carried[:3]
        assert [len(each.payload) for each in (first, second)] == [32, 419]
        for replayed in (third, second, first, first):
            await made.again(replayed)
        await until(lambda: made.truck.secure_channels.half_open == 2)  # of the first ones
        await until(lambda: made.truck.secure_channels.refusals == 1)  # of the third
        await until(lambda: made.office.secure_channels.refusals == 3)  # of the second, and answers
        # The last message of one handshake ends no other: its keys are of the first alone.
        answers = [each for each in made.carried if len(each.payload) == 419][-2:]
        for answer in answers:
            exit_of = answer.return_route.addresses[-1]
            way = (*third.onward_route.addresses[:-1], exit_of)
            await made.hub.route(
                Message(Route(way), Route.parse("x"), third.payload, made.hub.new_id())
            )
        await until(lambda: made.truck.secure_channels.half_open == 0)
        assert made.truck.secure_channels.handshakes == 1
        assert (await channel.request("echo", b"unharmed")).payload == b"unharmed"


@pytest.mark.rule("ID-4")
@pytest.mark.parametrize("which", [1, 2])
@pytest.mark.parametrize("place", [0, 40, -1])
@async_test
async def test_a_changed_message_of_a_handshake_opens_nothing(which: int, place: int) -> None:
    """A hub between that answers the initiator, or ends the handshake, in the place of a peer."""
    async with Node("truck") as truck, Node("office") as office, Node("hub") as hub:
        count = 0

        @hub.worker("forth", "back", passing=True)
        async def change(message: Message, context: Context) -> None:
            nonlocal count
            payload, count = message.payload, count + 1
            if count == which + 1:
                data = bytearray(payload)
                data[place] ^= 1
                payload = bytes(data)
            onward, way = message.forwarded().onward_route, message.forwarded().return_route
            await context.node.route(Message(onward, way, payload, message.id, message.expiry))

        truck.secure_listener("secure", trust=ANYONE)
        await hub.connect((await truck.listen("tcp://127.0.0.1:0")).url, name="truck")
        await office.connect((await hub.listen("tcp://127.0.0.1:0")).url, name="hub")
        route = "hub => forth => truck => secure"
        if which == 1:
            with pytest.raises(UnreachableError, match="the handshake failed"):
                await office.secure_channel(route, trust=ANYONE)
            assert office.secure_channels.open == 0
        else:
            await office.secure_channel(route, trust=ANYONE)  # its last message is on its way
            await until(lambda: truck.secure_channels.refusals == 1)
        assert truck.secure_channels.open == 0


@pytest.mark.rule("ID-4")
@async_test
async def test_what_a_hub_sends_again_is_refused_in_any_order_and_at_any_time() -> None:
    async with tampered() as made:
        sender = await made.open()
        await sender.send("note", b"warm")
        await until(lambda: made.handled == [b"warm"])
        before = len(made.carried)
        count = WINDOW + REKEY + 8
        for number in range(count):
            await sender.send("note", b"%d" % number)
        await until(lambda: len(made.handled) == count + 1)
        sealed = made.carried[before : before + count]
        made.handled.clear()
        # Each one again, the last one first: all were seen, or are too late.
        refused = made.truck.secure_channels.refusals
        for message in reversed(sealed):
            await made.again(message)
        await until(lambda: made.truck.secure_channels.refusals == refused + count)
        assert made.handled == []


@pytest.mark.rule("ID-4")
@async_test
async def test_a_window_of_messages_may_come_in_any_order_and_no_more() -> None:
    held: list[Message] = []
    async with Node("truck") as truck, Node("office") as office, Node("hub") as hub:
        holding = False

        @hub.worker("gate", passing=True)
        async def gate(message: Message, context: Context) -> None:
            onward = message.forwarded()
            if holding:
                held.append(onward)
            else:
                await context.node.route(onward)

        handled: list[int] = []
        truck.start_worker(("note",), lambda message, _: handled.append(int(message.payload)))
        truck.secure_listener("secure", trust=ANYONE)
        await hub.connect((await truck.listen("tcp://127.0.0.1:0")).url, name="truck")
        await office.connect((await hub.listen("tcp://127.0.0.1:0")).url, name="hub")
        channel = await office.secure_channel("hub => gate => truck => secure", trust=ANYONE)
        await until(lambda: truck.secure_channels.open == 1)
        holding = True
        count = WINDOW + 10
        for number in range(count):
            await channel.send("note", b"%d" % number)
        await until(lambda: len(held) == count)
        for message in reversed(held):
            await hub.route(message)
        await until(lambda: truck.secure_channels.refusals == 10)
        await until(lambda: len(handled) == WINDOW)
        assert handled == list(range(count - 1, count - 1 - WINDOW, -1))


@pytest.mark.rule("ID-4")
@async_test
async def test_a_responder_that_hangs_is_given_up_and_leaves_nothing() -> None:
    async with Node("truck") as truck, Node("office") as office:
        truck.start_worker(("secure",), lambda _message, _context: None)  # takes it, and is silent
        await office.connect((await truck.listen("tcp://127.0.0.1:0")).url, name="truck")
        before = names_of(office)
        with pytest.raises(UnreachableError, match=r"no secure channel within 0\.2 s"):
            await office.secure_channel("truck => secure", trust=ANYONE, timeout=0.2)
        opening = asyncio.create_task(office.secure_channel("truck => secure", trust=ANYONE))
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert names_of(office) == before
        assert office.secure_channels.open == 0


@pytest.mark.rule("ID-4")
@async_test
async def test_who_begins_thousands_of_handshakes_keeps_nobody_else_from_theirs() -> None:
    async with Node("truck") as truck, Node("office") as office, Node("mallory") as mallory:
        truck.start_worker(("echo",), lambda message, _: message.payload)
        truck.secure_listener("secure", trust=ANYONE)
        url = (await truck.listen("tcp://127.0.0.1:0")).url
        for node in (office, mallory):
            await node.connect(url, name="truck")
        begun = 0

        async def flood() -> None:
            nonlocal begun
            while True:
                begun += 1
                key = begun.to_bytes(4, "big") + bytes(27) + b"\x01"
                first = Message(
                    Route.parse("truck => secure"),
                    Route.parse("nobody"),
                    key,
                    mallory.new_id(),
                )
                await mallory.route(first)
                if begun % 50 == 0:
                    await asyncio.sleep(0)

        flooding = asyncio.create_task(flood())
        try:
            await until(lambda: truck.secure_channels.half_open == HALF_OPEN)
            for _ in range(5):
                async with await office.secure_channel("truck => secure", trust=ANYONE) as channel:
                    assert (await channel.request("echo", b"served")).payload == b"served"
                assert truck.secure_channels.half_open <= HALF_OPEN
            await until(lambda: begun > 2_000)
        finally:
            flooding.cancel()
        assert truck.secure_channels.handshakes == 5


@pytest.mark.rule("ID-4")
@async_test
async def test_nobody_gets_into_a_channel_by_way_of_a_worker_or_another_channel() -> None:
    """The names of channels can be known: `name` gives them one that is easy to guess."""
    handled: list[bytes] = []
    dropped: list[Reason | None] = []
    async with Node("truck") as truck, Node("office") as office, Node("mallory") as mallory:
        truck.start_worker(("brakes",), lambda message, _: handled.append(message.payload))
        office.start_worker(("hop",), lambda _message, _context: None)
        for node in (truck, office):
            node.secure_listener("secure", trust=ANYONE)
        await office.connect((await truck.listen("tcp://127.0.0.1:0")).url, name="truck")
        await mallory.connect((await office.listen("tcp://127.0.0.1:0")).url, name="office")
        channel = await office.secure_channel("truck => secure", trust=ANYONE, name="to-truck")
        office.observe(
            lambda record: (
                dropped.append(record.verdict.reason)
                if isinstance(record, MessageRecord) and record.verdict.recipient == channel.name
                else None
            )
        )
        own = await mallory.secure_channel("office => secure", trust=ANYONE)
        ways = [f"{hop}{channel.name} => brakes" for hop in ("", "hop => ")]
        for way in ways:
            await mallory.send(f"office => {way}", b"fail")
            await own.send(way, b"fail")
        await until(lambda: len(dropped) == 4)
        assert dropped == [Reason.REFUSED] * 4
        await channel.send("brakes", b"ours")
        await until(lambda: handled)
    assert handled == [b"ours"]


@pytest.mark.rule("ID-4")
@async_test
async def test_answers_of_nodes_behind_the_other_end_come_back_through_the_channel() -> None:
    async with Node("garage") as garage, Node("truck") as truck, Node("office") as office:
        garage.start_worker(("echo",), lambda message, _: message.payload)
        truck.secure_listener("secure", trust=ANYONE)
        await truck.connect((await garage.listen("tcp://127.0.0.1:0")).url, name="garage")
        await office.connect((await truck.listen("tcp://127.0.0.1:0")).url, name="truck")
        async with await office.secure_channel("truck => secure", trust=ANYONE) as channel:
            assert (await channel.request("garage => echo", b"far")).payload == b"far"
            with pytest.raises(UndeliverableError, match="NO_ROUTE"):
                await channel.request("garage => nobody", b"", timeout=20)


@async_test
async def test_a_function_of_trust_that_fails_trusts_nobody_and_harms_nothing() -> None:
    def broken(identifier: str) -> bool:
        raise KeyError(identifier)

    async with Node("truck") as truck, Node("office") as office:
        truck.start_worker(("echo",), lambda message, _: message.payload)
        truck.secure_listener("secure", trust=broken)
        await office.connect((await truck.listen("tcp://127.0.0.1:0")).url, name="truck")
        channel = await office.secure_channel("truck => secure", trust=ANYONE)
        await until(lambda: truck.secure_channels.refusals == 1)
        with pytest.raises(NoReplyError):
            await channel.request("echo", b"", timeout=0.2)
        assert (await office.request("truck => echo", b"still there")).payload == b"still there"
