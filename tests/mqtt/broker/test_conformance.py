"""What the broker answers to what it does not do, and to what the standard forbids, byte by byte.

Each case is a row of docs/reference/mqtt-broker.md, in this order. The bytes were written from the
text of MQTT 5.0, without a library.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.mqtt.broker.test_broker import reach, serving
from waystation.testing import DEADLINE, async_test

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "mqtt-broker.md"


def text(value: str) -> bytes:
    return len(value.encode()).to_bytes(2, "big") + value.encode()


def packet(first: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    assert len(body) < 128
    return bytes((first, len(body))) + body


def connect(flags: int = 0x02, *payload: bytes, properties: bytes = b"") -> bytes:
    """CONNECT: protocol, flags, keep alive, properties, and a payload that begins with an id."""
    head = (text("MQTT"), bytes((5, flags)), b"\0\x3c")
    return packet(0x10, *head, bytes((len(properties),)), properties, *(payload or (text(""),)))


def publish(flags: int, topic: str, *rest: bytes, properties: bytes = b"") -> bytes:
    number = b"\0\7" if flags & 0x06 else b""
    head = (text(topic), number, bytes((len(properties),)), properties)
    return packet(0x30 | flags, *head, *rest)


def subscribe(filter: str, options: int, properties: bytes = b"") -> bytes:
    head = (b"\0\7", bytes((len(properties),)), properties)
    return packet(0x82, *head, text(filter), bytes((options,)))


CLOSED = b""
WILL = (text(""), b"\0")  # the client's id, and no properties of the will

AT_CONNECT: dict[str, tuple[bytes, bytes]] = {
    "a will with QoS 2": (connect(0x16, *WILL, text("a"), text("")), b"\x9b"),
    "extended authentication": (connect(properties=b"\x15" + text("SCRAM")), b"\x8c"),
    "a session that continues, without a client id": (connect(0x00), b"\x85"),
    "a will for a topic with a wildcard": (connect(0x0E, *WILL, text("a/#"), text("")), b"\x90"),
    "MQTT 3.1 and 3.1.1": (b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00", b"\x01"),
    "a reserved bit among the connect flags": (connect(0x03), CLOSED),
    "another packet than CONNECT": (b"\xc0\x00", CLOSED),
}

DISCONNECTED: dict[str, tuple[bytes, int]] = {
    "PUBLISH with QoS 2": (publish(0x04, "a"), 0x9B),
    "PUBLISH with QoS 3": (publish(0x06, "a"), 0x81),
    "PUBLISH to a topic with a wildcard": (publish(0x00, "a/+"), 0x90),
    "PUBLISH without topic and alias": (publish(0x00, ""), 0x82),
    "PUBLISH with the alias 0": (publish(0x00, "a", properties=b"\x23\0\0"), 0x94),
    "PUBLISH with an alias over the maximum": (
        publish(0x00, "a", properties=b"\x23\xff\xff"),
        0x94,
    ),
    "PUBREC, PUBREL, PUBCOMP (of QoS 2)": (b"\x50\x02\0\1", 0x82),
    "AUTH": (b"\xf0\x02\x18\x00", 0x82),
    "a second CONNECT": (connect(), 0x82),
    "SUBSCRIBE to a share, with No Local": (subscribe("$share/g/a", 0x05), 0x82),
    "SUBSCRIBE with reserved option bits": (subscribe("a", 0xC1), 0x81),
    "UNSUBSCRIBE without filters": (packet(0xA2, b"\0\7\0"), 0x82),
    "SUBSCRIBE without filters": (packet(0x82, b"\0\7\0"), 0x82),
    "SUBSCRIBE with the identifier 0": (subscribe("a", 1, b"\x0b\0"), 0x82),
    "DISCONNECT with an expiry for a session without one": (
        packet(0xE0, b"\0\5\x11\0\0\0\1"),
        0x82,
    ),
}

ANSWERED: dict[str, tuple[bytes, bytes]] = {
    "SUBSCRIBE with QoS 2": (subscribe("a", 2), b"\x90\x04\0\7\0\x01"),
    "SUBSCRIBE to an invalid filter": (subscribe("a+", 1), b"\x90\x04\0\7\0\x8f"),
    "SUBSCRIBE to an invalid share": (subscribe("$share/+/a", 1), b"\x90\x04\0\7\0\x8f"),
    "SUBSCRIBE to a share": (subscribe("$share/g/a", 1), b"\x90\x04\0\7\0\x01"),
    "UNSUBSCRIBE from what was not subscribed": (
        packet(0xA2, b"\0\7\0", text("b")),
        b"\xb0\x04\0\7\0\x11",
    ),
    "PUBLISH with QoS 1 that nobody subscribed to": (publish(0x02, "a"), b"\x40\x03\0\7\x10"),
}


@pytest.mark.parametrize("case", AT_CONNECT)
@async_test
async def test_who_cannot_be_served_is_told_at_connect(case: str) -> None:
    said, code = AT_CONNECT[case]
    async with serving() as broker, reach(broker) as peer:
        peer.say(said)
        answer = await peer.rest()
        assert answer[:1] == (b"\x20" if code else b"")
        assert answer[3:4] == code


@pytest.mark.parametrize("case", DISCONNECTED)
@async_test
async def test_what_is_not_supported_or_forbidden_ends_the_connection(case: str) -> None:
    said, code = DISCONNECTED[case]
    async with serving() as broker, reach(broker) as peer:
        await peer.ask(connect())
        peer.say(said)
        answer = await peer.rest()
        assert answer[:1] == b"\xe0"
        assert answer[2] == code


@pytest.mark.parametrize("case", ANSWERED)
@async_test
async def test_what_is_answered_with_a_reason(case: str) -> None:
    said, expected = ANSWERED[case]
    async with serving() as broker, reach(broker) as peer:
        await peer.ask(connect())
        peer.say(said)
        async with asyncio.timeout(DEADLINE):
            assert await peer._reader.readexactly(len(expected)) == expected


def test_the_page_lists_the_cases_with_their_codes() -> None:
    rows = re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    listed = {what: (re.findall(r"0x[0-9A-F]{2}", answer) or [""])[-1] for what, answer in rows}
    codes = {case: code for case, (_, code) in DISCONNECTED.items()}
    codes |= {case: answer[-1] for case, (_, answer) in ANSWERED.items()}
    codes |= {case: code[0] for case, (_, code) in AT_CONNECT.items() if code}
    for case, code in codes.items():
        assert listed[case] == f"0x{code:02X}", case
    assert {case for case, (_, code) in AT_CONNECT.items() if not code} <= set(listed)
