"""Compares what a fleet promised with what it did: its lines, its stores and its journals (DU-3).

Nothing acknowledged is lost, nothing refused is handled, no recorded handling is repeated, the
order of each pair holds, and every message ends in exactly one final outcome: handled, or a dead
letter.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.node.durable_child import BROKEN
from waystation.core.address import STANDARD_TYPES
from waystation.core.custody import Handled
from waystation.journal.read import TableReader
from waystation.journal.schema import MESSAGES
from waystation.wire import custody as wire

Line = list[str]


@contextlib.contextmanager
def reading(store: Path) -> Iterator[sqlite3.Connection]:
    """The database of a store."""
    uri = f"file:{store / 'custody.sqlite'}?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=30)) as db:
        yield db


def held(store: Path) -> int:
    """How many messages a store has."""
    with reading(store) as db:
        return int(db.execute("select count(*) from letters").fetchone()[0])


def dead(store: Path) -> list[tuple[str, str]]:
    """The dead letters of a store: payload and reason."""
    with reading(store) as db:
        rows = db.execute("select body, reason from dead").fetchall()
    return [
        (wire.letter_of(body, STANDARD_TYPES).message.payload.decode(), reason)
        for body, reason in rows
    ]


def ended(store: Path, receiver: str) -> int:
    """How many messages for a receiver have ended by what a store remembers."""
    with reading(store) as db:
        query = "select last, gaps from pairs where receiver = ?"
        rows = db.execute(query, (receiver,)).fetchall()
    found = [Handled(last, json.loads(gaps)) for last, gaps in rows]
    return sum(one.last - sum(final - first + 1 for first, final in one.gaps()) for one in found)


def check(
    lines: dict[str, list[Line]], stores: dict[str, Path], journal: Path, workers: Iterable[str]
) -> None:
    """Check a fleet that has come to rest, with one sender named `sender`."""
    sent = lines["sender"]
    acknowledged = {line[1] for line in sent if line[0] == "acknowledged"}
    refused = {line[1] for line in sent if line[0] == "refused"}
    assert len(acknowledged) > 100
    assert not any(held(store) for store in stores.values())
    over: set[str] = set()
    for name in workers:
        handled = check_worker(lines[name])
        buried = check_dead(stores[name], lines[name])
        assert not handled & buried, sorted(handled & buried)[:10]
        assert ended(stores[name], name) == len(handled | buried), name
        over |= handled | buried
    assert acknowledged <= over, f"lost: {sorted(acknowledged - over)[:10]}"
    assert not refused & over, f"refused, and handled: {sorted(refused & over)[:10]}"
    for name in set(stores) - set(workers):
        assert dead(stores[name]) == [], name
    check_journal(journal, lines)


def check_worker(lines: list[Line]) -> set[str]:
    """Check what one worker did; returns what it handled."""
    begun: set[str] = set()
    recorded: set[str] = set()
    latest = 0
    for kind, *words in lines:
        payload = words[0] if words else ""
        if kind == "begun":
            number, attempt, late = int(payload.split("/")[1]), int(words[1]), words[2] == "1"
            assert payload not in recorded, f"{payload} was recorded, and came again"
            assert payload not in begun or attempt > 1, f"{payload} came again as new"
            assert number >= latest or late or attempt > 1, f"{payload} came after {latest}"
            begun.add(payload)
            latest = max(latest, number)
        elif kind in {"recorded", "dropped"}:
            assert payload not in recorded, f"{payload} has two final outcomes"
            recorded.add(payload)
    return {words[0] for kind, *words in lines if kind == "handled"}


def check_dead(store: Path, lines: list[Line]) -> set[str]:
    """Check the dead letters of a worker; returns them."""
    found = Counter(dead(store))
    assert all(count == 1 for count in found.values()), found.most_common(3)
    assert {reason for _, reason in found} <= {"FAILED"}
    buried = {payload for payload, _ in found}
    raised = {words[0] for kind, *words in lines if kind == "begun" and BROKEN in words[0]}
    assert buried == raised
    return buried


def check_journal(journal: Path, lines: dict[str, list[Line]]) -> None:
    """Check that the journals of a fleet tell at most one final outcome of each message.

    A killed process takes its last second of rows with it, so some have none there.
    """
    found: Counter[str] = Counter()
    for node in lines:
        for batch in TableReader(journal, MESSAGES, node, lambda *_: None).batches():
            for row in batch.select(["message_id", "outcome", "durable"]).to_pylist():
                if row["durable"] and row["outcome"] in {"DELIVERED", "DROPPED"}:
                    found[row["message_id"]] += 1
    assert found
    twice = [id for id, count in found.items() if count > 1]
    assert not twice, twice[:10]
