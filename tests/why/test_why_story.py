"""What is told of a message: how it ended, who went without, what is missing."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.small import BEGIN, INCARNATION, SECOND, put_rows, row
from waystation.journal.layout import all_nodes
from waystation.journal.read import TableReader
from waystation.journal.schema import MESSAGES
from waystation.why import Explanation, explain, explanation_lines
from waystation.why.journal import intervals

ID = f"{7:032x}"
OTHER = f"{8:032x}"
JOURNALS = Path(__file__).parents[1] / "data" / "journals"


class Journal:
    """A journal that is written row by row; each node has seqs of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._rows: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
        self._seq: dict[str, int] = {}

    def add(self, node: str, table: str, at: float, **columns: Any) -> None:
        seq = self._seq[node] = self._seq.get(node, 0) + 1
        found = row(table, seq, round(at * SECOND), **columns)
        self._rows.setdefault((node, table, found["incarnation"]), []).append(found)

    def message(self, node: str, at: float, outcome: str, **columns: Any) -> None:
        columns = {"recipient": "a", "origin": f"{node}/{INCARNATION}", **columns}
        if columns.get("via"):
            columns["origin"] = None
        self.add(node, MESSAGES, at, outcome=outcome, **columns)

    def goes_on(self, *nodes: str) -> None:
        """Let the records of nodes reach far beyond."""
        for node in nodes:
            self.add(node, "nodes", 60, kind="clock")

    def told(self, id: str = ID) -> Explanation:
        for (node, table, _), rows in self._rows.items():
            put_rows(self.directory, table, rows, node, version=2)
        return explain(self.directory, id)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path)


def text(told: Explanation) -> str:
    return "\n".join(explanation_lines(told))


TO_B = {"out": "tcp-1", "next_node": "b", "next_hop": "1#h:1"}
FROM_A = {"via": "tcp-2", "from_node": "a", "return": ["0#tcp-2"]}


def test_an_entry_that_never_expires_did_not_expire_in_1970(journal: Journal) -> None:
    journal.add("hub", "routes", 1, participant="a", address="0#gone", expiry=None)
    journal.message("hub", 2, "DROPPED", reason="NO_ROUTE")
    told = journal.told()
    assert told.summary == (
        "dropped at hub, NO_ROUTE: a led to 0#gone, and the node found no way there"
    )
    assert "1970" not in text(told)


def test_an_earlier_entry_with_a_later_expiry_does_not_count(journal: Journal) -> None:
    far, near = BEGIN + 9_000 * SECOND, BEGIN + 3 * SECOND
    put = {"participant": "a", "address": "1#h:1", "local": False}
    journal.add("hub", "routes", 1, expiry=far, **put)
    journal.add("hub", "routes", 1.5, kind="remove", **put)
    journal.add("hub", "routes", 2, expiry=near, **put)
    journal.message("hub", 5, "DROPPED", reason="NO_ROUTE")
    assert journal.told().summary.endswith("the route to a had expired 2 s before")


def test_a_copy_that_did_not_arrive_is_lost_between_two_nodes(journal: Journal) -> None:
    journal.message("a", 1, "FORWARDED", **TO_B)
    journal.add("b", "nodes", 0)
    journal.goes_on("b")
    told = journal.told()
    assert told.summary == (
        "lost between a and b: a sent it, and the journal of b shows that it did not arrive"
    )
    assert (told.ways[0].outcome, told.ways[0].reason, told.ways[0].place) == (
        "DROPPED", "VANISHED", "a",
    )  # fmt: skip
    assert "   it did not arrive at b, whose journal covers that time" in text(told).splitlines()


def test_near_a_crash_the_last_second_may_be_missing(journal: Journal) -> None:
    journal.message("a", 1, "FORWARDED", **TO_B)
    journal.add("b", "nodes", 0)
    journal.add("b", "nodes", 0.9, kind="clock")
    journal.add("b", "nodes", 20, incarnation=INCARNATION + 1)
    journal.add("b", "nodes", 60, incarnation=INCARNATION + 1, kind="clock")
    assert "crashed then, and its last second may not be on record" in text(journal.told())


