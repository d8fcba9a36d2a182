"""Spark rows as plain values, and a comparison that names the nodes where two tables differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame

from waystation.testing.oracle import Row

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def collected(frame: DataFrame) -> list[Row]:
    """The rows of a frame; timestamps as microseconds."""
    return [{name: _plain(value) for name, value in row.items()} for row in _pylist(frame)]


def _pylist(frame: DataFrame) -> list[Row]:
    rows: list[Row] = frame.toArrow().to_pylist()
    return rows


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return (value - _EPOCH) // timedelta(microseconds=1)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value


def assert_same(found: Iterable[Row], wanted: Iterable[Row]) -> None:
    """The rows are the same, in any order; otherwise shows missing and surplus ones."""
    here, there = Counter(map(_key, found)), Counter(map(_key, wanted))
    missing, surplus = there - here, here - there
    shown = [
        *("missing: " + row for row in list(missing)[:5]),
        *("surplus: " + row for row in list(surplus)[:5]),
    ]
    assert not shown, f"{missing.total()} missing, {surplus.total()} surplus\n" + "\n".join(shown)


def _key(row: Row) -> str:
    return repr(_ordered(row))


def _ordered(value: Any) -> Any:
    """A value in which the order of names does not matter."""
    if isinstance(value, dict):
        return sorted((name, _ordered(item)) for name, item in value.items())
    return [_ordered(item) for item in value] if isinstance(value, list) else value
