"""The JSON form of messages on an HTTP channel, for people and for programs without CBOR.

    {"to": "echo", "payload": "hello", "ttl": 5, "from": "me"}

Values in, values out. A payload that is no text stands in `payload_base64` instead. `session` holds
what the two sessions tell each other, which only matters where a token is asked for.
"""

from __future__ import annotations

import binascii
import secrets
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from waystation.core.address import Address, Route
from waystation.core.clock import now_ns
from waystation.core.expiry import NEVER, expiry_after
from waystation.core.message import Message, check_message_id
from waystation.errors import LocalError
from waystation.transports.http.channel import Frame
from waystation.wire.ockam import decode_body

SENDER: Final = "http"
"""Where answers go when a message does not say where it is from."""

LONGEST: Final = 10**9
"""Maximum time to live, in seconds."""


class Posted(msgspec.Struct, forbid_unknown_fields=True):
    """A message as a client writes it."""

    to: str = ""
    sender: str = msgspec.field(default=SENDER, name="from")
    payload: str = ""
    payload_base64: str | None = None
    ttl: float | None = None  # seconds
    id: str | None = None
    session: dict[str, Any] | None = None


_decode: Final = msgspec.json.Decoder(Posted | list[Posted]).decode
_encode: Final = msgspec.json.encode


def read_messages(body: bytes, via: Address) -> list[Message]:
    """The messages in a body, one or a list; a ValueError says what is wrong with them.

    >>> [message] = read_messages(b'{"to": "hop => echo", "payload": "hi"}', Address(0, b"link"))
    >>> str(message.onward_route), str(message.return_route), message.payload
    ('0#hop => 0#echo', '0#link => 0#http', b'hi')
    """
    try:
        posted = _decode(body)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return [_message(one, via) for one in (posted if isinstance(posted, list) else [posted])]


def _message(posted: Posted, via: Address) -> Message:
    if posted.session is not None:
        return Message(Route(), Route(), _encode(posted.session))
    onward = Route.parse(posted.to)
    if not onward.addresses:
        raise LocalError("a message goes nowhere", rule="AD-6", hint='say where: "to": "echo"')
    return Message(
        onward,
        Route.parse(posted.sender).pushed(via),
        _payload(posted),
        secrets.token_hex(16) if posted.id is None else check_message_id(posted.id),
        NEVER if posted.ttl is None else expiry_after(now_ns() // 10**6, _ms(posted.ttl)),
    )


def _payload(posted: Posted) -> bytes:
    if posted.payload_base64 is None:
        return posted.payload.encode()
    try:
        return b64decode(posted.payload_base64, validate=True)
    except binascii.Error as error:
        raise ValueError(f"payload_base64 is not valid base64: {error}") from None


def _ms(seconds: float) -> int:
    if 0 <= seconds <= LONGEST:
        return int(seconds * 1000)
    raise LocalError(
        f"a message cannot live for {seconds:g} s", rule="AD-7", hint="give seconds from 0 on"
    )


def write_frames(frames: Sequence[Frame], last: int) -> bytes:
    """An answer with the messages in these frames, the last of which has the number `last`.

    >>> from waystation.wire.ockam import encode_frame
    >>> message = Message(Route.parse("me"), Route.parse("echo"), b"hi", id="4bf9" * 8)
    >>> write_frames([Frame(encode_frame(message), True)], 1)[:62]
    b'{"last":1,"messages":[{"to":"0#me","from":"0#echo","payload":"'
    """
    decoded = [(frame, decode_body(frame.data[4:])) for frame in frames]
    messages = [_as_json(message) for frame, message in decoded if frame.is_message]
    said = [
        msgspec.Raw(message.payload)
        for frame, message in decoded
        if not frame.is_message and message.payload
    ]
    answer: dict[str, Any] = {"last": last, "messages": messages}
    return _encode(answer | {"session": said} if said else answer)


def _as_json(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {"to": str(message.onward_route), "from": str(message.return_route)}
    try:
        found["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        found["payload_base64"] = b64encode(message.payload).decode()
    found["id"] = message.id
    if message.expiry != NEVER:
        found["expiry"] = message.expiry
    return found
