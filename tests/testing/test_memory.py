"""The network in memory does as a real one: places, faults, bounds, nothing left over."""

from __future__ import annotations

import pytest

from tests.node.live import QUICK, nothing_is_left
from waystation.core.outcome import Outcome, Reason
from waystation.errors import UnreachableError
from waystation.node import FAIL, Node
from waystation.testing import Gate, MemoryNetwork, Recorder, async_test, collect, echo, until


def node(name: str, network: MemoryNetwork) -> Node:
    return Node(name, transports=[network.transport()], limits=QUICK)


@async_test
async def test_nodes_talk_without_a_socket() -> None:
    network = MemoryNetwork()
    async with node("left", network) as left, node("right", network) as right:
        echo(right)
        listening = await right.listen("mem://hub")
        assert (listening.place, listening.url) == ("hub", "mem://hub")
        assert (await left.request("mem#hub => echo", b"x")).payload == b"x"
        assert len(network.links) == 2
        await left.sessions[0].close()
        await nothing_is_left(left)
        await nothing_is_left(right)
        assert network.links == set()
        await listening.close()
        assert network.listeners == {}


@async_test
async def test_a_place_has_one_listener_and_any_is_always_free() -> None:
    network = MemoryNetwork()
    async with node("left", network) as left, node("right", network) as right:
        await left.listen("mem://hub")
        with pytest.raises(OSError, match="already in use"):
            await right.listen("mem://hub")
        places = {(await right.listen("mem://any")).place for _ in range(3)}
        assert len(places) == 3


@async_test
async def test_of_several_places_the_first_with_a_listener_is_taken() -> None:
    network = MemoryNetwork()
    async with node("left", network) as left, node("right", network) as right:
        echo(right)
        await right.listen("mem://there")
        await left.connect("mem://nowhere", "mem://there", name="hub")
        assert (await left.request("hub => echo", b"x")).payload == b"x"
        with pytest.raises(UnreachableError, match="nobody listens"):
            await left.connect("mem://nowhere", keep=False)


@async_test
async def test_faults_come_and_go() -> None:
    network = MemoryNetwork()
    async with node("left", network) as left, node("right", network) as right:
        got = collect(right, "sink")
        await right.listen("mem://hub")
        async with network.path("hub") as path:
            session = await left.connect(f"mem://{path.place}", name="hub")
            path.freeze()
            await left.send("hub => sink", b"frozen")
            for _ in range(5):
                await left.send("hub => sink", b"too")
            assert got == []
            path.thaw()
            await until(lambda: len(got) == 6)
            path.refuse(refuse=True)
            path.cut_after(10)
            await until(lambda: not session.is_open)
            verdict = await left.send("hub => sink", b"", policy=FAIL)
            assert verdict.reason is Reason.TRANSPORT_DOWN
            path.refuse(refuse=False)
            await until(lambda: session.openings == 2)


@async_test
async def test_what_waits_in_a_link_is_bounded() -> None:
    network = MemoryNetwork(unsent=100)
    async with node("left", network) as left, node("right", network) as right:
        journal = Recorder(left)
        gate = Gate(right, "gate")
        await right.listen("mem://hub")
        await left.connect("mem://hub", name="hub")
        taken = 0
        while (await left.send("hub => gate", b"", policy=FAIL)).outcome is Outcome.FORWARDED:
            taken += 1
            assert taken < 10 * network.unsent
        await until(lambda: right.sessions[0].is_stalled)
        gate.free.set()
        await until(lambda: len(gate.got) == taken)
        journal.check_outcomes()


@async_test
async def test_what_leads_nowhere_or_is_too_large_is_refused() -> None:
    network = MemoryNetwork(limit=10)
    async with node("left", network) as left, node("right", network) as right:
        await right.listen("mem://hub")
        await left.connect("mem://hub", name="hub")
        assert (await left.send("hub", b"")).reason is Reason.NO_ROUTE
        assert (await left.send("hub => x", bytes(11))).reason is Reason.TOO_LARGE
        assert (await left.send("hub => x", bytes(10))).outcome is Outcome.FORWARDED


@async_test
async def test_the_faults_of_a_path_concern_its_own_links_alone() -> None:
    network = MemoryNetwork()
    async with node("left", network) as left, node("right", network) as right:
        echo(right)
        await right.listen("mem://hub")
        async with network.path("hub") as path:
            faulty = await left.connect(f"mem://{path.place}", name="faulty", keep=False)
            await left.connect("mem://hub", name="sound")
            path.cut()
            await until(lambda: not faulty.is_open)
            assert (await left.request("sound => echo", b"x")).payload == b"x"
        with pytest.raises(UnreachableError):
            await left.connect(f"mem://{path.place}", keep=False)
