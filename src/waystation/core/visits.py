"""The way of one message over all nodes: its visits, which follows which, what became of each copy.

This is the reference for the pipeline's `traces`, and what `why` tells (SP-8). A visit is one
arrival of the message at a node; its rows are its steps. A visit follows another by the first rule
that fits:

1. A worker of that node sent it on.
2. It left for this node, and came from that one.
3. It went over a broker: both sides know the session as `global`.
4. A node between keeps no journal, or rows of version 1 do not tell more: one return route ends
   with the other. The longest such counts.

If several fit, the latest that was not received after it, by corrected times; if all were, the
earliest; then (node, incarnation, received_at).

What is decided here and nowhere else:

- A visit with an origin of its own follows another by the first rule only: it entered the fabric.
- A message that waited for an absent receiver enters the node anew. Such a visit settles the former
  one, takes its origin if it follows nothing, and is neither a loop nor another copy's arrival.
- Visits whose origin is unknown belong to the only known origin; if there are none or several, they
  are a trace of their own, without origin. All trees of one origin are one trace.
- DELIVERED in a row of version 1 may have been handed to a session: if a visit follows by rule 4
  it was, else it counts as delivered.
- Copies that left for the same node are paired with the visits there in order. Behind a broker or a
  node without a journal one copy may be followed by many visits.
- A copy without `next_node` left the fleet, also one to a broker that nothing follows: only nodes
  of the fleet tell their name. Of rows of version 1 it is unknown.
- A row of version 1 that names no recipient is for the last name in its onward route.
- The outcome of a loss is DROPPED, its reason one of a drop or VANISHED. `lost_copies` counts
  losses: one for each recipient who went without, one for all that have none. A loss ends when its
  row was written.
- That nobody subscribed to a message is a loss only if its whole way is on record: somebody may
  have got it where the record does not reach.
- A message that waits counts as expired if its expiry is not after the node's last record.
- `recipient` of a trace is the last name in the onward route of its first visit, else that of its
  first step; a multicast has none. `sender`, `multicast_id` are of the first step, `answers` of the
  first step that has it.
- An answer belongs to the traces of the request that visited the node where the answer began; if
  the request has but one, to that. It starts up to 24 hours after the request's last row.
  `answered_by` is the answer that started first.
- For `symmetric`, further visits at the same node in a row count once. A node between that keeps no
  journal shows in return routes that grew by more than one address, or in a first visit from a node
  whose record is missing.
- Rows more than 24 hours after the former row of the message are another trace.

All times are microseconds; `at` and `received_at` are by the clock of the node that wrote them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

from msgspec import Struct, convert, field
from msgspec.structs import replace

from waystation.core.coverage import Life, covers
from waystation.core.outcome import Outcome, Reason

DAY: Final = 24 * 3_600_000_000
"""Microseconds: a trace takes rows up to this long after its last."""

VANISHED: Final = "VANISHED"
"""The reason of a loss that no node decided: the copy left, and did not arrive."""

GLOBAL: Final = "global"
"""The role of a session with a broker."""

_NAME: Final = "0#"  # how the address of a participant begins


class Step(Struct, frozen=True, kw_only=True, rename={"back": "return"}):
    """A row of `messages`: one outcome at one node."""

    node: str
    incarnation: int
    seq: int
    at: int
    received_at: int
    outcome: str
    reason: str | None = None
    next_hop: str | None = None
    recipient: str | None = None
    onward: tuple[str, ...] = ()
    back: tuple[str, ...] = ()
    multicast_id: str | None = None
    bytes: int | None = None
    expiry: int | None = None
    from_global: bool | None = None
    origin: str | None = None
    answers: str | None = None
    via: str | None = None
    from_node: str | None = None
    out: str | None = None
    next_node: str | None = None
    copy: int | None = None
    sender: str | None = None
    durable: bool | None = None
    internal: bool | None = None
    version: int = 1  # of the file that it is from; the first one wrote none

    @property
    def for_whom(self) -> str | None:
        """Who is to get it; None for a copy upward, and for what nobody subscribed to."""
        if self.recipient is not None or self.version > 1 or self.multicast_id is not None:
            return self.recipient
        return last_name(self.onward)


def step_of(row: Mapping[str, Any]) -> Step:
    """A step from a row of `messages` with its node, and the version of its file if not 1."""
    routes = {name: row.get(name) or () for name in ("onward", "return")}
    return convert({**row, **routes}, Step)


def last_name(route: Sequence[str]) -> str | None:
    """The last name in a route.

    >>> last_name(["0#hub", "0#sink", "1#127.0.0.1:4000"])
    'sink'
    """
    names = [address for address in route if address.startswith(_NAME)]
    return names[-1].removeprefix(_NAME) if names else None


class Fate(StrEnum):
    """What became of a copy of a message."""

    DELIVERED = "delivered"
    DROPPED = "dropped"
    PASSED_ON = "passed on"  # a visit follows it
    VANISHED = "vanished"  # it left, and the next node's record shows that it did not come
    UNKNOWN = "unknown"  # it left, and the next node's record does not tell
    LEFT = "left the fleet"  # for a node that keeps no journal
    SETTLED = "settled"  # it waited, and another step tells how that ended
    WAITING = "waiting"
    EXPIRED = "expired"  # it waited until it was too late


class Visit(Struct, frozen=True):
    """One arrival of a message at a node."""

    node: str
    incarnation: int
    received_at: int
    corrected: int  # when it was received, by the clock of the reference
    ahead: int  # how far the node's clock was ahead of that
    steps: tuple[Step, ...]  # in order
    follows: int | None = None  # the index of another visit
    depth: int = 0
    rule: int = 0  # by which it follows; 0 if it does not
    settles: int | None = None  # the visit whose waiting it ended
    fates: tuple[Fate, ...] = ()  # of each step

    @property
    def first(self) -> Step:
        """Its first step; what does not change is the same in all."""
        return self.steps[0]

    def told(self) -> Iterator[tuple[Step, Fate]]:
        """Its steps, and what became of each."""
        return zip(self.steps, self.fates, strict=True)

    @property
    def is_second_copy(self) -> bool:
        """Whether it came by another way before, and went no further."""
        return self.first.reason == Reason.DUPLICATE


Visits: TypeAlias = list[Visit]


class Loss(NamedTuple):
    """What somebody went without."""

    visit: int
    step: int  # within the visit
    recipient: str | None
    reason: str


class Trace(Struct, frozen=True, kw_only=True):
    """The way of one message from one origin."""

    origin: str | None
    visits: tuple[Visit, ...]  # in causal order; a path is their steps
    losses: tuple[Loss, ...]  # in causal order
    sender: str | None
    recipient: str | None
    multicast_id: str | None
    internal: bool
    durable: bool  # whether a node had it in its store
    started: int
    ended: int
    latency: int
    outcome: str
    reason: str | None
    place: str  # the node where it ended
    delivered: int
    lost_copies: int
    unknown_copies: int
    left_fleet: int
    waiting: int
    looped: bool
    answers: str | None
    answered_by: str | None = None
    legs: int = 1
    symmetric: bool | None = None

    @property
    def last_loss(self) -> Loss | None:
        """The loss that ended last, if somebody went without."""
        visits = self.visits
        return max(self.losses, key=lambda loss: (_end_of(visits, loss), *loss[:2]), default=None)

    @property
    def hops(self) -> int:
        """How often it went from one visit to another."""
        return len(self.visits) - 1

    @property
    def complete(self) -> bool:
        """Whether every copy is known to have reached its end, and none was lost."""
        return not (self.lost_copies or self.unknown_copies or self.waiting)


class Evidence(Struct, frozen=True, kw_only=True):
    """What the journals tell beside the rows of a message."""

    correction: Callable[[str, int], int] = lambda _node, _at: 0
    """How far a node's clock is ahead at an instant of it."""

    role: Callable[[str, int, str], str | None] = lambda _node, _incarnation, _session: None
    """The role of a session, by its node, incarnation and name."""

    lives: Mapping[str, Sequence[Life]] = field(default_factory=dict)
    """The incarnations of each node that ever had a journal, in order."""

    def time_at(self, node: str, corrected: int) -> int:
        """A corrected time by the clock of a node."""
        return corrected + self.correction(node, corrected)


