"""Numbered messages between members, without a network: whatever is lost, doubled or late."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.core.expiry import NEVER
from waystation.core.sequences import (
    BUNDLE,
    FIRST_TIMEOUT,
    RESTART,
    Arrivals,
    Incoming,
    Outgoing,
    ToAll,
    bundles,
    first_number,
)

YOU, SHE = (bytes(15) + bytes([number]) for number in (2, 3))


@pytest.mark.rule("GR-12", "FL-6")
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
    assert into.accept(last.first + RESTART + 9, last.first + RESTART + 9, [b"e"]) == [b"e"]
    assert into.lost == 2  # it started over


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


def test_the_timeout_doubles_each_time_and_is_short_again_after_an_answer() -> None:
    out = Outgoing(10)
    assert not out.is_overdue(0.0)
    out.push(b"a")
    out.take_fresh()
    assert not out.is_overdue(0.0)
    assert not out.is_overdue(FIRST_TIMEOUT / 2)
    assert out.is_overdue(FIRST_TIMEOUT)
    assert not out.is_overdue(2 * FIRST_TIMEOUT)
    assert out.is_overdue(3 * FIRST_TIMEOUT)
    out.acknowledge(1)
    assert out.due == NEVER
    assert out.timeout == FIRST_TIMEOUT
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


def test_whoever_is_told_of_nobody_left_gives_up_what_was_for_all() -> None:
    out = ToAll(10)
    out.join(YOU)
    out.push(b"a")
    out.take_fresh()
    assert [item[0] for item in out.leave(YOU)] == [b"a"]
    assert len(out) == 0


def test_an_empty_packet_before_any_number_is_known_says_nothing() -> None:
    into = Arrivals().one
    assert into.accept(0, 0, []) == ()
    assert not into.gap
    assert into.accept(5, 5, [b"a"]) == [b"a"]
    assert into.accept(5, 5, [b"a"]) == []


@given(st.integers(0, 2**40), st.integers(0, RESTART - 1))
def test_who_starts_over_begins_behind_every_number_it_used(now_ms: int, sent: int) -> None:
    assert first_number(now_ms) + sent < first_number(now_ms + 1)
