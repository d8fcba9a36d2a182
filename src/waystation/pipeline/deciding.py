"""The outcome that the rules require for each message at a node (SP-2): CONTRACT's `expected`.

What `waystation.core.router` decides for one message is decided here for all of a node's
messages at once, with the intervals of its tables. Arrow in, Arrow out; no Spark, no files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from waystation.core.address import Address
from waystation.core.message import HOP_LIMIT
from waystation.core.outcome import Outcome, Reason
from waystation.journal.schema import TEXT
from waystation.pipeline.columns import (
    NEVER,
    Flags,
    Longs,
    are,
    chosen,
    coded_name,
    codes,
    column,
    common_texts,
    encoded,
    flags,
    longs,
    numbered,
    picked,
    spread,
    stable_order,
    taken,
)
from waystation.pipeline.matching import are_ids, match
from waystation.pipeline.schema import CODED
from waystation.pipeline.tables import BUILT

ROWS_AT_ONCE: Final = 500_000
"""Maximum number of messages, or receivers of multicasts, that are decided at a time."""

_OUTCOMES: Final = pa.array([str(outcome) for outcome in Outcome], TEXT)
_REASONS: Final = pa.array([str(reason) for reason in Reason], TEXT)
_OUTCOME: Final = {outcome: number for number, outcome in enumerate(Outcome)}
_REASON: Final = {reason: number for number, reason in enumerate(Reason)}
_NONE: Final = -1
_DENSE: Final = 8
"""A table of all possible folds is kept, if at most this many times as large as the intervals."""


class Decisions(Struct):
    """Decisions: the row of the message, the recipient, and the outcome."""

    row: Longs
    outcome: Longs
    reason: Longs
    recipient: pa.Array
    address: pa.Array


def decide(
    node: str,
    messages: pa.Table,
    route_history: pa.Table,
    subscription_history: pa.Table,
    hop_limit: int = HOP_LIMIT,
    *,
    at_once: int = ROWS_AT_ONCE,
) -> Iterator[pa.Table]:
    """The rows of `expected` for these messages, in parts; an entry is never divided."""
    tables = route_history, subscription_history
    for piece in coded_decisions(node, messages, *tables, hop_limit, at_once=at_once):
        yield piece.cast(BUILT["expected"])


def coded_decisions(
    node: str,
    messages: pa.Table,
    route_history: pa.Table,
    subscription_history: pa.Table,
    hop_limit: int = HOP_LIMIT,
    *,
    at_once: int = ROWS_AT_ONCE,
) -> Iterator[pa.Table]:
    """The rows of `expected` with dictionary-encoded strings, except the ids."""
    if not messages.num_rows:
        return
    rows = entries(messages)
    deciding = _Node(messages, route_history, subscription_history, hop_limit, at_once)
    for decisions in deciding.decide(rows):
        columns = [
            taken(messages, "message_id", decisions.row),
            coded_name(node, len(decisions.row)),
            taken(messages, "received_at", decisions.row),
            decisions.recipient,
            decisions.address,
            chosen(_OUTCOMES, decisions.outcome),
            chosen(_REASONS, decisions.reason),
        ]
        yield pa.Table.from_arrays(columns, names=BUILT["expected"].names)


def entries(messages: pa.Table) -> Longs:
    """One row for each time that a message entered the node: the one with the lowest seq."""
    received = longs(messages, "received_at")
    order = np.argsort(received, kind="stable")
    same = received[order[1:]] == received[order[:-1]]
    if not same.any():
        return order
    shared = np.append(same, False) | np.append(False, same)
    doubtful = order[shared]  # the ids are compared only where timestamps are equal
    ids = codes(column(messages, "message_id").take(pa.array(doubtful)))
    keys = (longs(messages, "incarnation")[doubtful], received[doubtful], ids)
    sorting = np.lexsort((longs(messages, "seq")[doubtful], *keys))
    differs = np.zeros(len(doubtful), np.bool_)
    differs[0] = True
    for key in keys:
        ordered = key[sorting]
        differs[1:] |= ordered[1:] != ordered[:-1]
    return np.sort(np.concatenate([order[~shared], doubtful[sorting[differs]]]))


class _Node:
    """The messages and tables of one node."""

    def __init__(
        self,
        messages: pa.Table,
        routes: pa.Table,
        subscriptions: pa.Table,
        hop_limit: int,
        at_once: int,
    ) -> None:
        self._messages = messages
        self._incarnation = longs(messages, "incarnation")
        self._received = longs(messages, "received_at")
        self._routes = Lookup(routes)
        self._subscriptions = subscriptions
        self._hop_limit = hop_limit
        self._at_once = at_once

    def decide(self, rows: Longs) -> Iterator[Decisions]:
        messages = self._messages
        # Whether a broadcast came by another way before is for the node to know: its ids may be of
        # an earlier incarnation's journal, or of one that lost records.
        copies = are(column(messages, "reason"), Reason.DUPLICATE)[rows]
        if copies.any():
            yield _dropped(rows[copies], np.full(int(copies.sum()), _REASON[Reason.DUPLICATE]))
            rows = rows[~copies]
        expired = self._received[rows] >= longs(messages, "expiry", NEVER)[rows]
        hops = np.asarray(pc.list_value_length(column(messages, "return")))[rows]
        too_far = ~expired & (hops >= self._hop_limit)
        over = expired | too_far
        if over.any():
            reason = np.where(expired, _REASON[Reason.EXPIRED], _REASON[Reason.HOP_LIMIT])
            yield _dropped(rows[over], reason[over])
        rows = rows[~over]
        multicast = are(column(messages, "kind"), "multicast")[rows]
        unicast = rows[~multicast]
        for first in range(0, len(unicast), self._at_once):
            yield self._unicast(unicast[first : first + self._at_once])
        if multicast.any():
            yield from self._multicast(rows[multicast])

    def _unicast(self, rows: Longs) -> Decisions:
        firsts = first_addresses(self._messages, rows)
        which = codes(firsts)
        names = encoded(local_names(firsts.dictionary))
        participant = np.append(codes(names), _NONE)[which]
        known = self._routes.numbers(names.dictionary)
        found = self._find(rows, np.append(known, _NONE)[participant])
        decisions = self._delivered(rows, found, chosen(names.dictionary, participant))
        away = (participant < 0) & (which >= 0)  # any other type is the next hop itself
        if away.any():
            decisions.outcome[away] = _OUTCOME[Outcome.FORWARDED]
            decisions.reason[away] = _NONE
            decisions.address = self._routes.addresses_or(found, firsts.dictionary, away, which)
        return decisions

    def _multicast(self, rows: Longs) -> Iterator[Decisions]:
        published = encoded(column(self._messages, "multicast_id"))
        ids, which = published.dictionary, codes(published)[rows]
        sound = are_ids(ids)[which]
        if not sound.all():
            malformed = np.full(int((~sound).sum()), _REASON[Reason.MALFORMED])
            yield _dropped(rows[~sound], malformed)
        rows, which = rows[sound], which[sound]
        if not len(rows):
            return
        audience = Audience(ids, self._subscriptions)
        known = self._routes.numbers(audience.names)
        heard = audience.of(self._incarnation[rows], which, self._received[rows], self._at_once)
        for part, owner, receiver in heard:
            yield from self._unheard(rows[part], owner)
            if len(owner):
                found = self._find(rows[part][owner], known[receiver])
                names = chosen(audience.names, receiver)
                yield self._delivered(rows[part][owner], found, names)

    @staticmethod
    def _unheard(rows: Longs, owner: Longs) -> Iterator[Decisions]:
        heard = np.zeros(len(rows), np.bool_)
        heard[owner] = True
        if not heard.all():
            nobody = np.full(int((~heard).sum()), _REASON[Reason.NO_SUBSCRIBER])
            yield _dropped(rows[~heard], nobody)

    def _find(self, rows: Longs, participant: Longs) -> Longs:
        return self._routes.find(self._incarnation[rows], participant, self._received[rows])

    def _delivered(self, rows: Longs, found: Longs, recipients: pa.Array) -> Decisions:
        """The outcomes of messages to participants whose entries were found, or not (-1)."""
        there = found >= 0
        local = self._routes.local[found]
        outcome = np.where(
            local,
            _OUTCOME[Outcome.DELIVERED],
            np.where(there, _OUTCOME[Outcome.FORWARDED], _OUTCOME[Outcome.DROPPED]),
        )
        reason = np.where(there, _NONE, _REASON[Reason.NO_ROUTE])
        addresses = self._routes.addresses_of(found)
        return Decisions(rows, outcome, reason, recipients, addresses)


def _dropped(rows: Longs, reason: Longs) -> Decisions:
    outcome = np.full(len(rows), _OUTCOME[Outcome.DROPPED])
    nobody = pa.nulls(len(rows), CODED)
    return Decisions(rows, outcome, reason, nobody, nobody)


def first_addresses(messages: pa.Table, rows: Longs) -> pa.DictionaryArray:
    """The address that a router looks at (AD-5); null if the onward route is empty."""
    onward = column(messages, "onward")
    bounds = np.asarray(onward.offsets)
    starts = bounds[rows]
    addresses = encoded(onward.values)
    which = np.append(codes(addresses), _NONE)[np.where(bounds[rows + 1] > starts, starts, _NONE)]
    indices = pa.array(which.astype(np.int32), mask=which < 0)
    return pa.DictionaryArray.from_arrays(indices, addresses.dictionary)


def local_names(addresses: pa.Array) -> pa.Array:
    """The participant that each local address names; null for other types."""
    plain = pc.match_substring_regex(addresses, r"^0#[!-/1-~][!-~]*$")
    odd = np.flatnonzero(~np.asarray(plain))
    names = pc.if_else(plain, pc.utf8_slice_codeunits(addresses, 2), pa.scalar(None, TEXT))
    if not len(odd):
        return names
    read = [Address.parse(text) for text in addresses.take(pa.array(odd)).to_pylist()]
    known = pa.array([address.name if address.type == 0 else None for address in read], TEXT)
    place = np.full(len(addresses), _NONE)
    place[odd] = np.arange(len(odd))
    return pc.coalesce(names, picked(known, place))


class Lookup:
    """Finds the routing entries of many participants at many times."""

    def __init__(self, history: pa.Table) -> None:
        participants = encoded(column(history, "participant"))
        self._participants = participants.dictionary
        self._incarnations, lives = numbered(longs(history, "incarnation"))
        fold = codes(participants) * len(self._incarnations) + lives
        starts = longs(history, "valid_from")
        in_order = (fold[1:] > fold[:-1]) | ((fold[1:] == fold[:-1]) & (starts[1:] > starts[:-1]))
        if not in_order.all():
            order = np.lexsort((starts, fold))
            fold, starts, history = fold[order], starts[order], history.take(pa.array(order))
        self._starts = starts
        self._ends = longs(history, "valid_to", NEVER)
        self.local: Flags = np.append(flags(history, "local"), False)  # the last one has no entries
        self._addresses = column(history, "address")
        self._folds = Groups(fold, len(self._incarnations) * len(self._participants))

    def numbers(self, names: pa.Array) -> Longs:
        """The number of each of these participants here, or -1."""
        found = pc.fill_null(pc.index_in(names, value_set=self._participants), _NONE)
        return np.asarray(found).astype(np.int64)

    def find(self, incarnation: Longs, participant: Longs, at: Longs) -> Longs:
        """The row of the interval that contains each timestamp, or -1."""
        if not len(self._starts):
            return np.full(len(at), _NONE)
        life = positions(self._incarnations, incarnation)
        known = (participant >= 0) & (life >= 0)
        fold = np.where(known, participant * len(self._incarnations) + life, _NONE)
        first, end = self._folds.spans(fold)
        found = self._latest(first, end, at)
        return np.where((found >= first) & (at < self._ends[found]), found, _NONE)

    def addresses_of(self, found: Longs) -> pa.Array:
        """The addresses of these rows; null for -1."""
        if pa.types.is_dictionary(self._addresses.type):
            return chosen(self._addresses, found)
        return encoded(picked(self._addresses, found))

    def addresses_or(
        self, found: Longs, others: pa.Array, instead: Flags, which: Longs
    ) -> pa.Array:
        """The addresses of these rows; where `instead` is true, those of `others` at `which`."""
        own = self.addresses_of(found)
        texts, _, numbers = common_texts(own.dictionary, others)
        return chosen(texts, np.where(instead, np.append(numbers, _NONE)[which], codes(own)))

    def _latest(self, first: Longs, end: Longs, at: Longs) -> Longs:
        """The last row in [first, end) that begins at or before the timestamp, else `first` - 1.

        A binary search over all groups at once: strides halve, and are taken only where enough
        rows remain.
        """
        found = first - 1
        stride = 1 << self._folds.largest.bit_length() >> 1
        while stride:
            rows = np.flatnonzero(end - first >= stride)
            to = found[rows] + stride
            fits = to < end[rows]
            rows, to = rows[fits], to[fits]
            begun = self._starts[to] <= at[rows]
            found[rows[begun]] = to[begun]
            stride >>= 1
        return found


class Groups:
    """The row range of each group; rows are sorted by the number of their group."""

    def __init__(self, numbers: Longs, groups: int) -> None:
        self._known: Longs | None = None
        if groups <= _DENSE * len(numbers):
            counts = np.bincount(numbers, minlength=groups)
        else:  # most possible groups have no rows
            self._known, counts = np.unique(numbers, return_counts=True)
        self._bounds = np.append(np.append(0, np.cumsum(counts)), 0)
        self.largest = int(counts.max(initial=0))

    def spans(self, numbers: Longs) -> tuple[Longs, Longs]:
        """The first row of each of these groups, and the end of the range; empty for -1."""
        if self._known is not None:
            numbers = positions(self._known, numbers)
        first = self._bounds[numbers]  # for -1: the 0 at the end
        return first, np.where(numbers < 0, 0, self._bounds[numbers + 1])


def positions(known: Longs, values: Longs) -> Longs:
    """The position of each value among sorted distinct ones, or -1."""
    if not len(known):
        return np.full(len(values), _NONE)
    if len(known) == 1:
        return np.where(values == known[0], 0, _NONE)
    found = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return np.where(known[found] == values, found, _NONE)


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
