"""One message: how it ended for each recipient, and how it would have, as far as its record goes.

The visits that happened stay as they are unless a node before them decides otherwise. What leaves
for somewhere else is a copy, which is followed by `following`. No Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from waystation.core.outcome import Outcome, Reason
from waystation.core.visits import VANISHED, Evidence, Fate, Step, Trace, Visit, traced
from waystation.whatif.changes import Ttl, lengthened, selects
from waystation.whatif.copies import UNKNOWN, Copy, Diverged, End, Told, Verdict
from waystation.whatif.past import NOTICED, Outage

_DELIVERED: Final = str(Outcome.DELIVERED)
_FORWARDED: Final = str(Outcome.FORWARDED)
_DROPPED: Final = str(Outcome.DROPPED)
_QUEUED: Final = str(Outcome.QUEUED)
_MULTICAST: Final = "multicast"
_LAST: Final = 2**63 - 1

# What stands for a fate in the table; fates that say nothing of a recipient are not here.
_ENDS: Final[Mapping[Fate, tuple[str, str | None]]] = {
    Fate.DELIVERED: (_DELIVERED, None),
    Fate.DROPPED: (_DROPPED, None),
    Fate.VANISHED: (_DROPPED, VANISHED),
    Fate.EXPIRED: (_DROPPED, str(Reason.EXPIRED)),
    Fate.UNKNOWN: (UNKNOWN, None),
    Fate.LEFT: (_FORWARDED, None),
    Fate.WAITING: (_QUEUED, None),
}
_RANK: Final = {_DELIVERED: 4, _FORWARDED: 3, UNKNOWN: 2, _QUEUED: 1, _DROPPED: 0}

Key = tuple[str, int, int]


def told(
    message_id: str,
    steps: Iterable[Step],
    changed: Iterable[Diverged],
    outages: Iterable[Outage],
    evidence: Evidence,
    ttl: Iterable[Ttl] = (),
) -> Told:
    """What is known of a message, and what is to be followed; `ttl` are changes of lives."""
    rows = list(steps)
    where: dict[Key, Diverged] = {
        (one.node, one.incarnation, one.received_at): one for one in changed
    }
    before: list[End] = []
    after: list[End] = []
    copies: list[Copy] = []
    answers = None
    internal = is_multicast = False
    for trace in traced(message_id, rows, evidence):
        story = _Story(message_id, trace, where, list(outages), longer(trace, ttl))
        before += best(story.before())
        after += story.after()
        copies += story.copies
        answers = answers or trace.answers
        internal |= trace.internal
        is_multicast |= trace.multicast_id is not None
    return Told(tuple(before), tuple(after), tuple(copies), answers, internal, is_multicast)


def longer(trace: Trace, ttl: Iterable[Ttl]) -> int:
    """How much later a message would have expired: its life began where it entered the fabric."""
    visit = trace.visits[0]
    before = expiry = visit.first.expiry
    for change in ttl:
        about = change.messages and selects(change.node, visit.node)
        if expiry is not None and about and selects(change.participant, trace.recipient):
            expiry = lengthened(change, min(visit.received_at, expiry), expiry)
    return 0 if before is None or expiry is None else expiry - before


def best(ends: Iterable[End]) -> list[End]:
    """How a message ends for each recipient: delivered if it ever is, else as it ended last.

    An end that names nobody counts where no end names somebody, and where a copy upward was lost.
    """
    found: dict[str | None, End] = {}
    for end in ends:
        former = found.get(end.recipient)
        if former is None or _RANK[end.outcome] >= _RANK[former.outcome]:
            found[end.recipient] = end
    upward = found.get(None)
    if upward is not None and len(found) > 1:
        was_lost = upward.outcome == _DROPPED and upward.reason != Reason.NO_SUBSCRIBER
        if not was_lost:
            del found[None]
    return list(found.values())


class _Story:
    """The trace of a message, and what would have been otherwise."""

    def __init__(
        self,
        message_id: str,
        trace: Trace,
        changed: Mapping[Key, Diverged],
        outages: list[Outage],
        longer: int,
    ) -> None:
        self._id = message_id
        self._trace = trace
        self._changed = changed
        self._outages = outages
        self._longer = longer  # it lives, in microseconds
        self._is_unheard = any(loss.recipient is None for loss in trace.losses)
        self.copies: list[Copy] = []
        self._gone: set[int] = set()  # visits that would not have been
        self._stopped: set[tuple[int, int]] = set()  # copies that would not have left

    def before(self) -> Iterable[End]:
        """The ends that are on record."""
        for visit in self._trace.visits:
            yield from (end for step, fate in visit.told() for end in self._end(visit, step, fate))

    def after(self) -> list[End]:
        """The ends that would have been, as far as the record goes; finds copies to follow."""
        found: list[End] = []
        for number, visit in enumerate(self._trace.visits):
            if self._is_gone(visit):
                self._gone.add(number)
                continue
            one = self._changed.get((visit.node, visit.incarnation, visit.received_at))
            if one is not None and self._counts(one, visit):
                found += self._decided(number, visit, one)
            kept_open = () if one is None else one.kept_open
            for place, (step, fate) in enumerate(visit.told()):
                if one is not None and step.next_node in one.sooner:
                    self._send_sooner(number, place, visit, step)
                if (number, place) not in self._stopped:
                    found += self._kept(visit, step, fate, kept_open)
        visited = self._visited()
        self.copies = [replace(copy, visited=visited) for copy in self.copies]
        return found

    def _send_sooner(self, number: int, place: int, visit: Visit, step: Step) -> None:
        """Follow a copy anew that waited for a session, and would have left at once."""
        if step.outcome != _FORWARDED or (number, place) in self._stopped:
            return
        self._stopped.add((number, place))
        verdict = Verdict(step.for_whom, _FORWARDED, None, step.next_hop, step.next_node)
        why = f"at {visit.node}: it did not wait for {step.next_node}"
        self._follow(visit, verdict, why, keeps_first=not _is_used_up(step))

    def _counts(self, one: Diverged, visit: Visit) -> bool:
        """Whether the message lives as long as what would have been otherwise demands."""
        expiry = self._expiry(visit)
        if one.if_alive_at is not None:
            return expiry is None or one.if_alive_at < expiry
        return one.if_expired_at is None or (expiry is not None and one.if_expired_at >= expiry)

    def _expiry(self, visit: Visit) -> int | None:
        """When it expires, by the clock of a node that it visits."""
        expiry = visit.first.expiry
        return None if expiry is None else min(expiry + self._longer, _LAST)

    def _is_gone(self, visit: Visit) -> bool:
        former = visit.follows if visit.follows is not None else visit.settles
        if former is None:
            return False
        if former in self._gone:
            return True
        steps = self._trace.visits[former].steps
        led_here = [
            place
            for place, step in enumerate(steps)
            if step.next_node == visit.node
            or (visit.rule == 1 and step.outcome == _DELIVERED)
            or (visit.settles == former and step.outcome == _QUEUED)
        ] or list(range(len(steps)))
        return all((former, place) in self._stopped for place in led_here)

    def _kept(
        self, visit: Visit, step: Step, fate: Fate, kept_open: tuple[str, ...]
    ) -> Iterable[End]:
        """The end of a copy that leaves as it did; one that vanished in an outage arrives."""
        if fate in (Fate.VANISHED, Fate.UNKNOWN) and step.next_node is not None:
            was_away = any(
                one.node == step.next_node and one.since - NOTICED <= step.at < one.until + NOTICED
                for one in self._outages
            )
            if was_away or step.out in kept_open:
                verdict = Verdict(step.for_whom, _FORWARDED, None, step.next_hop, step.next_node)
                keeps = not _is_used_up(step)
                self._follow(visit, verdict, f"{step.next_node} was there", keeps_first=keeps)
                return
        yield from self._end(visit, step, fate)

    def _end(self, visit: Visit, step: Step, fate: Fate) -> Iterable[End]:
        if fate not in _ENDS or step.reason == Reason.DUPLICATE:
            return
        outcome, reason = _ENDS[fate]
        if step.reason == Reason.NO_SUBSCRIBER and not self._is_unheard:
            outcome = UNKNOWN  # somebody may have heard it where the record does not reach
        if step.for_whom is None and outcome == _DROPPED and any(map(_went_up, visit.steps)):
            return  # it went up by another session
        yield End(
            self._id,
            self._trace.origin,
            step.for_whom,
            outcome,
            reason or (step.reason if fate is Fate.DROPPED else None),
            visit.node,
            visit.depth,
        )

    def _decided(self, number: int, visit: Visit, one: Diverged) -> Iterable[End]:
        """Ends of the copies that the rules would have made instead."""
        kept = set(map(_essence, one.before)) & set(map(_essence, one.after))
        gone = [verdict for verdict in one.before if _essence(verdict) not in kept]
        new = [verdict for verdict in one.after if _essence(verdict) not in kept]
        new += one.got_out
        for place, step in enumerate(visit.steps):
            ended = any(_is_about(verdict, step) for verdict in gone)
            if step.multicast_id is None:  # there is one copy of it
                ended = bool(gone)
            if ended or any(_replaces(verdict, step) for verdict in new):
                self._stopped.add((number, place))
        for verdict in new:
            why = f"at {visit.node}: {_said(verdict)} instead of {_said_of(gone, visit)}"
            if verdict.outcome == _FORWARDED:
                self._follow(visit, verdict, why, keeps_first=verdict.keeps_first)
            elif verdict.reason != Reason.DUPLICATE:
                yield self._ended(visit, verdict, why)

    def _ended(self, visit: Visit, verdict: Verdict, why: str) -> End:
        return End(
            self._id,
            self._trace.origin,
            verdict.recipient,
            verdict.outcome,
            verdict.reason,
            visit.node,
            visit.depth,
            why,
        )

    def _follow(self, visit: Visit, verdict: Verdict, why: str, *, keeps_first: bool) -> None:
        first = visit.first
        self.copies.append(
            Copy(
                self._id,
                self._trace.origin,
                verdict.recipient,
                visit.node,
                verdict.next_node or "",
                visit.received_at,
                first.onward if keeps_first else first.onward[1:],
                len(first.back) + 1,
                _MULTICAST if first.multicast_id is not None else "unicast",
                first.multicast_id,
                self._expiry(visit),
                bool(first.from_global),
                bool(first.durable),
                visit.depth,
                (),
                why,
            )
        )

    def _visited(self) -> tuple[str, ...]:
        """The nodes that get a multicast anyway, and take no second copy of it."""
        visits = self._trace.visits
        stay = (visit for number, visit in enumerate(visits) if number not in self._gone)
        return tuple(sorted({visit.node for visit in stay if visit.first.multicast_id is not None}))


def _went_up(step: Step) -> bool:
    return step.for_whom is None and step.outcome == _FORWARDED


def _essence(verdict: Verdict) -> tuple[str | None, ...]:
    return verdict.recipient, verdict.outcome, verdict.reason, verdict.address


def _is_about(verdict: Verdict, step: Step) -> bool:
    """Whether a step is what became of a copy that would not have been made."""
    if verdict.recipient is None and step.for_whom is None:
        return verdict.next_node is None or verdict.next_node == step.next_node
    return verdict.recipient == step.for_whom


def _replaces(verdict: Verdict, step: Step) -> bool:
    """Whether a new copy is instead of one that was dropped on its way out."""
    if step.outcome != _DROPPED or step.reason == Reason.DUPLICATE:
        return False
    if step.multicast_id is None:
        return True
    return verdict.recipient == step.for_whom and (
        verdict.recipient is not None or verdict.next_node == step.next_node
    )


def _is_used_up(step: Step) -> bool:
    """Whether the first address of a copy's onward route is the session that it left over."""
    return bool(step.onward) and step.onward[0] == f"0#{step.out}"


def _said(verdict: Verdict) -> str:
    if verdict.outcome == _FORWARDED:
        return f"forwarded to {verdict.next_node or verdict.address}"
    return (verdict.outcome if verdict.reason is None else verdict.reason).lower()


def _said_of(gone: list[Verdict], visit: Visit) -> str:
    if gone:
        return _said(gone[0])
    dropped = [step for step in visit.steps if step.outcome == _DROPPED]
    return (dropped[0].reason or "dropped").lower() if dropped else "nothing"
