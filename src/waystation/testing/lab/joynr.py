"""What the lab sends in joynr's form, where some leaves speak joynr's protocol."""

from __future__ import annotations

from waystation.testing.lab.history import Sent
from waystation.testing.lab.life import uid_of
from waystation.wire.joynr import (
    MulticastPublication,
    OneWayRequest,
    Reply,
    Request,
    encode_payload,
)


def wrapped(sent: Sent, payload: bytes) -> bytes:
    """What is sent, as joynr's applications write it."""
    text = payload.decode()
    if sent.kind == "publish":
        return encode_payload(MulticastPublication(multicast_id=sent.to, response=(text,)))
    if sent.kind == "request":
        request = Request(method_name="work", params=(text,), request_reply_id=sent.uid)
        return encode_payload(request)
    return encode_payload(OneWayRequest(method_name="work", params=(text,)))


def reply_to(payload: bytes) -> bytes:
    """The reply to a request."""
    uid = uid_of(payload)
    return encode_payload(Reply(request_reply_id=uid, response=(f"reply request {uid} ",)))
