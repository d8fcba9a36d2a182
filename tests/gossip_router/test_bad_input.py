"""Clients that break the protocol or the limits: refused, counted, logged once, no harm done."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.gossip_router.clients import Client2, Client5, Raw, serving, uuid
from waystation.errors import LocalError
from waystation.gossip_router import GossipServer, Settings
from waystation.testing import async_test, until
from waystation.wire import jgroups2, jgroups5

VECTORS = Path(__file__).parent.parent / "wire/vectors"
JOIN5 = jgroups5.encode(jgroups5.Register("g", uuid(5), "bad"))
JOIN2 = jgroups2.encode(jgroups2.Connect("g", uuid(5), "bad"))

MALFORMED_5 = {
    "negative length": b"\xff\xff\xff\xfe",
    "a length of zero": bytes(4),
    "a huge length": b"\x7f\xff\xff\xff\x04",
    "a long request": b"\x00\x20\x00\x00\x00" + bytes(10),
    "a payload that is longer than its frame": bytes.fromhex("0000000d04010001670101000000097878"),
    "an address of an unknown class": bytes.fromhex("0000000a0001000167 00ffff 01 0000"),
    "a register without a group": jgroups5.encode(jgroups5.Register(None, uuid(1))),
    "a register without an address": jgroups5.encode(jgroups5.Register("g", None)),
    "a text that is no UTF-8": bytes.fromhex("0000000c020100016701010000000100")[:6]
    + b"\1\0\1\xff\1\1\0\0\0\1",
}
MALFORMED_2 = {
    "an address of an unknown class": bytes.fromhex("010100016700270f"),
    "an IP address of five bytes": bytes.fromhex("01010001670405"),
    "a negative length": bytes.fromhex("0a010001670100ffffffff01ffffffff"),
    "a huge length": bytes.fromhex("0a010001670100ffffffff017fffffff"),
    "a question without a group": jgroups2.encode(jgroups2.GossipGet(None)),
    "a long text": bytes.fromhex("0401ffff"),
}


@pytest.mark.parametrize("case", MALFORMED_5)
@async_test
async def test_malformed_frames_of_5_end_that_connection_only(case: str) -> None:
    async with (
        serving() as (server, _),
        await Client5.open(server) as watcher,
        await Client5.open(server) as bad,
    ):
        await watcher.join("g", 1)
        hello = jgroups5.Message("g", uuid(1), None, b"before")
        bad.send(JOIN5 + jgroups5.encode(hello) + MALFORMED_5[case])
        assert await bad.ended() == b""
        assert await watcher.sync() == [hello, jgroups5.Suspect("g", uuid(5))]
        assert sum(server.counts.refused.values()) == 1


@pytest.mark.parametrize("case", MALFORMED_2)
@async_test
async def test_malformed_structures_of_2_end_that_connection_only(case: str) -> None:
    async with (
        serving() as (server, _),
        await Client2.open(server) as watcher,
        await Client2.open(server) as bad,
    ):
        await watcher.join("g", 1)
        hello = jgroups2.Message("g", uuid(1), b"before")
        bad.send(JOIN2 + jgroups2.encode(hello) + MALFORMED_2[case])
        assert await bad.ended() == b"\x0e"
        forwarded = jgroups2.Message(None, uuid(1), b"before")
        assert await watcher.sync() == [forwarded, jgroups2.Suspect(uuid(5))]
        assert sum(server.counts.refused.values()) == 1


@pytest.mark.parametrize("name", ["jgroups-2.12.json", "jgroups-5.json"])
@async_test
async def test_no_recorded_request_hurts_anybody_else(name: str) -> None:
    vectors = json.loads((VECTORS / name).read_text("utf-8"))
    requests = {
        step
        for probes in vectors.values()
        if isinstance(probes, list)
        for probe in probes
        for key, step in probe.get("steps", probe).items()
        if isinstance(step, str) and key in {"req", "get", "hex"}
    }
    assert len(requests) > 20
    async with (
        serving() as (server, _),
        await Client5.open(server) as five,
        await Client2.open(server) as two,
    ):
        await five.join("mine", 1)
        await two.join("mine", 2)
        for request in sorted(requests):
            raw = bytes.fromhex(request)
            for prefix in (b"", JOIN5, JOIN2):
                async with await Raw.open(server) as bad:
                    bad.send(prefix + raw)
                    bad.writer.write_eof()
                    await bad.ended()
        assert await five.sync() == []
        assert await two.sync() == []
        await until(lambda: len(server.clients()) == 2)
        assert len(server.rosters) == 2


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n\r\n", b"bela", b"\x16\x03\x01", b"\x10"])
@async_test
async def test_who_speaks_neither_dialect_is_refused(first: bytes) -> None:
    async with serving() as (server, _), await Raw.open(server) as stranger:
        stranger.send(first)
        assert await stranger.ended() == b""
        assert server.counts.refused == {"first byte": 1}


@async_test
async def test_a_probe_that_connects_and_ends_is_no_refusal() -> None:
    async with serving() as (server, _):
        async with await Raw.open(server):
            await until(lambda: len(server.clients()) == 1)
        await until(lambda: not server.clients())
        assert server.counts.refused == {}


@async_test
async def test_one_connection_too_many_is_refused_and_the_others_stay(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(connections=2) as (server, _):
        async with await Client5.open(server) as a, await Client5.open(server) as b:
            await a.join("g", 1)
            await b.join("g", 2)
            with caplog.at_level(logging.WARNING, "waystation.router"):
                for _ in range(20):
                    async with await Raw.open(server) as late:
                        assert await late.ended() == b""
            assert await a.sync() == await b.sync() == []
        assert server.counts.refused == {"connections": 20}
        assert len(caplog.records) == 1
        assert "over the limit of 2 connections" in caplog.text


@pytest.mark.parametrize(
    ("limit", "why"),
    [
        ({"groups": 1}, "over 1 groups"),
        ({"members_per_group": 1}, "over 1 members in one group"),
        ({"members_per_connection": 1}, "over 1 members on one connection"),
    ],
)
@async_test
async def test_a_member_over_a_limit_is_refused_as_each_generation_understands(
    limit: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    group = "h" if "groups" in limit else "g"
    async with serving(**limit) as (server, _):
        async with await Client2.open(server) as two:
            await two.join("g", 1)
            two.say(jgroups2.Connect(group, uuid(2)))
            assert await two.answer() == jgroups2.ConnectAnswer(ok=False)
            assert await two.sync() == []
        await until(lambda: not server.clients())
        async with await Client5.open(server) as five, await Client5.open(server) as late:
            await five.join("g", 1)
            five.say(jgroups5.Register(group, uuid(2)))
            assert await five.sync() == []  # it keeps what it has
            if "members_per_connection" not in limit:
                late.say(jgroups5.Register(group, uuid(3)))
                assert await late.ended() == b""
        assert server.counts.refused["registration"] >= 2
        assert why in caplog.text


@async_test
async def test_a_message_over_the_limit_ends_its_sender_before_it_is_held() -> None:
    async with (
        serving(message=10_000) as (server, _),
        await Client5.open(server) as five,
        await Client2.open(server) as two,
    ):
        five.send(jgroups5.encode(jgroups5.Message("g", None, None, bytes(20_000)))[:30])
        assert await five.ended() == b""
        two.send(jgroups2.encode(jgroups2.Message("g", None, bytes(20_000)))[:30])
        assert await two.ended() == b""
        assert server.counts.refused == {"too_large": 2}


FRAMES = {
    2: jgroups2.encode(jgroups2.Message("g", None, bytes(2_000))),
    5: jgroups5.encode(jgroups5.Message("g", None, None, bytes(2_000))),
}
STRUCTURE = jgroups2.encode(jgroups2.Connect("g", uuid(1), "m" * 2_000))


@pytest.mark.parametrize("frame", [FRAMES[2], FRAMES[5], STRUCTURE], ids=["2", "5", "connect"])
@async_test
async def test_a_frame_that_never_ends_is_given_up(frame: bytes) -> None:
    async with serving(frame=0.3) as (server, _), await Raw.open(server) as lazy:
        for position in range(len(frame) - 1):  # a byte now and then is no end
            lazy.send(frame[position : position + 1])
            await asyncio.sleep(0.01)
            if server.counts.disconnected:
                break
        assert await lazy.ended() == b""
        assert server.counts.disconnected == {"unfinished": 1}


@pytest.mark.parametrize("generation", FRAMES)
@async_test
async def test_a_stream_that_is_always_within_some_frame_is_not_given_up(generation: int) -> None:
    frame = FRAMES[generation]
    async with serving(silence=0.3) as (server, _), await Raw.open(server) as busy:
        busy.send(frame[:1000])
        for _ in range(60):
            busy.send(frame[1000:] + frame[:1000])
            await asyncio.sleep(0.02)
        assert server.counts.disconnected == {}
        assert server.counts.received == 60


@async_test
async def test_the_life_of_a_client_can_be_followed_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "waystation")
    async with serving() as (server, _):
        async with await Client5.open(server) as client:
            await client.join("g", 1, "truck")
            client.say(jgroups5.Message("g", uuid(9), None, b"x"))
            await client.sync()
        await until(lambda: not server.clients())
    said = [record.getMessage() for record in caplog.records]
    for words in ("connected", "speaks JGroups 5", "join truck", "dropped: NO_ROUTE", "closed"):
        assert any(words in line for line in said), words


@pytest.mark.rule("GR-9")
@async_test
async def test_many_connections_of_one_uuid_are_one_member_and_nobody_is_suspected() -> None:
    async with serving() as (server, told), await Client5.open(server) as watcher:
        await watcher.join("g", 1)
        twins = [await (await Client5.open(server)).join("g", 2) for _ in range(20)]
        assert await watcher.sync() == []
        assert not server.counts.disconnected
        for twin in twins[1:]:
            twin.writer.close()
        await until(lambda: len(server.clients()) == 2)
        assert await watcher.sync() == []
        assert [str(record.change).split()[0] for record in told] == ["join", "join"]
        twins[0].writer.close()
        assert await watcher.frame() == jgroups5.Suspect("g", uuid(2))


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(LocalError, match="queue is 0"):
        Settings(queue=0)
    with pytest.raises(LocalError, match="'wait'"):
        Settings(slow_receiver="wait")  # type: ignore[arg-type]
    assert GossipServer(Settings(queue=1)).settings.queue == 1


LARGE5 = jgroups5.encode(jgroups5.Message("g", uuid(1), None, bytes(1_000_000)))
LARGE2 = jgroups2.encode(jgroups2.Message("g", uuid(1), bytes(1_000_000)))
LARGE = {5: (JOIN5, LARGE5), 2: (JOIN2, LARGE2)}


@pytest.mark.rule("FL-2")
@pytest.mark.parametrize("generation", LARGE)
@async_test
async def test_a_client_without_a_member_begins_no_large_message(generation: int) -> None:
    _, message = LARGE[generation]
    async with serving() as (server, _), await Raw.open(server) as stranger:
        stranger.send(message[:200])
        await stranger.ended()
        assert server.counts.refused == {"too_large": 1}


@pytest.mark.rule("FL-2")
@pytest.mark.parametrize("generation", LARGE)
@async_test
async def test_a_large_message_may_come_right_behind_the_registration(generation: int) -> None:
    join, message = LARGE[generation]
    async with serving() as (server, _), await Raw.open(server) as member:
        member.send(join + message + message)
        await until(lambda: server.counts.received == 2)
        assert not server.counts.refused


@pytest.mark.rule("FL-1")
@pytest.mark.parametrize("generation", LARGE)
@async_test
async def test_half_messages_of_all_clients_share_one_limit(generation: int) -> None:
    _, message = LARGE[generation]
    async with serving(input=2_000_000) as (server, _), await Client5.open(server) as honest:
        await honest.join("other", 9)
        lazy = [await Raw.open(server) for _ in range(5)]
        for number, client in enumerate(lazy, 10):
            joins = {
                5: jgroups5.encode(jgroups5.Register("g", uuid(number), "lazy")),
                2: jgroups2.encode(jgroups2.Connect("g", uuid(number), "lazy")),
            }
            client.send(joins[generation] + message[:900_000])
        await until(lambda: server.counts.disconnected["input"] >= 2)
        await honest.sync()
        assert server._server.input_budget.account.used <= 2_000_000
        for client in lazy:
            client.writer.close()
        await until(lambda: len(server.clients()) == 1)
        assert server._server.input_budget.account.used == 0
