"""Ockam's frames over a broker: links between our nodes, links to others, and broadcasts.

A broker neither tells a sender that its receiver is slow nor keeps more than a little for it. So
two of our nodes keep a window: a link has a limited number of messages on their way, and sends more
when the peer says that it has taken them. Each publication says in its correlation data to which
link it belongs, its number, and what was taken last. A peer that is not one of our nodes sends none
of that: its messages are simply taken.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, deque
from enum import IntEnum
from struct import Struct as Layout
from typing import TYPE_CHECKING, Final, TypeAlias

from mqtt5 import PubAckReasonCode, PublishPacket, QoS, Will

from waystation.core.address import LOCAL, Address, Route
from waystation.core.message import Message
from waystation.core.outcome import Reason
from waystation.errors import DecodeError, LocalError
from waystation.mqtt.client import OnAck
from waystation.mqtt.packets import REFUSED, words_of
from waystation.net.connection import ConnectionState
from waystation.transports.link import CONTROL
from waystation.transports.mqtt.link import MqttLink, expiry_seconds
from waystation.transports.transport import LinkOwner
from waystation.wire.joynr import unicast_topic
from waystation.wire.ockam import (
    HEARTBEAT_FRAME,
    PREFACE,
    FrameDecoder,
    decode_body,
    encode_control,
    encode_departure,
    encode_frame,
)

if TYPE_CHECKING:
    from waystation.transports.mqtt.transport import Mqtt

MAGIC: Final = b"way1"
_HEAD: Final = Layout(">4sB8sQQ")
_GONE: Final = "/gone"  # behind a node's topic: where its will is published
_Numbered: TypeAlias = "tuple[Kind, bytes, int | None, OnAck]"
"""A publication of a link, its payload and expiry, and who is told what became of it."""


class Kind(IntEnum):
    """What a publication is to its link."""

    MESSAGE = 0
    ASKING = 1  # a message whose sender wants to know when it is taken
    OPEN = 2
    OPENED = 3
    REFUSED = 4
    CLOSE = 5  # the last one, numbered like a message
    TAKEN = 6  # the answer to ASKING
    UNKNOWN = 7  # there is no such link here (any more)


_MESSAGE: Final = Kind.MESSAGE  # looked up for each message
_ASKING: Final = Kind.ASKING
_CLOSE: Final = Kind.CLOSE
_NUMBERED: Final = (Kind.MESSAGE, Kind.ASKING, Kind.CLOSE)


def write_label(kind: Kind, tag: bytes, number: int = 0, taken: int = 0) -> bytes:
    """The correlation data of a publication.

    >>> read_label(write_label(Kind.CLOSE, b"12345678", 3, 2))
    (5, b'12345678', 3, 2)
    """
    return _HEAD.pack(MAGIC, kind, tag, number, taken)


def read_label(data: bytes | None) -> tuple[int, bytes, int, int] | None:
    """What correlation data say; None when they are not ours.

    >>> read_label(b"something else")
    """
    if data is None or len(data) != _HEAD.size or not data.startswith(MAGIC):
        return None
    _, kind, tag, number, taken = _HEAD.unpack(data)
    return kind, tag, number, taken


class PlainLink(MqttLink):
    """A link to a peer that publishes Ockam's frames and has a response topic, and no more."""

    def __init__(
        self, hub: Mqtt, owner: LinkOwner, inbox: str, peer: str, *, qos: int | None = None
    ) -> None:
        super().__init__(hub, owner, inbox, peer, qos=qos)
        self._decoder = FrameDecoder(limit=hub.limits.frame, via=owner.address)
        self._decoder.feed(PREFACE)

    def take_frame(self, payload: bytes) -> None:
        """Take a publication of the peer, which must hold whole frames."""
        decoder = self._decoder
        self._take(decoder.feed(payload), len(payload))
        if (error := decoder.error) is not None:
            reason = Reason.TOO_LARGE if error.too_large else Reason.MALFORMED
            self._end_when_handed_in(reason, str(error))
        elif decoder.unfinished:
            self._end_when_handed_in(Reason.MALFORMED, "a publication holds half a frame")

    def publish(self, message: Message) -> Reason | None:
        """Publish a message in a frame."""
        frame = encode_departure(message, limit=self._hub.limits.frame)
        expiry = expiry_seconds(message.expiry)
        return self._publish(self.place, frame, self._message_acknowledged, expiry=expiry)


