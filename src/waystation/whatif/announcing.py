"""Names whose end is left out: to whom they would have been announced again, and when. No Spark.

A node announces what it has to its parents, when a session with them opens, and they to theirs. A
name that stays at a node is there as long as the sessions that lead to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct

_PARENT: Final = "parent"


class Kept(Struct, frozen=True):
    """A name that does not end at the node of its program, and until when that node runs."""

    table: str
    name: str  # a participant, or the receiver of a subscription
    pattern: str | None
    node: str
    since: int  # microseconds
    until: int


class Opened(Struct, frozen=True):
    """A session as one of its ends has recorded it."""

    node: str
    session: str
    role: str  # of the peer
    peer: str
    since: int
    until: int


class Announced(Struct, frozen=True):
    """A name that a node would have been told of then, or that it would have lost."""

    table: str
    name: str
    pattern: str | None
    node: str
    at: int
    session: str | None  # that leads to it; None if it goes


def announced(kept: Iterable[Kept], sessions: Iterable[Opened]) -> list[Announced]:
    """What nodes above would have been told of names that stay."""
    parents: dict[str, set[str]] = {}
    between: dict[tuple[str, str], list[Opened]] = {}
    for one in sessions:
        if one.role == _PARENT:
            parents.setdefault(one.node, set()).add(one.peer)
        else:
            between.setdefault((one.node, one.peer), []).append(one)
    found: list[Announced] = []
    pending, reached = list(kept), set[object]()
    while pending:
        reached.update(map(_where, pending))
        above = [
            (known, session)
            for known in pending
            for parent in sorted(parents.get(known.node, ()))
            for session in between.get((parent, known.node), ())
            if max(known.since, session.since) < min(known.until, session.until)
        ]
        # Nodes may be each other's parents: none is told by another that it told.
        above = [pair for pair in above if _where(_at_parent(*pair)) not in reached]
        pending = [_at_parent(known, session) for known, session in above]
        found += (told for pair in above for told in _told(*pair))
    return sorted(dict.fromkeys(found), key=lambda one: (one.at, one.session is not None))


def _where(known: Kept) -> tuple[str, str, str | None, str]:
    return known.table, known.name, known.pattern, known.node


def _at_parent(known: Kept, session: Opened) -> Kept:
    since, until = max(known.since, session.since), min(known.until, session.until)
    return Kept(known.table, known.name, known.pattern, session.node, since, until)


def _told(known: Kept, session: Opened) -> Iterator[Announced]:
    there = _at_parent(known, session)
    what = (known.table, known.name, known.pattern, session.node)
    yield Announced(*what, there.since, session.session)
    yield Announced(*what, there.until, None)
