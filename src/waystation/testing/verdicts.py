"""What the rules say of one message at one node, for rows of version 2: slow, obvious, row by row.

A part of the oracle (oracle.py). Rows are dicts with the journal's columns, instants microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeAlias

Row: TypeAlias = dict[str, Any]

REMEMBERED: Final = 60_000_000
"""For this long a node must know a broadcast again; later it may."""


class Moment(NamedTuple):
    """What a node had when a message entered it."""

    at: int
    entry: Callable[[str], Row | None]  # of a participant
    receivers: Callable[[str], set[str]]  # of a multicast id, which must be valid
    is_id: Callable[[str], bool]
    sessions: list[Row]  # of the incarnation, from the first on
    earlier: list[list[Row]]  # visits of the same multicast before, in the order of time
    hop_limit: int


def verdict(
    outcome: str, reason: str | None, recipient: str | None = None, address: str | None = None
) -> Row:
    """One outcome that the rules require."""
    return {
        "recipient": recipient,
        "address": address,
        "outcome": outcome,
        "reason": reason,
        "next_node": None,
    }


def local_name(address: str) -> str | None:
    """The name in an address of type 0, as these are written."""
    type, mark, data = address.partition("#")
    if mark and type != "0":
        return None
    return data if mark else type


def judged(visit: list[Row], moment: Moment) -> list[Row]:
    """What must happen, one row for each recipient and one for each copy upward."""
    row = visit[0]
    found = _decided(visit, row, moment)
    names = [name for name in map(local_name, row["onward"]) if name is not None]
    for each in found:
        if each["recipient"] is None and "upward" not in each and names:
            each["recipient"] = names[-1]
        each.pop("upward", None)
    return found


def _decided(visit: list[Row], row: Row, moment: Moment) -> list[Row]:
    far = len(row["return"]) >= moment.hop_limit
    expired = _had_expired(row)
    if row["kind"] == "unicast" and row["reason"] == "DUPLICATE":  # the node's word is taken for it
        return [verdict("DROPPED", "DUPLICATE")]
    if row["kind"] == "multicast" and not far:
        before = [
            other
            for other in moment.earlier
            if not _had_expired(other[0]) and not _was_sent_on(other, visit)
        ]
        near = [other for other in before if other[0]["received_at"] >= moment.at - REMEMBERED]
        if near or (before and row["reason"] == "DUPLICATE"):
            went_up = any(not other[0]["from_global"] for other in near or before)
            up = [] if went_up or expired else _upward(visit, moment)
            return [verdict("DROPPED", "DUPLICATE"), *up]
    if expired:
        return [verdict("DROPPED", "EXPIRED")]
    if far:
        return [verdict("DROPPED", "HOP_LIMIT")]
    if row["kind"] == "multicast":
        return _published(visit, moment)
    return [_queued(row, _sent(row, moment))]


def _had_expired(row: Row) -> bool:
    """Whether it had expired when it came: then it ends, and is the first copy of none."""
    return row["expiry"] is not None and bool(row["received_at"] >= row["expiry"])


def _sent(row: Row, moment: Moment) -> Row:
    if not row["onward"]:
        return verdict("DROPPED", "NO_ROUTE")
    name = local_name(row["onward"][0])
    return verdict("FORWARDED", None, None, row["onward"][0]) if name is None else _to(name, moment)


def _queued(row: Row, found: Row) -> Row:
    waits = found["reason"] == "NO_ROUTE" or (not found["reason"] and row["outcome"] == "QUEUED")
    return verdict("QUEUED", None, found["recipient"]) if row.get("durable") and waits else found


def _to(participant: str, moment: Moment) -> Row:
    entry = moment.entry(participant)
    if entry is None:
        places = [s["place"] for s in _open_ones(moment) if s["session"] == participant]
        if places:
            return verdict("FORWARDED", None, participant, places[0])
        return verdict("DROPPED", "NO_ROUTE", participant)
    name = local_name(entry["address"])
    behind = moment.entry(name) if entry["local"] and name is not None else None
    is_here = name == participant or (behind is not None and local_name(behind["address"]) == name)
    outcome = "DELIVERED" if is_here else "FORWARDED"
    return verdict(outcome, None, participant, entry["address"])


def _open_ones(moment: Moment) -> list[Row]:
    return [
        session
        for session in moment.sessions
        if session["opened_at"] <= moment.at
        and (session["closed_at"] is None or moment.at < session["closed_at"])
    ]


def _published(visit: list[Row], moment: Moment) -> list[Row]:
    row = visit[0]
    id, via = row["multicast_id"], row.get("via")
    if not moment.is_id(id):
        return [verdict("DROPPED", "MALFORMED")]
    found = [_to(receiver, moment) for receiver in sorted(moment.receivers(id))]
    if via is not None:
        entry = moment.entry(via)
        back = {s["place"] for s in _open_ones(moment) if s["session"] == via}
        back |= {entry["address"]} if entry is not None else set()
        found = [
            each
            for each in found
            if each["address"] is None
            or (each["address"] not in back and local_name(each["address"]) != via)
        ]
    found += _upward(visit, moment)
    return found or [verdict("DROPPED", "NO_SUBSCRIBER")]


def _upward(visit: list[Row], moment: Moment) -> list[Row]:
    """A copy for each parent; without one, for each global transport if the provider is visible.

    A parent counts from its first opening on, and for a copy that waited for that.
    """
    row, waited_for = visit[0], {each.get("out") for each in visit}
    id = row["multicast_id"]
    if row["from_global"] or not moment.is_id(id):
        return []
    firsts: dict[str, Row] = {}
    for session in moment.sessions:
        if session["role"] in ("parent", "global"):
            first = firsts.setdefault(session["session"], dict(session))
            first["peer"] = first["peer"] or session["peer"]
    known = [
        first
        for name, first in firsts.items()
        if first["opened_at"] <= moment.at or name in waited_for
    ]
    parents = [first for first in known if first["role"] == "parent"]
    provider = moment.entry(id.partition("/")[0])
    visible = provider is not None and provider["visible"]
    above = parents or (known if visible else [])
    return [
        {**verdict("FORWARDED", None), "next_node": each["peer"], "upward": True} for each in above
    ]


def _was_sent_on(former: list[Row], visit: list[Row]) -> bool:
    """Whether a worker that got the former sent on the other."""
    a, b = former[0], visit[0]
    return (
        any(row["outcome"] == "DELIVERED" for row in former)
        and b.get("via") is None
        and len(b["return"]) == len(a["return"]) + 1
        and b["return"][1:] == a["return"]
        and bool(a["onward"])
        and b["onward"] == a["onward"][1:]
    )


# Expected against actual: pairs of rows, one pair after the other


class Pair(NamedTuple):
    """An expected outcome, an actual one, and what to think of them."""

    should: Row | None
    did: Row | None
    verdict: str


def paired(should: Iterable[Row], did: Iterable[Row]) -> list[Pair]:
    """The rows of one visit, paired."""
    wanted = sorted(should, key=lambda row: (row["recipient"] or "", row["next_node"] or ""))
    left = list(did)
    queued = [row for row in left if row["outcome"] == "QUEUED"]
    if queued and (len(queued) == len(left) or wanted[0]["outcome"] == "QUEUED"):
        verdicts = ["ok" if row["outcome"] == "QUEUED" else "missing" for row in wanted]
        return [Pair(row, queued[0], each) for row, each in zip(wanted, verdicts, strict=True)]
    left = [row for row in left if row["outcome"] != "QUEUED"]
    found: list[Pair] = []
    for fits, opinion in _WAYS:
        for row in list(wanted):
            other = next((other for other in left if fits(row, other)), None)
            if other is not None:
                found.append(Pair(row, other, opinion))
                wanted.remove(row)
                left.remove(other)
    found += [Pair(row, None, "missing") for row in wanted]
    return found + [Pair(None, other, "unexpected") for other in left]


def _is_up(row: Row) -> bool:
    return row["recipient"] is None and (row.get("kind", "multicast") == "multicast")


def _is_copy_up(row: Row) -> bool:
    return row["outcome"] == "FORWARDED" and row["recipient"] is None and row["address"] is None


def _same_way(row: Row, other: Row) -> bool:
    if row["outcome"] != "FORWARDED" or other["outcome"] != "FORWARDED":
        return False
    if _is_copy_up(row):
        return _is_up(other) and row["next_node"] == other["next_node"]
    same = (row["recipient"], row["address"]) == (other["recipient"], other["next_hop"])
    return same and not _is_up(other)


def _unknown_way_up(row: Row, other: Row) -> bool:
    left = row["outcome"] == other["outcome"] == "FORWARDED"
    return left and _is_copy_up(row) and _is_up(other) and other["next_node"] is None


def _waited(row: Row, other: Row) -> bool:
    """Whether a durable message got on after all, by the way that there was then."""
    if not other.get("durable") or not _same_name(row, other):
        return False
    got_on = row["outcome"] == "QUEUED" and other["outcome"] in {"FORWARDED", "DELIVERED"}
    return got_on or row["outcome"] == other["outcome"] == "FORWARDED"


def _same_receiver(row: Row, other: Row) -> bool:
    delivered = row["outcome"] == other["outcome"] == "DELIVERED"
    return bool(delivered and row["recipient"] == other["recipient"])


def _same_reason(row: Row, other: Row) -> bool:
    dropped = row["outcome"] == other["outcome"] == "DROPPED"
    return bool(dropped and row["reason"] == other["reason"])


def _same_name(row: Row, other: Row) -> bool:
    if row["recipient"] is not None:
        return bool(row["recipient"] == other["recipient"])
    up = _is_copy_up(row) and _is_up(other)
    return up and row["next_node"] is not None and row["next_node"] == other["next_node"]


def _named_and_same_reason(row: Row, other: Row) -> bool:
    return _same_reason(row, other) and _same_name(row, other)


def _anything(row: Row, other: Row) -> bool:
    del row, other
    return True


_WAYS: Final = (
    (_same_way, "ok"),
    (_unknown_way_up, "ok"),
    (_waited, "ok"),
    (_same_receiver, "ok"),
    (_named_and_same_reason, "ok"),
    (_same_reason, "ok"),
    (_same_name, "different"),
    (_anything, "different"),
)
