"""The SMRF frame: vectors, hostile frames, and the FlatBuffers library as the oracle."""

import json
import struct
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import flatbuffers
import pytest
from flatbuffers import number_types
from flatbuffers.table import Table
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.rule_errors import breaks
from waystation.core.expiry import NEVER
from waystation.errors import DecodeError, LocalError
from waystation.wire import smrf
from waystation.wire.smrf import (
    LAST_TTL,
    MAX_HEADERS,
    MAX_PARTICIPANT,
    MAX_SIGNATURE,
    SmrfMessage,
    decode,
    encode,
    signed_part,
)

HERE = Path(__file__).parent
VECTORS: dict[str, dict[str, Any]] = {
    vector["name"]: vector
    for vector in json.loads((HERE / "vectors" / "joynr-smrf.json").read_text())["vectors"]
}
ENCODINGS = [
    pytest.param(vector, bytes.fromhex(data), id=f"{name}-{maker}")
    for name, vector in VECTORS.items()
    for maker, data in vector.get("encodings", {}).items()
    if vector["fields"] is not None  # what JavaScript spoils has a test of its own
]
NEGATIVE = {name: vector for name, vector in VECTORS.items() if vector["kind"] == "negative"}
CORPUS = sorted((HERE / "corpus" / "smrf").glob("*.txt"))

MINIMAL = SmrfMessage("r", "s", 1_893_456_000_000, {"id": "1", "t": "o"}, b"{}")
FRAME = encode(MINIMAL)

# Where our own layout has things, counted from the beginning of the frame.
ROOT, MESSAGE_VTABLE, MESSAGE_TABLE = 8, 20, 44
TTL, RECIPIENT, SENDER, HEADERS, BODY, FLAGS = 48, 56, 60, 64, 68, 72
RECIPIENT_STRING = 80
SLOTS = MESSAGE_VTABLE + 4


def expected(vector: dict[str, Any], signature: bytes = b"") -> SmrfMessage:
    fields = vector["fields"]
    ttl = int(fields["ttlMs"])
    return SmrfMessage(
        fields["recipient"],
        fields["sender"],
        NEVER if ttl > LAST_TTL else ttl,
        fields["headers"],
        fields["bodyUtf8"].encode(),
        fields["ttlAbsolute"],
        fields["isSigned"],
        fields["isEncrypted"],
        fields["isCompressed"],
        fields["isCustomSigned"],
        signature,
    )


def patched(offset: int, form: str, *values: int, frame: bytes = FRAME) -> bytes:
    """The frame with a few numbers changed."""
    changed = bytearray(frame)
    struct.pack_into("<" + form, changed, offset, *values)
    return bytes(changed)


def resized(flatbuffer: bytes, signature: bytes = b"") -> bytes:
    """A frame with a prefix that is right."""
    return struct.pack("<HHI", 1, len(signature), len(flatbuffer)) + flatbuffer + signature


def refused(frame: bytes, **limits: int) -> DecodeError:
    with pytest.raises(DecodeError) as caught:
        decode(frame, **limits)
    assert caught.value.format == "smrf"
    return caught.value


def library_decode(data: bytes) -> dict[str, Any]:
    """What the FlatBuffers library reads: slow, obvious, and without any check."""
    size = struct.unpack_from("<I", data, 4)[0]
    buffer = data[8 : 8 + size]
    table = Table(buffer, flatbuffers.encode.Get(flatbuffers.packer.uoffset, buffer, 0))

    def text(owner: Table, slot: int) -> str:
        return str(owner.String(owner.Pos + owner.Offset(slot)).decode())

    def flag(slot: int, default: bool) -> bool:
        at = table.Offset(slot)
        return bool(table.Get(number_types.Uint8Flags, table.Pos + at)) if at else default

    def vector(slot: int) -> tuple[int, int]:
        at = table.Offset(slot)
        return (table.Vector(at), table.VectorLen(at)) if at else (0, 0)

    start, count = vector(18)
    tables = [Table(buffer, table.Indirect(start + 4 * index)) for index in range(count)]
    body, length = vector(20)
    ttl = table.Offset(8)
    return {
        "recipient": text(table, 4),
        "sender": text(table, 6),
        "ttl": table.Get(number_types.Int64Flags, table.Pos + ttl) if ttl else 0,
        "headers": [(text(header, 4), text(header, 6)) for header in tables],
        "body": buffer[body : body + length],
        "ttl_absolute": flag(10, True),
        "is_signed": flag(12, True),
        "is_encrypted": flag(14, True),
        "is_compressed": flag(16, False),
        "is_custom_signed": flag(22, False),
    }


