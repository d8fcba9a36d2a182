"""What a what-if decides without a change is `expected`, row for row, without Spark (SP-9)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.pipeline.frames import assert_same
from tests.pipeline.journals import busy, journal_of, many, read, scenarios_2, write
from tests.pipeline.test_incidents import written
from tests.pipeline.test_whatif import Story
from waystation.pipeline.kernels.columns import column, longs
from waystation.pipeline.kernels.node_data import FileData, Share
from waystation.pipeline.listing import Wanted, list_journal
from waystation.simulate.fleet import Fleet
from waystation.testing import oracle
from waystation.testing.oracle import Row
from waystation.whatif.changes import Changes, parse_changes
from waystation.whatif.deciding import Decided, Redecided, decisions_about, diverged

COMPARED = ("message_id", "node", "incarnation", "received_at", "recipient", "outcome", "reason")
WHERE = ("address", "next_node")
ALL_OF_TIME = (-(2**63), 2**63 - 1)


def random_lives(directory: Path) -> Path:
    """Nodes of both versions, with all that can happen to them."""
    lives = [busy(seed, version=version) for seed in range(4) for version in (1, 2)]
    return write(directory, journal_of([*many(12, scenarios_2), *lives]), seed=5)


def story(directory: Path) -> Path:
    """A route that expires, and a leaf that crashes."""
    Story(directory)
    return directory


def fleet(directory: Path) -> Path:
    """A simulated fleet, with the faults of one."""
    return written(directory, Fleet(9, 150, 2_000, seed=11))


@pytest.fixture(scope="module", params=[random_lives, story, fleet], ids=lambda made: made.__name__)
def journal(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = request.param(tmp_path_factory.mktemp("decisions") / "journal")
    return made


@pytest.fixture(scope="module")
def expected(journal: Path) -> list[Row]:
    rows = oracle.expected(read(journal))
    assert len(rows) > 100
    assert len({row["outcome"] for row in rows}) >= 3
    return [{name: row[name] for name in (*COMPARED, *WHERE)} for row in rows]


def nodes(journal: Path, cuts: tuple[int, ...] = ()) -> Iterator[FileData]:
    """The data of each node, divided into shares at these times."""
    edges = [ALL_OF_TIME[0], *sorted(cuts), ALL_OF_TIME[1]]
    for node, files in list_journal(str(journal), Wanted()).nodes.items():
        for span in pairwise(edges):
            share = Share(node, files, received=span if cuts else None)
            yield FileData(str(journal), share, Wanted())


def rows_of(again: Redecided, decided: Decided) -> Iterator[Row]:
    """Decisions as rows of `expected`."""
    ids = column(again.rows, "message_id")
    incarnation, received = longs(again.rows, "incarnation"), longs(again.rows, "received_at")
    for row, verdicts in decisions_about(decided, np.unique(decided.row)).items():
        for one in verdicts:
            yield {
                "message_id": ids[row].as_py(),
                "node": again.node.node,
                "incarnation": int(incarnation[row]),
                "received_at": int(received[row]),
                **{name: getattr(one, name) for name in ("recipient", "outcome", "reason", *WHERE)},
            }


@pytest.mark.rule("SP-9")
def test_what_is_decided_without_the_change_is_expected(journal: Path, expected: list[Row]) -> None:
    former: list[Row] = []
    again: list[Row] = []
    for data in nodes(journal):
        redecided = Redecided(data, Changes())
        former += rows_of(redecided, redecided.former)
        again += rows_of(redecided, redecided.changed)  # by the past that is put together anew
    assert_same(former, expected)
    assert_same(again, expected)


@pytest.mark.rule("SP-9")
def test_shares_of_a_node_decide_the_same(journal: Path, expected: list[Row]) -> None:
    times = sorted(row["received_at"] for row in expected)
    seconds = {row["received_at"] for row in expected if row["reason"] == "DUPLICATE"}
    cuts = {times[len(times) // 3], *sorted(seconds)[:5]}  # second copies without their first
    found: list[Row] = []
    for data in nodes(journal, tuple(cuts)):
        redecided = Redecided(data, Changes())
        found += rows_of(redecided, redecided.changed)
    assert_same(found, expected)


@pytest.mark.rule("SP-9")
def test_what_a_change_is_compared_with_is_expected(journal: Path, expected: list[Row]) -> None:
    change = parse_changes("[limits]\nhop_limit = 1")  # which ends nearly everything at once
    whole: dict[tuple[object, ...], list[Row]] = {}
    for row in expected:
        whole.setdefault(tuple(row[name] for name in COMPARED[:4]), []).append(row)
    compared = 0
    for data in nodes(journal):
        for id, one in diverged(data, change):
            visit = (id, one.node, one.incarnation, one.received_at)
            found = [
                {
                    **dict(zip(COMPARED[:4], visit, strict=True)),
                    **{name: getattr(v, name) for name in (*COMPARED[4:], *WHERE)},
                }
                for v in one.before
            ]
            assert_same(found, whole[visit])
            compared += 1
    assert compared > len(whole) // 4
