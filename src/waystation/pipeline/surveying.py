"""Survey a journal for what traces need to know of all nodes, before their messages meet.

Each node tells of itself: its incarnations and what is on record of them, what it measured of the
clocks of its peers, and its sessions with brokers. That is little, and goes to every task. Only if
nodes had traffic with each other in an hour whose measurements do not connect them, the messages
between them are read as well, for what these tell of clocks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field
from msgspec.structs import replace

from waystation.core.corrections import (
    Delay,
    Link,
    corrections,
    estimates,
    groups_of,
    strangers,
)
from waystation.core.coverage import Life, NodeRow, damages, lives_of
from waystation.core.visits import GLOBAL
from waystation.journal.schema import MESSAGES, NODES, SCHEMAS, SESSIONS
from waystation.pipeline.kernels.evidence import Known
from waystation.pipeline.kernels.links import links_of
from waystation.pipeline.kernels.node_data import FileData
from waystation.pipeline.kernels.passing import (
    DELAYS,
    ENDS,
    delays_in,
    delays_of,
    ends_of,
    peers_by_hour,
)

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
    unmeasured: dict[int, list[str]] = field(default_factory=dict)  # peers, by the hour


Strangers = dict[str, dict[int, list[str]]]
"""For each node and hour, the peers that no measurements of the hour connect it with."""


def known_of(journal: Journal) -> Known:
    """What the nodes of a journal tell; it is read here, once."""
    if journal.known is not None:
        return journal.known

    def work(data: FileData) -> Iterator[pa.Table]:
        yield pa.table({"told": [msgspec.msgpack.encode(facts_of(data))]}, schema=_TOLD)

    rows = journal.work(_TABLES, work, _TOLD, split=False).collect()
    facts = [msgspec.msgpack.decode(bytes(row[0]), type=NodeFacts) for row in rows]
    journal.known = combined(facts, _delays(journal, strangers_in(facts)))
    return journal.known


def _delays(journal: Journal, apart: Strangers) -> list[Delay]:
    """The least delays between nodes of which nothing was measured: their messages meet by id."""
    if not apart:
        return []

    def ends(data: FileData) -> Iterator[pa.Table]:
        return ends_of(data, apart.get(data.node, {}))

    def meet(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        held = list(batches)
        if held:
            yield delays_of(pa.Table.from_batches(held))

    from waystation.pipeline.work import mapped  # noqa: PLC0415 - it needs Spark

    told = journal.work((MESSAGES,), ends, ENDS).repartition("message_id")
    rows = mapped(told, meet, DELAYS).collect()
    return [Delay(*row) for row in rows]


def known_in(data: Iterable[FileData]) -> Known:
    """What the nodes of a journal tell, found in this process."""
    data = list(data)
    with ThreadPoolExecutor(os.cpu_count()) as threads:  # Arrow releases the GIL
        found = list(threads.map(_own_facts, data))
    connected = connected_hours(found)
    facts = [
        replace(told, unmeasured=unmeasured(peers_by_hour(one, connected), told.links))
        for one, told in zip(data, found, strict=True)
    ]
    return combined(facts, delays_in(data, strangers_in(facts)))


def connected_hours(facts: Sequence[NodeFacts]) -> set[int]:
    """The hours in which measurements connect all of these nodes: none of them are strangers."""
    nodes = {found.node for found in facts}
    groups = {hour: groups_of(links) for hour, links in all_links(facts).items()}
    return {hour for hour, of in groups.items() if len({of.get(node, node) for node in nodes}) == 1}


def strangers_in(facts: Iterable[NodeFacts]) -> Strangers:
    """The nodes whose traffic must tell of their clocks."""
    facts = list(facts)
    peers = {found.node: found.unmeasured for found in facts}
    return strangers(all_links(facts), peers)


def combined(facts: Iterable[NodeFacts], delays: Iterable[Delay] = ()) -> Known:
    """What all nodes tell together, and what the messages between them tell of clocks."""
    facts = list(facts)
    lives: dict[str, list[Life]] = {}
    brokers: set[tuple[str, int, str]] = set()
    has_answers = False
    for found in facts:
        if found.lives:
            lives[found.node] = found.lives
        brokers |= {(found.node, incarnation, session) for incarnation, session in found.brokers}
        has_answers |= found.has_answers
    estimated = estimates(delays)
    links = with_estimates(all_links(facts), estimated)
    hours = {hour: corrections(found) for hour, found in links.items()}
    return Known(lives, hours, frozenset(brokers), has_answers, estimated)


def with_estimates(
    measured: Mapping[int, list[Link]], estimated: Mapping[int, list[Link]]
) -> dict[int, list[Link]]:
    """All that is known of clocks, by the hour."""
    hours = measured.keys() | estimated.keys()
    return {hour: [*measured.get(hour, ()), *estimated.get(hour, ())] for hour in hours}


def all_links(facts: Iterable[NodeFacts]) -> dict[int, list[Link]]:
    """What all nodes measured of each other, by the hour."""
    links: dict[int, list[Link]] = {}
    for found in facts:
        for hour, measured in found.links.items():
            links.setdefault(hour, []).extend(measured)
    return links


def facts_of(data: FileData) -> NodeFacts:
    """What the journal of one node tells."""
    found = _own_facts(data)
    return replace(found, unmeasured=unmeasured(peers_by_hour(data), found.links))


def _own_facts(data: FileData) -> NodeFacts:
    """The same without the peers that it did not measure, which take reading its messages."""
    begins, latest = data.lifetimes().begins(), data.latest()
    records = {number: (at, latest.get(number, at)) for number, at in begins.items()}
    told = [*node_rows(data.small_table(NODES)), *damages(records, data.damaged_tails())]
    lives = lives_of(records, told, data.record_before)
    return NodeFacts(
        data.node,
        lives,
        hourly_links(data),
        brokers_in(data.small_table(SESSIONS)),
        data.has_values(MESSAGES, "answers"),
    )


def unmeasured(
    peers: Mapping[int, Iterable[str]], links: Mapping[int, list[Link]]
) -> dict[int, list[str]]:
    """The peers in each hour that a node did not measure itself."""
    found = {
        hour: sorted(set(names) - {link.peer for link in links.get(hour, ())})
        for hour, names in peers.items()
    }
    return {hour: names for hour, names in found.items() if names}


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
