"""What `why` tells of messages that JGroups numbers, loses at a router and sends again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.gossip_router.clients import Client5, uuid
from tests.node.live import runs_on_every_loop
from waystation.cli.why import why
from waystation.core.identity import uuid_text
from waystation.gossip_router import GossipServer, Settings
from waystation.testing import async_test
from waystation.wire.jgroups import UuidAddress
from waystation.wire.jgroups5 import Message, address_bytes

pytest.importorskip("pyarrow")

from waystation.journal import Journal
from waystation.journal.read import JournalReader
from waystation.why import Explanation, explain

pytestmark = pytest.mark.rule("OB-4")

TRANSPORT = bytes.fromhex("0039 003c 0004") + b"demo" + b"\0"
ONE, TWO, THREE = (uuid_text(uuid(number).key) for number in (1, 2, 3))


def to_all(number: int, *, again: bool = False) -> bytes:
    """The header of NAKACK2."""
    return bytes.fromhex("0039 004e") + bytes((3 if again else 1, 1, number))


def to_one(number: int) -> bytes:
    """The header of UNICAST3, which is the same when a message is sent again."""
    return bytes.fromhex("0040 0052") + bytes((0, 1, number)) + b"\0\1\1"


def sent(header: bytes, to: UuidAddress | None, size: int = 2) -> Message:
    """A message of the first member, as a member of 5.5.7 writes it."""
    payload = b"".join(
        (
            bytes.fromhex("2947"),
            b"\0" if to else b"\2",
            b"\0\0",
            b"\3" if to else b"\2",
            b"\0\0",
            address_bytes(to) if to else b"",
            address_bytes(uuid(1)),
            b"\0\2",
            header,
            TRANSPORT,
            size.to_bytes(4, "big"),
            bytes(size),
        )
    )
    return Message("demo", to, uuid(1), payload)


@asynccontextmanager
async def journalling(
    directory: Path, name: str = "router", **settings: Any
) -> AsyncIterator[GossipServer]:
    """A router that writes every message to its journal."""
    with Journal(directory, name) as journal:
        server = GossipServer(
            Settings(**{"linger": 1.0, **settings}),
            observe=journal.note,
            observe_messages=journal.note,
            journal_messages=True,
        )
        await server.start("127.0.0.1:0")
        try:
            yield server
        finally:
            await server.drain()


def ids(directory: Path, name: str) -> set[str]:
    """The messages that JGroups calls so."""
    reader = JournalReader(directory, lambda *problem: pytest.fail(str(problem)))
    rows = [entry.fields for entry in reader.entries() if entry.table == "messages"]
    return {row["message_id"] for row in rows if f"0#{name}" in row["return"]}


def told(directory: Path, name: str) -> Explanation:
    """The story of the only message that JGroups calls so."""
    [id] = ids(directory, name)
    return explain(directory, id)


def outcomes(story: Explanation) -> list[str]:
    return [step.reason or step.outcome for hop in story.hops for step in hop.steps]


@runs_on_every_loop
async def test_a_message_to_one_that_was_dropped_and_sent_again_is_one_story(
    tmp_path: Path,
) -> None:
    async with journalling(tmp_path) as server, await Client5.open(server) as one:
        await one.join("demo", 1)
        one.say(sent(to_one(17), uuid(2)))
        await one.sync()
        async with await Client5.open(server) as two:
            await two.join("demo", 2)
            one.say(sent(to_one(17), uuid(2)))
            await one.sync()
            assert await two.frame() == sent(to_one(17), uuid(2))
    story = told(tmp_path, "UNICAST3/message/17")
    assert outcomes(story) == ["NO_ROUTE", "FORWARDED"]
    assert story.summary.startswith(
        f"dropped at router, NO_ROUTE, then sent again and passed on at router to {TWO} of the "
        "group demo, "
    )
    [way] = story.ways
    assert (way.outcome, way.reason, way.lost_copies, way.looped) == ("FORWARDED", None, 0, False)
    assert way.notes == ("JGroups calls it UNICAST3/message/17; it was sent twice",)
    assert all(hop.as_expected for hop in story.hops)
    assert story.hops[0].explanation == f"{TWO} of the group demo was not registered at this router"


@async_test
async def test_the_command_tells_of_the_loss_and_of_what_made_it_good(tmp_path: Path) -> None:
    async with journalling(tmp_path) as server, await Client5.open(server) as one:
        await one.join("demo", 1)
        one.say(sent(to_one(17), uuid(2)))
        await one.sync()
        async with await Client5.open(server) as two:
            await two.join("demo", 2)
            one.say(sent(to_one(17), uuid(2)))
            await one.sync()
    [id] = ids(tmp_path, "UNICAST3/message/17")
    shown = CliRunner().invoke(why, [id, "--journal", str(tmp_path)])
    assert shown.exit_code == 0
    assert "then sent again and passed on" in shown.output
    assert shown.output.index("DROPPED NO_ROUTE") < shown.output.index("FORWARDED to")
    for wrong in ("loop", "not what happened", "left the fleet", "route was empty"):
        assert wrong not in shown.output


@async_test
async def test_a_retransmission_makes_good_the_copy_that_one_receiver_lost(tmp_path: Path) -> None:
    async with (
        journalling(tmp_path, queue=64 * 1024, patience=0) as server,
        await Client5.open(server) as one,
        await Client5.open(server) as stuck,
        await Client5.open(server) as other,
    ):
        await one.join("demo", 1)
        await stuck.join("demo", 2)
        await other.join("demo", 3)
        stuck.stop_reading()
        number = 0
        while not server.counts.dropped["QUEUE_FULL"]:
            number += 1
            one.say(sent(to_all(number), None, 20_000))
            await one.sync()
            await other.sync()
        stuck.read_again()
        while (await stuck.frame()) != sent(to_all(number - 1), None, 20_000):
            pass
        one.say(sent(to_all(number, again=True), uuid(2), 20_000))
        await one.sync()
        await stuck.sync()
    story = told(tmp_path, f"NAKACK2/message/{number}")
    assert outcomes(story) == ["QUEUE_FULL", "FORWARDED", "FORWARDED"]
    assert story.summary.startswith(
        "dropped at router, QUEUE_FULL, then sent again and passed on at router to "
        f"{TWO} of the group demo, "
    )
    [note] = story.ways[0].notes
    names = f"NAKACK2/message/{number}, then NAKACK2/retransmission/{number}"
    assert note == f"JGroups calls it {names}; it was sent twice"


@async_test
async def test_what_was_never_passed_on_is_lost_however_often_it_was_sent(tmp_path: Path) -> None:
    async with (
        journalling(tmp_path) as server,
        await Client5.open(server) as one,
        await Client5.open(server) as three,
    ):
        await one.join("demo", 1)
        await three.join("demo", 3)
        one.say(*[sent(to_one(4), uuid(2))] * 3)  # to one who is not there
        one.say(sent(to_all(5, again=True), uuid(2)), sent(to_all(5, again=True), uuid(3)))
        one.say(sent(to_one(6), uuid(3)))
        await one.sync()
    lost = told(tmp_path, "UNICAST3/message/4")
    cause = f"{TWO} of the group demo was not registered at this router"
    assert lost.summary == f"dropped at router, NO_ROUTE: {cause}"
    assert lost.ways[0].lost_copies == 1
    assert lost.ways[0].notes == ("JGroups calls it UNICAST3/message/4; it was sent 3 times",)
    partly = told(tmp_path, "NAKACK2/retransmission/5")
    assert partly.summary == f"dropped at router, NO_ROUTE: {cause}; passed on to others"
    usual = told(tmp_path, "UNICAST3/message/6")
    assert usual.summary == f"passed on at router to {THREE} of the group demo"
    assert usual.ways[0].notes == ("JGroups calls it UNICAST3/message/6; it was sent once",)


@async_test
async def test_it_is_one_message_also_when_it_went_through_two_routers(tmp_path: Path) -> None:
    for name in ("router-1", "router-2"):
        async with journalling(tmp_path, name) as server, await Client5.open(server) as one:
            await one.join("demo", 1)
            if name == "router-2":
                await one.join("demo", 2)
            one.say(sent(to_one(17), uuid(2)))
            await one.sync()
    story = told(tmp_path, "UNICAST3/message/17")
    assert len(story.ways) == 1
    assert story.summary.startswith(
        "dropped at router-1, NO_ROUTE, then sent again and passed on at router-2 to "
    )
