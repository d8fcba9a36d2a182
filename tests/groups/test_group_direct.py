"""Groups over direct TCP: found by a router or by a list, moved, cut off, and never confused."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from tests.groups.crowd import (
    LASTING,
    QUICK,
    Ear,
    everybody_knows,
    forget,
    known,
    lose_place,
    members,
    named,
    names,
    numbers,
    port_of,
    routers,
    stranger,
    stream,
    streams_of,
    vanish,
)
from tests.transports.certificates import authority
from waystation.core.gossip import MemberKind
from waystation.core.identity import First, Mapping, RoundRobin
from waystation.core.outcome import Outcome, Reason
from waystation.core.record import ChangeRecord, MessageRecord, Record
from waystation.errors import LocalError
from waystation.groups import Group, GroupLimits
from waystation.testing import async_test, run_checked, until

HERE = "127.0.0.1:0"
THERE = "127.0.0.2:0"


@pytest.mark.rule("OB-1")
@pytest.mark.parametrize("kind", ["gossip", "gossip+tcp"])
@async_test
async def test_what_was_on_its_way_to_a_member_that_vanished_is_told_as_dropped(kind: str) -> None:
    async with routers() as found, members(["a", "b"], found.via(kind), limits=QUICK) as (a, b):
        told: list[Record] = []
        a.observe(told.append)
        lost = named(a, "b")
        await vanish(b)
        await a.send(b"to one", to=lost)
        await a.send(b"to all")
        await until(lambda: len([r for r in told if isinstance(r, MessageRecord)]) == 2)
        words = {
            r.arrival.message.payload: r.verdict.reason
            for r in told
            if isinstance(r, MessageRecord)
        }
        assert words[b"to one"] is Reason.TRANSPORT_DOWN
        assert words[b"to all"] in {Reason.TRANSPORT_DOWN, Reason.NO_ROUTE}


def read_journal(directory: Path) -> Callable[[str], list[dict[str, Any]]]:
    """The rows of a table of a journal, in order."""

    def rows(table: str) -> list[dict[str, Any]]:
        files = sorted((directory / table).rglob("*.parquet"))
        found: list[dict[str, Any]] = [
            row for file in files for row in parquet.ParquetFile(file).read().to_pylist()
        ]
        return sorted(found, key=lambda row: (row["incarnation"], row["seq"]))

    return rows


@pytest.mark.rule("LA-9")
@async_test
async def test_tcpgossip_tcp_startup() -> None:
    async with (
        routers() as found,
        members(["a", "b"], found.via("gossip+tcp")) as (a, b),
        Group("fleet", name="joiner", via=found.via("gossip+tcp")) as joiner,
    ):
        # From the router: who, by which name, and where; then each was asked directly.
        assert await names(joiner) == {"a", "b", "joiner"}
        assert named(joiner, "a").physical == a.me.physical != ()
        await everybody_knows([a, b, joiner])
        ears = [Ear(group) for group in (a, b, joiner)]
        await joiner.send(b"to all")
        await b.send(b"to one", to=joiner.me)
        await until(lambda: all(ear.heard for ear in ears))
        assert ears[2].heard == [("b", b"to one")]
        assert found.servers[0].counts.delivered == 0  # no message went through the router


@pytest.mark.rule("LA-9")
@async_test
async def test_tcpping_tcp_startup() -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(
            Group("fleet", name="first", via="tcp://127.0.0.1:1", listen=HERE, limits=LASTING)
        )
        via = f"tcp://{first.me.physical[0]}"
        groups = [first]
        for name in ("second", "third"):
            groups.append(
                await stack.enter_async_context(
                    Group("fleet", name=name, via=via, listen=HERE, limits=LASTING)
                )
            )
            # The request was addressed to a place; the answer came to a UUID.
            assert "first" in await names(groups[-1])
        # No list names the second and the third: the first one tells them of each other.
        await everybody_knows(groups)
        ears = [Ear(group) for group in groups]
        await groups[2].send(b"to all")
        await until(lambda: ears[0].heard == ears[1].heard == [("third", b"to all")])


@pytest.mark.rule("LA-6")
@pytest.mark.rule("OB-1")
@async_test
async def test_sending_of_a_message_with_no_physical_address_available() -> None:
    async with routers() as found, members(["a", "b"], found.via("gossip+tcp")) as (a, b):
        told: list[Record] = []
        a.observe(told.append)
        ear = Ear(b)
        lost = forget(a, b)
        asked = found.servers[0].counts.requests["getmembers"]
        # The messages are queued, and the router is asked once for all of them.
        for number in range(3):
            assert (await a.send(b"%d" % number, to=lost)).outcome is Outcome.QUEUED
        assert streams_of(a).discovery.waiting == 3
        # The router answers with the mapping; the cache learns it, and the queue goes out in order.
        await until(lambda: len(ear.heard) == 3)
        assert ear.payloads() == numbers(3)
        assert found.servers[0].counts.requests["getmembers"] == asked + 1
        await until(lambda: len([r for r in told if isinstance(r, MessageRecord)]) == 6)
        words = [r.verdict.outcome for r in told if isinstance(r, MessageRecord)]
        assert words == 3 * [Outcome.QUEUED] + 3 * [Outcome.FORWARDED]


@pytest.mark.rule("LA-6")
@async_test
async def test_a_multicast_keeps_a_copy_for_the_member_whose_address_is_missing() -> None:
    async with (
        routers() as found,
        members(["a", "b", "c"], found.via("gossip+tcp")) as (a, b, c),
    ):
        ears = Ear(b), Ear(c)
        forget(a, b)
        await a.send(b"to all")
        await until(lambda: ears[0].heard == ears[1].heard == [("a", b"to all")])


@pytest.mark.rule("LA-6")
@async_test
async def test_messages_for_an_unknown_member_are_bounded_and_expire() -> None:
    async with routers() as found:
        via = found.via("gossip+tcp")
        limits = GroupLimits(waiting=2)
        async with Group("fleet", name="a", via=via, limits=limits) as a:
            nobody = stranger()
            assert (await a.send(b"1", to=nobody)).outcome is Outcome.QUEUED
            assert (await a.send(b"2", to=nobody, ttl=0.2)).outcome is Outcome.QUEUED
            assert (await a.send(b"3", to=nobody, ttl=0.2)).outcome is Outcome.QUEUED
            assert a.counts == {"QUEUE_FULL": 1}  # the oldest made room
            await until(lambda: a.counts == {"QUEUE_FULL": 1, "EXPIRED": 2})


@pytest.mark.rule("LA-6")
@async_test
async def test_who_has_goes_out_on_the_wire_and_i_have_answers_it() -> None:
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(
            Group("fleet", name="hub", via="tcp://127.0.0.1:1", listen=HERE, limits=LASTING)
        )
        via = f"tcp://{hub.me.physical[0]}"
        a, b = [
            await stack.enter_async_context(
                Group("fleet", name=name, via=via, listen=HERE, limits=LASTING)
            )
            for name in "ab"
        ]
        await everybody_knows([hub, a, b])
        ear = Ear(b)
        lost = forget(a, b)
        assert (await a.send(b"where are you?", to=lost)).outcome is Outcome.QUEUED
        await until(lambda: ear.payloads() == [b"where are you?"])  # the hub knew


@async_test
async def test_without_its_router_a_group_talks_on_and_with_a_new_one_it_grows_again() -> None:
    async with routers() as found, members(["a", "b"], found.via("gossip+tcp")) as (a, b):
        ears = Ear(a), Ear(b)
        cuts: list[str] = []
        a.on_cut.append(cuts.append)
        await found.kill(0)
        await stream(a, 500, to=named(a, "b"))
        await b.send(b"to all")
        await until(lambda: ears[1].payloads() == numbers(500))
        await until(lambda: ears[0].payloads() == [b"to all"])
        await found.restart(0)
        async with Group("fleet", name="c", via=found.via("gossip+tcp")) as c:
            await everybody_knows([a, b, c])
        assert ("suspect", "b") not in ears[0].events()
        assert cuts == []


@pytest.mark.rule("LA-8")
@async_test
async def test_who_closes_is_forgotten_and_messages_to_it_have_no_route() -> None:
    async with routers() as found, members(["a"], found.via("gossip+tcp")) as (a,):
        ear = Ear(a)
        async with Group("fleet", name="b", via=found.via("gossip+tcp")) as b:
            await everybody_knows([a, b])
            left = named(a, "b")
        await until(lambda: ("invalidate", "b") in ear.events())
        assert streams_of(a).cache.lookup(left.uuid) is None
        assert (await a.send(b"", to=left)).reason is Reason.NO_ROUTE
        assert (await a.send(b"")).reason is Reason.NO_ROUTE


@pytest.mark.rule("LA-2")
@async_test
async def test_a_member_that_restarts_on_the_same_port_is_another_member() -> None:
    async with AsyncExitStack() as stack:
        a = await stack.enter_async_context(
            Group("fleet", name="a", via="tcp://127.0.0.1:1", listen=HERE, limits=LASTING)
        )
        via = f"tcp://{a.me.physical[0]}"
        b = await stack.enter_async_context(Group("fleet", name="b", via=via, listen=HERE))
        await everybody_knows([a, b])
        before, place = b.me, b.me.physical[0]
        ear = Ear(a)
        await vanish(b)
        again = await stack.enter_async_context(Group("fleet", name="b", via=via, listen=place))
        await until(lambda: known(a) == {again.me.uuid})
        assert again.me.physical == before.physical
        assert again.me != before
        heard = Ear(again)
        await a.send(b"for the old one", to=before)
        await a.send(b"for the new one", to="b")
        await until(lambda: heard.payloads() == [b"for the new one"])
        assert ear.events()[:2] == [("suspect", "b"), ("join", "b")]


@pytest.mark.rule("LA-2")
@async_test
async def test_the_same_object_is_another_member_each_time_it_connects() -> None:
    async with routers() as found:
        group = Group("fleet", name="a", via=found.via())
        async with group:
            first = group.me
            with pytest.raises(LocalError, match="connected already"):
                await group.connect()
        async with group:
            assert group.me != first
            assert group.me.name == first.name


@pytest.mark.rule("LA-2")
@async_test
async def test_without_a_name_one_is_made_from_the_host() -> None:
    async with routers() as found, Group("fleet", via=found.via()) as group:
        assert group.me.name.rpartition("-")[2].isdigit()


@pytest.mark.rule("LA-4")
@pytest.mark.rule("LA-10")
@async_test
async def test_an_interface_is_lost_under_traffic_and_nothing_else() -> None:
    async with routers() as found:
        via = found.via("gossip+tcp")
        async with (
            Group("fleet", name="a", via=via, limits=LASTING) as a,
            Group("fleet", name="b", via=via, listen=[HERE, THERE], limits=LASTING) as b,
        ):
            await everybody_knows([a, b])
            await until(lambda: len(named(a, "b").physical) == 2)
            ear = Ear(b)
            before = b.me
            sending = asyncio.ensure_future(stream(a, 3_000, to=before))
            await until(lambda: len(ear.heard) > 300)
            # The interface of the first place is gone, and nobody says so.
            lost, stays = before.physical
            lose_place(b, lost)
            await sending
            await until(lambda: len(ear.heard) == 3_000)
            assert ear.payloads() == numbers(3_000)
            assert streams_of(a).cache.select(before.uuid) == stays
            assert known(a) == {before.uuid}  # the same member, all the time


@pytest.mark.rule("LA-5")
@pytest.mark.rule("LA-10")
@async_test
async def test_an_address_changes_under_traffic_and_the_others_are_told() -> None:
    async with routers() as found, members(["a", "b"], found.via("gossip+tcp")) as (a, b):
        ear, watch = Ear(b), Ear(a)
        before = b.me
        sending = asyncio.ensure_future(stream(a, 3_000, to=before))
        await until(lambda: len(ear.heard) > 300)
        await b.move(THERE)
        await sending
        await until(lambda: len(ear.heard) == 3_000)
        assert ear.payloads() == numbers(3_000)
        assert named(a, "b").physical == b.me.physical != before.physical
        assert b.me == before
        assert watch.events() == [("address", "b")]
        async with Group("fleet", name="late", via=found.via("gossip+tcp")) as late:
            assert named(late, "b").physical == b.me.physical  # the router was told as well
        with pytest.raises(LocalError, match="no place to move"):
            await b.move()


@pytest.mark.rule("LA-5")
@async_test
async def test_a_change_of_the_cache_travels_with_the_next_message() -> None:
    async with routers() as found, members(["a", "b"], found.via("gossip+tcp")) as (a, b):
        news = Mapping(stranger("news"), ("127.0.0.9:9",), 7)
        streams_of(a).cache.learn(news)
        ear = Ear(b)
        await a.send(b"by the way", to="b")
        await until(lambda: bool(ear.heard))
        assert streams_of(b).cache.lookup(news.uuid) == news
        assert known(b) == {a.me.uuid}  # hearsay makes nobody a member


@pytest.mark.rule("LA-4")
@async_test
async def test_the_choice_among_addresses_is_the_users() -> None:
    async with routers() as found:
        via = found.via("gossip+tcp")
        listen = [HERE, THERE]
        async with (
            Group("fleet", name="turns", via=via, selection=RoundRobin()) as turns,
            Group("fleet", name="first", via=via, selection=First()) as first,
            Group("fleet", name="b", via=via, listen=listen) as b,
        ):
            for group in (turns, first):
                await until(lambda g=group: len(named(g, "b").physical) == 2)  # type: ignore[misc]
            uuid, places = b.me.uuid, b.me.physical
            chosen = {streams_of(turns).cache.select(uuid) for _ in range(4)}
            assert chosen == set(places)
            assert {streams_of(first).cache.select(uuid) for _ in range(4)} == {places[0]}


@async_test
async def test_who_vanishes_from_a_list_is_suspected_by_everybody() -> None:
    async with AsyncExitStack() as stack:
        a = await stack.enter_async_context(
            Group("fleet", name="a", via="tcp://127.0.0.1:1", listen=HERE, limits=QUICK)
        )
        via = f"tcp://{a.me.physical[0]}"
        b = await stack.enter_async_context(
            Group("fleet", name="b", via=via, listen=HERE, limits=QUICK)
        )
        await everybody_knows([a, b])
        ear = Ear(a)
        await vanish(b)
        await until(lambda: ("suspect", "b") in ear.events())


@async_test
async def test_one_place_serves_one_group_and_nobody_else() -> None:
    async with routers() as found, members(["a", "b"], found.via("gossip+tcp")) as (a, b):
        host, port = "127.0.0.1", port_of(a.me.physical[0])
        for first in (
            b"GET / HTTP/1.1\r\n\r\n",
            b"WSGM\x01\x00\x05other",
            b"WSGM\x01\x00\x05fleet\xff",
        ):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(first + b"\xff\xff\xff\xff")
            assert await asyncio.wait_for(reader.read(), 20) == b""
            writer.close()
        ear = Ear(a)
        await b.send(b"still there?", to="a")
        await until(lambda: ear.payloads() == [b"still there?"])


@async_test
async def test_malformed_packets_are_counted_and_hurt_nobody() -> None:
    async with routers() as found, members(["a", "b"], found.via("gossip+tcp")) as (a, b):
        _, writer = await asyncio.open_connection("127.0.0.1", port_of(a.me.physical[0]))
        writer.write(b"WSGM\x01\x00\x05fleet")
        head = b"\xe1\x04" + 32 * b"\x01"
        for packet in (b"", b"\x13\x02", head, b"\xe1\x09" + 32 * b"\x01", head + b"\xc1"):
            writer.write(len(packet).to_bytes(4, "big") + packet)
        await until(lambda: a.counts["MALFORMED"] == 5)
        ear = Ear(a)
        await b.send(b"still there?", to="a")
        await until(lambda: ear.payloads() == [b"still there?"])
        writer.close()


@async_test
async def test_direct_connections_can_be_encrypted() -> None:
    tls = authority().tls("127.0.0.1")
    async with AsyncExitStack() as stack:
        a = await stack.enter_async_context(
            Group("fleet", name="a", via="tcp://127.0.0.1:1", listen=HERE, tls=tls)
        )
        via = f"tcp://{a.me.physical[0]}"
        b = await stack.enter_async_context(Group("fleet", name="b", via=via, listen=HERE, tls=tls))
        await everybody_knows([a, b])
        ear = Ear(a)
        await b.send(b"secret", to="a")
        await until(lambda: ear.payloads() == [b"secret"])


@async_test
async def test_a_place_that_means_every_address_is_refused() -> None:
    group = Group("fleet", via="tcp://127.0.0.1:1", listen="0.0.0.0:0")
    with pytest.raises(LocalError, match="cannot reach"):
        await group.connect()


@async_test
async def test_what_cannot_be_opened_leaves_nothing_open(tmp_path: Path) -> None:
    async with Group("fleet", via="tcp://127.0.0.1:1", listen=HERE) as first:
        taken = first.me.physical[0]
        with pytest.raises(OSError, match="cannot listen"):
            await Group("fleet", via="tcp://127.0.0.1:1", listen=[HERE, taken]).connect()
    no_directory = tmp_path / "file"
    no_directory.write_text("")
    for via in ("tcp://127.0.0.1:1", "gossip://127.0.0.1:1"):
        group = Group("fleet", via=via, listen=HERE, journal=no_directory)
        with pytest.raises((OSError, LocalError)):
            await group.connect()
        with pytest.raises(LocalError, match="not connected"):
            await group.members()


@pytest.mark.rule("OB-4")
@async_test
async def test_the_observers_hear_of_every_member_and_of_every_message() -> None:
    async with routers() as found, members(["a", "b"], found.via()) as (a, b):
        sent: list[Record] = []
        got: list[Record] = []
        a.observe(sent.append)
        b.observe(got.append)
        ear = Ear(b)
        await a.send(b"one", to="b")
        await a.send(b"all")
        await a.send(b"none", to="nobody")
        await until(lambda: len(ear.heard) == 2)
        await until(lambda: len(sent) == 3)
        by_payload = {r.arrival.message.payload: r for r in sent if isinstance(r, MessageRecord)}
        assert by_payload[b"none"].verdict.reason is Reason.NO_ROUTE
        for record in got:
            assert isinstance(record, MessageRecord)
            message = record.arrival.message
            other = by_payload[message.payload]
            assert record.verdict.outcome is Outcome.DELIVERED
            assert other.verdict.outcome is Outcome.FORWARDED
            assert other.arrival.message.id == message.id  # both ends agree on it
        async with Group("fleet", name="c", via=found.via()):
            await until(lambda: any(isinstance(r, ChangeRecord) for r in sent))
        changes = [r.change for r in sent if isinstance(r, ChangeRecord)]
        assert changes[0].kind is MemberKind.JOIN


@pytest.mark.rule("OB-4")
def test_a_group_keeps_a_journal(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with routers() as found:
            via = found.via("gossip+tcp")
            async with (
                Group("fleet", name="a", via=via, journal=tmp_path) as a,
                Group("fleet", name="b", via=via) as b,
            ):
                await everybody_knows([a, b])
                ear = Ear(b)
                await a.send(b"hello", to="b")
                await a.send(b"nobody", to="c")
                await until(lambda: bool(ear.heard))
                await b.move("127.0.0.2:0")
                await until(lambda: named(a, "b").physical == b.me.physical)

    run_checked(scenario)
    found = read_journal(tmp_path)
    members_ = [(row["kind"], row["name"]) for row in found("members")]
    assert members_[:3] == [("join", "a"), ("join", "b"), ("address", "b")]
    assert ("leave", "a") in members_
    words = [(row["outcome"], row["reason"], row["onward"]) for row in found("messages")]
    assert ("DROPPED", "NO_ROUTE", ["6#fleet/c"]) in words
    assert ("FORWARDED", None, ["6#fleet/b"]) in words


UNSHARE = shutil.which("unshare") or ""


def can_make_networks() -> bool:
    """Whether this machine lets us have a network of our own."""
    if not UNSHARE or shutil.which("ip") is None:
        return False
    return subprocess.run([UNSHARE, "-n", "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.rule("LA-10")
@pytest.mark.skipif(not can_make_networks(), reason="needs network namespaces")
def test_an_address_is_taken_from_the_machine_under_traffic() -> None:
    program = Path(__file__).with_name("lost_interface.py")
    done = subprocess.run(
        [UNSHARE, "-n", sys.executable, str(program)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.stdout == "everything arrived\n", done.stderr[-2_000:]
