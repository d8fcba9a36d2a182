"""Compare how messages ended with how they would have: the rows of `whatif`, and a sentence.

No Spark, no files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from waystation.core.outcome import Outcome
from waystation.core.spoken import plural
from waystation.whatif.changes import Changes
from waystation.whatif.copies import UNKNOWN, End, Told
from waystation.whatif.stories import best

SAME, SAVED, LOST, MOVED, VOID, UNCERTAIN = "same", "saved", "lost", "moved", "void", "unknown"
VERDICTS: Final = (SAME, SAVED, LOST, MOVED, VOID, UNCERTAIN)

_DELIVERED: Final = str(Outcome.DELIVERED)
_DROPPED: Final = str(Outcome.DROPPED)


def verdicts(
    stories: Iterable[Told], ends: Mapping[str, list[End]], changes: Changes
) -> list[dict[str, Any]]:
    """The rows of these messages, whose copies that went elsewhere have these ends."""
    stories = list(stories)
    rows: list[dict[str, Any]] = []
    change = str(changes)
    for story in stories:
        own = story.before[0].message_id if story.before else None
        later = [*story.after, *(ends.get(own, []) if own else [])]
        common = {"internal": story.internal, "change": change}
        rows += ({**row, **common} for row in _of_message(story, later))
    changed = {row["message_id"] for row in rows if row["verdict"] != SAME}
    answers = {
        end.message_id: story.answers for story in stories for end in story.before if story.answers
    }
    for row in rows:
        if answers.get(row["message_id"]) in changed:
            row.update(_void(answers[row["message_id"]] or ""))
    return rows


def _of_message(story: Told, after: list[End]) -> Iterator[dict[str, Any]]:
    before = story.before
    origins = {end.origin for end in before}
    for origin in sorted(origins, key=str):
        was = {end.recipient: end for end in best(e for e in before if e.origin == origin)}
        would = {end.recipient: end for end in best(e for e in after if e.origin == origin)}
        upward = was.get(None)
        if upward is not None and upward.outcome == _DROPPED and None not in would:
            new = (end for whom, end in would.items() if whom not in was)
            reached = next((end for end in new if end.outcome == _DELIVERED), None)
            if reached is not None:
                would[None] = reached
        if not story.is_multicast:
            _pair(was, would)
        for recipient in sorted({*was, *would}, key=str):
            yield _row(origin, recipient, was.get(recipient), would.get(recipient))


def _pair(was: Mapping[str | None, End], would: dict[str | None, End]) -> None:
    """Let a message that ended on its way, for a session, end with whom it was for.

    A message to one participant has one end. Where it was dropped, its record names whom it was to
    go to next.
    """
    [*only], [*others] = was.keys() - would.keys(), would.keys() - was.keys()
    if len(only) == len(others) == 1:
        would[only[0]] = would.pop(others[0])


def _row(
    origin: str | None, recipient: str | None, was: End | None, would: End | None
) -> dict[str, Any]:
    known = was or would
    assert known is not None
    verdict = _verdict(was, would)
    return {
        "message_id": known.message_id,
        "origin": origin,
        "recipient": recipient,
        "before_outcome": None if was is None else _outcome(was),
        "before_reason": None if was is None else was.reason,
        "before_node": None if was is None else was.node,
        "after_outcome": None if would is None else _outcome(would),
        "after_reason": None if would is None else would.reason,
        "after_node": None if would is None else would.node,
        "hops_before": None if was is None else was.hops,
        "hops_after": None if would is None else would.hops,
        "verdict": verdict,
        "why": would.why if would is not None and verdict != SAME else None,
    }


def _outcome(end: End) -> str | None:
    return None if end.outcome == UNKNOWN else end.outcome


def _verdict(was: End | None, would: End | None) -> str:
    """How two ends compare; somebody who had no copy, or would have none, has no end."""
    if was is not None and would is not None and _essence(was) == _essence(would):
        return SAME
    if would is not None and would.outcome == UNKNOWN:
        return UNCERTAIN
    arrives = would is not None and would.outcome == _DELIVERED
    if was is None or was.outcome not in (_DELIVERED, _DROPPED):
        return MOVED
    if was.outcome == _DELIVERED:
        return MOVED if arrives else LOST
    return SAVED if arrives else MOVED


def _essence(end: End) -> tuple[str, str | None, str]:
    return end.outcome, end.reason, end.node


def _void(request: str) -> dict[str, Any]:
    nothing = dict.fromkeys(("after_outcome", "after_reason", "after_node", "hops_after"))
    return {**nothing, "verdict": VOID, "why": f"the fate of {request}, which it answers, changes"}


class Sentence(Struct, frozen=True):
    """What a change would have brought, as numbers; internal traffic is not counted."""

    change: str
    rows: int
    lost_before: int
    saved: int
    lost: int
    moved: int
    void: int
    unknown: int

    def __str__(self) -> str:
        before = plural(self.lost_before, "lost message")
        saved = f"{self.saved:,} of {before} would have arrived"
        parts = [f"If {self.change}: {saved}"]
        if self.lost:
            parts.append(plural(self.lost, "other would not", "others would not"))
        else:
            parts.append("no other would have been lost")
        if self.moved:
            parts.append(f"{self.moved:,} would have ended elsewhere or in another way")
        if self.void:
            parts.append(f"{plural(self.void, 'answer')} would have been different")
        if self.unknown:
            parts.append(f"for {self.unknown:,} the records do not say")
        return "; ".join(parts) + "."

    @classmethod
    def of(cls, changes: Changes, counted: Mapping[str, int], lost_before: int) -> Sentence:
        """From how many rows have each verdict, and how many were lost before."""
        kinds = {kind: counted.get(kind, 0) for kind in VERDICTS if kind != SAME}
        return cls(str(changes), sum(counted.values()), lost_before, **kinds)


def sentence_of(changes: Changes, rows: Iterable[Mapping[str, Any]]) -> Sentence:
    """What changes would have brought, from the rows themselves."""
    own = [row for row in rows if not row["internal"]]
    lost = sum(row["before_outcome"] == _DROPPED for row in own)
    return Sentence.of(changes, Counter(row["verdict"] for row in own), lost)