def traced(message_id: str, steps: Iterable[Step], evidence: Evidence) -> list[Trace]:
    """The ways of a message, one for each of its origins; its rows may come in any order."""
    return in_order(
        trace
        for rows in _days_apart(steps)
        for trace in _Message(message_id, linked(rows, evidence), evidence).traces()
    )


def in_order(traces: Iterable[Trace]) -> list[Trace]:
    """The traces of a message in the order in which they are told."""
    return sorted(traces, key=lambda trace: (trace.started, trace.ended, *_begin(trace)))


def _begin(trace: Trace) -> tuple[str, int, int]:
    first = trace.visits[0]
    return first.node, first.incarnation, first.received_at


def _days_apart(steps: Iterable[Step]) -> list[list[Step]]:
    rows = sorted(steps, key=lambda step: step.at)
    found: list[list[Step]] = [rows[:1]] if rows else []
    for former, step in pairwise(rows):
        if step.at - former.at > DAY:
            found.append([])
        found[-1].append(step)
    return found


# Which visit follows which


def linked(steps: Iterable[Step], evidence: Evidence) -> Visits:
    """The visits of these rows in causal order, each with the one that it follows."""
    found = visits_of(steps, evidence)
    followed = _Followed(found, evidence)
    links = [followed.of(visit) for visit in found]
    return _in_causal_order(
        [
            replace(visit, follows=former, rule=rule)
            for visit, (former, rule) in zip(found, links, strict=True)
        ]
    )


