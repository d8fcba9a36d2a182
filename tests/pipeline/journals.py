"""Random journals: what nodes may have written, and a quick way to write it down.

A scenario is the life of one node as hypothesis made it up: small, since hypothesis can then make
it smaller still. Spark is too slow to be started for each, so `many` collects a few hundred of them
and `journal_of` makes one journal of all, with a node for each. Instants are microseconds.
"""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from waystation.journal.layout import Stem, table_directory
from waystation.journal.read import JournalReader, RowFilter
from waystation.journal.schema import SCHEMAS
from waystation.testing import oracle
from waystation.testing.oracle import Row, Tables

BEGIN: Final = 1_700_000_000_000_000
PARTICIPANTS: Final = ("a", "b", "Ä/7")
ADDRESSES: Final = ("0#a", "1#10.0.0.2:4000", "9#0x00ff", "3#hall:80/x")
PATTERNS: Final = ("p/x", "p/+", "p/x/*", "+/x", "*", "p/+/b", "+/+/*", "q/x/b/c")
IDS: Final = (
    "p/x",
    "p/x/b",
    "p/y/b",
    "q/x",
    "q/x/b/c",
    "r/z/b/c/d",
    "p.1/x-y",
    "p",
    "p/+",
    "p/x/ä",
)
FATES: Final = (
    *["as expected"] * 8,
    *["queued first", "queued only", "lost", "one more", "one upward", "another"],
    *["a copy", "a copy upward"],
)
SEQS_OF_A_MESSAGE: Final = 8  # so many rows it may get

Event: TypeAlias = tuple[int, str, Any]
"""How many microseconds later, what, and the particulars."""


class Put(NamedTuple):
    """A put as it was asked for."""

    participant: str
    address: str
    local: bool
    visible: bool
    expiry: int | None
    sticky: bool


class Sent(NamedTuple):
    """A message that entered the node."""

    number: int
    onward: tuple[str, ...]
    back: tuple[str, ...]
    multicast_id: str | None
    expiry: int | None
    took: int
    same_instant: bool
    fate: str


class Scenario(NamedTuple):
    """The life of one node: its incarnations, each with its events, and how each began and ended.

    A gap in milliseconds lies between two incarnations; it may be negative, when the clock was set
    back.
    """

    incarnations: tuple[tuple[bool, tuple[Event, ...], bool, int], ...]
    chunk: int


def _after_begin(milliseconds: int) -> int:
    return BEGIN + 1_000 * milliseconds


expiries: Final = st.sampled_from([None, None, *map(_after_begin, range(-1, 30))])
"""On whole milliseconds, near the events, so that many a thing expires at the very instant."""

delays: Final = st.sampled_from([0, 0, 1, 400, 1_000, 1_000, 1_000, 2_000, 5_000, -1, -3_000])

puts: Final = st.builds(
    Put,
    st.sampled_from(PARTICIPANTS),
    st.sampled_from(ADDRESSES),
    st.booleans(),
    st.booleans(),
    expiries,
    st.sampled_from([False, False, False, True]),
)

_first_hops: Final = [(f"0#{name}",) for name in (*PARTICIPANTS, "nobody")]
_ways: Final = [*_first_hops, ("1#10.0.0.2:4000", "0#a"), ("0#a", "0#b"), ()]
_ways_back: Final = [
    *[(), ("0#app",), ("1#10.0.0.3:1", "0#app")] * 4,
    *[("0#x",) * 31, ("0#x",) * 32],
]

sent: Final = st.builds(
    Sent,
    number=st.integers(1, 6),
    onward=st.sampled_from(_ways),
    back=st.sampled_from(_ways_back),
    multicast_id=st.sampled_from([*[None] * 8, *IDS, *IDS[:5], *IDS[:2] * 3]),
    expiry=st.sampled_from([None, None, None, *map(_after_begin, range(0, 60, 6))]),
    took=st.sampled_from([1, 50, 1_000, 30_000]),
    same_instant=st.booleans(),
    fate=st.sampled_from(FATES),
)

events: Final = st.lists(
    st.tuples(
        delays,
        st.one_of(
            st.tuples(st.just("put"), puts),
            st.tuples(st.just("put"), puts),
            st.tuples(st.just("remove"), st.sampled_from(PARTICIPANTS)),
            st.tuples(
                st.sampled_from(["subscribe", "subscribe", "unsubscribe"]),
                st.tuples(st.sampled_from(PATTERNS), st.sampled_from(PARTICIPANTS)),
            ),
            st.tuples(st.just("message"), sent),
        ),
    ).map(lambda pair: (pair[0], *pair[1])),
    min_size=4,
    max_size=40,
).map(tuple)

