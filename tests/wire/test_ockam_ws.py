"""The bodies of WebSocket messages: whatever is fast gives the same as bare.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from waystation.core.address import MAX_ROUTE_LENGTH, Address, Route
from waystation.core.expiry import LAST_INSTANT, NEVER
from waystation.core.message import Message
from waystation.errors import DecodeError, LocalError
from waystation.wire import bare, ockam_ws
from waystation.wire.ockam import HEARTBEAT, tracing_text
from waystation.wire.ockam_ws import BodyDecoder, encode_control, encode_departure

CORPUS = [
    bytes.fromhex("".join(path.read_text().splitlines()[1:]))
    for path in sorted((Path(__file__).parent / "corpus" / "ockam").glob("*.txt"))
]
ID = "4bf92f3577b34da6a3ce929d0e0e4736"
VIA = Address(0, b"link")
MESSAGE = Message(Route.parse("link => echo"), Route.parse("app"), b"p", ID, 1_700_000_000_000)
BODY = encode_departure(MESSAGE)

addresses = st.builds(Address, st.integers(0, 255), st.binary(max_size=140))
routes = st.lists(addresses, max_size=5).map(lambda hops: Route(tuple(hops)))
messages = st.builds(
    Message,
    st.lists(addresses, min_size=2, max_size=5).map(lambda hops: Route(tuple(hops))),
    routes,
    st.binary(max_size=300),
    st.one_of(st.just("0" * 32), st.text("0123456789abcdef", min_size=32, max_size=32)),
    st.one_of(st.just(NEVER), st.integers(0, LAST_INSTANT)),
    st.sampled_from(["", "{}", '{"traceparent":"x"}', '{"tracestate":"vendor=1"}', "é" * 40]),
)


def slow(body: bytes) -> Message | str:
    """What bare.py makes of a body, with the way back put in front."""
    try:
        found = bare.decode(body)
    except DecodeError as error:
        return str(error)
    return found if found is HEARTBEAT else found.arrived(VIA)


def fast(body: bytes) -> Message | str:
    try:
        found = BodyDecoder(VIA).decode(body)
    except DecodeError as error:
        return str(error)
    return found if found.onward_route.addresses else HEARTBEAT


@given(messages)
@pytest.mark.rule("WK-10")
def test_a_departure_is_written_as_bare_writes_what_is_left_of_it(message: Message) -> None:
    for _ in range(2):  # the second time from memory
        assert encode_departure(message) == bare.encode(message.departed())


@given(messages)
@pytest.mark.rule("AD-8")
def test_a_body_is_read_as_bare_reads_it(message: Message) -> None:
    body = encode_departure(message)
    for _ in range(2):
        assert fast(body) == slow(body)


@pytest.mark.parametrize("body", CORPUS)
def test_the_corpus_is_read_or_refused_as_bare_does(body: bytes) -> None:
    assert fast(body) == slow(body)


@given(st.binary(max_size=60))
@example(b"")
@example(bytes.fromhex("01 80 00"))
@example(bytes.fromhex("01 ff"))
@example(bytes.fromhex("01 01 00 ff"))
@example(bytes.fromhex("01 00 01 00 01 61 00"))
@example(bytes.fromhex("01 01 00 01 61 00 ffffffffff 01"))
@example(bytes.fromhex("02 01 00 01 61 00 00 01 00"))
@example(bytes.fromhex("02 01 00 01 61 00 00 01 02 c3a9"))
@example(bytes.fromhex("02 01 00 01 61 00 00 01 02 7b"))
@example(bytes.fromhex("02 01 00 01 61 00 00"))
@example(bytes.fromhex("02 01 00 01 61 00 00 00"))
@example(bytes.fromhex("01 00 00 00 00"))  # a heartbeat of an Ockam node
def test_hostile_bytes_are_read_or_refused_as_bare_does(body: bytes) -> None:
    assert fast(body) == slow(body)


@given(st.integers(0, len(BODY) - 1), st.integers(0, 255))
def test_one_wrong_byte_changes_what_bare_says_as_well(at: int, value: int) -> None:
    fast(BODY)  # so that its routes and its expiry are remembered
    body = BODY[:at] + bytes((value,)) + BODY[at + 1 :]
    assert fast(body) == slow(body)


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16383, 16384, 70_000])
def test_a_payload_for_the_session_comes_through(size: int) -> None:
    found = BodyDecoder(VIA).decode(encode_control(bytes(size)))
    assert found == Message(Route(), Route(), bytes(size))
    assert (found is HEARTBEAT) == (size == 0)


def test_what_is_for_the_session_is_refused_if_it_is_cut() -> None:
    with pytest.raises(DecodeError, match="too early"):
        BodyDecoder(VIA).decode(encode_control(b"hello")[:-1])


@pytest.mark.parametrize("tail", ["", "1"])
@pytest.mark.parametrize("id", [ID, "0" * 31 + "1", "f" * 16 + "0" * 16])
def test_an_id_is_told_by_the_text_whoever_wrote_it(id: str, tail: str) -> None:
    message = structs.replace(MESSAGE, id=id)
    body = encode_departure(message) + tail.encode()
    for _ in range(2):
        assert fast(body) == slow(body)


def test_what_is_too_large_is_refused_both_ways() -> None:
    with pytest.raises(LocalError, match="too large") as refused:
        encode_departure(MESSAGE, limit=len(BODY) - 1)
    assert refused.value.rule == "OB-2"
    assert encode_departure(MESSAGE, limit=len(BODY)) == BODY
    with pytest.raises(DecodeError) as wrong:
        BodyDecoder(VIA, limit=len(BODY) - 1).decode(BODY)
    assert wrong.value.too_large


def test_what_has_nowhere_to_go_is_refused() -> None:
    with pytest.raises(LocalError) as refused:
        encode_departure(Message(Route.parse("link"), Route(), b""))
    assert refused.value.rule == "AD-6"


def test_what_is_no_message_is_refused() -> None:
    with pytest.raises(LocalError):
        encode_departure(structs.replace(MESSAGE, payload="text"))
    unhashable = Route((VIA, Address(0, bytearray(b"x"))))  # type: ignore[arg-type]
    unheard_of = Route((VIA, Address(256, b"x")))
    too_long = Route((VIA,) * (MAX_ROUTE_LENGTH + 2))
    for route in (unhashable, unheard_of, too_long):
        with pytest.raises(LocalError):
            encode_departure(structs.replace(MESSAGE, onward_route=route))
        with pytest.raises(LocalError):
            encode_departure(structs.replace(MESSAGE, return_route=route))


def test_memory_is_bounded() -> None:
    decoder = BodyDecoder(VIA)
    for number in range(ockam_ws.MEMORY + 10):
        name = Address(0, b"%d" % number)
        message = Message(Route((VIA, name)), Route((name,)), b"", ID, 10**12 + number)
        body = encode_departure(message)
        assert decoder.decode(body).expiry == 10**12 + number
    long = Message(Route((VIA, *[Address(0, bytes(100))] * 5)), Route(), b"", ID)
    assert decoder.decode(encode_departure(long)).onward_route == long.onward_route.rest()
    for memory in (
        ockam_ws._departures,
        ockam_ws._ways_back,
        ockam_ws._headers,
        ockam_ws._lengths,
        ockam_ws._expiries,
    ):
        assert 0 < len(memory) <= ockam_ws.MEMORY
    assert long.onward_route not in ockam_ws._departures


def test_the_longest_routes_come_through() -> None:
    route = Route((VIA, *[Address(0, b"x")] * (MAX_ROUTE_LENGTH - 1)))
    message = Message(route, Route(), b"", ID)
    body = encode_departure(message)
    assert fast(body) == slow(body)


def test_a_text_of_ours_with_another_parent_is_kept_whole() -> None:
    text = tracing_text(MESSAGE)
    other = text.replace(f"-{ID[16:]}-", "-1111111111111111-")
    body = BODY.replace(text.encode(), other.encode())
    assert body != BODY
    fast(BODY)
    found = fast(body)
    assert found == slow(body)
    assert isinstance(found, Message)
    assert found.trace_context == other
