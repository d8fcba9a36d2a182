"""Rows of a frame as messages: the destination, the payload, and the id of each.

Columns in, plain values out; nothing is sent here. An id is computed from the row
itself, so that a repeated task sends the same ids, and whoever receives a message twice can
recognise it.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    NumericType,
    StringType,
    StructType,
)

from waystation.core.message import check_message_id
from waystation.core.multicast import MulticastId
from waystation.errors import LocalError, WaystationError, quote

_PARTS: Final = ("provider", "broadcast", "partition")
_KINDS: Final[dict[str, tuple[type[DataType], ...]]] = {
    "route": (StringType,),
    "multicast_id": (StringType,),
    "provider": (StringType,),
    "broadcast": (StringType,),
    "partition": (StringType, ArrayType),
    "payload": (BinaryType, StringType),
    "ttl": (NumericType,),
    "message_id": (StringType,),
}

_encode: Final = msgspec.msgpack.Encoder().encode


class Outgoing(Struct, frozen=True, gc=False):
    """A message to send: a route as a string, or a multicast id; `ttl` in seconds, or None."""

    row: int  # its number within the task
    route: str | None
    multicast_id: str | None
    payload: bytes
    ttl: float | None
    id: str


class BadRowError(WaystationError):
    """A row cannot be sent; names the first such row."""

    def __init__(self, row: int, problem: str) -> None:
        super().__init__(f"row {row} of this task cannot be sent: {problem}")


def check_columns_to_send(schema: StructType, key: tuple[str, ...]) -> None:
    """Raise a LocalError if a frame lacks a column that is needed to send it."""
    names = schema.fieldNames()
    for name in key:
        if name not in names:
            raise _unfit(f"the frame has no column {quote(name)}", "name columns of it as key")
    for field in schema:
        kinds = _KINDS.get(field.name, (DataType,))
        if not isinstance(field.dataType, kinds):
            found = field.dataType.simpleString()
            raise _unfit(f"the column {field.name} is of type {found}", "convert it: " + _FORM)
    parts = all(name in names for name in _PARTS[:2])
    if "payload" not in names or not ({"route", "multicast_id"} & {*names} or parts):
        raise _unfit(f"the frame has the columns {', '.join(names)}", _FORM)


_FORM: Final = (
    "give route (text) or multicast_id or provider and broadcast, with payload (binary or text) "
    "and, if it shall expire, ttl (seconds)"
)


class Ids:
    """The ids of the rows of one task.

    Equal rows of a task have different ids, by a counter; the same ids each time.

    >>> ids = Ids("recall", None)
    >>> first, second = ids.of([("hub => truck-7", b"stop"), ("hub => truck-7", b"stop")])
    >>> first != second, Ids("recall", None).of([("hub => truck-7", b"stop")]) == [first]
    (True, True)
    """

    def __init__(self, campaign: str, batch: str | None) -> None:
        self._base = blake2b(_encode((campaign, batch)), digest_size=16)
        self._seen = _Seen()

    def of(self, contents: list[tuple[Any, ...]]) -> list[str]:
        """An id for each."""
        digests = [self._digest(_encode(content)) for content in contents]
        ids = [digest.hex() for digest in digests]
        for row, occurrence in self._seen.again(digests):
            ids[row] = self._digest(digests[row] + occurrence.to_bytes(8, "big")).hex()
        return ids

    def _digest(self, content: bytes) -> bytes:
        found = self._base.copy()
        found.update(content)
        return found.digest()


def outgoing(
    batch: pa.RecordBatch, key: tuple[str, ...], ids: Ids, first_row: int
) -> Iterator[Outgoing]:
    """The messages for a batch of rows; raises BadRowError."""
    routes = _texts(batch, "route")
    multicast_ids = list(_multicast_ids(batch, first_row))
    payloads = _payloads(batch)
    ttls = _values(batch, "ttl")
    if "message_id" in batch.schema.names:
        made = list(_checked_ids(_texts(batch, "message_id"), first_row))
    elif key:
        columns = [_values(batch, name) for name in key]
        made = ids.of(list(zip(*columns, strict=True)))
    else:
        made = ids.of(list(zip(routes, multicast_ids, payloads, ttls, strict=True)))
    rows = zip(routes, multicast_ids, payloads, ttls, made, strict=True)
    for number, (route, multicast_id, payload, ttl, id) in enumerate(rows, first_row):
        if (route is None) == (multicast_id is None):
            raise BadRowError(number, "it needs either a route or a multicast id")
        if payload is None:
            raise BadRowError(number, "its payload is null")
        if ttl is not None and not 0 <= ttl < 10**9:
            raise BadRowError(number, f"invalid ttl {quote(ttl)}: give seconds, 0 or more")
        seconds = None if ttl is None else float(ttl)
        yield Outgoing(number, route, multicast_id, payload, seconds, id)


def _texts(batch: pa.RecordBatch, name: str) -> list[str | None]:
    return _values(batch, name)


def _values(batch: pa.RecordBatch, name: str) -> list[Any]:
    if name not in batch.schema.names:
        return [None] * batch.num_rows
    found: list[Any] = batch.column(name).to_pylist()
    return found


def _payloads(batch: pa.RecordBatch) -> list[bytes | None]:
    column = batch.column("payload")
    found: list[bytes | None] = pc.cast(column, pa.binary()).to_pylist()
    return found


def _multicast_ids(batch: pa.RecordBatch, first_row: int) -> Iterator[str | None]:
    """The multicast ids of rows, validated once for each run of equal ids."""
    names = batch.schema.names
    known: dict[Any, str] = {}
    whole = _texts(batch, "multicast_id")
    parts = [_values(batch, name) for name in _PARTS] if "broadcast" in names else []
    for row, id in enumerate(whole):
        broadcast = parts[1][row] if parts else None
        if id is None and broadcast is None:
            yield None
            continue
        partition = parts[2][row] if parts else None
        asked = (id,) if id is not None else (parts[0][row], broadcast, _segments(partition))
        if asked not in known:
            try:
                known[asked] = str(
                    MulticastId.parse(id) if id is not None else MulticastId.of(*asked)
                )
            except LocalError as error:
                raise BadRowError(first_row + row, str(error)) from None
        yield known[asked]


def _segments(partition: str | list[str] | None) -> str | tuple[str, ...]:
    if partition is None:
        return ""
    return partition if isinstance(partition, str) else tuple(partition)


def _checked_ids(ids: list[str | None], first_row: int) -> Iterator[str]:
    for row, id in enumerate(ids):
        try:
            yield check_message_id(id)  # type: ignore[arg-type]
        except LocalError as error:
            raise BadRowError(first_row + row, str(error)) from None


class _Seen:
    """The digests seen so far: eight bytes each, in sorted runs of growing length."""

    def __init__(self) -> None:
        self._runs: list[npt.NDArray[np.uint64]] = []
        self._counts: dict[int, int] = {}  # of those that occurred more than once

    def again(self, digests: list[bytes]) -> list[tuple[int, int]]:
        """Which of these occurred before, here or earlier, and how often."""
        values = np.frombuffer(b"".join(digests), np.uint64)[::2]
        distinct, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        known = self._known(distinct)
        found = []
        for row in np.flatnonzero((known | (counts > 1))[inverse]).tolist():
            number = int(inverse[row])
            value = int(distinct[number])
            occurrence = self._counts.get(value, int(known[number]))
            self._counts[value] = occurrence + 1
            if occurrence:
                found.append((row, occurrence))
        self._learn(distinct[~known])
        return found

    def _known(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        known = np.zeros(len(values), np.bool_)
        for run in self._runs:
            places = np.minimum(np.searchsorted(run, values), len(run) - 1)
            known |= run[places] == values
        return known

    def _learn(self, values: npt.NDArray[np.uint64]) -> None:
        if len(values):
            self._runs.append(values)
        while len(self._runs) > 1 and 2 * len(self._runs[-1]) >= len(self._runs[-2]):
            last = self._runs.pop()  # disjoint from the others
            self._runs[-1] = np.sort(np.concatenate((self._runs[-1], last)), kind="stable")


def _unfit(problem: str, hint: str) -> LocalError:
    return LocalError(problem, rule="AD-4", hint=hint)
