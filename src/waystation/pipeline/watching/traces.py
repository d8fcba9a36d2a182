"""A task for the traces of one bucket of messages: new steps are added to the known ones.

All steps of a message are in one segment, with its trace, and the sorted hashes of a segment's ids
show whether a message is in it. Most messages get their next step within seconds, so the latest
ones are in a young segment, which is rewritten in each batch; the others stay until one of their
messages gets another step. This runs in the executors; no Spark.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field

from waystation.journal.schema import TEXT
from waystation.pipeline.columns import Flags, column, longs
from waystation.pipeline.tables import BUILT
from waystation.pipeline.tracing import trace
from waystation.pipeline.watching.buckets import part_name
from waystation.pipeline.watching.identity import Hashes, hashes, held_in
from waystation.pipeline.watching.segments import Piece, Segment, crowded, read_rows, write_rows
from waystation.pipeline.watching.steps import gathered
from waystation.pipeline.watching.store import Store, read_part, write_part

YOUNG: Final = 5_000_000
"""Microseconds after its last step in which a message is likely to get one from another node."""

FEW: Final = 4_096
"""This many steps are young if they are recent enough, however few are new."""

_TRACES, _STEPS, _HASHES = "traces", "steps", "hashes"


class TraceSegment(Struct, frozen=True):
    """Traces, their steps, and the hashes of their ids: one file each."""

    traces: str
    steps: str
    hashes: str
    rows: int  # of steps

    def names(self) -> list[str]:
        """The paths of these files in the store."""
        return [f"{_TRACES}/{self.traces}", f"{_STEPS}/{self.steps}", f"{_HASHES}/{self.hashes}"]


class TraceState(Struct):
    """The segments of a bucket; the young one is the first, if there is one."""

    young: TraceSegment | None = None
    segments: list[TraceSegment] = field(default_factory=list)


class TraceOrder(Struct, frozen=True):
    """Process the steps that the tasks of these buckets wrote; drop earlier ones of some nodes."""

    bucket: int
    batch: int
    out: str
    exchange: str
    sources: list[int]
    retracted: list[str]
    state: str | None


class TraceDone(Struct):
    """The result of an order: names in the store."""

    bucket: int
    state: str
    traces: list[str]
    beside: list[str]


def take_steps(order: bytes) -> bytes:
    """Carry out a TraceOrder; returns a TraceDone."""
    return msgspec.msgpack.encode(_carry_out(msgspec.msgpack.decode(order, type=TraceOrder)))


def _carry_out(order: TraceOrder) -> TraceDone:
    store = Store(Path(order.out))
    state = TraceState()
    if order.state is not None:
        state = msgspec.msgpack.decode(store.read_state(order.state), type=TraceState)
    exchange = Path(order.exchange)
    parts = [exchange / part_name(order.bucket, source) for source in order.sources]
    found = [read_part(path) for path in parts if path.exists()]
    new = gathered(found)
    name = f"{order.batch:09}-{order.bucket:04}"
    state = _Bucket(store, name, state, order.retracted).take(new)
    kept = [state.young, *state.segments] if state.young is not None else state.segments
    names = [segment.names() for segment in kept if segment is not None]
    done = store.write_state(f"traces-{name}", msgspec.msgpack.encode(state))
    return TraceDone(
        order.bucket,
        done,
        [found[0] for found in names],
        [name for found in names for name in found[1:]],
    )


class _Bucket:
    """The traces of one bucket while new steps are added."""

    def __init__(self, store: Store, name: str, state: TraceState, retracted: list[str]) -> None:
        self._store, self._name, self._state = store, name, state
        self._retracted = pa.array(retracted, TEXT)

    def take(self, new: pa.Table) -> TraceState:
        """Add these steps to the known ones; returns the resulting segments."""
        needles = np.unique(hashes(column(new, "message_id")))
        moving = [new]  # steps of traces that are rebuilt
        staying: list[tuple[pa.Table, pa.Table]] = []  # steps and traces of others
        segments = []
        if self._state.young is not None:
            moving.append(self._valid(self._steps_of(self._state.young)))
        for segment in self._state.segments:
            if not self._concerns(segment, needles):
                segments.append(segment)
                continue
            moved, rest = self._split(segment, needles)
            moving.append(moved)
            staying.append(rest)
        steps = gathered(moving)
        made = trace(steps, paths=True)
        of_trace = hashes(column(made, "message_id"))
        latest = np.unique(of_trace[_fresh(made, max(new.num_rows, FEW))])
        fresh = held_in(of_trace, latest)  # two ids with the same hash stay together
        of_step = held_in(hashes(column(steps, "message_id")), latest)
        young = self._written(_chosen(steps, of_step), _chosen(made, fresh))
        staying.append((_chosen(steps, ~of_step), _chosen(made, ~fresh)))
        return TraceState(young, self._stored(segments, staying))

    def _stored(
        self, segments: list[TraceSegment], staying: list[tuple[pa.Table, pa.Table]]
    ) -> list[TraceSegment]:
        """The segments with what stays, written to one more; small ones are merged."""
        size = sum(steps.num_rows for steps, _ in staying)
        if not size:
            return segments
        sized = [
            Segment(str(number), [Piece("", 0, 0, segment.rows)])
            for number, segment in enumerate(segments)
        ]
        joined = {int(found.name) for found in crowded(sized, size)}
        staying += [
            (self._steps_of(segments[number]), self._traces_of(segments[number]))
            for number in sorted(joined)
        ]
        written = self._written(
            gathered([steps for steps, _ in staying]),
            pa.concat_tables([made for _, made in staying]),
        )
        rest = [segment for number, segment in enumerate(segments) if number not in joined]
        return rest if written is None else [*rest, written]

    def _concerns(self, segment: TraceSegment, needles: Hashes) -> bool:
        if len(self._retracted):
            return True
        known = np.load(self._store.shelf(_HASHES) / segment.hashes, mmap_mode="r")
        return bool(held_in(needles, known).any())

    def _split(
        self, segment: TraceSegment, needles: Hashes
    ) -> tuple[pa.Table, tuple[pa.Table, pa.Table]]:
        """The steps of traces that are rebuilt; steps and traces of the others."""
        steps = self._steps_of(segment)
        of_step = hashes(column(steps, "message_id"))
        if len(self._retracted):
            gone = np.asarray(pc.is_in(column(steps, "node"), self._retracted))
            needles = np.union1d(needles, of_step[gone])
        moved = held_in(of_step, needles)
        traces = self._traces_of(segment)
        stays = ~held_in(hashes(column(traces, "message_id")), needles)
        return self._valid(_chosen(steps, moved)), (_chosen(steps, ~moved), _chosen(traces, stays))

    def _valid(self, steps: pa.Table) -> pa.Table:
        """Steps without those that no longer count."""
        if not len(self._retracted):
            return steps
        return steps.filter(pc.invert(pc.is_in(column(steps, "node"), self._retracted)))

    def _steps_of(self, segment: TraceSegment) -> pa.Table:
        return read_part(self._store.shelf(_STEPS) / segment.steps)

    def _traces_of(self, segment: TraceSegment) -> pa.Table:
        return read_rows(self._store.shelf(_TRACES) / segment.traces, BUILT["traces"])

    def _written(self, steps: pa.Table, traces: pa.Table) -> TraceSegment | None:
        if not steps.num_rows:
            return None
        return TraceSegment(
            write_rows(self._store.shelf(_TRACES), self._name, traces),
            self._write_steps(steps),
            self._write_hashes(np.unique(hashes(column(traces, "message_id")))),
            steps.num_rows,
        )

    def _write_steps(self, steps: pa.Table) -> str:
        unique = f"{self._name}-{uuid.uuid4().hex[:12]}.arrow"
        write_part(self._store.shelf(_STEPS), unique, steps, compression="lz4")
        return unique

    def _write_hashes(self, found: Hashes) -> str:
        unique = f"{self._name}-{uuid.uuid4().hex[:12]}.npy"
        directory = self._store.shelf(_HASHES)
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / f".{unique}").open("wb") as file:
            np.save(file, found)
        (directory / f".{unique}").rename(directory / unique)
        return unique


def _fresh(made: pa.Table, limit: int) -> Flags:
    """Which traces are the latest ones, with at most about this many steps together."""
    ended = longs(made, "ended")
    recent = np.flatnonzero(ended >= ended.max(initial=0) - YOUNG)
    order = recent[np.argsort(-ended[recent], kind="stable")]
    hops = np.asarray(column(made, "hops")).astype(np.int64)[order]
    found = np.zeros(made.num_rows, np.bool_)
    found[order[np.cumsum(hops) - hops < limit]] = True
    return found


def _chosen(rows: pa.Table, which: Flags) -> pa.Table:
    return rows if which.all() else rows.filter(pa.array(which))
