"""The contents of joynr's SMRF frames: headers and JSON payloads; and its MQTT topics.

Only names and forms are here: no routing, no matching of multicast ids (`core/multicast.py`), and
no envelope (`smrf.py`). A payload is a Struct whose `_typeName` is joynr's name for it. On writing,
`_typeName` comes first and the other properties in alphabetical order, without those that are null,
as Java writes them; on reading any order is accepted, and unknown properties are ignored.

A `_typeName` from a peer is only ever compared with the names below. Nested values, in
parameters and results, stay plain JSON: no class is ever looked up by a name from a peer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from itertools import islice
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta, Struct, field, structs

from waystation.core.multicast import ONE, MulticastId, check_pattern, mqtt_filter
from waystation.errors import DecodeError, LocalError, quote
from waystation.wire.smrf import MAX_SIZE

MAX_DEPTH: Final = 64
"""Maximum nesting depth of a payload, so that recursive readers do not run out of stack."""

MAX_ITEMS: Final = 100_000
"""Maximum number of values in the JSON of a payload: each takes far more memory than text."""

_SHOWN_CHARACTERS: Final = 120
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)


# -- payloads --------------------------------------------------------------------------------------

Milliseconds: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class _Payload(Struct, frozen=True, kw_only=True, tag_field="_typeName", rename="camel"):
    """Base class of all payloads. The order of fields is the order in the JSON."""


class _Sparse(_Payload, frozen=True, kw_only=True, omit_defaults=True):
    """A payload with optional properties."""


class RemoteException(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What went wrong at the other side; which properties it has depends on `type_name`.

    It is one class for all exceptions, since applications and newer versions add their own.

    >>> encode_payload(Reply(request_reply_id="1", error=RemoteException.of("boom")))[:61]
    b'{"_typeName":"joynr.Reply","error":{"_typeName":"joynr.except'
    """

    type_name: str = field(name="_typeName")
    detail_message: str | None = None
    error: Any = None  # the application's own error, of an ApplicationException
    provider_version: Any = None  # of a MethodInvocationException
    subscription_id: str | None = None  # of a SubscriptionException

    @classmethod
    def of(cls, message: str) -> RemoteException:
        """The reply of a provider that failed."""
        return cls(type_name="joynr.exceptions.ProviderRuntimeException", detail_message=message)


class OneWayRequest(_Payload, frozen=True, kw_only=True, tag="joynr.OneWayRequest"):
    """A call without a reply."""

    method_name: str
    param_datatypes: tuple[str, ...] = ()
    params: tuple[Any, ...] = ()


class Request(_Payload, frozen=True, kw_only=True, tag="joynr.Request"):
    """A call.

    >>> encode_payload(Request(method_name="getVolume", request_reply_id="7"))[28:]
    b',"methodName":"getVolume","paramDatatypes":[],"params":[],"requestReplyId":"7"}'
    """

    method_name: str
    param_datatypes: tuple[str, ...] = ()
    params: tuple[Any, ...] = ()
    request_reply_id: str


class Reply(_Sparse, frozen=True, kw_only=True, tag="joynr.Reply"):
    """The reply to a call: the results, an empty tuple for none, or the error."""

    error: RemoteException | None = None
    request_reply_id: str
    response: tuple[Any, ...] | None = None


class OnChangeSubscriptionQos(
    _Payload, frozen=True, kw_only=True, tag="joynr.OnChangeSubscriptionQos"
):
    """Publish when the value changes. An expiry date of 0 means never."""

    expiry_date_ms: Milliseconds = 0
    min_interval_ms: Milliseconds = 1_000
    publication_ttl_ms: Milliseconds = 10_000


class OnChangeWithKeepAliveSubscriptionQos(
    _Payload, frozen=True, kw_only=True, tag="joynr.OnChangeWithKeepAliveSubscriptionQos"
):
    """Publish when the value changes, and when nothing was published for the longest interval."""

    alert_after_interval_ms: Milliseconds = 0
    expiry_date_ms: Milliseconds = 0
    max_interval_ms: Milliseconds = 60_000
    min_interval_ms: Milliseconds = 1_000
    publication_ttl_ms: Milliseconds = 10_000


