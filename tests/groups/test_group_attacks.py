"""Members under attack: silence, half packets, floods, peers that never read, ends in any state."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from msgspec import structs

from tests.groups.crowd import (
    LASTING,
    Ear,
    carrier_of,
    everybody_knows,
    known,
    members,
    named,
    port_of,
    routers,
    stream,
    streams_of,
)
from tests.transports.certificates import authority
from waystation.core.discovery import DiscoveryResponse
from waystation.core.identity import LogicalAddress, Mapping
from waystation.core.outcome import Outcome, Reason
from waystation.groups import Group, GroupLimits
from waystation.groups.packets import EVERYBODY, Data, encode_data, encode_notice
from waystation.groups.pipe import Key, Kind, head
from waystation.net.tls import Tls
from waystation.node import Node
from waystation.testing import async_test, echo, tcp_path, until
from waystation.transports.gossip import Gossip
from waystation.transports.tcp import TcpLimits

HERE = "127.0.0.1:0"
GREETING = b"WSGM\x01\x00\x05fleet"
HASTY = GroupLimits(beat=5.0, grace=60.0, greeting=0.3, frame=0.3)


@asynccontextmanager
async def pair(limits: GroupLimits, tls: Tls | None = None) -> AsyncIterator[list[Group]]:
    """Two direct members, which find each other by a list."""
    options = {"listen": HERE, "limits": limits, "tls": tls}
    async with Group("fleet", name="a", via="tcp://127.0.0.1:1", **options) as a:  # type: ignore[arg-type]
        via = f"tcp://{a.me.physical[0]}"
        async with Group("fleet", name="b", via=via, **options) as b:  # type: ignore[arg-type]
            await everybody_knows([a, b])
            yield [a, b]


async def still_talk(sender: Group, receiver: Group) -> None:
    """The attack went past the members: what one sends, the other gets."""
    ear = Ear(receiver)
    await sender.send(b"still there?", to=receiver.me)
    await until(lambda: ear.payloads() == [b"still there?"])
    assert ("suspect", sender.me.name) not in ear.events()


class Stranger:
    """Somebody who connects to a member's place."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, member: Group) -> Stranger:
        port = port_of(member.me.physical[0])
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def say(self, *packets: bytes) -> None:
        for packet in packets:
            self.writer.write(len(packet).to_bytes(4, "big") + packet)

    async def is_thrown_out(self) -> None:
        try:
            assert await asyncio.wait_for(self.reader.read(), 20) == b""
        except ConnectionResetError:
            pass
        finally:
            self.writer.close()


def accepted(group: Group) -> int:
    """How many connections others have to a member."""
    return sum(len(server.connections) for server in carrier_of(group).servers.values())


def refused(group: Group) -> dict[str, int]:
    (server,) = carrier_of(group).servers.values()
    return dict(server.refused)


# --- Direct members -------------------------------------------------------------------------------


@async_test
async def test_silent_strangers_are_not_held_for_ever() -> None:
    async with pair(HASTY) as (a, b):
        before = accepted(a)
        strangers = [await Stranger.connect(a) for _ in range(300)]
        await asyncio.gather(*(stranger.is_thrown_out() for stranger in strangers))
        assert refused(a) == {"REFUSED": 300}
        assert accepted(a) == before
        await still_talk(b, a)


@pytest.mark.parametrize("said", [b"W", GREETING[:-1]])
@async_test
async def test_half_a_greeting_ends_with_the_deadline(said: bytes) -> None:
    async with pair(HASTY) as (a, b):
        stranger = await Stranger.connect(a)
        stranger.writer.write(said)
        await stranger.is_thrown_out()
        await still_talk(b, a)


@async_test
async def test_a_wrong_greeting_ends_at_once_and_nothing_behind_it_is_read() -> None:
    async with pair(LASTING) as (a, b):
        stranger = await Stranger.connect(a)
        stranger.writer.write(b"WSGM\x01\x00\x05other")
        stranger.say(b"not for you", b"\xe1" * 40)
        await stranger.is_thrown_out()
        assert refused(a) == {"REFUSED": 1}
        assert a.counts["MALFORMED"] == 0
        await still_talk(b, a)


@pytest.mark.parametrize("part", [b"\0", b"\0\0\x01", b"\0\0\x01\0" + 100 * b"x"])
@async_test
async def test_half_a_packet_is_waited_for_and_not_for_ever(part: bytes) -> None:
    async with pair(HASTY) as (a, b):
        stranger = await Stranger.connect(a)
        stranger.writer.write(GREETING)
        stranger.say(b"one packet of no format")
        stranger.writer.write(part)
        await stranger.is_thrown_out()
        assert a.counts["MALFORMED"] == 1
        await still_talk(b, a)


