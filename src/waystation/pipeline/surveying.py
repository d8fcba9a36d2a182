"""Survey a journal for what traces need to know of all nodes, before their messages meet.

Each node tells of itself: its incarnations and what is on record of them, what it measured of the
clocks of its peers, and its sessions with brokers. That is little, and goes to every task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from waystation.core.corrections import Link, corrections
from waystation.core.coverage import Life, NodeRow, lives_of
from waystation.core.visits import GLOBAL
from waystation.journal.schema import MESSAGES, NODES, SCHEMAS, SESSIONS
from waystation.pipeline.kernels.evidence import Known
from waystation.pipeline.kernels.links import links_of
from waystation.pipeline.kernels.node_data import FileData

if TYPE_CHECKING:
    from waystation.pipeline.journal import Journal

_TOLD: Final = pa.schema({"told": pa.binary()})
_TABLES: Final = (NODES, *(table for table in SCHEMAS if table != NODES))


class NodeFacts(Struct, frozen=True):
    """What one node tells."""

    node: str
    lives: list[Life]
    links: dict[int, list[Link]]  # by the hour
    brokers: list[tuple[int, str]]  # incarnation and session
    has_answers: bool


def known_of(journal: Journal) -> Known:
    """What the nodes of a journal tell; it is read here, once."""
    if journal.known is not None:
        return journal.known

    def work(data: FileData) -> Iterator[pa.Table]:
        yield pa.table({"told": [msgspec.msgpack.encode(facts_of(data))]}, schema=_TOLD)

    rows = journal.work(_TABLES, work, _TOLD, split=False).collect()
    facts = (msgspec.msgpack.decode(bytes(row[0]), type=NodeFacts) for row in rows)
    journal.known = combined(facts)
    return journal.known


def combined(facts: Iterable[NodeFacts]) -> Known:
    """What all nodes tell together."""
    facts = list(facts)
    lives: dict[str, list[Life]] = {}
    brokers: set[tuple[str, int, str]] = set()
    has_answers = False
    for found in facts:
        if found.lives:
            lives[found.node] = found.lives
        brokers |= {(found.node, incarnation, session) for incarnation, session in found.brokers}
        has_answers |= found.has_answers
    hours = {hour: corrections(measured) for hour, measured in all_links(facts).items()}
    return Known(lives, hours, frozenset(brokers), has_answers)


def all_links(facts: Iterable[NodeFacts]) -> dict[int, list[Link]]:
    """What all nodes measured of each other, by the hour."""
    links: dict[int, list[Link]] = {}
    for found in facts:
        for hour, measured in found.links.items():
            links.setdefault(hour, []).extend(measured)
    return links


def facts_of(data: FileData) -> NodeFacts:
    """What the journal of one node tells."""
    begins, latest = data.lifetimes().begins(), data.latest()
    records = {number: (at, latest.get(number, at)) for number, at in begins.items()}
    lives = lives_of(records, node_rows(data.small_table(NODES)), data.record_before)
    return NodeFacts(
        data.node,
        lives,
        hourly_links(data),
        brokers_in(data.small_table(SESSIONS)),
        data.has_values(MESSAGES, "answers"),
    )


def node_rows(rows: pa.Table) -> list[NodeRow]:
    """Rows of `nodes` as the core takes them."""
    names = ("incarnation", "seq", "at", "kind", "detail")
    columns = [rows.column(name) for name in names]
    columns[2] = columns[2].cast(pa.int64())
    return [NodeRow(*row) for row in zip(*(values.to_pylist() for values in columns), strict=True)]


def hourly_links(data: FileData) -> dict[int, list[Link]]:
    """What a node measured of its peers, by the hour."""
    found: dict[int, list[Link]] = {}
    for table in links_of(data):
        for row in table.to_pylist():
            found.setdefault(row.pop("hour"), []).append(Link(**row))
    return found


def brokers_in(sessions: pa.Table) -> list[tuple[int, str]]:
    """The sessions of a node with brokers, by the last role that each is said to have."""
    rows = sessions.filter(pc.is_valid(sessions.column("role"))).sort_by(
        [("incarnation", "ascending"), ("seq", "ascending")]
    )
    names = ("incarnation", "session", "role")
    told = zip(*(rows.column(name).to_pylist() for name in names), strict=True)
    roles = {(incarnation, session): role for incarnation, session, role in told}
    return [session for session, role in roles.items() if role == GLOBAL]