def visits_of(steps: Iterable[Step], evidence: Evidence) -> Visits:
    """The visits of these rows, in the order in which they were received."""
    groups: dict[tuple[str, int, int], list[Step]] = {}
    for step in sorted(steps, key=lambda step: step.seq):
        groups.setdefault((step.node, step.incarnation, step.received_at), []).append(step)
    found = []
    for (node, incarnation, received), rows in groups.items():
        ahead = evidence.correction(node, received)
        found.append(Visit(node, incarnation, received, received - ahead, ahead, tuple(rows)))
    return sorted(found, key=lambda v: (v.corrected, v.node, v.incarnation, v.received_at))


class _Followed:
    """Finds for each visit the one that it follows."""

    def __init__(self, visits: Visits, evidence: Evidence) -> None:
        self._visits = visits
        self._role = evidence.role
        self._by_return: dict[tuple[str, ...], list[int]] = {}
        for index, visit in enumerate(visits):
            self._by_return.setdefault(visit.first.back, []).append(index)

    def of(self, later: Visit) -> tuple[int | None, int]:
        """The visit that it follows, and by which rule."""
        back = later.first.back
        for rule, fits in ((1, self._sent_on), (2, self._told), (3, self._over_broker)):
            if rule > 1 and later.first.origin is not None:
                return None, 0
            before = back if rule == 3 else back[1:] if back else None
            if before is not None:
                found = [i for i in self._with(before) if fits(self._visits[i], later)]
                if found:
                    return self._nearest(found, later), rule
        for start in range(1, len(back) + 1):  # the longest return route first
            found = [i for i in self._with(back[start:]) if _may_follow(self._visits[i], later)]
            if found:
                return self._nearest(found, later), 4
        return None, 0

    def _with(self, back: tuple[str, ...]) -> list[int]:
        return self._by_return.get(back, [])

    def _sent_on(self, former: Visit, later: Visit) -> bool:
        return (
            (former.node, former.incarnation) == (later.node, later.incarnation)
            and later.first.via is None
            and any(step.outcome == Outcome.DELIVERED for step in former.steps)
            and bool(former.first.onward)
            and later.first.onward == former.first.onward[1:]
        )

    def _told(self, former: Visit, later: Visit) -> bool:
        return (
            later.first.from_node == former.node
            and any(
                step.outcome == Outcome.FORWARDED and step.next_node == later.node
                for step in former.steps
            )
            and _is_onward(former, later)
        )

    def _over_broker(self, former: Visit, later: Visit) -> bool:
        return (
            bool(later.first.from_global)
            and not former.first.from_global
            and later.first.onward == former.first.onward
            and later.first.via is not None
            and self._role(later.node, later.incarnation, later.first.via) == GLOBAL
            and any(_is_to_broker(step, self._role) for step in former.steps)
        )

    def _nearest(self, found: list[int], later: Visit) -> int:
        def key(index: int) -> tuple[bool, int, str, int, int]:
            visit = self._visits[index]
            late = visit.corrected > later.corrected
            near = visit.corrected if late else -visit.corrected
            return late, near, visit.node, visit.incarnation, visit.received_at

        return min(found, key=key)


