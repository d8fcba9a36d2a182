"""Decide again: the visits of a node of which the rules would have decided otherwise. No Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property, partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from msgspec import Struct

from waystation.core.message import HOP_LIMIT
from waystation.core.outcome import Outcome, Reason
from waystation.pipeline.kernels.columns import (
    NEVER,
    Flags,
    Longs,
    are,
    codes,
    column,
    encoded,
    longs,
    pair_codes,
)
from waystation.pipeline.kernels.deciding import OUTCOMES, REASONS, Past, decisions
from waystation.pipeline.kernels.lookup import Routes, Sessions, local_names
from waystation.pipeline.kernels.node_data import FileData
from waystation.pipeline.kernels.node_tables import judged_rows, past_of
from waystation.whatif.beyond import Beyond
from waystation.whatif.changes import Changes
from waystation.whatif.copies import Diverged, Verdict
from waystation.whatif.lives import Lives
from waystation.whatif.past import NOTHING_ELSE, NOTICED, ChangedNode, Closed, Elsewhere, Outage
from waystation.whatif.standing import standing_for

_FORWARDED: Final = str(Outcome.FORWARDED)
_DROPPED: Final = str(Outcome.DROPPED)
_TEXTS: Final = ("recipient", "address", "next_node")


def diverged(
    data: FileData, changes: Changes, elsewhere: Elsewhere = NOTHING_ELSE
) -> Iterator[tuple[str, Diverged]]:
    """The visits of a node that would have ended otherwise, with the ids of their messages."""
    again = Redecided(data, changes, elsewhere)
    if not again.may_differ:
        return
    rows, mine, theirs = again.rows, again.former, again.changed
    if not rows.num_rows:
        return
    ways = Ways(again.changed_rows, again.past)
    saved = _Saved(rows, again.node.kept_open, list(elsewhere.outages), mine, ways).found
    beyond = Beyond(rows, data.node, changes, again.node)
    lives = Lives(rows, changes.ttl)
    several = (_differing(mine, theirs), [*saved, *beyond.rows], lives.rows(), beyond.left)
    where = np.unique(np.concatenate([np.asarray(some, np.int64) for some in several]))
    if not len(where):
        return
    before, after = decisions_about(mine, where), decisions_about(theirs, where)
    ids = column(rows, "message_id")
    incarnation, received = longs(rows, "incarnation"), longs(rows, "received_at")
    for row in where.tolist():
        got_out = [*saved.get(row, []), *beyond.got_out(row, after.get(row, []))]
        got_out += after.get(row, []) if row in lives.waited else []
        then = lives.instead(row, beyond.instead(row, after.get(row, [])))
        yield (
            ids[row].as_py(),
            Diverged(
                data.node,
                int(incarnation[row]),
                int(received[row]),
                tuple(before.get(row, [])),
                tuple(ways.led(row, verdict) for verdict in then),
                tuple(ways.led(row, verdict) for verdict in got_out),
                beyond.kept_open(row),
                beyond.sooner(row),
                lives.alive_at(row),
                lives.expired_at(row),
            ),
        )


class Redecided:
    """What the rules decide about a node's messages: with its past, and with the changed one."""

    def __init__(
        self, data: FileData, changes: Changes, elsewhere: Elsewhere = NOTHING_ELSE
    ) -> None:
        self.node = ChangedNode(data, changes, elsewhere)
        self._data = data
        self._limit = changes.limits.hop_limit or HOP_LIMIT
        self._changes = changes
        self._outages = elsewhere.outages

    @property
    def may_differ(self) -> bool:
        """Whether anything is changed that decisions depend on."""
        changes, name = self._changes, self._data.node
        limited = self._limit != HOP_LIMIT
        beyond = changes.rooms_at(name) or changes.grants_at(name) is not None
        lives = any(one.messages for one in changes.ttl)
        return bool(self.node.is_changed or self._outages or lives or limited or beyond)

    @cached_property
    def rows(self) -> pa.Table:
        """The messages."""
        return judged_rows(self._data)

    @cached_property
    def changed_rows(self) -> pa.Table:
        """The messages with their changed lives, in the incarnations that they would be of."""
        return _renumbered(Lives(self.rows, self._changes.ttl).changed(), self.node)

    @cached_property
    def _past(self) -> Past:
        return past_of(self._data, self.rows)

    @cached_property
    def past(self) -> Past:
        """What the node would have known."""
        node = self.node
        return Past(node.routes, node.subscriptions, node.sessions, self._past.before)

    @cached_property
    def former(self) -> Decided:
        """The decisions as they were to be: the rows of `expected`."""
        return _table(decisions(self.rows, self._past))

    @cached_property
    def changed(self) -> Decided:
        """The decisions as they would have been."""
        return _table(decisions(self.changed_rows, self.past, self._limit))


