"""Traces of single messages, told by the core: of those that the kernels leave to it. No Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from msgspec import convert, structs

from waystation.core.losses import lost_in
from waystation.core.visits import DAY, Fate, Step, Trace, has_gap, traced, way_of
from waystation.journal.schema import INSTANT
from waystation.pipeline.kernels.answering import MADE, way_hash
from waystation.pipeline.kernels.columns import id_texts
from waystation.pipeline.kernels.evidence import Facts
from waystation.pipeline.tables import HOP

Row = dict[str, Any]


def told_one_by_one(rows: pa.Table, facts: Facts) -> pa.Table:
    """The traces of the messages with these steps, which have their ids as two numbers."""
    messages: dict[str, list[Step]] = {}
    ids = id_texts(rows.column("high").to_numpy(), rows.column("low").to_numpy()).to_pylist()
    for id, row in zip(ids, _plain(rows).to_pylist(), strict=True):
        messages.setdefault(id, []).append(_step(row))
    made = []
    for id, steps in messages.items():
        found = traced(id, steps, facts.evidence)
        made += [_row(id, trace, facts, several=len(found) > 1) for trace in found]
    return pa.table(
        {field.name: _column([row[field.name] for row in made], field.type) for field in MADE},
        schema=MADE,
    )


def _plain(rows: pa.Table) -> pa.Table:
    """Rows with numbers for instants, and plain strings."""
    columns = {}
    for name in rows.column_names[2:]:
        values = rows.column(name)
        if pa.types.is_timestamp(values.type):
            values = values.cast(pa.int64())
        elif pa.types.is_dictionary(values.type):
            values = values.cast(pa.string())
        columns[name] = values
    return pa.table(columns)


def _step(row: Row) -> Step:
    row["onward"], row["return"] = _route(row["onward"]), _route(row.pop("back"))
    return convert(row, Step)


def _route(text: str) -> tuple[str, ...]:
    return tuple(text.split(" ")[1:])


def _row(id: str, trace: Trace, facts: Facts, *, several: bool) -> Row:
    way = way_of(trace)
    names = [field.name for field in MADE if hasattr(trace, field.name)]
    return {
        **{name: getattr(trace, name) for name in names},
        "message_id": id,
        "path": [_hop(visit, step) for visit in trace.visits for step in visit.steps],
        "lost": [structs.asdict(lost) for lost in lost_in(trace)],
        "fates": [fate.value for visit in trace.visits for fate in visit.fates],
        "latency_ms": trace.latency / 1_000,
        "is_complete": trace.complete,
        "is_symmetric": trace.symmetric,
        "is_looped": trace.looped,
        "day": trace.visits[0].received_at // DAY,
        "way": way_hash(way),
        "way_back": way_hash(way[::-1]),
        "has_gap": has_gap(trace),
        "first_node": way[0],
        "nodes": way if several else None,
        "is_open": bool(trace.waiting) or any(_are_under_way(trace, facts)),
    }


def _are_under_way(trace: Trace, facts: Facts) -> Iterator[bool]:
    for visit in trace.visits:
        for step, fate in zip(visit.steps, visit.fates, strict=True):
            if fate is Fate.UNKNOWN and step.next_node is not None:
                yield facts.may_be_under_way(step.next_node, step.at - visit.ahead)


def _hop(visit: Any, step: Step) -> Row:
    told = {field.name: getattr(step, field.name, None) for field in HOP}
    left = step.at if step.outcome == "FORWARDED" else None
    return {**told, "left_at": left, "follows": visit.follows, "depth": visit.depth}


def _column(values: list[Any], type: pa.DataType) -> pa.Array:
    """Values as Arrow has them; instants are numbers of microseconds."""
    if type == INSTANT:
        return pa.array(values, pa.int64()).view(INSTANT)
    if pa.types.is_list(type) and pa.types.is_struct(type.value_type):
        parts = type.value_type
        counts = [0 if each is None else len(each) for each in values]
        steps = [step for each in values for step in each]
        fields = [_column([step[field.name] for step in steps], field.type) for field in parts]
        offsets = [0]
        for count in counts:
            offsets.append(offsets[-1] + count)
        struct = pa.StructArray.from_arrays(fields, fields=list(parts))
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), struct)
    return pa.array(values, type)
