"""Incidents: what was lost of late, and by what cause; what would have helped; who is missing.

What was lost and why is found as `waystation lost` finds it, in the newest part of a journal. That
is bounded, and what is left out is said. This module needs pyarrow.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Final

from msgspec import Struct

from waystation.core.incidents import NAMES, OTHER, Incident
from waystation.journal.layout import all_nodes
from waystation.journal.read import TableReader, last_instant
from waystation.journal.schema import NODES, NodeKind
from waystation.pipeline.inprocess import Survey, survey_files
from waystation.pipeline.lost import Answer, LostCopy, Question, lost_in_survey
from waystation.pipeline.recent import Recent, recent_part
from waystation.whatif.candidates import Suggestion, candidates_for, suggestions_in
from waystation.whatif.local import SmallJournal

MAX_INCIDENTS: Final = 30

KEPT: Final = 5.0
"""Seconds for which what was found is kept, however many pages ask for it."""

SHARE: Final = 5
"""What took long to find is kept for this many times as long."""

MAX_ASKED: Final = 20_000
"""A part with more rows about messages is not asked here what would have helped."""

PATIENCE: Final = 20.0
"""Seconds after which no further change is tried."""

MAX_NODES: Final = 1_000
"""Maximum number of nodes whose journals are looked at for their end."""

LATE: Final = 11 * 60_000_000
"""Microseconds without a record after which a node counts as missing.

One that has a session writes at least how clocks differ, every ten minutes.
"""


class IncidentShown(Struct, frozen=True, kw_only=True):
    """An incident, and what it cost in the part that was looked at; times in microseconds."""

    id: str
    name: str  # its kind, in words
    cause: str
    started: int
    ended: int | None
    count: int
    reasons: list[str]
    nodes: list[str]  # where copies ended
    recipients: list[str]
    last: int
    message_id: str  # of the latest loss
    may_be_helped: bool  # whether there are changes to try


class Losses(Struct, frozen=True, kw_only=True):
    """What was lost of late, by its cause, and who is missing."""

    incidents: list[IncidentShown]
    others: list[IncidentShown]  # losses that nothing explains
    more: int  # incidents that are not listed
    count: int
    since: int | None  # the journal is older than that; microseconds
    coverage: Coverage | None


class Remedy(Struct, frozen=True, kw_only=True):
    """What would have helped against an incident; or the command that tells, if that takes long."""

    incident: str
    suggestions: list[Suggestion]
    tried: int
    command: str = ""


class Coverage(Struct, frozen=True, kw_only=True):
    """Which nodes have records up to the end of a journal; times in microseconds.

    Nodes that stopped are expected to have none. Without a missing node, it is complete up to its
    end.
    """

    nodes: int
    missing: list[tuple[str, int]]  # each with its last record, the earliest first
    stopped: int
    until: int  # up to when all nodes have records
    unseen: int = 0  # nodes that were not looked at


class Feed:
    """The incidents in the newest part of a journal; what was found is kept until that changes."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._looking = Lock()
        self._found: tuple[Recent, Survey, Coverage | None] | None = None
        self._fresh_until = 0.0
        self._known: dict[bool, tuple[Survey, Losses]] = {}
        self._remedies: dict[str, Remedy] = {}

    def losses(self, *, internals: bool) -> Losses:
        """What was lost, also of what nodes say to each other if that is asked for."""
        part, survey, covered = self._look()
        known = self._known.get(internals)
        if known is None or known[0] is not survey:
            known = survey, _losses(part, survey, covered, internals=internals)
            self._known[internals] = known
        return known[1]

    def remedy(self, id: str, patience: float = PATIENCE) -> Remedy | None:
        """What would have helped against an incident; None if it is not there any more."""
        part, survey, _ = self._look()
        incident = next((one for one in survey.found.incidents if one.incident_id == id), None)
        if incident is None:
            return None
        if id not in self._remedies:
            self._remedies[id] = self._tried(part, incident, patience)
        return self._remedies[id]

    def _look(self) -> tuple[Recent, Survey, Coverage | None]:
        """The newest part of the journal; it is read by one who asks, for all."""
        with self._looking:
            if self._found is not None and time.monotonic() < self._fresh_until:
                return self._found
            began = time.monotonic()
            part = recent_part(self._journal)
            if self._found is None or self._found[0] != part:
                self._found = (
                    part,
                    survey_files(part.listing, part.wanted),
                    coverage(self._journal),
                )
                self._remedies.clear()
            now = time.monotonic()
            self._fresh_until = now + max(KEPT, SHARE * (now - began))
            return self._found

    def _tried(self, part: Recent, incident: Incident, patience: float) -> Remedy:
        candidates = candidates_for(incident.kind)
        command = (
            f"waystation pipeline whatif --journal {shlex.quote(str(self._journal))} --suggest"
        )
        told = Remedy(incident=incident.cause, suggestions=[], tried=0, command=command)
        if part.rows > MAX_ASKED:
            return told
        deadline = time.monotonic() + patience
        late = False

        def go_on() -> bool:
            nonlocal late
            late = time.monotonic() > deadline
            return not late

        journal = SmallJournal(self._journal, part.wanted, part.listing)
        found = suggestions_in(journal, candidates, go_on)
        return Remedy(
            incident=incident.cause,
            suggestions=found,
            tried=len(candidates),
            command=command if late else "",
        )


