"""From rows to an explanation: what the rules say of each hop, and the likely cause of a drop.

The routing table and subscriptions of a node are rebuilt from its journal by the core's own code,
up to the moment when the message arrived, as far as they concern the message.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from waystation.core.address import LOCAL, Address, Route
from waystation.core.expiry import NEVER, Expiry
from waystation.core.message import Arrival, Message
from waystation.core.multicast import Subscriptions
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.core.router import Router
from waystation.core.routing import RoutingEntry
from waystation.errors import LocalError
from waystation.why.claims import ClaimsThen, cause_of_end
from waystation.why.clocks import Visit, corrections
from waystation.why.explanation import Decision, Explanation, Hop, Step
from waystation.why.lookup import MessageLookup, Row

_SECOND = 1_000_000


def explain(journal: Path, message_id: str) -> Explanation:
    """Explain a message from a journal; raises LocalError if the journal does not have it."""
    lookup = MessageLookup(journal)
    rows = lookup.message(message_id)
    if not rows:
        unreadable = f" ({len(lookup.problems)} files could not be read)" * bool(lookup.problems)
        raise LocalError(
            f"the journal has no message {message_id}{unreadable}",
            rule="OB-4",
            hint="check the id, the directory, and whether the journal keeps only a sample",
        )
    entries = _entries(rows)
    ahead = corrections(lookup, list(entries))
    visits = [
        _Hop(lookup, entries[visit], ahead.get(visit[0], 0))
        for visit in sorted(entries, key=lambda visit: visit[2] - ahead.get(visit[0], 0))
    ]
    hops = tuple(visit.described() for visit in visits)
    contests = dict.fromkeys(contest for visit in visits for contest in visit.contests())
    remarks = (*contests, *_remarks(lookup, hops))
    return Explanation(message_id, hops, summary(hops), remarks)


def _entries(rows: list[Row]) -> dict[Visit, list[Row]]:
    """The rows grouped by each arrival of the message at a node."""
    entries: dict[Visit, list[Row]] = {}
    for row in rows:
        visit = (row["node"], row["incarnation"], row["received_at"])
        entries.setdefault(visit, []).append(row)
    return entries


class _Hop:
    """One arrival of the message at one node."""

    def __init__(self, lookup: MessageLookup, rows: list[Row], ahead: int) -> None:
        self._evidence = lookup
        self._rows = rows
        self._ahead = ahead
        first = rows[0]
        self._node: str = first["node"]
        self._incarnation: int = first["incarnation"]
        self._received: int = first["received_at"]
        self._onward = tuple(first["onward"] or ())
        self._back = tuple(first["return"] or ())
        self._multicast_id: str | None = first["multicast_id"]
        self._expiry: int | None = first["expiry"]
        self._history: dict[str, list[Row]] = {}
        self._claims: dict[str, ClaimsThen] = {}
        self._found: tuple[Decision, ...] = ()

    def described(self) -> Hop:
        decisions = self._found = self._decisions()
        steps = tuple(
            Step(row["at"], row["outcome"], row["reason"], row["next_hop"], row["recipient"])
            for row in self._rows
        )
        return Hop(
            self._node,
            self._incarnation,
            self._received,
            self._onward,
            self._back,
            self._multicast_id,
            self._rows[0]["bytes"],
            self._expiry,
            steps,
            decisions,
            _agree(steps, decisions),
            self._explanation(steps),
            self._ahead,
        )

    # What the rules say

    def _decisions(self) -> tuple[Decision, ...]:
        router = Router()
        message = Message(_route(self._onward), _route(self._back), b"", expiry=_ms(self._expiry))
        for number in {hop.type for hop in message.onward_route.addresses[:1]} - {LOCAL}:
            router.types.register(f"type{number}", number)
        now = self._received // 1000
        if self._rows[0]["reason"] == Reason.DUPLICATE:  # which the tables do not tell
            return (Decision(Outcome.DROPPED.value, Reason.DUPLICATE.value),)
        if self._multicast_id is None:
            first = message.onward_route.first
            names = {first.name} if first is not None and first.type == LOCAL else set()
            self._replay(router, names)
            return (self._decision(router, router.decide(message, now)),)
        for row in self._before(self._evidence.subscription_events(self._node, self._incarnation)):
            if row["kind"] == "subscribe":
                router.subscriptions.subscribe(row["pattern"], row["receiver"])
            else:
                router.subscriptions.unsubscribe(row["pattern"], row["receiver"])
        self._replay(router, set(router.subscriptions.match(self._multicast_id)))
        arrival = Arrival(message, self._received, multicast_id=self._multicast_id)
        fan_out = router.fan_out(self._multicast_id, arrival, now)
        return tuple(self._decision(router, verdict) for verdict in fan_out.verdicts)

    def _replay(self, router: Router, names: set[str]) -> None:
        if not names:
            return
        events = self._evidence.route_events(self._node, self._incarnation, names)
        for row in events:
            self._history.setdefault(row["participant"], []).append(row)
        for row in self._before(events):
            if row["kind"] == "put":
                router.table.put(_entry(row), row["at"] // 1000)
            else:
                router.table.remove(row["participant"], row["at"] // 1000)
        claims = self._evidence.claim_events(self._node, self._incarnation, names)
        by_name: dict[str, list[Row]] = {}
        for row in self._before(claims):
            by_name.setdefault(row["participant"], []).append(row)
        self._claims = {name: ClaimsThen(self._node, name, rows) for name, rows in by_name.items()}

    def _before(self, rows: Iterable[Row]) -> Iterable[Row]:
        return (row for row in rows if row["at"] <= self._received)

    def _decision(self, router: Router, verdict: Verdict) -> Decision:
        decision = Decision(
            str(verdict.outcome),
            None if verdict.reason is None else str(verdict.reason),
            verdict.recipient,
            None if verdict.address is None else str(verdict.address),
        )
        if verdict.recipient is None:
            return decision
        entry = router.table.lookup(verdict.recipient, self._received // 1000)
        if entry is None:
            return decision
        return Decision(
            decision.outcome,
            decision.reason,
            decision.recipient,
            decision.address,
            str(entry.address),
            entry.local,
            self._since(verdict.recipient, entry),
            None if entry.expiry == NEVER else int(entry.expiry) * 1000,
        )

    def _since(self, participant: str, entry: RoutingEntry) -> int | None:
        """When the routing entry got its address."""
        puts = list(self._before(self._history.get(participant, ())))
        since = None
        for row in reversed(puts):
            if row["kind"] != "put" or (row["accepted"] and row["address"] != str(entry.address)):
                break
            if row["accepted"]:
                since = row["at"]
        return since

    def contests(self) -> Iterable[str]:
        """Which of the recipients several owners claimed at that time."""
        for decision in self._found:
            claims = self._claims.get(decision.recipient or "")
            told = claims.contest(decision.entry) if claims is not None else None
            if told is not None:
                yield told

    # The likely cause

    def _explanation(self, steps: tuple[Step, ...]) -> str | None:
        reasons = [step.reason for step in steps if step.reason is not None]
        if not reasons:
            return None
        tellers = {
            "NO_ROUTE": self._why_no_route,
            "NO_SUBSCRIBER": self._why_no_subscriber,
            "EXPIRED": self._why_expired,
            "HOP_LIMIT": self._why_hop_limit,
        }
        teller = tellers.get(reasons[-1])
        return teller() if teller is not None else REASONS.get(reasons[-1])

    def _why_no_route(self) -> str:
        name = _name(self._onward[0]) if self._onward else None
        if name is None:
            return "its onward route was empty"
        history = self._history.get(name, [])
        before = [row for row in self._before(history) if row["accepted"]]
        after = [row for row in history if row["at"] > self._received and row["kind"] == "put"]
        later = f"; it was there {span(after[0]['at'] - self._received)} later" if after else ""
        claim = self._ended_claim(name, before)
        if claim is not None:
            return f"{claim}{later}"
        if not before:
            return self._why_unknown(name, bool(after)) + later
        last = before[-1]
        if last["kind"] == "remove":
            gone = self._received - last["at"]
            return f"{name} had left {span(gone)} before{later}"
        expiry = max((row["expiry"] or 0) for row in before)
        return f"the route to {name} had expired {span(self._received - expiry)} before{later}"

    def _ended_claim(self, name: str, changes: list[Row]) -> str | None:
        """How the last claim to a name ended, if it had no other routing entry since."""
        claims = self._claims.get(name)
        ended = claims.ending() if claims is not None else None
        if ended is None or any(r["kind"] == "put" and r["at"] > ended["at"] for r in changes):
            return None
        before = span(self._received - ended["at"])
        if ended["kind"] == "refused":
            detail = f": {ended['detail']}" if ended["detail"] else ""
            return f"a claim to {name} was refused {before} before{detail}"
        cause = cause_of_end(ended, self._received, lambda node: self._claims_at(node, name))
        why = f": {cause}" if cause else ""
        return f"{name} had left {before} before{why}"

    def _claims_at(self, node: str, name: str) -> list[Row]:
        return self._evidence.claim_events(node, None, {name})

    def _why_unknown(self, name: str, comes: bool) -> str:
        if comes:
            return f"{name} was not known here yet"
        known = self._evidence.participants(self._node, self._incarnation)
        close = get_close_matches(name, sorted(known), 3)
        alike = f"; the closest names are {', '.join(close)}" if close else ""
        return f"{name} was never known here{alike}"

    def _why_no_subscriber(self) -> str:
        id = self._multicast_id or ""
        subscriptions = Subscriptions()
        ever: dict[str, None] = {}
        for row in self._evidence.subscription_events(self._node, self._incarnation):
            ever[row["pattern"]] = None
            if row["at"] <= self._received:
                if row["kind"] == "subscribe":
                    subscriptions.subscribe(row["pattern"], row["receiver"])
                else:
                    subscriptions.unsubscribe(row["pattern"], row["receiver"])
        trial = Subscriptions()
        for pattern in ever:
            trial.subscribe(pattern, pattern)
        gone = trial.match(id)
        if gone:
            return f"there was no subscriber at that time; {gone[0]} subscribed before or after"
        current = subscriptions.patterns()
        if not current:
            return "there were no subscriptions at this node"
        close = sorted(current, key=lambda pattern: -_alike(pattern, id))[:3]
        return f"no subscription matches {id}; the closest are {', '.join(close)}"

    def _why_expired(self) -> str:
        if self._expiry is None:
            return "it had expired"
        late = self._rows[-1]["at"] - self._expiry
        if self._received >= self._expiry:
            return f"it had expired {span(self._received - self._expiry)} before it arrived"
        waited = self._rows[-1]["at"] - self._received
        return f"it waited here for {span(waited)} and expired {span(late)} before it was dropped"

    def _why_hop_limit(self) -> str:
        return f"it went in a loop: its return route has {len(self._back)} addresses"


REASONS = {
    "QUEUE_FULL": "the receiver's queue was full, and the sender did not wait",
    "TRANSPORT_DOWN": "the connection was lost before it was written",
    "REFUSED": "the node refused it: an access rule, a missing token, or the node was closing",
    "FAILED": "the worker that got it raised an exception; the node's log has it",
    "TOO_LARGE": "it is larger than the transport allows",
    "MALFORMED": "it was not valid in its format",
    "UNKNOWN_TYPE": "the node has no transport for an address of that type",
    "DUPLICATE": "it was here before: a copy of a broadcast, or a further answer to a request",
}


def summary(hops: tuple[Hop, ...]) -> str:
    """A one-line summary of the outcome."""
    # What became of a second copy says nothing about the message.
    last = ([hop for hop in hops if hop.steps[-1].reason != Reason.DUPLICATE] or hops)[-1]
    step = last.steps[-1]
    delivered = [
        (hop, step) for hop in hops for step in hop.steps if step.outcome == Outcome.DELIVERED
    ]
    first = hops[0].received_at - hops[0].clock_ahead_us
    if step.outcome == Outcome.DROPPED and not delivered:
        why = f": {last.explanation}" if last.explanation else ""
        return f"dropped at {last.node}, {step.reason}{why}"
    if delivered:
        where = ", ".join(dict.fromkeys(hop.node for hop, _ in delivered))
        took = span(max(step.at - hop.clock_ahead_us for hop, step in delivered) - first)
        return f"delivered at {where} after {took} and {len(hops)} hop{'s' * (len(hops) > 1)}"
    if step.outcome == Outcome.QUEUED:
        return f"still waiting at {last.node} when the journal ends"
    return (
        f"last seen at {last.node}, which sent it to {step.next_hop}; no journal here shows "
        "that it arrived"
    )


def _remarks(lookup: MessageLookup, hops: tuple[Hop, ...]) -> Iterable[str]:
    ahead = {hop.node: hop.clock_ahead_us for hop in hops}
    if any(ahead.values()):
        told = ", ".join(f"{node} by {_signed(us)}" for node, us in sorted(ahead.items()) if us)
        yield f"the clocks of the nodes differ ({told}); hops are in order of corrected times"
    for node in dict.fromkeys(hop.node for hop in hops):
        life = lookup.life(node)
        lost = sum(row["lost"] or 0 for row in life if row["kind"] == "lost")
        if lost:
            yield f"the journal of {node} lost {lost} records, so this may be incomplete"
        corrupt = [row["lost"] or 0 for row in life if row["kind"] == "corrupt"]
        if corrupt:
            many = sum(corrupt) or "some"
            yield f"the journal of {node} has {many} damaged records, so this may be incomplete"
    yield from lookup.problems


def _agree(steps: tuple[Step, ...], decisions: tuple[Decision, ...]) -> bool:
    final = [step for step in steps if step.outcome != Outcome.QUEUED]
    actual = {
        (s.outcome, s.reason, s.recipient if s.outcome == "DELIVERED" else None) for s in final
    }
    wanted = {
        (d.outcome, d.reason, d.recipient if d.outcome == "DELIVERED" else None) for d in decisions
    }
    return wanted <= actual


def _entry(row: Row) -> RoutingEntry:
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


def _route(addresses: tuple[str, ...]) -> Route:
    return Route(tuple(Address.parse(address) for address in addresses))


def _name(address: str) -> str | None:
    return address[2:] if address.startswith("0#") else None


def _alike(pattern: str, id: str) -> int:
    return sum(
        mine == theirs or mine in "+*"
        for mine, theirs in zip(pattern.split("/"), id.split("/"), strict=False)
    )


def _signed(microseconds: int) -> str:
    return f"{'-' if microseconds < 0 else '+'}{span(abs(microseconds))}"


def span(microseconds: int) -> str:
    """A duration in seconds or milliseconds.

    >>> span(1_200_000), span(850), span(90_000_000)
    ('1.2 s', '0.85 ms', '90 s')
    """
    if microseconds >= _SECOND:
        return f"{microseconds / _SECOND:.4g} s"
    return f"{microseconds / 1000:.3g} ms"
