"""The outcome that the rules require for each message at a node (SP-2): CONTRACT's `expected`.

What `waystation.core.router` decides for one message is decided here for all of a node's
messages at once, with the intervals of its tables. Rows of version 1 are judged by the rules of
that version. Arrow in, Arrow out; no Spark, no files.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from waystation.core.message import HOP_LIMIT
from waystation.core.outcome import Outcome, Reason
from waystation.journal.schema import TEXT
from waystation.pipeline.kernels.columns import (
    NEVER,
    Flags,
    Longs,
    are,
    chosen,
    coded_name,
    codes,
    column,
    days,
    encoded,
    flags,
    longs,
    numbered,
    spread,
    stable_order,
    taken,
)
from waystation.pipeline.kernels.copies import second_copies
from waystation.pipeline.kernels.lookup import (
    Groups,
    Routes,
    Sessions,
    common_codes,
    either,
    local_names,
    positions,
    texts_at,
)
from waystation.pipeline.kernels.matching import are_ids, match
from waystation.pipeline.kernels.upward import Upward
from waystation.pipeline.kernels.visits import entries, first_addresses, is_of_version_2
from waystation.pipeline.schema import CODED
from waystation.pipeline.tables import BUILT

ROWS_AT_ONCE: Final = 500_000
"""Maximum number of messages, or receivers of multicasts, that are decided at a time."""

OUTCOMES: Final = pa.array([str(outcome) for outcome in Outcome], TEXT)
REASONS: Final = pa.array([str(reason) for reason in Reason], TEXT)
"""The texts of the numbers in decisions; -1 is none."""

_OUTCOME: Final = {outcome: number for number, outcome in enumerate(Outcome)}
_REASON: Final = {reason: number for number, reason in enumerate(Reason)}
_NONE: Final = -1


class Decisions(Struct):
    """Decisions: the row of the message, the recipient, and the outcome."""

    row: Longs
    outcome: Longs
    reason: Longs
    recipient: pa.Array
    address: pa.Array
    next_node: pa.Array | None = None  # of copies upward


class Past(Struct, frozen=True):
    """What a node had when its messages came: its histories, and the messages before these."""

    routes: pa.Table
    subscriptions: pa.Table
    sessions: pa.Table = BUILT["session_history"].empty_table()
    before: pa.Table | None = None  # messages whose second copies may be among these


def decide(
    node: str,
    messages: pa.Table,
    past: Past,
    hop_limit: int = HOP_LIMIT,
    *,
    at_once: int = ROWS_AT_ONCE,
) -> Iterator[pa.Table]:
    """The rows of `expected` for these messages, in parts."""
    for piece in coded_decisions(node, messages, past, hop_limit, at_once=at_once):
        yield piece.cast(BUILT["expected"])


def coded_decisions(
    node: str,
    messages: pa.Table,
    past: Past,
    hop_limit: int = HOP_LIMIT,
    *,
    at_once: int = ROWS_AT_ONCE,
) -> Iterator[pa.Table]:
    """The rows of `expected` with dictionary-encoded strings, except the ids."""
    for found in decisions(messages, past, hop_limit, at_once=at_once):
        received = taken(messages, "received_at", found.row)
        columns = {
            "message_id": taken(messages, "message_id", found.row),
            "node": coded_name(node, len(found.row)),
            "at": received,
            "recipient": found.recipient,
            "address": found.address,
            "outcome": chosen(OUTCOMES, found.outcome),
            "reason": chosen(REASONS, found.reason),
            "incarnation": taken(messages, "incarnation", found.row),
            "received_at": received,
            "event_time": received,
            "multicast_id": texts_at(column(messages, "multicast_id"), found.row),
            "next_node": _nobody(found.row) if found.next_node is None else found.next_node,
            "day": days(longs(messages, "received_at")[found.row]),
        }
        names = BUILT["expected"].names
        yield pa.Table.from_arrays([columns[name] for name in names], names=names)


def decisions(
    messages: pa.Table,
    past: Past,
    hop_limit: int = HOP_LIMIT,
    *,
    at_once: int = ROWS_AT_ONCE,
) -> Iterator[Decisions]:
    """What the rules decide about these messages; rows are numbers of their table."""
    if messages.num_rows:
        yield from _Node(messages, past, hop_limit, at_once).decide(entries(messages))


class _Node:
    """The messages and tables of one node."""

    def __init__(self, messages: pa.Table, past: Past, hop_limit: int, at_once: int) -> None:
        self._messages = messages
        self._incarnation = longs(messages, "incarnation")
        self._received = longs(messages, "received_at")
        self._routes = Routes(past.routes)
        self._subscriptions = past.subscriptions
        self._past = past
        self._hop_limit = hop_limit
        self._at_once = at_once

    def decide(self, rows: Longs) -> Iterator[Decisions]:
        second = is_of_version_2(self._messages)[rows]
        if not second.all():
            yield from self._by_version_1(rows[~second])
        if second.any():
            yield from self._by_version_2(rows[second])

    # Version 1

    def _by_version_1(self, rows: Longs) -> Iterator[Decisions]:
        # Whether a broadcast came by another way before is for the node to know: its ids may be of
        # an earlier incarnation's journal, or of one that lost records.
        copies = self._told_duplicates[rows]
        if copies.any():
            yield _dropped(rows[copies], Reason.DUPLICATE)
            rows = rows[~copies]
        expired, too_far = self._ended(rows)
        yield from self._drop_ended(rows, expired, too_far & ~expired)
        rows = rows[~(expired | too_far)]
        multicast = self._multicast_rows[rows]
        for part in self._portions(rows[~multicast]):
            yield self._unicast(part)
        yield from self._drop_malformed(rows[multicast])
        for part, owner, receivers in self._heard(rows[multicast]):
            yield from _unheard(part, owner)
            if len(owner):
                yield self._delivered(part[owner], receivers)

    def _delivered(self, rows: Longs, names: pa.DictionaryArray) -> Decisions:
        """The outcomes of messages to these participants: what is local gets them."""
        found = self._find(rows, names)
        return self._outcomes(rows, names, found, self._routes.local[found])

    # Version 2

    def _by_version_2(self, rows: Longs) -> Iterator[Decisions]:
        expired, too_far = self._ended(rows)
        multicast = self._multicast_rows[rows]
        # A further answer to a request is known by the node alone.
        copies = self._told_duplicates[rows] & ~multicast
        up = np.zeros(len(rows), np.bool_)
        candidates = multicast & ~too_far  # at the hop limit it ends, whatever came before
        if candidates.any():
            copies[candidates], up[candidates] = second_copies(
                self._messages, rows[candidates], self._past.before, self._hop_limit
            )
        if copies.any():
            yield self._named(_dropped(rows[copies], Reason.DUPLICATE))
        up &= ~expired
        if up.any():
            yield from self._upward(rows[up])
        expired, too_far = expired & ~copies, too_far & ~expired & ~copies
        for ended in self._drop_ended(rows, expired, too_far):
            yield self._named(ended)
        left = ~(copies | expired | too_far)
        for part in self._portions(rows[left & ~multicast]):
            yield self._named(self._queued(self._unicast(part)))
        for ended in self._drop_malformed(rows[left & multicast]):
            yield self._named(ended)
        yield from self._publish(rows[left & multicast])

    def _publish(self, rows: Longs) -> Iterator[Decisions]:
        for part, owner, receivers in self._heard(rows):
            verdicts = self._sent(part[owner], receivers)
            kept = ~self._would_go_back(verdicts)
            if kept.any():
                yield _only(verdicts, kept)
            heard = owner[kept]
            for copies in self._upward(part):
                heard = np.append(heard, np.flatnonzero(np.isin(part, copies.row)))
                yield copies
            for unheard in _unheard(part, heard):
                yield self._named(unheard)

    def _sent(self, rows: Longs, names: pa.DictionaryArray) -> Decisions:
        """The outcomes of messages to these participants: only who is here gets them (OB-1)."""
        found = self._find(rows, names)
        here = self._routes.are_here(self._incarnation[rows], found, self._received[rows])
        decisions = self._outcomes(rows, names, found, here)
        unknown = np.flatnonzero((found < 0) & (codes(names) >= 0))
        if len(unknown) and len(self._sessions):
            open_ones = np.full(len(rows), _NONE)
            open_ones[unknown] = self._sessions.find(
                self._incarnation[rows[unknown]],
                self._sessions.numbers_of(names)[unknown],
                self._received[rows[unknown]],
            )
            _forward(decisions, open_ones >= 0, self._sessions.places_of(open_ones))
        return decisions

    def _would_go_back(self, decisions: Decisions) -> Flags:
        """Which copies would leave over the session that their message came by (MC-9)."""
        rows = decisions.row
        back = np.zeros(len(rows), np.bool_)
        via = texts_at(column(self._messages, "via"), rows)
        came = np.flatnonzero(codes(via) >= 0)
        if not len(came):
            return back
        rows, via = rows[came], via.take(pa.array(came))
        to = decisions.address.take(pa.array(came))
        names = encoded(local_names(to.dictionary))
        named = chosen(names.dictionary, np.append(codes(names), _NONE)[codes(to)])
        entry = self._routes.addresses_of(self._find(rows, via))
        live = self._sessions.find(
            self._incarnation[rows], self._sessions.numbers_of(via), self._received[rows]
        )
        place = self._sessions.places_of(live)
        for one, other in ((named, via), (to, entry), (to, place)):
            mine, theirs = common_codes(one, other)
            back[came] |= (mine == theirs) & (mine >= 0)
        return back

    def _upward(self, rows: Longs) -> Iterator[Decisions]:
        """The copies to parents, or else over the global transport (MC-10)."""
        rows = rows[~flags(self._messages, "from_global")[rows] & self._has_sound_id(rows)]
        if not len(rows) or not len(self._upwards):
            return
        incarnation, received = self._incarnation[rows], self._received[rows]
        owner, peers = self._upwards.of(incarnation, received, self._providers_visible(rows))
        if len(owner):
            outcome = np.full(len(owner), _OUTCOME[Outcome.FORWARDED])
            reason = np.full(len(owner), _NONE)
            nobody = _nobody(owner)
            yield Decisions(rows[owner], outcome, reason, nobody, nobody, peers)

    def _providers_visible(self, rows: Longs) -> Flags:
        ids = encoded(column(self._messages, "multicast_id"))
        providers = encoded(pc.replace_substring_regex(ids.dictionary, "/.*$", ""))
        provider = np.append(codes(providers), _NONE)[codes(ids)[rows]]
        found = self._find(rows, chosen(providers.dictionary, provider))
        return self._routes.visible(found)

    def _queued(self, decisions: Decisions) -> Decisions:
        """Let durable messages wait that found no route, or of which the node says that they do."""
        rows = decisions.row
        durable = flags(self._messages, "durable")[rows]
        if not durable.any():
            return decisions
        sent_on = decisions.reason == _NONE
        waits = sent_on & are(column(self._messages, "outcome"), "QUEUED")[rows]
        waits |= decisions.reason == _REASON[Reason.NO_ROUTE]
        waits &= durable
        decisions.outcome[waits] = _OUTCOME[Outcome.QUEUED]
        decisions.reason[waits] = _NONE
        decisions.address = either(decisions.address, _nobody(rows), waits)
        return decisions

    def _named(self, decisions: Decisions) -> Decisions:
        """Name whom a message is for where no name was looked up: the last one on its route."""
        unnamed = codes(decisions.recipient) < 0
        if unnamed.any():
            names, last = self._last_names
            others = chosen(names, last[decisions.row])
            decisions.recipient = either(decisions.recipient, others, unnamed)
        return decisions

    # Both

    def _ended(self, rows: Longs) -> tuple[Flags, Flags]:
        """Which messages had expired, and which were at the hop limit."""
        expired = self._received[rows] >= longs(self._messages, "expiry", NEVER)[rows]
        hops = np.asarray(pc.list_value_length(column(self._messages, "return")))[rows]
        return expired, hops >= self._hop_limit

    @staticmethod
    def _drop_ended(rows: Longs, expired: Flags, too_far: Flags) -> Iterator[Decisions]:
        if expired.any():
            yield _dropped(rows[expired], Reason.EXPIRED)
        if too_far.any():
            yield _dropped(rows[too_far], Reason.HOP_LIMIT)

    def _portions(self, rows: Longs) -> Iterator[Longs]:
        for first in range(0, len(rows), self._at_once):
            yield rows[first : first + self._at_once]

    def _unicast(self, rows: Longs) -> Decisions:
        """The outcomes of messages of one version."""
        addresses, names = self._onward
        firsts = first_addresses(self._messages, rows, addresses)
        which = codes(firsts)
        participant = np.append(codes(names), _NONE)[which]
        second = bool(is_of_version_2(self._messages)[rows[0]])
        look_up = self._sent if second else self._delivered
        decisions = look_up(rows, chosen(names.dictionary, participant))
        away = (participant < 0) & (which >= 0)  # any other type is the next hop itself
        _forward(decisions, away, firsts)
        return decisions

    def _heard(self, rows: Longs) -> Iterator[tuple[Longs, Longs, pa.DictionaryArray]]:
        """The multicasts with a valid id, in parts, with their receivers.

        A receiver is given by the number of the message in its part and its name.
        """
        published = encoded(column(self._messages, "multicast_id"))
        rows = rows[self._has_sound_id(rows)]
        if not len(rows):
            return
        which = codes(published)[rows]
        audience = Audience(published.dictionary, self._subscriptions)
        heard = audience.of(self._incarnation[rows], which, self._received[rows], self._at_once)
        for part, owner, receiver in heard:
            yield rows[part], owner, chosen(audience.names, receiver)

    def _drop_malformed(self, rows: Longs) -> Iterator[Decisions]:
        sound = self._has_sound_id(rows)
        if not sound.all():
            yield _dropped(rows[~sound], Reason.MALFORMED)

    def _has_sound_id(self, rows: Longs) -> Flags:
        """Which of these multicasts have an id that can be published."""
        sound, which = self._sound_ids
        found: Flags = sound[which[rows]]
        return found

    def _find(self, rows: Longs, names: pa.DictionaryArray) -> Longs:
        """The entries of these participants when these messages came."""
        numbers = self._routes.numbers_of(names)
        return self._routes.find(self._incarnation[rows], numbers, self._received[rows])

    def _outcomes(
        self, rows: Longs, names: pa.DictionaryArray, found: Longs, here: Flags
    ) -> Decisions:
        there = found >= 0
        away = np.where(there, _OUTCOME[Outcome.FORWARDED], _OUTCOME[Outcome.DROPPED])
        outcome = np.where(here, _OUTCOME[Outcome.DELIVERED], away)
        reason = np.where(there, _NONE, _REASON[Reason.NO_ROUTE])
        return Decisions(rows, outcome, reason, names, self._routes.addresses_of(found))

    @cached_property
    def _told_duplicates(self) -> Flags:
        return are(column(self._messages, "reason"), Reason.DUPLICATE)

    @cached_property
    def _multicast_rows(self) -> Flags:
        return are(column(self._messages, "kind"), "multicast")

    @cached_property
    def _sound_ids(self) -> tuple[Flags, Longs]:
        """Which of the distinct multicast ids are valid, and the number of each row's id."""
        published = encoded(column(self._messages, "multicast_id"))
        return np.append(are_ids(published.dictionary), False), codes(published)

    @cached_property
    def _sessions(self) -> Sessions:
        return Sessions(self._past.sessions)

    @cached_property
    def _upwards(self) -> Upward:
        return Upward(self._past.sessions, self._messages)

    @cached_property
    def _onward(self) -> tuple[pa.DictionaryArray, pa.DictionaryArray]:
        """All addresses of onward routes, and the name in each distinct one."""
        addresses = encoded(column(self._messages, "onward").values)
        return addresses, encoded(local_names(addresses.dictionary))

    @cached_property
    def _last_names(self) -> tuple[pa.Array, Longs]:
        return names_on_routes(self._messages, *self._onward)


