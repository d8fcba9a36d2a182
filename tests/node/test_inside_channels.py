"""What goes through secure channels: who sent it is proven, and nothing leaves them by mistake."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from waystation import (
    LocalError,
    Message,
    Node,
    NoReplyError,
    Route,
    UndeliverableError,
    leaf,
)
from waystation.core.directory import Provider, Scope
from waystation.core.grants import Grant, Grants
from waystation.core.outcome import Outcome, Reason
from waystation.core.record import MessageRecord, Record, SessionKind
from waystation.journal.read import JournalReader
from waystation.node import FAIL, Context, Wait, keyfile
from waystation.node.channels import ANYONE, SecureChannel
from waystation.node.custody import CustodySnapshot
from waystation.node.directory import NAME, DirectoryReply, Leave, Register
from waystation.testing import Recorder, async_test, until


def echo(message: Message, _: Context) -> bytes:
    return message.payload


def custody_of(node: Node) -> CustodySnapshot:
    """What a node with a store has in custody."""
    assert node.custody is not None
    return node.custody


def entries(directory: Path, table: str) -> list[dict[str, Any]]:
    """The rows of a table in a journal."""
    every = JournalReader(directory, lambda *_: None).entries()
    return [entry.fields for entry in every if entry.table == table]


def _told(journal: Path, recipient: str) -> list[tuple[str | None, str, str | None]]:
    """Who sent what a recipient was to get, and what became of it, as a journal has it."""
    return [
        (row["sender"], row["outcome"], row["reason"])
        for row in entries(journal, "messages")
        if row["recipient"] == recipient
    ]


@pytest.mark.rule("ID-2")
@async_test
async def test_the_journal_has_the_sender_of_what_came_through_a_channel(tmp_path: Path) -> None:
    async with Node("office") as office:
        grants = Grants(
            [
                Grant(anyone=True, send=("secure",)),
                Grant(identity=(office.identifier,), send=("echo",), publish=("truck/*",)),
            ]
        )
        async with Node("truck", grants=grants, journal=tmp_path) as truck:
            truck.start_worker(("echo", "admin"), echo)
            truck.secure_listener("secure", trust=ANYONE)
            news = truck.subscribe("truck", "news")
            await office.connect((await truck.listen("tcp://127.0.0.1:0")).url, name="truck")
            async with await office.secure_channel("truck => secure", trust=ANYONE) as channel:
                await channel.request("echo", b"")
                with pytest.raises(UndeliverableError, match="REFUSED"):
                    await channel.request("admin", b"", timeout=20)
                await channel.send("multicast#truck/news", b"hear")
                assert (await anext(aiter(news))).payload == b"hear"
                relayed = Message(
                    channel.through("echo"),
                    Route.parse("tunnel => somebody"),
                    b"",
                    office.new_id(),
                )
                await office.route(relayed)  # a worker that sends on what others have sent
                await channel.request("echo", b"")
    who = office.identifier
    assert _told(tmp_path, "echo") == [
        (who, "DELIVERED", None),
        (None, "DELIVERED", None),
        (who, "DELIVERED", None),
    ]
    assert _told(tmp_path, "admin") == [(who, "DROPPED", "REFUSED")]
    assert [told[0] for told in _told(tmp_path, "secure")] == [None]  # the channel proves, it alone
    rows = entries(tmp_path, "messages")
    assert {row["sender"] for row in rows if row["multicast_id"] == "truck/news"} == {who}
    (denied,) = [row for row in entries(tmp_path, "sessions") if row["kind"] == "denied"]
    assert (denied["identity"], denied["detail"], denied["reason"]) == (
        who,
        "send admin",
        "REFUSED",
    )


class Trucks:
    """A hub without a store, a truck and an office with one each, and keys that stay."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.truck_key = keyfile.create(folder / "truck.key")
        self.office_key = keyfile.create(folder / "office.key")
        self.carried: list[bytes] = []  # payloads that the hub has seen
        self.handled: list[bytes] = []

    @property
    def truck_identity(self) -> str:
        return self.truck_key.identifier

    @asynccontextmanager
    async def hub(self, **options: Any) -> AsyncIterator[str]:
        async with Node("hub", hub=True, **options) as hub:
            hub.observe(self._note)
            yield (await hub.listen("tcp://127.0.0.1:0")).url

    def _note(self, record: Record) -> None:
        if isinstance(record, MessageRecord):
            self.carried.append(record.arrival.message.payload)

    @asynccontextmanager
    async def truck(self, url: str, **options: Any) -> AsyncIterator[Node]:
        store = self._folder / "truck"
        async with leaf(
            url, name="truck", store=store, identity=self.truck_key, **options
        ) as truck:

            @truck.worker("orders")
            async def handle(message: Message, _: Context) -> None:
                self.handled.append(message.payload)

            truck.secure_listener("secure", trust=self.office_key.identifier)
            await truck.ready()
            yield truck

    def office(self, url: str) -> Any:
        return leaf(url, name="office", store=self._folder / "office", identity=self.office_key)


