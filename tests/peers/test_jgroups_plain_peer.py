"""A Python program and real JGroups members exchange plain bytes; the journal names theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.peers import jgroups_older_peer, jgroups_peer
from tests.peers.jgroups_peer import FETCH_SECONDS, Member
from tests.peers.test_jgroups_peer import Start, at, routing, tunnel
from waystation.core.identity import uuid_text
from waystation.groups import JGroupsPeer, PlainMessage
from waystation.journal.read import JournalReader
from waystation.testing import async_test

pytestmark = [pytest.mark.peer, pytest.mark.timeout(FETCH_SECONDS + 300)]

OLDER = ("5.2.0.Final", "5.3.10.Final")
"""On both sides of the byte that was put behind the name of the cluster."""


@pytest.fixture(scope="module", autouse=True)
def _java() -> None:
    jgroups_peer.built()


@pytest.fixture
def start() -> Iterator[Start]:
    with jgroups_peer.members() as starter:
        yield starter


async def hears(member: Member, text: str) -> None:
    """Wait until a member has got a text, from whoever it thinks that it came."""
    await asyncio.to_thread(member.until, lambda lines: any(line.endswith(text) for line in lines))


async def exchange(place: str, a: Member, b: Member) -> None:
    """Bytes to all and to one, both ways."""
    for member in (a, b):
        member.views("A", "B")
    async with JGroupsPeer(place, "demo", name="python", timeout=60) as peer:
        here = uuid_text(peer.address.uuid)
        named = {member.name: member.uuid for member in await peer.members()}
        assert set(named) == {"A", "B", "python"}
        await peer.send(b"thello to all")
        for member in (a, b):
            await hears(member, " hello to all")
        await peer.send(b"thello B", to=named["B"])
        await hears(b, " hello B")
        assert not any(line.endswith(" hello B") for line in a.lines)
        a.say(f"plain {here} only for you")
        assert await peer.receive() == PlainMessage(b"tonly for you", named["A"], to_all=False)
        b.say("plain * for everybody")
        assert await peer.receive() == PlainMessage(b"tfor everybody", named["B"], to_all=True)
        await hears(a, "B for everybody")
        assert peer.release is not None


@pytest.mark.ci
@pytest.mark.rule("GR-11")
@async_test
async def test_plain_bytes_go_both_ways(start: Start) -> None:
    with routing() as router:
        config = tunnel(5, router)
        a, b = (start(5, config, "demo", name) for name in "AB")
        await exchange(f"127.0.0.1:{router.port}", a, b)
        a.say("all the view is as it was")
        b.got("A the view is as it was")
        assert not any("python" in line for line in b.lines if line.startswith("view "))


@pytest.mark.rule("GR-11")
@pytest.mark.parametrize("release", OLDER)
@async_test
async def test_plain_bytes_go_both_ways_with_older_releases(release: str) -> None:
    with routing() as router, jgroups_older_peer.members(release) as begin:
        config = at(router, jgroups_older_peer.shipped(release, "tunnel.xml"))
        a, b = (begin(config, name) for name in "AB")
        await exchange(f"127.0.0.1:{router.port}", a, b)


@pytest.mark.rule("OB-4")
def test_the_journal_names_what_members_number(start: Start, tmp_path: Path) -> None:
    options = ("--journal", str(tmp_path / "J"), "--journal-messages")
    with routing(*options) as router:
        config = tunnel(5, router)
        a, b = (start(5, config, "demo", name) for name in "AB")
        for member in (a, b):
            member.views("A", "B")
        for number in range(5):
            a.say(f"all to all {number}")
            a.say(f"to B to one {number}")
        b.got(*(f"A to {whom} {number}" for number in range(5) for whom in ("all", "one")))
        assert router.end() == 0
    complaints: list[object] = []
    reader = JournalReader(tmp_path / "J", lambda *problem: complaints.append(problem))
    rows = [entry.fields for entry in reader.entries() if entry.table == "messages"]
    named = [row["return"][1] for row in rows if len(row["return"]) > 1]
    for protocol in ("NAKACK2", "UNICAST3"):
        start_of = f"0#{protocol}/message/"
        numbers = {int(name.split("/")[-1]) for name in named if name.startswith(start_of)}
        assert len(numbers) >= 5
        assert numbers == set(range(min(numbers), max(numbers) + 1))  # none is missing
    assert not complaints
