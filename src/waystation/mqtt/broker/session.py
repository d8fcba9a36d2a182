"""What the broker knows of one client, connected or away. No sockets here.

A session is connected while it has a connection, and otherwise away, until it expires or its client
starts clean. While it is away, its will may be due after a delay, once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final, NamedTuple

from mqtt5 import Will
from msgspec import Struct

from waystation.core.who import NOBODY, Who
from waystation.mqtt.broker.publication import Delivery, size_of
from waystation.mqtt.packets import Inflight

if TYPE_CHECKING:
    from waystation.mqtt.broker.connection import ClientConnection

NEVER: Final = 0xFFFFFFFF
"""The expiry of a session that does not expire."""


class SessionKey(NamedTuple):
    """What a session belongs to: the same client id of another user is another session.

    Without a password, the user is who the client's certificate says, if it has one.
    """

    user: str | None
    client_id: str


class Subscription(Struct, frozen=True):
    """One filter of a client, and how it wants what matches.

    With a `group`, each message goes to one of those who subscribed to the same in that group.
    """

    filter: str  # as the client wrote it
    session: Session
    qos: int
    no_local: bool
    retain_as_published: bool
    id: int | None
    pattern: str = ""  # of topics
    group: str = ""

    @property
    def key(self) -> str:
        """What it is known by among those with the same pattern."""
        return f"{self.group}/{self.session.name}" if self.group else self.session.name


class Session:
    """A client's subscriptions, and the messages that are on their way to it or wait for it."""

    __slots__ = (
        "connection", "expiry", "expiry_timer", "held_bytes", "inflight", "key", "name", "queue",
        "subscriptions", "unrepeated", "who", "will", "will_timer",
    )  # fmt: skip

    def __init__(self, key: SessionKey) -> None:
        self.key = key
        self.name = repr(tuple(key))  # among the keys of tries
        self.connection: ClientConnection | None = None  # while it is connected
        self.who: Who = NOBODY  # what its client has proven, the last time
        self.subscriptions: dict[str, Subscription] = {}
        self.queue: deque[Delivery] = deque()
        self.inflight: Inflight[Delivery] = Inflight()  # sent, and not acknowledged
        self.unrepeated: OrderedDict[int, None] = OrderedDict()  # not yet over this connection
        self.held_bytes = 0  # of both
        self.expiry = 0  # seconds that it outlives its connection
        self.will: Will | None = None
        self.will_timer: asyncio.TimerHandle | None = None
        self.expiry_timer: asyncio.TimerHandle | None = None

    @property
    def size(self) -> int:
        """How many bytes are held for the client, those that it is slow to read included."""
        unsent = 0 if self.connection is None else self.connection.unsent
        return self.held_bytes + unsent + self.will_size

    @property
    def will_size(self) -> int:
        """How many bytes of that are its will."""
        will = self.will
        return 0 if will is None else size_of(will, will.payload or b"", will.topic)

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
        self.held_bytes += delivery.publication.size
        return self.inflight.hold(delivery)

    def release(self, number: int) -> None:
        """Forget a message that was acknowledged."""
        delivery = self.inflight.pop(number, None)
        if delivery is not None:
            self.held_bytes -= delivery.publication.size
            self.unrepeated.pop(number, None)

    def stop_timers(self) -> None:
        """Let neither the will nor the expiry happen later."""
        for timer in (self.will_timer, self.expiry_timer):
            if timer is not None:
                timer.cancel()
        self.will_timer = self.expiry_timer = None