def _is_to_broker(step: Step, role: Callable[[str, int, str], str | None]) -> bool:
    return (
        step.outcome == Outcome.FORWARDED
        and step.out is not None
        and role(step.node, step.incarnation, step.out) == GLOBAL
    )


def _is_onward(former: Visit, later: Visit) -> bool:
    """Whether an onward route is the same, or without some first addresses."""
    before, after = former.first.onward, later.first.onward
    return len(after) <= len(before) and before[len(before) - len(after) :] == after


def _may_follow(former: Visit, later: Visit) -> bool:
    return _is_onward(former, later) and any(_may_have_left(step) for step in former.steps)


def _may_have_left(step: Step) -> bool:
    """Whether it left the node; in version 1, what was handed to a session was delivered."""
    return step.outcome == Outcome.FORWARDED or (
        step.version == 1 and step.outcome == Outcome.DELIVERED
    )


def _settled_by(visits: Visits) -> dict[int, int]:
    """For visits that ended a waiting: the visit that waited."""
    found: dict[int, int] = {}
    order = sorted(
        range(len(visits)),
        key=lambda i: (visits[i].node, visits[i].incarnation, visits[i].received_at),
    )
    for place, index in enumerate(order):
        visit = visits[index]
        if any(_is_unsettled(visit, step) for step in visit.steps):
            for other in order[place + 1 :]:
                if visits[other].node != visit.node:
                    break
                if visits[other].first.via is None or _same_return(visits[other], visit):
                    found.setdefault(other, index)
                    break
    return found


def _same_return(one: Visit, other: Visit) -> bool:
    return one.first.back == other.first.back


def _is_unsettled(visit: Visit, step: Step) -> bool:
    """Whether a step is a waiting that no later step of the visit ends."""
    return step.outcome == Outcome.QUEUED and not any(
        later.seq > step.seq
        and (visit.first.multicast_id is None or later.for_whom == step.for_whom)
        for later in visit.steps
    )


# What became of it


class _Copy(NamedTuple):
    """Steps of a visit that left as one."""

    steps: list[int]
    next_node: str | None
    is_to_broker: bool