def test_where_the_record_ends_nobody_knows(journal: Journal) -> None:
    journal.message("a", 1, "FORWARDED", **TO_B)
    journal.add("b", "nodes", 0)
    journal.add("b", "nodes", 2, kind="lost", lost=3)
    told = journal.told()
    assert told.summary == (
        "last seen at a, which sent it to b; no journal here shows whether it arrived"
    )
    assert told.ways[0].unknown_copies == 1
    assert "note: the journal of b lost 3 records, so this may be incomplete" in text(told)


def test_a_gap_in_the_record_hides_what_came_in_it(journal: Journal) -> None:
    journal.message("a", 1, "FORWARDED", **TO_B)
    journal.add("b", "nodes", 0)
    journal.add("b", "nodes", 3, kind="lost", lost=3)
    journal.goes_on("b")
    assert journal.told().ways[0].unknown_copies == 1


def test_what_a_silent_node_did_is_missing_and_said(journal: Journal) -> None:
    journal.message("a", 1, "FORWARDED", **{**TO_B, "next_node": "quiet"})
    back = ["0#tcp-9", "0#tcp-8"]
    journal.message("b", 2, "DELIVERED", via="tcp-9", from_node="quiet", **{"return": back})
    told = journal.told()
    assert told.summary.startswith("delivered at b after ")
    assert "note: quiet keeps no journal here: what happened there is not known" in text(told)
    assert told.ways[0].complete


def test_a_message_whose_sender_has_no_record_of_it(journal: Journal) -> None:
    journal.message("b", 2, "DELIVERED", **FROM_A)
    journal.add("a", "nodes", 0)
    assert "note: a sent it to b and has no record of that" in text(journal.told())


def test_messages_of_one_id_are_told_apart(journal: Journal) -> None:
    journal.message("a", 1, "DELIVERED")
    journal.message("b", 2, "DROPPED", reason="NO_ROUTE", recipient="x", onward=["0#x"])
    told = journal.told()
    lines = text(told).splitlines()
    assert lines[1] == "2 messages have this id, from different origins"
    assert "from a: delivered at a after 0 ms" in lines
    assert "from b: dropped at b, NO_ROUTE: x was never known here" in lines
    assert [hop.way for hop in told.hops] == [0, 1]
    assert told.summary.startswith("2 messages have this id, from different origins: from a: ")


def test_an_answer_is_told_with_its_request(journal: Journal) -> None:
    journal.message("a", 1, "FORWARDED", **TO_B)
    journal.message("b", 2, "DELIVERED", **FROM_A)
    about = {"message_id": OTHER, "onward": ["0#tcp-2", "0#request"], "recipient": "tcp-2"}
    to_a = {"out": "tcp-2", "next_node": "a", "next_hop": "1#h:2"}
    journal.message("b", 3, "FORWARDED", answers=ID, **to_a, **about)
    about |= {"onward": ["0#request"], "recipient": "request", "return": ["0#tcp-1"]}
    journal.message("a", 4, "DELIVERED", via="tcp-1", from_node="b", **about)
    told = journal.told()
    assert told.ways[0].notes == (
        f"answered by {OTHER}, delivered at a after 1 s and 1 hop, by the same nodes",
    )
    assert (told.ways[0].legs, told.ways[0].symmetric) == (2, True)
    assert explain(journal.directory, OTHER).ways[0].notes == (f"it answers {ID}",)


def test_an_internal_message_says_so(journal: Journal) -> None:
    journal.message("a", 1, "DELIVERED", internal=True, onward=["0#waystation.hub"])
    assert "it is internal: nodes sent it for themselves" in text(journal.told())


def test_of_a_broadcast_those_who_went_without_are_named(journal: Journal) -> None:
    news = {"kind": "multicast", "multicast_id": "a/news", "onward": ["255#a/news"]}
    journal.message("hub", 1, "DELIVERED", **news)
    for name in ("x", "y"):
        journal.message("hub", 1, "DROPPED", reason="QUEUE_FULL", **{**news, "recipient": name})
    journal.message("hub", 1, "FORWARDED", **{**news, "recipient": None, **TO_B})
    journal.message("b", 2, "DROPPED", reason="DUPLICATE", **{**news, **FROM_A, "recipient": None})
    told = journal.told()
    assert told.summary == (
        "dropped at hub, QUEUE_FULL for y: the receiver's queue was full, and the sender did not "
        "wait; delivered to 1 other"
    )
    assert "2 went without: x, y" in text(told)


