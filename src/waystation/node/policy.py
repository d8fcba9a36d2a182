"""What to do with a message whose recipient has no room: each send chooses (WK-6)."""

from __future__ import annotations

from typing import Final, TypeAlias

from msgspec import Struct

from waystation.errors import LocalError, shown


class Fail(Struct, frozen=True):
    """Drop it at once, QUEUE_FULL."""


class Wait(Struct, frozen=True):
    """Wait for room, `seconds` at the most or as long as it takes; then drop it, QUEUE_FULL."""

    seconds: float | None = None


class Queue(Struct, frozen=True):
    """Do not wait: the node keeps it for so many seconds, then drops it, EXPIRED."""

    seconds: float


Policy: TypeAlias = Fail | Wait | Queue

FAIL: Final = Fail()
WAIT: Final = Wait()


def check_seconds(seconds: float) -> float:
    """Return a time span, or raise the LocalError that says what is wrong with it."""
    if isinstance(seconds, int | float) and 0 <= seconds < 10**9:
        return seconds
    raise LocalError(
        f"{shown(seconds)} is no time to wait", rule="WK-6", hint="give seconds from 0 on"
    )
