"""Evidence that was made up, with instants in seconds since one moment."""

from __future__ import annotations

from itertools import count

from msgspec import structs

from waystation.demo.evidence import AuditRow, Evidence, Interval, MessageOutcome
from waystation.demo.faults import Fault, FaultKind

NOON = 1_777_636_800_000_000  # 2026-05-01 12:00:00
NUMBERS = count(1)


def at(seconds: float) -> int:
    return NOON + round(seconds * 1_000_000)


def message_outcome(
    node: str,
    seconds: float,
    outcome: str = "DELIVERED",
    reason: str | None = None,
    *,
    to: str | None = None,
    under: str | None = None,
    id: str | None = None,
    life: int = 1,
) -> MessageOutcome:
    message_id = id if id is not None else f"{next(NUMBERS):032x}"
    return MessageOutcome(message_id, node, life, at(seconds), outcome, reason, to, under)


def drop(
    node: str,
    seconds: float,
    reason: str,
    *,
    to: str | None = None,
    under: str | None = None,
    id: str | None = None,
    life: int = 1,
    next_node: str | None = None,
) -> MessageOutcome:
    told = message_outcome(node, seconds, "DROPPED", reason, to=to, under=under, id=id, life=life)
    return structs.replace(told, next_node=next_node)


def entry(
    node: str,
    participant: str,
    since: float,
    until: float | None = None,
    closed_by: str | None = None,
    *,
    address: str | None = None,
    local: bool = True,
    life: int = 1,
) -> Interval:
    directory = f"0#{participant}" if address is None else address
    end = None if until is None else at(until)
    return Interval(node, life, participant, directory, local, at(since), end, closed_by)


def evidence(
    outcomes: list[MessageOutcome] | None = None,
    intervals: list[Interval] | None = None,
    audit_rows: list[AuditRow] | None = None,
    agreed: int = 0,
    losses: list[MessageOutcome] | None = None,
) -> Evidence:
    """Every drop is a loss, unless others are given."""
    drops = [one for one in outcomes or [] if one.outcome == "DROPPED"]
    return Evidence(
        sorted(outcomes or [], key=lambda message_outcome: message_outcome.at),
        sorted(intervals or [], key=lambda interval: interval.valid_from),
        audit_rows or [],
        agreed,
        sorted(drops if losses is None else losses, key=lambda loss: loss.at),
    )


def fault(kind: FaultKind, subject: str, began: float, ended: float) -> Fault:
    return Fault(kind, subject, f"{subject} is {kind}", at(began), at(ended))


def no_explanation(message_id: str) -> str | None:
    del message_id
    return None