def _losses(part: Recent, survey: Survey, covered: Coverage | None, *, internals: bool) -> Losses:
    answer = lost_in_survey(survey, Question(since=part.since, internal=internals))
    shown = sorted(_shown(answer), key=lambda one: one[1].last, reverse=True)
    listed = shown[:MAX_INCIDENTS]
    return Losses(
        incidents=[one for kind, one in listed if kind != OTHER],
        others=[one for kind, one in listed if kind == OTHER],
        more=len(shown) - len(listed),
        count=len(answer.losses),
        since=part.since,
        coverage=covered,
    )


def _shown(answer: Answer) -> Iterator[tuple[str, IncidentShown]]:
    """The incidents of an answer as they are shown, each with its kind."""
    losses: dict[str | None, list[LostCopy]] = {}
    for loss in answer.losses:
        losses.setdefault(loss.incident_id, []).append(loss)
    for incident in answer.incidents:
        own = losses[incident.incident_id]
        yield (
            incident.kind,
            IncidentShown(
                id=incident.incident_id,
                name=NAMES.get(incident.kind, incident.kind),
                cause=incident.cause,
                started=incident.started,
                ended=incident.ended,
                count=len(own),
                reasons=sorted({loss.reason for loss in own}),
                nodes=sorted({loss.node for loss in own}),
                recipients=sorted({_whom(loss) for loss in own} - {""}),
                last=own[-1].event_time,
                message_id=own[-1].message_id,
                may_be_helped=bool(candidates_for(incident.kind)),
            ),
        )


def _whom(loss: LostCopy) -> str:
    """Who went without; of a broadcast that nobody is named for, its topic."""
    return loss.recipient or loss.multicast_id or ""


def coverage(journal: Path, most: int = MAX_NODES) -> Coverage | None:
    """Which nodes have records up to the end; None if there are no records."""
    names = sorted(all_nodes(journal))
    ends = {node: last_instant(journal, node) for node in names[:most]}
    known = {node: end for node, end in ends.items() if end is not None}
    if not known:
        return None
    newest = max(known.values())
    late = {node: end for node, end in known.items() if newest - end >= LATE}
    stopped = {node for node in late if _has_stopped(journal, node)}
    missing = sorted(((node, late[node]) for node in late.keys() - stopped), key=lambda one: one[1])
    return Coverage(
        nodes=len(known) - len(stopped),
        missing=missing,
        stopped=len(stopped),
        until=missing[0][1] if missing else newest,
        unseen=len(names) - len(ends),
    )


def _has_stopped(journal: Path, node: str) -> bool:
    """Whether the last word of a node's journal about itself is that it ended."""
    last = None
    for batch in TableReader(journal, NODES, node, lambda *_: None).batches():
        last = batch.column("kind")[-1].as_py()
    return last == NodeKind.STOP
