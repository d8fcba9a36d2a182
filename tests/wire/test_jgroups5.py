"""The gossip-router format of JGroups 5.x, against captures of the real one."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rule_errors import breaks
from waystation.errors import DecodeError, LocalError
from waystation.wire import jgroups5
from waystation.wire.java import Cursor, FormatLimits, encode_string
from waystation.wire.jgroups import (
    Address,
    KnownHeads,
    MillisAddress,
    PhysicalAddress,
    UuidAddress,
)
from waystation.wire.jgroups5 import (
    ALL_GROUPS,
    COORDINATOR,
    SERVER,
    Decoder,
    GetMembers,
    Goodbye,
    Heartbeat,
    Members,
    Message,
    MessageHead,
    PingData,
    Register,
    Run,
    Suspect,
    Unknown,
    Unregister,
    Value,
    decode,
    encode,
    encode_head,
    read_head,
    scan,
)

HERE = Path(__file__).parent
VECTORS: dict[str, Any] = json.loads((HERE / "vectors" / "jgroups-5.json").read_text("utf-8"))
ENCODINGS = {entry["name"]: bytes.fromhex(entry["hex"]) for entry in VECTORS["encodings"]}
CORPUS = {
    path.stem: bytes.fromhex(path.read_text()) for path in (HERE / "corpus/jgroups5").glob("*.txt")
}

U = UuidAddress.parse("00112233-4455-6677-8899-aabbccddeeff")
U2 = UuidAddress.parse("00000000-0000-0001-0000-000000000002")
IP = PhysicalAddress("192.168.1.5", 7800)
PING = bytes.fromhex("0000000c050001010000000100000000")


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def captured(direction: str) -> dict[int, bytes]:
    """What one side of each captured connection sent."""
    streams: dict[int, bytes] = {}
    for entry in VECTORS["session"]:
        if entry["dir"] == direction and entry["hex"]:
            streams[entry["conn"]] = streams.get(entry["conn"], b"") + bytes.fromhex(entry["hex"])
    return streams


def probes() -> Iterator[bytes]:
    """Every stream of frames that went to or came from the real router in a probe."""

    def texts(step: Any) -> Iterator[str]:
        if isinstance(step, str):
            yield step
        elif isinstance(step, list):
            for part in step:
                yield from texts(part)

    for mode in ("probes_blocking", "probes_nio"):
        for probe in VECTORS[mode]:
            for step in probe["steps"].values():
                for text in texts(step):
                    if text not in {"", "open", "EOF"}:
                        yield bytes.fromhex(text)


STREAMS = sorted({*probes(), *captured("C>R").values(), *captured("R>C").values()})


def address_of(decoded: dict[str, Any] | None) -> Address | None:
    if decoded is None:
        return None
    if "uuid" in decoded:
        return UuidAddress.parse(decoded["uuid"])
    return PhysicalAddress(decoded["ip"], decoded["port"])


def value_of(decoded: dict[str, Any], payload: bytes) -> Value:
    """The value that a vector describes in its own words."""
    if not decoded:
        return Goodbye()
    group, address = decoded["group"], address_of(decoded["addr"])
    match decoded["type_name"]:
        case "REGISTER":
            physical = address_of(decoded["physical_addr"])
            return Register(group, address, decoded["logical_name"], physical)
        case "UNREGISTER":
            return Unregister(group, address)
        case "GET_MBRS":
            return GetMembers(group)
        case "MESSAGE":
            return Message(group, address, address_of(decoded["sender"]), payload)
        case "HEARTBEAT":
            return Heartbeat()
        case "SUSPECT":
            return Suspect(group, address)
    assert decoded["type_name"] == "GET_MBRS_RSP_LAST"
    members = (
        PingData(
            address_of(member["sender"]),
            member["logical_name"],
            address_of(member["physical_addr"]),
            member["flags"],
        )
        for member in decoded["ping_data"]
    )
    return Members(group, tuple(members))


# Vectors


@pytest.mark.parametrize("entry", VECTORS["frames"], ids=lambda entry: entry["hex"][:24])
def test_frames_of_real_channels(entry: dict[str, Any]) -> None:
    raw = bytes.fromhex(entry["hex"])
    size = entry["decoded"].get("buffer_len", 0)
    value = value_of(entry["decoded"], raw[len(raw) - size :])
    assert decode(raw) == value
    assert encode(value) == raw


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("REGISTER", Register("demo", U, "A", IP)),
        ("REGISTER.nophys", Register("demo", U, "A")),
        ("UNREGISTER", Unregister("demo", U)),
        ("GET_MBRS", GetMembers("demo")),
        ("GET_MBRS.all", GetMembers(None)),
        ("GET_MBRS_RSP_LAST", Members("demo", (PingData(U, "A", IP),))),
        ("MESSAGE.unicast", Message("demo", U, U2, b"hello")),
        ("MESSAGE.multicast", Message("demo", None, U2, b"hello")),
        ("HEARTBEAT", Heartbeat()),
        ("SUSPECT", Suspect("demo", U)),
    ],
)
def test_structures_as_the_real_classes_print_them(name: str, value: Value) -> None:
    raw = framed(ENCODINGS[f"gossipdata.{name}"])
    assert decode(raw) == value
    assert encode(value) == raw


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("null", None),
        ("uuid", U),
        ("ipv4", IP),
        ("ipv6", PhysicalAddress("2001:db8::1", 7801)),
        ("siteuuid", UuidAddress(U2.uuid, "site-uuid", bytes.fromhex("00000100017301 00016e"))),
        ("sitemaster", UuidAddress(bytes(16), "site-master", bytes.fromhex("0000 01000173 00"))),
        ("extendeduuid", UuidAddress(U2.uuid, "extended-uuid", b"\0\0")),
        ("extendeduuid+kv", UuidAddress(U2.uuid, "extended-uuid", b"\0\1\1k\2\1\2")),
        ("flagsuuid", UuidAddress(U2.uuid, "flags-uuid", b"\1\1")),
    ],
)
def test_addresses_as_the_real_classes_print_them(name: str, address: Address | None) -> None:
    raw = ENCODINGS[f"address.{name}"]
    frame = framed(b"\x06\x00" + raw + b"\x01\x00\x00\x00\x01\x00\x00\x00\x00")
    assert decode(frame) == Suspect(None, address)
    assert encode(Suspect(None, address)) == frame


def test_the_site_and_name_stand_in_the_extra_data() -> None:
    address = decode(framed(b"\x06\x00" + ENCODINGS["address.siteuuid"] + bytes.fromhex(_TAIL)))
    assert isinstance(address, Suspect)
    assert isinstance(address.address, UuidAddress)
    cursor = Cursor(address.address.extra, format="test", position=2)
    assert (cursor.string(), cursor.string(), cursor.at_end()) == ("s", "n", True)


_TAIL = "01000000 01 00000000"  # no sender, name, members, physical address, payload


def test_a_coordinator_and_the_members_it_wants() -> None:
    raw = ENCODINGS["pingdata.coord"]
    frame = framed(b"\x03\x00\x01\x01\x00\x00\x01" + raw + b"\x01\x00\x00\x00\x00")
    member = PingData(U, "A", IP, SERVER | COORDINATOR, (U2,))
    assert decode(frame) == Members(None, (member,), last=False)
    assert encode(Members(None, (member,), last=False)) == frame


def test_the_answer_for_all_groups_names_each_and_marks_the_last() -> None:
    (probe,) = (p for p in VECTORS["probes_nio"] if p["case"] == "get-all-groups")
    first, last = Decoder().feed(bytes.fromhex(probe["steps"]["rsp"][0]))
    assert isinstance(first, Members)
    assert isinstance(last, Members)
    assert (first.group, first.last) == (f"{ALL_GROUPS}g", False)
    assert (last.group, last.last) == (f"{ALL_GROUPS}h", True)
    assert last.members[0].physical is None


# Streams


def in_slices(data: bytes, cuts: Iterable[int]) -> list[Value]:
    decoder, values, start = Decoder(), list[Value](), 0
    for cut in (*sorted(cuts), len(data)):
        values += decoder.feed(data[start:cut])
        start = cut
    decoder.feed(b"")  # raises what was wrong with the last bytes
    assert decoder.pending == 0
    return values


@pytest.mark.parametrize("data", STREAMS, ids=lambda data: f"{len(data)}-{data[:8].hex()}")
def test_captured_streams_in_any_slices(data: bytes) -> None:
    values = Decoder().feed(data)
    assert b"".join(map(encode, values)) == data
    assert in_slices(data, range(1, len(data))) == values
    for cut in range(1, len(data), 1 + len(data) // 300):
        assert in_slices(data, [cut]) == values


def test_what_the_channels_of_the_capture_did() -> None:
    kinds = {
        connection: [type(value).__name__ for value in Decoder().feed(data)]
        for connection, data in captured("C>R").items()
    }
    assert kinds[0][0] == "Register"
    assert kinds[0][-2:] == ["Unregister", "Goodbye"]
    assert kinds[2] == ["Register", "GetMembers", "Unregister", "Unregister", "Goodbye"]


def test_bytes_come_in_any_kind_of_buffer() -> None:
    for kind in (bytes, bytearray, memoryview):
        decoder = Decoder()
        assert decoder.feed(kind(PING[:7])) == []
        assert decoder.feed(kind(PING[7:] + PING)) == [Heartbeat(), Heartbeat()]
        assert decoder.feed(kind(b"")) == []


def test_a_frame_in_crumbs_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    members = Members("demo", tuple(PingData(U, f"member {n}", IP) for n in range(300)))
    data = encode(members)
    steps = 0
    skip = Cursor.skip

    def counted(cursor: Cursor, size: int) -> int:
        nonlocal steps
        steps += 1
        return skip(cursor, size)

    monkeypatch.setattr(Cursor, "skip", counted)
    assert Decoder().feed(data) == [members]
    at_once, steps = steps, 0
    assert in_slices(data, range(1, len(data))) == [members]
    assert steps == at_once


def test_an_incomplete_frame_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    split = jgroups5._split

    def counted(*args: Any) -> Any:
        nonlocal looks
        looks += 1
        return split(*args)

    monkeypatch.setattr(jgroups5, "_split", counted)
    message = Message("demo", U, U2, bytes(5000))
    data = encode(message)
    assert in_slices(data, range(1, len(data))) == [message]
    assert looks == 4  # at the first byte, at the length, at the whole, and at the empty end


# What is refused, and what is not


ODD = {
    "length 0": "00000000",
    "length -1": "ffffffff",
    "length -4": "fffffffc",
    "length -6": "fffffffa",
    "the smallest length": "80000000",
    "no group": framed(b"\x05").hex(),
    "cut in the group": framed(b"\x05\x01\x00\x04dem").hex(),
    "cut before the payload": framed(PING[4:-4]).hex(),
    "cut in the payload's length": framed(PING[4:-1]).hex(),
    "longer than its structure": framed(PING[4:] + b"\0").hex(),
    "shorter than its payload": framed(PING[4:-1] + b"\1").hex(),
    "a negative payload": framed(PING[4:-4] + b"\xff" * 4).hex(),
    "a message longer than its payload": framed(b"\4\0\1\1\0\0\0\1abc").hex(),
    "a message shorter than its payload": framed(b"\4\0\1\1\0\0\0\4abc").hex(),
    "a message with a negative payload": framed(b"\4\0\1\1\xff\xff\xff\xff").hex(),
    "a message with a huge payload": framed(b"\4\0\1\1\x7f\xff\xff\xff").hex(),
    "a message without a payload's length": framed(b"\4\0\1\1").hex(),
    "a group that is no text": framed(b"\4\1\0\1\xff\1\1\0\0\0\0").hex(),
    "an unknown class of address": framed(b"\4\0\0\0\x63\1\0\0\0\0").hex(),
    "an IP address of 5 bytes": framed(b"\4\0\x10\5\0\0\0\0\0\0\0\1\0\0\0\0").hex(),
    "flags of 5 bytes": framed(b"\4\0\0\0\x13" + bytes(16) + b"\5\1\2\3\4\5\1\0\0\0\0").hex(),
    "the greeting of another port": "62656c61294600070f047f0000017080",
    "a CONNECT of 2.12": "0101000464656d6f028899aabbccddeeff001122334455667700",
}


@pytest.mark.parametrize("raw", ODD.values(), ids=ODD)
def test_malformed_frames_break_the_decoder_for_good(raw: str) -> None:
    bad = bytes.fromhex(raw)
    decoder = Decoder()
    assert decoder.feed(bad) == []
    assert decoder.error is not None
    for _ in range(2):
        with pytest.raises(DecodeError) as again:
            decoder.feed(PING)
        assert again.value is not decoder.error
        assert str(again.value) == str(decoder.error)
    assert decoder.pending == 0
    with pytest.raises(DecodeError):
        in_slices(bad, range(1, len(bad)))
    with pytest.raises(DecodeError):
        decode(bad)


@pytest.mark.parametrize("raw", ODD.values(), ids=ODD)
def test_values_before_malformed_bytes_are_not_lost(raw: str) -> None:
    message = Message("demo", None, U, b"hi")
    good = encode(message) * 2 + PING
    decoder = Decoder()
    assert decoder.feed(PING) == [Heartbeat()]
    assert decoder.feed(good + bytes.fromhex(raw)) == [message, message, Heartbeat()]
    error = decoder.error
    assert error is not None
    assert error.offset >= len(PING + good)
    with pytest.raises(DecodeError) as caught:
        decoder.feed(b"")
    assert str(caught.value) == str(error)


@pytest.mark.parametrize(
    ("limits", "raw"),
    [
        (FormatLimits(frame=11), PING[:4]),
        (FormatLimits(), bytes.fromhex("01000001")),
        (FormatLimits(), bytes.fromhex("7fffffff")),
        (FormatLimits(string=3), framed(b"\x02\x01\x00\x04demo" + bytes.fromhex(_TAIL))),
        (FormatLimits(items=1), encode(Members("g", (PingData(U), PingData(U2))))),
        (FormatLimits(items=1), encode(Members("g", (PingData(U, wanted=(U, U2)),)))),
        (
            FormatLimits(string=8),
            encode(Suspect("g", UuidAddress(U.uuid, "extended-uuid", b"\0\1\6abcdef\1v"))),
        ),
    ],
)
def test_what_is_over_a_limit_is_too_large(limits: FormatLimits, raw: bytes) -> None:
    decoder = Decoder(limits)
    assert decoder.feed(raw) == []
    assert decoder.error is not None
    assert decoder.error.too_large


def test_a_limit_itself_is_within_the_limit() -> None:
    assert Decoder(FormatLimits(frame=12)).feed(PING) == [Heartbeat()]
    members = Members("demo", (PingData(U), PingData(U2)))
    assert Decoder(FormatLimits(items=2, string=4)).feed(encode(members)) == [members]


def test_never_more_is_held_than_one_frame() -> None:
    limits = FormatLimits(frame=1000)
    decoder = Decoder(limits)
    chance = random.Random(3)
    stream = b"".join(
        encode(Message("demo", None, None, bytes(chance.randint(0, 980)))) for _ in range(50)
    )
    for at in range(0, len(stream), 333):
        decoder.feed(stream[at : at + 333])
        assert decoder.pending < limits.frame + 4
    assert decoder.pending == 0


def test_frames_of_unknown_types_are_reported_whole() -> None:
    for type in (8, 99, 255):
        unknown = Unknown(type, b"\x05junk")
        assert Decoder().feed(encode(unknown) + PING) == [unknown, Heartbeat()]
        assert scan(encode(unknown), 0, 10)[0] == [(b"", 0, 10, 1)]
    assert decode(framed(b"\x08")) == Unknown(8, b"")


def test_frames_that_only_routers_send_are_read_in_both_directions() -> None:
    for value in (Suspect("g", U), Members("g"), Members("g", last=False)):
        assert Decoder().feed(encode(value)) == [value]


def test_unused_fields_are_read_and_forgotten() -> None:
    body = b"\x05\x01\x00\x01g" + ENCODINGS["address.uuid"] * 2 + b"\x01\x00\x01A\x00\x01"
    body += ENCODINGS["pingdata.coord"] + ENCODINGS["address.ipv4"] + b"\x00\x00\x00\x03abc"
    assert decode(framed(body)) == Heartbeat()


def test_null_has_many_spellings() -> None:
    # presence bytes 2 and 255, flags of an address with the null bit, negative counts
    body = bytes.fromhex("02 02 03 ff ff 8000 1f 00000000")
    assert decode(framed(body)) == GetMembers(None)


def test_the_bits_of_an_address_are_looked_at_in_order() -> None:
    raw = ENCODINGS["address.uuid"]
    for flags in (0x02, 0x06, 0x1E):
        frame = framed(b"\x06\x00" + bytes((flags,)) + raw[1:] + bytes.fromhex(_TAIL))
        assert decode(frame) == Suspect(None, U)


def test_an_address_without_ip() -> None:
    frame = encode(Register("g", MillisAddress(7), None, PhysicalAddress("", 9)))
    assert frame.endswith(bytes.fromhex("10 00 0009 00000000"))
    assert decode(frame) == Register("g", MillisAddress(7), None, PhysicalAddress("", 9))


@pytest.mark.parametrize("raw", [b"", PING[:3], PING[:-1], PING + b"\0", PING + PING])
def test_decode_takes_exactly_one_frame(raw: bytes) -> None:
    with pytest.raises(DecodeError, match="not exactly one frame"):
        decode(raw)


# What cannot be encoded


class Huge(bytes):
    """As good as two gigabytes."""

    def __len__(self) -> int:
        return 0x7FFF_FFFF


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (Message("g", None, None, Huge()), "too long"),
        (Unknown(200, Huge()), "too long"),
        (Unknown(7, b""), "not an unknown type"),
        (Unknown(256, b""), "not an unknown type"),
        (Suspect("g", UuidAddress(b"short")), "give 16"),
        (Suspect("g", UuidAddress(U.uuid, "topology-uuid", b"")), "cannot be written in 5.x"),
        (Suspect("g", UuidAddress(U.uuid, "uuid", b"\1")), "cannot be written in 5.x"),
        (Suspect("g", UuidAddress(U.uuid, "flags-uuid")), "cannot be written in 5.x"),
        (Suspect("g", UuidAddress(U.uuid, "flags-uuid", b"\0\0")), "cannot be written in 5.x"),
        (Suspect("g", PhysicalAddress("::1", 1, extra=b"\1\0\0")), "additional data"),
        (Suspect("g", PhysicalAddress("localhost", 1)), "look the name up first"),
        (Suspect("g", PhysicalAddress("::1", 70_000)), "port"),
        (Suspect("g", PhysicalAddress("::1", 1, scope=-1)), "scope"),
        (Suspect("g" * 70_000, U), "at most 65535"),
        (Members("g", (PingData(U, flags=256),)), "flags"),
        (Members("g", (PingData(U),) * 40_000), "at most 32767"),
    ],
)
def test_what_cannot_be_encoded_is_a_local_error(value: Value, complaint: str) -> None:
    with pytest.raises(LocalError, match=complaint):
        encode(value)


def test_only_values_of_this_format_are_encoded() -> None:
    with pytest.raises(LocalError, match="not a value of this format"):
        encode(MessageHead("g", None, None))  # type: ignore[arg-type]


def test_the_plain_form_of_an_address_of_the_other_generation_is_written() -> None:
    other = UuidAddress(U.uuid, "topology-uuid", b"\0\0\0\0")
    assert decode(encode(Suspect("g", other.plain()))) == Suspect("g", U)


# Properties

names = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
uuids = st.binary(min_size=16, max_size=16)
strings = names.map(encode_string)
numbers = st.binary(max_size=4).map(lambda raw: bytes((len(raw),)) + raw)
short = st.binary(max_size=5).map(lambda raw: bytes((len(raw),)) + raw)
entries = st.lists(st.tuples(short, short), max_size=3).map(
    lambda pairs: bytes((len(pairs),)) + b"".join(key + value for key, value in pairs)
)
extended = st.tuples(numbers, entries).map(b"".join)
sites = st.tuples(extended, strings, strings).map(b"".join)
addresses = st.none() | st.one_of(
    st.builds(UuidAddress, uuids),
    st.builds(UuidAddress, uuids, st.just("site-uuid"), sites),
    st.builds(UuidAddress, uuids, st.just("site-master"), sites),
    st.builds(UuidAddress, uuids, st.just("extended-uuid"), extended),
    st.builds(UuidAddress, uuids, st.just("flags-uuid"), numbers),
    st.builds(MillisAddress, st.integers(-(1 << 63), (1 << 63) - 1)),
    st.builds(PhysicalAddress, st.ip_addresses(v=4).map(str) | st.just(""), st.integers(0, 65_535)),
    st.builds(
        PhysicalAddress,
        st.ip_addresses(v=6).map(str),
        st.integers(0, 65_535),
        st.integers(0, 0xFFFF_FFFF),
    ),
)
lists = st.none() | st.lists(addresses, max_size=3).map(tuple)
ping_data = st.builds(PingData, addresses, names, addresses, st.integers(0, 255), lists)
messages = st.builds(Message, names, addresses, addresses, st.binary(max_size=20))
values = st.one_of(
    messages,
    st.builds(Register, names, addresses, names, addresses, st.binary(max_size=20)),
    st.builds(Unregister, names, addresses),
    st.builds(GetMembers, names),
    st.builds(Members, names, st.lists(ping_data, max_size=3).map(tuple), st.booleans()),
    st.just(Heartbeat()),
    st.builds(Suspect, names, addresses),
    st.just(Goodbye()),
    st.builds(Unknown, st.integers(8, 255), st.binary(max_size=20)),
)


@given(st.lists(values, max_size=6), st.data())
def test_values_come_back_from_their_bytes(sent: list[Value], data: st.DataObject) -> None:
    stream = b"".join(map(encode, sent))
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=5))
    assert in_slices(stream, cuts) == sent


# Scanning


def frames_of(buffer: bytes | bytearray, runs: list[Run]) -> Iterator[tuple[bytes, int, int]]:
    """The frames of runs, found slowly by their lengths."""
    for head, first, last, count in runs:
        at, found = first, 0
        while at < last:
            length = int.from_bytes(buffer[at : at + 4], "big", signed=True)
            yield head, at, at + 4 + max(0, length)
            at, found = at + 4 + max(0, length), found + 1
        assert (at, found) == (last, count)


def check_scan(buffer: bytes | bytearray, start: int, end: int, known: KnownHeads) -> None:
    """What a scan says of good frames must be what the decoder says of them."""
    runs, rest, need = scan(buffer, start, end, known=known)
    at = start
    scanned: list[Value] = []
    for head, first, after in frames_of(buffer, runs):
        assert first == at
        at = after
        value = decode(buffer, first, after)
        scanned.append(value)
        if head:
            assert isinstance(value, Message)
            assert read_head(head) == MessageHead(value.group, value.destination, value.sender)
            assert buffer[first + 4 : first + 4 + len(head)] == head
        else:
            assert not isinstance(value, Message)
    assert at == rest
    assert need > end - rest
    decoder = Decoder()
    assert decoder.feed(bytes(buffer[start:end])) == scanned
    assert decoder.pending == end - rest
    for one, other in pairwise(runs):
        assert not one[0] or one[0] != other[0] or len(one[0]) > KnownHeads.LONGEST


heads = st.sampled_from(
    [
        ("demo", U, U2),
        ("demo", U2, U2),
        ("demo", None, U2),
        ("gos", U, None),
        ("x" * 300, U, U2),  # too long a head to be remembered
    ]
)
sizes = st.sampled_from([0, 1, 5, 5, 5])
traffic = st.tuples(heads, sizes).map(lambda drawn: Message(*drawn[0], payload=bytes(drawn[1])))


@given(
    st.lists(traffic | traffic.map(lambda one: (one,) * 6) | values, max_size=12),
    st.integers(0, 30),
    st.integers(0, 5),
    st.booleans(),
)
def test_a_scan_finds_what_the_decoder_finds(
    sent: list[Any], cut: int, before: int, writable: bool
) -> None:
    flat = [one for each in sent for one in (each if isinstance(each, tuple) else (each,))]
    stream = b"\xff" * before + b"".join(map(encode, flat))
    end = max(before, len(stream) - cut)
    buffer = bytearray(stream) if writable else stream
    known = KnownHeads()
    check_scan(buffer, before, end, known)
    check_scan(buffer, before, end, known)  # now with heads that are known


@pytest.mark.rule("GR-5")
def test_neighbours_for_one_destination_are_one_run() -> None:
    def frames(destination: Address | None, sizes: Iterable[int]) -> bytes:
        return b"".join(encode(Message("demo", destination, U, bytes(size))) for size in sizes)

    first = frames(U2, [5] * 10 + [7, 0, 5, 5, 5, 5, 5, 9])
    second = frames(None, [3])
    third = frames(U2, [5])
    buffer = first + second + third + PING + PING + third
    runs, rest, need = scan(buffer, 0, len(buffer))
    ends = [len(first), len(second), len(third), 16, 16, len(third)]
    expected, at = [], 0
    head = encode_head("demo", U2, U)
    for size, count, key in zip(
        ends,
        (18, 1, 1, 1, 1, 1),
        (head, encode_head("demo", None, U), head, b"", b"", head),
        strict=True,
    ):
        expected.append((key, at, at + size, count))
        at += size
    assert runs == expected
    assert (rest, need) == (len(buffer), 4)


def test_a_scan_says_what_it_needs() -> None:
    frame = encode(Message("demo", U, U2, bytes(50)))
    buffer = frame + frame
    for end in range(len(frame), 2 * len(frame)):
        runs, rest, need = scan(buffer, 0, end)
        assert [run[3] for run in runs] == [1]
        assert rest == len(frame)
        assert need == (4 if end - rest < 4 else len(frame))


@pytest.mark.parametrize("raw", ODD.values(), ids=ODD)
def test_a_scan_stops_before_malformed_bytes_and_raises_at_them(raw: str) -> None:
    frame = encode(Message("demo", U, U2, b"hi"))
    bad = bytes.fromhex(raw)
    buffer = frame + bad + frame
    runs, rest, need = scan(buffer, 0, len(buffer))
    if runs[1:]:  # a frame that is no MESSAGE is not looked into: that is the decoder's part
        assert runs[1] == (b"", len(frame), len(frame) + len(bad), 1)
        with pytest.raises(DecodeError):
            decode(buffer, *runs[1][1:3])
        return
    assert (rest, need) == (len(frame), 0)
    with pytest.raises(DecodeError) as caught:
        scan(buffer, rest, len(buffer))
    assert caught.value.offset >= rest


def test_a_known_head_does_not_hide_a_bad_length() -> None:
    known = KnownHeads()
    good = encode(Message("demo", U, U2, b"hello"))
    scan(good, 0, len(good), known=known)
    for bad in (
        good[:3] + bytes((good[3] + 1,)) + good[4:] + b"!",  # the frame is longer than its payload
        good[:-6] + b"\x06hello",
        good[:-6] + b"\x04hello",
    ):
        buffer = good + bad
        assert scan(buffer, 0, len(buffer), known=known)[1:] == (len(good), 0)
        with pytest.raises(DecodeError, match="payload does not end"):
            scan(buffer, len(good), len(buffer), known=known)


def test_a_head_of_the_same_size_is_not_a_known_head() -> None:
    message = encode(Message("demo", U, U2, b"hello"))
    other = message[:4] + b"\x09" + message[5:]  # of an unknown type, and else the same
    assert scan(message * 5 + other, 0, 6 * len(message))[0] == [
        (encode_head("demo", U, U2), 0, 5 * len(message), 5),
        (b"", 5 * len(message), 6 * len(message), 1),
    ]
    bad = message.replace(b"demo", b"dem\xff")
    assert scan(message + bad, 0, 2 * len(message))[1:] == (len(message), 0)


def test_long_heads_are_not_remembered() -> None:
    known = KnownHeads()
    frame = encode(Message("x" * 300, U, U2, b"hello"))
    runs, *_ = scan(frame * 3, 0, 3 * len(frame), known=known)
    assert [count for *_, count in runs] == [1, 1, 1]
    assert known.by_size == {}


def test_a_known_head_does_not_hide_a_frame_over_the_limit() -> None:
    known = KnownHeads()
    good = encode(Message("demo", U, U2, bytes(100)))
    limits = FormatLimits(frame=len(good) - 4)
    more = encode(Message("demo", U, U2, bytes(101)))
    buffer = good + more
    assert scan(buffer, 0, len(buffer), known=known, limits=limits)[1:] == (len(good), 0)
    with pytest.raises(DecodeError) as caught:
        scan(more, 0, len(more), known=known, limits=limits)
    assert caught.value.too_large


@pytest.mark.parametrize(
    "head",
    [b"", b"\x05\x00\x01\x01", b"\x04\x00\x01", b"\x04\x00\x01\x01\x00", b"\x04" + b"\x01" * 300],
)
def test_what_is_no_head_is_refused(head: bytes) -> None:
    with pytest.raises(DecodeError):
        read_head(head)


# Fuzzing: whatever comes, there are values or a DecodeError, and nothing else.


TIGHT = FormatLimits(frame=5000, string=300, items=50)


def outcome(data: bytes, cuts: Iterable[int]) -> tuple[list[Value], str]:
    decoder, values, start = Decoder(TIGHT), list[Value](), 0
    for cut in (*sorted(cuts), len(data)):
        try:
            values += decoder.feed(data[start:cut])
        except DecodeError:
            break
        assert decoder.pending <= 5003
        start = cut
    return values, str(decoder.error)


def check_survival(data: bytes, cuts: Iterable[int]) -> None:
    decoded, error = outcome(data, [])
    assert outcome(data, cuts) == (decoded, error)  # slices make no difference
    for value in decoded:
        assert decode(encode(value)) == value
    try:
        runs, rest, need = scan(data, 0, len(data), limits=TIGHT)
    except DecodeError as caught:
        raised = str(caught)
        assert (decoded, raised) == ([], error)
        return
    assert len(list(frames_of(data, runs))) >= len(decoded)
    assert need == 0 or need > len(data) - rest


def mutated(chance: random.Random, data: bytes, others: list[bytes]) -> bytes:
    raw = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randint(0, len(raw))
        match chance.choice(["flip", "set", "cut", "insert", "double", "splice"]):
            case "flip" if at < len(raw):
                raw[at] ^= 1 << chance.randint(0, 7)
            case "set" if at < len(raw):
                raw[at] = chance.choice([0, 1, 2, 4, 16, 127, 128, 255])
            case "cut":
                del raw[at : at + chance.randint(1, 20)]
            case "insert":
                raw[at:at] = chance.randbytes(chance.randint(1, 8))
            case "double":
                raw[at:at] = raw[at : at + chance.randint(1, 60)]
            case "splice":
                other = chance.choice(others)
                raw[at:] = other[chance.randint(0, len(other)) :]
    return bytes(raw)


@pytest.mark.parametrize("name", CORPUS)
def test_corpus(name: str) -> None:
    data = CORPUS[name]
    check_survival(data, [])
    check_survival(data, range(1, len(data)))


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=4))
def test_any_bytes(data: bytes, cuts: list[int]) -> None:
    check_survival(data, cuts)


@given(st.binary(max_size=80), st.integers(0, 9))
def test_any_bytes_in_a_frame(body: bytes, type: int) -> None:
    check_survival(framed(bytes((type,)) + body), [])


@given(st.integers(0, 1 << 32))
def test_mutations(seed: int) -> None:
    chance = random.Random(seed)
    sources = [*STREAMS, *CORPUS.values()]
    data = mutated(chance, chance.choice(sources), sources)[:6000]
    check_survival(data, [chance.randint(0, len(data)) for _ in range(chance.randint(0, 4))])


def test_nothing_is_kept_in_the_module_for_long_heads() -> None:
    jgroups5._read_short_head.cache_clear()
    long = encode_head("x" * 300, U, U2)
    assert read_head(long).group == "x" * 300
    assert jgroups5._read_short_head.cache_info().currsize == 0
    assert read_head(encode_head("x", U, U2)).group == "x"
    assert jgroups5._read_short_head.cache_info().currsize == 1


# What costs time and memory, and misuse.


def two_bytes(number: int) -> bytes:
    return number.to_bytes(2, "big", signed=True)


def with_members(type: int, members: list[bytes], rest: bytes = b"") -> bytes:
    """A frame of any type with a list of members."""
    inside = two_bytes(len(members)) + b"".join(members)
    return framed(bytes((type,)) + b"\0\1\1\0" + inside + b"\1\0\0\0\0" + rest)


def member(wanted: int) -> bytes:
    return b"\1\1\0\1" + two_bytes(wanted) + b"\1" * max(wanted, 0)


@pytest.mark.parametrize("type", [0, 1, 2, 3, 5, 6, 7])
def test_all_lists_of_a_frame_share_one_budget(type: int) -> None:
    limits = FormatLimits(items=10)
    assert decode(with_members(type, [member(1)] * 10), limits=limits) is not None
    assert decode(with_members(type, [member(9), member(9)]), limits=limits) is not None
    with pytest.raises(DecodeError, match="over the limit") as caught:
        decode(with_members(type, [member(10), member(9)]), limits=limits)
    assert caught.value.too_large


@pytest.mark.parametrize("type", [0, 5, 7])
def test_members_times_wanted_stays_small(type: int) -> None:
    data = with_members(type, [member(2000)] * 500)
    tracemalloc.start()
    try:
        decoder = Decoder()
        assert decoder.feed(data) == []
        assert decoder.error is not None
        assert decoder.error.too_large
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_members_that_a_type_does_not_use_are_not_kept() -> None:
    assert decode(with_members(5, [member(-1)] * 2000)) == Heartbeat()
    with pytest.raises(DecodeError):
        decode(with_members(5, [b"\x40"]))


@pytest.mark.parametrize("type", [0, 5, 7, 8, 255])
def test_only_a_message_may_be_long(type: int) -> None:
    length = ((1 << 20) + 1).to_bytes(4, "big")
    decoder = Decoder()
    assert decoder.feed(length) == []
    assert decoder.error is None
    assert decoder.feed(bytes((type,))) == []
    with pytest.raises(DecodeError, match="over the limit of 1048576 for its type") as caught:
        decoder.feed(b"")
    assert caught.value.too_large
    assert scan(length, 0, 4) == ([], 0, 5)
    with pytest.raises(DecodeError, match="for its type"):
        decode(length + bytes((type,)) + bytes(1 << 20))
    assert scan(length + b"\x04", 0, 5) == ([], 0, (1 << 20) + 5)


def test_a_long_message_and_the_longest_of_the_others_are_read() -> None:
    message = Message("demo", None, U, bytes(2 << 20))
    unknown = Unknown(200, bytes((1 << 20) - 1))
    decoder = Decoder()
    data = encode(message) + encode(unknown)
    assert decoder.feed(data[:4]) + decoder.feed(data[4:]) == [message, unknown]


@pytest.mark.parametrize("text", [b"\xff", b"\0", b"\xc3", b"\xed\xa0\x80"])
def test_texts_in_addresses_are_read_before_they_go_to_others(text: bytes) -> None:
    extra = b"\0\0\1" + two_bytes(len(text)) + text + b"\0"
    body = b"\x04\0\x04" + U.uuid[8:] + U.uuid[:8] + extra + b"\1\0\0\0\0"
    with pytest.raises(DecodeError, match="not modified UTF-8"):
        decode(framed(body))
    with pytest.raises(LocalError, match="cannot be written"):
        encode(Message(None, UuidAddress(U.uuid, "site-uuid", extra), None, b""))


def test_only_bytes_are_scanned() -> None:
    data: Any = memoryview(PING)
    with pytest.raises(LocalError, match=r"of type memoryview cannot be scanned"):
        scan(data, 0, len(data))


WRONG: list[Any] = [
    Message("g", None, None, None),  # type: ignore[arg-type]
    Message("g", None, None, "text"),  # type: ignore[arg-type]
    Message(1, None, None, b""),  # type: ignore[arg-type]
    Message("g", "address", None, b""),  # type: ignore[arg-type]
    Message("g", [], None, b""),  # type: ignore[arg-type]
    Members("g", (PingData(None, flags=1.5),)),  # type: ignore[arg-type]
    Members("g", 1),  # type: ignore[arg-type]
    Unknown(8.5, b""),  # type: ignore[arg-type]
    Unknown(8, "text"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_fields_of_a_wrong_type_are_the_fault_of_the_caller(value: Value) -> None:
    with pytest.raises(LocalError, match=r"cannot be encoded", check=breaks("GR-11")):
        encode(value)


@pytest.mark.rule("GR-11")
def test_the_release_of_a_member_is_told_by_its_messages() -> None:
    assert jgroups5.release_of(bytes.fromhex("2947")) == (5, 5, 7)
    assert jgroups5.release_of(bytes.fromhex("209e00")) == (4, 2, 30)
    assert jgroups5.release_of(b"\xe1\0") is None
    assert jgroups5.release_of(b"") is None
    dead = jgroups5.encode_suspect("g", None, (5, 2, 6))
    assert jgroups5.decode(dead) == jgroups5.Suspect("g", None)
    assert jgroups5.encode_suspect("g", None, (5, 2, 5))[4] == 5
