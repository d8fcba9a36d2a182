"""What a journal knows of a fleet at any past moment: nodes, sessions, routes and subscriptions.

The rows about structure are read once and then followed; those about messages are in movements.py.
Clocks are corrected as in explanations (TM-3): a moment is one of the reference clock, and each
node is looked at by its own. A routing entry is judged as the routing table does it. This module
needs pyarrow.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from waystation.core.address import LOCAL
from waystation.core.corrections import HOUR, Link, Measured, links_by_hour
from waystation.core.expiry import NEVER
from waystation.core.message import INTERNAL
from waystation.core.routing import RoutingEntry, RoutingTable
from waystation.journal.layout import all_nodes
from waystation.journal.read import TableReader, instants_as_integers
from waystation.journal.schema import (
    CLAIMS,
    INSTANT,
    MEMBERS,
    NODES,
    ROUTES,
    SCHEMAS,
    SESSIONS,
    SUBSCRIPTIONS,
    NodeKind,
)
from waystation.node.status import SubscriptionStatus
from waystation.why.clocks import Clocks
from waystation.why.journal import entry_of

if TYPE_CHECKING:
    from waystation.pipeline.traffic import Traffic

KEPT: Final = 60.0
"""Seconds for which what the traffic of the last hours tells of clocks is taken as it was."""

MAX_NODES: Final = 2_000
"""Maximum number of nodes whose history is read."""

MAX_ROWS: Final = 2_000_000
"""Maximum number of rows about structure that are kept in memory."""

MAX_CHANGES: Final = 200_000
"""Maximum number of changes of sessions and nodes that are listed."""

Row = dict[str, Any]


class Life(Struct):
    """An incarnation of a node; times in microseconds of its own clock."""

    node: str
    incarnation: int
    since: int
    latest: int  # its last row about structure
    stopped: int | None = None


class SessionSpan(Struct):
    """A session of a node while it was open, by the node's clock."""

    node: str
    incarnation: int
    peer: str
    transport: str
    place: str
    role: str
    since: int
    until: int | None = None
    ending: str = ""
    was_lost: bool = False  # or ended in order


class MemberSpan(Struct):
    """A member of a group at a gossip router, by the router's clock."""

    router: str
    group: str
    name: str
    since: int
    until: int | None = None


class Change(Struct, frozen=True):
    """A change of the fleet's structure, for people; `at` is a time of the reference clock."""

    at: int
    node: str
    text: str
    bad: bool = False


class RouteThen(Struct, frozen=True):
    """A routing entry of a past moment; `expiry` in microseconds, None for never."""

    participant: str
    address: str
    peer: str  # that the address led to; empty if it was no session
    local: bool
    sticky: bool
    expiry: int | None
    proven: bool | None = None  # whether who claimed it had proven who it is (ID-2)


class Tables(Struct, frozen=True, kw_only=True):
    """Routes and subscriptions of a node at a moment: some of them, and how many there were."""

    routes: list[RouteThen] = []
    routes_fitting: int = 0
    routes_total: int = 0
    subscriptions: list[SubscriptionStatus] = []
    subscriptions_fitting: int = 0
    subscriptions_total: int = 0


class _Traffic:
    """What traffic tells of clocks, hour by hour; of an hour that is over it is read once."""

    def __init__(self, journal: Path) -> None:
        self._journal = str(journal)
        self._known: dict[int, list[Link]] = {}
        self._read: Traffic | None = None
        self._fresh_until = 0.0

    def links(self, measured: Mapping[int, list[Link]], hour: int, last: int) -> list[Link]:
        """What an hour tells, if the last record is of then."""
        if hour in self._known:
            return self._known[hour]
        if self._read is None or time.monotonic() > self._fresh_until:
            # It is needed for few journals, and takes long to import.
            from waystation.pipeline.traffic import Traffic  # noqa: PLC0415

            self._read, self._fresh_until = (
                Traffic(self._journal, measured),
                time.monotonic() + KEPT,
            )
        found = self._read.links(hour)
        if hour + 2 * HOUR < last:
            self._known[hour] = found
        return found


