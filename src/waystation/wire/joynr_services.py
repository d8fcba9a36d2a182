"""What joynr's applications and cluster controllers say to each other beside their messages.

An application opens a WebSocket and says who it is (`Opening`). From then on it calls two
providers of its cluster controller, as it calls any provider: that of routes and that of
discovery. Cluster controllers call the global directory in the same way. Here are the calls, and
the structs in them; what they do is the business of whoever serves them.

A call is known by its name and the number and kinds of its parameters: what Java's generator makes
of an overloaded method. Structs are read as in joynr.py: a `_typeName` is compared and never looked
up, unknown properties are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Struct, field

from waystation.core.directory import Scope
from waystation.errors import DecodeError, RemoteError, quote
from waystation.wire.joynr import (
    Milliseconds,
    MqttAddress,
    RemoteException,
    Reply,
    Request,
    encode_address,
)
from waystation.wire.joynr_frames import BACKEND

ROUTING_PROVIDER: Final = "CC.RoutingProvider.ParticipantId"
DISCOVERY_PROVIDER: Final = "CC.DiscoveryProvider.ParticipantId"
GLOBAL_DIRECTORY: Final = "capabilitiesdirectory_participantid"
GLOBAL_DIRECTORY_TOPIC: Final = "discoverydirectory_channelid"
"""Where the global directory is reached at a broker."""

MAX_OPENING: Final = 1_024
"""Maximum size of an application's opening in bytes."""

_T = TypeVar("_T")


# -- the opening -----------------------------------------------------------------------------------


class Opening(
    Struct,
    frozen=True,
    gc=False,
    tag_field="_typeName",
    tag="joynr.system.RoutingTypes.WebSocketClientAddress",
):
    """The first message of an application: the address that it has given itself."""

    id: str


_PREFIX: Final = b'{"_typeName":"joynr.system.RoutingTypes.WebSocketClientAddress"'
_OPENINGS: Final = msgspec.json.Decoder(Opening)
_encode: Final = msgspec.json.Encoder().encode


def read_opening(data: bytes) -> str:
    """Who an application says it is; DecodeError for everything else that may come first.

    >>> read_opening(encode_opening("radio_7"))
    'radio_7'
    """
    if len(data) > MAX_OPENING:
        raise _malformed(f"an opening of {len(data)} bytes is over {MAX_OPENING}", too_large=True)
    if not data.startswith(_PREFIX):  # both cluster controllers of joynr's ask for it to the letter
        raise _malformed("the first message is not the address of a joynr application")
    try:
        opening = _OPENINGS.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _malformed(f"the address of a joynr application cannot be read: {error}") from None
    if not opening.id:
        raise _malformed("the address of a joynr application is empty")
    return opening.id


def encode_opening(id: str) -> bytes:
    """The first message of an application with this address."""
    return _encode(Opening(id))


def global_address(topic: str) -> str:
    """Where a cluster controller is reached from elsewhere, in the form that applications ask for.

    >>> global_address("hub-1")[52:]
    ',"brokerUri":"joynrdefaultgbid","topic":"hub-1"}'
    """
    return encode_address(MqttAddress(BACKEND, topic))


# -- discovery -------------------------------------------------------------------------------------


class _Type(Struct, frozen=True, kw_only=True, tag_field="_typeName", rename="camel"):
    """Base class of the structs in calls."""


class Version(_Type, frozen=True, kw_only=True, tag="joynr.types.Version"):
    """The version of an interface."""

    major_version: int = 0
    minor_version: int = 0


class ProviderScope(StrEnum):
    """How far a provider wants to be known."""

    LOCAL = "LOCAL"
    GLOBAL = "GLOBAL"


class ProviderQos(_Type, frozen=True, kw_only=True, tag="joynr.types.ProviderQos"):
    """What a provider says of itself, for those who choose among several."""

    custom_parameters: tuple[Any, ...] = ()
    priority: int = 0
    scope: ProviderScope = ProviderScope.GLOBAL
    supports_on_change_subscriptions: bool = True


class _Entry(_Type, frozen=True, kw_only=True):
    domain: str
    expiry_date_ms: Milliseconds = 0
    interface_name: str
    last_seen_date_ms: Milliseconds = 0
    participant_id: str
    provider_version: Version = field(default_factory=Version)
    public_key_id: str = ""
    qos: ProviderQos = field(default_factory=ProviderQos)


class DiscoveryEntry(_Entry, frozen=True, kw_only=True, tag="joynr.types.DiscoveryEntry"):
    """A provider, as an application registers it."""


class DiscoveryEntryWithMetaInfo(
    _Entry, frozen=True, kw_only=True, tag="joynr.types.DiscoveryEntryWithMetaInfo"
):
    """A provider, as an application finds it."""

    is_local: bool = False


class GlobalDiscoveryEntry(
    _Entry, frozen=True, kw_only=True, tag="joynr.types.GlobalDiscoveryEntry"
):
    """A provider, as the global directory knows it; the address is JSON in a string."""

    address: str = ""


Entry: TypeAlias = DiscoveryEntry | DiscoveryEntryWithMetaInfo | GlobalDiscoveryEntry


