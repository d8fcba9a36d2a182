"""`coverage`: from when to when there are records of a node, and what is missing of them."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.frames import assert_same
from tests.pipeline.journals import of_faults, write
from tests.pipeline.meetings import meetings
from tests.pipeline.small import BEGIN, INCARNATION, SECOND, put_rows, row
from tests.pipeline.test_session_history import nodes_of, numbers
from tests.pipeline.watched import assert_up_to_date, engine, take_in
from waystation.pipeline.kernels.coverage import coverage
from waystation.pipeline.kernels.node_data import FileData, Share
from waystation.pipeline.listing import Wanted, list_journal
from waystation.testing.oracle import Row, Tables, day_of, ends_of_incarnations, grouped, in_order


def by_the_book(journal: Tables) -> list[Row]:
    """One row for each incarnation, from all of its records."""
    found: dict[tuple[str, int], Row] = {}
    ends = ends_of_incarnations(journal)
    every = [each for rows in journal.values() for each in rows]
    for (node, incarnation), rows in grouped(every, "node", "incarnation").items():
        own = [each for each in in_order(journal.get("nodes", ())) if each["node"] == node]
        own = [each for each in own if each["incarnation"] == incarnation]
        starts = [each for each in own if each["kind"] == "start"]
        share = re.search(r"sample=(\S+)", starts[0]["detail"]) if starts else None
        why = ends[node, incarnation].why
        found[node, incarnation] = {
            "node": node,
            "incarnation": incarnation,
            "from_time": starts[0]["at"] if starts else rows[0]["at"],
            "to_time": max(each["at"] for each in rows),
            "sample": float(share[1]) if share else 1.0,
            "lost": 0,
            "sealed": True,
            "ended_by": {"stopped": "stop", "restart": "crash"}.get(str(why)),
            "day": day_of(starts[0]["at"] if starts else rows[0]["at"]),
        }
    for told in journal.get("nodes", ()):
        if told["kind"] == "lost":
            about = re.match(r"incarnation (\d+):", told["detail"])
            whose = int(about[1]) if about else told["incarnation"]
            named = {
                each["incarnation"] for each in journal["nodes"] if each["node"] == told["node"]
            }
            whose = whose if whose in named else told["incarnation"]
            found[told["node"], whose]["lost"] += told["lost"]
    return list(found.values())


def made(journal: Path) -> list[Row]:
    return numbers(pa.concat_tables(part for data in nodes_of(journal) for part in coverage(data)))


@pytest.mark.parametrize("seed", [*range(12), *of_faults(*range(12, 40))])
def test_it_is_what_all_records_together_say(tmp_path: Path, seed: int) -> None:
    tables = meetings(seed)
    assert_same(made(write(tmp_path / "journal", tables, seed=seed)), by_the_book(tables))


def test_files_without_statistics_are_read(tmp_path: Path) -> None:
    tables = meetings(3)
    journal = write(tmp_path / "journal", tables)
    for path in journal.rglob("*.parquet"):
        pq.write_table(pq.read_table(path, partitioning=None), path, write_statistics=False)
    assert_same(made(journal), by_the_book(tables))


def test_records_from_the_end_of_the_part_that_is_read_do_not_count(tmp_path: Path) -> None:
    put_rows(tmp_path, "nodes", [row("nodes", 0)])
    put_rows(tmp_path, "messages", [row("messages", 3), row("messages", 8)])
    wanted = Wanted(until=BEGIN + 5 * SECOND)
    [(node, files)] = list_journal(str(tmp_path), wanted).nodes.items()
    [part] = coverage(FileData(str(tmp_path), Share(node, files), wanted))
    [found] = numbers(part)
    assert found["to_time"] == BEGIN + 3 * SECOND


def test_a_rejected_record_counts_if_its_time_can_be_believed(tmp_path: Path) -> None:
    put_rows(tmp_path, "nodes", [row("nodes", 0)])
    bad = [row("messages", 3, outcome="LOST"), row("messages", 4, at=-BEGIN - 1)]
    put_rows(tmp_path, "messages", bad)
    [found] = made(tmp_path)
    assert found["to_time"] == BEGIN + 3 * SECOND


def test_a_tail_is_what_is_not_sealed(tmp_path: Path) -> None:
    later = {"incarnation": INCARNATION + 9}
    put_rows(tmp_path, "nodes", [row("nodes", 0), row("nodes", 1, kind="stop")])
    path = put_rows(tmp_path, "routes", [row("routes", 9) | later])
    sealed = path.with_name(f".{path.stem}.arrows")
    sealed.touch()  # it was sealed, and is to be removed
    found = engine(tmp_path, tmp_path)
    try:
        take_in(found, tmp_path)
        assert [life["sealed"] for life in made(tmp_path)] == [True, True]
        assert [life["ended_by"] for life in made(tmp_path)] == ["stop", None]
        assert_up_to_date(tmp_path / "tables", tmp_path)
        path.with_name(f".{INCARNATION + 9}-12.arrows").touch()
        put_rows(tmp_path, "routes", [row("routes", 11) | later])
        take_in(found, tmp_path)
        assert [life["sealed"] for life in made(tmp_path)] == [True, False]
        assert_up_to_date(tmp_path / "tables", tmp_path)
    finally:
        found.close()
