"""What the claims to a name say about a message to it: who else wanted it, and how the last ended.

Nodes journal each claim to a name, whether it is the routing entry or stands by (CL-7).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

from waystation.core import damping
from waystation.why.lookup import Row

LONGEST_WAIT: Final = damping.LONGEST_WAIT * 1_000
"""Microseconds for which a name is held back at most."""

_MADE = frozenset({"claim", "contested"})
_ENDED = frozenset({"withdraw", "refused"})
_WAITS = frozenset({"held", "released"})


_PROVEN: Final[Mapping[Any, str]] = {True: " (proven)", False: " (unproven)"}
"""What is told of who claims (ID-2); nothing where the journal does not say."""

_Key: TypeAlias = tuple[str, str, int, tuple[str, ...]]


class ClaimsThen:
    """The claims to one name at one node, as they stood when a message came."""

    def __init__(self, node: str, participant: str, events: Iterable[Row]) -> None:
        self._node = node
        self._participant = participant
        self._live: dict[_Key, Row] = {}  # the longest-lived first
        self._last: Row | None = None  # what ended the last of them
        for row in events:
            if row["kind"] in _MADE:
                self._live.setdefault(_key(row), row)
            elif row["kind"] in _ENDED:
                self._live.pop(_key(row), None)
                self._last = row

    def contest(self, entry: str | None) -> str | None:
        """Who claimed the name, if several owners did; `entry` is the address it led to."""
        first: dict[str, Row] = {}  # by owner
        holder = None
        for row in self._live.values():
            first.setdefault(row["owner"], row)
            if entry == f"0#{row['session']}":
                holder = row["owner"]
        if len(first) < 2 or holder is None:
            return None
        nodes = _nodes(first)
        others = _listed([node for owner, node in nodes.items() if owner != holder])
        return (
            f"{self._participant} was claimed by {len(first)} owners; {self._node} kept it for node"
            f" {nodes[holder]}, and {others} stood by"
        )

    def ending(self) -> Row | None:
        """The event that ended the last claim, if none was left."""
        return None if self._live else self._last


def cause_of_end(ended: Row, before: int, events: Callable[[str], list[Row]]) -> str:
    """Why a claim ended, by the node nearest to its origin that tells; empty if none does.

    `events` are those of the claims to that name at a node. What happened there since the claim
    ended and `before` a time counts too: the next claim may be held back (CL-3).
    """
    for node in (ended["path"] or ())[1:]:
        rows = events(node)
        lately = (row["kind"] for row in rows if before - LONGEST_WAIT < row["at"] <= before)
        if [kind for kind in lately if kind in _WAITS][-1:] == ["held"]:
            return f"{node} tells of its next claim later, since the name changed too often"
        same = [
            row
            for row in rows
            if row["kind"] == "withdraw"
            and (row["owner"], row["number"]) == (ended["owner"], ended["number"])
        ]
        if same:
            nearest = min(same, key=lambda row: abs(row["at"] - ended["at"]))
            return f"at {node}, {nearest['detail']}" if nearest["detail"] else ""
    return ended["detail"] or ""


def _key(row: Row) -> _Key:
    """What tells a claim from others: a session may claim a name first so, then otherwise."""
    return row["session"], row["owner"], row["number"], tuple(row["path"] or ())


def _nodes(claims: dict[str, Row]) -> dict[str, str]:
    """The node of each owner, its session if that leaves any doubt, and whether it is proven."""
    names = [row["origin"] for row in claims.values()]
    return {
        owner: row["origin"]
        + f" over {row['session']}" * (names.count(row["origin"]) > 1)
        + _PROVEN.get(row.get("proven"), "")
        for owner, row in claims.items()
    }


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
