"""What the demonstration takes for a loss is what the table `traces` counts as one."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.journals import read
from waystation.demo.evidence import losses_in
from waystation.simulate.fleet import Fleet
from waystation.simulate.journal import write_fleet
from waystation.testing import oracle

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
Row = dict[str, Any]


def step(node: str, outcome: str, reason: str | None = None, **more: Any) -> Row:
    given = {"recipient": None, "next_node": None, "from_node": None, "incarnation": 1}
    return {"node": node, "outcome": outcome, "reason": reason, "at": NOON, **given, **more}


def trace(*path: Row, lost: int, **more: Any) -> Row:
    given = {"message_id": "a" * 32, "recipient": "truck", "reason": None, "multicast_id": None}
    return {**given, "path": list(path), "lost_copies": lost, "unknown_copies": 0, **more}


def told(row: Row) -> list[tuple[str, str | None, str | None]]:
    return [(loss.node, loss.reason, loss.recipient) for loss in losses_in(row)]


def test_a_message_that_was_delivered_is_not_lost() -> None:
    dropped = step("hub", "DROPPED", "NO_ROUTE", recipient="truck")
    got = step("truck-1", "DELIVERED", recipient="truck")
    assert told(trace(dropped, got, lost=0)) == []
    unheard = step("hub", "DROPPED", "NO_SUBSCRIBER")
    assert told(trace(unheard, got, lost=0)) == []


def test_a_copy_that_did_not_arrive_is_lost_where_it_was_last() -> None:
    left = step("hub", "FORWARDED", recipient="truck", next_node="truck-1")
    assert told(trace(left, lost=1)) == [("hub", "VANISHED", "truck")]
    came = step("truck-1", "DROPPED", "QUEUE_FULL", recipient="truck", from_node="hub")
    assert told(trace(left, came, lost=1)) == [("truck-1", "QUEUE_FULL", "truck")]


def test_a_message_that_waited_in_vain_is_lost_where_it_waited() -> None:
    waits = step("hub", "QUEUED", recipient="truck")
    row = trace(waits, lost=1, reason="EXPIRED")
    assert told(row) == [("hub", "EXPIRED", "truck")]


@pytest.mark.timeout(300)
def test_the_losses_of_a_fleet_are_as_many_as_its_traces_count(tmp_path: Path) -> None:
    write_fleet(Fleet(nodes=9, participants=100, messages=3_000, seed=3), tmp_path / "journal")
    journal = read(tmp_path / "journal")
    messages = [{**row, "version": 2} for row in journal["messages"]]
    rows = oracle.traces({**journal, "messages": messages})
    for row in rows:
        path = [{**one, "at": NOON} for one in row["path"]]
        found = losses_in({**row, "path": path})
        assert len(found) == row["lost_copies"], row
        if found:
            assert row["reason"] in {loss.reason for loss in found}
    assert sum(row["lost_copies"] for row in rows) > 500
