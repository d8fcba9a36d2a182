"""Ockam's older BARE body: vectors, both versions, and hostile bytes."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from waystation.core.address import MAX_ROUTE_LENGTH, Address, Route
from waystation.core.expiry import LAST_INSTANT, NEVER
from waystation.core.message import Message
from waystation.errors import DecodeError, LocalError
from waystation.wire import bare
from waystation.wire.bare import decode, encode
from waystation.wire.ockam import HEARTBEAT, encode_body, tracing_text

HERE = Path(__file__).parent
FILE = json.loads((HERE / "vectors" / "ockam.json").read_text())
VECTORS: dict[str, dict[str, Any]] = {v["id"]: v for v in FILE["computed"] + FILE["upstream"]}
CORPUS = {
    path.stem: bytes.fromhex("".join(path.read_text().splitlines()[1:]))
    for path in sorted((HERE / "corpus" / "ockam").glob("*.txt"))
}

ID = "4bf92f3577b34da6a3ce929d0e0e4736"
NO_ID = "0" * 32
PLAIN = Message(Route.parse("a"), Route.parse("b"), b"p")
BODY = bytes.fromhex("01 01 00 0161 01 00 0162 0170")
ECHO = Message(Route.parse("echoer"), Route.parse("app"), b"\x0cHello Ockam!")
UPSTREAM = {
    "ex-wire-tcp": ("1#127.0.0.1:4000 => printer", "1#127.0.0.1:3000", b"hello"),
    "ex-wire-udp": ("2#127.0.0.1:4000 => printer", "2#127.0.0.1:3000", b"hello"),
    "ex-wire-tcp-min": ("1#127.0.0.1:4000", "", b""),
    "ex-wire-udp-min": ("2#127.0.0.1:4000", "", b""),
}


def bytes_of(name: str) -> bytes:
    data = bytes.fromhex(VECTORS[name]["hex"])
    framed = (
        VECTORS[name].get("group") == "bare-legacy-tcp" and "address" not in VECTORS[name]["model"]
    )
    if framed:  # by a length of two bytes, as TCP had it then
        assert int.from_bytes(data[:2], "big") == len(data) - 2
        return data[2:]
    return data


# --- The vectors ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["bare-v1-frame", "bare-v1-rust-tail", "bare-v2-frame", "bare-ws-message"]
)
def test_both_versions_are_read_with_and_without_the_option(name: str) -> None:
    assert decode(bytes_of(name)) == ECHO


def test_a_message_without_tracing_is_written_as_version_1() -> None:
    assert encode(ECHO) == bytes_of("bare-v1-frame")


@pytest.mark.parametrize("name", UPSTREAM)
def test_the_vectors_of_elixir_are_read_and_written(name: str) -> None:
    onward, back, payload = UPSTREAM[name]
    message = Message(Route.parse(onward), Route.parse(back), payload)
    assert decode(bytes_of(name)) == message
    assert encode(message) == bytes_of(name)


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("ex-addr-tcp", "1#localhost:4000"),
        ("ex-addr-udp", "2#127.0.0.1:4000"),
        ("bare-type-200-rust", "200#x"),
    ],
)
def test_the_vectors_of_addresses(name: str, address: str) -> None:
    body = b"\x01\x01" + bytes_of(name) + b"\x00\x00"
    message = Message(Route.parse(address), Route(), b"")
    assert decode(body) == message
    assert encode(message) == body


def test_a_heartbeat() -> None:
    assert decode(bytes_of("bare-heartbeat")) is HEARTBEAT
    assert decode(bytes.fromhex("02 00 01 00 0161 0170 00")) is HEARTBEAT
    assert encode(HEARTBEAT) == bytes_of("bare-heartbeat")


@pytest.mark.parametrize(
    "vector",
    [v for v in VECTORS.values() if v.get("group") == "bare-primitive"],
    ids=lambda v: v["model"]["value"],
)
def test_the_vectors_of_numbers(vector: dict[str, Any]) -> None:
    data, value = bytes.fromhex(vector["hex"]), int(vector["model"]["value"])
    assert bare._read_number(data, 0) == (value, len(data))
    assert bare._number(value) == data


@pytest.mark.parametrize(
    "data", [VECTORS["rs-leb-bad"]["hex"], *VECTORS["rs-leb-bad"]["more"], "ff" * 9, "80" * 10]
)
def test_a_number_over_64_bits_or_without_end_is_refused(data: str) -> None:
    for before in (b"\x01", b"\x01\x01\x00", b"\x01\x00\x00"):  # a count and two lengths
        with pytest.raises(DecodeError):
            decode(before + bytes.fromhex(data))


def test_a_number_may_be_longer_than_it_must() -> None:
    assert decode(bytes.fromhex("01 8100 00 8180800061 01 00 0162 810070")) == PLAIN
    assert bare._read_number(bytes.fromhex(VECTORS["rs-leb-max"]["hex"]), 0)[0] == 2**64 - 1


# --- The tracing ----------------------------------------------------------------------------------


@pytest.mark.rule("AD-8")
@pytest.mark.parametrize(("id", "expiry"), [(ID, NEVER), (ID, 1_700_000_000_000), (NO_ID, 17)])
def test_id_and_expiry_travel_in_the_tracing(id: str, expiry: float) -> None:
    message = structs.replace(PLAIN, id=id, expiry=expiry)
    text = tracing_text(message).encode()
    assert encode(message) == b"\x02" + BODY[1:] + b"\x01" + bare._number(len(text)) + text
    assert decode(encode(message)) == message
    assert decode(b"\x01" + encode(message)[1:]) == message  # as Rust writes it


@pytest.mark.rule("AD-8")
def test_what_a_peer_wrote_beside_them_is_passed_on_as_it_came() -> None:
    text = '{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}'
    body = b"\x02" + BODY[1:] + b"\x01" + bare._number(len(text)) + text.encode()
    message = decode(body)
    assert (message.id, message.trace_context) == ("0af7651916cd43dd8448eb211c80319c", text)
    assert encode(message) == body


# --- What is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "end too early"),
        (b"\x00" + BODY[1:], "version 0"),
        (b"\x03" + BODY[1:], "version 3"),
        (BODY[:-1], "end too early"),
        (BODY[:-2], "end too early"),
        (BODY + b"\x02", "starts with 2"),
        (BODY + b"\x01", "end too early"),
        (BODY + b"\x01\x02a", "end too early"),
        (BODY + b"\x00\x00", "left over"),
        (BODY + b"\x01\x01a!", "left over"),
        (BODY + b"\x01\x01\xff", "not UTF-8"),
        (b"\x01\x01\x00\xff\xff\xff\xff\x0fa", "end too early"),
    ],
)
def test_what_is_no_body_is_refused(body: bytes, problem: str) -> None:
    with pytest.raises(DecodeError, match=problem) as caught:
        decode(body)
    assert caught.value.format == "ockam-bare"
    assert not caught.value.too_large
    assert 0 <= caught.value.offset <= len(body)


def test_every_cut_of_a_body_is_refused() -> None:
    body = encode(structs.replace(PLAIN, id=ID))
    whole = len(BODY)  # that cut is a message of its own, without tracing
    for cut in set(range(len(body))) - {whole}:
        with pytest.raises(DecodeError):
            decode(body[:cut])
    assert decode(body[:whole]) == PLAIN


def test_the_longest_route_and_one_longer() -> None:
    longest = Route((Address(0, b""),) * MAX_ROUTE_LENGTH)
    message = Message(longest, longest, b"")
    assert decode(encode(message)) == message
    with pytest.raises(DecodeError, match="a route has 256 addresses") as caught:
        decode(b"\x01" + bare._number(256) + b"\x00\x00" * 256)
    assert caught.value.too_large


def test_the_largest_body_and_one_larger() -> None:
    assert encode(PLAIN, limit=len(BODY)) == BODY
    assert decode(BODY, limit=len(BODY)) == PLAIN
    with pytest.raises(LocalError, match="too large"):
        encode(PLAIN, limit=len(BODY) - 1)
    with pytest.raises(DecodeError, match="longer than") as caught:
        decode(BODY, limit=len(BODY) - 1)
    assert caught.value.too_large


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"payload": "text"}, "AD-4"),
        ({"onward_route": Route()}, "AD-6"),
        ({"onward_route": Route((Address(256, b""),))}, "AD-1"),
        ({"return_route": Route((Address(0, "x"),))}, "AD-1"),  # type: ignore[arg-type]
        ({"return_route": Route((Address(0, b""),) * 256)}, "WK-11"),
        ({"id": "xyz"}, "AD-7"),
        ({"expiry": -1}, "AD-7"),
        ({"trace_context": "\ud800"}, "AD-8"),
    ],
)
def test_what_cannot_be_written_says_why(change: dict[str, Any], rule: str) -> None:
    with pytest.raises(LocalError) as caught:
        encode(structs.replace(PLAIN, **change))
    assert caught.value.rule == rule


# --- Properties -----------------------------------------------------------------------------------

addresses = st.builds(Address, st.integers(0, 255), st.binary(max_size=200))
routes = st.lists(addresses, max_size=6).map(lambda found: Route(tuple(found)))
ids = st.just(NO_ID) | st.integers(1, 2**128 - 1).map("{:032x}".format)
expiries = st.just(NEVER) | st.integers(0, LAST_INSTANT)
messages = st.builds(Message, routes.filter(len), routes, st.binary(max_size=400), ids, expiries)


@pytest.mark.rule("AD-4")
@given(message=messages)
def test_a_message_comes_back_as_it_went(message: Message) -> None:
    assert decode(encode(message)) == message


def check_any_bytes(body: bytes) -> None:
    try:
        message = decode(body)
    except DecodeError:
        return
    assert decode(encode(message)) == message


@pytest.mark.parametrize("name", CORPUS)
def test_the_corpus_gives_values_or_errors(name: str) -> None:
    check_any_bytes(CORPUS[name])


@given(body=st.binary(max_size=100))
def test_any_bytes_give_values_or_errors(body: bytes) -> None:
    check_any_bytes(body)
    check_any_bytes(b"\x01" + body)


SEEDS = [
    *(bytes_of(name) for name in VECTORS if name.startswith(("bare-v", "bare-ws", "ex-wire"))),
    encode(structs.replace(PLAIN, id=ID, expiry=17)),
    encode_body(PLAIN),
]


@given(
    seed=st.sampled_from(SEEDS),
    other=st.sampled_from(SEEDS),
    edits=st.lists(
        st.tuples(st.integers(0, 120), st.integers(0, 9), st.binary(max_size=9)), max_size=4
    ),
    tail=st.none() | st.integers(0, 120),
)
def test_spoilt_bodies_give_values_or_errors(
    seed: bytes, other: bytes, edits: list[tuple[int, int, bytes]], tail: int | None
) -> None:
    body = bytearray(seed)
    for at, removed, added in edits:
        body[at : at + removed] = added
    if tail is not None:
        body[tail:] = other[tail // 2 :]
    check_any_bytes(bytes(body))


def test_a_long_tracing_is_checked_and_not_kept() -> None:
    text = b"x" * (4 << 20) + "\U0001f600".encode()
    body = BODY + b"\x01" + bare._number(len(text)) + text
    tracemalloc.start()
    try:
        assert decode(body) == PLAIN
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    with pytest.raises(DecodeError, match="the tracing is not UTF-8"):
        decode(body[:-1] + b"\xff")


def test_bodies_come_in_any_kind_of_buffer() -> None:
    for kind in (bytearray, memoryview):
        assert decode(kind(BODY)) == PLAIN
