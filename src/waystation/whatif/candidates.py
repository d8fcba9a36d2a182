"""Changes that may have helped: the stated set of them, and trying some on a small journal.

Nothing here needs Spark; suggesting.py tries all of them on a journal of any size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from msgspec import Struct

from waystation.core.incidents import CRASHED, EXPIRED, LINK, LOOP, STOPPED
from waystation.whatif.changes import changes_of
from waystation.whatif.local import SmallJournal
from waystation.whatif.verdicts import Sentence, sentence_of

Candidate: TypeAlias = tuple[dict[str, Any], str]
"""A change as a change file has it, and its price."""

CANDIDATES: Final[tuple[Candidate, ...]] = (
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


HELPFUL: Final[Mapping[str, tuple[str, ...]]] = {
    CRASHED: ("without crash", "ttl", "sticky"),
    STOPPED: ("without stop", "ttl", "sticky"),
    LINK: ("without close", "ttl", "sticky"),
    EXPIRED: ("ttl", "sticky"),
    LOOP: ("limits",),
}
"""The sorts of changes that may help against a kind of incident; against others none is tried."""


class OfKind(Struct, frozen=True):
    """What a change would have saved of the losses by one kind of incident."""

    saved: int
    lost: int  # of all
    is_best: bool = False  # whether no other saves more, and no smaller one as many


class Suggestion(Struct, frozen=True):
    """A change that would have saved messages, and its price."""

    sentence: Sentence
    price: str
    change: dict[str, Any]  # as a change file has it
    by_kind: dict[str, OfKind] = {}  # of incidents


def candidates_for(kind: str) -> list[Candidate]:
    """The changes that may help against a kind of incident, the smallest first."""
    sorts = HELPFUL.get(kind, ())
    return [candidate for candidate in CANDIDATES if _sort_of(candidate[0]) in sorts]


def _sort_of(change: dict[str, Any]) -> str:
    (table,) = change
    return f"without {change[table][0]['kind']}" if table == "without" else table


def suggestions_in(
    journal: SmallJournal,
    candidates: Iterable[Candidate],
    go_on: Callable[[], bool] = lambda: True,
) -> list[Suggestion]:
    """Which of these would have saved somebody, found in this process; it ends early if it must."""

    def tried() -> Iterator[Suggestion]:
        for told, price in candidates:
            changes = changes_of(told)
            if not go_on():
                return
            if journal.has_what_is_left_out(changes):
                yield Suggestion(sentence_of(changes, journal.rows(changes)), price, told)

    return ranked(one for one in tried() if one.sentence.saved > one.sentence.lost)


def ranked(found: Iterable[Suggestion]) -> list[Suggestion]:
    """Suggestions, the best first; of equal ones the smallest."""
    return sorted(found, key=lambda one: one.sentence.lost - one.sentence.saved)
