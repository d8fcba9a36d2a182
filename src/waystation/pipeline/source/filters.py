"""Filters of a query on a table's columns, as far as they can be used for reading.

Takes Spark's filters and returns conditions. A condition says which rows satisfy it, as SQL
does (null satisfies nothing), and which row groups cannot have such a row. Opens no files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from pyspark.sql import datasource as spark

from waystation.journal.pruning import bounds_of
from waystation.pipeline.instants import instant

_COMPARISONS: Final[dict[type, str]] = {
    spark.EqualTo: "equal",
    spark.EqualNullSafe: "equal",
    spark.LessThan: "less",
    spark.LessThanOrEqual: "less_equal",
    spark.GreaterThan: "greater",
    spark.GreaterThanOrEqual: "greater_equal",
    spark.In: "in",
    spark.IsNull: "is_null",
    spark.IsNotNull: "is_valid",
    spark.StringStartsWith: "starts_with",
    spark.StringEndsWith: "ends_with",
    spark.StringContains: "contains",
}
_TEXT_ONLY: Final = ("starts_with", "ends_with", "contains")


class Condition(Struct, frozen=True):
    """One condition on one column; times are microseconds.

    >>> rows = pa.table({"seq": [1, None, 3]})
    >>> rows.filter(Condition("seq", "greater", [1]).holds(rows)).column("seq").to_pylist()
    [3]
    """

    column: str
    test: str
    values: list[Any] = []  # one, except for "in"; of the type of the column
    negated: bool = False

    def holds(self, rows: pa.Table) -> pa.ChunkedArray:
        """Which rows satisfy it; null where SQL says null, which counts as false."""
        found = _TESTS[self.test](rows.column(self.column), self.values)
        return pc.invert(found) if self.negated else found

    def may_hold(self, group: Any) -> bool:
        """Whether a row group may have a row that satisfies it, according to the file's footer."""
        possible = _POSSIBLE.get(self.test)
        if possible is None or self.negated:
            return True
        bounds = bounds_of(group, self.column)
        if bounds is None or not all(type(value) is type(bounds[0]) for value in self.values):
            return True
        return any(possible(*bounds, value) for value in self.values)


def condition_of(filter: spark.Filter, schema: pa.Schema) -> Condition | None:
    """The condition for a filter of Spark's, or None if it cannot be used here."""
    negated = isinstance(filter, spark.Not)
    if isinstance(filter, spark.Not):
        filter = filter.child
    test = _COMPARISONS.get(type(filter))
    path: Sequence[str] = getattr(filter, "attribute", ())
    if test is None or len(path) != 1 or path[0] not in schema.names:
        return None
    kind = schema.field(path[0]).type
    given: Any = getattr(filter, "value", None)
    values: list[Any] = [] if test in ("is_null", "is_valid") else [given]
    if test == "in":
        values = list(given)
    elif isinstance(filter, spark.EqualNullSafe) and negated:
        return None  # here, and only here, null differs from every value
    if test in _TEXT_ONLY and not pa.types.is_string(kind):
        return None
    found = [_fitting(value, kind) for value in values]
    return None if None in found else Condition(path[0], test, found, negated)


def all_hold(conditions: Iterable[Condition], rows: pa.Table) -> pa.Table:
    """The rows that satisfy every condition."""
    for condition in conditions:
        if not rows.num_rows:
            break
        rows = rows.filter(condition.holds(rows))
    return rows


def _fitting(value: Any, kind: pa.DataType) -> Any:
    """A value as it is compared with a column of this type; None if the two do not fit."""
    if pa.types.is_timestamp(kind):
        aware = isinstance(value, datetime) and value.tzinfo is not None
        return instant(value) if aware else None
    if pa.types.is_boolean(kind):
        return value if isinstance(value, bool) else None
    if pa.types.is_integer(kind):
        return value if isinstance(value, int) and not isinstance(value, bool) else None
    return value if pa.types.is_string(kind) and isinstance(value, str) else None


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    # An integer may be too large for its column; then it is compared as a larger type.
    return pa.scalar(value, pa.int64() if pa.types.is_integer(kind) else kind)


def _compare(name: str) -> Callable[[Any, list[Any]], Any]:
    function = getattr(pc, name)
    return lambda column, values: function(column, _scalar(values[0], column.type))


def _is_in(column: Any, values: list[Any]) -> Any:
    kind = column.type
    if pa.types.is_timestamp(kind):
        allowed = pa.array(values, pa.int64()).cast(kind)
    else:
        column = column.cast(pa.int64()) if pa.types.is_integer(kind) else column
        allowed = pa.array(values, column.type)
    found = pc.is_in(column, allowed)
    return pc.if_else(pc.is_valid(column), found, pa.scalar(None, pa.bool_()))


_TESTS: Final[dict[str, Callable[[Any, list[Any]], Any]]] = {
    **{
        name: _compare(name) for name in ("equal", "less", "less_equal", "greater", "greater_equal")
    },
    "in": _is_in,
    "is_null": lambda column, _: pc.is_null(column),
    "is_valid": lambda column, _: pc.is_valid(column),
    "starts_with": lambda column, values: pc.starts_with(column, values[0]),
    "ends_with": lambda column, values: pc.ends_with(column, values[0]),
    "contains": lambda column, values: pc.match_substring(column, values[0]),
}

_POSSIBLE: Final[dict[str, Callable[[Any, Any, Any], bool]]] = {
    "equal": lambda low, high, value: low <= value <= high,
    "in": lambda low, high, value: low <= value <= high,
    "less": lambda low, _, value: low < value,
    "less_equal": lambda low, _, value: low <= value,
    "greater": lambda _, high, value: high > value,
    "greater_equal": lambda _, high, value: high >= value,
    "starts_with": lambda low, high, value: low[: len(value)] <= value <= high,
}
"""Whether a value between these bounds may satisfy it."""