@async_test
async def test_a_peer_that_finishes_its_packets_may_take_its_time() -> None:
    async with pair(GroupLimits(beat=5.0, grace=60.0, frame=1.5)) as (a, b):
        stranger = await Stranger.connect(a)
        packet = b"\0\0\0\x04none"
        stranger.writer.write(GREETING + packet[:6])
        for _ in range(7):  # there is a part at any time, and never the same one for long
            await asyncio.sleep(0.3)
            stranger.writer.write(packet[6:] + packet[:6])
        await until(lambda: a.counts["MALFORMED"] == 7)
        stranger.writer.close()
        await still_talk(b, a)


@async_test
async def test_connections_over_the_limit_are_refused_and_members_go_on() -> None:
    limits = GroupLimits(beat=5.0, grace=60.0, connections=5)
    async with pair(limits) as (a, b):
        strangers = [await Stranger.connect(a) for _ in range(20)]
        await until(lambda: refused(a).get("connections", 0) >= 16)
        assert accepted(a) <= 5
        await still_talk(b, a)
        for stranger in strangers:
            stranger.writer.close()


@async_test
async def test_strangers_that_never_finish_a_tls_handshake_are_not_held() -> None:
    async with pair(HASTY, authority().tls("127.0.0.1")) as (a, b):
        strangers = [await Stranger.connect(a) for _ in range(20)]
        for stranger in strangers[:10]:
            stranger.writer.write(b"\x16\x03\x01")
        await asyncio.gather(*(stranger.is_thrown_out() for stranger in strangers))
        await still_talk(b, a)


def made_up() -> Iterator[bytes]:
    """Messages from senders that nobody knows."""
    while True:
        yield encode_data(Data(secrets.token_bytes(16), bytes(16), True, 1, 1, [b"x"]))


@async_test
async def test_a_flood_of_made_up_senders_leaves_no_trace() -> None:
    limits = GroupLimits(beat=0.5, grace=60.0, cache_size=50)
    async with pair(limits) as (a, b):
        stranger = await Stranger.connect(a)
        stranger.writer.write(GREETING)
        for _, packet in zip(range(5_000), made_up(), strict=False):
            stranger.say(packet)
        stranger.say(b"the last one")
        await until(lambda: a.counts["MALFORMED"] == 1)
        assert len(streams_of(a).peers) <= 51
        await until(lambda: set(streams_of(a).peers) == {b.me.uuid})
        stranger.writer.close()
        await still_talk(b, a)


@async_test
async def test_a_member_that_never_reads_holds_up_who_sends_to_it_and_nobody_else() -> None:
    held: list[asyncio.StreamWriter] = []
    deaf = await asyncio.start_server(lambda _, writer: held.append(writer), "127.0.0.1", 0)
    place = f"127.0.0.1:{deaf.sockets[0].getsockname()[1]}"
    address = LogicalAddress(secrets.token_bytes(16), "deaf")
    limits = GroupLimits(beat=5.0, grace=60.0, window_bytes=1 << 20)
    async with pair(limits) as (a, b):
        stranger = await Stranger.connect(a)
        notice = DiscoveryResponse(Mapping(address, (place,), 1))
        stranger.writer.write(GREETING)
        stranger.say(encode_notice(address.uuid, a.me.uuid, notice))
        await until(lambda: address.uuid in known(a))
        payload = bytes(100_000)
        verdict = await a.send(payload, to=address)
        while verdict.reason is None:
            verdict = await a.send(payload, to=address, wait=0.1)
        assert verdict.reason is Reason.QUEUE_FULL
        await still_talk(a, b)
        stranger.writer.close()
        await asyncio.wait_for(a.close(), 20)
    for writer in held:
        writer.close()
    deaf.close()


@async_test
async def test_a_place_that_hangs_up_at_once_is_not_dialled_without_a_pause() -> None:
    dialled: list[float] = []

    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dialled.append(asyncio.get_running_loop().time())
        writer.transport.abort()

    rude = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    place = f"127.0.0.1:{rude.sockets[0].getsockname()[1]}"
    address = LogicalAddress(secrets.token_bytes(16), "rude")
    async with pair(LASTING) as (a, b):
        stranger = await Stranger.connect(a)
        stranger.writer.write(GREETING)
        notice = DiscoveryResponse(Mapping(address, (place,), 1))
        stranger.say(encode_notice(address.uuid, a.me.uuid, notice))
        await until(lambda: address.uuid in known(a))
        assert (await a.send(b"hello?", to=address)).outcome is Outcome.FORWARDED
        await until(lambda: len(dialled) > 4)
        pauses = [late - early for early, late in pairwise(dialled)]
        assert min(pauses) > 0.02
        await still_talk(b, a)
        stranger.writer.close()
    rude.close()


