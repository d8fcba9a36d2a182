"""Groups as a transport: the kit that every transport has to pass, and routes over several."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.groups.crowd import routers
from tests.groups.test_group_multicast import address as multicast
from tests.node.live import LOOPS
from waystation.core.outcome import Reason
from waystation.errors import LocalError
from waystation.groups import GroupLimits
from waystation.node import Node
from waystation.testing import (
    FaultyPath,
    TcpPath,
    async_test,
    check_transport,
    collect,
    conformance,
    echo,
    run_checked,
    tcp_path,
    until,
)
from waystation.transports.gossip import Gossip, parse_member
from waystation.transports.tcp import Tcp, TcpLimits
from waystation.transports.websocket import WebSocket

LIMITS = TcpLimits(frame=2 * 1024 * 1024, unsent=64 * 1024, dial=2.0)
TOO_LARGE = 3 * 1024 * 1024


class PathToTheRouter:
    """The faults are between the members and their router; a member's place stays what it is."""

    def __init__(self, path: TcpPath, place: str) -> None:
        self.place = place
        self.cut = path.cut
        self.cut_after = path.cut_after
        self.freeze = path.freeze
        self.thaw = path.thaw
        self.refuse = path.refuse


@pytest.mark.rule("WK-8")
@pytest.mark.rule("WK-10")
@pytest.mark.parametrize("loop", LOOPS)
def test_the_tunnel_passes_the_kit(loop: str) -> None:
    async def scenario() -> None:
        async with routers() as found, tcp_path(found.places[0]) as way:

            @asynccontextmanager
            async def path(target: str) -> AsyncIterator[FaultyPath]:
                yield PathToTheRouter(way, target)
                way.thaw()
                way.refuse(refuse=False)

            def make() -> Gossip:
                return Gossip(
                    f"gossip://{way.place}", limits=LIMITS, group_limits=GroupLimits(linger=0.5)
                )

            result = await check_transport(make, "gossip://fleet/*", path=path, too_large=TOO_LARGE)
            assert result.passed == tuple(conformance.CHECKS)

    run_checked(scenario, LOOPS[loop], seconds=110)


def gossip(place: str, name: str | None = None) -> Gossip:
    return Gossip(f"gossip://{place}", limits=LIMITS, name=name)


@pytest.mark.rule("WK-8")
@async_test
async def test_one_route_crosses_tcp_a_tunnel_and_a_websocket_and_its_answer_comes_back() -> None:
    async with (
        routers() as found,
        Node("truck") as truck,
        Node("depot", transports=[Tcp(), gossip(found.places[0])]) as depot,
        Node("office", transports=[gossip(found.places[0]), WebSocket()]) as office,
        Node("phone", transports=[WebSocket()]) as phone,
    ):
        echo(phone)
        entrance = await depot.listen("tcp://127.0.0.1:0")
        await office.listen("gossip://fleet/office")
        socket = await phone.listen("ws://127.0.0.1:0")
        await depot.connect("gossip://fleet/office", name="office")
        await office.connect(socket.url, name="phone")
        route = f"tcp#{entrance.place} => office => phone => echo"
        assert (await truck.request(route, b"there and back")).payload == b"there and back"


@pytest.mark.rule("WK-8")
@async_test
async def test_a_route_names_a_member_of_a_group() -> None:
    async with (
        routers() as found,
        Node("a", transports=[gossip(found.places[0], name="caller")]) as a,
        Node("b", transports=[gossip(found.places[0])]) as b,
    ):
        echo(b)
        listening = await b.listen("gossip://fleet/truck-7")
        assert listening.place == "fleet/truck-7"
        answer = await a.request("gossip#fleet/truck-7 => echo", b"hello")
        assert answer.payload == b"hello"
        (session,) = b.sessions
        assert str(session.place).endswith("#fleet/caller")
        verdict = await a.send("gossip#fleet/nobody => echo", b"")
        assert verdict.reason is Reason.TRANSPORT_DOWN


@pytest.mark.parametrize("kind", ["gossip+tcp", "udp"])
@async_test
async def test_a_link_goes_over_whatever_its_group_goes_over(kind: str) -> None:
    async with routers() as found:
        via = multicast() if kind == "udp" else found.via(kind)
        interface = "127.0.0.1" if kind == "udp" else None
        async with (
            Node("a", transports=[Gossip(via, interface=interface)]) as a,
            Node("b", transports=[Gossip(via, interface=interface)]) as b,
        ):
            echo(b)
            await b.listen("gossip://fleet/b")
            large = bytes(range(256)) * 2_000
            answer = await a.request("gossip#fleet/b => echo", large)
            assert answer.payload == large


@async_test
async def test_links_between_the_same_two_members_do_not_hold_up_each_other() -> None:
    async with (
        routers() as found,
        Node("a", transports=[gossip(found.places[0], name="a")]) as a,
        Node("b", transports=[gossip(found.places[0])]) as b,
    ):
        echo(b)
        await b.listen("gossip://fleet/b")
        one = await a.connect("gossip://fleet/b", name="one")
        two = await a.connect("gossip://fleet/b", name="two")
        for session in b.sessions[:1]:
            session.pause_reading()
        answered = 0
        for name in (one.name, two.name):
            try:
                await a.request(f"{name} => echo", b"well?", timeout=1.0)
            except TimeoutError:
                continue
            answered += 1
        assert answered == 1


@async_test
async def test_a_link_ends_when_its_member_leaves() -> None:
    async with (
        routers() as found,
        Node("a", transports=[gossip(found.places[0], name="a")]) as a,
    ):
        async with Node("b", transports=[gossip(found.places[0])]) as b:
            heard = collect(b, "sink")
            await b.listen("gossip://fleet/b")
            session = await a.connect("gossip://fleet/b", name="b", keep=False)
            await a.send("b => sink", b"hello")
            await until(lambda: bool(heard))
        await until(lambda: not session.is_open)


@pytest.mark.parametrize("place", ["fleet", "fleet/", "/truck-7", ""])
def test_a_place_names_a_group_and_a_member(place: str) -> None:
    with pytest.raises(LocalError, match="group/member"):
        parse_member(place)
