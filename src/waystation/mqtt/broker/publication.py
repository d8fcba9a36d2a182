"""A message at the broker, and the bytes of it: written once for all that get the same."""

from __future__ import annotations

from typing import Final, NamedTuple

from mqtt5 import PublishPacket, QoS, Will

from waystation.core.budget import OVERHEAD

_QOS: Final = (QoS.AT_MOST_ONCE, QoS.AT_LEAST_ONCE)
_FORMS: Final = 4  # ways of writing one message that are kept
_SMALL: Final = 1_024  # bytes of a payload of which several forms may be kept


class Publication:
    """Something that was published, by a client or as its will.

    `expires` is an instant of the event loop's clock; None is never.
    """

    __slots__ = ("_packet", "_written", "expires", "payload", "qos", "retain", "size", "topic")

    def __init__(self, packet: PublishPacket | Will, topic: str, now: float) -> None:
        seconds = packet.message_expiry_interval
        self.topic = topic
        self.payload = packet.payload or b""
        self.qos: int = int(packet.qos)
        self.retain: bool = packet.retain
        self.expires = None if seconds is None else now + seconds
        # What is neither acknowledged nor retained is never held, and need not be measured.
        is_held = self.qos or self.retain
        self.size = size_of(packet, self.payload, topic) if is_held else len(self.payload)
        self._packet = packet
        self._written: dict[tuple[int, bool, int | None, tuple[int, ...]], _Written] = {}

    def expired(self, now: float) -> bool:
        """Whether its time is over."""
        return self.expires is not None and now >= self.expires

    def written(self, qos: int, now: float, *, retain: bool, ids: tuple[int, ...]) -> _Written:
        """The bytes before and behind the packet id, for a subscriber who gets it so."""
        left = None if self.expires is None else max(1, round(self.expires - now))
        key = (qos, retain, left, ids)
        found = self._written.get(key)
        if found is None:
            if len(self._written) >= _FORMS:
                self._written.clear()
            found = self._written[key] = self._write(*key)
        return found

    def forget_written(self) -> None:
        """Keep only the message, if its forms would take much memory while it waits."""
        if len(self.payload) > _SMALL:
            self._written.clear()

    def _write(self, qos: int, retain: bool, left: int | None, ids: tuple[int, ...]) -> _Written:
        packet = self._packet
        data = PublishPacket(
            self.topic,
            self.payload,
            qos=_QOS[qos],
            retain=retain,
            packet_id=1 if qos else None,
            payload_format_indicator=packet.payload_format_indicator,
            message_expiry_interval=left,
            content_type=packet.content_type,
            response_topic=packet.response_topic,
            correlation_data=packet.correlation_data,
            subscription_ids=list(ids),
            user_properties=packet.user_properties,
        ).write()
        if not qos:
            return _Written(data, b"", len(data))
        start = 2  # behind the length of what follows
        while data[start - 1] >= 0x80:
            start += 1
        at = start + 2 + int.from_bytes(data[start : start + 2], "big")
        return _Written(data[:at], data[at + 2 :], len(data))


def size_of(packet: PublishPacket | Will, payload: bytes, topic: str) -> int:
    """Bytes of memory that a message counts, with all that a client may put into it."""
    size = len(payload) + len(topic) + OVERHEAD
    if (correlation := packet.correlation_data) is not None:
        size += len(correlation)
    if (response_topic := packet.response_topic) is not None:
        size += len(response_topic)
    if (content_type := packet.content_type) is not None:
        size += len(content_type)
    for name, value in packet.user_properties:
        size += len(name) + len(value) + OVERHEAD // 4
    return size


class _Written(NamedTuple):
    head: bytes
    tail: bytes
    size: int


class Delivery(NamedTuple):
    """One message for one client: with which quality, marked as retained or not, and why."""

    publication: Publication
    qos: int
    retain: bool
    ids: tuple[int, ...]
