"""Incidents: what was lost of late, by its cause; and whose journals end too early to tell more.

Only the newest files of a journal are read, and a bounded number of groups is explained: what is
left out is said. This module needs pyarrow.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from waystation.console.journal_follower import MessageRow
from waystation.errors import LocalError
from waystation.journal.layout import all_nodes
from waystation.journal.read import TableReader, last_instant
from waystation.journal.schema import NODES, NodeKind
from waystation.why import explain

MAX_EXPLAINED: Final = 16
"""Maximum number of groups whose cause is looked up."""

MAX_KNOWN: Final = 1_000
"""Maximum number of groups whose cause is remembered."""

PATIENCE: Final = 2.0
"""Seconds for which causes are looked up at a time; in a large fleet each may take one."""

EPISODE: Final = 5 * 60_000_000
"""Microseconds without drops after which those that follow are another incident."""

MAX_NODES: Final = 1_000
"""Maximum number of nodes whose journals are looked at for their end."""

LATE: Final = 11 * 60_000_000
"""Microseconds without a record after which a node counts as missing.

One that has a session writes at least how clocks differ, every ten minutes.
"""


_NUMBERS: Final = re.compile(r"(?<![\w-])[0-9][0-9.,:]*(?![\w-])")


class LossGroup(Struct, frozen=True, kw_only=True):
    """Drops at one node, for one reason and one recipient; times in microseconds."""

    node: str
    reason: str
    recipient: str
    count: int
    first: int
    last: int
    message_id: str  # of the latest
    cause: str  # of the latest; empty if it is not known


class Incident(Struct, frozen=True, kw_only=True):
    """Losses that have one cause; times in microseconds."""

    cause: str  # of the latest loss; empty if it is not known
    reasons: list[str]
    nodes: list[str]  # where messages were dropped
    recipients: list[str]
    count: int
    first: int
    last: int
    message_id: str  # of the latest


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


class Incidents:
    """What the feed of the console shows; remembers the causes that were looked up."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._causes: dict[tuple[str, str, str, int], str] = {}

    def of(self, losses: Iterable[MessageRow], patience: float = PATIENCE) -> list[Incident]:
        """Drops by their cause, the latest first.

        What there is no time to look up now has no cause yet; it is looked up the next time.
        """
        groups = grouped(losses)
        deadline = time.monotonic() + patience
        for group in groups[:MAX_EXPLAINED]:
            if _key(group) not in self._causes and time.monotonic() < deadline:
                self._causes[_key(group)] = cause(self._journal, group)
        while len(self._causes) > MAX_KNOWN:
            del self._causes[next(iter(self._causes))]
        return together(replace(group, cause=self._causes.get(_key(group), "")) for group in groups)


def _key(group: LossGroup) -> tuple[str, str, str, int]:
    return group.node, group.reason, group.recipient, group.first


def together(groups: Iterable[LossGroup]) -> list[Incident]:
    """Groups of drops that have the same cause, at about the same time, as incidents."""
    found: dict[tuple[str, str], list[list[LossGroup]]] = {}
    for group in sorted(groups, key=lambda group: group.first):
        kind = _NUMBERS.sub("#", group.cause) or f"{group.node}: {group.reason}"
        same = found.setdefault((kind, "" if group.cause else group.recipient), [])
        if same and group.first - max(one.last for one in same[-1]) <= EPISODE:
            same[-1].append(group)
        else:
            same.append([group])
    made = [_incident(same) for several in found.values() for same in several]
    return sorted(made, key=lambda incident: incident.last, reverse=True)


def _incident(groups: Sequence[LossGroup]) -> Incident:
    latest = max(groups, key=lambda group: group.last)
    return Incident(
        cause=latest.cause,
        reasons=sorted({group.reason for group in groups}),
        nodes=sorted({group.node for group in groups}),
        recipients=sorted({group.recipient for group in groups if group.recipient}),
        count=sum(group.count for group in groups),
        first=min(group.first for group in groups),
        last=latest.last,
        message_id=latest.message_id,
    )


def grouped(losses: Iterable[MessageRow]) -> list[LossGroup]:
    """Drops by node, reason and recipient, without their causes; the latest group first.

    After a long time without drops, a new group begins.
    """
    groups: dict[tuple[str, str, str], list[list[MessageRow]]] = {}
    for loss in sorted(losses, key=lambda loss: loss.at):
        key = loss.node, loss.reason or "?", loss.recipient or ""
        same = groups.setdefault(key, [])
        if same and loss.at - same[-1][-1].at <= EPISODE:
            same[-1].append(loss)
        else:
            same.append([loss])
    found = [_group(key, rows) for key, several in groups.items() for rows in several]
    return sorted(found, key=lambda group: group.last, reverse=True)


def _group(key: tuple[str, str, str], rows: Sequence[MessageRow]) -> LossGroup:
    node, reason, recipient = key
    latest = max(rows, key=lambda row: row.at)
    return LossGroup(
        node=node,
        reason=reason,
        recipient=recipient,
        count=len(rows),
        first=min(row.at for row in rows),
        last=latest.at,
        message_id=latest.message_id,
        cause="",
    )


def cause(journal: Path, group: LossGroup) -> str:
    """Why the latest message of a group was dropped, as `why` tells it."""
    try:
        explanation = explain(journal, group.message_id)
    except (LocalError, OSError):
        return ""
    told = [hop.explanation for hop in explanation.hops if hop.node == group.node]
    return next((words for words in reversed(told) if words), "")


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
