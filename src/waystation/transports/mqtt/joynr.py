"""joynr's messages over a broker: SMRF frames on joynr's own topics, as links and as broadcasts.

joynr has no routes: a frame names a recipient and a sender, and a request says on which topic its
sender is reached. So `mqtt#channel-1 => radio` becomes a frame for the participant `radio`, on the
topic of channel-1; a return route of several hops becomes the sender's name, and comes back as the
recipient of the answer. What a payload is (a request, a reply, a publication) is read from its
`_typeName`; the bytes themselves are never changed (AD-4).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mqtt5 import PublishPacket, Will

from waystation.core.address import LOCAL, Address, Route
from waystation.core.message import Message, check_message_id
from waystation.core.outcome import Reason
from waystation.errors import DecodeError, LocalError
from waystation.transports.mqtt.link import MqttLink, expiry_seconds
from waystation.transports.transport import LinkOwner
from waystation.wire import smrf
from waystation.wire.joynr import (
    CORRELATION,
    CUSTOM_PREFIX,
    PAYLOADS,
    JoynrHeaders,
    MessageType,
    MqttAddress,
    unicast_filter,
    unicast_topic,
)

if TYPE_CHECKING:
    from waystation.transports.mqtt.transport import Mqtt

BACKEND: Final = "joynrdefaultgbid"
"""joynr's name for the broker of nodes that have only one."""

PARTICIPANTS: Final = 10_000
"""Participants whose link is remembered."""

_ASKING: Final = frozenset(
    {
        MessageType.REQUEST,
        MessageType.ATTRIBUTE_SUBSCRIPTION_REQUEST,
        MessageType.BROADCAST_SUBSCRIPTION_REQUEST,
    }
)
_TYPE_NAME: Final = re.compile(rb'"_typeName"\s*:\s*"([A-Za-z.]+)"')
_CORRELATION: Final = re.compile(rb'"(?:requestReplyId|subscriptionId)"\s*:\s*"([^"\\]+)"')
_TYPES: Final = {payload.__struct_config__.tag: kind for kind, payload in PAYLOADS.items()}
_ARROW: Final = " => "
_SEARCHED: Final = 4096  # bytes of a payload, for its type and correlation
_LOW: Final = "/low"  # behind a node's topic: where joynr publishes what is for it


def message_type(payload: bytes) -> MessageType | None:
    """The kind of message of a payload, by the first type that it names.

    >>> message_type(b'{"_typeName":"joynr.Reply","requestReplyId":"1","response":[]}')
    <MessageType.REPLY: 'rp'>
    """
    found = _TYPE_NAME.search(payload, 0, _SEARCHED)
    return None if found is None else _TYPES.get(found[1].decode())


def participant_of(route: Route) -> str:
    """The name that stands for a route in a frame: of one address its name, of more the route.

    >>> participant_of(Route.parse("radio")), participant_of(Route.parse("tcp-1 => radio"))
    ('radio', '0#tcp-1 => 0#radio')
    """
    addresses = route.addresses
    if len(addresses) == 1 and addresses[0].type == LOCAL:
        return addresses[0].name
    return str(route)


def route_of(participant: str) -> Route:
    """The route that a name in a frame stands for.

    >>> route_of("0#tcp-1 => 0#radio") == Route.parse("tcp-1 => radio")
    True
    """
    if _ARROW in participant:
        try:
            return Route.parse(participant)
        except LocalError:
            pass  # a participant with an odd name, not a route of ours
    return Route((Address(LOCAL, participant.encode()),))


