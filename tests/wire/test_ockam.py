"""Ockam's TCP and UDP format: vectors, tracing, hostile bytes, and cbor2 as the oracle."""

import hashlib
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from struct import pack
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from waystation.core.address import MAX_ROUTE_LENGTH, Address, Route
from waystation.core.expiry import LAST_INSTANT, NEVER
from waystation.core.message import Message
from waystation.errors import DecodeError, LocalError
from waystation.wire import ockam
from waystation.wire.ockam import (
    CHUNK_SIZE,
    FRAME_LIMIT,
    HEARTBEAT,
    HEARTBEAT_FRAME,
    PREFACE,
    SKIPPED_ITEMS,
    TRACING_LIMIT,
    FrameDecoder,
    Reassembly,
    decode_body,
    encode_body,
    encode_frame,
    fragments,
    read_tracing,
    tracing_text,
)

HERE = Path(__file__).parent
VECTORS: dict[str, dict[str, Any]] = {
    vector["id"]: vector
    for vector in json.loads((HERE / "vectors" / "ockam.json").read_text())["computed"]
}
CORPUS = {
    path.stem: bytes.fromhex("".join(path.read_text().splitlines()[1:]))
    for path in sorted((HERE / "corpus" / "ockam").glob("*.txt"))
}
PATTERN = bytes(i % 251 for i in range(65536))  # the payload of the vectors that only tell its size

ID = "4bf92f3577b34da6a3ce929d0e0e4736"
OTHER_ID = "0af7651916cd43dd8448eb211c80319c"
NO_ID = "0" * 32
NOW = 1_700_000_000_000
OWN_TEXT = (
    f'{{"traceparent":"00-{ID}-a3ce929d0e0e4736-01","tracestate":"waystation=x1700000000000"}}'
)
PLAIN = Message(Route.parse("e"), Route.parse("a"), b"p")
OWN = Message(Route.parse("e"), Route.parse("a"), b"p", ID, NOW)
HEADER = bytes.fromhex("84 81 8200 4165 81 8200 4161")  # of both
FIVE = bytes.fromhex("85 81 8200 4165 81 8200 4161 4170 f6")  # and one more element to come


MEMORIES: list[ockam._Memory[Any, Any]] = [
    ockam._ROUTE_ITEMS,
    ockam._HEADERS.routes,
    ockam._HEADERS.lengths,
    ockam._OWN_TAILS,
]


@pytest.fixture(autouse=True)
def _nothing_remembered() -> None:
    """Each test starts with empty memories."""
    for memory in MEMORIES:
        memory.clear()


def address_of(text: str) -> Address:
    kind, _, data = text.partition("#")
    raw = bytes.fromhex(data[2:]) if data.startswith("0x") else data.encode()
    return Address(int(kind), raw)


def message_of(model: dict[str, Any]) -> Message:
    onward, back = (
        Route(tuple(map(address_of, model[name]))) for name in ("onward_route", "return_route")
    )
    payload = model["payload_hex"]
    size, _, generated = payload.partition(" bytes")
    raw = PATTERN[: int(size)] if generated else bytes.fromhex(payload)
    return Message(onward, back, raw)


def frame(body: bytes) -> bytes:
    return pack(">I", len(body)) + body


def bodies_of(stream: bytes) -> Iterator[bytes]:
    while stream:
        size = int.from_bytes(stream[:4], "big")
        yield stream[4 : 4 + size]
        stream = stream[4 + size :]


def body_with(tracing: str) -> bytes:
    return HEADER + b"\x41p" + cbor2.dumps(tracing)


def steps() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = VECTORS["tcp-v1-dialogue"]["steps"]
    return found


ORDINARY = [
    pytest.param(model, bytes.fromhex(data), id=name)
    for name, model, data in [
        *((i, v["model"], v.get("hex", "")) for i, v in VECTORS.items() if v["group"] == "tcp-v1"),
        *((f"dialogue-{i}", step, step["hex"]) for i, step in enumerate(steps())),
    ]
    if data and "onward_route" in model
]
ODD = [
    pytest.param(v, id=i)
    for i, v in VECTORS.items()
    if v["group"] == "tcp-v1-odd" and "body_hex" in v
]
STREAM = PREFACE + b"".join(
    data for data in (param.values[1] for param in ORDINARY) if isinstance(data, bytes)
)


# --- The vectors ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "data"), ORDINARY)
def test_a_vector_is_read_as_documented(model: dict[str, Any], data: bytes) -> None:
    expected = message_of(model)
    for _ in ("unseen", "remembered"):
        found = decode_body(data[4:])
        assert structs.replace(found, id=NO_ID, trace_context="") == expected
    if model.get("tracing_context", "null") in (None, "null", "{}", "<absent>"):
        assert found == expected


@pytest.mark.parametrize(("model", "data"), ORDINARY)
def test_a_vector_is_written_as_documented(model: dict[str, Any], data: bytes) -> None:
    message = decode_body(data[4:])
    if model.get("tracing_context") in ("{}", "<absent>"):  # two other ways to tell nothing
        data = bytes.fromhex(VECTORS["tcp-v1-echo-null"]["hex"])
    assert encode_frame(message) == data
    assert encode_body(message) == data[4:]


def test_the_vector_that_tells_its_hash() -> None:
    vector = VECTORS["tcp-v1-payload-64k"]
    message = message_of(vector["model"])
    data = encode_frame(message)
    assert len(data) == vector["length"]
    assert hashlib.sha256(data).hexdigest() == vector["sha256"]
    assert decode_body(data[4:]) == decode_body(data[4:]) == message


@pytest.mark.parametrize("vector", ODD)
def test_odd_bytes_are_taken_or_refused_as_rust_does(vector: dict[str, Any]) -> None:
    body = bytes.fromhex(vector["body_hex"])
    if vector["rust"].startswith("accept"):
        assert decode_body(body) == decode_body(body) == PLAIN
    else:
        with pytest.raises(DecodeError) as caught:
            decode_body(body)
        assert not caught.value.too_large
        assert caught.value.format == "ockam"