class PeriodicSubscriptionQos(
    _Payload, frozen=True, kw_only=True, tag="joynr.PeriodicSubscriptionQos"
):
    """Publish at intervals."""

    alert_after_interval_ms: Milliseconds = 0
    expiry_date_ms: Milliseconds = 0
    period_ms: Milliseconds = 60_000
    publication_ttl_ms: Milliseconds = 10_000


SubscriptionQos: TypeAlias = (
    OnChangeSubscriptionQos | OnChangeWithKeepAliveSubscriptionQos | PeriodicSubscriptionQos
)


class SubscriptionRequest(_Payload, frozen=True, kw_only=True, tag="joynr.SubscriptionRequest"):
    """Asks a provider to publish an attribute."""

    qos: SubscriptionQos
    subscribed_to_name: str
    subscription_id: str


class BroadcastFilterParameters(
    _Payload, frozen=True, kw_only=True, tag="joynr.BroadcastFilterParameters"
):
    """What a selective broadcast is filtered by."""

    filter_parameters: dict[str, str] = field(default_factory=dict)


class BroadcastSubscriptionRequest(
    _Sparse, frozen=True, kw_only=True, tag="joynr.BroadcastSubscriptionRequest"
):
    """Asks a provider to publish a selective broadcast."""

    filter_parameters: BroadcastFilterParameters | None = None
    qos: SubscriptionQos
    subscribed_to_name: str
    subscription_id: str


class SubscriptionReply(_Sparse, frozen=True, kw_only=True, tag="joynr.SubscriptionReply"):
    """Confirms a subscription, or says why it failed."""

    error: RemoteException | None = None
    subscription_id: str


class SubscriptionStop(_Payload, frozen=True, kw_only=True, tag="joynr.SubscriptionStop"):
    """Ends a subscription."""

    subscription_id: str


class SubscriptionPublication(
    _Sparse, frozen=True, kw_only=True, tag="joynr.SubscriptionPublication"
):
    """A value for one subscriber, or the error."""

    error: RemoteException | None = None
    response: tuple[Any, ...] | None = None
    subscription_id: str


class MulticastPublication(_Sparse, frozen=True, kw_only=True, tag="joynr.MulticastPublication"):
    """A value for all subscribers; the recipient of its frame is the multicast id too (MC-1)."""

    error: RemoteException | None = None
    multicast_id: str
    response: tuple[Any, ...] | None = None


Payload: TypeAlias = (
    Request
    | OneWayRequest
    | Reply
    | SubscriptionRequest
    | BroadcastSubscriptionRequest
    | SubscriptionReply
    | SubscriptionStop
    | SubscriptionPublication
    | MulticastPublication
)


class MessageType(StrEnum):
    """The header `t`: what a frame holds."""

    REQUEST = "rq"
    ONE_WAY_REQUEST = "o"
    REPLY = "rp"
    ATTRIBUTE_SUBSCRIPTION_REQUEST = "arq"
    BROADCAST_SUBSCRIPTION_REQUEST = "brq"
    MULTICAST_SUBSCRIPTION_REQUEST = "mrq"  # not sent by any release since 2020
    SUBSCRIPTION_REPLY = "srp"
    SUBSCRIPTION_STOP = "sst"
    PUBLICATION = "p"
    MULTICAST = "m"


PAYLOADS: Final[Mapping[MessageType, type[Payload]]] = {
    MessageType.REQUEST: Request,
    MessageType.ONE_WAY_REQUEST: OneWayRequest,
    MessageType.REPLY: Reply,
    MessageType.ATTRIBUTE_SUBSCRIPTION_REQUEST: SubscriptionRequest,
    MessageType.BROADCAST_SUBSCRIPTION_REQUEST: BroadcastSubscriptionRequest,
    MessageType.SUBSCRIPTION_REPLY: SubscriptionReply,
    MessageType.SUBSCRIPTION_STOP: SubscriptionStop,
    MessageType.PUBLICATION: SubscriptionPublication,
    MessageType.MULTICAST: MulticastPublication,
}
"""The payload class of each message type."""