class _Choice:
    """The copies that left a visit, by what those that follow it look for first.

    A broadcast may leave in thousands of copies, and as many visits follow.
    """

    def __init__(self, visit: Visit, copies: list[_Copy]) -> None:
        self._every = range(len(copies))
        self._by_node: dict[str | None, list[int]] = {}
        self._by_name: dict[str | None, list[int]] = {}
        for number, copy in enumerate(copies):
            self._by_node.setdefault(copy.next_node, []).append(number)
            for name in {visit.steps[place].for_whom for place in copy.steps}:
                self._by_name.setdefault(name, []).append(number)

    def of(self, later: Visit) -> Sequence[int]:
        """Those among which is the one that a later visit follows."""
        if (there := self._by_node.get(_towards(later))) is not None:
            return there
        if self._by_node.keys() == {None} and later.rule != 2:  # only names tell them apart
            names = {step.for_whom for step in later.steps}
            named = [number for name in names for number in self._by_name.get(name, ())]
            return sorted(named) or self._every
        return self._every


def _towards(later: Visit) -> str:
    """The node that a copy went to from which this visit followed."""
    return later.node if later.rule == 2 else later.first.from_node or later.node


class _Message:
    """All visits of one message, and what became of its copies."""

    def __init__(self, message_id: str, visits: Visits, evidence: Evidence) -> None:
        self._id = message_id
        self._evidence = evidence
        settled = _settled_by(visits)
        self._visits = [replace(v, settles=settled.get(i)) for i, v in enumerate(visits)]
        self._waited = set(settled.values())
        self._later: dict[int, list[int]] = {}
        for index, visit in enumerate(visits):
            if visit.follows is not None:
                self._later.setdefault(visit.follows, []).append(index)

    def traces(self) -> list[Trace]:
        """One for each origin."""
        fates = [self._fates(index) for index in range(len(self._visits))]
        told = [replace(v, fates=f) for v, f in zip(self._visits, fates, strict=True)]
        groups: dict[str | None, list[int]] = {}
        for index, origin in enumerate(self._origins()):
            groups.setdefault(origin, []).append(index)
        ways = [(origin, _alone(told, chosen)) for origin, chosen in groups.items()]
        return [trace_of(origin, visits, _losses(visits)) for origin, visits in ways]

    # Origins

    def _origins(self) -> list[str | None]:
        """The origin of each visit: that of the first that it follows from."""
        found = [self._first(index).first.origin for index in range(len(self._visits))]
        known = {origin for origin in found if origin is not None}
        if len(known) == 1:
            [only] = known
            return [only] * len(found)
        return found

    def _first(self, index: int) -> Visit:
        """The first of the visits that led to this one."""
        passed: set[int] = set()
        before: int | None = index
        while before is not None and before not in passed:
            passed.add(before)
            index, visit = before, self._visits[before]
            before = visit.follows if visit.follows is not None else visit.settles
        return self._visits[index]

    # Fates

    def _fates(self, index: int) -> tuple[Fate, ...]:
        visit = self._visits[index]
        left = self._left(index)
        return tuple(
            left.get(place) or self._fate_here(index, step)
            for place, step in enumerate(visit.steps)
        )

    def _fate_here(self, index: int, step: Step) -> Fate:
        """What became of a copy that did not leave."""
        if step.outcome == Outcome.DELIVERED:
            return Fate.DELIVERED
        if step.outcome == Outcome.DROPPED:
            return Fate.DROPPED
        visit = self._visits[index]
        if index in self._waited or not _is_unsettled(visit, step):
            return Fate.SETTLED
        return self._fate_of_waiting(step)

    def _fate_of_waiting(self, step: Step) -> Fate:
        lives = self._evidence.lives.get(step.node, ())
        life = next((life for life in lives if life.incarnation == step.incarnation), None)
        if life is None:
            return Fate.WAITING
        if step.durable:  # it outlives the process, and waits for the next one
            ends = max(one.ends or one.latest for one in lives)
            return Fate.EXPIRED if step.expiry is not None and step.expiry <= ends else Fate.WAITING
        if step.expiry is not None and step.expiry <= (life.ends or life.latest):
            return Fate.EXPIRED
        return Fate.WAITING if life.ends is None else Fate.VANISHED

    def _left(self, index: int) -> dict[int, Fate]:
        """What became of the copies that left a visit, by its steps."""
        copies = self._copies(index)
        if not copies:
            return {}
        taken = self._taken(index, copies)
        found: dict[int, Fate] = {}
        for number, copy in enumerate(copies):
            step = self._visits[index].steps[copy.steps[0]]
            if number in taken:
                fate = Fate.PASSED_ON
            elif step.outcome == Outcome.DELIVERED:
                continue
            else:
                fate = self._fate_of_left(self._visits[index], step)
            found.update(dict.fromkeys(copy.steps, fate))
        return found

    def _copies(self, index: int) -> list[_Copy]:
        """The copies that left, or may have; steps for several receivers may be of one copy."""
        visit = self._visits[index]
        found: dict[object, _Copy] = {}
        for place, step in enumerate(visit.steps):
            if _may_have_left(step):
                shared = step.outcome == Outcome.FORWARDED and step.out is not None
                key: object = (step.out, step.at, step.copy) if shared else place
                broker = _is_to_broker(step, self._evidence.role)
                found.setdefault(key, _Copy([], step.next_node, broker)).steps.append(place)
        return list(found.values())

    def _taken(self, index: int, copies: list[_Copy]) -> set[int]:
        """The copies that visits follow."""
        found: set[int] = set()
        choice = _Choice(self._visits[index], copies)
        for other in self._later.get(index, ()):
            later = self._visits[other]
            if later.rule == 1 or later.settles is not None:
                continue
            if later.rule == 3:
                found.update(number for number, copy in enumerate(copies) if copy.is_to_broker)
                continue
            preferred = self._preferred(index, copies, later, found)
            found.add(min(choice.of(later), key=preferred))
        return found

    def _preferred(
        self, index: int, copies: list[_Copy], later: Visit, taken: set[int]
    ) -> Callable[[int], tuple[bool, ...]]:
        """The order in which the copies of a visit may be that which a later visit follows."""
        steps = self._visits[index].steps
        names = {step.for_whom for step in later.steps}
        towards = _towards(later)
        journals = self._evidence.lives

        def key(number: int) -> tuple[bool, ...]:
            copy = copies[number]
            mine = [steps[place] for place in copy.steps]
            return (
                copy.next_node != towards,
                copy.next_node in journals,
                number in taken and later.rule == 2,
                not any(step.for_whom in names for step in mine),
                mine[0].outcome == Outcome.DELIVERED,
                number in taken,
            )

        return key

    def _fate_of_left(self, visit: Visit, step: Step) -> Fate:
        """What became of a copy that left, and that nothing follows."""
        there = step.next_node
        if there is None:
            return Fate.UNKNOWN if step.version == 1 else Fate.LEFT
        lives = self._evidence.lives.get(there, ())
        if not lives:
            return Fate.LEFT
        arrives = self._evidence.time_at(there, _corrected(visit, step))
        return Fate.VANISHED if covers(lives, arrives, self._id) else Fate.UNKNOWN


