"""Real processes whose wall clocks are wrong, or are set while they work (TM-1, TM-2)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.peers.faketime_peer import Child, build, child
from tests.peers.kept import needed
from waystation.core.message import Message
from waystation.node import Node
from waystation.testing import DEADLINE, Recorder, async_test, collect, until

pytestmark = pytest.mark.peer

HOUR = 3600
TTL = 20.0  # seconds: more than a busy machine needs, and less than any clock here is off


@pytest.fixture(scope="module")
def library() -> Path:
    return needed("libfaketime", build)


async def both_ways(here: Node, there: Child, got: list[Message], number: int = 50) -> None:
    """Messages with a ttl arrive, in both directions, and none has expired."""
    before = len(got)
    heard = Recorder(here)
    [session] = here.sessions
    await there.ask("send", number, TTL)
    for _ in range(number):
        reply = await here.request(f"{session.name} => echo", b"x", timeout=TTL)
        assert reply.payload == b"x"
    await until(lambda: len(got) == before + number)
    for message in got[before:]:
        assert -DEADLINE * 1000 < message.expiry - here.now() <= TTL * 1000 + 1_000
    heard.stop()
    assert heard.counts()["EXPIRED"] == 0
    assert (await there.ask("outcomes")).get("EXPIRED", 0) == 0


async def nothing_lives_on(here: Node, there: Child) -> None:
    """What waits for longer than its ttl has expired there."""
    [session] = here.sessions
    await here.send(f"{session.name} => slow", b"first")
    await here.send(f"{session.name} => slow", b"second", ttl=1.0)  # it is busy for 3 s
    before = time.monotonic()
    while not (await there.ask("outcomes")).get("EXPIRED"):
        assert time.monotonic() - before < DEADLINE


async def notices(there: Child) -> None:
    """It says that its wall clock is too far off; it looks at that ten times a second."""
    before = time.monotonic()
    while not (await there.ask("clock"))[2]:
        assert time.monotonic() - before < DEADLINE


@pytest.mark.rule("TM-1", "TM-2")
@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
@async_test
async def test_a_process_whose_clock_is_an_hour_off(
    library: Path, tmp_path: Path, ahead: int
) -> None:
    async with Node("here") as here, child(library, tmp_path, ahead=ahead) as there:
        got = collect(here, "inbox")
        listening = await here.listen("tcp://127.0.0.1:0")
        own, wall, off = await there.ask("clock")
        assert abs(own - wall) < DEADLINE
        assert abs(wall - time.time() - ahead) < DEADLINE
        assert not off
        await there.ask("connect", listening.url)
        await both_ways(here, there, got)
        await nothing_lives_on(here, there)


@pytest.mark.rule("TM-1")
@pytest.mark.parametrize("ahead", [HOUR, -HOUR, 60, -60])
@async_test
async def test_a_clock_that_leaps_in_mid_traffic(library: Path, tmp_path: Path, ahead: int) -> None:
    async with Node("here") as here, child(library, tmp_path) as there:
        got = collect(here, "inbox")
        listening = await here.listen("tcp://127.0.0.1:0")
        await there.ask("connect", listening.url)
        await both_ways(here, there, got)
        there.set_clock(ahead=ahead)
        await both_ways(here, there, got)
        if abs(ahead) == HOUR:
            await notices(there)
        own, wall, _ = await there.ask("clock")
        assert abs(own - time.time()) < abs(ahead) / 2
        assert abs(wall - time.time() - ahead) < DEADLINE
        await both_ways(here, there, got)
        there.set_clock(ahead=0)  # it was wrong for some seconds
        await both_ways(here, there, got)
        await nothing_lives_on(here, there)


@pytest.mark.ci
@pytest.mark.rule("TM-1")
@async_test
async def test_a_machine_that_boots_in_1970(library: Path, tmp_path: Path) -> None:
    past = -int(time.time()) + 10
    async with Node("here") as here, child(library, tmp_path, ahead=past) as there:
        got = collect(here, "inbox")
        listening = await here.listen("tcp://127.0.0.1:0")
        own, _, _ = await there.ask("clock")
        assert own < HOUR
        there.set_clock(ahead=0)  # as NTP does
        await there.ask("connect", listening.url)
        own, _, off = await there.ask("clock")
        assert abs(own - time.time()) < DEADLINE
        assert not off
        await both_ways(here, there, got)
        await nothing_lives_on(here, there)
