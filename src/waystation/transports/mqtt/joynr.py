"""joynr's messages over a broker: SMRF frames on joynr's own topics, as links and as broadcasts.

A frame names a recipient and a sender (wire/joynr_frames.py), and a request says on which topic its
sender is reached. So `mqtt#channel-1 => radio` becomes a frame for the participant `radio`, on the
topic of channel-1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mqtt5 import PublishPacket, Will

from waystation.core.address import Route
from waystation.core.message import Message
from waystation.core.outcome import Reason
from waystation.errors import DecodeError, LocalError
from waystation.transports.mqtt.link import MqttLink, expiry_seconds
from waystation.transports.transport import LinkOwner
from waystation.wire.joynr import (
    CUSTOM_PREFIX,
    JoynrHeaders,
    MessageType,
    unicast_filter,
    unicast_topic,
)
from waystation.wire.joynr_frames import (
    OpenRequests,
    decode_frame,
    encode_multicast,
    encode_unicast,
    message_of,
    route_of,
)
from waystation.wire.smrf import SmrfMessage

if TYPE_CHECKING:
    from waystation.transports.mqtt.transport import Mqtt

PARTICIPANTS: Final = 10_000
"""Participants whose link is remembered."""

STRANGERS: Final = "+"
"""The place of the link over which comes what says nothing of where its sender is."""

_MALFORMED: Final = Reason.MALFORMED
_NOWHERE: Final = Route()


class JoynrLink(MqttLink):
    """A link to a joynr node: known by its topic, and by the participants that speak from there."""

    def __init__(
        self, hub: Mqtt, owner: LinkOwner, inbox: str, peer: str, learn: Callable[..., None]
    ) -> None:
        super().__init__(hub, owner, inbox, peer)
        self._topic = "" if peer == STRANGERS else unicast_topic(peer)
        if peer == STRANGERS:
            self.key = (peer, inbox.encode())
        self._learn = learn  # which participants are behind this link
        self.asked = OpenRequests()

    def heard(self, message: Message, size: int) -> None:
        """Take a message that came from there."""
        if self.is_receiving:
            self._take((message.arrived(self.owner.address),), size)

    def publish(self, message: Message) -> Reason | None:
        """Publish a message in joynr's frame."""
        if not self._topic:
            return Reason.NO_ROUTE
        frame = encode_unicast(
            message, reply_to=self.inbox, best_effort=not self._qos, asked=self.asked
        )
        if len(frame.data) > self._hub.limits.frame:
            return Reason.TOO_LARGE
        self._learn(frame.recipient, self)
        custom = frame.headers.custom.items()
        return self._publish(
            self._topic,
            frame.data,
            self._message_acknowledged,
            expiry=expiry_seconds(frame.expiry),
            properties=[(CUSTOM_PREFIX + name, value) for name, value in custom],
        )


