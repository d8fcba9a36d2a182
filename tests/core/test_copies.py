"""Copies of broadcasts: which is the first, and which still has to go up (FL-6)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.core.copies import REMEMBERED, Copies, Copy

_MET = st.tuples(st.sampled_from("abcde"), st.sampled_from(["p/x", "p/y"]), st.booleans())


@pytest.mark.rule("FL-6")
def test_the_latest_32_768_broadcasts_are_known() -> None:
    copies = Copies()
    for number in range(REMEMBERED + 1):
        assert copies.meet(f"{number:032x}", "p/b", upward=True) is Copy.FIRST
    assert len(copies) == REMEMBERED == 32_768
    assert copies.meet(f"{1:032x}", "p/b", upward=True) is Copy.REPEATED
    assert copies.meet(f"{0:032x}", "p/b", upward=True) is Copy.FIRST


@pytest.mark.rule("FL-6")
@given(st.lists(_MET, max_size=60), st.integers(1, 12))
def test_each_is_first_once_and_goes_up_once(met: list[tuple[str, str, bool]], limit: int) -> None:
    copies = Copies(limit)
    known: list[tuple[str, str]] = []  # the latest at the end
    up: set[tuple[str, str]] = set()
    for id, multicast_id, upward in met:
        found = copies.meet(id, multicast_id, upward=upward)
        key = (id, multicast_id)
        if key not in known:
            assert found is Copy.FIRST
            known = [*known, key][-limit:]
            up.discard(key)
        elif upward and key not in up:
            assert found is Copy.FIRST_UPWARD
        else:
            assert found is Copy.REPEATED
        if upward:
            up.add(key)
        assert len(copies) == len(known)
