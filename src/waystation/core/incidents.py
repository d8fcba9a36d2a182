"""Why messages were lost: each loss goes to the one cause behind it, and causes are incidents.

This is the reference for the tables `losses` and `incidents`, and what `lost` and `watch` use where
there is no Spark. It takes what is lost, and of all nodes the rows of the other tables: routing
entries, sessions, how far records reach, how far clocks were off.

A loss goes to the first cause that explains it:

1. A node ended: the one behind the session that the copy was to take, or the node itself.
2. A session ended: both of its nodes ran on. Both sides record it; the side that dialled names it,
   else that with the smaller name.
3. A routing entry ended, or there never was one.
4. The rest: a receiver without room, a topic that nobody hears, a loop, a refusal, a wrong clock;
   what nothing explains is `other`, one for each node, reason and hour.

What is decided here and nowhere else:

- A session ended with its peer, if the peer's record of that life ends no later, or by SLACK later.
- A copy that vanished is explained by what ended up to SLACK (a node) or NOTICED (a link) after it.
- An entry ended with the session that it led over, if it was removed together with that, or if it
  expired while that was closed; within SLACK of a stop of its own node, with the node.
- Subscriptions without a name, of one node, are one receiver.
- An entry that was removed otherwise is of kind `other`: no rule was broken.
- A message that expired by the clock of a node, and not by that of its sender, was lost by the
  clock that was off by more, if that was more than a second.
- A stop without a start after it is an incident only if it cost something; so is the end of a
  session with a peer that gave no name, and one that was closed in order.
- A node that others had sessions with, and of which there is no record, is a journal gap.

Times are microseconds. Those in rows are by the clock of their node; times of different nodes are
compared after correction.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from typing import Final, NamedTuple

from msgspec import Struct, field

from waystation.core.corrections import HOUR, hour_of
from waystation.core.losses import Lost
from waystation.core.outcome import Outcome, Reason
from waystation.core.visits import VANISHED

SECOND: Final = 1_000_000
SLACK: Final = 2 * SECOND
"""A cause may be on record this much later than its effect."""

NOTICED: Final = 60 * SECOND
"""The longest time after which a node notices that a peer is silent: four heartbeats."""

TOGETHER: Final = SECOND // 10
"""An entry that is removed this near to the end of its session ended with that."""

TWINS: Final = 5 * SECOND
"""The two sides of a session open it within this time of each other."""

JOINED: Final = 60 * SECOND
"""Losses of one receiver or topic that are this near to each other are one incident."""

OFF: Final = SECOND
"""A clock that is off by more than this is an incident."""

UNNAMED: Final = "subscriber-"
"""How the names begin that nodes give to subscriptions without one."""

EVIDENCE: Final = 10
"""An incident names at most this many messages."""

CRASHED, STOPPED, LINK, EXPIRED, NEVER, SLOW, UNHEARD, LOOP, REFUSED, GAP, CLOCK, OTHER = KINDS = (
    *("node_crashed", "node_stopped", "link_lost", "route_expired", "never_registered"),
    *("slow_receiver", "no_subscriber", "loop", "refused", "journal_gap", "clock", "other"),
)

NAMES: Final = {
    CRASHED: "A node crashed",
    STOPPED: "A node was stopped",
    LINK: "A link broke",
    EXPIRED: "A route expired",
    NEVER: "A name was not known",
    SLOW: "A receiver had no room",
    UNHEARD: "Nobody subscribed",
    LOOP: "Messages went in a loop",
    REFUSED: "Messages were refused",
    GAP: "A record has a gap",
    CLOCK: "A clock was wrong",
    OTHER: "Other losses",
}
"""What each kind is called."""

FLEET: Final = ("parent", "leaf", "peer")
"""The roles of sessions between nodes of the fleet."""

_COMMON: Final = ("a", "nobody", "the", "there", "what")
"""How causes begin that do not begin with a name."""

_OWN_END: Final = ("stopped", "restart")
_SESSION: Final = "0#"
TEXTS: Final = {
    Reason.QUEUE_FULL: "its receiver had no room for it",
    Reason.NO_SUBSCRIBER: "nobody subscribed to it",
    Reason.HOP_LIMIT: "it went in a loop",
    Reason.REFUSED: "it was refused",
    Reason.FAILED: "its receiver failed",
    Reason.TOO_LARGE: "it was too large",
    Reason.MALFORMED: "it could not be read",
    Reason.UNKNOWN_TYPE: "no transport knows the type of its next address",
    Reason.TRANSPORT_DOWN: "there was no session to send it over",
    Reason.NO_ROUTE: "there was no way to where its route led",
    Reason.EXPIRED: "it had expired",
    VANISHED: "it left, and did not arrive",
}


class Loss(Struct, frozen=True, kw_only=True):
    """What somebody went without: a copy of a message, and where it ended."""

    message_id: str
    origin: str | None
    sender: str | None = None
    multicast_id: str | None = None
    day: int = 0  # (UTC) when the message entered its first node, by that node's clock
    lost: Lost


class Entry(NamedTuple):
    """A row of `route_history`."""

    node: str
    incarnation: int
    participant: str
    address: str
    since: int
    until: int | None
    closed_by: str | None


class Session(NamedTuple):
    """A row of `session_history`."""

    node: str
    incarnation: int
    session: str
    role: str | None
    place: str | None
    peer: str | None
    opened_at: int
    closed_at: int | None
    closed_by: str | None


class Covered(NamedTuple):
    """A row of `coverage`."""

    node: str
    incarnation: int
    from_time: int
    to_time: int
    ended_by: str | None


class Missing(NamedTuple):
    """A time of which a node's records are missing."""

    node: str
    since: int
    until: int


