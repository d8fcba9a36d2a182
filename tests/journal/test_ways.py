"""Whence a message came and whither it left, as the journal tells it (OB-8, OB-10)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.journal.traffic import BEGIN, entries, rows
from waystation.core.address import Address, Route
from waystation.core.message import Arrival, Message
from waystation.core.multicast import ADDRESS_TYPE as MULTICAST
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.core.record import (
    MessageRecord,
    PeerClockRecord,
    SessionKind,
    SessionRecord,
    SessionRole,
)
from waystation.journal import Journal
from waystation.journal.peers import Peer, Peers
from waystation.testing import Fleet

ID = "4bf9" * 8
NEWS = f"{MULTICAST}#hub/news"


def session(name: str, peer: str | None, **more: Any) -> SessionRecord:
    kind = more.pop("kind", SessionKind.OPENED)
    return SessionRecord(kind, name, "1#h:1", peer, None, "", BEGIN, **more)


def sent(
    out: str | None = None,
    *,
    via: str | None = None,
    onward: str = "echo",
    back: str = "",
    verdict: Verdict | None = None,
    **more: Any,
) -> MessageRecord:
    routes = Route.parse(onward), Route.parse(back) if back else Route()
    arrival = Arrival(Message(*routes, b"", ID), BEGIN, via=via, **more)
    return MessageRecord(arrival, verdict or Verdict(Outcome.FORWARDED), BEGIN + 1, out)


def written(directory: Path, *records: Any) -> list[dict[str, Any]]:
    with Journal(directory, "hub") as journal:
        for record in records:
            journal.note(record)
    return rows(directory, "messages")


@pytest.mark.rule("OB-10")
def test_a_row_names_the_sessions_and_the_nodes_behind_them(tmp_path: Path) -> None:
    [row] = written(
        tmp_path, session("s1", "truck"), session("s2", "top"), sent("s2", via="s1", back="s1 => x")
    )
    assert [row[c] for c in ("via", "from_node", "out", "next_node")] == [
        "s1",
        "truck",
        "s2",
        "top",
    ]
    assert row["origin"] is None  # it entered the fabric elsewhere


@pytest.mark.rule("OB-10")
def test_a_session_that_gets_another_peer_changes_no_earlier_row(tmp_path: Path) -> None:
    found = written(
        tmp_path,
        *(session("up", "hub-a"), sent("up"), session("up", "hub-a", kind=SessionKind.CLOSED)),
        *(sent("up"), session("up", "hub-b"), sent("up")),
    )
    assert [row["next_node"] for row in found] == ["hub-a", "hub-a", "hub-b"]
    assert [row["seq"] for row in found] == [2, 4, 6]


@pytest.mark.parametrize(
    ("record", "begins"),
    [
        pytest.param(sent(), True, id="sent here"),
        pytest.param(sent(back="request-1"), True, id="a request of this node"),
        pytest.param(sent(back="worker => leaf => x"), False, id="sent on by a worker"),
        pytest.param(sent(via="leaf", back="leaf => x"), False, id="from a node of ours"),
        pytest.param(sent(via="ockam", back="ockam => x"), True, id="from a stranger"),
        pytest.param(sent(via="broker"), False, id="from a broker"),
        pytest.param(sent(via="never-open"), False, id="from a session that was never told of"),
    ],
)
def test_where_a_message_entered_the_fabric(
    tmp_path: Path, record: MessageRecord, begins: bool
) -> None:
    peers = session("leaf", "truck"), session("ockam", None)
    broker = session("broker", None, role=SessionRole.GLOBAL)
    [row] = written(tmp_path, *peers, broker, record)
    assert row["origin"] == (f"hub/{row['incarnation']}" if begins else None)


@pytest.mark.rule("OB-8")
@pytest.mark.parametrize(
    ("record", "recipient"),
    [
        (sent(verdict=Verdict.dropped(Reason.NO_ROUTE, "truck-7")), "truck-7"),
        (sent(verdict=Verdict.dropped(Reason.EXPIRED), onward="a => 1#h:1 => b"), "b"),
        (sent(verdict=Verdict(Outcome.QUEUED, None, "truck-7")), "truck-7"),
        (sent(onward=NEWS, multicast_id="hub/news"), None),
    ],
)
def test_every_row_names_for_whom_it_was(
    tmp_path: Path, record: MessageRecord, recipient: str | None
) -> None:
    [row] = written(tmp_path, record)
    assert row["recipient"] == recipient


def test_copies_of_a_broadcast_are_told_apart(tmp_path: Path) -> None:
    news: dict[str, Any] = {"onward": NEWS, "multicast_id": "hub/news"}
    place = Address(0, b"s1")
    found = written(
        tmp_path,
        sent("s1", verdict=Verdict(Outcome.FORWARDED, None, "a", place), **news),
        sent("s1", verdict=Verdict(Outcome.FORWARDED, None, "b", place), **news),
        sent("s1", verdict=Verdict(Outcome.FORWARDED, None, None, place), **news),
        sent("s1"),
    )
    assert [row["copy"] for row in found] == [0, 0, 1, None]


@pytest.mark.parametrize(
    ("onward", "back", "internal"),
    [
        ("echo", "app", False),
        ("waystation.status", "app", True),
        ("app", "waystation.directory", True),
    ],
)
def test_messages_of_nodes_themselves_are_marked(
    tmp_path: Path, onward: str, back: str, internal: bool
) -> None:
    [row] = written(tmp_path, sent(onward=onward, back=back))
    assert row["internal"] is internal


def test_peers_that_ended_are_remembered_for_a_while() -> None:
    peers = Peers(remembered=2)
    for name in "abc":
        assert peers.learn(session(name, f"node-{name}"))
        assert not peers.learn(session(name, f"node-{name}", kind=SessionKind.CLOSED))
    assert [peers.get(name) for name in "ab"] == [None, Peer("node-b", SessionRole.PEER)]
    assert not peers.learn(session("d", "node-d", kind=SessionKind.REFUSED))
    assert peers.learn(PeerClockRecord(session("d", "node-d"), 1, None, BEGIN))
    assert peers.get("d") == Peer("node-d", SessionRole.PEER)


@pytest.mark.rule("OB-10")
def test_a_request_and_its_reply_can_be_followed_from_node_to_node(tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        hub = await fleet.hub("hub")
        asker, worker = await fleet.leaf("asker", hub), await fleet.leaf("worker", hub)
        journals = [Journal(tmp_path, node.name) for node in (hub, asker, worker)]
        for node, journal in zip((hub, asker, worker), journals, strict=True):
            node.observe(journal.note)
            for open_one in node.sessions:  # they were open before anybody listened
                journal.note(open_one.record(node.now() * 1000))

        @worker.worker("echo")
        async def echo(message: Message, context: Any) -> None:
            await context.reply(message.payload)

        await fleet.knows(hub, "echo")
        await asker.request("echo", b"hello")
        for journal in journals:
            journal.close()

    Fleet.over_tcp().run(scenario)
    found = [
        {**entry.fields, "node": entry.node}
        for entry in entries(tmp_path, tables=frozenset({"messages"}))
    ]
    asked = next(row for row in found if row["node"] == "asker" and row["outcome"] == "FORWARDED")
    replies = [row for row in found if row["answers"] == asked["message_id"]]
    assert {row["node"] for row in replies} == {"worker"}
    steps = {
        (row["node"], row["from_node"], row["next_node"])
        for row in found
        if row["message_id"] == asked["message_id"]
    }
    assert steps == {("asker", None, "hub"), ("hub", "asker", "worker"), ("worker", "hub", None)}