scenarios: Final = st.builds(
    Scenario,
    st.lists(
        st.tuples(st.booleans(), events, st.booleans(), st.sampled_from([0, 0, 1, 7, -4])),
        min_size=1,
        max_size=3,
    ).map(tuple),
    st.sampled_from([1, 2, 5, 1_000]),
)


def many(count: int) -> list[Scenario]:
    """So many scenarios; the same ones each time, but for `make faults`."""
    found: list[Scenario] = []
    quick = settings(
        max_examples=count, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )

    @quick
    @given(scenarios)
    def keep(scenario: Scenario) -> None:
        found.append(scenario)

    keep()
    return found


def busy(seed: int, length: int = 120) -> Scenario:
    """A longer life than hypothesis makes up, with much that depends on what was before."""
    rng = random.Random(seed)
    started, stopped, gap = rng.random() < 0.8, rng.random() < 0.4, rng.choice([0, 1, 9, -4])
    lives = rng.randint(1, 3)
    happened = [[_happening(rng) for _ in range(length // lives)] for _ in range(lives)]
    return Scenario(tuple((started, tuple(life), stopped, gap) for life in happened), 1_000)


def _happening(rng: random.Random) -> Event:
    later = rng.choice([0, 1, 300, 700, 1_000, 1_000, -400])
    kind = rng.choice(["put", "put", "put", "remove", "subscribe", "unsubscribe", *["message"] * 3])
    participant, expiry = rng.choice(PARTICIPANTS), BEGIN + 1_000 * rng.randint(-1, 70)
    if kind == "put":
        local, sticky = rng.random() < 0.4, rng.random() < 0.03
        known = rng.choice([None, expiry, expiry, expiry])
        put = Put(participant, rng.choice(ADDRESSES), local, rng.random() < 0.5, known, sticky)
        return later, kind, put
    if kind == "remove":
        return later, kind, participant
    if kind != "message":
        return later, kind, (rng.choice(PATTERNS[:3]), participant)
    return (
        later,
        kind,
        Sent(
            number=rng.randint(1, 40),
            onward=rng.choice(_ways),
            back=rng.choice(_ways_back),
            multicast_id=rng.choice([None, None, *IDS[:3]]),
            expiry=rng.choice([None, None, expiry]),
            took=rng.randint(1, 2_000),
            same_instant=rng.random() < 0.1,
            fate=rng.choice(FATES),
        ),
    )


class Writing:
    """The rows of one node, while its life is told."""

    def __init__(self, node: str, family: int) -> None:
        self.node = node
        self.family = family  # nodes of one family have messages in common
        self.tables: Tables = defaultdict(list)
        self.pending: list[tuple[Row, Sent]] = []
        self.at = BEGIN
        self.incarnation = BEGIN // 1_000
        self.seq = 0

    def add(self, table: str, **columns: Any) -> Row:
        row = {
            "node": self.node,
            "incarnation": self.incarnation,
            "seq": self.seq,
            "at": self.at,
            **columns,
        }
        self.seq += 1
        self.tables[table].append(row)
        return row

    def live(self, scenario: Scenario) -> None:
        for started, happened, stopped, gap in scenario.incarnations:
            if started:
                self.add("nodes", kind="start", detail="", lost=0)
            for later, kind, particulars in happened:
                self.at += later
                self.happen(kind, particulars)
            if stopped:
                self.add("nodes", kind="stop", detail="", lost=0)
            self.at += 1_000 * gap
            self.incarnation += 5
            self.seq = 0

    def happen(self, kind: str, particulars: Any) -> None:
        if kind == "message":
            self.send(particulars)
        elif kind in ("subscribe", "unsubscribe"):
            pattern, receiver = particulars
            self.add("subscriptions", kind=kind, pattern=pattern, receiver=receiver)
        elif kind == "remove":
            gone = Put(particulars, "0#a", local=True, visible=False, expiry=None, sticky=False)
            self.add("routes", kind=kind, **gone._asdict(), accepted=True)
        else:
            self.add("routes", kind=kind, **particulars._asdict(), accepted=True)

    def send(self, message: Sent) -> None:
        """Note that a message came in; its outcomes are filled in when all tables are known."""
        received_at = self.at
        former = self.pending[-1][0] if self.pending else None
        if message.same_instant and former and former["incarnation"] == self.incarnation:
            received_at = former["received_at"]
        id = f"{self.family * 1_000 + message.number:032x}"
        if any(
            row["message_id"] == id and row["received_at"] == received_at for row, _ in self.pending
        ):
            return  # that would be the same entry once more
        row = {
            "node": self.node,
            "incarnation": self.incarnation,
            "seq": self.seq,
            "at": received_at + message.took,
            "message_id": id,
            "kind": "unicast" if message.multicast_id is None else "multicast",
            "onward": list(message.onward),
            "return": list(message.back),
            "multicast_id": message.multicast_id,
            "bytes": 10 * message.number,
            "expiry": message.expiry,
            "from_global": False,
            "received_at": received_at,
        }
        self.seq += SEQS_OF_A_MESSAGE
        self.pending.append((row, message))


def journal_of(found: list[Scenario], *, family: int = 4) -> Tables:
    """One journal with a node for each scenario."""
    tables: Tables = defaultdict(list)
    for number, scenario in enumerate(found):
        writing = Writing(f"node-{number}", number // family)
        writing.live(scenario)
        _note_acceptance(writing.tables)
        _fill_in(writing)
        for table, rows in writing.tables.items():
            tables[table] += rows
    return tables


def _note_acceptance(tables: Tables) -> None:
    """Puts say that they were accepted where the rules say so; every ninth claims the opposite."""
    decided = oracle.decisions(tables)
    for row in tables["routes"]:
        name = row["node"], row["incarnation"], row["seq"]
        if name in decided:
            row["accepted"] = decided[name] != (row["seq"] % 9 == 8)


def _fill_in(writing: Writing) -> None:
    """Give each message the outcomes that the rules ask for, unless it has another fate."""
    for row, message in writing.pending:
        rest = {table: rows for table, rows in writing.tables.items() if table != "messages"}
        verdicts = oracle.expected({**rest, "messages": [row]})
        writing.tables["messages"] += _outcomes(row, message, verdicts)


def _outcomes(row: Row, message: Sent, verdicts: list[Row]) -> list[Row]:
    rows = [_outcome(row, number, verdict) for number, verdict in enumerate(verdicts)]
    if message.fate.startswith("queued"):
        queued = _outcome(row, 0, {**_NOTHING, "outcome": "QUEUED"})
        later = [{**late, "seq": late["seq"] + 1, "at": late["at"] + 5} for late in rows]
        return [queued, *(later if message.fate == "queued first" else ())]
    if message.fate == "lost" and len(rows) > 1:
        return rows[1:]
    if message.fate == "one more":
        delivered = {**_NOTHING, "outcome": "DELIVERED", "recipient": "zoe"}
        return [*rows, _outcome(row, len(rows), delivered)]
    if message.fate == "one upward":
        upward = {**_NOTHING, "outcome": "FORWARDED", "address": "0#parent"}
        return [*rows, _outcome(row, len(rows), upward)]
    if message.fate.startswith("a copy") and message.multicast_id is not None:
        copy = _outcome(row, 0, {**_NOTHING, "outcome": "DROPPED", "reason": "DUPLICATE"})
        upward = {**_NOTHING, "outcome": "FORWARDED", "address": "0#parent"}
        return [copy, *([_outcome(row, 1, upward)] if message.fate.endswith("upward") else ())]
    if message.fate == "another":
        failed = {**_NOTHING, "outcome": "DROPPED", "reason": "QUEUE_FULL"}
        return [_outcome(row, 0, failed), *rows[1:]]
    return rows


_NOTHING: Final = {"reason": None, "address": None, "recipient": None}


def _outcome(row: Row, number: int, verdict: Row) -> Row:
    outcome = verdict["outcome"]
    return {
        **row,
        "seq": row["seq"] + number,
        "outcome": outcome,
        "reason": verdict["reason"],
        "next_hop": verdict["address"] if outcome == "FORWARDED" else None,
        "recipient": verdict["recipient"] if outcome == "DELIVERED" else None,
    }


def write(directory: Path, tables: Tables, *, seed: int = 0, chunk: int | None = None) -> Path:
    """Write rows as a journal, in files of any size, in any order; `chunk` fixes their size."""
    rng = random.Random(seed)
    files = []
    for table, rows in tables.items():
        for (node, incarnation), own in oracle.grouped(rows, "node", "incarnation").items():
            size = chunk or rng.choice([1, 9, *[10_000] * 18])
            starts = range(0, len(own), size)
            files += [(table, node, incarnation, own[first : first + size]) for first in starts]
    rng.shuffle(files)
    for table, node, incarnation, own in files:
        target = table_directory(directory, table, node)
        target.mkdir(parents=True, exist_ok=True)
        columns = [{name: row.get(name) for name in SCHEMAS[table].names} for row in own]
        arrow = pa.Table.from_pylist(columns, SCHEMAS[table])
        pq.write_table(arrow, target / Stem(incarnation, own[0]["seq"]).sealed)
    directory.mkdir(exist_ok=True)
    return directory


def read(directory: Path) -> Tables:
    """The rows of a journal, for the oracle."""
    tables: Tables = {}
    for table in SCHEMAS:
        found = JournalReader(
            directory, _no_problem, RowFilter(tables=frozenset({table}))
        ).entries()
        rows = [{"node": entry.node, **entry.fields} for entry in found]
        if rows:
            tables[table] = rows
    return tables


def _no_problem(path: Path, problem: str) -> None:
    raise AssertionError(f"{path}: {problem}")
