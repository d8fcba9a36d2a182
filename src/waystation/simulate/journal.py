"""Write the journal of one cell of a simulated fleet, and what really happened there.

Numbers from fleet.py, fleet_links.py and traffic.py become rows here, with the names of
fleet_names.py; they get a seq at each node in the order of time, and go through the journal's own
writer. The files are of version 2. Beside them is the truth (fleet_truth.py). No Spark.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from waystation.core.outcome import Reason
from waystation.journal.convert import sample_threshold
from waystation.journal.layout import SEALING, Stem, table_directory
from waystation.journal.schema import SCHEMAS, TEXT
from waystation.journal.seal import write_sealed
from waystation.simulate.fleet import (
    DURATION,
    HUB,
    MILLISECOND,
    NEVER,
    NOBODY,
    OURS,
    SECOND,
    SENDERS,
    WINDOWS,
    Array,
    Cell,
    Changes,
    Dice,
    Fleet,
    Loss,
    clocks,
    expanded,
)
from waystation.simulate.links import ANNOUNCED, SUBSCRIBED, Sessions
from waystation.simulate.names import (
    BROADCAST_NAMES,
    Names,
    hex_ids,
    instants,
    routes,
    spelled,
)
from waystation.simulate.traffic import (
    ACCEPTED,
    FORMER_HUB,
    NEXT_HUB,
    TO_HUB,
    TO_NEXT_HUB,
    Outcome,
    Rows,
    Traffic,
    Way,
)
from waystation.simulate.truth import COPIES, Truth

AT_ONCE: Final = 100_000
"""Number of messages that a task works on at a time, which limits its memory."""

VERSION: Final = 2
"""The version of the files."""

TRUTH: Final = "_truth"
SAMPLE: Final = 0.25
"""The share of messages that a node keeps, if the journal is to have gaps."""

_SPAN: Final = 4 * DURATION  # larger than any time since the start
_CLOCK_EVERY: Final = 600 * SECOND
_TRUTH_FORMAT: Final = {
    "compression": "zstd",
    # Neither ids nor times repeat.
    "use_dictionary": ["origin", "recipient", "node", "next_node", "outcome", "reason", "detail"],
    "column_encoding": {
        "message_id": "DELTA_LENGTH_BYTE_ARRAY",
        "sent_at": "DELTA_BINARY_PACKED",
        "at": "DELTA_BINARY_PACKED",
    },
}


def copies_path(directory: Path, cell: int) -> Path:
    """The file with the fates of a cell's messages; written when its journal is complete."""
    return directory / TRUTH / "copies" / f"{cell}.parquet"


def faults_path(directory: Path, cell: int) -> Path:
    """The file with what went wrong in a cell."""
    return directory / TRUTH / "faults" / f"{cell}.parquet"


def prepare(directory: Path) -> None:
    """Make the directories of the truth."""
    for path in (copies_path(directory, 0), faults_path(directory, 0)):
        path.parent.mkdir(parents=True, exist_ok=True)


def write_fleet(fleet: Fleet, directory: Path, each: Callable[..., Iterable[object]] = map) -> None:
    """Write the journal of a whole fleet without Spark; `each` maps a function over the cells."""
    prepare(directory)
    for _ in each(partial(_write_cell, fleet, directory), range(fleet.cells)):
        pass


def _write_cell(fleet: Fleet, directory: Path, cell: int) -> None:
    CellWriter(fleet, cell, directory).write()


class _Part(Struct):
    """Rows of one table in one slice of time, before they are numbered."""

    table: str
    group: Array  # node and window as one number
    at: Array
    columns: Callable[[Array], dict[str, Any]]  # of the selected rows, in this order


