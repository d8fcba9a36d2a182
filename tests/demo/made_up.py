"""Evidence that was made up, with instants in seconds since one moment."""

from __future__ import annotations

from itertools import count

from waystation.demo.deeds import Deed, Kind
from waystation.demo.evidence import Evidence, Interval, Judgement, Passage

NOON = 1_777_636_800_000_000  # 2026-05-01 12:00:00
NUMBERS = count(1)


def at(seconds: float) -> int:
    return NOON + round(seconds * 1_000_000)


def passage(
    node: str,
    seconds: float,
    outcome: str = "DELIVERED",
    reason: str | None = None,
    *,
    to: str | None = None,
    under: str | None = None,
    id: str | None = None,
    life: int = 1,
) -> Passage:
    message_id = id if id is not None else f"{next(NUMBERS):032x}"
    return Passage(message_id, node, life, at(seconds), outcome, reason, to, under)


def drop(
    node: str,
    seconds: float,
    reason: str,
    *,
    to: str | None = None,
    under: str | None = None,
    id: str | None = None,
    life: int = 1,
) -> Passage:
    return passage(node, seconds, "DROPPED", reason, to=to, under=under, id=id, life=life)


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
    place = f"0#{participant}" if address is None else address
    end = None if until is None else at(until)
    return Interval(node, life, participant, place, local, at(since), end, closed_by)


def evidence(
    passages: list[Passage] | None = None,
    intervals: list[Interval] | None = None,
    judgements: list[Judgement] | None = None,
    agreed: int = 0,
) -> Evidence:
    return Evidence(
        sorted(passages or [], key=lambda passage: passage.at),
        sorted(intervals or [], key=lambda interval: interval.valid_from),
        judgements or [],
        agreed,
    )


def deed(kind: Kind, subject: str, began: float, ended: float) -> Deed:
    return Deed(kind, subject, f"{subject} is {kind}", at(began), at(ended))


def no_explanation(message_id: str) -> str | None:
    del message_id
    return None
