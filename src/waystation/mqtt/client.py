"""An MQTT 5 client for a transport: one connection to a broker, kept; no word about our messages.

Nothing is awaited and nothing is created per message: `publish` puts a packet with the others of
the loop's turn, acknowledgements come back as plain calls. Messages of QoS 1 that the broker has
not acknowledged are as many as it allows; the rest waits here, and `is_crowded` says when that is
enough. The client wants a set of subscriptions and tells the broker of it after every connect, and
of each change; what it wants and what it told are compared, not counted, so they cannot drift
(MC-12).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol, cast

from mqtt5 import (
    ConnAckPacket,
    ConnAckReasonCode,
    ConnectPacket,
    DisconnectPacket,
    Packet,
    PingRespPacket,
    PubAckPacket,
    PubAckReasonCode,
    PublishPacket,
    QoS,
    RetainHandling,
    SubAckPacket,
    SubAckReasonCode,
    SubscribePacket,
    TopicFilter,
    UnsubAckPacket,
    UnsubscribePacket,
    Will,
)
from msgspec import Struct

from waystation.core.outcome import Reason
from waystation.errors import LocalError, quote
from waystation.mqtt.packets import PING, PacketReader, acknowledgement
from waystation.net.backoff import pause_before
from waystation.net.place import parse_place, place_of
from waystation.net.sockets import prepare, reason_of
from waystation.net.tls import Tls

BATCH: Final = 64 * 1024
"""So many bytes are written without waiting for the end of the loop's turn."""

FILTERS: Final = 200
"""So many filters at the most go into one packet."""

LASTING: Final = 5.0
"""A connection that held so many seconds was a good one: the next attempt need not wait long."""

REFUSED: Final = 0x80
"""From here on a reason code says that something did not happen. (The library's codes are numbers,
but have no order of their own.)"""

_ROOM: Final = 1024 * 1024  # in a packet for all that is not the message
_CONNACK: Final = 0x20  # the first byte that a broker sends
_LAST_ID: Final = 65_535
_MOST_IDS: Final = 60_000  # in use at the same time, so that a free one is found soon
_MOST_WAITING: Final = 10_000  # packets, before senders have to wait
_AROUND: Final = 512  # bytes at the most that a packet has beside its topic and payload
_QUICKACK: Final[int | None] = getattr(socket, "TCP_QUICKACK", None)  # Linux has it
_LOG: Final = logging.getLogger("waystation.mqtt")
_PORTS: Final = {"mqtt": 1883, "mqtts": 8883}


class MqttLimits(Struct, frozen=True, kw_only=True):
    """How much a client takes, and how long it waits.

    `frame` bytes is the largest message, in either direction. `unsent` bytes may wait before
    senders have to, and of `window` messages to one peer the oldest must have been taken there
    before another is sent. A broker has `dial` seconds to let us in, and so does a peer to answer.
    `linger` is the time to write what is left when a link closes. After `keep_alive` seconds of
    silence the broker is asked whether it is there, and after half as many more it is given up.
    `idle` seconds of silence end a link to a peer of another make, which never says goodbye.
    """

    frame: int = 16 * 1024 * 1024
    unsent: int = 256 * 1024
    window: int = 256
    dial: float = 5.0
    linger: float = 5.0
    keep_alive: int = 30
    idle: float = 300.0


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
                f"{quote(url)} is no broker",
                rule="MC-12",
                hint="write mqtt://host:1883, or mqtts://host:8883 for TLS",
            )
        has_port = place.rpartition(":")[2].isdigit() and not place.endswith("]")
        host, number = parse_place(place if has_port else f"{place}:{port}")
        return cls(host, number, kind == "mqtts")


class Acknowledged(Protocol):
    """Whoever wants to know what became of what it published with QoS 1."""

    def acknowledged(self, code: PubAckReasonCode) -> None:
        """The broker has it, or says why not; in the order of publishing."""
        ...


class ClientOwner(Protocol):
    """Whoever uses a client: told what happens."""

    def connected(self) -> None:
        """There is a connection; what is wanted is being subscribed to."""
        ...

    def disconnected(self, detail: str) -> None:
        """The connection is gone, and what was not acknowledged with it."""
        ...

    def received(self, packets: Sequence[PublishPacket]) -> None:
        """These were published for us."""
        ...

    def settle(self) -> None:
        """All acknowledgements of this turn have been told."""
        ...

    def uncrowded(self) -> None:
        """There is room again."""
        ...

    def make_will(self) -> Will | None:
        """What the broker shall publish when the connection that opens now is lost."""
        ...


