"""The gossip-router format of JGroups 2.12, against captures of the real one."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rule_errors import breaks
from waystation.errors import DecodeError, LocalError
from waystation.wire import jgroups2
from waystation.wire.java import Cursor, FormatLimits, encode_string
from waystation.wire.jgroups import (
    Address,
    Kind,
    KnownHeads,
    MillisAddress,
    PhysicalAddress,
    UuidAddress,
    host_text,
)
from waystation.wire.jgroups2 import (
    Answer,
    AnswerDecoder,
    Close,
    Connect,
    ConnectAnswer,
    Disconnect,
    DisconnectAnswer,
    GossipGet,
    Members,
    Message,
    MessageHead,
    Ping,
    PingData,
    Request,
    RequestDecoder,
    Run,
    Suspect,
    Unknown,
    ViewId,
    encode,
    encode_head,
    forward_head,
    forwarded,
    read_head,
    scan,
    size_at,
)

HERE = Path(__file__).parent
VECTORS: dict[str, Any] = json.loads((HERE / "vectors" / "jgroups-2.12.json").read_text("utf-8"))
ENCODINGS = {entry["name"]: entry for entry in VECTORS["encodings"]}
CORPUS = {
    path.stem: bytes.fromhex(path.read_text()) for path in (HERE / "corpus/jgroups2").glob("*.txt")
}

U = UuidAddress.parse("00112233-4455-6677-8899-aabbccddeeff")
U2 = UuidAddress.parse("00000000-0000-0001-0000-000000000002")
IP = PhysicalAddress("192.168.1.5", 7800)
PING = bytes.fromhex("0c000100ffffffff00")
SUSPECT = bytes.fromhex("0b000100ffffffff00")
KINDS: dict[int, Kind] = {82: "payload-uuid", 83: "additional-data-uuid", 84: "topology-uuid"}


def raw_of(name: str) -> bytes:
    return bytes.fromhex(ENCODINGS[name]["hex"])


def address_of(decoded: dict[str, Any] | None) -> Address | None:
    """The address that a vector describes in its own words."""
    if decoded is None:
        return None
    data = decoded.get("additional_data")
    extra = b"" if data is None else bytes((1, 0, len(data) // 2)) + bytes.fromhex(data)
    if "uuid" not in decoded:
        ip = decoded["ip"]
        host = ip if "." in ip else host_text(bytes.fromhex(ip))
        return PhysicalAddress(host, decoded["port"], decoded.get("scope", 0), extra)
    address = UuidAddress.parse(decoded["uuid"])
    match decoded.get("magic"):
        case 82:
            extra = b"\0" + encode_string(decoded["payload"])
        case 83:
            payload = bytes.fromhex(decoded["payload"])
            extra = b"\0\1" + len(payload).to_bytes(4, "big") + payload
        case 84:
            extra = b"\0" + b"".join(
                encode_string(decoded[part]) for part in ("site", "rack", "machine")
            )
        case _:
            return UuidAddress(address.uuid, "uuid", extra)
    return UuidAddress(address.uuid, KINDS[decoded["magic"]], extra)


def addresses_of(decoded: list[Any] | None) -> tuple[Address | None, ...] | None:
    return None if decoded is None else tuple(map(address_of, decoded))


def member_of(decoded: dict[str, Any]) -> PingData:
    view_id = decoded["view_id"]
    return PingData(
        address_of(decoded["own_addr"]),
        decoded["logical_name"],
        addresses_of(decoded["physical_addrs"]),
        decoded["is_server"],
        view_id and ViewId(address_of(view_id["creator"]), view_id["id"]),
    )


def value_of(decoded: dict[str, Any], raw: bytes) -> Request | Answer:
    if "status" in decoded:
        return ConnectAnswer(decoded["status"] == "CONNECT_OK")
    if "mbrs" in decoded and "num" in decoded:
        return Members(tuple(map(member_of, decoded["mbrs"])))
    group, address = decoded["group"], address_of(decoded["addr"])
    match decoded["type_name"]:
        case "CONNECT":
            physical = addresses_of(decoded["physical_addrs"])
            return Connect(group, address, decoded["logical_name"], physical)
        case "DISCONNECT":
            return Disconnect(group, address)
        case "GOSSIP_GET":
            return GossipGet(group)
        case "MESSAGE":
            return Message(group, address, raw[len(raw) - decoded["buffer_len"] :])
        case "PING":
            return Ping()
        case "CLOSE":
            return Close()
        case "SUSPECT":
            return Suspect(address_of(decoded["suspect"]))
    return DisconnectAnswer(decoded["type_name"] == "DISCONNECT_OK")


def answers(raw: bytes, *expected: str) -> list[Answer]:
    decoder = expecting(*expected)
    values = decoder.feed(raw)
    decoder.feed(b"")  # raises what was wrong
    assert decoder.pending == 0
    return values


def expecting(*expected: str) -> AnswerDecoder:
    decoder = AnswerDecoder()
    for one in expected:
        getattr(decoder, f"expect_{one}")()
    return decoder


def in_slices(
    decoder: RequestDecoder | AnswerDecoder, data: bytes, cuts: Iterable[int]
) -> list[Any]:
    values, start = list[Any](), 0
    for cut in (*sorted(cuts), len(data)):
        values += decoder.feed(data[start:cut])
        start = cut
    decoder.feed(b"")  # raises what was wrong with the last bytes
    assert decoder.pending == 0
    return values


# Vectors

FRAMES = [
    (entry["id"], entry["dir"], bytes.fromhex(entry["hex"]), entry["decoded"])
    for entry in VECTORS["frames"]
    if not entry["id"].startswith("tcp.")  # those go from member to member
] + [
    (name, "R>C" if decoded["type"] in {11, 15, 16} else "C>R", raw_of(name), decoded)
    for name, decoded in ((name, entry["decoded"]) for name, entry in ENCODINGS.items())
    if name.startswith("gossipdata.") or name == "SUSPECT"
]


@pytest.mark.parametrize(
    ("direction", "raw", "decoded"), [frame[1:] for frame in FRAMES], ids=[f[0] for f in FRAMES]
)
def test_structures_of_real_channels(direction: str, raw: bytes, decoded: dict[str, Any]) -> None:
    value = value_of(decoded, raw)
    assert encode(value) == raw
    due = {ConnectAnswer: ["connect_answer"], Members: ["members"]}.get(type(value), [])

    def decoder() -> RequestDecoder | AnswerDecoder:
        return RequestDecoder() if direction == "C>R" else expecting(*due)

    assert in_slices(decoder(), raw, []) == [value]
    for cut in range(1, len(raw)):
        assert in_slices(decoder(), raw, [cut]) == [value]
    assert in_slices(decoder(), raw, range(1, len(raw))) == [value]


ADDRESSES = [name for name in ENCODINGS if name.startswith("address.")]


@pytest.mark.parametrize("name", ADDRESSES)
def test_addresses_as_the_real_classes_print_them(name: str) -> None:
    raw, address = raw_of(name), address_of(ENCODINGS[name]["decoded"])
    assert answers(SUSPECT + raw) == [Suspect(address)]
    assert encode(Suspect(address)) == SUSPECT + raw


@pytest.mark.parametrize("name", ["null", "empty", "two"])
def test_lists_of_addresses_as_the_real_classes_print_them(name: str) -> None:
    raw, physical = (
        raw_of(f"addresses.{name}"),
        addresses_of(ENCODINGS[f"addresses.{name}"]["decoded"]),
    )
    structure = b"\x01\x00\x01\x00\xff\xff" + raw + b"\x00"
    value = Connect(None, None, None, physical)
    assert RequestDecoder().feed(structure) == [value]
    assert encode(value) == structure


@pytest.mark.parametrize("name", ["3", "null", "empty"])
def test_buffers_as_the_real_classes_print_them(name: str) -> None:
    raw, data = raw_of(f"bytebuffer.{name}"), ENCODINGS[f"bytebuffer.{name}"]["decoded"]
    structure = b"\x0a\x00\x01\x00\xff\xff\xff\xff" + raw
    value = Message(None, None, None if data is None else bytes.fromhex(data))
    assert RequestDecoder().feed(structure) == [value]
    assert encode(value) == structure


@pytest.mark.rule("GR-4")
@pytest.mark.parametrize("name", ["router", "router.nophys", "viewid"])
def test_members_as_the_real_classes_print_them(name: str) -> None:
    raw, member = raw_of(f"pingdata.{name}"), member_of(ENCODINGS[f"pingdata.{name}"]["decoded"])
    assert answers(b"\x00\x01" + raw, "members") == [Members((member,))]
    assert encode(Members((member,))) == b"\x00\x01" + raw


def test_a_view_is_kept_as_it_came() -> None:
    raw, decoded = raw_of("pingdata.view"), ENCODINGS["pingdata.view"]["decoded"]
    (members,) = answers(b"\x00\x01" + raw, "members")
    assert isinstance(members, Members)
    assert encode(members) == b"\x00\x01" + raw
    view = Cursor(members.members[0].view, format="test")
    assert view.boolean() is decoded["view"]["merge"]
    assert view.boolean()  # it has an id: address, bool, and the number
    assert view.take(18) == encode(Suspect(address_of(decoded["view"]["vid"]["creator"])))[9:]
    assert view.long() == decoded["view"]["vid"]["id"]
    assert view.short() == len(decoded["view"]["members"])


# Streams


def conversations(name: str) -> dict[int, list[tuple[str, bytes]]]:
    """What went over each captured connection, in order."""
    talks: dict[int, list[tuple[str, bytes]]] = {}
    for entry in VECTORS["sessions"][name]:
        talk = talks.setdefault(entry["conn"], [])
        if entry["hex"] and entry["kind"] != "LEFTOVER":  # cut off as the connection closed
            talk.append((entry["dir"], bytes.fromhex(entry["hex"])))
    return talks


TALKS = [
    pytest.param(talk, id=f"{name}-{number}")
    for name in VECTORS["sessions"]
    for number, talk in conversations(name).items()
]


@pytest.mark.parametrize("size", [1, 2, 7, 100, 100_000])
@pytest.mark.parametrize("talk", TALKS)
def test_captured_conversations_in_slices(talk: list[tuple[str, bytes]], size: int) -> None:
    requests, answered = RequestDecoder(), AnswerDecoder()
    read: list[Request | Answer] = []
    for direction, data in talk:
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        if direction == "C>R":
            asked = [value for piece in pieces for value in requests.feed(piece)]
            for request in asked:
                if isinstance(request, Connect):
                    answered.expect_connect_answer()
                elif isinstance(request, GossipGet):
                    answered.expect_members()
            read += asked
        else:
            read += (value for piece in pieces for value in answered.feed(piece))
    assert b"".join(map(encode, read)) == b"".join(data for _, data in talk)
    assert requests.pending == answered.pending == 0
    assert not any(isinstance(value, Unknown) for value in read)


@pytest.mark.parametrize("direction", ["C>R", "R>C"])
@pytest.mark.parametrize("talk", TALKS)
def test_captured_streams_at_once(talk: list[tuple[str, bytes]], direction: str) -> None:
    stream = b"".join(data for each, data in talk if each == direction)
    if direction == "C>R":
        values: list[Any] = in_slices(RequestDecoder(), stream, [])
    else:
        asked = RequestDecoder().feed(b"".join(data for each, data in talk if each == "C>R"))
        due = {Connect: "connect_answer", GossipGet: "members"}
        expected = [due[type(request)] for request in asked if type(request) in due]
        values = in_slices(expecting(*expected), stream, [])
        for cut in range(1, len(stream), 1 + len(stream) // 200):
            assert in_slices(expecting(*expected), stream, [cut]) == values
    assert b"".join(map(encode, values)) == stream


def probe_texts(step: Any) -> Iterator[str]:
    if isinstance(step, str):
        yield step
    elif isinstance(step, list):
        for part in step:
            yield from probe_texts(part)


@pytest.mark.parametrize("probe", VECTORS["probes"], ids=lambda probe: probe["case"])
def test_probes_of_the_real_router(probe: dict[str, Any]) -> None:
    for name, step in probe["steps"].items():
        for text in probe_texts(step):
            if text in {"", "open", "EOF"}:
                continue
            raw = bytes.fromhex(text)
            if name in {"req", "get"} and isinstance(step, str):
                values: list[Any] = in_slices(RequestDecoder(), raw, range(1, len(raw)))
            else:
                due = {0x00: ["members"] * 2, 0x0E: ["connect_answer", "members"]}
                expected = due.get(raw[0], ["connect_answer"] if text == "0f" else [])
                values = in_slices(expecting(*expected), raw, range(1, len(raw)))
            odd = probe["case"] in {"msg-multicast-extra-fields", "string-presence-2"}
            if not (odd and name == "req"):  # those are not written as we would
                assert b"".join(map(encode, values)) == raw


def test_bytes_come_in_any_kind_of_buffer() -> None:
    for kind in (bytes, bytearray, memoryview):
        decoder = RequestDecoder()
        assert decoder.feed(kind(PING[:7])) == []
        assert decoder.pending == 7
        assert decoder.feed(kind(PING[7:] + PING)) == [Ping(), Ping()]
        assert decoder.feed(kind(b"")) == []


@pytest.mark.parametrize(
    "value",
    [
        Connect("demo", U, "A" * 500, (IP, U, None) * 300),
        Members(tuple(PingData(U, f"m{n}", (IP, None)) for n in range(300))),
    ],
    ids=["connect", "members"],
)
def test_a_long_structure_in_crumbs_is_read_once(
    value: Connect | Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = encode(value)
    steps = 0
    skip = Cursor.skip

    def counted(cursor: Cursor, size: int) -> int:
        nonlocal steps
        steps += 1
        return skip(cursor, size)

    def decoder() -> RequestDecoder | AnswerDecoder:
        return RequestDecoder() if isinstance(value, Connect) else expecting("members")

    monkeypatch.setattr(Cursor, "skip", counted)
    assert decoder().feed(data) == [value]
    at_once, steps = steps, 0
    assert in_slices(decoder(), data, range(1, len(data))) == [value]
    assert steps < 6 * at_once  # each field again for each of its parts, and no more


# Answers, and what may come before them


@pytest.mark.parametrize(
    "unasked",
    [
        (Message(None, None, b"x"),),
        (Suspect(U),),
        (DisconnectAnswer(ok=True),),
        (Message(None, U, b"x" * 300), Suspect(U), Message(None, None, None)),
    ],
)
@pytest.mark.parametrize(
    "due", [ConnectAnswer(ok=True), ConnectAnswer(ok=False), Members((PingData(U),)), Members()]
)
def test_unasked_structures_may_overtake_an_answer(
    due: ConnectAnswer | Members, unasked: tuple[Answer, ...]
) -> None:
    expected = "connect_answer" if isinstance(due, ConnectAnswer) else "members"
    values = [*unasked, due, *unasked]
    data = b"".join(map(encode, values))
    assert answers(data, expected) == values
    for cut in range(1, len(data), 1 + len(data) // 100):
        assert in_slices(expecting(expected), data, [cut]) == values


def test_a_failed_disconnect_may_overtake_a_list_of_members() -> None:
    values: list[Answer] = [DisconnectAnswer(ok=False), Members()]
    assert answers(b"".join(map(encode, values)), "members") == values


def test_answers_come_in_the_order_of_the_requests() -> None:
    values: list[Answer] = [
        ConnectAnswer(ok=True),
        Members((PingData(U),)),
        ConnectAnswer(ok=False),
        Members(),
    ]
    data = b"".join(map(encode, values))
    due = ["connect_answer", "members"] * 2
    assert answers(data, *due) == values
    with pytest.raises(DecodeError, match="0 is not an answer to a CONNECT"):
        answers(data[1:], "connect_answer")


def test_an_expectation_may_come_while_the_stream_stands_still() -> None:
    decoder = AnswerDecoder()
    message = Message(None, None, b"x")
    assert decoder.feed(encode(message)) == [message]
    decoder.expect_connect_answer()
    assert decoder.feed(b"\x0e") == [ConnectAnswer(ok=True)]
    assert decoder.feed(encode(message)[:5]) == []
    decoder.expect_members()
    assert decoder.feed(encode(message)[5:] + b"\x00\x00") == [message, Members()]
    assert decoder.feed(encode(message) * 3) == [message] * 3


def test_a_long_list_of_members_is_told_from_a_message() -> None:
    limits = FormatLimits(items=3000)
    for count in (2559, 2561):  # 2560 would begin as a MESSAGE does
        decoder = AnswerDecoder(limits)
        decoder.expect_members()
        (members,) = decoder.feed(encode(Members((PingData(U),) * count)))
        assert isinstance(members, Members)
        assert len(members.members) == count
    with pytest.raises(DecodeError) as caught:
        answers(b"\x0a\x01", "members")
    assert caught.value.too_large


def test_without_a_request_every_byte_begins_a_structure() -> None:
    unknown = Unknown(14, b"\x0e" + PING[1:])
    assert answers(encode(unknown)) == [unknown]


# What is refused, and what is not


ODD: dict[str, bytes] = {
    "an unknown class of address": b"\x01\x00\x00\x00\x63",
    "a negative class of address": b"\x01\x00\x00\xff\xff",
    "an IP address of 5 bytes": b"\x01\x00\x04\x05" + bytes(9),
    "an IP address of 0 bytes": b"\x01\x00\x04\x00" + bytes(9),
    "a negative payload": b"\x0a\x00\x01\x00\xff\xff\xff\xff\x01\xff\xff\xff\xff",
    "a negative payload in an address": b"\x01\x00\x00\x00\x53"
    + bytes(17)
    + b"\x01\x80\x00\x00\x00",
    "a group that is no text": b"\x0a\x01\x00\x01\xff\x01\x00\xff\xff\xff\xff\x01\x00\x00\x00\x01x",
    "a name that is no text": b"\x0c\x00\x01\x01\x00\x01\x80",
}
TOO_LARGE: dict[str, bytes] = {
    "a huge payload": b"\x0a\x00\x01\x00\xff\xff\xff\xff\x01\x7f\xff\xff\xff",
    "a huge payload in an address": b"\x01\x00\x00\x00\x53" + bytes(17) + b"\x01\x7f\xff\xff\xff",
    "a long group": b"\x0a\x01\x10\x01",
    "a long list": b"\x01\x00\x01\x00\x7f\xff",
    "a long second list": b"\x01\x00\x01\x00\xff\xff\x08\x01",
    "much additional data": b"\x01\x00\x02" + bytes(16) + b"\x01\x10\x00" + bytes(4096),
}


@pytest.mark.parametrize("bad", (ODD | TOO_LARGE).values(), ids=ODD | TOO_LARGE)
def test_malformed_requests_break_the_decoder_for_good(bad: bytes) -> None:
    decoder = RequestDecoder()
    assert decoder.feed(bad) == []
    assert decoder.error is not None
    assert decoder.error.too_large is (bad in TOO_LARGE.values())
    for _ in range(2):
        with pytest.raises(DecodeError) as again:
            decoder.feed(PING)
        assert again.value is not decoder.error
        assert str(again.value) == str(decoder.error)
    assert decoder.pending == 0
    with pytest.raises(DecodeError) as sliced:
        in_slices(RequestDecoder(), bad, range(1, len(bad)))
    assert str(sliced.value) == str(decoder.error)


@pytest.mark.parametrize("bad", (ODD | TOO_LARGE).values(), ids=ODD | TOO_LARGE)
def test_values_before_malformed_bytes_are_not_lost(bad: bytes) -> None:
    message = Message("demo", None, b"hi")
    good = encode(message) * 2 + PING
    decoder = RequestDecoder()
    assert decoder.feed(PING) == [Ping()]
    assert decoder.feed(good + bad) == [message, message, Ping()]
    error = decoder.error
    assert error is not None
    assert error.offset >= len(PING + good)
    with pytest.raises(DecodeError) as caught:
        decoder.feed(b"")
    assert str(caught.value) == str(error)


def test_the_limit_of_a_structure_counts_all_of_it() -> None:
    data = encode(Connect("demo", U, "A", (IP, IP)))
    assert RequestDecoder(FormatLimits(frame=len(data))).feed(data * 2) != []
    for cuts in (range(0), range(1, len(data))):
        with pytest.raises(DecodeError) as caught:
            in_slices(RequestDecoder(FormatLimits(frame=len(data) - 1)), data, cuts)
        assert caught.value.too_large


def test_never_more_is_held_than_one_structure() -> None:
    limits = FormatLimits(frame=1000)
    decoder = RequestDecoder(limits)
    chance = random.Random(3)
    stream = b"".join(
        encode(Message("demo", None, bytes(chance.randint(1, 900)))) for _ in range(50)
    )
    for at in range(0, len(stream), 333):
        decoder.feed(stream[at : at + 333])
        assert decoder.pending < limits.frame
    assert decoder.pending == 0


@pytest.mark.parametrize("type", [0, 3, 5, 9, 11, 14, 15, 16, 17, 99, 255])
def test_requests_of_unknown_types_are_read_to_their_end(type: int) -> None:
    whole = bytes((type,)) + encode(Connect("demo", U, "A", (IP,)))[1:]
    unknown = Unknown(type, whole)
    assert in_slices(RequestDecoder(), whole + PING, [10]) == [unknown, Ping()]
    assert encode(unknown) == whole


def test_unused_fields_are_read_and_forgotten() -> None:
    fields = (
        b"\x01\x00\x01g" + raw_of("address.uuid") + b"\x01\x00\x01A" + raw_of("addresses.two") * 2
    )
    fields += b"\x01\x00\x00\x00\x03abc"
    expected: dict[int, Request] = {
        1: Connect("g", U, "A", (U, None)),
        2: Disconnect("g", U),
        4: GossipGet("g"),
        10: Message("g", U, b"abc"),
        12: Ping(),
        13: Close(),
    }
    for type, value in expected.items():
        assert RequestDecoder().feed(bytes((type,)) + fields) == [value]


def test_null_has_many_spellings() -> None:
    # presence bytes 2 and 255, flags of an address with the null bit, negative counts
    assert RequestDecoder().feed(bytes.fromhex("04 02 03 ff 8000 fffe 07")) == [GossipGet(None)]


def test_the_bits_of_an_address_are_looked_at_in_order() -> None:
    raw = raw_of("address.uuid")
    for flags in (0x02, 0x06, 0xFE):
        assert answers(SUSPECT + bytes((flags,)) + raw[1:]) == [Suspect(U)]


def test_classes_with_a_short_form_are_read_as_that() -> None:
    uuid, ip = raw_of("address.uuid")[1:], raw_of("address.ipv4")[1:]
    assert answers(SUSPECT + b"\x00\x00\x44" + uuid) == [Suspect(U)]
    assert answers(SUSPECT + b"\x00\x00\x01" + ip) == [Suspect(IP)]
    assert encode(Suspect(U)) == SUSPECT + raw_of("address.uuid")


def test_empty_additional_data_is_not_the_same_as_none() -> None:
    raw = raw_of("address.uuid")[:-1] + b"\x01\x00\x00"
    (suspect,) = answers(SUSPECT + raw)
    assert suspect == Suspect(UuidAddress(U.uuid, "uuid", b"\x01\x00\x00"))
    assert encode(suspect) == SUSPECT + raw


# Views


def view(merged: Iterable[bytes] = ()) -> bytes:
    parts = list(merged)
    head = b"\x01" if parts else b"\x00"
    body = b"\x01" + raw_of("address.uuid") + b"\0\0\0\0\0\0\0\x03\x00\x01\x01\x00\x02{}"
    count = len(parts).to_bytes(2, "big") if parts else b""
    return head + body + count + b"".join(parts)


def nested(depth: int) -> bytes:
    """A view merged from one that is merged from one that is…"""
    head = b"\x01\x00\xff\xff\x00\x00\x00\x01"
    return head * depth + view()


@pytest.mark.parametrize(
    "raw",
    [view(), view([view()]), view([view([view(), view()]), view()]), nested(4_000)],
    ids=["plain", "merged", "merged twice", "deep"],
)
def test_views_are_skipped_whatever_they_hold(raw: bytes) -> None:
    members = Members((PingData(U, "A", None, server=False, view=raw), PingData(U2)))
    data = encode(members)
    assert answers(data + b"\x0e", "members", "connect_answer") == [members, ConnectAnswer(ok=True)]
    assert in_slices(expecting("members"), data, range(1, len(data), 1 + len(data) // 500)) == [
        members
    ]


@pytest.mark.parametrize("raw", [b"\x00", view() + b"\x00", view([view()])[:-1], nested(3)[:-40]])
def test_what_is_no_view_cannot_be_written(raw: bytes) -> None:
    with pytest.raises(LocalError, match="invalid view"):
        encode(Members((PingData(U, view=raw),)))


def test_a_view_with_a_negative_length_is_malformed() -> None:
    raw = b"\x00\x01" + raw_of("address.uuid") + b"\x01\x00\x00\xff\xff\xff\xff"
    with pytest.raises(DecodeError, match="a length of -1"):
        answers(raw, "members")


# What cannot be encoded


class Huge(bytes):
    """As good as two gigabytes and one byte."""

    def __len__(self) -> int:
        return 0x8000_0000


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (Message("g", None, Huge()), "too long"),
        (Suspect(UuidAddress(b"short")), "give 16"),
        (Suspect(MillisAddress(5)), "cannot be written in 2.12"),
        (Suspect(UuidAddress(U.uuid, "site-uuid", b"")), "cannot be written in 2.12"),
        (Suspect(UuidAddress(U.uuid, "uuid", b"\1")), "not valid extra data"),
        (Suspect(UuidAddress(U.uuid, "uuid", b"\0\0")), "not valid extra data"),
        (Suspect(UuidAddress(U.uuid, "payload-uuid")), "not valid extra data"),
        (Suspect(PhysicalAddress("", 1)), "has no host"),
        (Suspect(PhysicalAddress("localhost", 1)), "look the name up first"),
        (Suspect(PhysicalAddress("::1", 70_000)), "port"),
        (Suspect(PhysicalAddress("::1", 1, scope=-1)), "scope"),
        (Suspect(PhysicalAddress("::1", 1, extra=b"x")), "not valid extra data"),
        (GossipGet("g" * 70_000), "at most 65535"),
        (Members((PingData(U),) * 40_000), "at most 32767"),
        (Members((PingData(U, view_id=ViewId(U, 1 << 63)),)), "does not fit in 8 bytes"),
    ],
)
def test_what_cannot_be_encoded_is_a_local_error(value: Request | Answer, complaint: str) -> None:
    with pytest.raises(LocalError, match=complaint):
        encode(value)


def test_only_values_of_this_format_are_encoded() -> None:
    with pytest.raises(LocalError, match="not a value of this format"):
        encode(MessageHead("g", None))  # type: ignore[arg-type]


def test_the_plain_form_of_an_address_of_the_other_generation_is_written() -> None:
    other = UuidAddress(U.uuid, "flags-uuid", b"\0")
    assert answers(encode(Suspect(other.plain()))) == [Suspect(U)]


# Properties

names = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
uuids = st.binary(min_size=16, max_size=16)
strings = names.map(encode_string)
data_of = st.binary(max_size=5).map(lambda raw: b"\x01" + len(raw).to_bytes(2, "big") + raw)
additional = st.just(b"\0") | data_of
buffers = st.just(b"\0") | st.binary(max_size=5).map(
    lambda raw: b"\x01" + len(raw).to_bytes(4, "big") + raw
)
ports = st.integers(0, 65_535)
addresses = st.none() | st.one_of(
    st.builds(UuidAddress, uuids),
    st.builds(UuidAddress, uuids, st.just("uuid"), data_of),
    st.builds(
        UuidAddress, uuids, st.just("payload-uuid"), st.tuples(additional, strings).map(b"".join)
    ),
    st.builds(
        UuidAddress,
        uuids,
        st.just("additional-data-uuid"),
        st.tuples(additional, buffers).map(b"".join),
    ),
    st.builds(
        UuidAddress,
        uuids,
        st.just("topology-uuid"),
        st.tuples(additional, strings, strings, strings).map(b"".join),
    ),
    st.builds(PhysicalAddress, st.ip_addresses(v=4).map(str), ports, extra=st.just(b"") | data_of),
    st.builds(PhysicalAddress, st.ip_addresses(v=6).map(str), ports, st.integers(0, 0xFFFF_FFFF)),
)
lists = st.none() | st.lists(addresses, max_size=3).map(tuple)
messages = st.builds(Message, names, addresses, st.none() | st.binary(max_size=20))
unasked = st.builds(Message, st.none(), addresses, st.none() | st.binary(max_size=20))
requests = st.one_of(
    messages,
    st.builds(Connect, names, addresses, names, lists),
    st.builds(Disconnect, names, addresses),
    st.builds(GossipGet, names),
    st.just(Ping()),
    st.just(Close()),
)
ping_data = st.builds(
    PingData,
    addresses,
    names,
    lists,
    st.booleans(),
    st.none() | st.builds(ViewId, addresses, st.integers(-(1 << 63), (1 << 63) - 1)),
    st.sampled_from([b"", view(), view([view(), view()])]),
)
replies = st.one_of(
    unasked,
    st.builds(Suspect, addresses),
    st.builds(DisconnectAnswer, st.just(True)),
    st.builds(ConnectAnswer, st.booleans()),
    st.builds(Members, st.lists(ping_data, max_size=3).map(tuple)),
)


@given(st.lists(requests, max_size=6), st.data())
def test_requests_come_back_from_their_bytes(sent: list[Request], data: st.DataObject) -> None:
    stream = b"".join(map(encode, sent))
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=5))
    assert in_slices(RequestDecoder(), stream, cuts) == sent


@given(st.lists(replies, max_size=6), st.data())
def test_answers_come_back_from_their_bytes(sent: list[Answer], data: st.DataObject) -> None:
    stream = b"".join(map(encode, sent))
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=5))
    due = {ConnectAnswer: "connect_answer", Members: "members"}
    expected = [due[type(value)] for value in sent if type(value) in due]
    assert in_slices(expecting(*expected), stream, cuts) == sent


# Scanning


def values_of(buffer: bytes | bytearray, runs: list[Run]) -> list[Message]:
    """The messages of runs, each found slowly by the decoder."""
    found: list[Message] = []
    for head, first, last, count in runs:
        inside = RequestDecoder().feed(bytes(buffer[first:last]))
        assert len(inside) == count
        for message in inside:
            assert isinstance(message, Message)
            assert read_head(head) == MessageHead(message.group, message.destination)
            found.append(message)
        on = forwarded(buffer, (head, first, last, count))
        plain = [Message(None, one.destination, one.payload) for one in found[-count:]]
        assert on == b"".join(map(encode, plain))
    return found


def check_scan(buffer: bytes | bytearray, start: int, end: int, known: KnownHeads) -> None:
    """What a scan says of good messages must be what the decoder says of them."""
    runs, rest, need = scan(buffer, start, end, known=known)
    at = start
    for _, first, last, _ in runs:
        assert first == at
        at = last
    assert at == rest
    decoder = RequestDecoder()
    decoded = decoder.feed(bytes(buffer[start:end]))
    scanned = values_of(buffer, runs)
    assert scanned == decoded[: len(scanned)]
    if need:
        assert need > end - rest
        assert decoder.pending == end - rest
        assert scanned == decoded
    elif len(decoded) > len(scanned):
        follows = decoded[len(scanned)]
        assert not (isinstance(follows, Message) and follows.payload)
    for one, other in pairwise(runs):
        assert one[0] != other[0] or len(one[0]) > KnownHeads.LONGEST


heads = st.sampled_from(
    [
        ("demo", U),
        ("demo", U2),
        ("demo", None),
        (None, U),
        ("gos", IP),
        ("x" * 300, U),  # too long a head to be remembered
    ]
)
sizes = st.sampled_from([1, 5, 5, 5, 60])
traffic = st.tuples(heads, sizes).map(lambda drawn: Message(*drawn[0], payload=bytes(drawn[1])))


@given(
    st.lists(traffic | traffic.map(lambda one: (one,) * 6), max_size=12),
    st.lists(requests, max_size=1),
    st.lists(traffic, max_size=2),
    st.integers(0, 30),
    st.booleans(),
)
def test_a_scan_finds_what_the_decoder_finds(
    sent: list[Any], then: list[Request], after: list[Message], cut: int, writable: bool
) -> None:
    flat = [one for each in sent for one in (each if isinstance(each, tuple) else (each,))]
    stream = b"\xff\xff" + b"".join(map(encode, [*flat, *then, *after]))
    end = max(2, len(stream) - cut)
    buffer = bytearray(stream) if writable else stream
    known = KnownHeads()
    check_scan(buffer, 2, end, known)
    check_scan(buffer, 2, end, known)  # now with heads that are known


@pytest.mark.rule("GR-5")
def test_neighbours_for_one_destination_are_one_run() -> None:
    def together(destination: Address | None, payloads: Iterable[int]) -> bytes:
        return b"".join(encode(Message("demo", destination, bytes(size))) for size in payloads)

    first = together(U2, [5] * 10 + [7, 1, 5, 5, 9])
    second = together(None, [3])
    third = together(U2, [5])
    buffer = first + second + third
    one, two, three = len(first), len(first + second), len(buffer)
    assert scan(buffer, 0, len(buffer)) == (
        [
            (encode_head("demo", U2), 0, one, 15),
            (encode_head("demo", None), one, two, 1),
            (encode_head("demo", U2), two, three, 1),
        ],
        three,
        1,
    )


def test_a_scan_says_what_it_needs() -> None:
    message = encode(Message("demo", U, bytes(50)))
    buffer = message + message
    for known in (None, KnownHeads()):
        for end in range(len(message), 2 * len(message)):
            runs, rest, need = scan(buffer, 0, end, known=known)
            assert [run[3] for run in runs] == [1]
            assert rest == len(message)
            assert end - rest < need <= len(message)
            if end - rest >= 39:  # all before the payload is there
                assert need == len(message)


@pytest.mark.parametrize(
    "other",
    [
        PING,
        encode(Connect("demo", U)),
        encode(Message("demo", U, b"")),
        encode(Message("demo", U, None)),
        b"\x0a\x00\x01\x01\x00\x01A\xff\xff\xff\xff\x01\x00\x00\x00\x01x",  # it has a name
        *ODD.values(),
        TOO_LARGE["a huge payload"],
    ],
)
def test_a_scan_leaves_all_else_to_the_decoder(other: bytes) -> None:
    message = Message("demo", U, b"hi")
    buffer = encode(message) + other + encode(message)
    known = KnownHeads()
    for _ in range(2):
        runs, rest, need = scan(buffer, 0, len(buffer), known=known)
        assert values_of(buffer, runs) == [message]
        assert (rest, need) == (len(buffer) - len(other + encode(message)), 0)
    assert scan(buffer, rest, len(buffer), known=known) == ([], rest, 0)


def test_long_heads_are_not_remembered() -> None:
    known = KnownHeads()
    message = encode(Message("x" * 300, U, b"hello"))
    runs, *_ = scan(message * 3, 0, 3 * len(message), known=known)
    assert [count for *_, count in runs] == [1, 1, 1]
    assert known.by_size == {}


def test_a_known_head_does_not_hide_a_message_over_the_limit() -> None:
    good, more = (encode(Message("demo", U, bytes(size))) for size in (100, 101))
    buffer, limits, known = good + more, FormatLimits(frame=len(good)), KnownHeads()
    assert scan(buffer, 0, len(buffer), known=known, limits=limits)[1:] == (len(good), 0)
    decoder = RequestDecoder(limits)
    assert len(decoder.feed(buffer)) == 1
    assert decoder.error is not None
    assert decoder.error.too_large


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\x0b" + encode_head("demo", U)[1:],
        encode_head("demo", U)[:-1],
        encode_head("demo", U) + b"\0",
        encode_head("demo", U)[:-1] + b"\0",
        encode_head("x" * 300, U) + b"\0",
    ],
)
@pytest.mark.parametrize("read", [read_head, forward_head])
def test_what_is_no_head_is_refused(read: Callable[[bytes], object], head: bytes) -> None:
    with pytest.raises(DecodeError):
        read(head)


def test_forwarding_drops_the_group_and_nothing_else() -> None:
    for destination in (None, U, IP, address_of(ENCODINGS["address.topology-uuid"]["decoded"])):
        for group in ("demo", "x" * 300, None):
            assert forward_head(encode_head(group, destination)) == encode_head(None, destination)


@pytest.mark.rule("GR-5")
@pytest.mark.parametrize("kind", ["discovery_req", "discovery_rsp", "mcast", "ucast"])
def test_forwarded_as_the_real_router_does_it(kind: str) -> None:
    raw = {entry["id"]: bytes.fromhex(entry["hex"]) for entry in VECTORS["frames"]}
    request = raw[f"tunnel.{kind}"]
    (run,) = scan(request, 0, len(request))[0]
    assert forwarded(request, run) == raw[f"tunnel.{kind}_fwd"]


def test_nothing_is_kept_in_the_module_for_long_heads() -> None:
    jgroups2._read_short_head.cache_clear()
    assert read_head(encode_head("x" * 300, U)).group == "x" * 300
    assert jgroups2._read_short_head.cache_info().currsize == 0
    assert read_head(encode_head("x", U)).group == "x"
    assert jgroups2._read_short_head.cache_info().currsize == 1


# Fuzzing: whatever comes, there are values or a DecodeError, and nothing else.

TIGHT = FormatLimits(frame=5000, string=300, items=50)


def outcome(
    decoder: RequestDecoder | AnswerDecoder, data: bytes, cuts: Iterable[int]
) -> tuple[list[Any], str]:
    values, start = list[Any](), 0
    for cut in (*sorted(cuts), len(data)):
        try:
            values += decoder.feed(data[start:cut])
        except DecodeError:
            break
        assert decoder.pending <= 5000
        start = cut
    return values, str(decoder.error)


def check_requests(data: bytes, cuts: Iterable[int]) -> None:
    decoded, error = outcome(RequestDecoder(TIGHT), data, [])
    assert outcome(RequestDecoder(TIGHT), data, cuts) == (decoded, error)  # slices change nothing
    for value in decoded:
        assert RequestDecoder().feed(encode(value)) == [value]
    runs, rest, need = scan(data, 0, len(data), limits=TIGHT)
    scanned = sum(count for *_, count in runs)
    assert all(isinstance(value, Message) for value in decoded[:scanned])
    assert need == 0 or need > len(data) - rest


def check_answers(data: bytes, cuts: Iterable[int], expected: Iterable[str]) -> None:
    due = list(expected)

    def decoder() -> AnswerDecoder:
        made = AnswerDecoder(TIGHT)
        for one in due:
            getattr(made, f"expect_{one}")()
        return made

    decoded, error = outcome(decoder(), data, [])
    assert outcome(decoder(), data, cuts) == (decoded, error)
    for value in decoded:
        encode(value)


def mutated(chance: random.Random, data: bytes, others: list[bytes]) -> bytes:
    raw = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randint(0, len(raw))
        match chance.choice(["flip", "set", "cut", "insert", "double", "splice"]):
            case "flip" if at < len(raw):
                raw[at] ^= 1 << chance.randint(0, 7)
            case "set" if at < len(raw):
                raw[at] = chance.choice([0, 1, 2, 4, 10, 11, 14, 127, 128, 255])
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


SOURCES = [
    *(bytes.fromhex(entry["hex"]) for entry in VECTORS["frames"]),
    *(
        bytes.fromhex(text)
        for probe in VECTORS["probes"]
        for step in probe["steps"].values()
        for text in probe_texts(step)
        if text not in {"", "open", "EOF"}
    ),
    b"\x00\x01" + raw_of("pingdata.view"),
    encode(Members((PingData(U, view=view([view([view()]), view()])),) * 3)),
    *CORPUS.values(),
]
WAITING = st.lists(st.sampled_from(["connect_answer", "members"]), max_size=3)


@pytest.mark.parametrize("name", CORPUS)
def test_corpus(name: str) -> None:
    data = CORPUS[name]
    for cuts in (range(0), range(1, len(data))):
        check_requests(data, cuts)
        for expected in ([], ["members"], ["connect_answer"], ["members", "connect_answer"]):
            check_answers(data, cuts, expected)


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=4), WAITING)
def test_any_bytes(data: bytes, cuts: list[int], expected: list[str]) -> None:
    check_requests(data, cuts)
    check_answers(data, cuts, expected)


@given(st.integers(0, 1 << 32), WAITING)
def test_mutations(seed: int, expected: list[str]) -> None:
    chance = random.Random(seed)
    data = mutated(chance, chance.choice(SOURCES), SOURCES)[:6000]
    cuts = [chance.randint(0, len(data)) for _ in range(chance.randint(0, 4))]
    check_requests(data, cuts)
    check_answers(data, cuts, expected)


# What costs time and memory, and misuse.


def short(number: int) -> bytes:
    return number.to_bytes(2, "big", signed=True)


def test_members_times_physical_addresses_stays_small() -> None:
    member = b"\1\0\0\1\0" + short(2000) + b"\1" * 2000
    tracemalloc.start()
    try:
        decoder = AnswerDecoder()
        decoder.expect_members()
        assert decoder.feed(short(2000) + member * 500) == []
        assert decoder.error is not None
        assert decoder.error.too_large
        assert tracemalloc.get_traced_memory()[1] < 6 << 20
    finally:
        tracemalloc.stop()


def test_a_large_group_with_an_address_for_each_member_is_read() -> None:
    members = Members((PingData(U, "name", (IP,)),) * 2000)
    decoder = AnswerDecoder()
    for _ in range(2):  # each answer has a budget of its own
        decoder.expect_members()
        assert decoder.feed(encode(members)) == [members]


@pytest.mark.parametrize("decoder", [RequestDecoder(), AnswerDecoder()], ids=["request", "answer"])
@pytest.mark.parametrize("name", [None, "name"], ids=["usual", "unusual"])
def test_what_was_returned_is_not_kept(
    decoder: RequestDecoder | AnswerDecoder, name: str | None
) -> None:
    payload = bytes(8 << 20)
    end = short(-1) * 2 + b"\1" + len(payload).to_bytes(4, "big")
    data = b"\x0a\0\1" + encode_string(name) + end + payload
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for at in range(0, len(data), 1 << 20):
            values = decoder.feed(data[at : at + (1 << 20)])
        assert values == [Message(None, None, payload)]
        del values
        assert tracemalloc.get_traced_memory()[0] - before < 1 << 20
    finally:
        tracemalloc.stop()


def test_what_came_before_an_error_is_not_kept() -> None:
    data = encode(Message("demo", None, bytes(8 << 20))) + b"\x0a\0\0\x7f\xff"
    tracemalloc.start()
    try:
        decoder = RequestDecoder()
        before = tracemalloc.get_traced_memory()[0]
        assert len(decoder.feed(data)) == 1
        with pytest.raises(DecodeError):
            decoder.feed(b"")
        assert decoder.error is not None
        assert decoder.error.__traceback__ is None
        assert tracemalloc.get_traced_memory()[0] - before < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("number", "front"),
    [(82, b"\0\1"), (84, b"\0\1"), (84, b"\0\0\1"), (84, b"\0\0\0\1")],
    ids=["payload", "site", "rack", "machine"],
)
@pytest.mark.parametrize("text", [b"\xff", b"\0", b"\xc3", b"\xed\xa0\x80"])
def test_texts_in_addresses_are_read_before_they_go_to_others(
    number: int, front: bytes, text: bytes
) -> None:
    extra = front + short(len(text)) + text + b"\0" * (4 - len(front) if number == 84 else 0)
    raw = b"\x0a\0\0" + short(number) + U.uuid[8:] + U.uuid[:8] + extra + PING[3:]
    decoder = RequestDecoder()
    assert decoder.feed(raw) == []
    with pytest.raises(DecodeError, match="not modified UTF-8"):
        decoder.feed(b"")
    with pytest.raises(LocalError, match="not valid extra data"):
        encode(Message(None, UuidAddress(U.uuid, KINDS[number], extra), b""))


@pytest.mark.parametrize(
    ("number", "front"),
    [
        (68, b"\1\x10\x01"),
        (82, b"\0\1\x10\x01"),
        (83, b"\0\1\0\0\x10\x01"),
        (83, b"\0\1\0\xff\xff\xff"),
        (84, b"\0\1\x10\x01"),
    ],
)
def test_too_much_extra_data_is_refused_before_it_is_there(number: int, front: bytes) -> None:
    decoder = RequestDecoder()
    assert decoder.feed(b"\x0a\0\0" + short(number) + U.uuid + front) == []
    with pytest.raises(DecodeError, match="over the limit of 4096") as caught:
        decoder.feed(b"")
    assert caught.value.too_large


@pytest.mark.parametrize(
    ("type", "raw"),
    [(14, PING), (12, PING + b"\0"), (12, PING[:-1]), (12, b""), (12, b"\x0c\0\x40\0\0")],
)
def test_an_unknown_structure_is_whole_and_of_its_type(type: int, raw: bytes) -> None:
    assert encode(Unknown(12, PING)) == PING
    with pytest.raises(LocalError, match=r"is not a structure of type", check=breaks("GR-11")):
        encode(Unknown(type, raw))


WRONG: list[Any] = [
    Message("g", None, "text"),  # type: ignore[arg-type]
    Message("g", None, 1),  # type: ignore[arg-type]
    Message(1, None, b""),  # type: ignore[arg-type]
    Message("g", "address", b""),  # type: ignore[arg-type]
    Message("g", [], b""),  # type: ignore[arg-type]
    Members((PingData(None, server=300),)),  # type: ignore[arg-type]
    Members(1),  # type: ignore[arg-type]
    ConnectAnswer(ok=5),  # type: ignore[arg-type]
    Unknown(12, None),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_fields_of_a_wrong_type_are_the_fault_of_the_caller(value: Answer) -> None:
    with pytest.raises(LocalError, match=r"cannot be encoded", check=breaks("GR-11")):
        encode(value)


def test_a_decoder_that_is_given_what_it_needs_reads_nothing_ahead() -> None:
    one = encode(Connect("demo", UuidAddress(bytes(16)), "A", (PhysicalAddress("127.0.0.1", 1),)))
    stream = one + encode(Message("demo", None, b"hello"))
    decoder, position = RequestDecoder(), 0
    found: list[Request] = []
    while not found:
        stop = position + decoder.needed
        found = decoder.feed(stream[position:stop])
        position = stop
    assert (position, len(found), decoder.pending) == (len(one), 1, 0)


def test_the_size_of_each_message_that_is_passed_on() -> None:
    sizes = (1, 300, 7)
    buffer = b"".join(encode(Message("demo", None, bytes(size))) for size in sizes)
    passed_on = forwarded(buffer, scan(buffer, 0, len(buffer))[0][0])
    position = 0
    for size in sizes:
        assert size_at(passed_on, position) == len(encode(Message(None, None, bytes(size))))
        position += size_at(passed_on, position)
    assert position == len(passed_on)


@pytest.mark.rule("FL-2")
def test_limits_can_be_raised_between_two_structures() -> None:
    message = Message("demo", None, bytes(500))
    decoder = RequestDecoder(FormatLimits(frame=100))
    assert decoder.feed(encode(Ping())) == [Ping()]
    decoder.change_limits(FormatLimits(frame=1000))
    assert decoder.feed(encode(message)) == [message]
