"""Defects that routers of this sort have had, and this one must not have.

The others have their tests among those of their dialects, of slow receivers and of bad input.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from tests.gossip_router.clients import HERE, Client2, Client5, Raw, serving, uuid
from tests.node.live import runs_on_every_loop
from tests.transports.certificates import authority
from waystation.gossip_router.client import Client
from waystation.testing import async_test, settle, until
from waystation.wire import jgroups2, jgroups5
from waystation.wire.jgroups import PhysicalAddress


class Watched:
    """A transport that notes what is written to it."""

    def __init__(self, transport: Any, note: Callable[[bytes], None]) -> None:
        self._transport = transport
        self._note = note

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._note(data)
        self._transport.write(data)


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])
@runs_on_every_loop
async def test_nagle_delays_nothing_on_any_accepted_socket(encrypted: bool) -> None:
    tls = authority().tls("127.0.0.1") if encrypted else None
    options = {"ssl": authority().tls().for_dialler()} if encrypted else {}
    async with (
        serving(tls=tls) as (server, _),
        await Client5.open(server, **options) as five,
        await Client2.open(server, **options) as two,
    ):
        await five.join("g", 1)
        await two.join("g", 1)
        clients = server.clients()
        assert len(clients) == 2
        for client in clients:
            assert client.transport is not None
            found = client.transport.get_extra_info("socket")
            assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


@runs_on_every_loop
async def test_nagle_finds_every_small_answer_written_whole_in_its_own_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[str | bytes] = []
    updated = Client.buffer_updated

    def turn(client: Client, nbytes: int) -> None:
        events.append("begin")
        updated(client, nbytes)
        events.append("end")

    monkeypatch.setattr(Client, "buffer_updated", turn)
    beat = jgroups5.encode(jgroups5.Heartbeat())
    async with serving() as (server, _), await Client5.open(server) as five:
        await five.join("g", 1)
        [client] = server.clients()
        watched: Any = Watched(client.transport, events.append)
        client.transport = watched
        message = jgroups5.Message("g", uuid(1), None, b"x")
        for sent in (jgroups5.Heartbeat(), message, message):
            events.clear()
            five.say(sent)
            assert await five.frame() == sent
            assert events == ["begin", jgroups5.encode(sent), "end"]
        events.clear()
        five.say(message, jgroups5.Heartbeat())  # what one turn brings goes out in one write
        assert [await five.frame(), await five.frame()] == [message, jgroups5.Heartbeat()]
        assert events == ["begin", jgroups5.encode(message) + beat, "end"]


@runs_on_every_loop
async def test_silence_is_no_answer_to_a_question_about_an_unknown_group() -> None:
    async with (
        serving() as (server, _),
        await Client5.open(server) as five,
        await Client2.open(server) as two,
    ):
        five.say(jgroups5.GetMembers("nobody has heard of it"))
        answer = await five.frame()
        assert isinstance(answer, jgroups5.Members)
        assert (answer.group, answer.members) == ("nobody has heard of it", ())
        two.say(jgroups2.GossipGet("nobody has heard of it"))
        assert await two.answer() == jgroups2.Members()


@async_test
async def test_a_router_never_connects_to_a_member_dead_or_alive() -> None:
    called: list[object] = []
    listening = await asyncio.start_server(lambda *peer: called.append(peer), "127.0.0.1", 0)
    place = PhysicalAddress("127.0.0.1", listening.sockets[0].getsockname()[1])
    async with (
        serving() as (server, told),
        await Client5.open(server) as sender,
        await Client5.open(server) as member,
        await Client2.open(server) as old,
    ):
        await sender.join("g", 1)
        member.say(jgroups5.Register("g", uuid(2), "m", place))
        await member.sync()
        old.say(jgroups2.Connect("g", uuid(2), "m", (place,)))
        await old.answer()
        member.reset()
        old.reset()
        assert isinstance(await sender.frame(), jgroups5.Suspect)
        sender.say(jgroups5.Message("g", uuid(2), None, b"anybody?"))
        assert await sender.sync() == []
        assert server.counts.dropped == {"NO_ROUTE": 1}
        await settle()
        assert called == []
        assert told
    listening.close()


@pytest.mark.parametrize("generation", [2, 5])
@runs_on_every_loop
async def test_first_members_of_a_group_at_the_same_moment_all_join(generation: int) -> None:
    async with serving() as (server, told):
        peers = [await Raw.open(server) for _ in range(50)]
        for number, peer in enumerate(peers, 1):
            peer.send(
                jgroups2.encode(jgroups2.Connect("g", uuid(number), "m", (HERE,)))
                if generation == 2
                else jgroups5.encode(jgroups5.Register("g", uuid(number), "m", HERE))
                + jgroups5.encode(jgroups5.Heartbeat())
            )
        for peer in peers:
            await peer.get(1)
        assert sorted(record.change.mapping.uuid for record in told) == [  # type: ignore[union-attr]
            uuid(number).key for number in range(1, 51)
        ]
        async with await Client5.open(server) as five, await Client2.open(server) as two:
            if generation == 5:
                five.say(jgroups5.GetMembers("g"))
                answer: Any = await five.frame()
            else:
                two.say(jgroups2.GossipGet("g"))
                answer = await two.answer()
            assert len(answer.members) == 50
        for peer in peers:
            peer.writer.close()


@pytest.mark.parametrize("generation", [2, 5])
@runs_on_every_loop
async def test_leaving_one_group_erases_nothing_in_another(generation: int) -> None:
    async with (
        serving() as (server, _),
        await Client2.open(server) as two,
        await Client5.open(server) as five,
    ):
        one: Any = two if generation == 2 else five
        await one.join("a", 1, "name")
        await one.join("b", 1, "name")
        if generation == 2:
            two.say(jgroups2.Disconnect("a", uuid(1)))
            assert await two.answer() == jgroups2.DisconnectAnswer(ok=True)
            two.say(jgroups2.GossipGet("b"))
            assert await two.answer() == jgroups2.Members(
                (jgroups2.PingData(uuid(1), "name", (HERE,)),)
            )
        else:
            five.say(jgroups5.Unregister("a", uuid(1)), jgroups5.GetMembers("b"))
            assert await five.frame() == jgroups5.Members(
                "b", (jgroups5.PingData(uuid(1), "name", HERE),), False
            )


@pytest.mark.parametrize("generation", [2, 5])
@runs_on_every_loop
async def test_an_old_connection_that_dies_takes_no_member_along_that_came_back(
    generation: int,
) -> None:
    kind: Any = Client2 if generation == 2 else Client5
    async with (
        serving() as (server, told),
        await kind.open(server) as old,
        await kind.open(server) as new,
        await kind.open(server) as other,
    ):
        await other.join("g", 9)
        await old.join("g", 1)
        await old.join("another", 2)  # so that it is not ended when it loses the first
        await new.join("g", 1)
        old.reset()
        await until(lambda: len(told) == 4)  # 9, 1 and 2 joined, and 2 is suspected
        message: Any = (
            jgroups2.Message("g", uuid(1), b"x")
            if generation == 2
            else jgroups5.Message("g", uuid(1), None, b"x")
        )
        other.say(message)
        got: Any = await (new.answer() if generation == 2 else new.frame())
        assert got.payload == b"x"
        assert await other.sync() == []
