"""One connection to a broker: what is on its way, what waits, and whether the broker is there.

Messages of QoS 1 that the broker has not acknowledged are as many as it allows; the rest waits
here, and `is_crowded` says when that is enough. When bytes are read and written, and how a
connection ends, is the business of net/connection.py; that there is another one after it, that of
client.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from mqtt5 import (
    ConnAckPacket,
    ConnAckReasonCode,
    DisconnectPacket,
    Packet,
    PingRespPacket,
    PubAckPacket,
    PubAckReasonCode,
    PublishPacket,
    QoS,
    SubAckPacket,
    SubscribePacket,
    UnsubAckPacket,
    UnsubscribePacket,
)
from msgspec import Struct

from waystation.core.budget import MIB
from waystation.core.outcome import Reason
from waystation.mqtt.packets import PING, Inflight, PacketReader, acknowledgement, words_of
from waystation.net.connection import Connection, ConnectionLimits, ConnectionState, Failure

if TYPE_CHECKING:
    from waystation.mqtt.client import MqttClient

OnAck: TypeAlias = Callable[[PubAckReasonCode], None]
"""Told what became of a message: the broker has it or says why not (QoS 1), or it has left this
process (QoS 0). In the order of publishing."""

_log: Final = logging.getLogger("waystation.mqtt")
_OPEN: Final = ConnectionState.OPEN
_AROUND: Final = 512  # bytes that a packet has at most beside its topic and payload
_CONNACK: Final = 0x20  # the first byte that a broker sends
_MOST_IDS: Final = 60_000  # in use at the same time, so that a free one is found soon
_MOST_WAITING: Final = 10_000  # packets, before senders have to wait
_PACKET_ROOM: Final = 1024 * 1024  # in a packet for what is not the message


class MqttLimits(Struct, frozen=True, kw_only=True):
    """Sizes and deadlines of a client; times are in seconds.

    `frame` is the largest message in bytes, in either direction. A packet that the broker has begun
    has to be complete after `finish` seconds, or later as long as 4 KiB of it arrive for each
    second. `unsent` bytes may wait before senders have to, and `budget` bytes in any case; no more
    is taken then. For a link whose owner does not read `receiver` bytes may wait (or what one peer
    sends ahead, if that is more), and `budget` for all of them; then the link ends. A link sends
    `window` messages before its peer has taken the first. A broker has `dial` seconds to let us in,
    and so does a peer to answer. `linger` is the time to write what is left when a link closes.
    After `keep_alive` seconds of silence the broker is asked for a sign of life, and after half as
    many more it is given up. A link to a peer that is not one of our nodes ends after `idle`
    seconds of silence.
    """

    frame: int = 16 * 1024 * 1024
    finish: float = 30.0
    unsent: int = 256 * 1024
    receiver: int = 8 * MIB
    budget: int = 256 * MIB
    window: int = 256
    dial: float = 5.0
    linger: float = 5.0
    keep_alive: int = 30
    idle: float = 300.0

    @property
    def packet(self) -> int:
        """The largest packet that a client takes, in bytes."""
        return self.frame + _PACKET_ROOM

    def of_connections(self) -> ConnectionLimits:
        """The part that a connection needs; `dial` is the deadline for the broker's answer."""
        return ConnectionLimits(
            high_water=self.unsent,
            first_byte=None,
            frame=self.finish,
            linger=self.linger,
            dead=2.0 * self.keep_alive,
        )


