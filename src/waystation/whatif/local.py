"""Ask a small journal in this process, without Spark: the same kernels, the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, Final

from waystation.core.visits import Evidence, Step, step_of, traced
from waystation.journal.read import instants_as_integers
from waystation.journal.schema import MESSAGES
from waystation.pipeline.kernels.evidence import Known
from waystation.pipeline.kernels.node_data import FileData, Share
from waystation.pipeline.listing import Listing, Wanted, list_journal
from waystation.pipeline.surveying import known_in
from waystation.whatif.changes import Changes
from waystation.whatif.copies import Copy, Diverged
from waystation.whatif.deciding import diverged
from waystation.whatif.following import (
    MINUTE,
    Delays,
    Followed,
    followed,
    followed_to_the_end,
    link,
)
from waystation.whatif.past import (
    ChangedNode,
    Elsewhere,
    Outage,
    check_found,
    keeps_names,
    leaves_sessions_open,
    missing,
    noticed_of,
    outages_of,
)
from waystation.whatif.stories import told
from waystation.whatif.verdicts import verdicts

Row = dict[str, Any]

_EVERYTHING: Final = Wanted()


class SmallJournal:
    """A journal that fits into memory, or a part of one, asked about changes."""

    def __init__(
        self, path: str | Path, wanted: Wanted = _EVERYTHING, listing: Listing | None = None
    ) -> None:
        self._wanted = wanted
        self._listing = list_journal(str(path), wanted) if listing is None else listing

    def has_what_is_left_out(self, changes: Changes) -> bool:
        """Whether the crashes and stops happened that changes leave out."""
        return not missing(changes, outages_of(changes, self._known.lives))

    def rows(self, changes: Changes) -> list[Row]:
        """The rows of `whatif`: what would have become of each message."""
        changes.check()
        outages = outages_of(changes, self._known.lives)
        check_found(self._listing.nodes, changes, outages)
        elsewhere = self._elsewhere(changes, outages)
        changed: dict[str, list[Diverged]] = {}
        for data in self._nodes():
            for id, one in diverged(data, changes, elsewhere):
                changed.setdefault(id, []).append(one)
        stories = [
            told(id, steps, changed.get(id, ()), outages, self._evidence, changes.ttl)
            for id, steps in self._steps.items()
        ]

        def visit(arriving: dict[str, list[Copy]]) -> Iterator[Followed]:
            for node, copies in arriving.items():
                yield followed(self._data(node), copies, changes, elsewhere, self._delays)

        ends = followed_to_the_end(stories, self._listing.nodes, changes, visit)
        return verdicts(stories, ends, changes)

    def _elsewhere(self, changes: Changes, outages: list[Outage]) -> Elsewhere:
        """What nodes would not have told each other."""
        first = Elsewhere.of(outages, self._known.lives)
        if not (leaves_sessions_open(changes) or keeps_names(changes)):
            return first
        nodes = (ChangedNode(data, changes, first) for data in self._nodes())
        return noticed_of(first, (node.noticed() for node in nodes))

    def _nodes(self) -> Iterator[FileData]:
        for node in self._listing.nodes:
            yield self._data(node)

    def _data(self, node: str) -> FileData:
        share = Share(
            node, self._listing.nodes[node], unsealed=self._listing.unsealed.get(node, [])
        )
        return FileData(self._listing.root, share, self._wanted)

    @cached_property
    def _known(self) -> Known:
        return known_in(self._nodes())

    @cached_property
    def _evidence(self) -> Evidence:
        return self._known.evidence()

    @cached_property
    def _steps(self) -> dict[str, list[Step]]:
        found: dict[str, list[Step]] = {}
        for data in self._nodes():
            for rows in data.batches(MESSAGES):
                for row in instants_as_integers(rows).to_pylist():
                    step = step_of({**row, "node": data.node})
                    found.setdefault(row["message_id"], []).append(step)
        return found

    @cached_property
    def _delays(self) -> Delays:
        taken: dict[str, dict[int, list[int]]] = {}
        for id, steps in self._steps.items():
            for trace in traced(id, steps, self._evidence):
                for visit in trace.visits:
                    former = None if visit.follows is None else trace.visits[visit.follows]
                    if former is not None and former.node == visit.first.from_node:
                        minutes = taken.setdefault(link(former.node, visit.node), {})
                        delay = visit.received_at - former.received_at
                        minutes.setdefault(former.received_at // MINUTE, []).append(delay)
        return Delays(
            {
                name: {minute: int(median(delays)) for minute, delays in minutes.items()}
                for name, minutes in taken.items()
            }
        )