ACCEPTED = {
    "indefinite routes": "84 9f 8200 4165 ff 9f 8200 4161 ff 4170 f6",
    "indefinite addresses": "84 81 9f 00 4165 ff 81 9f 00 4161 ff 4170 f6",
    "indefinite message of three": "9f 81 8200 4165 81 8200 4161 4170 ff",
    "longest heads": "9b0000000000000004 9a00000001 8200 5b000000000000000165"
    "990001 8200 590001 61 5a00000001 70 f6",
    "length in a byte of its own": "84 81 8200 580165 81 8200 4161 4170 f6",
    "type in a byte of its own": "84 81 821800 4165 81 8200 4161 4170 f6",
    "type in four bytes": "84 81 821a00000000 4165 81 821b0000000000000000 4161 4170 f6",
    "empty text": "84 81 8200 4165 81 8200 4161 4170 60",
    "extra float": "85 81 8200 4165 81 8200 4161 4170 f6 fb3ff0000000000000",
    "extra negative": "85 81 8200 4165 81 8200 4161 4170 f6 3863",
    "extra tagged map": "85 81 8200 4165 81 8200 4161 4170 f6 c1 a2 01 82 02 03 04 a0",
    "extra open map": "85 81 8200 4165 81 8200 4161 4170 f6 bf 01 9f 02 ff ff",
    "extra strings": "87 81 8200 4165 81 8200 4161 4170 f6 42 0102 62 6162 80",
    "extra strings in pieces": "87 81 8200 4165 81 8200 4161 4170 f6 5f41004100ff 7f6161ff 5fff",
    "extras in an address": "84 81 85 00 4165 a0 d81801 f7 81 8200 4161 4170 f6",
}
REFUSED = {
    "undefined tracing": "84 81 8200 4165 81 8200 4161 4170 f7",
    "number as tracing": "84 81 8200 4165 81 8200 4161 4170 00",
    "bytes as tracing": "84 81 8200 4165 81 8200 4161 4170 4161",
    "indefinite tracing": "84 81 8200 4165 81 8200 4161 4170 7f6161ff",
    "tracing that is no UTF-8": "84 81 8200 4165 81 8200 4161 4170 61ff",
    "tracing missing": "84 81 8200 4165 81 8200 4161 4170",
    "tagged message": "c1 84 81 8200 4165 81 8200 4161 4170 f6",
    "tagged route": "84 c1 81 8200 4165 81 8200 4161 4170 f6",
    "tagged payload": "84 81 8200 4165 81 8200 4161 c1 4170 f6",
    "tagged tracing": "84 81 8200 4165 81 8200 4161 4170 c1 61 61",
    "negative type": "84 81 8220 4165 81 8200 4161 4170 f6",
    "indefinite type": "84 81 821f 4165 81 8200 4161 4170 f6",
    "reserved head": "84 81 821c 4165 81 8200 4161 4170 f6",
    "indefinite address data": "84 81 8200 5f4165ff 81 8200 4161 4170 f6",
    "address of one": "84 81 8100 81 8200 4161 4170 f6",
    "address is a number": "84 81 00 81 8200 4161 4170 f6",
    "fewer elements than told": "85 81 8200 4165 81 8200 4161 4170 f6",
    "no break": "9f 81 8200 4165 81 8200 4161 4170 f6",
    "payload cut": "84 81 8200 4165 81 8200 4161 4270",
    "payload longer than memory": "84 81 8200 4165 81 8200 4161 5bffffffffffffffff",
    "more elements than anybody has": "9bffffffffffffffff",
    "extra break": "85 81 8200 4165 81 8200 4161 4170 f6 ff",
    "extra break in an array": "85 81 8200 4165 81 8200 4161 4170 f6 81 ff",
    "extra tag without end": "85 81 8200 4165 81 8200 4161 4170 f6 df 00",
    "extra text that is no UTF-8": "85 81 8200 4165 81 8200 4161 4170 f6 61ff",
    "extra string cut": "85 81 8200 4165 81 8200 4161 4170 f6 42 01",
    "extra string with text pieces": "85 81 8200 4165 81 8200 4161 4170 f6 5f6161ff",
    "extra string with open pieces": "85 81 8200 4165 81 8200 4161 4170 f6 5f5f4161ffff",
}


@pytest.mark.parametrize("body", [*map(bytes.fromhex, ACCEPTED.values())], ids=ACCEPTED)
@pytest.mark.parametrize("known", [False, True])
def test_what_rust_tolerates_is_read(body: bytes, known: bool) -> None:
    if known:
        decode_body(encode_body(PLAIN))
    assert decode_body(body) == PLAIN


@pytest.mark.parametrize("body", [*map(bytes.fromhex, REFUSED.values())], ids=REFUSED)
@pytest.mark.parametrize("known", [False, True])
def test_what_rust_refuses_is_refused(body: bytes, known: bool) -> None:
    if known:
        decode_body(encode_body(PLAIN))
    with pytest.raises(DecodeError) as caught:
        decode_body(body)
    assert not caught.value.too_large
    assert 0 <= caught.value.offset <= len(body)


# --- Bounds ---------------------------------------------------------------------------------------


def test_a_route_is_read_up_to_its_longest_length() -> None:
    longest = Route((Address(0, b""),) * MAX_ROUTE_LENGTH)
    message = Message(longest, longest, b"p")
    assert decode_body(encode_body(message)) == message
    indefinite = b"\x84\x9f" + b"\x82\x00\x40" * MAX_ROUTE_LENGTH + b"\xff\x80\x40\xf6"
    assert decode_body(indefinite).onward_route == longest


@pytest.mark.parametrize(
    "route",
    [
        b"\x99\x01\x00" + b"\x82\x00\x40" * 256,
        b"\x9f" + b"\x82\x00\x40" * 256 + b"\xff",
        b"\x9b" + b"\xff" * 8 + b"\x82\x00\x40",
    ],
    ids=["counted", "indefinite", "claimed"],
)
def test_a_longer_route_is_refused(route: bytes) -> None:
    with pytest.raises(DecodeError, match="more than 255 addresses") as caught:
        decode_body(b"\x84" + route + b"\x80\x40\xf6")
    assert caught.value.too_large
    assert caught.value.offset == 1


@pytest.mark.parametrize(
    "extra",
    [
        b"\x81" * SKIPPED_ITEMS + b"\x00",
        b"\x9f" * 100_000,
        b"\xc1" * 100_000,
        b"\x9f" + b"\x00" * SKIPPED_ITEMS + b"\xff",
        b"\x5f" + b"\x40" * SKIPPED_ITEMS + b"\xff",
    ],
    ids=["arrays", "open arrays", "tags", "items", "pieces"],
)
def test_only_so_many_unknown_items_are_skipped(extra: bytes) -> None:
    with pytest.raises(DecodeError, match="items are unknown") as caught:
        decode_body(FIVE + extra)
    assert caught.value.too_large


def test_as_many_unknown_items_as_allowed_are_skipped() -> None:
    assert decode_body(FIVE + b"\x81" * (SKIPPED_ITEMS - 1) + b"\x00") == PLAIN
    pieces = b"\x5f" + b"\x40" * (SKIPPED_ITEMS - 1) + b"\xff"
    assert decode_body(FIVE + pieces) == PLAIN


