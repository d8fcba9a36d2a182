"""Policies: what to do with a message that nobody can take at once; each send has one (WK-6).

The receiver may have no room, may have lost its link, or may not be there. With `persist` a message
waits also while nobody has its recipient's name, or while the place where it is to go cannot be
reached, and goes out as soon as that changes. Without it, it is dropped at once then, NO_ROUTE or
TRANSPORT_DOWN.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from msgspec import Struct

from waystation.errors import LocalError, quote


class Fail(Struct, frozen=True):
    """Drop it at once, QUEUE_FULL or TRANSPORT_DOWN."""


class Wait(Struct, frozen=True):
    """Wait at most `seconds` for room or for the link; then drop it, QUEUE_FULL or TRANSPORT_DOWN.

    Without a time it waits for room as long as it takes, and for a session that has lost its link
    as long as the node's limit `reconnect` says; with `persist`, as long as it takes for both.
    """

    seconds: float | None = None
    persist: bool = False


class Queue(Struct, frozen=True):
    """Do not wait: the node keeps it for at most `seconds`, then drops it, EXPIRED."""

    seconds: float
    persist: bool = False


class Line(Struct, frozen=True):
    """Do not wait: it stands in the line of its receiver while there is room, else QUEUE_FULL.

    The policy of what a handler sends by its context (FL-4): nobody waits for a peer that does not
    read. How long it stands there is decided by the limits of the node.
    """


Policy: TypeAlias = Fail | Wait | Queue | Line

FAIL: Final = Fail()
"""Drop it at once if it cannot be sent now."""

WAIT: Final = Wait()
"""Wait for room; for a lost session only as long as the node's limit `reconnect` says."""

LINE: Final = Line()


def check_seconds(seconds: float) -> float:
    """Return a timeout, or raise the LocalError that says what is wrong with it."""
    if isinstance(seconds, int | float) and 0 <= seconds < 10**9:
        return seconds
    raise LocalError(
        f"invalid number of seconds {quote(seconds)}", rule="WK-6", hint="give 0 or more"
    )


def check_policy(policy: Policy) -> None:
    """Raise a LocalError that says what to write, if that is no policy."""
    if not isinstance(policy, Policy):
        raise LocalError(
            f"{quote(policy)} is not a policy",
            rule="WK-6",
            hint="give WAIT, FAIL, Wait(seconds) or Queue(seconds)",
        )
