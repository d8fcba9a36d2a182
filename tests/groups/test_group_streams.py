"""Packets without a network: whatever is cut, changed or made up."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.core.discovery import DiscoveryRequest, IHave, Invalidate, Notice, WhoHas
from waystation.core.identity import LogicalAddress, Mapping
from waystation.errors import DecodeError, LocalError
from waystation.groups.direct import PacketDecoder
from waystation.groups.packets import (
    EVERYBODY,
    Ack,
    Data,
    NoticePacket,
    decode,
    encode_ack,
    encode_data,
    encode_notice,
)
from waystation.groups.settings import GroupLimits

ME, YOU = (bytes(15) + bytes([number]) for number in (1, 2))
HERE = Mapping(LogicalAddress(ME, "me"), ("127.0.0.1:7800",), 1)

numbers = st.integers(0, 2**64 - 1)
payloads = st.lists(st.none() | st.binary(max_size=50), max_size=8)


@given(st.booleans(), numbers, numbers, payloads, st.booleans())
def test_messages_come_out_as_they_went_in(
    to_all: bool, first: int, base: int, found: list[bytes | None], with_changes: bool
) -> None:
    data = Data(ME, YOU, to_all, first, base, found, (HERE,) if with_changes else ())
    assert decode(encode_data(data)) == data


@given(numbers, numbers, st.integers(0, 2**32 - 1), st.booleans(), st.booleans())
def test_acknowledgements_come_out_as_they_went_in(
    one: int, many: int, credit: int, gap_one: bool, gap_all: bool
) -> None:
    ack = Ack(ME, YOU, one, many, credit, gap_one, gap_all)
    assert decode(encode_ack(ack)) == ack


@pytest.mark.rule("LA-7")
@pytest.mark.parametrize(
    "notice",
    [DiscoveryRequest(HERE), WhoHas(YOU, HERE), IHave(HERE, hearsay=True), Invalidate(YOU)],
)
def test_notices_carry_uuid_name_and_addresses(notice: Notice) -> None:
    told = decode(encode_notice(ME, EVERYBODY, notice))
    assert told == NoticePacket(ME, EVERYBODY, notice)
    mapping = getattr(notice, "mapping", HERE)
    assert mapping.member.name == "me"


@given(st.binary(max_size=200))
def test_whatever_is_no_packet_is_a_decode_error(raw: bytes) -> None:
    for packet in (raw, b"\xe1" + raw, encode_notice(ME, YOU, IHave(HERE))[:36] + raw):
        with contextlib.suppress(DecodeError):
            decode(packet)


@given(st.integers(0, 400), st.integers(0, 255))
def test_a_packet_with_a_wrong_byte_is_read_or_refused_and_nothing_else(at: int, byte: int) -> None:
    for whole in (
        encode_data(Data(ME, YOU, False, 1, 1, [b"a", None, b"b" * 99], (HERE,))),
        encode_notice(ME, YOU, WhoHas(YOU, HERE)),
    ):
        packet = bytearray(whole)
        packet[at % len(packet)] = byte
        with contextlib.suppress(DecodeError):
            decode(bytes(packet))


@pytest.mark.parametrize(
    "mapping",
    [
        Mapping(LogicalAddress(b"short", "me"), ()),
        Mapping(LogicalAddress(ME, "n" * 2_000), ()),
        Mapping(LogicalAddress(ME, "me"), ("h:1",) * 100),
        Mapping(LogicalAddress(ME, "me"), (), -1),
        Mapping(LogicalAddress(ME, "me"), ("nowhere",)),
    ],
)
def test_a_mapping_out_of_bounds_is_refused(mapping: Mapping) -> None:
    with pytest.raises(DecodeError):
        decode(encode_notice(ME, YOU, IHave(mapping)))


def test_more_changes_than_allowed_are_refused() -> None:
    with pytest.raises(DecodeError, match="33 changes"):
        decode(encode_data(Data(ME, YOU, False, 1, 1, [], (HERE,) * 33)))


@given(st.lists(st.binary(max_size=30), max_size=10), st.integers(1, 40))
def test_packets_of_a_connection_come_out_whole_however_they_were_cut(
    found: list[bytes], piece: int
) -> None:
    stream = b"".join(len(packet).to_bytes(4, "big") + packet for packet in found)
    reader = PacketDecoder()
    got = [
        packet
        for start in range(0, len(stream), piece)
        for packet in reader.feed(stream[start : start + piece])
    ]
    assert got == found
    assert not reader.is_broken


def test_a_length_over_the_limit_breaks_a_connection() -> None:
    reader = PacketDecoder(limit=10)
    assert reader.feed(b"\0\0\0\1x\0\0\0\x0b") == [b"x"]
    assert reader.is_broken
    assert reader.feed(b"more") == []


def test_limits_are_more_than_nothing() -> None:
    with pytest.raises(LocalError, match="the limit beat is 0"):
        GroupLimits(beat=0)
