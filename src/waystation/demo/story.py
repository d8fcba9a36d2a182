"""The story of a demonstration: what was found, set beside what was done, in sentences.

A deed without a finding, a finding without a deed, and a loss that nothing explains are all told as
such. How things are found is the business of findings.py.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Final

from msgspec import Struct

from waystation.demo.deeds import Deed
from waystation.demo.evidence import DELIVERED, Evidence
from waystation.demo.findings import SECOND, SLACK, Explain, Finding, Losses, Mark, clock, find

_WIDTH: Final = 100


class Chapter(Struct, frozen=True):
    """A deed, and what was found of it."""

    deed: Deed
    finding: Finding | None


class Story(Struct, frozen=True):
    """What the tables tell of a demonstration."""

    overview: list[str]
    chapters: list[Chapter]
    other: list[Finding]  # found, and not done on purpose
    unexplained: list[str]  # losses that no finding explains
    audit: list[str]
    example: str | None  # a message that was lost


def tell_story(evidence: Evidence, deeds: Sequence[Deed], explain: Explain) -> Story:
    """Find out what happened, and set it beside what was done."""
    found = find(evidence, explain)
    chapters, other = matched(found, deeds)
    explained = {mark for finding in found for mark in finding.claims}
    examples = [c.finding.example for c in chapters if c.finding is not None]
    return Story(
        overview=list(_overview(evidence)),
        chapters=chapters,
        other=other,
        unexplained=list(_left_over(evidence, explained)),
        audit=list(_audit(evidence, explained)),
        example=next(filter(None, examples), None),
    )


def matched(found: Sequence[Finding], deeds: Sequence[Deed]) -> tuple[list[Chapter], list[Finding]]:
    """Each deed with its finding, and the findings that nobody did."""
    left = list(found)
    chapters = []
    for deed in deeds:
        finding = next((finding for finding in left if _fits(finding, deed)), None)
        if finding is not None:
            left.remove(finding)
        chapters.append(Chapter(deed, finding))
    return chapters, left


def _fits(finding: Finding, deed: Deed) -> bool:
    return (
        finding.kind == deed.kind
        and finding.subject == deed.subject
        and finding.began <= deed.ended + SLACK
        and finding.ended >= deed.began - SLACK
    )


def story_lines(story: Story) -> Iterator[str]:
    """The story for people, in lines that are not too long."""
    for sentence in story.overview:
        yield from _folded(sentence)
    for chapter in story.chapters:
        yield ""
        yield from _chapter_lines(chapter)
    if story.other or story.unexplained:
        yield ""
        yield "Not done on purpose:"
        others = [sentence for finding in story.other for sentence in finding.sentences]
        for sentence in (*others, *story.unexplained):
            yield from _folded(sentence, indent=2)
    yield ""
    for sentence in story.audit:
        yield from _folded(sentence)


def _chapter_lines(chapter: Chapter) -> Iterator[str]:
    yield from _folded(f"Done on purpose at {clock(chapter.deed.began)}: {chapter.deed.words}.")
    nothing = ["nothing. The journals should have shown it."]
    first, *rest = nothing if chapter.finding is None else chapter.finding.sentences
    lead = "  Found: "
    yield from _folded(first, lead=lead, indent=len(lead))
    for sentence in rest:
        yield from _folded(sentence, indent=len(lead))


def _folded(text: str, *, lead: str | None = None, indent: int = 0) -> list[str]:
    """A sentence in lines, names and times in one piece."""
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
    passages = evidence.passages
    if not passages:
        yield "The journal holds no message."
        return
    messages = {passage.message_id for passage in passages}
    arrived = {p.message_id for p in passages if p.outcome == DELIVERED}
    seconds = (passages[-1].at - passages[0].at) / SECOND
    nodes: defaultdict[str, set[str]] = defaultdict(set)
    for passage in passages:
        nodes[passage.message_id].add(passage.node)
    far = sum(len(nodes[message]) > 3 for message in arrived)
    yield (
        f"{len(messages):,} messages in {seconds:.0f} s: {len(arrived):,} arrived, {far:,} of them "
        f"over three connections or more, and {len(messages - arrived):,} did not."
    )


def _left_over(evidence: Evidence, explained: set[Mark]) -> Iterator[str]:
    """Losses that no finding explains."""
    left = [drop for drop in Losses(evidence) if (drop.message_id, drop.node) not in explained]
    for (node, reason), number in Counter((drop.node, drop.reason) for drop in left).items():
        example = next(d.message_id for d in left if (d.node, d.reason) == (node, reason))
        yield f"{number:,} dropped at {node} ({reason}), such as {example}"


def _audit(evidence: Evidence, explained: set[Mark]) -> Iterator[str]:
    """What the audit says, and whether the findings explain it."""
    surprising = [row for row in evidence.judgements if (row.message_id, row.node) not in explained]
    number = len(evidence.judgements)
    yield (
        f"The audit decides everything again, by the rules: {evidence.agreed:,} went as the rules "
        f"say, {number:,} did not, and what is told above explains {number - len(surprising):,}."
    )
    kinds = Counter((r.node, r.verdict, r.expected, r.actual, r.reason) for r in surprising)
    for (node, verdict, wanted, actual, reason), count in kinds.most_common():
        line = f"{count} at {node}: {verdict}, expected {wanted}, was {actual} {reason or ''}"
        yield line.rstrip()
