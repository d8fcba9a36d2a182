from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from waystation.net.backoff import Backoff


def test_waits_double_up_to_the_most() -> None:
    backoff = Backoff(first=1.0, most=5.0, chance=lambda: 1.0)
    assert [backoff.next() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_half_of_a_wait_is_certain() -> None:
    backoff = Backoff(first=1.0, most=5.0, chance=lambda: 0.0)
    assert [backoff.next() for _ in range(5)] == [0.5, 1.0, 2.0, 2.5, 2.5]


def test_a_success_begins_anew() -> None:
    backoff = Backoff(first=1.0, most=5.0, chance=lambda: 1.0)
    for _ in range(10):
        backoff.next()
    backoff.reset()
    assert backoff.next() == 1.0


def test_the_first_wait_is_no_longer_than_the_most() -> None:
    assert Backoff(first=9.0, most=2.0, chance=lambda: 1.0).next() == 2.0


@given(st.integers(0, 2000), st.floats(0, 1))
def test_however_often_it_fails_a_wait_stays_within_its_bounds(times: int, chance: float) -> None:
    backoff = Backoff(first=0.1, most=5.0, chance=lambda: chance)
    waits = [backoff.next() for _ in range(times)]
    assert all(0.05 <= wait <= 5.0 for wait in waits)


def test_two_of_a_fleet_do_not_wait_alike() -> None:
    one, other = Backoff(), Backoff()
    assert [one.next() for _ in range(20)] != [other.next() for _ in range(20)]