def test_the_bound_of_unknown_items_holds_for_all_addresses_together() -> None:
    address = b"\x9f\x00\x40" + b"\x00" * 100 + b"\xff"
    with pytest.raises(DecodeError, match="items are unknown"):
        decode_body(b"\x84\x98\xff" + address * 255)


def test_memories_stay_small_whoever_writes() -> None:
    for number in range(3000):
        route = Route((Address(0, b"%d" % number),))
        body = encode_body(Message(route, route, b"p", ID, NOW + number))
        assert decode_body(body) == decode_body(body)
    for memory in MEMORIES:
        assert 0 < len(memory) <= 1024


def test_a_flood_of_new_routes_does_not_drive_out_the_known_at_once() -> None:
    memory: ockam._Memory[int, str] = ockam._Memory()
    for key in range(1024 + 8 * 1024):
        memory.remember(key, "first")
    assert list(memory) == list(range(1024))
    memory.remember(7, "second")
    assert memory[7] == "second"
    memory.remember(-1, "the next")
    assert memory == {-1: "the next"}


@pytest.mark.parametrize(
    "message",
    [
        Message(Route((Address(0, bytes(300)),)), Route(), b"p"),
        Message(Route((Address(0, b""),) * 9), Route(), b"p"),
    ],
    ids=["long", "many"],
)
def test_large_routes_are_not_remembered(message: Message) -> None:
    body = encode_body(message)
    assert decode_body(body) == decode_body(body) == message
    assert not ockam._ROUTE_ITEMS.keys() - {Route()}
    assert encode_body(message) == body


def test_large_headers_are_not_remembered() -> None:
    many = Route((Address(0, b"a"),) * 9)
    long = Route((Address(0, bytes(600)),))
    for message in (Message(many, many, b"p"), Message(long, Route(), b"p")):
        assert decode_body(encode_body(message)) == message
    assert not ockam._HEADERS.routes


def test_headers_in_another_form_are_not_remembered() -> None:
    for text in ACCEPTED.values():
        decode_body(bytes.fromhex(text))
    assert set(ockam._HEADERS.routes) <= {HEADER}


def test_two_headers_that_start_alike_are_told_apart() -> None:
    short = Message(Route.parse("echoer"), Route.parse("app"), b"p")
    long = Message(Route.parse("echoer"), Route.parse("0123456789abcdef0123456789abcdef"), b"p")
    for _ in range(3):
        for message in (short, long):
            assert decode_body(encode_body(message)) == message
    assert len(ockam._HEADERS.lengths) == 1


def test_a_known_header_does_not_reach_into_the_next_frame() -> None:
    stream = PREFACE + frame(encode_body(PLAIN)) + frame(HEADER[:6]) + HEADER[6:] + b"\x41p\xf6"
    decoder = FrameDecoder()
    assert decoder.feed(stream) == [PLAIN]
    with pytest.raises(DecodeError, match="end too early"):
        decoder.feed(b"")


def test_a_payload_does_not_reach_into_the_next_frame() -> None:
    good = frame(encode_body(PLAIN))
    for body in (HEADER, HEADER + b"\x41", HEADER + b"\x58", HEADER + b"\x59\x00"):
        decoder = FrameDecoder()
        assert decoder.feed(PREFACE + good + frame(body) + good) == [PLAIN]
        assert decoder.error is not None


# --- Streams --------------------------------------------------------------------------------------


def test_a_stream_is_read_the_same_however_it_is_cut() -> None:
    expected = FrameDecoder().feed(STREAM)
    assert len(expected) == len(ORDINARY)
    for cut in range(len(STREAM) + 1):
        decoder = FrameDecoder()
        assert decoder.feed(STREAM[:cut]) + decoder.feed(STREAM[cut:]) == expected
    decoder = FrameDecoder()
    assert [m for byte in STREAM for m in decoder.feed(bytes((byte,)))] == expected
    assert decoder.feed(b"") == []


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_any_kind_of_bytes_may_be_fed(kind: type[bytearray | memoryview]) -> None:
    decoder = FrameDecoder()
    messages = decoder.feed(kind(STREAM[:200])) + decoder.feed(kind(STREAM[200:]))
    assert messages == FrameDecoder().feed(STREAM)
    assert {type(message.payload) for message in messages} == {bytes}


def test_a_large_frame_that_trickles_in_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    unpack = ockam._unpack_length

    def counting(data: bytes, at: int) -> tuple[int, ...]:
        nonlocal looks
        looks += 1
        return unpack(data, at)

    monkeypatch.setattr(ockam, "_unpack_length", counting)
    message = structs.replace(PLAIN, payload=bytes(100_000))
    decoder = FrameDecoder()
    found = [m for byte in PREFACE + encode_frame(message) for m in decoder.feed(bytes((byte,)))]
    assert found == [message]
    assert looks == 2  # when the length was there, and when the frame was


def test_a_promised_length_allocates_nothing() -> None:
    tracemalloc.start()
    try:
        decoder = FrameDecoder()
        assert decoder.feed(PREFACE + pack(">I", FRAME_LIMIT) + b"\x84") == []
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("first", [b"\x00", b"\x02", b"\xff"])
def test_another_preface_is_refused(first: bytes) -> None:
    decoder = FrameDecoder()
    assert decoder.feed(b"") == []
    assert decoder.feed(first + HEARTBEAT_FRAME) == []
    with pytest.raises(DecodeError, match=f"preface is {first.hex()}") as caught:
        decoder.feed(b"")
    assert caught.value.offset == 0


def test_the_longest_frame_is_taken_and_a_longer_one_refused() -> None:
    message = structs.replace(PLAIN, payload=bytes(1000))
    size = len(encode_body(message))
    assert FrameDecoder(limit=size).feed(PREFACE + encode_frame(message)) == [message]
    decoder = FrameDecoder(limit=size - 1)
    assert decoder.feed(PREFACE + encode_frame(message)[:4]) == []
    with pytest.raises(DecodeError, match=f"a frame of {size} bytes") as caught:
        decoder.feed(b"")
    assert caught.value.too_large
    assert caught.value.offset == 1


def test_the_limit_is_that_of_ockam() -> None:
    refused = bytes.fromhex(VECTORS["odd-length-16MiB+1"]["hex"])
    decoder = FrameDecoder()
    decoder.feed(PREFACE + refused)
    assert decoder.error is not None
    assert decoder.error.too_large
    decoder = FrameDecoder()
    decoder.feed(PREFACE + pack(">I", FRAME_LIMIT))
    assert decoder.error is None


