"""`session_history`: row for row what a slow fold says, in builds and in watch."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from tests.pipeline.frames import assert_same
from tests.pipeline.journals import of_faults, write
from tests.pipeline.meetings import meetings
from tests.pipeline.small import BEGIN, SECOND, put_rows, row
from tests.pipeline.watched import assert_up_to_date, engine, every_file, take_in
from waystation.pipeline.kernels.node_data import FileData, Share
from waystation.pipeline.kernels.node_tables import rejects
from waystation.pipeline.kernels.sessions import session_history
from waystation.pipeline.listing import Wanted, list_journal
from waystation.testing.oracle import Row, Tables, cut, day_of, ends_of_incarnations, grouped


def by_the_book(journal: Tables) -> list[Row]:
    """Each session from its opening to its end, event by event."""
    found: list[Row] = []
    ends = ends_of_incarnations(journal)
    folds = grouped(journal.get("sessions", ()), "node", "incarnation", "session")
    for (node, incarnation, _), events in folds.items():
        now, held = 0, None
        intervals: list[Row] = []
        for event in events:
            now = max(now, event["at"])
            if held is not None and event["kind"] in ("close", "clock"):
                for name in ("role", "peer", "identity"):
                    held[name] = event.get(name) or held[name]
            if held is not None and event["kind"] in ("open", "close"):
                closed = event["kind"] == "close" and event["reason"] is None
                reason = event["reason"] if event["kind"] == "close" else None
                why = "closed" if closed else "lost"
                intervals.append({**held, "valid_to": now, "closed_by": why, "reason": reason})
                held = None
            if event["kind"] == "open":
                told = ("session", "role", "transport", "place", "peer", "identity")
                held = {name: event[name] for name in told}
                held |= {"valid_from": now, "valid_to": None, "closed_by": None, "reason": None}
        intervals += [] if held is None else [held]
        for interval in intervals:
            left = cut(interval, ends[node, incarnation])
            if left is None:
                continue
            if left["closed_by"] in ("stopped", "restart"):
                left["reason"] = None
            left["opened_at"], left["closed_at"] = left.pop("valid_from"), left.pop("valid_to")
            left["day"] = day_of(left["opened_at"])
            found.append({"node": node, "incarnation": incarnation, **left})
    return found


def numbers(rows: pa.Table) -> list[Row]:
    """Rows with times as numbers."""
    columns = [
        column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        for column in rows.columns
    ]
    found: list[Row] = pa.table(columns, names=rows.column_names).to_pylist()
    return found


def nodes_of(journal: Path) -> list[FileData]:
    listing = list_journal(str(journal), Wanted())
    return [
        FileData(
            str(journal), Share(node, files, unsealed=listing.unsealed.get(node, [])), Wanted()
        )
        for node, files in listing.nodes.items()
    ]


def made(journal: Path) -> list[Row]:
    parts = [part for data in nodes_of(journal) for part in session_history(data)]
    return numbers(pa.concat_tables(parts))


@pytest.mark.parametrize("seed", [*range(12), *of_faults(*range(12, 40))])
def test_it_is_what_the_events_say_one_by_one(tmp_path: Path, seed: int) -> None:
    tables = meetings(seed)
    journal = write(tmp_path / "journal", tables, seed=seed)
    found = made(journal)
    assert_same(found, by_the_book(tables))
    keys = [(row["node"], row["incarnation"], row["session"], row["opened_at"]) for row in found]
    assert len(keys) == len(set(keys))
    assert [part for data in nodes_of(journal) for part in rejects(data)] == []


@pytest.mark.rule("SP-3")
@pytest.mark.parametrize("seed", [0, 5, *of_faults(*range(1, 5), *range(6, 12))])
def test_watch_keeps_it_and_coverage_up_to_date(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    whole = write(tmp_path / "whole", meetings(seed), seed=seed)
    files = every_file(whole)
    if rng.random() < 0.5:
        rng.shuffle(files)  # late files change the past
    journal = tmp_path / "journal"
    journal.mkdir()
    found = engine(journal, tmp_path)
    try:
        while files:
            for path in files[: rng.randint(1, 9)]:
                (journal / path).parent.mkdir(parents=True, exist_ok=True)
                (whole / path).rename(journal / path)
                files.remove(path)
            take_in(found, journal)
            assert_up_to_date(tmp_path / "tables", journal)
    finally:
        found.close()


def test_how_sessions_end(tmp_path: Path) -> None:
    put_rows(tmp_path, "nodes", [row("nodes", 0), row("nodes", 9, kind="stop")])
    events = [
        row("sessions", 1, session="a"),
        row("sessions", 2, session="a", role="leaf", kind="close", reason="TRANSPORT_DOWN"),
        row("sessions", 3, session="a"),
        row("sessions", 4, session="a", kind="close"),
        row("sessions", 5, session="b"),
        row("sessions", 6, session="b"),
        row("sessions", 7, session="c", kind="close"),
    ]
    put_rows(tmp_path, "sessions", events)
    found = made(tmp_path)
    told = [
        (
            *(each["session"], each["role"], (each["opened_at"] - BEGIN) // SECOND),
            *((each["closed_at"] - BEGIN) // SECOND, each["closed_by"], each["reason"]),
        )
        for each in found
    ]
    assert told == [
        ("a", "leaf", 1, 2, "lost", "TRANSPORT_DOWN"),
        ("a", "peer", 3, 4, "closed", None),
        ("b", "peer", 5, 6, "lost", None),
        ("b", "peer", 6, 9, "stopped", None),
    ]