def _dropped(rows: Longs, reason: Reason) -> Decisions:
    outcome = np.full(len(rows), _OUTCOME[Outcome.DROPPED])
    nobody = _nobody(rows)
    return Decisions(rows, outcome, np.full(len(rows), _REASON[reason]), nobody, nobody)


def _nobody(rows: Longs) -> pa.Array:
    return pa.nulls(len(rows), CODED)


def _unheard(rows: Longs, owner: Longs) -> Iterator[Decisions]:
    """Drop the multicasts that nobody gets; `owner` are the numbers of the others."""
    heard = np.zeros(len(rows), np.bool_)
    heard[owner] = True
    if not heard.all():
        yield _dropped(rows[~heard], Reason.NO_SUBSCRIBER)


def _forward(decisions: Decisions, some: Flags, addresses: pa.Array) -> None:
    """Forward some of these messages, to addresses that no table has told."""
    if some.any():
        decisions.outcome[some] = _OUTCOME[Outcome.FORWARDED]
        decisions.reason[some] = _NONE
        decisions.address = either(decisions.address, addresses, some)


def _only(decisions: Decisions, kept: Flags) -> Decisions:
    """Some of the decisions."""
    if kept.all():
        return decisions
    rows = pa.array(np.flatnonzero(kept))
    return Decisions(
        decisions.row[kept],
        decisions.outcome[kept],
        decisions.reason[kept],
        decisions.recipient.take(rows),
        decisions.address.take(rows),
    )


