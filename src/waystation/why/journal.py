"""What a journal knows about a message and its surroundings.

The routing table and subscriptions of a node are rebuilt from its journal by the core's own code,
up to the moment when the message arrived, as far as they concern the message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Final

from waystation.core.address import LOCAL, Address, Route
from waystation.core.corrections import links_by_hour
from waystation.core.coverage import Life
from waystation.core.expiry import NEVER, Expiry
from waystation.core.message import Arrival, Message
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.core.router import Router
from waystation.core.routing import RoutingEntry, RoutingTable
from waystation.core.visits import Evidence, Trace, Visit, step_of, tied, traced
from waystation.why.claims import ClaimsThen
from waystation.why.clocks import Clocks
from waystation.why.explanation import Decision
from waystation.why.lookup import MessageLookup, Row
from waystation.why.source import Interval, Subscribed, answer_among, held_since
from waystation.why.story import agree
from waystation.why.tunnelled import attempts_joined, is_tunnelled

AMISS: Final = 60_000_000
"""Microseconds by which what is known of a clock is never wrong."""


class JournalSource:
    """The rows of a journal that are about one message."""

    has_routes = True

    def __init__(self, lookup: MessageLookup, message_id: str, rows: list[Row]) -> None:
        self._lookup = lookup
        self._id = message_id
        steps = [step_of(row) for row in rows]
        self.evidence = Evidence(
            correction=_clocks(lookup).ahead,
            role=_Roles(lookup).role,
            lives=_Lives(lookup),
        )
        found = traced(message_id, steps, self.evidence)
        self._answers = self._find_answers(found)
        self.traces: Sequence[Trace] = attempts_joined(
            tied({message_id: found, **self._answers})[message_id]
        )
        self._routes: dict[tuple[str, int, str], list[Row]] = {}
        self._claims: dict[tuple[str, int, str], list[Row]] = {}

    def _find_answers(self, found: list[Trace]) -> dict[str, list[Trace]]:
        """The answers, which begin at a node that the message came to, or was sent to."""
        since: dict[str, int] = {}
        for node, at in self._reached(found):
            since[node] = min(at, since.get(node, at))
        ids = {id for node in since for id in self._lookup.answers(node, self._id, since[node])}
        return {
            id: traced(id, map(step_of, self._lookup.message(id)), self.evidence)
            for id in sorted(ids)
        }

    def _reached(self, found: list[Trace]) -> Iterator[tuple[str, int]]:
        """The nodes where an answer may begin, and when at the earliest, by their clocks."""
        for trace in found:
            for visit in trace.visits:
                yield visit.node, visit.received_at
                for step in visit.steps:
                    there = step.next_node
                    if there is not None and there in self.evidence.lives:
                        at = self.evidence.time_at(there, step.at - visit.ahead)
                        yield there, at - AMISS

    def answer(self, trace: Trace) -> Trace | None:
        """The answer to a request, if it is known."""
        return answer_among(self._answers.get(trace.answered_by or "", ()), self._id)

    # What the rules say

    def decisions(self, visit: Visit) -> tuple[Decision, ...]:
        """What the rules require at a visit."""
        row = visit.first
        if row.reason == Reason.DUPLICATE:  # which the tables do not tell
            return (Decision(Outcome.DROPPED.value, Reason.DUPLICATE.value),)
        if is_tunnelled(visit):  # which the rules do not judge
            return ()
        router = Router(version=row.version)
        message = Message(_route(row.onward), _route(row.back), b"", expiry=_ms(row.expiry))
        for number in {hop.type for hop in message.onward_route.addresses[:1]} - {LOCAL}:
            router.types.register(f"type{number}", number)
        now = visit.received_at // 1000
        if row.multicast_id is None:
            first = message.onward_route.first
            self._replay(router, visit, [first.name] if first and first.type == LOCAL else [])
            verdict = self._over_session(visit, router.decide(message, now))
            if row.durable and Outcome.QUEUED in (row.outcome, _waits(verdict)):
                verdict = Verdict(Outcome.QUEUED, None, verdict.recipient)
            return (self._decision(router, visit, verdict),)
        for event in self._before(visit, self._subscription_events(visit)):
            if event["kind"] == "subscribe":
                router.subscriptions.subscribe(event["pattern"], event["receiver"])
            else:
                router.subscriptions.unsubscribe(event["pattern"], event["receiver"])
        names = router.subscriptions.match(row.multicast_id)
        self._replay(router, visit, [*names, row.multicast_id.partition("/")[0]])
        roles = self._open_roles(visit)
        router.has_parent = "parent" in roles and row.version > 1
        router.has_global_transport = "global" in roles and row.version > 1
        arrival = Arrival(
            message,
            visit.received_at,
            multicast_id=row.multicast_id,
            from_global=bool(row.from_global),
            via=row.via,
        )
        fan_out = router.fan_out(row.multicast_id, arrival, now)
        upward = (Decision(Outcome.FORWARDED.value),) if fan_out.upward else ()
        told = tuple(self._decision(router, visit, verdict) for verdict in fan_out.verdicts)
        return told + upward

    def agrees(self, visit: Visit, decisions: tuple[Decision, ...]) -> bool:
        """Whether that is what happened."""
        return agree(visit, decisions)

    def _replay(self, router: Router, visit: Visit, names: Iterable[str]) -> None:
        """Rebuild what the node knew of some names, and of the names that these led to."""
        behind = []
        for name in names:
            self._replay_one(router.table, visit, name)
            entry = router.table.lookup(name, visit.received_at // 1000)
            if entry is not None and entry.address.type == LOCAL and entry.address.name != name:
                behind.append(entry.address.name)
        for name in behind:
            self._replay_one(router.table, visit, name)

    def _replay_one(self, table: RoutingTable, visit: Visit, name: str) -> None:
        for event in self._before(visit, self._route_events(visit, name)):
            if event["kind"] == "put":
                table.put(entry_of(event), event["at"] // 1000)
            else:
                table.remove(name, event["at"] // 1000)

    def _over_session(self, visit: Visit, verdict: Verdict) -> Verdict:
        """What is for a session goes to its place, whether or not the table has its name."""
        if verdict.reason is not Reason.NO_ROUTE or verdict.recipient is None:
            return verdict
        for event in reversed(self._sessions(visit)):
            if event["session"] == verdict.recipient and event["kind"] in ("open", "close"):
                if event["kind"] == "open" and event["place"]:
                    place = Address.parse(event["place"])
                    return Verdict(Outcome.FORWARDED, None, verdict.recipient, place)
                break
        return verdict

    def _open_roles(self, visit: Visit) -> set[str]:
        """The roles of the sessions that were open before, or that a copy of it waited for."""
        waited_for = {step.out for step in visit.steps}
        return {
            event["role"]
            for event in self._own_sessions(visit)
            if event["kind"] == "open"
            and (event["at"] <= visit.received_at or event["session"] in waited_for)
        }

    def _sessions(self, visit: Visit) -> list[Row]:
        """What happened to the sessions of the node before the message came."""
        return list(self._before(visit, self._own_sessions(visit)))

    def _own_sessions(self, visit: Visit) -> Iterator[Row]:
        rows = self._lookup.sessions(visit.node)
        return (row for row in rows if row["incarnation"] == visit.incarnation)

    def _before(self, visit: Visit, rows: Iterable[Row]) -> Iterator[Row]:
        return (row for row in rows if row["at"] <= visit.received_at)

    def _decision(self, router: Router, visit: Visit, verdict: Verdict) -> Decision:
        decision = Decision(
            str(verdict.outcome),
            None if verdict.reason is None else str(verdict.reason),
            verdict.recipient,
            None if verdict.address is None else str(verdict.address),
        )
        if verdict.recipient is None:
            return decision
        entry = router.table.lookup(verdict.recipient, visit.received_at // 1000)
        if entry is None:
            return decision
        return Decision(
            decision.outcome,
            decision.reason,
            decision.recipient,
            decision.address,
            str(entry.address),
            entry.local,
            held_since(
                self.entries(visit, verdict.recipient), visit.received_at, str(entry.address)
            ),
            _us(entry.expiry),
        )

    # What the node knew

    def _route_events(self, visit: Visit, name: str) -> list[Row]:
        key = (visit.node, visit.incarnation, name)
        if key not in self._routes:
            self._routes[key] = self._lookup.route_events(visit.node, visit.incarnation, {name})
        return self._routes[key]

    def _subscription_events(self, visit: Visit) -> list[Row]:
        return self._lookup.subscription_events(visit.node, visit.incarnation)

    def entries(self, visit: Visit, name: str) -> list[Interval]:
        """The routing entries of a name in that incarnation of the node, in order."""
        return list(intervals(self._route_events(visit, name)))

    def names(self, visit: Visit) -> set[str]:
        """All names that this incarnation of the node had a routing entry for."""
        return self._lookup.participants(visit.node, visit.incarnation)

    def subscriptions(self, visit: Visit) -> list[Subscribed]:
        """The subscriptions in that incarnation of the node."""
        since: dict[tuple[str, str], int] = {}
        found = []
        for row in self._subscription_events(visit):
            key = row["pattern"], row["receiver"]
            if row["kind"] == "subscribe":
                since.setdefault(key, row["at"])
            elif key in since:
                found.append(Subscribed(row["pattern"], since.pop(key), row["at"]))
        return found + [Subscribed(pattern, at, None) for (pattern, _), at in since.items()]

    def claims(self, visit: Visit, name: str) -> ClaimsThen | None:
        """The claims to a name at that time, if any are known."""
        key = (visit.node, visit.incarnation, name)
        if key not in self._claims:
            self._claims[key] = self._lookup.claim_events(visit.node, visit.incarnation, {name})
        rows = list(self._before(visit, self._claims[key]))
        return ClaimsThen(visit.node, name, rows) if rows else None

    def claims_at(self, node: str, name: str) -> list[Row]:
        """All that is known of the claims to a name at a node."""
        return self._lookup.claim_events(node, None, {name})

    def remarks(self, nodes: Iterable[str]) -> Iterator[str]:
        """What may be missing in the records of these nodes."""
        for node in nodes:
            life = self._lookup.life(node)
            lost = sum(row["lost"] or 0 for row in life if row["kind"] == "lost")
            if lost:
                yield f"the journal of {node} lost {lost} records, so this may be incomplete"
            corrupt = [row["lost"] or 0 for row in life if row["kind"] == "corrupt"]
            if corrupt:
                many = sum(corrupt) or "some"
                yield f"the journal of {node} has {many} damaged records, so this may be incomplete"
        yield from self._lookup.problems


def _waits(verdict: Verdict) -> Outcome:
    """What becomes of a durable message: one that finds no route waits (DU-1)."""
    return Outcome.QUEUED if verdict.reason is Reason.NO_ROUTE else verdict.outcome


def _clocks(lookup: MessageLookup) -> Clocks:
    measured = links_by_hour(lookup.measured())
    return Clocks(lookup.nodes, measured, lambda hour: lookup.estimates(measured, hour))


class _Roles:
    """The roles of sessions; those of a node are read when one is asked for."""

    def __init__(self, lookup: MessageLookup) -> None:
        self._of_node = cache(lambda node: self._read(lookup, node))

    def role(self, node: str, incarnation: int, session: str) -> str | None:
        """The role of a session, by its node, incarnation and name."""
        return self._of_node(node).get((incarnation, session))

    def _read(self, lookup: MessageLookup, node: str) -> dict[tuple[int, str], str]:
        rows = lookup.sessions(node)
        return {(r["incarnation"], r["session"]): r["role"] for r in rows if r["role"] is not None}


class _Lives(Mapping[str, Sequence[Life]]):
    """The incarnations of the nodes with a journal; those of a node are read when asked for."""

    def __init__(self, lookup: MessageLookup) -> None:
        self._nodes = set(lookup.nodes)
        self._of_node = cache(lookup.lives)

    def __getitem__(self, node: str) -> Sequence[Life]:
        if node not in self._nodes:
            raise KeyError(node)
        return self._of_node(node)

    def __contains__(self, node: object) -> bool:
        return node in self._nodes

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)


def intervals(events: Iterable[Row]) -> Iterator[Interval]:
    """The routing entries of one name, from the changes in one incarnation."""
    table = RoutingTable()
    since = now = 0
    held: RoutingEntry | None = None
    for event in events:
        now = max(now, event["at"])
        name = event["participant"]
        if held is not None and not held.alive(now // 1000):
            yield _interval(held, since, None, None)
            held = None
        before = held
        if event["kind"] == "put":
            if not table.put(entry_of(event), now // 1000).accepted:
                continue
            held, why = table.lookup(name, now // 1000), "replaced"
        else:
            table.remove(name, now // 1000)
            held, why = None, "removed"
        if before is not None:
            yield _interval(before, since, now, why)
        since = now
    if held is not None:
        yield _interval(held, since, None, None)


def _interval(entry: RoutingEntry, since: int, until: int | None, why: str | None) -> Interval:
    """An entry until then, or until it expired, if it did not end before."""
    expiry = _us(entry.expiry)
    if until is None and expiry is not None and not entry.sticky:
        until, why = expiry, "expired"
    return Interval(str(entry.address), entry.local, since, until, why, expiry)


def entry_of(row: Row) -> RoutingEntry:
    """The entry that a row of `routes` puts into the table."""
    return RoutingEntry(
        row["participant"],
        Address.parse(row["address"]),
        bool(row["local"]),
        bool(row["visible"]),
        _ms(row["expiry"]),
        bool(row["sticky"]),
    )


def _ms(microseconds: int | None) -> Expiry:
    return NEVER if microseconds is None else microseconds // 1000


def _us(milliseconds: Expiry) -> int | None:
    return None if milliseconds == NEVER else int(milliseconds) * 1000


def _route(addresses: tuple[str, ...]) -> Route:
    return Route(tuple(Address.parse(address) for address in addresses))
