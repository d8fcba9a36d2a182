"""Losses by their cause, and who is missing in a journal."""

from __future__ import annotations

from pathlib import Path

from tests.console.live import hub, shown
from tests.pipeline.small import SECOND, put_rows, row
from waystation.console.journal_follower import MessageRow, latest_drops
from waystation.console.losses import cause, coverage, grouped
from waystation.journal.schema import MESSAGES, NODES
from waystation.testing import async_test, until


def loss(at: int, recipient: str = "truck-7", reason: str = "NO_ROUTE") -> MessageRow:
    return MessageRow(
        f"{at:032x}", "hub", 1, at, at, at, "DROPPED", reason, None, recipient, None
    )  # fmt: skip


def lives(journal: Path, node: str, end: float, kind: str = "clock") -> None:
    """Write the records of a node up to a second."""
    rows = [row(NODES, 1, 0, kind="start"), row(NODES, 2, round(end * SECOND), kind=kind)]
    put_rows(journal, NODES, rows, node)


def test_drops_are_grouped_by_node_reason_and_recipient() -> None:
    groups = grouped([loss(3), loss(9, "van"), loss(1), loss(5, reason="EXPIRED")])
    assert [(one.reason, one.recipient, one.count, one.first, one.last) for one in groups] == [
        ("NO_ROUTE", "van", 1, 9, 9),
        ("EXPIRED", "truck-7", 1, 5, 5),
        ("NO_ROUTE", "truck-7", 2, 1, 3),
    ]
    assert groups[-1].message_id == f"{3:032x}"


def test_a_cause_that_no_journal_knows_is_empty(tmp_path: Path) -> None:
    assert cause(tmp_path, grouped([loss(1)])[0]) == ""


def test_nodes_whose_records_end_early_are_missing_unless_they_stopped(tmp_path: Path) -> None:
    assert coverage(tmp_path) is None
    for number in range(5):
        lives(tmp_path, f"truck-{number}", 6_000 - number)
    lives(tmp_path, "dead", 300)
    lives(tmp_path, "done", 200, kind="stop")
    found = coverage(tmp_path)
    assert found is not None
    assert [node for node, _ in found.missing] == ["dead"]
    assert (found.nodes, found.stopped, found.unseen) == (6, 1, 0)
    assert found.until == found.missing[0][1]
    some = coverage(tmp_path, most=3)
    assert some is not None
    assert some.unseen == 4


def test_a_journal_that_all_nodes_wrote_is_complete_to_its_end(tmp_path: Path) -> None:
    lives(tmp_path, "a", 600)
    lives(tmp_path, "b", 590)
    found = coverage(tmp_path)
    assert found is not None
    assert (found.missing, found.nodes) == ([], 2)


def test_internal_drops_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    rows = [
        row(MESSAGES, 1, 0, outcome="DROPPED", reason="NO_ROUTE", internal=True),
        row(MESSAGES, 2, 1, outcome="DROPPED", reason="EXPIRED", internal=False),
    ]
    put_rows(tmp_path, MESSAGES, rows, "hub")
    assert [drop.reason for drop in latest_drops(tmp_path, 9)] == ["EXPIRED"]
    assert len(latest_drops(tmp_path, 9, internals=True)) == 2


@async_test
async def test_the_page_tells_causes_and_who_is_missing(tmp_path: Path) -> None:
    lives(tmp_path, "dead", 0)
    async with hub(journal=tmp_path) as top, shown(top.url, journal=tmp_path) as browser:
        for _ in range(3):
            await top.node.send("truck-7", b"")
        await until(lambda: len(latest_drops(tmp_path, 9)) == 3)
        text = (await browser.get("/incidents")).text
        assert '<b class="count">3</b> lost <span class="outcome bad">NO_ROUTE</span>' in text
        assert "truck-7 was never known here" in text
        assert "1 of 2 nodes, complete until" in text
        assert "No records since: dead" in text