def test_what_stands_before_bad_bytes_is_not_lost() -> None:
    good = encode_frame(PLAIN)
    decoder = FrameDecoder()
    assert decoder.feed(PREFACE + good[:7]) == []
    assert decoder.feed(good[7:] + good + frame(b"\x84\xf6") + good) == [PLAIN, PLAIN]
    assert decoder.error is not None
    for data in (b"", good):
        with pytest.raises(DecodeError, match="a route is not an array") as caught:
            decoder.feed(data)
        assert caught.value.problem == decoder.error.problem
        assert caught.value.offset == decoder.error.offset
        assert caught.value.offset == 1 + 2 * len(good) + 4 + 1
    assert not decoder._held


# --- Heartbeats -----------------------------------------------------------------------------------


def test_a_frame_without_onward_route_and_payload_is_a_heartbeat() -> None:
    others = [
        b"\x84\x80\x81\x82\x00\x41a\x40\xf6",
        b"\x83\x9f\xff\x80\x40",
        b"\x84\x80\x80\x40\x62{}",
    ]
    stream = PREFACE + HEARTBEAT_FRAME * 2 + b"".join(map(frame, others))
    assert all(message is HEARTBEAT for message in FrameDecoder().feed(stream))
    assert bytes.fromhex(VECTORS["tcp-v1-heartbeat"]["hex"]) == HEARTBEAT_FRAME
    assert (
        encode_frame(HEARTBEAT) == encode_frame(Message(Route(), Route(), b"")) == HEARTBEAT_FRAME
    )


# --- The tracing text -----------------------------------------------------------------------------


@pytest.mark.rule("AD-7")
@pytest.mark.rule("AD-8")
@pytest.mark.parametrize(
    ("id", "expiry", "text"),
    [
        (NO_ID, NEVER, None),
        (ID, NOW, OWN_TEXT),
        (ID, NEVER, f'{{"traceparent":"00-{ID}-a3ce929d0e0e4736-01"}}'),
        (NO_ID, NOW, '{"tracestate":"waystation=x1700000000000"}'),
        (ID, 0, OWN_TEXT.replace(str(NOW), "0")),
        (ID, LAST_INSTANT, OWN_TEXT.replace(str(NOW), "253402300799999")),
        (
            "f" * 16 + "0" * 16,
            NEVER,
            f'{{"traceparent":"00-{"f" * 16}{"0" * 16}-0000000000000001-01"}}',
        ),
    ],
)
def test_id_and_expiry_travel_in_the_tracing(id: str, expiry: float, text: str | None) -> None:
    message = structs.replace(PLAIN, id=id, expiry=expiry)
    body = encode_body(message)
    assert cbor2.loads(body)[3] == text
    for _ in ("unseen", "remembered"):
        assert decode_body(body) == message
    assert tracing_text(message) == (text or "")


@pytest.mark.rule("AD-8")
def test_what_a_peer_wrote_beside_them_is_passed_on_as_it_came() -> None:
    texts = [
        f'{{"traceparent":"00-{OTHER_ID}-b7ad6b7169203331-01","tracestate":""}}',
        f'{{"tracestate":"a=1, waystation=x17","traceparent":"00-{OTHER_ID}-b7ad6b7169203331-00"}}',
        f'{{ "traceparent" : "00-{ID}-a3ce929d0e0e4736-01" }}',
        '{"baggage":"k=v"}',
        '{"traceparent":"who knows"}',
    ]
    for text in texts:
        message = decode_body(body_with(text))
        assert message.trace_context == text
        assert cbor2.loads(encode_body(message))[3] == text
        forwarded = message.rerouted(Route.parse("f => g"), Route()).forwarded()
        assert cbor2.loads(encode_body(forwarded))[3] == text


@pytest.mark.rule("AD-8")
def test_an_id_or_expiry_given_on_the_way_is_put_into_it() -> None:
    context = '{"baggage":"k=v","tracestate":"a=1,waystation=x17, waystation=x18 ,,b=2"}'
    message = decode_body(body_with(context))
    assert (message.id, message.expiry) == (NO_ID, 17)
    later = structs.replace(message, id=ID, expiry=NOW)
    assert json.loads(tracing_text(later)) == {
        "baggage": "k=v",
        "traceparent": f"00-{ID}-a3ce929d0e0e4736-01",
        "tracestate": "waystation=x1700000000000,a=1,b=2",
    }
    assert decode_body(encode_body(later)) == structs.replace(
        later, trace_context=tracing_text(later)
    )
    never = structs.replace(message, expiry=NEVER)
    assert json.loads(tracing_text(never)) == {"baggage": "k=v", "tracestate": "a=1,b=2"}


@pytest.mark.rule("AD-8")
def test_only_the_expiry_changes_in_a_known_trace() -> None:
    text = f'{{"traceparent":"00-{OTHER_ID}-b7ad6b7169203331-00"}}'
    message = structs.replace(decode_body(body_with(text)), expiry=NOW)
    assert json.loads(tracing_text(message)) == {
        "traceparent": f"00-{OTHER_ID}-b7ad6b7169203331-00",
        "tracestate": "waystation=x1700000000000",
    }
    other = structs.replace(message, id=ID, expiry=NEVER)
    assert json.loads(tracing_text(other)) == {"traceparent": f"00-{ID}-a3ce929d0e0e4736-01"}
    unnamed = structs.replace(message, id=NO_ID, expiry=NEVER)
    assert tracing_text(unnamed) == text


def test_a_tracestate_has_at_most_the_members_that_w3c_allows() -> None:
    members = [f"v{i}=1" for i in range(32)]
    message = structs.replace(PLAIN, expiry=17)
    full = structs.replace(message, trace_context=json.dumps({"tracestate": ",".join(members)}))
    written = json.loads(tracing_text(full))["tracestate"].split(",")
    assert written == ["waystation=x17", *members[:31]]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "no JSON",
        "[]",
        '"x"',
        '{"traceparent":5}',
        '{"traceparent":null}',
        "{" * 5000,
        '{"a":"\\ud800"}',
        json.dumps({"traceparent": f"00-{ID}-a3ce929d0e0e4736-01", "pad": "x" * TRACING_LIMIT}),
    ],
)
def test_a_text_that_tells_nothing_is_ignored(text: str) -> None:
    assert decode_body(body_with(text)) == PLAIN
    decode_body(encode_body(PLAIN))
    assert decode_body(body_with(text)) == PLAIN


