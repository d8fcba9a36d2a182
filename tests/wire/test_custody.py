"""Offers of durable messages and the answers to them, as bytes (DU-2)."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.core.address import Address, Route
from waystation.core.custody import Letter, Pair
from waystation.core.expiry import LAST_INSTANT, NEVER, Expiry
from waystation.core.message import Message
from waystation.core.outcome import Reason
from waystation.errors import DecodeError
from waystation.wire import custody
from waystation.wire.custody import Answer, Deposit, Keep, Take, Unkeep

PAIR = Pair("store", "hub", "truck")
ID = "4bf9" * 8


def offered(*letters: Letter, expiry: Expiry = 10_000, lowest: int = 1) -> Take:
    payload = custody.take("t1", PAIR, lowest, letters, expiry, {1: "tcp"}.get)
    told = custody.read(payload)
    assert isinstance(told, Take)
    return told


def letter(number: int = 1, expiry: Expiry = 15_000, route: str = "truck") -> Letter:
    message = Message(Route.parse(route), Route.parse("request-1"), b"hello", ID, expiry, "trace")
    return Letter(number, message, 3_000_000)


@given(st.binary())
def test_any_bytes_are_read_or_ignored(payload: bytes) -> None:
    told = custody.read(payload)
    assert told is None or isinstance(told, Take | Answer | Keep | Unkeep)


def test_a_letter_arrives_with_its_instants_on_the_clock_there() -> None:
    # The clock there is 2 s ahead, and the session has translated the expiry of what carries it.
    (got,) = custody.letters_of(offered(letter()), 12_000, Route.parse("tcp-1"), {})
    assert got.message.expiry == 17_000
    assert got.queued_at == 5_000_000
    assert str(got.message.return_route) == "0#tcp-1 => 0#request-1"
    assert (got.number, got.message.payload, got.message.id) == (1, b"hello", ID)
    assert got.message.trace_context == "trace"


@pytest.mark.parametrize(("expiry", "there"), [(NEVER, NEVER), (LAST_INSTANT, NEVER), (500, 2_500)])
def test_expiries_stay_within_their_range(expiry: Expiry, there: Expiry) -> None:
    (got,) = custody.letters_of(offered(letter(expiry=expiry)), 12_000, Route(), {})
    assert got.message.expiry == there


def test_what_expired_long_ago_on_another_clock_is_still_expired() -> None:
    (got,) = custody.letters_of(offered(letter(expiry=0)), 1_000, Route(), {})
    assert (got.message.expiry, got.queued_at) == (0, 0)


def test_address_types_are_told_by_name() -> None:
    there = custody.letters_of(
        offered(letter(route="1#host:1 => 77#x => truck")), 0, Route(), {"tcp": 9}
    )
    assert there[0].message.onward_route.addresses == (
        Address(9, b"host:1"),
        Address(77, b"x"),
        Address(0, b"truck"),
    )


def changed(**fields: object) -> Take:
    told = offered(letter())
    return msgspec.structs.replace(
        told, letters=[msgspec.structs.replace(told.letters[0], **fields)]
    )


@pytest.mark.parametrize(
    "bad",
    [
        {"id": "no id"},
        {"onward": []},
        {"onward": [("quic", b"x")]},
        {"onward": [("9999999999", b"x")]},
        {"onward": [("256", b"x")]},
        {"back": [("", b"x")] * 300},
    ],
)
def test_an_invalid_letter_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(DecodeError):
        custody.letters_of(changed(**bad), 0, Route(), {})


LETTERS = offered(letter()).letters


@pytest.mark.parametrize(
    "bad",
    [
        Take("t", PAIR, 1, []),
        Take("t", PAIR, 2, LETTERS),
        Take("t", PAIR, 0, LETTERS),
        Take("t", PAIR, 1, LETTERS * 2),
        Take("t" * 2_000, PAIR, 1, LETTERS),
        Take("t", PAIR, 1, [msgspec.structs.replace(LETTERS[0], number=2**63)]),
        Answer("t", "n" * 2_000),
        Deposit("t", []),
        Deposit("t" * 2_000, LETTERS),
        Deposit("t", LETTERS * 2),
    ],
)
def test_what_breaks_the_limits_is_ignored(bad: Take | Answer | Deposit) -> None:
    assert custody.read(custody.encode(bad)) is None


def test_a_deposit_tells_letters_as_an_offer_does() -> None:
    given = custody.read(custody.deposit("t1", [letter(1), letter(2)], 10_000, {1: "tcp"}.get))
    assert isinstance(given, Deposit)
    assert given.letters == offered(letter(1), letter(2)).letters
    back = Route.parse("tcp-1")
    (first, _) = custody.letters_of(given, 10_000, back, {"tcp": 1})
    assert (first.number, first.message.payload, first.message.expiry) == (1, b"hello", 15_000)


def test_an_answer_tells_what_was_refused() -> None:
    answer = Answer("t", "hub", [1], [(2, Reason.QUEUE_FULL)])
    assert custody.read(custody.encode(answer)) == answer


def test_a_store_keeps_a_letter_as_it_is() -> None:
    kept = letter(7, route="1#host:1 => truck")
    assert custody.letter_of(custody.body(kept, {1: "tcp"}.get), {"tcp": 1}) == kept


@pytest.mark.parametrize("types", [{}, {"tcp": 300}])
def test_a_letter_whose_transport_is_gone_cannot_be_read(types: dict[str, int]) -> None:
    body = custody.body(letter(route="1#host:1 => truck"), {1: "tcp"}.get)
    with pytest.raises(DecodeError):
        custody.letter_of(body, types)


def test_what_is_no_letter_cannot_be_read() -> None:
    with pytest.raises(DecodeError):
        custody.letter_of(b"no letter", {})


@pytest.mark.rule("DU-8")
@pytest.mark.parametrize("told", [Keep([("a/b", "s", 60)]), Unkeep([("a/b", "s")])])
def test_durable_subscriptions_are_told_of(told: Keep | Unkeep) -> None:
    assert custody.read(custody.encode(told)) == told


def test_a_subscription_is_not_kept_for_ever() -> None:
    assert custody.read(custody.encode(Keep([("a/b", "s", 10**12)]))) is None