class Credentials(Struct, frozen=True, kw_only=True):
    """Who we are, for the broker."""

    client_id: str
    username: str | None = None
    password: bytes | None = None


class _Wanted(NamedTuple):
    qos: QoS
    no_local: bool


Answer = Callable[[SubAckReasonCode], None]


class _Wire(asyncio.Protocol):
    """One connection; a client has one after the other, and hears only of the newest."""

    __slots__ = ("_client",)

    def __init__(self, client: MqttClient) -> None:
        self._client = client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._client.opened(self, cast("asyncio.Transport", transport))

    def data_received(self, data: bytes) -> None:
        if self._client.wire is self:
            self._client.heard(data)

    def pause_writing(self) -> None:
        if self._client.wire is self:
            self._client.pause()

    def resume_writing(self) -> None:
        if self._client.wire is self:
            self._client.resume()

    def connection_lost(self, error: Exception | None) -> None:
        if self._client.wire is self:
            self._client.lost(error)


class MqttClient:
    """A client, from `start` to `stop`; in between it connects again by itself."""

    def __init__(
        self,
        broker: BrokerAt,
        owner: ClientOwner,
        credentials: Credentials,
        *,
        tls: Tls | None = None,
        away: int = 0,
        limits: MqttLimits | None = None,
        wait: Callable[[int], float] = pause_before,
    ) -> None:
        self.limits = limits or MqttLimits()
        self.is_open = False
        self.is_crowded = False  # more waits than is good
        self.failure = "it is not connected"
        self.connections = 0  # so many there were
        self._broker = broker
        self._owner = owner
        self._credentials = credentials
        self._tls = tls or (Tls() if broker.tls else None)
        self._away = away
        self._wait = wait
        self._keeper: asyncio.Task[None] | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._wanted: dict[str, _Wanted] = {}
        self._answers: dict[str, list[Answer]] = {}
        self._drained: asyncio.Future[None] | None = None
        self._largest_here = self.limits.frame + _ROOM
        self._forget()

    def _forget(self) -> None:
        """Everything that belongs to one connection, as it is before there is one."""
        self.wire: _Wire | None = None
        self._transport: asyncio.Transport | None = None
        self._socket: Any = None
        self._reader = PacketReader(self._largest_here)
        self._ended: asyncio.Future[str] | None = None
        self._greeted: asyncio.Future[None] | None = None
        self._told: set[str] = set()  # filters that the broker knows
        self._granted: dict[str, SubAckReasonCode] = {}
        self._changed: dict[str, None] = {}  # filters to be told of at the end of this turn
        self._frames: list[bytes] = []
        self._size = 0  # of those
        self._turn = 0  # bytes that were published in this turn of the loop
        self._flush_due = False
        self._paused = False
        self._last_id = 0
        self._inflight: dict[int, Any] = {}  # by packet id: who wants to know, or the filters
        self._unacknowledged = 0  # messages among them
        self._window = _LAST_ID
        self._largest: int | None = None
        self._qos = 2
        self._waiting: deque[bytes] = deque()  # packets, until the broker allows more
        self._waiting_bytes = 0
        self._heard = self._said = True
        self._beat: asyncio.TimerHandle | None = None

    # Starting and ending

    def start(self) -> None:
        """Connect, and stay connected."""
        if self._keeper is None:
            loop = asyncio.get_running_loop()
            self._keeper = loop.create_task(self._keep(), name="waystation mqtt client")

    async def ready(self) -> None:
        """Return when there is a connection; raise what the next attempt says if there is none."""
        if not self.is_open:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def stop(self) -> None:
        """Say goodbye and end; the broker does not do our will."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
        self._wake(ConnectionError("the client was stopped"))
        transport = self._transport
        if transport is not None and not transport.is_closing():
            self._frames.append(DisconnectPacket().write())
            self._write()
            transport.close()
            self.lost(None)

    async def drained(self, seconds: float) -> None:
        """Wait until the broker has acknowledged everything, but no longer than this."""
        if self.is_open and self._has_work():
            if self._drained is None:
                self._drained = asyncio.get_running_loop().create_future()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._drained), seconds)

    async def _keep(self) -> None:
        attempt = 0
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout(self.limits.dial):
                    ended = await self._connect()
            except (OSError, ValueError) as error:  # the latter from names that no resolver takes
                self._fail(error)
            else:
                began = loop.time()
                self.failure = await asyncio.shield(ended)
                if loop.time() - began >= LASTING:
                    attempt = 0
            attempt += 1
            await asyncio.sleep(self._wait(attempt))

    async def _connect(self) -> asyncio.Future[str]:
        """Open a connection, be let in by the broker, and give the future of its end."""
        loop = asyncio.get_running_loop()
        tls = self._tls
        self._forget()
        self._ended = ended = loop.create_future()
        self._greeted = greeted = loop.create_future()
        host = self._broker.host
        try:
            await loop.create_connection(
                lambda: _Wire(self),
                host,
                self._broker.port,
                ssl=tls.for_dialler() if tls else None,
                server_hostname=(tls.name or host) if tls else None,
            )
            await greeted
        except BaseException:
            if self._greeted is greeted and self._transport is not None:
                self._transport.abort()
            if greeted.done() and not greeted.cancelled():
                greeted.exception()
            raise
        return ended

    def _fail(self, error: Exception) -> None:
        place = place_of((self._broker.host, self._broker.port))
        if isinstance(error, TimeoutError):
            detail = f"no answer within {self.limits.dial:g} s"
        elif isinstance(error, ssl.SSLError) or not isinstance(error, OSError):
            detail = str(error)
        else:
            detail = reason_of(error)
        self.failure = f"the broker at {place}: {detail}"
        _LOG.info("%s", self.failure)
        self._wake(ConnectionError(self.failure))

    def _wake(self, error: OSError | None) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)

    # Subscriptions

    def subscribe(
        self, filter: str, qos: int, *, no_local: bool = False, answer: Answer | None = None
    ) -> None:
        """Want what matches a filter, now and after every connect; `answer` hears once."""
        self._wanted[filter] = _Wanted(QoS(qos), no_local)
        granted = self._granted.get(filter)
        if answer is not None:
            if granted is not None and filter in self._told:
                answer(granted)
            else:
                self._answers.setdefault(filter, []).append(answer)
        self._change(filter)

    def unsubscribe(self, filter: str) -> None:
        """Want it no longer."""
        if self._wanted.pop(filter, None) is not None:
            self._answers.pop(filter, None)
            self._change(filter)

    def _change(self, filter: str) -> None:
        if self.is_open:
            self._changed[filter] = None
            self.schedule()

    def _tell_changes(self) -> None:
        """Tell the broker what is wanted now and was not before, and the other way round."""
        changed, self._changed = self._changed, {}
        new = [f for f in changed if f in self._wanted and f not in self._told]
        old = [f for f in changed if f not in self._wanted and f in self._told]
        for batch in _batches(old):
            self._told.difference_update(batch)
            for filter in batch:
                self._granted.pop(filter, None)
            self._put(UnsubscribePacket(self._hold(batch), batch).write())
        for batch in _batches(new):
            self._told.update(batch)
            filters = [
                TopicFilter(
                    filter,
                    max_qos=self._wanted[filter].qos,
                    no_local=self._wanted[filter].no_local,
                    retain_handling=RetainHandling.SEND_IF_SUBSCRIPTION_NOT_EXISTS,
                )
                for filter in batch
            ]
            self._put(SubscribePacket(self._hold(batch), filters).write())

    def _subscribed(self, packet: SubAckPacket) -> None:
        batch = self._inflight.pop(packet.packet_id, None)
        if not isinstance(batch, list):
            return
        for filter, code in zip(batch, packet.reason_codes, strict=False):
            if int(code) >= REFUSED:
                _LOG.warning("the broker refused the filter %r: %s", filter, code.name)
            self._granted[filter] = code
            for answer in self._answers.pop(filter, ()):
                answer(code)

    # Publishing

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int,
        *,
        expiry: int | None = None,
        response_topic: str | None = None,
        correlation: bytes | None = None,
        properties: list[tuple[str, str]] | None = None,
        whose: Acknowledged | None = None,
    ) -> Reason | None:
        """Publish with the others of this turn; says why not, if it cannot be."""
        if not self.is_open:
            return Reason.TRANSPORT_DOWN
        size = len(payload)
        if not self.fits(size + len(topic)):
            return Reason.TOO_LARGE
        if len(self._inflight) >= _MOST_IDS:
            return Reason.QUEUE_FULL
        asking = qos and self._qos
        packet_id = self._hold(whose) if asking else None
        try:
            packet = PublishPacket(
                topic,
                payload,
                qos=QoS.AT_LEAST_ONCE if asking else QoS.AT_MOST_ONCE,
                packet_id=packet_id,
                message_expiry_interval=expiry,
                response_topic=response_topic,
                correlation_data=correlation,
                user_properties=properties,
            ).write()
        except ValueError:  # something in it that MQTT cannot say
            if packet_id is not None:
                del self._inflight[packet_id]
            return Reason.MALFORMED
        self._turn += size
        if not asking:
            self._put(packet)
        elif self._waiting or self._unacknowledged >= self._window:
            self._waiting.append(packet)
            self._waiting_bytes += len(packet)
        else:
            self._unacknowledged += 1
            self._put(packet)
        limits = self.limits
        if not self.is_crowded and (
            self._turn > limits.unsent
            or self._waiting_bytes > limits.unsent
            or len(self._waiting) > _MOST_WAITING
        ):
            self.is_crowded = True
        self.schedule()
        return None

    def fits(self, size: int) -> bool:
        """Whether the broker takes a packet with a payload and a topic of so many bytes."""
        return self._largest is None or size + _AROUND <= self._largest

    @property
    def acknowledges(self) -> bool:
        """Whether this broker knows QoS 1."""
        return self._qos > 0

    @property
    def is_written(self) -> bool:
        """Whether the system has taken everything so far."""
        transport = self._transport
        return not self._frames and transport is not None and not transport.get_write_buffer_size()

    def _hold(self, what: Any) -> int:
        """Remember something by a packet id until the broker answers."""
        inflight = self._inflight
        number = self._last_id
        while True:
            number = number + 1 if number < _LAST_ID else 1
            if number not in inflight:
                break
        self._last_id = number
        inflight[number] = what
        return number

    def _acknowledged(self, packet: PubAckPacket) -> None:
        packet_id = packet.packet_id
        if packet_id not in self._inflight:
            return
        whose = self._inflight.pop(packet_id)
        self._unacknowledged -= 1
        if whose is not None:
            whose.acknowledged(packet.reason_code)

    def _go_on(self) -> None:
        """Publish what waits, as far as the broker allows."""
        waiting = self._waiting
        while waiting and self._unacknowledged < self._window and self._size < BATCH:
            packet = waiting.popleft()
            self._waiting_bytes -= len(packet)
            self._unacknowledged += 1
            self._put(packet)
        if waiting and self._unacknowledged < self._window:
            self.schedule()

    def _has_work(self) -> bool:
        return bool(self._waiting or self._frames or self._unacknowledged)

    # What the connection tells

    def opened(self, wire: _Wire, transport: asyncio.Transport) -> None:
        """Say who we are."""
        self.wire = wire
        self._transport = transport
        self._socket = transport.get_extra_info("socket")
        prepare(self._socket, 2.0 * self.limits.keep_alive)
        unsent = self.limits.unsent
        self._transport.set_write_buffer_limits(high=unsent, low=unsent // 4)
        credentials = self._credentials
        self._transport.write(
            ConnectPacket(
                credentials.client_id,
                username=credentials.username,
                password=credentials.password,
                clean_start=not self._away,
                session_expiry_interval=self._away,
                keep_alive=self.limits.keep_alive,
                max_packet_size=self._largest_here,
                will=self._owner.make_will(),
            ).write()
        )

    def heard(self, data: bytes) -> None:
        """Hand in what the broker sent."""
        if not self.is_open and not self._reader.unfinished and data[0] != _CONNACK:
            self._end("what answers there is no broker of MQTT 5")
            return
        self._heard = True
        self._confirm()
        published = self._serve_all(self._reader.feed(data))
        self._owner.settle()
        if published and self.is_open:
            self._owner.received(published)
        if self._waiting:
            self._go_on()
        if self._frames:
            self.schedule()
        self._relax()
        if self._reader.error is not None:
            self._end(str(self._reader.error))

    def _serve_all(self, packets: Sequence[Packet]) -> list[PublishPacket]:
        """Do what packets ask for; the messages among them are confirmed, and given back."""
        published: list[PublishPacket] = []
        confirmed: list[bytes] = []
        for packet in packets:
            if type(packet) is PublishPacket:
                published.append(packet)
                packet_id = packet.packet_id
                if packet_id is not None:
                    confirmed.append(acknowledgement(packet_id))
            elif type(packet) is PubAckPacket:
                self._acknowledged(packet)
            else:
                self._serve(packet)
        if confirmed:
            self._put(b"".join(confirmed))
        return published

    def _confirm(self) -> None:
        """Have the system confirm at once what came.

        Mosquitto by default holds back a small packet until the one before it is confirmed, and the
        system by default waits 40 ms for something to send along with that.
        """
        if self._socket is not None and _QUICKACK is not None:
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)

    def pause(self) -> None:
        """Note that the broker does not keep up."""
        self._paused = self.is_crowded = True

    def resume(self) -> None:
        """Take more again."""
        self._paused = False
        self._relax()

    def lost(self, error: Exception | None) -> None:
        """Forget the connection; the next one comes by itself."""
        detail = "the broker closed" if error is None else f"{type(error).__name__}: {error}"
        if self._beat is not None:
            self._beat.cancel()
        ended, greeted, was_open = self._ended, self._greeted, self.is_open
        self.is_open = self.is_crowded = False
        self.wire = self._transport = None
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None
        if greeted is not None and not greeted.done():
            greeted.set_exception(ConnectionError(detail))
        if ended is not None:
            if not ended.done():
                ended.set_result(detail)
            detail = ended.result()
        self.failure = detail
        if was_open:
            _LOG.info("the connection to the broker ended: %s", detail)
            self._owner.disconnected(detail)

    # Packets other than messages

    def _serve(self, packet: object) -> None:
        if isinstance(packet, ConnAckPacket):
            self._let_in(packet)
        elif isinstance(packet, SubAckPacket):
            self._subscribed(packet)
        elif isinstance(packet, UnsubAckPacket):
            self._inflight.pop(packet.packet_id, None)
        elif isinstance(packet, DisconnectPacket):
            words = packet.reason_str or packet.reason_code.name.lower().replace("_", " ")
            self._end(f"the broker ended it: {words}")
        elif not isinstance(packet, PingRespPacket):
            self._end(f"the broker sent a {type(packet).__name__}")

    def _let_in(self, packet: ConnAckPacket) -> None:
        greeted = self._greeted
        if greeted is None or greeted.done():
            self._end("the broker answered twice")
            return
        if packet.reason_code is not ConnAckReasonCode.SUCCESS:
            words = packet.reason_str or packet.reason_code.name.lower().replace("_", " ")
            greeted.set_exception(ConnectionRefusedError(None, f"it refused: {words}"))
            return
        self._window = packet.receive_max
        self._largest = packet.max_packet_size
        self._qos = int(packet.max_qos)
        self.is_open = True
        self.connections += 1
        greeted.set_result(None)
        beat = packet.server_keep_alive
        self._watch(self.limits.keep_alive if beat is None else beat)
        self._changed = dict.fromkeys(self._wanted)
        self.schedule()
        self._owner.connected()
        self._wake(None)

    def _watch(self, seconds: float) -> None:
        """See that the broker is there, and let it see the same of us."""
        if seconds > 0:
            loop = asyncio.get_running_loop()
            self._heard = self._said = True
            self._beat = loop.call_later(seconds / 2, self._look, seconds / 2, 0)

    def _look(self, seconds: float, silence: int) -> None:
        silence = 0 if self._heard else silence + 1
        if silence >= 3:
            self._end(f"the broker said nothing for {silence * seconds:g} s")
            return
        if silence or not self._said:
            self._put(PING)
            self.schedule()
        self._heard = self._said = False
        loop = asyncio.get_running_loop()
        self._beat = loop.call_later(seconds, self._look, seconds, silence)

    def _end(self, detail: str) -> None:
        """End the connection, for a reason of ours."""
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(detail)
        if self._greeted is not None and not self._greeted.done():
            self._greeted.set_exception(ConnectionError(detail))
        if self._transport is not None:
            self._transport.abort()

    # Writing

    def _put(self, data: bytes) -> None:
        self._frames.append(data)
        self._size += len(data)
        if self._size >= BATCH:
            self._write()

    def schedule(self) -> None:
        """Write, and let the owner settle, at the end of this turn."""
        if not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        self._turn = 0
        if not self.is_open:
            return
        if self._changed:
            self._tell_changes()
        if self._waiting:
            self._go_on()
        self._write()
        self._owner.settle()
        self._relax()

    def _write(self) -> None:
        frames, self._frames = self._frames, []
        self._size = 0
        transport = self._transport
        if frames and transport is not None and not transport.is_closing():
            self._said = True
            transport.write(frames[0] if len(frames) == 1 else b"".join(frames))

    def _relax(self) -> None:
        """Take more again, if there is room; and tell who waits for the end of the work."""
        quiet = not self._paused and not self._turn
        if self.is_crowded and quiet and self._waiting_bytes <= self.limits.unsent // 4:
            self.is_crowded = False
            self._owner.uncrowded()
        if self._drained is not None and not self._has_work():
            if not self._drained.done():
                self._drained.set_result(None)
            self._drained = None


def _batches(filters: Iterable[str]) -> Iterable[list[str]]:
    rest = iter(filters)
    while batch := list(islice(rest, FILTERS)):
        yield batch
