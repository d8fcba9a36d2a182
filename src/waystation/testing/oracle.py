"""The tables of the pipeline once more: slow, obvious, one row after the other, without Spark.

It shares no code with the pipeline, and nothing of the core but constants: it is the second opinion
on both. Rows are dicts with the journal's columns and the node, instants are microseconds. Whoever
changes what a table means changes it here first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

Row: TypeAlias = dict[str, Any]
Tables: TypeAlias = dict[str, list[Row]]
"""The rows of each table of a journal, in any order; a table may be missing."""

HOP_LIMIT: Final = 32
NO_ID: Final = "0" * 32
Incarnation: TypeAlias = tuple[str, int]
"""A node and when its process started."""


class End(NamedTuple):
    """When something ends, and why; None twice while it has not ended."""

    at: int | None
    why: str | None


OPEN: Final = End(None, None)


def in_order(rows: Iterable[Row]) -> list[Row]:
    """The rows of one node in the order in which they happened."""
    return sorted(rows, key=lambda row: (row["incarnation"], row["seq"]))


def grouped(rows: Iterable[Row], *columns: str) -> dict[tuple[Any, ...], list[Row]]:
    """The rows by the values of some columns, each group in order."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in in_order(rows):
        groups[tuple(row[column] for column in columns)].append(row)
    return groups


# When an incarnation begins and ends


def ends_of_incarnations(journal: Tables) -> dict[Incarnation, End]:
    """How each incarnation ended, as far as it did."""
    begins: dict[str, dict[int, int]] = defaultdict(dict)
    stops: dict[Incarnation, int] = {}
    every_row = [row for rows in journal.values() for row in rows]
    for (node, incarnation), rows in grouped(every_row, "node", "incarnation").items():
        begins[node][incarnation] = rows[0]["at"]
    for row in reversed(in_order(journal.get("nodes", ()))):  # the first of each kind counts
        if row["kind"] == "start":
            begins[row["node"]][row["incarnation"]] = row["at"]
        elif row["kind"] == "stop":
            stops[row["node"], row["incarnation"]] = row["at"]
    ends: dict[Incarnation, End] = {}
    for node, begun in begins.items():
        numbers = sorted(begun)
        for number, following in zip(numbers, [*numbers[1:], None], strict=True):
            if (node, number) in stops:
                ends[node, number] = End(stops[node, number], "stopped")
            elif following is not None:
                ends[node, number] = End(begun[following], "restart")
            else:
                ends[node, number] = OPEN
    return ends


def cut(interval: Row, end: End) -> Row | None:
    """An interval as far as its incarnation lasted; None when nothing is left of it."""
    valid_to = interval["valid_to"]
    if end.at is not None and (valid_to is None or valid_to > end.at):
        interval = {**interval, "valid_to": end.at, "closed_by": end.why}
    empty = interval["valid_to"] is not None and interval["valid_to"] <= interval["valid_from"]
    return None if empty else interval


# Histories


class _Entry:
    """What a participant has at the moment, while its events are folded."""

    def __init__(self, put: Row, since: int) -> None:
        self.put = put
        self.expiry: int | None = put["expiry"]
        self.sticky: bool = put["sticky"]
        self.since = since

    def dead(self, now: int) -> bool:
        return self.expiry is not None and now >= self.expiry and not self.sticky

    def merged_into(self, put: Row, now: int) -> _Entry:
        merged = _Entry(put, now)
        if self.expiry is None or merged.expiry is None:
            merged.expiry = None
        else:
            merged.expiry = max(self.expiry, merged.expiry)
        merged.sticky = self.sticky or merged.sticky
        return merged

    def interval(self, end: End) -> Row:
        """It lasted until this end, or until it expired, whatever came first."""
        expires = self.expiry is not None and not self.sticky
        if expires and (end.at is None or self.dead(end.at)):
            end = End(self.expiry, "expired")
        same = ("node", "incarnation", "participant", "address", "local", "visible")
        return {
            **{column: self.put[column] for column in same},
            "sticky": self.sticky,
            "expiry": self.expiry,
            "valid_from": self.since,
            "valid_to": end.at,
            "closed_by": end.why,
        }


def folded(events: list[Row]) -> Iterator[Row]:
    """The intervals of one participant in one incarnation, before they are cut."""
    entry: _Entry | None = None
    now = events[0]["at"]
    for event in events:
        now = max(now, event["at"])
        if entry is not None and entry.dead(now):
            yield entry.interval(OPEN)
            entry = None
        if event["kind"] == "remove":
            if entry is not None:
                yield entry.interval(End(now, "removed"))
            entry = None
        elif entry is None:
            entry = _Entry(event, now)
        elif event["local"] or not entry.put["local"]:
            yield entry.interval(End(now, "replaced"))
            entry = entry.merged_into(event, now)
    if entry is not None:
        yield entry.interval(OPEN)