class Cause(Struct, frozen=True):
    """An incident, as far as it is known without its losses."""

    kind: str
    key: tuple[str, ...]
    node: str | None
    started: int
    ended: int | None
    text: str

    @property
    def id(self) -> str:
        """What tells it apart: the same wherever and whenever it is found."""
        return sha256("|".join([self.kind, *self.key]).encode()).hexdigest()[:16]


class Incident(Struct, frozen=True, kw_only=True):
    """A row of `incidents`."""

    incident_id: str
    kind: str
    node: str | None
    started: int
    ended: int | None
    participants: list[str]
    lost: int
    cause: str
    evidence: list[str]


class Explained(Struct, frozen=True):
    """A loss, its incident, and a sentence for people."""

    loss: Loss
    cause: str
    incident_id: str


class Past(Struct, frozen=True):
    """What the other tables tell of all nodes."""

    entries: Sequence[Entry] = ()
    sessions: Sequence[Session] = ()
    coverage: Sequence[Covered] = ()
    gaps: Sequence[Missing] = ()
    corrections: Mapping[tuple[str, int], int] = field(default_factory=dict)  # by node and hour

    def corrected(self, node: str, at: int) -> int:
        """A time of a node by the clock of the reference."""
        return at - self.ahead(node, at)

    def ahead(self, node: str, at: int) -> int:
        """How far the clock of a node was ahead."""
        return self.corrections.get((node, hour_of(at)), 0)


class Found(NamedTuple):
    """All losses and incidents of a fleet."""

    losses: list[Explained]
    incidents: list[Incident]


def found_in(losses: Iterable[Loss], past: Past) -> Found:
    """The losses, each with its cause, and the incidents."""
    search = _Search(past)
    given = sorted(losses, key=_in_order)
    began = _beginnings(given)
    causes: dict[str, Cause] = {}
    explained: list[Explained] = []
    ids: set[str] = set()
    for number, loss in enumerate(given):
        cause, text = search.why(loss, began.get(number, loss.lost.at))
        id = cause.id
        ids.add(id)
        causes.setdefault(id, cause)
        explained.append(Explained(loss, text, id))
    for cause in search.always(ids):
        causes.setdefault(cause.id, cause)
    by_incident: dict[str, list[Loss]] = {}
    for one in explained:
        by_incident.setdefault(one.incident_id, []).append(one.loss)
    found = [_incident(id, cause, by_incident.get(id, [])) for id, cause in causes.items()]
    return Found(explained, sorted(found, key=lambda row: (row.started, row.incident_id)))


def _in_order(loss: Loss) -> tuple[int, str, str, str]:
    return loss.lost.at, loss.message_id, loss.origin or "", loss.lost.recipient or ""


