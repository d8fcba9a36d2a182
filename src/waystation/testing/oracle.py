"""The tables of the pipeline once more: slow, obvious, one row after the other, without Spark.

It shares no code with the pipeline, and nothing of the core but what the way of one message is: it
is the second opinion on the rest of both. Rows are dicts with the journal's columns and the node,
instants are microseconds. Whoever changes what a table means changes it here first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import date, timedelta
from typing import Any, Final, NamedTuple, TypeAlias

from msgspec import convert, structs

from waystation.core import coverage
from waystation.core.corrections import (
    Delay,
    Link,
    Measured,
    corrections,
    estimates,
    groups_of,
    hour_of,
    links_by_hour,
)
from waystation.core.coverage import Life, NodeRow
from waystation.core.losses import lost_in
from waystation.core.visits import Evidence, Step, Trace, Visit, step_of, tied, traced
from waystation.testing.verdicts import Moment, Pair, judged, local_name, paired, verdict

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


def day_of(at: int) -> date:
    """The day (UTC) of an instant."""
    return date(1970, 1, 1) + timedelta(microseconds=at)


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
            "day": day_of(self.since),
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
                "day": day_of(valid_from),
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


def session_history(journal: Tables) -> list[Row]:
    """Every session that any node ever had, and when it was open."""
    ends = ends_of_incarnations(journal)
    history = []
    for (node, incarnation, _), events in grouped(
        journal.get("sessions", ()), "node", "incarnation", "session"
    ).items():
        held: Row | None = None
        found = []
        now = events[0]["at"]
        for event in events:
            now = max(now, event["at"])
            if held is not None and event["kind"] in ("close", "clock"):
                held.update({name: event[name] or held[name] for name in ("role", "peer")})
            if held is not None and event["kind"] in ("open", "close"):
                held["closed_at"], held = now, None
            if event["kind"] == "open":
                told = ("node", "incarnation", "session", "role", "place", "peer")
                held = {**{name: event[name] for name in told}, "opened_at": now, "closed_at": None}
                found.append(held)
        end = ends[node, incarnation].at
        for interval in found:
            if end is not None and (interval["closed_at"] is None or end < interval["closed_at"]):
                interval["closed_at"] = end
            if interval["closed_at"] is None or interval["opened_at"] < interval["closed_at"]:
                history.append(interval)
    return history


def expected(journal: Tables) -> list[Row]:
    """What must happen to each message that entered a node."""
    routes: dict[tuple[str, int, str], list[Row]] = defaultdict(list)
    for interval in route_history(journal):
        routes[interval["node"], interval["incarnation"], interval["participant"]].append(interval)
    subscriptions = _by_incarnation(subscription_history(journal))
    sessions = _by_incarnation(session_history(journal))
    visits = {
        name: rows
        for name, rows in entries_of(journal.get("messages", ())).items()
        if not _is_unjudged(rows[0], journal)
    }
    multicasts: dict[tuple[Any, ...], list[list[Row]]] = defaultdict(list)
    for visit in visits.values():
        if _version(visit[0]) > 1 and visit[0]["kind"] == "multicast":
            multicasts[_multicast_name(visit[0])].append(visit)
    found = []
    for (id, node, incarnation, at), rows in visits.items():

        def entry(
            participant: str, node: str = node, incarnation: int = incarnation, at: int = at
        ) -> Row | None:
            return next(iter(at_instant(routes[node, incarnation, participant], at)), None)

        subscribed = at_instant(subscriptions[node, incarnation], at)

        def receivers(id: str, subscribed: list[Row] = subscribed) -> set[str]:
            return {s["receiver"] for s in subscribed if matches(s["pattern"], id)}

        row = rows[0]
        if _version(row) > 1:
            earlier = [
                visit
                for visit in multicasts[_multicast_name(row)]
                if visit[0]["received_at"] < at and len(visit[0]["return"]) < HOP_LIMIT
            ]
            own = sessions[node, incarnation]
            moment = Moment(at, entry, receivers, is_id, own, earlier, HOP_LIMIT)
            verdicts = judged(rows, moment)
        else:
            verdicts = _verdicts(row, at, entry, receivers)
        of_visit = {
            "message_id": id,
            "node": node,
            "incarnation": incarnation,
            **dict.fromkeys(("at", "received_at", "event_time"), at),
            "day": day_of(at),
            "multicast_id": row["multicast_id"],
        }
        found += [{**of_visit, **verdict} for verdict in verdicts]
    return found


def _by_incarnation(history: list[Row]) -> dict[Incarnation, list[Row]]:
    found: dict[Incarnation, list[Row]] = defaultdict(list)
    for interval in history:
        found[interval["node"], interval["incarnation"]].append(interval)
    return found


def _version(row: Row) -> int:
    return int(row.get("version") or 1)


def _multicast_name(row: Row) -> tuple[Any, ...]:
    return row["node"], row["incarnation"], row["message_id"], row["multicast_id"]


def _is_unjudged(row: Row, journal: Tables) -> bool:
    """Whether a message passes through a gossip router, which other rules decide."""
    if _version(row) == 1 or not _is_of_gossip_router(row):
        return False
    return any(member["node"] == row["node"] for member in journal.get("members", ()))


def _verdicts(row: Row, at: int, entry: Any, receivers: Any) -> list[Row]:
    """What the rules of version 1 require."""

    def look_up(participant: str) -> Row:
        held = entry(participant)
        if held is None:
            return verdict("DROPPED", "NO_ROUTE", participant)
        outcome = "DELIVERED" if held["local"] else "FORWARDED"
        return verdict(outcome, None, participant, held["address"])

    if row.get("reason") == "DUPLICATE":  # the node's word is taken for it
        return [verdict("DROPPED", "DUPLICATE")]
    if row["expiry"] is not None and at >= row["expiry"]:
        return [verdict("DROPPED", "EXPIRED")]
    if len(row["return"]) >= HOP_LIMIT:
        return [verdict("DROPPED", "HOP_LIMIT")]
    if row["kind"] == "multicast":
        id = row["multicast_id"]
        if not is_id(id):
            return [verdict("DROPPED", "MALFORMED")]
        found = [look_up(receiver) for receiver in sorted(receivers(id))]
        return found or [verdict("DROPPED", "NO_SUBSCRIBER")]
    if not row["onward"]:
        return [verdict("DROPPED", "NO_ROUTE")]
    name = local_name(row["onward"][0])
    if name is not None:
        return [look_up(name)]
    return [verdict("FORWARDED", None, None, row["onward"][0])]


# The way of each message: the reference of the core itself, for one message at a time


def traces(journal: Tables) -> list[Row]:
    """Where each message went, one row for each of its origins."""
    ways: dict[str, list[Step]] = defaultdict(list)
    for row in journal.get("messages", ()):
        if not _is_of_gossip_router(row):
            ways[row["message_id"]].append(step_of(row))
    ways.pop(NO_ID, None)
    evidence = evidence_of(journal)
    told = {id: traced(id, steps, evidence) for id, steps in ways.items()}
    return [trace_row(id, trace) for id, found in tied(told).items() for trace in found]


def _is_of_gossip_router(row: Row) -> bool:
    return bool(row["onward"]) and str(row["onward"][0]).startswith("6#")


def evidence_of(journal: Tables) -> Evidence:
    """What the journal tells beside messages: of clocks, sessions, and what nodes kept."""
    hours = corrections_by_hour(journal)
    roles = {
        (row["node"], row["incarnation"], row["session"]): row["role"]
        for row in in_order(journal.get("sessions", ()))
        if row["role"] is not None
    }
    return Evidence(
        correction=lambda node, at: hours.get(hour_of(at), {}).get(node, 0),
        role=lambda node, incarnation, session: roles.get((node, incarnation, session)),
        lives=lives_of(journal),
    )


def corrections_by_hour(journal: Tables) -> dict[int, dict[str, int]]:
    """How far each node's clock was ahead, hour by hour."""
    return {hour: corrections(links) for hour, links in links_of(journal).items()}


