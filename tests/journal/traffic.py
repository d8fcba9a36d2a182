"""Records as a node makes them, and what a journal contains, for the tests of the journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from waystation.core.address import Address, Route
from waystation.core.message import Arrival, Message
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.core.record import ChangeRecord, ClaimKind, ClaimRecord, MessageRecord
from waystation.core.routing import RouteChange, RouteKind, RoutingEntry
from waystation.journal.read import Entry, JournalReader, RowFilter
from waystation.testing import wait_until as until

__all__ = ["until"]  # for the tests of the journal

BEGIN = 1_700_000_000_000_000
DELIVERED = Verdict(Outcome.DELIVERED, None, "echo", Address(0, b"echo"))
FORWARDED = Verdict(Outcome.FORWARDED, None, "truck-7", Address(1, b"10.0.0.9:4000"))
NO_ROUTE = Verdict.dropped(Reason.NO_ROUTE, "truck-8")
ONWARD = Route.parse("echo")
BACK = Route.parse("1#10.0.0.2:4000 => app")


def message_record(number: int, verdict: Verdict = DELIVERED, **more: Any) -> MessageRecord:
    """A message whose id is this number."""
    message = Message(ONWARD, BACK, b"x" * (number % 100), f"{number:032x}", **more)
    return MessageRecord(Arrival(message, BEGIN + number), verdict, BEGIN + number + 1)


def change_record(number: int, participant: str | None = None) -> ChangeRecord:
    """A worker that started."""
    name = f"worker-{number}" if participant is None else participant
    entry = RoutingEntry(name, Address(0, name.encode()), local=True)
    return ChangeRecord(RouteChange(RouteKind.PUT, entry), BEGIN + number)


def claim_record(number: int, kind: ClaimKind = ClaimKind.CLAIM, **more: Any) -> ClaimRecord:
    """A claim of a truck behind another hub."""
    fields: dict[str, Any] = {
        "participant": "truck-7",
        "session": "tcp-1",
        "owner": "0f" * 16,
        "origin": "truck-7a",
        "number": 3,
        "path": ("truck-7a", "hub-b"),
        "detail": "",
    }
    return ClaimRecord(kind=kind, at=BEGIN + number, **fields | more)


def no_problem(path: Path, problem: str) -> None:
    """The report of a reader of a journal without problems."""
    raise AssertionError(f"{path}: {problem}")


def entries(directory: Path, **filters: Any) -> list[Entry]:
    """All rows of a journal; fails if any file cannot be read."""
    return list(JournalReader(directory, no_problem, RowFilter(**filters)).entries())


def rows(directory: Path, table: str) -> list[dict[str, Any]]:
    """The rows of one table of a journal; fails if any file cannot be read."""
    return [entry.fields for entry in entries(directory, tables=frozenset({table}))]


def losses(directory: Path) -> list[tuple[int, str]]:
    """The `lost` rows of a journal: the number of records, and the cause."""
    lost = [row for row in rows(directory, "nodes") if row["kind"] == "lost"]
    return [(row["lost"], row["detail"]) for row in lost]