def _in_causal_order(visits: Visits) -> Visits:
    """The visits by depth, then corrected time; none stands before what it follows (SP-8)."""
    depths = _depths(visits)
    order = sorted(
        range(len(visits)),
        key=lambda i: (depths[i], visits[i].corrected, visits[i].node, visits[i].incarnation),
    )
    return _alone([replace(v, depth=d) for v, d in zip(visits, depths, strict=True)], order)


def _depths(visits: Visits) -> list[int]:
    found: dict[int | None, int] = {None: -1}
    for index in range(len(visits)):
        way: list[int] = []
        before: int | None = index
        while before is not None and before not in found:
            way.append(before)
            before = visits[before].follows
        for place in reversed(way):
            found[place] = found[visits[place].follows] + 1
    return [found[index] for index in range(len(visits))]


def _alone(visits: Visits, chosen: Sequence[int]) -> Visits:
    """Some of the visits, whose indices are then those among them."""
    places: dict[int | None, int] = {index: place for place, index in enumerate(chosen)}
    return [
        replace(
            visits[index],
            follows=places.get(visits[index].follows),
            settles=places.get(visits[index].settles),
        )
        for index in chosen
    ]


# The trace

_LOST: Final = {Fate.VANISHED: VANISHED, Fate.EXPIRED: Reason.EXPIRED.value}