class CellWriter:
    """Writes the journal of one cell, one slice of time after the other."""

    def __init__(
        self, fleet: Fleet, number: int, directory: Path, *, at_once: int = AT_ONCE
    ) -> None:
        self._fleet = fleet
        self._at_once = at_once
        self._directory = directory
        self._cell = Cell(fleet, number)
        self._traffic = Traffic(self._cell)
        self._links = self._traffic.links
        self._names = Names(self._cell, self._links)
        self._truth = Truth(self._cell, self._names, self._links)
        self._gaps = Gaps(self._cell)
        # Two tasks may write the same cell, if one is taken for dead; each has its own files.
        self._unfinished = f".{secrets.token_hex(4)}{SEALING}"
        self._next_seq = np.zeros((self._cell.leaves + 1) * WINDOWS, np.int64)
        self._rows = dict.fromkeys([*SCHEMAS, "copies", "losses"], 0)
        self._changes = self._all_changes()
        self._meetings = self._all_meetings()

    def write(self) -> dict[str, int]:
        """Write everything; returns the number of rows of each table."""
        fleet, cell = self._fleet, self._cell
        theirs = fleet.sizes(fleet.preceding(cell.number))[1]
        busiest, quietest = max(cell.messages, theirs), min(cell.messages, theirs)
        slices = max(1, -(-busiest // self._at_once))
        copies = copies_path(self._directory, cell.number)
        unfinished = copies.with_name(f".{copies.name}{self._unfinished}")
        late: Rows | None = None
        since = 0
        with pq.ParquetWriter(unfinished, COPIES, **_TRUTH_FORMAT) as truth:
            for number in range(slices):
                share = (number + 1) / slices
                span = max(0.0, share - 1 / max(quietest, 1)) * (DURATION - 10 * SECOND)
                until = NEVER if share == 1 else fleet.start + 5 * SECOND + int(span)
                rows = self._traffic.rows(number / slices, share)
                truth.write_table(self._fates(rows))
                rows = rows if late is None else Rows.together([late, rows])
                if until < NEVER:
                    late, rows = rows.where(rows.at >= until), rows.where(rows.at < until)
                parts = [*self._parts(since, until), self._messages(rows)]
                self._write(parts)
                since = until
        self._write_faults()
        unfinished.rename(copies)
        return self._rows

    def _fates(self, rows: Rows) -> pa.Table:
        """The fates of the messages of a slice."""
        fates = self._truth.copies(rows, self._is_recorded(rows))
        self._rows["copies"] += len(fates)
        self._rows["losses"] += fates.column("lost").to_numpy().sum().item()
        return fates

    def _write_faults(self) -> None:
        path = faults_path(self._directory, self._cell.number)
        unfinished = path.with_name(f".{path.name}{self._unfinished}")
        faults = self._truth.faults(self._gaps.spans())
        pq.write_table(faults, unfinished, compression="zstd")
        unfinished.rename(path)

    # Nodes and sessions

    def _parts(self, since: int, until: int) -> Iterator[_Part]:
        yield self._node_rows(since, until)
        yield self._session_rows(since, until)
        first, last = np.searchsorted(self._changes.at, [since, until])
        yield self._route_rows(self._changes.where(slice(first, last)))  # type: ignore[arg-type]
        yield from self._leaf_names(since, until)
        yield self._subscription_rows(since, until)
        yield self._leaf_subscriptions(since, until)
        yield self._member_rows(since, until)

    def _node_rows(self, since: int, until: int) -> _Part:
        ups = self._cell.uptimes
        rows = []
        for node, window in zip(*np.nonzero(ups.begin < NEVER), strict=True):
            group = node * WINDOWS + window
            begin = int(ups.begin[node, window])
            rows.append(
                (begin, group, "start", f"waystation 0.2.0 sample={self._gaps.share(node)}")
            )
            if self._gaps.has_torn(group - 1):
                told = (
                    f"incarnation {self._names.incarnations[group - 1]}: the last second torn off"
                )
                rows.append((begin + 1, group, "lost", told))
            if ups.stopped[node, window]:
                rows.append((int(ups.end[node, window]), group, "stop", ""))
        chosen = [row for row in rows if since <= row[0] < until]

        def columns(order: Array) -> dict[str, Any]:
            return {
                "kind": [chosen[number][2] for number in order],
                "detail": [chosen[number][3] for number in order],
                "lost": [0] * len(order),
            }

        at = np.array([row[0] for row in chosen], np.int64)
        return _Part("nodes", np.array([row[1] for row in chosen], np.int64), at, columns)

    def _group(self, node: Array, at: Array) -> Array:
        group: Array = node * WINDOWS + self._cell.uptimes.window(node, at)
        return group

    def _all_meetings(self) -> Meetings:
        """What becomes of the sessions, at the nodes of this cell."""
        cell, links, fleet = self._cell, self._links, self._fleet
        own, between = links.leaves, links.former
        count = len(own.link)
        here = np.zeros(len(links.onward.link), np.int64)
        there = np.zeros(len(between.link), np.int64)
        nearby = (fleet.following(cell.number), fleet.preceding(cell.number))
        next_ahead, former_ahead = (int(clocks(fleet, each)[HUB]) for each in nearby)
        hub_ahead, leaf_ahead = int(cell.clocks[HUB]), cell.clocks[own.link]
        dice = partial(Dice, fleet.seed, cell.number, 12)
        sides = [
            Meetings.of(
                *(dice(0), own, own.link, np.full(count, TO_HUB), own.link * 0 + HUB),
                *("dialer", _PARENT, hub_ahead - leaf_ahead),
            ),
            Meetings.of(
                *(dice(1), own, own.link * 0, ACCEPTED + np.arange(count), own.link),
                *("listener", _LEAF, leaf_ahead - hub_ahead),
            ),
            Meetings.of(
                *(dice(2), links.onward, here, here + TO_NEXT_HUB, here + NEXT_HUB),
                *("dialer", _PEER, here + next_ahead - hub_ahead),
            ),
            Meetings.of(
                *(dice(3), between, there, ACCEPTED + count + np.arange(len(there))),
                *(there + FORMER_HUB, "listener", _PEER, there + former_ahead - hub_ahead),
            ),
        ]
        return Meetings.together(sides)

    def _session_rows(self, since: int, until: int) -> _Part:
        """Openings and ends of sessions, and what they tell of the peer's clock."""
        met, names = self._meetings, self._names
        chosen = np.flatnonzero((since <= met.at) & (met.at < until))

        def columns(order: Array) -> dict[str, Any]:
            rows = met.where(chosen[order])
            measured = rows.kind != _CLOCK
            return {
                "kind": pa.array(_MEETINGS).take(pa.array(rows.kind)),
                "session": names.session_names(rows.session),
                "role": pa.array(_ROLES).take(pa.array(rows.role)),
                "transport": ["tcp"] * len(order),
                "place": spelled(rows.peer, names.place, TEXT),
                "peer": names.nodes(rows.peer),
                "reason": pa.array([None, str(Reason.TRANSPORT_DOWN)]).take(
                    pa.array(rows.lost.astype(np.int8))
                ),
                "offset_us": pa.array(rows.offset, pa.int64(), mask=measured),
                "rtt_us": pa.array(rows.rtt, pa.int64(), mask=measured),
            }

        at = met.at[chosen]
        return _Part("sessions", met.group[chosen], at, columns)

    # Routing tables

    def _all_changes(self) -> Changes:
        """The changes of all routing tables: participants and applications."""
        cell, ups, names = self._cell, self._cell.uptimes, self._names
        node, window = np.nonzero(ups.begin < NEVER)
        begin = ups.begin[node, window]
        parts = [cell.hub_changes, cell.leaf_changes]
        for app in range(SENDERS):
            who = np.full(len(node), names.app_as_participant(app))
            parts.append(Changes.of(node, begin + MILLISECOND * (app + 1), who))
        changes = Changes.together(parts)
        return changes.where(np.argsort(changes.at, kind="stable"))

    def _route_rows(self, changes: Changes) -> _Part:
        names = self._names
        ahead = self._cell.clocks
        causes = pa.array(["worker", "resolved", "withdrawn"])

        def columns(order: Array) -> dict[str, Any]:
            chosen = changes.where(order)
            local = chosen.leaf == NOBODY
            # A local entry points at the participant itself, a remote one at a node.
            address = np.where(local, chosen.participant, -1 - chosen.leaf)
            cause = np.where(local, 0, np.where(chosen.removes, 2, 1))
            never = chosen.expiry == NEVER
            return {
                "kind": np.where(chosen.removes, "remove", "put"),
                "participant": spelled(chosen.participant, names.participant, TEXT),
                "address": spelled(
                    address,
                    lambda code: (
                        f"0#{names.participant(code)}" if code >= 0 else names.address(-1 - code)
                    ),
                    TEXT,
                ),
                "local": local,
                "visible": chosen.visible,
                "expiry": instants(np.where(never, NEVER, chosen.expiry + ahead[chosen.node])),
                "sticky": chosen.sticky,
                "accepted": chosen.accepted,
                "cause": causes.take(pa.array(cause)),
            }

        return _Part("routes", self._group(changes.node, changes.at), changes.at, columns)

    def _leaf_names(self, since: int, until: int) -> Iterator[_Part]:
        """Each leaf claims its own name at the hub, for as long as its session lasts."""
        own, names = self._links.leaves, self._names
        at, which, ends = _while_open(own, ANNOUNCED, since, until)
        group = self._group(np.zeros(len(at), np.int64), at)

        def sessions(rows: Array) -> pa.Array:
            return names.session_names(ACCEPTED + which[rows])

        def claims(order: Array) -> dict[str, Any]:
            leaves = names.nodes(own.link[which[order]])
            owners = hex_ids(self._fleet, self._cell.number, own.link[which[order]] + (1 << 40))
            return {
                "kind": np.where(ends[order], "withdraw", "claim"),
                "participant": leaves,
                "session": sessions(order),
                "owner": [owner.tobytes().decode() for owner in owners],
                "proven": np.zeros(len(order), bool),
                "origin": leaves,
                "number": own.number[which[order]] + 1,
                "path": [[name] for name in leaves.to_pylist()],
            }

        def entries(order: Array) -> dict[str, Any]:
            address = [f"0#{name}" for name in sessions(order).to_pylist()]
            return {
                "kind": np.where(ends[order], "remove", "put"),
                "participant": names.nodes(own.link[which[order]]),
                "address": address,
                "local": np.ones(len(order), bool),
                "visible": np.zeros(len(order), bool),
                "sticky": np.zeros(len(order), bool),
                "accepted": np.ones(len(order), bool),
                "session": sessions(order),
                "cause": np.where(ends[order], "session_closed", "announced"),
            }

        yield _Part("claims", group, at, claims)
        yield _Part("routes", group, at, entries)

    # Subscriptions

    def _subscription_rows(self, since: int, until: int) -> _Part:
        """The subscriptions of participants at the leaves."""
        held, names = self._cell.subscribed, self._names
        node, at, ended, which = self._cell.subscription_changes()
        chosen = np.flatnonzero((since <= at) & (at < until))

        def columns(order: Array) -> dict[str, Any]:
            rows = chosen[order]
            subscription = which[rows]
            return {
                "kind": np.where(ended[rows], "unsubscribe", "subscribe"),
                "pattern": spelled(subscription, pattern, TEXT),
                "receiver": spelled(held.participant[subscription], names.participant, TEXT),
                "cause": ["worker"] * len(rows),
            }

        def pattern(number: int) -> str:
            kind, broadcast = int(held.kind[number]), int(held.broadcast[number])
            return names.pattern(kind, broadcast, int(held.region[number]), int(held.zone[number]))

        at = at[chosen]
        return _Part("subscriptions", self._group(node[chosen], at), at, columns)

    def _leaf_subscriptions(self, since: int, until: int) -> _Part:
        """The subscriptions of the leaves at the hub, for as long as their sessions last."""
        cell, names, own = self._cell, self._names, self._links.leaves
        at, which, ends = _while_open(own, SUBSCRIBED, since, until)
        row, broadcast = np.nonzero(
            cell.wanted_by_leaf(own.link[which][:, None], np.arange(len(BROADCAST_NAMES) - 1))
        )
        at, which, ends = at[row], which[row], ends[row]

        def columns(order: Array) -> dict[str, Any]:
            return {
                "kind": np.where(ends[order], "unsubscribe", "subscribe"),
                "pattern": spelled(broadcast[order], lambda b: names.pattern(3, b, 0, 0), TEXT),
                "receiver": names.nodes(own.link[which[order]]),
                "session": names.session_names(ACCEPTED + which[order]),
                "cause": np.where(ends[order], "session_closed", "announced"),
            }

        return _Part("subscriptions", self._group(np.zeros(len(at), np.int64), at), at, columns)

    def _member_rows(self, since: int, until: int) -> _Part:
        """The leaves join the cell's group at the hub, each time the hub starts."""
        cell, names = self._cell, self._names
        begin = cell.uptimes.begin[HUB]
        ready = begin[begin < NEVER] + SECOND + 1
        leaf, at = (grid.ravel() for grid in np.meshgrid(np.arange(1, cell.leaves + 1), ready))
        chosen = (since <= at) & (at < until)
        leaf, at = leaf[chosen], at[chosen]
        digits = hex_ids(self._fleet, cell.number, leaf + (1 << 40))

        def columns(order: Array) -> dict[str, Any]:
            who = leaf[order].tolist()
            return {
                "kind": ["join"] * len(who),
                "grp": [f"cell-{cell.number}"] * len(who),
                "uuid": [digits[number].tobytes().decode() for number in order],
                "name": [names.node(number) for number in who],
                "physical": [[names.address(number)[2:]] for number in who],
            }

        return _Part("members", self._group(np.zeros(len(at), np.int64), at), at, columns)

    # Messages

    def _is_recorded(self, rows: Rows) -> Array:
        """Which rows are in the journal."""
        recorded = self._gaps.reach(rows.node * WINDOWS + rows.window, rows.at)
        sampled = np.flatnonzero((rows.node == self._gaps.sampling) & (rows.outcome != 3))
        if len(sampled):
            threshold = sample_threshold(SAMPLE)
            ids = self._names.message_ids(rows.where(sampled)).to_pylist()
            recorded[sampled] &= [crc32(id.encode()) < threshold for id in ids]
        return recorded

    def _messages(self, rows: Rows) -> _Part:
        names, ahead = self._names, self._cell.clocks
        if self._fleet.gaps:
            rows = rows.where(self._is_recorded(rows))
        outcomes = pa.array([outcome.name for outcome in Outcome])
        reasons = pa.array([None if loss is Loss.NONE else loss.cause[0] for loss in Loss])

        def columns(order: Array) -> dict[str, Any]:
            chosen = rows.where(order)
            dropped = chosen.outcome == Outcome.DROPPED
            published = chosen.way == Way.PUBLISHED
            return {
                "message_id": names.message_ids(chosen),
                "kind": pa.array(["unicast", "multicast"]).take(
                    pa.array(published.astype(np.int8))
                ),
                "onward": routes(names.onward_codes(chosen), names.onward),
                "return": routes(names.back_codes(chosen), names.back),
                "multicast_id": spelled(chosen.topic, names.topic, TEXT),
                "outcome": outcomes.take(pa.array(chosen.outcome)),
                "reason": reasons.take(pa.array(np.where(dropped, chosen.loss, Loss.NONE))),
                "next_hop": names.next_hops(chosen),
                "recipient": names.recipients(chosen),
                "bytes": pa.array(chosen.bytes, pa.int32()),
                "expiry": instants(chosen.expiry),
                "from_global": chosen.via == TO_HUB,
                "received_at": instants(chosen.received_at + ahead[chosen.node]),
                "origin": names.origins_here(chosen),
                "answers": names.answered(chosen),
                "via": names.session_names(chosen.via),
                "from_node": names.nodes(chosen.from_node),
                "out": names.session_names(chosen.out),
                "next_node": names.nodes(chosen.next),
                "copy": names.copies(chosen),
                "internal": chosen.app == OURS,
            }

        return _Part("messages", rows.node * WINDOWS + rows.window, rows.at, columns)

    # Files

    def _write(self, parts: list[_Part]) -> None:
        """Give the rows of a slice their seq, node by node in the order of time, and write them."""
        parts = [self._gaps.without(part) for part in parts] if self._fleet.gaps else parts
        group = np.concatenate([part.group for part in parts])
        at = np.concatenate([part.at for part in parts])
        origin = np.repeat(np.arange(len(parts)), [len(part.at) for part in parts])
        row = np.concatenate([np.arange(len(part.at)) for part in parts])
        # Sorting by one number takes a third of the time; what is equal stays in its order.
        order = np.argsort(group * _SPAN + (at - self._fleet.start), kind="stable")
        sorted_group = group[order]
        count = np.bincount(group, minlength=len(self._next_seq))
        first = np.cumsum(count) - count
        seq = np.arange(len(order)) - first[sorted_group] + self._next_seq[sorted_group]
        self._next_seq += count
        for table in SCHEMAS:
            self._write_table(table, parts, origin[order], row[order], sorted_group, seq)

    def _write_table(
        self, table: str, parts: list[_Part], origin: Array, row: Array, group: Array, seq: Array
    ) -> None:
        pieces = []
        for number, part in enumerate(parts):
            chosen = np.flatnonzero(origin == number)
            if part.table == table and len(chosen):
                pieces.append(self._table(part, row[chosen], group[chosen], seq[chosen]))
        if not pieces:
            return
        groups = np.concatenate([piece[0] for piece in pieces])
        rows = pa.concat_tables([piece[1] for piece in pieces])
        if len(pieces) > 1:  # of one table, from several sources
            order = np.lexsort((rows.column("seq").to_numpy(), groups))
            groups, rows = groups[order], rows.take(pa.array(order))
        self._rows[table] += len(rows)
        for which in np.unique(groups).tolist():
            low, high = np.searchsorted(groups, which), np.searchsorted(groups, which, "right")
            self._write_file(table, which, rows.slice(low, high - low))

    def _table(self, part: _Part, row: Array, group: Array, seq: Array) -> tuple[Array, pa.Table]:
        ahead = self._cell.clocks[group // WINDOWS]
        every = {
            "incarnation": pa.array(self._names.incarnations[group]),
            "seq": pa.array(seq),
            "at": instants(part.at[row] + ahead),
        }
        schema = SCHEMAS[part.table]
        columns = {name: pa.nulls(len(row), schema.field(name).type) for name in schema.names}
        columns |= {**every, **part.columns(row)}
        return group, pa.Table.from_pydict(columns, schema=schema)

    def _write_file(self, table: str, group: int, rows: pa.Table) -> None:
        directory = table_directory(self._directory, table, self._names.node(group // WINDOWS))
        directory.mkdir(parents=True, exist_ok=True)
        stem = Stem(rows.column("incarnation")[0].as_py(), rows.column("seq")[0].as_py())
        unfinished = self._unfinished
        write_sealed(
            *(directory, table, stem, rows.to_batches()),
            fsync=False,
            version=VERSION,
            suffix=unfinished,
        )


_MEETINGS: Final = ("open", "close", "clock")
_OPEN, _CLOSE, _CLOCK = range(3)
_ROLES: Final = ("parent", "leaf", "peer")
_PARENT, _LEAF, _PEER = range(3)


class Meetings(Struct):
    """Rows about sessions, at the nodes of one cell."""

    group: Array
    at: Array
    kind: Array
    session: Array
    role: Array
    peer: Array
    lost: Array  # whether it ended without a word
    offset: Array
    rtt: Array

    @classmethod
    def of(
        cls,
        dice: Dice,
        sessions: Sessions,
        node: Array,
        session: Array,
        peer: Array,
        side: str,
        role: int,
        ahead: Array,
    ) -> Meetings:
        """The rows at one side of sessions; by `ahead` the peer's clock is ahead of the node's."""
        until = getattr(sessions, f"{side}_until")
        told = getattr(sessions, f"{side}_told")
        window = getattr(sessions, f"{side}_window")
        ends = np.flatnonzero(told)
        last = np.minimum(until, sessions.opened + DURATION) - 10 * MILLISECOND
        times = np.maximum((last - sessions.opened) // _CLOCK_EVERY + 1, 0)
        measured, number = expanded(times)
        which = np.concatenate([np.arange(len(node)), ends, measured])
        kinds = (len(node), len(ends), len(measured))
        first = sessions.opened[measured] + 5 * MILLISECOND
        clock_at = first + number * _CLOCK_EVERY
        count = len(which)
        rtt = dice.pick("rtt", np.arange(count), 200, 2_000)
        error = ((dice.throw("error", np.arange(count)) - 0.5) * 0.9 * rtt).astype(np.int64)
        return cls(
            (node * WINDOWS + window)[which],
            np.concatenate([sessions.opened, until[ends], clock_at]),
            np.repeat([_OPEN, _CLOSE, _CLOCK], kinds),
            session[which],
            np.full(count, role),
            peer[which],
            np.repeat([False, True, False], kinds)
            & (until[which] > sessions.breaks[which] + SECOND // 100),
            ahead[which] + error,
            rtt,
        )

    def where(self, chosen: Array) -> Meetings:
        """A selection of the rows."""
        return Meetings(*(getattr(self, name)[chosen] for name in self.__struct_fields__))

    @classmethod
    def together(cls, parts: list[Meetings]) -> Meetings:
        """The rows of several sides."""
        return cls(
            *(
                np.concatenate([getattr(part, name) for part in parts])
                for name in cls.__struct_fields__
            )
        )


def _while_open(own: Sessions, delay: int, since: int, until: int) -> tuple[Array, Array, Array]:
    """When leaves, at the hub, begin and cease to be known: times, sessions, and which it is."""
    ends = np.flatnonzero(own.listener_told)
    at = np.concatenate([own.opened + delay, own.listener_until[ends]])
    which = np.concatenate([np.arange(len(own.link)), ends])
    over = np.arange(len(at)) >= len(own.link)
    chosen = (since <= at) & (at < until)
    return at[chosen], which[chosen], over[chosen]


class Gaps:
    """What the journal of a cell lacks, if it is to have gaps.

    The last leaf keeps no journal, the first one only a sample of its messages; and a node that
    crashes loses what it recorded in its last second.
    """

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._wanted = cell.fleet.gaps
        self.sampling = 1 if self._wanted else NOBODY
        self._silent = cell.leaves if self._wanted and cell.leaves > 1 else NOBODY
        ups = cell.uptimes
        crashes = (ups.end < NEVER) & ~ups.stopped & self._wanted
        self._reach = np.where(crashes, ups.end - SECOND, NEVER).ravel()

    def share(self, node: int) -> float:
        """The share of messages that a node keeps."""
        return SAMPLE if node == self.sampling else 1.0

    def has_torn(self, group: int) -> bool:
        """Whether an incarnation of the same node lost the end of its journal."""
        return group % WINDOWS < WINDOWS - 1 and bool(self._reach[group] < NEVER)

    def reach(self, group: Array, at: Array) -> Array:
        """Whether what happened at a node at a time is on record."""
        reach: Array = (at < self._reach[group]) & (group // WINDOWS != self._silent)
        return reach

    def without(self, part: _Part) -> _Part:
        """A part without the rows that are not on record."""
        kept = np.flatnonzero(self.reach(part.group, part.at))
        make = part.columns
        return _Part(part.table, part.group[kept], part.at[kept], lambda order: make(kept[order]))

    def spans(self) -> list[tuple[int, int, int]]:
        """The holes: node, from when, and until when."""
        ups, fleet = self._cell.uptimes, self._cell.fleet
        found = [] if self._silent == NOBODY else [(self._silent, fleet.start, NEVER)]
        lost = np.flatnonzero(self._reach < NEVER)
        ends = ups.end.ravel()
        return [
            *found,
            *((int(g) // WINDOWS, int(self._reach[g]), int(ends[g])) for g in lost),
        ]
