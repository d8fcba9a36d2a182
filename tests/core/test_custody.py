"""Numbers, repetitions and order of durable messages, without disk and network (DU-3, DU-4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.core.address import Route
from waystation.core.custody import (
    GRACE,
    STRETCHES,
    WINDOW,
    CustodyArrival,
    Handled,
    Lane,
    Letter,
    Numbers,
    Pair,
    pause_after,
)
from waystation.core.message import Message
from waystation.core.outcome import Reason

PAIR = Pair("store", "hub", "truck")


def letter(number: int, payload: bytes = b"", route: str = "truck") -> Letter:
    return Letter(number, Message(Route.parse(route), Route(), payload), 0)


def numbers_of(letters: object) -> list[int]:
    return [one.number for one in letters]  # type: ignore[attr-defined]


def test_what_is_sent_again_to_a_subscriber_is_one_pair_whatever_was_published() -> None:
    copies = [Pair("store", "hub", topic).of_copy("subscriber-1") for topic in ("a", "b")]
    assert copies[0] != copies[1]
    [again] = {pair.of_retries() for pair in copies}
    assert again not in copies
    assert again != Pair("store", "hub", "subscriber-1")  # what is sent to it alone
    assert again.participant == "subscriber-1"
    assert again.of_retries() == again


def test_what_was_sent_to_one_receiver_is_sent_again_under_its_own_pair() -> None:
    assert PAIR.of_retries() == PAIR


@pytest.mark.rule("DU-7")
def test_pauses_double_up_to_a_minute() -> None:
    assert [pause_after(n) for n in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]


@given(st.lists(st.integers(0, 10**9), max_size=200), st.integers(0, 2 * 10**9))
def test_a_number_counts_as_alive_at_least_while_its_message_is(
    expiries: list[int], now: int
) -> None:
    numbers = Numbers()
    drawn = {numbers.draw(expiry): expiry for expiry in expiries}
    assert list(drawn) == list(range(1, len(expiries) + 1))
    alive = [number for number, expiry in drawn.items() if expiry + GRACE > now]
    kept = Numbers(numbers.next, numbers.stretches())
    assert numbers.lowest(now) == kept.lowest(now) <= min([*alive, numbers.next])
    assert len(numbers.stretches()) <= STRETCHES
    if not alive:
        assert numbers.lowest(now) == numbers.next


def test_neighbours_are_merged_when_there_are_too_many_stretches() -> None:
    numbers = Numbers()
    for expiry in range(1, STRETCHES + 2):
        numbers.draw(expiry)
    assert len(numbers.stretches()) == STRETCHES // 2 + 1
    assert numbers.lowest(now=1 + GRACE) == 1  # it shares its stretch with 2
    assert numbers.lowest(now=2 + GRACE) == 3


@pytest.mark.rule("DU-3")
@given(st.lists(st.integers(1, 40)), st.integers(1, 45))
def test_what_has_ended_is_known_and_nothing_else(ended: list[int], lowest: int) -> None:
    handled, known = Handled(), set[int]()
    for number in ended:
        assert handled.knows(number) is (number in known)
        assert handled.is_late(number) is any(other > number for other in known)
        handled.note(number)
        known.add(number)
    kept = Handled(handled.last, handled.gaps())
    assert [kept.knows(number) for number in range(1, 42)] == [n in known for n in range(1, 42)]
    kept.close_below(lowest)
    for number in range(1, 50):
        assert kept.knows(number) is (number < lowest or number in known)


@pytest.mark.rule("DU-3")
@given(st.integers(1, 10_000))
def test_memory_does_not_grow_with_messages_that_come_in_order(count: int) -> None:
    handled = Handled()
    for number in range(1, count + 1):
        handled.note(number)
    assert (handled.last, handled.gaps()) == (count, [])


@pytest.mark.rule("DU-4")
@given(st.permutations(range(1, 30)), st.integers(1, 9), st.data())
def test_letters_go_in_the_order_of_their_numbers(
    order: list[int], most: int, data: st.DataObject
) -> None:
    lane = Lane(PAIR)
    for number in order:
        assert lane.add(letter(number))
    gone: list[int] = []
    while lane.is_idle:
        taken = numbers_of(lane.take(most, 10**9))
        ended = data.draw(st.integers(0, len(taken)))
        assert numbers_of(lane.settle(taken[:ended])) == taken[:ended]
        gone += taken[:ended]
        lane.give_back()
        if not ended:
            gone += numbers_of(lane.settle([lane.first().number]))
    assert gone == sorted(order)
    assert (lane.messages, lane.bytes, lane.needs_load) == (0, 0, False)


def test_what_does_not_fit_into_memory_stays_on_disk_in_order() -> None:
    lane = Lane(PAIR)
    kept = [lane.add(letter(number)) for number in range(1, WINDOW + 3)]
    assert kept == [True] * WINDOW + [False] * 2
    assert lane.add(letter(0))  # it goes before the others
    lane.settle(range(WINDOW + 1))
    assert lane.needs_load
    assert not lane.add(letter(WINDOW + 3))  # behind those that are not loaded
    lane.load([letter(WINDOW + 2), letter(WINDOW + 1)], more=True)
    assert numbers_of(lane.take(1, 0)) == [WINDOW + 1]
    assert lane.messages == 3
    lane.discount(1, letter(1).size)
    assert lane.messages == 2


def test_large_letters_stay_on_disk_too_and_so_do_those_that_nobody_can_have() -> None:
    lane = Lane(PAIR)
    assert [lane.add(letter(n, b"x" * 200_000)) for n in (1, 2, 3)] == [True, True, False]
    lane.unload()
    assert lane.needs_load
    assert (lane.messages, lane.is_idle) == (3, False)
    empty = Lane(PAIR)
    empty.unload()
    assert not empty.needs_load


def test_a_lane_of_an_earlier_process_is_on_disk() -> None:
    lane = Lane(PAIR, 2, 2_000)
    assert lane.needs_load
    assert not Lane(PAIR).needs_load


def test_a_batch_has_one_route_and_a_limited_size() -> None:
    lane = Lane(PAIR)
    for one in (letter(1), letter(2, b"x" * 5_000), letter(3), letter(4, b"", "hop => truck")):
        lane.add(one)
    assert numbers_of(lane.take(9, 5_000)) == [1]
    lane.settle([1])
    assert numbers_of(lane.take(9, 100)) == [2]  # at least one, however large it is
    lane.settle([2])
    assert numbers_of(lane.take(9, 10_000)) == [3]
    lane.settle([3])
    assert numbers_of(lane.take(9, 10_000)) == [4]


def test_what_is_given_back_may_have_changed() -> None:
    lane = Lane(PAIR)
    lane.add(letter(1))
    lane.take(1, 0)
    lane.give_back(Letter(1, lane.pair and letter(1).message, 0, failures=1))
    assert lane.first().failures == 1


@pytest.mark.rule("DU-8")
def test_copies_of_a_broadcast_have_its_numbers_and_a_pair_of_their_own() -> None:
    published = Pair("store", "garage", "255#garage/news")
    copies = published.of_copy("subscriber-1")
    assert (copies.store, copies.sender, copies.participant) == ("store", "garage", "subscriber-1")
    assert copies != published.of_copy("subscriber-2")
    assert copies != Pair("store", "garage", "255#garage/other").of_copy("subscriber-1")
    assert PAIR.participant == "truck"


def test_a_custodian_is_told_what_became_of_a_message() -> None:
    told: list[tuple[object, object]] = []
    arrival = CustodyArrival(letter(1).message, 0, settled=lambda *what: told.append(what))
    error = ValueError()
    arrival.settle(None)
    arrival.settle(Reason.FAILED, error)
    assert told == [(None, None), (Reason.FAILED, error)]
