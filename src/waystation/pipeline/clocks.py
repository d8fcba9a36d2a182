"""How far the clocks of nodes differ, hour by hour, by what their sessions measured (TM-3).

Each node journals how far the clocks of its peers are ahead of its own. Of the measurements of one
peer in an hour that with the least round trip counts: its error is at most half of that. How they
add up is in the core, for `why` too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from waystation.core.corrections import HOUR, Link, corrections
from waystation.core.visits import DAY
from waystation.journal.schema import INSTANT, SESSIONS, TEXT
from waystation.pipeline.journal import Journal
from waystation.pipeline.kernels.node_data import FileData
from waystation.pipeline.tables import BUILT
from waystation.pipeline.work import mapped

NAME: Final = "clocks"
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
    return clocks_by_hour(hours)


def clocks_by_hour(hours: Mapping[int, Iterable[Link]]) -> pa.Table:
    """The table for all measurements of each hour."""
    rows = []
    for hour, measured in sorted((hour, list(links)) for hour, links in hours.items()):
        found = corrections(measured)
        rows += [
            (
                *(link.node, link.peer, hour, hour + HOUR, link.offset_us, link.rtt_us),
                *("session", found[link.node], hour // DAY),
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
