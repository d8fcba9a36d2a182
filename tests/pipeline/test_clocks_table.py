"""`clocks`: hour by hour what sessions measured, and how far that puts each clock ahead."""

from __future__ import annotations

from itertools import pairwise, permutations
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.pipeline.frames import assert_same, collected
from tests.pipeline.journals import of_faults, write
from tests.pipeline.meetings import HOUR, meetings
from tests.pipeline.test_session_history import nodes_of, numbers
from waystation import pipeline
from waystation.core.corrections import Link, corrections
from waystation.pipeline.clocks import clocks_of
from waystation.pipeline.kernels.links import links_of
from waystation.testing.oracle import Row, Tables, day_of, in_order


def by_the_book(journal: Tables) -> list[Row]:
    """The least round trip of each hour, and the shortest of all ways to the reference."""
    measured: dict[int, dict[tuple[str, str], list[Row]]] = {}
    for row in in_order(journal.get("sessions", ())):
        told = row["kind"] == "clock" and row["peer"] and row["rtt_us"] is not None
        if told and row["peer"] != row["node"]:
            hour = row["at"] // HOUR * HOUR
            pairs = measured.setdefault(hour, {})
            pairs.setdefault((row["node"], row["peer"]), []).append(row)
    found = []
    for hour, pairs in measured.items():
        best = {
            pair: min(rows, key=lambda row: (row["rtt_us"], row["incarnation"], row["seq"]))
            for pair, rows in pairs.items()
        }
        sessions = {pair: len({row["session"] for row in rows}) for pair, rows in pairs.items()}
        ahead = _corrections(best, sessions)
        for (node, peer), row in best.items():
            found.append(
                {
                    "node": node,
                    "peer": peer,
                    "from_time": hour,
                    "to_time": hour + HOUR,
                    "offset_us": row["offset_us"],
                    "rtt_us": row["rtt_us"],
                    "source": "session",
                    "correction_us": ahead[node],
                    "day": day_of(hour),
                }
            )
    return found


Edges = dict[tuple[str, str], tuple[int, int]]


def _corrections(best: dict[tuple[str, str], Row], sessions: dict[tuple[str, str], int]) -> Row:
    names = sorted({name for pair in best for name in pair})
    edges: Edges = {}
    for one, other in permutations(names, 2):
        there, back = best.get((one, other)), best.get((other, one))
        ways = [(there["rtt_us"], one, there["offset_us"])] if there else []
        ways += [(back["rtt_us"], other, -back["offset_us"])] if back else []
        if ways:
            edges[one, other] = min(ways)[0], min(ways)[2]

    def count(name: str) -> int:
        return sum(max(sessions.get((name, o), 0), sessions.get((o, name), 0)) for o in names)

    ahead: Row = {}
    for reference in sorted(names, key=lambda name: (-count(name), name)):
        if reference not in ahead:
            reached = {name: _way(reference, name, names, edges) for name in names}
            ahead |= {name: way[1] for name, way in reached.items() if way is not None}
    return ahead


def _way(begin: str, end: str, names: list[str], edges: Edges) -> tuple[int, int] | None:
    """The least total round trip and the sum of offsets, over every way there is."""
    between = [name for name in names if name not in (begin, end)]
    found = [(0, 0)] if begin == end else []
    for length in range(len(between) + 1):
        for middle in permutations(between, length):
            steps = list(pairwise((begin, *middle, end)))
            if all(step in edges for step in steps):
                found.append((sum(edges[s][0] for s in steps), sum(edges[s][1] for s in steps)))
    return min(found, default=None)


def made(journal: Path) -> list[Row]:
    links = [part for data in nodes_of(journal) for part in links_of(data)]
    return numbers(clocks_of(pa.concat_tables(links))) if links else []


@pytest.mark.rule("TM-3")
@pytest.mark.parametrize("seed", [*range(12), *of_faults(*range(12, 40))])
def test_it_is_what_a_search_of_all_ways_finds(tmp_path: Path, seed: int) -> None:
    tables = different_offsets(meetings(seed))
    assert_same(made(write(tmp_path / "journal", tables, seed=seed)), by_the_book(tables))


def different_offsets(tables: Tables) -> Tables:
    """Give every measurement a round trip of its own: ways of equal length are equally good."""
    for number, row in enumerate(in_order(tables["sessions"])):
        if row["rtt_us"] is not None:
            row["rtt_us"] = row["rtt_us"] * 1_000_003 + 7**number % 999_983
    return tables


def test_spark_makes_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    journal = write(tmp_path / "journal", meetings(1))
    wanted = made(journal)
    assert len({row["from_time"] for row in wanted}) > 1
    read = pipeline.read_journal(spark, journal)
    assert_same(collected(pipeline.built(read, "clocks")), wanted)


def test_each_group_has_a_reference_the_node_with_most_sessions_or_the_first_name() -> None:
    links = [
        Link(3, "a", "hub", 10, 1),
        Link(4, "b", "hub", 20, 1),
        Link(5, "y", "x", 7, 1),
    ]
    assert corrections(links) == {"hub": 0, "a": -10, "b": -20, "x": 0, "y": -7}
    assert corrections([Link(3, "a", "hub", 10, 1), Link(4, "a", "b", 20, 2)])["a"] == 0


def test_the_way_of_the_least_round_trips_counts() -> None:
    links = [Link(100, "a", "c", 5, 9), Link(10, "a", "b", 1, 1), Link(20, "b", "c", 2, 1)]
    assert corrections(links) == {"a": 0, "b": 1, "c": 3}