class History:
    """The structure of a fleet over time, from its journal; `refresh` reads what is new."""

    def __init__(self, journal: Path, *, max_rows: int = MAX_ROWS) -> None:
        self._journal = journal
        self._max_rows = max_rows
        self._readers: dict[tuple[str, str], TableReader] = {}
        self._tables: defaultdict[tuple[str, str], list[pa.RecordBatch]] = defaultdict(list)
        self._rows = 0
        self._open: dict[tuple[str, int, str], SessionSpan] = {}
        self._members: dict[tuple[str, str], MemberSpan] = {}
        self._measured: list[Measured] = []
        self._traffic = _Traffic(journal)
        self._clocks = Clocks((), {}, lambda _: [])
        self._clocks_until = 0.0
        self._peers: dict[tuple[str, int, str], str] = {}
        self.lives: dict[str, list[Life]] = {}
        self.sessions: dict[str, list[SessionSpan]] = {}
        self.members: list[MemberSpan] = []
        self.problems: dict[str, None] = {}
        self.unread: int = 0  # nodes that were not looked at
        self.is_cut = False  # whether there are rows that were not kept
        self._bounds: dict[str, tuple[int, int]] = {}  # the first and the last row of each node

    # Reading

    def refresh(self) -> None:
        """Read the rows that were written since the last time."""
        names = all_nodes(self._journal)
        self.unread = max(0, len(names) - MAX_NODES)
        measured = len(self._measured)
        for node in names[:MAX_NODES]:
            for table in (NODES, SESSIONS, MEMBERS, ROUTES, SUBSCRIPTIONS, CLAIMS):
                self._read(table, node)
        if len(self._measured) > measured or time.monotonic() > self._clocks_until:
            self._clocks_until = time.monotonic() + KEPT
            by_hour = links_by_hour(self._measured)
            last = max((high for _, high in self._bounds.values()), default=0)
            self._clocks = Clocks(
                names, by_hour, lambda hour: self._traffic.links(by_hour, hour, last)
            )

    def _read(self, table: str, node: str) -> None:
        key = table, node
        if key not in self._readers:
            self._readers[key] = TableReader(self._journal, table, node, self._report)
        for batch in self._readers[key].batches():
            if self._rows + batch.num_rows > self._max_rows:
                self.is_cut = True
                return
            self._rows += batch.num_rows
            self._note_bounds(node, batch)
            if table in (ROUTES, SUBSCRIPTIONS, CLAIMS):
                self._tables[key].append(batch)
                continue
            take = {NODES: self._life_row, SESSIONS: self._session_row, MEMBERS: self._member_row}
            for row in instants_as_integers(batch).to_pylist():
                take[table](node, row)

    def _report(self, path: Path, problem: str) -> None:
        self.problems[f"{path}: {problem}"] = None

    def _note_bounds(self, node: str, batch: pa.RecordBatch) -> None:
        found = pc.min_max(batch.column("at").cast(pa.int64())).as_py()
        if found["min"] is not None:
            low, high = self._bounds.get(node, (found["min"], found["max"]))
            self._bounds[node] = min(low, found["min"]), max(high, found["max"])

    def _life(self, node: str, row: Row) -> Life:
        lives = self.lives.setdefault(node, [])
        found = next((life for life in lives if life.incarnation == row["incarnation"]), None)
        if found is None:
            found = Life(node, row["incarnation"], row["at"], row["at"])
            lives.append(found)
            lives.sort(key=lambda life: life.incarnation)
        found.since = min(found.since, row["at"])
        found.latest = max(found.latest, row["at"])
        return found

    def _life_row(self, node: str, row: Row) -> None:
        life = self._life(node, row)
        if row["kind"] == NodeKind.STOP:
            life.stopped = row["at"]

    def _session_row(self, node: str, row: Row) -> None:
        self._life(node, row)
        key = node, row["incarnation"], row["session"]
        span = self._open.get(key)
        if span is not None and row["role"]:
            span.role = row["role"]  # a peer becomes a leaf when it says so
        if row["kind"] == "open":
            span = self._open[key] = SessionSpan(
                node,
                row["incarnation"],
                row["peer"] or "",
                row["transport"] or "",
                row["place"] or "",
                row["role"] or "",
                row["at"],
            )
            self._peers[key] = peer_of(span)
            self.sessions.setdefault(node, []).append(span)
        elif row["kind"] == "close" and span is not None:
            span.until, span.ending = row["at"], row["detail"] or row["reason"] or "closed"
            span.was_lost = row["reason"] is not None
            del self._open[key]
        elif row["kind"] == "clock":
            columns = ("at", "session", "peer", "offset_us", "rtt_us")
            self._measured.append(Measured(node, *(row[column] for column in columns)))

    def _member_row(self, node: str, row: Row) -> None:
        self._life(node, row)
        key = node, row["uuid"]
        known = self._members.pop(key, None)
        if known is not None and row["kind"] in ("join", "address", "suspect"):
            self._members[key] = known
        elif known is not None:
            known.until = row["at"]
        elif row["kind"] == "join":
            span = MemberSpan(node, row["grp"] or "", row["name"] or "", row["at"])
            self._members[key] = span
            self.members.append(span)

    # Asking

    def clock_ahead(self, node: str, at: int) -> int:
        """How far a node's clock is ahead of the reference, in microseconds."""
        return self._clocks.ahead(node, at)

    @property
    def first(self) -> int | None:
        """The first row, by the reference clock."""
        found = self._bounds.items()
        return min((low - self.clock_ahead(node, low) for node, (low, _) in found), default=None)

    @property
    def last(self) -> int | None:
        """The last row, by the reference clock."""
        found = self._bounds.items()
        return max((high - self.clock_ahead(node, high) for node, (_, high) in found), default=None)

    def own_time(self, node: str, at: int) -> int:
        """What a node's clock showed at a moment."""
        return at + self.clock_ahead(node, at)

    def peer_over(self, node: str, incarnation: int, session: str | None) -> str:
        """What a session of a node led to; empty if that is not known."""
        return self._peers.get((node, incarnation, session or ""), "")

    def life_at(self, node: str, at: int) -> Life | None:
        """The incarnation of a node that had begun last, whether it still ran or not."""
        here = self.own_time(node, at)
        begun = [life for life in self.lives.get(node, ()) if life.since <= here]
        return begun[-1] if begun else None

    def changes(self, since: int, until: int, most: int, hidden: str = "") -> list[Change]:
        """What changed between two moments, the latest first; nothing about the peer `hidden`."""
        found = [
            change
            for change in [*self._life_changes(), *self._session_changes(hidden)][:MAX_CHANGES]
            if since <= change.at < until
        ]
        return sorted(found, key=lambda change: change.at, reverse=True)[:most]

    def _life_changes(self) -> Iterator[Change]:
        for node, lives in self.lives.items():
            for number, life in enumerate(lives):
                again = "started again" if number else "started"
                yield self._change(node, life.since, again)
                if life.stopped is not None:
                    yield self._change(node, life.stopped, "stopped")

    def _session_changes(self, hidden: str) -> Iterator[Change]:
        for node, spans in self.sessions.items():
            for span in spans:
                peer = peer_of(span)
                if peer == hidden:
                    continue
                yield self._change(node, span.since, f"connected with {peer}")
                if span.until is not None:
                    lost = f"lost {peer}: {span.ending}"
                    words = lost if span.was_lost else f"disconnected from {peer}"
                    yield self._change(node, span.until, words, bad=span.was_lost)

    def _change(self, node: str, at: int, text: str, *, bad: bool = False) -> Change:
        return Change(at - self.clock_ahead(node, at), node, text, bad)

    def tables(
        self, node: str, at: int, find: str, most: int, hidden: Sequence[str] | None = None
    ) -> Tables:
        """The routes and subscriptions of a node at a moment, as far as they match.

        At most so many. Names that begin with something `hidden` are left out, and so are those of
        sessions unless `hidden` is None.
        """
        life, here = self.life_at(node, at), self.own_time(node, at)
        if life is None or (life.stopped is not None and life.stopped <= here):
            return Tables()
        routes = routes_at(self._tables[ROUTES, node], life.incarnation, here)
        held = subscriptions_at(self._tables[SUBSCRIPTIONS, node], life.incarnation, here)
        shown = [
            self._route(life, entry)
            for name, entry in sorted(routes.items())
            if _matches((name,), find)
            and (hidden is None or not self._is_hidden(life, name, hidden))
        ]
        wanted = [
            SubscriptionStatus(pattern, receiver, self._peer(life, routes.get(receiver)))
            for pattern, receiver in held
            if _matches((pattern, receiver), find)
            and (hidden is None or not receiver.startswith(INTERNAL))
        ]
        listed = [one.participant for one in shown[:most]]
        proven = proven_at(self._tables[CLAIMS, node], life.incarnation, here, listed)
        return Tables(
            routes=[
                replace(one, proven=proven.get((one.participant, one.address)))
                for one in shown[:most]
            ],
            routes_fitting=len(shown),
            routes_total=len(routes),
            subscriptions=wanted[:most],
            subscriptions_fitting=len(wanted),
            subscriptions_total=len(held),
        )

    def _is_hidden(self, life: Life, name: str, hidden: Sequence[str]) -> bool:
        return name.startswith(tuple(hidden)) or bool(
            self.peer_over(life.node, life.incarnation, name)
        )

    def _peer(self, life: Life, entry: RoutingEntry | None) -> str:
        """The peer that an entry leads over; empty if it is no session's."""
        if entry is None or entry.address.type != LOCAL:
            return ""
        return self.peer_over(life.node, life.incarnation, entry.address.name)

    def _route(self, life: Life, entry: RoutingEntry) -> RouteThen:
        return RouteThen(
            entry.participant,
            str(entry.address),
            self._peer(life, entry),
            entry.local,
            entry.sticky,
            None if entry.expiry == NEVER else int(entry.expiry) * 1000,
        )


