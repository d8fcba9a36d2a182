"""The past of one node as it would have been: its events, changed, and what follows from them.

Events that came from outside the node stay as they are recorded unless a change names them. What
follows from events is computed again: when entries and subscriptions were valid, and the removes
that a session's end caused, if the session stays open. Arrow in, Arrow out; no Spark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from waystation.core.address_types import is_session_name
from waystation.errors import LocalError
from waystation.journal.schema import INSTANT, NODES, ROUTES, SESSIONS, SUBSCRIPTIONS
from waystation.pipeline.instants import instant
from waystation.pipeline.kernels.columns import (
    NEVER,
    Flags,
    Longs,
    are,
    codes,
    column,
    encoded,
    instants,
    longs,
)
from waystation.pipeline.kernels.deciding import Past
from waystation.pipeline.kernels.folding import coded_routes, coded_subscriptions
from waystation.pipeline.kernels.lifetimes import Lifetimes
from waystation.pipeline.kernels.node_data import FileData
from waystation.pipeline.kernels.sessions import fold_sessions
from waystation.pipeline.schema import plain_schema
from waystation.whatif.announcing import Announced, Kept, Opened, announced
from waystation.whatif.changes import Changes, Put, Remove, Without, lengthened, selects

NOTICED: Final = 5_000_000
"""Microseconds within which a session's end follows its cause, and its removes follow that."""

RECONNECTED: Final = 60_000_000
"""Microseconds after a node's restart in which its peers may still notice that it was down."""

_ENDINGS: Final = (
    (ROUTES, "remove", "participant"),
    (SUBSCRIPTIONS, "unsubscribe", "receiver"),
)
"""What ends in each table, and whose it is."""

_ENDED_BY: Final = ("session_closed", "withdrawn", "worker")
"""What may cause the end of an entry with a session or with the node, in the record's words."""

_LATER: Final = 2**40
"""What is added to the seq of an incarnation that is joined to the one before."""


class Outage(Struct, frozen=True):
    """A time without a node, between two of its incarnations, which is left out."""

    node: str
    before: int  # incarnations
    after: int
    since: int  # microseconds
    until: int
    stopped: bool = False  # in good order: it had ended what its own workers had


class Closed(Struct, frozen=True):
    """A session whose end is left out, and until when it would not have been open otherwise."""

    incarnation: int
    session: str
    peer: str | None
    since: int
    until: int


class Withdrawn(Struct, frozen=True):
    """A name that went at a node with a session whose end is left out.

    The node told others of it, and there it would not have gone either.
    """

    table: str
    name: str  # a participant, or the receiver of a subscription
    at: int  # microseconds


class Elsewhere(Struct, frozen=True):
    """What is left out at other nodes, as far as a node would have noticed."""

    outages: tuple[Outage, ...] = ()
    withdrawn: tuple[Withdrawn, ...] = ()
    recorded_until: int = NEVER  # microseconds: how far the whole journal reaches
    announced: tuple[Announced, ...] = ()

    @classmethod
    def of(cls, outages: Iterable[Outage], lives: Mapping[str, Iterable[Any]]) -> Elsewhere:
        """These outages of nodes with these lives."""
        latest = max((life.latest for some in lives.values() for life in some), default=NEVER)
        return cls(tuple(outages), recorded_until=latest)


class Noticed(Struct, frozen=True):
    """What one node tells of what others would have noticed."""

    withdrawn: list[Withdrawn]
    kept: list[Kept]
    sessions: list[Opened]


def noticed_of(first: Elsewhere, told: Iterable[Noticed]) -> Elsewhere:
    """The same with what all nodes tell."""
    nodes = list(told)
    sessions = (one for node in nodes for one in node.sessions)
    above = announced((one for node in nodes for one in node.kept), sessions)
    withdrawn = tuple(one for node in nodes for one in node.withdrawn)
    return replace(first, withdrawn=withdrawn, announced=tuple(above))


NOTHING_ELSE: Final = Elsewhere()


