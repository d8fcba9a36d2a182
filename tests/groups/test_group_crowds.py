"""Many members, many at once, and those that do not keep up."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack

import pytest

from tests.gossip_router.clients import Client5, uuid
from tests.groups.crowd import (
    LASTING,
    Ear,
    everybody_knows,
    known,
    members,
    named,
    numbers,
    routers,
    stream,
    streams_of,
    vanish,
)
from tests.groups.test_group_multicast import address as multicast
from tests.node.live import LOOPS
from waystation.core.outcome import Outcome, Reason
from waystation.errors import LocalError
from waystation.groups import Group, GroupLimits
from waystation.testing import async_test, run_checked, until
from waystation.wire.jgroups5 import Message

PATIENT = GroupLimits(beat=30.0, grace=60.0, dial=30.0)


@pytest.mark.parametrize(
    "count", [100, pytest.param(1_000, marks=[pytest.mark.fault, pytest.mark.timeout(900)])]
)
def test_members_in_one_group_by_the_hundred(count: int) -> None:
    async def scenario() -> None:
        async with routers() as found, AsyncExitStack() as stack:
            groups = [
                Group("fleet", name=f"m{n}", via=found.via(), limits=PATIENT, wait=120)
                for n in range(count)
            ]
            for start in range(0, len(groups), 50):
                await asyncio.gather(*(g.connect() for g in groups[start : start + 50]))
            for group in groups:
                stack.callback(group.shut)
            await everybody_knows(groups, count)
            ears = [Ear(group) for group in (groups[1], groups[count // 2], groups[-1])]
            assert (await groups[0].send(b"to all")).outcome is Outcome.FORWARDED
            await groups[0].send(b"to one", to=groups[-1].me)
            await until(lambda: all(ear.heard for ear in ears) and len(ears[2].heard) == 2, 60)
            assert ears[1].heard == [("m0", b"to all")]

    run_checked(scenario, seconds=max(100, 0.8 * count))


@async_test
async def test_a_storm_of_joins_and_leaves_ends_in_one_view() -> None:
    chance = random.Random(11)
    async with routers(2) as found, AsyncExitStack() as stack:
        steady = [
            await stack.enter_async_context(
                Group("fleet", name=f"s{n}", via=found.via(), limits=LASTING)
            )
            for n in range(3)
        ]

        async def come_and_go(number: int) -> None:
            for _ in range(4):
                group = Group("fleet", name=f"g{number}", via=found.via(), limits=LASTING)
                await group.connect()
                await group.send(b"hello and goodbye")
                await asyncio.sleep(chance.random() * 0.01)
                if chance.random() < 0.3:
                    await vanish(group)
                else:
                    await group.close()

        ear = Ear(steady[0])
        await asyncio.gather(*(come_and_go(number) for number in range(20)))
        await everybody_knows(steady)
        joined = [name for kind, name in ear.events() if kind == "join"]
        gone = [name for kind, name in ear.events() if kind in {"suspect", "invalidate"}]
        assert sorted(joined) == sorted(gone)
        await steady[1].send(b"after the storm")
        await until(lambda: ear.payloads("s1") == [b"after the storm"])
        await until(lambda: len(streams_of(steady[0]).all) == 0)


@pytest.mark.parametrize("kind", ["gossip", "gossip+tcp"])
@async_test
async def test_a_member_that_does_not_read_holds_up_who_sends_to_it_and_nobody_else(
    kind: str,
) -> None:
    limits = GroupLimits(beat=5.0, window=64, inbox=100)
    async with (
        routers() as found,
        members(["a", "b", "c"], found.via(kind), limits=limits) as (a, b, c),
    ):
        ear = Ear(c)
        taken = 0
        while (await a.send(b"%d" % taken, to="b", wait=0.5)).reason is None:
            taken += 1
            assert taken < 1_000, "it takes whatever comes"
        verdict = await a.send(b"", to="b", wait=0)
        assert verdict.reason is Reason.QUEUE_FULL
        assert (await a.send(b"", to="b", ttl=0.01)).reason is Reason.EXPIRED
        await stream(a, 500, to=named(a, "c"))
        await until(lambda: ear.payloads("a") == numbers(500))
        reader = Ear(b)  # and now it reads
        await until(lambda: len(reader.heard) == taken)
        assert reader.payloads() == numbers(taken)


@async_test
async def test_a_laggard_loses_what_goes_to_all_and_the_others_do_not() -> None:
    limits = GroupLimits(beat=5.0, window=64, inbox=100, laggards=0.1)
    async with (
        routers() as found,
        members(["a", "b", "c"], found.via(), limits=limits) as (a, b, c),
    ):
        ear = Ear(c)
        for number in range(1_000):
            await a.send(b"%d" % number)
        await until(lambda: ear.payloads() == numbers(1_000))
        assert a.counts["QUEUE_FULL"] > 0
        late = Ear(b)
        back = streams_of(a).all.acked
        await until(lambda: b.me.uuid in back)  # it says that it has room again
        await a.send(b"the end")
        await until(lambda: late.payloads()[-1:] == [b"the end"])
        got = [int(payload) for payload in late.payloads()[:-1]]
        assert got == sorted(set(got))  # in order, each once, with a gap
        assert a.counts["QUEUE_FULL"] == 1_000 - len(got) == b.counts["QUEUE_FULL"]


@async_test
async def test_one_sender_can_be_held_while_others_are_heard() -> None:
    limits = GroupLimits(beat=5.0, window=64)
    async with (
        routers() as found,
        members(["a", "b", "c"], found.via(), limits=limits) as (a, b, c),
    ):
        ear = Ear(c)
        c.hold(named(c, "a"))
        sending = asyncio.ensure_future(stream(a, 500, to=named(a, "c")))
        await stream(b, 500, to=named(b, "c"))
        await until(lambda: ear.payloads("b") == numbers(500))
        assert ear.payloads("a") == []
        assert not sending.done()  # it feels that nobody listens
        c.release(named(c, "a"))
        await sending
        await until(lambda: ear.payloads("a") == numbers(500))


@pytest.mark.rule("GR-11")
@async_test
async def test_packets_of_another_make_are_counted_and_hurt_nobody() -> None:
    async with (
        routers() as found,
        members(["a", "b"], found.via()) as (a, b),
        await Client5.open(found.servers[0]) as foreign,
    ):
        await foreign.join("fleet", 77, "a JGroups channel")
        foreign.say(Message("fleet", None, uuid(77), b"\x13\x02 as 2.12 would say"))
        await until(lambda: a.counts["MALFORMED"] == b.counts["MALFORMED"] == 1)
        ear = Ear(b)
        await a.send(b"hello", to="b")
        await until(lambda: ear.payloads() == [b"hello"])


@pytest.mark.parametrize("kind", ["gossip", "gossip+tcp", "udp"])
@pytest.mark.parametrize("loop", LOOPS)
def test_every_way_works_on_every_loop(loop: str, kind: str) -> None:
    async def scenario() -> None:
        async with routers() as found:
            via = multicast() if kind == "udp" else found.via(kind)
            interface = "127.0.0.1" if kind == "udp" else None
            async with members(["a", "b"], via, interface=interface) as (a, b):
                ear = Ear(b)
                await a.send(b"to all")
                await stream(a, 300, to=named(a, "b"))
                await until(lambda: len(ear.heard) == 301)

    run_checked(scenario, LOOPS[loop])


@async_test
async def test_a_member_may_send_to_itself() -> None:
    async with routers() as found, members(["a"], found.via()) as (a,):
        ear = Ear(a)
        assert (await a.send(b"note to self", to=a.me)).outcome is Outcome.DELIVERED
        await until(lambda: ear.heard == [("a", b"note to self")])


@async_test
async def test_what_was_sent_arrives_before_the_goodbye() -> None:
    async with routers() as found, members(["a"], found.via()) as (a,):
        ear = Ear(a)
        async with Group("fleet", name="b", via=found.via()) as b:
            for number in range(500):
                await b.send(b"%d" % number, to="a")
        await until(lambda: ("invalidate", "b") in ear.events())
        await until(lambda: ear.payloads("b") == numbers(500))
        assert (await b.send(b"too late", to="a")).reason is Reason.REFUSED


@async_test
async def test_a_message_that_is_too_large_is_refused_and_a_large_one_is_not() -> None:
    async with routers() as found, members(["a", "b"], found.via()) as (a, b):
        ear = Ear(b)
        assert (await a.send(bytes(9 << 20), to="b")).reason is Reason.TOO_LARGE
        await a.send(bytes(2 << 20), to="b")
        await until(lambda: [len(payload) for payload in ear.payloads()] == [2 << 20])


@async_test
async def test_the_caller_is_told_what_is_wrong_with_a_call() -> None:
    async with routers() as found:
        group = Group("fleet", via=found.via())
        with pytest.raises(LocalError, match="not connected"):
            await group.members()
        async with group:
            with pytest.raises(LocalError, match="not bytes"):
                await group.send("text")  # type: ignore[arg-type]
            with pytest.raises(LocalError, match="invalid recipient"):
                await group.send(b"", to=7)  # type: ignore[arg-type]
            with pytest.raises(LocalError, match="seconds"):
                await group.send(b"", to="x", ttl=-1)
        with pytest.raises(LocalError, match="invalid group name"):
            Group("", via=found.via())


@async_test
async def test_a_reader_of_changes_that_falls_behind_loses_the_oldest() -> None:
    limits = GroupLimits(changes=2, beat=5.0)
    async with routers() as found, Group("fleet", name="a", via=found.via(), limits=limits) as a:
        changes = a.changes()
        for name in ("b", "c"):
            async with Group("fleet", name=name, via=found.via()):
                await until(lambda: len(known(a)) == 1)
            await until(lambda: not known(a))
        assert changes.lost == 2
        assert [str((await anext(changes)).mapping.member) for _ in range(2)] == ["c", "c"]