def decisions(journal: Tables) -> dict[tuple[str, int, int], bool]:
    """For each put, named by node, incarnation and seq: should it have been accepted?"""
    found = {}
    routes = journal.get("routes", ())
    for (node, incarnation, _), events in grouped(
        routes, "node", "incarnation", "participant"
    ).items():
        for count, event in enumerate(events):
            if event["kind"] == "put":
                now = max(former["at"] for former in events[: count + 1])
                before = folded(events[:count]) if count else ()
                held = at_instant(before, now)
                kept = held and held[-1]["local"] and not event["local"]
                found[node, incarnation, event["seq"]] = not kept
    return found


def _holds(interval: Row, at: int) -> bool:
    ends = interval["valid_to"]
    return bool(interval["valid_from"] <= at and (ends is None or at < ends))


def route_history(journal: Tables) -> list[Row]:
    """Every entry that any node ever had, and when."""
    ends = ends_of_incarnations(journal)
    history = []
    for (node, incarnation, _), events in grouped(
        journal.get("routes", ()), "node", "incarnation", "participant"
    ).items():
        for interval in folded(events):
            remaining = cut(interval, ends[node, incarnation])
            if remaining is not None:
                history.append(remaining)
    return history


def subscription_history(journal: Tables) -> list[Row]:
    """Every subscription that any node ever had, and when."""
    ends = ends_of_incarnations(journal)
    history = []
    for (node, incarnation, pattern, receiver), events in grouped(
        journal.get("subscriptions", ()), "node", "incarnation", "pattern", "receiver"
    ).items():
        since: int | None = None
        intervals = []
        now = events[0]["at"]
        for event in events:
            now = max(now, event["at"])
            if event["kind"] == "subscribe" and since is None:
                since = now
            elif event["kind"] == "unsubscribe" and since is not None:
                intervals.append((since, End(now, "removed")))
                since = None
        if since is not None:
            intervals.append((since, OPEN))
        for valid_from, end in intervals:
            interval = {
                "node": node,
                "incarnation": incarnation,
                "pattern": pattern,
                "receiver": receiver,
                "valid_from": valid_from,
                "valid_to": end.at,
                "closed_by": end.why,
            }
            remaining = cut(interval, ends[node, incarnation])
            if remaining is not None:
                history.append(remaining)
    return history


def at_instant(history: Iterable[Row], at: int) -> list[Row]:
    """What of a history held at an instant."""
    return [interval for interval in history if _holds(interval, at)]


# What the rules say of each message


def matches(pattern: str, id: str) -> bool:
    """Whether a subscription covers a multicast id, segment by segment."""
    wanted, given = pattern.split("/"), id.split("/")
    if wanted[-1] == "*":
        wanted.pop()
        given = given[: len(wanted)]
    if len(wanted) != len(given):
        return False
    return all(want in ("+", have) for want, have in zip(wanted, given, strict=True))


def is_id(id: str) -> bool:
    """Whether something can be published under this text."""
    segments = id.split("/")
    if not 2 <= len(segments) <= 64 or len(id) > 65_535:
        return False
    for segment in segments[:2]:
        if not segment.isprintable() or not segment or set(segment) & set("+*# "):
            return False
    return all(segment.isascii() and segment.isalnum() for segment in segments[2:])


def entries_of(messages: Iterable[Row]) -> dict[tuple[str, str, int, int], list[Row]]:
    """The rows of each entry of a message into a node."""
    return grouped(messages, "message_id", "node", "incarnation", "received_at")


def expected(journal: Tables) -> list[Row]:
    """What must happen to each message that entered a node."""
    routes: dict[tuple[str, int, str], list[Row]] = defaultdict(list)
    for interval in route_history(journal):
        routes[interval["node"], interval["incarnation"], interval["participant"]].append(interval)
    subscriptions: dict[Incarnation, list[Row]] = defaultdict(list)
    for interval in subscription_history(journal):
        subscriptions[interval["node"], interval["incarnation"]].append(interval)
    found = []
    for (id, node, incarnation, at), rows in entries_of(journal.get("messages", ())).items():

        def look_up(
            participant: str, node: str = node, incarnation: int = incarnation, at: int = at
        ) -> Row:
            held = at_instant(routes[node, incarnation, participant], at)
            if not held:
                return _verdict("DROPPED", "NO_ROUTE", participant)
            [entry] = held
            outcome = "DELIVERED" if entry["local"] else "FORWARDED"
            return _verdict(outcome, None, participant, entry["address"])

        subscribed = at_instant(subscriptions[node, incarnation], at)
        found += [
            {"message_id": id, "node": node, "at": at, **verdict}
            for verdict in _verdicts(rows[0], at, subscribed, look_up)
        ]
    return found


