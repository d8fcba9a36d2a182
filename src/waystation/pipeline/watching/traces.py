"""A task for the traces of one bucket of messages: new steps are added to the known ones.

All steps of a message are in one segment, with its trace, and the sorted hashes of a segment's ids
show whether a message is in it. Most messages get their next step within seconds, so the latest
ones are in a young segment, which is rewritten in each batch; the others stay until one of their
messages gets another step. A trace that other records may still change stays young: one that waits,
or with a copy under way. This runs in the executors; no Spark.

What all nodes tell beside messages is in a state of its own. When it changes in more than how far
records reach, the traces that touch the nodes concerned are made again.

An answer is a message of its own, likely in another bucket. A bucket tells the others about the
answers among its traces, and keeps what it is told about the answers to its own messages.
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
from waystation.pipeline.kernels.answering import ANSWERS, answers_before, answers_in, tied
from waystation.pipeline.kernels.columns import Flags, column, flags, longs
from waystation.pipeline.kernels.evidence import Facts, Known
from waystation.pipeline.kernels.tracing import assembled
from waystation.pipeline.tables import BUILT
from waystation.pipeline.watching.buckets import part_name
from waystation.pipeline.watching.identity import Hashes, hashes, held_in
from waystation.pipeline.watching.segments import Piece, Segment, crowded, read_rows, write_rows
from waystation.pipeline.watching.steps import gathered
from waystation.pipeline.watching.store import Store, read_part, write_part

YOUNG: Final = 5_000_000
"""Microseconds after its last step in which a message is likely to get one from another node."""

FEW: Final = 4_096
"""This many steps are young if they are recent enough, however few are new."""

_TRACES, _STEPS, _HASHES, _ANSWERS = "traces", "steps", "hashes", "answers"
_TOUCHED: Final = ("node", "next_node")  # columns of steps with nodes that a trace depends on


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
    """The segments of a bucket, and the answers to its messages.

    `young` is rewritten with each batch; `open` tells whether records of others may change it.
    """

    young: TraceSegment | None = None
    segments: list[TraceSegment] = field(default_factory=list)
    answers: str | None = None
    open: bool = False


class TraceOrder(Struct, frozen=True):
    """Process the steps that the tasks of these buckets wrote; drop earlier ones of some nodes.

    The traces that touch the nodes `retold` are made again. `known` is what all nodes tell.
    Answers are written to one exchange, and read from it when all buckets have done so.
    """

    bucket: int
    buckets: int
    batch: int
    out: str
    exchange: str
    sources: list[int]
    retracted: list[str]
    state: str | None
    known: str
    retold: list[str] = []
    answers_to: str | None = None
    answers_from: str | None = None


class TraceDone(Struct):
    """The result of an order: names in the store."""

    bucket: int
    state: str
    traces: list[str]
    beside: list[str]
    open: bool


def take_steps(order: bytes) -> bytes:
    """Carry out a TraceOrder; returns a TraceDone."""
    return msgspec.msgpack.encode(_carry_out(msgspec.msgpack.decode(order, type=TraceOrder)))


def _carry_out(order: TraceOrder) -> TraceDone:
    store = Store(Path(order.out))
    state = TraceState()
    if order.state is not None:
        state = msgspec.msgpack.decode(store.read_state(order.state), type=TraceState)
    bucket = _Bucket(store, order, state)
    if order.answers_from is None:
        state = bucket.take(gathered(_parts(order, order.exchange)))
    else:
        state = bucket.learn(pa.concat_tables(_parts(order, order.answers_from)))
    kept = [state.young, *state.segments] if state.young is not None else state.segments
    names = [segment.names() for segment in kept if segment is not None]
    beside = [name for found in names for name in found[1:]]
    if state.answers is not None:
        beside.append(f"{_ANSWERS}/{state.answers}")
    done = store.write_state(f"traces-{bucket.name}", msgspec.msgpack.encode(state))
    return TraceDone(order.bucket, done, [found[0] for found in names], beside, state.open)


def _parts(order: TraceOrder, exchange: str) -> list[pa.Table]:
    """What other tasks wrote for this one."""
    paths = [Path(exchange) / part_name(order.bucket, source) for source in order.sources]
    return [read_part(path) for path in paths if path.exists()]


class _Bucket:
    """The traces of one bucket while new steps are added."""

    def __init__(self, store: Store, order: TraceOrder, state: TraceState) -> None:
        self._store, self._order, self._state = store, order, state
        self.name = f"{order.batch:09}-{order.bucket:04}"
        self._retracted = pa.array(order.retracted, TEXT)
        self._retold = pa.array(order.retold, TEXT)
        self._facts = Facts(Known.decoded(store.read_state(order.known)))
        self._former: list[pa.Table] = []  # traces that are made again, as they were

    def take(self, new: pa.Table) -> TraceState:
        """Add these steps to the known ones; returns the resulting segments."""
        return self._take(new, np.unique(hashes(column(new, "message_id"))))

    def learn(self, told: pa.Table) -> TraceState:
        """Tie the messages to the answers that other buckets tell of."""
        known = self._answers()
        ours = pc.is_in(known.column("answer"), column(told, "answer"))
        former, now = known.filter(ours), told.filter(pc.is_valid(told.column("started")))
        order = [(name, "ascending") for name in ("answer", "started", "first_node")]
        if former.sort_by(order).equals(now.sort_by(order)):
            return self._state
        self._state.answers = self._write_answers(
            pa.concat_tables([known.filter(pc.invert(ours)), now])
        )
        asked = pa.concat_tables([former, now]).column("request").combine_chunks()
        return self._take(gathered([]), np.unique(hashes(asked)))

    def _take(self, new: pa.Table, needles: Hashes) -> TraceState:
        moving = [new]  # steps of traces that are rebuilt
        staying: list[tuple[pa.Table, pa.Table]] = []  # steps and traces of others
        segments = []
        if self._state.young is not None:
            moving.append(self._valid(self._steps_of(self._state.young)))
            self._former.append(self._traces_of(self._state.young))
        for segment in self._state.segments:
            if not self._concerns(segment, needles):
                segments.append(segment)
                continue
            moved, rest = self._split(segment, needles)
            moving.append(moved)
            staying.append(rest)
        steps = gathered(moving)
        found = assembled(steps, self._facts)
        self._tell(found)
        made = tied(found, self._answers())
        of_trace = hashes(column(made, "message_id"))
        is_open = flags(found, "is_open")
        latest = np.unique(of_trace[_fresh(made, max(new.num_rows, FEW)) | is_open])
        fresh = held_in(of_trace, latest)  # two ids with the same hash stay together
        of_step = held_in(hashes(column(steps, "message_id")), latest)
        young = self._written(_chosen(steps, of_step), _chosen(made, fresh))
        staying.append((_chosen(steps, ~of_step), _chosen(made, ~fresh)))
        stored = self._stored(segments, staying)
        return TraceState(young, stored, self._state.answers, bool(is_open.any()))

    # Answers

    def _tell(self, made: pa.Table) -> None:
        """Tell other buckets about the answers among traces, and those that are no longer."""
        if self._order.answers_to is None:
            return
        answers = answers_in(made)
        former = [answers_before(traces) for traces in self._former]
        told = pa.concat_tables([answers, *former])
        target = hashes(column(told, "request")) % np.uint64(self._order.buckets)
        for bucket in np.unique(target).tolist():
            rows = told.filter(pa.array(target == bucket)).combine_chunks()
            name = part_name(int(bucket), self._order.bucket)
            write_part(Path(self._order.answers_to), name, rows)

    def _answers(self) -> pa.Table:
        if self._state.answers is None:
            return ANSWERS.empty_table()
        return read_part(self._store.shelf(_ANSWERS) / self._state.answers)

    def _write_answers(self, answers: pa.Table) -> str:
        unique = f"{self.name}-{uuid.uuid4().hex[:12]}.arrow"
        write_part(self._store.shelf(_ANSWERS), unique, answers.combine_chunks())
        return unique

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
        if len(self._retracted) or len(self._retold):
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
        if len(self._retold):
            touched = [pc.is_in(column(steps, name), self._retold) for name in _TOUCHED]
            needles = np.union1d(needles, of_step[np.asarray(pc.or_(*touched))])
        moved = held_in(of_step, needles)
        traces = self._traces_of(segment)
        stays = ~held_in(hashes(column(traces, "message_id")), needles)
        self._former.append(_chosen(traces, ~stays))
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
            write_rows(self._store.shelf(_TRACES), self.name, traces),
            self._write_steps(steps),
            self._write_hashes(np.unique(hashes(column(traces, "message_id")))),
            steps.num_rows,
        )

    def _write_steps(self, steps: pa.Table) -> str:
        unique = f"{self.name}-{uuid.uuid4().hex[:12]}.arrow"
        write_part(self._store.shelf(_STEPS), unique, steps, compression="lz4")
        return unique

    def _write_hashes(self, found: Hashes) -> str:
        unique = f"{self.name}-{uuid.uuid4().hex[:12]}.npy"
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