class OckamLink(PlainLink):
    """A link to another node of ours: one frame to a publication, within a window."""

    def __init__(
        self,
        hub: Mqtt,
        owner: LinkOwner,
        inbox: str,
        peer: str,
        tag: bytes,
        *,
        incarnation: bytes = b"",
        qos: int | None = None,
    ) -> None:
        super().__init__(hub, owner, inbox, peer, qos=qos)
        self.key = (peer, tag)
        self.incarnation = incarnation  # of the peer's connection to the broker
        self._tag = tag
        self._answer: asyncio.Future[None] = self._loop.create_future()  # of the peer, to our OPEN
        self._number = 0  # of our last publication
        self._waiting: deque[_Numbered] = deque()  # until there is room in the window
        self._control = 0  # bytes among those that no sender waits with
        self._ahead: deque[int] = deque()  # sizes of what the peer has not taken yet
        self._ahead_bytes = 0
        self._since_asked = self._bytes_since_asked = 0
        self._received = 0  # the number of the peer's last publication
        self._taken = 0  # the number of the last one that was handed in
        self._asked = False  # whether the peer wants to know that

    # Opening

    async def ask(self, incarnation: bytes) -> None:
        """Ask the peer for the link and wait for its answer."""
        self.state = ConnectionState.GREETING
        self.say(Kind.OPEN, incarnation)
        await self._answer

    def end(self, reason: Reason | None, detail: str) -> None:
        """End the link; if the peer has not answered, only who asked is told."""
        if self.state is not ConnectionState.GREETING:
            super().end(reason, detail)
        elif not self._answer.done():
            self._answer.set_exception(ConnectionRefusedError(f"{self.place}: {detail}"))

    def _open_acknowledged(self, code: PubAckReasonCode) -> None:
        if self.state is ConnectionState.GREETING:
            if code is PubAckReasonCode.NO_MATCHING_SUBSCRIBERS:
                self.end(Reason.TRANSPORT_DOWN, "this topic has no subscriber")
            elif int(code) >= REFUSED:
                self.end(Reason.REFUSED, f"the broker refused: {words_of(code)}")

    # What the owner asks for

    def send_control(self, payload: bytes) -> None:
        """Publish a payload for the peer's session, in order with the messages."""
        frame = encode_control(payload) if payload else HEARTBEAT_FRAME
        if self._waiting:  # which no message does for long: its sender waits instead
            self._control += len(frame)
            if self._control > CONTROL:
                self.end(Reason.QUEUE_FULL, "the peer takes no control messages")
                return
        self._give(Kind.MESSAGE, frame, None, self._acknowledged)

    def say_goodbye(self) -> None:
        """Say so behind what was taken."""
        self._give(Kind.CLOSE, b"", None, self._acknowledged)
        super().say_goodbye()

    def abort(self) -> None:
        """End at once, and tell the peer."""
        if self.state is not ConnectionState.CLOSED:
            self.say(Kind.UNKNOWN)
        super().abort()

    def _end_lingering(self) -> None:
        """Tell a peer that took nothing more, and so has not seen the goodbye behind it."""
        self.say(Kind.UNKNOWN)
        super()._end_lingering()

    def publish(self, message: Message) -> Reason | None:
        """Publish a message in a frame, within the window."""
        frame = encode_departure(message, limit=self._hub.limits.frame)
        if not self._connection.fits(len(frame) + len(self.place)):
            return Reason.TOO_LARGE
        expiry = expiry_seconds(message.expiry)
        self._give(_MESSAGE, frame, expiry, self._message_acknowledged)
        return None

    # What the transport tells

    def say(self, kind: Kind, payload: bytes = b"") -> None:
        """Publish something about the link itself, beside the window."""
        self._connection.publish(
            self.place,
            payload,
            self._hub.qos,
            response_topic=self.inbox,
            correlation=write_label(kind, self._tag, 0, self._taken),
            on_ack=self._open_acknowledged if kind is Kind.OPEN else None,
        )

    def heard(self, kind: int, number: int, taken: int, payload: bytes) -> None:
        """Take what the peer published for this link."""
        self._note_taken(taken)
        if kind in _NUMBERED:
            if self._is_new(number) and self.is_receiving:
                self._take_numbered(kind, payload)
        elif kind == Kind.UNKNOWN:
            if self.state is not ConnectionState.GREETING:
                self.end(Reason.TRANSPORT_DOWN, "the peer does not know this link any more")
        elif self.state is ConnectionState.GREETING and not self._answer.done():
            if kind == Kind.REFUSED:
                self.end(Reason.REFUSED, "the peer takes no links")
            elif kind == Kind.OPENED:
                self.incarnation = payload
                self._answer.set_result(None)
                self.open()

    def _is_new(self, number: int) -> bool:
        """Whether a publication did not come before, as brokers may deliver it twice."""
        missing = number - self._received - 1
        if missing < 0:
            self._hub.counts["duplicates"] += 1
            return False
        if missing:
            self._hub.counts["lost"] += missing
        self._received = number
        return True

    def _take_numbered(self, kind: int, payload: bytes) -> None:
        if kind == _CLOSE:
            self._end_when_handed_in(None, "closed by the peer")
            return
        self.take_frame(payload)
        self._asked |= kind == _ASKING
        if self._ending is not None:
            self.say(Kind.UNKNOWN)

    def _hand_in(self) -> None:
        super()._hand_in()
        self._taken = self._received
        if self._asked and self._reading and self.is_receiving:
            self._asked = False
            self.say(Kind.TAKEN)

    # The window

    def _has_room(self) -> bool:
        limits = self._hub.limits
        ahead = len(self._ahead)
        return not ahead or (ahead < limits.window and self._ahead_bytes < limits.unsent)

    def _has_unsent(self) -> bool:
        return bool(self._waiting) or super()._has_unsent()

    def _give(self, *numbered: *_Numbered) -> None:
        if self._waiting or not self._has_room():
            self._waiting.append(numbered)
        else:
            self._number_and_publish(*numbered)

    def _number_and_publish(
        self, kind: Kind, payload: bytes, expiry: int | None, on_ack: OnAck
    ) -> None:
        size = len(payload)
        self._number += 1
        self._ahead.append(size)
        self._ahead_bytes += size
        self._since_asked += 1
        self._bytes_since_asked += size
        limits = self._hub.limits
        if kind is _MESSAGE and (
            4 * self._since_asked >= limits.window or 4 * self._bytes_since_asked >= limits.unsent
        ):
            kind = _ASKING
            self._since_asked = self._bytes_since_asked = 0
        label = write_label(kind, self._tag, self._number, self._taken)
        reason = self._publish(self.place, payload, on_ack, expiry=expiry, correlation=label)
        if reason is not None and reason is not Reason.TRANSPORT_DOWN:  # of that it is told anyway
            self.abort()

    def _note_taken(self, taken: int) -> None:
        """Make room: the peer has taken everything up to this number."""
        ahead = self._ahead
        news = taken - (self._number - len(ahead))
        if not 0 < news <= len(ahead):
            return
        for _ in range(news):
            self._ahead_bytes -= ahead.popleft()
        while self._waiting and self._has_room():
            self._number_and_publish(*self._waiting.popleft())
        if not self._waiting:
            self._control = 0
        self.relax()


