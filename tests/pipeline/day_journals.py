"""Journals with midnight in the middle: a simulated fleet whose time is stretched over days."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from waystation import pipeline
from waystation.journal.schema import SCHEMAS
from waystation.pipeline.tables import BUILT
from waystation.why.finished import StoredTables

DAY = 24 * 3_600_000_000


def stretched(source: Path, target: Path, *, begin: int, to: int, rows: int = 400) -> Path:
    """A journal whose records begin then, and end so much later.

    Each file of the source becomes files of this many rows.
    """
    first, last = _span(source)
    for table in SCHEMAS:
        for path in sorted((source / table).rglob("*.parquet")):
            found = pq.read_table(path, partitioning=None)
            for name in ("at", "received_at", "expiry"):
                if name in found.column_names:
                    found = _moved(found, name, first, to / (last - first), begin)
            directory = target / path.parent.relative_to(source)
            directory.mkdir(parents=True, exist_ok=True)
            for place in range(0, found.num_rows, rows):
                part = found.slice(place, rows)
                named = f"{part['incarnation'][0]}-{part['seq'][0]}.parquet"
                pq.write_table(part, directory / named)
    return target


def _span(journal: Path) -> tuple[int, int]:
    """The first and the last record."""
    found = [
        pc.min_max(micros(pq.read_table(path, columns=["at"], partitioning=None)["at"]))
        for path in journal.rglob("*/node=*/*.parquet")
        if path.relative_to(journal).parts[0] in SCHEMAS
    ]
    return min(at["min"].as_py() for at in found), max(at["max"].as_py() for at in found)


def micros(instants: Any) -> Any:
    """Times as numbers; files may have them in other units."""
    return instants.cast(pa.timestamp("us", "UTC")).cast(pa.int64())


def _moved(rows: pa.Table, name: str, first: int, factor: float, begin: int) -> pa.Table:
    place = rows.column_names.index(name)
    far = pc.multiply(pc.subtract(micros(rows.column(name)), first).cast(pa.float64()), factor)
    moved = pc.add(pc.round(far).cast(pa.int64()), begin).cast(pa.timestamp("us", "UTC"))
    return rows.set_column(place, pa.field(name, moved.type), moved)


def content(out: str | Path) -> dict[str, list[str]]:
    """The rows of all tables, as our readers see them."""
    stored = StoredTables(out)
    found: dict[str, list[str]] = {}
    for table in pipeline.TABLES:
        dataset: Any = stored.dataset(table)
        rows = dataset.to_table(columns=BUILT[table].names).to_pylist()
        found[table] = sorted(map(repr, rows))
    return found


def differences(out: str | Path, expected: dict[str, list[str]]) -> dict[str, Any]:
    """The rows that are too many or missing, by table."""
    found = {}
    for table, rows in content(out).items():
        if rows != expected[table]:
            more = sorted(set(rows) - set(expected[table]))[:3]
            less = sorted(set(expected[table]) - set(rows))[:3]
            found[table] = (len(rows), len(expected[table]), "more", more, "less", less)
    return found
