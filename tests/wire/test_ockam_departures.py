"""Messages that leave by a connection or come in by one (WK-10), and what is for the session."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.core.address import Address, Route
from waystation.core.message import Message
from waystation.errors import DecodeError, LocalError
from waystation.wire import ockam
from waystation.wire.ockam import (
    FRAME_LIMIT,
    HEARTBEAT,
    HEARTBEAT_FRAME,
    PREFACE,
    FrameDecoder,
    departure_parts,
    encode_control,
    encode_departure,
    encode_frame,
)

VIA = Address(0, b"tcp-1")

addresses = st.builds(Address, st.integers(0, 255), st.binary(max_size=40))
routes = st.lists(addresses, max_size=30).map(lambda hops: Route(tuple(hops)))


def message(onward: str, back: str = "app", payload: bytes = b"hi") -> Message:
    return Message(Route.parse(onward), Route.parse(back), payload, id="4bf9" * 8, expiry=90_000)


@pytest.mark.rule("WK-10")
@given(routes, routes, addresses, st.binary(max_size=300))
def test_a_departure_is_the_frame_without_its_first_address(
    onward: Route, back: Route, first: Address, payload: bytes
) -> None:
    sent = Message(onward.pushed(first), back, payload, id="4bf9" * 8)
    if not onward.addresses:
        with pytest.raises(LocalError, match="no onward route"):
            encode_departure(sent)
        return
    for _ in range(2):  # what is remembered is as good as what is new
        assert encode_departure(sent) == encode_frame(sent.departed())
        parts = departure_parts(sent)
        assert b"".join(parts) == encode_departure(sent)
        assert parts[1] is payload


@pytest.mark.rule("WK-10")
@given(routes.filter(len), routes, st.binary(max_size=300))
def test_what_comes_in_has_the_connection_in_front_of_its_return_route(
    onward: Route, back: Route, payload: bytes
) -> None:
    sent = Message(onward, back, payload, id="4bf9" * 8)
    decoder = FrameDecoder(via=VIA)
    frame = encode_frame(sent)
    assert decoder.feed(PREFACE + frame + frame) == [sent.arrived(VIA)] * 2


@pytest.mark.rule("AD-6")
@pytest.mark.parametrize("onward", ["", "connection"])
def test_a_departure_that_leads_no_further_is_refused(onward: str) -> None:
    with pytest.raises(LocalError) as caught:
        encode_departure(message(onward))
    assert caught.value.rule == "AD-6"


def test_a_departure_over_the_limit_is_refused() -> None:
    sent = message("connection => echo", payload=bytes(1000))
    size = len(encode_departure(sent)) - 4
    assert encode_departure(sent, limit=size)
    with pytest.raises(LocalError) as caught:
        encode_departure(sent, limit=size - 1)
    assert caught.value.rule == "OB-2"
    with pytest.raises(LocalError):
        encode_departure(message("connection => echo", payload=bytes(FRAME_LIMIT)))


@pytest.mark.parametrize("data", [bytearray(b"x"), "x", None])
def test_a_departure_to_an_address_without_bytes_is_refused(data: bytes) -> None:
    sent = Message(Route((VIA, Address(0, data))), Route(), b"")
    for encode in (encode_departure, departure_parts):
        with pytest.raises(LocalError):
            encode(sent)


def test_a_departure_to_what_is_no_address_is_refused() -> None:
    with pytest.raises(LocalError, match="is not an Address"):
        encode_departure(Message(Route((VIA, "echo")), Route(), b""))  # type: ignore[arg-type]


def test_a_departure_with_a_payload_that_is_no_bytes_is_refused() -> None:
    with pytest.raises(LocalError, match="is not bytes"):
        encode_departure(Message(Route.parse("a => b"), Route(), "text"))  # type: ignore[arg-type]


def test_long_routes_are_not_remembered() -> None:
    before = len(ockam._DEPARTURES)
    sent = message(" => ".join(f"never-seen-{n}" for n in range(12)))
    assert encode_departure(sent) == encode_frame(sent.departed())
    back = message("echo", " => ".join(f"never-seen-{n}" for n in range(12)))
    decoder = FrameDecoder(via=VIA)
    decoder.feed(PREFACE + encode_frame(back))
    assert len(ockam._DEPARTURES) == before
    assert decoder._ways_back is not None
    assert len(decoder._ways_back) == 0


def test_the_ways_back_of_one_connection_are_bounded() -> None:
    decoder = FrameDecoder(via=VIA)
    decoder.feed(PREFACE)
    for number in range(1000):
        (got,) = decoder.feed(encode_frame(message("echo", f"peer-{number}")))
        assert str(got.return_route) == f"0#tcp-1 => 0#peer-{number}"
    assert decoder._ways_back is not None
    assert len(decoder._ways_back) <= decoder._ways_back.ENTRIES


@pytest.mark.parametrize("size", [1, 23, 24, 255, 256, 65535, 65536])
def test_what_is_for_the_session_comes_as_a_payload_without_routes(size: int) -> None:
    payload = bytes(size)
    (got,) = FrameDecoder(via=VIA).feed(PREFACE + encode_control(payload))
    assert got == Message(Route(), Route(), payload)


def test_nothing_for_the_session_is_a_heartbeat() -> None:
    assert encode_control(b"") == HEARTBEAT_FRAME
    (got,) = FrameDecoder(via=VIA).feed(PREFACE + encode_control(b""))
    assert got is HEARTBEAT


def test_a_decoder_tells_whether_the_preface_has_come() -> None:
    decoder = FrameDecoder()
    decoder.feed(b"")
    assert not decoder.greeted
    greeted = FrameDecoder()
    greeted.feed(PREFACE)
    assert greeted.greeted
    wrong = FrameDecoder()
    wrong.feed(b"\x02")
    assert not wrong.greeted
    assert isinstance(wrong.error, DecodeError)


def test_a_decoder_tells_whether_a_frame_is_unfinished() -> None:
    decoder = FrameDecoder()
    found = [decoder.unfinished]
    for piece in (
        PREFACE + HEARTBEAT_FRAME, HEARTBEAT_FRAME[:1], HEARTBEAT_FRAME[1:-1], HEARTBEAT_FRAME[-1:]
    ):  # fmt: skip
        decoder.feed(piece)
        found.append(decoder.unfinished)
    assert found == [False, False, True, True, False]
