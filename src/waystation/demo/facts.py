"""The end of a demonstration: its facts for programs, and the words that people read.

Nothing is found out here; it only says what was.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from waystation.demo.deeds import Deed
from waystation.demo.findings import day_and_clock
from waystation.demo.fleet import PROCESSES
from waystation.demo.performance import Performance
from waystation.demo.place import Place
from waystation.demo.story import Chapter, Story


class Conclusion(Struct, frozen=True):
    """What was made of the journals; without Spark there are no tables, and `missing` says why."""

    story: Story | None = None
    tables: dict[str, int] = {}  # rows
    report: Path | None = None
    missing: str | None = None


class Found(Struct, frozen=True):
    """A deed, and what the tables say of it."""

    deed: Deed
    found: bool
    sentences: list[str]
    lost: int  # messages
    example: str | None


class Facts(Struct, frozen=True, kw_only=True):
    """Everything about a demonstration that a program may want to know."""

    state: str  # done, or incomplete
    missing: str | None  # what is missing, and how to get it
    out: str
    seconds: float
    processes: list[str]
    counts: dict[str, dict[str, int]]  # by node, and outcome or reason
    faults: list[Found]
    others: list[str]  # what was found, and not done on purpose
    unexplained: list[str]
    audit: list[str]
    tables: dict[str, int]
    report: str | None
    lost_message: str | None


def facts_of(place: Place, played: Performance, end: Conclusion) -> Facts:
    """The facts of a demonstration, with a story or without."""
    story = end.story
    example = played.drops[-1].message_id if played.drops else None
    if story is not None and story.example is not None:
        example = story.example
    return Facts(
        state="done" if end.missing is None else "incomplete",
        missing=end.missing,
        out=str(place.out),
        seconds=round(played.seconds, 3),
        processes=list(PROCESSES),
        counts=played.counts,
        faults=[] if story is None else [_found(chapter) for chapter in story.chapters],
        others=[] if story is None else [line for f in story.other for line in f.sentences],
        unexplained=[] if story is None else story.unexplained,
        audit=[] if story is None else story.audit,
        tables=end.tables,
        report=None if end.report is None else str(end.report),
        lost_message=example,
    )


def _found(chapter: Chapter) -> Found:
    finding = chapter.finding
    if finding is None:
        return Found(chapter.deed, False, [], 0, None)
    return Found(chapter.deed, True, finding.sentences, finding.lost, finding.example)


def next_lines(facts: Facts, command: str) -> Iterator[str]:
    """Where everything is, and what to try next."""
    out = Path(facts.out)
    yield f"Everything is in {out}"
    if facts.report is not None:
        yield f"The report with pictures: {facts.report}"
    yield "Try next:"
    journal = shlex.quote(str(out / "journal"))
    if facts.lost_message is not None:
        yield f"  {command} why {facts.lost_message} --journal {journal}"
    if facts.faults:
        at = day_and_clock(facts.faults[0].deed.ended)
        yield f"  {command} pipeline table --journal {journal} --at {at} --node hub-a"
    yield f"  {command} journal cat {journal} --outcome DROPPED"
