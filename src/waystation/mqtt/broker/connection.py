"""One client's connection: bytes to packets, packets to the server, and what is written back.

What a packet means for others (who gets it, what is kept) is decided in server.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from mqtt5 import (
    ConnAckPacket,
    ConnAckReasonCode,
    DisconnectPacket,
    DisconnectReasonCode,
    PingReqPacket,
    PubAckPacket,
    PubAckReasonCode,
    PublishPacket,
    SubscribePacket,
    UnsubscribePacket,
)

from waystation.mqtt.broker.publication import Delivery, Publication
from waystation.mqtt.broker.session import Session
from waystation.mqtt.broker.topics import is_topic
from waystation.mqtt.packets import PONG, PacketReader, acknowledgement
from waystation.net.place import place_of
from waystation.net.sockets import prepare

if TYPE_CHECKING:
    from waystation.mqtt.broker.server import Broker

DEAD: Final = 60.0
"""Seconds after which the system takes a silent machine for gone."""

_CONNECT: Final = 0x10
_OLD_PROTOCOLS: Final = (b"\x00\x04MQTT\x03", b"\x00\x04MQTT\x04", b"\x00\x06MQIsdp\x03")
_OLD_REFUSAL: Final = b"\x20\x02\x00\x01"
"""What clients of MQTT 3 understand: this version is not spoken here."""


class Connection(asyncio.Protocol):
    """A connection that was accepted."""

    __slots__ = (
        "_alarm", "_aliases", "_broker", "_ended", "_reader", "crowded", "heard", "keep_alive",
        "largest", "pieces", "place", "receive_maximum", "session", "transport",
    )  # fmt: skip

    transport: asyncio.Transport

    def __init__(self, broker: Broker) -> None:
        self.place = "?"
        self.session: Session | None = None  # there is one once the client said who it is
        self.pieces: list[bytes] = []  # to be written at the end of the turn
        self.crowded = False  # the client does not read as fast as others publish
        self.receive_maximum = 65_535
        self.largest: int | None = None  # packet that the client takes
        self.keep_alive = 0.0  # seconds without a word, and the client is gone; 0: never
        self.heard = 0.0
        self._aliases: dict[int, str] = {}
        self._broker = broker
        self._reader = PacketReader(broker.settings.packet, wary=True)
        self._alarm: asyncio.TimerHandle | None = None
        self._ended = False

    # What the event loop tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Get to know the client, or turn it away when there are too many."""
        self.transport = cast("asyncio.Transport", transport)
        self.place = place_of(transport.get_extra_info("peername") or ("?", 0))
        broker = self._broker
        if not broker.accept(self):
            self._ended = True
            self.transport.abort()
            return
        prepare(transport.get_extra_info("socket"), DEAD)
        half = max(65_536, min(broker.settings.queue_bytes // 2, 1 << 20))
        self.transport.set_write_buffer_limits(high=half, low=half // 4)
        self._alarm = broker.loop.call_later(broker.settings.greeting, self._give_up_on_silence)

    def data_received(self, data: bytes) -> None:
        """Do what the packets ask for."""
        if self._ended:
            return
        broker = self._broker
        broker.counts.bytes_received += len(data)
        self.heard = broker.now = broker.loop.time()
        if self.session is None and not self._reader.unfinished and data[0] != _CONNECT:
            self._fail(DisconnectReasonCode.PROTOCOL_ERROR, "it did not begin with CONNECT")
            return
        packets = self._reader.feed(data)
        if all(map(self._serve, packets)) and self._reader.error is not None:
            self._refuse_bytes(data)
        broker.flush()

    def pause_writing(self) -> None:
        """Note that the client does not keep up."""
        self.crowded = True

    def resume_writing(self) -> None:
        """Give it what has waited."""
        self.crowded = False
        if self.session is not None:
            self._broker.pump(self.session)
            self._broker.flush()

    def connection_lost(self, error: Exception | None) -> None:
        """Tell the server, unless it knows."""
        self._stop_alarm()
        if not self._ended:
            self._ended = True
            detail = "" if error is None else f"{type(error).__name__}: {error}"
            self._broker.lost(self, "lost", detail)
        self._broker.gone(self)

    # What the server asks for

    def tell(self, data: bytes) -> None:
        """Write an answer at the end of this turn."""
        if not self._ended:
            if not self.pieces:
                self._broker.touched.append(self)
            self.pieces.append(data)

    def deliver(self, delivery: Delivery, packet_id: int, *, again: bool = False) -> bool:
        """Write a message at the end of this turn; False if it is too large for the client."""
        publication, qos, retain, ids = delivery
        broker = self._broker
        head, tail, size = publication.written(qos, broker.now, retain=retain, ids=ids)
        if self.largest is not None and size > self.largest:
            return False
        if again:
            head = bytes((head[0] | 0x08,)) + head[1:]
        if not self.pieces:
            broker.touched.append(self)
        if qos:
            self.pieces += (head, packet_id.to_bytes(2, "big"), tail)
        else:
            self.pieces.append(head)
        broker.counts.delivered += 1
        return True

    def flush(self) -> None:
        """Write what this turn brought."""
        pieces, self.pieces = self.pieces, []
        if pieces and not self.transport.is_closing():
            data = b"".join(pieces)
            self._broker.counts.bytes_sent += len(data)
            self.transport.write(data)

    def end(self, code: DisconnectReasonCode | None = None, detail: str = "") -> None:
        """Say why, write what is left, and end."""
        if self._ended:
            return
        if code is not None and self.session is not None:
            self.tell(DisconnectPacket(reason_code=code, reason_str=detail[:200] or None).write())
        self._ended = True
        self.flush()
        self._stop_alarm()
        self.transport.close()
        self._alarm = self._broker.loop.call_later(
            self._broker.settings.linger, self.transport.abort
        )

    def refuse(self, code: ConnAckReasonCode, detail: str) -> None:
        """Do not let the client in, say why, and end."""
        self.tell(ConnAckPacket(reason_code=code, reason_str=detail[:200] or None).write())
        self.end()

    def greeted(self) -> None:
        """The client has said who it is."""
        self._stop_alarm()

    # Packets

    def _serve(self, packet: Any) -> bool:
        """Do what a packet asks for; False when the connection ends with it."""
        if self.session is None:  # and the packet is a CONNECT
            self._broker.connect(self, packet)
        else:
            handler = _HANDLERS.get(type(packet))
            if handler is None:
                name = type(packet).__name__
                self._fail(DisconnectReasonCode.PROTOCOL_ERROR, f"it sent a {name}")
            else:
                handler(self, packet)
        return not self._ended

    def _publish(self, packet: PublishPacket) -> None:
        broker = self._broker
        session = self.session
        assert session is not None
        broker.counts.received += 1
        topic = packet.topic
        if packet.topic_alias is not None:
            topic = self._resolved(packet.topic_alias, topic)
            if not topic:
                self._fail(DisconnectReasonCode.TOPIC_ALIAS_INVALID, "a topic alias is unknown")
                return
        if topic not in broker.known_topics and not is_topic(topic):
            self._fail(DisconnectReasonCode.TOPIC_NAME_INVALID, "a topic has a wildcard")
            return
        if int(packet.qos) > 1:
            self._fail(DisconnectReasonCode.QOS_NOT_SUPPORTED, "QoS 2 is not spoken here")
            return
        if packet.response_topic is not None and not is_topic(packet.response_topic):
            self._fail(DisconnectReasonCode.PROTOCOL_ERROR, "a response topic has a wildcard")
            return
        found = broker.publish(Publication.received(packet, topic, broker.now), session)
        packet_id = packet.packet_id
        if packet_id is not None:
            if found is PubAckReasonCode.SUCCESS:
                self.tell(acknowledgement(packet_id))
            else:
                self.tell(PubAckPacket(packet_id, reason_code=found).write())

    def _resolved(self, alias: int, topic: str) -> str:
        if not 0 < alias <= self._broker.settings.aliases:
            return ""
        if topic:
            self._aliases[alias] = topic
            return topic
        return self._aliases.get(alias, "")

    def _acknowledged(self, packet: PubAckPacket) -> None:
        session = self.session
        assert session is not None
        session.release(packet.packet_id)
        if session.queue:
            self._broker.pump(session)

    def _subscribe(self, packet: SubscribePacket) -> None:
        self._broker.subscribe(self, packet)

    def _unsubscribe(self, packet: UnsubscribePacket) -> None:
        self._broker.unsubscribe(self, packet)

    def _ping(self, packet: PingReqPacket) -> None:
        del packet
        self.tell(PONG)

    def _disconnect(self, packet: DisconnectPacket) -> None:
        self._broker.goodbye(self, packet)

    # Ending

    def _refuse_bytes(self, data: bytes) -> None:
        error = self._reader.error
        assert error is not None
        if self.session is None and any(old in data[:16] for old in _OLD_PROTOCOLS):
            self._broker.counts.refused["version"] += 1
            self.tell(_OLD_REFUSAL)
            self.end()
        elif error.too_large:
            self._fail(DisconnectReasonCode.PACKET_TOO_LARGE, error.problem)
        else:
            self._fail(DisconnectReasonCode.MALFORMED_PACKET, error.problem)

    def _fail(self, code: DisconnectReasonCode, detail: str) -> None:
        """The client did something wrong: it goes, and nobody else notices (but by its will)."""
        self.end(code, detail)
        self._broker.lost(self, code.name.lower(), detail)

    def _give_up_on_silence(self) -> None:
        self._alarm = None
        self.end()
        self._broker.lost(self, "silent", "it never said who it is")

    def _stop_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None


_HANDLERS: Final[dict[type, Callable[[Connection, Any], None]]] = {
    PublishPacket: Connection._publish,  # noqa: SLF001
    PubAckPacket: Connection._acknowledged,  # noqa: SLF001
    SubscribePacket: Connection._subscribe,  # noqa: SLF001
    UnsubscribePacket: Connection._unsubscribe,  # noqa: SLF001
    PingReqPacket: Connection._ping,  # noqa: SLF001
    DisconnectPacket: Connection._disconnect,  # noqa: SLF001
}