class _Saved:
    """Copies that were dropped since a session was closed, or a peer away, that is there now.

    They are given by the row that stands for their visit.
    """

    def __init__(
        self,
        rows: pa.Table,
        closed: list[Closed],
        outages: list[Outage],
        decided: Decided,
        ways: Ways,
    ) -> None:
        self.found: dict[int, list[Verdict]] = {}
        if not (closed or outages) or not rows.num_rows:
            return
        reasons = column(rows, "reason")
        # A leaf without its session has no parent for a broadcast that nobody hears there.
        lonely = are(reasons, Reason.NO_SUBSCRIBER) if closed else np.zeros(rows.num_rows, bool)
        waited = are(reasons, Reason.EXPIRED) & np.asarray(column(rows, "out").is_valid())
        down = np.flatnonzero(are(reasons, Reason.TRANSPORT_DOWN) | lonely | waited)
        at, received = longs(rows, "at"), longs(rows, "received_at")
        stands = standing_for(rows, down)
        meant = decisions_about(decided, np.array(sorted(set(stands.values())), np.int64))
        names = ("recipient", "out", "next_node", "onward")
        told = [column(rows, name).take(pa.array(down)).to_pylist() for name in names]
        for row, recipient, out, peer, onward in zip(down.tolist(), *told, strict=True):
            stand = stands[row]
            one = _closed(closed, out, peer, int(at[row]), int(received[row]))
            if one is not None:
                keeps = onward[:1] != [f"0#{one.session}"]
                verdict = Verdict(recipient, _FORWARDED, None, None, peer or one.peer, keeps)
                self.found.setdefault(stand, []).append(verdict)
                continue
            for verdict in meant.get(stand, []):
                if verdict.recipient == recipient and verdict.outcome == _FORWARDED:
                    way = ways.led(stand, verdict)
                    to = way.next_node
                    is_back = to and _closed(closed, None, to, int(at[row]), int(received[row]))
                    if is_back or _is_away(outages, to, int(at[row])):
                        self.found.setdefault(stand, []).append(way)


def _closed(
    closed: list[Closed], out: str | None, peer: str | None, at: int, received: int
) -> Closed | None:
    """The session that a copy was dropped for, if its end is left out."""
    for one in closed:
        ours = out == one.session or (peer is not None and peer == one.peer)
        if ours and one.since <= at and received < one.until:
            return one
    return None


def _is_away(outages: list[Outage], node: str | None, at: int) -> bool:
    return any(
        one.node == node and one.since - NOTICED <= at < one.until + NOTICED for one in outages
    )


def _renumbered(rows: pa.Table, node: ChangedNode) -> pa.Table:
    numbers = node.incarnations(longs(rows, "incarnation"))
    place = rows.column_names.index("incarnation")
    return rows.set_column(place, "incarnation", pa.array(numbers))


# Comparing


class Decided(Struct):
    """Decisions as columns."""

    row: Longs
    outcome: Longs
    reason: Longs
    texts: dict[str, pa.Array]


def _table(found: Iterable[Any]) -> Decided:
    parts = list(found)
    row, outcome, reason = (
        np.concatenate([np.zeros(0, np.int64), *(getattr(part, name) for part in parts)])
        for name in ("row", "outcome", "reason")
    )
    texts = {name: _joined([getattr(part, name) for part in parts], parts) for name in _TEXTS}
    return Decided(row.astype(np.int64), outcome, reason, texts)


def _joined(columns: list[Any], parts: list[Any]) -> pa.Array:
    given = [
        pa.nulls(len(part.row), pa.string()) if values is None else values.cast(pa.string())
        for values, part in zip(columns, parts, strict=True)
    ]
    return encoded(pa.concat_arrays(given) if given else pa.array([], pa.string()))


