"""Groups through gossip routers alone: one router, several, and those that die."""

from __future__ import annotations

import asyncio

import pytest

from tests.groups.crowd import (
    LASTING,
    QUICK,
    Ear,
    carrier_of,
    everybody_knows,
    known,
    members,
    named,
    names,
    numbers,
    router_connections,
    routers,
    stream,
    streams_of,
    vanish,
)
from tests.transports.certificates import authority
from waystation.core.outcome import Outcome, Reason
from waystation.errors import LocalError, UnreachableError
from waystation.gossip_router import Admission, Door, GossipServer
from waystation.groups import Group, GroupLimits
from waystation.testing import async_test, tcp_path, until

dialects = pytest.mark.parametrize("dialect", ["jgroups5", "jgroups2"])


@dialects
@pytest.mark.rule("LA-9")
@async_test
async def test_tcpgossip_tunnel_startup(dialect: str) -> None:
    async with routers() as found, members(["a", "b"], found.via(), dialect=dialect) as (a, b):
        async with Group("fleet", name="joiner", via=found.via(), dialect=dialect) as joiner:
            assert await names(joiner) == {"a", "b", "joiner"}  # from the router, and by answers
            await everybody_knows([a, b, joiner])
            assert all(member.physical == () for member in await joiner.members())
            ears = [Ear(group) for group in (a, b, joiner)]
            assert (await joiner.send(b"to all")).outcome is Outcome.FORWARDED
            assert (await a.send(b"to one", to=named(a, "joiner"))).outcome is Outcome.FORWARDED
            await until(lambda: all(ear.heard for ear in ears))
            assert [ear.heard for ear in ears] == [
                [("joiner", b"to all")],
                [("joiner", b"to all")],
                [("a", b"to one")],
            ]
        await everybody_knows([a, b])  # it said goodbye
        assert ears[0].events() == [("invalidate", "joiner")]


@dialects
@async_test
async def test_order_is_kept_from_each_sender(dialect: str) -> None:
    async with (
        routers() as found,
        members(["a", "b", "c"], found.via(), dialect=dialect) as (a, b, c),
    ):
        ear = Ear(c)
        await asyncio.gather(stream(a, 3_000, to=named(a, "c")), stream(b, 3_000, to=named(b, "c")))
        await until(lambda: len(ear.heard) == 6_000)
        assert ear.payloads("a") == ear.payloads("b") == numbers(3_000)


@async_test
async def test_what_goes_to_one_and_what_goes_to_all_keep_their_order() -> None:
    async with routers() as found, members(["a", "b"], found.via()) as (a, b):
        ear = Ear(b)
        for number in range(200):
            await a.send(b"%d" % number, to=named(a, "b") if number % 3 else None)
        await until(lambda: len(ear.heard) == 200)
        assert ear.payloads() == numbers(200)


@pytest.mark.rule("GR-12")
@dialects
@async_test
async def test_a_router_that_dies_under_traffic_loses_nothing(dialect: str) -> None:
    async with (
        routers(2) as found,
        members(["a", "b", "c"], found.via(), dialect=dialect) as (a, b, c),
    ):
        ears = [Ear(b), Ear(c)]
        sending = asyncio.gather(
            stream(a, 4_000), stream(a, 4_000, to=named(a, "b")), stream(b, 4_000)
        )
        await until(lambda: len(ears[0].heard) > 500)
        await found.kill(0)
        await sending
        await until(lambda: len(ears[0].heard) == 8_000 and len(ears[1].heard) == 8_000)
        assert ears[1].payloads("a") == ears[1].payloads("b") == numbers(4_000)
        assert sorted(ears[0].payloads("a")) == sorted(2 * numbers(4_000))
        assert ears[0].events() == ears[1].events() == []  # nobody was suspected


@pytest.mark.rule("GR-12")
@async_test
async def test_each_router_in_turn_dies_and_comes_back_and_nothing_is_lost() -> None:
    async with routers(2) as found, members(["a", "b"], found.via()) as (a, b):
        ear = Ear(b)
        done = 0
        for index in (0, 1, 0):
            sending = asyncio.ensure_future(stream(a, 1_000, to=named(a, "b")))
            await until(lambda done=done: len(ear.heard) > done + 100)  # type: ignore[misc]
            await found.kill(index)
            await sending
            done += 1_000
            await until(lambda done=done: len(ear.heard) == done)  # type: ignore[misc]
            await found.restart(index)
            await until(
                lambda: all(each.is_ready for g in (a, b) for each in router_connections(g))
            )
        assert ear.payloads() == 3 * numbers(1_000)


