"""Write the journal of one cell of a simulated fleet, and the causes of its losses.

Numbers from fleet.py and traffic.py become names, routes and rows here, get a seq at each
node in the order of time, and go through the journal's own writer. No Spark.

    JOURNAL/_truth/losses/<cell>.parquet   message_id, node, at, reason, detail
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from waystation.journal.layout import SEALING, Stem, table_directory
from waystation.journal.schema import INSTANT, SCHEMAS
from waystation.journal.seal import write_sealed
from waystation.pipeline.fleet import (
    APPS,
    DURATION,
    HUB,
    MILLISECOND,
    NEVER,
    NOBODY,
    SECOND,
    STRANGERS,
    WINDOWS,
    Array,
    Cell,
    Changes,
    Dice,
    Fleet,
    Loss,
)
from waystation.pipeline.traffic import NEXT_HUB, Outcome, Rows, Traffic, Way

AT_ONCE: Final = 100_000
"""Number of messages that a task works on at a time, which limits its memory."""

TRUTH: Final = "_truth"
_LOSSES: Final = pa.schema(
    {
        "message_id": pa.string(),
        "node": pa.string(),
        "at": INSTANT,
        "reason": pa.string(),
        "detail": pa.string(),
    }
)
_BROADCAST_NAMES: Final = ("position", "temperature", "door", "battery", "lottery")


def losses_path(directory: Path, cell: int) -> Path:
    """The file with the causes of a cell's losses; written when the cell's journal is complete."""
    return directory / TRUTH / "losses" / f"{cell}.parquet"


def write_fleet(fleet: Fleet, directory: Path, each: Callable[..., Iterable[object]] = map) -> None:
    """Write the journal of a whole fleet without Spark; `each` maps a function over the cells."""
    (directory / TRUTH / "losses").mkdir(parents=True)
    for _ in each(partial(_write_cell, fleet, directory), range(fleet.cells)):
        pass


def _write_cell(fleet: Fleet, directory: Path, cell: int) -> None:
    CellWriter(fleet, cell, directory).write()


class Names:
    """The names of the nodes, participants and routes of a cell."""

    def __init__(self, cell: Cell) -> None:
        fleet, number = cell.fleet, cell.number
        self.cell = cell
        self._following, self._preceding = fleet.following(number), fleet.preceding(number)
        self._theirs = fleet.sizes(self._following)[0]
        self._leaf_names = cell.participants + STRANGERS
        self._app_names = self._leaf_names + cell.leaves + 1
        self._senders = max(fleet.leaves(self._preceding), cell.leaves) + 1

    def node(self, number: int) -> str:
        """The name of a node of this cell."""
        cell = self.cell.number
        return f"hub-{cell:04d}" if number == HUB else f"leaf-{cell:04d}-{number:02d}"

    def address(self, number: int, cell: int | None = None) -> str:
        """The address of a node."""
        cell = self.cell.number if cell is None else cell
        network, subnet = divmod(cell, 64_000)  # so that 15 million cells have an address
        return f"1#{10 + network}.{subnet // 250}.{subnet % 250}.{number + 1}:4000"

    def participant(self, number: int) -> str | None:
        """The name of a participant of this cell, a leaf, an application, or somebody unknown."""
        if number >= self._app_names:
            return f"app-{number - self._app_names}"
        if number >= self._leaf_names:
            return self.node(number - self._leaf_names)
        return self._truck(number, self.cell.number, self.cell.participants)

    def leaf_as_participant(self, leaf: Array) -> Array:
        """The number of a leaf's entry at its hub."""
        number: Array = self._leaf_names + leaf
        return number

    def app_as_participant(self, app: int) -> int:
        """The number of an application's entry at its node."""
        return self._app_names + app

    def _truck(self, number: int, cell: int, known: int) -> str | None:
        if number < 0:
            return None
        return f"truck-{cell}-{number}" if number < known else f"ghost-{number - known}"

    def onward_codes(self, rows: Rows) -> Array:
        """A number for each distinct onward route."""
        across = (rows.way == Way.ACROSS) & ~rows.foreign
        first = (rows.way == Way.WITHIN) & (rows.stage == 0)
        form = np.select([rows.way == Way.PUBLISHED, across, first], [4, 2 + rows.stage, 0], 1)
        codes: Array = np.where(form == 4, 0, rows.target) * 5 + form
        return codes

    def onward(self, code: int) -> list[str]:
        """An onward route."""
        target, form = divmod(code, 5)
        own = f"0#{self._truck(target, self.cell.number, self.cell.participants)}"
        there = f"0#{self._truck(target, self._following, self._theirs)}"
        hub, next_hub = self.address(HUB), self.address(HUB, self._following)
        return [[hub, own], [own], [hub, next_hub, there], [next_hub, there], []][form]

    def back_codes(self, rows: Rows) -> Array:
        """A number for each distinct return route."""
        padding = np.maximum(rows.padding - 28, 0)
        sender = rows.foreign * self._senders + rows.sender
        codes: Array = ((sender * APPS + rows.app) * 4 + rows.stage) * 4 + padding
        return codes

    def back(self, code: int) -> list[str]:
        """A return route: the nodes passed, the last one first, and the sender."""
        code, padding = divmod(code, 4)
        code, stage = divmod(code, 4)
        sender, app = divmod(code, APPS)
        foreign, sender = divmod(sender, self._senders)
        origin = self._preceding if foreign else self.cell.number
        behind = [self.address(sender, origin), self.address(HUB, origin), self.address(HUB)]
        laps = ["0#round"] * (padding + 28 if padding else 0)
        return [*reversed(behind[:stage]), f"0#app-{app}", *laps]

    def next_hop(self, code: int) -> str | None:
        """The address that a message was sent to."""
        if code == NOBODY:
            return None
        return self.address(HUB, self._following) if code == NEXT_HUB else self.address(code)

    def topic(self, code: int) -> str | None:
        """A multicast id."""
        if code == NOBODY:
            return None
        code, zone = divmod(code, self.cell.zones)
        broadcast, region = divmod(code, self.cell.regions)
        return f"{self._channel(broadcast)}/r{region}/z{zone}"

    def pattern(self, kind: int, broadcast: int, region: int, zone: int) -> str:
        """A subscription pattern; kind 3 covers a whole broadcast."""
        partition = (f"r{region}/z{zone}", f"+/z{zone}", f"r{region}/*", "*")[kind]
        return f"{self._channel(broadcast)}/{partition}"

    def _channel(self, broadcast: int) -> str:
        return f"fleet-{self.cell.number}/{_BROADCAST_NAMES[broadcast]}"


