"""The journals of the benchmark: simulated fleets, hubs with many entries, and one with many ears.

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
import pyarrow.parquet as pq

from waystation.journal.layout import Stem, table_directory
from waystation.journal.schema import INSTANT, SCHEMAS
from waystation.journal.seal import write_sealed
from waystation.pipeline.kernels.columns import id_texts
from waystation.simulate.fleet import Fleet
from waystation.simulate.journal import write_fleet

KEPT = Path(os.environ.get("WAYSTATION_BENCH_DATA", tempfile.gettempdir())) / "waystation-bench"
BEGIN = 1_767_225_600_000_000
NODES = 64
EVENTS_A_PARTICIPANT = 12.65  # in a simulated hour: renewals at the hub, and what happens at leaves
ROWS_A_MESSAGE = 3.4
ENTRIES = 100_000  # live ones of each hub
ROWS_A_HUB = 1_250_000
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
    fleet = Fleet(NODES, int(rows / EVENTS_A_PARTICIPANT), 1_000, seed=1)
    return kept(f"events-2-{rows}", partial(_write_fleet, fleet))


def messages(rows: int) -> Path:
    """A fleet with about so many rows of `messages`, and a hundredth of that of `routes`."""
    count = int(rows / ROWS_A_MESSAGE)
    fleet = Fleet(NODES, max(int(rows / 100 / EVENTS_A_PARTICIPANT), 100), count, seed=2)
    return kept(f"sent-2-{rows}", partial(_write_fleet, fleet))


def rows_in(journal: Path, table: str) -> int:
    """How many rows a table of a journal has."""
    return sum(pq.read_metadata(file).num_rows for file in (journal / table).rglob("*.parquet"))


def _write_fleet(fleet: Fleet, directory: Path) -> None:
    with ProcessPoolExecutor() as pool:
        write_fleet(fleet, directory, pool.map)


def hubs(rows: int) -> Path:
    """Hubs with a hundred thousand live entries each, and so many messages to these by name."""
    return kept(f"hubs-{rows}", partial(_write_hubs, rows))


def _write_hubs(rows: int, directory: Path) -> None:
    count = min(8, max(2, rows // ROWS_A_HUB))
    with ProcessPoolExecutor() as pool:
        list(pool.map(partial(_write_full_hub, directory, rows // count), range(count)))


def _write_full_hub(directory: Path, rows: int, number: int) -> None:
    """Each entry is put at the beginning, and a fifth of them anew later; one in 20 is unknown."""
    rng = np.random.default_rng(number)
    node, again = f"hub-{number}", ENTRIES // 5
    names = pa.array([f"truck-{number}-{entry}" for entry in range(ENTRIES)])
    addresses = [f"0#truck-{number}-{entry}" for entry in range(ENTRIES + ENTRIES // 20)]
    places = pa.array([*addresses[:ENTRIES], *(f"1#10.0.{number}.{n}:4000" for n in range(50))])
    who = np.append(np.arange(ENTRIES), rng.integers(0, ENTRIES, again))
    local = who % 2 == 0
    span = 10 * rows
    at = np.append(np.full(ENTRIES, BEGIN), BEGIN + np.sort(rng.integers(0, span, again)))
    _write_start(directory, node)
    put = {
        **_routes_put(len(who), places.take(pa.array(np.where(local, who, ENTRIES + who % 50)))),
        "at": pa.array(at, INSTANT),
        "participant": names.take(pa.array(who)),
        "local": pa.array(local),
    }
    _write(directory, "routes", put, node)
    heard = {"seq": [len(who) + 1], "kind": ["subscribe"], "pattern": ["p/b"], "receiver": ["ear"]}
    _write(directory, "subscriptions", {**_everybody(1), **heard}, node)
    for first in range(0, rows, _CHUNK):
        count = min(_CHUNK, rows - first)
        aims = pa.array(addresses).take(pa.array(rng.integers(0, len(addresses), count)))
        onward = pa.ListArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32)), aims)
        sent = {
            **_messages_sent(first, count, len(who) + 2, number),
            "kind": _repeated("unicast", count),
            "onward": onward,
            "multicast_id": pa.nulls(count, pa.string()),
        }
        _write(directory, "messages", sent, node)


def publications(rows: int, patterns: int) -> Path:
    """One node with so many subscriptions, and so many publications of which each matches one."""
    return kept(f"publications-{rows}-{patterns}", partial(_write_hub, rows, patterns))


def _write_hub(rows: int, patterns: int, directory: Path) -> None:
    """70 % exact, 20 % with a `+`, 10 % with a last `*`, two to six segments."""
    rng = np.random.default_rng(3)
    parts = _segments(patterns, rng)
    shapes = [_pattern(own, kind) for own, kind in zip(parts, rng.random(patterns), strict=True)]
    receivers = pa.array([f"receiver-{number}" for number in range(patterns)])
    addresses = pa.array([f"0#receiver-{number}" for number in range(patterns)])
    subscribe = {
        **_everybody(patterns),
        "seq": pa.array(np.arange(patterns + 1, 2 * patterns + 1)),
        "kind": _repeated("subscribe", patterns),
        "pattern": pa.array(shapes),
        "receiver": receivers,
    }
    _write_start(directory, "hub")
    _write(directory, "routes", {**_routes_put(patterns, addresses), "participant": receivers})
    _write(directory, "subscriptions", subscribe)
    ids = pa.array([_id(own, rng) for own in parts[: min(patterns, 200_000)]])
    for first in range(0, rows, _CHUNK):
        count = min(_CHUNK, rows - first)
        sent = {
            **_messages_sent(first, count, 2 * patterns + 1, 0),
            "multicast_id": ids.take(pa.array(rng.integers(0, len(ids), count))),
        }
        _write(directory, "messages", sent)


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


def _write_start(directory: Path, node: str) -> None:
    start = {"kind": ["start"], "detail": [""], "lost": [0], "seq": [0]}
    _write(directory, "nodes", {**_everybody(1), **start}, node)


def _everybody(count: int) -> dict[str, pa.Array]:
    return {
        "incarnation": pa.array(np.full(count, BEGIN // 1_000)),
        "at": pa.array(np.full(count, BEGIN), INSTANT),
    }


def _routes_put(count: int, addresses: pa.Array) -> dict[str, pa.Array]:
    """Puts of local entries that never expire."""
    local = pa.array(np.ones(count, bool))
    return {
        **_everybody(count),
        "seq": pa.array(np.arange(1, count + 1)),
        "kind": _repeated("put", count),
        "address": addresses,
        "expiry": pa.nulls(count, INSTANT),
        "local": local,
        "visible": local,
        "accepted": local,
        "sticky": pa.array(np.zeros(count, bool)),
    }


def _messages_sent(first: int, count: int, seq: int, hub: int) -> dict[str, pa.Array]:
    """Publications, one every ten microseconds."""
    numbers = np.arange(first, first + count)
    at = BEGIN + 1_000_000 + 10 * numbers
    nothing = pa.nulls(count, pa.string())
    routes = pa.ListArray.from_arrays(
        pa.array(np.zeros(count + 1, np.int32)), pa.array([], pa.string())
    )
    return {
        "incarnation": pa.array(np.full(count, BEGIN // 1_000)),
        "seq": pa.array(seq + numbers),
        "at": pa.array(at + 5, INSTANT),
        "message_id": id_texts(np.full(count, hub, np.uint64), (numbers + 1).astype(np.uint64)),
        "kind": _repeated("multicast", count),
        "onward": routes,
        "return": routes,
        "outcome": _repeated("QUEUED", count),
        "reason": nothing,
        "next_hop": nothing,
        "recipient": nothing,
        "bytes": pa.array(np.full(count, 64, np.int32)),
        "expiry": pa.nulls(count, INSTANT),
        "from_global": pa.array(np.zeros(count, bool)),
        "received_at": pa.array(at, INSTANT),
    }


def _repeated(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text), count)


def _write(directory: Path, table: str, columns: dict[str, pa.Array], node: str = "hub") -> None:
    rows = pa.table({name: columns[name] for name in SCHEMAS[table].names}, schema=SCHEMAS[table])
    target = table_directory(directory, table, node)
    target.mkdir(parents=True, exist_ok=True)
    stem = Stem(BEGIN // 1_000, rows.column("seq")[0].as_py())
    write_sealed(target, table, stem, rows.to_batches(), fsync=False)
