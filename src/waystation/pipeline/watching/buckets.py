"""A task for the nodes of one bucket: it reads their new files and writes what changes.

Orders and results are bytes, so that it makes no difference what runs a task. No Spark.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Struct, field

from waystation.journal.schema import MESSAGES
from waystation.pipeline.kernels.columns import Longs, column
from waystation.pipeline.kernels.health import TALLY
from waystation.pipeline.schema import plain_schema
from waystation.pipeline.surveying import NodeFacts
from waystation.pipeline.tables import BUILT
from waystation.pipeline.watching.identity import hashes
from waystation.pipeline.watching.node_step import Report, advance, facts_now
from waystation.pipeline.watching.segments import Shelf
from waystation.pipeline.watching.state import BucketState, Files, NodeState, decoded, encoded
from waystation.pipeline.watching.steps import gathered
from waystation.pipeline.watching.store import Store, write_part
from waystation.pipeline.writing import written_schema

PORTION_BYTES: Final = 48 * 2**20
"""Bytes of a node's files that are read at a time: about a million messages."""

RECOMPUTED: Final = 20_000
"""Maximum number of rows of a node that are recomputed together if one of them changes."""


class _Kind(Struct, frozen=True):
    """What a shelf holds: its table, and how its pieces are merged."""

    table: str | None
    schema: pa.Schema
    joined: int = 0
    loose: bool = False


SHELVES: Final = {
    "route_open": _Kind("route_history", BUILT["route_history"]),
    "route_closed": _Kind("route_history", BUILT["route_history"], 200_000, loose=True),
    "subscription_open": _Kind("subscription_history", BUILT["subscription_history"]),
    "subscription_closed": _Kind(
        "subscription_history", BUILT["subscription_history"], 200_000, loose=True
    ),
    "expected": _Kind("expected", written_schema("expected"), RECOMPUTED),
    "audit": _Kind("audit", written_schema("audit"), RECOMPUTED),
    "expected_hot": _Kind("expected", written_schema("expected")),
    "audit_hot": _Kind("audit", written_schema("audit")),
    "audit_routes": _Kind("audit", written_schema("audit"), 200_000, loose=True),
    "health": _Kind("health", written_schema("health"), 500),
    "health_hot": _Kind("health", written_schema("health")),
    "session_open": _Kind("session_history", BUILT["session_history"]),
    "session_closed": _Kind("session_history", BUILT["session_history"], 200_000, loose=True),
    "coverage": _Kind("coverage", BUILT["coverage"]),
    "rejects": _Kind("rejects", BUILT["rejects"], 200_000, loose=True),
    "route_recent": _Kind(None, BUILT["route_history"]),
    "subscription_recent": _Kind(None, BUILT["subscription_history"]),
    "session_upward": _Kind(None, BUILT["session_history"]),
    "hot_tallies": _Kind(None, TALLY),
    "hot_messages": _Kind(None, plain_schema(MESSAGES)),
}
"""Each shelf by name; those without a table hold the data that the next batch needs."""


class BucketOrder(Struct, frozen=True):
    """Read these files, by node and table; `replaced` nodes have no others any more."""

    bucket: int
    buckets: int
    batch: int
    journal: str
    out: str
    exchange: str
    state: str | None
    files: dict[str, Files]
    replaced: set[str]
    unsealed: dict[str, list[int]] = {}  # incarnations that have a tail, by node


class BucketDone(Struct):
    """The result of an order: names in the store by table, and what to report."""

    bucket: int
    state: str
    files: dict[str, list[str]] = field(default_factory=dict)
    beside: list[str] = field(default_factory=list)
    reports: dict[str, Report] = field(default_factory=dict)
    retracted: list[str] = field(default_factory=list)
    facts: list[NodeFacts] = field(default_factory=list)


def bucket_of(node: str, buckets: int) -> int:
    """The bucket that a node belongs to."""
    return crc32(node.encode()) % buckets


def take_in(order: bytes) -> bytes:
    """Carry out a BucketOrder; returns a BucketDone."""
    return msgspec.msgpack.encode(_carry_out(msgspec.msgpack.decode(order, type=BucketOrder)))


def _carry_out(order: BucketOrder) -> BucketDone:
    store = Store(Path(order.out))
    state = BucketState() if order.state is None else decoded(store.read_state(order.state))
    shelves = {
        name: Shelf(
            store.shelf(name),
            state.segments.get(name, ()),
            kind.schema,
            joined=kind.joined,
            loose=kind.loose,
        )
        for name, kind in SHELVES.items()
    }
    done = BucketDone(order.bucket, "")
    steps: list[pa.Table] = []
    for node, files in order.files.items():
        steps += _take_in_node(order, node, files, state, shelves, done)
    _leave_steps(Path(order.exchange), order.bucket, order.buckets, gathered(steps))
    name = f"{order.batch:09}-{order.bucket:04}"
    for shelf, kind in SHELVES.items():
        segments = state.segments[shelf] = shelves[shelf].close(name)
        names = [f"{shelf}/{segment.name}" for segment in segments]
        if kind.table is None:
            done.beside += names
        else:
            done.files.setdefault(kind.table, []).extend(names)
    done.state = store.write_state(name, encoded(state))
    return done


def _take_in_node(
    order: BucketOrder,
    node: str,
    files: Files,
    state: BucketState,
    shelves: dict[str, Shelf],
    done: BucketDone,
) -> list[pa.Table]:
    """Process the files of one node, as many at a time as fit into memory; returns its steps."""
    steps: list[pa.Table] = []
    report, replaced, retracted = Report(), node in order.replaced, False
    for portion in portions(files, PORTION_BYTES):
        former = state.nodes.get(node, NodeState())
        advanced = advance(
            order.journal,
            node,
            former,
            portion,
            shelves,
            replaced=replaced,
            unsealed=order.unsealed.get(node, ()),
        )
        state.nodes[node] = advanced.state
        report.add(advanced.report)
        if advanced.retracted:
            steps, retracted = [], True
        steps.append(advanced.steps)
        replaced = False
    done.reports[node] = report
    done.facts.append(facts_now(order.journal, node, state.nodes[node]))
    if retracted:
        done.retracted.append(node)
    return steps


def portions(files: Files, limit: int) -> list[Files]:
    """The files of a node in the order of their events, in portions of limited size."""
    every = sorted(
        (file.incarnation, file.first, file.path, table, file)
        for table, found in files.items()
        for file in found
    )
    found: list[Files] = [{}]
    size = 0
    for *_, table, file in every:
        if size and size + file.size > limit:
            found.append({})
            size = 0
        found[-1].setdefault(table, []).append(file)
        size += file.size
    return found


def _leave_steps(exchange: Path, bucket: int, buckets: int, steps: pa.Table) -> None:
    """Write the steps of messages for the tasks that build their traces, by message id."""
    target: Longs = (hashes(column(steps, "message_id")) % np.uint64(buckets)).astype(np.int64)
    order = np.argsort(target, kind="stable")
    ordered = steps.take(pa.array(order))
    bounds = np.searchsorted(target[order], np.arange(buckets + 1)).tolist()
    for number in range(buckets):
        low, high = bounds[number], bounds[number + 1]
        if low < high:
            write_part(exchange, part_name(number, bucket), ordered.slice(low, high - low))


def part_name(target: int, source: int) -> str:
    """What one task wrote for another."""
    return f"{target:04}-{source:04}.arrow"
