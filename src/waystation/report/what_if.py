"""The section on what would have been: the answer of `pipeline whatif`, if it is there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from waystation.core.spoken import plural
from waystation.report.blocks import Cell, Grid, Section, Words
from waystation.report.facts import Facts, Fate
from waystation.report.numbers import count
from waystation.report.words import LOSSES, why_command

_DELIVERED: Final = "DELIVERED"
_DROPPED: Final = "DROPPED"

VERDICTS: Final = {
    "saved": "it was lost, and would have arrived",
    "lost": "it arrived, and would not have",
    "moved": "it would have ended elsewhere or in another way",
    "void": "it answers a request that would have ended otherwise",
    "unknown": "the records do not say",
    "same": "nothing would have been different",
}
"""What each verdict means, in the order in which they are shown."""


def what_if(facts: Facts, tables: str | Path) -> Iterator[Section]:
    """How messages ended, and how they would have; nothing if that was not asked."""
    fates = facts.what_if
    if fates is None:
        return
    change = " ".join(sorted({fate.change for fate in fates if fate.change}))
    says = (
        "What would have become of each message for each recipient, had the past been another one: "
        "the answer of waystation pipeline whatif. "
        "What nodes send to each other is left out."
    )
    blocks: list[Words | Grid] = [Words(f"If {change}: {_said(fates)}.")] if change else []
    blocks += [_ends(fates), _verdicts(fates, tables)]
    yield Section("what-if", "What if", says, tuple(blocks))


def _said(fates: Iterable[Fate]) -> str:
    found: Counter[str] = Counter()
    for fate in fates:
        found[fate.verdict] += fate.rows
        found["before"] += fate.rows * (fate.before[0] == _DROPPED)
    said = (
        f"{count(found['saved'])} of {plural(found['before'], 'lost message')} would have arrived"
    )
    others = (
        plural(found["lost"], "other would not", "others would not")
        if found["lost"]
        else "no other would have been lost"
    )
    return f"{said}; {others}"


def _ends(fates: Iterable[Fate]) -> Grid:
    """How many ended in each way, before and after."""
    before: Counter[tuple[str | None, str | None]] = Counter()
    after: Counter[tuple[str | None, str | None]] = Counter()
    for fate in fates:
        before[fate.before] += fate.rows
        if fate.verdict not in ("void", "unknown"):
            after[fate.after] += fate.rows
    ends = sorted({*before, *after} - {(None, None)}, key=lambda end: (-before[end], str(end)))
    columns = (("end", "text"), ("before", "number"), ("after", "number"), ("more", "number"))
    rows = tuple(
        (
            Cell(_named(end), note=LOSSES.get(end[1] or "", "")),
            *(
                Cell(count(number), order=number)
                for number in (before[end], after[end], after[end] - before[end])
            ),
        )
        for end in ends
    )
    note = (
        "without messages for which the records do not say, and without answers to requests "
        "that would have ended otherwise"
    )
    return Grid("Before and after", columns, rows, note)


def _verdicts(fates: Iterable[Fate], tables: str | Path) -> Grid:
    found: Counter[str] = Counter()
    shown: dict[str, str] = {}
    for fate in fates:
        found[fate.verdict] += fate.rows
        shown[fate.verdict] = min(shown.get(fate.verdict, fate.message_id), fate.message_id)
    columns = (("verdict", "text"), ("means", "text"), ("messages", "number"), ("one", "text"))
    rows = tuple(
        (
            Cell(verdict),
            Cell(means),
            Cell(count(found[verdict]), order=found[verdict]),
            Cell("" if verdict == "same" else why_command(shown[verdict], tables)),
        )
        for verdict, means in VERDICTS.items()
        if found[verdict]
    )
    return Grid("Verdicts", columns, rows)


def _named(end: tuple[str | None, str | None]) -> str:
    outcome, reason = end
    return (reason or outcome or "").lower() if outcome != _DELIVERED else "delivered"