def _incident(id: str, cause: Cause, losses: list[Loss]) -> Incident:
    """An incident with its losses, which are in order."""
    ended = cause.ended
    if cause.kind in (SLOW, UNHEARD, LOOP, REFUSED) or (cause.kind == OTHER and ended is None):
        ended = max(loss.lost.at for loss in losses)
    names = {loss.lost.recipient for loss in losses if loss.lost.recipient is not None}
    return Incident(
        incident_id=id,
        kind=cause.kind,
        node=cause.node,
        started=cause.started,
        ended=ended,
        participants=sorted(names),
        lost=sum(not loss.lost.internal for loss in losses),
        cause=cause.text,
        evidence=list(dict.fromkeys(loss.message_id for loss in losses))[:EVIDENCE],
    )


class NodeEnd(NamedTuple):
    """How a life of a node ended, and when it was back; also by the corrected clock."""

    node: str
    incarnation: int
    stopped: bool
    at: int
    back: int | None
    corrected: int
    corrected_back: int | None


class LinkEnd(NamedTuple):
    """The end of a session whose nodes both ran on, by the side that names it."""

    node: str
    session: str
    opened_at: int
    peer: str
    closed_at: int
    back: int | None
    corrected: int  # by the side that was asked
    corrected_back: int | None
    lost: bool  # whether a side says so


