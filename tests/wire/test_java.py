"""What the two JGroups formats share: java.py and jgroups.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rule_errors import breaks
from waystation.core.identity import uuid_text
from waystation.errors import DecodeError, LocalError
from waystation.wire.java import (
    MAX_ITEMS,
    MAX_UTF,
    Cursor,
    FormatLimits,
    IncompleteError,
    cut,
    encode_count,
    encode_string,
    encode_utf,
    moved,
)
from waystation.wire.jgroups import (
    KnownHeads,
    MillisAddress,
    PhysicalAddress,
    UuidAddress,
    check_uuid,
    generation_of,
    host_bytes,
    host_text,
    port_bytes,
    scope_bytes,
    uuid_from_text,
)

VECTORS = json.loads(
    (Path(__file__).parent / "vectors" / "jgroups-2.12.json").read_text(encoding="utf-8")
)
STRINGS = [entry for entry in VECTORS["encodings"] if entry["name"].startswith("string.")]
WIDE = FormatLimits(string=MAX_UTF)


def read(raw: bytes, limits: FormatLimits = WIDE) -> Cursor:
    return Cursor(raw, format="test", limits=limits)


def utf_by_units(text: str) -> bytes:
    """Modified UTF-8, slowly and by the definition: one UTF-16 unit after the other."""
    raw = bytearray()
    units = text.encode("utf-16-be")
    for high, low in zip(units[::2], units[1::2], strict=True):
        unit = high << 8 | low
        if 0 < unit < 0x80:
            raw.append(unit)
        elif unit < 0x800:
            raw += bytes((0xC0 | unit >> 6, 0x80 | unit & 0x3F))
        else:
            raw += bytes((0xE0 | unit >> 12, 0x80 | unit >> 6 & 0x3F, 0x80 | unit & 0x3F))
    return bytes(raw)


# Texts


@pytest.mark.parametrize("entry", STRINGS, ids=lambda entry: entry["name"])
def test_strings_as_java_writes_them(entry: dict[str, Any]) -> None:
    raw, text = bytes.fromhex(entry["hex"]), entry["decoded"]
    cursor = read(raw)
    assert cursor.string() == text
    assert cursor.at_end()
    assert encode_string(text) == raw


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_text_is_written_unit_by_unit_and_read_back(text: str) -> None:
    raw = encode_utf(text)
    assert raw[2:] == utf_by_units(text)
    assert len(raw) - 2 == int.from_bytes(raw[:2], "big")
    assert read(raw).utf() == text


@given(
    st.binary(max_size=12) | st.lists(st.sampled_from([0xED, 0xA0, 0xB0, 0xC0, 0x80])).map(bytes)
)
def test_every_text_has_one_spelling(raw: bytes) -> None:
    sized = len(raw).to_bytes(2, "big") + raw
    try:
        text = read(sized).utf()
    except DecodeError:
        return
    assert encode_utf(text) == sized


@pytest.mark.parametrize(
    ("raw", "bad_at"),
    [
        ("00", 0),  # NUL is C0 80
        ("61 00", 1),
        ("61 80", 1),  # nothing to continue
        ("c3", 0),  # nothing to continue with
        ("c3 41", 0),
        ("c0 81", 0),  # longer than need be
        ("c1 bf", 0),
        ("e0 9f bf", 0),
        ("e2 82", 0),
        ("61 e2 82 41", 1),
        ("f0 9f 98 80", 0),  # plain UTF-8, which Java does not write
        ("61 62 ff", 2),
        ("ed a0 bd", 0),  # the first half of a pair
        ("61 ed b8 80", 1),  # the second half
        ("ed a0 bd ed a0 bd", 0),
        ("ed a0 bd 61", 0),
        ("ed b8 80 ed a0 bd", 0),  # the halves the wrong way round
        ("c0 80 c3 bc ed a0 bd ed b8 80 fe", 10),
    ],
)
def test_the_error_names_the_first_bad_byte(raw: str, bad_at: int) -> None:
    data = bytes.fromhex(raw)
    with pytest.raises(DecodeError, match="not modified UTF-8") as caught:
        read(len(data).to_bytes(2, "big") + data).utf()
    assert caught.value.offset == 2 + bad_at
    assert not caught.value.too_large


@pytest.mark.parametrize("presence", [0, 2, 7, 255])
def test_every_presence_byte_but_one_is_null(presence: int) -> None:
    for raw in (bytes((presence,)), bytes((presence, 0, 1, 65))):
        cursor = read(raw)
        assert cursor.string() is None
        assert cursor.position == 1


def test_a_text_over_the_limit_is_refused_before_its_bytes_are_there() -> None:
    cursor = Cursor(b"\x00\x09", format="test", limits=FormatLimits(string=8), whole=False)
    with pytest.raises(DecodeError, match="over the limit of 8") as caught:
        cursor.utf()
    assert caught.value.too_large
    assert caught.value.offset == 0
    assert read(b"\x00\x08" + b"a" * 8, FormatLimits(string=8)).utf() == "a" * 8


@pytest.mark.parametrize(
    "text", ["a" * (MAX_UTF + 1), "\0" * 32_768, "€" * 21_846], ids=["ascii", "nul", "euro"]
)
def test_a_text_that_is_too_long_cannot_be_written(text: str) -> None:
    with pytest.raises(LocalError, match="at most 65535"):
        encode_utf(text)
    assert read(encode_utf(text[:-1])).utf() == text[:-1]


@pytest.mark.parametrize("text", ["\ud83d", "a\ude00", "\ude00\ud83d"])
def test_half_a_character_cannot_be_written(text: str) -> None:
    with pytest.raises(LocalError, match="half a surrogate pair"):
        encode_utf(text)


# Numbers and bounds


def test_numbers_are_big_endian_and_signed_where_java_signs_them() -> None:
    cursor = read(bytes.fromhex("ff fffe fffe fffffffd fffffffffffffffc 00 02"))
    assert cursor.byte() == 255
    assert cursor.short() == -2
    assert cursor.unsigned_short() == 65534
    assert cursor.integer() == -3
    assert cursor.long() == -4
    assert cursor.boolean() is False
    assert cursor.boolean() is True
    assert cursor.at_end()


def test_a_count_may_be_null_and_is_bounded() -> None:
    assert read(b"\x00\x03").count() == 3
    assert read(b"\x00\x00").count() == 0
    assert read(b"\xff\xff").count() is None
    assert read(b"\x80\x00").count() is None
    with pytest.raises(DecodeError, match="a list of 3 is over the limit of 2") as caught:
        read(b"\x00\x03", FormatLimits(items=2)).count()
    assert caught.value.too_large


def test_a_list_that_is_too_long_cannot_be_written() -> None:
    assert encode_count(MAX_ITEMS) == b"\x7f\xff"
    with pytest.raises(LocalError, match="at most 32767"):
        encode_count(MAX_ITEMS + 1)


@pytest.mark.parametrize("size", range(8))
def test_a_frame_that_ends_too_early_is_malformed(size: int) -> None:
    cursor = Cursor(bytes(20), format="test", position=3, end=3 + size)
    with pytest.raises(DecodeError, match="end too early") as caught:
        cursor.long()
    assert caught.value.offset == 3
    assert cursor.position == 3


def test_a_stream_that_ends_too_early_says_what_it_needs() -> None:
    cursor = Cursor(bytearray(b"\x00\x04de"), format="test", whole=False)
    with pytest.raises(IncompleteError) as caught:
        cursor.utf()
    assert caught.value.need == 6


def test_a_structure_over_the_limit_is_too_large_and_not_incomplete() -> None:
    cursor = Cursor(bytearray(10), format="test", limits=FormatLimits(frame=12), whole=False)
    cursor.skip(4)
    cursor.begin()
    with pytest.raises(IncompleteError):
        cursor.skip(12)
    with pytest.raises(DecodeError, match="at least 13 bytes is over the limit of 12") as caught:
        cursor.skip(13)
    assert caught.value.too_large


def test_the_limit_holds_for_bytes_that_are_already_there() -> None:
    cursor = Cursor(bytearray(100), format="test", limits=FormatLimits(frame=12), whole=False)
    cursor.begin()
    cursor.skip(12)
    with pytest.raises(DecodeError) as caught:
        cursor.skip(1)
    assert caught.value.too_large


def test_extra_data_is_bounded_like_a_text() -> None:
    cursor = read(b"abcdef", FormatLimits(string=4))
    cursor.skip(5)
    assert cursor.since(1) == b"bcde"
    with pytest.raises(DecodeError, match="over the limit of 4") as caught:
        cursor.since(0)
    assert caught.value.too_large


def test_a_moved_error_differs_in_its_offset_only() -> None:
    error = DecodeError("so long", format="test", offset=3, too_large=True)
    again = moved(error, by=7)
    assert again is not error
    assert (again.problem, again.format, again.offset, again.too_large) == (
        "so long",
        "test",
        10,
        True,
    )


# Generations


def test_the_first_byte_tells_the_generation() -> None:
    assert [byte for byte in range(256) if generation_of(byte) == 2] == [1, 2, 4, 10, 12, 13]
    assert [byte for byte in range(256) if generation_of(byte) == 5] == [0, 255]
    assert generation_of(0x62) is None


# Addresses


@pytest.mark.rule("LA-1")
def test_one_uuid_is_one_member_whatever_stands_behind_it() -> None:
    plain = UuidAddress.parse("00112233-4455-6677-8899-aabbccddeeff")
    spelled = UuidAddress(plain.uuid, "flags-uuid", b"\x01\x01")
    assert plain.key == spelled.key == plain.uuid
    assert plain != spelled
    assert spelled.plain() == plain
    assert str(spelled) == "00112233-4455-6677-8899-aabbccddeeff"


@given(st.binary(min_size=16, max_size=16))
def test_a_uuid_reads_back_from_its_text(uuid: bytes) -> None:
    assert uuid_from_text(uuid_text(uuid)) == uuid
    assert uuid_from_text(uuid_text(uuid).upper()) == uuid


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00112233445566778899aabbccddeeff",
        "00112233-4455-6677-8899-aabbccddeef",
        "0011223344-55-6677-8899-aabbccddeeff",
        "00112233-4455-6677-8899-aabbccddeefg",
        "00112233-4455-6677-8899-aabbccddeeff ",
    ],
)
def test_what_is_no_uuid_is_refused(text: str) -> None:
    with pytest.raises(LocalError, match="invalid UUID"):
        uuid_from_text(text)


def test_a_uuid_has_sixteen_bytes() -> None:
    assert check_uuid(bytes(16)) == bytes(16)
    for size in (0, 15, 17):
        with pytest.raises(LocalError, match="give 16"):
            check_uuid(bytes(size))


def test_physical_addresses_print_as_people_write_them() -> None:
    assert str(PhysicalAddress("10.0.0.1", 65535)) == "10.0.0.1:65535"
    assert str(PhysicalAddress("2001:db8::1", 7801)) == "[2001:db8::1]:7801"
    assert str(PhysicalAddress("fe80::1", 12001, 5)) == "[fe80::1%5]:12001"
    assert str(PhysicalAddress("", 7)) == ":7"


@given(
    st.ip_addresses().map(str) | st.just(""),
    st.integers(0, 65_535),
    st.integers(0, 0xFFFF_FFFF),
)
def test_a_physical_address_reads_back_from_its_text(host: str, port: int, scope: int) -> None:
    address = PhysicalAddress(host, port, scope if ":" in host else 0)
    assert PhysicalAddress.parse(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10.0.0.1",
        "10.0.0.1:",
        "10.0.0.1:65536",
        "10.0.0.1:\u0667",
        "10.0.0.256:1",
        "10.0.0.1%5:1",
        "::1:7800",
        "[::1]",
        "[::1%eth0]:7800",
        "[fe80::1%4294967296]:7800",
        "localhost:7800",
    ],
)
def test_what_is_no_physical_address_is_refused(text: str) -> None:
    with pytest.raises(LocalError, check=breaks("GR-2")):
        PhysicalAddress.parse(text)


def test_the_scope_makes_no_other_address() -> None:
    assert PhysicalAddress("fe80::1", 1, 5).key == PhysicalAddress("fe80::1", 1, 6).key
    assert PhysicalAddress("fe80::1", 1).key != PhysicalAddress("fe80::1", 2).key


def test_addresses_of_different_sorts_never_have_one_key() -> None:
    addresses = (
        UuidAddress(bytes(16)),
        PhysicalAddress("10.0.0.1", 0),
        PhysicalAddress("::", 0),
        PhysicalAddress("", 0),
        MillisAddress(0),
    )
    assert len({len(address.key) for address in addresses}) == len(addresses)


def test_the_address_of_the_tests_is_a_number() -> None:
    assert str(MillisAddress(5)) == "5"
    assert MillisAddress(-1).key == b"\xff" * 8


@given(st.sampled_from([0, 4, 16]).flatmap(lambda size: st.binary(min_size=size, max_size=size)))
def test_a_host_reads_back_from_its_literal(packed: bytes) -> None:
    assert host_bytes(host_text(packed)) == packed


@pytest.mark.parametrize("host", ["localhost", "1.2.3", "1.2.3.4.5", "::1::", "[::1]", " ::1"])
def test_a_host_is_no_name(host: str) -> None:
    with pytest.raises(LocalError, match="look the name up first"):
        host_bytes(host)


def test_an_interface_is_a_number_of_its_own() -> None:
    with pytest.raises(LocalError, match="give the interface's number as `scope`"):
        host_bytes("fe80::1%eth0")


@pytest.mark.parametrize("number", [-1, 65_536, 1 << 40])
def test_a_port_has_two_bytes(number: int) -> None:
    with pytest.raises(LocalError, match="does not fit in 2 bytes"):
        port_bytes(number)
    with pytest.raises(LocalError, match="port"):
        _ = PhysicalAddress("::1", number).key


def test_a_scope_and_a_time_have_bounds_too() -> None:
    assert scope_bytes(0xFFFF_FFFF) == b"\xff" * 4
    with pytest.raises(LocalError, match="scope -1 does not fit in 4 bytes"):
        scope_bytes(-1)
    with pytest.raises(LocalError, match="does not fit in 8 bytes"):
        _ = MillisAddress(1 << 63).key


# Known heads


def test_known_heads_are_found_by_their_bytes() -> None:
    known = KnownHeads()
    known.add(b"abc")
    known.add(b"wxyz")
    for buffer in (b"--abc--wxyz", bytearray(b"--abc--wxyz")):
        assert known.size_at(buffer, 2) == 3
        assert known.size_at(buffer, 7) == 4
        assert known.size_at(buffer, 3) == 0
        assert known.size_at(buffer, 9) == 0


def test_a_peer_that_makes_up_heads_costs_no_memory() -> None:
    known = KnownHeads()
    for number in range(10_000):
        known.add(number.to_bytes(4, "big"))
        assert known.size_at(number.to_bytes(4, "big"), 0) == 4
        assert len(known.by_size[4]) <= KnownHeads.PER_SIZE
    for size in range(1, 200):
        known.add(bytes(size))
        assert len(known.by_size) <= KnownHeads.SIZES


def test_the_lists_of_a_structure_share_one_budget() -> None:
    raw = b"\x00\x03" * 4
    cursor = Cursor(raw, format="test", limits=FormatLimits(items=4))
    assert (cursor.count(), cursor.count()) == (3, 3)
    with pytest.raises(DecodeError, match="a list of 3 is over the limit of 2") as caught:
        cursor.count()
    assert caught.value.too_large
    assert caught.value.offset == 4
    cursor.begin()  # the next structure has a budget of its own
    assert cursor.count() == 3


def test_null_and_empty_lists_cost_nothing() -> None:
    cursor = Cursor(
        b"\xff\xff\x00\x00" * 9 + b"\x00\x01", format="test", limits=FormatLimits(items=1)
    )
    assert [cursor.count() for _ in range(18)] == [None, 0] * 9
    assert cursor.count() == 1


def test_extra_data_over_the_limit_is_not_waited_for() -> None:
    cursor = Cursor(b"", format="test", limits=FormatLimits(string=8), whole=False)
    with pytest.raises(
        DecodeError, match="9 bytes of extra data are over the limit of 8"
    ) as caught:
        cursor.skip_extra(9)
    assert caught.value.too_large
    with pytest.raises(IncompleteError):
        cursor.skip_extra(8)


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 100_000])
def test_a_part_of_a_buffer_is_cut_out_and_the_buffer_stays_free(size: int) -> None:
    buffer = bytearray(b"<" + bytes(size) + b">")
    part = cut(buffer, 1, 1 + size)
    assert type(part) is bytes
    assert part == bytes(size)
    assert cut(bytes(buffer), 1, 1 + size) == part
    buffer += b"more"  # raises a BufferError while anybody looks at it
