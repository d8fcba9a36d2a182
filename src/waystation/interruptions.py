"""Signals that ask a command to stop: when they take effect, and when they are deferred.

All of them work like Ctrl-C: they raise a KeyboardInterrupt in the main thread, so that everything
is cleaned up on the way out.
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
    """Let SIGTERM and SIGHUP stop this process as Ctrl-C does."""
    with _handled_by(_interrupt):
        yield


@contextmanager
def deferred() -> Iterator[None]:
    """Defer an interruption until a block that must not be left half done has finished.

    A second interruption takes effect at once.
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
    """Ignore interruptions during a cleanup that takes a few seconds at most."""
    with _handled_by(signal.SIG_IGN):
        yield


@contextmanager
def _handled_by(
    handler: Callable[[int, FrameType | None], Any] | signal.Handlers,
) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in _SIGNALS if _is_handled(number)}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


def _is_handled(number: signal.Signals) -> bool:
    """Whether a signal is handled: SIGHUP is not if the process was started by nohup."""
    return number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise KeyboardInterrupt
