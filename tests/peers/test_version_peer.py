"""Nodes of the first version and of today's together: hubs, leaves and chains (UP-1, UP-4)."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import waystation
from tests.peers.kept import PeerMissing
from tests.peers.version_peer import (
    NEW,
    OLD,
    TEST_SECONDS,
    Child,
    Children,
    _archive,
    both_ways,
    built,
    children,
    source_of,
    with_children,
)
from waystation.node.links import CAPABILITIES

pytestmark = [pytest.mark.peer, pytest.mark.timeout(TEST_SECONDS)]


@pytest.fixture(scope="module", autouse=True)
def _first_version() -> None:
    built()


def test_a_clone_without_the_first_version_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(PeerMissing) as caught:
        _archive("0" * 40, tmp_path)
    assert str(caught.value) == (
        "commit 000000000000 is not in this clone; `git fetch --unshallow` brings it"
    )


@with_children
async def test_the_children_are_of_the_versions_that_they_are_called() -> None:
    async with children() as fleet:
        old = await fleet.start(OLD, "old")
        new = await fleet.start(NEW, "new")
        assert await old.ask("version") == "0.1.0"
        assert await new.ask("version") == waystation.__version__
        assert waystation.__version__.startswith("0.2.0")


async def talk(asker: Child, worker: Child, name: str) -> None:
    """A request gets its reply, whatever is between the two."""
    expected = f"{worker.name}: hello {name}"
    assert await asker.ask("request", name, f"hello {name}") == expected


async def is_reached(asker: Child, worker: Child, name: str) -> None:
    """A request gets its reply, as soon as everybody has connected again."""
    await asker.until("request", name, "again", 1.0, answer=f"{worker.name}: again")


@pytest.mark.ci
@pytest.mark.rule("UP-1", "UP-4")
@both_ways
@with_children
async def test_requests_replies_and_withdrawals(hub_version: str, leaf_version: str) -> None:
    async with children() as fleet:
        hub = await fleet.hub(hub_version, "hub")
        await hub.ask("serve", "clock")
        one = await fleet.leaf(leaf_version, "one", hub)
        two = await fleet.leaf(leaf_version, "two", hub)
        same = await fleet.leaf(hub_version, "same", hub)
        await one.ask("serve", "echo", "spare")
        await same.ask("serve", "old-echo")
        for name in ("echo", "spare", "old-echo"):
            await hub.until("knows", name)
        await talk(hub, one, "echo")  # down
        await talk(one, hub, "clock")  # up
        await talk(two, one, "echo")  # between leaves, over the hub
        await talk(two, same, "old-echo")
        await talk(same, one, "echo")
        assert await two.ask("send", "echo", "one way", 50) == ["FORWARDED"] * 50
        await one.until("number_taken", "echo", answer=53)
        await one.ask("stop_serving", "spare")
        await hub.until("knows", "spare", answer=False)
        assert "NO_ROUTE" in await two.ask("request", "spare", "nobody")
        await talk(two, one, "echo")


@pytest.mark.rule("UP-1", "UP-4")
@both_ways
@with_children
async def test_broadcasts(hub_version: str, leaf_version: str) -> None:
    async with children() as fleet:
        hub = await fleet.hub(hub_version, "hub")
        one = await fleet.leaf(leaf_version, "one", hub)
        two = await fleet.leaf(leaf_version, "two", hub)
        same = await fleet.leaf(hub_version, "same", hub)
        everybody = [hub, one, two, same]
        for child in everybody:
            await child.ask("subscribe", "weather", "rain")
        await hub.until("number_of_subscribers", answer=4)
        for child in everybody:
            await child.ask("publish", "weather", "rain", f"by {child.name}")
        for child in everybody:  # each gets each broadcast once
            await child.until("number_taken", "weather/rain", answer=4)
        await one.ask("unsubscribe", "weather", "rain")
        await hub.until("number_of_subscribers", answer=3)
        await two.ask("publish", "weather", "rain", "the last")
        for child in (hub, two, same):
            await child.until("number_taken", "weather/rain", answer=5)
            assert (await child.ask("taken", "weather/rain"))[-1] == "the last"
        assert await one.ask("number_taken", "weather/rain") == 4


@pytest.mark.rule("UP-1", "UP-4")
@both_ways
@with_children
async def test_reconnects_after_either_end_was_killed(hub_version: str, leaf_version: str) -> None:
    async with children() as fleet:
        hub = await fleet.hub(hub_version, "hub")
        one = await fleet.leaf(leaf_version, "one", hub)
        two = await fleet.leaf(leaf_version, "two", hub)
        await one.ask("serve", "echo")
        await one.ask("subscribe", "weather", "rain")
        await hub.until("knows", "echo")
        await hub.kill()
        again = await fleet.start(hub_version, "hub", hub=True)
        await again.listen(hub.place)
        await is_reached(two, one, "echo")
        await again.until("number_of_subscribers", answer=1)
        await again.ask("publish", "weather", "rain", "after the restart")
        await one.until("taken", "weather/rain", answer=["after the restart"])
        await one.kill()
        await again.until("knows", "echo", answer=False)
        replaced = await fleet.leaf(leaf_version, "one", again)
        await replaced.ask("serve", "echo")
        await is_reached(two, replaced, "echo")


@pytest.mark.rule("UP-1", "UP-4")
@both_ways
@with_children
async def test_a_leaf_that_comes_back_takes_its_name_over(
    hub_version: str, leaf_version: str
) -> None:
    """Also while its former session, which nobody closed, is still there."""
    async with children() as fleet:
        hub = await fleet.hub(hub_version, "hub", heartbeat=0.0)
        asker = await fleet.leaf(leaf_version, "asker", hub)
        former = await fleet.leaf(leaf_version, "truck", hub)
        await former.ask("serve", "echo")
        await talk(asker, former, "echo")
        former.freeze()  # as when its network is gone: the hub hears nothing of it
        now = await fleet.leaf(leaf_version, "truck", hub)
        await now.ask("serve", "echo")
        await is_reached(asker, now, "echo")


@pytest.mark.rule("UP-1", "UP-4")
@both_ways
@with_children
async def test_the_directory(hub_version: str, leaf_version: str) -> None:
    async with children() as fleet:
        hub = await fleet.hub(hub_version, "hub")
        await hub.ask("host_directory")
        lister = await fleet.leaf(leaf_version, "lister", hub)
        finder = await fleet.leaf(hub_version, "finder", hub)
        for child in (lister, finder):
            await child.ask("ask_directory", "parent => waystation.directory")
        await lister.ask("serve", "wash")
        await lister.ask("register", "wash", "garage", "washing")
        await finder.until("discover", "garage", "washing", answer=["wash"])
        await talk(finder, lister, "wash")
        await finder.ask("serve", "paint")
        await finder.ask("register", "paint", "garage", "washing")
        await lister.until("discover", "garage", "washing", answer=["paint", "wash"])
        await lister.ask("unregister", "wash")
        await finder.until("discover", "garage", "washing", answer=["paint"])


@pytest.mark.rule("UP-1", "UP-4")
@pytest.mark.parametrize("transport", ["http", "udp", "ws"])
@both_ways
@with_children
async def test_other_transports(hub_version: str, leaf_version: str, transport: str) -> None:
    async with children() as fleet:
        hub = await fleet.start(hub_version, "hub", hub=True)
        await hub.ask("use", transport)
        await hub.listen(f"{transport}://127.0.0.1:0")
        one, two = [await fleet.start(leaf_version, name) for name in ("one", "two")]
        for leaf in (one, two):
            await leaf.ask("use", transport)
            await leaf.ask("join", hub.place)
        await one.ask("serve", "echo")
        await hub.until("knows", "echo")
        await talk(two, one, "echo")
        await two.ask("subscribe", "weather", "rain")
        await hub.until("number_of_subscribers", answer=1)
        await one.ask("publish", "weather", "rain", "soon")
        await two.until("taken", "weather/rain", answer=["soon"])


@pytest.mark.rule("UP-1")
@both_ways
@with_children
async def test_a_token_is_proven_between_versions(hub_version: str, leaf_version: str) -> None:
    async with children() as fleet:
        hub = await fleet.start(hub_version, "hub", hub=True)
        hub.place = await hub.ask("listen", "tcp://127.0.0.1:0", "sesame")
        leaf = await fleet.start(leaf_version, "leaf")
        await leaf.ask("join", hub.place, token="sesame")  # noqa: S106 - of a test
        await leaf.ask("serve", "echo")
        await hub.until("knows", "echo")
        await talk(hub, leaf, "echo")


CHAINS = list(itertools.product((OLD, NEW), repeat=3))


async def chain(fleet: Children, versions: tuple[str, str, str]) -> list[Child]:
    """A hub, a hub below it, a leaf below that, and a leaf of the upper hub of the same version."""
    top = await fleet.hub(versions[0], "top")
    middle = await fleet.hub(versions[1], "middle", top)
    leaf = await fleet.leaf(versions[2], "leaf", middle)
    beside = await fleet.leaf(versions[2], "beside", top)
    return [top, middle, leaf, beside]


@pytest.mark.rule("UP-1", "UP-4")
@pytest.mark.parametrize("versions", CHAINS, ids=["-".join(versions) for versions in CHAINS])
@with_children
async def test_chains(versions: tuple[str, str, str]) -> None:
    async with children() as fleet:
        everybody = await chain(fleet, versions)
        top, middle, leaf, beside = everybody
        for child in everybody:
            await child.ask("serve", f"echo-{child.name}")
            await child.ask("subscribe", "weather", "rain")
        for name in ("leaf", "middle", "beside"):
            await top.until("knows", f"echo-{name}")
        for asker, worker in itertools.permutations(everybody, 2):
            await talk(asker, worker, f"echo-{worker.name}")
        await top.until("number_of_subscribers", answer=4)
        for child in everybody:
            await child.ask("publish", "weather", "rain", f"by {child.name}")
        for child in everybody:
            await child.until("number_taken", "weather/rain", answer=4)
        await leaf.ask("stop_serving", "echo-leaf")
        await top.until("knows", "echo-leaf", answer=False)
        await leaf.ask("serve", "echo-leaf")
        await top.until("knows", "echo-leaf")
        await middle.kill()
        again = await fleet.start(versions[1], "middle", hub=True)
        await again.listen(middle.place)
        await again.ask("join", top.place)
        await is_reached(beside, leaf, "echo-leaf")
        await is_reached(leaf, beside, "echo-beside")
        await top.until("number_of_subscribers", answer=3)  # the middle's own is gone
        await beside.ask("publish", "weather", "rain", "after the restart")
        await leaf.until("number_taken", "weather/rain", answer=5)


async def top(version: str, place: str) -> dict[str, Any]:
    """What `waystation top` of a version finds out about a node."""
    command = ["-P", "-c", "from waystation.cli import main; main()", "top", place]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *command, "--once", "--json"),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(source_of(version))},
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.mark.rule("UP-1", "UP-4")
@with_children
async def test_each_version_shows_the_status_of_the_other() -> None:
    async with children() as fleet:
        hub = await fleet.hub(NEW, "hub")
        first = await fleet.hub(OLD, "first", hub)
        await fleet.leaf(NEW, "today", hub)
        for child in (hub, first):
            await child.ask("status")
        seen = await top(NEW, hub.place)
        assert seen["version"] == waystation.__version__
        peers = {session["peer"]: session for session in seen["sessions"]}
        assert peers["first"]["version"] == "0.1"
        assert "can" not in peers["first"]
        assert peers["today"]["version"] == waystation.__version__
        assert peers["today"]["can"] == list(CAPABILITIES)
        assert (await top(NEW, first.place))["version"] == "0.1"
        assert (await top(OLD, hub.place))["node"] == "hub"
        assert (await top(OLD, first.place))["sessions_total"] == 2
