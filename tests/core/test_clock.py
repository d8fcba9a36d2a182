"""The clock of a process, by whatever the wall clock does meanwhile, and the clocks of peers."""

from __future__ import annotations

import gc
import time
from contextvars import copy_context

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.core import clock as module
from waystation.core.clock import (
    COMPARE_INTERVAL,
    FOLLOWED,
    SAME_CLOCK,
    SLEW,
    UNNOTICED,
    PeerClock,
    SteadyClock,
    current_clock,
    now_ns,
    shifted,
    use_clock,
)
from waystation.core.expiry import LAST_INSTANT, NEVER

SECOND = 10**9
START = 1_700_000_000 * SECOND


class Machine:
    """A wall clock that can be set, and the time that passes."""

    def __init__(self, wall: int = START) -> None:
        self.passed = 5 * SECOND
        self.ahead = wall - self.passed

    def wall(self) -> int:
        return self.passed + self.ahead

    def boottime(self) -> int:
        return self.passed

    def clock(self, *, pinned: bool = True) -> SteadyClock:
        clock = SteadyClock(self.wall, self.boottime)
        if pinned:
            clock.pin()
        return clock

    def wait(self, seconds: float, clock: SteadyClock) -> int:
        """Let time pass while somebody reads the clock now and then."""
        for _ in range(100):
            self.passed += round(seconds * SECOND / 100)
            clock.read()
        return clock.read()


class Ear:
    """Somebody who watches a clock."""

    def __init__(self, clock: SteadyClock) -> None:
        self.clock = clock
        self.heard: list[tuple[bool, bool]] = []

    def hear(self) -> None:
        self.heard.append((self.clock.is_off, self.clock.is_slewing))


def test_the_wall_clock_can_be_asked_for_although_it_is_not_followed() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.ahead += 3600 * SECOND
    assert clock.wall() == machine.wall()
    assert clock.read() == machine.wall() - 3600 * SECOND


STEPS = st.lists(
    st.tuples(
        st.integers(0, 3600 * SECOND),  # time that passes
        st.integers(-7200 * SECOND, 7200 * SECOND) | st.integers(-SECOND, SECOND),  # a jump
    ),
    max_size=40,
)


def test_it_is_the_system_s_clock() -> None:
    before = time.time_ns() - UNNOTICED
    assert before <= now_ns() <= time.time_ns() + UNNOTICED
    assert current_clock()() <= time.time_ns() + UNNOTICED


def test_whatever_runs_in_a_context_has_its_clock() -> None:
    def read() -> tuple[int, int]:
        use_clock(SteadyClock(lambda: 7, lambda: 0))
        return now_ns(), current_clock().read()

    assert copy_context().run(read) == (7, 7)
    assert now_ns() > 7


def test_without_a_clock_that_counts_sleep_it_is_the_monotonic_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert abs(module._boottime()() - module._boottime()()) < 60 * SECOND
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    assert module._boottime() is time.monotonic_ns


@pytest.mark.rule("TM-1")
@given(STEPS)
def test_it_never_goes_back_and_is_slewed_by_a_twentieth_at_most(
    steps: list[tuple[int, int]],
) -> None:
    machine = Machine()
    clock = machine.clock()
    latest, passed = clock.read(), machine.passed
    for elapsed, jump in steps:
        machine.ahead += jump
        machine.passed += elapsed
        now = clock.read()
        gained = now - latest
        assert gained >= 0
        assert abs(gained - elapsed) <= elapsed // SLEW + 1
        latest = now
    began = START - 5 * SECOND
    total = machine.passed - passed
    assert abs(clock.read() - began - machine.passed) <= total // SLEW + len(steps)


@pytest.mark.rule("TM-1")
@pytest.mark.parametrize("jump", [-1, 1])
def test_a_second_is_mended_in_twenty(jump: int) -> None:
    machine = Machine()
    clock = machine.clock()
    machine.ahead += jump * SECOND
    machine.wait(10, clock)
    assert 0.4 * SECOND < abs(clock.offset_us() * 1000) < 0.6 * SECOND
    assert clock.is_slewing
    machine.wait(12, clock)
    assert abs(clock.offset_us()) < UNNOTICED // 1000
    assert not clock.is_slewing


