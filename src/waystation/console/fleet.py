"""The nodes that the console watches, polled for their status.

The last status of each node is kept, so that a page can show a node that is away. Sessions
reconnect by themselves.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final

import msgspec

from waystation.console.notifier import Notifier
from waystation.core.message import Message
from waystation.core.outcome import Outcome
from waystation.errors import LocalError, RemoteError, WaystationError
from waystation.net.tasks import Tasks, subtask
from waystation.node import Node, Session
from waystation.node.status import MOST, STATUS, Question, Snapshot

HISTORY: Final = 60
"""Number of polls remembered for the sparkline of a node's traffic."""

STATUS_TIMEOUT: Final = 5.0
"""Seconds that a node has to send its status."""

DRAWN_SESSIONS: Final = MOST
"""Maximum number of sessions of a node requested for the picture."""

REMEMBERED: Final = 600.0
"""Seconds for which a peer that disconnected is remembered as gone."""

MAX_GONE: Final = 200
"""Maximum number of peers of a node that are remembered as gone."""

MAX_STATUS_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of a status."""

_POLL: Final = Question(routes=0, sessions=DRAWN_SESSIONS)
_GOOD: Final = frozenset(str(outcome) for outcome in Outcome if outcome is not Outcome.DROPPED)


class State(StrEnum):
    """The state of a watched node, as the console sees it."""

    CONNECTING = "connecting"
    HERE = "here"
    SILENT = "silent"  # connected, but does not send its status
    AWAY = "away"


class Watched:
    """A watched node: its URL, its state, and its last status.

    `rates` are the messages per second over each session, in and out, by its name. `gone` are the
    peers that disconnected a short time ago, each with the time.
    """

    def __init__(self, url: str, session: Session, console: str) -> None:
        self.url = url
        self.session = session
        self._console = console  # the name of its node, whose own questions are no traffic
        self.state = State.CONNECTING
        self.problem = ""
        self.seen: Snapshot | None = None
        self.traffic: deque[tuple[float, float]] = deque(
            maxlen=HISTORY
        )  # messages and drops per second
        self.rates: dict[str, tuple[float, float]] = {}
        self.gone: dict[str, float] = {}

    @property
    def name(self) -> str:
        """The node's own name; its URL while the name is unknown."""
        if self.seen is not None:
            return self.seen.node
        return self.session.peer or self.url

    def update(self, seen: Snapshot) -> None:
        """Store a new snapshot."""
        if self.seen is not None:
            self.rates = _session_rates(self.seen, seen)
            self._note_gone(self.seen, seen, time.time())
            self.traffic.append(self._traffic_since(self.seen, seen))
        self.state, self.problem, self.seen = State.HERE, "", seen

    def mark(self, state: State, problem: str) -> None:
        """Store that there is no status, and why."""
        self.state, self.problem = state, problem
        if self.seen is not None:
            self.traffic.append((0.0, 0.0))

    @property
    def outcomes(self) -> dict[str, int]:
        """What became of messages so far, by outcome or reason, without what the console asked."""
        return {} if self.seen is None else self._outcomes_of(self.seen)

    def _outcomes_of(self, seen: Snapshot) -> dict[str, int]:
        """A question of this console was delivered, and its answer was forwarded."""
        own = [session for session in seen.sessions if session.peer == self._console]
        asked = {
            str(Outcome.DELIVERED): sum(session.messages_in for session in own),
            str(Outcome.FORWARDED): sum(session.messages_out for session in own),
        }
        counts = {word: count - asked.get(word, 0) for word, count in seen.counts.items()}
        return {word: count for word, count in counts.items() if count > 0}

    def _traffic_since(self, before: Snapshot, now: Snapshot) -> tuple[float, float]:
        """Messages and drops per second between two snapshots."""
        seconds = now.uptime - before.uptime
        if seconds <= 0:  # it was started again
            return 0.0, 0.0
        then, later = self._outcomes_of(before), self._outcomes_of(now)
        new = {word: max(0, count - then.get(word, 0)) for word, count in later.items()}
        drops = sum(count for word, count in new.items() if word not in _GOOD)
        return round(sum(new.values()) / seconds, 1), round(drops / seconds, 1)

    def _note_gone(self, before: Snapshot, now: Snapshot, at: float) -> None:
        """Remember the peers that disconnected, until they come back or it is long ago."""
        here = _peers(now)
        complete = len(now.sessions) == now.sessions_total  # or it may be among those not listed
        if complete and before.uptime <= now.uptime:
            self.gone.update(dict.fromkeys(_peers(before) - here, at))
        kept = [
            (peer, since)
            for peer, since in self.gone.items()
            if peer not in here and at - since < REMEMBERED
        ]
        self.gone = dict(kept[-MAX_GONE:])