def _differing(mine: Decided, theirs: Decided) -> Longs:
    """The rows about which the two decide differently."""
    ours, others = len(mine.row), len(theirs.row)
    key = np.concatenate([mine.outcome, theirs.outcome]).astype(np.int64) * 64
    key += np.concatenate([mine.reason, theirs.reason]) + 1
    for name in _TEXTS:
        both = pa.concat_arrays(
            [mine.texts[name].cast(pa.string()), theirs.texts[name].cast(pa.string())]
        )
        key = pair_codes(key, codes(encoded(both)))
    row = np.concatenate([mine.row, theirs.row])
    pair = pair_codes(row, key)
    only_here = np.setxor1d(pair[:ours], pair[ours : ours + others])
    return np.unique(row[np.isin(pair, only_here)])


def decisions_about(decided: Decided, wanted: Longs) -> dict[int, list[Verdict]]:
    """The decisions about some rows."""
    some: Flags = np.isin(decided.row, wanted)
    which = np.flatnonzero(some)
    found: dict[int, list[Verdict]] = {}
    texts = [decided.texts[name].take(pa.array(which)).to_pylist() for name in _TEXTS]
    numbers = (decided.row[which], decided.outcome[which], decided.reason[which])
    for row, outcome, reason, recipient, address, peer in zip(
        *(values.tolist() for values in numbers), *texts, strict=True
    ):
        why = None if reason < 0 else REASONS[reason].as_py()
        told = Verdict(recipient, OUTCOMES[outcome].as_py(), why, address, peer)
        found.setdefault(row, []).append(told)
    return found


class Ways:
    """Where copies go that leave a node."""

    def __init__(self, messages: pa.Table, past: Past) -> None:
        self._incarnation = longs(messages, "incarnation")
        self._received = longs(messages, "received_at")
        self._routes = Routes(past.routes)
        self._open = Sessions(past.sessions)
        self._places = _peers_by_place(past.sessions)
        self._expiry = longs(messages, "expiry", NEVER)
        self._opened: dict[str, list[int]] = {}
        names = past.sessions.column("session").to_pylist()
        for name, at in zip(names, longs(past.sessions, "opened_at").tolist(), strict=True):
            self._opened.setdefault(name, []).append(at)
        self._names = self._opened.keys()
        self._peers = column(self._open.history, "peer")

    def led(self, row: int, verdict: Verdict) -> Verdict:
        """A verdict with the node that a forwarded copy goes to."""
        if verdict.outcome != _FORWARDED or verdict.next_node is not None:
            return verdict
        here = slice(row, row + 1)
        find = partial(self._found, self._incarnation[here], self._received[here])
        address = verdict.address or ""
        [name] = local_names(pa.array([address])).to_pylist()
        peer = self._places.get(address) if name is None else self._peer(find(self._open, name))
        if peer is None and name in self._names:
            ended = self._waiting_for(row, name)
            if ended is not None:
                return Verdict(verdict.recipient, _DROPPED, ended, None)
        entry = -1 if verdict.recipient is None else find(self._routes, verdict.recipient)
        is_session = verdict.recipient in self._names  # which is used up
        return Verdict(
            verdict.recipient,
            verdict.outcome,
            verdict.reason,
            verdict.address,
            peer,
            keeps_first=verdict.recipient is None or (entry >= 0 and not is_session),
        )

    @staticmethod
    def _found(incarnation: Longs, received: Longs, intervals: Any, name: str) -> int:
        numbers = intervals.numbers(pa.array([name]))
        return int(intervals.find(incarnation, numbers, received)[0])

    def _waiting_for(self, row: int, session: str) -> str | None:
        """How a message ends that waits for a session without a link; None if nobody can tell.

        It goes out if the link is back soon enough, and that is for the node to decide.
        """
        again = [at for at in self._opened.get(session, ()) if at > self._received[row]]
        if not again:
            return str(Reason.TRANSPORT_DOWN)
        return str(Reason.EXPIRED) if self._expiry[row] <= min(again) else None

    def _peer(self, row: int) -> str | None:
        found: str | None = self._peers[row].as_py() if row >= 0 else None
        return found


def _peers_by_place(sessions: pa.Table) -> dict[str, str]:
    """The node behind each place that the node ever had a session with."""
    pairs = zip(
        sessions.column("place").to_pylist(), sessions.column("peer").to_pylist(), strict=True
    )
    return {place: peer for place, peer in pairs if place is not None and peer is not None}