def links_of(journal: Tables) -> dict[int, list[Link]]:
    """What sessions measured of clocks, hour by hour, and what traffic tells where they did not."""
    columns = ("node", "at", "session", "peer", "offset_us", "rtt_us")
    measured = (
        Measured(*(row[column] for column in columns))
        for row in in_order(journal.get("sessions", ()))
        if row["kind"] == "clock"
    )
    found = links_by_hour(measured)
    for hour, links in estimates(_delays(journal, found)).items():
        found[hour] = found.get(hour, []) + links
    return found


def _delays(journal: Tables, measured: dict[int, list[Link]]) -> Iterator[Delay]:
    """One for each message that passed once from a node to another that nothing connects it with.

    Nothing may connect them in the hour in which the one had it, nor in that of the other.
    """
    groups = {hour: groups_of(links) for hour, links in measured.items()}

    def apart(row: Row, peer: str | None) -> bool:
        group = groups.get(hour_of(row["received_at"]), {})
        return peer is not None and group.get(row["node"], row["node"]) != group.get(peer, peer)

    went: dict[tuple[str, str, str], set[int]] = defaultdict(set)
    came: dict[tuple[str, str, str], set[int]] = defaultdict(set)
    for row in journal.get("messages", ()):
        id, node = row["message_id"], row["node"]
        if id != NO_ID and row["outcome"] == "FORWARDED" and apart(row, row.get("next_node")):
            went[id, node, row["next_node"]].add(row["received_at"])
        if id != NO_ID and apart(row, row.get("from_node")):
            came[id, row["from_node"], node].add(row["received_at"])
    for way in went.keys() & came.keys():
        if len(went[way]) == len(came[way]) == 1:
            [sent], [received] = went[way], came[way]
            yield Delay(*way[1:], hour_of(sent), hour_of(received), received - sent, 1)