def test_the_longest_tracing_is_read() -> None:
    fields = {"traceparent": f"00-{ID}-a3ce929d0e0e4736-01", "pad": ""}
    fields["pad"] = "x" * (TRACING_LIMIT - len(json.dumps(fields)))
    text = json.dumps(fields)
    message = decode_body(body_with(text))
    assert (message.id, message.trace_context) == (ID, text)
    assert tracing_text(message) == text
    # With an expiry put in, nobody would read it: id and expiry are what must not be lost.
    assert tracing_text(structs.replace(message, expiry=NOW)) == OWN_TEXT


@pytest.mark.parametrize(
    "traceparent",
    [
        f"00-{ID}-a3ce929d0e0e4736-00",
        f"00-{ID}-b7ad6b7169203331-01",
        f"cc-{ID}-b7ad6b7169203331-01",
        f"01-{ID}-b7ad6b7169203331-01-more",
    ],
)
def test_a_foreign_traceparent_gives_the_id(traceparent: str) -> None:
    text = json.dumps({"traceparent": traceparent})
    assert read_tracing(text) == (ID, NEVER, text)


@pytest.mark.parametrize(
    "traceparent",
    [
        f"00-{ID.upper()}-a3ce929d0e0e4736-01",
        f"00-{NO_ID}-a3ce929d0e0e4736-01",
        f"00-{ID}-0000000000000000-01",
        f"00-{ID}-a3ce929d0e0e4736-01-more",
        f"01-{ID}-a3ce929d0e0e4736-01more",
        f"ff-{ID}-a3ce929d0e0e4736-01",
        f"00-{ID[1:]}-a3ce929d0e0e4736-01",
        f"00-{ID}-a3ce929d0e0e4736",
        f" 00-{ID}-a3ce929d0e0e4736-01",
        "",
    ],
)
def test_what_is_no_traceparent_gives_none(traceparent: str) -> None:
    text = json.dumps({"traceparent": traceparent})
    assert read_tracing(text) == (NO_ID, NEVER, text)


@pytest.mark.parametrize(
    ("tracestate", "expiry"),
    [
        ("waystation=x0", 0),
        ("a=1,waystation=x5", 5),
        ("a=1 , waystation=x5 ", 5),
        ("waystation=x007", 7),
        ("waystation=x5,waystation=x6", 5),
        (f"waystation=x{LAST_INSTANT}", LAST_INSTANT),
        (f"waystation=x{LAST_INSTANT + 1}", NEVER),
        ("waystation=x" + "9" * 5000, NEVER),
        ("waystation=x-5", NEVER),
        ("waystation=x1_0", NEVER),
        ("waystation=x٣", NEVER),
        ("waystation=5", NEVER),
        ("waystation=", NEVER),
        ("mywaystation=x5", NEVER),
        ("", NEVER),
    ],
)
def test_the_expiry_is_read_from_our_member_only(tracestate: str, expiry: float) -> None:
    text = json.dumps({"tracestate": tracestate}, ensure_ascii=False)
    assert read_tracing(text)[:2] == (NO_ID, expiry)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("4bf9", "4BF9"),
        ("4bf9", "4bg9"),
        ("-a3ce929d0e0e4736-", "-a3ce929d0e0e4737-"),
        ("a3ce929d0e0e4736", "0000000000000000"),
        ("6-a3ce", "6.a3ce"),
        ("-01", "-00"),
        ("00-", "01-"),
        ("x1700000000000", "x0700000000000"),
        ("x1700000000000", "x17000000000_0"),
        ("x1700000000000", "y1700000000000"),
    ],
)
def test_a_text_nearly_as_ours_is_read_with_care(old: str, new: str) -> None:
    text = OWN_TEXT.replace(old, new)
    assert text != OWN_TEXT
    decode_body(encode_body(OWN))  # so that its header is known
    assert decode_body(body_with(text)) == structs.replace(
        PLAIN,
        **dict(zip(("id", "expiry", "trace_context"), read_tracing(text), strict=True)),
    )


def test_the_head_of_our_text_must_tell_its_length() -> None:
    decode_body(encode_body(OWN))
    body = encode_body(OWN)
    shorter = body.replace(b"\x78\x72{", b"\x78\x71{")  # then the last byte is left over
    assert decode_body(shorter) == PLAIN
    with pytest.raises(DecodeError):
        decode_body(body.replace(b"\x78\x72{", b"\x78\x73{"))


# --- What cannot be written -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "rule", "problem"),
    [
        ({"payload": "text"}, "AD-4", "'text' is not bytes"),
        ({"payload": bytearray(b"p")}, "AD-4", "is not bytes"),
        ({"onward_route": Route()}, "AD-6", "no onward route"),
        ({"onward_route": Route((Address(256, b""),))}, "AD-1", "type 256"),
        ({"return_route": Route((Address(-1, b""),))}, "AD-1", "type -1"),
        ({"return_route": Route((Address(0, "x"),))}, "AD-1", "'x' is not bytes"),  # type: ignore[arg-type]
        (
            {"onward_route": Route((Address(0, bytearray(b"x")),))},  # type: ignore[arg-type]
            "AD-1",
            "is not bytes",
        ),
        (
            {"return_route": Route((Address(0, bytearray(b"x")),))},  # type: ignore[arg-type]
            "AD-1",
            "is not bytes",
        ),
        ({"onward_route": Route((Address(0, b"x"),) * 256)}, "WK-11", "more than 255 addresses"),
        ({"id": "xyz"}, "AD-7", "invalid message id 'xyz'"),
        ({"id": ID.upper()}, "AD-7", "invalid message id"),
        ({"id": '"' * 32}, "AD-7", "invalid message id"),
        ({"expiry": -1}, "AD-7", "expiry -1"),
        ({"expiry": 1.5}, "AD-7", "expiry 1.5"),
        ({"expiry": LAST_INSTANT + 1}, "AD-7", "invalid expiry"),
        ({"trace_context": "\ud800"}, "AD-8", "UTF-8"),
    ],
)
def test_what_cannot_be_written_says_why(change: dict[str, Any], rule: str, problem: str) -> None:
    with pytest.raises(LocalError) as caught:
        encode_frame(structs.replace(PLAIN, **change))
    assert caught.value.rule == rule
    assert problem in caught.value.problem


def test_a_frame_over_the_limit_is_not_written() -> None:
    size = len(encode_body(PLAIN))
    assert encode_frame(PLAIN, limit=size) == encode_frame(PLAIN)
    with pytest.raises(LocalError, match=f"a message of {size} bytes is too large"):
        encode_frame(PLAIN, limit=size - 1)
    with pytest.raises(LocalError, match="too large"):
        encode_body(structs.replace(PLAIN, payload=bytes(FRAME_LIMIT)))
    largest = structs.replace(PLAIN, payload=bytes(FRAME_LIMIT - size - 3))
    assert len(encode_body(largest)) == FRAME_LIMIT
    assert FrameDecoder().feed(PREFACE + encode_frame(largest)) == [largest]