_PAYLOAD_DECODER: Final = msgspec.json.Decoder(Payload)
_ENCODER: Final = msgspec.json.Encoder()


def decode_payload(
    body: bytes | bytearray | memoryview,
    type: MessageType | None = None,
    *,
    max_size: int = MAX_SIZE,
) -> Payload:
    """Read a payload; with a `type`, it must be the payload of that type of message.

    Unknown properties are skipped without being decoded.

    >>> decode_payload(b'{"_typeName":"joynr.SubscriptionStop","subscriptionId":"7","new":1}')
    SubscriptionStop(subscription_id='7')
    """
    if not isinstance(body, bytes):
        body = bytes(body)
    if MAX_ITEMS < len(body) <= max_size and _has_too_many_values(body):
        raise DecodeError(
            f"the payload has more than {MAX_ITEMS} values", format="joynr", too_large=True
        )
    payload: Payload = _decoded(_PAYLOAD_DECODER, body, max_size)
    if type is not None and PAYLOADS.get(type) is not payload.__class__:
        raise _malformed(f"a message of type {type} holds a {payload.__class__.__name__}")
    # A payload with few brackets cannot be deep; only the others are walked through.
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and _too_deep(payload):
        raise _malformed(f"the payload is nested deeper than {MAX_DEPTH}")
    return payload


def encode_payload(payload: Payload) -> bytes:
    """Encode a payload. Besides the Structs of this module it may contain any JSON value.

    JSON has neither infinity nor NaN: they are written as null.

    >>> encode_payload(MulticastPublication(multicast_id="p/b", response=(48.1, 11.5)))[41:]
    b',"multicastId":"p/b","response":[48.1,11.5]}'
    """
    if isinstance(payload, SubscriptionRequest | BroadcastSubscriptionRequest):
        _check_qos(payload)
    body = _encoded(payload)
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and _too_deep(payload):
        raise _unwritable(payload, f"it is nested deeper than {MAX_DEPTH}")
    return body


def _check_qos(payload: SubscriptionRequest | BroadcastSubscriptionRequest) -> None:
    for number in structs.astuple(payload.qos):
        if not (isinstance(number, int) and -(2**63) <= number < 2**63):
            raise _unwritable(payload, f"{quote(number)} in its qos is not a 64-bit number")


def _has_too_many_values(body: bytes) -> bool:
    """Whether a JSON text has more than MAX_ITEMS values, by the number of separators."""
    count = _separators(body, 0, len(body))
    if count <= MAX_ITEMS:
        return False
    # Text in a string contains no values. With more strings than that many values and their keys
    # there are too many anyway.
    for string in islice(_STRING.finditer(body), 2 * MAX_ITEMS):
        count -= _separators(body, *string.span())
        if count <= MAX_ITEMS:
            return False
    return True


def _separators(body: bytes, start: int, end: int) -> int:
    count = body.count
    return count(b",", start, end) + count(b"[", start, end) + count(b"{", start, end)


def _decoded(decoder: msgspec.json.Decoder[Any], text: bytes | str, max_size: int) -> Any:
    if len(text) > max_size:
        raise DecodeError(
            f"{len(text)} bytes are over {max_size}", format="joynr", offset=0, too_large=True
        )
    try:
        return decoder.decode(text)
    except UnicodeError:
        raise _malformed("a string is not UTF-8") from None
    except msgspec.DecodeError as error:
        raise _malformed(
            f"{error}"[:_SHOWN_CHARACTERS]
        ) from None  # it may quote the peer at length
    except RecursionError:
        raise _malformed(f"the payload is nested deeper than {MAX_DEPTH}") from None


def _encoded(value: Struct) -> bytes:
    try:
        return _ENCODER.encode(value)
    except RecursionError:
        raise _unwritable(value, f"it is nested deeper than {MAX_DEPTH}") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise _unwritable(value, f"{error}") from None


def _too_deep(payload: Payload) -> bool:
    """Go through the containers of a payload level by level."""
    level: list[Any] = [payload]
    for _ in range(MAX_DEPTH):
        level = [
            value
            for container in level
            for value in _contents(container)
            if isinstance(value, list | tuple | dict | Struct)
        ]
        if not level:
            return False
    return True