def _verdict(
    outcome: str, reason: str | None, recipient: str | None = None, address: str | None = None
) -> Row:
    return {"recipient": recipient, "address": address, "outcome": outcome, "reason": reason}


def _verdicts(row: Row, at: int, subscribed: list[Row], look_up: Any) -> list[Row]:
    if row.get("reason") == "DUPLICATE":  # the node's word is taken for it
        return [_verdict("DROPPED", "DUPLICATE")]
    if row["expiry"] is not None and at >= row["expiry"]:
        return [_verdict("DROPPED", "EXPIRED")]
    if len(row["return"]) >= HOP_LIMIT:
        return [_verdict("DROPPED", "HOP_LIMIT")]
    if row["kind"] == "multicast":
        id = row["multicast_id"]
        if not is_id(id):
            return [_verdict("DROPPED", "MALFORMED")]
        receivers = {s["receiver"] for s in subscribed if matches(s["pattern"], id)}
        if not receivers:
            return [_verdict("DROPPED", "NO_SUBSCRIBER")]
        return [look_up(receiver) for receiver in sorted(receivers)]
    if not row["onward"]:
        return [_verdict("DROPPED", "NO_ROUTE")]
    type, mark, data = row["onward"][0].partition("#")
    if not mark or type == "0":
        return [look_up(data if mark else type)]
    return [_verdict("FORWARDED", None, None, row["onward"][0])]


# The way of each message


def traces(journal: Tables) -> list[Row]:
    """Where each message went."""
    ways: dict[str, list[Row]] = defaultdict(list)
    for row in journal.get("messages", ()):
        ways[row["message_id"]].append(row)
    ways.pop(NO_ID, None)
    found = []
    for id, rows in ways.items():
        rows.sort(key=lambda row: (row["at"], row["node"], row["incarnation"], row["seq"]))
        started, ended = rows[0]["at"], rows[-1]["at"]
        told = [row for row in rows if row["reason"] != "DUPLICATE"]  # which ends nothing
        last = (told or rows)[-1]
        steps = ("node", "at", "outcome", "reason", "next_hop")
        entries = _entries_in_order(rows)
        found.append(
            {
                "message_id": id,
                "started": started,
                "ended": ended,
                "hops": len(rows),
                "path": [{step: row[step] for step in steps} for row in rows],
                "outcome": last["outcome"],
                "reason": last["reason"],
                "latency_ms": (ended - started) / 1_000,
                "complete": last["outcome"] in ("DELIVERED", "DROPPED"),
                "symmetric": _symmetric(entries),
                "looped": _looped(entries),
            }
        )
    return found


def _entry_name(row: Row) -> tuple[str, int, int]:
    return row["node"], row["incarnation"], row["received_at"]


def _entries_in_order(rows: list[Row]) -> list[Row]:
    """The first row of each entry: the others are further receivers, or the end of waiting.

    Second copies are left out: they came by another way, and went no further.
    """
    firsts: dict[tuple[str, int, int], Row] = {}
    for row in rows:
        firsts.setdefault(_entry_name(row), row)
    return [row for row in firsts.values() if row["reason"] != "DUPLICATE"]


def _symmetric(entries: list[Row]) -> bool:
    for former, row in pairwise(entries):
        before, after = former["return"], row["return"]
        if len(after) <= len(before) or after[len(after) - len(before) :] != before:
            return False
    return True


def _looped(entries: list[Row]) -> bool:
    visits = [(row["node"], tuple(row["onward"])) for row in entries]
    return len(set(visits)) < len(visits)


# Expected against actual


def audit(journal: Tables) -> list[Row]:
    """What should have happened beside what did, one row for each thing that should or did."""
    should: dict[tuple[str, str, int], list[Row]] = defaultdict(list)
    for row in expected(journal):
        should[row["message_id"], row["node"], row["at"]].append(row)
    found = []
    did = grouped(journal.get("messages", ()), "message_id", "node", "received_at")
    last_entry = {(id, node): at for id, node, at in sorted(did)}
    for (id, node, at), actual in did.items():
        waiting = all(row["outcome"] == "QUEUED" for row in actual)
        if waiting and at < last_entry[id, node]:
            continue  # it was let go later, and counts then
        found += [
            {"message_id": id, "node": node, **row} for row in _paired(should[id, node, at], actual)
        ]
    decided = decisions(journal)
    words = {True: "accepted", False: "refused"}
    for row in journal.get("routes", ()):
        right = decided.get((row["node"], row["incarnation"], row["seq"]))
        if right is not None and row["accepted"] is not None and right != row["accepted"]:
            different = _finding(row["participant"], words[right], words[not right], "different")
            found.append({"message_id": None, "node": row["node"], **different})
    return found