class ChangedNode:
    """What one node would have had, and what it really had."""

    def __init__(
        self, data: FileData, changes: Changes, elsewhere: Elsewhere = NOTHING_ELSE
    ) -> None:
        self._data = data
        self._changes = changes
        self._elsewhere = elsewhere
        self._outages = [one for one in elsewhere.outages if one.node != data.node]
        self._own_outages = [one for one in elsewhere.outages if one.node == data.node]
        self._joined = _joined(self._own_outages)

    @property
    def node(self) -> str:
        """Its name."""
        return self._data.node

    @cached_property
    def is_changed(self) -> bool:
        """Whether its tables or sessions differ from those that it had."""
        names = self._changes
        about = [
            *(one.node for one in names.ttl if one.routes),
            *(one.node for one in names.sticky),
            *(one.node for one in names.put),
            *(one.node for one in names.remove),
            *(one.node for one in names.without if one.kind in ("remove", "unsubscribe")),
        ]
        return (
            any(selects(node, self.node) for node in about)
            or bool(self._joined)
            or bool(self.kept_open)
            or bool(self._elsewhere.withdrawn)
            or any(one.node == self.node for one in self._elsewhere.announced)
        )

    def noticed(self) -> Noticed:
        """What others would have noticed of what is left out here."""
        if not keeps_names(self._changes):
            return Noticed(self.withdrawn(), [], [])
        kept = [one for table, kind, who in _ENDINGS for one in self._kept(table, kind, who)]
        return Noticed(self.withdrawn(), kept, self._own_sessions())

    def _kept(self, table: str, kind: str, who: str) -> Iterator[Kept]:
        """The names of its own programs whose end is left out."""
        events = self._data.coded_events(table)
        gone = self._left_out(events, kind, who)
        if table == ROUTES:  # not the names of sessions
            places = column(events, "address").cast(pa.string())
            own_places = pc.binary_join_element_wise(
                "0#", column(events, who).cast(pa.string()), ""
            )
            gone &= np.asarray(pc.fill_null(pc.equal(places, own_places), fill_value=False))
        if not gone.any():
            return
        ends = self.lifetimes.ends()
        own = self._own_ends(table)
        some = events.filter(pa.array(gone))
        names = ("incarnation", "seq", who)
        patterns = (
            some.column("pattern").to_pylist() if table == SUBSCRIPTIONS else [None] * len(some)
        )
        told = zip(
            *(some.column(name).to_pylist() for name in names),
            patterns,
            longs(some, "at").tolist(),
            strict=True,
        )
        for incarnation, seq, name, pattern, at in told:
            if (incarnation, seq) in own:
                until, _ = ends.get(incarnation, (NEVER, False))
                yield Kept(table, name, pattern, self.node, at, until)

    def _own_ends(self, table: str) -> set[tuple[int, int]]:
        """The events that its own programs caused."""
        found: set[tuple[int, int]] = set()
        for rows in self._data.coded_batches(table, every=True):
            own = rows.filter(pa.array(are(column(rows, "cause"), "worker")))
            numbers = (longs(own, name).tolist() for name in ("incarnation", "seq"))
            found.update(zip(*numbers, strict=True))
        return found

    def _own_sessions(self) -> list[Opened]:
        sessions = self.sessions
        names = ("session", "role", "peer")
        told = zip(
            *(sessions.column(name).to_pylist() for name in names),
            longs(sessions, "opened_at").tolist(),
            longs(sessions, "closed_at", NEVER).tolist(),
            strict=True,
        )
        return [Opened(self.node, *one) for one in told if one[2] is not None]

    def withdrawn(self) -> list[Withdrawn]:
        """The names that went with sessions whose end is left out."""
        if not self.kept_open:
            return []
        return [
            Withdrawn(table, name, at)
            for table, kind, who in _ENDINGS
            for name, at in self._names_gone(table, kind, who)
        ]

    def _names_gone(self, table: str, kind: str, who: str) -> Iterable[tuple[str, int]]:
        events = self._data.coded_events(table)
        gone = are(column(events, "kind"), kind) & self._caused(table, events)
        some = events.filter(pa.array(gone))
        return zip(column(some, who).to_pylist(), longs(some, "at").tolist(), strict=True)

    @cached_property
    def identities(self) -> dict[tuple[int, str], str | None]:
        """What the peer of each session has proven, by incarnation and session."""
        events = self._data.small_table(SESSIONS)
        names = ("incarnation", "session", "identity")
        told = zip(*(events.column(name).to_pylist() for name in names), strict=True)
        found: dict[tuple[int, str], str | None] = {}
        for incarnation, session, identity in told:
            found[incarnation, session] = identity or found.get((incarnation, session))
        return found

    @property
    def recorded_until(self) -> dict[int, int]:
        """How far the record of each incarnation reaches; that of one that runs, to the end."""
        found = self._data.latest()
        running = max(found, default=None)
        if running is not None and running not in self._data.lifetimes().ends():
            found[running] = max(found[running], self._elsewhere.recorded_until)
        return found

    def past(self) -> Past:
        """Its histories, changed."""
        return Past(self.routes, self.subscriptions, self.sessions)

    def incarnations(self, numbers: Longs) -> Longs:
        """The incarnations that these belong to, once those before and after an outage are one."""
        if not self._joined:
            return numbers
        found = numbers.copy()
        for number, root in self._joined.items():
            found[numbers == number] = root
        return found

    @cached_property
    def lifetimes(self) -> Lifetimes:
        """When its incarnations would have begun and ended."""
        given = self._data.lifetimes()
        if not self._joined:
            return given
        ends = given.ends()
        rows = [
            ("start", number, at)
            for number, at in given.begins().items()
            if number not in self._joined
        ]
        followed = {self._predecessor(number) for number in self._joined}
        rows += [
            ("stop", self._joined.get(number, number), at)
            for number, (at, stopped) in ends.items()
            if stopped and number not in followed
        ]
        lives = Lifetimes()
        lives.add(_node_rows(rows))
        return lives

    def _predecessor(self, number: int) -> int:
        known = sorted(self._data.lifetimes().begins())
        return known[known.index(number) - 1]

    @cached_property
    def routes(self) -> pa.Table:
        """Its routing entries."""
        return coded_routes(self._route_events, self.lifetimes).combine_chunks()

    @cached_property
    def subscriptions(self) -> pa.Table:
        """Its subscriptions."""
        return coded_subscriptions(self._subscription_events, self.lifetimes).combine_chunks()

    @cached_property
    def sessions(self) -> pa.Table:
        """Its sessions."""
        events = self._data.small_table(SESSIONS)
        if self.kept_open:
            kept = ~_at_these(events, self.kept_open)
            events = events.filter(pa.array(kept))
        return fold_sessions(self.node, self._renumbered(events), self.lifetimes.ends())

    @cached_property
    def kept_open(self) -> list[Closed]:
        """The sessions whose end is left out: by name, or since their peer was not away."""
        asked = [
            (one.participant, *one.span)
            for one in self._changes.without
            if one.kind == "close" and selects(one.node, self.node)
        ]
        asked += [("*", one.since - NOTICED, one.until) for one in self._own_outages]
        away = {one.node: one for one in self._outages}
        if not (asked or away):
            return []
        events = self._data.small_table(SESSIONS)
        names = ("incarnation", "session", "peer", "kind")
        at = longs(events, "at").tolist()
        rows = list(zip(*(events.column(name).to_pylist() for name in names), at, strict=True))
        return [
            Closed(incarnation, session, peer, then, _opens_again(rows, peer, session, then))
            for incarnation, session, peer, kind, then in rows
            if kind == "close"
            and (
                any(since <= then < until and selects(who, peer) for who, since, until in asked)
                or _is_noticed(away.get(peer), then, _opened(rows, incarnation, session, then))
            )
        ]

    # Events

    @cached_property
    def _route_events(self) -> pa.Table:
        events = self._events(ROUTES, "remove", "participant")
        changes = self._changes
        ttl = [one for one in changes.ttl if one.routes and selects(one.node, self.node)]
        sticky = [one for one in changes.sticky if selects(one.node, self.node)]
        puts = are(column(events, "kind"), "put")
        participants = column(events, "participant")
        for change in ttl:
            which = puts & _selected(participants, change.participant)
            events = _with_expiry(events, which, change)
        for one in sticky:
            which = puts & _selected(participants, one.participant)
            events = _with_flag(events, "sticky", which)
        return events

    @cached_property
    def _subscription_events(self) -> pa.Table:
        return self._events(SUBSCRIPTIONS, "unsubscribe", "receiver")

    def _events(self, table: str, kind: str, who: str) -> pa.Table:
        """Events of a table without those that are left out, and with those that are added."""
        events = self._data.coded_events(table)
        gone = self._left_out(events, kind, who)
        ends = are(column(events, "kind"), kind)
        if self.kept_open or self._own_outages or self._elsewhere.withdrawn:
            gone |= ends & self._caused(table, events)
        changed = set(column(events, who).filter(pa.array(gone)).to_pylist())
        if gone.any():
            events = events.filter(pa.array(~gone))
        added = _added(table, self.node, [*self._changes.put, *self._changes.remove])
        changed.update(row[who] for row in added)
        added += self._ended_with_sessions(table, changed)
        added += self._told_of(table)
        added.sort(key=lambda row: row["at"])
        if table == SUBSCRIPTIONS and self._joined:
            added += _succeeded(events, self._joined)
        events = self._renumbered(events)
        if added:
            events = pa.concat_tables(
                [events.cast(plain_schema(table)), self._numbered(table, added, events)]
            )
        return events

    def _left_out(self, events: pa.Table, kind: str, who: str) -> Flags:
        """Which ends the changes name."""
        gone = np.zeros(events.num_rows, np.bool_)
        at, ends = longs(events, "at"), are(column(events, "kind"), kind)
        for one in self._changes.without:
            if one.kind == kind and selects(one.node, self.node):
                since, until = one.span
                named = _selected(column(events, who), one.participant)
                gone |= ends & (at >= since) & (at < until) & named
        return gone

    def _told_of(self, table: str) -> list[dict[str, Any]]:
        """What others would have announced to it, and withdrawn."""
        row = _announced_route if table == ROUTES else _announced_subscription
        told = (one for one in self._elsewhere.announced if one.node == self.node)
        return [row(one) for one in told if one.table == table]

    def _ended_with_sessions(self, table: str, names: Collection[str]) -> list[dict[str, Any]]:
        """The ends of changed entries whose session was closed (RE-12).

        What had ended before is not on record to end then. A session that the node keeps under a
        name of its own keeps its entries, too.
        """
        if not names:
            return []
        events = self._data.small_table(SESSIONS)
        columns = ("incarnation", "session", "kind")
        told = zip(
            *(events.column(name).to_pylist() for name in columns),
            longs(events, "at").tolist(),
            strict=True,
        )
        kept = {(one.incarnation, one.session, one.since) for one in self.kept_open}
        closed: dict[str, int] = {
            session: at
            for incarnation, session, kind, at in told
            if kind == "close"
            and is_session_name(session)
            and (incarnation, session, at) not in kept
        }
        return (
            [row for name in sorted(names) for row in self._ends_of(table, name, closed)]
            if closed
            else []
        )

    def _ends_of(
        self, table: str, name: str, closed: Mapping[str, int]
    ) -> Iterable[dict[str, Any]]:
        routes = self._data.coded_events(ROUTES)
        own = routes.filter(pa.array(_selected(column(routes, "participant"), name)))
        sessions = {text.removeprefix("0#") for text in own.column("address").to_pylist() if text}
        for session in sessions & closed.keys():
            at = closed[session]
            if table == ROUTES:
                yield {"at": at, "kind": "remove", "participant": name}
                continue
            found = self._data.coded_events(SUBSCRIPTIONS)
            heard = found.filter(pa.array(_selected(column(found, "receiver"), name)))
            for pattern in sorted(set(heard.column("pattern").to_pylist())):
                yield {"at": at, "kind": "unsubscribe", "pattern": pattern, "receiver": name}

    def _caused(self, table: str, events: pa.Table) -> Flags:
        """Which events the end of a session or of the node caused that is left out."""
        batches = list(self._data.coded_batches(table, every=True))
        who = next(who for name, _, who in _ENDINGS if name == table)
        withdrawn: dict[str, list[int]] = {}
        for one in self._elsewhere.withdrawn:
            if one.table == table:
                withdrawn.setdefault(one.name, []).append(one.at)
        caused: set[tuple[int, int]] = set()
        for rows in batches:
            causes = column(rows, "cause")
            by_end = rows.filter(pa.array(np.any([are(causes, one) for one in _ENDED_BY], axis=0)))
            names = ("incarnation", "seq", "session", who, "cause")
            told = zip(
                *(by_end.column(name).to_pylist() for name in names),
                longs(by_end, "at").tolist(),
                strict=True,
            )
            for incarnation, seq, session, name, cause, at in told:
                here = any(_is_of(one, incarnation, session, at) for one in self.kept_open)
                told_of = cause == "withdrawn" and any(
                    abs(at - then) < NOTICED for then in withdrawn.get(name, ())
                )
                stopped = cause == "worker" and self._is_of_a_stop(incarnation, at)
                if here or told_of or stopped:
                    caused.add((incarnation, seq))
        keys = zip(
            longs(events, "incarnation").tolist(), longs(events, "seq").tolist(), strict=True
        )
        return np.array([key in caused for key in keys], np.bool_)

    def _is_of_a_stop(self, incarnation: int, at: int) -> bool:
        """Whether what a worker ended then, it ended since the node stopped, which is left out."""
        return any(
            one.stopped and incarnation == one.before and at >= one.since - NOTICED
            for one in self._own_outages
        )

    def _renumbered(self, events: pa.Table) -> pa.Table:
        """Events with the incarnations that are one now, in their order."""
        if not self._joined or not events.num_rows:
            return events
        incarnation, seq = longs(events, "incarnation"), longs(events, "seq").copy()
        for place, number in enumerate(sorted(self._joined)):
            seq[incarnation == number] += (place + 1) * _LATER
        changed = {"incarnation": self.incarnations(incarnation), "seq": seq}
        for name, values in changed.items():
            place = events.column_names.index(name)
            events = events.set_column(place, name, pa.array(values))
        return events

    def _numbered(self, table: str, rows: list[dict[str, Any]], events: pa.Table) -> pa.Table:
        """Added events as rows, each after the recorded ones of its time."""
        at, seq = longs(events, "at"), longs(events, "seq")
        incarnation = longs(events, "incarnation")
        lives = sorted(self.lifetimes.begins().items(), key=lambda life: life[1])
        for row in rows:
            row["incarnation"] = next((n for n, since in reversed(lives) if since <= row["at"]), 0)
            own = (incarnation == row["incarnation"]) & (at <= row["at"])
            row["seq"] = int(seq[own].max(initial=-1))
        # A fold sorts by seq and keeps the order of equal ones: an added event comes after the
        # recorded one that has its number.
        schema = plain_schema(table)
        columns = []
        for field in schema:
            values = [row.get(field.name) for row in rows]
            if field.type == INSTANT:
                columns.append(pa.array(values, pa.int64()).view(INSTANT))
            else:
                columns.append(pa.array(values, field.type))
        return pa.table(columns, schema=schema)