@pytest.mark.rule("DU-2", "ID-4")
@async_test
async def test_durable_messages_and_their_answers_go_through_a_channel(tmp_path: Path) -> None:
    made = Trucks(tmp_path)
    async with made.hub() as url, made.truck(url, journal=tmp_path / "J") as truck:
        truck.start_worker(("echo",), echo)
        async with made.office(url) as office:
            channel = await office.secure_channel(
                "secure", trust=made.truck_identity, name="to-truck"
            )
            assert channel.name == "secure-channel-to-truck"
            for number in range(20):
                sent = await channel.send("orders", b"canary %d" % number, durable=True)
                assert sent.outcome is Outcome.QUEUED
            await until(lambda: len(made.handled) == 20)
            assert made.handled == [b"canary %d" % number for number in range(20)]
            reply = await channel.request("echo", b"canary", durable=True)
            assert reply.payload == b"canary"
            await until(lambda: not custody_of(office).messages)
            await channel.close()
    assert not any(b"canary" in payload for payload in made.carried)
    queued = [row for row in entries(tmp_path / "J", "messages") if row["outcome"] == "QUEUED"]
    assert {row["sender"] for row in queued} == {made.office_key.identifier}


@pytest.mark.rule("DU-3", "ID-4")
@async_test
async def test_durable_messages_wait_for_a_channel_of_that_name_and_for_nobody_else(
    tmp_path: Path,
) -> None:
    made = Trucks(tmp_path)
    # A hub that would take custody of whatever it is given.
    async with made.hub(store=tmp_path / "hub") as url:
        async with made.office(url) as office:
            way = "secure-channel-to-truck => orders"
            for number in range(3):
                await office.send(way, b"canary %d" % number, durable=True)
            assert custody_of(office).messages == 3
        async with made.truck(url), made.office(url) as office:  # as after a restart
            assert custody_of(office).messages == 3
            trust = made.truck_identity
            async with await office.secure_channel("secure", trust=trust, name="to-truck"):
                await until(lambda: len(made.handled) == 3)
                with pytest.raises(LocalError, match="already"):
                    await office.secure_channel("secure", trust=trust, name="to-truck")
            await office.send(way, b"canary 3", durable=True)
            async with await office.secure_channel("secure", trust=trust, name="to-truck"):
                await until(lambda: len(made.handled) == 4)
        assert made.handled == [b"canary %d" % number for number in range(4)]
    assert not any(b"canary" in payload for payload in made.carried)


@pytest.mark.rule("DU-1")
@async_test
async def test_a_durable_message_needs_a_channel_that_can_be_found_again(tmp_path: Path) -> None:
    made = Trucks(tmp_path)
    async with made.hub() as url, made.truck(url), made.office(url) as office:
        async with await office.secure_channel("secure", trust=made.truck_identity) as channel:
            with pytest.raises(LocalError, match="open the channel with a name"):
                await channel.send("orders", b"", durable=True)
        assert not custody_of(office).messages