def lives_of(journal: Tables) -> dict[str, list[Life]]:
    """The incarnations of each node, and what is on record of them."""
    records: dict[str, dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in in_order(row for rows in journal.values() for row in rows):
        records[row["node"]][row["incarnation"]].append(row)
    told: dict[str, list[NodeRow]] = defaultdict(list)
    for row in journal.get("nodes", ()):
        told[row["node"]].append(convert(row, NodeRow))
    return {node: _lives(by_number, told[node]) for node, by_number in records.items()}


def _lives(records: dict[int, list[Row]], told: list[NodeRow]) -> list[Life]:
    bounds = {n: (rows[0]["at"], max(row["at"] for row in rows)) for n, rows in records.items()}
    return coverage.lives_of(bounds, told, lambda number, seq: _before(records[number], seq))


def _before(rows: list[Row], seq: int) -> int:
    """When the record before this one was made; of the first one, when that was made itself."""
    earlier: list[int] = [row["at"] for row in rows if row["seq"] < seq] or [rows[0]["at"]]
    return earlier[-1]


def trace_row(id: str, trace: Trace) -> Row:
    """A row of `traces`."""
    return {
        "message_id": id,
        "origin": trace.origin,
        "sender": trace.sender,
        "recipient": trace.recipient,
        "multicast_id": trace.multicast_id,
        "answers": trace.answers,
        "answered_by": trace.answered_by,
        "legs": trace.legs,
        "started": trace.started,
        "ended": trace.ended,
        "hops": trace.hops,
        "path": [_path_row(visit, step) for visit in trace.visits for step in visit.steps],
        "outcome": trace.outcome,
        "reason": trace.reason,
        "latency_ms": trace.latency / 1_000,
        "delivered": trace.delivered,
        "lost_copies": trace.lost_copies,
        "unknown_copies": trace.unknown_copies,
        "left_fleet": trace.left_fleet,
        "internal": trace.internal,
        **dict.fromkeys(("complete", "is_complete"), trace.complete),
        **dict.fromkeys(("symmetric", "is_symmetric"), trace.symmetric),
        **dict.fromkeys(("looped", "is_looped"), trace.looped),
        "lost": [structs.asdict(lost) for lost in lost_in(trace)],
        "fates": [fate.value for visit in trace.visits for fate in visit.fates],
        "waiting": trace.waiting,
        "durable": trace.durable,
        "day": day_of(trace.visits[0].received_at),
    }


def _path_row(visit: Visit, step: Step) -> Row:
    same = (
        *("node", "at", "outcome", "reason", "next_hop", "incarnation", "received_at"),
        *("via", "from_node", "out", "next_node", "recipient"),
    )
    return {
        **{name: getattr(step, name) for name in same},
        "left_at": step.at if step.outcome == "FORWARDED" else None,
        "follows": visit.follows,
        "depth": visit.depth,
    }


# Expected against actual


def audit(journal: Tables) -> list[Row]:
    """What should have happened beside what did, one row for each thing that should or did."""
    visit_of = ("message_id", "node", "incarnation", "received_at")
    should = grouped([{"seq": 0, **row} for row in expected(journal)], *visit_of)
    judged_rows = [row for row in journal.get("messages", ()) if not _is_unjudged(row, journal)]
    did = grouped(judged_rows, *visit_of)
    last: dict[tuple[str, str], int] = {}
    for id, node, _, at in did:
        last[id, node] = max(at, last.get((id, node), at))
    found = []
    for name, actual in did.items():
        id, node, _, at = name
        waiting = all(row["outcome"] == "QUEUED" for row in actual)
        if waiting and at < last[id, node]:
            continue  # it was let go later, and counts then
        pair_up = paired if _version(actual[0]) > 1 else _paired
        same = {
            **dict(zip(visit_of, name, strict=True)),
            "event_time": at,
            "day": day_of(at),
            "multicast_id": actual[0]["multicast_id"],
        }
        found += [{**same, **_finding(pair)} for pair in pair_up(should[name], actual)]
    return found + _about_puts(journal)


def _about_puts(journal: Tables) -> list[Row]:
    decided = decisions(journal)
    words = {True: "accepted", False: "refused"}
    found = []
    for row in journal.get("routes", ()):
        right = decided.get((row["node"], row["incarnation"], row["seq"]))
        if right is not None and row["accepted"] is not None and right != row["accepted"]:
            found.append(
                {
                    **dict.fromkeys(("message_id", "reason", "multicast_id", "next_node")),
                    **{name: row[name] for name in ("node", "incarnation", "address")},
                    **dict.fromkeys(("received_at", "event_time"), row["at"]),
                    "day": day_of(row["at"]),
                    "recipient": row["participant"],
                    "expected": words[right],
                    "actual": words[not right],
                    "verdict": "different",
                }
            )
    return found


def _finding(pair: Pair) -> Row:
    should, did = pair.should, pair.did
    here = should if should is not None else did
    there = did if did is not None else should
    assert here is not None
    assert there is not None
    return {
        "recipient": here["recipient"],
        "address": here["next_hop"] if should is None else here["address"],
        "expected": None if should is None else should["outcome"],
        "actual": None if did is None else did["outcome"],
        "verdict": pair.verdict,
        "reason": there["reason"],
        "next_node": there.get("next_node") or here.get("next_node"),
    }


def _paired(should: list[Row], did: list[Row]) -> list[Pair]:
    """The rows of a visit of version 1, paired."""
    final = [row for row in did if row["outcome"] != "QUEUED"]
    if not final:
        return [Pair(row, did[0], "missing") for row in should]
    should = sorted(should, key=lambda row: row["recipient"] or "")
    left = list(final)
    answered: list[Pair] = []
    unanswered: list[Row] = []
    for row in should:
        answer = _answer(row, left, final)
        if answer is None:
            unanswered.append(row)
            continue
        if answer in left:
            left.remove(answer)
        answered.append(Pair(row, answer, "ok"))
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


def _unpaired(should: list[Row], did: list[Row]) -> list[Pair]:
    should = list(should)
    # A copy of a multicast that goes up to a parent or out to a broker is for nobody here.
    did = [row for row in did if row["kind"] == "unicast" or row["outcome"] != "FORWARDED"]
    found = []
    for row in list(should):
        for other in did:
            if other["recipient"] is not None and other["recipient"] == row["recipient"]:
                found.append(Pair(row, other, "different"))
                should.remove(row)
                did.remove(other)
                break
    pairs = min(len(should), len(did))
    found += [
        Pair(row, other, "different")
        for row, other in zip(should[:pairs], did[:pairs], strict=True)
    ]
    found += [Pair(row, None, "missing") for row in should[pairs:]]
    return found + [Pair(None, other, "unexpected") for other in did[pairs:]]


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
                "day": day_of(start),
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