def assert_library_agrees(frame: bytes, message: SmrfMessage) -> None:
    theirs = library_decode(frame)
    assert theirs["headers"] == list(message.headers.items())
    for name in (
        *("recipient", "sender", "ttl_absolute", "is_signed"),
        *("is_encrypted", "is_compressed", "is_custom_signed"),
    ):
        assert theirs[name] == getattr(message, name)
    if message.is_compressed and not message.is_encrypted and theirs["body"]:
        theirs["body"] = zlib.decompress(theirs["body"])
    assert theirs["body"] == message.body
    assert message.ttl == (NEVER if theirs["ttl"] >= LAST_TTL else max(theirs["ttl"], 0))


# -- vectors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("vector", "data"), ENCODINGS)
def test_every_encoding_of_every_vector_is_read(vector: dict[str, Any], data: bytes) -> None:
    signature = bytes.fromhex("deadbeef") if vector["name"] == "custom-signature" else b""
    assert decode(data) == expected(vector, signature)


@pytest.mark.parametrize(
    "name", [name for name, vector in VECTORS.items() if vector.get("fields") is not None]
)
def test_every_vector_is_written_so_that_the_library_reads_it(name: str) -> None:
    message = expected(VECTORS[name])
    frame = encode(message) if not message.is_custom_signed else encode(message, lambda _: b"sign")
    assert decode(frame) == structs.replace(message, signature=frame[len(frame) - frame[2] :])
    by_key = dict(sorted(message.headers.items()))
    assert_library_agrees(frame, structs.replace(message, headers=by_key))


@pytest.mark.parametrize("name", NEGATIVE)
def test_frames_on_which_implementations_disagree_are_refused(name: str) -> None:
    assert not refused(bytes.fromhex(NEGATIVE[name]["hex"])).too_large


@pytest.mark.parametrize("name", ["minimal", "request", "compressed", "custom-signature"])
def test_a_frame_cut_anywhere_is_refused(name: str) -> None:
    data = bytes.fromhex(VECTORS[name]["encodings"]["npmSmrf"])
    for end in range(len(data)):
        refused(data[:end])


def test_our_own_form_is_fixed() -> None:
    lines = (
        "0100 0000 a2000000",  # version, no signature, length
        "24000000",  # the message's table is at 36
        "0800 0c00 0400 0800",  # the vtable of headers
        "1800 2400 0c00 1000 0400 1c00 1d00 1e00 1f00 1400 1800 2000",  # of the message
        "18000000 00b4c5dab8010000",  # the table: its vtable is 24 bytes before it, ttl,
        "18000000 1c000000 20000000 60000000",  # recipient, sender, headers, body,
        "0100000000 000000",  # the flags
        "01000000 72000000 01000000 73000000",  # recipient, sender
        "02000000 08000000 20000000",  # two headers
        "60000000 08000000 0c000000 02000000 69640000 01000000 31000000",
        "7c000000 08000000 0c000000 01000000 74000000 01000000 6f000000",
        "02000000 7b7d",  # the body
    )
    assert bytes.fromhex("".join(lines)) == FRAME


# -- ttl and flags ---------------------------------------------------------------------------------


@pytest.mark.rule("RE-16")
@pytest.mark.parametrize("ttl", [LAST_TTL, LAST_TTL + 1, 2**53 - 1, 2**63 - 1])
def test_what_cpp_cannot_count_is_never(ttl: int) -> None:
    assert decode(patched(TTL, "q", ttl)).ttl == NEVER


@pytest.mark.parametrize("ttl", [-1, -(2**63)])
def test_before_the_epoch_is_expired(ttl: int) -> None:
    assert decode(patched(TTL, "q", ttl)).ttl == 0


def test_the_ttl_that_javascript_spoils_is_expired_as_for_every_router() -> None:
    data = bytes.fromhex(VECTORS["js-long-max-bug"]["encodings"]["npmSmrf"])
    assert decode(data).ttl == 0


