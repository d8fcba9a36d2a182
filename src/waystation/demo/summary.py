"""The summary of a demonstration for programs, and the closing lines for people.

Nothing is computed here.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct, field

from waystation.demo.comparison import Comparison, MatchedFault
from waystation.demo.directory import DemoDirectory
from waystation.demo.faults import Fault
from waystation.demo.findings import day_and_clock
from waystation.demo.fleet import PROCESSES
from waystation.demo.run import DemoRun


class Conclusion(Struct, frozen=True):
    """The results from the journals; without Spark there are none, and `missing` says why."""

    comparison: Comparison | None = None
    tables: dict[str, int] = {}  # rows
    report: Path | None = None
    missing: str | None = None
    remedies: list[str] = []


class FaultResult(Struct, frozen=True):
    """A fault, and what the tables say about it."""

    fault: Fault = field(name="deed")  # the name that readers of demo.json know
    found: bool
    sentences: list[str]
    lost: int  # messages
    example: str | None


class Summary(Struct, frozen=True, kw_only=True):
    """The result of a demonstration, written to demo.json."""

    state: str  # done, or incomplete
    missing: str | None  # what is missing, and how to get it
    out: str
    seconds: float
    processes: list[str]
    counts: dict[str, dict[str, int]]  # by node, and outcome or reason
    faults: list[FaultResult]
    others: list[str]  # findings without an injected fault
    unexplained: list[str]
    audit: list[str]
    remedies: list[str]  # what would have saved messages
    tables: dict[str, int]
    report: str | None
    lost_message: str | None


def summarize(directory: DemoDirectory, demo_run: DemoRun, end: Conclusion) -> Summary:
    """Summarize a demonstration."""
    comparison = end.comparison
    example = demo_run.drops[-1].message_id if demo_run.drops else None
    if comparison is not None and comparison.example is not None:
        example = comparison.example
    return Summary(
        state="done" if end.missing is None else "incomplete",
        missing=end.missing,
        out=str(directory.out),
        seconds=round(demo_run.seconds, 3),
        processes=list(PROCESSES),
        counts=demo_run.counts,
        faults=[]
        if comparison is None
        else [_found(matched_fault) for matched_fault in comparison.matched_faults],
        others=[]
        if comparison is None
        else [line for f in comparison.other for line in f.sentences],
        unexplained=[] if comparison is None else comparison.unexplained,
        audit=[] if comparison is None else comparison.audit,
        remedies=end.remedies,
        tables=end.tables,
        report=None if end.report is None else str(end.report),
        lost_message=example,
    )


def _found(matched_fault: MatchedFault) -> FaultResult:
    finding = matched_fault.finding
    if finding is None:
        return FaultResult(matched_fault.fault, False, [], 0, None)
    return FaultResult(matched_fault.fault, True, finding.sentences, finding.lost, finding.example)


def next_lines(summary: Summary, command: str) -> Iterator[str]:
    """Closing lines: where the output is, and commands to try next."""
    out = from_here(Path(summary.out))
    yield f"Output: {out}"
    if summary.report is not None:
        yield f"Report: {from_here(Path(summary.report))}"
    yield "Try next:"
    journal = shlex.quote(str(out / "journal"))
    if summary.lost_message is not None:
        yield f"  {command} why {summary.lost_message} --journal {journal}"
    if summary.faults:
        at = day_and_clock(summary.faults[0].fault.ended)
        yield f"  {command} pipeline table --journal {journal} --at {at} --node hub-a"
    yield f"  {command} lost --journal {journal}"
    yield f"  {command} pipeline whatif --journal {journal} --suggest"


def from_here(path: Path) -> Path:
    """A path as short as it can be typed: relative, if it is below the current directory."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
