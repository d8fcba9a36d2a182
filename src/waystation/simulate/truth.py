"""What really happened to the messages of a simulated fleet, which no journal can know.

    JOURNAL/_truth/copies/<cell>.parquet   how each copy of each message ended, once
    JOURNAL/_truth/faults/<cell>.parquet   what went wrong, and which messages were lost by it

All times are true ones, whatever the clocks of the nodes showed. `copies`:

| column | |
|---|---|
| `message_id`, `origin` | the message, and the node where it began |
| `recipient`, `copy` | as in the journal |
| `node` | where the copy ended, or the last node that had it |
| `next_node` | where it was sent, or was to be sent, if it vanished or found its session closed |
| `sent_at`, `at` | when the message began, and when the copy ended |
| `outcome` | `DELIVERED`, `DROPPED` or `VANISHED` |
| `reason`, `detail` | of the loss; `detail` says why there was no route |
| `lost` | whether it counts as a loss: nobody else gets the message in that recipient's place |
| `recorded` | whether the journal has the row about it |

`faults`:

| column | |
|---|---|
| `kind` | of the table `incidents` (`node_crashed`, `link_lost`, …) |
| `node` | where it happened; of a link, the node that dials; of a loop, where the message began; |
| | null for a broadcast that nobody hears |
| `participant`, `topic` | whose entry, inbox or broadcast it was about |
| `from_time`, `to_time` | how long it lasted; null if it never ended |
| `detail` | more about it |
| `losses` | the ids of the messages that were lost by it, copies with `lost` only |

Crashes, stops, broken links, clocks that are off by more than a second and holes in the journal are
there whether they cost a message or not. A hub that ends may cost messages of two cells: then it is
in the files of both.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from waystation.journal.schema import INSTANT, TEXT
from waystation.simulate.fleet import (
    HUB,
    NEVER,
    NOBODY,
    SECOND,
    WINDOWS,
    Array,
    Cell,
    Loss,
    Uptimes,
    clocks,
    uptimes,
)
from waystation.simulate.links import End, Sessions
from waystation.simulate.names import Names, instants, spelled
from waystation.simulate.traffic import (
    NEXT_HUB,
    SENDER,
    TO_NEXT_HUB,
    Links,
    Outcome,
    Rows,
    Way,
)

COPIES: Final = pa.schema(
    {
        "message_id": TEXT,
        "origin": TEXT,
        "recipient": TEXT,
        "copy": pa.int32(),
        "node": TEXT,
        "next_node": TEXT,
        "sent_at": INSTANT,
        "at": INSTANT,
        "outcome": TEXT,
        "reason": TEXT,
        "detail": TEXT,
        "lost": pa.bool_(),
        "recorded": pa.bool_(),
    }
)
FAULTS: Final = pa.schema(
    {
        "kind": TEXT,
        "node": TEXT,
        "participant": TEXT,
        "topic": TEXT,
        "from_time": INSTANT,
        "to_time": INSTANT,
        "detail": TEXT,
        "losses": pa.list_(TEXT),
    }
)
KINDS: Final = (
    *("node_crashed", "node_stopped", "link_lost", "route_expired", "never_registered"),
    *("slow_receiver", "no_subscriber", "loop", "journal_gap", "clock", "other"),
)
CRASHED, STOPPED, LINK, EXPIRED, NEVER_KNOWN, SLOW, UNHEARD, LOOP, GAP, CLOCK, OTHER = range(
    len(KINDS)
)
OFF: Final = SECOND
"""A clock that is off by more than this is a fault."""

_JOINED: Final = 60 * SECOND  # losses of one broadcast that are nearer to each other are one fault
_LONGEST_WAY: Final = 3_000  # from a node to the next, in microseconds
_UNTOLD: Final = -1  # as long as its losses
_HOUR: Final = 3_600 * SECOND
_OF_SESSIONS: Final = (Loss.TRANSPORT_DOWN, Loss.VANISHED, Loss.NO_ROUTE_CLOSED)


class Blame(NamedTuple):
    """The fault behind each of some losses: its kind, and what makes it that one."""

    kind: Array
    node: Array
    participant: Array
    topic: Array
    since: Array
    until: Array
    loss: Array  # tells apart what has no other name

    @classmethod
    def of(cls, count: int, **known: Any) -> Blame:
        """The faults of so many losses, with defaults for what is not given."""
        usual = {
            "participant": NOBODY,
            "topic": NOBODY,
            "since": _UNTOLD,
            "until": _UNTOLD,
            "loss": Loss.NONE,
        }
        columns = {
            name: np.array(np.broadcast_to(value, count), np.int64)
            for name, value in {**usual, **known}.items()
        }
        return cls(**columns)

    def fill(self, chosen: Array, **known: Any) -> None:
        """Set what is known of some of them."""
        for name, value in known.items():
            getattr(self, name)[chosen] = value


class Truth:
    """Collects what happened in one cell."""

    def __init__(self, cell: Cell, names: Names, links: Links) -> None:
        self._cell = cell
        self._names = names
        self._links = links
        self._lost: list[Array] = []  # the columns of Blame, the code of the message, the time

    def copies(self, rows: Rows, recorded: Array) -> pa.Table:
        """How the copies of these messages ended; their rows must all be here."""
        vanished = rows.loss == Loss.VANISHED
        ended = (rows.outcome == Outcome.DELIVERED) | (rows.outcome == Outcome.DROPPED) | vanished
        rows, recorded, vanished = rows.where(ended), recorded[ended], vanished[ended]
        lost = _losses(rows)
        self._blame(rows.where(lost))
        names = self._names
        outcomes = pa.array([*(outcome.name for outcome in Outcome), "VANISHED"])
        causes = [(None, None) if loss is Loss.NONE else loss.cause for loss in Loss]
        loss = pa.array(rows.loss)
        columns = [
            names.message_ids(rows),
            names.origins(rows),
            names.recipients(rows),
            names.copies(rows),
            names.nodes(rows.node),
            names.nodes(rows.next),
            instants(rows.sent_at),
            instants(rows.at),
            outcomes.take(pa.array(np.where(vanished, len(Outcome), rows.outcome))),
            pa.array([reason for reason, _ in causes], TEXT).take(loss),
            pa.array([detail for _, detail in causes], TEXT).take(loss),
            pa.array(lost),
            pa.array(recorded),
        ]
        return pa.Table.from_arrays(columns, schema=COPIES)

    # What was behind a loss

    def _blame(self, rows: Rows) -> None:
        count = len(rows.at)
        blame = Blame.of(count, kind=OTHER, node=rows.node, loss=rows.loss)
        blame.fill(np.ones(count, bool), since=rows.at // _HOUR * _HOUR)
        self._blame_routes(rows, blame)
        self._blame_sessions(rows, blame)
        self._blame_clocks(rows, blame)
        full = rows.loss == Loss.QUEUE_FULL
        who = rows.recipient[full]
        times = {"since": self._cell.slow_from[who], "until": self._cell.slow_until[who]}
        blame.fill(full, kind=SLOW, participant=who, loss=Loss.NONE, **times)
        unheard = rows.loss == Loss.NO_SUBSCRIBER
        known = {"kind": UNHEARD, "node": NOBODY, "since": _UNTOLD, "loss": Loss.NONE}
        blame.fill(unheard, topic=rows.topic[unheard], **known)
        round = rows.loss == Loss.HOP_LIMIT
        whose = np.where(rows.way == Way.PUBLISHED, NOBODY, self._names.recipient_codes(rows))
        begun = np.where(rows.foreign, self._names.former_node(rows.sender), rows.sender)
        blame.fill(
            round,
            kind=LOOP,
            node=begun[round],
            participant=whose[round],
            topic=rows.topic[round],
            since=_UNTOLD,
            loss=0,
        )
        code = (rows.number * 2 + rows.answer) * 2 + rows.foreign
        self._lost.append(np.stack([*blame, code, rows.at]))

    def _blame_routes(self, rows: Rows, blame: Blame) -> None:
        """There was no entry: what became of the last one."""
        cell, ups = self._cell, self._cell.uptimes
        # A recipient is a participant, or a leaf, which always has an entry while it is subscribed.
        chosen = np.flatnonzero(
            (rows.loss >= Loss.NO_ROUTE_NEVER) & (rows.loss <= Loss.NO_ROUTE_RESTART)
        )
        asked = rows.where(chosen)
        who, at, window, node = asked.recipient, asked.received_at, asked.window, asked.node
        hub, leaf = cell.at_the_hub(who, at, window), cell.at_leaf(node, who, at, window)
        since = np.where(node == HUB, hub.since, leaf.since)
        known = {"participant": who, "loss": Loss.NONE}
        blame.fill(chosen, **known, since=since)
        for loss, kind in (
            (Loss.NO_ROUTE_NEVER, NEVER_KNOWN),
            (Loss.NO_ROUTE_EXPIRED, EXPIRED),
            (Loss.NO_ROUTE_REMOVED, OTHER),
        ):
            blame.fill(chosen[asked.loss == loss], kind=kind)
        blame.fill(chosen[asked.loss == Loss.NO_ROUTE_NEVER], since=_UNTOLD)
        blame.fill(chosen[asked.loss == Loss.NO_ROUTE_REMOVED], loss=Loss.NO_ROUTE_REMOVED)
        expired = chosen[(asked.loss == Loss.NO_ROUTE_EXPIRED) & (node == HUB)]
        again = cell.put_again(rows.recipient[expired], blame.since[expired])
        blame.fill(expired, until=again)
        ended = (asked.loss == Loss.NO_ROUTE_STOPPED) | (asked.loss == Loss.NO_ROUTE_RESTART)
        before = (ups.begin[node] < since[:, None]).sum(axis=1) - 1
        self._node_ended(blame, chosen[ended], node[ended], ups, before[ended], node[ended])

    def _blame_sessions(self, rows: Rows, blame: Blame) -> None:
        """What ended the session that a message was to leave over."""
        ours = np.isin(rows.loss, _OF_SESSIONS) & (rows.session >= 0)
        onward = rows.out == TO_NEXT_HUB
        own, fleet = self._cell.uptimes, self._cell.fleet
        following = uptimes(fleet, fleet.following(self._cell.number))
        for chosen, sessions, listener in (
            (np.flatnonzero(ours & ~onward), self._links.leaves, (own, HUB)),
            (np.flatnonzero(ours & onward), self._links.onward, (following, NEXT_HUB)),
        ):
            which = rows.session[chosen]
            # Some copies vanish though nothing is wrong with the session.
            by_chance = rows.loss[chosen] == Loss.VANISHED
            by_chance &= rows.at[chosen] + _LONGEST_WAY < sessions.breaks[which]
            chosen, which = chosen[~by_chance], which[~by_chance]  # noqa: PLW2901
            self._session_ended(blame, chosen, sessions, which, listener)

    def _session_ended(
        self,
        blame: Blame,
        chosen: Array,
        sessions: Sessions,
        which: Array,
        listener: tuple[Uptimes, int],
    ) -> None:
        end, link = sessions.end[which], sessions.link[which]
        broke = end == End.LINK
        blame.fill(
            chosen[broke],
            kind=LINK,
            node=link[broke],
            loss=Loss.NONE,
            since=sessions.breaks[which][broke],
            until=sessions.reopened()[which][broke],
        )
        dialer = end == End.DIALER
        windows = sessions.dialer_window[which]
        node = link[dialer]
        self._node_ended(blame, chosen[dialer], node, self._cell.uptimes, windows[dialer], node)
        ups, name = listener
        heard = end == End.LISTENER
        windows = sessions.listener_window[which]
        hubs = np.zeros(int(heard.sum()), np.int64)
        self._node_ended(blame, chosen[heard], hubs, ups, windows[heard], np.full(len(hubs), name))

    @staticmethod
    def _node_ended(
        blame: Blame, chosen: Array, node: Array, ups: Uptimes, window: Array, name: Array
    ) -> None:
        stopped = ups.stopped[node, window]
        blame.fill(
            chosen,
            kind=np.where(stopped, STOPPED, CRASHED),
            node=name,
            participant=NOBODY,
            since=ups.end[node, window],
            until=ups.begin[node, np.minimum(window + 1, WINDOWS - 1)],
            loss=Loss.NONE,
        )

    def _blame_clocks(self, rows: Rows, blame: Blame) -> None:
        """Messages that were too old only by the clock of the sender, or of the node."""
        cell = self._cell
        fleet = cell.fleet
        theirs = clocks(fleet, fleet.preceding(cell.number))
        sender = np.where(
            rows.foreign,
            theirs[np.minimum(rows.sender, len(theirs) - 1)],
            cell.clocks[np.minimum(rows.sender, len(cell.clocks) - 1)],
        )
        here = cell.clocks[rows.node]
        wrong = (rows.loss == Loss.EXPIRED) & (rows.received_at + sender < rows.expiry)
        begun = np.where(rows.foreign, self._names.former_node(rows.sender), rows.sender)
        worse = np.where(np.abs(sender) > np.abs(here), begun, rows.node)
        # Of clocks that differ by less nobody can tell which one is wrong.
        wrong &= np.maximum(np.abs(sender), np.abs(here)) > OFF
        known = {"kind": CLOCK, "since": fleet.start, "until": NEVER, "loss": Loss.NONE}
        blame.fill(wrong, node=worse[wrong], **known)

    # Faults

    def faults(self, gaps: list[tuple[int, int, int]]) -> pa.Table:
        """All faults; `gaps` are holes in the journal: the node, from when, and until when."""
        lost = np.concatenate([np.zeros((9, 0), np.int64), *self._lost], axis=1)
        lost = lost[:, np.lexsort(lost[[7, 8, *range(6, -1, -1)]])]
        begins, ends = _groups(lost)
        keys, code, at = lost[:7, begins].T.tolist(), lost[7], lost[8]
        rows: dict[tuple[int, ...], Array] = {}
        for key, low, high in zip(keys, begins.tolist(), ends.tolist(), strict=True):
            if key[4] == _UNTOLD:
                key[4], key[5] = int(at[low]), int(at[high - 1])
            elif key[5] == _UNTOLD:
                key[5] = NEVER if key[0] != OTHER or key[2] != NOBODY else key[4] + _HOUR
            rows[tuple(key)] = code[low:high]
        for always in self._always(gaps):
            rows.setdefault(always, code[:0])
        return self._table([(key, rows[key]) for key in sorted(rows)])

    def _always(self, gaps: list[tuple[int, int, int]]) -> list[tuple[int, ...]]:
        """Faults that are told whether they cost a message or not."""
        cell, ups = self._cell, self._cell.uptimes
        rest = (NOBODY, NOBODY)
        none = int(Loss.NONE)
        found = [
            (STOPPED if ups.stopped[node, window] else CRASHED, int(node), *rest, int(end), int(to))
            for node, window in zip(*np.nonzero(ups.end < NEVER), strict=True)
            for end, to in [(ups.end[node, window], ups.begin[node, window + 1])]
        ]
        for sessions in (self._links.leaves, self._links.onward):
            broke = np.flatnonzero(sessions.end == End.LINK)
            again = sessions.reopened()
            found += [
                (LINK, int(sessions.link[k]), *rest, int(sessions.breaks[k]), int(again[k]))
                for k in broke
            ]
        off = np.flatnonzero(np.abs(cell.clocks) > OFF)
        found += [(CLOCK, int(node), *rest, cell.fleet.start, NEVER) for node in off]
        found += [(GAP, node, *rest, since, until) for node, since, until in gaps]
        return [(*fault, none) for fault in found]

    def _table(self, found: list[tuple[tuple[int, ...], Array]]) -> pa.Table:
        names = self._names
        keys = np.array([key for key, _ in found], np.int64).reshape(len(found), 7)
        kind, node, participant, topic, since, until, loss = keys.T
        codes = np.concatenate([np.zeros(0, np.int64), *(lost for _, lost in found)])
        ends = np.cumsum([0, *(len(lost) for _, lost in found)])
        ids = names.ids_of(codes // 4, codes % 4 >= 2, codes % 2 == 1)
        ahead = self._cell.clocks
        details = [
            f"its clock is {ahead[int(n)] / SECOND:+.3f} s off"
            if k == CLOCK and n >= 0
            else None
            if why == Loss.NONE
            else ", ".join(filter(None, Loss(int(why)).cause))
            for k, n, why in zip(kind, node, loss, strict=True)
        ]
        columns = [
            pa.array([KINDS[number] for number in kind], TEXT),
            spelled(node, names.any_node, TEXT),
            spelled(participant, names.participant, TEXT),
            spelled(topic, names.topic, TEXT),
            instants(since),
            instants(until),
            pa.array(details, TEXT),
            pa.ListArray.from_arrays(pa.array(ends, pa.int32()), ids),
        ]
        return pa.Table.from_arrays(columns, schema=FAULTS)


def _groups(lost: Array) -> tuple[Array, Array]:
    """Where the losses of each fault begin and end, among those sorted by fault and time."""
    new = np.ones(lost.shape[1], bool)
    far = (lost[0, 1:] == UNHEARD) & (np.diff(lost[8]) > _JOINED)
    new[1:] = (lost[:7, 1:] != lost[:7, :-1]).any(axis=0) | far
    begins = np.flatnonzero(new)
    return begins, np.append(begins[1:], lost.shape[1])[: len(begins)]


def _losses(rows: Rows) -> Array:
    """Which of the copies that ended are losses, as the table `losses` counts them.

    Of a broadcast: once for each recipient that did not get it from another node, and that nobody
    subscribed only if nobody got it at all.
    """
    lost: Array = (rows.loss != Loss.NONE) & (rows.loss != Loss.DUPLICATE)
    published = np.flatnonzero(rows.way == Way.PUBLISHED)
    doubtful = published[lost[published]]
    got = published[rows.outcome[published] == Outcome.DELIVERED]
    span = int(rows.recipient.max(initial=0)) - SENDER + 1
    key = rows.number * span + rows.recipient - SENDER
    out = np.isin(key[doubtful], key[got])
    out |= (rows.loss[doubtful] == Loss.NO_SUBSCRIBER) & np.isin(
        rows.number[doubtful], rows.number[got]
    )
    lost[doubtful[out]] = False
    doubtful = doubtful[~out]
    order = np.lexsort((rows.received_at[doubtful], rows.stage[doubtful], key[doubtful]))
    doubtful = doubtful[order]
    again = np.append(key[doubtful][1:] == key[doubtful][:-1], False)[: len(doubtful)]
    lost[doubtful[again]] = False
    return lost
