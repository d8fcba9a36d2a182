"""Outcomes of a message at a node, and reasons of drops (OB-1, OB-2)."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from waystation.core.address import Address


class Outcome(StrEnum):
    """The outcome of a message at one node (OB-1)."""

    DELIVERED = "DELIVERED"
    FORWARDED = "FORWARDED"
    QUEUED = "QUEUED"
    DROPPED = "DROPPED"

    __hash__ = str.__hash__  # in C; that of an enum is not


class Reason(StrEnum):
    """Why a message was dropped (OB-2)."""

    NO_ROUTE = "NO_ROUTE"
    UNKNOWN_TYPE = "UNKNOWN_TYPE"
    NO_SUBSCRIBER = "NO_SUBSCRIBER"
    EXPIRED = "EXPIRED"
    HOP_LIMIT = "HOP_LIMIT"
    QUEUE_FULL = "QUEUE_FULL"
    REFUSED = "REFUSED"
    TRANSPORT_DOWN = "TRANSPORT_DOWN"
    TOO_LARGE = "TOO_LARGE"
    MALFORMED = "MALFORMED"
    FAILED = "FAILED"
    DUPLICATE = "DUPLICATE"

    __hash__ = str.__hash__


class Verdict(Struct, frozen=True, cache_hash=True, gc=False, repr_omit_defaults=True):
    """An outcome with its recipient, its next address, or the reason of the drop.

    >>> Verdict.dropped(Reason.NO_ROUTE).reason
    <Reason.NO_ROUTE: 'NO_ROUTE'>
    """

    outcome: Outcome
    reason: Reason | None = None
    recipient: str | None = None
    address: Address | None = None

    @classmethod
    def dropped(cls, reason: Reason, recipient: str | None = None) -> Verdict:
        """The verdict for a dropped message."""
        return cls(Outcome.DROPPED, reason, recipient)