def _contents(container: Any) -> Iterable[Any]:
    if isinstance(container, dict):
        return container.values()
    if isinstance(container, Struct):
        return structs.astuple(container)
    items: Iterable[Any] = container
    return items


def _malformed(problem: str) -> DecodeError:
    return DecodeError(problem, format="joynr")


def _unwritable(value: Struct, problem: str) -> LocalError:
    return LocalError(
        f"a {value.__class__.__name__} cannot be written: {problem}",
        rule="WK-10",
        hint="give plain values that JSON can say",
    )


# -- headers ---------------------------------------------------------------------------------------

CUSTOM_PREFIX: Final = "c-"
"""The keys of headers that applications make start with this; MQTT carries them as properties."""

CORRELATION: Final = "z4"
"""The custom header with the requestReplyId or the subscriptionId."""

BACKEND: Final = "gb"
"""The custom header with the id of the backend that a message to the global directory is for."""

_TYPE, _ID, _REPLY_TO, _EFFORT = "t", "id", "re", "ef"
_BEST_EFFORT: Final = "BEST_EFFORT"

_TYPES: Final[Mapping[str, MessageType]] = {kind.value: kind for kind in MessageType}
_ASKING: Final = frozenset(
    {
        MessageType.REQUEST,
        MessageType.ATTRIBUTE_SUBSCRIPTION_REQUEST,
        MessageType.BROADCAST_SUBSCRIPTION_REQUEST,
        MessageType.MULTICAST_SUBSCRIPTION_REQUEST,
    }
)


class MqttAddress(
    Struct,
    frozen=True,
    gc=False,
    rename="camel",
    tag_field="_typeName",
    tag="joynr.system.RoutingTypes.MqttAddress",
):
    """The MQTT address of a node; `broker_uri` is the name of a backend, not an address."""

    broker_uri: str
    topic: str


_ADDRESS_DECODER: Final = msgspec.json.Decoder(MqttAddress)


class JoynrHeaders(Struct, frozen=True, gc=False):
    """The headers of a frame, decoded.

    The keys of `custom` are without their prefix. `reply_to` is for the types that expect
    a reply, and only when they leave the runtime; other types have none.

    >>> headers = JoynrHeaders(MessageType.REPLY, "22", custom={CORRELATION: "7"})
    >>> headers.written()
    {'t': 'rp', 'id': '22', 'c-z4': '7'}
    >>> JoynrHeaders.read(headers.written()) == headers
    True
    """

    type: MessageType
    id: str
    reply_to: MqttAddress | None = None
    best_effort: bool = False
    custom: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, headers: Mapping[str, str]) -> JoynrHeaders:
        """Decode the headers of a frame; unknown ones are ignored."""
        if not (_TYPE in headers and _ID in headers):  # C++ refuses such a frame as well
            raise _malformed("the headers have no type or no id")
        kind = _TYPES.get(headers[_TYPE])
        if kind is None:
            raise _malformed(f"{quote(headers[_TYPE])} is not a message type")
        reply_to = headers.get(_REPLY_TO) if kind in _ASKING else None
        return cls(
            kind,
            headers[_ID],
            None if reply_to is None else decode_address(reply_to),
            headers.get(_EFFORT) == _BEST_EFFORT,
            {
                key.removeprefix(CUSTOM_PREFIX): value
                for key, value in headers.items()
                if key.startswith(CUSTOM_PREFIX)
            },
        )

    def written(self) -> dict[str, str]:
        """The headers as a frame has them."""
        headers = {_TYPE: self.type.value, _ID: self.id}
        if self.reply_to is not None:
            if self.type not in _ASKING:
                raise LocalError(
                    f"a message of type {self.type} has a reply-to address",
                    rule="WK-10",
                    hint="give one to requests only",
                )
            headers[_REPLY_TO] = encode_address(self.reply_to)
        if self.best_effort:
            headers[_EFFORT] = _BEST_EFFORT
        for key, value in self.custom.items():
            headers[CUSTOM_PREFIX + key] = value
        return headers

    def for_reply(self, id: str, type: MessageType = MessageType.REPLY) -> JoynrHeaders:
        """The headers of a reply: effort and custom headers are those of the request.

        >>> JoynrHeaders(MessageType.REQUEST, "1", custom={CORRELATION: "7"}).for_reply("2").custom
        {'z4': '7'}
        """
        return JoynrHeaders(type, id, None, self.best_effort, self.custom)


