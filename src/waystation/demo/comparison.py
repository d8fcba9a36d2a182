"""Comparing what the demonstration did with what was found, in sentences.

Reports faults without a finding, findings without a fault, and losses that nothing explains.
How things are found is the business of findings.py.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Final

from msgspec import Struct

from waystation.demo.evidence import DELIVERED, Evidence
from waystation.demo.faults import Fault
from waystation.demo.findings import SECOND, SLACK, Explain, Finding, Losses, Mark, clock, find

_WIDTH: Final = 100


class MatchedFault(Struct, frozen=True):
    """An injected fault and its finding, if any."""

    fault: Fault
    finding: Finding | None


class Comparison(Struct, frozen=True):
    """The result of comparing findings with injected faults."""

    overview: list[str]
    matched_faults: list[MatchedFault]
    other: list[Finding]  # findings without an injected fault
    unexplained: list[str]  # losses that no finding explains
    audit: list[str]
    example: str | None  # a message that was lost


def compare(evidence: Evidence, faults: Sequence[Fault], explain: Explain) -> Comparison:
    """Compare what the evidence shows with the injected faults."""
    found = find(evidence, explain)
    matched_faults, other = matched(found, faults)
    explained = {mark for finding in found for mark in finding.claims}
    examples = [c.finding.example for c in matched_faults if c.finding is not None]
    return Comparison(
        overview=list(_overview(evidence)),
        matched_faults=matched_faults,
        other=other,
        unexplained=list(_left_over(evidence, explained)),
        audit=list(_audit(evidence, explained)),
        example=next(filter(None, examples), None),
    )


def matched(
    found: Sequence[Finding], faults: Sequence[Fault]
) -> tuple[list[MatchedFault], list[Finding]]:
    """Each fault with its finding, and the findings without a fault."""
    left = list(found)
    matched_faults = []
    for fault in faults:
        finding = next((finding for finding in left if _fits(finding, fault)), None)
        if finding is not None:
            left.remove(finding)
        matched_faults.append(MatchedFault(fault, finding))
    return matched_faults, left


def _fits(finding: Finding, fault: Fault) -> bool:
    return (
        finding.kind == fault.kind
        and finding.subject == fault.subject
        and finding.began <= fault.ended + SLACK
        and finding.ended >= fault.began - SLACK
    )


def comparison_lines(comparison: Comparison) -> Iterator[str]:
    """The comparison as lines of text."""
    for sentence in comparison.overview:
        yield from _folded(sentence)
    for matched_fault in comparison.matched_faults:
        yield ""
        yield from _fault_lines(matched_fault)
    if comparison.other or comparison.unexplained:
        yield ""
        yield "Other findings:"
        others = [sentence for finding in comparison.other for sentence in finding.sentences]
        for sentence in (*others, *comparison.unexplained):
            yield from _folded(sentence, indent=2)
    yield ""
    for sentence in comparison.audit:
        yield from _folded(sentence)


def _fault_lines(matched_fault: MatchedFault) -> Iterator[str]:
    yield from _folded(f"Fault at {clock(matched_fault.fault.began)}: {matched_fault.fault.words}.")
    nothing = ["nothing, although the journals should show it."]
    first, *rest = nothing if matched_fault.finding is None else matched_fault.finding.sentences
    lead = "  Found: "
    yield from _folded(first, lead=lead, indent=len(lead))
    for sentence in rest:
        yield from _folded(sentence, indent=len(lead))


def _folded(text: str, *, lead: str | None = None, indent: int = 0) -> list[str]:
    """Wrap a sentence without breaking names and times."""
    begin = " " * indent if lead is None else lead
    return wrap(
        text,
        _WIDTH,
        initial_indent=begin,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _overview(evidence: Evidence) -> Iterator[str]:
    outcomes = evidence.outcomes
    if not outcomes:
        yield "The journal has no messages."
        return
    messages = {message_outcome.message_id for message_outcome in outcomes}
    arrived = {p.message_id for p in outcomes if p.outcome == DELIVERED}
    seconds = (outcomes[-1].at - outcomes[0].at) / SECOND
    nodes: defaultdict[str, set[str]] = defaultdict(set)
    for message_outcome in outcomes:
        nodes[message_outcome.message_id].add(message_outcome.node)
    lost = len({loss.message_id for loss in evidence.losses})
    far = sum(len(nodes[message]) > 3 for message in arrived)
    yield (
        f"{len(messages):,} messages in {seconds:.0f} s: {len(arrived):,} arrived, {far:,} of them "
        f"over three connections or more, and {lost:,} did not reach everybody."
    )
    if evidence.unknown:
        yield f"What became of {evidence.unknown:,} copies is not on record."


def _left_over(evidence: Evidence, explained: set[Mark]) -> Iterator[str]:
    """Losses that no finding explains."""
    left = [drop for drop in Losses(evidence) if (drop.message_id, drop.node) not in explained]
    for (node, reason), number in Counter((drop.node, drop.reason) for drop in left).items():
        example = next(d.message_id for d in left if (d.node, d.reason) == (node, reason))
        yield f"{number:,} lost at {node} ({reason}), such as {example}"


def _audit(evidence: Evidence, explained: set[Mark]) -> Iterator[str]:
    """What the audit says, and whether the findings explain it."""
    surprising = [row for row in evidence.audit_rows if (row.message_id, row.node) not in explained]
    number = len(evidence.audit_rows)
    yield (
        f"The audit compares every outcome with the rules: {evidence.agreed:,} are as the rules "
        f"require, {number:,} are not, and the findings above explain {number - len(surprising):,}."
    )
    kinds = Counter((r.node, r.verdict, r.expected, r.actual, r.reason) for r in surprising)
    for (node, verdict, wanted, actual, reason), count in kinds.most_common():
        line = f"{count} at {node}: {verdict}, expected {wanted}, was {actual} {reason or ''}"
        yield line.rstrip()