class _Search:
    """Finds the cause of each loss."""

    def __init__(self, past: Past) -> None:
        self._past = past
        self._lives: dict[str, list[Covered]] = {}
        for life in sorted(past.coverage, key=lambda row: (row.node, row.from_time)):
            self._lives.setdefault(life.node, []).append(life)
        self._ends = dict(self._ends_of_nodes())
        self._known_ends: dict[Session, NodeEnd | LinkEnd | None] = {}
        self._by_name = _indexed(past.sessions, lambda s: (s.node, s.session))
        self._by_peer = _indexed((s for s in past.sessions if s.peer), lambda s: (s.node, s.peer))
        self._by_place = _indexed(
            (s for s in past.sessions if s.place), lambda s: (s.node, s.place)
        )
        self._entries: dict[tuple[str, str], list[Entry]] = {}
        for entry in sorted(past.entries, key=lambda row: (row.since, row.incarnation)):
            self._entries.setdefault((entry.node, entry.participant), []).append(entry)

    def _corrected(self, node: str, at: int) -> int:
        return self._past.corrected(node, at)

    # The ends of nodes

    def _ends_of_nodes(self) -> Iterator[tuple[tuple[str, int], NodeEnd]]:
        for node, lives in self._lives.items():
            later = [life.from_time for life in lives[1:]]
            for life, back in zip(lives, [*later, None], strict=True):
                if life.ended_by is not None:
                    yield (
                        (node, life.incarnation),
                        NodeEnd(
                            *(node, life.incarnation, life.ended_by == "stop", life.to_time, back),
                            self._corrected(node, life.to_time),
                            None if back is None else self._corrected(node, back),
                        ),
                    )

    def _end_of_peer(self, session: Session) -> NodeEnd | None:
        """How the life of a session's peer ended in which the session was opened."""
        opened = self._corrected(session.node, session.opened_at)
        found = None
        for life in self._lives.get(session.peer or "", ()):
            if self._corrected(life.node, life.from_time) <= opened + SLACK // 100:
                found = life
        return None if found is None else self._ends.get((found.node, found.incarnation))

    # The ends of sessions

    def _end_of(self, session: Session) -> NodeEnd | LinkEnd | None:
        """What ended a session; None if it is open."""
        if session not in self._known_ends:
            self._known_ends[session] = self._find_end(session)
        return self._known_ends[session]

    def _find_end(self, session: Session) -> NodeEnd | LinkEnd | None:
        closed = (
            None if session.closed_at is None else self._corrected(session.node, session.closed_at)
        )
        own = self._ends.get((session.node, session.incarnation))
        if own is not None and session.closed_by not in _OWN_END:
            late = closed is None or closed < own.corrected - SLACK
            own = None if late or not own.stopped else own
        peer = self._end_of_peer(session)
        if peer is not None and closed is not None and closed < peer.corrected - SLACK:
            peer = None
        ends = [end for end in (own, peer) if end is not None]
        if ends:
            return min(ends, key=lambda end: end.corrected)
        return None if closed is None else self._link(session)

    def _link(self, session: Session) -> LinkEnd:
        twin = self._twin(session)
        named = session
        if twin is not None and _names_rather(twin, session):
            named = twin
        assert session.closed_at is not None
        back = self._reopened(session)
        sides = [side for side in (session, twin) if side is not None]
        named_back = self._reopened(named)
        return LinkEnd(
            *(named.node, named.session, named.opened_at, _peer_of(named)),
            named.closed_at if named.closed_at is not None else session.closed_at,
            named_back,
            self._corrected(session.node, session.closed_at),
            None if back is None else back - self._past.ahead(session.node, session.closed_at),
            any(side.closed_by == "lost" for side in sides),
        )

    def _twin(self, session: Session) -> Session | None:
        """The other side's record of a session."""
        opened = self._corrected(session.node, session.opened_at)

        def distance(other: Session) -> tuple[int, str]:
            return abs(self._corrected(other.node, other.opened_at) - opened), other.session

        others = self._by_peer.get((session.peer or "", session.node), ())
        near = [other for other in others if distance(other)[0] <= TWINS]
        return min(near, key=distance, default=None)

    def _reopened(self, session: Session) -> int | None:
        """When the same two nodes had a session again."""
        if session.peer is not None:
            later = self._by_peer.get((session.node, session.peer), ())
        else:
            later = self._by_name.get((session.node, session.session), ())
        assert session.closed_at is not None or later
        since = session.opened_at
        return next((other.opened_at for other in later if other.opened_at > since), None)

    # The cause of a loss

    def why(self, loss: Loss, began: int) -> tuple[Cause, str]:
        """The incident behind a loss, and a sentence.

        `began` is when the losses began that are told together with it, if they are joined.
        """
        lost = loss.lost
        at = self._corrected(lost.node, lost.at)
        if lost.reason == VANISHED and lost.outcome == Outcome.QUEUED:
            end = self._ends.get((lost.node, lost.incarnation))
            if end is not None:
                return _of_end(end, at)
        if lost.reason in (VANISHED, Reason.TRANSPORT_DOWN):
            asked = self._session_of(lost)
            ended = None if asked is None else self._explains(asked, at)
            if ended is not None:
                return _of_end(ended, at)
        if lost.reason == Reason.NO_ROUTE or _waited_in_vain(lost):
            found = self._why_no_route(lost, at)
            if found is not None:
                return found
        if lost.reason == Reason.EXPIRED and lost.outcome == Outcome.DROPPED:
            clock = self._wrong_clock(loss)
            if clock is not None:
                return clock
        return _the_rest(loss, began)

    def _session_of(self, lost: Lost) -> Session | None:
        """The session that a copy left over, or was to leave over."""
        found = _latest(self._by_name.get((lost.node, lost.out), ()), lost.at)
        if found is None:  # it never opened
            found = _latest(self._by_peer.get((lost.node, lost.next_node), ()), lost.at)
        if found is None:
            entry, _ = self._entry_before(lost)
            found = None if entry is None else self._behind(entry, lost.at)
        return found

    def _entry_before(self, lost: Lost) -> tuple[Entry | None, int | None]:
        """The last entry of a recipient before a loss, and when the next began."""
        history = self._entries.get((lost.node, lost.recipient or ""), [])
        place = bisect_right(history, lost.received_at, key=lambda entry: entry.since)
        later = history[place].since if place < len(history) else None
        return (history[place - 1] if place else None), later

    def _explains(self, session: Session, at: int) -> NodeEnd | LinkEnd | None:
        """The end of a session, if it explains what was lost then."""
        end = self._end_of(session)
        if end is None:
            return None
        closed = session.closed_at
        is_closed = closed is not None and self._corrected(session.node, closed) <= at
        early = SLACK if isinstance(end, NodeEnd) else NOTICED
        return end if is_closed or at >= end.corrected - early else None

    def _why_no_route(self, lost: Lost, at: int) -> tuple[Cause, str] | None:
        if lost.recipient is None:
            return None
        name = lost.recipient
        session = _latest(self._by_name.get((lost.node, name), ()), lost.received_at)
        ended = None if session is None else self._explains(session, at)
        if ended is not None:
            return _of_end(ended, at)
        entry, later = self._entry_before(lost)
        if entry is None:
            return _never(lost, name, later)
        return self._end_of_entry(lost, at, entry, later)

    def _end_of_entry(
        self, lost: Lost, at: int, entry: Entry, later: int | None
    ) -> tuple[Cause, str] | None:
        """What became of the last entry before a loss."""
        if entry.until is None or entry.until > lost.received_at:
            session = self._behind(entry, lost.received_at)
            ended = None if session is None else self._explains(session, at)
            return None if ended is None else _of_end(ended, at)
        own = self._ends.get((entry.node, entry.incarnation))
        if own is not None and _ended_with(entry, own):
            return _of_end(own, at)
        session = self._behind(entry, entry.until)
        if session is not None and session.closed_at is not None:
            end = self._end_of(session)
            apart = entry.until - session.closed_at
            if end is not None and (
                abs(apart) <= TOGETHER or (apart > 0 and entry.closed_by == "expired")
            ):
                return _of_end(end, at)
        return _entry_ended(lost, entry, later)

    def _behind(self, entry: Entry, at: int) -> Session | None:
        """The session that an entry led over."""
        if entry.address.startswith(_SESSION):
            name = entry.address.removeprefix(_SESSION)
            return _latest(self._by_name.get((entry.node, name), ()), at)
        return _latest(self._by_place.get((entry.node, entry.address), ()), at)

    def _wrong_clock(self, loss: Loss) -> tuple[Cause, str] | None:
        """The clock that let a message expire which was not too old."""
        lost = loss.lost
        if lost.expiry is None or loss.origin is None:
            return None
        begun = loss.origin.rpartition("/")[0]
        here = self._past.ahead(lost.node, lost.received_at)
        there = self._past.ahead(begun, lost.received_at)
        if lost.received_at - here + there >= lost.expiry:
            return None
        worse, ahead = (begun, there) if abs(there) > abs(here) else (lost.node, here)
        if abs(ahead) <= OFF:
            return None
        hour = hour_of(lost.received_at)
        clock = next(  # there is one: it was off by more than OFF in that hour
            clock
            for clock in self._clocks
            if clock.node == worse and clock.started <= hour < _end(clock)
        )
        return clock, f"{clock.text}; by the clock of its sender it had not expired"

    # Incidents that are told whether they cost something or not

    def always(self, costly: set[str]) -> Iterator[Cause]:
        """Ends of nodes and links, clocks and gaps."""
        for end in self._ends.values():
            cause, _ = _of_end(end, end.corrected)
            if end.back is not None or not end.stopped or cause.id in costly:
                yield cause
        for session in self._past.sessions:
            if session.peer is not None and session.role in FLEET:
                ended = self._end_of(session)
                if isinstance(ended, LinkEnd) and ended.lost:
                    yield _of_end(ended, ended.corrected)[0]
        yield from self._clocks
        for gap in self._past.gaps:
            text = f"the record of {gap.node} is incomplete"
            yield Cause(GAP, (gap.node, str(gap.since)), gap.node, gap.since, gap.until, text)
        for node, since in sorted(self._unrecorded().items()):
            text = f"there is no record of {node}"
            yield Cause(GAP, (node, str(since)), node, since, None, text)

    def _unrecorded(self) -> dict[str, int]:
        """Nodes that others had sessions with, and that have no record; since when."""
        found: dict[str, int] = {}
        for session in self._past.sessions:
            peer = session.peer
            if peer is not None and session.role in FLEET and peer not in self._lives:
                opened = self._corrected(session.node, session.opened_at)
                found[peer] = min(opened, found.get(peer, opened))
        return found

    @cached_property
    def _clocks(self) -> list[Cause]:
        return list(clock_incidents(self._past.corrections))


