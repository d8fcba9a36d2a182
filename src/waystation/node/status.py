"""What a node is doing right now: counts, and a worker that tells them to whoever may ask.

An observer like the journal: it counts, and keeps nothing of any message. The node does not know
it; whoever wants a status makes one and starts it.

The worker `waystation.status` answers a request with JSON (`Snapshot`). The request is empty, or
JSON (`Question`) that says which routes, sessions and subscriptions to list, and how many. Large
tables are read in strides, with messages in between.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import msgspec
from msgspec import Struct

from waystation import __version__
from waystation.core.access import matches
from waystation.core.address import Address
from waystation.core.expiry import NEVER
from waystation.core.message import Message
from waystation.core.record import MessageRecord, Record, SessionRecord
from waystation.core.routing import RoutingEntry
from waystation.errors import LocalError
from waystation.node import flow
from waystation.node.contested import ClaimsSnapshot, Contest, ContestedNames
from waystation.node.custody import CustodySnapshot
from waystation.node.session import Session
from waystation.node.worker import Context
from waystation.wire.hello import FIRST_VERSION

if TYPE_CHECKING:
    from waystation.node.node import Node

STATUS: Final = "waystation.status"
"""The name of the worker."""

WINDOW: Final = 5
"""Seconds over which rates are measured."""

MOST: Final = 1_000
"""No reply lists more routes, sessions or subscriptions, whatever was asked for."""

LARGE_TABLE: Final = 200_000
"""In a table with more entries only single participants are looked up: going through all of them
would hold up messages."""

STRIDE: Final = 2_000
"""Number of entries that are looked at before messages have their turn."""

_QUESTION_BYTES: Final = 4_096
_ALL: Final = "*"

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Question(Struct, frozen=True):
    """What somebody wants to know: how many of each, after how many others, matching what.

    `filter` is for the participants of routes, `find_sessions` for names, peers and places,
    `find_subscriptions` for patterns and receivers, and `find_contested` for participants and the
    nodes that claim them. With `over` only routes to that one address are listed.
    """

    routes: int = 20
    sessions: int = 50
    filter: str = _ALL
    skip_routes: int = 0
    over: str = ""
    find_sessions: str = _ALL
    skip_sessions: int = 0
    subscriptions: int = 0
    find_subscriptions: str = _ALL
    skip_subscriptions: int = 0
    contested: int = 0
    find_contested: str = _ALL
    skip_contested: int = 0


class RouteStatus(Struct, frozen=True, omit_defaults=True):
    """A routing entry; `expiry` in milliseconds since the epoch, None for never.

    A `contested` participant is claimed by other owners too. Who claims it here has `proven` who it
    is (ID-2), or has not; None if nobody claims it, as for what this node has itself.
    """

    participant: str
    address: str
    local: bool
    visible: bool = False
    sticky: bool = False
    expiry: int | None = None
    contested: bool = False
    proven: bool | None = None


class SessionStatus(Struct, frozen=True, omit_defaults=True):
    """A session: `peer` is what the peer calls itself, `waiting` the messages that wait for it.

    `participants` are those that the peer announced; a `parent` is the peer that this node
    announces its own to. Its clock is `clock_offset_us` ahead of ours, as measured in a round trip
    of `clock_rtt_us`; its own wall clock is off by `peer_clock_off_us`, if that is too much for it.
    The peer's hello says its `version`, and what it `can` do beside the first version (UP-1). It
    has proven to be `identity` (ID-2), or nothing if that is None.
    `messages_in` and `messages_out` came and left over it since it was made.
    """

    name: str
    place: str
    peer: str | None
    open: bool
    opened_here: bool
    waiting: int = 0
    stalled: bool = False
    parent: bool = False
    participants: int = 0
    clock_offset_us: int | None = None
    clock_rtt_us: int | None = None
    peer_clock_off_us: int = 0
    version: str | None = None
    can: tuple[str, ...] = ()
    identity: str | None = None
    messages_in: int = 0
    messages_out: int = 0


class SubscriptionStatus(Struct, frozen=True, omit_defaults=True):
    """Who receives what."""

    pattern: str
    receiver: str
    node: str = ""  # the peer that a receiver elsewhere is reached over


class ServerStatus(Struct, frozen=True):
    """A broker or gossip router that the node's transports go through."""

    kind: str
    place: str
    open: bool


