"""Messages in joynr's frames: from a Message to an SMRF frame, and back.

joynr has no routes: a frame names a recipient and a sender. So a return route of several hops
becomes the sender's name, and comes back as the recipient of the answer. What a payload is (a
request, a reply, a publication) is read from its `_typeName`; the bytes are never changed (AD-4).

Whoever passes a frame on to another joynr node sends it on as it came, with its headers and its
signature: the payload of a message that was in a frame is a `FramedPayload`, which keeps that.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from waystation.core.address import LOCAL, Address, Route, is_plain
from waystation.core.expiry import Expiry
from waystation.core.message import Message, check_message_id
from waystation.core.multicast import ADDRESS_TYPE as MULTICAST
from waystation.errors import DecodeError, LocalError
from waystation.wire import smrf
from waystation.wire.joynr import (
    CORRELATION,
    PAYLOADS,
    JoynrHeaders,
    MessageType,
    MqttAddress,
)

BACKEND: Final = "joynrdefaultgbid"
"""joynr's name for the broker of nodes that have only one."""

OPEN_REQUESTS: Final = 10_000
"""Requests whose headers are remembered until their replies."""

DISCOVERY: Final = "waystation.joynr.discovery"
"""The worker of a node that answers what applications ask the discovery provider."""

DIRECTORY: Final = "waystation.joynr.directory"
"""The worker that is the directory of all joynr nodes at a broker, or the way to it."""

# Each cluster controller has these, so the names mean something at one node only, as those do that
# begin with `waystation.`.
_WELL_KNOWN: Final = {
    "CC.DiscoveryProvider.ParticipantId": DISCOVERY,
    "capabilitiesdirectory_participantid": DIRECTORY,
}
_AS_KNOWN: Final = {own: known for known, own in _WELL_KNOWN.items()}

_ASKING: Final = frozenset(
    {
        MessageType.REQUEST,
        MessageType.ATTRIBUTE_SUBSCRIPTION_REQUEST,
        MessageType.BROADCAST_SUBSCRIPTION_REQUEST,
    }
)
_ANSWERING: Final = frozenset({MessageType.REPLY, MessageType.SUBSCRIPTION_REPLY})
_TYPE_NAME: Final = re.compile(rb'"_typeName"\s*:\s*"([A-Za-z.]+)"')
_CORRELATION: Final = re.compile(rb'"(?:requestReplyId|subscriptionId)"\s*:\s*"([^"\\]+)"')
_TYPES: Final = {payload.__struct_config__.tag: kind for kind, payload in PAYLOADS.items()}
_ARROW: Final = " => "
_ESCAPED: Final = "joynr%"  # before a name that none of our participants could have, in hex
_SEARCHED: Final = 4096  # bytes of a payload, for its type and correlation
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class FramedPayload(bytes):
    """The body of a frame, with the frame itself.

    It takes the memory of both, which is why a frame is at most twice as large as its message.
    """

    frame: bytes
    recipient: str
    headers: JoynrHeaders

    @classmethod
    def of(cls, data: bytes, read: smrf.SmrfMessage, headers: JoynrHeaders) -> FramedPayload:
        """The payload of a frame that was read."""
        payload = cls(read.body)
        payload.frame = data
        payload.recipient = read.recipient
        payload.headers = headers
        return payload


def custom_headers(message: Message) -> Mapping[str, str]:
    """The headers that a joynr application gave to a message; a reply gets them by itself.

    >>> dict(custom_headers(Message(Route(), Route(), b"{}")))
    {}
    """
    payload = message.payload
    if not isinstance(payload, FramedPayload):
        return _NO_HEADERS
    found = payload.headers.custom.items()
    return MappingProxyType({name: value for name, value in found if name != CORRELATION})


# -- names -----------------------------------------------------------------------------------------


def name_of(participant: str) -> str:
    """Our name for a participant of joynr's: nearly always the same.

    >>> name_of("radio"), name_of("0xab"), name_of("CC.DiscoveryProvider.ParticipantId")
    ('radio', 'joynr%30786162', 'waystation.joynr.discovery')
    """
    if is_plain(participant) and participant not in _WELL_KNOWN:
        return participant
    known = _WELL_KNOWN.get(participant)
    return _ESCAPED + participant.encode().hex() if known is None else known


