"""What members of JGroups 5 say to each other, byte by byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rule_errors import breaks
from waystation.errors import LocalError
from waystation.wire.jgroups import UuidAddress
from waystation.wire.jgroups5 import address_bytes
from waystation.wire.jgroups5_members import (
    PLAIN,
    MemberMessage,
    Numbered,
    encode_plain,
    read_messages,
)

A, B = UuidAddress(bytes(15) + b"\1"), UuidAddress(bytes(15) + b"\2")
NEW, OLD = (5, 5, 7), (5, 2, 0)
VERSION = bytes.fromhex("2947")
TRANSPORT = bytes.fromhex("0039 003c 0004") + b"demo" + b"\0"


def message(*headers: bytes, kind: int = 0, payload: bytes = b"\0\0\0\2hi") -> bytes:
    """A message from A to B."""
    return b"".join(
        (
            kind.to_bytes(2, "big"),
            b"\3\0\0",
            address_bytes(B),
            address_bytes(A),
            len(headers).to_bytes(2, "big"),
            *headers,
            payload,
        )
    )


def single(*headers: bytes, kind: int = 0, payload: bytes = b"\0\0\0\2hi") -> bytes:
    return VERSION + b"\0" + message(*headers, kind=kind, payload=payload)


def listed(*messages: bytes) -> bytes:
    """Messages from A to all, which do not say so themselves."""
    count = len(messages).to_bytes(4, "big")
    cluster = b"\0\4demo"
    head = VERSION + b"\3" + address_bytes(None) + address_bytes(A) + cluster + count
    return head + b"".join(messages)


def numbered(header: str) -> Numbered | None:
    """What is read of a message with this header and that of the transport."""
    (found,) = read_messages(single(b"\0\x29" + bytes.fromhex(header), TRANSPORT))
    assert (found.destination, found.sender, found.payload) == (B, A, b"hi")
    assert not found.is_plain
    return found.numbered


@pytest.mark.rule("GR-11")
@pytest.mark.parametrize("release", [NEW, OLD, (5, 3, 8), (5, 3, 7)])
@pytest.mark.parametrize("to", [None, B])
def test_plain_bytes_come_back_as_they_were_sent(
    release: tuple[int, int, int], to: UuidAddress | None
) -> None:
    data = encode_plain(b"hello", A, to, "demo", release)
    (found,) = read_messages(data)
    size = len(data) - 3
    assert found == MemberMessage(to, A, PLAIN, size, None, b"hello", is_plain=True)
    assert data[2] == (2 if to is None else 0)


def test_the_name_of_a_cluster_has_an_end() -> None:
    encode_plain(b"", A, None, "x" * 0x7FFF, NEW)
    with pytest.raises(LocalError, match="32768 bytes", check=breaks("GR-11")):
        encode_plain(b"", A, None, "x" * 0x8000, NEW)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("004e 01 01 11", Numbered("NAKACK2", "message", 17)),
        ("004e 01 00", Numbered("NAKACK2", "message", 0)),
        ("004e 03 02 0201", Numbered("NAKACK2", "retransmission", 0x0102)),
        ("004e 04 08 ffffffffffffffff", Numbered("NAKACK2", "highest-number", -1)),
        ("004e 02 01", Numbered("NAKACK2", "retransmit-request")),
        ("0052 00 01 11 0007 01", Numbered("UNICAST3", "message", 17, 7)),
        ("0052 01 01 11 0007 0105", Numbered("UNICAST3", "acknowledgement", 17, 7)),
        ("0052 02 0105", Numbered("UNICAST3", "first-number-request")),
        ("0052 03", Numbered("UNICAST3", "retransmit-request")),
        ("0052 04 0007", Numbered("UNICAST3", "close", None, 7)),
        ("0034 0101 00 0102 00 0000", None),
        ("005b 0101 00 0102 0164 00 00", None),
    ],
)
def test_a_message_tells_its_number(header: str, expected: Numbered | None) -> None:
    assert numbered(header) == expected


def test_which_events_name_a_message() -> None:
    assert Numbered("NAKACK2", "message", 1).is_message
    assert Numbered("NAKACK2", "retransmission", 1).is_message
    assert not Numbered("UNICAST3", "acknowledgement", 1).is_message
    assert str(Numbered("UNICAST3", "close")) == "UNICAST3/close"


def test_the_messages_of_a_list_have_its_addresses() -> None:
    inner = b"\0\0\0\0\0\0\1\0\x29\0\x4e\1\1"
    one, two = inner + b"\5\0\0\0\1x", inner + b"\6\xff\xff\xff\xff"
    found = read_messages(listed(one, two))
    assert [(m.destination, m.sender, m.payload) for m in found] == [
        (None, A, b"x"),
        (None, A, b""),
    ]
    assert [m.numbered and m.numbered.number for m in found] == [5, 6]
    assert [m.size for m in found] == [len(one), len(two)]


def test_a_cluster_without_a_name_and_a_transport_with_an_index() -> None:
    headers = bytes.fromhex("0039 003c ffff 01 00000003")
    (found,) = read_messages(single(headers))
    assert found.payload == b"hi"


@pytest.mark.parametrize(
    ("data", "payload"),
    [
        (single(b"\0\x29\0\x63\1\1", TRANSPORT), None),  # a header that is not known
        (single(b"\0\x29\0\x4e\\9", TRANSPORT), None),  # an event that is not known
        (single(b"\0\x30\0\x52\\9", TRANSPORT), None),
        (single(b"\0\x29\0\x4e\1\\9", TRANSPORT), None),  # a number that is too long
        (single(TRANSPORT, kind=3), None),  # an object
        (single(TRANSPORT, kind=2, payload=b""), b""),  # an empty message
        (single(TRANSPORT)[:-1], None),  # cut off
    ],
)
def test_reading_ends_where_nothing_more_is_known(data: bytes, payload: bytes | None) -> None:
    (found,) = read_messages(data)
    assert (found.destination, found.sender, found.payload) == (B, A, payload)
    assert found.numbered is None


@pytest.mark.parametrize("data", [b"", b"\x29", b"no member of 5.x", b"\x21\x00\0", b"\x29\x47"])
def test_what_is_no_message_of_5_is_none(data: bytes) -> None:
    assert read_messages(data) == []


@given(st.binary(max_size=80))
def test_no_bytes_break_it(data: bytes) -> None:
    for found in read_messages(VERSION + data):
        assert found.size <= len(data)