def _matches(names: Iterable[str], find: str) -> bool:
    return any(find.strip("*").lower() in name.lower() for name in names)


def routes_at(
    batches: Sequence[pa.RecordBatch], incarnation: int, at: int
) -> Mapping[str, RoutingEntry]:
    """The routing entries that an incarnation had at an instant of its clock.

    The routing table itself takes the entries again that were put after a participant was last
    removed: what was before that makes no difference.
    """
    rows = _before(batches, ROUTES, incarnation, at)
    removed = rows.filter(pc.field("kind") != "put").group_by("participant")
    last = removed.aggregate([("seq", "max")]).rename_columns(["participant", "removed"])
    puts = rows.filter(
        (pc.field("kind") == "put") & pc.coalesce(pc.field("accepted"), pa.scalar(True))
    )
    joined = puts.join(last, "participant")
    since = joined.filter(pc.field("seq") > pc.coalesce(pc.field("removed"), pa.scalar(-1)))
    table = RoutingTable()
    for batch in since.sort_by("seq").to_batches():
        for row in instants_as_integers(batch).to_pylist():
            table.put(entry_of(row), row["at"] // 1000)
    return table.snapshot(at // 1000)


def subscriptions_at(
    batches: Sequence[pa.RecordBatch], incarnation: int, at: int
) -> list[tuple[str, str]]:
    """The subscriptions that an incarnation had at an instant: pattern and receiver, in order."""
    rows = _before(batches, SUBSCRIPTIONS, incarnation, at)
    latest = rows.group_by(["pattern", "receiver"]).aggregate([("seq", "max")]).column("seq_max")
    held = (pc.field("kind") == "subscribe") & pc.field("seq").isin(latest.combine_chunks())
    return sorted(
        (row["pattern"], row["receiver"])
        for row in rows.filter(held).select(["pattern", "receiver"]).to_pylist()
    )


def proven_at(
    batches: Sequence[pa.RecordBatch], incarnation: int, at: int, names: Sequence[str]
) -> dict[tuple[str, str], bool | None]:
    """Whether who claimed some names had proven who it is, by the name and the address it led to.

    What came last over a session counts: it may have claimed a name first so, then otherwise.
    """
    rows = _before(batches, CLAIMS, incarnation, at).filter(
        pc.field("participant").isin(pa.array(names, pa.string())) & (pc.field("kind") != "refused")
    )
    told = rows.sort_by("seq").select(["participant", "session", "proven"]).to_pylist()
    return {(row["participant"], f"{LOCAL}#{row['session']}"): row["proven"] for row in told}


def _before(batches: Iterable[pa.RecordBatch], table: str, incarnation: int, at: int) -> pa.Table:
    rows = pa.Table.from_batches(list(batches), SCHEMAS[table])
    return rows.filter(
        (pc.field("incarnation") == incarnation) & (pc.field("at") <= pa.scalar(at, INSTANT))
    )


def peer_of(span: SessionSpan) -> str:
    """The name of a session's peer; otherwise what is known of it."""
    if span.peer:
        return span.peer
    place = span.place.partition("#")[2]
    return f"broker {place}" if span.role == "global" else f"{span.transport} {place}"