def outages_of(changes: Changes, lives: Mapping[str, Iterable[Any]]) -> list[Outage]:
    """The outages that are left out, of nodes with these lives."""
    return [
        one
        for change in changes.without
        if change.kind in ("crash", "stop")
        for one in _all_outages(lives)
        if one.stopped == (change.kind == "stop") and _is_left_out(change, one)
    ]


def _all_outages(lives: Mapping[str, Iterable[Any]]) -> Iterable[Outage]:
    """The times without a node."""
    for node, incarnations in lives.items():
        for former, later in pairwise(sorted(incarnations, key=lambda life: life.begins)):
            ended = former.ends if former.stopped else former.latest
            numbers = (former.incarnation, later.incarnation)
            yield Outage(node, *numbers, ended, later.begins, stopped=former.stopped)


def leaves_sessions_open(changes: Changes) -> bool:
    """Whether sessions stay open that were closed."""
    return any(one.kind in ("crash", "stop", "close") for one in changes.without)


def keeps_names(changes: Changes) -> bool:
    """Whether names stay that programs had ended."""
    return any(one.kind in ("remove", "unsubscribe") for one in changes.without)


def check_found(nodes: Collection[str], changes: Changes, outages: list[Outage]) -> None:
    """Refuse changes that name what is not in the journal: they would seem to change nothing."""
    for change in changes.each():
        named = getattr(change, "node", "*")
        if not any(selects(named, node) for node in nodes):
            raise LocalError(
                f"the journal has no node {named!r}", rule="SP-9", hint="check the change file"
            )
    for one in missing(changes, outages):
        raise LocalError(
            f"there is no {one.kind} of {one.node!r} at that time with a start after it",
            rule="SP-9",
            hint="the table `coverage` shows when nodes ran",
        )