@pytest.mark.rule("GR-12")
@async_test
async def test_members_that_share_no_first_router_reach_each_other_over_the_one_they_share() -> (
    None
):
    async with routers(3) as found:
        one, shared, two = (f"gossip://{place}" for place in found.places)
        async with (
            Group("fleet", name="a", via=[one, shared]) as a,
            Group("fleet", name="b", via=[two, shared]) as b,
        ):
            await everybody_knows([a, b])
            ears = Ear(a), Ear(b)
            await a.send(b"hello", to=named(a, "b"))
            await b.send(b"to all")
            await a.send(b"to all")
            await until(lambda: len(ears[0].heard) == 1 and len(ears[1].heard) == 2)


@pytest.mark.rule("GR-12")
@async_test
async def test_a_member_that_one_router_lost_is_not_suspected_while_another_sees_it() -> None:
    async with (
        routers(2) as found,
        tcp_path(found.places[0]) as path,
        Group("fleet", name="a", via=found.via(), limits=LASTING) as a,
        Group(
            "fleet", name="b", via=f"gossip://{path.place},{found.places[1]}", limits=LASTING
        ) as b,
    ):
        await everybody_knows([a, b])
        await until(lambda: all(client.roster for client in router_connections(a)))
        ear, heard = Ear(a), Ear(b)
        path.refuse(refuse=True)
        path.cut()
        await until(lambda: not router_connections(a)[0].roster)  # the first router lost b
        await stream(a, 100, to=named(a, "b"))
        await until(lambda: heard.payloads() == numbers(100))
        assert ear.events() == []
        path.refuse(refuse=False)
        await until(lambda: bool(router_connections(a)[0].roster))


@async_test
async def test_the_only_router_dies_and_comes_back_and_traffic_goes_on() -> None:
    async with routers() as found, members(["a", "b"], found.via()) as (a, b):
        ear = Ear(b)
        sending = asyncio.ensure_future(stream(a, 2_000, to=named(a, "b")))
        await until(lambda: len(ear.heard) > 100)
        await found.kill(0)
        await until(lambda: not a.is_open and not b.is_open)
        await found.restart(0)
        await sending
        await until(lambda: len(ear.heard) == 2_000)
        assert ear.payloads() == numbers(2_000)
        assert ear.events() == []


@async_test
async def test_who_vanishes_is_suspected_and_who_comes_back_is_somebody_else() -> None:
    async with routers() as found, members(["a", "b"], found.via(), limits=QUICK) as (a, b):
        ear = Ear(a)
        first = named(a, "b")
        await vanish(b)
        await until(lambda: ("suspect", "b") in ear.events())
        assert known(a) == set()
        async with Group("fleet", name="b", via=found.via()) as again:
            await until(lambda: known(a) == {again.me.uuid})
            assert named(a, "b") != first
            await a.send(b"hello", to="b")
            heard = Ear(again)
            await until(lambda: heard.payloads() == [b"hello"])


@pytest.mark.rule("GR-12")
@async_test
async def test_a_router_that_no_longer_answers_is_noticed() -> None:
    async with (
        routers(2) as found,
        tcp_path(found.places[0]) as one,
        tcp_path(found.places[1]) as two,
    ):
        paths = {one.place: one, two.place: two}
        via = [f"gossip://{place}" for place in paths]
        async with members(["a", "b"], via, limits=QUICK) as (a, b):
            ear = Ear(b)
            frozen = paths[carrier_of(a).current.place]
            frozen.freeze()  # it is there, and says nothing
            await stream(a, 100, to=named(a, "b"))
            await until(lambda: ear.payloads() == numbers(100))
            frozen.cut()
            frozen.thaw()


@pytest.mark.rule("LA-10")
@async_test
async def test_a_member_that_was_cut_off_comes_back_as_the_same_member() -> None:
    async with (
        routers() as found,
        tcp_path(found.places[0]) as path,
        Group("fleet", name="a", via=found.via(), limits=LASTING) as a,
        Group("fleet", name="b", via=f"gossip://{path.place}", limits=LASTING) as b,
    ):
        await everybody_knows([a, b])
        ears = Ear(a), Ear(b)
        before = b.me
        path.refuse(refuse=True)
        path.cut()
        await until(lambda: ears[0].events() == [("suspect", "b")])
        assert known(b) == {a.me.uuid}  # it knows no more than that it is alone
        await b.send(b"from the other side", to=a.me)
        await a.send(b"for who may come back", to=before)
        path.refuse(refuse=False)
        await until(lambda: ears[0].events()[-1] == ("join", "b"))
        assert b.me == before
        await until(lambda: ears[0].payloads() == [b"from the other side"])
        await until(lambda: ears[1].payloads() == [b"for who may come back"])
        await a.send(b"to all")
        await until(lambda: ears[1].payloads()[-1] == b"to all")


