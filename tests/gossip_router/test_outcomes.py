"""What a router tells of messages: each that it drops, and with `journal_messages` all others."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.gossip_router.clients import Client2, Client5, Raw, serving, uuid
from tests.node.live import runs_on_every_loop
from waystation.core.address_types import GOSSIP
from waystation.core.identity import uuid_text
from waystation.core.outcome import Reason
from waystation.core.record import MessageRecord
from waystation.gossip_router import Admission, Door, GossipServer, Settings
from waystation.gossip_router.outcomes import MemberRecord, Outcomes, Told
from waystation.journal import Journal
from waystation.testing import async_test, until
from waystation.wire import jgroups2
from waystation.wire.jgroups5 import Message, encode


@asynccontextmanager
async def telling(
    *, journal_messages: bool = False, admission: Admission | None = None, **settings: Any
) -> AsyncIterator[tuple[GossipServer, list[MessageRecord]]]:
    """A router, and what it tells of messages."""
    told: list[MessageRecord] = []
    server = GossipServer(
        Settings(**{"linger": 1.0, **settings}),
        admission=admission,
        observe_messages=told.append,
        journal_messages=journal_messages,
    )
    await server.start("127.0.0.1:0")
    try:
        yield server, told
    finally:
        await server.drain()


def shown(record: MessageRecord) -> tuple[str, str, str | None, str, int]:
    """Its outcome, its onward route, its multicast id, its return route, its size."""
    message, verdict = record.arrival.message, record.verdict
    return (
        (verdict.reason or verdict.outcome).value,
        str(message.onward_route),
        record.arrival.multicast_id,
        str(message.return_route),
        len(message.payload),
    )


def place(group: str, number: int | None = None) -> str:
    member = "" if number is None else f"/{uuid_text(uuid(number).key)}"
    return f"{GOSSIP}#{group}{member}"


@pytest.mark.rule("OB-2")
@pytest.mark.rule("OB-4")
@runs_on_every_loop
async def test_messages_of_5_to_nobody_are_told_one_by_one() -> None:
    async with telling() as (server, told), await Client5.open(server) as one:
        await one.join("g", 1)
        sent = [
            Message("g", uuid(9), None, b"a"),
            Message("g", uuid(9), None, b"abc"),
            Message("nowhere", None, None, b""),
            Message("g", uuid(1), None, b"here"),
            Message("g", None, None, b"everybody"),
        ]
        one.say(*sent)
        await one.sync()
        sizes = [len(encode(message)) for message in sent]
        assert [shown(record) for record in told] == [
            ("NO_ROUTE", place("g", 9), None, place("g", 1), sizes[0]),
            ("NO_ROUTE", place("g", 9), None, place("g", 1), sizes[1]),
            ("NO_ROUTE", place("nowhere"), "nowhere", "", sizes[2]),
        ]
        assert len({record.arrival.message.id for record in told}) == 3
        assert all(len(record.arrival.message.id) == 32 for record in told)


@pytest.mark.rule("OB-2")
@runs_on_every_loop
async def test_messages_of_2_to_nobody_or_with_nothing_in_them_are_told() -> None:
    async with telling() as (server, told), await Client2.open(server) as one:
        await one.join("g", 1)
        usual = jgroups2.Message("g", uuid(9), b"a")
        unusual = jgroups2.Message(None, uuid(9), b"a")
        empty = jgroups2.Message("g", uuid(1), None)
        one.say(usual, usual, unusual, empty)
        await one.sync()
        usual_size = len(jgroups2.encode(usual))
        assert [shown(record)[:3] for record in told] == [
            ("NO_ROUTE", place("g", 9), None),
            ("NO_ROUTE", place("g", 9), None),
            ("NO_ROUTE", "", None),
            ("MALFORMED", place("g", 1), None),
        ]
        assert [len(record.arrival.message.payload) for record in told[:2]] == [usual_size] * 2


@pytest.mark.rule("OB-2")
@async_test
async def test_messages_to_a_closed_group_are_told_as_refused() -> None:
    admission = Admission({"g": Door(tokens=("secret",))})
    async with telling(admission=admission) as (server, told), await Client5.open(server) as one:
        one.say(Message("g", None, None, b"x"))
        await one.sync()
        assert [shown(record)[:3] for record in told] == [("REFUSED", place("g"), "g")]


@pytest.mark.rule("OB-2")
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (encode(Message("g", None, None, bytes(10_000))), Reason.TOO_LARGE),
        (encode(Message("g", None, None, b"x"))[:4] + b"\xff" * 40, Reason.MALFORMED),
    ],
)
@async_test
async def test_what_is_too_large_or_cannot_be_read_is_told(data: bytes, reason: Reason) -> None:
    async with telling(message=5_000) as (server, told), await Raw.open(server) as raw:
        raw.send(data)
        await raw.ended()
        assert [shown(record)[:4] for record in told] == [(reason.value, "", None, "")]


@pytest.mark.rule("OB-2")
@pytest.mark.rule("GR-10")
@pytest.mark.parametrize("journal_messages", [False, True])
@async_test
async def test_every_copy_that_finds_no_room_is_told(journal_messages: bool) -> None:
    queue = 64 * 1024
    async with (
        telling(queue=queue, patience=0, journal_messages=journal_messages) as (server, told),
        await Client5.open(server) as sender,
        await Client5.open(server) as stuck,
    ):
        await sender.join("elsewhere", 1)
        await stuck.join("g", 2)
        stuck.stop_reading()
        sent = 0
        while server.counts.dropped["QUEUE_FULL"] < 20:
            sender.say(*[Message("g", uuid(2), None, bytes(20_000))] * 10)
            sent += 10
            await sender.sync()
        words = Counter(shown(record)[0] for record in told)
        assert words["QUEUE_FULL"] == server.counts.dropped["QUEUE_FULL"]
        assert words["FORWARDED"] == (sent - words["QUEUE_FULL"] if journal_messages else 0)
        assert {shown(record)[1] for record in told} == {place("g", 2)}
        ids = {record.arrival.message.id for record in told}
        assert len(ids) == len(told)  # to one receiver a message is dropped or passed on, not both
        stuck.reset()


@pytest.mark.rule("OB-1")
@runs_on_every_loop
async def test_what_is_passed_on_is_told_when_that_is_asked_for() -> None:
    async with (
        telling(journal_messages=True) as (server, told),
        await Client5.open(server) as one,
        await Client5.open(server) as two,
        await Client2.open(server) as old,
    ):
        await one.join("g", 1)
        await two.join("g", 2)
        one.say(*[Message("g", uuid(2), None, b"x")] * 3, Message("g", None, None, b"all"))
        await one.sync()
        assert [shown(record)[:4] for record in told] == [
            *[("FORWARDED", place("g", 2), None, place("g", 1))] * 3,
            ("FORWARDED", place("g"), "g", place("g", 1)),
        ]
        assert [str(record.verdict.address) for record in told] == [
            *[place("g", 2)] * 3,
            place("g"),
        ]
        told.clear()
        await old.join("g", 7)
        old.say(jgroups2.Message("g", uuid(7), b"x"), jgroups2.Message("g", None, b"x"))
        await old.sync()
        assert [shown(record)[:3] for record in told] == [
            ("FORWARDED", place("g", 7), None),
            ("FORWARDED", place("g"), "g"),
        ]


@async_test
async def test_a_copy_that_one_receiver_loses_is_told_beside_the_message_that_others_get() -> None:
    async with (
        telling(queue=64 * 1024, patience=0, journal_messages=True) as (server, told),
        await Client5.open(server) as sender,
        await Client5.open(server) as stuck,
        await Client5.open(server) as other,
    ):
        await stuck.join("g", 1)
        await other.join("g", 2)
        stuck.stop_reading()
        sent = 0
        while not server.counts.dropped["QUEUE_FULL"]:
            sender.say(Message("g", None, None, bytes(20_000)))
            sent += 1
            await sender.sync()
            await other.frame()
        words = Counter(shown(record)[0] for record in told)
        assert words == {"FORWARDED": sent, "QUEUE_FULL": 1}
        [lost] = [record for record in told if shown(record)[0] == "QUEUE_FULL"]
        passed_on = [record for record in told if shown(record)[0] == "FORWARDED"]
        assert lost.arrival == passed_on[-1].arrival
        stuck.reset()


@async_test
async def test_nothing_is_looked_at_when_nobody_listens() -> None:
    async with serving() as (server, _), await Client5.open(server) as one:
        await one.join("g", 1)
        one.say(Message("g", uuid(9), None, b"x"), Message("g", uuid(1), None, b"x"))
        await one.sync()
        assert server.outcomes is None
        assert server.counts.dropped == {"NO_ROUTE": 1}


@pytest.mark.rule("OB-4")
@async_test
async def test_members_are_told_with_their_dialect() -> None:
    async with (
        serving() as (server, told),
        await Client5.open(server) as five,
        await Client2.open(server) as two,
    ):
        await five.join("g", 1)
        await two.join("g", 1)
        five.reset()
        await until(lambda: len(told) == 3)
        assert [isinstance(record, MemberRecord) and record.dialect for record in told] == [
            "JGroups 5",
            "JGroups 2.12",
            "JGroups 5",
        ]


def test_the_journal_takes_what_a_router_tells(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    with Journal(tmp_path, "router") as journal:
        outcomes = Outcomes(journal.note, forwarded=True)
        outcomes.dropped(outcomes.arrivals("a b", None, [Told(70_000)]), Reason.QUEUE_FULL)
        outcomes.forwarded(
            outcomes.arrivals("g", uuid(1).key, [Told(1, uuid(2).key), Told(2, uuid(2).key)])
        )
        outcomes.dropped(outcomes.arrivals(None, None, [Told(0)]), Reason.MALFORMED)
        outcomes.forwarded([])
    import pyarrow.parquet as pq  # noqa: PLC0415

    [file] = (tmp_path / "messages").rglob("*.parquet")
    rows = pq.ParquetFile(file).read().to_pylist()
    assert [(row["kind"], row["multicast_id"], row["bytes"]) for row in rows] == [
        ("multicast", "a b", 70_000),
        ("unicast", None, 1),
        ("unicast", None, 2),
        ("unicast", None, 0),
    ]
    assert [row["onward"] for row in rows] == [
        [f"{GOSSIP}#0x{b'a b'.hex()}"],
        [place("g", 1)],
        [place("g", 1)],
        [],
    ]
    assert [row["next_hop"] for row in rows] == [None, place("g", 1), place("g", 1), None]
    assert [row["return"] for row in rows] == [[], [place("g", 2)], [place("g", 2)], []]
    assert len({row["message_id"] for row in rows}) == 4