def trace_of(origin: str | None, visits: Visits, losses: list[Loss]) -> Trace:
    """The trace of visits in causal order, whose fates and losses are known."""
    first = visits[0].first
    internal = any(step.internal for visit in visits for step in visit.steps)
    started = visits[0].corrected
    ended = max(_corrected(visit, step) for visit, step, _ in _path(visits))
    delivered = [
        _corrected(visit, step) for visit, step, fate in _path(visits) if fate == Fate.DELIVERED
    ]
    outcome, reason, place = _outcome(visits, losses)
    answers = [step.answers for _, step, _ in _path(visits) if step.answers is not None]
    return Trace(
        origin=origin,
        visits=tuple(visits),
        losses=tuple(losses),
        sender=first.sender,
        recipient=None if first.multicast_id else last_name(first.onward) or first.recipient,
        multicast_id=first.multicast_id,
        internal=internal,
        durable=any(step.durable for visit in visits for step in visit.steps),
        started=started,
        ended=ended,
        latency=(max(delivered) if delivered else ended) - started,
        outcome=outcome,
        reason=reason,
        place=place,
        delivered=len(delivered),
        lost_copies=len(losses),
        unknown_copies=_count(visits, Fate.UNKNOWN),
        left_fleet=_count(visits, Fate.LEFT),
        waiting=_count(visits, Fate.WAITING),
        looped=_is_looped(visits),
        answers=answers[0] if answers else None,
    )


def _path(visits: Visits) -> Iterable[tuple[Visit, Step, Fate]]:
    """Every step, in causal order."""
    for visit in visits:
        for step, fate in visit.told():
            yield visit, step, fate


def _corrected(visit: Visit, step: Step) -> int:
    return step.at - visit.ahead


def _count(visits: Visits, fate: Fate) -> int:
    """How many copies ended so; what left as one copy for several receivers counts once."""
    return len(
        {
            (index, step.out, step.at, step.copy) if step.out is not None else (index, step.seq)
            for index, visit in enumerate(visits)
            for step, became in visit.told()
            if became == fate
        }
    )


def _losses(visits: Visits) -> list[Loss]:
    """The last loss of each recipient to whom nothing was delivered."""
    got = {step.for_whom for _, step, fate in _path(visits) if fate == Fate.DELIVERED}
    heard = bool(got) or _may_be_heard(visits)
    last: dict[str | None, Loss] = {}
    for index, visit in enumerate(visits):
        for place, (step, fate) in enumerate(visit.told()):
            reason = step.reason if fate == Fate.DROPPED else _LOST.get(fate)
            if reason == Reason.NO_SUBSCRIBER and heard:
                continue
            if reason is not None and _went_without(visit, step, reason, got):
                last[step.for_whom] = Loss(index, place, step.for_whom, reason)
    return sorted(last.values(), key=lambda loss: loss[:2])


def _may_be_heard(visits: Visits) -> bool:
    """Whether somebody may have got a message where the record does not reach."""
    return _has_gap(visits) or any(
        fate in (Fate.UNKNOWN, Fate.LEFT) for _, _, fate in _path(visits)
    )


def _went_without(visit: Visit, step: Step, reason: str, got: set[str | None]) -> bool:
    """Whether somebody went without because of this."""
    if reason == Reason.DUPLICATE:
        return False
    if reason == Reason.NO_SUBSCRIBER:
        return True
    if step.for_whom is not None:
        return step.for_whom not in got
    return not any(
        other.outcome == Outcome.FORWARDED and other.for_whom is None and not _is_same(other, step)
        for other in visit.steps
    )