class OckamFormat:
    """What a node does that speaks Ockam's frames over a broker."""

    def __init__(self, hub: Mqtt) -> None:
        self._hub = hub
        self._incarnation = b""  # of our connection to the broker
        self._neighbours: Counter[str] = Counter()  # links by the peer's topic

    def inbox_filter(self, topic: str) -> str:
        """What to subscribe to, to receive what is published for a topic of ours."""
        return topic

    def make_will(self) -> Will | None:
        """Have our end announced, under a name that holds for one connection only."""
        self._incarnation = secrets.token_bytes(8)
        return Will(self._hub.topic + _GONE, payload=self._incarnation, qos=QoS(self._hub.qos))

    async def open(self, topic: str, qos: int | None, owner: LinkOwner) -> MqttLink:
        """Open a link to a peer."""
        hub = self._hub
        link = OckamLink(hub, owner, hub.topic, topic, secrets.token_bytes(8), qos=qos)
        self._add(link)
        try:
            await link.ask(self._incarnation)
        except BaseException:
            link.state = ConnectionState.CLOSED
            hub.forget(link)
            raise
        return link

    def forgot(self, link: MqttLink) -> None:
        """Listen no more for the end of a peer without links."""
        self._neighbours[link.place] -= 1
        if not self._neighbours[link.place]:
            del self._neighbours[link.place]
            self._hub.client.unsubscribe(link.place + _GONE)

    def _add(self, link: MqttLink) -> None:
        self._hub.add(link)
        self._neighbours[link.place] += 1
        if self._neighbours[link.place] == 1:
            self._hub.client.subscribe(link.place + _GONE, self._hub.qos)

    # What was published

    def take(self, packet: PublishPacket, topic: str) -> None:
        """Take what came for us: from a link, for a new one, or from somebody else."""
        peer = packet.response_topic
        if peer is None:
            self._hub.counts["malformed"] += 1
            return
        label = read_label(packet.correlation_data)
        if label is None:
            self._take_plain(packet.payload, topic, peer)
            return
        kind, tag, number, taken = label
        link = self._hub.links.get((peer, tag))
        if isinstance(link, OckamLink):
            link.heard(kind, number, taken, packet.payload)
        elif kind == Kind.OPEN:
            self._accept(topic, peer, tag, packet.payload)
        elif kind in (Kind.MESSAGE, Kind.ASKING):
            self._hub.counts["unknown"] += 1
            self._say(Kind.UNKNOWN, topic, peer, tag)

    def take_other(self, packet: PublishPacket, topic: str) -> bool:
        """Take the will of a peer, and end the links to that incarnation of it."""
        peer = topic.removesuffix(_GONE)
        if peer == topic or peer not in self._neighbours:
            return False
        for link in list(self._hub.links.values()):
            if (
                isinstance(link, OckamLink)
                and link.place == peer
                and link.incarnation == packet.payload
            ):
                link.end(Reason.TRANSPORT_DOWN, "the broker lost the peer")
        return True

    def _accept(self, topic: str, peer: str, tag: bytes, incarnation: bytes) -> None:
        owner = self._hub.accept(topic) if _is_place(peer) else None
        if owner is None:
            self._say(Kind.REFUSED, topic, peer, tag)
            return
        link = OckamLink(self._hub, owner, topic, peer, tag, incarnation=incarnation)
        self._add(link)
        link.say(Kind.OPENED, self._incarnation)
        link.open()

    def _say(self, kind: Kind, topic: str, peer: str, tag: bytes) -> None:
        connection = self._hub.client.connection
        if connection is not None and _is_place(peer):
            label = write_label(kind, tag)
            connection.publish(peer, b"", self._hub.qos, response_topic=topic, correlation=label)

    def _take_plain(self, payload: bytes, topic: str, peer: str) -> None:
        link = self._hub.links.get((peer, b""))
        if link is None:
            if not _is_frame(payload, peer):
                self._hub.counts["malformed"] += 1
                return
            owner = self._hub.accept(topic)
            if owner is None:
                self._hub.counts["unknown"] += 1
                return
            link = PlainLink(self._hub, owner, topic, peer)
            self._add(link)
            link.end_when_idle()
            link.open()
        if isinstance(link, PlainLink) and link.is_receiving:
            link.take_frame(payload)

    # Broadcasts

    def encode_broadcast(self, multicast_id: str, message: Message) -> bytes:
        """The frame of a broadcast.

        It names the id that it is published under, as joynr's do, so that a message to a single
        node cannot be taken for a broadcast.
        """
        onward = message.onward_route.pushed(Address(LOCAL, multicast_id.encode()))
        addressed = message.rerouted(onward, message.return_route)
        return encode_frame(addressed, limit=self._hub.limits.frame)

    def decode_broadcast(self, multicast_id: str, payload: bytes) -> Message | None:
        """The message of a broadcast, if the frame says that it was published under this id."""
        try:
            message = decode_body(payload[4:])
        except DecodeError:
            return None
        addresses = message.onward_route.addresses
        if not addresses or addresses[0] != Address(LOCAL, multicast_id.encode()):
            return None
        return message.rerouted(Route(addresses[1:]), message.return_route)


def _is_place(topic: str) -> bool:
    """Whether a peer can be published to; it may be anything that it said."""
    try:
        unicast_topic(topic)
    except LocalError:
        return False
    return True


def _is_frame(payload: bytes, peer: str) -> bool:
    """Whether a peer that is not one of our nodes sent a message that can be answered."""
    if int.from_bytes(payload[:4], "big") != len(payload) - 4 or not _is_place(peer):
        return False
    try:
        return bool(decode_body(payload[4:]).onward_route.addresses)
    except DecodeError:
        return False
