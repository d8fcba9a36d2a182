"""What the broker remembers of one client, whether it is connected or away. No sockets here."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from mqtt5 import Will
from msgspec import Struct

from waystation.mqtt.broker.publication import Delivery

if TYPE_CHECKING:
    from waystation.mqtt.broker.connection import Connection

FOREVER: Final = 0xFFFFFFFF
_LAST_ID: Final = 65_535


class Subscription(Struct, frozen=True):
    """One filter of a client, and how it wants what matches."""

    filter: str
    session: Session
    qos: int
    no_local: bool
    retain_as_published: bool
    id: int | None


class Session:
    """A client's subscriptions, and what is on its way to it or waits."""

    __slots__ = (
        "_last_id", "client_id", "connection", "end_timer", "expiry", "held_bytes", "inflight",
        "queue", "subscriptions", "will", "will_timer",
    )  # fmt: skip

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.connection: Connection | None = None
        self.subscriptions: dict[str, Subscription] = {}
        self.queue: deque[Delivery] = deque()
        self.inflight: dict[int, Delivery] = {}  # sent, and not acknowledged
        self.held_bytes = 0  # of both
        self.expiry = 0  # seconds that it outlives its connection
        self.will: Will | None = None
        self.will_timer: asyncio.TimerHandle | None = None
        self.end_timer: asyncio.TimerHandle | None = None
        self._last_id = 0

    def enqueue(self, delivery: Delivery) -> None:
        """Keep a message until the client can have it."""
        self.queue.append(delivery)
        self.held_bytes += delivery.publication.size

    def dequeue(self) -> Delivery:
        """The message that has waited longest."""
        delivery = self.queue.popleft()
        self.held_bytes -= delivery.publication.size
        return delivery

    def hold(self, delivery: Delivery) -> int:
        """Remember a message until it is acknowledged; gives its packet id."""
        number = self._last_id
        while True:
            number = number + 1 if number < _LAST_ID else 1
            if number not in self.inflight:
                break
        self._last_id = number
        self.inflight[number] = delivery
        self.held_bytes += delivery.publication.size
        return number

    def release(self, number: int) -> None:
        """Forget a message that was acknowledged."""
        delivery = self.inflight.pop(number, None)
        if delivery is not None:
            self.held_bytes -= delivery.publication.size

    def stop_timers(self) -> None:
        """The client is back, or nothing is left to wait for."""
        for timer in (self.will_timer, self.end_timer):
            if timer is not None:
                timer.cancel()
        self.will_timer = self.end_timer = None