def decode_address(text: str) -> MqttAddress:
    """Read the address in a reply-to header; its topic is one that can be published to.

    >>> decode_address('{"_typeName":"joynr.system.RoutingTypes.MqttAddress",'
    ...                '"brokerUri":"joynrdefaultgbid","topic":"#"}')
    Traceback (most recent call last):
    waystation.errors.DecodeError: joynr: the reply-to topic '#' cannot be published to
    """
    address: MqttAddress = _decoded(_ADDRESS_DECODER, text, MAX_SIZE)
    if not _publishable(address.topic, room=len(_PRIORITY)):
        raise _malformed(f"the reply-to topic {quote(address.topic)} cannot be published to")
    return address


def encode_address(address: MqttAddress) -> str:
    """Write an address for a reply-to header.

    >>> encode_address(MqttAddress("joynrdefaultgbid", "channel-1"))[52:]
    ',"brokerUri":"joynrdefaultgbid","topic":"channel-1"}'
    """
    if not _publishable(address.topic, room=len(_PRIORITY)):
        raise _bad_topic(address.topic)
    return _encoded(address).decode()


# -- topics ----------------------------------------------------------------------------------------

MAX_TOPIC: Final = 65_535
"""Maximum size of an MQTT topic or filter in bytes."""

_PRIORITY: Final = "/low"  # the only one that anybody uses


def unicast_topic(topic: str) -> str:
    """Where to publish a message for the node whose address has this topic.

    >>> unicast_topic("channel-1")
    'channel-1/low'
    """
    if not _publishable(topic, room=len(_PRIORITY)):
        raise _bad_topic(topic)
    return topic + _PRIORITY


def unicast_filter(own_topic: str) -> str:
    """The topic filter for messages to a node itself, whatever their priority.

    >>> unicast_filter("channel-1")
    'channel-1/#'
    """
    if not _publishable(own_topic, room=len("/#")):
        raise _bad_topic(own_topic)
    return own_topic + "/#"


def multicast_topic(multicast_id: str, prefix: str = "") -> str:
    """Where to publish a multicast: its id (MC-12), which has no wildcards (MC-5).

    >>> multicast_topic("provider-1/location/EU")
    'provider-1/location/EU'
    """
    topic = f"{prefix}{MulticastId.parse(multicast_id)}"
    if not _publishable(topic):
        raise _bad_topic(topic)
    return topic


def multicast_filter(pattern: str, prefix: str = "") -> str:
    """What to subscribe to at a broker for a pattern of multicast ids (MC-12).

    Where a wildcard stands for the provider and there is no prefix, the topics of messages to a
    single node match as well.

    >>> multicast_filter("provider-1/location/+/*")
    'provider-1/location/+/#'
    """
    check_pattern(pattern)
    # With a letter in place of each wildcard it must be a topic of the same length.
    if not _publishable(prefix + pattern.replace(ONE, "x")):
        raise _bad_topic(prefix + pattern)
    return prefix + mqtt_filter(pattern)


def _publishable(topic: str, *, room: int = 0) -> bool:
    """Whether MQTT can carry a topic and `room` bytes more.

    What starts with $ belongs to the broker, and `$share/…` would be another kind of subscription.
    """
    try:
        size = len(topic.encode())
    except UnicodeEncodeError:
        return False
    forbidden = topic.startswith("$") or any(sign in topic for sign in "+#\0")
    return 0 < size <= MAX_TOPIC - room and not forbidden


def _bad_topic(topic: str) -> LocalError:
    return LocalError(
        f"MQTT has no topic for {quote(topic)}",
        rule="MC-12",
        hint=f"give 1 to {MAX_TOPIC} bytes in all, without wildcards, zero bytes and a $ in front",
    )
