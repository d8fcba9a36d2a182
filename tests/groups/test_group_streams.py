"""Streams and packets without a network: whatever is lost, doubled or made up."""

from __future__ import annotations

import contextlib
import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.core.discovery import DiscoveryRequest, IHave, Invalidate, Notice, WhoHas
from waystation.core.expiry import NEVER
from waystation.core.identity import LogicalAddress, Mapping
from waystation.errors import DecodeError, LocalError
from waystation.groups.direct import Packets
from waystation.groups.member import GroupLimits, Member
from waystation.groups.packets import (
    EVERYBODY,
    Ack,
    Data,
    Told,
    decode,
    encode_ack,
    encode_data,
    encode_notice,
)
from waystation.groups.sequences import (
    ANEW,
    BUNDLE,
    FIRST_PATIENCE,
    Incoming,
    Outgoing,
    ToAll,
    bundles,
)

ME, YOU, SHE = (bytes(15) + bytes([number]) for number in (1, 2, 3))
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
    assert told == Told(ME, EVERYBODY, notice)
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
    reader = Packets()
    got = [
        packet
        for start in range(0, len(stream), piece)
        for packet in reader.feed(stream[start : start + piece])
    ]
    assert got == found
    assert not reader.is_broken


def test_a_length_over_the_limit_breaks_a_connection() -> None:
    reader = Packets(limit=10)
    assert reader.feed(b"\0\0\0\1x\0\0\0\x0b") == [b"x"]
    assert reader.is_broken
    assert reader.feed(b"more") == []


@pytest.mark.rule("GR-12")
@given(st.randoms(use_true_random=False), st.integers(1, 8), st.integers(1, 60))
def test_each_message_arrives_once_and_in_order_however_bad_the_way_is(  # noqa: C901
    chance: random.Random, credit: int, count: int
) -> None:
    out, into = Outgoing(credit), Incoming()
    way: deque[tuple[int, int, list[bytes | None]]] = deque()
    got: list[bytes] = []
    left = deque(b"%d" % number for number in range(count))
    for _ in range(10_000):
        if left:
            out.push(left.popleft())
        packets = out.take_fresh()
        if chance.random() < 0.3:
            packets += out.take_again(0)
        for first, content in packets:
            if chance.random() < 0.6:
                way.append((first, out.base, content))
            if chance.random() < 0.2:
                way.append((first, out.base, content))
        if way and chance.random() < 0.2:
            way.rotate(1)
        if way:
            new = into.accept(*way.popleft())
            got += [payload for payload in new if payload is not None]
        if chance.random() < 0.5 and into.expected:
            out.acknowledge(into.expected - 1)
        if not left and not len(out):
            break
    assert got == [b"%d" % number for number in range(count)]
    assert into.lost == 0


def test_what_a_sender_gave_up_is_counted_as_lost_and_the_rest_arrives() -> None:
    out, into = Outgoing(10), Incoming()
    out.push(b"a")
    (first,) = out.take_fresh()
    assert into.accept(first.first, out.base, first.payloads) == [b"a"]
    out.push(b"b")
    out.take_fresh()
    out.push(b"c")
    assert out.acknowledge(0) == []
    assert [item[0] for item in out.give_up()] == [b"a", b"b", b"c"]
    out.push(b"d")
    (last,) = out.take_fresh()
    assert into.accept(last.first, out.base, last.payloads) == [b"d"]
    assert into.lost == 2
    assert into.accept(last.first + ANEW + 9, last.first + ANEW + 9, [b"e"]) == [b"e"]
    assert into.lost == 2  # it began to count anew


def test_an_expired_message_keeps_its_number_and_nothing_else() -> None:
    out = Outgoing(10)
    out.push(b"a", expiry=100)
    out.push(b"b")
    out.take_fresh()
    (again,) = out.take_again(100)
    assert again.payloads == [None, b"b"]
    assert [item[0] for item in out.expired] == [b"a"]
    assert out.take_again(100) == [again]
    assert len(out.expired) == 1  # told once
    assert out.size == 1
    out.push(b"c", expiry=150)
    assert out.take_fresh(150) == [(3, [None])]
    into = Incoming()
    assert into.accept(again.first, 1, again.payloads) == [None, b"b"]


def test_patience_is_lost_slower_each_time_and_found_again_with_an_answer() -> None:
    out = Outgoing(10)
    assert not out.lost_patience(0.0)
    out.push(b"a")
    out.take_fresh()
    assert not out.lost_patience(0.0)
    assert not out.lost_patience(FIRST_PATIENCE / 2)
    assert out.lost_patience(FIRST_PATIENCE)
    assert not out.lost_patience(2 * FIRST_PATIENCE)
    assert out.lost_patience(3 * FIRST_PATIENCE)
    out.acknowledge(1)
    assert out.due == NEVER
    assert out.patience == FIRST_PATIENCE
    assert out.size == 0


def test_what_goes_to_all_is_kept_until_the_last_one_has_it() -> None:
    out = ToAll(10)
    assert (out.join(YOU), out.join(SHE)) == (1, 1)
    for payload in (b"a", b"b"):
        out.push(payload)
    out.take_fresh()
    assert out.acknowledge_from(YOU, 2) == []
    assert out.behind() == out.last_ones() == [SHE]
    assert out.missing(SHE, 0) == [(1, [b"a", b"b"])]
    assert [item[0] for item in out.acknowledge_from(SHE, 1)] == [b"a"]
    assert [item[0] for item in out.leave(SHE)] == [b"b"]
    assert out.leave(SHE) == out.acknowledge_from(SHE, 2) == out.acknowledge_from(YOU, 1) == []
    assert out.join(SHE) == 3


@given(st.randoms(use_true_random=False), st.integers(2, 6))
def test_nothing_for_all_is_forgotten_before_everybody_has_it(
    chance: random.Random, count: int
) -> None:
    out = ToAll(1_000)
    members = [bytes(15) + bytes([number]) for number in range(1, count + 1)]
    for member in members:
        out.join(member)
    got = dict.fromkeys(members, 0)
    for _ in range(200):
        out.push(b"x")
        out.take_fresh()
        member = chance.choice(members)
        got[member] = max(got[member], chance.randint(0, out.next - 1))
        out.acknowledge_from(member, got[member])
        assert out.base == min(got.values()) + 1
        assert len(out) == out.next - out.base


@given(st.lists(st.integers(0, 70_000), max_size=12))
def test_a_packet_is_as_large_as_it_may_be_and_one_message_always_fits(sizes: list[int]) -> None:
    found = list(bundles(5, [bytes(size) for size in sizes]))
    flat = [payload for bundle in found for payload in bundle.payloads]
    assert [len(payload or b"") for payload in flat] == sizes
    for bundle in found:
        size = sum(4 + len(payload or b"") for payload in bundle.payloads)
        assert size <= BUNDLE or len(bundle.payloads) == 1


@pytest.mark.rule("LA-1")
def test_a_member_is_its_uuid_and_prints_as_its_name() -> None:
    one = Member(LogicalAddress(ME, "truck-7"), ("127.0.0.1:1",))
    other = Member(LogicalAddress(ME, "the red one"))
    assert one == other
    assert hash(one) == hash(other)
    assert one != Member(LogicalAddress(YOU, "truck-7"))
    assert str(one) == one.name == "truck-7"


def test_limits_are_more_than_nothing() -> None:
    with pytest.raises(LocalError, match="the limit beat is 0"):
        GroupLimits(beat=0)
