"""Requests and their answers: which trace answers which, and whether it came back the same way.

An answer has an id of its own, so its trace is made elsewhere than that of its request. What it
takes to tie the two is little: a row of ANSWERS for each answer. No Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from waystation.core.visits import DAY
from waystation.journal.schema import TEXT
from waystation.pipeline.kernels.columns import (
    ID_DIGITS,
    Longs,
    Words,
    column,
    id_words,
    longs,
    word_codes,
)
from waystation.pipeline.tables import BUILT

MADE: Final = pa.schema(
    [
        *BUILT["traces"],
        pa.field("way", pa.uint64()),
        pa.field("way_back", pa.uint64()),
        pa.field("has_gap", pa.bool_()),
        pa.field("first_node", TEXT),
        pa.field("nodes", pa.list_(TEXT)),
        pa.field("is_open", pa.bool_()),
    ]
)
"""Traces that do not know their answers yet, with what it takes to compare the ways of both.

A way is a hash of the nodes that a message visited, in order; the way back of those in reverse.
They are null where no message is an answer. `nodes` are set if the message has several traces.
A trace is open if more records of other messages may change it: it waits, or a copy is under way.
"""

ANSWERS: Final = pa.schema(
    {
        "request": TEXT,
        "answer": TEXT,
        "started": pa.int64(),
        "first_node": TEXT,
        "way_back": pa.uint64(),
        "has_gap": pa.bool_(),
    }
)
"""A trace that is an answer, as the trace of its request has to know it."""

_BASE: Final = 0x9E3779B97F4A7C15


def _hash(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


def way_hash(nodes: Sequence[str]) -> int:
    """A way as a hash: what `ways_of` has for many.

    >>> way_hash(["a", "b"]) == way_hash(["b", "a"])
    False
    """
    terms = (_hash(name) * pow(_BASE, place, 2**64) for place, name in enumerate(nodes, 1))
    return sum(terms) % 2**64


def ways_of(names: Any, node: Longs, message: Longs) -> tuple[Words, Words]:
    """The ways of messages and their ways back, from visits in the order of messages."""
    value = np.array([_hash(name) for name in names.to_pylist()], np.uint64)[node]
    begins = np.flatnonzero(np.append(True, message[1:] != message[:-1]))
    ends = np.append(begins[1:], len(message))
    counts = ends - begins
    place = np.arange(len(message)) - np.repeat(begins, counts)
    powers = np.cumprod(np.full(int(counts.max()) + 1, _BASE, np.uint64))
    way = np.add.reduceat(value * powers[place], begins)
    back = np.add.reduceat(value * powers[np.repeat(counts, counts) - 1 - place], begins)
    return way, back


def answers_in(made: pa.Table) -> pa.Table:
    """The answers among traces."""
    is_id = pc.equal(pc.binary_length(made.column("answers")), ID_DIGITS)
    found = made.filter(pc.fill_null(is_id, fill_value=False))
    columns = {
        "request": found.column("answers"),
        "answer": found.column("message_id"),
        "started": found.column("started").cast(pa.int64()),
        **{name: found.column(name) for name in ("first_node", "way_back", "has_gap")},
    }
    return pa.table(columns, schema=ANSWERS)


def answers_before(traces: pa.Table) -> pa.Table:
    """The answers among traces as they were: without a start, they are no longer."""
    is_id = pc.equal(pc.binary_length(traces.column("answers")), ID_DIGITS)
    found = traces.filter(pc.fill_null(is_id, fill_value=False))
    known = {"request": found.column("answers"), "answer": found.column("message_id")}
    lacking = [field for field in ANSWERS if field.name not in known]
    nulls = {field.name: pa.nulls(found.num_rows, field.type) for field in lacking}
    return pa.table({**known, **nulls}, schema=ANSWERS)


def tied(made: pa.Table, answers: pa.Table, *, paths: bool = True) -> pa.Table:
    """Traces that know their answers, which are among these; others are of other requests."""
    if answers.num_rows and made.num_rows:
        made = _tied(made.combine_chunks(), answers.combine_chunks())
    for name in () if paths else ("path", "fates"):
        place = made.schema.get_field_index(name)
        nulls = pa.nulls(made.num_rows, made.schema.field(place).type)
        made = made.set_column(place, name, nulls)
    return made.select(BUILT["traces"].names)


def _tied(made: pa.Table, answers: pa.Table) -> pa.Table:
    requests, given = (
        id_words(column(table, name))
        for table, name in ((made, "message_id"), (answers, "request"))
    )
    count = made.num_rows
    code = word_codes(*(np.concatenate(pair) for pair in zip(requests, given, strict=True)))
    request, asked = code[:count], code[count:]
    traces = np.bincount(request, minlength=int(code.max()) + 1)
    row, answer = _pairs(made, answers, request, asked, traces)
    in_time = longs(answers, "started")[answer] - longs(made, "ended")[row] <= DAY
    row, answer = row[in_time], answer[in_time]
    if not len(row):
        return made
    ids = np.asarray(pc.rank(column(answers, "answer"), tiebreaker="dense")).astype(np.int64)
    order = np.lexsort((ids[answer], longs(answers, "started")[answer], row))
    row, answer = row[order], answer[order]
    first = np.append(True, row[1:] != row[:-1])
    legs = 1 + np.bincount(row, minlength=count)
    by = np.full(count, -1)
    by[row[first]] = answer[first]
    return _with_answers(made, answers, by, legs)


def _pairs(
    made: pa.Table, answers: pa.Table, request: Longs, asked: Longs, traces: Longs
) -> tuple[Longs, Longs]:
    """The traces and the answers that belong together."""
    only = np.full(len(traces), -1)
    only[request] = np.arange(len(request))
    plain = np.flatnonzero(traces[asked] == 1)
    rows, found = [only[asked[plain]]], [plain]
    for answer in np.flatnonzero(traces[asked] > 1).tolist():
        node = answers.column("first_node")[answer].as_py()
        for row in np.flatnonzero(request == asked[answer]).tolist():
            if node in (made.column("nodes")[row].as_py() or ()):
                rows.append(np.array([row]))
                found.append(np.array([answer]))
    return np.concatenate(rows), np.concatenate(found)


def _with_answers(made: pa.Table, answers: pa.Table, by: Longs, legs: Longs) -> pa.Table:
    picked = pa.array(by, mask=by < 0)
    gap = pc.or_(column(made, "has_gap"), column(answers, "has_gap").take(picked))
    same = pc.equal(column(made, "way"), column(answers, "way_back").take(picked))
    symmetric = pc.if_else(gap, pa.scalar(None, pa.bool_()), same)
    columns = {
        "answered_by": column(answers, "answer").take(picked),
        "legs": pa.array(legs.astype(np.int32)),
        "symmetric": symmetric,
        "is_symmetric": symmetric,
    }
    for name, values in columns.items():
        made = made.set_column(made.schema.get_field_index(name), name, values)
    return made
