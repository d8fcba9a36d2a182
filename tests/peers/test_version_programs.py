"""The other programs in both versions: the broker, the gossip router, the members of groups (UP-4).

The gossip router speaks as JGroups does and the broker as MQTT does; members of groups have a
protocol of their own.
"""

from __future__ import annotations

import pytest

from tests.peers.version_peer import (
    NEW,
    OLD,
    TEST_SECONDS,
    built,
    children,
    with_children,
)

pytestmark = [pytest.mark.peer, pytest.mark.timeout(TEST_SECONDS)]

server_versions = pytest.mark.parametrize("server_version", [OLD, NEW])


@pytest.fixture(scope="module", autouse=True)
def _first_version() -> None:
    built()


@pytest.mark.rule("UP-1", "UP-4")
@server_versions
@with_children
async def test_hubs_on_a_broker(server_version: str) -> None:
    async with children() as fleet:
        server = await fleet.start(server_version, "server")
        url = await server.ask("start_broker")
        first = await fleet.hub(OLD, "first")
        today = await fleet.hub(NEW, "today")
        for hub in (first, today):
            await hub.ask("use_broker", url, f"hubs/{hub.name}")
            await hub.ask("serve", "echo")
            await hub.ask("subscribe", "weather", "rain")
        for here, there in ((first, today), (today, first)):
            route = f"mqtt#hubs/{there.name} => echo"
            assert await here.ask("request", route, "hello") == f"{there.name}: hello"
        await first.ask("publish", "weather", "rain", "of the first")
        await today.ask("publish", "weather", "rain", "of today")
        for hub in (first, today):
            await hub.until("number_taken", "weather/rain", answer=2)


@pytest.mark.rule("UP-1", "UP-4")
@pytest.mark.parametrize("via", ["gossip", "gossip+tcp", "tcp"])
@server_versions
@with_children
async def test_members_of_a_group(server_version: str, via: str) -> None:
    async with children() as fleet:
        server = await fleet.start(server_version, "server")
        if via == "tcp":
            await server.ask("join_group", "tcp://127.0.0.1:1", "127.0.0.1:0")
            place = await server.ask("group_place")
        else:
            place = await server.ask("start_router")
        first, today, other = [
            await fleet.start(version, name)
            for version, name in ((OLD, "first"), (NEW, "today"), (OLD, "other"))
        ]
        members = [first, today, other]
        for member in members:
            await member.ask("join_group", f"{via}://{place}", "127.0.0.1:0")
        names = sorted(member.name for member in members) + ["server"] * (via == "tcp")
        for member in members:
            await member.until("group_members", answer=sorted(names))
        await first.ask("send_to_group", "to all")
        await today.ask("send_to_group", "to all")
        await first.ask("send_to_group", "x" * 200_000, "today")
        await today.ask("send_to_group", "to one", "first")
        await first.until("number_taken", "group", answer=2)
        await today.until("number_taken", "group", answer=2)
        await other.until("number_taken", "group", answer=2)
        assert await first.ask("taken", "group") == ["today: to all", "today: to one"]
        await today.ask("leave_group")
        names.remove("today")
        await first.until("group_members", answer=sorted(names))