@pytest.mark.rule("TM-1")
@pytest.mark.parametrize("jump", [-3600, 3600, -601, 601])
def test_more_than_ten_minutes_are_not_followed(jump: int) -> None:
    machine = Machine()
    clock = machine.clock()
    began = machine.passed
    machine.ahead += jump * SECOND
    assert machine.wait(3600, clock) == START + machine.passed - began
    assert (clock.is_off, clock.is_slewing) == (True, False)
    assert clock.offset_us() == jump * 10**6
    machine.ahead -= jump * SECOND
    machine.wait(1, clock)
    assert (clock.is_off, clock.is_slewing) == (False, False)
    assert clock.offset_us() == 0


@pytest.mark.rule("TM-1")
def test_a_jump_back_and_forth_within_seconds_leaves_what_was_slewed() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.ahead += 30 * SECOND
    machine.wait(4, clock)
    machine.ahead -= 30 * SECOND
    assert abs(clock.offset_us()) <= 4 * 10**6 // SLEW
    machine.wait(5, clock)
    assert abs(clock.offset_us()) < UNNOTICED // 1000


@pytest.mark.rule("TM-1")
@pytest.mark.parametrize("begin", [0, 4_000_000_000])
def test_until_it_is_pinned_it_is_set_as_the_wall_clock_is(begin: int) -> None:
    machine = Machine(wall=begin * SECOND)  # a machine without a battery
    clock = machine.clock(pinned=False)
    assert clock.read() == begin * SECOND
    machine.ahead = START - machine.passed  # NTP sets it
    machine.passed += COMPARE_INTERVAL
    assert clock.read() == machine.wall()
    assert not clock.is_off
    machine.ahead += 3600 * SECOND
    clock.pin()  # and looks once more
    assert clock.read() == machine.wall()
    clock.pin()
    machine.ahead -= 3600 * SECOND
    machine.passed += COMPARE_INTERVAL
    assert clock.read() == machine.wall() + 3600 * SECOND
    assert clock.is_off


@pytest.mark.rule("TM-1")
def test_a_machine_that_sleeps_does_not_stop_the_clock() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.passed += 8 * 3600 * SECOND  # as the boot time and the wall clock count it
    assert clock.read() == machine.wall()
    assert not clock.is_off


def test_an_idle_process_notices_when_it_reads_next() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.ahead += 7200 * SECOND
    assert not clock.is_off
    machine.passed += 3600 * SECOND
    clock.read()
    assert clock.is_off


def test_what_is_slewed_while_nobody_reads_is_no_more_than_was_needed() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.ahead -= 2 * SECOND
    machine.passed += COMPARE_INTERVAL
    clock.read()
    machine.passed += 3600 * SECOND
    assert clock.read() == machine.wall()


@pytest.mark.rule("TM-1")
def test_it_begins_after_what_happened_before_the_process() -> None:
    machine = Machine()
    clock = machine.clock(pinned=False)
    clock.not_before(START - 1)
    assert clock.read() == START
    clock.not_before(START + 3600 * SECOND)  # a clock that was an hour fast
    assert clock.read() == START + 3600 * SECOND
    clock.not_before(START)
    machine.passed += SECOND
    clock.pin()
    assert clock.read() == START + 3601 * SECOND
    assert clock.is_off
    clock.not_before(START + 7200 * SECOND)  # too late: others depend on it
    assert clock.read() == START + 3601 * SECOND


def test_a_clock_that_begins_late_is_still_set_until_it_is_pinned() -> None:
    machine = Machine(wall=0)
    clock = machine.clock(pinned=False)
    clock.not_before(START)
    assert clock.read() == START
    machine.ahead = START + 86_400 * SECOND - machine.passed
    machine.passed += COMPARE_INTERVAL
    assert clock.read() == machine.wall()


def test_a_watcher_hears_when_it_matters_and_no_longer_matters() -> None:
    machine = Machine()
    clock = machine.clock()
    ear = Ear(clock)
    clock.watch(ear.hear)
    machine.ahead += SAME_CLOCK * 1000 // 2
    machine.wait(0.5, clock)
    assert ear.heard == []  # a difference that no peer takes notice of
    machine.ahead += SECOND
    machine.wait(30, clock)
    assert ear.heard == [(False, True)] * 4 + [(False, False)] * (len(ear.heard) - 4)
    ear.heard.clear()
    machine.ahead += FOLLOWED + SECOND
    machine.wait(1, clock)
    machine.ahead -= FOLLOWED + SECOND
    machine.wait(1, clock)
    assert ear.heard == [(True, False), (False, False)]
    clock.unwatch(ear.hear)
    machine.ahead += SECOND
    machine.wait(10, clock)
    assert len(ear.heard) == 2


