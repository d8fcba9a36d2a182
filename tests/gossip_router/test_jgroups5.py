"""A client of JGroups 5.x and our router, byte by byte."""

from __future__ import annotations

import asyncio

import pytest

from tests.gossip_router.clients import HERE, Client5, serving, uuid
from tests.node.live import runs_on_every_loop
from waystation.core.gossip import MemberKind
from waystation.testing import async_test, run_checked, until
from waystation.wire.jgroups5 import (
    ALL_GROUPS,
    GetMembers,
    Goodbye,
    Heartbeat,
    Members,
    Message,
    PingData,
    Register,
    Suspect,
    Unknown,
    Unregister,
    encode,
)


@pytest.mark.rule("GR-1")
@pytest.mark.rule("GR-2")
@pytest.mark.rule("GR-4")
@runs_on_every_loop
async def test_members_are_told_as_they_registered() -> None:
    async with serving() as (server, told), await Client5.open(server) as client:
        client.say(GetMembers("g"))
        assert await client.frame() == Members("g", last=False)  # the real router keeps silent here
        assert told == []
        client.say(Register("g", uuid(1), "A", HERE), Register("g", uuid(2)), GetMembers("g"))
        one, two = PingData(uuid(1), "A", HERE), PingData(uuid(2))
        assert await client.frame() == Members("g", (one, two), last=False)
        assert [record.change.kind for record in told] == [MemberKind.JOIN, MemberKind.JOIN]


@pytest.mark.rule("GR-5")
@pytest.mark.rule("GR-6")
@runs_on_every_loop
async def test_a_message_reaches_its_member_or_its_group_and_nobody_else() -> None:
    async with (
        serving() as (server, _),
        await Client5.open(server) as a,
        await Client5.open(server) as b,
        await Client5.open(server) as stranger,
    ):
        await a.join("g", 1)
        await b.join("g", 2)
        await stranger.join("h", 2)
        one = Message("g", uuid(2), uuid(1), b"to one")
        everybody = Message("g", None, uuid(1), b"to all")
        a.say(one, everybody)
        assert await a.sync() == [everybody]
        assert await b.sync() == [one, everybody]
        assert await stranger.sync() == []


@async_test
async def test_a_sender_need_not_be_a_member_and_need_not_be_named() -> None:
    async with (
        serving() as (server, _),
        await Client5.open(server) as sender,
        await Client5.open(server) as member,
    ):
        await member.join("g", 1)
        message = Message("g", uuid(1), None, b"")
        sender.say(message)
        await sender.sync()
        assert await member.sync() == [message]


@async_test
async def test_a_message_to_nobody_is_counted_and_harms_nobody() -> None:
    async with serving() as (server, _), await Client5.open(server) as client:
        await client.join("g", 1)
        client.say(
            Message("nope", None, uuid(1), b"x"),
            Message("g", uuid(9), uuid(1), b"x"),
            Message(None, uuid(1), uuid(1), b"x"),
            Message(None, None, None, b"x"),
        )
        assert await client.sync() == []
        assert server.counts.dropped == {"NO_ROUTE": 4}
        assert (server.counts.received, server.counts.delivered) == (4, 0)


@pytest.mark.rule("GR-7")
@async_test
async def test_leaving_removes_that_member_only() -> None:
    async with serving() as (server, told), await Client5.open(server) as client:
        await client.join("g", 1)
        await client.join("g", 2)
        client.say(Unregister("g", uuid(1)), GetMembers("g"))
        assert await client.frame() == Members("g", (PingData(uuid(2), "m", HERE),), last=False)
        assert [str(record.change).split()[0] for record in told] == ["join", "join", "leave"]


@pytest.mark.rule("GR-7")
@async_test
async def test_nobody_can_make_a_member_of_another_connection_leave() -> None:
    async with (
        serving() as (server, _),
        await Client5.open(server) as member,
        await Client5.open(server) as other,
    ):
        await member.join("g", 1)
        other.say(Unregister("g", uuid(1)), GetMembers("g"))
        assert await other.frame() == Members("g", (PingData(uuid(1), "m", HERE),), last=False)