def missing(changes: Changes, outages: list[Outage]) -> list[Without]:
    """The crashes and stops that are left out, but are not on record."""
    return [
        one
        for one in changes.without
        if one.kind in ("crash", "stop") and not any(_is_left_out(one, o) for o in outages)
    ]


def _is_left_out(change: Without, outage: Outage) -> bool:
    """Whether a change is about an outage.

    A crash was some time after the last record, which is old if the node had nothing to do.
    """
    since, until = change.span
    last = outage.until if change.kind == "crash" else outage.since
    return selects(change.node, outage.node) and since <= last and outage.since < until


def _joined(outages: Iterable[Outage]) -> dict[int, int]:
    """For each incarnation after an outage, the first one of those that are one now."""
    found: dict[int, int] = {}
    for one in sorted(outages, key=lambda outage: outage.after):
        found[one.after] = found.get(one.before, one.before)
    return found


def _node_rows(rows: list[tuple[str, int, int]]) -> pa.Table:
    kinds, numbers, ats = zip(*rows, strict=True) if rows else ((), (), ())
    columns = {
        "incarnation": pa.array(numbers, pa.int64()),
        "seq": pa.array([0] * len(rows), pa.int64()),
        "at": pa.array(ats, pa.int64()).view(INSTANT),
        "kind": pa.array(kinds, pa.string()),
    }
    schema = plain_schema(NODES)
    return pa.table(
        [columns.get(field.name, pa.nulls(len(rows), field.type)) for field in schema],
        schema=schema,
    )


