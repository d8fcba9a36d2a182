"""A client of JGroups 2.12 and our router, byte by byte; and the captured ones once more."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.gossip_router.clients import HERE, Client2, Client5, Raw, serving, uuid
from tests.node.live import runs_on_every_loop
from waystation.testing import async_test, until
from waystation.wire.jgroups2 import (
    Close,
    Connect,
    Disconnect,
    DisconnectAnswer,
    GossipGet,
    Members,
    Message,
    Ping,
    PingData,
    Suspect,
    encode,
)

VECTORS = json.loads(
    (Path(__file__).parent.parent / "wire/vectors/jgroups-2.12.json").read_text("utf-8")
)

BETTER = {
    # The real router closes here without a word.
    "connect-null-addr": ["0f", "EOF"],
    # Here it tells what is already forgotten of a former connection; the probes before it are not
    # made here.
    "string-presence-2": ["0000", "open"],
}


def simple_probes() -> list[object]:
    return [
        pytest.param(probe["steps"], BETTER.get(probe["case"]), id=probe["case"])
        for probe in VECTORS["probes"]
        if {"req", "rsp"} <= probe["steps"].keys()
    ]


@pytest.mark.parametrize(("steps", "better"), simple_probes())
@async_test
async def test_a_probe_is_answered_as_by_the_real_router(
    steps: dict[str, Any], better: list[str] | None
) -> None:
    answer, state = better or steps["rsp"]
    async with serving() as (server, _), await Raw.open(server) as client:
        if steps["req"].startswith("63"):  # no client begins like that
            client.send(encode(Ping()))
        client.send(bytes.fromhex(steps["req"]))
        assert (await client.get(len(answer) // 2)).hex() == answer
        if state == "EOF":
            assert await client.ended() == b""
            return
        client.send(encode(GossipGet("nobody")))
        assert await client.get(2) == b"\0\0"


@pytest.mark.parametrize(
    "kind", ["uuid-with-additional-data", "payload-uuid", "topology-uuid", "ip-as-logical"]
)
@async_test
async def test_every_sort_of_address_is_told_as_it_came(kind: str) -> None:
    (steps,) = (p["steps"] for p in VECTORS["probes"] if p["case"] == f"addr-{kind}")
    listed = steps["get"][0]
    if kind == "ip-as-logical":  # the real router keeps the names of UUIDs only
        listed = listed.replace("0000000100000104", "000000010100026e6d000104")
    async with serving() as (server, _), await Raw.open(server) as client:
        client.send(bytes.fromhex(steps["req"]) + encode(GossipGet(f"g18{kind}")))
        assert (await client.get(1 + len(listed) // 2)).hex() == "0e" + listed


@pytest.mark.rule("GR-2")
@pytest.mark.rule("GR-4")
@pytest.mark.rule("GR-5")
@runs_on_every_loop
async def test_members_join_ask_and_talk() -> None:
    async with (
        serving() as (server, _),
        await Client2.open(server) as a,
        await Client2.open(server) as b,
    ):
        await a.join("g", 1, "A")
        await b.join("g", 2, "B")
        a.say(GossipGet("g"))
        listed = (PingData(uuid(1), "A", (HERE,)), PingData(uuid(2), "B", (HERE,)))
        assert await a.answer() == Members(listed)
        a.say(Message("g", uuid(2), b"one"), Ping(), Message("g", None, b"all"))
        assert await a.sync() == [Message(None, None, b"all")]
        assert await b.sync() == [Message(None, uuid(2), b"one"), Message(None, None, b"all")]


@pytest.mark.rule("GR-5")
@async_test
async def test_a_message_with_fields_that_nobody_uses_is_passed_on_without_them() -> None:
    (steps,) = (p["steps"] for p in VECTORS["probes"] if p["case"] == "msg-multicast-extra-fields")
    async with serving() as (server, _), await Client2.open(server) as client:
        await client.join("g12", 1)
        client.send(bytes.fromhex(steps["req"]))
        assert await client.answer() == Message(None, None, b"multi")


@async_test
async def test_a_message_without_payload_or_receiver_is_dropped_and_counted() -> None:
    async with serving() as (server, _), await Client2.open(server) as client:
        await client.join("g", 1)
        client.say(Message("g", None, b""), Message("g", None, None), Message(None, None, b"x"))
        client.say(Message("g", uuid(9), b"x"), Message("nope", None, b"x"))
        assert await client.sync() == []
        assert server.counts.dropped == {"MALFORMED": 2, "NO_ROUTE": 3}


@pytest.mark.rule("GR-7")
@async_test
async def test_leaving_is_answered_and_touches_only_what_is_ones_own() -> None:
    async with (
        serving() as (server, _),
        await Client2.open(server) as a,
        await Client2.open(server) as b,
    ):
        await a.join("g", 1)
        await a.join("h", 1)
        await b.join("g", 2)
        b.say(Disconnect("g", uuid(1)), Disconnect("nope", uuid(1)), Disconnect("g", None))
        ok, failed = DisconnectAnswer(ok=True), DisconnectAnswer(ok=False)
        assert await b.sync() == [ok, ok, failed]
        b.say(GossipGet("g"))
        listed = (PingData(uuid(1), "m", (HERE,)), PingData(uuid(2), "m", (HERE,)))
        assert await b.answer() == Members(listed)
        a.say(Disconnect("g", uuid(1)), GossipGet("h"))
        assert [await a.answer(), await a.answer()] == [ok, Members(listed[:1])]
        a.say(Disconnect(None, uuid(1)), GossipGet("h"))
        assert [await a.answer(), await a.answer()] == [ok, Members()]


@pytest.mark.rule("GR-8")
@runs_on_every_loop
async def test_the_group_of_a_vanished_member_learns_of_it_and_no_other_group_does() -> None:
    async with (
        serving() as (server, _),
        await Client2.open(server) as watcher,
        await Client2.open(server) as stranger,
        await Client2.open(server) as doomed,
    ):
        await watcher.join("g", 1)
        await stranger.join("h", 2)
        await doomed.join("g", 3)
        doomed.say(Message("h", None, b"hello"))
        assert await stranger.answer() == Message(None, None, b"hello")
        doomed.reset()
        assert await watcher.answer() == Suspect(uuid(3))
        assert await stranger.sync() == []


@pytest.mark.rule("GR-8")
@async_test
async def test_a_half_closed_connection_is_gone_and_one_that_said_close_is_not_suspected() -> None:
    async with (
        serving() as (server, _),
        await Client2.open(server) as watcher,
        await Client2.open(server) as half,
        await Client2.open(server) as polite,
    ):
        await watcher.join("g", 1)
        await half.join("g", 2)
        await polite.join("g", 3)
        polite.say(Close())
        assert await polite.ended() == b""
        assert await watcher.sync() == []
        half.writer.write_eof()
        assert await half.ended() == b""  # the real router tells it that it is dead
        assert await watcher.sync() == [Suspect(uuid(2))]


@pytest.mark.rule("GR-9")
@async_test
async def test_a_member_that_connects_again_is_never_suspected() -> None:
    async with (
        serving() as (server, _),
        await Client2.open(server) as watcher,
        await Client2.open(server) as old,
        await Client2.open(server) as new,
    ):
        await watcher.join("g", 1)
        await old.join("g", 2)
        await old.join("g", 2)  # the real router closes the connection here
        await new.join("g", 2)
        watcher.say(Message("g", uuid(2), b"who?"))
        assert await watcher.sync() == []
        assert await old.sync() == []  # it stays, as the other path
        assert await new.sync() == [Message(None, uuid(2), b"who?")]
        new.reset()
        await until(lambda: len(server.clients()) == 2)
        watcher.say(Message("g", uuid(2), b"and now?"))
        assert await watcher.sync() == []
        assert await old.sync() == [Message(None, uuid(2), b"and now?")]
        old.reset()
        assert await watcher.answer() == Suspect(uuid(2))


@async_test
async def test_the_answer_to_connect_is_never_overtaken() -> None:
    async with serving() as (server, _), await Client2.open(server) as talker:
        await talker.join("g", 1)
        stop = asyncio.Event()

        async def talk() -> None:
            while not stop.is_set():
                talker.say(*[Message("g", None, b"busy")] * 50)
                await asyncio.sleep(0)
                talker.reader._buffer.clear()  # type: ignore[attr-defined]

        talking = asyncio.create_task(talk())
        for number in range(2, 152):
            async with await Raw.open(server) as client:
                client.send(encode(Connect("g", uuid(number))))
                assert await client.get(1) == b"\x0e"
                client.send(encode(Close()))
        stop.set()
        await talking


@async_test
async def test_suspects_never_land_within_a_message() -> None:
    async with (
        serving() as (server, _),
        await Client2.open(server) as sender,
        await Client2.open(server) as receiver,
    ):
        await receiver.join("g", 1)
        for number in range(2, 40):
            doomed = await (await Client2.open(server)).join("g", number)
            sender.say(*[Message("g", uuid(1), bytes(300))] * 20)
            await asyncio.sleep(0)
            doomed.reset()
            sender.say(*[Message("g", uuid(1), bytes(300))] * 20)
        await sender.sync()
        messages = suspects = 0
        while messages < 38 * 40 or suspects < 38:
            answer = await receiver.answer()
            messages += answer == Message(None, uuid(1), bytes(300))
            suspects += isinstance(answer, Suspect)
        assert (messages, suspects) == (38 * 40, 38)


@async_test
async def test_a_client_of_2_that_is_silent_for_too_long_is_dead() -> None:
    async with (
        serving(silence=0.3) as (server, _),
        await Client2.open(server) as watcher,
        await Client2.open(server) as silent,
        await Raw.open(server) as mute,
    ):
        await watcher.join("g", 1)
        await silent.join("g", 2)
        for _ in range(2):  # from its second one on it is known to send them
            silent.say(Ping())
            await silent.sync()
        assert await watcher.answer() == Suspect(uuid(2))
        assert await silent.ended() == b""
        assert await mute.ended() == b""
        assert server.counts.disconnected == {"silent": 2}


@async_test
async def test_both_generations_share_a_port_and_never_see_one_another() -> None:
    async with (
        serving() as (server, _),
        await Client2.open(server) as two,
        await Client5.open(server) as five,
    ):
        await two.join("g", 1)
        await five.join("g", 1)
        two.say(Message("g", None, b"from 2"))
        assert await two.sync() == [Message(None, None, b"from 2")]
        assert await five.sync() == []
        two.reset()
        assert await five.sync() == []


@runs_on_every_loop
async def test_structures_may_come_in_pieces_of_any_size() -> None:
    message = Message("g", uuid(1), bytes(range(256)) * 300)
    stream = (
        encode(Connect("g", uuid(1)))
        + encode(message)
        + encode(Ping())
        + 3 * encode(message)
        + encode(GossipGet("nobody"))
    )
    sent_on = encode(Message(None, uuid(1), message.payload))
    for size in (1, 7, 4099, 70_000, len(stream)):
        async with serving() as (server, _), await Raw.open(server) as client:
            for start in range(0, len(stream), size):
                client.send(stream[start : start + size])
                if size > 1 or start < 100:
                    await asyncio.sleep(0)
            expected = b"\x0e" + 4 * sent_on + b"\0\0"
            assert await client.get(len(expected)) == expected