def test_a_watcher_that_is_gone_is_not_called() -> None:
    machine = Machine()
    clock = machine.clock()
    clock.watch(Ear(clock).hear)
    gc.collect()
    machine.ahead += SECOND
    machine.wait(10, clock)
    assert clock.is_slewing
    clock.watch(Ear(clock).hear)
    assert len(clock._watchers) == 1


# The clocks of peers.


@pytest.mark.rule("TM-2")
@given(
    st.integers(-(10**10), 10**10),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=10),
)
def test_an_offset_is_off_by_half_the_least_round_trip_at_most(
    offset: int, ways: list[tuple[int, int]]
) -> None:
    clock, now = PeerClock(), START // 1000
    for there, back in ways:
        arrives = now + there
        clock.sample(now, arrives + offset, arrives + offset + 10, arrives + 10 + back)
        now += 10_000_000
    assert clock.rtt_us == min(there + back for there, back in ways)
    assert abs(clock.offset_us - offset) <= clock.rtt_us // 2 + 1


def test_a_sample_that_contradicts_a_better_one_means_that_a_clock_was_set() -> None:
    clock = PeerClock()
    clock.sample(1_000_000, 1_000_100, 1_000_100, 1_000_200)
    clock.sample(2_000_000, 2_030_000, 2_030_000, 2_040_000)  # 10 ms off, by 20 ms: no news
    assert (clock.offset_us, clock.rtt_us) == (0, 200)
    clock.sample(3_000_000, 8_020_000, 8_020_000, 3_040_000)
    assert (clock.offset_us, clock.rtt_us) == (5_000_000, 40_000)


@pytest.mark.parametrize(
    "sample",
    [
        (1_000, 5_000, 9_000, 2_000),  # answered for longer than the question was away
        (1_000, 5_000, 4_000, 2_000),
        (1_000, -5, 5, 2_000),
        (1_000, LAST_INSTANT * 1000, LAST_INSTANT * 1000 + 1, 2_000),
    ],
)
def test_impossible_samples_are_ignored(sample: tuple[int, int, int, int]) -> None:
    clock = PeerClock()
    clock.sample(*sample)
    assert (clock.offset_us, clock.rtt_us) == (0, None)


def test_impossible_times_in_a_hello_are_ignored() -> None:
    clock = PeerClock()
    for theirs in (0, -1, 10**18):
        clock.hear(theirs, 1_000)
        assert clock.offset_us == 0


@pytest.mark.rule("TM-2")
def test_clocks_that_hardly_differ_are_the_same() -> None:
    clock = PeerClock()
    for offset, shift in (
        (49_999, 0),
        (-49_999, 0),
        (50_000, 50),
        (-50_000, 0),  # the hello may have been on its way for as long
        (-1_999_999, 0),
        (-2_000_000, -2_000),
        (-(10**9), -(10**6)),
    ):
        clock.hear(START // 1000 + offset, START // 1000)
        assert clock.shift_ms == shift


@pytest.mark.rule("TM-2")
def test_nothing_is_taken_off_that_half_a_round_trip_may_explain() -> None:
    for offset, rtt, shift in (
        (-50_000, 0, -50),
        (60_000, 20_000, 60),
        (59_000, 20_000, 0),
        (-140_000, 200_000, 0),
        (-150_000, 200_000, -150),
    ):
        clock, asked = PeerClock(), START // 1000
        there = asked + offset + rtt // 2
        clock.sample(asked, there, there, asked + rtt)
        assert (clock.offset_us, clock.rtt_us, clock.shift_ms) == (offset, rtt, shift)


def test_a_question_from_a_clock_that_was_set_raises_doubts() -> None:
    clock = PeerClock()
    clock.hear(5_000_000, 5_000_000)
    assert not clock.doubts(6_000_000, 6_050_000)
    assert clock.doubts(6_000_000, 6_050_001)
    clock.sample(1_000_000, 1_050_000, 1_050_000, 1_100_000)
    assert not clock.doubts(6_000_000, 6_150_000)
    assert clock.doubts(6_000_000, 6_150_001)


@pytest.mark.rule("TM-2")
def test_an_expiry_stays_within_what_an_expiry_can_be() -> None:
    assert shifted(LAST_INSTANT, -1) == NEVER
    assert shifted(LAST_INSTANT, 0) == LAST_INSTANT
    assert shifted(0, 1) == 0
    assert shifted(NEVER, 10**9) == NEVER
