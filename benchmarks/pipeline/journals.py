"""The journals of the benchmark: simulated fleets, and one node with many subscriptions.

Each is made once and kept, under a name that says how large it is.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from waystation.journal.layout import Stem, table_directory
from waystation.journal.records import INSTANT, SCHEMAS
from waystation.journal.seal import write_sealed
from waystation.pipeline.fleet import Fleet
from waystation.pipeline.fleet_journal import TRUTH, CellWriter

KEPT = Path(os.environ.get("WAYSTATION_BENCH_DATA", tempfile.gettempdir())) / "waystation-bench"
BEGIN = 1_767_225_600_000_000
NODES = 64
EVENTS_A_PARTICIPANT = 17  # in a simulated hour: renewals at the hub, and what happens at leaves
ROWS_A_MESSAGE = 3.4
_CHUNK = 500_000


def kept(name: str, write: Callable[[Path], None]) -> Path:
    """The journal of this name; it appears when it is whole."""
    journal = KEPT / name
    if not journal.exists():
        unfinished = KEPT / f".{name}"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        write(unfinished)
        unfinished.rename(journal)
    return journal


def routes(rows: int) -> Path:
    """A fleet with about so many rows of `routes`, and hardly a message."""
    fleet = Fleet(NODES, rows // EVENTS_A_PARTICIPANT, 1_000, seed=1)
    return kept(f"routes-{rows}", partial(_write_fleet, fleet))


def messages(rows: int) -> Path:
    """A fleet with about so many rows of `messages`, and a hundredth of that of `routes`."""
    count = int(rows / ROWS_A_MESSAGE)
    fleet = Fleet(NODES, max(rows // 100 // EVENTS_A_PARTICIPANT, 100), count, seed=2)
    return kept(f"messages-{rows}", partial(_write_fleet, fleet))


def _write_fleet(fleet: Fleet, directory: Path) -> None:
    (directory / TRUTH / "losses").mkdir(parents=True)
    with ProcessPoolExecutor() as pool:
        list(pool.map(partial(_write_cell, fleet, directory), range(fleet.cells)))


def _write_cell(fleet: Fleet, directory: Path, cell: int) -> None:
    CellWriter(fleet, cell, directory).write()


def publications(rows: int, patterns: int) -> Path:
    """One node with so many subscriptions, and so many publications of which each matches one."""
    return kept(f"publications-{rows}-{patterns}", partial(_write_hub, rows, patterns))


def _write_hub(rows: int, patterns: int, directory: Path) -> None:
    """70 % exact, 20 % with a `+`, 10 % with a last `*`, two to six segments."""
    rng = np.random.default_rng(3)
    parts = _segments(patterns, rng)
    shapes = [_pattern(own, kind) for own, kind in zip(parts, rng.random(patterns), strict=True)]
    receivers = pa.array([f"receiver-{number}" for number in range(patterns)])
    everybody = {
        "incarnation": pa.array(np.full(patterns, BEGIN // 1_000)),
        "at": pa.array(np.full(patterns, BEGIN), INSTANT),
    }
    local = pa.array(np.ones(patterns, bool))
    put = {
        **everybody,
        "seq": pa.array(np.arange(1, patterns + 1)),
        "kind": pa.array(["put"] * patterns),
        "participant": receivers,
        "address": pa.array([f"0#receiver-{number}" for number in range(patterns)]),
        "expiry": pa.nulls(patterns, INSTANT),
        "local": local,
        "visible": local,
        "accepted": local,
        "sticky": pa.array(np.zeros(patterns, bool)),
    }
    subscribe = {
        **everybody,
        "seq": pa.array(np.arange(patterns + 1, 2 * patterns + 1)),
        "kind": pa.array(["subscribe"] * patterns),
        "pattern": pa.array(shapes),
        "receiver": receivers,
    }
    start = {"kind": ["start"], "detail": [""], "lost": [0], "seq": [0]}
    begun = {"incarnation": [BEGIN // 1_000], "at": pa.array([BEGIN], INSTANT)}
    _write(directory, "nodes", {**start, **begun})
    _write(directory, "routes", put)
    _write(directory, "subscriptions", subscribe)
    ids = pa.array([_id(own, rng) for own in parts[: min(patterns, 200_000)]])
    for first in range(0, rows, _CHUNK):
        _write(
            directory, "messages", _published(ids, first, min(_CHUNK, rows - first), rng, patterns)
        )


def _segments(count: int, rng: np.random.Generator) -> list[list[str]]:
    depth = rng.integers(1, 5, count)
    provider, broadcast = rng.integers(0, max(count // 20, 1), count), rng.integers(0, 4, count)
    rest = rng.integers(0, 30, (count, 4))
    return [
        [f"p{provider[n]}", f"b{broadcast[n]}", *(f"s{s}" for s in rest[n, : depth[n]].tolist())]
        for n in range(count)
    ]


def _pattern(segments: list[str], kind: float) -> str:
    segments = list(segments)
    if 0.7 < kind <= 0.9:
        segments[2 + int(kind * 1_000) % (len(segments) - 2)] = "+"
    elif kind > 0.9:
        segments[-1] = "*"
    return "/".join(segments)


def _id(segments: list[str], rng: np.random.Generator) -> str:
    last = segments[-1] if rng.random() < 0.7 else f"s{rng.integers(0, 30)}"
    return "/".join([*segments[:-1], last])


def _published(
    ids: pa.Array, first: int, count: int, rng: np.random.Generator, patterns: int
) -> dict[str, pa.Array]:
    at = BEGIN + 1_000_000 + 10 * np.arange(first, first + count)
    which = pa.array(rng.integers(0, len(ids), count))
    text, nothing = pa.string(), pa.nulls(count, pa.string())
    routes = pa.ListArray.from_arrays(pa.array(np.zeros(count + 1, np.int32)), pa.array([], text))
    return {
        "incarnation": pa.array(np.full(count, BEGIN // 1_000)),
        "seq": pa.array(2 * patterns + 1 + np.arange(first, first + count)),
        "at": pa.array(at + 5, INSTANT),
        "message_id": pa.array(
            [f"{number:032x}" for number in range(first + 1, first + count + 1)]
        ),
        "kind": pa.array(["multicast"]).take(pa.array(np.zeros(count, np.int8))),
        "onward": routes,
        "return": routes,
        "multicast_id": ids.take(which),
        "outcome": pa.array(["QUEUED"]).take(pa.array(np.zeros(count, np.int8))),
        "reason": nothing,
        "next_hop": nothing,
        "recipient": nothing,
        "bytes": pa.array(np.full(count, 64, np.int32)),
        "expiry": pa.nulls(count, INSTANT),
        "from_global": pa.array(np.zeros(count, bool)),
        "received_at": pa.array(at, INSTANT),
    }


def _write(directory: Path, table: str, columns: dict[str, pa.Array]) -> None:
    rows = pa.table({name: columns[name] for name in SCHEMAS[table].names}, schema=SCHEMAS[table])
    target = table_directory(directory, table, "hub")
    target.mkdir(parents=True, exist_ok=True)
    stem = Stem(BEGIN // 1_000, rows.column("seq")[0].as_py())
    write_sealed(target, table, stem, rows.to_batches(), fsync=False)
