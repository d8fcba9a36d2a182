"""What the rules say must happen to each message that entered a node (SP-2): CONTRACT's `expected`.

The same question that `waystation.core.router` answers for one message, here for all of a node's
messages at once, against the intervals of its tables. Arrow in, Arrow out; no Spark, no files.
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
from waystation.core.multicast import is_multicast_id
from waystation.core.outcome import Outcome, Reason
from waystation.pipeline.columns import (
    NEVER,
    Flags,
    Longs,
    codes,
    column,
    flags,
    longs,
    numbered,
    picked,
    repeated,
    spread,
    stable_order,
    taken,
)
from waystation.pipeline.matching import match
from waystation.pipeline.schema import BUILT, TEXT

ROWS_AT_ONCE: Final = 500_000
"""Multicasts are written out for about so many receivers at a time."""

_OUTCOMES: Final = pa.array([str(outcome) for outcome in Outcome], TEXT)
_REASONS: Final = pa.array([str(reason) for reason in Reason], TEXT)
_OUTCOME: Final = {outcome: number for number, outcome in enumerate(Outcome)}
_REASON: Final = {reason: number for number, reason in enumerate(Reason)}
_NONE: Final = -1


class Decisions(Struct):
    """Some decisions: of which message (its row), about whom, and what."""

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
) -> Iterator[pa.Table]:
    """The rows of `expected` for these messages, in pieces; all rows of one entry in one piece."""
    if not messages.num_rows:
        return
    rows = entries(messages)
    for decisions in _Node(messages, route_history, subscription_history, hop_limit).decide(rows):
        columns = [
            taken(messages, "message_id", decisions.row),
            repeated(node, len(decisions.row)),
            taken(messages, "received_at", decisions.row),
            decisions.recipient,
            decisions.address,
            picked(_OUTCOMES, decisions.outcome),
            picked(_REASONS, decisions.reason),
        ]
        yield pa.Table.from_arrays(columns, schema=BUILT["expected"])


def entries(messages: pa.Table) -> Longs:
    """One row for each time that a message entered the node: the one with the lowest seq."""
    received = longs(messages, "received_at")
    order = np.argsort(received, kind="stable")
    same = received[order[1:]] == received[order[:-1]]
    if not same.any():
        return order
    shared = np.append(same, False) | np.append(False, same)
    doubtful = order[shared]  # only where instants are shared are the ids looked at
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
        self, messages: pa.Table, routes: pa.Table, subscriptions: pa.Table, hop_limit: int
    ) -> None:
        self._messages = messages
        self._incarnation = longs(messages, "incarnation")
        self._received = longs(messages, "received_at")
        self._routes = Lookup(routes)
        self._subscriptions = subscriptions
        self._hop_limit = hop_limit

    def decide(self, rows: Longs) -> Iterator[Decisions]:
        messages = self._messages
        expired = self._received[rows] >= longs(messages, "expiry", NEVER)[rows]
        hops = np.asarray(pc.list_value_length(column(messages, "return")))[rows]
        too_far = ~expired & (hops >= self._hop_limit)
        over = expired | too_far
        if over.any():
            reason = np.where(expired, _REASON[Reason.EXPIRED], _REASON[Reason.HOP_LIMIT])
            yield _dropped(rows[over], reason[over])
        rows = rows[~over]
        multicast = np.asarray(pc.equal(column(messages, "kind"), "multicast"))[rows]
        if not multicast.all():
            yield self._unicast(rows[~multicast])
        if multicast.any():
            yield from self._multicast(rows[multicast])

    def _unicast(self, rows: Longs) -> Decisions:
        firsts = first_addresses(self._messages, rows).dictionary_encode()
        names = local_names(firsts.dictionary)
        which = codes(firsts)
        local = np.append(np.asarray(names.is_valid()), False)[which]
        nowhere = which < 0
        decisions = self._delivered(rows, names, np.where(local, which, _NONE))
        away = ~local & ~nowhere  # other types than the local one go where they say
        decisions.outcome[away] = _OUTCOME[Outcome.FORWARDED]
        decisions.reason[away] = _NONE
        decisions.address = pc.if_else(pa.array(away), firsts.cast(TEXT), decisions.address)
        return decisions

    def _multicast(self, rows: Longs) -> Iterator[Decisions]:
        encoded = column(self._messages, "multicast_id").take(pa.array(rows)).dictionary_encode()
        ids, which = encoded.dictionary, codes(encoded)
        sound = np.array([is_multicast_id(id) for id in ids.to_pylist()], np.bool_)[which]
        if not sound.all():
            malformed = np.full(int((~sound).sum()), _REASON[Reason.MALFORMED])
            yield _dropped(rows[~sound], malformed)
        rows, which = rows[sound], which[sound]
        if not len(rows):
            return
        audience = Audience(ids, self._subscriptions)
        for part in audience.portions(self._incarnation[rows], which):
            yield from self._fan_out(audience, rows[part], which[part])

    def _fan_out(self, audience: Audience, rows: Longs, which: Longs) -> Iterator[Decisions]:
        owner, receiver = audience.receivers(self._incarnation[rows], which, self._received[rows])
        heard = np.zeros(len(rows), np.bool_)
        heard[owner] = True
        if not heard.all():
            nobody = np.full(int((~heard).sum()), _REASON[Reason.NO_SUBSCRIBER])
            yield _dropped(rows[~heard], nobody)
        if len(owner):
            yield self._delivered(rows[owner], audience.names, receiver)

    def _delivered(self, rows: Longs, names: pa.Array, which: Longs) -> Decisions:
        """What becomes of messages to participants: their names, by number."""
        found = self._routes.find(self._incarnation[rows], names, which, self._received[rows])
        there = found >= 0
        local = self._routes.local[found] & there
        outcome = np.where(
            local,
            _OUTCOME[Outcome.DELIVERED],
            np.where(there, _OUTCOME[Outcome.FORWARDED], _OUTCOME[Outcome.DROPPED]),
        )
        reason = np.where(there, _NONE, _REASON[Reason.NO_ROUTE])
        addresses = picked(self._routes.addresses, found)
        return Decisions(rows, outcome, reason, picked(names, which), addresses)


def _dropped(rows: Longs, reason: Longs) -> Decisions:
    outcome = np.full(len(rows), _OUTCOME[Outcome.DROPPED])
    nobody = pa.nulls(len(rows), TEXT)
    return Decisions(rows, outcome, reason, nobody, nobody)


def first_addresses(messages: pa.Table, rows: Longs) -> pa.Array:
    """The address that a router looks at (AD-5); null where the onward route is empty."""
    onward = column(messages, "onward").take(pa.array(rows))
    empty = np.asarray(pc.list_value_length(onward)) == 0
    starts = np.asarray(onward.offsets)[:-1].astype(np.int64)
    return picked(onward.values, np.where(empty, _NONE, starts))


def local_names(addresses: pa.Array) -> pa.Array:
    """The participant that each address of the local type names; null for other types."""
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
    """Finds the entry that a participant had at an instant, for many of both."""

    def __init__(self, history: pa.Table) -> None:
        self._starts = longs(history, "valid_from")
        self._ends = longs(history, "valid_to", NEVER)
        encoded = column(history, "participant").dictionary_encode()
        self._participants = encoded.dictionary
        numbers = longs(history, "incarnation")
        self._incarnations, lives = numbered(numbers)
        fold = lives * max(len(self._participants), 1) + codes(encoded)
        order = np.lexsort((self._starts, fold))
        if not (order[1:] > order[:-1]).all():
            fold, self._starts, self._ends = fold[order], self._starts[order], self._ends[order]
            history = history.take(pa.array(order))
        self.local: Flags = np.append(flags(history, "local"), False)  # the last is that of nobody
        self.addresses = column(history, "address")
        begins = np.flatnonzero(np.append(True, fold[1:] != fold[:-1])[: len(fold)])
        self._folds = fold[begins]
        self._bounds = np.append(begins, len(fold))

    def find(self, incarnation: Longs, names: pa.Array, which: Longs, at: Longs) -> Longs:
        """The row of the interval that holds each instant, or -1.

        `which` gives each row the number of its name, or -1.
        """
        if not len(self._folds) or not len(names):
            return np.full(len(which), _NONE)
        known = pc.fill_null(pc.index_in(names, value_set=self._participants), _NONE)
        participant = np.append(np.asarray(known).astype(np.int64), _NONE)[which]
        life = np.searchsorted(self._incarnations, incarnation)
        life = np.minimum(life, len(self._incarnations) - 1)
        fold = life * len(self._participants) + participant
        place = np.minimum(np.searchsorted(self._folds, fold), len(self._folds) - 1)
        there = (
            (participant >= 0)
            & (self._incarnations[life] == incarnation)
            & (self._folds[place] == fold)
        )
        found = self._latest(place, at)
        there &= (found >= self._bounds[place]) & (at < self._ends[found])
        return np.where(there, found, _NONE)

    def _latest(self, place: Longs, at: Longs) -> Longs:
        """In each fold, the last interval that begins at or before the instant: by halving."""
        low, high = self._bounds[place], self._bounds[place + 1]
        longest = int((self._bounds[1:] - self._bounds[:-1]).max())
        for _ in range(longest.bit_length()):
            middle = (low + high) // 2
            later = self._starts[np.minimum(middle, len(self._starts) - 1)] > at
            searching = low < high
            high = np.where(searching & later, middle, high)
            low = np.where(searching & ~later, middle + 1, low)
        return low - 1


class Audience:
    """Who receives what is published under each of some ids, and when."""

    def __init__(self, ids: pa.Array, history: pa.Table) -> None:
        patterns = column(history, "pattern").dictionary_encode()
        receivers = column(history, "receiver").dictionary_encode()
        self.names = receivers.dictionary
        sound = np.array([is_multicast_id(id) for id in ids.to_pylist()], np.bool_)
        known = np.flatnonzero(sound)
        matched, pattern = match(ids.take(pa.array(known)), patterns.dictionary)
        self._patterns = max(len(patterns.dictionary), 1)
        self._matched = pattern
        self._of_id = np.searchsorted(known[matched], np.arange(len(ids) + 1))
        numbers = longs(history, "incarnation")
        self._incarnations, lives = numbered(numbers)
        group = lives * self._patterns + codes(patterns)
        order = stable_order(group)
        self._group = group[order]
        self._receiver = codes(receivers)[order]
        self._starts = longs(history, "valid_from")[order]
        self._ends = longs(history, "valid_to", NEVER)[order]

    def portions(self, incarnation: Longs, which: Longs) -> Iterator[slice]:
        """Parts of the messages, none with many more candidates than are handled at once."""
        owner, _, counts = self._candidates(incarnation, which)
        total = np.cumsum(np.bincount(owner, counts, minlength=len(which)))
        begin = 0
        while begin < len(which):
            limit = (total[begin - 1] if begin else 0) + ROWS_AT_ONCE
            end = max(int(np.searchsorted(total, limit, "right")), begin + 1)
            yield slice(begin, end)
            begin = end

    def receivers(self, incarnation: Longs, which: Longs, at: Longs) -> tuple[Longs, Longs]:
        """Each receiver of each message once: the number of the message, that of the name."""
        owner, starts, counts = self._candidates(incarnation, which)
        pair, row = spread(starts, counts)
        owner = owner[pair]
        live = (self._starts[row] <= at[owner]) & (at[owner] < self._ends[row])
        keys = owner[live] * max(len(self.names), 1) + self._receiver[row[live]]
        keys = np.unique(keys)
        width = max(len(self.names), 1)
        return keys // width, keys % width

    def _candidates(self, incarnation: Longs, which: Longs) -> tuple[Longs, Longs, Longs]:
        """For each message and each pattern that matches it, the span of subscriptions."""
        first, last = self._of_id[which], self._of_id[which + 1]
        owner, place = spread(first, last - first)
        life = np.searchsorted(self._incarnations, incarnation)
        known = life < len(self._incarnations)
        known[known] = self._incarnations[life[known]] == incarnation[known]
        group = life[owner] * self._patterns + self._matched[place]
        starts = np.searchsorted(self._group, group, "left")
        ends = np.searchsorted(self._group, group, "right")
        return owner, starts, np.where(known[owner], ends - starts, 0)
