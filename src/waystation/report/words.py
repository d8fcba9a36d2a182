"""Texts and colours of outcomes, reasons and verdicts, shared by all parts of the page."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

REASONS: Final = {
    "NO_ROUTE": "the name was not known there",
    "NO_SUBSCRIBER": "a broadcast without subscribers there",
    "EXPIRED": "it had expired",
    "HOP_LIMIT": "too many hops, perhaps a loop",
    "QUEUE_FULL": "an inbox or queue was full",
    "TRANSPORT_DOWN": "the connection was lost",
    "FAILED": "the worker raised an error",
    "REFUSED": "an access rule denied it",
    "UNKNOWN_TYPE": "an address type without a transport",
    "TOO_LARGE": "larger than the limit",
    "MALFORMED": "not valid in its format",
    "DUPLICATE": "a further copy, or a further reply",
}
"""What each reason of a drop means."""

LOSSES: Final = {**REASONS, "VANISHED": "sent to the next node, and never seen again"}
"""What each reason of a loss means."""

VERDICTS: Final = {
    "missing": "The rules require it, but no record shows that it happened.",
    "different": "The outcome differs from the rules, often for a cause that they cannot know: "
    "a full inbox, a lost connection.",
    "unexpected": "It happened although the rules do not require it.",
    "ok": "The rules require a drop, and it was dropped.",
}
"""What each verdict means; `ok` is listed only for dropped messages."""

ENDS: Final = {
    "renewed": "renewed at the same address",
    "ended": "a local entry ended",
    "moved": "moved to another address",
    "replaced": "replaced",
    "removed": "removed",
    "expired": "expired without renewal",
    "stopped": "its node stopped",
    "restart": "its node crashed and restarted",
}
"""How routing entries end."""


def reason_colour(reason: str | None) -> str:
    """The colour of a reason; unknown ones share one."""
    return f"r-{reason.lower().replace('_', '-')}" if reason in REASONS else "r-other"


def why_command(id: str, tables: str | Path) -> str:
    """The command that explains one message.

    >>> why_command("4bf92f3577b34da6a3ce929d0e0e4736", Path("my tables"))
    "waystation why 4bf92f3577b34da6a3ce929d0e0e4736 --tables 'my tables'"
    """
    return f"waystation why {shlex.quote(id)} --tables {shlex.quote(str(tables))}"