def _is_same(one: Step, other: Step) -> bool:
    return one.seq == other.seq


def _outcome(visits: Visits, losses: list[Loss]) -> tuple[str, str | None, str]:
    """How it ended, why, and where."""
    if losses:
        last = max(losses, key=lambda loss: (_end_of(visits, loss), *loss[:2]))
        return Outcome.DROPPED.value, last.reason, visits[last.visit].node
    for fates, outcome in _OUTCOMES:
        ended = [(v, step) for v, step, fate in _path(visits) if fate in fates]
        if ended:
            visit, step = ended[-1]
            return outcome.value, step.reason, visit.node
    visit = visits[-1]  # only what settles itself is left
    return visit.steps[-1].outcome, visit.steps[-1].reason, visit.node


_OUTCOMES: Final = (
    ((Fate.DELIVERED,), Outcome.DELIVERED),
    ((Fate.LEFT, Fate.UNKNOWN), Outcome.FORWARDED),
    ((Fate.WAITING,), Outcome.QUEUED),
    ((Fate.DROPPED, Fate.VANISHED, Fate.EXPIRED), Outcome.DROPPED),
)


def _end_of(visits: Sequence[Visit], loss: Loss) -> int:
    visit = visits[loss.visit]
    return _corrected(visit, visit.steps[loss.step])


def _is_looped(visits: Visits) -> bool:
    """Whether it entered a node twice with the same onward route."""
    entered = [
        (visit.node, visit.first.onward)
        for visit in visits
        if not visit.is_second_copy and visit.settles is None
    ]
    return len(set(entered)) < len(entered)


# Requests and answers


def tied(traces: Mapping[str, Sequence[Trace]]) -> dict[str, list[Trace]]:
    """The traces of several messages, by their ids, with requests tied to their answers."""
    answers: dict[str, list[tuple[str, Trace]]] = {}
    for id, told in traces.items():
        for trace in told:
            if trace.answers is not None:
                answers.setdefault(trace.answers, []).append((id, trace))
    return {
        id: [answered(trace, _meant(trace, told, answers.get(id, ()))) for trace in told]
        for id, told in traces.items()
    }


def _meant(
    request: Trace, told: Sequence[Trace], answers: Iterable[tuple[str, Trace]]
) -> list[tuple[str, Trace]]:
    """The answers to this of the traces of a request."""
    nodes = {visit.node for visit in request.visits}
    return [
        (id, answer)
        for id, answer in answers
        if answer.started - request.ended <= DAY
        and (len(told) == 1 or answer.visits[0].node in nodes)
    ]


def answered(request: Trace, answers: Sequence[tuple[str, Trace]]) -> Trace:
    """A trace with its answers."""
    if not answers:
        return request
    id, first = min(answers, key=lambda answer: (answer[1].started, answer[0]))
    return replace(
        request,
        answered_by=id,
        legs=1 + len(answers),
        symmetric=_symmetric(request, first),
    )


def _symmetric(request: Trace, answer: Trace) -> bool | None:
    """Whether an answer came back by the way that the request took; None if that is unknown."""
    if has_gap(request) or has_gap(answer):
        return None
    return way_of(answer) == way_of(request)[::-1]


def way_of(trace: Trace) -> list[str]:
    """The nodes that it passed, one after the other."""
    nodes = [visit.node for visit in trace.visits]
    return nodes[:1] + [node for former, node in pairwise(nodes) if node != former]


def has_gap(trace: Trace) -> bool:
    """Whether a node between keeps no journal."""
    return _has_gap(trace.visits)


def _has_gap(visits: Sequence[Visit]) -> bool:
    for visit in visits:
        if visit.follows is None:
            if visit.first.from_node is not None and visit.settles is None:
                return True
        elif visit.rule == 4:
            former = visits[visit.follows]
            if len(visit.first.back) != len(former.first.back) + 1:
                return True
    return False