class Snapshot(Struct, frozen=True, kw_only=True):
    """A node at one moment; counts are since its start, rates per second.

    Of what was asked for, `..._fitting` says how many match, listed or not; None where nobody
    counted them, since none were asked for or there are too many to go through.
    """

    node: str
    at: int  # milliseconds since the epoch
    uptime: float  # seconds
    counts: dict[str, int]  # by outcome, and for drops by reason, except for internal ones
    rates: dict[str, float]
    bytes: int  # of payload, in all messages
    bytes_rate: float
    routes_total: int
    routes: list[RouteStatus]
    sessions_total: int
    sessions: list[SessionStatus]
    session_events: dict[str, int]  # opened, closed, refused
    journal_lost: int | None  # records; None without a journal
    hub: bool = False
    routes_fitting: int | None = None
    sessions_fitting: int | None = None
    subscriptions_total: int = 0
    subscriptions: list[SubscriptionStatus] = []
    subscriptions_fitting: int | None = None
    clock_offset_us: int = 0  # how far the wall clock is ahead of the node's
    clock_slewing: bool = False  # the node's clock follows the wall clock at present
    clock_off: bool = False  # the wall clock is too far off to be followed
    version: str = FIRST_VERSION
    flow: flow.Snapshot | None = None  # None: of a node that does not count bytes
    claims: ClaimsSnapshot | None = None  # None: of a node that does not keep all claims
    custody: CustodySnapshot | None = None  # None: of a node without a store
    contested_total: int = 0
    contested: list[Contest] = []
    contested_fitting: int | None = None
    internal_drops: dict[str, int] = {}  # by reason: of what nodes say to each other
    servers: list[ServerStatus] = []


class LossCounter(Protocol):
    """A journal, as far as this module knows one."""

    @property
    def lost(self) -> int:
        """How many records were lost."""


class _Mark(Struct, frozen=True):
    """The counts at one moment of the loop's clock."""

    at: float
    counts: dict[str, int]
    bytes: int