# --- Datagrams ------------------------------------------------------------------------------------


def test_the_vector_of_one_datagram() -> None:
    vector = VECTORS["udp-1-part"]
    datagram = bytes.fromhex(vector["hex"])
    body = bytes.fromhex(VECTORS["tcp-v1-echo-rust"]["hex"])[4:]
    assert fragments(body, vector["model"]["routing_number"]) == [datagram]
    assert Reassembly().feed(datagram) == decode_body(body)


def test_the_vector_of_three_datagrams() -> None:
    vector = VECTORS["udp-3-parts"]
    message = Message(Route.parse("echoer"), Route.parse("app"), PATTERN[:1000])
    body = encode_body(message)
    assert len(body) == vector["model"]["routing_message_length"]
    datagrams = fragments(body, vector["model"]["routing_number"])
    for datagram, expected in zip(datagrams, vector["datagrams"], strict=True):
        assert len(datagram) == expected["length"]
        assert datagram.hex().startswith(expected["hex_head"])
        assert hashlib.sha256(datagram).hexdigest() == expected["sha256"]
    reassembly = Reassembly()
    assert [reassembly.feed(datagram) for datagram in datagrams] == [None, None, message]


def test_no_datagram_is_longer_than_the_network_takes() -> None:
    largest = cbor2.dumps([255, 65535, 2**32 - 1, True, bytes(CHUNK_SIZE)])
    assert len(largest) == VECTORS["udp-max"]["length"] == 508
    assert max(map(len, fragments(bytes(FRAME_LIMIT), 65535))) <= 508


@pytest.mark.parametrize("size", [1, CHUNK_SIZE, CHUNK_SIZE + 1, 2 * CHUNK_SIZE])
def test_the_last_datagram_is_marked(size: int) -> None:
    parts = [cbor2.loads(datagram) for datagram in fragments(bytes(size), 7)]
    assert [part[3] for part in parts] == [False] * (len(parts) - 1) + [True]
    assert b"".join(part[4] for part in parts) == bytes(size)
    assert [part[2] for part in parts] == list(range(0, size, CHUNK_SIZE))


@pytest.mark.parametrize(
    ("body", "number"), [(b"x", -1), (b"x", 65536), (b"", 0), (bytes(FRAME_LIMIT + 1), 0)]
)
def test_what_fits_no_datagram_says_why(body: bytes, number: int) -> None:
    with pytest.raises(LocalError):
        fragments(body, number)


def long_message(text: str) -> Message:
    return Message(Route.parse("e"), Route.parse("a"), text.encode() * 700)


def parts_of(message: Message, number: int) -> list[bytes]:
    return fragments(encode_body(message), number)


@pytest.mark.parametrize("number", [0, 32767, 32768, 65535])
def test_numbers_wrap(number: int) -> None:
    reassembly = Reassembly()
    for i in range(4):
        first, second = parts_of(long_message("x"), (number + i) & 0xFFFF)
        assert reassembly.feed(first) is None
        assert reassembly.feed(second) == long_message("x")


@pytest.mark.parametrize("expected", [0, 5, 32768, 65535])
def test_an_earlier_number_is_late_and_changes_nothing(expected: int) -> None:
    first, second = parts_of(long_message("x"), expected)
    for back in (1, 100, 32767, 32768):
        reassembly = Reassembly()
        assert reassembly.feed(first) is None
        late = parts_of(PLAIN, (expected - back) & 0xFFFF)
        assert reassembly.feed(late[0]) is None
        assert reassembly.feed(second) == long_message("x")


@pytest.mark.parametrize("expected", [0, 5, 32768, 65535])
def test_a_later_number_ends_the_unfinished_message(expected: int) -> None:
    first, second = parts_of(long_message("x"), expected)
    for ahead in (1, 100, 32767):
        reassembly = Reassembly()
        assert reassembly.feed(first) is None
        assert reassembly.feed(parts_of(PLAIN, (expected + ahead) & 0xFFFF)[0]) == PLAIN
        assert reassembly.feed(second) is None


def test_a_datagram_out_of_place_ends_its_message() -> None:
    first, second = parts_of(long_message("x"), 5)
    for order in ([second, first], [first, first, second]):
        reassembly = Reassembly()
        assert [reassembly.feed(datagram) for datagram in order] == [None] * len(order)
        assert reassembly.feed(parts_of(PLAIN, 6)[0]) == PLAIN


def test_a_duplicate_of_a_whole_message_is_late() -> None:
    reassembly = Reassembly()
    datagram = parts_of(PLAIN, 5)[0]
    assert [reassembly.feed(datagram) for _ in range(3)] == [PLAIN, None, None]


def test_a_message_over_the_limit_is_given_up() -> None:
    first, second = parts_of(long_message("x"), 5)
    reassembly = Reassembly(limit=CHUNK_SIZE)
    assert reassembly.feed(first) is None
    with pytest.raises(DecodeError, match="more than 493 bytes") as caught:
        reassembly.feed(second)
    assert caught.value.too_large
    assert not reassembly._held
    assert reassembly.feed(second) is None  # late by now
    assert reassembly.feed(parts_of(PLAIN, 6)[0]) == PLAIN


def test_a_heartbeat_may_come_in_a_datagram() -> None:
    assert Reassembly().feed(fragments(HEARTBEAT_FRAME[4:], 5)[0]) is HEARTBEAT


@pytest.mark.parametrize(
    "datagram",
    [
        "",
        "84 01 05 00 f5",
        "85 01 1a00010000 00 f5 4100",
        "85 190100 05 00 f5 4100",
        "85 01 05 1b0000000100000000 f5 4100",
        "85 01 05 00 f6 4100",
        "85 01 05 00 01 4100",
        "85 01 05 00 f5 6100",
        "a0",
        "86 01 05 00 f5 4100",
    ],
)
def test_a_broken_datagram_spoils_nothing(datagram: str) -> None:
    first, second = parts_of(long_message("x"), 5)
    reassembly = Reassembly()
    assert reassembly.feed(first) is None
    with pytest.raises(DecodeError):
        reassembly.feed(bytes.fromhex(datagram))
    assert reassembly.feed(second) == long_message("x")


def test_a_datagram_may_have_more_elements_and_any_version() -> None:
    body = encode_body(PLAIN)
    datagram = cbor2.dumps([9, 5, 0, True, body, "more"])
    assert Reassembly().feed(datagram + b"left over") == PLAIN


