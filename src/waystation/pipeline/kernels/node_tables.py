"""What makes the tables that need one node alone: node data in, parts of tables out.

A kernel takes the data of a node, or of a share of it, and the names of the tables that are wanted;
it yields their parts, each with the name of its table. The registry (tables.py) names them. They
run in the executors and need no Spark: what a task runs can be run here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import pyarrow as pa

from waystation.core.message import HOP_LIMIT
from waystation.core.visits import DAY
from waystation.journal.schema import MESSAGES, ROUTES, SUBSCRIPTIONS, TEXT
from waystation.pipeline.kernels.comparing import coded_comparison, route_differences, waiting_ids
from waystation.pipeline.kernels.copies import REMEMBERED, multicast_rows, unexplained_ids
from waystation.pipeline.kernels.deciding import Past, coded_decisions
from waystation.pipeline.kernels.folding import named, route_parts, subscription_parts
from waystation.pipeline.kernels.node_data import FileData, NodeData, Reject
from waystation.pipeline.kernels.sessions import sessions_of
from waystation.pipeline.kernels.visits import is_of_version_2, without_tunnelled
from waystation.pipeline.listing import Listing
from waystation.pipeline.schema import JOURNAL
from waystation.pipeline.tables import BUILT, ROWS_READ, part_of

STRAY = "it is not in a directory node=<name>"


def route_history(data: NodeData, asked: Collection[str] = ()) -> Iterator[pa.Table]:
    """The routing entries with their periods of validity."""
    del asked  # it makes one table
    for part in route_parts(data.coded_events(ROUTES), data.lifetimes()):
        yield part_of("route_history", named(data.node, part))


def route_history_of(data: FileData, participants: Iterable[str]) -> Iterator[pa.Table]:
    """The routing entries of some participants; no other events are folded."""
    events = list(data.rows_with(ROUTES, "participant", participants))
    if any(part.num_rows for part in events):
        for part in route_parts(pa.concat_tables(events).combine_chunks(), data.lifetimes()):
            yield part_of("route_history", named(data.node, part))


def subscription_history_of(data: FileData, receiver: str) -> Iterator[pa.Table]:
    """The subscriptions of one receiver; no other events are folded."""
    events = list(data.rows_with(SUBSCRIPTIONS, "receiver", [receiver]))
    if any(part.num_rows for part in events):
        for part in subscription_parts(pa.concat_tables(events).combine_chunks(), data.lifetimes()):
            yield part_of("subscription_history", named(data.node, part))


def subscription_history(data: NodeData, asked: Collection[str] = ()) -> Iterator[pa.Table]:
    """The subscriptions with their periods of validity."""
    del asked
    for part in subscription_parts(data.coded_events(SUBSCRIPTIONS), data.lifetimes()):
        yield part_of("subscription_history", named(data.node, part))


def judged(
    data: FileData, asked: Collection[str], hop_limit: int = HOP_LIMIT
) -> Iterator[pa.Table]:
    """The expected outcomes of a node's messages, and how they compare with the actual ones."""
    rows = judged_rows(data)
    ruled = []
    for part in coded_decisions(data.node, rows, past_of(data, rows, hop_limit), hop_limit):
        yield part_of("expected", part)
        if "audit" in asked:
            ruled.append(part)
    if "audit" not in asked:
        return
    whole = pa.concat_tables(ruled) if ruled else BUILT["expected"].empty_table()
    later = data.later_entries(waiting_ids(rows))
    yield part_of("audit", coded_comparison(data.node, whole, rows, later))
    if data.is_first_share:
        yield part_of("audit", route_differences(data.node, data.coded_events(ROUTES)))


def judged_rows(data: FileData) -> pa.Table:
    """The messages that the rules judge: not those that pass through a gossip router."""
    rows = data.coded_events(MESSAGES)
    return without_tunnelled(rows) if data.keeps_members else rows


def past_of(data: FileData, rows: pa.Table, hop_limit: int = HOP_LIMIT) -> Past:
    """What the outcomes of these messages depend on."""
    routes, subscriptions = data.coded_route_history, data.coded_subscription_history
    if not is_of_version_2(rows).any():
        return Past(routes, subscriptions)
    sessions = sessions_of(data)
    return Past(routes, subscriptions, sessions, earlier_copies(data, rows, hop_limit))


def earlier_copies(data: FileData, rows: pa.Table, hop_limit: int = HOP_LIMIT) -> pa.Table | None:
    """The multicasts before these that they may be second copies of."""
    if not len(multicast_rows(rows, hop_limit)):
        return None
    near = data.multicasts_before(REMEMBERED)
    if near is None:
        return None
    lonely = unexplained_ids(rows, near, hop_limit)
    far = data.multicasts_before(None, lonely) if lonely else None
    return near if far is None else pa.concat_tables([far, near])


def rejects(data: FileData, asked: Collection[str] = ()) -> Iterator[pa.Table]:
    """The files and rows of a node that could not be read; it reads all, and so can count them."""
    found = data.all_rejects()
    if found:
        yield part_of("rejects", as_rejects(found))
    if ROWS_READ in asked:
        counted = {table: data.rows(table) for table in JOURNAL}
        rows = {"table": list(counted), "rows": list(counted.values())}
        yield part_of(ROWS_READ, pa.table(rows))


def strays(listing: Listing) -> pa.Table:
    """The files that belong to no node."""
    found: list[Reject] = [
        (stray.table, None, stray.path, None, STRAY, None) for stray in listing.strays
    ]
    return as_rejects(found)


def as_rejects(found: list[Reject]) -> pa.Table:
    """Rejects as rows of their table."""
    if not found:
        return BUILT["rejects"].empty_table()
    *texts, first = zip(*found, strict=True)
    columns = [pa.array(values, TEXT) for values in (*texts, texts[0])]
    day = pa.array([None if at is None else at // DAY for at in first], pa.date32())
    return pa.Table.from_arrays([*columns, day], schema=BUILT["rejects"])
