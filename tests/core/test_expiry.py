from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rule_errors import breaks
from waystation.core.expiry import LAST_INSTANT, NEVER, Deadlines, check_expiry, expiry_after
from waystation.errors import LocalError


@pytest.mark.rule("RE-16")
def test_never_is_later_than_every_instant_and_no_sum_overflows_it() -> None:
    assert NEVER > LAST_INSTANT
    assert NEVER + LAST_INSTANT == NEVER
    assert expiry_after(NEVER, 30_000) == NEVER
    assert expiry_after(LAST_INSTANT, 1) == NEVER
    assert expiry_after(LAST_INSTANT - 1, 1) == LAST_INSTANT
    assert expiry_after(1_000, NEVER) == NEVER


@pytest.mark.parametrize("expiry", [0, 1, LAST_INSTANT, NEVER])
def test_instants_and_never_are_expiries(expiry: float) -> None:
    assert check_expiry(expiry, rule="RE-1") == expiry


@pytest.mark.parametrize("expiry", [-1, -math.inf, LAST_INSTANT + 1, 10**30, 1.5, math.nan, True])
def test_what_is_no_instant_is_refused_by_name_and_rule(expiry: float) -> None:
    with pytest.raises(LocalError, match=r"invalid expiry ", check=breaks("RE-1")) as caught:
        check_expiry(expiry, rule="RE-1")
    assert caught.value.rule == "RE-1"
    assert str(expiry)[:5] in str(caught.value)


@pytest.mark.rule("RE-17")
def test_taking_what_is_due_leaves_the_rest_untouched() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for number in range(1_000):
        deadlines.file(f"later-{number}", 10**9 + number)
    deadlines.file("soon", 5_000)
    later = {number: slot for number, slot in deadlines._slots.items() if number > 1_000}

    assert deadlines.take_due(5_000 + Deadlines.SLOT_MS) == ["soon"]
    assert deadlines._slots == later
    assert len(deadlines) == 1_000


@given(
    st.lists(st.integers(0, 200_000)),
    st.lists(st.integers(0, 250_000)),
)
def test_items_come_out_once_never_early_and_late_by_a_slot_at_most(
    dues: list[int], instants: list[int]
) -> None:
    deadlines: Deadlines[int] = Deadlines()
    for index, due in enumerate(dues):
        deadlines.file(index, due)
    seen: set[int] = set()
    for now in sorted(instants):
        taken = deadlines.take_due(now)
        assert len(set(taken)) == len(taken)
        assert seen.isdisjoint(taken)
        seen.update(taken)
        assert all(dues[index] <= now for index in taken)
        late = {index for index, due in enumerate(dues) if due + Deadlines.SLOT_MS <= now}
        assert late <= seen
    assert len(deadlines) == len(dues) - len(seen)