def _is_noticed(outage: Outage | None, at: int, opened: int) -> bool:
    """Whether a session that opened then ended since its peer was away."""
    if outage is None or opened >= outage.since:
        return False
    return outage.since - NOTICED <= at < outage.until + RECONNECTED


def _opened(rows: list[Any], incarnation: int, session: str, at: int) -> int:
    """When a session that ended then had opened."""
    opened = [
        then
        for number, name, _, kind, then in rows
        if kind == "open" and (number, name) == (incarnation, session) and then <= at
    ]
    return max(opened, default=at)


def _opens_again(rows: list[Any], peer: str | None, session: str, at: int) -> int:
    """When the next session with a peer opened, after one had ended."""
    again = [
        then
        for _, name, other, kind, then in rows
        if kind == "open" and then > at and (name == session or (peer and other == peer))
    ]
    return min(again, default=NEVER)


def _is_of(closed: Closed, incarnation: int, session: str | None, at: int) -> bool:
    return (
        closed.incarnation == incarnation
        and closed.session == session
        and abs(at - closed.since) < NOTICED
    )


def _at_these(events: pa.Table, closed: Iterable[Closed]) -> Flags:
    """Which rows of `sessions` are the ends of these."""
    ends = {(one.incarnation, one.session, one.since) for one in closed}
    keys = zip(
        events.column("incarnation").to_pylist(),
        events.column("session").to_pylist(),
        longs(events, "at").tolist(),
        events.column("kind").to_pylist(),
        strict=True,
    )
    return np.array(
        [kind == "close" and (number, name, at) in ends for number, name, at, kind in keys],
        np.bool_,
    )


