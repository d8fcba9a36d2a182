"""The story of a durable message across nodes and restarts, in words (DU).

Each row of a durable message says who had custody when, and with which attempt it was handled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from waystation.core.custody import ENDED
from waystation.core.outcome import Outcome
from waystation.why.text import instant

Row = dict[str, Any]


def durable_story(rows: Iterable[Row], ahead: Mapping[str, int]) -> Iterator[str]:
    """One sentence for each step, in the order of corrected times; none for other messages."""
    durable = [row for row in rows if row.get("durable")]
    lives: dict[str, int] = {}
    for row in sorted(durable, key=lambda row: row["at"] - ahead.get(row["node"], 0)):
        node, incarnation = row["node"], row["incarnation"]
        if lives.setdefault(node, incarnation) != incarnation:
            lives[node] = incarnation
            yield f"durable: {node} was started again and went on with it"
        yield f"durable: {_step(row)} at {instant(row['at'] - ahead.get(node, 0))}"


def _step(row: Row) -> str:
    node, attempt, custodian = row["node"], row["attempt"], row["custodian"]
    outcome = row["outcome"]
    if outcome == Outcome.QUEUED:
        if attempt is None:
            return f"QUEUED at {node}, on its disk,"
        return (
            f"QUEUED again at {node}, since its handler raised at the {_ordinal(attempt)} attempt,"
        )
    if outcome == Outcome.FORWARDED:
        if custodian == ENDED:
            return f"{node} gave it up, since it had ended or went to a node that takes no custody,"
        return f"custody passed from {node} to {custodian}"
    tried = "" if attempt is None else f" at the {_ordinal(attempt)} attempt"
    if outcome == Outcome.DELIVERED:
        return f"handled by {row['recipient']} at {node}{tried},"
    return f"a dead letter at {node}, {row['reason']}{tried},"


def _ordinal(number: int) -> str:
    """A number as people say it.

    >>> [_ordinal(number) for number in (1, 2, 3, 4, 11, 21)]
    ['1st', '2nd', '3rd', '4th', '11th', '21st']
    """
    ending = "th" if number % 100 in {11, 12, 13} else {1: "st", 2: "nd", 3: "rd"}.get(number % 10)
    return f"{number}{ending or 'th'}"
