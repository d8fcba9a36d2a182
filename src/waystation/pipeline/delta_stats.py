"""The statistics of a Parquet file as Delta tables have them: rows, and bounds of columns.

They are taken from the footer, so nothing is counted again. Readers of Delta tables use them to
leave out files.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import pyarrow as pa

_MILLISECOND: Final = timedelta(milliseconds=1)


def delta_stats(footer: Any, schema: pa.Schema) -> str:
    """The statistics in a file's footer, as JSON."""
    found: dict[str, Any] = {"numRecords": footer.num_rows}
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name, number in _leaves(footer, schema).items():
        groups = [footer.row_group(group).column(number) for group in range(footer.num_row_groups)]
        told = [group.statistics for group in groups]
        if not told or not all(one is not None and one.has_null_count for one in told):
            continue
        nulls[name] = sum(one.null_count for one in told)
        bounded = [one for one in told if one.has_min_max]
        if len(bounded) == len([one for one in told if one.num_values]) and bounded:
            lowest[name] = _json(min(one.min for one in bounded), up=False)
            highest[name] = _json(max(one.max for one in bounded), up=True)
    found |= {"minValues": lowest, "maxValues": highest, "nullCount": nulls}
    return msgspec.json.encode(found).decode()


def _leaves(footer: Any, schema: pa.Schema) -> dict[str, int]:
    """The numbers of the columns that are not nested, by name."""
    flat = {field.name for field in schema if not pa.types.is_nested(field.type)}
    paths = [footer.schema.column(number).path for number in range(footer.num_columns)]
    return {path: number for number, path in enumerate(paths) if path in flat}


def _json(value: Any, *, up: bool) -> Any:
    """A bound as JSON has it; times have milliseconds there, so the upper one is rounded up."""
    if not isinstance(value, datetime):
        return value
    known = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    whole = known.replace(microsecond=known.microsecond // 1_000 * 1_000)
    if up and whole != known:
        whole += _MILLISECOND
    return whole.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
