"""What a node is doing right now: counts, and a worker that tells them to whoever may ask.

An observer like the journal: it counts, and keeps nothing of any message. A node knows nothing of
it; whoever wants a status makes one and starts it.

The worker `waystation.status` answers a request with JSON (`Snapshot`). The request is empty, or
JSON (`Question`) that says which routes to tell, and how many.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
from msgspec import Struct

from waystation.core.access import matches
from waystation.core.expiry import NEVER
from waystation.core.message import Message
from waystation.core.record import MessageRecord, Record, SessionRecord
from waystation.core.routing import RoutingEntry
from waystation.node.session import Session
from waystation.node.worker import Context

if TYPE_CHECKING:
    from waystation.node.node import Node

STATUS: Final = "waystation.status"
"""The name of the worker."""

WINDOW: Final = 5
"""Rates are those of so many seconds."""

MOST_ROUTES: Final = 1_000
MOST_SESSIONS: Final = 1_000
"""No answer tells more, whatever was asked for."""

LARGE_TABLE: Final = 100_000
"""In a table with more entries only one participant is looked up: going through all would hold up
the messages."""

_QUESTION_BYTES: Final = 4_096


class Question(Struct, frozen=True):
    """What somebody wants to know: so many routes whose participant fits a pattern."""

    routes: int = 20
    sessions: int = 50
    filter: str = "*"


class RouteStatus(Struct, frozen=True, omit_defaults=True):
    """A routing entry; `expiry` in milliseconds since the epoch, None for never."""

    participant: str
    address: str
    local: bool
    visible: bool = False
    sticky: bool = False
    expiry: int | None = None


class SessionStatus(Struct, frozen=True, omit_defaults=True):
    """A session: `peer` is what the peer calls itself, `waiting` the messages that wait for it."""

    name: str
    place: str
    peer: str | None
    open: bool
    opened_here: bool
    waiting: int = 0
    stalled: bool = False


class Snapshot(Struct, frozen=True, kw_only=True):
    """A node at one moment; counts are since its start, rates per second."""

    node: str
    at: int  # milliseconds since the epoch
    uptime: float  # seconds
    counts: dict[str, int]  # by outcome, and for drops by reason
    rates: dict[str, float]
    bytes: int  # of payload, in all messages
    bytes_rate: float
    routes_total: int
    routes: list[RouteStatus]
    sessions_total: int
    sessions: list[SessionStatus]
    session_events: dict[str, int]  # opened, closed, refused
    journal_lost: int | None  # records; None without a journal


class Losing(Protocol):
    """A journal, as far as this module knows one."""

    @property
    def lost(self) -> int:
        """How many records were lost."""
        ...


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

    def __init__(self, node: Node, journal: Losing | None = None) -> None:
        self._node = node
        self._journal = journal
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._events: Counter[str] = Counter()
        self._bytes = 0
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        self._marks: deque[_Mark] = deque([self._mark()], maxlen=WINDOW + 1)
        self._timer: asyncio.TimerHandle | None = None
        node.observe(self.note)

    def start(self) -> None:
        """Let peers ask: start the worker, and measure rates."""
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
            reason = verdict.reason
            self._counts[verdict.outcome if reason is None else reason] += 1
            self._bytes += len(record.arrival.message.payload)
        elif isinstance(record, SessionRecord):
            self._events[record.kind] += 1

    async def answer(self, message: Message, context: Context) -> None:
        """Handle a request: what cannot be read is answered as if nothing had been asked."""
        question = Question()
        if 0 < len(message.payload) <= _QUESTION_BYTES:
            try:
                question = msgspec.json.decode(message.payload, type=Question)
            except msgspec.MsgspecError:
                question = Question()
        await context.reply(msgspec.json.encode(self.snapshot(question)))

    def snapshot(self, question: Question | None = None) -> Snapshot:
        """The node at this moment."""
        asked = question or Question()
        now = self._mark()
        before = self._marks[0]
        seconds = max(now.at - before.at, 0.001)
        milliseconds = self._node.tick() // 1000
        sessions = self._node.sessions
        return Snapshot(
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
            routes=self._routes(asked, milliseconds),
            sessions_total=len(sessions),
            sessions=[
                _session(session) for session in sessions[: _bounded(asked.sessions, MOST_SESSIONS)]
            ],
            session_events={str(kind): count for kind, count in sorted(self._events.items())},
            journal_lost=None if self._journal is None else self._journal.lost,
        )

    def _routes(self, asked: Question, now: int) -> list[RouteStatus]:
        table = self._node.router.table
        if "*" not in asked.filter:  # one participant is found without going through all
            entry = table.lookup(asked.filter, now)
            return [] if entry is None else [_route(entry)]
        if len(table) > LARGE_TABLE:
            return []
        entries = table.snapshot(now).values()
        fitting = (entry for entry in entries if matches(asked.filter, entry.participant))
        return [_route(entry) for entry in islice(fitting, _bounded(asked.routes, MOST_ROUTES))]

    def _mark(self) -> _Mark:
        return _Mark(self._loop.time(), dict(self._counts), self._bytes)

    def _tick(self) -> None:
        """Remember the counts of this second."""
        self._marks.append(self._mark())
        self._timer = self._loop.call_later(1.0, self._tick)


def _bounded(asked: int, most: int) -> int:
    return max(0, min(asked, most))


def _route(entry: RoutingEntry) -> RouteStatus:
    expiry: Any = None if entry.expiry == NEVER else entry.expiry
    return RouteStatus(
        entry.participant, str(entry.address), entry.local, entry.visible, entry.sticky, expiry
    )


def _session(session: Session) -> SessionStatus:
    return SessionStatus(
        session.name,
        str(session.place),
        session.peer,
        session.is_open,
        session.opened_here,
        session.waiting(),
        session.is_stalled,
    )
