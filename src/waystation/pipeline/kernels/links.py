"""What a node measured of the clocks of its peers, hour by hour. No Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import asdict

from waystation.core.corrections import HOUR, SESSION, Link
from waystation.journal.schema import SESSIONS, TEXT
from waystation.pipeline.kernels.node_data import FileData

LINKS: Final = pa.schema(
    {
        "hour": pa.int64(),
        "node": TEXT,
        "peer": TEXT,
        "offset_us": pa.int64(),
        "rtt_us": pa.int64(),
        "sessions": pa.int64(),
        "source": TEXT,
    }
)
"""What is known of a peer's clock in an hour, and from how many sessions."""


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
    node, source = (pa.array([text] * best.num_rows, TEXT) for text in (data.node, SESSION))
    yield pa.table([hour, node, peer, offset, rtt, sessions.cast(pa.int64()), source], schema=LINKS)


def links_table(hours: Mapping[int, Iterable[Link]]) -> pa.Table:
    """The same for what is known of some hours."""
    rows = [{"hour": hour, **asdict(link)} for hour, links in hours.items() for link in links]
    return pa.Table.from_pylist(rows, LINKS)