def test_a_whole_message_of_nonsense_is_an_error_of_its_own() -> None:
    reassembly = Reassembly()
    with pytest.raises(DecodeError):
        reassembly.feed(fragments(b"nonsense", 5)[0])
    assert reassembly.feed(parts_of(PLAIN, 6)[0]) == PLAIN


# --- Properties -----------------------------------------------------------------------------------

types = st.integers(0, 5) | st.integers(0, 255)  # those in use more often than others
addresses = st.builds(Address, types, st.binary(max_size=40))
routes = st.lists(addresses, max_size=6).map(lambda found: Route(tuple(found)))
ids = st.just(NO_ID) | st.integers(1, 2**128 - 1).map("{:032x}".format)
expiries = st.just(NEVER) | st.integers(0, LAST_INSTANT) | st.integers(10**12, 10**13 - 1)
payloads = st.binary(max_size=23) | st.binary(min_size=24, max_size=400)
messages = st.builds(Message, routes.filter(len), routes, payloads, ids, expiries)


@pytest.mark.rule("AD-1")
@pytest.mark.rule("AD-4")
@given(message=messages)
def test_a_message_comes_back_as_it_went(message: Message) -> None:
    body = encode_body(message)
    for _ in ("perhaps unseen", "remembered"):
        assert decode_body(body) == message
    assert Reassembly().feed(fragments(body, 0)[0]) in (message, None)


@given(message=messages)
def test_what_is_written_is_what_cbor2_writes(message: Message) -> None:
    tree = [
        [[a.type, a.data] for a in message.onward_route],
        [[a.type, a.data] for a in message.return_route],
        message.payload,
        tracing_text(message) or None,
    ]
    assert encode_body(message) == cbor2.dumps(tree)


@given(found=st.lists(messages | st.just(HEARTBEAT), max_size=5), data=st.data())
def test_a_stream_comes_back_however_it_is_cut(found: list[Message], data: st.DataObject) -> None:
    stream = PREFACE + b"".join(map(encode_frame, found))
    decoder = FrameDecoder()
    assert [m for piece in sliced(stream, data) for m in decoder.feed(piece)] == found


@given(
    fields=st.dictionaries(
        st.sampled_from(["traceparent", "tracestate", "x"]),
        st.sampled_from([f"00-{ID}-b7ad6b7169203331-01", "a=1,waystation=x17", ""]) | st.text(),
    ),
    id=ids,
    expiry=expiries,
)
def test_foreign_tracing_never_hides_id_and_expiry(
    fields: dict[str, str], id: str, expiry: float
) -> None:
    context = json.dumps(fields)
    message = structs.replace(PLAIN, id=id, expiry=expiry, trace_context=context)
    found = decode_body(encode_body(message))
    assert found.expiry == expiry
    assert found.id == (id if id != NO_ID else read_tracing(context)[0])
    assert decode_body(encode_body(found)) == found


# --- Hostile bytes --------------------------------------------------------------------------------

SEEDS = [
    STREAM,
    PREFACE + encode_frame(OWN) * 2,
    PREFACE + frame(body_with(f'{{"traceparent":"00-{OTHER_ID}-b7ad6b7169203331-01"}}')) * 2,
    PREFACE + b"".join(frame(bytes.fromhex(text)) for text in ACCEPTED.values()),
    *(PREFACE + bytes.fromhex(v["hex"]) for v in VECTORS.values() if v["group"] == "tcp-v1-odd"),
    *CORPUS.values(),
]


def sliced(stream: bytes, data: st.DataObject) -> Iterator[bytes]:
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=4), label="cuts")
    start = 0
    for cut in [*sorted(cuts), len(stream)]:
        yield stream[start:cut]
        start = cut


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    found = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["flip", "cut", "insert", "duplicate", "splice"]))
        at, to = sorted((draw(st.integers(0, len(found))), draw(st.integers(0, len(found)))))
        if kind == "flip" and at < len(found):
            found[at] = draw(st.integers(0, 255))
        elif kind == "cut":
            del found[at:to]
        elif kind == "insert":
            found[at:at] = draw(st.binary(max_size=9))
        elif kind == "duplicate":
            found[to:to] = found[at:to]
        elif kind == "splice":
            other = draw(st.sampled_from(SEEDS))
            found[at:] = other[draw(st.integers(0, len(other))) :]
    return bytes(found)


def outcome(body: bytes, *, patiently: bool = False) -> Message | str:
    try:
        return ockam._decode_slowly(body, 0, len(body)) if patiently else decode_body(body)
    except DecodeError as error:
        return str(error)


def check_any_bytes(stream: bytes, pieces: Iterator[bytes]) -> None:
    decoder = FrameDecoder()
    found: list[Message] = []
    try:
        for piece in pieces:
            found += decoder.feed(piece)
        decoder.feed(b"")
    except DecodeError:
        assert decoder.error is not None
    whole = FrameDecoder()
    assert whole.feed(stream) == found
    assert str(whole.error) == str(decoder.error)
    reassembly = Reassembly(limit=1000)
    for datagram in (stream, stream[1:], *bodies_of(stream[1:])):
        assert outcome(datagram) == outcome(datagram, patiently=True)
        try:
            assert isinstance(reassembly.feed(datagram), Message | None)
        except DecodeError:
            assert len(reassembly._held) <= 1000


@pytest.mark.parametrize("name", CORPUS)
def test_the_corpus_gives_values_or_errors(name: str) -> None:
    stream = CORPUS[name]
    for _ in ("unseen", "remembered"):
        check_any_bytes(stream, (stream[i : i + 1] for i in range(len(stream))))


@given(stream=st.binary(max_size=200), data=st.data())
def test_any_bytes_give_values_or_errors(stream: bytes, data: st.DataObject) -> None:
    check_any_bytes(PREFACE + stream, sliced(PREFACE + stream, data))
    check_any_bytes(stream, sliced(stream, data))


@given(stream=mutations(), data=st.data())
def test_spoilt_streams_give_values_or_errors(stream: bytes, data: st.DataObject) -> None:
    check_any_bytes(stream, sliced(stream, data))


@given(body=st.binary(max_size=60).map(lambda rest: FIVE + rest))
def test_any_unknown_element_is_skipped_or_refused(body: bytes) -> None:
    assert outcome(body) == PLAIN or isinstance(outcome(body), str)


extras = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64 - 1)
    | st.floats()
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.integers() | st.text(), inner, max_size=4)
        | st.builds(cbor2.CBORTag, st.integers(1000, 2000), inner)
    ),
    max_leaves=20,
)


