"""Secure channels between real nodes: who they are is proven, and nobody between reads anything."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from waystation import (
    Address,
    LocalError,
    Message,
    Node,
    NoReplyError,
    Route,
    UndeliverableError,
    UnreachableError,
    leaf,
)
from waystation.core.clock import SteadyClock, use_clock
from waystation.core.grants import Grant, Grants
from waystation.core.outcome import Outcome, Reason
from waystation.core.record import MessageRecord, Record
from waystation.errors import NotTrusted
from waystation.node import Context, keyfile
from waystation.node.channels import ANYONE, HALF_OPEN, ChannelCounts, SecureChannel
from waystation.testing import async_test, until
from waystation.wire.identity import PrivateIdentity

SECRET = b"the canary that nobody between may see"


def echo(message: Message, _: Context) -> bytes:
    return message.payload


class Fleet:
    """A hub, a truck with a listener and a worker behind it, and an office."""

    def __init__(self, url: str, hub: Node, truck: Node, office: Node) -> None:
        self.url, self.hub, self.truck, self.office = url, hub, truck, office
        self.seen: list[MessageRecord] = []  # by the hub
        hub.observe(self._note)

    def _note(self, record: Record) -> None:
        if isinstance(record, MessageRecord):
            self.seen.append(record)

    @property
    def identity(self) -> str:
        """Of the truck."""
        return self.truck.identifier

    async def open(self, route: str = "secure") -> SecureChannel:
        return await self.office.secure_channel(route, trust=self.identity)


@asynccontextmanager
async def fleet() -> AsyncIterator[Fleet]:
    async with Node("hub", hub=True) as hub:
        url = (await hub.listen("tcp://127.0.0.1:0")).url
        async with (
            leaf(url, name="truck") as truck,
            leaf(url, name="office") as office,
        ):
            truck.start_worker(("echo",), echo)
            truck.secure_listener("secure", trust=ANYONE)
            await truck.ready()
            yield Fleet(url, hub, truck, office)


@pytest.mark.rule("ID-4")
@async_test
async def test_requests_and_replies_pass_and_the_hub_sees_ciphertext_only() -> None:
    async with fleet() as made:
        async with await made.open() as channel:
            assert channel.identity == made.identity
            for _ in range(100):  # across changes of the key
                assert (await channel.request("echo", SECRET)).payload == SECRET
        sealed = [record.arrival.message for record in made.seen]
        assert len(sealed) >= 200
        for message in sealed:
            assert SECRET not in message.payload
            assert SECRET[:8] not in message.payload
            names = [address.name for address in message.onward_route.addresses]
            assert "echo" not in names


@pytest.mark.rule("ID-4")
@async_test
async def test_the_other_side_can_send_back_through_the_channel_at_any_time() -> None:
    came: list[Message] = []
    async with fleet() as made:
        made.office.start_worker(("inbox",), lambda message, _: came.append(message))

        @made.truck.worker("remember")
        async def remember(message: Message, context: Context) -> None:
            back = message.return_route.addresses[0]
            await context.node.send(Route((back, Address(0, b"inbox"))), b"by the way")

        async with await made.open() as channel:
            await channel.send("remember", b"")
            await until(lambda: came)
            assert came[0].payload == b"by the way"


@pytest.mark.rule("ID-4")
@async_test
async def test_another_than_the_trusted_identity_is_refused_by_either_side() -> None:
    async with fleet() as made:
        nobody = "I" + "0" * 64
        with pytest.raises(NotTrusted) as caught:
            await made.office.secure_channel("secure", trust=nobody)
        assert caught.value.identity == made.identity
        made.truck.secure_listener("strict", trust=nobody)
        await made.truck.ready()
        channel = await made.open("strict")  # the initiator is done first
        with pytest.raises(NoReplyError):
            await channel.request("echo", b"", timeout=0.5)
        assert made.truck.secure_channels.refusals >= 1
        assert made.truck.secure_channels.open == 0


@pytest.mark.parametrize("trust", ["truck-7", [], ["I" + "0" * 64, "me"]])
@async_test
async def test_trust_is_an_identifier(trust: object) -> None:
    async with Node("a") as node:
        with pytest.raises(LocalError):
            node.secure_listener("secure", trust=trust)  # type: ignore[arg-type]


@async_test
async def test_a_function_can_say_whom_to_trust() -> None:
    asked: list[str] = []

    def only_once(identifier: str) -> bool:
        asked.append(identifier)
        return len(asked) == 1

    async with fleet() as made:
        async with await made.office.secure_channel("secure", trust=only_once) as channel:
            assert (await channel.request("echo", b"1")).payload == b"1"
        with pytest.raises(NotTrusted):
            await made.office.secure_channel("secure", trust=only_once)


@async_test
async def test_nobody_there_is_said_in_time() -> None:
    async with fleet() as made:
        with pytest.raises(UnreachableError, match="NO_ROUTE"):
            await made.office.secure_channel("nowhere", trust=ANYONE, timeout=1)
        made.truck.start_worker(("deaf",), lambda _message, _context: None)
        await made.truck.ready()
        with pytest.raises(UnreachableError, match=r"within 0\.2 s"):
            await made.office.secure_channel("deaf", trust=ANYONE, timeout=0.2)
        with pytest.raises(UnreachableError, match="the handshake failed"):
            await made.office.secure_channel("echo", trust=ANYONE, timeout=1)
        assert made.office.secure_channels.open == 0


@pytest.mark.rule("ID-4")
@async_test
async def test_a_replayed_or_changed_message_reaches_nobody() -> None:
    handled: list[bytes] = []
    async with fleet() as made:
        made.truck.start_worker(("note",), lambda message, _: handled.append(message.payload))
        async with await made.open() as channel:
            await channel.send("note", b"once")
            await until(lambda: handled == [b"once"])
            sealed = made.seen[-1].arrival.message
            copy = Message(sealed.onward_route, Route(), sealed.payload, made.hub.new_id())
            await made.hub.route(copy)  # what a hub could send again
            spoilt = sealed.payload[:-1] + bytes([sealed.payload[-1] ^ 1])
            await made.hub.route(Message(sealed.onward_route, Route(), spoilt, made.hub.new_id()))
            await until(lambda: made.truck.secure_channels.refusals >= 2)
            assert (await channel.request("echo", b"goes on")).payload == b"goes on"
    assert handled == [b"once"]


@pytest.mark.rule("ID-4")
@async_test
async def test_nobody_else_can_speak_through_an_end_of_a_channel() -> None:
    async with fleet() as made:
        channel = await made.open()
        way = f"{channel.name} => echo"
        session = next(session for session in made.hub.sessions if session.peer == "office")
        with pytest.raises((UndeliverableError, NoReplyError)):
            await made.hub.request(f"{session.name} => {way}", SECRET, timeout=1)


@async_test
async def test_a_channel_alone_is_no_destination() -> None:
    async with fleet() as made:
        channel = await made.open()
        sent = await made.office.send(channel.name, b"")
        assert (sent.outcome, sent.reason) == (Outcome.DROPPED, Reason.REFUSED)


@async_test
async def test_closing_ends_both_sides_and_an_error_says_so() -> None:
    async with fleet() as made:
        channel = await made.open()
        await channel.request("echo", b"")
        assert made.truck.secure_channels.open == 1
        await channel.close()
        await channel.close()
        assert channel.closed
        await until(lambda: made.truck.secure_channels.open == 0)
        with pytest.raises(LocalError, match="open another"):
            await channel.request("echo", b"")
        sent = await made.office.send(channel.name, b"")
        assert (sent.reason, sent.recipient) == (Reason.NO_ROUTE, channel.name)


@async_test
async def test_a_node_that_closes_ends_its_channels() -> None:
    async with fleet() as made:
        await made.open()
        await made.office.close()
        await until(lambda: made.truck.secure_channels.open == 0)


@async_test
async def test_a_request_to_nobody_behind_the_channel_fails_with_the_reason() -> None:
    async with fleet() as made, await made.open() as channel:
        with pytest.raises(UndeliverableError) as caught:
            await channel.request("nobody", b"", timeout=5)
        assert caught.value.reason == Reason.NO_ROUTE


@pytest.mark.rule("ID-3")
@async_test
async def test_what_is_inside_is_granted_or_not_by_the_identity_of_the_channel() -> None:
    async with Node("b") as b:
        grants = Grants(
            [
                Grant(anyone=True, send=("secure",)),
                Grant(identity=(b.identifier,), send=("echo",)),
            ]
        )
        async with Node("a", grants=grants) as node:
            node.start_worker(("echo", "admin"), echo)
            node.secure_listener("secure", trust=ANYONE)
            await b.connect((await node.listen("tcp://127.0.0.1:0")).url, name="a")
            with pytest.raises(UndeliverableError, match="REFUSED"):
                await b.request("a => echo", b"in the open", timeout=5)
            async with await b.secure_channel("a => secure", trust=ANYONE) as channel:
                assert (await channel.request("echo", b"inside")).payload == b"inside"
                with pytest.raises(UndeliverableError, match="REFUSED"):
                    await channel.request("admin", b"", timeout=5)


@pytest.mark.rule("ID-4")
@async_test
async def test_handshakes_that_nobody_finishes_are_bounded() -> None:
    async with fleet() as made:
        for number in range(HALF_OPEN + 20):
            first = Message(
                Route.parse("secure"),
                Route.parse("nowhere"),
                number.to_bytes(32, "little"),
                made.office.new_id(),
            )
            await made.office.route(first)
        await until(lambda: made.truck.secure_channels.half_open == HALF_OPEN)
        async with await made.open() as channel:
            assert (await channel.request("echo", b"")).payload == b""
        assert made.truck.secure_channels.half_open < HALF_OPEN


@pytest.mark.parametrize("payload", [b"", bytes(31), bytes(33)])
@async_test
async def test_what_is_no_handshake_is_malformed(payload: bytes) -> None:
    async with Node("a") as node:
        node.secure_listener("secure", trust=ANYONE)
        message = Message(Route.parse("secure"), Route.parse("back"), payload, node.new_id())
        verdict = await node.route(message)
        assert verdict.reason is Reason.MALFORMED


@async_test
async def test_a_listener_that_is_closed_answers_nobody() -> None:
    async with Node("a") as node:
        listener = node.secure_listener("secure", trust=ANYONE)
        async with await node.secure_channel("secure", trust=ANYONE) as channel:
            listener.close()
            node.start_worker(("echo",), echo)
            assert (await channel.request("echo", b"still open")).payload == b"still open"
            with pytest.raises(UnreachableError):
                await node.secure_channel("secure", trust=ANYONE, timeout=0.2)


@pytest.mark.rule("ID-4")
@async_test
async def test_a_key_that_was_replaced_opens_no_channel_any_more() -> None:
    old = PrivateIdentity.create(bytes([7]) * 32, keyfile.now())
    new = old.rotated(bytes([8]) * 32, keyfile.now())
    async with Node("a") as node, Node("b", identity=new) as b, Node("c", identity=old) as c:
        node.secure_listener("secure", trust=old.identifier)
        url = (await node.listen("tcp://127.0.0.1:0")).url
        for peer in (c, b):  # from b on, the older key is known to be replaced
            await peer.connect(url, name="a")
        channel = await b.secure_channel("a => secure", trust=ANYONE)
        await until(lambda: node.secure_channels.open == 1)
        await c.secure_channel("a => secure", trust=ANYONE)
        await until(lambda: node.secure_channels.refusals == 1)
        assert node.secure_channels.open == 1
        await channel.close()


@async_test
async def test_many_at_once_and_none_is_mixed_up() -> None:
    async with fleet() as made:
        opened = [await made.open() for _ in range(10)]
        asked = [
            channel.request("echo", b"%d-%d" % (number, turn))
            for number, channel in enumerate(opened)
            for turn in range(50)
        ]
        replies = [reply.payload for reply in await asyncio.gather(*asked)]
        assert replies == [b"%d-%d" % (number, turn) for number in range(10) for turn in range(50)]
        assert made.truck.secure_channels == ChannelCounts(open=10, handshakes=10)


@pytest.mark.rule("ID-4")
@pytest.mark.rule("TM-1")
@async_test
async def test_a_machine_whose_clock_was_set_right_needs_no_restart() -> None:
    ahead = -3600 * 10**9

    async def be_slow(made: Fleet) -> None:
        nonlocal ahead
        use_clock(SteadyClock(lambda: time.time_ns() + ahead, time.monotonic_ns))
        async with leaf(made.url, name="slow") as slow:
            assert (await slow.request("echo", b"its own time begins here")).payload
            with pytest.raises(UnreachableError, match="not valid now"):
                await slow.secure_channel("secure", trust=made.identity)
            ahead = 0
            async with await slow.secure_channel("secure", trust=made.identity) as channel:
                assert (await channel.request("echo", SECRET)).payload == SECRET
            assert slow.now() < time.time_ns() // 1_000_000 - 3_500_000  # which it goes on with

    async with fleet() as made:
        await asyncio.create_task(be_slow(made))
