"""Ockam's TCP format: messages to frames and frames to messages, beside cbor2."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from struct import Struct as Layout
from typing import Any

import cbor2

from benchmarks.harness import Report, Subject, fail
from waystation.core.address import Address, Route
from waystation.core.message import Message, message_id
from waystation.wire.ockam import PREFACE, FrameDecoder, encode_frame, tracing_text

PACKAGES = ("cbor2", "msgspec")

OPERATIONS = 20_000
NOW = 1_700_000_000_000
LENGTH = Layout(">I")
OWN_TEXT = re.compile(
    r'{"traceparent":"00-([0-9a-f]{16}(?!0{16})([0-9a-f]{16}))-\2-01"'
    r'(?:,"tracestate":"waystation=x([1-9][0-9]{12})")?}'
)


def messages(
    size: int, *, count: int = 1_000, flows: int = 16, names: tuple[int, int] = (32, 32)
) -> list[Message]:
    """Traffic of a hub: pairs of parties take turns, every message has an id and an expiry."""
    rng = random.Random(7)

    def route(service: bytes) -> Route:
        name = b"%032x" % rng.getrandbits(128)
        return Route((Address(0, name[: rng.randint(*names)]), Address(0, service)))

    pairs = [(route(b"echoer"), route(b"app")) for _ in range(flows)]
    return [
        Message(
            *pairs[i % flows],
            rng.randbytes(size),
            message_id(rng.getrandbits(128)),
            NOW + 30_000 + i // 50,  # a busy node sends that many in a millisecond
        )
        for i in range(count)
    ]


def tree(message: Message) -> list[Any]:
    """What cbor2 writes for a message."""
    onward = [[a.type, a.data] for a in message.onward_route.addresses]
    back = [[a.type, a.data] for a in message.return_route.addresses]
    return [onward, back, message.payload, tracing_text(message) or None]


def encode_with_cbor2(message: Message) -> bytes:
    body = cbor2.dumps(tree(message))
    return LENGTH.pack(len(body)) + body


def route_of(item: Any) -> Route:
    if type(item) is not list:
        raise ValueError
    addresses = []
    for address in item:
        if type(address) is not list or len(address) < 2:
            raise ValueError
        kind, data = address[0], address[1]
        if type(kind) is not int or not 0 <= kind <= 255 or type(data) is not bytes:
            raise ValueError
        addresses.append(Address(kind, data))
    return Route(tuple(addresses))


def decode_with_cbor2(body: bytes) -> Message:
    item = cbor2.loads(body)
    if type(item) is not list or len(item) != 4:
        raise ValueError
    onward, back, payload, text = item
    if type(payload) is not bytes:
        raise ValueError
    own = OWN_TEXT.fullmatch(text)
    if own is None:
        raise ValueError
    trace_id, _, digits = own.groups()
    return Message(route_of(onward), route_of(back), payload, trace_id, int(digits))


def bodies(stream: bytes) -> Iterator[bytes]:
    """Cut a stream of frames."""
    at = 0
    while at < len(stream):
        (size,) = LENGTH.unpack_from(stream, at)
        at += 4 + size
        yield stream[at - size : at]


def repeated(work: Callable[[Any], object], batch: Sequence[Any]) -> Subject:
    """Do the work on each of the batch, again and again."""
    rounds = OPERATIONS // len(batch)

    def subject() -> int:
        for _ in range(rounds):
            for item in batch:
                work(item)
        return OPERATIONS

    return subject


def run(report: Report) -> None:
    for size, name in ((100, "100 B"), (1024, "1 KiB")):
        compare_encoders(report, f"encode, {name}", messages(size))
        compare_decoders(report, f"decode, {name}", messages(size))
    names_of_any_length = messages(100, names=(3, 32))
    compare_decoders(report, "decode, 100 B, names of any length", names_of_any_length)
    routes_never_seen = messages(100, count=10_000, flows=10_000)
    compare_encoders(report, "encode, 100 B, routes never seen", routes_never_seen)
    compare_decoders(report, "decode, 100 B, routes never seen", routes_never_seen)


def compare_encoders(report: Report, case: str, batch: list[Message]) -> None:
    if [encode_frame(m) for m in batch] != [encode_with_cbor2(m) for m in batch]:
        fail("the encoders do not write the same bytes")
    report.compare(
        case,
        {
            "waystation": repeated(encode_frame, batch),
            "cbor2, same job": repeated(encode_with_cbor2, batch),
            "cbor2, no values": repeated(cbor2.dumps, [tree(message) for message in batch]),
        },
    )


def compare_decoders(report: Report, case: str, batch: list[Message]) -> None:
    decoder = FrameDecoder()
    decoder.feed(PREFACE)
    frames = [encode_frame(message) for message in batch]
    streams = [b"".join(frames[i : i + 50]) for i in range(0, len(frames), 50)]

    def decode_stream(stream: bytes) -> list[Message]:
        return [decode_with_cbor2(body) for body in bodies(stream)]

    if [m for s in streams for m in decoder.feed(s)] != batch:
        fail("our decoder does not give the messages back")
    if [m for s in streams for m in decode_stream(s)] != batch:
        fail("the decoder with cbor2 does not give the messages back")
    report.compare(
        case,
        {
            "waystation": repeated_streams(decoder.feed, streams),
            "cbor2, same job": repeated_streams(decode_stream, streams),
            "cbor2, no values": repeated_streams(
                lambda stream: [cbor2.loads(body) for body in bodies(stream)], streams
            ),
        },
    )


def repeated_streams(read: Callable[[bytes], list[Any]], streams: list[bytes]) -> Subject:
    """Read all the streams, again and again, and count what is in them."""
    rounds = OPERATIONS // (50 * len(streams))
    return lambda: sum(len(read(stream)) for _ in range(rounds) for stream in streams)