# --- Ends in every state --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gossip", "gossip+tcp"])
@async_test
async def test_a_member_closes_while_its_router_is_being_dialled_or_says_nothing(kind: str) -> None:
    held: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _, writer: held.append(writer), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    for place in (f"127.0.0.1:{port}", "127.0.0.1:1"):
        group = Group("fleet", via=f"{kind}://{place}", wait=None)
        await group.connect()
        await group.close()
        group = Group("fleet", via=f"{kind}://{place}", wait=None)
        await group.connect()
        await asyncio.sleep(0.05)
        group.leave()
        await group.close()
    silent.close()
    for writer in held:
        writer.close()


@async_test
async def test_a_member_closes_while_it_dials_and_while_others_greet_it() -> None:
    async with pair(LASTING) as (a, b), tcp_path(a.me.physical[0]) as path:
        path.freeze()
        greeting = await Stranger.connect(a)
        streams_of(b).carrier.to_one(EVERYBODY, path.place, b"never written")
        await asyncio.sleep(0)  # it is being dialled
        await asyncio.wait_for(b.close(), 20)
        await asyncio.wait_for(a.close(), 20)
        await greeting.is_thrown_out()


@async_test
async def test_a_close_with_a_peer_that_never_reads_ends_with_the_linger() -> None:
    limits = GroupLimits(beat=5.0, grace=60.0, linger=0.2)
    async with pair(limits) as (a, b):
        sending = asyncio.ensure_future(stream(a, 3_000, to=named(a, "b")))
        await asyncio.sleep(0.01)
        await asyncio.wait_for(a.close(), 20)
        await sending
        await until(lambda: known(b) == set())


@async_test
async def test_a_handler_that_fails_does_not_cut_a_member_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with routers() as found, members(["a", "b"], found.via()) as (a, b):

        def fail(*_: object) -> None:
            raise RuntimeError("this test's")

        cuts: list[str] = []
        b.on_cut.append(cuts.append)
        with caplog.at_level(logging.CRITICAL):
            b.handler = fail
            await a.send(b"hello", to="b")
            await a.send(b"hello again", to="b")
            await until(lambda: not streams_of(a)._is_on_its_way())
            b.handler = None
        assert cuts == []
        await still_talk(a, b)


@async_test
async def test_the_life_of_a_member_can_be_followed_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "waystation")
    async with pair(HASTY) as (a, b):
        await a.send(b"too late", to=LogicalAddress(secrets.token_bytes(16), "nobody"), ttl=0.01)
        await until(lambda: a.counts["EXPIRED"] == 1)
        await still_talk(b, a)
    said = [record.getMessage() for record in caplog.records]
    for part in (": connected", ": greeted", "DiscoveryRequest(", "join", ": dropped", ": closed"):
        assert any(part in line for line in said), part


# --- Pipes ----------------------------------------------------------------------------------------


@asynccontextmanager
async def attacked(
    greeting: float = 10.0, token: bytes | None = None, **links: Any
) -> AsyncIterator[tuple[Node, Group, Key]]:
    """A node that listens in a group, a member that attacks it, and an end of a pipe."""
    limits = TcpLimits(greeting=greeting, **links)
    async with (
        routers() as found,
        Node("b", transports=[Gossip(found.via(), limits=limits)], token=token) as b,
    ):
        echo(b)
        await b.listen("gossip://fleet/b")
        async with (
            Group("fleet", name="attacker", via=found.via(), limits=LASTING) as attacker,
            Node("a", transports=[Gossip(found.via(), name="a")], token=token) as a,
        ):
            await until(lambda: b"b" in {m.name.encode() for m in streams_of(attacker).others()})
            yield b, attacker, (named(attacker, "b").uuid, 7, True)
            answer = await a.request("gossip#fleet/b => echo", b"still there?")
            assert answer.payload == b"still there?"