class Status:
    """Counts what happens at a node.

    >>> async def main():
    ...     from waystation.node import Node
    ...     async with Node("garage") as node:
    ...         status = Status(node)
    ...         await node.send("nobody", b"hello")
    ...         return status.snapshot().counts
    >>> asyncio.run(main())
    {'NO_ROUTE': 1}
    """

    def __init__(self, node: Node, journal: LossCounter | None = None) -> None:
        self._node = node
        self._journal = journal
        self._counts: defaultdict[str, int] = defaultdict(int)
        # What nodes ask each other is sent again until it is answered: such a drop is no loss.
        self.internal_drops: Counter[str] = Counter()
        self.session_events: Counter[tuple[str, str]] = Counter()  # by kind and transport
        self._bytes = 0
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        self._marks: deque[_Mark] = deque([self._mark()], maxlen=WINDOW + 1)
        self._timer: asyncio.TimerHandle | None = None
        node.observe(self.note)

    def start(self) -> None:
        """Start the worker that replies to peers, and measure rates."""
        self._node.start_worker((STATUS,), self.answer, inbox=100, reserved=True)
        self._timer = self._loop.call_later(1.0, self._tick)

    def stop(self) -> None:
        """Measure no more; the worker ends with the node."""
        if self._timer is not None:
            self._timer.cancel()

    def note(self, record: Record) -> None:
        """Count a record."""
        if record.__class__ is MessageRecord:  # mostly
            verdict = record.verdict
            reason, message = verdict.reason, record.arrival.message
            if reason is not None and message.is_internal:
                self.internal_drops[reason] += 1
            else:
                self._counts[verdict.outcome if reason is None else reason] += 1
            self._bytes += len(message.payload)
        elif isinstance(record, SessionRecord):
            transport = self._transport(int(record.place.partition("#")[0]))
            self.session_events[record.kind.value, transport] += 1

    async def answer(self, message: Message, context: Context) -> None:
        """Handle a request; an invalid one is answered like an empty one."""
        question = Question()
        if 0 < len(message.payload) <= _QUESTION_BYTES:
            with contextlib.suppress(msgspec.MsgspecError):
                question = msgspec.json.decode(message.payload, type=Question)
        for told in self._collect(question):
            if told is None:
                await asyncio.sleep(0)  # for messages
            else:
                await context.reply(msgspec.json.encode(told))

    def snapshot(self, question: Question | None = None) -> Snapshot:
        """The node at this moment."""
        *_, told = self._collect(question or Question())
        assert told is not None
        return told

    def _collect(self, asked: Question) -> Iterator[Snapshot | None]:
        """Find out what was asked; None after each stride, and at last the answer."""
        milliseconds = self._node.now()
        routes, routes_fitting = yield from _page(
            lambda: self._routes(asked, milliseconds),
            *(asked.filter, asked.skip_routes, asked.routes),
            lambda entry: (entry.participant,),
        )
        sessions, sessions_fitting = yield from _page(
            lambda: self._node.sessions,
            *(asked.find_sessions, asked.skip_sessions, asked.sessions),
            lambda session: (session.name, session.peer or "", str(session.place)),
        )
        # In what is looked for, * stands for any characters; in a pattern it is one like others.
        subscriptions, subscriptions_fitting = yield from _page(
            self._subscriptions,
            *(asked.find_subscriptions, asked.skip_subscriptions, asked.subscriptions),
            lambda pair: pair,
        )
        names = self._node.contested
        contested, contested_fitting = yield from _page(
            lambda: _Lookups(names.listed(), lambda name: names.about(name, milliseconds)),
            *(asked.find_contested, asked.skip_contested, asked.contested),
            lambda contest: (
                contest.participant,
                contest.holder,
                *(standby.node for standby in contest.standbys),
            ),
        )
        events: Counter[str] = Counter()
        for (kind, _), count in self.session_events.items():
            events[kind] += count
        now = self._mark()
        before = self._marks[0]
        seconds = max(now.at - before.at, 0.001)
        yield Snapshot(
            node=self._node.name,
            at=milliseconds,
            uptime=round(now.at - self._started, 3),
            counts={str(name): count for name, count in sorted(now.counts.items())},
            rates={
                str(name): round((count - before.counts.get(name, 0)) / seconds, 1)
                for name, count in sorted(now.counts.items())
            },
            bytes=now.bytes,
            bytes_rate=round((now.bytes - before.bytes) / seconds, 1),
            routes_total=len(self._node.router.table),
            routes=[_route(entry, names, milliseconds) for entry in routes],
            sessions_total=len(self._node.sessions),
            sessions=[_session(session) for session in sessions],
            session_events=dict(sorted(events.items())),
            journal_lost=None if self._journal is None else self._journal.lost,
            hub=self._node.is_hub,
            routes_fitting=routes_fitting,
            sessions_fitting=sessions_fitting,
            subscriptions_total=len(self._node.router.subscriptions),
            subscriptions=[self._subscription(*pair) for pair in subscriptions],
            subscriptions_fitting=subscriptions_fitting,
            clock_offset_us=self._node.clock_offset_us,
            clock_slewing=self._node.clock_slewing,
            clock_off=self._node.clock_off,
            version=__version__,
            flow=self._node.flow,
            claims=names.snapshot(),
            custody=self._node.custody,
            contested_total=len(names),
            contested=contested,
            contested_fitting=contested_fitting,
            internal_drops={str(name): n for name, n in sorted(self.internal_drops.items())},
            servers=[ServerStatus(one.kind, one.place, one.is_open) for one in self._node.servers],
        )

    def _routes(self, asked: Question, now: int) -> _Entries[RoutingEntry] | None:
        """The routes to go through; None if there are too many."""
        table = self._node.router.table
        if _ALL not in asked.filter:  # one participant is found without going through all
            entry = table.lookup(asked.filter, now)
            fits = entry is not None and asked.over in {"", str(entry.address)}
            return [entry] if entry is not None and fits else []
        if asked.over:
            names = table.participants_at(_address(asked.over), now)
            return _Lookups(names[:LARGE_TABLE], lambda name: table.lookup(name, now))
        if len(table) > LARGE_TABLE:
            return None
        if len(table) > STRIDE:
            return _Lookups(table.participants(), lambda name: table.lookup(name, now))
        return table.snapshot(now).values()

    def _subscriptions(self) -> _Entries[tuple[str, str]] | None:
        """The subscriptions; None if there are too many to go through."""
        subscriptions = self._node.router.subscriptions
        return None if len(subscriptions) > LARGE_TABLE else subscriptions.snapshot()

    def _subscription(self, pattern: str, receiver: str) -> SubscriptionStatus:
        entry = self._node.router.table.lookup(receiver, self._node.now())
        over = None if entry is None else self._node.session_at(entry.address)
        return SubscriptionStatus(pattern, receiver, (over and over.peer) or "")

    def sessions_by_transport(self) -> Counter[str]:
        """How many sessions have a link now, by the name of its transport."""
        return Counter(self._transport(session.place.type) for session in self._node.sessions)

    def _transport(self, number: int) -> str:
        return self._node.router.types.name(number) or str(number)

    def _mark(self) -> _Mark:
        return _Mark(self._loop.time(), dict(self._counts), self._bytes)

    def _tick(self) -> None:
        """Remember the counts of this second."""
        self._marks.append(self._mark())
        self._timer = self._loop.call_later(1.0, self._tick)


