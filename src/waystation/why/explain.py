"""Explains a message from a journal."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from waystation.errors import LocalError
from waystation.why.durable import durable_story
from waystation.why.explanation import Explanation
from waystation.why.journal import JournalSource
from waystation.why.lookup import MessageLookup
from waystation.why.story import explained


def explain(journal: Path, message_id: str) -> Explanation:
    """Explain a message from a journal; raises LocalError if the journal does not have it."""
    lookup = MessageLookup(journal)
    rows = lookup.message(message_id)
    if not rows:
        count = len(lookup.problems)
        files = "1 file" if count == 1 else f"{count} files"
        unreadable = f" ({files} could not be read)" * bool(count)
        raise LocalError(
            f"the journal has no message {message_id}{unreadable}",
            rule="OB-4",
            hint="check the id, the directory, and whether the journal keeps only a sample",
        )
    found = explained(JournalSource(lookup, message_id, rows), message_id)
    ahead = {hop.node: hop.clock_ahead_us for hop in found.hops}
    return replace(found, remarks=(*durable_story(rows, ahead), *found.remarks))
