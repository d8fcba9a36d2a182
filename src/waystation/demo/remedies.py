"""What would have saved messages, tried on the journals of the demonstration themselves (SP-9)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from waystation.demo.comparison import Comparison
from waystation.demo.faults import FaultKind
from waystation.whatif.changes import changes_of
from waystation.whatif.local import SmallJournal
from waystation.whatif.verdicts import SAVED

LONGER: Final = "60s"


def remedies(journal: Path, comparison: Comparison) -> Iterator[str]:
    """For each route that expired while it was needed: what a longer life would have saved."""
    asked = SmallJournal(journal)
    for matched in comparison.matched_faults:
        finding = matched.finding
        if finding is None or finding.kind is not FaultKind.EXPIRED:
            continue
        ttl = {"routes": True, "participant": finding.subject, "at_least": LONGER}
        rows = asked.rows(changes_of({"ttl": [ttl]}))
        saved = {row["message_id"] for row in rows if row["verdict"] == SAVED}
        cost = {message_id for message_id, _ in finding.claims}
        yield (
            f"If the route to {finding.subject} had lived for 60 s: {len(cost & saved):,} of "
            f"{len(cost):,} would have arrived."
        )
