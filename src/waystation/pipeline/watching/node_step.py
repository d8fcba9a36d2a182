"""Process more files of one node: recompute only what changes in its tables.

The rules are local to a node, and most of what a new file brings comes after everything known. So
open intervals continue, messages received since then are decided,
and the windows that they fall into are counted again. What reaches further back, such as
the outcome of a message that waited, causes the affected pieces to be recomputed. What changes the
past itself, such as events before known ones, or rows that are in two files, causes the whole
node to be processed again from all of its files: that is always right, and rarely needed.

This runs in the executors; no Spark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field

from waystation.core.coverage import lives_of
from waystation.journal.schema import (
    MEMBERS,
    MESSAGES,
    NODES,
    ROUTES,
    SESSIONS,
    SUBSCRIPTIONS,
    TEXT,
)
from waystation.pipeline.kernels.columns import (
    NEVER,
    Flags,
    Longs,
    are,
    coded_name,
    column,
    longs,
    numbered,
    taken,
)
from waystation.pipeline.kernels.comparing import coded_comparison, route_differences, waiting_ids
from waystation.pipeline.kernels.coverage import Accounts, covered
from waystation.pipeline.kernels.deciding import Past, coded_decisions
from waystation.pipeline.kernels.health import TALLY, added_up, counted, health_of
from waystation.pipeline.kernels.node_data import FileData, Share
from waystation.pipeline.kernels.node_tables import as_rejects, earlier_copies
from waystation.pipeline.kernels.passing import peers_by_hour
from waystation.pipeline.kernels.sessions import as_openings, fold_sessions
from waystation.pipeline.kernels.tracing import coded_steps
from waystation.pipeline.kernels.upward import first_upward
from waystation.pipeline.kernels.visits import is_of_version_2, without_tunnelled
from waystation.pipeline.listing import Wanted, locate
from waystation.pipeline.schema import JOURNAL, coded_schema, plain_schema
from waystation.pipeline.surveying import (
    NodeFacts,
    brokers_in,
    hourly_links,
    node_rows,
    unmeasured,
)
from waystation.pipeline.tables import BUILT
from waystation.pipeline.watching.intervals import FOLDS, by_incarnation, changes_of
from waystation.pipeline.watching.segments import FIRST, LAST, Shelf
from waystation.pipeline.watching.spans import from_to, meets, reached_by, runs_of, within
from waystation.pipeline.watching.state import (
    Ends,
    Files,
    Known,
    NodeState,
    both,
    known_files,
    listed,
    share_rows,
    tops,
)

HOT: Final = 1_000_000
"""Microseconds before the latest message in which late records of others are expected."""

KEPT_INTERVALS: Final = 50_000
"""Maximum number of closed intervals of a node that are kept in memory."""

_MESSAGES: Final = plain_schema(MESSAGES)
_OPEN: Final = {ROUTES: "route_open", SUBSCRIPTIONS: "subscription_open"}
_CLOSED: Final = {ROUTES: "route_closed", SUBSCRIPTIONS: "subscription_closed"}
_RECENT: Final = {ROUTES: "route_recent", SUBSCRIPTIONS: "subscription_recent"}
_HOT: Final = {name: f"{name}_hot" for name in ("expected", "audit", "health")}
_BUILT: Final = {ROUTES: "route_history", SUBSCRIPTIONS: "subscription_history"}


class Report(Struct):
    """What some files of a node contain, for the live display and for alerts."""

    rows: int = 0
    messages: int = 0
    dropped: dict[str, int] = field(default_factory=dict)  # by reason
    missing: int = 0  # of messages for which no further records are expected
    rejected: int = 0
    changes: dict[str, list[int]] = field(default_factory=dict)  # of routes, by participant
    newest: int = 0  # the latest `at`

    def add(self, other: Report) -> None:
        """Add the report of other files."""
        self.rows += other.rows
        self.messages += other.messages
        self.missing += other.missing
        self.rejected += other.rejected
        self.newest = max(self.newest, other.newest)
        for reason, count in other.dropped.items():
            self.dropped[reason] = self.dropped.get(reason, 0) + count
        for participant, instants in other.changes.items():
            self.changes.setdefault(participant, []).extend(instants)


class Advanced(Struct):
    """A node after a step: its state, and the new steps for the traces.

    With `retracted`, `steps` are all steps of the node, and earlier ones no longer count.
    """

    state: NodeState
    report: Report
    steps: pa.Table
    retracted: bool = False


def facts_now(root: str, node: str, state: NodeState) -> NodeFacts:
    """What the journal of a node tells now beside its messages."""
    data = FileData(root, Share(node, state.all_files()), Wanted())
    records = {number: (at, state.reached.get(number, at)) for number, at in state.begins.items()}
    lives = lives_of(records, state.told, data.record_before)
    apart = unmeasured(state.peers, state.links)
    return NodeFacts(node, lives, state.links, state.brokers, has_answers=True, unmeasured=apart)


class _PastChangedError(Exception):
    """The new records do not come after the known ones."""


def advance(
    root: str,
    node: str,
    state: NodeState,
    new: Files,
    shelves: Mapping[str, Shelf],
    *,
    replaced: bool = False,
    unsealed: Collection[int] = (),
) -> Advanced:
    """Process more files of a node; if `replaced`, they are all that it has now.

    `unsealed` are the incarnations that have further records in a tail.
    """
    system, directory = locate(root)
    found = known_files(system, directory, new)
    if replaced:
        done = _started_over(root, node, found, shelves, unsealed)
        return Advanced(done.state, Report(), done.steps(), retracted=True)  # nothing is new
    if share_rows(state.files, found):
        done = _started_over(root, node, both(state.files, found), shelves, unsealed)
        report = _told_by(root, node, found, shelves).report(found)
        return Advanced(done.state, report, done.steps(), retracted=True)
    step = _Step(root, node, state, found, shelves, unsealed)
    try:
        step.run()
    except _PastChangedError:
        done = _started_over(root, node, both(state.files, found), shelves, unsealed)
        told = _told_by(root, node, found, shelves)
        return Advanced(done.state, told.report(found), told.steps())
    return Advanced(step.state, step.report(found), step.steps())


def _told_by(
    root: str, node: str, files: dict[str, list[Known]], shelves: Mapping[str, Shelf]
) -> _Step:
    """What these files contain by themselves."""
    step = _Step(root, node, NodeState(), files, shelves)
    step.read_messages()
    return step


def _started_over(
    root: str,
    node: str,
    files: dict[str, list[Known]],
    shelves: Mapping[str, Shelf],
    unsealed: Collection[int],
) -> _Step:
    for shelf in shelves.values():
        shelf.take_out(node)
    step = _Step(root, node, NodeState(), files, shelves, unsealed)
    step.run()
    return step


class _Step:
    """One node, its previous state, and its new files."""

    def __init__(
        self,
        root: str,
        node: str,
        state: NodeState,
        new: dict[str, list[Known]],
        shelves: Mapping[str, Shelf],
        unsealed: Collection[int] = (),
    ) -> None:
        self._root, self._node, self._shelves = root, node, shelves
        self._unsealed = unsealed
        self._former = state
        self._new = new
        self._files = both(state.files, new)
        self.state = NodeState(
            files=self._files,
            ends=state.ends,
            begins=state.begins,
            unstarted=state.unstarted,
            accounts=state.accounts,
            reached=dict(state.reached),
            latest={table: dict(found) for table, found in state.latest.items()},
            final=dict(state.final),
            received=state.received,
            hot=state.hot,
            window=state.window,
            past=state.past,
            waiting=dict(state.waiting),
            told=state.told,
            links=state.links,
            brokers=state.brokers,
            peers={hour: set(names) for hour, names in state.peers.items()},
        )
        self._data = FileData(root, Share(node, listed(new)), Wanted())
        self._messages = self._near = coded_schema(MESSAGES).empty_table()
        self._changes: dict[str, list[int]] = {}
        self._missing = 0

    def run(self) -> None:
        """Bring all tables of the node up to date."""
        ends = self._find_ends()
        events = {table: self._data.coded_events(table) for table in (ROUTES, SUBSCRIPTIONS)}
        sessions = self._data.events(SESSIONS)
        for table, rows in {**events, SESSIONS: sessions}.items():
            self._check_order(table, rows)
        ended = self._check_ends(ends)
        self.state.ends = ends
        told = (*events.values(), sessions)
        instants = [int(longs(rows, "at").min()) for rows in told if rows.num_rows]
        since = min([*instants, *ended], default=LAST)
        for table, rows in events.items():
            self._fold(table, rows, again=bool(ended))
        self._fold_sessions(sessions, again=bool(ended))
        self._note_coverage()
        self._note_clocks()
        self.read_messages()
        self._decide(since)
        self._count()
        self._keep_rows()
        self._note_rejects()

    def read_messages(self) -> None:
        """Read the new messages, once."""
        self._messages = _messages_in(self._data)

    def steps(self) -> pa.Table:
        """The new steps for the traces."""
        return coded_steps(self._named(self._messages))

    def _named(self, rows: pa.Table) -> pa.Table:
        """Rows with the name of the node."""
        return rows.append_column("node", coded_name(self._node, rows.num_rows))

    def report(self, new: Mapping[str, list[Known]]) -> Report:
        """The report of these files."""
        files = [known for found in new.values() for known in found]
        dropped = are(column(self._messages, "outcome"), "DROPPED")
        reasons = (
            taken(self._messages, "reason", np.flatnonzero(dropped)).value_counts().to_pylist()
        )
        return Report(
            rows=sum(known.rows for known in files),
            messages=self._messages.num_rows,
            dropped={str(found["values"]): found["counts"] for found in reasons},
            missing=self._missing,
            rejected=len(self._data.rejects),
            changes=self._changes,
            newest=max((known.at[1] for known in files if known.at is not None), default=0),
        )

    # When incarnations ended

    def _find_ends(self) -> dict[int, tuple[int, bool]]:
        """When each incarnation ended; read again only if the new files may change it."""
        former = self._former
        seen = {known.file.incarnation for files in former.files.values() for known in files}
        doubtful = {-1, *former.unstarted}
        named = {known.file.incarnation for files in self._new.values() for known in files}
        if NODES not in self._new and named <= seen and named.isdisjoint(doubtful):
            return former.ends
        data = FileData(self._root, Share(self._node, listed(self._files)), Wanted())
        lives = data.lifetimes()
        nodes = data.small_table(NODES)
        self.state.begins, self.state.accounts = lives.begins(), Accounts.of(nodes)
        self.state.told = node_rows(nodes)
        self.state.unstarted = {number for number in seen | named if not lives.started(number)}
        return lives.ends()

    def _check_order(self, table: str, events: pa.Table) -> None:
        """Raise an error unless these events come after all that were folded before."""
        latest = self._former.latest.get(table, {})
        if not events.num_rows or not self._former.files:
            return
        top = tops(self._former.files.get(table, ()))
        for incarnation, part in by_incarnation(events):
            known = incarnation in latest
            if (
                (known and incarnation in self._former.ends)
                or (known and int(longs(part, "at").min()) < latest[incarnation])
                or int(longs(part, "seq").min()) <= top.get(incarnation, -1)
            ):
                raise _PastChangedError

    def _check_ends(self, ends: Mapping[int, tuple[int, bool]]) -> list[int]:
        """The times of incarnation ends that were not known before."""
        former = self._former
        found = []
        for incarnation in {number for latest in former.latest.values() for number in latest}:
            before, now = former.ends.get(incarnation), ends.get(incarnation)
            if before == now:
                continue
            if before is not None or now is None or now[0] < former.final.get(incarnation, FIRST):
                raise _PastChangedError
            found.append(now[0])
        return found

    # Histories

    def _fold(self, table: str, events: pa.Table, *, again: bool) -> None:
        """Continue the open intervals, and separate those that are closed now."""
        shelf = self._shelves[_OPEN[table]]
        latest = self.state.latest.setdefault(table, {})
        for incarnation, part in by_incarnation(events):
            highest = int(longs(part, "at").max())
            latest[incarnation] = max(latest.get(incarnation, FIRST), highest)
        still = shelf.read(self._node)
        if not events.num_rows and not (again and still.num_rows):
            self._keep_intervals(table, BUILT[_BUILT[table]].empty_table())
            return
        fold, opening = FOLDS[table]
        whole = pa.concat_tables([opening(still).cast(events.schema), events]).combine_chunks()
        history = fold(self._node, whole, Ends(self.state.ends))
        over = self._closed(table, history)
        closed, still = history.filter(pa.array(over)), history.filter(pa.array(~over))
        shelf.take_out(self._node)
        if still.num_rows:
            shelf.add(self._node, FIRST, LAST, still)
        if closed.num_rows:
            low, high = longs(closed, "valid_from").min(), longs(closed, "valid_to").max()
            self._shelves[_CLOSED[table]].add(self._node, int(low), int(high), closed)
        for incarnation, part in by_incarnation(closed):
            highest = int(longs(part, "valid_to").max())
            self.state.final[incarnation] = max(self.state.final.get(incarnation, FIRST), highest)
        if table == ROUTES:
            self._note_differences(whole)
            self._changes = changes_of(history)
        self._keep_intervals(table, closed)

    def _fold_sessions(self, events: pa.Table, *, again: bool) -> None:
        """Continue the open sessions, and separate those that are over now."""
        shelf = self._shelves["session_open"]
        latest = self.state.latest.setdefault(SESSIONS, {})
        for incarnation, part in by_incarnation(events):
            highest = int(longs(part, "at").max())
            latest[incarnation] = max(latest.get(incarnation, FIRST), highest)
        still = shelf.read(self._node)
        if not events.num_rows and not (again and still.num_rows):
            return
        whole = pa.concat_tables([as_openings(still), events])
        history = fold_sessions(self._node, whole, self.state.ends)
        over = pc.is_valid(history.column("closed_at"))
        closed, still = history.filter(over), history.filter(pc.invert(over))
        self._keep_upward(closed)
        shelf.take_out(self._node)
        if still.num_rows:
            shelf.add(self._node, FIRST, LAST, still)
        if closed.num_rows:
            low, high = longs(closed, "opened_at").min(), longs(closed, "closed_at").max()
            self._shelves["session_closed"].add(self._node, int(low), int(high), closed)
        for incarnation, part in by_incarnation(closed):
            highest = int(longs(part, "closed_at").max())
            self.state.final[incarnation] = max(self.state.final.get(incarnation, FIRST), highest)

    def _keep_upward(self, closed: pa.Table) -> None:
        """Keep the sessions in memory that copies of broadcasts go up over, as long as they may."""
        shelf = self._shelves["session_upward"]
        rows = pa.concat_tables([shelf.read(self._node), closed])
        rows = first_upward(rows)
        shelf.take_out(self._node)
        if rows.num_rows:
            shelf.add(self._node, FIRST, LAST, rows)

    def _sessions(self, low: int, high: int) -> pa.Table:
        """The sessions that were open in a range, and all that copies go up over."""
        closed = self._shelves["session_closed"].read(self._node, low, high)
        there = (longs(closed, "opened_at") < high) & (longs(closed, "closed_at", NEVER) > low)
        kept = [closed.filter(pa.array(there))]
        kept += [self._shelves[name].read(self._node) for name in ("session_open",)]
        known = pa.concat_tables(kept)
        above = self._shelves["session_upward"].read(self._node)
        return pa.concat_tables([known, above])

    def _note_coverage(self) -> None:
        """Tell anew how far the record of each incarnation reaches."""
        state, reached = self.state, self.state.reached
        for incarnation, at in self._ends_of_records():
            reached[incarnation] = max(at, reached.get(incarnation, at))
        rows = covered(
            self._node, state.begins, state.ends, reached, state.accounts, self._unsealed
        )
        shelf = self._shelves["coverage"]
        shelf.take_out(self._node)
        shelf.add(self._node, FIRST, LAST, rows)

    def _note_clocks(self) -> None:
        """Note what it measured of other clocks, its sessions with brokers, and its peers."""
        for hour, names in peers_by_hour(self._data).items():
            self.state.peers.setdefault(hour, set()).update(names)
        if SESSIONS in self._new:
            data = FileData(self._root, Share(self._node, listed(self._files)), Wanted())
            self.state.links = hourly_links(data)
            self.state.brokers = brokers_in(data.small_table(SESSIONS))

    def _ends_of_records(self) -> Iterator[tuple[int, int]]:
        """The last `at` of each incarnation in the new files, if their footers tell, else read."""
        unclear: Files = {}
        for table, files in self._new.items():
            for known in files:
                if known.tells_its_end:
                    assert known.incarnation is not None
                    assert known.at is not None
                    yield known.incarnation, known.at[1]
                else:
                    unclear.setdefault(table, []).append(known.file)
        if unclear:
            yield from FileData(self._root, Share(self._node, unclear), Wanted()).latest().items()

    def _closed(self, table: str, history: pa.Table) -> Flags:
        """Which intervals can no longer change, whatever events follow."""
        ended = np.isin(longs(history, "incarnation"), list(self.state.ends))
        why = column(history, "closed_by")
        lasting = np.asarray(pc.is_null(why))
        if table == ROUTES:  # an entry that has not expired may be extended
            latest = self.state.latest[table]
            numbers, which = numbered(longs(history, "incarnation"))
            known = [latest.get(number, FIRST) for number in numbers.tolist()]
            seen = np.array(known, np.int64)[which]
            expired = np.asarray(pc.fill_null(pc.equal(why, "expired"), fill_value=False))
            lasting |= expired & (longs(history, "valid_to", NEVER) > seen)
        return np.asarray(ended | ~lasting)

    def _note_differences(self, events: pa.Table) -> None:
        found = route_differences(self._node, events)
        if found.num_rows:
            self._shelves["audit_routes"].add(self._node, FIRST, LAST, found)

    def _keep_intervals(self, table: str, closed: pa.Table) -> None:
        """Keep the closed intervals in memory that later messages may need."""
        if self.state.past < LAST and closed.num_rows:
            shelf = self._shelves[_RECENT[table]]
            self._keep({_RECENT[table]: pa.concat_tables([shelf.read(self._node), closed])})

    def _trim_intervals(self) -> None:
        """Drop intervals that ended before the hot range."""
        hot = self.state.hot
        kept = {}
        for table, name in _RECENT.items():
            source = name if self.state.past <= hot else _CLOSED[table]
            rows = self._shelves[source].read(self._node, hot)
            kept[name] = rows.filter(pa.array(longs(rows, "valid_to", NEVER) > hot))
        self.state.past = hot
        self._keep(kept)

    def _keep(self, intervals: dict[str, pa.Table]) -> None:
        """Keep these intervals in memory, or none if they are too many."""
        too_many = sum(rows.num_rows for rows in intervals.values()) > KEPT_INTERVALS
        if too_many:
            self.state.past = LAST
        for name in _RECENT.values() if too_many else intervals:
            self._shelves[name].take_out(self._node)
            if not too_many and intervals[name].num_rows:
                self._shelves[name].add(self._node, FIRST, LAST, intervals[name])

    def _history(self, table: str, low: int, high: int) -> pa.Table:
        """The intervals that may contain a time of a range."""
        source = _RECENT[table] if low >= self.state.past else _CLOSED[table]
        closed = self._shelves[source].read(self._node, low, high)
        rows = pa.concat_tables([closed, self._shelves[_OPEN[table]].read(self._node)])
        there = (longs(rows, "valid_from") < high) & (longs(rows, "valid_to", NEVER) > low)
        return rows if there.all() else rows.filter(pa.array(there))

    # Messages: expected and actual outcomes

    def _decide(self, since: int) -> None:
        state, former, messages = self.state, self._former, self._messages
        shelf = self._shelves["hot_messages"]
        hot = shelf.read(self._node).cast(messages.schema)
        self._near = pa.concat_tables([hot, messages]).combine_chunks()
        received = np.unique(longs(messages, "received_at"))
        if len(received):
            state.received = max(former.received, int(received[-1]))
            state.hot = max(former.hot, state.received - HOT)
        spans = self._spans("expected", "audit")
        reached = reached_by(spans, received)
        since = min(since, self._first_multicast())
        if since <= former.received:
            reached |= np.array([high > since for _, high in spans], np.bool_)
        reached |= reached_by(spans, self._superseded())
        for low, high in runs_of(spans, reached):
            self._decide_span(low, high)
        if len(received) and (state.hot > former.hot or state.past == LAST):
            self._trim_intervals()

    def _first_multicast(self) -> int:
        """When the first of the new broadcasts came: later ones may be second copies of it."""
        rows = self._messages
        own = are(column(rows, "kind"), "multicast") & is_of_version_2(rows)
        return int(longs(rows, "received_at")[own].min(initial=LAST))

    def _spans(self, *names: str) -> list[tuple[int, int]]:
        """The time ranges that are recomputed together: pieces, merged where the tables differ."""
        shelves = [self._shelves[shelf] for name in names for shelf in (name, _HOT[name])]
        pieces = [piece for shelf in shelves for piece in shelf.pieces(self._node)]
        found: list[tuple[int, int]] = []
        for piece in sorted(pieces, key=lambda piece: piece.low):
            if found and piece.low < found[-1][1]:
                found[-1] = (found[-1][0], max(found[-1][1], piece.high))
            else:
                found.append((piece.low, piece.high))
        return found or [(FIRST, LAST)]

    def _take_out(self, name: str, low: int, high: int) -> None:
        for shelf in (name, _HOT[name]):
            self._shelves[shelf].take_out(self._node, low, high)

    def _put(self, name: str, low: int, high: int, rows: pa.Table) -> None:
        """Keep the last range on a shelf of its own: only that changes with each batch."""
        shelf = self._shelves[_HOT[name] if high == LAST else name]
        shelf.add(self._node, low, high, rows)

    def _superseded(self) -> Longs:
        """When messages that waited, and have entered again since, were received."""
        waiting = self._former.waiting
        if not waiting or not self._messages.num_rows:
            return np.zeros(0, np.int64)
        again = pc.is_in(column(self._messages, "message_id"), pa.array(list(waiting), TEXT))
        rows = self._messages.filter(again)
        ids, received = rows.column("message_id").to_pylist(), longs(rows, "received_at").tolist()
        found = {waiting[id] for id, at in zip(ids, received, strict=True) if at > waiting[id]}
        return np.array(sorted(found), np.int64)

    def _decide_span(self, low: int, high: int) -> None:
        rows = self._rows_of(low, high)
        past = self._past(rows, low, high)
        for name in ("expected", "audit"):
            self._take_out(name, low, high)
        self.state.waiting = {
            id: at for id, at in self.state.waiting.items() if not low <= at < high
        }
        bounds = sorted({low, high, *self._cuts(low, high)})
        parts = [within(rows, "received_at", *span, _MESSAGES) for span in pairwise(bounds)]
        ruled = list(coded_decisions(self._node, rows, past))
        whole = pa.concat_tables(ruled) if ruled else BUILT["expected"].empty_table()
        for number, ((begin, end), part) in enumerate(zip(pairwise(bounds), parts, strict=True)):
            later = self._entered_later(part, parts[number + 1 :], high)
            expected = within(whole, "received_at", begin, end, BUILT["expected"])
            audit = coded_comparison(self._node, expected, part, later)
            self._put("expected", begin, end, expected)
            self._put("audit", begin, end, audit)
            self.state.waiting.update(_waiting(part, later))
            if begin >= self._former.hot and end <= self.state.hot:
                self._missing += _count_missing(audit)

    def _past(self, rows: pa.Table, low: int, high: int) -> Past:
        """What the outcomes of these messages depend on."""
        routes, subscriptions = (self._history(table, low, high) for table in _OPEN)
        if not is_of_version_2(rows).any():
            return Past(routes, subscriptions)
        files = [
            known.file
            for known in self._files.get(MESSAGES, ())
            if known.rows and (known.received is None or known.received[0] < low)
        ]
        share = Share(self._node, {MESSAGES: files}, received=(low, high))
        before = earlier_copies(FileData(self._root, share, Wanted()), rows)
        return Past(routes, subscriptions, self._sessions(low, high), before)

    def _cuts(self, low: int, high: int) -> list[int]:
        """Where to split the last range, so that only its end is recomputed next time."""
        if high < LAST:
            return []
        return [cut for cut in (self._former.hot, self.state.hot) if low < cut < high]

    def _rows_of(self, low: int, high: int) -> pa.Table:
        """All messages received in a range: from memory, or from the files."""
        if low >= self._former.hot:
            return self._judged(within(self._near, "received_at", low, high, _MESSAGES))
        files = [
            known.file
            for known in self._files.get(MESSAGES, ())
            if known.rows and (known.received is None or meets(known.received, low, high))
        ]
        share = Share(self._node, {MESSAGES: files}, received=(low, high))
        return self._judged(_messages_in(FileData(self._root, share, Wanted())))

    def _judged(self, rows: pa.Table) -> pa.Table:
        """The messages that the rules judge: not those that pass through a gossip router."""
        return without_tunnelled(rows) if self._keeps_members else rows

    @cached_property
    def _keeps_members(self) -> bool:
        files = listed({MEMBERS: self._files.get(MEMBERS, [])})
        return FileData(self._root, Share(self._node, files), Wanted()).keeps_members

    def _entered_later(self, rows: pa.Table, following: list[pa.Table], high: int) -> set[str]:
        """Which of the waiting messages entered the node again after these rows."""
        ids = waiting_ids(rows)
        found: set[str] = set()
        if not ids:
            return found
        for part in following:
            found |= ids & set(part.column("message_id").to_pylist())
        if high < LAST:
            files = [
                known.file
                for known in self._files.get(MESSAGES, ())
                if known.rows and (known.received is None or known.received[1] >= high)
            ]
            share = Share(self._node, {MESSAGES: files}, received=(FIRST, high))
            found |= FileData(self._root, share, Wanted()).later_entries(ids)
        return found

    # Windows of health

    def _count(self) -> None:
        state, former, shelf = self.state, self._former, self._shelves["hot_tallies"]
        if not self._messages.num_rows:
            return
        new = added_up(counted(self._named(self._messages))).cast(TALLY)
        windows = np.unique(longs(new, "window_start"))
        state.window = max(former.window, int(windows[-1]))
        near = added_up(pa.concat_tables([shelf.read(self._node), new]))
        spans = self._spans("health")
        for low, high in runs_of(spans, reached_by(spans, windows)):
            far = low < former.window
            rows = counted(self._named(self._rows_at(low, high))) if far else near
            self._take_out("health", low, high)
            cut = [state.window] if high == LAST and low < state.window else []
            for begin, end in pairwise([low, *cut, high]):
                part = from_to(rows, "window_start", begin, end)
                self._put("health", begin, end, health_of(part))
        shelf.take_out(self._node)
        shelf.add(self._node, FIRST, LAST, from_to(near, "window_start", state.window, LAST))

    def _rows_at(self, low: int, high: int) -> pa.Table:
        """All messages of these windows, from the files."""
        files = [
            known.file
            for known in self._files.get(MESSAGES, ())
            if known.rows and (known.at is None or meets(known.at, low, high))
        ]
        since, until = (None if low == FIRST else low), (None if high == LAST else high)
        share = Share(self._node, {MESSAGES: files})
        return _messages_in(FileData(self._root, share, Wanted(None, since, until)))

    def _keep_rows(self) -> None:
        """Keep the messages in memory that the next batch will need again."""
        if not self._messages.num_rows:
            return
        hot = longs(self._near, "received_at") >= self.state.hot
        shelf = self._shelves["hot_messages"]
        shelf.take_out(self._node)
        rows = self._near.take(pa.array(np.flatnonzero(hot)))
        shelf.add(self._node, FIRST, LAST, rows)

    def _note_rejects(self) -> None:
        for table in JOURNAL:
            if table in (ROUTES, SUBSCRIPTIONS, SESSIONS, MESSAGES):
                continue  # read before
            for _ in self._data.coded_batches(table):
                pass
        found = self._data.rejects
        if found:
            self._shelves["rejects"].add(self._node, FIRST, LAST, as_rejects(found))


def _messages_in(data: FileData) -> pa.Table:
    """Its messages, without the strings of rejected rows."""
    rows = data.coded_events(MESSAGES)
    return rows.cast(_MESSAGES) if data.rejects else rows


def _waiting(rows: pa.Table, later: set[str]) -> dict[str, int]:
    """The messages that were only queued, as far as recorded, and when they arrived."""
    ids = waiting_ids(rows)
    if not ids:
        return {}
    doubtful = rows.filter(pc.is_in(column(rows, "message_id"), pa.array(list(ids), TEXT)))
    columns = [doubtful.column(name).to_pylist() for name in ("message_id", "outcome")]
    latest: dict[str, int] = {}
    over: set[tuple[str, int]] = set()
    for id, outcome, at in zip(*columns, longs(doubtful, "received_at").tolist(), strict=True):
        latest[id] = max(at, latest.get(id, at))
        if outcome != "QUEUED":
            over.add((id, at))
    return {id: at for id, at in latest.items() if (id, at) not in over and id not in later}


def _count_missing(audit: pa.Table) -> int:
    """The number of outcomes that were not recorded; waiting messages are not lost."""
    missing = pc.equal(audit.column("verdict"), "missing")
    untold = pc.and_(missing, pc.is_null(audit.column("actual")))
    return int(pc.sum(untold).as_py() or 0)