def clock_incidents(corrections: Mapping[tuple[str, int], int]) -> Iterator[Cause]:
    """Clocks that were off by more than a second; hours in a row are one incident."""
    off = sorted((node, hour) for (node, hour), ahead in corrections.items() if abs(ahead) > OFF)
    runs: list[list[tuple[str, int]]] = []
    for node, hour in off:
        if runs and runs[-1][-1] == (node, hour - HOUR):
            runs[-1].append((node, hour))
        else:
            runs.append([(node, hour)])
    for run in runs:
        node, since = run[0]
        ahead = corrections[node, since]
        text = f"the clock of {node} was {lasted(abs(ahead))} {'ahead' if ahead > 0 else 'behind'}"
        yield Cause(CLOCK, (node, str(since)), node, since, run[-1][1] + HOUR, text)


def _end(cause: Cause) -> int:
    assert cause.ended is not None  # the end of an hour
    return cause.ended


def _indexed(
    sessions: Iterable[Session], key: Callable[[Session], tuple[str, str | None]]
) -> dict[tuple[str, str | None], list[Session]]:
    found: dict[tuple[str, str | None], list[Session]] = {}
    for session in sorted(sessions, key=lambda row: (row.opened_at, row.incarnation, row.session)):
        found.setdefault(key(session), []).append(session)
    return found


