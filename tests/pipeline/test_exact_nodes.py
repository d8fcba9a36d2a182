"""Every table, row for row, against the oracle: node by node as a task does it, without Spark.

The same comparison as in test_exact.py on more and other journals, for all ways of reading and of
dividing the work.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.pipeline.frames import assert_same
from tests.pipeline.journals import busy, journal_of, many, write
from waystation.journal.schema import INSTANT
from waystation.pipeline.kernels import lookup
from waystation.pipeline.kernels.columns import coded_name
from waystation.pipeline.kernels.comparing import compare, route_differences, waiting_ids
from waystation.pipeline.kernels.deciding import coded_decisions
from waystation.pipeline.kernels.evidence import Facts
from waystation.pipeline.kernels.node_data import FileData, Share, Tuning
from waystation.pipeline.kernels.node_tables import judged_rows, past_of
from waystation.pipeline.kernels.tracing import coded_steps, packed, together, trace, unpacked
from waystation.pipeline.listing import Wanted, list_journal
from waystation.pipeline.surveying import known_in
from waystation.pipeline.tables import BUILT
from waystation.testing import oracle
from waystation.testing.oracle import Row, Tables

LONG = os.environ.get("WAYSTATION_HYPOTHESIS") == "faults"
FIRST = secrets.randbelow(10**9) if LONG else 1_000
SCENARIOS, LIVES = (300, 300) if LONG else (15, 15)


@pytest.fixture(scope="module")
def rows() -> Tables:
    print(f"the long lives are busy({FIRST}) and so on")  # noqa: T201 - shown when it fails
    return journal_of([*many(SCENARIOS), *(busy(FIRST + number) for number in range(LIVES))])


@pytest.fixture(scope="module")
def wanted(rows: Tables) -> dict[str, list[Row]]:
    tables = (
        oracle.route_history,
        oracle.subscription_history,
        oracle.expected,
        oracle.audit,
        oracle.traces,
    )
    return {table.__name__: table(rows) for table in tables}


@pytest.fixture(scope="module")
def directory(rows: Tables, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("nodes") / "journal", rows, seed=2)


TUNINGS = {
    "default": Tuning(),
    "plain strings": Tuning(many_rows=0, unrepeated_bytes=0),
    "small portions": Tuning(folded_at_once=7, open_at_once=1),
}


@pytest.fixture(params=TUNINGS)
def tuning(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def at_once(tuning: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many rows are decided, or packed, at a time."""
    if tuning != "small portions":
        return 1_000_000
    monkeypatch.setattr(lookup, "_DENSE", 0)
    return 5


@pytest.fixture
def data(tuning: str, directory: Path) -> list[FileData]:
    nodes = list_journal(str(directory), Wanted()).nodes.items()
    return [FileData(str(directory), Share(*node), Wanted(), TUNINGS[tuning]) for node in nodes]


def plain(tables: Iterator[pa.Table], name: str) -> list[Row]:
    schema = BUILT[name]
    whole = pa.concat_tables([schema.empty_table(), *(table.cast(schema) for table in tables)])
    return [{key: _number(value) for key, value in row.items()} for row in _rows(whole)]


def _rows(table: pa.Table) -> list[Row]:
    columns = []
    for column in table.columns:
        instant = pa.types.is_timestamp(column.type)
        columns.append((column.cast(pa.int64()) if instant else column).to_pylist())
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def _number(value: Any) -> Any:
    if isinstance(value, list):
        return list(map(_number, value))
    if isinstance(value, dict):
        return {name: _number(field) for name, field in value.items()}
    if isinstance(value, datetime):
        return pa.scalar(value, INSTANT).cast(pa.int64()).as_py()
    return value


@pytest.mark.rule("SP-1")
def test_histories_are_what_the_oracle_says(
    data: list[FileData], wanted: dict[str, list[Row]]
) -> None:
    def routes() -> Iterator[pa.Table]:
        for node in data:
            yield node.route_history

    def subscriptions() -> Iterator[pa.Table]:
        for node in data:
            yield node.subscription_history

    assert_same(plain(routes(), "route_history"), wanted["route_history"])
    found = plain(subscriptions(), "subscription_history")
    assert_same(found, wanted["subscription_history"])


@pytest.mark.rule("SP-2")
def test_verdicts_are_what_the_oracle_says(
    data: list[FileData], wanted: dict[str, list[Row]], at_once: int
) -> None:
    def expected() -> Iterator[pa.Table]:
        for node in data:
            yield from _ruled(node, at_once)

    def audit() -> Iterator[pa.Table]:
        for node in data:
            ruled = list(_ruled(node, at_once))
            whole = pa.concat_tables(ruled) if ruled else BUILT["expected"].empty_table()
            messages = judged_rows(node)
            yield compare(node.node, whole, messages, node.later_entries(waiting_ids(messages)))
            yield route_differences(node.node, node.coded_events("routes"))

    assert_same(plain(expected(), "expected"), wanted["expected"])
    assert_same(plain(audit(), "audit"), wanted["audit"])


def _ruled(node: FileData, at_once: int) -> Iterator[pa.Table]:
    messages = judged_rows(node)
    yield from coded_decisions(node.node, messages, past_of(node, messages), at_once=at_once)


def test_traces_are_what_the_oracle_says(
    data: list[FileData], wanted: dict[str, list[Row]], at_once: int
) -> None:
    def found() -> Iterator[pa.Table]:
        for node in data:
            for batch in node.coded_batches("messages"):
                yield coded_steps(batch.append_column("node", coded_name(node.node, len(batch))))

    def traces() -> Iterator[pa.Table]:
        sent: dict[int, list[pa.Table]] = {}
        for table in packed(found(), 5, paths=True, at_once=10 * at_once):
            parts = table.column("part").to_pylist()
            for part, steps in zip(parts, unpacked(table.column("steps").chunk(0)), strict=True):
                sent.setdefault(part, []).append(steps)
        facts = Facts(known_in(data))
        for tables in sent.values():
            yield trace(together(tables), paths=True, facts=facts)

    assert_same(plain(traces(), "traces"), wanted["traces"])
