"""What the broker knows of one client, and all sessions together. No sockets here.

The life of a session:

    AWAY --its client connects--> CONNECTED --the connection ends--> AWAY
    AWAY --it expires, or its client starts clean--> ENDED

While it is away, its will may be due after a delay, once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from mqtt5 import Will
from msgspec import Struct

from waystation.mqtt.broker.publication import Delivery, Publication
from waystation.mqtt.packets import next_free_id

if TYPE_CHECKING:
    from waystation.mqtt.broker.connection import ClientConnection
    from waystation.mqtt.broker.dispatch import Dispatcher

NEVER: Final = 0xFFFFFFFF
"""The expiry of a session that does not expire."""


class SessionState(Enum):
    """Where a session is in its life."""

    AWAY = "its client is not connected"
    CONNECTED = "its client is connected"
    ENDED = "it is over"


class SessionKey(NamedTuple):
    """What a session belongs to: the same client id of another user is another session.

    The user is None where clients need not prove who they are.
    """

    user: str | None
    client_id: str


class Subscription(Struct, frozen=True):
    """One filter of a client, and how it wants what matches."""

    filter: str
    session: Session
    qos: int
    no_local: bool
    retain_as_published: bool
    id: int | None


class Session:
    """A client's subscriptions, and the messages that are on their way to it or wait for it."""

    __slots__ = (
        "_last_id", "connection", "expiry", "expiry_timer", "held_bytes", "inflight", "key",
        "name", "queue", "state", "subscriptions", "will", "will_timer",
    )  # fmt: skip

    def __init__(self, key: SessionKey) -> None:
        self.key = key
        self.name = repr(tuple(key))  # among the keys of tries
        self.state = SessionState.AWAY
        self.connection: ClientConnection | None = None  # while it is connected
        self.subscriptions: dict[str, Subscription] = {}
        self.queue: deque[Delivery] = deque()
        self.inflight: dict[int, Delivery] = {}  # sent, and not acknowledged
        self.held_bytes = 0  # of both
        self.expiry = 0  # seconds that it outlives its connection
        self.will: Will | None = None
        self.will_timer: asyncio.TimerHandle | None = None
        self.expiry_timer: asyncio.TimerHandle | None = None
        self._last_id = 0

    def enqueue(self, delivery: Delivery) -> None:
        """Keep a message until the client can have it."""
        self.queue.append(delivery)
        self.held_bytes += delivery.publication.size

    def dequeue(self) -> Delivery:
        """Remove the message that has waited longest."""
        delivery = self.queue.popleft()
        self.held_bytes -= delivery.publication.size
        return delivery

    def hold(self, delivery: Delivery) -> int:
        """Keep a message until it is acknowledged; returns its packet id."""
        self._last_id = number = next_free_id(self._last_id, self.inflight)
        self.inflight[number] = delivery
        self.held_bytes += delivery.publication.size
        return number

    def release(self, number: int) -> None:
        """Forget a message that was acknowledged."""
        delivery = self.inflight.pop(number, None)
        if delivery is not None:
            self.held_bytes -= delivery.publication.size

    def stop_timers(self) -> None:
        """Let neither the will nor the expiry happen later."""
        for timer in (self.will_timer, self.expiry_timer):
            if timer is not None:
                timer.cancel()
        self.will_timer = self.expiry_timer = None


class Sessions:
    """All sessions of a broker, and what happens to them when their clients come and go."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._by_key: dict[SessionKey, Session] = {}

    def __len__(self) -> int:
        """How many there are, those of clients that are away included."""
        return len(self._by_key)

    def __iter__(self) -> Iterator[Session]:
        """The sessions, the oldest first."""
        return iter(self._by_key.values())

    def connected(self) -> int:
        """How many clients are connected."""
        return sum(s.state is SessionState.CONNECTED for s in self)

    def get(self, key: SessionKey) -> Session | None:
        """The session of a client."""
        return self._by_key.get(key)

    def connect(
        self, key: SessionKey, connection: ClientConnection, *, clean: bool
    ) -> tuple[Session, bool]:
        """The session of a client that connects, and whether it existed before."""
        session = self._by_key.get(key)
        if session is not None and clean:
            self._end(session)
            session = None
        present = session is not None
        if session is None:
            session = self._by_key[key] = Session(key)
        session.stop_timers()
        session.state = SessionState.CONNECTED
        session.connection = connection
        return session, present

    def leave(self, session: Session) -> None:
        """Note that a client is away, and what has to happen if it stays away."""
        session.state = SessionState.AWAY
        session.connection = None
        loop = asyncio.get_running_loop()
        delay = 0 if session.will is None else min(session.will.will_delay_interval, session.expiry)
        if delay:
            session.will_timer = loop.call_later(delay, self._publish_will, session)
        else:
            self._publish_will(session)
        if not session.expiry:
            self._end(session)
        elif session.expiry != NEVER:
            session.expiry_timer = loop.call_later(session.expiry, self._end, session)

    def stop_timers(self) -> None:
        """Let no session expire, and publish no more wills: the broker is ending."""
        for session in self:
            session.stop_timers()

    def _publish_will(self, session: Session) -> None:
        will, session.will, session.will_timer = session.will, None, None
        if will is not None:
            dispatcher = self._dispatcher
            dispatcher.counts.wills += 1
            dispatcher.now = asyncio.get_running_loop().time()
            dispatcher.publish(Publication(will, will.topic, dispatcher.now), None)

    def _end(self, session: Session) -> None:
        session.stop_timers()
        self._publish_will(session)
        session.state = SessionState.ENDED
        del self._by_key[session.key]
        self._dispatcher.forget(session)
