"""The words and colours of outcomes, reasons and verdicts, the same in every part of the page."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

REASONS: Final = {
    "NO_ROUTE": "nobody of that name was known there",
    "NO_SUBSCRIBER": "a broadcast that nobody there wanted",
    "EXPIRED": "too old when it came",
    "HOP_LIMIT": "came too far, perhaps round in circles",
    "QUEUE_FULL": "an inbox or queue had no room",
    "TRANSPORT_DOWN": "the connection was gone",
    "FAILED": "the worker raised an error",
    "REFUSED": "an access rule said no",
    "UNKNOWN_TYPE": "an address of a type that nobody routes",
    "TOO_LARGE": "larger than the limit",
    "MALFORMED": "not a message by its format",
}
"""What each reason means."""

VERDICTS: Final = {
    "missing": "The rules say that it must happen, and nothing tells that it did.",
    "different": "It went otherwise than the rules say, often for what no rule can know: "
    "a full inbox, a lost connection.",
    "unexpected": "It happened, and nothing asked for it.",
    "ok": "The rules say that it must be dropped, and it was.",
}
"""What each verdict means; `ok` only where the message was lost all the same."""

ENDS: Final = {
    "renewed": "renewed at the same address",
    "ended": "a local one ended",
    "moved": "moved to another address",
    "replaced": "replaced",
    "removed": "removed",
    "expired": "expired, nobody renewed it",
    "stopped": "its node stopped",
    "restart": "its node restarted without a word",
}
"""How routing entries end."""


def reason_colour(reason: str | None) -> str:
    """The colour of a reason; those that are not known share one."""
    return f"r-{reason.lower().replace('_', '-')}" if reason in REASONS else "r-other"


def why_command(id: str, tables: Path) -> str:
    """The command that explains one message.

    >>> why_command("4bf92f3577b34da6a3ce929d0e0e4736", Path("my tables"))
    "waystation why 4bf92f3577b34da6a3ce929d0e0e4736 --tables 'my tables'"
    """
    return f"waystation why {shlex.quote(id)} --tables {shlex.quote(str(tables))}"