class BrokerConnection(Connection):
    """A connection to a broker, open from its CONNACK on."""

    __slots__ = (
        "_client", "_drained", "_heard", "_inflight", "_keep_alive", "_largest", "_limits",
        "_owner", "_qos", "_reader", "_telling", "_unacknowledged", "_untold", "_waiting",
        "_waiting_bytes", "_window", "_written_before", "answered", "finished",
        "is_crowded",
    )  # fmt: skip

    def __init__(self, client: MqttClient) -> None:
        limits = client.limits
        super().__init__(limits.of_connections())
        self.answered = asyncio.Event()  # the broker has let us in, or the connection is gone
        self.finished = asyncio.Event()  # the connection is gone
        self.is_crowded = False  # senders have to wait
        self._limits = limits
        self._client = client
        self._owner = client.owner
        self._reader = PacketReader(limits.packet)
        self._inflight: Inflight[Any] = Inflight()  # each an OnAck, or the filters asked for
        self._unacknowledged = 0  # messages among them
        self._waiting: deque[bytes] = deque()  # packets, until the broker allows more
        self._waiting_bytes = 0
        self._untold: deque[OnAck | None] = deque()  # of messages that have not left this process
        self._window = 0  # messages that the broker allows before it has acknowledged the first
        self._largest: int | None = None  # packet that the broker takes
        self._qos = 0  # the best that the broker knows
        self._telling = False  # the broker is told of changed subscriptions in this turn
        self._drained: asyncio.Event | None = None
        self._keep_alive = limits.keep_alive  # seconds
        self._heard = 0.0  # when the broker last said something
        self._written_before = 0  # the last beat, in bytes

    # Subscribing

    def tell_changes(self) -> None:
        """Tell the broker of changed subscriptions at the end of this turn."""
        if not self._telling:
            self._telling = True
            self._loop.call_soon(self._tell_changes)

    def _tell_changes(self) -> None:
        self._telling = False
        added, removed = self._client.subscriptions.take_changes()
        for names in removed:
            _log.debug("%s: unsubscribing from %s", self.place, names)
            self.write(UnsubscribePacket(self._inflight.hold(names), names).write())
        for filters in added:
            names = [asked.pattern for asked in filters]
            _log.debug("%s: subscribing to %s", self.place, names)
            self.write(SubscribePacket(self._inflight.hold(names), filters).write())

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
        on_ack: OnAck | None = None,
    ) -> Reason | None:
        """Publish with the others of this turn; says why not, if it cannot be."""
        if self.state is not _OPEN:
            return Reason.TRANSPORT_DOWN
        if not self.fits(len(payload) + len(topic)):
            return Reason.TOO_LARGE
        if len(self._inflight) >= _MOST_IDS or (self.is_crowded and self._is_full()):
            return Reason.QUEUE_FULL
        is_acknowledged = qos and self._qos
        packet_id = self._inflight.hold(on_ack) if is_acknowledged else None
        try:
            packet = PublishPacket(
                topic,
                payload,
                qos=QoS.AT_LEAST_ONCE if is_acknowledged else QoS.AT_MOST_ONCE,
                packet_id=packet_id,
                message_expiry_interval=expiry,
                response_topic=response_topic,
                correlation_data=correlation,
                user_properties=properties,
            ).write()
        except ValueError:  # something in it that MQTT cannot say
            self._inflight.pop(packet_id or 0, None)
            return Reason.MALFORMED
        if not is_acknowledged:
            self._untold.append(on_ack)
            self.give(packet)
        elif self._waiting or self._unacknowledged >= self._window:
            self._waiting.append(packet)
            self._waiting_bytes += len(packet)
            if self._waiting_bytes > self._limits.unsent or len(self._waiting) > _MOST_WAITING:
                self.is_crowded = True
        else:
            self._send(packet)
        return None

    def _is_full(self) -> bool:
        """Whether nothing more can wait, whoever sends it: the broker does not keep up."""
        return self._waiting_bytes + self.unsent > self._limits.budget

    def fits(self, size: int) -> bool:
        """Whether the broker takes a payload and a topic of this many bytes together."""
        return self._largest is None or size + _AROUND <= self._largest

    async def drained(self, seconds: float) -> None:
        """Wait until the broker has acknowledged everything, but no longer than this."""
        if self._has_work():
            self._drained = self._drained or asyncio.Event()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._drained.wait(), seconds)

    def give_up(self) -> None:
        """End the connection if it is not open yet."""
        if self.state < ConnectionState.OPEN:
            self.abort()

    def say_farewell(self) -> None:
        """Leave the broker in order, so that it does not publish our will."""
        self.write(DisconnectPacket().write())
        self.close()

    def _send(self, packet: bytes) -> None:
        self._unacknowledged += 1
        self.give(packet, 0)

    def _send_waiting(self) -> None:
        """Publish what waits, as far as the broker allows."""
        waiting = self._waiting
        while waiting and self._unacknowledged < self._window:
            packet = waiting.popleft()
            self._waiting_bytes -= len(packet)
            self._send(packet)

    def _has_work(self) -> bool:
        return bool(self._waiting or self._untold or self._unacknowledged)

    def _relax(self) -> None:
        """Let senders go on if there is room, and tell who waits for the end of the work."""
        if (
            self.is_crowded
            and not self.holds_senders_back
            and self._waiting_bytes <= self._limits.unsent // 4
        ):
            self.is_crowded = False
            self._owner.uncrowded()
        if self._drained is not None and not self._has_work():
            self._drained.set()

    # What the connection tells

    def on_open(self) -> None:
        """Say who we are."""
        self.write(self._client.connect_packet().write())

    def on_data(self, data: bytes) -> None:
        """Hand in what the broker sent."""
        if self.is_greeting and not self._reader.unfinished and data[0] != _CONNACK:
            self.fail(Reason.MALFORMED, "the answer is not that of an MQTT 5 broker")
            return
        self._heard = self._loop.time()
        published = self._serve(self._reader.feed(data))
        if published and self.is_open:
            self._owner.received(published)
        self._owner.settle()
        # Only now, so that answers to what was received are written together with this.
        acknowledgements = [acknowledgement(p.packet_id) for p in published if p.packet_id]
        if acknowledgements:
            self.write(b"".join(acknowledgements))
        if self._waiting:
            self._send_waiting()
        self._relax()
        if self._reader.error is not None:
            self.fail(Reason.MALFORMED, str(self._reader.error))

    @property
    def is_with_stranger(self) -> bool:
        """Always: it is a broker."""
        return True

    def count_unfinished(self) -> int:
        """What is there of a packet."""
        return self._reader.held

    def on_crowded(self) -> None:
        """Let senders wait."""
        self.is_crowded = True

    def on_clear(self) -> None:
        """Let senders go on, unless too much waits for the broker's acknowledgements."""
        self._relax()

    def on_sent(self, messages: int | None) -> None:
        """Tell that messages of QoS 0, which are not acknowledged, have left this process."""
        untold = self._untold
        for _ in range(len(untold) if messages is None else messages):
            on_ack = untold.popleft()
            if on_ack is not None:
                on_ack(PubAckReasonCode.SUCCESS)
        self._owner.settle()
        self._relax()

    def on_closed(self, failure: Failure | None) -> None:
        """Tell that the connection is gone."""
        for event in (self.answered, self.finished, self._drained):
            if event is not None:
                event.set()
        detail = "the broker closed the connection" if failure is None else failure.detail
        self._client.ended(self, detail)

    # Packets

    def _serve(self, packets: Sequence[Packet]) -> list[PublishPacket]:
        """Do what packets ask for; returns the messages among them."""
        published: list[PublishPacket] = []
        for packet in packets:
            if type(packet) is PublishPacket:
                published.append(packet)
            elif type(packet) is not PubAckPacket:
                self._serve_other(packet)
            elif packet.packet_id in self._inflight:
                on_ack = self._inflight.pop(packet.packet_id)
                self._unacknowledged -= 1
                if on_ack is not None:
                    on_ack(packet.reason_code)
        return published

    def _serve_other(self, packet: Packet) -> None:
        if isinstance(packet, ConnAckPacket):
            self._admitted(packet)
        elif isinstance(packet, SubAckPacket):
            names = self._inflight.pop(packet.packet_id, ())
            self._client.subscriptions.granted(names, packet.reason_codes)
        elif isinstance(packet, UnsubAckPacket):
            self._inflight.pop(packet.packet_id, None)
        elif isinstance(packet, DisconnectPacket):
            words = packet.reason_str or words_of(packet.reason_code)
            self.fail(Reason.TRANSPORT_DOWN, f"the broker disconnected us: {words}")
        elif not isinstance(packet, PingRespPacket):
            self.fail(Reason.MALFORMED, f"the broker sent {type(packet).__name__}")

    def _admitted(self, packet: ConnAckPacket) -> None:
        if not self.is_greeting:
            self.fail(Reason.MALFORMED, "the broker sent CONNACK twice")
            return
        if packet.reason_code is not ConnAckReasonCode.SUCCESS:
            words = packet.reason_str or words_of(packet.reason_code)
            self.fail(Reason.REFUSED, f"the broker refused: {words}")
            return
        self._window = packet.receive_max
        self._largest = packet.max_packet_size
        self._qos = int(packet.max_qos)
        self.peer_spoke()
        if packet.server_keep_alive is not None:
            self._keep_alive = packet.server_keep_alive
        if self._keep_alive:
            self.start_timer(self._keep_alive / 2, self._beat)
        self._client.admitted(self)
        self.tell_changes()
        self.answered.set()

    def _beat(self) -> None:
        """See that the broker is there, and let it see that we are."""
        interval = self._keep_alive / 2
        silence = self._loop.time() - self._heard
        if silence >= 3 * interval:
            self.fail(Reason.TRANSPORT_DOWN, f"the broker said nothing for {silence:.1f} s")
            return
        if silence >= interval or self.written == self._written_before:
            self.write(PING)
        self._written_before = self.written
        self.start_timer(interval, self._beat)
