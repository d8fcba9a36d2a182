"""One client's connection: bytes to packets, and packets to what the client asks for.

Who gets a message is decided in dispatch.py, who is let in in server.py. When bytes are read and
written, and how a connection ends, is the business of net/connection.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from mqtt5 import (
    ConnectPacket,
    DisconnectPacket,
    DisconnectReasonCode,
    Packet,
    PingReqPacket,
    PubAckPacket,
    PubAckReasonCode,
    PublishPacket,
    RetainHandling,
    SubAckPacket,
    SubAckReasonCode,
    SubscribePacket,
    UnsubAckPacket,
    UnsubAckReasonCode,
    UnsubscribePacket,
)

from waystation.core.grants import Action
from waystation.core.who import NOBODY, Who
from waystation.mqtt.broker.publication import Delivery, Publication
from waystation.mqtt.broker.session import Session, Subscription
from waystation.mqtt.broker.topics import is_filter, is_topic, split_share
from waystation.mqtt.packets import PONG, PacketReader, acknowledgement, words_of
from waystation.net.connection import BATCH, Connection, Failure
from waystation.net.held import FREE
from waystation.net.tls import secured

if TYPE_CHECKING:
    from waystation.mqtt.broker.server import Broker

_CONNECT: Final = 0x10
_OLD_PROTOCOLS: Final = (b"\x00\x04MQTT\x03", b"\x00\x04MQTT\x04", b"\x00\x06MQIsdp\x03")
_OLD_REFUSAL: Final = b"\x20\x02\x00\x01"
"""What clients of MQTT 3 understand: this version is not supported."""

_GRANTED: Final = (
    SubAckReasonCode.GRANTED_QOS_AT_MOST_ONCE,
    SubAckReasonCode.GRANTED_QOS_AT_LEAST_ONCE,
)
_ALWAYS: Final = RetainHandling.SEND_ALWAYS
_IF_NEW: Final = RetainHandling.SEND_IF_SUBSCRIPTION_NOT_EXISTS
_Code = DisconnectReasonCode
_WRONG: Final = {
    "Topic alias must be set if topic is empty": _Code.PROTOCOL_ERROR,
    "Topic alias must be != 0": _Code.TOPIC_ALIAS_INVALID,
    "Subscription ID must be != 0": _Code.PROTOCOL_ERROR,
}
"""What the library refuses, though it can be read: the standard has other codes for these."""


class Admission(Enum):
    """How far a client has come; only an admitted one has a session."""

    AWAITING_CONNECT = "it has not said who it is"
    AUTHENTICATING = "its password is being checked; nothing more is read from it"
    ADMITTED = "it has a session"
    DISMISSED = "it has been told to go, or has said goodbye"


_ADMITTED: Final = Admission.ADMITTED  # looking up a member of an enum costs more than the rest


class ClientConnection(Connection):
    """A connection that the broker accepted."""

    __slots__ = (
        "_aliases", "_broker", "_check", "_dispatcher", "_early", "_heard", "_keep_alive",
        "_large", "_largest", "_reader", "admission", "receive_maximum", "session",
        "who",
    )  # fmt: skip

    session: Session  # once it is admitted

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker.connection_limits)
        self.admission = Admission.AWAITING_CONNECT
        self.receive_maximum = 65_535
        self.who: Who = NOBODY
        self._largest: int | None = None  # packet that the client takes
        self._keep_alive = 0.0  # seconds of silence after which the client is gone; 0: no limit
        self._heard = 0.0
        self._aliases: dict[int, str] = {}
        self._broker = broker
        self._dispatcher = broker.dispatcher
        self._reader = PacketReader(broker.settings.of_strangers(), check_text=True)
        self._check: asyncio.Future[bool] | None = None  # of its password
        self._early: Iterable[Packet] = ()  # sent behind CONNECT, without waiting for the answer
        self._large: Sequence[Packet] = ()  # behind those, too large for who is not admitted

    # What the connection tells

    def on_open(self) -> None:
        """Count it."""
        self._broker.counts.opened += 1

    def on_data(self, data: bytes) -> None:
        """Do what the packets ask for."""
        self._broker.counts.bytes_received += len(data)
        self._heard = self._dispatcher.now = self._loop.time()
        if self.is_greeting and not self._reader.unfinished and data[0] != _CONNECT:
            self.expel(_Code.PROTOCOL_ERROR, "the first packet is not CONNECT")
            return
        packets = self._reader.feed(data)
        if self.is_greeting and self._reader.error and any(o in data[:16] for o in _OLD_PROTOCOLS):
            self._broker.counts.refused["version"] += 1
            self.dismiss(_OLD_REFUSAL)
            return
        broker = self._broker
        broker.is_reading = True
        try:
            self._serve(packets)
        finally:
            broker.is_reading = False
            broker.flush()

    @property
    def is_with_stranger(self) -> bool:
        """Always: it is any MQTT client."""
        return True

    def count_unfinished(self) -> int:
        """What is there of a packet."""
        return self._reader.held

    def on_clear(self) -> None:
        """Send what has waited, and read again."""
        if self.admission is _ADMITTED:
            self.resume_reading()
            self._dispatcher.send_waiting(self.session)

    def on_silence(self) -> None:
        """Give up on a client that was not admitted in time."""
        self._leave("silent", f"{self.admission.value} after {self.limits.first_byte:g} s")
        self.abort()

    def on_closed(self, failure: Failure | None) -> None:
        """Tell the broker, unless it knows."""
        if self._check is not None:
            self._check.cancel()
        self._leave("lost", "" if failure is None else failure.detail)

    # What the broker asks for

    def authenticate(self, packet: ConnectPacket, check: asyncio.Future[bool]) -> None:
        """Wait for a password to be checked; nothing more is read until then."""

        def go_on(done: asyncio.Future[bool]) -> None:
            self._check = None
            if self.is_greeting and not done.cancelled():
                self._broker.authenticated(self, packet, done)
                self.resume_reading()
                early, self._early = self._early, ()
                if self.admission is _ADMITTED:
                    self._serve(early)

        self.admission = Admission.AUTHENTICATING
        self.pause_reading()
        self._check = check
        check.add_done_callback(go_on)

    def names(self) -> tuple[str, ...]:
        """The names in the client's certificate, which was checked."""
        told = None if self.transport is None else secured(self.transport, b"")
        return () if told is None else told.names

    def may(self, action: Action, topic: str) -> bool:
        """Whether the client may publish under a topic, or subscribe to a filter (ID-3)."""
        return self._broker.may(self.who, action, topic)

    def admit(self, session: Session, packet: ConnectPacket) -> None:
        """Serve a client that is who it says."""
        self.session = session
        self.admission = _ADMITTED
        self.receive_maximum = packet.receive_max
        self._largest = packet.max_packet_size
        self._large = self._reader.raise_limit(self._broker.settings.packet)
        self._keep_alive = packet.keep_alive * 1.5
        self.peer_spoke()
        if self._keep_alive:
            self.start_timer(self._keep_alive, self._check_keep_alive)

    def expel(self, code: DisconnectReasonCode, detail: str) -> None:
        """End the connection of a client that did something wrong; others see only its will."""
        was_admitted = self.admission is _ADMITTED
        self._leave(code.name.lower(), detail)
        if was_admitted:
            self.dismiss(DisconnectPacket(reason_code=code, reason_str=detail).write())
        else:
            self.abort()

    def give_up(self, cause: str, detail: str) -> None:
        """End a connection at once, with all that was not written."""
        self._leave(cause, detail)
        self.abort()

    def dismiss(self, last: bytes = b"") -> None:
        """Write what is left, with a last packet, and end; the session is left as it is."""
        self.admission = Admission.DISMISSED
        if last:
            self.queue(last)
        self.close()

    def say(self, data: bytes) -> None:
        """Write an answer at the end of this turn.

        Messages wait elsewhere for a client that does not read, but answers only wait here.
        """
        if not self._size:
            self._broker.flush_later(self)
        self.pieces.append(data)
        self._size += len(data)
        if self.peer_is_slow and self.unsent > 2 * self.limits.high_water:
            self.pause_reading()

    def deliver(self, delivery: Delivery, packet_id: int, *, again: bool = False) -> bool:
        """Write a message at the end of this turn; False if it is too large for the client."""
        publication, qos, retain, ids = delivery
        head, tail, size = publication.written(qos, self._dispatcher.now, retain=retain, ids=ids)
        if self._largest is not None and size > self._largest:
            return False
        if again:
            head = bytes((head[0] | 0x08,)) + head[1:]
        if not self._size:
            self._broker.flush_later(self)
        if qos:  # in pieces, or each receiver would have its own copy of the payload
            self.pieces += (head, packet_id.to_bytes(2, "big"), tail)
        else:
            self.pieces.append(head)
        self._size += size
        if self._size >= BATCH:
            self.flush()
        self._broker.counts.delivered += 1
        return True

    def flush(self) -> None:
        """Write what this turn brought, and count it."""
        before = self.written
        super().flush()
        self._broker.counts.bytes_sent += self.written - before
        transport = self.transport
        if (
            self.admission is _ADMITTED
            and transport is not None
            and self.session.held_bytes + transport.get_write_buffer_size() > FREE
        ):
            self._dispatcher.held.count_soon(self.session)

    # Packets

    def _serve(self, packets: Iterable[Packet]) -> None:
        rest = iter(packets)
        for packet in rest:
            if self.admission is _ADMITTED:
                handle = _HANDLERS.get(type(packet))
                if handle is None:
                    self.expel(_Code.PROTOCOL_ERROR, f"unexpected {type(packet).__name__}")
                else:
                    handle(self, packet)
            else:  # and the packet is CONNECT, because of its first byte
                self._broker.connect(self, packet)
            if self.admission is not _ADMITTED:
                self._early = list(rest)
                break
        if self._large:
            large, self._large = self._large, ()
            self._serve(large)
            return
        error = self._reader.error
        if error is not None and self.is_open and self.admission is not Admission.AUTHENTICATING:
            code = _WRONG.get(error.problem, _Code.MALFORMED_PACKET)
            self.expel(_Code.PACKET_TOO_LARGE if error.too_large else code, error.problem)

    def on_publish(self, packet: PublishPacket) -> None:
        """Give a message to its subscribers, and acknowledge it."""
        self._broker.counts.received += 1
        topic = packet.topic
        if packet.topic_alias is not None:
            topic = self._resolve(packet.topic_alias, topic)
            if not topic:
                self.expel(_Code.TOPIC_ALIAS_INVALID, "unknown topic alias")
                return
        dispatcher = self._dispatcher
        if topic not in dispatcher.known_topics and not is_topic(topic):
            self.expel(_Code.TOPIC_NAME_INVALID, "wildcard in a topic")
        elif int(packet.qos) > 1:
            self.expel(_Code.QOS_NOT_SUPPORTED, "QoS 2 is not supported")
        elif packet.response_topic is not None and not is_topic(packet.response_topic):
            self.expel(_Code.PROTOCOL_ERROR, "wildcard in a response topic")
        else:
            code = PubAckReasonCode.NOT_AUTHORIZED
            if self.may(Action.PUBLISH, topic):
                code = dispatcher.publish(Publication(packet, topic, dispatcher.now), self.session)
            else:
                self._broker.refused(self, code, f"publishing under {topic[:80]!r}")
            if packet.packet_id is not None:
                self.say(acknowledgement(packet.packet_id, code))

    def on_acknowledgement(self, packet: PubAckPacket) -> None:
        """Send what has waited for this one."""
        session = self.session
        session.release(packet.packet_id)
        if session.queue or session.unrepeated:
            self._dispatcher.send_waiting(session)

    def on_subscribe(self, packet: SubscribePacket) -> None:
        """Add subscriptions, each with its own answer, and send what is retained."""
        if not packet.topic_filters:
            self.expel(_Code.PROTOCOL_ERROR, "SUBSCRIBE without a filter")
            return
        codes: list[SubAckReasonCode] = []
        retained: list[Subscription] = []
        for asked in packet.topic_filters:
            group, pattern = split_share(asked.pattern)
            if group and asked.no_local:
                self.expel(_Code.PROTOCOL_ERROR, "a shared subscription cannot be without its own")
                return
            code = self._refusal(asked.pattern, pattern)
            if code is not None:
                self._broker.refused(self, code, f"the filter {asked.pattern[:80]!r}")
                codes.append(code)
                continue
            is_new = asked.pattern not in self.session.subscriptions
            subscription = Subscription(
                asked.pattern,
                self.session,
                min(int(asked.max_qos), 1),
                asked.no_local,
                asked.retain_as_published,
                packet.subscription_id,
                pattern,
                group,
            )
            self._dispatcher.subscribe(subscription)
            codes.append(_GRANTED[subscription.qos])
            handling = asked.retain_handling
            if not group and (handling is _ALWAYS or (handling is _IF_NEW and is_new)):
                retained.append(subscription)
        self.say(SubAckPacket(packet.packet_id, codes).write())
        for subscription in retained:
            self._dispatcher.send_retained(subscription)

    def on_unsubscribe(self, packet: UnsubscribePacket) -> None:
        """Remove subscriptions."""
        if not packet.patterns:
            self.expel(_Code.PROTOCOL_ERROR, "UNSUBSCRIBE without a filter")
            return
        codes = [
            UnsubAckReasonCode.SUCCESS
            if self._dispatcher.unsubscribe(self.session, filter)
            else UnsubAckReasonCode.NO_SUBSCRIPTION_EXISTED
            for filter in packet.patterns
        ]
        self.say(UnsubAckPacket(packet.packet_id, codes).write())

    def on_ping(self, packet: PingReqPacket) -> None:
        """Answer."""
        del packet
        self.say(PONG)

    def on_disconnect(self, packet: DisconnectPacket) -> None:
        """End the connection, with the client's will or without."""
        session, expiry = self.session, packet.session_expiry_interval
        if expiry is not None:
            if expiry and not session.expiry:
                self.expel(_Code.PROTOCOL_ERROR, "the session has no expiry")
                return
            session.expiry = self._broker.bounded_expiry(expiry)
        if packet.reason_code is _Code.NORMAL_DISCONNECTION:
            session.will = None
        self._leave("goodbye", words_of(packet.reason_code))
        self.dismiss()

    def _resolve(self, alias: int, topic: str) -> str:
        """The topic that an alias stands for, which a topic beside it changes; "" for none."""
        if not 0 < alias <= self._broker.settings.aliases:
            return ""
        if topic:
            self._aliases[alias] = topic
        return self._aliases.get(alias, "")

    def _refusal(self, filter: str, pattern: str) -> SubAckReasonCode | None:
        """Why a filter, or the pattern of topics in it, cannot be subscribed to."""
        if not is_filter(pattern):
            return SubAckReasonCode.TOPIC_FILTER_INVALID
        if not self.may(Action.SUBSCRIBE, pattern):
            return SubAckReasonCode.NOT_AUTHORIZED
        own = self.session.subscriptions
        if len(own) >= self._broker.settings.subscriptions and filter not in own:
            return SubAckReasonCode.QUOTA_EXCEEDED
        return None

    # The end

    def _leave(self, cause: str, detail: str) -> None:
        """Tell the broker that the client is gone, once."""
        if self.admission is not Admission.DISMISSED:
            was_admitted = self.admission is _ADMITTED
            self.admission = Admission.DISMISSED
            self._broker.left(self, cause, detail, self.session if was_admitted else None)

    def _check_keep_alive(self) -> None:
        """End a connection that has been silent for longer than the client promised."""
        silence = self._loop.time() - self._heard
        if silence < self._keep_alive:
            self.start_timer(self._keep_alive - silence, self._check_keep_alive)
        else:
            self.expel(_Code.KEEP_ALIVE_TIMEOUT, f"silent for {silence:.1f} s")


_HANDLERS: Final[dict[type, Callable[[ClientConnection, Any], None]]] = {
    PublishPacket: ClientConnection.on_publish,
    PubAckPacket: ClientConnection.on_acknowledgement,
    SubscribePacket: ClientConnection.on_subscribe,
    UnsubscribePacket: ClientConnection.on_unsubscribe,
    PingReqPacket: ClientConnection.on_ping,
    DisconnectPacket: ClientConnection.on_disconnect,
}
