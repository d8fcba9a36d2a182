"""What to do with a message that cannot be taken at once: each send chooses (WK-6).

A recipient may have no room, or may not be there. `persist` says that the message waits also while
nobody has that name, or while the place where it is to go cannot be reached: it goes out as soon as
that changes. Without it, such a message is dropped at once, NO_ROUTE or TRANSPORT_DOWN.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from msgspec import Struct

from waystation.errors import LocalError, quote


class Fail(Struct, frozen=True):
    """Drop it at once, QUEUE_FULL."""


class Wait(Struct, frozen=True):
    """Wait for room, `seconds` at the most or as long as it takes; then drop it, QUEUE_FULL."""

    seconds: float | None = None
    persist: bool = False


class Queue(Struct, frozen=True):
    """Do not wait: the node keeps it for so many seconds, then drops it, EXPIRED."""

    seconds: float
    persist: bool = False


Policy: TypeAlias = Fail | Wait | Queue

FAIL: Final = Fail()
WAIT: Final = Wait()


def check_seconds(seconds: float) -> float:
    """Return a time span, or raise the LocalError that says what is wrong with it."""
    if isinstance(seconds, int | float) and 0 <= seconds < 10**9:
        return seconds
    raise LocalError(
        f"{quote(seconds)} is no time to wait", rule="WK-6", hint="give seconds from 0 on"
    )
