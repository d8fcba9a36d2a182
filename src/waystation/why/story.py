"""From what is known of a message to its explanation: how it ended, hop by hop, and why.

The one explainer: it tells the same of a journal and of the tables that were built from it (SP-8).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Final

from waystation.core.multicast import Subscriptions
from waystation.core.outcome import Outcome
from waystation.core.spoken import plural
from waystation.core.visits import VANISHED, Fate, Loss, Trace, Visit
from waystation.core.visits import Step as VisitStep
from waystation.why.claims import cause_of_end
from waystation.why.explanation import Decision, Explanation, Hop, Step, Way
from waystation.why.source import Interval, Row, Source
from waystation.why.spans import signed, span
from waystation.why.tunnelled import is_tunnelled, not_registered, tunnel_notes, tunnel_summary

NOTICED: Final = 1_000
"""Microseconds: clocks that differ by less do not matter to a reader."""

FLUSHED: Final = 1_000_000
"""Microseconds: what a node recorded this long before a crash may not be in its journal."""

REASONS: Final = {
    "HOP_LIMIT": "it went in a loop: its return route has as many addresses as the node allows",
    "QUEUE_FULL": "the receiver's queue was full, and the sender did not wait",
    "TRANSPORT_DOWN": "the connection was lost before it was written",
    "REFUSED": "the node refused it: access rules, grants, a missing token, or it was closing",
    "FAILED": "the worker that got it raised an exception; the node's log has it",
    "TOO_LARGE": "it is larger than the transport allows",
    "MALFORMED": "it was not valid in its format",
    "UNKNOWN_TYPE": "the node has no transport for an address of that type",
    "DUPLICATE": "it was here before: a copy of a broadcast, or a further answer to a request",
}


def explained(source: Source, message_id: str) -> Explanation:
    """The explanation of a message; each of its origins is a way of its own."""
    ways: list[Way] = []
    hops: list[Hop] = []
    contests: list[str] = []
    for number, trace in enumerate(source.traces):
        told = [_Hop(source, trace, visit) for visit in trace.visits]
        first = len(hops)
        found = [hop.described(number, first) for hop in told]
        contests += [contest for hop in told for contest in hop.contests()]
        ways.append(_way(source, trace, found))
        hops += found
    remarks = (*dict.fromkeys(contests), *_remarks(source))
    summary = ways[0].summary if len(ways) == 1 else _several(ways)
    return Explanation(message_id, tuple(hops), summary, remarks, tuple(ways))


def _several(ways: list[Way]) -> str:
    told = "; ".join(f"from {origin_name(way.origin)}: {way.summary}" for way in ways)
    return f"{len(ways)} messages have this id, from different origins: {told}"


def origin_name(origin: str | None) -> str:
    """The node of an origin, for people."""
    return "an unknown origin" if origin is None else origin.rpartition("/")[0]


# The whole way


def _way(source: Source, trace: Trace, hops: list[Hop]) -> Way:
    return Way(
        origin=trace.origin,
        outcome=trace.outcome,
        reason=trace.reason,
        place=trace.place,
        summary=summary(trace, [hop.explanation for hop in hops]),
        notes=tuple(_notes(source, trace)),
        started=trace.started,
        ended=trace.ended,
        latency_us=trace.latency,
        hops=trace.hops,
        delivered=trace.delivered,
        lost_copies=trace.lost_copies,
        unknown_copies=trace.unknown_copies,
        left_fleet=trace.left_fleet,
        waiting=trace.waiting,
        complete=trace.complete,
        looped=trace.looped,
        internal=trace.internal,
        answers=trace.answers,
        answered_by=trace.answered_by,
        legs=trace.legs,
        symmetric=trace.symmetric,
    )


def summary(trace: Trace, causes: list[str | None] | None = None) -> str:
    """One line: how a message ended. `causes` are those of its visits, if they are known."""
    causes = causes or [None] * len(trace.visits)
    loss = trace.last_loss
    if is_tunnelled(trace.visits[0]):
        return tunnel_summary(trace, causes[loss.visit] if loss is not None else None)
    if loss is not None:
        others = f"; delivered to {plural(trace.delivered, 'other')}" * bool(trace.delivered)
        return _lost(trace, loss, causes[loss.visit]) + others
    if trace.outcome == Outcome.DELIVERED:
        where = ", ".join(
            dict.fromkeys(
                v.node for v in trace.visits for _, fate in v.told() if fate == "delivered"
            )
        )
        hops = f" and {plural(trace.hops, 'hop')}" * bool(trace.hops)
        return f"delivered at {where} after {span(trace.latency)}{hops}"
    if trace.outcome == Outcome.FORWARDED:
        return _last_seen(trace)
    if trace.outcome == Outcome.QUEUED:
        on_disk = ", on its disk," if trace.durable else ""
        return f"still waiting at {trace.place}{on_disk} when the journal ends"
    cause = next((c for v, c in zip(trace.visits, causes, strict=True) if c), None)
    return f"dropped at {trace.place}, {trace.reason}{_because(cause)}"


def _lost(trace: Trace, loss: Loss, cause: str | None) -> str:
    visit = trace.visits[loss.visit]
    step = visit.steps[loss.step]
    whom = f" for {loss.recipient}" if trace.multicast_id and loss.recipient else ""
    if loss.reason == VANISHED and step.outcome == Outcome.FORWARDED:
        return (
            f"lost{whom} between {visit.node} and {step.next_node}: {visit.node} sent it, and the "
            f"journal of {step.next_node} shows that it did not arrive"
        )
    if loss.reason == VANISHED:
        return f"lost{whom} at {visit.node}: it was waiting there when the node ended"
    if step.outcome == Outcome.QUEUED:
        cause = "it waited there until it expired"
    return f"dropped at {visit.node}, {loss.reason}{whom}{_because(cause)}"


def _because(cause: str | None) -> str:
    return f": {cause}" if cause else ""


def _last_seen(trace: Trace) -> str:
    visit, step, fate = [
        (visit, step, fate)
        for visit in trace.visits
        for step, fate in visit.told()
        if fate in (Fate.LEFT, Fate.UNKNOWN)
    ][-1]
    if fate == Fate.LEFT and step.next_node is not None:
        return (
            f"left the fleet at {visit.node}, which sent it to {step.next_node}; "
            f"{step.next_node} keeps no journal"
        )
    if fate == Fate.LEFT:
        return f"left the fleet at {visit.node}, which sent it to {step.next_hop}"
    return (
        f"last seen at {visit.node}, which sent it to {step.next_node or step.next_hop}; "
        "no journal here shows whether it arrived"
    )


def _notes(source: Source, trace: Trace) -> Iterator[str]:
    """What else is to be told of a message, beside how it ended."""
    if is_tunnelled(trace.visits[0]):
        yield from tunnel_notes(trace)
        return
    if trace.internal:
        yield "it is internal: nodes sent it for themselves, not for an application"
    if trace.answers is not None:
        yield f"it answers {trace.answers}"
    if trace.answered_by is not None:
        yield _answered(source, trace, trace.answered_by)
    if len(trace.losses) > 1:
        names = sorted({loss.recipient for loss in trace.losses if loss.recipient})
        yield f"{len(trace.losses)} went without: {_listed(names) or 'nobody is named'}"
    elsewhere = trace.outcome != Outcome.FORWARDED
    if trace.left_fleet > (not elsewhere):
        yield f"{plural(trace.left_fleet, 'copy', 'copies')} left the fleet"
    if trace.unknown_copies and (elsewhere or trace.unknown_copies > 1):
        yield f"what became of {plural(trace.unknown_copies, 'copy', 'copies')} is unknown"
    if trace.waiting and trace.outcome != Outcome.QUEUED:
        yield f"{plural(trace.waiting, 'copy', 'copies')} still waiting when the journal ends"
    if trace.looped:
        yield "it arrived twice at the same node along the same route: a loop"


def _answered(source: Source, trace: Trace, id: str) -> str:
    answer = source.answer(trace)
    told = f", {summary(answer)}" if answer is not None else ""
    ways = {True: ", by the same nodes", False: ", by other nodes", None: ""}[trace.symmetric]
    more = f"; {plural(trace.legs - 2, 'more answer')} followed" * (trace.legs > 2)
    return f"answered by {id}{told}{ways}{more}"


def _listed(names: list[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _remarks(source: Source) -> Iterator[str]:
    visits = [visit for trace in source.traces for visit in trace.visits]
    ahead = {visit.node: visit.ahead for visit in visits}
    if max(ahead.values()) - min(ahead.values()) > NOTICED:
        told = ", ".join(f"{node} by {signed(us)}" for node, us in sorted(ahead.items()) if us)
        yield f"the clocks of the nodes differ ({told}); hops are in the order in which it passed"
    silent = dict.fromkeys(_silent(source, visits))
    if silent:
        verb = "keeps" if len(silent) == 1 else "keep"
        yield f"{_listed(list(silent))} {verb} no journal here: what happened there is not known"
    for visit in visits:
        before = visit.first.from_node
        if visit.follows is None and before is not None and source.evidence.lives.get(before):
            yield f"{before} sent it to {visit.node} and has no record of that"
    yield from source.remarks(dict.fromkeys([*ahead, *_unknown(visits)]))


def _silent(source: Source, visits: list[Visit]) -> Iterator[str]:
    """The nodes on its way that keep no journal. Whoever sent it there is none of them."""
    lives = source.evidence.lives
    if not lives:
        return  # the tables that tell were not built
    for visit in visits:
        before = None if visit.follows is None else visit.first.from_node
        others = [before, *(step.next_node for step in visit.steps)]
        yield from (n for n in others if n is not None and not lives.get(n))


def _unknown(visits: list[Visit]) -> Iterator[str]:
    """The nodes whose record does not tell whether it came there."""
    for visit in visits:
        for step, fate in visit.told():
            if fate == Fate.UNKNOWN and step.next_node is not None:
                yield step.next_node


# One hop


class _Hop:
    """One visit of the message, and what is to be told of it."""

    def __init__(self, source: Source, trace: Trace, visit: Visit) -> None:
        self._source = source
        self._trace = trace
        self._visit = visit
        self._received = visit.received_at
        self._found: tuple[Decision, ...] = ()

    def described(self, way: int, first: int) -> Hop:
        """As plain values; `first` is the number of the first hop of its way."""
        visit, row = self._visit, self._visit.first
        decisions = self._found = self._source.decisions(visit)
        has_routes = self._source.has_routes
        return Hop(
            visit.node,
            visit.incarnation,
            visit.received_at,
            row.onward if has_routes else (),
            row.back if has_routes else (),
            row.multicast_id,
            row.bytes or 0,
            row.expiry,
            tuple(self._step(step, fate) for step, fate in visit.told()),
            decisions,
            self._source.agrees(visit, decisions),
            self._cause(),
            visit.ahead,
            way,
            None if visit.follows is None else first + visit.follows,
            visit.depth,
            row.sender,
        )

    def contests(self) -> Iterable[str]:
        """Which of the recipients several owners claimed at that time."""
        for decision in self._found:
            if decision.recipient:
                claims = self._source.claims(self._visit, decision.recipient)
                told = claims.contest(decision.entry) if claims is not None else None
                if told is not None:
                    yield told

    # What became of a copy

    def _step(self, step: VisitStep, fate: Fate) -> Step:
        return Step(
            step.at,
            step.outcome,
            step.reason,
            step.next_hop,
            step.recipient,
            step.next_node,
            fate.value,
            self._remark(step, fate),
        )

    def _remark(self, step: VisitStep, fate: Fate) -> str | None:
        there = step.next_node
        if is_tunnelled(self._visit):
            return None  # that members keep no journal goes without saying
        if fate == Fate.VANISHED and step.outcome == Outcome.QUEUED:
            return "it was waiting here when the node ended"
        if fate == Fate.VANISHED:
            return (
                f"it did not arrive at {there}, whose journal covers that time{self._crash(step)}"
            )
        if fate == Fate.LEFT and there is None:
            return "it left the fleet: no node with a journal received it"
        if fate == Fate.LEFT:
            return f"it left the fleet: {there} keeps no journal"
        if fate == Fate.UNKNOWN and there is None:
            return "the journal does not tell which node it went to"
        if fate == Fate.UNKNOWN:
            return f"whether it arrived is unknown: the journal of {there} does not cover that time"
        return {
            Fate.WAITING: "it is still waiting when the journal ends",
            Fate.EXPIRED: "it waited here until it expired",
        }.get(fate)

    def _crash(self, step: VisitStep) -> str:
        """A word of caution if the next node crashed just then."""
        evidence = self._source.evidence
        arrives = evidence.time_at(str(step.next_node), step.at - self._visit.ahead)
        for life in evidence.lives.get(str(step.next_node), ()):
            crashed = life.ends is not None and not life.stopped
            if crashed and life.begins <= arrives and abs(life.latest - arrives) <= FLUSHED:
                return "; but that node crashed then, and its last second may not be on record"
        return ""

    # The likely cause of a drop

    def _cause(self) -> str | None:
        dropped = [step for step in self._visit.steps if step.reason is not None]
        if not dropped:
            return None
        last = dropped[-1]
        tellers = {
            "NO_ROUTE": self._why_no_route,
            "NO_SUBSCRIBER": self._why_no_subscriber,
            "EXPIRED": self._why_expired,
        }
        teller = tellers.get(last.reason or "")
        return teller(last) if teller is not None else REASONS.get(last.reason or "")

    def _why_no_route(self, step: VisitStep) -> str:
        if is_tunnelled(self._visit):
            return not_registered(self._visit)
        name = self._looked_up(step)
        if name is None:
            return "its onward route was empty"
        entries = self._source.entries(self._visit, name)
        before = [entry for entry in entries if entry.since <= self._received]
        after = [entry for entry in entries if entry.since > self._received]
        verb = "was back" if before else "came"
        later = f"; it {verb} {span(after[0].since - self._received)} later" if after else ""
        claim = self._ended_claim(name, before)
        if claim is not None:
            return f"{claim}{later}"
        if not before:
            return self._why_unknown(name, bool(after)) + later
        return self._how_it_ended(name, before[-1]) + later

    def _looked_up(self, step: VisitStep) -> str | None:
        """The name that had no entry."""
        if step.recipient is not None:
            return step.recipient
        if step.onward and step.onward[0].startswith("0#"):  # version 1 named nobody
            return step.onward[0].removeprefix("0#")
        named = (decision.recipient for decision in self._found if decision.recipient)
        return next(named, None)

    def _how_it_ended(self, name: str, entry: Interval) -> str:
        if entry.until is None or entry.until > self._received:
            return f"{name} led to {entry.address}, and the node found no way there"
        before = span(self._received - entry.until)
        if entry.closed_by == "expired":
            return f"the route to {name} had expired {before} before"
        return f"{name} had left {before} before"

    def _ended_claim(self, name: str, entries: list[Interval]) -> str | None:
        """How the last claim to a name ended, if it had no other routing entry since."""
        claims = self._source.claims(self._visit, name)
        ended = claims.ending() if claims is not None else None
        if ended is None or any(entry.since > ended["at"] for entry in entries):
            return None
        before = span(self._received - ended["at"])
        if ended["kind"] == "refused":
            detail = f": {ended['detail']}" if ended["detail"] else ""
            return f"a claim to {name} was refused {before} before{detail}"
        cause = cause_of_end(ended, self._received, lambda node: self._claims_at(node, name))
        return f"{name} had left {before} before{_because(cause)}"

    def _claims_at(self, node: str, name: str) -> list[Row]:
        return self._source.claims_at(node, name)

    def _why_unknown(self, name: str, comes: bool) -> str:
        if comes:
            return f"{name} was not known here yet"
        close = get_close_matches(name, sorted(self._source.names(self._visit)), 3)
        alike = f"; the closest names are {', '.join(close)}" if close else ""
        return f"{name} was never known here{alike}"

    def _why_no_subscriber(self, _step: VisitStep) -> str:
        id = self._trace.multicast_id or ""
        known = self._source.subscriptions(self._visit)
        trial = Subscriptions()
        for one in known:
            trial.subscribe(one.pattern, one.pattern)
        gone = trial.match(id)
        if gone:
            return f"there was no subscriber at that time; {gone[0]} subscribed before or after"
        current = {one.pattern: None for one in known if self._holds(one.since, one.until)}
        if not current:
            return "there were no subscriptions at this node"
        close = sorted(current, key=lambda pattern: -_alike(pattern, id))[:3]
        return f"no subscription matches {id}; the closest are {', '.join(close)}"

    def _holds(self, since: int, until: int | None) -> bool:
        return since <= self._received and (until is None or self._received < until)

    def _why_expired(self, step: VisitStep) -> str:
        if step.expiry is None:
            return "it had expired"
        if self._received >= step.expiry:
            return f"it had expired {span(self._received - step.expiry)} before it arrived"
        waited, late = step.at - self._received, step.at - step.expiry
        return f"it waited here for {span(waited)} and expired {span(late)} before it was dropped"


def _alike(pattern: str, id: str) -> int:
    return sum(
        mine == theirs or mine in "+*"
        for mine, theirs in zip(pattern.split("/"), id.split("/"), strict=False)
    )


def agree(visit: Visit, decisions: tuple[Decision, ...]) -> bool:
    """Whether what the rules require is among what happened."""
    final = [s for s in visit.steps if s.durable or s.outcome != Outcome.QUEUED]
    actual = {_essence(s.outcome, s.reason, s.recipient) for s in final}
    return {_essence(d.outcome, d.reason, d.recipient) for d in decisions} <= actual


def _essence(
    outcome: str, reason: str | None, recipient: str | None
) -> tuple[str, str | None, str | None]:
    return outcome, reason, recipient if outcome == Outcome.DELIVERED else None
