"""Names that change too often are announced less often."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.core import damping as module
from waystation.core.damping import (
    CHANGES,
    FIRST_WAIT,
    LONGEST_WAIT,
    QUIET,
    WINDOW,
    Damping,
)

NAME = "truck-7"


def flapping(now: int = 0) -> Damping:
    """Damping with a name whose first announcement waits."""
    damping = Damping()
    for _ in range(CHANGES):
        damping.changed(NAME, now)
    return damping


@pytest.mark.rule("CL-3")
def test_the_fifth_change_within_ten_seconds_waits() -> None:
    damping = Damping()
    waits = [damping.changed(NAME, now) for now in (0, 3_000, 6_000, 9_000, 9_999)]
    assert waits == [0, 0, 0, 0, FIRST_WAIT]
    assert damping.is_waiting(NAME)
    assert not damping.is_waiting("truck-8")
    assert damping.changed("truck-8", 9_999) == 0


@pytest.mark.rule("CL-3")
@pytest.mark.parametrize("step", [WINDOW // 4, WINDOW // 4 + 1, WINDOW, 3 * WINDOW])
def test_a_change_every_few_seconds_never_waits(step: int) -> None:
    damping = Damping()
    assert not any(damping.changed(NAME, now) for now in range(0, 60 * step, step))
    assert damping.next_due() is None
    assert len(damping) == 0


@pytest.mark.rule("CL-3")
def test_changes_while_a_name_waits_wait_with_it() -> None:
    damping = flapping()
    assert damping.next_due() == FIRST_WAIT
    assert [damping.changed(NAME, now) for now in (400, 999)] == [600, 1]
    assert damping.due(FIRST_WAIT - 1) == []
    assert damping.due(FIRST_WAIT) == [NAME]
    assert damping.due(FIRST_WAIT) == []
    assert not damping.is_waiting(NAME)
    assert damping.next_due() is None


@pytest.mark.rule("CL-3")
def test_a_change_that_comes_when_its_name_is_due_still_waits_for_the_release() -> None:
    assert flapping().changed(NAME, FIRST_WAIT + 50) == 1
    assert flapping().changed(NAME, 2 * QUIET) == 1


@pytest.mark.rule("CL-3")
def test_each_wait_is_twice_the_one_before_up_to_a_minute() -> None:
    damping, now, waits = flapping(), 0, []
    for _ in range(9):
        due = damping.next_due()
        assert due is not None
        waits.append(due - now)
        now = due
        assert damping.due(now) == [NAME]
        assert damping.changed(NAME, now) > 0
    assert waits == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, LONGEST_WAIT] + 2 * [LONGEST_WAIT]


@pytest.mark.rule("CL-3")
def test_a_name_is_forgotten_after_two_quiet_minutes() -> None:
    damping = flapping()
    damping.due(FIRST_WAIT)
    assert damping.changed(NAME, QUIET - 1) == 2 * FIRST_WAIT  # not quite
    quiet = QUIET - 1 + QUIET
    assert damping.due(quiet - 1) == [NAME]
    assert len(damping) == 1
    assert damping.changed(NAME, quiet) == 0
    assert damping.due(quiet) == []
    assert len(damping) == 0


@pytest.mark.rule("CL-3")
def test_a_name_that_still_waits_is_not_forgotten() -> None:
    damping = flapping()
    assert damping.due(10 * QUIET) == [NAME]
    assert len(damping) == 0


@pytest.mark.rule("CL-3")
def test_quiet_names_are_forgotten_behind_one_that_is_not() -> None:
    damping = flapping()
    for _ in range(CHANGES):
        damping.changed("truck-8", 10)
    assert damping.due(2_000) == [NAME, "truck-8"]
    damping.changed(NAME, QUIET - 1)  # it is before the other in the order of their release
    damping.due(QUIET + 10)
    assert len(damping) == 2
    damping.due(2 * QUIET - 2)
    assert len(damping) == 1
    damping.due(2 * QUIET - 1)
    assert len(damping) == 0


@pytest.mark.rule("CL-3")
def test_changes_within_ten_seconds_count_whatever_else_changes_meanwhile() -> None:
    damping = Damping()
    for _ in range(3):
        damping.changed(NAME, 4_999)
    for now in (5_000, 10_000):
        damping.changed("truck-8", now)
    assert [damping.changed(NAME, 14_998) for _ in range(2)] == [0, FIRST_WAIT]


def test_names_that_have_not_changed_for_a_while_are_no_longer_counted() -> None:
    damping = Damping()
    for number in range(1_000):
        damping.changed(f"truck-{number}", 0)
    for now in (WINDOW, 2 * WINDOW):
        damping.changed("truck-0", now)
    assert len(damping._counted) + len(damping._counted_before) == 1


def test_only_so_many_names_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WATCHED", 10)
    damping = Damping()
    for number in range(1_000):
        damping.changed(f"truck-{number}", 0)
    counted = len(damping._counted) + len(damping._counted_before)
    assert counted <= 2 * 10
    assert [damping.changed("truck-999", 1) for _ in range(4)] == [0, 0, 0, FIRST_WAIT]


class Slow:
    """The rule for one name, by looking at everything that ever happened."""

    def __init__(self) -> None:
        self.changes: list[int] = []
        self.wait = 0  # the latest; 0: not damped
        self.due_at: int | None = None

    def changed(self, now: int) -> int:
        if self.wait and self.due_at is None and now >= self.changes[-1] + QUIET:
            self.wait = 0
            self.changes = []
        self.changes.append(now)
        if self.due_at is not None:
            return max(self.due_at - now, 1)
        if not self.wait and sum(now < change + WINDOW for change in self.changes) < CHANGES:
            return 0
        self.wait = min(2 * self.wait, LONGEST_WAIT) or FIRST_WAIT
        self.due_at = now + self.wait
        return self.wait

    def due(self, now: int) -> bool:
        is_due = self.due_at is not None and now >= self.due_at
        self.due_at = None if is_due else self.due_at
        return is_due


@pytest.mark.rule("CL-3")
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [0, 1, 999, 1_000, 2_500, 2_501, 9_999, 10_000, 30_000, 119_999, 120_000]
            ),
            st.sampled_from(["a", "a", "a", "b", "due"]),
        ),
        max_size=60,
    )
)
def test_damping_is_as_a_slow_obvious_one_would_be(happened: list[tuple[int, str]]) -> None:
    damping, slow, now = Damping(), {"a": Slow(), "b": Slow()}, 0
    for passed, event in happened:
        now += passed
        if event == "due":
            assert sorted(damping.due(now)) == [name for name in slow if slow[name].due(now)]
        else:
            assert damping.changed(event, now) == slow[event].changed(now)
        waiting = [known.due_at for known in slow.values() if known.due_at is not None]
        assert damping.next_due() == min(waiting, default=None)
        assert all(damping.is_waiting(name) is (slow[name].due_at is not None) for name in slow)