def joynr_name_of(name: str) -> str:
    """The name in joynr's frames of a participant of ours.

    >>> joynr_name_of("radio"), joynr_name_of("joynr%30786162"), joynr_name_of("joynr%x")
    ('radio', '0xab', 'joynr%x')
    """
    if name.startswith(_ESCAPED):
        try:
            return bytes.fromhex(name.removeprefix(_ESCAPED)).decode()
        except ValueError:  # it is a name like any other
            return name
    return _AS_KNOWN.get(name, name)


def participant_of(route: Route) -> str:
    """The name that stands for a route in a frame: of one address its name, of more the route.

    >>> participant_of(Route.parse("radio")), participant_of(Route.parse("tcp-1 => radio"))
    ('radio', '0#tcp-1 => 0#radio')
    """
    addresses = route.addresses
    if len(addresses) == 1 and addresses[0].type in (LOCAL, MULTICAST):
        return joynr_name_of(addresses[0].name)
    return str(route)


def is_route(participant: str) -> bool:
    """Whether a name stands for a route of ours.

    >>> is_route("0#tcp-1 => 0#radio"), is_route("radio"), is_route("a => ")
    (True, False, False)
    """
    return _ARROW in participant and len(route_of(participant).addresses) > 1


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
    return Route((Address(LOCAL, name_of(participant).encode()),))


def id_of(text: str) -> str:
    """The id of a message: joynr's if it has our form, otherwise one made from it."""
    try:
        return check_message_id(text)
    except LocalError:
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


# -- what has been asked ---------------------------------------------------------------------------


class _Asked(Struct, frozen=True):
    """What of a request is also that of its reply."""

    headers: JoynrHeaders
    compressed: bool
    expiry: Expiry


class OpenRequests:
    """The requests that came over a link and have no reply yet; the oldest are forgotten."""

    def __init__(self, limit: int = OPEN_REQUESTS) -> None:
        self._limit = limit
        self._asked: dict[str, _Asked] = {}

    def __len__(self) -> int:
        """How many there are."""
        return len(self._asked)

    def note(self, read: smrf.SmrfMessage, headers: JoynrHeaders) -> None:
        """Remember a request, if it is one that gets a reply."""
        correlation = headers.custom.get(CORRELATION)
        if headers.type not in _ASKING or correlation is None:
            return
        if len(self._asked) >= self._limit:
            del self._asked[next(iter(self._asked))]
        self._asked[correlation] = _Asked(headers, read.is_compressed, read.ttl)

    def take(self, correlation: str) -> _Asked | None:
        """What the reply to a request is to have; it is not remembered any longer."""
        return self._asked.pop(correlation, None)


# -- writing ---------------------------------------------------------------------------------------


def message_type(payload: bytes) -> MessageType | None:
    """The kind of message of a payload, by the first type that it names.

    >>> message_type(b'{"_typeName":"joynr.Reply","requestReplyId":"1","response":[]}')
    <MessageType.REPLY: 'rp'>
    """
    found = _TYPE_NAME.search(payload, 0, _SEARCHED)
    return None if found is None else _TYPES.get(found[1].decode())


class WrittenFrame(Struct, frozen=True):
    """A frame that leaves, with what the transport below says of it as well."""

    data: bytes
    recipient: str
    headers: JoynrHeaders
    expiry: Expiry


def encode_unicast(
    message: Message,
    *,
    reply_to: str = "",
    best_effort: bool = False,
    asked: OpenRequests | None = None,
) -> WrittenFrame:
    """The frame of a message that leaves; the first address of its onward route is the link's.

    `reply_to` is the topic where the reply to a request is expected; without one the request is for
    somebody who replies to where it came from. A frame that came in leaves as it is, unless it is a
    request that says nothing of that topic.
    """
    payload, onward = message.payload, message.onward_route.rest()
    if not onward.addresses:
        raise _without_participants()
    recipient = participant_of(onward)
    if isinstance(payload, FramedPayload) and payload.recipient == recipient:
        headers = payload.headers
        if not reply_to or headers.type not in _ASKING or _has_reply_to(headers, reply_to):
            return WrittenFrame(payload.frame, recipient, headers, message.expiry)
        return _with_reply_to(payload, reply_to, message.expiry)
    if onward.addresses[0].type == MULTICAST:
        return encode_multicast(recipient, message)
    return _written(message, recipient, reply_to, best_effort=best_effort, asked=asked)


