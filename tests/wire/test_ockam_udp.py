"""Datagrams of whole messages: what they hold, and what is kept of them."""

from __future__ import annotations

import pytest

from waystation.core.address import Route
from waystation.core.message import Message
from waystation.errors import DecodeError, LocalError
from waystation.wire.ockam import CHUNK_SIZE, HEARTBEAT, Reassembly
from waystation.wire.ockam_udp import (
    GOODBYE,
    PeerReassembly,
    control_datagrams,
    departing_datagrams,
)

MESSAGE = Message(Route.parse("link => echo"), Route.parse("app"), bytes(2000), id="4bf9" * 8)


@pytest.mark.rule("WK-10")
def test_a_message_leaves_without_its_first_address_and_comes_together_again() -> None:
    reassembly = Reassembly()
    found = [reassembly.feed(datagram) for datagram in departing_datagrams(MESSAGE, 65535)]
    assert found[:-1] == [None] * 4
    assert found[-1] == MESSAGE.departed()


@pytest.mark.parametrize("payload", [b"", b"hello", GOODBYE, bytes(3 * CHUNK_SIZE)])
def test_a_payload_for_the_session_comes_together_again(payload: bytes) -> None:
    reassembly = PeerReassembly()
    found = [reassembly.feed(datagram) for datagram in control_datagrams(payload, 0)]
    assert found[-1] == Message(Route(), Route(), payload)
    assert (found[-1] is HEARTBEAT) == (not payload)
    assert reassembly.held == 0


def test_what_is_too_large_or_has_nowhere_to_go_is_refused() -> None:
    with pytest.raises(LocalError) as large:
        departing_datagrams(MESSAGE, 0, limit=1000)
    with pytest.raises(LocalError) as nowhere:
        departing_datagrams(Message(Route.parse("link"), Route(), b""), 0)
    assert (large.value.rule, nowhere.value.rule) == ("OB-2", "AD-6")


def test_what_is_held_is_told_and_can_be_let_go() -> None:
    first, second, *_, last = departing_datagrams(MESSAGE, 7)
    reassembly = PeerReassembly()
    assert reassembly.feed(first) is None
    assert reassembly.held == CHUNK_SIZE
    reassembly.forget()
    assert reassembly.held == 0
    assert reassembly.feed(second) is None  # its message is gone
    assert reassembly.feed(last) is None
    assert reassembly.held == 0
    assert reassembly.feed(control_datagrams(b"", 8)[0]) is HEARTBEAT


def test_late_datagrams_are_told_from_those_that_are_awaited() -> None:
    first, second, *rest = departing_datagrams(MESSAGE, 7)
    reassembly = PeerReassembly()
    told = []
    for datagram in (first, second, *rest, first, *control_datagrams(b"", 6)):
        reassembly.feed(datagram)
        told.append(reassembly.passed_over)
    assert told == [False] * 5 + [True, True]


def test_a_datagram_that_is_none_leaves_what_is_held_alone() -> None:
    first, *rest = departing_datagrams(MESSAGE, 7)
    reassembly = PeerReassembly()
    reassembly.feed(first)
    with pytest.raises(DecodeError):
        reassembly.feed(b"\x85\x01")
    assert [reassembly.feed(datagram) for datagram in rest][-1] == MESSAGE.departed()


def test_a_message_that_grows_too_large_is_refused_and_the_next_one_is_read() -> None:
    reassembly = PeerReassembly(limit=1000)
    first, second, third, *_ = departing_datagrams(MESSAGE, 7)
    reassembly.feed(first)
    reassembly.feed(second)
    with pytest.raises(DecodeError) as wrong:
        reassembly.feed(third)
    assert wrong.value.too_large
    assert reassembly.held == 0
    assert reassembly.feed(control_datagrams(b"", 8)[0]) is HEARTBEAT