def id_of(text: str) -> str:
    """The id of a message: joynr's if it has our form, otherwise one made from it."""
    try:
        return check_message_id(text)
    except LocalError:
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def encode_unicast(
    message: Message, own_topic: str, *, best_effort: bool = False
) -> tuple[bytes, JoynrHeaders, str]:
    """The frame of a message that leaves, its headers and its recipient.

    The first address of the onward route is that of the link.
    """
    onward = message.onward_route.rest()
    kind = message_type(message.payload)
    found = _CORRELATION.search(message.payload, 0, _SEARCHED)
    try:
        custom = {} if found is None else {CORRELATION: found[1].decode()}
    except UnicodeDecodeError:
        kind = None
    if kind is None:
        raise LocalError(
            "the payload is not joynr's", rule="WK-10", hint="write it with wire/joynr.py"
        )
    if not onward.addresses or not message.return_route.addresses:
        raise LocalError(
            "joynr's messages need a recipient and a sender", rule="AD-6", hint="give both routes"
        )
    headers = JoynrHeaders(
        kind,
        message.id,
        MqttAddress(BACKEND, own_topic) if kind in _ASKING else None,
        best_effort,
        custom,
    )
    recipient = participant_of(onward)
    frame = smrf.encode(
        smrf.SmrfMessage(
            recipient,
            participant_of(message.return_route),
            message.expiry,
            headers.written(),
            message.payload,
        )
    )
    return frame, headers, recipient


def encode_multicast(multicast_id: str, message: Message) -> bytes:
    """The frame of a broadcast: its recipient is the multicast id, its sender the provider."""
    headers = JoynrHeaders(MessageType.MULTICAST, message.id).written()
    provider = multicast_id.partition("/")[0]
    return smrf.encode(
        smrf.SmrfMessage(multicast_id, provider, message.expiry, headers, message.payload)
    )


def decode_frame(data: bytes, *, limit: int) -> tuple[smrf.SmrfMessage, JoynrHeaders]:
    """A frame and its headers; DecodeError for what no joynr router would take."""
    frame = smrf.decode(data, max_size=limit)
    if not frame.ttl_absolute or frame.is_encrypted:
        raise DecodeError("the frame is encrypted, or its ttl is relative", format="smrf")
    return frame, JoynrHeaders.read(frame.headers)


def message_of(frame: smrf.SmrfMessage, headers: JoynrHeaders, onward: Route) -> Message:
    """The message in a frame."""
    return Message(onward, route_of(frame.sender), frame.body, id_of(headers.id), frame.ttl)


class JoynrLink(MqttLink):
    """A link to a joynr node: known by its topic, and by the participants that speak from there."""

    def __init__(
        self, hub: Mqtt, owner: LinkOwner, inbox: str, peer: str, learn: Callable[..., None]
    ) -> None:
        super().__init__(hub, owner, inbox, peer)
        self._topic = unicast_topic(peer)
        self._learn = learn  # which participants are behind this link

    def heard(self, message: Message, size: int) -> None:
        """Take a message that came from there."""
        if self.is_receiving:
            self._take((message.arrived(self.owner.address),), size)

    def publish(self, message: Message) -> Reason | None:
        """Publish a message in joynr's frame."""
        frame, headers, recipient = encode_unicast(message, self.inbox, best_effort=not self._qos)
        if len(frame) > self._hub.limits.frame:
            return Reason.TOO_LARGE
        self._learn(recipient, self)
        return self._publish(
            self._topic,
            frame,
            self._message_acknowledged,
            expiry=expiry_seconds(message.expiry),
            properties=[(CUSTOM_PREFIX + name, value) for name, value in headers.custom.items()],
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
            frame, headers = decode_frame(packet.payload, limit=self._hub.limits.frame)
        except DecodeError:
            self._hub.counts["malformed"] += 1
            return
        if headers.type is MessageType.MULTICAST:
            self._hub.counts["malformed"] += 1
            return
        if headers.reply_to is None:
            link = self._participants.get(frame.sender)
        else:
            link = self._link(topic, headers.reply_to.topic)
        if link is None:
            self._hub.counts["unknown"] += 1
            return
        self._learn(frame.sender, link)
        message = message_of(frame, headers, route_of(frame.recipient))
        link.heard(message, len(packet.payload))

    def take_other(self, packet: PublishPacket, topic: str) -> bool:
        """Take a frame on the topic below one of ours, where joynr publishes."""
        own = topic.removesuffix(_LOW)
        if own == topic or own not in self._hub.inboxes:
            return False
        self.take(packet, own)
        return True

    def _link(self, topic: str, peer: str) -> JoynrLink | None:
        link = self._hub.links.get((peer, b""))
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
        frame = encode_multicast(multicast_id, message)
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
        return message_of(frame, headers, Route())