def _written(
    message: Message,
    recipient: str,
    reply_to: str,
    *,
    best_effort: bool,
    asked: OpenRequests | None,
) -> WrittenFrame:
    payload, expiry = message.payload, message.expiry
    kind = message_type(payload)
    found = _CORRELATION.search(payload, 0, _SEARCHED)
    try:
        correlation = None if found is None else found[1].decode()
    except UnicodeDecodeError:
        kind = None
    if kind is None:
        raise LocalError(
            "the payload is not joynr's", rule="WK-10", hint="write it with wire/joynr.py"
        )
    if not message.return_route.addresses:
        raise _without_participants()
    custom = {} if correlation is None else {CORRELATION: correlation}
    compressed = False
    if kind in _ANSWERING and asked is not None and correlation is not None:
        request = asked.take(correlation)
        if request is not None:
            custom = request.headers.custom | custom
            best_effort = request.headers.best_effort
            compressed = request.compressed
            expiry = min(expiry, request.expiry)
    headers = JoynrHeaders(
        kind,
        message.id,
        MqttAddress(BACKEND, reply_to) if reply_to and kind in _ASKING else None,
        best_effort,
        custom,
    )
    frame = smrf.SmrfMessage(
        recipient,
        participant_of(message.return_route),
        expiry,
        headers.written(),
        payload,
        is_compressed=compressed,
    )
    return WrittenFrame(smrf.encode(frame), recipient, headers, expiry)


def _has_reply_to(headers: JoynrHeaders, topic: str) -> bool:
    return headers.reply_to is not None and headers.reply_to.topic == topic


def _with_reply_to(payload: FramedPayload, topic: str, expiry: Expiry) -> WrittenFrame:
    """The frame of a request that came in, with where the reply to it is expected."""
    read = smrf.decode(payload.frame, max_size=len(payload.frame) + len(payload))
    old = payload.headers
    if read.signature:  # which is worth more than a reply
        return WrittenFrame(payload.frame, read.recipient, old, expiry)
    address = MqttAddress(BACKEND, topic)
    headers = JoynrHeaders(old.type, old.id, address, old.best_effort, old.custom)
    frame = smrf.SmrfMessage(
        read.recipient,
        read.sender,
        read.ttl,
        headers.written(),
        read.body,
        is_compressed=read.is_compressed,
    )
    return WrittenFrame(smrf.encode(frame), read.recipient, headers, expiry)


def encode_multicast(multicast_id: str, message: Message) -> WrittenFrame:
    """The frame of a broadcast: its recipient is the multicast id, its sender the provider."""
    payload = message.payload
    if isinstance(payload, FramedPayload) and payload.recipient == multicast_id:
        return WrittenFrame(payload.frame, multicast_id, payload.headers, message.expiry)
    headers = JoynrHeaders(MessageType.MULTICAST, message.id)
    provider = multicast_id.partition("/")[0]
    frame = smrf.SmrfMessage(
        multicast_id, provider, message.expiry, headers.written(), message.payload
    )
    return WrittenFrame(smrf.encode(frame), multicast_id, headers, message.expiry)


def _without_participants() -> LocalError:
    return LocalError(
        "joynr's messages need a recipient and a sender", rule="AD-6", hint="give both routes"
    )


# -- reading ---------------------------------------------------------------------------------------


def decode_frame(data: bytes, *, limit: int) -> tuple[smrf.SmrfMessage, JoynrHeaders]:
    """A frame and its headers; DecodeError for what no joynr router would take."""
    frame = smrf.decode(data, max_size=limit)
    if not frame.ttl_absolute or frame.is_encrypted:
        raise DecodeError("the frame is encrypted, or its ttl is relative", format="smrf")
    return frame, JoynrHeaders.read(frame.headers)


def message_of(
    data: bytes, frame: smrf.SmrfMessage, headers: JoynrHeaders, onward: Route
) -> Message:
    """The message in a frame."""
    payload = FramedPayload.of(data, frame, headers)
    return Message(onward, route_of(frame.sender), payload, id_of(headers.id), frame.ttl)