@pytest.mark.rule("LA-3")
@async_test
async def test_who_left_is_known_for_a_while_and_then_forgotten() -> None:
    limits = GroupLimits(beat=0.2, cache_age=0.5)
    async with routers() as found, members(["a", "b"], found.via(), limits=limits) as (a, b):
        left = b.me.uuid
        await vanish(b)
        await until(lambda: not known(a))
        cache = streams_of(a).cache
        assert cache.lookup(left) is not None  # a straggler may need it
        await until(lambda: cache.lookup(left) is None)


@async_test
async def test_a_group_may_start_before_its_router() -> None:
    async with routers() as found:
        place = found.places[0]
        await found.kill(0)
        early = Group("fleet", name="early", via=found.via(), wait=None)
        async with early:
            assert not early.is_open
            assert (await early.send(b"", to="late")).reason is Reason.NO_ROUTE
            await found.start(place)
            async with Group("fleet", name="late", via=f"gossip://{place}") as late:
                await everybody_knows([early, late])


@async_test
async def test_no_router_is_an_error_that_says_where_and_why() -> None:
    async with routers() as found:
        await found.kill(0)
        for wait in (0.2, 20.0):  # a busy machine may not have dialled before the first is over
            with pytest.raises(UnreachableError) as caught:
                await Group("fleet", via=found.via(), wait=wait).connect()
            assert found.places[0] in str(caught.value)
            if "refused" in str(caught.value):
                return
        pytest.fail(str(caught.value))


@async_test
async def test_groups_of_other_names_and_other_dialects_never_meet() -> None:
    async with (
        routers() as found,
        Group("fleet", name="a", via=found.via()) as a,
        Group("other", name="b", via=found.via()) as b,
        Group("fleet", name="c", via=found.via(), dialect="jgroups2") as c,
    ):
        assert [await names(group) for group in (a, b, c)] == [{"a"}, {"b"}, {"c"}]
        assert (await a.send(b"anybody?")).reason is Reason.NO_ROUTE


@async_test
async def test_a_token_opens_a_group_and_no_token_does_not() -> None:
    secret = "open sesame"  # noqa: S105 - of this test alone
    server = GossipServer(admission=Admission({"fleet": Door(tokens=(secret,))}))
    await server.start("127.0.0.1:0")
    via = f"gossip://{server.place}"
    async with Group("fleet", name="a", via=via, token=secret) as a:
        with pytest.raises(UnreachableError):
            await Group("fleet", name="b", via=via, wait=0.3).connect()
        assert known(a) == set()
    await server.drain()


@async_test
async def test_the_way_to_a_router_can_be_encrypted() -> None:
    server = GossipServer(tls=authority().tls("127.0.0.1"))
    await server.start("127.0.0.1:0")
    via = f"gossip://{server.place}"
    tls = authority().tls("127.0.0.1")
    async with (
        Group("fleet", name="a", via=via, tls=tls) as a,
        Group("fleet", name="b", via=via, tls=tls) as b,
    ):
        ear = Ear(b)
        await a.send(b"secret", to="b")
        await until(lambda: ear.payloads() == [b"secret"])
    await server.drain()


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"via": "http://x:1"}, "invalid group address"),
        ({"via": "gossip://127.0.0.1"}, "host:port"),
        ({"via": ["gossip://h:1", "tcp://h:2"]}, "several ways"),
        ({"via": "udp://127.0.0.1:1"}, "invalid multicast address"),
        ({"via": "gossip://h:1", "dialect": "jgroups3"}, "unknown dialect"),
        ({"via": "gossip://h:1", "dialect": "jgroups2", "token": "x"}, "has no tokens"),
    ],
)
def test_what_cannot_work_is_said_at_once(options: dict[str, str], part: str) -> None:
    async def connect() -> None:
        await Group("fleet", **options).connect()  # type: ignore[arg-type]

    with pytest.raises(LocalError, match=part):
        asyncio.run(connect())
