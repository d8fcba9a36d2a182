"""Signals that ask a command to end: when they count, and when they have to wait.

All of them end it as Ctrl-C does, by a KeyboardInterrupt in the main thread, so that whatever was
begun is put away on the way out.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, TypeAlias

Handler: TypeAlias = Callable[[int, FrameType | None], Any] | signal.Handlers

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end this process as Ctrl-C does."""
    with _handled_by(_interrupt):
        yield


@contextmanager
def deferred() -> Iterator[None]:
    """Let an interruption wait for something that should not be left half done.

    Who interrupts a second time has waited long enough.
    """
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if noted:
            _interrupt(number, frame)
        noted.append(number)

    with _handled_by(note):
        yield
    if noted:
        raise KeyboardInterrupt


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let nobody interrupt what takes a few seconds at the most, and ends everything anyway."""
    with _handled_by(signal.SIG_IGN):
        yield


@contextmanager
def _handled_by(
    handler: Callable[[int, FrameType | None], Any] | signal.Handlers,
) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in _SIGNALS if _counts(number)}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


def _counts(number: signal.Signals) -> bool:
    """Whether a signal is heard: not the end of the terminal, if it was started by nohup."""
    return number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise KeyboardInterrupt
