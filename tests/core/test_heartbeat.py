"""Heartbeats: who owes one, and who has been silent for too long."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.core.heartbeat import MISSED_BEATS, Heartbeat


@given(st.floats(0.01, 100), st.floats(0.01, 100))
def test_a_peer_is_gone_after_more_than_three_of_the_slower_one_s_intervals(
    ours: float, theirs: float
) -> None:
    beat = Heartbeat(ours)
    limit = MISSED_BEATS * max(ours, theirs)
    for passed in range(1, 1 + min(1_000, 2 + math.ceil(limit / ours))):
        silence = beat.lapse(theirs, reading=True)
        assert bool(silence) == (passed * ours > limit)
        assert silence in (0, passed * ours)


def test_whatever_is_heard_starts_the_count_anew() -> None:
    beat = Heartbeat(1)
    for _ in range(10):
        assert [beat.lapse(1, reading=True) for _ in range(3)] == [0, 0, 0]
        beat.heard = True
        assert beat.lapse(1, reading=True) == 0


@pytest.mark.parametrize("promised", [0, -1, math.inf])
def test_a_peer_that_promised_nothing_may_be_silent(promised: float) -> None:
    beat = Heartbeat(1)
    assert not any(beat.lapse(promised, reading=True) for _ in range(100))


def test_a_session_that_does_not_read_does_not_call_its_peer_silent() -> None:
    beat = Heartbeat(1)
    assert not any(beat.lapse(1, reading=False) for _ in range(100))
    assert [beat.lapse(1, reading=True) for _ in range(4)] == [0, 0, 0, 4]


def test_a_heartbeat_is_due_after_an_interval_in_which_nothing_was_sent() -> None:
    beat = Heartbeat(1)
    beat.sent = True
    beat.lapse(1, reading=True)
    assert not beat.is_due
    beat.lapse(1, reading=True)
    assert beat.is_due