@pytest.mark.rule("ID-3")
@async_test
async def test_what_is_inside_a_custody_message_is_granted_as_if_sent_plainly(
    tmp_path: Path,
) -> None:
    handled: list[str] = []
    key = keyfile.create(tmp_path / "key")
    grants = Grants([Grant(identity=(key.identifier,), send=("orders",), publish=("a/b",))])
    async with (
        Node("truck", store=tmp_path / "truck", grants=grants, journal=tmp_path / "J") as truck,
        Node("office", store=tmp_path / "office", identity=key) as office,
    ):
        for name in ("orders", "admin"):
            truck.start_worker((name,), lambda _, context: handled.append(context.address.name))
        url = (await truck.listen("tcp://127.0.0.1:0")).url
        await office.connect(url, name="truck")
        for name in ("admin", "orders"):
            await office.send(f"truck => {name}", b"", durable=True)
        await until(lambda: handled and not custody_of(office).messages)
        assert handled == ["orders"]
        assert (custody_of(office).dead, truck.denied["send"]) == (1, 1)
        async with Node("nobody", store=tmp_path / "nobody") as nobody:
            await nobody.connect(url, name="truck")
            await nobody.send("truck => orders", b"", durable=True)
            await until(lambda: custody_of(nobody).dead == 1)
        assert handled == ["orders"]
    refused = [row for row in entries(tmp_path / "J", "messages") if row["reason"] == "REFUSED"]
    assert {(row["recipient"], row["sender"]) for row in refused} == {
        ("admin", key.identifier),
        ("orders", None),
    }


async def _objection(channel: SecureChannel, what: Register | Leave) -> str:
    """What the directory at the other end objects to; empty if it did as it was told."""
    reply = await channel.request(NAME, msgspec.json.encode(what))
    return msgspec.json.decode(reply.payload, type=DirectoryReply).error


async def _listed(node: Node) -> list[str]:
    return [each.participant for each in await node.discover("fleet", "maps")]


def _offer(participant: str) -> Register:
    """A listing for everybody, by a node elsewhere."""
    return Register(Provider(participant, "fleet", "maps", "tcp#127.0.0.1:1"))


@pytest.mark.rule("ID-3", "ID-5")
@async_test
async def test_listings_through_a_channel_are_granted_by_its_identity() -> None:
    async with Node("office") as office:
        who, anyone = office.identifier, Grant(anyone=True, send=("secure",))
        grants = Grants([anyone, Grant(identity=(who,), register=("office-*",))])
        async with Node("hub", hub=True, grants=grants) as hub:
            hub.host_directory()
            hub.secure_listener("secure", trust=ANYONE)
            recorder = Recorder(hub)
            await office.connect((await hub.listen("tcp://127.0.0.1:0")).url, name="hub")
            async with await office.secure_channel("hub => secure", trust=ANYONE) as channel:
                assert not await _objection(channel, _offer("office-1"))
                for what in (_offer("truck"), Leave("truck")):
                    assert await _objection(channel, what) == f"{who} may not register 'truck'"
                assert await _listed(hub) == ["office-1"]
                (told,) = [each for each in recorder.sessions if each.kind is SessionKind.DENIED]
                assert (told.identity, told.detail) == (who, "register truck")
                hub.change_grants(Grants([anyone]))
                assert await _listed(hub) == []


@pytest.mark.rule("ID-3")
@async_test
async def test_nothing_is_granted_to_who_has_gone_before_its_question_was_read() -> None:
    async with Node("hub", grants=Grants([Grant(anyone=True, send=(NAME,))])) as hub:
        hub.host_directory()
        payload = msgspec.json.encode(_offer("truck"))
        gone = Route.parse("session-that-has-ended => request-1")
        await hub.route(Message(Route.parse(NAME), gone, payload, hub.new_id()))
        reply = await hub.request(NAME, msgspec.json.encode(_offer("own")))  # and this node may
        assert msgspec.json.decode(reply.payload, type=DirectoryReply).error == ""
        assert await _listed(hub) == ["own"]