@async_test
async def test_messages_of_no_pipe_and_without_a_body_cut_nobody_off_its_router() -> None:
    async with attacked() as (b, attacker, key):
        attacker.post(key[0], head(Kind.OPEN, key))
        attacker.post(key[0], head(Kind.DATA, key) + b"\0")
        for kind in (Kind.CREDIT, Kind.DATA, Kind.ACCEPT, Kind.REFUSE, Kind.OPEN):
            attacker.post(key[0], head(kind, key))  # nine bytes, and no body
        for payload in (b"", b"\x05", b"\xff" * 9, b"\0" * 9, head(Kind.CREDIT, key) + b"123"):
            attacker.post(key[0], payload)
        await until(lambda: not streams_of(attacker)._is_on_its_way())
        assert not b.sessions or all(session.place is not None for session in b.sessions)


@async_test
async def test_garbage_over_a_pipe_resets_it() -> None:
    async with attacked() as (_, attacker, key):
        said: list[bytes] = []
        attacker.handler = lambda _, payloads: said.extend(p for p in payloads if p)
        attacker.post(key[0], head(Kind.OPEN, key))
        for _ in range(100):
            attacker.post(key[0], head(Kind.DATA, key) + secrets.token_bytes(10_000))
        await until(lambda: any(payload[0] == Kind.RESET for payload in said))


@async_test
async def test_a_pipe_whose_dialler_never_speaks_is_given_up() -> None:
    async with attacked(greeting=0.3) as (b, attacker, key):
        said: list[bytes] = []
        attacker.handler = lambda _, payloads: said.extend(p for p in payloads if p)
        for number in range(50):
            attacker.post(key[0], head(Kind.OPEN, (key[0], number, True)))
        await until(lambda: len(said) == 100)
        assert [payload[0] for payload in said] == 50 * [Kind.ACCEPT] + 50 * [Kind.RESET]
        await until(lambda: not b.sessions)


def _heard_by(attacker: Group) -> list[bytes]:
    said: list[bytes] = []
    attacker.handler = lambda _, payloads: said.extend(p for p in payloads if p)
    return said


SECRET = b"secret"
BEGUN = b"\x01" + (15_000_000).to_bytes(4, "big")
"""How a link of a node begins, with a message of 15 MB."""


@pytest.mark.rule("FL-2")
@async_test
async def test_half_a_message_over_a_pipe_has_a_deadline() -> None:
    async with attacked(finish=0.3) as (b, attacker, key):
        said = _heard_by(attacker)
        attacker.post(key[0], head(Kind.OPEN, key))
        attacker.post(key[0], head(Kind.DATA, key) + BEGUN + bytes(1000))
        await until(lambda: any(payload[0] == Kind.RESET for payload in said))
        await until(lambda: not b.sessions)


@pytest.mark.rule("FL-2")
@async_test
async def test_over_a_pipe_a_peer_that_is_not_admitted_begins_no_large_message() -> None:
    async with attacked(token=SECRET) as (b, attacker, key):
        said = _heard_by(attacker)
        attacker.post(key[0], head(Kind.OPEN, key))
        attacker.post(key[0], head(Kind.DATA, key) + BEGUN)
        await until(lambda: any(payload[0] == Kind.RESET for payload in said))
        await until(lambda: not b.sessions)


@pytest.mark.rule("FL-1")
@async_test
async def test_half_messages_over_all_pipes_of_a_member_share_one_limit() -> None:
    async with attacked(input=100_000) as (b, attacker, key):
        said = _heard_by(attacker)
        for number in range(5):
            pipe = (key[0], number, True)
            attacker.post(key[0], head(Kind.OPEN, pipe))
            attacker.post(key[0], head(Kind.DATA, pipe) + BEGUN + bytes(30_000))
        await until(lambda: any(payload[0] == Kind.RESET for payload in said))
        await until(lambda: len(b.sessions) == 3)


@pytest.mark.rule("FL-1")
@async_test
async def test_a_member_that_is_not_read_fills_its_inbox_in_bytes_and_loses_nothing() -> None:
    limits = structs.replace(LASTING, inbox_bytes=300_000, window_bytes=100_000)
    async with pair(limits) as (a, b):
        sending = asyncio.ensure_future(_send_many(a, b, 100))
        await until(lambda: not b.has_room())
        await asyncio.sleep(0.2)
        assert len(b._inbox) * 10_000 <= 450_000
        got = 0
        async for _, payload in b.messages():
            assert payload == bytes(10_000)
            got += 1
            if got == 100:
                break
        await sending


async def _send_many(sender: Group, receiver: Group, count: int) -> None:
    for _ in range(count):
        verdict = await sender.send(bytes(10_000), to=receiver.me, wait=30)
        assert verdict.outcome is Outcome.FORWARDED