@given(extra=extras, other=extras, indefinite=st.booleans())
def test_every_well_formed_element_is_skipped(extra: Any, other: Any, indefinite: bool) -> None:
    items = [[[0, b"e"]], [[0, b"a", other]], b"p", None, extra, other]
    assert decode_body(cbor2.dumps(items, indefinite_containers=indefinite)) == PLAIN


# --- What costs memory, and what is refused at the door -------------------------------------------


def peak_of(body: bytes) -> int:
    tracemalloc.start()
    try:
        decode_body(body)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


LONG = ("x" * (4 << 20) + "\U0001f600").encode()  # as text it takes four bytes for each character
LONG_ITEM = b"\x7a" + pack(">I", len(LONG)) + LONG


@pytest.mark.parametrize("front", [HEADER + b"\x41p", FIVE])
def test_a_long_text_is_checked_and_not_kept(front: bytes) -> None:
    assert decode_body(front + LONG_ITEM) == PLAIN
    assert peak_of(front + LONG_ITEM) < 1 << 20


@pytest.mark.parametrize("front", [HEADER + b"\x41p", FIVE])
@pytest.mark.parametrize("at", [0, 32_767, 32_768, 2 << 20, (4 << 20) + 3])
def test_a_long_text_is_utf8_everywhere(front: bytes, at: int) -> None:
    broken = bytearray(front + LONG_ITEM)
    broken[len(front) + 5 + at] = 0xFF
    with pytest.raises(DecodeError, match="a text is not UTF-8"):
        decode_body(bytes(broken))
    with pytest.raises(DecodeError, match="a text is not UTF-8"):
        decode_body(front + b"\x7a" + pack(">I", len(LONG) - 1) + LONG[:-1])


def test_characters_between_two_slices_are_whole() -> None:
    for shift in range(4):
        text = ("x" * shift + "\U0001f600" * 20_000).encode()
        body = HEADER + b"\x41p\x7a" + pack(">I", len(text)) + text
        assert decode_body(body) == PLAIN


def test_the_longest_tracing_is_read_in_any_characters() -> None:
    filler = "\U0001f600" * (TRACING_LIMIT - len('{"a":""}'))
    text = f'{{"a":"{filler}"}}'
    assert len(text) == TRACING_LIMIT
    assert decode_body(body_with(text)).trace_context == text


@pytest.mark.rule("AD-8")
def test_a_trace_context_that_nobody_reads_is_left_out() -> None:
    context = '{"a":"' + "x" * TRACING_LIMIT + '"}'
    assert tracing_text(structs.replace(PLAIN, trace_context=context)) == ""
    assert tracing_text(structs.replace(OWN, trace_context=context)) == OWN_TEXT


def test_half_a_surrogate_pair_is_no_tracing() -> None:
    assert read_tracing('{"a":"\ud800"}') == (NO_ID, NEVER, "")


def test_bodies_and_datagrams_come_in_any_kind_of_buffer() -> None:
    body = encode_body(OWN)
    for kind in (bytearray, memoryview):
        assert decode_body(kind(body)) == OWN
        assert Reassembly().feed(kind(fragments(body, 7)[0])) == OWN


@pytest.mark.parametrize("number", [1.5, "1", None, -1, 65_536])
def test_a_routing_number_is_a_whole_number(number: Any) -> None:
    with pytest.raises(LocalError, match=r"routing number .* is out of range"):
        fragments(b"body", number)


@pytest.mark.parametrize("body", ["text", None, 1])
def test_only_bytes_go_into_datagrams(body: Any) -> None:
    with pytest.raises(LocalError, match=r"is not bytes"):
        fragments(body, 1)


def test_an_error_that_is_raised_holds_no_frames_in_the_decoder() -> None:
    decoder = FrameDecoder()
    decoder.feed(b"\x02")
    with pytest.raises(DecodeError):
        decoder.feed(b"")
    assert decoder.error is not None
    assert decoder.error.__traceback__ is None


# --- The vectors that are no frames, and the odd ones in slices -----------------------------------


def test_the_preface_is_that_of_the_vectors() -> None:
    assert bytes.fromhex(VECTORS["tcp-v1-preface"]["hex"]) == PREFACE
    decoder = FrameDecoder()
    assert decoder.feed(bytes.fromhex(VECTORS["odd-version-0"]["hex"])) == []
    with pytest.raises(DecodeError, match="the preface is 00, not 01"):
        decoder.feed(b"")


@pytest.mark.rule("AD-4")
@pytest.mark.parametrize("name", [name for name in VECTORS if name.startswith("app-")])
def test_payloads_of_applications_are_opaque(name: str) -> None:
    message = structs.replace(PLAIN, payload=bytes.fromhex(VECTORS[name]["hex"]))
    assert decode_body(encode_body(message)) == message


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, vector in VECTORS.items()
        if vector["group"] == "tcp-v1-odd" and name != "odd-version-0"
    ],
)
def test_odd_frames_mean_the_same_in_slices(name: str) -> None:
    def outcome(pieces: list[bytes]) -> tuple[list[Message], str]:
        decoder = FrameDecoder()
        messages: list[Message] = []
        for piece in pieces:
            messages += decoder.feed(piece)
            if decoder.error is not None:
                break
        return messages, f"{decoder.error}"

    stream = PREFACE + encode_frame(OWN) + bytes.fromhex(VECTORS[name]["hex"])
    whole = outcome([stream])
    assert whole[0][0] == OWN
    assert outcome([stream[at : at + 1] for at in range(len(stream))]) == whole
    for at in range(len(stream)):
        assert outcome([stream[:at], stream[at:]]) == whole


@pytest.mark.rule("FL-2")
def test_a_decoder_reads_on_where_a_frame_was_too_large_once_its_limit_is_raised() -> None:
    small = encode_frame(Message(Route.parse("a"), Route.parse("b"), b"small"))
    large = encode_frame(Message(Route.parse("a"), Route.parse("b"), bytes(500)))
    decoder = FrameDecoder(limit=100)
    assert decoder.raise_limit(200) == []  # nothing was refused
    assert [m.payload for m in decoder.feed(PREFACE + small + large + small + large[:9])] == [
        b"small"
    ]
    assert decoder.error is not None
    assert decoder.error.too_large
    assert decoder.held == 0
    assert [m.payload for m in decoder.raise_limit(1000)] == [bytes(500), b"small"]
    assert decoder.held == 9
    assert [m.payload for m in decoder.feed(large[9:])] == [bytes(500)]
    decoder.feed(b"\xff\xff\xff\xff")
    assert decoder.error.offset == 1 + 2 * len(small) + 2 * len(large)
    assert decoder.raise_limit(2000) == []  # still too large
    assert decoder.error.offset == 1 + 2 * len(small) + 2 * len(large)