@pytest.mark.rule("CL-5")
@async_test
async def test_who_is_at_the_other_end_of_a_channel_lists_for_itself_and_for_nobody_else() -> None:
    async with Node("office") as office, Node("other") as other, Node("hub", hub=True) as hub:
        hub.host_directory()
        hub.secure_listener("secure", trust=ANYONE)
        url = (await hub.listen("tcp://127.0.0.1:0")).url
        for node in (office, other):
            await node.connect(url, name="hub")
        await hub.register("hub-maps", "fleet", "maps", everywhere=True)
        async with (
            await office.secure_channel("hub => secure", trust=ANYONE) as first,
            await other.secure_channel("hub => secure", trust=ANYONE) as second,
        ):
            assert not await _objection(first, _offer("office-maps"))
            assert "is listed by node" in await _objection(second, Leave("office-maps"))
            # Without a way back, which would lead beyond this node.
            await second.send(NAME, msgspec.json.encode(Leave("hub-maps")))
            assert "is listed by node" in await _objection(second, Leave("office-maps"))
            found = await hub.discover("fleet", "maps", Scope.GLOBAL_ONLY)
            assert {each.participant for each in found} == {"hub-maps", "office-maps"}
            assert not await _objection(first, Leave("office-maps"))


@pytest.mark.rule("ID-4")
@async_test
async def test_what_belonged_into_a_channel_that_has_ended_goes_nowhere_else() -> None:
    """A parent is asked for names that a leaf does not know; here it would get the answer."""
    asked: list[str] = []
    seen: list[bytes] = []
    async with Node("hub", hub=True) as hub:
        hub.observe(
            lambda record: (
                seen.append(record.arrival.message.payload)
                if isinstance(record, MessageRecord)
                else None
            )
        )
        url = (await hub.listen("tcp://127.0.0.1:0")).url
        async with leaf(url, name="truck") as truck, leaf(url, name="office") as office:
            ended = asyncio.Event()

            @truck.worker("slow")
            async def slow(message: Message, _: Context) -> bytes:
                asked.append(message.return_route.addresses[0].name)
                await ended.wait()
                return b"the canary"

            truck.secure_listener("secure", trust=ANYONE)
            await truck.ready()
            channel = await office.secure_channel("secure", trust=ANYONE)
            waiting = asyncio.create_task(channel.request("slow", b"", timeout=1))
            await until(lambda: asked)
            await channel.close()
            await until(lambda: truck.secure_channels.open == 0)
            # A hub that has learnt the name of the channel claims to know it.
            with pytest.raises(LocalError):
                hub.start_worker((asked[0],), lambda *_: None)
            dropped: list[Reason | None] = []
            truck.observe(
                lambda record: (
                    dropped.append(record.verdict.reason)
                    if isinstance(record, MessageRecord)
                    else None
                )
            )
            ended.set()
            await until(lambda: Reason.NO_ROUTE in dropped)
            with pytest.raises(NoReplyError):
                await waiting
            sent = await truck.send(f"{asked[0]} => inbox", b"the canary")
            assert sent.reason is Reason.NO_ROUTE
    assert b"the canary" not in seen


@pytest.mark.rule("FL-4", "ID-4")
@pytest.mark.parametrize("hops", [0, 1])
@async_test
async def test_a_channel_that_is_sent_more_than_its_link_carries_loses_nothing(hops: int) -> None:
    """The sender waits for the link, and the receiver holds the sender back."""
    got: list[int] = []
    gate = asyncio.Event()
    async with Node("truck") as truck, Node("hub") as hub, Node("office") as office:

        @truck.worker("slow")
        async def slow(message: Message, _: Context) -> None:
            await gate.wait()
            got.append(int.from_bytes(message.payload[:4], "big"))

        truck.secure_listener("secure", trust=ANYONE)
        url = (await truck.listen("tcp://127.0.0.1:0")).url
        route = "next => secure"
        if hops:
            await hub.connect(url, name="truck")
            url, route = (await hub.listen("tcp://127.0.0.1:0")).url, "next => truck => secure"
        await office.connect(url, name="next")
        async with await office.secure_channel(route, trust=ANYONE) as channel:
            count, rest = 6_000, bytes(10_000)

            async def send_all() -> None:
                for number in range(count):
                    sent = await channel.send("slow", number.to_bytes(4, "big") + rest)
                    assert sent.reason is None, number

            sending = asyncio.create_task(send_all())
            await asyncio.wait({sending}, timeout=1)  # 60 MB are more than anybody takes by then
            gate.set()
            await sending
            await until(lambda: len(got) == count)
    assert got == list(range(count))


