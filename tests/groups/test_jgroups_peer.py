"""A `JGroupsPeer`, with our router and with itself; real JGroups members are in tests/peers."""

from __future__ import annotations

import pytest

from tests.gossip_router.clients import HERE, Client5, serving, uuid
from tests.node.live import runs_on_every_loop
from tests.rule_errors import breaks
from waystation.core.gossip import MemberKind
from waystation.errors import LocalError
from waystation.groups import JGroupsPeer, PlainMessage
from waystation.groups.jgroups_peer import INBOX
from waystation.testing import async_test, until
from waystation.wire.jgroups5 import Message, Register
from waystation.wire.jgroups5_members import encode_plain, read_messages

RELEASE = (5, 5, 7)


@pytest.mark.rule("GR-11")
@runs_on_every_loop
async def test_bytes_reach_all_or_one_and_never_their_sender() -> None:
    async with (
        serving() as (server, _),
        JGroupsPeer(server.place, "g", name="one", release=RELEASE) as one,
        JGroupsPeer(server.place, "g", name="two", release=RELEASE) as two,
        JGroupsPeer(server.place, "g", name="three", release=RELEASE) as three,
    ):
        named = {member.name: member for member in await three.members()}
        assert set(named) == {"one", "two", "three"}
        await one.send(b"all")
        await one.send(b"two alone", to=named["two"])
        await two.send(b"back", to=one.address.uuid)
        assert await one.receive() == PlainMessage(b"back", two.address.uuid, to_all=False)
        here = one.address.uuid
        assert await two.receive() == PlainMessage(b"all", here, to_all=True)
        assert await two.receive() == PlainMessage(b"two alone", here, to_all=False)
        assert await three.receive() == PlainMessage(b"all", here, to_all=True)


@async_test
async def test_the_release_is_learnt_from_whoever_is_heard() -> None:
    async with (
        serving() as (server, _),
        await Client5.open(server) as member,
        JGroupsPeer(server.place, "g") as peer,
    ):
        member.say(Register("g", uuid(1), "m", HERE))
        await member.sync()
        plain = encode_plain(b"hello", uuid(1), None, "g", (5, 2, 0))
        member.say(Message("g", None, uuid(1), plain))
        assert await peer.receive() == PlainMessage(b"hello", uuid(1).key, to_all=True)
        assert peer.release == (5, 2, 0)
        await peer.send(b"answer", to=uuid(1).key)
        found = [value for value in await member.sync() if isinstance(value, Message)]
        assert [message.payload for message in read_messages(found[-1].payload)] == [b"answer"]


@async_test
async def test_what_a_protocol_numbers_is_not_for_a_peer() -> None:
    async with (
        serving() as (server, _),
        await Client5.open(server) as member,
        JGroupsPeer(server.place, "g", release=RELEASE) as peer,
    ):
        member.say(Register("g", uuid(1), "m", HERE))
        await member.sync()
        plain = encode_plain(b"plain", uuid(1), None, "g", RELEASE)
        reliable = plain[:6] + b"\0\0" + plain[8:]  # without any flags
        for payload in (b"", b"no message of JGroups", reliable, plain):
            member.say(Message("g", None, uuid(1), payload))
        assert (await peer.receive()).payload == b"plain"


@async_test
async def test_a_peer_says_what_it_cannot_do() -> None:
    async with serving() as (server, _):
        async with JGroupsPeer(server.place, "g", timeout=5) as peer:
            with pytest.raises(
                LocalError, match="no member of 'g' was heard", check=breaks("GR-11")
            ):
                await peer.send(b"hello")
            with pytest.raises(LocalError, match="not bytes"):
                await peer.send("hello")  # type: ignore[arg-type]
        with pytest.raises(EOFError):
            await peer.receive()
        assert [message async for message in peer] == []
        with pytest.raises(ConnectionError):
            await peer.members()
    with pytest.raises(OSError, match=r"127\.0\.0\.1"):
        await JGroupsPeer("127.0.0.1:1", "g").__aenter__()


@async_test
async def test_a_peer_leaves_in_order_and_registers_again_after_a_lost_connection() -> None:
    async with serving() as (server, told):
        async with JGroupsPeer(server.place, "g", release=RELEASE) as peer:
            await until(lambda: len(told) == 1)
            server.clients()[0].abort()
            await until(lambda: len(told) == 3)
        await until(lambda: len(told) == 4)
        kinds = [record.change.kind for record in told]
        joined = MemberKind.JOIN
        assert kinds == [joined, MemberKind.SUSPECT, joined, MemberKind.LEAVE]
        members = {str(record.change).split()[1] for record in told}
        assert members == {peer.address.name}


@async_test
async def test_who_takes_nothing_loses_the_oldest_and_it_is_counted() -> None:
    async with (
        serving() as (server, _),
        JGroupsPeer(server.place, "g", release=RELEASE) as sender,
        JGroupsPeer(server.place, "g", release=RELEASE) as taker,
    ):
        await taker.members()
        for number in range(INBOX + 5):
            await sender.send(str(number).encode())
        await until(lambda: taker.lost == 5)
        assert (await taker.receive()).payload == b"5"
