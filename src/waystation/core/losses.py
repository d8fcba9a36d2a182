"""What was lost of a message: the steps by which somebody went without, for `losses` (OB-2).

A copy is lost that ended DROPPED, vanished or waited in vain, if no copy reached whom it was for;
core/visits.py decides which these are. What is kept of each here is what it takes to find out why.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from waystation.core.visits import Trace

INTERNAL: Final = "0#waystation."
"""How the address of a worker that belongs to the nodes themselves begins."""


class Lost(Struct, frozen=True, kw_only=True):
    """A step by which somebody went without. Times are microseconds, by the clock of the node."""

    recipient: str | None
    reason: str
    node: str
    incarnation: int
    at: int
    received_at: int
    outcome: str
    out: str | None = None
    next_node: str | None = None
    expiry: int | None = None
    onward: str = ""  # its addresses, with a space between two
    internal: bool = False


def lost_in(trace: Trace) -> list[Lost]:
    """The steps by which somebody went without, in causal order."""
    found = []
    for loss in trace.losses:
        step = trace.visits[loss.visit].steps[loss.step]
        found.append(
            Lost(
                recipient=loss.recipient,
                reason=loss.reason,
                node=step.node,
                incarnation=step.incarnation,
                at=step.at,
                received_at=step.received_at,
                outcome=step.outcome,
                out=step.out,
                next_node=step.next_node,
                expiry=step.expiry,
                onward=" ".join(step.onward),
                internal=is_internal((*step.onward, *step.back)),
            )
        )
    return found


def is_internal(route: Iterable[str]) -> bool:
    """Whether a message is between nodes themselves, and no loss to an application.

    >>> is_internal(["0#hub", "0#waystation.status"]), is_internal(["0#truck-7"])
    (True, False)
    """
    return any(address.startswith(INTERNAL) for address in route)
