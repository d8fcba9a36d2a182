"""Messages that one node passed to another: what they tell of clocks that nobody measured (TM-3).

A message has two ends on such a way: when the sender got it, and when the receiver did, each by its
own clock. Departures are no better ends: they are recorded when the bytes have left, which may be
after they arrived. Messages that went the same way twice tell nothing. No Spark.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from waystation.core.corrections import HOUR, Delay
from waystation.core.message import NO_ID
from waystation.core.outcome import Outcome
from waystation.journal.pruning import instant_bounds, sole_text
from waystation.journal.schema import INSTANT, MESSAGES, TEXT
from waystation.pipeline.kernels.columns import Flags, are, codes, column, encoded, longs
from waystation.pipeline.kernels.node_data import UNREADABLE, FileData
from waystation.pipeline.kernels.normal import converted
from waystation.pipeline.schema import CODED

ENDS: Final = pa.schema(
    {
        "message_id": TEXT,
        "sender": TEXT,
        "receiver": TEXT,
        "sent_at": pa.int64(),
        "received_at": pa.int64(),
    }
)
"""One end of a message's way between two nodes: one of the instants is null."""

DELAYS: Final = pa.schema(
    {
        "sender": TEXT,
        "receiver": TEXT,
        "sent_hour": pa.int64(),
        "received_hour": pa.int64(),
        "least_us": pa.int64(),
        "messages": pa.int64(),
    }
)
"""The least delay of the messages from one node to another (core/corrections.py)."""

_PEERS: Final = ("from_node", "next_node")


def peers_by_hour(data: FileData, but: Collection[int] = ()) -> dict[int, set[str]]:
    """The nodes that messages may have come from or gone to, by the hour in which they were here.

    Footers tell it where a node had one peer in the hour; else these columns are read. What lies
    within hours that are in `but` is left out: nobody asks for their peers.
    """
    found: dict[int, set[str]] = {}
    for group, read in data.row_groups(MESSAGES, ("received_at", *_PEERS)):
        if but and _is_within(group, but):
            continue
        for hour, peers in (_told_by_footer(group) or _told_by_rows(read)).items():
            if peers:
                found.setdefault(hour, set()).update(peers)
    return found


def _is_within(group: Any, hours: Collection[int]) -> bool:
    """Whether all rows of a row group are of these hours, as far as its footer tells."""
    bounds = instant_bounds(group, "received_at")
    if bounds is None:
        return False
    first, last = (bound // HOUR * HOUR for bound in bounds)
    return all(hour in hours for hour in range(first, last + HOUR, HOUR))


def _told_by_footer(group: Any) -> dict[int, set[str]] | None:
    bounds = instant_bounds(group, "received_at")
    if bounds is None or bounds[0] // HOUR != bounds[1] // HOUR:
        return None
    one, other = (sole_text(group, name) for name in _PEERS)
    if one is None or other is None:
        return None
    return {bounds[0] // HOUR * HOUR: one | other}


def _told_by_rows(read: Callable[[], pa.Table]) -> dict[int, set[str]]:
    try:
        rows = read()
        received = converted(rows.column("received_at"), INSTANT).combine_chunks()
        peers = [converted(rows.column(name), CODED).combine_chunks() for name in _PEERS]
    except UNREADABLE:
        return {}  # its reader reports it
    found: dict[int, set[str]] = {}
    hours = longs(pa.table({"at": received}), "at", -1) // HOUR * HOUR
    for texts in peers:
        which = codes(texts)
        told = (which >= 0) & (hours >= 0)
        for hour in np.unique(hours[told]).tolist():
            there = pa.array(np.unique(which[told & (hours == hour)]))
            found.setdefault(hour, set()).update(texts.dictionary.take(there).to_pylist())
    return found


def ends_of(data: FileData, strangers: Mapping[int, Sequence[str]]) -> Iterator[pa.Table]:
    """The ends at one node of the messages between it and others, by its hours."""
    if not strangers:
        return
    within = data.received_between(min(strangers), max(strangers) + HOUR)
    for rows in within.coded_batches(MESSAGES):
        came = _with_strangers(rows, "from_node", strangers)
        went = _with_strangers(rows, "next_node", strangers)
        went &= are(column(rows, "outcome"), Outcome.FORWARDED.value)
        for chosen, peer, is_here in ((came, "from_node", True), (went, "next_node", False)):
            if chosen.any():
                yield _ends(data.node, rows.filter(pa.array(chosen)), peer, is_here=is_here)


def _with_strangers(rows: pa.Table, name: str, strangers: Mapping[int, Sequence[str]]) -> Flags:
    """Which rows have such a peer in a column."""
    found = np.zeros(rows.num_rows, np.bool_)
    texts = encoded(column(rows, name))
    if texts.null_count == len(texts):
        return found
    hours, which = longs(rows, "received_at") // HOUR * HOUR, codes(texts)
    for hour, peers in strangers.items():
        wanted = np.asarray(pc.is_in(texts.dictionary, pa.array(peers, TEXT)))
        found |= (hours == hour) & np.append(wanted, False)[which]
    found &= np.asarray(pc.not_equal(column(rows, "message_id"), NO_ID))
    return found


def _ends(node: str, rows: pa.Table, peer: str, *, is_here: bool) -> pa.Table:
    """Rows as ends: here is the receiver, or the sender."""
    here = pa.repeat(pa.scalar(node, TEXT), rows.num_rows)
    there = column(rows, peer).cast(TEXT)
    at, unknown = pa.array(longs(rows, "received_at")), pa.nulls(rows.num_rows, pa.int64())
    ways = (there, here, unknown, at) if is_here else (here, there, at, unknown)
    return pa.table([column(rows, "message_id"), *ways], schema=ENDS)


def delays_of(ends: pa.Table) -> pa.Table:
    """The least delays of the messages with these ends; all ends of a message are here."""
    met = ends.group_by(["message_id", "sender", "receiver"], use_threads=False).aggregate(
        [(name, how) for name in ("sent_at", "received_at") for how in ("count_distinct", "min")]
    )
    once = [
        pc.equal(met.column(f"{name}_count_distinct"), 1) for name in ("sent_at", "received_at")
    ]
    met = met.filter(pc.and_(*once))
    sent, received = (longs(met, f"{name}_min") for name in ("sent_at", "received_at"))
    ways = pa.table(
        {
            "sender": met.column("sender"),
            "receiver": met.column("receiver"),
            "sent_hour": sent // HOUR * HOUR,
            "received_hour": received // HOUR * HOUR,
            "delay": received - sent,
        }
    )
    keys = DELAYS.names[:4]
    found = ways.group_by(keys, use_threads=False).aggregate([("delay", "min"), ("delay", "count")])
    return pa.table(
        [found.column(name) for name in (*keys, "delay_min", "delay_count")], schema=DELAYS
    )


def delays_in(
    data: Iterable[FileData], strangers: Mapping[str, Mapping[int, Sequence[str]]]
) -> list[Delay]:
    """The least delays between nodes of a journal, of which nothing was measured."""

    def of_node(one: FileData) -> list[pa.Table]:
        return list(ends_of(one, strangers.get(one.node, {})))

    with ThreadPoolExecutor(os.cpu_count()) as threads:  # Arrow releases the GIL
        ends = [part for parts in threads.map(of_node, data) for part in parts]
    return as_delays(delays_of(pa.concat_tables(ends))) if ends else []


def as_delays(rows: pa.Table) -> list[Delay]:
    """The same for the core."""
    return [Delay(**row) for row in rows.to_pylist()]
