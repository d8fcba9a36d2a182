"""Incidents as the command `lost` tells them, what would have helped, and who is missing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.console.live import Browser, hub, leaf, shown
from tests.pipeline.small import BEGIN, SECOND, put_rows, row
from tests.pipeline.test_whatif import LOST, Story
from waystation.console import losses
from waystation.console.losses import Feed, coverage
from waystation.errors import LocalError
from waystation.journal.schema import MESSAGES, NODES
from waystation.pipeline.lost import Question, lost_in_journal
from waystation.pipeline.recent import Bounds, recent_part
from waystation.testing import async_test, until


def lives(journal: Path, node: str, end: float, kind: str = "clock") -> None:
    """Write the records of a node up to a second."""
    rows = [row(NODES, 1, 0, kind="start"), row(NODES, 2, round(end * SECOND), kind=kind)]
    put_rows(journal, NODES, rows, node)


def test_incidents_and_losses_are_those_of_the_command(tmp_path: Path) -> None:
    Story(tmp_path)
    told = lost_in_journal(str(tmp_path), Question())
    found = Feed(tmp_path).losses(internals=False)
    assert found.count == len(told.losses) == len(LOST)
    assert found.since is None
    shown_ones = [*found.incidents, *found.others]
    assert {one.id for one in shown_ones} == {one.incident_id for one in told.incidents}
    assert {one.cause for one in shown_ones} == {one.cause for one in told.incidents}
    assert sum(one.count for one in shown_ones) == found.count
    assert {one.name for one in found.incidents} >= {"A route expired"}


def test_a_copy_that_vanished_is_shown(tmp_path: Path) -> None:
    sent = {"message_id": "ab" * 16, "recipient": "truck-7"}
    left = {"outcome": "FORWARDED", "next_hop": "0#to-truck", "out": "to-truck"}
    put_rows(
        tmp_path, MESSAGES, [row(MESSAGES, 2, SECOND, **sent, **left, next_node="truck")], "hub"
    )
    for node in ("hub", "truck"):
        lives(tmp_path, node, 60)
    found = Feed(tmp_path).losses(internals=False)
    [one] = [*found.incidents, *found.others]
    assert (one.reasons, one.count, one.message_id) == (["VANISHED"], 1, "ab" * 16)
    assert one.recipients == ["truck-7"]


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


def test_internal_losses_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    rows = [
        row(
            MESSAGES,
            1,
            0,
            message_id="a1" * 16,
            outcome="DROPPED",
            reason="NO_ROUTE",
            internal=True,
        ),
        row(
            MESSAGES,
            2,
            1,
            message_id="b2" * 16,
            outcome="DROPPED",
            reason="EXPIRED",
            internal=False,
        ),
    ]
    put_rows(tmp_path, MESSAGES, rows, "hub")
    feed = Feed(tmp_path)
    [one] = feed.losses(internals=False).others
    assert one.reasons == ["EXPIRED"]
    assert feed.losses(internals=True).count == 2


def drops(journal: Path, node: str, first: int, seconds: range) -> None:
    """A file about messages that were dropped, one in each second."""
    rows = [
        row(
            MESSAGES,
            first + at,
            at * SECOND,
            message_id=f"{at + 1:032x}",
            outcome="DROPPED",
            reason="FAILED",
        )
        for at in seconds
    ]
    put_rows(journal, MESSAGES, rows, node)


def test_only_the_newest_part_of_a_large_journal_is_read(tmp_path: Path) -> None:
    for begin in range(0, 1_000, 100):
        drops(tmp_path, "hub", 0, range(begin, begin + 100))
    assert recent_part(tmp_path).wanted.since is None
    for bounds in (Bounds(rows=200), Bounds(message_files=2), Bounds(span=200 * SECOND)):
        part = recent_part(tmp_path, bounds)
        assert part.wanted.since is not None
        assert BEGIN + 700 * SECOND < part.wanted.since <= BEGIN + 800 * SECOND
        assert part.since is not None
        assert part.since > part.wanted.since
        assert part.rows <= 300
    assert len(recent_part(tmp_path, Bounds(rows=200)).listing.files()) <= 3
    with pytest.raises(LocalError, match="too many files"):
        recent_part(tmp_path, Bounds(files=9))


def test_a_journal_that_did_not_change_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drops(tmp_path, "hub", 0, range(3))
    monkeypatch.setattr(losses, "KEPT", 0.0)
    monkeypatch.setattr(losses, "SHARE", 0)
    feed = Feed(tmp_path)
    before = feed.losses(internals=False)
    assert feed.losses(internals=False) is before
    drops(tmp_path, "hub", 0, range(3, 5))
    assert feed.losses(internals=False).count == 5


def test_an_incident_can_be_asked_what_would_have_helped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Story(tmp_path)
    feed = Feed(tmp_path)
    found = feed.losses(internals=False)
    expired, *_ = [one for one in found.incidents if one.name == "A route expired"]
    assert expired.may_be_helped
    told = feed.remedy(expired.id)
    assert told is not None
    assert told.command == ""
    assert told.suggestions
    assert all(set(one.change) <= {"ttl", "sticky"} for one in told.suggestions)
    assert re.match(
        r"If .*: \d+ of 21 lost messages would have arrived", str(told.suggestions[0].sentence)
    )
    assert feed.remedy("no such incident") is None
    late = Feed(tmp_path).remedy(expired.id, patience=-1.0)
    assert late is not None
    assert (late.suggestions, late.command) == (
        [],
        f"waystation pipeline whatif --journal {tmp_path} --suggest",
    )
    monkeypatch.setattr(losses, "MAX_ASKED", 3)
    large = Feed(tmp_path).remedy(expired.id)
    assert large is not None
    assert (large.tried, large.command) == (0, late.command)


def test_neither_needs_spark() -> None:
    code = "import sys\nsys.modules['pyspark'] = None\nimport waystation.console.losses"
    subprocess.run([sys.executable, "-c", code], check=True)


@async_test
async def test_the_page_tells_causes_and_who_is_missing(tmp_path: Path) -> None:
    lives(tmp_path, "dead", 0)
    async with hub(journal=tmp_path) as top, shown(top.url, journal=tmp_path) as browser:
        for _ in range(3):
            await top.node.send("truck-7", b"")
        await until(lambda: Feed(tmp_path).losses(internals=False).count == 3)
        text = (await browser.get("/incidents")).text
        assert "<h3>A name was not known <span" in text
        assert '<b class="count">3</b> lost' in text
        assert '<span class="outcome bad">NO_ROUTE</span>' in text
        assert re.search(r"for</span> truck-7</p>", text)
        assert "1 of 2 nodes, complete until" in text
        assert "No records since: dead" in text
        assert "What would have helped?" not in text  # no usual change helps against a wrong name


async def asked(browser: Browser, page: str) -> str:
    """The page after a click on the first button that asks what would have helped."""
    found = re.search(r'name="ask" value="(\w+)"', page)
    assert found is not None
    return (await browser.get(f"/incidents?ask={found[1]}")).text


@async_test
async def test_one_click_tells_what_would_have_helped(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    Story(journal)
    async with hub() as top, shown(top.url, journal=journal) as browser:
        page = (await browser.get("/incidents")).text
        assert '<form class="inline" method="get" action="/incidents" data-swap>' in page
        assert "data-live" in page
        told = await asked(browser, page)
        assert "lost messages would have arrived" in told
        assert "Price:" in told
        assert "data-live" not in told  # it stays as it is while it is read
        gone = (await browser.get("/incidents?ask=0123456789abcdef")).text
        assert "would have arrived" not in gone


@async_test
async def test_a_leaf_that_ends_is_an_incident_before_its_records_are_sealed(
    tmp_path: Path,
) -> None:
    async with hub(journal=tmp_path) as top:
        async with leaf("truck", top, tmp_path):
            await until(lambda: "truck-echo" in top.node.router.table.snapshot(0))
        await until(lambda: "truck-echo" not in top.node.router.table.snapshot(0))
        await top.node.send("truck-echo", b"")
        await until(lambda: Feed(tmp_path).losses(internals=False).count == 1)
        [one] = Feed(tmp_path).losses(internals=False).incidents
        assert (one.name, one.recipients) == ("A node was stopped", ["truck-echo"])