@pytest.mark.rule("GR-8")
@runs_on_every_loop
async def test_every_member_of_a_connection_that_vanished_is_suspected_and_leaves_no_ghost() -> (
    None
):
    async with (
        serving() as (server, told),
        await Client5.open(server) as watcher,
        await Client5.open(server) as doomed,
    ):
        await watcher.join("g", 1)
        await doomed.join("g", 2)
        await doomed.join("g", 3)
        await doomed.join("other", 4)
        doomed.reset()
        assert await watcher.frame() == Suspect("g", uuid(2))
        assert await watcher.frame() == Suspect("g", uuid(3))
        watcher.say(GetMembers(None))
        alone = PingData(uuid(1), "m", HERE)
        assert await watcher.frame() == Members(ALL_GROUPS + "g", (alone,))
        assert sum(record.change.kind is MemberKind.SUSPECT for record in told) == 3


@pytest.mark.rule("GR-8")
@async_test
async def test_a_goodbye_without_leaving_is_suspected_and_after_leaving_it_is_not() -> None:
    async with (
        serving() as (server, _),
        await Client5.open(server) as watcher,
        await Client5.open(server) as polite,
        await Client5.open(server) as hasty,
    ):
        await watcher.join("g", 1)
        await polite.join("g", 2)
        await hasty.join("g", 3)
        polite.say(Unregister("g", uuid(2)), Goodbye())
        assert await polite.ended() == b""
        hasty.say(Goodbye())
        assert await hasty.ended() == b""
        assert await watcher.sync() == [Suspect("g", uuid(3))]


@pytest.mark.rule("GR-8")
@pytest.mark.rule("GR-9")
@runs_on_every_loop
async def test_two_paths_of_a_member_stay_and_its_group_learns_when_the_last_dies() -> None:
    async with (
        serving() as (server, told),
        await Client5.open(server) as watcher,
        await Client5.open(server) as old,
        await Client5.open(server) as new,
    ):
        await watcher.join("g", 1)
        await old.join("g", 2)
        await new.join("g", 2)
        message = Message("g", uuid(2), uuid(1), b"who?")
        watcher.say(message)
        assert await watcher.sync() == []
        assert (await old.sync(), await new.sync()) == ([], [message])
        new.reset()
        await until(lambda: len(server.clients()) == 2)
        watcher.say(message)  # over the same route, which it must not remember
        assert await watcher.sync() == []
        assert await old.sync() == [message]
        old.reset()
        assert await watcher.frame() == Suspect("g", uuid(2))
        assert not server.counts.disconnected
        kinds = [record.change.kind for record in told]
        assert kinds == [MemberKind.JOIN, MemberKind.JOIN, MemberKind.SUSPECT]


@pytest.mark.rule("GR-7")
@pytest.mark.rule("GR-9")
@async_test
async def test_a_member_that_leaves_over_one_path_has_left() -> None:
    async with (
        serving() as (server, _),
        await Client5.open(server) as watcher,
        await Client5.open(server) as old,
        await Client5.open(server) as new,
    ):
        await watcher.join("g", 1)
        await old.join("g", 2)
        await new.join("g", 2)
        old.say(Unregister("g", uuid(2)))
        await old.sync()
        watcher.say(GetMembers("g"))
        assert await watcher.frame() == Members("g", (PingData(uuid(1), "m", HERE),), last=False)
        for path in (old, new):
            path.reset()
        await until(lambda: len(server.clients()) == 1)
        assert await watcher.sync() == []


@pytest.mark.rule("GR-8")
@runs_on_every_loop
async def test_a_suspicion_is_held_back_for_a_member_that_registers_again() -> None:
    hour = 3600
    async with (
        serving(suspect_after=hour, silence=10 * hour) as (server, told),
        await Client5.open(server) as watcher,
        await Client5.open(server) as gone,
        await Client5.open(server) as shaky,
        await Client5.open(server) as back,
    ):
        await watcher.join("g", 1)
        await shaky.join("g", 2)
        await gone.join("g", 3)
        for lost in (shaky, gone):
            lost.reset()
        await until(lambda: len(server.clients()) == 2)
        await back.join("g", 2)
        assert await watcher.sync() == []
        later = server._now_ms() + hour * 1000
        server._now_ms = lambda: later  # type: ignore[method-assign]
        server._wake()
        assert await watcher.frame() == Suspect("g", uuid(3))
        assert await watcher.sync() == []
        assert len(told) == 6  # the journal has it all: three joined, two lost, one back


@async_test
async def test_all_groups_are_told_one_by_one_and_the_last_is_marked() -> None:
    async with serving() as (server, _), await Client5.open(server) as client:
        client.say(GetMembers(None))
        assert await client.frame() == Members(ALL_GROUPS)
        await client.join("g", 1)
        await client.join("h", 2)
        client.say(GetMembers(None))
        one, two = PingData(uuid(1), "m", HERE), PingData(uuid(2), "m", HERE)
        assert await client.frame() == Members(ALL_GROUPS + "g", (one,), last=False)
        assert await client.frame() == Members(ALL_GROUPS + "h", (two,))


