"""What receivers hold of one budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.core.shares import Shares


@pytest.mark.rule("FL-1")
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1_000)), max_size=50))
def test_the_total_is_what_everybody_holds(noted: list[tuple[int, int]]) -> None:
    shares: Shares[int] = Shares(1_000)
    held: dict[int, int] = {}
    for holder, size in noted:
        shares.note(holder, size)
        held[holder] = size
        assert shares.total.used == sum(held.values())
        assert set(shares.holders()) == {each for each in held if held[each]}
        assert len(shares) == len(shares.holders())
        assert shares.is_over is (sum(held.values()) > 1_000)
    for holder, size in held.items():
        assert (holder in shares) is bool(size)
        shares.note(holder, 0)
    assert shares.total.used == len(shares) == 0


@pytest.mark.rule("FL-3")
def test_within_the_budget_everybody_gets_everything() -> None:
    shares: Shares[str] = Shares(100)
    shares.note("a", 100)
    assert shares.allows("a", 1_000)
    assert shares.allows("b", 1_000)
    assert shares.in_excess() is None


@pytest.mark.rule("FL-3")
def test_when_the_budget_is_spent_the_large_ones_get_no_more() -> None:
    shares: Shares[str] = Shares(100)
    for holder, size in (("a", 70), ("b", 30), ("c", 10)):
        shares.note(holder, size)
    assert shares.part == 33
    assert [shares.allows(holder, 3) for holder in "abcd"] == [False, True, True, True]
    assert not shares.allows("b", 4)
    assert shares.allows("d", 1_000)  # an empty account takes one message of any size


@pytest.mark.rule("FL-1")
@given(st.dictionaries(st.integers(0, 20), st.integers(1, 500), min_size=1))
def test_giving_up_the_largest_bounds_the_total(sizes: dict[int, int]) -> None:
    shares: Shares[int] = Shares(400)
    for holder, size in sizes.items():
        shares.note(holder, size)
    while (victim := shares.in_excess()) is not None:
        assert [(victim, sizes[victim])] == shares.largest(1) or sizes[victim] == max(
            sizes[each] for each in shares.holders()
        )
        shares.note(victim, 0)
    assert shares.total.used <= 500


def test_the_largest_are_told_in_order() -> None:
    shares: Shares[str] = Shares(100)
    for holder, size in (("a", 1), ("b", 3), ("c", 2)):
        shares.note(holder, size)
    assert shares.largest(2) == [("b", 3), ("c", 2)]
