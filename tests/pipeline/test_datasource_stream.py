"""A stream of a journal returns every row once, whatever happens to files and queries; no Spark."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
)

from tests.pipeline.small import INCARNATION, put_rows, row
from waystation.errors import LocalError
from waystation.journal.housekeeping import compact
from waystation.pipeline.schema import spark_schema
from waystation.pipeline.source.offsets import Mark, Offset
from waystation.pipeline.source.options import Reading
from waystation.pipeline.source.pieces import GoneError
from waystation.pipeline.source.stream import JournalStream

ALL = ReadAllAvailable()


class Query:
    """What Spark does with a stream: batches between offsets, and restarts from the last one."""

    def __init__(self, journal: Path, **options: str) -> None:
        self.reading = Reading.of({"path": str(journal), **options})
        self.rows: list[tuple[str, int, int]] = []
        self.stream = self.new_stream()
        self.offset = self.stream.initialOffset()

    def new_stream(self) -> JournalStream:
        return JournalStream(self.reading, spark_schema(self.reading.schema))

    def restart(self) -> None:
        """Restart from the checkpoint."""
        self.stream = self.new_stream()
        self.offset = json.loads(json.dumps(self.offset))

    def plan(self, limit: ReadLimit = ALL) -> dict[str, Any]:
        return self.stream.latestOffset(self.offset, limit)

    def read(self, end: dict[str, Any]) -> list[tuple[str, int, int]]:
        return [
            (one["node"], one["incarnation"], one["seq"])
            for partition in self.stream.partitions(self.offset, end)
            for batch in self.stream.read(partition)
            for one in batch.to_pylist()
        ]

    def run(self, limit: ReadLimit = ALL) -> list[tuple[str, int, int]]:
        """Run one batch; returns its rows."""
        end = self.plan(limit)
        found = self.read(end)
        self.rows += found
        self.offset = end
        return found

    def run_to_the_end(self, limit: ReadLimit = ALL) -> int:
        """Run batches until there is nothing new; returns their number."""
        batches = 0
        while self.plan(limit) != self.offset:
            self.run(limit)
            batches += 1
        return batches


def put(journal: Path, seqs: range, node: str = "hub", incarnation: int = INCARNATION) -> Path:
    rows = [row("messages", seq, incarnation=incarnation) for seq in seqs]
    return put_rows(journal, "messages", rows, node)


def seqs(found: list[tuple[str, int, int]]) -> list[int]:
    return sorted(seq for _, _, seq in found)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    (tmp_path / "messages").mkdir()
    return tmp_path


def test_files_are_read_as_they_appear_in_whatever_order(journal: Path) -> None:
    query = Query(journal)
    assert query.run() == []
    put(journal, range(20, 30))
    assert seqs(query.run()) == list(range(20, 30))
    put(journal, range(10))  # late: its rows are older
    put(journal, range(10, 15))
    assert seqs(query.run()) == list(range(15))
    assert query.plan() == query.offset
    put(journal, range(15, 20), "truck")
    assert query.run() == [("truck", INCARNATION, seq) for seq in range(15, 20)]


def test_a_restarted_query_continues_where_it_stopped(journal: Path) -> None:
    query = Query(journal)
    put(journal, range(10))
    query.run()
    query.restart()
    assert query.plan() == query.offset
    put(journal, range(10, 20))
    query.restart()
    assert seqs(query.run()) == list(range(10, 20))


@pytest.mark.parametrize(
    ("limit", "batches"),
    [(ReadMaxFiles(2), 3), (ReadMaxRows(15), 6), (ReadMaxBytes(1), 6), (ALL, 1)],
)
def test_each_batch_takes_some_files_within_the_limit(
    journal: Path, limit: ReadLimit, batches: int
) -> None:
    for node in ("a", "b"):
        for first in range(0, 30, 10):
            put(journal, range(first, first + 10), node)
    query = Query(journal)
    assert query.run_to_the_end(limit) == batches
    assert Counter(query.rows) == Counter(
        (node, INCARNATION, seq) for node in "ab" for seq in range(30)
    )


def test_a_large_backlog_of_one_node_does_not_hold_up_the_others(journal: Path) -> None:
    for first in range(0, 50, 10):
        put(journal, range(first, first + 10), "busy")
    put(journal, range(1), "quiet")
    query = Query(journal)
    assert {node for node, _, _ in query.run(ReadMaxFiles(2))} == {"busy", "quiet"}


def test_the_options_set_the_default_limit(journal: Path) -> None:
    assert Query(journal).stream.getDefaultReadLimit() == ALL
    files = Query(journal, maxFilesPerTrigger="3").stream
    assert files.getDefaultReadLimit() == ReadMaxFiles(3)
    size = Query(journal, maxBytesPerTrigger="1m").stream
    assert size.getDefaultReadLimit() == ReadMaxBytes(2**20)


def test_an_available_now_run_ignores_later_files(journal: Path) -> None:
    put(journal, range(10))
    query = Query(journal)
    query.stream.prepareForTriggerAvailableNow()
    put(journal, range(10, 20))
    assert query.run_to_the_end() == 1
    assert seqs(query.rows) == list(range(10))


def test_compaction_neither_duplicates_nor_loses_rows(journal: Path) -> None:
    query = Query(journal)
    for first in range(0, 30, 10):
        put(journal, range(first, first + 5))
    query.run(ReadMaxFiles(2))  # the third was not read when they were merged
    _compact(journal)
    query.restart()
    assert query.run_to_the_end() == 1
    assert seqs(query.rows) == [seq for first in (0, 10, 20) for seq in range(first, first + 5)]


def test_a_batch_that_is_repeated_after_a_crash_has_the_same_rows(journal: Path) -> None:
    query = Query(journal)
    put(journal, range(10))
    query.run()
    put(journal, range(10, 20))
    put(journal, range(40, 50))
    end = query.plan()
    before = query.read(end)
    put(journal, range(20, 30))  # arrives in between, and belongs to the next batch
    _compact(journal)
    query.restart()
    assert sorted(query.read(end)) == sorted(before)
    query.rows += before
    query.offset = end
    query.run_to_the_end()
    assert seqs(query.rows) == [*range(30), *range(40, 50)]


def test_files_that_were_removed_leave_their_spans_and_the_offset_stays_short(
    journal: Path,
) -> None:
    query = Query(journal)
    paths = [put(journal, range(first, first + 5)) for first in range(0, 100, 10)]
    query.run()
    for path in paths[:8]:
        path.unlink()
    put(journal, range(200, 205))
    query.run()
    mark = Offset.read(query.offset, "messages").mark("hub")
    assert len(mark.files) == 3
    assert mark.past == {str(INCARNATION): [(0, 74)]}
    put(journal, range(5))  # it was copied back
    assert query.run() == []


def test_a_file_that_is_still_being_copied_is_read_when_it_is_complete(journal: Path) -> None:
    query = Query(journal)
    path = put(journal, range(10))
    content = path.read_bytes()
    path.write_bytes(content[:100])
    assert query.run() == []
    path.write_bytes(content)
    assert seqs(query.run()) == list(range(10))


def test_files_with_other_names_are_read_once_as_a_whole(journal: Path) -> None:
    query = Query(journal)
    put_rows(journal, "messages", [row("messages", 3)], "hub", "part-0.parquet")
    assert seqs(query.run()) == [3]
    query.restart()
    put_rows(journal, "messages", [row("messages", 4)], "hub", "part-1.parquet")
    assert seqs(query.run()) == [4]


def test_a_file_removed_while_it_is_read_fails_the_batch(journal: Path) -> None:
    query = Query(journal)
    path = put(journal, range(10))
    end = query.plan()
    [partition] = query.stream.partitions(query.offset, end)
    path.unlink()
    with pytest.raises(GoneError, match="start the query again"):
        list(query.stream.read(partition))


@pytest.mark.rule("SP-5")
def test_bad_files_do_not_stop_a_stream(journal: Path) -> None:
    query = Query(journal)
    put(journal, range(10))
    (journal / f"messages/node=hub/{INCARNATION}-10.parquet").write_bytes(b"no Parquet at all")
    assert seqs(query.run()) == list(range(10))
    assert query.plan() == query.offset


def test_a_large_batch_is_several_tasks(journal: Path) -> None:
    for first in range(0, 100, 10):
        put(journal, range(first, first + 10))
    query = Query(journal, partitionBytes="1")
    end = query.plan()
    assert len(query.stream.partitions(query.offset, end)) == 10
    assert seqs(query.read(end)) == list(range(100))


def test_an_offset_of_something_else_is_refused(journal: Path) -> None:
    query = Query(journal)
    routes = Query(journal, table="routes").offset
    for offset, problem in [
        (routes, "it is of the table 'routes', not messages"),
        ({"table": "messages", "version": 2}, "it has the version 2"),
        ({"logOffset": 3}, "it cannot be read"),
    ]:
        with pytest.raises(LocalError, match=problem):
            query.stream.latestOffset(offset, ALL)
    with pytest.raises(LocalError, match="rejects cannot be read as a stream"):
        Query(journal, table="rejects")


@pytest.mark.parametrize("seed", range(12))
def test_every_row_is_read_once_whatever_happens_to_the_files(journal: Path, seed: int) -> None:
    """Late files, merged files, removed files, limits, restarts, and repeated batches."""
    rng = random.Random(seed)
    query = Query(journal, partitionBytes=rng.choice(["1", "5000", "8m"]))
    waiting = []
    for node in ("a", "b"):
        for incarnation in (INCARNATION, INCARNATION + 7):
            first = 0
            for _ in range(rng.randint(1, 6)):
                end = first + rng.randint(1, 6)
                waiting.append((range(first, end), node, incarnation))
                first = end + rng.randint(0, 3)
    everything = Counter(
        (node, incarnation, seq) for found, node, incarnation in waiting for seq in found
    )
    rng.shuffle(waiting)
    while waiting:
        for _ in range(rng.randint(0, 3)):
            if waiting:
                put(journal, *waiting.pop())
        action = rng.choice(["run", "run", "restart", "compact", "repeat"])
        limit = rng.choice([ALL, ReadMaxFiles(1), ReadMaxFiles(2)])
        if action == "restart":
            query.restart()
        elif action == "compact" and not waiting:  # a late file would lie within a merged one
            _compact(journal)
        elif action == "repeat":
            end_offset = query.plan(limit)
            before = query.read(end_offset)
            query.restart()
            assert sorted(query.read(end_offset)) == sorted(before)
        else:
            query.run(limit)
    _compact(journal)
    query.restart()
    query.run_to_the_end(ReadMaxFiles(1))
    assert Counter(query.rows) == everything


def test_equal_offsets_have_the_same_text() -> None:
    one = Offset("messages", {"b": Mark({"1-0": [5, 9]}), "a": Mark()})
    other = Offset("messages", {"a": Mark(), "b": Mark({"1-0": [5, 9]})})
    assert json.dumps(one.written()) == json.dumps(other.written())
    assert Offset.read(one.written(), "messages").written() == one.written()


def _compact(journal: Path) -> None:
    problems: list[tuple[Path, str]] = []
    compact(journal, lambda path, problem: problems.append((path, problem)))
    assert problems == []


def test_a_partition_can_be_sent_to_a_task(journal: Path) -> None:
    import pickle  # noqa: PLC0415

    put(journal, range(10))
    query = Query(journal)
    [partition] = query.stream.partitions(query.offset, query.plan())
    sent: InputPartition = pickle.loads(pickle.dumps(partition))  # noqa: S301
    stream: JournalStream = pickle.loads(pickle.dumps(query.stream))  # noqa: S301
    assert sum(batch.num_rows for batch in stream.read(sent)) == 10
