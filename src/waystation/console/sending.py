"""Messages that the console sends, and their outcomes: hops and replies.

Outcomes at the console's own node come from its records; those at other nodes from the journal, if
there is one, and from the reply or error that comes back. Nothing here knows about pages.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from waystation.console.fleet import Watched
from waystation.console.formatting import plain
from waystation.console.notifier import Notifier
from waystation.core.address import Address, Route
from waystation.core.message import Message
from waystation.core.outcome import Outcome
from waystation.core.record import MessageRecord, Record
from waystation.errors import LocalError
from waystation.net.tasks import Tasks
from waystation.node import Context, Node, Wait
from waystation.node.requests import REQUEST_PREFIX, Undeliverable, is_error

if TYPE_CHECKING:
    from waystation.console.journal_follower import JournalFollower, MessageRow

FIRST_POLL: Final = 0.1
SLOWEST_POLL: Final = 1.0
"""Seconds between polls of the journal, growing from the first to the second."""

SHOWN_BYTES: Final = 4_096
"""Maximum number of bytes kept of a reply."""

_ENDS: Final = frozenset({str(Outcome.DELIVERED), str(Outcome.DROPPED)})


class SendRequest(Struct, frozen=True, kw_only=True):
    """A message to send through a watched node, along a route that starts there."""

    via: Watched
    route: str
    payload: bytes
    ttl: float  # seconds
    reply: bool  # whether to wait for one


class Step(Struct, frozen=True):
    """An outcome of the message, or of its reply, at one node; times in microseconds."""

    received: int
    at: int
    node: str
    outcome: str
    reason: str | None
    to: str | None
    back: bool  # of the reply


class ReplyPreview(Struct, frozen=True):
    """The part of a reply that is shown, and its full size."""

    id: str
    payload: bytes
    size: int


class Dispatch:
    """A message that was sent from here."""

    def __init__(self, id: str, order: SendRequest, own_name: str) -> None:
        self.id = id
        self.order = order
        self.sent_at = time.time()
        self.own_name = own_name
        self.reply: ReplyPreview | None = None
        self.replied_at = 0.0
        self.error: Undeliverable | None = None
        self.over = False
        self.version = 0
        self._steps: dict[tuple[str, int, int], Step] = {}
        self._known_end: float | None = None  # when its final outcome became known

    @property
    def ids(self) -> frozenset[str]:
        """The ids of the message and of its reply, if there is one."""
        return frozenset((self.id, self.reply.id) if self.reply else (self.id,))

    @property
    def steps(self) -> list[Step]:
        """All steps in order: of the message, then of the reply."""
        return sorted(self._steps.values(), key=lambda step: (step.back, step.received, step.at))

    @property
    def stops(self) -> list[str]:
        """The nodes that it is known to have passed, in order, there and back."""
        there = [step for step in self.steps if not step.back]
        names = [self.own_name, *(step.node for step in there)]
        if [step.outcome for step in there] == [Outcome.FORWARDED]:  # no journal has more
            names.append(self.order.via.name)
        if self.error is not None and self.error.node:
            names.append(self.error.node)
        names += [step.node for step in self.steps if step.back]
        stops = [plain(name) for name in names]
        return [stop for stop, before in zip(stops, ["", *stops], strict=False) if stop != before]

    def add(self, key: tuple[str, int, int], step: Step) -> None:
        """Add a step, unless it is known already."""
        if key not in self._steps:
            self._steps[key] = step
            self.version += 1

    def replied(self, message: Message) -> None:
        """Store the reply."""
        if self.reply is None:
            payload = message.payload
            self.reply = ReplyPreview(message.id, payload[:SHOWN_BYTES], len(payload))
            self.error = is_error(message)
            self.replied_at = time.time()
            self.version += 1

    def is_settled(self, now: float, grace: float) -> bool:
        """Whether its final outcome has been known for `grace` seconds."""
        if self._known_end is None:
            dropped_here = any(
                step.outcome == Outcome.DROPPED and step.node == self.own_name
                for step in self.steps
            )
            steps = [step for step in self.steps if not step.back]
            if self.order.reply:
                known = dropped_here or self.reply is not None
            elif grace:
                known = any(step.outcome in _ENDS for step in steps)
            else:
                known = bool(steps)
            if not known:
                return False
            self._known_end = now
            if dropped_here:
                grace = 0
        return now >= self._known_end + grace

    def verdict(self) -> tuple[str, str]:
        """Its status, `good`, `bad` or `open`, and a text that describes it."""
        if self.error is not None:
            where = f" by {self.error.node}" if self.error.node else ""
            return "bad", f"dropped{where}: {self.error.reason}"
        if self.reply is not None:
            return "good", f"reply after {_span(self.replied_at - self.sent_at)}"
        there = [step for step in self.steps if not step.back]
        drops = [step for step in there if step.outcome == Outcome.DROPPED]
        if drops:
            return "bad", f"dropped at {drops[-1].node}: {drops[-1].reason}"
        if self.order.reply:
            if self.over:
                return "bad", f"no reply within {self.order.ttl:g} s"
            return "open", "in flight; waiting for the reply"
        arrived = [step.node for step in there if step.outcome == Outcome.DELIVERED]
        if arrived:
            return "good", f"delivered at {', '.join(dict.fromkeys(arrived))}"
        if self.over:
            return "open", "sent; no journal here has its outcome"
        return "open", "in flight"


class Sender:
    """Sends messages and follows them; `changes` is notified of every new step.

    At most `kept` messages are remembered, and in flight at the same time. After the end of a
    message, its rows in the journal are awaited for `journal_wait` seconds.
    """

    def __init__(self, node: Node, journal: Path | None, *, kept: int, journal_wait: float) -> None:
        self.changes = Notifier()
        self._node = node
        self._most = kept
        self._journal_wait = journal_wait
        self._open_follower = None if journal is None else _follower_factory(journal)
        self._kept: dict[str, Dispatch] = {}
        self._by_id: dict[str, Dispatch] = {}  # also by the ids of replies
        self._tasks = Tasks()
        node.observe(self._note)

    @property
    def kept(self) -> list[Dispatch]:
        """The remembered messages, the latest first."""
        return list(reversed(self._kept.values()))

    def find(self, id: str) -> Dispatch | None:
        """The remembered message with this id, or None."""
        return self._kept.get(id)

    def send(self, order: SendRequest) -> Dispatch:
        """Start sending a message and return at once; raises LocalError if it is invalid."""
        if sum(not dispatch.over for dispatch in self._kept.values()) >= self._most:
            raise LocalError(
                f"{self._most} messages are in flight already", rule="WK-6", hint="wait"
            )
        node = self._node
        onward = self._parsed(order)
        name = f"{REQUEST_PREFIX}{secrets.token_hex(8)}"
        back = Route((Address(0, name.encode()),)) if order.reply else Route()
        message = Message(onward, back, order.payload, node.new_id(), node.expiry_in(order.ttl))
        dispatch = Dispatch(message.id, order, node.name)
        self._keep(dispatch)
        if order.reply:
            self._start_reply_worker(name, dispatch)
        self._tasks.start(self._deliver(dispatch, message, name), "dispatch")
        return dispatch

    async def close(self) -> None:
        """Stop following messages."""
        await self._tasks.stop()

    def _parsed(self, order: SendRequest) -> Route:
        onward = Route.parse(order.route, self._node.router.types.numbers)
        if not onward.addresses:
            raise LocalError("the route is empty", rule="AD-1", hint="name at least one address")
        return onward.pushed(order.via.session.address)

    def _keep(self, dispatch: Dispatch) -> None:
        while len(self._kept) >= self._most:
            oldest = next(kept for kept in self._kept.values() if kept.over)
            del self._kept[oldest.id]
            for id in oldest.ids:
                self._by_id.pop(id, None)
        self._kept[dispatch.id] = self._by_id[dispatch.id] = dispatch

    def _start_reply_worker(self, name: str, dispatch: Dispatch) -> None:
        """Start a worker for the reply, with an unguessable name."""

        def take(message: Message, _: Context) -> None:
            dispatch.replied(message)
            self._by_id.setdefault(message.id, dispatch)
            self.changes.notify()

        self._node.start_worker((name,), take, inbox=10, reserved=True)

    async def _deliver(self, dispatch: Dispatch, message: Message, name: str) -> None:
        order = dispatch.order
        try:
            await self._node.route(message, Wait(order.ttl))
            await self._follow(dispatch)
        finally:
            dispatch.over = True
            dispatch.version += 1
            self.changes.notify()
            if order.reply:
                await self._node.stop_worker(name)

    async def _follow(self, dispatch: Dispatch) -> None:
        """Poll the journal until the final outcome is known or the time to live is over."""
        follower = None if self._open_follower is None else self._open_follower(dispatch.sent_at)
        grace = self._journal_wait if follower is not None else 0.0
        loop = asyncio.get_running_loop()
        last = loop.time() + dispatch.order.ttl + grace
        pause = FIRST_POLL
        while True:
            if follower is not None:
                self._add(dispatch, await asyncio.to_thread(follower.look, dispatch.ids))
            now = loop.time()
            if dispatch.is_settled(now, grace) or now >= last:
                return
            await asyncio.sleep(min(pause, last - now))
            pause = min(pause * 1.5, SLOWEST_POLL)

    def _add(self, dispatch: Dispatch, rows: Iterable[MessageRow]) -> None:
        before = dispatch.version
        for seen in rows:
            step = Step(
                seen.received_at,
                seen.at,
                seen.node,
                seen.outcome,
                seen.reason,
                seen.next_node or seen.next_hop or seen.recipient,
                back=seen.message_id != dispatch.id,
            )
            if seen.node != dispatch.own_name:  # this node's own records cover that
                dispatch.add((seen.node, seen.incarnation, seen.seq), step)
        if dispatch.version != before:
            self.changes.notify()

    def _note(self, record: Record) -> None:
        """Observe a record of this node."""
        if record.__class__ is not MessageRecord:
            return
        id = record.arrival.message.id
        dispatch = self._by_id.get(id)
        if dispatch is None:
            return
        verdict = record.verdict
        to = verdict.recipient if verdict.address is None else str(verdict.address)
        if record.out == dispatch.order.via.session.name:
            to = dispatch.order.via.name
        step = Step(
            record.arrival.received_at,
            record.at,
            self._node.name,
            str(verdict.outcome),
            None if verdict.reason is None else str(verdict.reason),
            to,
            back=id != dispatch.id,
        )
        dispatch.add((self._node.name, 0, record.at), step)
        self.changes.notify()


def _follower_factory(journal: Path) -> Callable[[float], JournalFollower]:
    """A function that opens a follower; imports Arrow now, since later it would delay messages."""
    from waystation.console.journal_follower import JournalFollower  # noqa: PLC0415 - needed with a journal alone

    return partial(JournalFollower, journal)


def _span(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"