def _peers(seen: Snapshot) -> set[str]:
    return {session.peer for session in seen.sessions if session.peer and session.open}


def _session_rates(before: Snapshot, now: Snapshot) -> dict[str, tuple[float, float]]:
    """Messages per second over each session, in and out, between two snapshots of a node."""
    seconds = now.uptime - before.uptime
    if seconds <= 0:  # it was started again
        return {}
    counted = {session.name: session for session in before.sessions}
    return {
        session.name: (
            max(0, session.messages_in - known.messages_in) / seconds,
            max(0, session.messages_out - known.messages_out) / seconds,
        )
        for session in now.sessions
        if (known := counted.get(session.name)) is not None
    }


class Fleet:
    """All watched nodes; `changes` is notified after every poll."""

    def __init__(self, node: Node, interval: float) -> None:
        self.node = node
        self.interval = interval
        self.changes = Notifier()
        self.watched: list[Watched] = []
        self._tasks = Tasks()

    async def watch(self, urls: Iterable[str]) -> None:
        """Start watching the nodes at these URLs; does not wait for them."""
        for number, url in enumerate(dict.fromkeys(urls), 1):
            session = await self.node.connect(url, name=f"watched-{number}", wait=None)
            watched = Watched(url, session, self.node.name)
            self.watched.append(watched)
            self._tasks.start(self._watch(watched), f"console {url}", endless=True)

    async def close(self) -> None:
        """Stop watching."""
        await self._tasks.stop()

    def at(self, url: str) -> Watched | None:
        """The watched node with this URL, or None."""
        return next((watched for watched in self.watched if watched.url == url), None)

    async def ask(self, watched: Watched, question: Question) -> Snapshot:
        """Request the status of a node; raises a WaystationError if it does not send one."""
        route = f"{watched.session.name} => {STATUS}"
        asking = subtask(
            self.node.request(route, msgspec.json.encode(question), timeout=STATUS_TIMEOUT),
            "console question",
        )
        try:
            reply = await self._while_open(watched, asking)
        finally:
            asking.cancel()
        if len(reply.payload) > MAX_STATUS_BYTES:
            raise RemoteError(f"the status is too large: {len(reply.payload):,} bytes")
        try:
            return msgspec.json.decode(reply.payload, type=Snapshot)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RemoteError(f"invalid status: {error}") from error

    async def _while_open(self, watched: Watched, asking: asyncio.Future[Message]) -> Message:
        """Wait for the reply; raises if the session closes first."""
        session = watched.session
        while session.is_open and not asking.done():
            either: list[asyncio.Future[Any]] = [asking, session.change]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not asking.done():
            raise LocalError(
                f"{watched.name} is away", rule="WK-8", hint="wait until it comes back"
            )
        return await asking

    async def _watch(self, watched: Watched) -> None:
        while True:
            await self._poll(watched)
            self.changes.notify()
            await asyncio.wait([watched.session.change], timeout=self.interval)

    async def _poll(self, watched: Watched) -> None:
        session = watched.session
        if not session.is_open:
            if session.openings or session.failure:
                watched.mark(State.AWAY, session.failure or "disconnected")
            return
        try:
            watched.update(await self.ask(watched, _POLL))
        except WaystationError as error:
            away = not session.is_open
            watched.mark(State.AWAY if away else State.SILENT, str(error))
