"""joynr's messages over a broker: SMRF frames on joynr's own topics, as links and as broadcasts.

joynr has no routes: a frame names a recipient and a sender, and a request says on which topic its
sender is reached. So `mqtt#channel-1 => radio` becomes a frame for the participant `radio`, on the
topic of channel-1; a way back of several hops becomes a sender's name that is that very route, and
comes back as the recipient of the answer. What a payload is (a request, a reply, a publication) is
read from its `_typeName`; the bytes themselves are never changed (AD-4).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Final

from waystation.core.address import LOCAL, Address, Route
from waystation.core.message import Message, check_message_id
from waystation.core.outcome import Reason
from waystation.errors import DecodeError, LocalError
from waystation.transports.mqtt.link import Hub, MqttLink, expiry_seconds
from waystation.transports.transport import LinkOwner
from waystation.wire import smrf
from waystation.wire.joynr import (
    CORRELATION,
    CUSTOM_PREFIX,
    PAYLOADS,
    JoynrHeaders,
    MessageType,
    MqttAddress,
    unicast_topic,
)

BACKEND: Final = "joynrdefaultgbid"
"""joynr's name for the one broker of those who have one."""

PARKED: Final = 10_000
"""So many messages wait for a slow receiver: joynr knows no way to hold its senders back."""

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
_LOOKED_AT: Final = 4096  # bytes of a payload in which its type and correlation are looked for


def message_type(payload: bytes) -> MessageType | None:
    """What kind of message a payload makes, by the first type that it names.

    >>> message_type(b'{"_typeName":"joynr.Reply","requestReplyId":"1","response":[]}')
    <MessageType.REPLY: 'rp'>
    """
    found = _TYPE_NAME.search(payload, 0, _LOOKED_AT)
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
            pass  # somebody's odd name, and not a route of ours
    return Route((Address(LOCAL, participant.encode()),))


def id_of(text: str) -> str:
    """The id of a message: its own if it is one of ours, else one that is made from it."""
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
    found = _CORRELATION.search(message.payload, 0, _LOOKED_AT)
    try:
        custom = {} if found is None else {CORRELATION: found[1].decode()}
    except UnicodeDecodeError:
        kind = None
    if kind is None:
        raise LocalError(
            "the payload is none of joynr's", rule="WK-10", hint="write it with wire/joynr.py"
        )
    if not onward.addresses or not message.return_route.addresses:
        raise LocalError(
            "joynr's messages have a recipient and a sender", rule="AD-6", hint="give both routes"
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
        self,
        hub: Hub,
        owner: LinkOwner,
        inbox: str,
        peer: str,
        learn: Callable[[str, JoynrLink], None],
    ) -> None:
        super().__init__(hub, owner, inbox, peer)
        self._topic = unicast_topic(peer)
        self._learn = learn  # who is to be found behind this link
        self._parked: list[Message] = []

    def send(self, message: Message) -> Reason | None:
        """Publish a message as a frame for its recipient."""
        try:
            frame, headers, recipient = encode_unicast(
                message, self.inbox, best_effort=not self._qos
            )
        except LocalError as error:
            return Reason.NO_ROUTE if error.rule == "AD-6" else Reason.MALFORMED
        if len(frame) > self._hub.limits.frame:
            return Reason.TOO_LARGE
        self._learn(recipient, self)
        properties = [(CUSTOM_PREFIX + name, value) for name, value in headers.custom.items()]
        reason = self._publish(
            self._topic,
            frame,
            expiry_seconds(message.expiry),
            properties=properties,
            is_message=True,
        )
        self._hold_owner()
        return reason

    def send_control(self, payload: bytes) -> None:
        """Say nothing: joynr has no sessions."""

    def heard(self, message: Message) -> None:
        """A frame came from there."""
        if self._over or self._closing:
            return
        self._used = True
        message = message.arrived(self.owner.address)
        if self._reading:
            self._batch.append(message)
            self._hub.touch(self)
            return
        self._parked.append(message)
        if len(self._parked) > PARKED:
            self.end(Reason.QUEUE_FULL, "more came than anybody here had room for")

    def _take_held(self) -> None:
        self._batch += self._parked
        self._parked = []