def names_on_routes(
    messages: pa.Table, addresses: pa.DictionaryArray, names: pa.DictionaryArray
) -> tuple[pa.Array, Longs]:
    """The names in onward routes, and for each message the number of the last one; -1 for none."""
    bounds = np.asarray(column(messages, "onward").offsets).astype(np.int64)
    name = np.append(codes(names), _NONE)[codes(addresses)]
    places = np.where(name >= 0, np.arange(len(name)), _NONE)
    latest = np.append(np.maximum.accumulate(places) if len(places) else places, _NONE)
    last = latest[bounds[1:] - 1]  # of an empty list at the very beginning: the -1 at the end
    return names.dictionary, np.append(name, _NONE)[np.where(last >= bounds[:-1], last, _NONE)]


class Audience:
    """The receivers of broadcasts with these ids, and when they were subscribed."""

    def __init__(self, ids: pa.Array, history: pa.Table) -> None:
        patterns = encoded(column(history, "pattern"))
        receivers = encoded(column(history, "receiver"))
        self.names = receivers.dictionary
        known = np.flatnonzero(are_ids(ids))
        matched, pattern = match(ids.take(pa.array(known)), patterns.dictionary)
        self._patterns = max(len(patterns.dictionary), 1)
        self._matched = pattern
        self._of_id = np.searchsorted(known[matched], np.arange(len(ids) + 1))
        self._incarnations, lives = numbered(longs(history, "incarnation"))
        group = lives * self._patterns + codes(patterns)
        order = stable_order(group)
        self._groups = Groups(group[order], len(self._incarnations) * self._patterns)
        self._receiver = codes(receivers)[order]
        self._starts = longs(history, "valid_from")[order]
        self._ends = longs(history, "valid_to", NEVER)[order]

    def of(
        self, incarnation: Longs, which: Longs, at: Longs, at_once: int
    ) -> Iterator[tuple[slice, Longs, Longs]]:
        """The messages in parts, with each receiver of each message once.

        A receiver is given by the number of the message in its part and the code of its name. No
        part has many more candidates than `at_once`.
        """
        owner, starts, counts = self._candidates(incarnation, which)
        total = np.cumsum(np.bincount(owner, counts, minlength=len(which)))
        begin = 0
        while begin < len(which):
            limit = (total[begin - 1] if begin else 0) + at_once
            end = max(int(np.searchsorted(total, limit, "right")), begin + 1)
            own = slice(*np.searchsorted(owner, [begin, end]).tolist())
            part = slice(begin, end)
            yield part, *self._receivers(owner[own] - begin, starts[own], counts[own], at[part])
            begin = end

    def _receivers(
        self, owner: Longs, starts: Longs, counts: Longs, at: Longs
    ) -> tuple[Longs, Longs]:
        pair, row = spread(starts, counts)
        owner = owner[pair]
        live = (self._starts[row] <= at[owner]) & (at[owner] < self._ends[row])
        owner, receiver = owner[live], self._receiver[row[live]]
        several = np.bincount(owner, minlength=len(at))[owner] > 1
        if not several.any():
            return owner, receiver
        width = len(self.names)
        keys = np.asarray(pa.array(owner[several] * width + receiver[several]).unique())
        owner = np.append(owner[~several], keys // width)
        return owner, np.append(receiver[~several], keys % width)

    def _candidates(self, incarnation: Longs, which: Longs) -> tuple[Longs, Longs, Longs]:
        """For each message and each pattern that matches it, the range of subscriptions."""
        first, last = self._of_id[which], self._of_id[which + 1]
        owner, place = spread(first, last - first)
        life = positions(self._incarnations, incarnation)[owner]
        group = np.where(life < 0, _NONE, life * self._patterns + self._matched[place])
        starts, ends = self._groups.spans(group)
        return owner, starts, ends - starts
