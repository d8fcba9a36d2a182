"""Suggest changes: try a stated set of them on a journal, and say which would have saved most."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from msgspec import Struct

from waystation.pipeline.journal import Journal
from waystation.whatif.asking import Asked, summary
from waystation.whatif.changes import changes_of
from waystation.whatif.verdicts import Sentence

CANDIDATES: Final[tuple[tuple[dict[str, Any], str], ...]] = (
    (
        {"ttl": [{"routes": True, "factor": 2.0}]},
        "a route to somebody who left is kept for twice as long",
    ),
    (
        {"ttl": [{"routes": True, "factor": 4.0}]},
        "a route to somebody who left is kept for four times as long",
    ),
    (
        {"ttl": [{"routes": True, "at_least": "60s"}]},
        "a route to somebody who left is kept for a minute or longer",
    ),
    ({"sticky": [{}]}, "routes stay until they are replaced or removed"),
    ({"without": [{"kind": "close"}]}, "links that do not break: redundant parents, better lines"),
    ({"without": [{"kind": "crash"}]}, "nodes that do not crash"),
    ({"without": [{"kind": "stop"}]}, "restarts without a pause: a second hub that takes over"),
    ({"limits": {"hop_limit": 255}}, "a loop goes on for longer before it ends"),
)
"""What is tried, the smallest change first, and what each costs in operation."""


class Suggestion(Struct, frozen=True):
    """A change that would have saved messages, and its price."""

    sentence: Sentence
    price: str
    change: dict[str, Any]  # as a change file has it


def suggestions(
    journal: Journal, progress: Callable[[int, int], None] | None = None
) -> list[Suggestion]:
    """The changes that would have saved somebody, the best first; of equal ones the smallest."""
    found = list(_tried(journal, progress))
    found.sort(key=lambda one: one.sentence.lost - one.sentence.saved)
    return found


def _tried(journal: Journal, progress: Callable[[int, int], None] | None) -> Iterator[Suggestion]:
    asked = Asked(journal)
    for number, (told, price) in enumerate(CANDIDATES):
        if progress is not None:
            progress(number, len(CANDIDATES))
        changes = changes_of(told)
        if not asked.has_what_is_left_out(changes):
            continue
        sentence = summary(changes, asked.frame(changes))
        if sentence.saved > sentence.lost:
            yield Suggestion(sentence, price, told)