@pytest.mark.rule("RE-16")
@pytest.mark.parametrize("ttl", [NEVER, LAST_TTL, LAST_TTL + 1, 2**63 - 1, 10**30])
def test_nothing_later_than_the_last_ttl_is_written(ttl: float) -> None:
    frame = encode(structs.replace(MINIMAL, ttl=ttl))
    assert library_decode(frame)["ttl"] == LAST_TTL
    assert decode(frame).ttl == NEVER


@pytest.mark.parametrize("ttl", [0, 1, 60_000, LAST_TTL - 1])
def test_other_ttls_come_back(ttl: float) -> None:
    assert decode(encode(structs.replace(MINIMAL, ttl=ttl))).ttl == ttl


@pytest.mark.parametrize("ttl", [-1, 1.5, -NEVER, True, float("nan")])
def test_what_is_no_instant_is_not_written(ttl: float) -> None:
    with pytest.raises(LocalError, match=r"invalid ttl", check=breaks("AD-7")):
        encode(structs.replace(MINIMAL, ttl=ttl))


def test_signed_and_encrypted_are_written_although_they_are_false() -> None:
    assert FRAME[FLAGS + 1 : FLAGS + 3] == b"\0\0"
    slots = struct.unpack_from("<10H", FRAME, SLOTS)
    assert all(slots)


def test_absent_flags_mean_signed_and_encrypted() -> None:
    message = decode(patched(SLOTS + 6, "4H", 0, 0, 0, 0))
    assert (message.ttl_absolute, message.is_signed, message.is_encrypted) == (True, True, True)
    assert (message.is_compressed, message.is_custom_signed) == (False, False)


def test_an_encrypted_body_is_left_as_it_is() -> None:
    sealed = structs.replace(MINIMAL, is_encrypted=True, is_compressed=True, body=b"sealed")
    open_one = encode(structs.replace(sealed, is_encrypted=False, is_compressed=False))
    frame = bytearray(open_one)
    frame[FLAGS + 2 : FLAGS + 4] = b"\1\1"
    assert decode(bytes(frame)) == sealed
    with pytest.raises(
        LocalError, match=r"encrypted messages are not supported", check=breaks("WK-10")
    ):
        encode(sealed)


@pytest.mark.rule("AD-7")
def test_no_field_carries_where_a_message_came_from() -> None:
    assert not [name for name in SmrfMessage.__struct_fields__ if "global" in name]


# -- signatures ------------------------------------------------------------------------------------


def test_a_signature_is_made_over_the_flatbuffer_and_marked() -> None:
    seen: list[bytes] = []

    def sign(part: bytes) -> bytes:
        seen.append(part)
        return b"\xde\xad"

    frame = encode(MINIMAL, sign)
    assert seen == [signed_part(frame)]
    assert decode(frame) == structs.replace(MINIMAL, is_custom_signed=True, signature=b"\xde\xad")


def test_the_signed_part_of_a_foreign_frame() -> None:
    data = bytes.fromhex(VECTORS["custom-signature"]["encodings"]["npmSmrf"])
    assert signed_part(data) == data[8:-4]
    with pytest.raises(DecodeError):
        signed_part(data[:-1])


@pytest.mark.parametrize("changes", [{"signature": b"x"}, {"is_custom_signed": True}])
def test_a_signature_is_not_copied_to_other_bytes(changes: dict[str, Any]) -> None:
    with pytest.raises(LocalError, match="give `sign`"):
        encode(structs.replace(MINIMAL, **changes))


def test_the_longest_signature() -> None:
    longest = bytes(MAX_SIGNATURE)
    assert decode(encode(MINIMAL, lambda _: longest)).signature == longest
    with pytest.raises(LocalError, match="32768 bytes is too long"):
        encode(MINIMAL, lambda _: longest + b"x")
    too_long = patched(2, "H", MAX_SIGNATURE + 1) + bytes(MAX_SIGNATURE + 1)
    assert "too long" in refused(too_long).problem


# -- limits ----------------------------------------------------------------------------------------


def test_a_frame_over_the_limit_is_refused_before_it_is_read() -> None:
    assert refused(FRAME, max_size=len(FRAME) - 1).too_large
    assert decode(FRAME, max_size=len(FRAME)) == MINIMAL
    assert refused(patched(4, "I", 2**32 - 1)).too_large
    assert refused(b"", max_size=0).too_large is False


