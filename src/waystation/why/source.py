"""What an explanation is made of, from wherever: a journal, or the tables built from one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from msgspec import Struct

from waystation.core.visits import Evidence, Trace, Visit
from waystation.why.claims import ClaimsThen
from waystation.why.explanation import Decision

Row = dict[str, Any]


class Interval(Struct, frozen=True):
    """A routing entry of a name, and when it was valid. Times are microseconds."""

    address: str
    local: bool
    since: int
    until: int | None  # None while it lasts
    closed_by: str | None
    expiry: int | None  # None for never


def held_since(entries: Iterable[Interval], at: int, address: str) -> int | None:
    """When a routing entry that is valid at a time got its address; renewals do not count.

    `entries` are those of its name, in order.
    """
    since = None
    for entry in reversed([entry for entry in entries if entry.since <= at]):
        if entry.address != address or (since is not None and entry.until != since):
            break
        since = entry.since
    return since


class Subscribed(Struct, frozen=True):
    """A subscription, and when it was valid."""

    pattern: str
    since: int
    until: int | None


def answer_among(traces: Iterable[Trace], request: str) -> Trace | None:
    """Of the traces with the id of an answer, which others may have, the one that is it."""
    return next((trace for trace in traces if trace.answers == request), None)


class Source(Protocol):
    """What is known about a message and its surroundings."""

    has_routes: bool  # whether all steps have them
    traces: Sequence[Trace]
    evidence: Evidence

    def decisions(self, visit: Visit) -> tuple[Decision, ...]:
        """What the rules require at a visit."""

    def agrees(self, visit: Visit, decisions: tuple[Decision, ...]) -> bool:
        """Whether that is what happened."""

    def entries(self, visit: Visit, name: str) -> list[Interval]:
        """The routing entries of a name in that incarnation of the node, in order."""

    def names(self, visit: Visit) -> set[str]:
        """All names that this incarnation of the node had a routing entry for."""

    def subscriptions(self, visit: Visit) -> list[Subscribed]:
        """The subscriptions in that incarnation of the node."""

    def claims(self, visit: Visit, name: str) -> ClaimsThen | None:
        """The claims to a name at that time, if any are known."""

    def claims_at(self, node: str, name: str) -> list[Row]:
        """All that is known of the claims to a name at a node."""

    def answer(self, trace: Trace) -> Trace | None:
        """The answer to a request, if it is known."""

    def remarks(self, nodes: Iterable[str]) -> Iterable[str]:
        """What may be missing in the records of these nodes."""