def test_what_waits_at_the_end_of_a_process_is_lost(journal: Journal) -> None:
    journal.add("a", "nodes", 0)
    journal.message("a", 1, "QUEUED")
    journal.add("a", "nodes", 3, kind="stop")
    assert journal.told().summary == "lost at a: it was waiting there when the node ended"


def test_what_waits_too_long_has_expired(journal: Journal) -> None:
    journal.add("a", "nodes", 0)
    journal.message("a", 1, "QUEUED", expiry=BEGIN + 5 * SECOND)
    journal.goes_on("a")
    assert journal.told().summary == "dropped at a, EXPIRED: it waited there until it expired"


def test_a_broadcast_of_a_leaf_goes_up(journal: Journal) -> None:
    journal.add("a", "sessions", 0, session="tcp-1", role="parent", peer="b")
    news = {"kind": "multicast", "multicast_id": "a/news", "onward": ["255#a/news"]}
    journal.message("a", 1, "FORWARDED", **{**news, "recipient": None, **TO_B})
    [hop] = journal.told().hops
    assert hop.as_expected
    assert [decision.outcome for decision in hop.expected] == ["FORWARDED"]


@pytest.mark.parametrize("closed", [False, True])
def test_an_answer_to_a_session_goes_to_its_place(journal: Journal, closed: bool) -> None:
    journal.add("a", "sessions", 0, session="tcp-1", role="peer", peer="b", place="1#h:1")
    if closed:
        journal.add("a", "sessions", 0.5, session="tcp-1", role="peer", kind="close")
    route = {"onward": ["0#tcp-1", "0#request"], "recipient": "tcp-1"}
    journal.message("a", 1, "FORWARDED", **{**TO_B, **route})
    [hop] = journal.told().hops
    assert hop.as_expected is not closed
    assert hop.expected[0].address == (None if closed else "1#h:1")


def test_an_entry_that_led_to_another_name_is_followed(journal: Journal) -> None:
    journal.add("a", "routes", 0, participant="b", address="0#b", local=True)
    journal.add("a", "routes", 0, participant="a", address="0#b", local=True)
    journal.message("a", 1, "DELIVERED")
    assert journal.told().hops[0].as_expected


def test_a_name_that_was_refused_was_never_known(journal: Journal) -> None:
    journal.add("a", "routes", 0, participant="sink-1", accepted=False)
    journal.add("a", "routes", 0, participant="sink-2")
    named = {"onward": ["0#sink"], "recipient": "sink"}
    journal.message("a", 1, "DROPPED", reason="NO_ROUTE", **named)
    assert journal.told().summary.endswith("never known here; the closest names are sink-2")


def test_routing_entries_end_as_the_table_says() -> None:
    def change(at: int, kind: str = "put", **columns: Any) -> dict[str, Any]:
        return row("routes", at, at, kind=kind, **columns)

    far: dict[str, Any] = {"address": "1#h:1", "local": False}
    found = [
        (entry.address, entry.since - BEGIN, entry.until and entry.until - BEGIN, entry.closed_by)
        for entry in intervals(
            [
                change(1_000, expiry=BEGIN + 5_000, **far),
                change(9_000, expiry=None, **far),
                change(10_000),
                change(11_000, **far),
                change(12_000, kind="remove"),
                change(13_000, kind="remove"),
                change(14_000, expiry=BEGIN + 90_000),
            ]
        )
    ]
    assert found == [
        ("1#h:1", 1_000, 5_000, "expired"),
        ("1#h:1", 9_000, 10_000, "replaced"),
        ("0#a", 10_000, 12_000, "removed"),
        ("0#a", 14_000, 90_000, "expired"),
    ]


@pytest.mark.rule("UP-3")
@pytest.mark.parametrize("version", ["first", "second"])
def test_journals_of_earlier_versions_are_explained(tmp_path: Path, version: str) -> None:
    directory = tmp_path / "journal"
    shutil.copytree(JOURNALS / version, directory)
    ids = {
        id
        for node in all_nodes(directory)
        for batch in TableReader(directory, MESSAGES, node, lambda *_: None).batches()
        for id in batch.column("message_id").to_pylist()
    }
    assert ids
    for id in ids:
        told = explain(directory, id)
        assert text(told)
        assert [hop for hop in told.hops if not hop.as_expected] == []
