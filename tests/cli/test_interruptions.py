"""Signals that ask a demonstration to end: when they count, and when they wait."""

from __future__ import annotations

import os
import signal

import pytest

from waystation.interruptions import deferred, interruptible, undisturbed

ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def interrupted_by(*numbers: signal.Signals) -> bool:
    """Interrupt something that should not be left half done; whether it was done."""
    done = False
    try:
        with deferred():
            for number in numbers:
                send(number)
            done = True
    except KeyboardInterrupt:
        return done
    raise AssertionError("nobody noticed")


@pytest.mark.parametrize("number", ALL)
def test_each_of_them_ends_it_as_ctrl_c_does(number: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt), interruptible():
        send(number)


@pytest.mark.parametrize("number", ALL)
def test_one_that_has_to_wait_counts_in_the_end(number: signal.Signals) -> None:
    assert interrupted_by(number)


def test_the_second_does_not_wait() -> None:
    assert not interrupted_by(signal.SIGINT, signal.SIGINT)


def test_who_was_started_to_outlive_its_terminal_does() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible():
            send(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_who_puts_away_is_not_disturbed() -> None:
    with undisturbed():
        for number in ALL:
            send(number)


def test_afterwards_everything_is_as_before() -> None:
    before = [signal.getsignal(number) for number in ALL]
    for quiet in (interruptible, deferred, undisturbed):
        with quiet():
            assert [signal.getsignal(number) for number in ALL] != before
        assert [signal.getsignal(number) for number in ALL] == before