class JoynrFormat:
    """What a node does that speaks joynr's frames over a broker."""

    def __init__(self, hub: Mqtt) -> None:
        self._hub = hub
        self._participants: dict[str, JoynrLink] = {}  # who speaks from where

    def inbox_filter(self, topic: str) -> str:
        """What to subscribe to, to receive what is published for a topic of ours."""
        return unicast_filter(topic)

    def make_will(self) -> Will | None:
        """Announce nothing: joynr's nodes do not listen for it."""
        return None

    async def open(self, topic: str, qos: int | None, owner: LinkOwner) -> MqttLink:
        """Open a link to a joynr node, which is not asked."""
        if qos is not None:
            raise OSError(f"{topic}: with joynr's format the QoS is that of the transport")
        return self._add(owner, self._hub.topic, topic)

    def forgot(self, link: MqttLink) -> None:
        """Forget the participants behind a link."""
        for name in [name for name, known in self._participants.items() if known is link]:
            del self._participants[name]

    # What was published

    def take(self, packet: PublishPacket, topic: str) -> None:
        """Take a frame for one of our participants."""
        try:
            frame, headers = self._unicast(packet.payload)
        except DecodeError as error:
            self._hub.counts["malformed"] += 1
            self._record(topic, Reason.TOO_LARGE if error.too_large else _MALFORMED, str(error))
            return
        onward = route_of(frame.recipient)
        message = message_of(packet.payload, frame, headers, onward)
        if headers.reply_to is not None:
            link = self._link(topic, headers.reply_to.topic)
        else:
            link = self._participants.get(frame.sender)
            if link is None:  # joynr says where it is only in requests
                message = message.rerouted(onward, _NOWHERE)
                self._take_of_stranger(topic, message, len(packet.payload))
                return
        if link is None:
            self._hub.counts["unknown"] += 1
            return
        self._learn(frame.sender, link)
        link.asked.note(frame, headers)
        link.heard(message, len(packet.payload))

    def _take_of_stranger(self, topic: str, message: Message, size: int) -> None:
        """Take what says nothing of where its sender is, and so cannot be answered.

        A node that listens to nobody has such messages over what it has opened: a provider that it
        subscribed to may have been behind a link that was lost since.
        """
        link = self._link(topic, STRANGERS) or self._opened(topic)
        if link is None:
            self._hub.counts["unknown"] += 1
        else:
            link.heard(message, size)

    def _opened(self, topic: str) -> JoynrLink | None:
        """A link whose peer answers on a topic of ours."""
        links = self._hub.links.values()
        return next((x for x in links if isinstance(x, JoynrLink) and x.inbox == topic), None)

    def _unicast(self, data: bytes) -> tuple[SmrfMessage, JoynrHeaders]:
        frame, headers = decode_frame(data, limit=self._hub.limits.frame)
        if headers.type is MessageType.MULTICAST:
            raise DecodeError("a broadcast came on the topic of one node", format="joynr")
        return frame, headers

    def _record(self, topic: str, reason: Reason, detail: str) -> None:
        """Have something recorded that became no message, by an owner of its own."""
        owner = self._hub.accept(topic)
        if owner is not None:
            owner.closed(reason, f"{topic}: {detail}")

    def take_other(self, packet: PublishPacket, topic: str) -> bool:
        """Take a frame on a topic below one of ours, where joynr publishes."""
        for own in self._hub.inboxes:
            if topic.startswith(own) and topic[len(own) :].startswith("/"):
                self.take(packet, own)
                return True
        return False

    def _link(self, topic: str, peer: str) -> JoynrLink | None:
        key = (peer, topic.encode() if peer == STRANGERS else b"")
        link = self._hub.links.get(key)
        if link is None:
            owner = self._hub.accept(topic)
            if owner is None:
                return None
            link = self._add(owner, topic, peer)
            link.end_when_idle()
        return link if isinstance(link, JoynrLink) else None

    def _add(self, owner: LinkOwner, inbox: str, peer: str) -> JoynrLink:
        link = JoynrLink(self._hub, owner, inbox, peer, self._learn)
        self._hub.add(link)
        link.open()
        return link

    def _learn(self, participant: str, link: JoynrLink) -> None:
        if self._participants.get(participant) is not link:
            if len(self._participants) >= PARTICIPANTS:
                self._participants.clear()
            self._participants[participant] = link

    # Broadcasts

    def encode_broadcast(self, multicast_id: str, message: Message) -> bytes:
        """The frame of a broadcast."""
        frame = encode_multicast(multicast_id, message).data
        if len(frame) > self._hub.limits.frame:
            raise LocalError(f"{len(frame)} bytes in a frame", rule="OB-2", hint="send less")
        return frame

    def decode_broadcast(self, multicast_id: str, payload: bytes) -> Message | None:
        """The message of a broadcast, if the frame says that it was published under this id."""
        try:
            frame, headers = decode_frame(payload, limit=self._hub.limits.frame)
        except DecodeError:
            return None
        if headers.type is not MessageType.MULTICAST or frame.recipient != multicast_id:
            return None
        return message_of(payload, frame, headers, Route())