@async_test
async def test_frames_that_a_router_has_no_use_for_are_ignored() -> None:
    async with serving() as (server, _), await Client5.open(server) as client:
        client.say(Unknown(99, b"?"), Suspect("g", uuid(1)), Members("g"), Unregister(None, None))
        assert await client.sync() == []


@runs_on_every_loop
async def test_frames_may_come_in_pieces_of_any_size() -> None:
    message = Message("g", uuid(1), uuid(1), bytes(range(256)) * 300)
    frames = encode(Register("g", uuid(1))) + 3 * encode(message) + encode(Heartbeat())
    for size in (1, 7, 4099, 70_000, len(frames)):
        async with serving() as (server, _), await Client5.open(server) as client:
            for start in range(0, len(frames), size):
                client.send(frames[start : start + size])
                if size > 1 or start < 100:
                    await asyncio.sleep(0)
            for _ in range(3):
                assert await client.frame() == message
            assert await client.frame() == Heartbeat()


@async_test
async def test_a_silent_client_of_5_stays_until_it_has_sent_two_heartbeats() -> None:
    async with (
        serving(silence=0.2) as (server, _),
        await Client5.open(server) as quiet,
        await Client5.open(server) as beating,
    ):
        known = Message("g", uuid(1), uuid(1), release(5, 5, 7))
        quiet.say(Register("g", uuid(1), "m", HERE), known)
        assert await quiet.frame() == known
        beating.say(Register("g", uuid(2), "m", HERE), Heartbeat(), Heartbeat())
        assert [await beating.frame(), await beating.frame()] == [Heartbeat(), Heartbeat()]
        assert await beating.ended() == b""
        assert await quiet.frame() == Suspect("g", uuid(2))
        assert server.counts.disconnected == {"silent": 1}


@async_test
async def test_a_router_that_ends_says_goodbye_and_suspects_nobody() -> None:
    async with serving() as (server, told), await Client5.open(server) as client:
        await client.join("g", 1)
        other = await Client5.open(server)
        await other.join("g", 2)
        await server.drain()
        assert await client.ended() == b""
        assert await other.ended() == b""
        await until(lambda: server.draining)
        assert len(told) == 2
        other.writer.close()


def release(major: int, minor: int, micro: int) -> bytes:
    """How a message of a member of this release begins."""
    return (major << 11 | minor << 6 | micro).to_bytes(2, "big")


@pytest.mark.rule("GR-11")
@pytest.mark.parametrize(
    ("said", "number", "farewell"),
    [
        (release(5, 5, 7), 6, encode(Goodbye())),
        (release(5, 5, 2), 6, b""),
        (release(5, 2, 5), 5, b""),
        (release(4, 0, 0), 5, b""),
        (b"\xe1?", 0, b""),
        (b"", 0, b""),
    ],
)
def test_a_client_gets_what_its_release_knows(said: bytes, number: int, farewell: bytes) -> None:
    async def scenario() -> None:
        async with (
            serving() as (server, told),
            await Client5.open(server) as client,
            await Client5.open(server) as doomed,
        ):
            client.say(Register("g", uuid(1), "A", HERE))
            for _ in range(20):
                client.say(Message("g", uuid(1), uuid(1), said))
                await client.frame()
            await doomed.join("g", 2)
            doomed.reset()
            await until(lambda: told[-1].change.kind is MemberKind.SUSPECT)
            if number:
                length = int.from_bytes(await client.get(4), "big")
                assert (await client.get(length))[0] == number
            client.say(GetMembers("g"))
            listed = await client.frame()
            assert listed == Members("g", (PingData(uuid(1), "A", HERE),), last=False)
            await server.drain()
            assert await client.ended() == farewell

    run_checked(scenario)


@pytest.mark.rule("GR-8")
@async_test
async def test_a_router_that_suspects_nobody_says_nothing_of_who_is_lost() -> None:
    async with (
        serving(suspect=False) as (server, told),
        await Client5.open(server) as watcher,
        await Client5.open(server) as doomed,
    ):
        await watcher.join("g", 1)
        await doomed.join("g", 2)
        doomed.reset()
        await until(lambda: told[-1].change.kind is MemberKind.SUSPECT)
        assert await watcher.sync() == []