def _selected(names: pa.Array, selector: str) -> Flags:
    """Which of these names a selector is about; each distinct one is looked at once."""
    if selector == "*":
        return np.ones(len(names), np.bool_)
    coded = encoded(names)
    known = [selects(selector, name) for name in coded.dictionary.to_pylist()]
    found: Flags = np.append(np.array(known, np.bool_), False)[codes(coded)]
    return found


def _with_expiry(events: pa.Table, which: Flags, change: Any) -> pa.Table:
    expiry, at = longs(events, "expiry", NEVER).copy(), longs(events, "at")
    rows = np.flatnonzero(which & (expiry != NEVER))
    if change.factor is not None:
        expiry[rows] = at[rows] + ((expiry[rows] - at[rows]) * change.factor).astype(np.int64)
    else:
        pairs = zip(at[rows].tolist(), expiry[rows].tolist(), strict=True)
        expiry[rows] = [lengthened(change, *pair) for pair in pairs]
    place = events.column_names.index("expiry")
    return events.set_column(place, "expiry", instants(expiry))


def _with_flag(events: pa.Table, name: str, which: Flags) -> pa.Table:
    place = events.column_names.index(name)
    values = pc.or_kleene(events.column(name).combine_chunks(), pa.array(which))
    return events.set_column(place, name, values)