def _latest(sessions: Sequence[Session], at: int) -> Session | None:
    """The last of these that was opened up to a time."""
    place = bisect_right(sessions, at, key=lambda session: session.opened_at)
    return sessions[place - 1] if place else None


def _names_rather(twin: Session, session: Session) -> bool:
    """Whether the other side of a session is the one that names it."""
    if (twin.role == "parent") != (session.role == "parent"):
        return twin.role == "parent"
    return (twin.node, twin.session) < (session.node, session.session)


def _peer_of(session: Session) -> str:
    return session.peer or session.place or session.session


def _ended_with(entry: Entry, own: NodeEnd) -> bool:
    """Whether an entry ended because its node did."""
    if entry.closed_by in _OWN_END:
        return True
    assert entry.until is not None
    return entry.closed_by == "removed" and own.stopped and entry.until >= own.at - SLACK


def _waited_in_vain(lost: Lost) -> bool:
    return lost.reason == Reason.EXPIRED and lost.outcome == Outcome.QUEUED


def _group_of(loss: Loss) -> tuple[str, ...] | None:
    """What losses are joined by that follow each other closely."""
    lost = loss.lost
    if lost.reason == Reason.QUEUE_FULL:
        name = lost.recipient or ""
        return SLOW, lost.node, "" if name.startswith(UNNAMED) else name
    if lost.reason == Reason.NO_SUBSCRIBER:
        return UNHEARD, loss.multicast_id or ""
    return None


def _beginnings(losses: Sequence[Loss]) -> dict[int, int]:
    """When those began that are joined, by the number of the loss; losses are in order."""
    found: dict[int, int] = {}
    latest: dict[tuple[str, ...], tuple[int, int]] = {}
    for number, loss in enumerate(losses):
        group, at = _group_of(loss), loss.lost.at
        if group is not None:
            began, last = latest.get(group, (at, at))
            found[number] = at if at - last >= JOINED else began
            latest[group] = found[number], at
    return found


def _the_rest(loss: Loss, began: int) -> tuple[Cause, str]:
    """What only losses tell of; the first of them tells when it began."""
    lost = loss.lost
    text = _plainly(lost)
    group = _group_of(loss)
    if group is not None:
        kind, *names = group
        if kind == UNHEARD:
            told = f"nobody subscribed to {names[0]}"
            return Cause(kind, (*names, str(began)), None, began, None, told), text
        told = f"{names[1] or 'a subscriber'} at {lost.node} had no room"
        return Cause(kind, (*names, str(began)), lost.node, began, None, told), text
    if lost.reason == Reason.HOP_LIMIT:
        origin = loss.origin or ""
        node = origin.rpartition("/")[0] or lost.node
        told = f"what began at {node} went in a loop"
        return Cause(LOOP, (origin, lost.onward), node, lost.at, None, told), text
    if lost.reason == Reason.REFUSED:
        key: tuple[str, ...] = (lost.node, lost.recipient or "")
        told = f"{lost.node} refused what came for {lost.recipient or 'others'}"
        return Cause(REFUSED, key, lost.node, lost.at, None, told), text
    key = (lost.node, lost.reason, str(hour_of(lost.at)))
    return Cause(OTHER, key, lost.node, lost.at, None, f"{lost.reason} at {lost.node}"), text


# Sentences


def as_sentence(text: str) -> str:
    """A cause as a sentence of its own; names stay as they are written.

    >>> as_sentence("the route to truck-7 expired"), as_sentence("hub was stopped")
    ('The route to truck-7 expired.', 'hub was stopped.')
    """
    first, space, rest = text.partition(" ")
    return f"{first.capitalize() if first in _COMMON else first}{space}{rest}."


