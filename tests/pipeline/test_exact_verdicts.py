"""`expected` and `audit` of version-2 journals, row for row, against the oracle, without Spark.

Whole nodes, shares of nodes, and single shrinkable scenarios; beside journals of version 1.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import given

from tests.pipeline.frames import assert_same
from tests.pipeline.journals import (
    Scenario,
    busy,
    journal_of,
    many,
    scenarios,
    scenarios_2,
    write,
)
from waystation.pipeline.kernels.node_data import FileData, Share, Tuning
from waystation.pipeline.kernels.node_tables import judged
from waystation.pipeline.listing import Wanted, list_journal
from waystation.pipeline.tables import BUILT, table_of
from waystation.testing import oracle
from waystation.testing.oracle import Row, Tables

LONG = os.environ.get("WAYSTATION_HYPOTHESIS") == "faults"
FIRST = secrets.randbelow(10**9) if LONG else 2_000
SCENARIOS, LIVES = (300, 300) if LONG else (20, 20)
BOTH = ("expected", "audit")
MINUTE = 60_000_000
PLAIN = Tuning(many_rows=0, unrepeated_bytes=0)


def verdicts(directory: Path, cuts: Iterable[int] = (), tuning: Tuning | None = None) -> Tables:
    """Both tables, with each node divided into shares at these times."""
    edges = [-(2**63), *sorted(cuts), 2**63 - 1]
    found: dict[str, list[pa.Table]] = {table: [BUILT[table].empty_table()] for table in BOTH}
    for node, files in list_journal(str(directory), Wanted()).nodes.items():
        for span in pairwise(edges):
            share = Share(node, files, received=span if len(edges) > 2 else None)
            data = FileData(str(directory), share, Wanted(), tuning or Tuning())
            for part in judged(data, BOTH):
                table = str(table_of(part))
                found[table].append(part.cast(BUILT[table]))
    return {table: plain(pa.concat_tables(parts)) for table, parts in found.items()}


def plain(table: pa.Table) -> list[Row]:
    instants = [pa.types.is_timestamp(field.type) for field in table.schema]
    columns = [
        (column.cast(pa.int64()) if instant else column).to_pylist()
        for column, instant in zip(table.columns, instants, strict=True)
    ]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def check(found: Tables, rows: Tables) -> None:
    assert_same(found["expected"], oracle.expected(rows))
    assert_same(found["audit"], oracle.audit(rows))


@pytest.fixture(scope="module")
def rows() -> Tables:
    print(f"the long lives are busy({FIRST}, version=2) and so on")  # noqa: T201 - if it fails
    lives = [busy(FIRST + number, version=2) for number in range(LIVES)]
    return journal_of([*many(SCENARIOS, scenarios_2), *lives, busy(1), busy(2)])


@pytest.fixture(scope="module")
def directory(rows: Tables, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("second") / "journal", rows, seed=3)


@pytest.mark.rule("SP-2")
@pytest.mark.parametrize("tuning", [Tuning(), PLAIN], ids=["coded", "plain"])
def test_verdicts_on_version_2_are_what_the_oracle_says(
    directory: Path, rows: Tables, tuning: Tuning
) -> None:
    found = verdicts(directory, tuning=tuning)
    check(found, rows)
    told = {(row["verdict"], row["expected"], row["reason"]) for row in found["audit"]}
    assert ("ok", "DROPPED", "DUPLICATE") in told
    assert ("ok", "QUEUED", None) in told
    assert ("different", "FORWARDED", "TRANSPORT_DOWN") in told
    upward = [row for row in found["audit"] if row["next_node"] and row["recipient"] is None]
    assert {row["verdict"] for row in upward} == {"ok", "different", "missing"}
    surplus = [row for row in found["audit"] if row["verdict"] == "unexpected"]
    assert {("FORWARDED", "0#parent")} <= {(row["actual"], row["address"]) for row in surplus}


def test_shares_of_a_node_know_the_copies_that_came_before(directory: Path, rows: Tables) -> None:
    times = sorted(row["received_at"] for row in rows["messages"])
    cuts = {times[len(times) // 3], times[len(times) // 2] + 1, times[-1] - MINUTE // 2}
    check(verdicts(directory, cuts), rows)


@pytest.mark.rule("SP-2")
@given(scenario=scenarios_2, other=scenarios)
def test_any_scenario_of_version_2_is_judged_as_the_oracle_does(
    scenario: Scenario, other: Scenario
) -> None:
    rows = journal_of([scenario, other])
    with TemporaryDirectory() as place:
        check(verdicts(write(Path(place) / "journal", rows)), rows)
