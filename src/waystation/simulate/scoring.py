"""How well losses and incidents agree with what really happened in a simulated fleet.

A loss counts as one that can be found if the journals tell of it: its row is on record, and for a
copy that vanished, the next node's record covers that time. That nobody heard a broadcast can only
be known if its whole way is on record. A fault at a node without a journal cannot be told from
others. What is found and is not in the truth is invented, whatever the journals tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from operator import and_
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
from msgspec import Struct

from waystation.core.coverage import covers
from waystation.core.incidents import CLOCK, LINK, LOOP, NEVER, OTHER, UNHEARD, Incident
from waystation.pipeline.inprocess import Survey, nodes_of
from waystation.pipeline.kernels.evidence import Known
from waystation.pipeline.listing import EVERYTHING, list_journal
from waystation.pipeline.surveying import known_in
from waystation.simulate.journal import TRUTH

Row = dict[str, Any]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NEAR: Final = 200_000_000
"""Microseconds: clocks of simulated nodes are off by up to three minutes."""


class Tally(Struct, frozen=True):
    """How many there were, how many were found, and how many of both are the same."""

    real: int
    found: int
    right: int

    @property
    def precision(self) -> float:
        """The share of what was found that is right."""
        return self.right / max(self.found, 1)

    @property
    def recall(self) -> float:
        """The share of what there was that was found."""
        return self.right / max(self.real, 1)


def score_losses(journal: Path, survey: Survey) -> tuple[Tally, Tally]:
    """The losses that were found: against all real ones, and against those that can be found.

    Of the first the precision counts, of the second the recall.
    """
    lost, told = _lost_and_tellable(journal, known_here(journal))
    found = Counter(
        (one.loss.message_id, one.loss.lost.recipient, one.loss.lost.reason)
        for one in survey.found.losses
    )
    return _tally(map(_key, lost), found), _tally(map(_key, told), found)


def _lost_and_tellable(journal: Path, known: Known) -> tuple[list[Row], list[Row]]:
    """The copies that were really lost, and those of them of which the journals tell."""
    copies = pq.read_table(journal / TRUTH / "copies").to_pylist()
    lost = [copy for copy in copies if copy["lost"]]
    partial = _partly_recorded(copies, known)
    return lost, [copy for copy in lost if _can_be_found(copy, known, partial)]


def _key(copy: Row) -> tuple[str, str | None, str]:
    return copy["message_id"], copy["recipient"], copy["reason"]


def _tally(real: Iterable[tuple[Any, ...]], found: Counter[Any]) -> Tally:
    counted = Counter(real)
    return Tally(counted.total(), found.total(), (counted & found).total())


def known_here(journal: Path) -> Known:
    """What the nodes of a journal tell, found in this process."""
    data = nodes_of(list_journal(str(journal), EVERYTHING), EVERYTHING)
    return known_in(data)


def _partly_recorded(copies: list[Row], known: Known) -> set[str]:
    """The messages that passed a node which does not keep all of them."""
    doubtful = {
        node
        for node, lives in known.lives.items()
        if any(life.sample < 1 or life.gaps for life in lives)
    }
    found = set()
    for copy in copies:
        nodes = {copy["origin"], copy["node"], copy["next_node"]} - {None}
        if not copy["recorded"] or nodes & doubtful or nodes - known.lives.keys():
            found.add(copy["message_id"])
    return found


def _can_be_found(copy: Row, known: Known, partial: set[str]) -> bool:
    if not copy["recorded"]:
        return False
    if copy["reason"] == "NO_SUBSCRIBER":
        return copy["message_id"] not in partial
    if copy["outcome"] != "VANISHED":
        return True
    lives = known.lives.get(copy["next_node"], [])
    at = known.evidence().time_at(copy["next_node"], _micros(copy["at"]))
    near_a_gap = any(
        since - _NEAR <= at <= until + _NEAR for life in lives for since, until in life.gaps
    )
    return covers(lives, at, copy["message_id"]) and not near_a_gap


def score_incidents(journal: Path, incidents: Iterable[Incident]) -> tuple[Tally, Tally]:
    """The incidents that were found: against the injected faults, and those that can be found.

    A fault can be found if one of its losses can, or if it shows without any.
    """
    known = known_here(journal)
    faults = {
        (f["kind"], f["node"], f["participant"], f["topic"], f["from_time"], f["detail"]): f
        for f in pq.read_table(journal / TRUTH / "faults").to_pylist()
    }
    real = [f for f in faults.values() if f["node"] is None or f["node"] in known.lives]
    ids = {copy["message_id"] for copy in _lost_and_tellable(journal, known)[1]}
    told = [not fault["losses"] or not ids.isdisjoint(fault["losses"]) for fault in real]
    left = [one for one in incidents if _is_of_the_record(one, known)]
    count = len(left)
    right = [_is_taken(fault, left) for fault in real]
    both = sum(map(and_, right, told))
    return Tally(len(real), count, sum(right)), Tally(sum(told), count, both)


def _is_taken(fault: Row, left: list[Incident]) -> bool:
    """Whether an incident is left that is this fault; it is taken away."""
    since = _micros(fault["from_time"])
    fitting = [one for one in left if _fits(fault, one)]
    if fitting:
        left.remove(min(fitting, key=lambda one: abs(one.started - since)))
    return bool(fitting)


def _is_of_the_record(incident: Incident, known: Known) -> bool:
    """Whether an incident is about nodes that keep a journal."""
    ends = incident.cause.split()
    return (incident.node is None or incident.node in known.lives) and (
        incident.kind != LINK or all(word in known.lives for word in ends if "leaf-" in word)
    )


def _fits(fault: Row, incident: Incident) -> bool:
    if fault["kind"] != incident.kind:
        return False
    since, until = _micros(fault["from_time"]), fault["to_time"]
    end = since if until is None else _micros(until)
    near = since - _NEAR <= incident.started <= end + _NEAR
    if incident.kind == CLOCK:
        return bool(fault["node"] == incident.node)
    if incident.kind == UNHEARD:
        return incident.cause.endswith(f" {fault['topic']}") and near
    if incident.kind == LOOP:
        names: list[str | None] = [*incident.participants] or [None]
        return fault["participant"] in names and fault["node"] == incident.node
    ends = incident.cause.split() if incident.kind == LINK else [incident.node]
    if fault["node"] not in ends:
        return False
    if fault["participant"] is not None:
        named = fault["participant"] in incident.participants
        return named and (incident.kind == NEVER or abs(incident.started - since) <= _NEAR)
    if incident.kind == OTHER:
        return fault["detail"].split(",")[0] == incident.cause.split()[0] and near
    return abs(incident.started - since) <= _NEAR


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)