def test_a_message_over_the_limit_is_not_written() -> None:
    assert encode(MINIMAL, max_size=len(FRAME)) == FRAME
    with pytest.raises(LocalError, match=r"too large", check=breaks("OB-2")):
        encode(MINIMAL, max_size=len(FRAME) - 1)
    swelling = structs.replace(MINIMAL, body=bytes(5_000), is_compressed=True)
    with pytest.raises(LocalError, match="5000 bytes is too large"):
        encode(swelling, max_size=4_999)
    assert decode(encode(swelling, max_size=5_000), max_size=5_000) == swelling


def test_a_body_inflates_to_the_limit_and_no_further() -> None:
    frame = encode(structs.replace(MINIMAL, body=bytes(10_000), is_compressed=True))
    assert decode(frame, max_size=10_000).body == bytes(10_000)
    assert refused(frame, max_size=9_999).too_large


def test_a_bomb_costs_no_more_memory_than_the_limit() -> None:
    bomb = zlib.compress(bytes(50_000_000), 9)
    frame = encode(structs.replace(MINIMAL, body=bomb))
    frame = patched(FLAGS + 3, "B", 1, frame=frame)
    tracemalloc.start()
    try:
        assert refused(frame, max_size=1_000_000).too_large
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "body",
    [
        b"no zlib",
        zlib.compress(b"hello")[:-1],
        zlib.compress(b"hello")[:5],
        zlib.compress(b"hello") + b"x",
        zlib.compress(b"hello")[:-4] + b"\0\0\0\0",
        b"\x78\xbb\0\0\0\0",  # asks for a dictionary
    ],
)
def test_a_body_that_is_no_whole_zlib_stream_is_refused(body: bytes) -> None:
    frame = patched(FLAGS + 3, "B", 1, frame=encode(structs.replace(MINIMAL, body=body)))
    error = refused(frame)
    assert not error.too_large
    assert "zlib stream" in error.problem


def test_an_empty_body_needs_no_zlib_stream() -> None:
    empty = encode(structs.replace(MINIMAL, body=b""))
    assert decode(patched(FLAGS + 3, "B", 1, frame=empty)).body == b""
    compressed = structs.replace(MINIMAL, body=b"", is_compressed=True)
    assert decode(encode(compressed)) == compressed


# -- hostile offsets -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        (patched(ROOT, "I", 2**32 - 1), "leads out of the message"),
        (patched(ROOT, "I", len(FRAME) - 8 - 3), "leads out of the message"),
        (patched(MESSAGE_TABLE, "i", MESSAGE_TABLE - 7), "before the message"),
        (patched(MESSAGE_TABLE, "i", 2**31 - 1), "before the message"),
        (patched(MESSAGE_TABLE, "i", -(2**31)), "leads out of the message"),
        (patched(MESSAGE_TABLE, "i", MESSAGE_TABLE - len(FRAME) + 2), "a vtable of"),
        (patched(MESSAGE_VTABLE, "H", 0), "a vtable of 0 bytes"),
        (patched(MESSAGE_VTABLE, "H", 2), "a vtable of 2 bytes"),
        (patched(MESSAGE_VTABLE, "H", 23), "a vtable of 23 bytes"),
        (patched(MESSAGE_VTABLE, "H", 4), "without recipient or sender"),
        (patched(SLOTS, "H", 0), "without recipient or sender"),
        (patched(SENDER, "I", 0), "without recipient or sender"),
        (patched(SLOTS, "H", 2), "overlap"),
        (patched(SLOTS, "H", 14), "overlap"),
        (patched(SLOTS, "H", 16), "overlap"),
        (patched(SLOTS + 4, "H", 65_535), "too small"),
        (patched(MESSAGE_VTABLE + 2, "H", 32), "too small"),
        (patched(MESSAGE_VTABLE + 2, "HH", 65_535, 65_000), "leads out of the message"),
        (patched(RECIPIENT, "I", 2**32 - 1), "leads out of the message"),
        (patched(RECIPIENT_STRING, "I", 2**32 - 1), "a string leads out"),
        (patched(RECIPIENT_STRING, "I", len(FRAME) - RECIPIENT_STRING - 3), "a string leads out"),
        (patched(RECIPIENT_STRING + 4, "B", 0xFF), "not UTF-8"),
        (patched(BODY, "I", 2**31), "leads out of the message"),
        (patched(len(FRAME) - 6, "I", 3), "a string leads out"),
        (patched(HEADERS, "I", 2**31), "leads out of the message"),
    ],
)
def test_no_offset_leads_the_reader_astray(frame: bytes, problem: str) -> None:
    error = refused(frame)
    assert problem in error.problem
    assert not error.too_large


