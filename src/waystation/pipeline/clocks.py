"""How far the clocks of nodes differ, hour by hour, by what their sessions measured (TM-3).

Each node journals how far the clocks of its peers are ahead of its own. Of the measurements of one
peer in an hour that with the least round trip counts: its error is at most half of that. In every
group of nodes that measurements connect, the clock of the node with the most sessions is the
reference; a clock's correction is the sum of the offsets on the way from there, and of several ways
that of the least round trips counts. A time minus the correction is a time of the reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from pyspark.sql import DataFrame

from waystation.journal.schema import INSTANT, SESSIONS, TEXT
from waystation.pipeline.journal import Journal
from waystation.pipeline.node_data import FileData
from waystation.pipeline.tables import BUILT
from waystation.pipeline.work import mapped

NAME: Final = "clocks"
HOUR: Final = 3_600_000_000
"""In microseconds."""

LINKS: Final = pa.schema(
    {
        "hour": pa.int64(),
        "node": TEXT,
        "peer": TEXT,
        "offset_us": pa.int64(),
        "rtt_us": pa.int64(),
        "sessions": pa.int64(),
    }
)
"""What a node measured of a peer in an hour, and over how many sessions."""


class Link(Struct, frozen=True, order=True):
    """A measurement of one clock by another; the least is the best."""

    rtt_us: int
    node: str
    peer: str
    offset_us: int
    sessions: int


def clocks(journal: Journal) -> DataFrame:
    """The table of a journal: the measurements of an hour, from all nodes, meet in one task."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        held = [pa.Table.from_batches([batch]) for batch in batches]
        if held:
            yield clocks_of(pa.concat_tables(held))

    measured = journal.work((SESSIONS,), links_of, LINKS, split=False)
    return mapped(measured.repartition("hour"), work, BUILT[NAME])


def links_of(data: FileData) -> Iterator[pa.Table]:
    """The best measurement of each peer in each hour, at one node."""
    rows = data.small_table(SESSIONS)
    told = pc.and_kleene(
        pc.equal(rows.column("kind"), "clock"),
        pc.and_(pc.is_valid(rows.column("offset_us")), pc.is_valid(rows.column("rtt_us"))),
    )
    named = pc.fill_null(pc.not_equal(rows.column("peer"), data.node), fill_value=False)
    rows = rows.filter(pc.and_kleene(told, named))
    if not rows.num_rows:
        return
    order = [(name, "ascending") for name in ("rtt_us", "incarnation", "seq")]
    rows = rows.sort_by(order)
    hours = pc.multiply(pc.divide(rows.column("at").cast(pa.int64()), HOUR), HOUR)
    best = (
        rows.append_column("hour", hours)
        .group_by(["hour", "peer"], use_threads=False)
        .aggregate([("offset_us", "first"), ("rtt_us", "first"), ("session", "count_distinct")])
    )
    names = ("hour", "peer", "offset_us_first", "rtt_us_first", "session_count_distinct")
    hour, peer, offset, rtt, sessions = (best.column(name) for name in names)
    node = pa.array([data.node] * best.num_rows, TEXT)
    yield pa.table([hour, node, peer, offset, rtt, sessions.cast(pa.int64())], schema=LINKS)


def clocks_of(links: pa.Table) -> pa.Table:
    """The table for the measurements of some hours; those of an hour are all here."""
    hours: dict[int, list[Link]] = {}
    for row in links.to_pylist():
        hours.setdefault(row.pop("hour"), []).append(Link(**row))
    rows = []
    for hour, measured in sorted(hours.items()):
        found = corrections(measured)
        rows += [
            (
                *(link.node, link.peer, hour, hour + HOUR, link.offset_us, link.rtt_us),
                *("session", found[link.node]),
            )
            for link in sorted(measured, key=lambda link: (link.node, link.peer))
        ]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(BUILT[NAME])
    return pa.table(
        [
            pa.array(values, pa.int64()).view(INSTANT)
            if field.type == INSTANT
            else pa.array(values, field.type)
            for values, field in zip(columns, BUILT[NAME], strict=True)
        ],
        schema=BUILT[NAME],
    )


def corrections(links: Iterable[Link]) -> dict[str, int]:
    """How far each node's clock is ahead of that of its reference, in microseconds.

    >>> corrections([Link(5, "hub", "a", 70, 1), Link(9, "b", "hub", -20, 1)])
    {'hub': 0, 'a': 70, 'b': 20}
    """
    best: dict[frozenset[str], Link] = {}
    sessions: dict[frozenset[str], int] = {}  # as many as that of the two that knows more
    for link in sorted(links):
        pair = frozenset((link.node, link.peer))
        best.setdefault(pair, link)
        sessions[pair] = max(sessions.get(pair, 0), link.sessions)
    ways: dict[str, list[tuple[int, str, int]]] = {}
    count: dict[str, int] = {}
    for pair, link in best.items():
        ways.setdefault(link.node, []).append((link.rtt_us, link.peer, link.offset_us))
        ways.setdefault(link.peer, []).append((link.rtt_us, link.node, -link.offset_us))
        for node in pair:
            count[node] = count.get(node, 0) + sessions[pair]
    found: dict[str, int] = {}
    for reference in sorted(count, key=lambda node: (-count[node], node)):
        if reference not in found:  # the first of its group
            _reach(reference, ways, found)
    return found


def _reach(
    reference: str, ways: dict[str, list[tuple[int, str, int]]], found: dict[str, int]
) -> None:
    """Add the corrections of all nodes that measurements connect with the reference."""
    reached = [(0, reference, 0)]
    while reached:
        total, node, ahead = heappop(reached)
        if node not in found:
            found[node] = ahead
            for rtt, peer, offset in ways[node]:
                heappush(reached, (total + rtt, peer, ahead + offset))
