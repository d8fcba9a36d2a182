"""An MQTT 5 client that stays connected to its broker. It knows nothing of Waystation's messages.

Nothing is awaited and nothing is created per message: `BrokerConnection.publish` puts a packet with
the others of the loop's turn, acknowledgements come back as plain calls. What belongs to one
connection is in connection.py; what outlives it is here, and in subscriptions.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from mqtt5 import ConnectPacket, PublishPacket, Will
from msgspec import Struct

from waystation.errors import LocalError, quote
from waystation.mqtt.connection import BrokerConnection, MqttLimits, OnAck
from waystation.mqtt.subscriptions import Subscriptions
from waystation.net.backoff import Backoff
from waystation.net.dialer import dial, keep, within
from waystation.net.place import parse_place, place_of
from waystation.net.sockets import reason_of
from waystation.net.tasks import Tasks
from waystation.net.tls import Tls

__all__ = ["BrokerAt", "ClientOwner", "Credentials", "MqttClient", "MqttLimits", "OnAck"]

LASTING: Final = 5.0
"""A connection that held this many seconds was a good one: the next attempt need not wait long."""

_log: Final = logging.getLogger("waystation.mqtt")
_PORTS: Final = {"mqtt": 1883, "mqtts": 8883}


class BrokerAt(NamedTuple):
    """Where a broker is."""

    host: str
    port: int
    tls: bool

    @classmethod
    def parse(cls, url: str) -> BrokerAt:
        """Read a URL.

        >>> BrokerAt.parse("mqtt://broker.example"), BrokerAt.parse("mqtts://[::1]:9000").port
        (BrokerAt(host='broker.example', port=1883, tls=False), 9000)
        """
        kind, mark, place = url.partition("://") if isinstance(url, str) else ("", "", "")
        port = _PORTS.get(kind)
        place = place.rstrip("/")
        if not mark or port is None or not place:
            raise LocalError(
                f"invalid URL of a broker {quote(url)}",
                rule="MC-12",
                hint="write mqtt://host:1883, or mqtts://host:8883 for TLS",
            )
        has_port = place.rpartition(":")[2].isdigit() and not place.endswith("]")
        host, number = parse_place(place if has_port else f"{place}:{port}")
        return cls(host, number, kind == "mqtts")

    @property
    def place(self) -> str:
        """The host and the port."""
        return place_of((self.host, self.port))


class Credentials(Struct, frozen=True, kw_only=True):
    """Who we are, for the broker."""

    client_id: str
    username: str | None = None
    password: bytes | None = None


class ClientOwner(Protocol):
    """Whoever uses a client: told what happens."""

    def connected(self) -> None:
        """There is a connection."""

    def disconnected(self, detail: str) -> None:
        """The connection is gone, and what was not acknowledged with it."""

    def received(self, packets: Sequence[PublishPacket]) -> None:
        """These were published for us."""

    def settle(self) -> None:
        """What came at once has been told: every `OnAck` of it, and what was published."""

    def uncrowded(self) -> None:
        """There is room for more messages again."""

    def make_will(self) -> Will | None:
        """What the broker shall publish when the connection that opens now is lost."""


class MqttClient:
    """A client, from `start` to `stop`; in between it connects again by itself.

    Messages are published by its `connection`, which there is while it `is_open`.
    """

    def __init__(
        self,
        broker: BrokerAt,
        owner: ClientOwner,
        credentials: Credentials,
        *,
        tls: Tls | None = None,
        away: int = 0,
        limits: MqttLimits | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        self.limits = limits or MqttLimits()
        self.failure = "not connected"
        self.connections = 0  # that were open, so far
        self.subscriptions = Subscriptions()
        self.owner = owner
        self._broker = broker
        self._credentials = credentials
        self._tls = tls or (Tls() if broker.tls else None)
        self._away = away
        self._backoff = backoff or Backoff()
        self.connection: BrokerConnection | None = None  # while it is open
        self._attempt: BrokerConnection | None = None  # the newest, open or not
        self._tasks = Tasks()
        self._keeper: asyncio.Task[None] | None = None
        self._verdict: asyncio.Future[str] | None = None  # why the attempt failed, for who waits

    @property
    def place(self) -> str:
        """Where the broker is."""
        return self._broker.place

    # Starting and ending

    def start(self) -> None:
        """Connect, and stay connected."""
        if self._keeper is None:
            keeping = keep(self._connect, backoff=self._backoff)
            self._keeper = self._tasks.start(keeping, "mqtt client", endless=True)

    async def ready(self) -> None:
        """Return when there is a connection; raise what the next attempt says if there is none."""
        if self.connection is None:
            self._verdict = self._verdict or asyncio.get_running_loop().create_future()
            if failure := await asyncio.shield(self._verdict):
                raise ConnectionError(failure)

    def stop(self) -> None:
        """Say goodbye and end; the broker does not publish our will."""
        self._tasks.cancel()
        self._keeper = None
        self._backoff.reset()
        self._wake("the client was stopped")
        if self.connection is not None:
            self.connection.say_farewell()
            self.ended(self.connection, "the client was stopped")
        elif self._attempt is not None:
            self._attempt.give_up()

    async def drained(self, seconds: float) -> None:
        """Wait until the broker has acknowledged everything, but no longer than this."""
        if self.connection is not None:
            await self.connection.drained(seconds)

    async def _connect(self) -> bool:
        """Connect, and stay until the end; whether it was a good connection."""
        place = self._broker.place
        self._attempt = connection = BrokerConnection(self)
        try:
            async with within(self.limits.dial, [place]):
                await dial(lambda _: connection, [place], timeout=self.limits.dial, tls=self._tls)
                await connection.answered.wait()
            if connection.failure is not None:
                raise ConnectionError(connection.failure.detail)
        except (OSError, LocalError) as error:
            detail = reason_of(error) if isinstance(error, OSError) else str(error)
            self.failure = f"the broker at {place}: {detail.removeprefix(f'{place}: ')}"
            _log.info("%s", self.failure)
            self._wake(self.failure)
            return False
        finally:
            connection.give_up()
        loop = asyncio.get_running_loop()
        began = loop.time()
        await connection.finished.wait()
        return loop.time() - began >= LASTING

    def _wake(self, failure: str) -> None:
        """Tell who waits for a connection why there is none; "" when there is one."""
        verdict, self._verdict = self._verdict, None
        if verdict is not None:
            verdict.set_result(failure)

    # Subscribing

    def subscribe(self, filter: str, qos: int, *, no_local: bool = False) -> None:
        """Want what matches a filter, now and after every connect."""
        self.subscriptions.want(filter, qos, no_local=no_local)
        if self.connection is not None:
            self.connection.tell_changes()

    def unsubscribe(self, filter: str) -> None:
        """Want it no longer."""
        self.subscriptions.unwant(filter)
        if self.connection is not None:
            self.connection.tell_changes()

    @property
    def is_open(self) -> bool:
        """Whether the broker has let us in."""
        return self.connection is not None

    # What the connection tells

    def connect_packet(self) -> ConnectPacket:
        """Say who we are."""
        return ConnectPacket(
            self._credentials.client_id,
            username=self._credentials.username,
            password=self._credentials.password,
            clean_start=not self._away,
            session_expiry_interval=self._away,
            keep_alive=self.limits.keep_alive,
            max_packet_size=self.limits.packet,
            will=self.owner.make_will(),
        )

    def admitted(self, connection: BrokerConnection) -> None:
        """Subscribe to what is wanted, and tell who waits."""
        _log.debug("%s: the broker let us in", connection.place)
        self.connection = connection
        self.connections += 1
        self.subscriptions.start_over()
        self.owner.connected()
        self._wake("")

    def ended(self, connection: BrokerConnection, detail: str) -> None:
        """Tell the owner, if it was open; the next connection comes by itself."""
        if self.connection is connection:
            self.connection = None
            self.failure = detail
            _log.info("the connection to the broker ended: %s", detail)
            self.owner.disconnected(detail)