class _Entries(Protocol[T_co]):
    """What can be listed."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[T_co]: ...


class _Lookups(Generic[T]):
    """What a table has under these names, looked up one by one: it may change in between.

    Only the names are copied. Those that are gone by now still count.
    """

    def __init__(self, names: list[str], look_up: Callable[[str], T | None]) -> None:
        self._names = names
        self._look_up = look_up

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[T]:
        for name in self._names:
            found = self._look_up(name)
            if found is not None:
                yield found


def _page(
    find: Callable[[], _Entries[T] | None],
    pattern: str,
    skip: int,
    most: int,
    texts: Callable[[T], tuple[str, ...]],
) -> Generator[None, None, tuple[list[T], int | None]]:
    """Some of those that have a text which matches, and how many match in all.

    They are looked at a stride at a time.
    """
    skip, most = max(0, skip), max(0, min(most, MOST))
    entries = find() if most else None
    if entries is None:
        return [], None
    if pattern == _ALL:
        some = islice(entries, skip, skip + most) if skip < len(entries) else ()
        return list(some), len(entries)
    told: list[T] = []
    fitting = 0
    for number, entry in enumerate(entries, 1):
        if any(matches(pattern, text) for text in texts(entry)):
            fitting += 1
            if fitting > skip and len(told) < most:
                told.append(entry)
        if not number % STRIDE:
            yield
    return told, fitting


def _address(text: str) -> Address:
    """The address that somebody asks for; for an invalid one, an address that leads nowhere."""
    try:
        return Address.parse(text)
    except LocalError:
        return Address(0, b"")


def _route(entry: RoutingEntry, names: ContestedNames, now: int) -> RouteStatus:
    expiry: Any = None if entry.expiry == NEVER else entry.expiry
    return RouteStatus(
        entry.participant,
        str(entry.address),
        entry.local,
        entry.visible,
        entry.sticky,
        expiry,
        entry.participant in names,
        names.proven(entry.participant, now),
    )


def _session(session: Session) -> SessionStatus:
    return SessionStatus(
        session.name,
        str(session.place),
        session.peer,
        session.is_open,
        session.outgoing,
        session.waiting(),
        session.is_stalled,
        session.is_parent,
        len(session.participants),
        session.clock_offset_us,
        session.clock_rtt_us,
        session.peer_clock_off_us,
        session.peer_version,
        session.peer_can,
        session.identity,
        session.messages_in,
        session.messages_out,
    )