class DiscoveryQos(_Type, frozen=True, kw_only=True, tag="joynr.types.DiscoveryQos"):
    """Where to look."""

    cache_max_age: Milliseconds = 0
    discovery_scope: Scope = Scope.LOCAL_THEN_GLOBAL
    discovery_timeout: Milliseconds = 0
    provider_must_support_on_change: bool = False


class DiscoveryError(StrEnum):
    """The errors of the two directories, as joynr names them."""

    UNKNOWN_GBID = "UNKNOWN_GBID"
    INVALID_GBID = "INVALID_GBID"
    NO_ENTRY_FOR_PARTICIPANT = "NO_ENTRY_FOR_PARTICIPANT"
    NO_ENTRY_FOR_SELECTED_BACKENDS = "NO_ENTRY_FOR_SELECTED_BACKENDS"
    INTERNAL_ERROR = "INTERNAL_ERROR"


# -- calls -----------------------------------------------------------------------------------------


class CallError(RemoteError):
    """A call that gets an exception for a reply."""

    def __init__(self, exception: RemoteException) -> None:
        super().__init__(exception.detail_message or exception.type_name)
        self.exception = exception


def no_entry(participant: str) -> CallError:
    """The error for a participant that nobody has registered."""
    error = {"_typeName": "joynr.types.DiscoveryError", "name": "NO_ENTRY_FOR_PARTICIPANT"}
    return CallError(
        RemoteException(
            type_name="joynr.exceptions.ApplicationException",
            detail_message=f"there is no entry for {quote(participant)}",
            error=error,
        )
    )


def failed_call(why: str) -> CallError:
    """The error for a call that cannot be done."""
    return CallError(RemoteException.of(why))


class Parameters:
    """The parameters of a call: positions have types, and what is wrong becomes a CallError.

    >>> request = Request(method_name="removeNextHop", params=("radio",), request_reply_id="1")
    >>> Parameters(request).at(0, str)
    'radio'
    """

    def __init__(self, request: Request) -> None:
        self._request = request

    def __len__(self) -> int:
        """How many there are."""
        return len(self._request.params)

    def at(self, position: int, kind: type[_T]) -> _T:
        """The parameter at a position, which must be of this kind."""
        request = self._request
        if position >= len(request.params):
            raise _wrong_call(f"{request.method_name} has too few parameters")
        try:
            return msgspec.convert(request.params[position], kind)
        except msgspec.ValidationError as error:
            raise _wrong_call(f"{request.method_name}, parameter {position + 1}: {error}") from None

    def optional(self, position: int, kind: type[_T], default: _T) -> _T:
        """The parameter at a position, if there are so many."""
        return self.at(position, kind) if position < len(self) else default

    def is_text(self, position: int) -> bool:
        """Whether there is a text at a position: what tells two calls of one name apart."""
        return position < len(self) and isinstance(self._request.params[position], str)

    def is_list(self, position: int) -> bool:
        """Whether there is a list at a position, likewise."""
        return position < len(self) and isinstance(self._request.params[position], list)

    def texts(self, position: int) -> tuple[str, ...]:
        """One text or several."""
        if self.is_text(position):
            return (self.at(position, str),)
        return self.at(position, tuple[str, ...])

    def entry(self, position: int) -> Entry:
        """A discovery entry of any kind."""
        return self.at(position, Entry)  # type: ignore[arg-type]


def unknown_call(request: Request) -> CallError:
    """The error for a method that a provider does not have."""
    return _wrong_call(f"there is no method {quote(request.method_name)} with such parameters")


def _wrong_call(why: str) -> CallError:
    return CallError(
        RemoteException(type_name="joynr.exceptions.MethodInvocationException", detail_message=why)
    )


def answer_to(request: Request, response: Sequence[Any]) -> Reply:
    """The reply to a call, with what it returns."""
    return Reply(request_reply_id=request.request_reply_id, response=tuple(response))


def error_to(request: Request, error: CallError) -> Reply:
    """The reply to a call that failed."""
    return Reply(request_reply_id=request.request_reply_id, error=error.exception)


def call_of(id: str, method: str, parameters: Sequence[tuple[str, Any]]) -> Request:
    """A call of ours: each parameter with the name of its type in joynr.

    >>> call_of("7", "removeNextHop", [("String", "radio")]).param_datatypes
    ('String',)
    """
    return Request(
        method_name=method,
        param_datatypes=tuple(kind for kind, _ in parameters),
        params=tuple(value for _, value in parameters),
        request_reply_id=id,
    )


def entries_in(reply: Reply, kind: type[_T]) -> list[_T]:
    """The entries that a directory returned, one or several; RemoteError for its error."""
    if reply.error is not None:
        raise RemoteError(reply.error.detail_message or reply.error.type_name)
    found: Any = reply.response[0] if reply.response else []
    found = [found] if isinstance(found, Mapping) else found
    try:
        return msgspec.convert(found, list[kind])  # type: ignore[valid-type]
    except msgspec.ValidationError as error:
        raise RemoteError(f"the directory's reply cannot be read: {error}") from None


def _malformed(problem: str, *, too_large: bool = False) -> DecodeError:
    return DecodeError(problem, format="joynr", too_large=too_large)
