"""Journals of made-up fleets, and the tables that a build would make of them, without Spark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec.structs import asdict

from tests.core.journeys import BEGIN, MINUTE, NODES, SECOND, SHORT, SILENT, Journey, role_of
from tests.pipeline.small import put_rows
from waystation.core.corrections import HOUR, TRAFFIC, Link, Measured, corrections
from waystation.core.coverage import Life
from waystation.core.visits import Step
from waystation.pipeline.clocks import clocks_by_hour
from waystation.pipeline.inprocess import nodes_of, plain_rows
from waystation.pipeline.kernels.columns import coded_name
from waystation.pipeline.kernels.evidence import Facts
from waystation.pipeline.kernels.tracing import coded_steps, together, trace
from waystation.pipeline.listing import EVERYTHING, list_journal
from waystation.pipeline.surveying import all_links, facts_of, known_in, with_estimates
from waystation.pipeline.tables import BUILT, BY_NAME, maker, table_of
from waystation.testing import oracle
from waystation.testing.oracle import Row, Tables
from waystation.why.lookup import MessageLookup
from waystation.why.tables import TableLookup

INCARNATION = 1
KNOWN = [node for node in NODES if node not in SILENT]


class MadeUp:
    """Messages on their way over nodes whose clocks are minutes apart."""

    def __init__(
        self,
        seed: int,
        count: int,
        ahead: Mapping[str, int] | None = None,
        *,
        measured: bool = True,
    ) -> None:
        self._random = random = Random(seed)
        self._measured = measured
        self.ahead = (
            dict(ahead) if ahead else {n: random.choice((0, 3, -3)) * MINUTE for n in NODES}
        )
        self.journeys: dict[str, list[Journey]] = {}
        for number in range(count):
            self._send(number * 1_000)

    def _send(self, first: int) -> None:
        random = self._random
        seed, known = random.getrandbits(32), sorted(self.journeys)
        id, request = f"{random.getrandbits(128):032x}", None
        begin, start = BEGIN + random.randrange(20 * 60 * SECOND), None
        if known and random.random() < 0.05:
            id = random.choice(known)  # somebody else chose the same id
        if known and random.random() < 0.3:
            request = random.choice(known)
            last = self.journeys[request][0].steps[-1]
            begin, start = last.at - self.ahead[last.node], last.node
        journey = Journey(seed, self.ahead, begin, first, request, start)
        self.journeys.setdefault(id, []).append(journey)

    def journal(self, *, old: frozenset[str] = frozenset()) -> Tables:
        """All rows; those of the `old` nodes are of version 1."""
        by_node: dict[str, list[tuple[str, Step]]] = defaultdict(list)
        for id, journeys in self.journeys.items():
            for journey in journeys:
                for step in journey.steps:
                    by_node[step.node].append((id, step))
        tables: Tables = {
            "nodes": [],
            "sessions": [self._clock(a, b, n) for n, (a, b) in enumerate(self._pairs())],
            "messages": [],
        }
        for node in KNOWN:
            tables["nodes"].append(
                _row(node, 0, BEGIN - 9 * MINUTE, kind="start", detail="", lost=0)
            )
            found = sorted(by_node[node], key=lambda one: one[1].at)
            named = {s for _, step in found for s in (step.via, step.out) if s}
            sessions = sorted(s for s in named if role_of(s) == "global")  # others do not matter
            for seq, session in enumerate(sessions, 100):
                about = {"session": session, "role": role_of(session), "kind": "open"}
                tables["sessions"].append(_session(node, seq, BEGIN - 8 * MINUTE, **about))
            for seq, (id, step) in enumerate(found, 100_000):
                tables["messages"].append(_message(id, step, seq, old=node in old))
            if node not in SHORT:  # its record goes on
                late = BEGIN + 50 * MINUTE
                tables["nodes"].append(_row(node, 10**9, late, kind="clock", detail="", lost=0))
        return tables

    def _pairs(self) -> list[tuple[str, str]]:
        return [("a", other) for other in KNOWN if other != "a" and self._measured]

    def _clock(self, node: str, peer: str, number: int) -> Row:
        """A measurement, which is exact."""
        about = {"session": f"link-{peer}", "role": "peer", "kind": "clock", "rtt_us": 100}
        offset = self.ahead[peer] - self.ahead[node]
        return _session(node, 50 + number, BEGIN, peer=peer, offset_us=offset, **about)


def _row(node: str, seq: int, at: int, **columns: Any) -> Row:
    return {"node": node, "incarnation": INCARNATION, "seq": seq, "at": at, **columns}


def _session(node: str, seq: int, at: int, **columns: Any) -> Row:
    names = ("transport", "place", "peer", "peer_incarnation", "identity", "reason", "detail")
    nothing = dict.fromkeys((*names, "offset_us", "rtt_us"))
    return _row(node, seq, at, **{**nothing, **columns})


def _message(id: str, step: Step, seq: int, *, old: bool) -> Row:
    row = {**asdict(step), "message_id": id, "seq": seq, "return": list(step.back), "bytes": 1}
    row |= {"kind": "multicast" if step.multicast_id else "unicast", "onward": list(step.onward)}
    del row["back"]
    if old:
        nothing = ("via", "from_node", "out", "next_node", "origin", "answers", "copy", "sender")
        row |= {**dict.fromkeys(nothing), "internal": None, "version": 1}
        if step.outcome != "DELIVERED":
            row["recipient"] = None
    return row


def damaged(journal: Tables, seed: int) -> Tables:
    """What is left of a journal after all that may happen to one, and messages that fare worse.

    Of requests with an answer single rows stay: an answer is looked for where its request was.
    """
    random = Random(seed)
    requests = {row["answers"] for row in journal["messages"]}
    for row in journal["messages"]:
        _mishap(row, random, late=row["message_id"] not in requests)
    ours = {"", *requests}
    gone = {node for node in KNOWN if random.random() < 0.1}
    early = {node for node in KNOWN if random.random() < 0.15}
    cut = BEGIN + random.randrange(40) * MINUTE
    kept = {
        table: [
            row
            for row in rows
            if row["node"] not in gone
            and not (row["node"] in early and row["at"] > cut)
            and (row.get("message_id", "") in ours or random.random() < 0.98)
        ]
        for table, rows in journal.items()
    }
    for node in {row["node"] for row in kept["nodes"]}:
        _ended(kept, node, random)
    return kept


def _mishap(row: Row, random: Random, *, late: bool) -> None:
    """Let a message wait in a store, or be dropped for another reason, or a day `late`."""
    if row["outcome"] == "QUEUED":
        row["durable"] = random.choice((None, True))
        row["expiry"] = random.choice((None, row["at"] + random.randrange(40) * MINUTE))
    if row["outcome"] == "DROPPED":
        row["reason"] = random.choice(
            ("EXPIRED", "HOP_LIMIT", "NO_ROUTE", "NO_SUBSCRIBER", "DUPLICATE", "FAILED")
        )
        row["expiry"] = row["received_at"] + random.randrange(-5, 5) * SECOND
    if late and random.random() < 0.02:
        row["at"] += 25 * 60 * MINUTE
        row["received_at"] += random.choice((0, 25 * 60 * MINUTE))


def _ended(journal: Tables, node: str, random: Random) -> None:
    """Let a node lose records, keep a sample, stop, or be started again."""
    at = BEGIN + random.randrange(60) * MINUTE
    if random.random() < 0.3:
        kind = random.choice(("lost", "corrupt", "stop"))
        journal["nodes"].append(_row(node, random.randrange(10**6), at, kind=kind, lost=3))
    if random.random() < 0.15:
        first = next(row for row in journal["nodes"] if row["node"] == node)
        first["detail"] = "waystation 0.2.0 sample=0.5"
    if random.random() < 0.3:
        for rows in journal.values():
            for row in rows:
                if row["node"] == node and (row.get("received_at") or row["at"]) > at:
                    row["incarnation"] = INCARNATION + 1
        again = _row(node, 0, at, kind="start", detail="", lost=0)
        journal["nodes"].append({**again, "incarnation": INCARNATION + 1})


class TablesInMemory(TableLookup):
    """What `write_tables` writes, for who asks about many messages."""

    def __init__(self, journal: Tables, *only: str) -> None:
        self._rows = {
            table: _as_built(table, rows)
            for table, rows in _built(journal).items()
            if not only or table in only
        }

    def traces(self, message_id: str) -> list[Row]:
        return self.rows("traces", pc.field("message_id") == message_id)

    def rows(self, table: str, wanted: pc.Expression | None = None) -> list[Row]:
        found = self._rows.get(table)
        if found is None:
            return []
        return plain_rows(found if wanted is None else found.filter(wanted))


class InMemory(MessageLookup):
    """A journal that is not in files."""

    def __init__(self, journal: Tables) -> None:
        super().__init__(Path("nowhere"))
        self._tables = journal
        self._lives = oracle.lives_of(journal)
        self.nodes = sorted(self._lives)
        self._by_id: dict[str, list[Row]] = defaultdict(list)
        self._answers: dict[tuple[str, str], set[str]] = defaultdict(set)
        for row in journal["messages"]:
            self._by_id[row["message_id"]].append(row)
            self._answers[row["node"], row["answers"]].add(row["message_id"])
        self._kept: dict[tuple[str, str], list[Row]] = defaultdict(list)
        for table, rows in journal.items():
            for row in sorted(rows, key=lambda row: row["seq"]):
                self._kept[table, row["node"]].append(row)

    def message(self, id: str) -> list[Row]:
        return self._by_id[id]

    def answers(self, node: str, id: str, since: int) -> set[str]:
        del since
        return self._answers[node, id]

    def lives(self, node: str) -> list[Life]:
        return self._lives[node]

    def measured(self) -> list[Measured]:
        columns = ("at", "session", "peer", "offset_us", "rtt_us")
        return [
            Measured(node, *(row[column] for column in columns))
            for node in self.nodes
            for row in self._kept["sessions", node]
            if row["kind"] == "clock"
        ]

    def estimates(self, measured: Mapping[int, list[Link]], hour: int) -> list[Link]:
        del measured
        links = oracle.links_of(self._tables).get(hour, [])
        return [link for link in links if link.source == TRAFFIC]

    def _rows(
        self, table: str, node: str, incarnation: int | None, wanted: pc.Expression | None
    ) -> list[Row]:
        del incarnation, wanted  # there are no routes, and one incarnation
        return self._kept[table, node]


def write_journal(directory: Path, journal: Tables) -> None:
    """The files of a journal, one for each table, node and version."""
    for table, rows in journal.items():
        groups: dict[tuple[str, int], list[Row]] = defaultdict(list)
        for row in rows:
            groups[row["node"], row.get("version", 1)].append(row)
        for (node, version), found in groups.items():
            found.sort(key=lambda row: row["seq"])
            put_rows(directory, table, found, node, version=version)


def write_tables(directory: Path, journal: Tables) -> None:
    """The tables that tell of messages, as the oracle makes them."""
    for table, rows in _built(journal).items():
        (directory / table).mkdir(parents=True)
        pq.write_table(_as_built(table, rows), directory / table / "part-0.parquet")


def _built(journal: Tables) -> dict[str, list[Row]]:
    return {
        "traces": oracle.traces(journal),
        "coverage": _coverage(journal),
        "clocks": _clocks(journal),
        "session_history": _session_history(journal),
    }


def _coverage(journal: Tables) -> list[Row]:
    return [
        {
            "node": node,
            "incarnation": life.incarnation,
            "from_time": life.begins,
            "to_time": life.latest,
            "sample": life.sample,
            "lost": sum(
                row["lost"]
                for row in journal["nodes"]
                if (row["node"], row["kind"]) == (node, "lost")
            ),
            "sealed": True,
            "ended_by": "stop" if life.stopped else None if life.ends is None else "crash",
        }
        for node, lives in oracle.lives_of(journal).items()
        for life in lives
    ]


def _clocks(journal: Tables) -> list[Row]:
    found = []
    for hour, links in oracle.links_of(journal).items():
        known = corrections(links)
        found += [
            {
                "node": link.node,
                "peer": link.peer,
                "from_time": hour,
                "to_time": hour + HOUR,
                "offset_us": link.offset_us,
                "rtt_us": link.rtt_us,
                "source": link.source,
                "correction_us": known[link.node],
            }
            for link in links
        ]
    return found


def _session_history(journal: Tables) -> list[Row]:
    same = ("node", "incarnation", "session", "role", "transport", "place", "peer", "identity")
    return [
        {**{name: row[name] for name in same}, "opened_at": row["at"]}
        for row in journal["sessions"]
        if row["kind"] == "open"
    ]


def _as_built(table: str, rows: Sequence[Row]) -> pa.Table:
    schema = BUILT[table]
    return pa.Table.from_pylist(
        [{name: row.get(name) for name in schema.names} for row in rows], schema
    )


class TablesOf(TablesInMemory):
    """The tables of a journal in a directory, made by what a build runs in its tasks."""

    def __init__(self, journal: Path) -> None:
        data = list(nodes_of(list_journal(str(journal), EVERYTHING), EVERYTHING))
        known = known_in(data)
        steps = [
            coded_steps(rows.append_column("node", coded_name(one.node, rows.num_rows)))
            for one in data
            for rows in one.coded_batches("messages")
        ]
        links = with_estimates(all_links(map(facts_of, data)), known.estimated)
        self._rows = {
            "traces": trace(together(steps), paths=True, facts=Facts(known)),
            "clocks": clocks_by_hour(links),
        }
        for name in ("route_history", "expected", "audit", "session_history", "coverage"):
            make, schema = maker(BY_NAME[name].made_by), BUILT[name]
            parts = [part for one in data for part in make(one, {name}) if table_of(part) == name]
            self._rows[name] = pa.concat_tables(
                [part.select(schema.names).cast(schema) for part in parts] or [schema.empty_table()]
            )
