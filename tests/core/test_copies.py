"""Copies of broadcasts: which is the first, and which still has to go up (FL-6)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.core.copies import REMEMBERED, Copies, Copy

_MET = st.tuples(st.sampled_from("abcdefgh"), st.sampled_from(["p/x", "p/y"]), st.booleans())


@pytest.mark.rule("FL-6")
def test_the_latest_32_768_broadcasts_are_known_and_not_many_more() -> None:
    copies = Copies()
    ids = [f"{number:032x}" for number in range(3 * REMEMBERED)]
    for id in ids:
        assert copies.meet(id, "p/b", upward=True) is Copy.FIRST
        assert len(copies) <= 2 * REMEMBERED
    for id in ids[-32_768:]:
        assert copies.meet(id, "p/b", upward=True) is Copy.REPEATED
    assert copies.meet(ids[0], "p/b", upward=True) is Copy.FIRST


@pytest.mark.rule("FL-6")
@given(st.lists(_MET, max_size=80), st.integers(1, 12))
def test_each_is_first_once_and_goes_up_once(met: list[tuple[str, str, bool]], limit: int) -> None:
    copies = Copies(limit)
    firsts: list[tuple[str, str]] = []
    up: set[tuple[str, str]] = set()
    for id, multicast_id, upward in met:
        found = copies.meet(id, multicast_id, upward=upward)
        key = (id, multicast_id)
        if key not in firsts:
            assert found is Copy.FIRST
        elif key in firsts[-limit:]:
            assert found is not Copy.FIRST
        if found is Copy.FIRST:
            firsts.append(key)
            up.discard(key)
        else:
            assert (found is Copy.FIRST_UPWARD) == (upward and key not in up)
        if upward:
            up.add(key)
        assert len(copies) <= 2 * limit


@pytest.mark.rule("FL-6")
def test_a_copy_that_has_expired_counts_for_nothing() -> None:
    copies = Copies()
    assert copies.meet("a", "p/x", upward=False, expired=True) is Copy.FIRST
    assert copies.meet("a", "p/x", upward=False) is Copy.FIRST
    assert copies.meet("a", "p/x", upward=True, expired=True) is Copy.REPEATED
    assert copies.meet("a", "p/x", upward=True) is Copy.FIRST_UPWARD