def lasted(microseconds: int) -> str:
    """A duration for people, rounded down.

    >>> lasted(163_400), lasted(1_290_000), lasted(400_000_000), lasted(-5)
    ('163 ms', '1.2 s', '6 min', '0 ms')
    """
    for unit, size, least in (
        ("d", 86_400 * SECOND, 2),
        ("h", 3_600 * SECOND, 2),
        ("min", 60 * SECOND, 2),
    ):
        if microseconds >= least * size:
            return f"{microseconds // size} {unit}"
    if microseconds >= SECOND:
        return f"{microseconds // SECOND}.{microseconds // 100_000 % 10} s"
    return f"{max(microseconds, 0) // 1000} ms"


def _of_end(end: NodeEnd | LinkEnd, at: int) -> tuple[Cause, str]:
    """The end of a node or a link, and what it did to a message that was lost then."""
    again = end.corrected_back
    if isinstance(end, NodeEnd):
        kind = STOPPED if end.stopped else CRASHED
        verb = "was stopped" if end.stopped else "crashed"
        before = told = f"{end.node} {verb}"
        key: tuple[str, ...] = (end.node, str(end.incarnation))
        after = f"; {end.node} was back {{}} after"
        started, ended = end.at, end.back
    else:
        kind = LINK
        before = f"the session of {end.node} with {end.peer} broke"
        told = f"the link of {end.node} with {end.peer} broke"
        key = (end.node, end.session, str(end.opened_at))
        after = "; a new one opened {} after"
        started, ended = end.closed_at, end.back
    back = "" if ended is None else f" and was back {lasted(ended - started)} later"
    cause = Cause(kind, key, end.node, started, ended, f"{told}{back}")
    text = f"{before} {_apart(at - end.corrected)}"
    if again is not None and again > at:
        text += after.format(lasted(again - at))
    return cause, text


def _apart(difference: int) -> str:
    if difference < 0:
        return f"{lasted(-difference)} after"
    return f"{lasted(difference)} before"


def _never(lost: Lost, name: str, later: int | None) -> tuple[Cause, str]:
    key = (lost.node, name)
    if later is None:
        text = f"{name} was never known at {lost.node}"
    else:
        text = f"{name} was not known at {lost.node} yet; it came {lasted(later - lost.at)} after"
    told = f"{name} was not known at {lost.node}"
    return Cause(NEVER, key, lost.node, lost.at, later, told), text


def _entry_ended(lost: Lost, entry: Entry, later: int | None) -> tuple[Cause, str]:
    assert entry.until is not None
    before = lasted(lost.received_at - entry.until)
    after = "" if later is None else lasted(later - lost.received_at)
    name = entry.participant
    back = "" if later is None else f" and was back {lasted(later - entry.until)} later"
    key = (lost.node, name, str(entry.until))
    if entry.closed_by == "expired":
        text = f"its route had expired {before} before"
        text += f"; a new one came {after} after" if after else ""
        told = f"the route to {name} at {lost.node} expired{back}"
        return Cause(EXPIRED, key, lost.node, entry.until, later, told), text
    text = f"{name} had left {before} before"
    text += f"; it was back {after} after" if after else ""
    told = f"{name} left {lost.node}{back}"
    return Cause(OTHER, key, lost.node, entry.until, later, told), text


def _plainly(lost: Lost) -> str:
    """A loss of which nothing more is known."""
    if lost.reason == VANISHED and lost.next_node is not None:
        return f"it left for {lost.next_node}, and did not arrive"
    if lost.reason == Reason.TRANSPORT_DOWN and lost.next_node is not None:
        return f"there was no session with {lost.next_node}"
    if lost.reason == Reason.QUEUE_FULL and lost.recipient is not None:
        return f"{lost.recipient} had no room for it"
    if lost.reason == Reason.EXPIRED and lost.expiry is not None:
        late = lost.received_at - lost.expiry
        if late >= 0:
            return f"it had expired {lasted(late)} before it came"
        return f"it waited for {lasted(lost.at - lost.received_at)} and expired"
    return TEXTS.get(lost.reason, f"{lost.reason}")