def test_a_vtable_may_have_fields_that_nobody_knows_yet() -> None:
    flatbuffer = FRAME[8:]
    vtable = struct.pack("<14H", 28, 36, *struct.unpack_from("<10H", FRAME, SLOTS), 4, 4)
    at = len(flatbuffer)
    frame = resized(flatbuffer + vtable)
    assert decode(patched(MESSAGE_TABLE, "i", 36 - at, frame=frame)) == MINIMAL


def test_a_short_vtable_leaves_the_rest_at_its_defaults() -> None:
    message = decode(patched(MESSAGE_VTABLE, "H", 4 + 2 * 7))
    assert message == structs.replace(MINIMAL, headers={}, body=b"")


def test_strings_may_lie_over_each_other() -> None:
    frame = patched(SENDER, "I", RECIPIENT_STRING - SENDER)
    assert decode(frame).sender == decode(frame).recipient == "r"


# -- headers ---------------------------------------------------------------------------------------

VECTOR = RECIPIENT_STRING + 16  # of the headers of the minimal frame
FIRST_HEADER = VECTOR + 12
SECOND_HEADER = FIRST_HEADER + 28


def test_headers_are_written_by_key_and_read_in_any_order() -> None:
    names = ["zz", "a", "é", "B", "\U0001f600", "\uffff", "aa"]
    message = structs.replace(MINIMAL, headers={name: name.upper() for name in names})
    frame = encode(message)
    keys = [key.encode() for key, _ in library_decode(frame)["headers"]]
    assert keys == sorted(keys)
    assert decode(frame) == message


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        (patched(VECTOR, "I", 200), "leads out of the message"),
        (patched(VECTOR + 4, "I", 2**32 - 1), "leads out of the message"),
        (patched(FIRST_HEADER, "i", 2**31 - 1), "before the message"),
        (patched(FIRST_HEADER, "i", -(2**31)), "leads out of the message"),
        (patched(FIRST_HEADER + 4, "I", 0), "without key or value"),
        (patched(FIRST_HEADER + 8, "I", 0), "without key or value"),
        (patched(FIRST_HEADER + 4, "I", 2**31), "leads out of the message"),
        (patched(FIRST_HEADER + 16, "B", 0xC3), "not UTF-8"),
        (patched(FIRST_HEADER + 24, "B", 0xFF), "not UTF-8"),
        (patched(VECTOR + 8, "I", FIRST_HEADER - VECTOR - 8), "comes twice"),
        (patched(12, "H", 6), "without key or value"),
    ],
)
def test_no_header_leads_the_reader_astray(frame: bytes, problem: str) -> None:
    assert problem in refused(frame).problem


@pytest.mark.parametrize("count", [MAX_HEADERS + 1, 2**32 - 1])
def test_too_many_headers_are_refused_before_any_is_read(count: int) -> None:
    assert refused(patched(VECTOR, "I", count)).too_large


def test_the_most_headers_there_may_be() -> None:
    message = structs.replace(MINIMAL, headers={f"c-{number}": "" for number in range(MAX_HEADERS)})
    assert decode(encode(message)) == message
    message.headers["one more"] = ""
    with pytest.raises(LocalError, match="1025 headers are too many"):
        encode(message)