def _finding(
    recipient: str | None,
    expected: str | None,
    actual: str | None,
    verdict: str,
    reason: str | None = None,
) -> Row:
    return {
        "recipient": recipient,
        "expected": expected,
        "actual": actual,
        "verdict": verdict,
        "reason": reason,
    }


def _paired(should: list[Row], did: list[Row]) -> list[Row]:
    final = [row for row in did if row["outcome"] != "QUEUED"]
    if not final:
        return [_finding(row["recipient"], row["outcome"], "QUEUED", "missing") for row in should]
    should = sorted(should, key=lambda row: row["recipient"] or "")
    left = list(final)
    answered: list[Row] = []
    unanswered: list[Row] = []
    for row in should:
        answer = _answer(row, left, final)
        if answer is None:
            unanswered.append(row)
            continue
        if answer in left:
            left.remove(answer)
        answered.append(
            _finding(row["recipient"], row["outcome"], answer["outcome"], "ok", row["reason"])
        )
    return answered + _unpaired(unanswered, left)


def _answer(row: Row, left: list[Row], final: list[Row]) -> Row | None:
    """The actual row that is what was expected. A copy to an address answers for all behind it."""
    outcome: str = row["outcome"]
    mine, theirs = {
        "DELIVERED": ("recipient", "recipient"),
        "FORWARDED": ("address", "next_hop"),
        "DROPPED": ("reason", "reason"),
    }[outcome]
    candidates: list[Row] = [*left, *(final if outcome == "FORWARDED" else ())]
    for other in candidates:
        if other["outcome"] == outcome and other[theirs] == row[mine]:
            return other
    return None


def _unpaired(should: list[Row], did: list[Row]) -> list[Row]:
    should = list(should)
    # A copy of a multicast that goes up to a parent or out to a broker is for nobody here.
    did = [row for row in did if row["kind"] == "unicast" or row["outcome"] != "FORWARDED"]
    found = []
    for row in list(should):
        for other in did:
            if other["recipient"] is not None and other["recipient"] == row["recipient"]:
                found.append(_different(row, other))
                should.remove(row)
                did.remove(other)
                break
    pairs = min(len(should), len(did))
    found += map(_different, should[:pairs], did[:pairs])
    found += [
        _finding(row["recipient"], row["outcome"], None, "missing", row["reason"])
        for row in should[pairs:]
    ]
    found += [
        _finding(row["recipient"], None, row["outcome"], "unexpected", row["reason"])
        for row in did[pairs:]
    ]
    return found


def _different(should: Row, did: Row) -> Row:
    recipient, reason = should["recipient"], did["reason"]
    return _finding(recipient, should["outcome"], did["outcome"], "different", reason)


# Health


def health(journal: Tables, window: int = 60_000_000) -> list[Row]:
    """How many messages ended how, and how long they took, window by window."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in journal.get("messages", ()):
        start = row["at"] // window * window
        key = row["node"], start, row["outcome"], row["reason"], _address_type(row)
        groups[key].append(row)
    found = []
    for (node, start, outcome, reason, type), rows in groups.items():
        took = sorted((row["at"] - row["received_at"]) / 1_000 for row in rows)
        found.append(
            {
                "node": node,
                "window_start": start,
                "outcome": outcome,
                "reason": reason,
                "address_type": type,
                "messages": len(rows),
                "bytes": sum(row["bytes"] for row in rows),
                "p50_ms": _percentile(took, 0.5),
                "p99_ms": _percentile(took, 0.99),
            }
        )
    return found


def _address_type(row: Row) -> str:
    if row["outcome"] == "DELIVERED":
        return "local"
    text = row["next_hop"] if row["outcome"] == "FORWARDED" else next(iter(row["onward"]), None)
    if text is None:
        return "none"
    number = text.partition("#")[0] if "#" in text else "0"
    return {"0": "local", "1": "tcp", "2": "udp", "3": "ws", "5": "uds"}.get(number, number)


def _percentile(values: list[float], share: float) -> float:
    """Between the two values nearest to the place, in proportion."""
    place = share * (len(values) - 1)
    below = int(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (values[above] - values[below]) * (place - below)