def _spelled(codes: Array, spell: Callable[[int], Any], type: pa.DataType) -> pa.Array:
    """The strings for these numbers; each distinct one is created once."""
    distinct, which = np.unique(codes, return_inverse=True)
    return pa.array([spell(code) for code in distinct.tolist()], type).take(pa.array(which))


def _instants(microseconds: Array) -> pa.Array:
    return pa.array(microseconds, pa.int64(), mask=microseconds == NEVER).cast(INSTANT)


_DIGITS: Final = np.frombuffer(
    bytes.fromhex("".join(f"{b:02x}".encode().hex() for b in range(256))), np.uint16
)


def _hex_ids(fleet: Fleet, cell: int, numbers: Array) -> Array:
    """The ids of messages that began in a cell, as rows of 32 characters.

    One half is random; the other is a bijective mix of cell and number, so that all are different.
    """
    whole_fleet = np.uint64(cell << 40) + numbers.astype(np.uint64) % np.uint64(1 << 40)
    halves = np.column_stack(
        [
            Dice(fleet.seed, cell, 4).bits("id", numbers),
            Dice(fleet.seed, 5).bits("id, rest", whole_fleet),
        ]
    )
    return _DIGITS[halves.view(np.uint8)].view(np.uint8)


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
        self._names = Names(self._cell)
        # Two tasks may write the same cell, if one is taken for dead; each has its own files.
        self._unfinished = f".{secrets.token_hex(4)}{SEALING}"
        self._next_seq = np.zeros((self._cell.leaves + 1) * WINDOWS, np.int64)
        self._rows = dict.fromkeys([*SCHEMAS, "losses"], 0)
        self._changes = self._all_changes()

    def write(self) -> dict[str, int]:
        """Write everything; returns the number of rows of each table."""
        fleet, cell = self._fleet, self._cell
        theirs = fleet.sizes(fleet.preceding(cell.number))[1]
        busiest, quietest = max(cell.messages, theirs), min(cell.messages, theirs)
        slices = max(1, -(-busiest // self._at_once))
        traffic = Traffic(cell)
        losses = losses_path(self._directory, cell.number)
        unfinished = losses.with_name(f".{losses.name}{self._unfinished}")
        late: Rows | None = None
        since = 0
        with pq.ParquetWriter(unfinished, _LOSSES) as truth:
            for number in range(slices):
                share = (number + 1) / slices
                span = max(0.0, share - 1 / max(quietest, 1)) * (DURATION - 10 * SECOND)
                until = NEVER if share == 1 else fleet.start + 5 * SECOND + int(span)
                rows = traffic.rows(number / slices, share)
                rows = rows if late is None else Rows.together([late, rows])
                late = rows.where(rows.at >= until)
                rows = rows.where(rows.at < until)
                parts = [*self._parts(since, until), self._messages(rows)]
                self._write(parts)
                truth.write_table(self._truth(rows))
                since = until
        unfinished.rename(losses)
        return self._rows

    # Everything except messages

    def _all_changes(self) -> Changes:
        """The changes of all routing tables: participants, applications, and leaves at the hub."""
        cell, ups, names = self._cell, self._cell.uptimes, self._names
        node, window = np.nonzero(ups.begin < NEVER)
        begin = ups.begin[node, window]
        parts = [cell.hub_changes, cell.leaf_changes]
        for app in range(APPS):
            who = np.full(len(node), names.app_as_participant(app))
            parts.append(Changes.of(node, begin + MILLISECOND * (app + 1), who))
        ready = ups.begin[HUB][ups.begin[HUB] < NEVER] + SECOND
        leaf, at = (grid.ravel() for grid in np.meshgrid(np.arange(1, cell.leaves + 1), ready))
        who = names.leaf_as_participant(leaf)
        parts.append(Changes.of(np.asarray(HUB), at, who, leaf=leaf))
        changes = Changes.together(parts)
        return changes.where(np.argsort(changes.at, kind="stable"))

    def _parts(self, since: int, until: int) -> Iterator[_Part]:
        yield self._node_rows(since, until)
        first, last = np.searchsorted(self._changes.at, [since, until])
        yield self._route_rows(self._changes.where(slice(first, last)))  # type: ignore[arg-type]
        yield self._subscription_rows(since, until)
        yield self._leaf_subscriptions(since, until)
        yield self._member_rows(since, until)

    def _node_rows(self, since: int, until: int) -> _Part:
        ups = self._cell.uptimes
        rows = []
        for node, window in zip(*np.nonzero(ups.begin < NEVER), strict=True):
            group = node * WINDOWS + window
            begin = int(ups.begin[node, window])
            rows.append((begin, group, "start", ""))
            if window and not ups.stopped[node, window - 1]:
                former = int(ups.begin[node, window - 1]) // MILLISECOND
                told = f"incarnation {former}: it ended without a word"
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

    def _route_rows(self, changes: Changes) -> _Part:
        names = self._names

        def columns(order: Array) -> dict[str, Any]:
            chosen = changes.where(order)
            local = chosen.leaf == NOBODY
            # A local entry points at the participant itself, a remote one at a node.
            address = np.where(local, chosen.participant, -1 - chosen.leaf)
            return {
                "kind": np.where(chosen.removes, "remove", "put"),
                "participant": _spelled(chosen.participant, names.participant, pa.string()),
                "address": _spelled(
                    address,
                    lambda code: (
                        f"0#{names.participant(code)}" if code >= 0 else names.address(-1 - code)
                    ),
                    pa.string(),
                ),
                "local": local,
                "visible": chosen.visible,
                "expiry": _instants(chosen.expiry),
                "sticky": chosen.sticky,
                "accepted": chosen.accepted,
            }

        return _Part("routes", self._group(changes.node, changes.at), changes.at, columns)

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
                "pattern": _spelled(subscription, pattern, pa.string()),
                "receiver": _spelled(
                    held.participant[subscription], names.participant, pa.string()
                ),
            }

        def pattern(number: int) -> str:
            kind, broadcast = int(held.kind[number]), int(held.broadcast[number])
            return names.pattern(kind, broadcast, int(held.region[number]), int(held.zone[number]))

        at = at[chosen]
        return _Part("subscriptions", self._group(node[chosen], at), at, columns)

    def _leaf_subscriptions(self, since: int, until: int) -> _Part:
        """The subscriptions of the leaves at the hub."""
        cell, names = self._cell, self._names
        begin = cell.uptimes.begin[HUB]
        ready = begin[begin < NEVER] + SECOND
        leaf, broadcast = np.nonzero(
            cell.wanted_by_leaf(
                np.arange(1, cell.leaves + 1)[:, None], np.arange(len(_BROADCAST_NAMES) - 1)
            )
        )
        asked = [
            (int(at), names.pattern(3, b, 0, 0), names.node(k + 1))
            for at in ready.tolist()
            for k, b in zip(leaf.tolist(), broadcast.tolist(), strict=True)
            if since <= at < until
        ]
        at = np.array([row[0] for row in asked], np.int64)

        def columns(order: Array) -> dict[str, Any]:
            return {
                "kind": ["subscribe"] * len(order),
                "pattern": [asked[number][1] for number in order],
                "receiver": [asked[number][2] for number in order],
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
        digits = _hex_ids(self._fleet, cell.number, leaf + (1 << 40))

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

    def _message_ids(self, rows: Rows) -> pa.Array:
        fleet, cell = self._fleet, self._cell.number
        digits = np.empty((len(rows.at), 32), np.uint8)
        for foreign, origin in ((False, cell), (True, fleet.preceding(cell))):
            chosen = rows.foreign == foreign
            digits[chosen] = _hex_ids(fleet, origin, rows.number[chosen])
        offsets = np.arange(len(digits) + 1, dtype=np.int32) * 32
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(digits))]
        return pa.Array.from_buffers(pa.string(), len(digits), buffers)

    def _messages(self, rows: Rows) -> _Part:
        names = self._names
        outcomes = pa.array([outcome.name for outcome in Outcome])
        reasons = pa.array([None if loss is Loss.NONE else loss.cause[0] for loss in Loss])

        def columns(order: Array) -> dict[str, Any]:
            chosen = rows.where(order)
            text, texts = pa.string(), pa.list_(pa.string())
            dropped = chosen.outcome == Outcome.DROPPED
            return {
                "message_id": self._message_ids(chosen),
                "kind": pa.array(["unicast", "multicast"]).take(
                    pa.array((chosen.way == Way.PUBLISHED).astype(np.int8))
                ),
                "onward": _spelled(names.onward_codes(chosen), names.onward, texts),
                "return": _spelled(names.back_codes(chosen), names.back, texts),
                "multicast_id": _spelled(chosen.topic, names.topic, text),
                "outcome": outcomes.take(pa.array(chosen.outcome)),
                "reason": reasons.take(pa.array(np.where(dropped, chosen.loss, Loss.NONE))),
                "next_hop": _spelled(chosen.next, names.next_hop, text),
                "recipient": _spelled(chosen.recipient, names.participant, text),
                "bytes": pa.array(chosen.bytes, pa.int32()),
                "expiry": _instants(chosen.expiry),
                "from_global": np.zeros(len(order), bool),
                "received_at": _instants(chosen.received_at),
            }

        return _Part("messages", rows.node * WINDOWS + rows.window, rows.at, columns)

    def _truth(self, rows: Rows) -> pa.Table:
        lost = rows.where(rows.loss != Loss.NONE)
        self._rows["losses"] += len(lost.at)
        columns = [
            self._message_ids(lost),
            _spelled(lost.node, self._names.node, pa.string()),
            _instants(lost.at),
            _spelled(lost.loss, lambda code: Loss(code).cause[0], pa.string()),
            _spelled(lost.loss, lambda code: Loss(code).cause[1], pa.string()),
        ]
        return pa.Table.from_arrays(columns, schema=_LOSSES)

    # Files

    def _write(self, parts: list[_Part]) -> None:
        """Give the rows of a slice their seq, node by node in the order of time, and write them."""
        group = np.concatenate([part.group for part in parts])
        at = np.concatenate([part.at for part in parts])
        origin = np.repeat(np.arange(len(parts)), [len(part.at) for part in parts])
        row = np.concatenate([np.arange(len(part.at)) for part in parts])
        order = np.lexsort((row, origin, at, group))
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
        begin = self._cell.uptimes.begin.ravel()[group] // MILLISECOND
        every = {
            "incarnation": pa.array(begin),
            "seq": pa.array(seq),
            "at": _instants(part.at[row]),
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
        write_sealed(directory, table, stem, rows.to_batches(), fsync=False, suffix=unfinished)