def test_headers_that_share_one_long_string_are_no_lever() -> None:
    """A thousand headers with different keys, all with the same value of a megabyte."""
    headers = {f"c-{number:04}": "" for number in range(1_000)}
    frame = encode(structs.replace(MINIMAL, headers=headers, body=b"x" * 1_000_000))
    vector = struct.unpack_from("<I", frame, HEADERS)[0] + HEADERS
    body = struct.unpack_from("<I", frame, BODY)[0] + BODY
    for index in range(1_000):
        at = vector + 4 + 4 * index
        value = at + struct.unpack_from("<I", frame, at)[0] + 8
        frame = patched(value, "I", body - value, frame=frame)
    tracemalloc.start()
    try:
        assert "more bytes than the message has" in refused(frame).problem
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_each_header_may_have_a_vtable_of_its_own() -> None:
    at = len(FRAME) - 8
    frame = resized(FRAME[8:] + struct.pack("<4H", 8, 12, 8, 4))  # value first, then key
    frame = patched(SECOND_HEADER, "i", SECOND_HEADER - 8 - at, frame=frame)
    frame = patched(SECOND_HEADER + 4, "II", 16, 4, frame=frame)
    assert decode(frame) == MINIMAL
    assert_library_agrees(frame, MINIMAL)


# -- what cannot be written ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"recipient": "\ud800"},
        {"sender": "a\udfff"},
        {"headers": {"\ud800": ""}},
        {"headers": {"a": "\ud800"}},
    ],
)
def test_text_that_utf8_does_not_have_is_not_written(changes: dict[str, Any]) -> None:
    with pytest.raises(LocalError, match="cannot be written in UTF-8"):
        encode(structs.replace(MINIMAL, **changes))


# -- properties ------------------------------------------------------------------------------------

TEXTS = st.text(max_size=20)
MESSAGES = st.builds(
    SmrfMessage,
    TEXTS,
    TEXTS,
    st.one_of(st.just(NEVER), st.integers(0, LAST_TTL - 1)),
    st.dictionaries(TEXTS, TEXTS, max_size=6),
    st.binary(max_size=200),
    st.booleans(),
    st.booleans(),
    st.just(False),
    st.booleans(),
)


@given(MESSAGES)
@pytest.mark.rule("AD-4")
def test_what_is_written_is_read(message: SmrfMessage) -> None:
    frame = encode(message)
    assert decode(frame) == message
    assert_library_agrees(frame, decode(frame))


def verified(flatbuffer: bytes) -> None:
    """The checks of the C++ verifier: everything aligned, every string ended by a zero byte."""

    def number(form: str, at: int) -> int:
        assert at % struct.calcsize(form) == 0
        return int(struct.unpack_from("<" + form, flatbuffer, at)[0])

    def string(at: int) -> None:
        target = at + number("I", at)
        assert flatbuffer[target + 4 + number("I", target)] == 0

    def table(at: int) -> list[int]:
        vtable = at - number("i", at)
        size = number("H", vtable)
        return [at + number("H", vtable + 4 + 2 * index) for index in range((size - 4) // 2)]

    recipient, sender, ttl, *_, headers, body, _ = table(number("I", 0))
    string(recipient)
    string(sender)
    number("q", ttl)
    vector = headers + number("I", headers)
    for index in range(number("I", vector)):
        at = vector + 4 + 4 * index
        key, value = table(at + number("I", at))
        string(key)
        string(value)
    content = body + number("I", body)
    assert content + 4 + number("I", content) == len(flatbuffer)


@given(MESSAGES)
def test_what_is_written_passes_the_checks_of_cpp(message: SmrfMessage) -> None:
    verified(signed_part(encode(message)))


# -- fuzzing ---------------------------------------------------------------------------------------

SEEDS = [FRAME] + [
    bytes.fromhex(data)
    for vector in VECTORS.values()
    for data in vector.get("encodings", {}).values()
]


def replay(frame: bytes) -> SmrfMessage | None:
    """Values or a DecodeError; and what is accepted means the same to the library."""
    try:
        message = decode(frame, max_size=100_000)
    except DecodeError:
        return None
    table = 8 + struct.unpack_from("<I", frame, 8)[0]
    vtable = table - struct.unpack_from("<i", frame, table)[0]
    size = struct.unpack_from("<H", frame, vtable)[0]
    offsets = [
        table + struct.unpack_from("<H", frame, vtable + 4 + 2 * index)[0]
        for index in (7, 8)
        if 4 + 2 * index < size
    ]
    # An offset of 0 is no offset for us; the library would follow it to itself.
    if all(at == table or struct.unpack_from("<I", frame, at)[0] for at in offsets):
        assert_library_agrees(frame, message)
    return message


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_an_error(data: bytes) -> None:
    replay(data)
    replay(resized(data))


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.sampled_from(["flip", "cut", "insert", "duplicate", "splice", "number"])):
            case "flip":
                data[at : at + 1] = bytes([draw(st.integers(0, 255))])
            case "cut":
                del data[at : at + draw(st.integers(1, 20))]
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=8))
            case "duplicate":
                data[at:at] = data[at : at + draw(st.integers(1, 40))]
            case "splice":
                other = draw(st.sampled_from(SEEDS))
                data[at:] = other[draw(st.integers(0, len(other))) :]
            case _:
                value = draw(st.sampled_from([0, 1, 4, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]))
                data[at & ~3 : (at & ~3) + 4] = struct.pack("<I", value)
    if draw(st.booleans()):
        return resized(bytes(data[8:]))
    return bytes(data)