@pytest.mark.rule("WK-6")
@async_test
async def test_what_waits_for_a_channel_ends_with_it_or_with_its_sender() -> None:
    async with Node("truck") as truck, Node("office") as office:
        gate = asyncio.Event()

        @truck.worker("slow")
        async def slow(_: Message, __: Context) -> None:
            await gate.wait()

        truck.secure_listener("secure", trust=ANYONE)
        heard = Recorder(office)
        session = await office.connect((await truck.listen("tcp://127.0.0.1:0")).url, name="next")
        channel = await office.secure_channel("next => secure", trust=ANYONE)
        payload = bytes(1_000_000)
        sends = [asyncio.create_task(channel.send("slow", payload)) for _ in range(60)]
        await until(lambda: session.waiting() == 1)
        failed = await channel.send("slow", payload, policy=FAIL)
        assert failed.reason is Reason.QUEUE_FULL
        late = await channel.send("slow", payload, policy=Wait(0.05))
        assert late.reason is Reason.QUEUE_FULL
        sends[-1].cancel()
        await channel.close()
        ended = await asyncio.gather(*sends, return_exceptions=True)
        reasons = {getattr(one, "reason", "cancelled") for one in ended}
        assert reasons <= {None, Reason.QUEUE_FULL, "cancelled"}
        assert Reason.QUEUE_FULL in reasons
        gate.set()
        # Each has one outcome, whoever gave up.
        outcomes = Counter(
            record.arrival.message.id
            for record in heard.messages
            if record.arrival.message.onward_route.addresses[0].name == channel.name
        )
        assert len(outcomes) == 62
        assert set(outcomes.values()) == {1}


@pytest.mark.rule("ID-5")
@async_test
async def test_a_key_rolls_over_while_messages_flow_through_a_channel_and_loses_none(
    tmp_path: Path,
) -> None:
    keyfile.create(tmp_path / "key")
    async with Node("truck", identity=tmp_path / "key") as truck, Node("office") as office:
        truck.start_worker(("echo",), echo)
        truck.secure_listener("secure", trust=ANYONE)
        await office.connect((await truck.listen("tcp://127.0.0.1:0")).url, name="truck")
        who = truck.identifier
        channel = await office.secure_channel("truck => secure", trust=who)
        for number in range(150):
            if number == 50:
                keyfile.rotate(tmp_path / "key")
                truck.change_identity(tmp_path / "key")
            if number == 100:  # a new one proves the new key, under the same identifier
                await channel.close()
                channel = await office.secure_channel("truck => secure", trust=who)
            answer = await channel.request("echo", b"%d" % number)
            assert answer.payload == b"%d" % number
        assert channel.identity == who


@pytest.mark.rule("WK-6")
@async_test
async def test_what_expires_while_it_waits_for_a_channel_is_dropped() -> None:
    async with Node("truck") as truck, Node("office") as office:
        gate = asyncio.Event()
        got: list[bytes] = []

        @truck.worker("slow")
        async def slow(message: Message, _: Context) -> None:
            await gate.wait()
            got.append(message.payload[:1])

        truck.secure_listener("secure", trust=ANYONE)
        session = await office.connect((await truck.listen("tcp://127.0.0.1:0")).url, name="next")
        channel = await office.secure_channel("next => secure", trust=ANYONE)
        sends = [asyncio.create_task(channel.send("slow", bytes(1_000_000))) for _ in range(60)]
        await until(lambda: session.waiting() == 1)
        late = asyncio.create_task(channel.send("slow", b"late", ttl=0.01))
        await asyncio.sleep(0.05)
        gate.set()
        assert (await late).reason is Reason.EXPIRED
        assert all(sent.reason is None for sent in await asyncio.gather(*sends))
        await until(lambda: len(got) == 60)
        assert b"l" not in got
