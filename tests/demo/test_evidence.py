"""What the demonstration takes for a loss is what the table `traces` tells as one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.journals import read
from waystation.demo.evidence import losses_in
from waystation.simulate.fleet import Fleet
from waystation.simulate.journal import write_fleet
from waystation.testing import oracle

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Row = dict[str, Any]


def lost(node: str, reason: str, **more: Any) -> Row:
    """An element of `lost`, as the table has it."""
    given = {"recipient": "truck", "next_node": None, "incarnation": 7, "internal": False}
    return {"node": node, "reason": reason, "at": EPOCH, **given, **more}


def trace(*losses: Row) -> Row:
    return {"message_id": "a" * 32, "multicast_id": "p/alarm", "lost": list(losses)}


def test_a_message_that_reached_everybody_is_no_loss() -> None:
    assert losses_in(trace()) == []


def test_each_who_went_without_is_a_loss_where_the_copy_ended() -> None:
    left = lost("hub", "VANISHED", next_node="truck-1", at=EPOCH + timedelta(microseconds=5))
    [vanished, full] = losses_in(trace(left, lost("truck-2", "QUEUE_FULL", recipient=None)))
    assert (vanished.node, vanished.reason, vanished.recipient) == ("hub", "VANISHED", "truck")
    assert (vanished.next_node, vanished.incarnation, vanished.at) == ("truck-1", 7, 5)
    assert (vanished.message_id, vanished.multicast_id) == ("a" * 32, "p/alarm")
    assert (full.node, full.reason, full.recipient) == ("truck-2", "QUEUE_FULL", None)


def test_what_nodes_send_for_themselves_is_no_loss() -> None:
    own = lost("hub", "NO_ROUTE", internal=True)
    assert [loss.node for loss in losses_in(trace(own, lost("leaf", "NO_ROUTE")))] == ["leaf"]


@pytest.mark.timeout(300)
def test_the_losses_of_a_fleet_are_as_many_as_its_traces_count(tmp_path: Path) -> None:
    write_fleet(Fleet(nodes=9, participants=100, messages=3_000, seed=3), tmp_path / "journal")
    journal = read(tmp_path / "journal")
    messages = [{**row, "version": 2} for row in journal["messages"]]
    rows = [_as_in_the_table(row) for row in oracle.traces({**journal, "messages": messages})]
    found = [(row, losses_in(row)) for row in rows if not row["internal"]]
    for row, losses in found:
        assert len(losses) == row["lost_copies"], row
        assert not losses or row["reason"] in {loss.reason for loss in losses}
    assert sum(len(losses) for _, losses in found) > 500


def _as_in_the_table(row: Row) -> Row:
    """A trace with the times of its losses as Arrow gives them."""
    at = [EPOCH + timedelta(microseconds=one["at"]) for one in row["lost"]]
    return {**row, "lost": [{**one, "at": on} for one, on in zip(row["lost"], at, strict=True)]}