@given(mutations())
@settings(deadline=None)
def test_a_mutated_frame_is_a_message_or_an_error(data: bytes) -> None:
    replay(data)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_corpus(path: Path) -> None:
    verdict, *lines = path.read_text().splitlines()
    frame = bytes.fromhex("".join(lines))
    assert verdict in {"accepted", "refused", "too large"}
    if verdict == "accepted":
        assert replay(frame) is not None
    else:
        assert refused(frame, max_size=100_000).too_large == (verdict == "too large")


def test_the_corpus_is_there() -> None:
    assert len(CORPUS) > 20


def test_layouts_are_kept_and_bounded() -> None:
    for size in range(33, 33 + 200):
        decode(patched(MESSAGE_VTABLE + 2, "H", size))
    assert smrf._message_layout.cache_info().currsize <= 64


# -- sums, sizes and misuse ------------------------------------------------------------------------


def test_participants_and_body_count_like_headers() -> None:
    message = structs.replace(MINIMAL, recipient="r" * 1000, sender="s", body=b"", headers={})
    frame = bytearray(encode(message))
    start = RECIPIENT
    (offset,) = struct.unpack_from("<I", frame, start)
    for at in (start + 4, start + 12):  # sender and body are the recipient once more
        struct.pack_into("<I", frame, at, start + offset - at)
    assert "hold more bytes than the message has" in refused(bytes(frame)).problem
    struct.pack_into("<I", frame, start + 12, 0)  # no body, and still two of a thousand
    assert "hold more bytes than the message has" in refused(bytes(frame)).problem


def test_participants_have_a_longest() -> None:
    longest = structs.replace(MINIMAL, recipient="r" * MAX_PARTICIPANT)
    assert decode(encode(longest)) == longest
    for name in ("recipient", "sender"):
        with pytest.raises(LocalError, match=r"is too long", check=breaks("WK-10")):
            encode(structs.replace(MINIMAL, **{name: "r" * (MAX_PARTICIPANT + 1)}))
    frame = bytearray(encode(structs.replace(MINIMAL, recipient="r" * MAX_PARTICIPANT)))
    (offset,) = struct.unpack_from("<I", frame, RECIPIENT)
    struct.pack_into("<I", frame, RECIPIENT + offset, MAX_PARTICIPANT + 1)
    assert refused(bytes(frame)).too_large


def test_frames_come_in_any_kind_of_buffer() -> None:
    for kind in (bytearray, memoryview):
        assert decode(kind(FRAME)) == decode(FRAME)
        assert signed_part(kind(FRAME)) == signed_part(FRAME)


@pytest.mark.parametrize(
    "wrong",
    [
        {"body": None},
        {"body": "text"},
        {"recipient": 1},
        {"headers": 1},
        {"headers": {"a": 1}},
        {"headers": {"a": "1", 2: "b"}},
        {"body": None, "is_compressed": True},
    ],
    ids=str,
)
def test_fields_of_a_wrong_type_are_the_fault_of_the_caller(wrong: dict[str, Any]) -> None:
    with pytest.raises(LocalError, match=r"cannot be encoded", check=breaks("WK-10")):
        encode(structs.replace(MINIMAL, **wrong))


@pytest.mark.parametrize("signature", ["text", None, 4])
def test_a_signature_is_bytes(signature: Any) -> None:
    with pytest.raises(LocalError, match=r"signature .* is not bytes", check=breaks("WK-10")):
        encode(MINIMAL, lambda _: signature)