def _added(table: str, node: str, changes: Iterable[Put | Remove]) -> list[dict[str, Any]]:
    """The events that changes add to a table of a node."""
    found = []
    for one in changes:
        if not selects(one.node, node) or (one.participant is None) != (table == SUBSCRIPTIONS):
            continue
        found.append(_route_row(one) if table == ROUTES else _subscription_row(one))
    return sorted(found, key=lambda row: row["at"])


def _succeeded(events: pa.Table, joined: Mapping[int, int]) -> list[dict[str, Any]]:
    """The ends of subscriptions whose program subscribed anew after the outage, by another name.

    It would have gone on under the former one; so it has one of the two at a time.
    """
    names = ("incarnation", "kind", "pattern", "receiver")
    told = list(
        zip(
            *(events.column(name).to_pylist() for name in names),
            longs(events, "at").tolist(),
            strict=True,
        )
    )
    found = []
    for later in joined:
        again = {receiver for number, _, _, receiver, _ in told if number == later}
        for number, kind, pattern, receiver, at in told:
            if number != later or kind != "subscribe" or not _is_generated(receiver):
                continue
            found += [
                {"at": at, "kind": "unsubscribe", "pattern": pattern, "receiver": former}
                for earlier, _, heard, former, _ in told
                if earlier < later
                and heard == pattern
                and former not in again
                and _is_generated(former)
            ]
    return found


def _is_generated(receiver: str) -> bool:
    return receiver.startswith("subscriber-")


def _route_row(change: Put | Remove) -> dict[str, Any]:
    row: dict[str, Any] = {"at": instant(change.at), "participant": change.participant}
    if isinstance(change, Remove):
        return {**row, "kind": "remove"}
    return {
        **row,
        "kind": "put",
        "address": change.address,
        "local": change.local,
        "visible": change.visible,
        "sticky": False,
        "expiry": None if change.expiry is None else instant(change.expiry),
    }


def _subscription_row(change: Put | Remove) -> dict[str, Any]:
    kind = "subscribe" if isinstance(change, Put) else "unsubscribe"
    at = instant(change.at)
    return {"at": at, "kind": kind, "pattern": change.pattern, "receiver": change.receiver}


def _announced_route(one: Announced) -> dict[str, Any]:
    row: dict[str, Any] = {"at": one.at, "participant": one.name}
    if one.session is None:
        return {**row, "kind": "remove"}
    added = {"kind": "put", "address": f"0#{one.session}", "local": True}
    return {**row, **added, "visible": False, "sticky": False}


def _announced_subscription(one: Announced) -> dict[str, Any]:
    kind = "unsubscribe" if one.session is None else "subscribe"
    return {"at": one.at, "kind": kind, "pattern": one.pattern, "receiver": one.name}
