"""Compare the expected with the actual outcomes of messages: CONTRACT's `audit`, for one node.

docs/reference/tables.md describes how rows are paired. Arrow in, Arrow out; no Spark.
"""

from __future__ import annotations

from collections.abc import Set  # noqa: PYI025 - any kind of set
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from waystation.core.outcome import Outcome
from waystation.journal.schema import TEXT
from waystation.pipeline.kernels.columns import (
    ID_DIGITS,
    Flags,
    Longs,
    are,
    are_as_long_as_ids,
    chosen,
    coded_name,
    codes,
    column,
    common_texts,
    days,
    encoded,
    flags,
    longs,
    number_codes,
    numbered,
    pair_codes,
    ranks,
    repeated,
    taken,
    text_bytes,
)
from waystation.pipeline.kernels.folding import decided_otherwise
from waystation.pipeline.kernels.visits import is_of_version_2
from waystation.pipeline.tables import BUILT

_NONE: Final = -1
_FEW: Final = 16  # incarnations whose times are compared one by one
_VERDICTS: Final = pa.array(["ok", "missing", "unexpected", "different"], TEXT)
_OK, _MISSING, _UNEXPECTED, _DIFFERENT = range(4)
_OUTCOMES: Final = pa.array([str(outcome) for outcome in Outcome], TEXT)
_DELIVERED, _FORWARDED, _QUEUED, _DROPPED = range(4)
_GOT_ON: Final = ((_QUEUED, (_FORWARDED, _DELIVERED)), (_FORWARDED, (_FORWARDED,)))
"""What may come of a durable message of which this was expected."""


def compare(
    node: str, expected: pa.Table, messages: pa.Table, entered_later: Set[str] = frozenset()
) -> pa.Table:
    """The rows of `audit` for these messages; `expected` has the outcomes that the rules require.

    `entered_later` are the ids of messages that entered the node again after all of these.
    """
    return coded_comparison(node, expected, messages, entered_later).cast(BUILT["audit"])


def coded_comparison(
    node: str, expected: pa.Table, messages: pa.Table, entered_later: Set[str] = frozenset()
) -> pa.Table:
    """The rows of `audit` with dictionary-encoded strings, except the ids."""
    expected, messages = _without_superseded(expected, messages, entered_later)
    pairing = _Pairing(expected, messages)
    matches = np.append(pairing.theirs, _NONE)[pairing.mine]
    surplus = pairing.theirs[pairing.unclaimed]
    told = np.append(matches, surplus)
    ids = column(expected, "message_id"), taken(messages, "message_id", surplus)
    received = _both(expected, messages, "received_at", surplus)
    columns = {
        "message_id": pa.concat_arrays(ids) if len(surplus) else ids[0],
        "node": coded_name(node, len(told)),
        "recipient": _ours(pairing.recipients, surplus),
        "expected": chosen(_OUTCOMES, np.append(pairing.mine_do, np.full(len(surplus), _NONE))),
        "actual": chosen(_OUTCOMES, np.append(pairing.their_outcome, _NONE)[told]),
        "verdict": chosen(
            _VERDICTS, np.append(pairing.verdict, np.full(len(surplus), _UNEXPECTED))
        ),
        "reason": _theirs(pairing.reasons, matches, surplus),
        "address": _ours(pairing.addresses, surplus),
        "incarnation": _both(expected, messages, "incarnation", surplus),
        "received_at": received,
        "event_time": received,
        "multicast_id": _multicast_ids(pairing, expected, surplus),
        "next_node": _known(pairing.next_nodes, matches, surplus),
        "day": days(np.asarray(received.view(pa.int64()))),
    }
    names = BUILT["audit"].names
    return pa.Table.from_arrays([columns[name] for name in names], names=names)


Common: TypeAlias = tuple[pa.Array, Longs, Longs]
"""The distinct strings of a column on both sides, and the number of each row's string there."""


def _ours(common: Common, surplus: Longs) -> pa.Array:
    """The strings of the expected rows, and then of what nobody expected."""
    texts, mine, theirs = common
    return chosen(texts, np.append(mine, theirs[surplus]))


def _theirs(common: Common, matches: Longs, surplus: Longs) -> pa.Array:
    """The strings of the matches; of expected rows without one, their own."""
    texts, mine, theirs = common
    found = np.where(matches < 0, mine, np.append(theirs, _NONE)[matches])
    return chosen(texts, np.append(found, theirs[surplus]))


def _known(common: Common, matches: Longs, surplus: Longs) -> pa.Array:
    """The strings of the matches; where these have none, those of the expected rows."""
    texts, mine, theirs = common
    actual = np.append(theirs, _NONE)[matches]
    return chosen(texts, np.append(np.where(actual < 0, mine, actual), theirs[surplus]))


def _multicast_ids(pairing: _Pairing, expected: pa.Table, surplus: Longs) -> pa.Array:
    if not len(surplus):
        return column(expected, "multicast_id")
    return _ours(pairing.common("multicast_id", "multicast_id"), surplus)


def _both(expected: pa.Table, messages: pa.Table, name: str, surplus: Longs) -> pa.Array:
    own = column(expected, name)
    return pa.concat_arrays([own, taken(messages, name, surplus)]) if len(surplus) else own


def waiting_ids(messages: pa.Table) -> set[str]:
    """The ids of messages that were only queued, as far as the journal says."""
    queued = pc.equal(messages.column("outcome"), "QUEUED")
    if not pc.any(queued).as_py():
        return set()
    return set(messages.filter(queued).column("message_id").to_pylist())


def _without_superseded(
    expected: pa.Table, messages: pa.Table, entered_later: Set[str]
) -> tuple[pa.Table, pa.Table]:
    """Leave out entries that only queued a message which entered the node again later.

    A message kept for an absent receiver enters again on release; that entry has the outcome.
    """
    candidates = waiting_ids(messages)
    if not candidates:
        return expected, messages
    doubtful = messages.filter(pc.is_in(messages.column("message_id"), pa.array(list(candidates))))
    latest: dict[str, int] = {}
    told: dict[tuple[str, int], bool] = {}  # by entry: whether any outcome is not QUEUED
    ids, received = doubtful.column("message_id").to_pylist(), longs(doubtful, "received_at")
    outcomes = doubtful.column("outcome").to_pylist()
    for id, at, outcome in zip(ids, received.tolist(), outcomes, strict=True):
        latest[id] = max(at, latest.get(id, at))
        told[id, at] = told.get((id, at), False) or outcome != "QUEUED"
    gone = {
        (id, at)
        for (id, at), ended in told.items()
        if not ended and (at < latest[id] or id in entered_later)
    }
    return _left_out(expected, gone), _left_out(messages, gone)


def _left_out(table: pa.Table, entries: set[tuple[str, int]]) -> pa.Table:
    """The rows that belong to none of these entries."""
    if not entries:
        return table
    named = pc.is_in(column(table, "message_id"), pa.array([id for id, _ in entries]))
    rows = np.flatnonzero(np.asarray(named))
    ids = column(table, "message_id").take(pa.array(rows)).to_pylist()
    ats = longs(table, "received_at")[rows].tolist()
    gone = [pair in entries for pair in zip(ids, ats, strict=True)]
    kept = np.ones(table.num_rows, np.bool_)
    kept[rows[np.array(gone, np.bool_)]] = False
    return table.filter(pa.array(kept))


def route_differences(node: str, routes: pa.Table) -> pa.Table:
    """The rows of `audit` for puts that the live node decided differently from the rules."""
    rows = decided_otherwise(routes)
    count = len(rows)
    accepted = flags(routes, "accepted")[rows]
    told = pa.array(["refused", "accepted"], TEXT)
    at = taken(routes, "at", rows)
    columns = {
        "message_id": repeated(None, count),
        "node": repeated(node, count),
        "recipient": taken(routes, "participant", rows),
        "expected": told.take(pa.array((~accepted).astype(np.int64))),
        "actual": told.take(pa.array(accepted.astype(np.int64))),
        "verdict": repeated("different", count),
        "reason": repeated(None, count),
        "address": taken(routes, "address", rows),
        "incarnation": taken(routes, "incarnation", rows),
        "received_at": at,
        "event_time": at,
        "multicast_id": repeated(None, count),
        "next_node": repeated(None, count),
        "day": days(np.asarray(at.view(pa.int64()))),
    }
    schema = BUILT["audit"]
    return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)


class _Pairing:
    """Which row of the messages matches which expected row.

    `theirs` are the rows of the messages that count, in the order of seq; `mine` holds, for each
    expected row, the position in `theirs` of its match or -1; `unclaimed` says which of them nobody
    expected.
    """

    def __init__(self, expected: pa.Table, messages: pa.Table) -> None:
        self._number_entries(expected, messages)
        self._expected, self._messages = expected, messages
        self.their_outcome = _outcome_codes(messages)
        self.mine_do = _outcome_codes(expected)
        self.recipients = self.common("recipient", "recipient")
        self.reasons = self.common("reason", "reason")
        self.addresses = self.common("address", "next_hop")
        self.next_nodes = self.common("next_node", "next_node")
        self._note_versions()
        self.theirs = self._counting_rows()
        self._theirs_of = self._entry_of_message[self.theirs]
        self._theirs_did = self.their_outcome[self.theirs]
        self.mine: Longs = np.full(expected.num_rows, _NONE)
        self.unclaimed: Flags = np.ones(len(self.theirs), np.bool_)
        self.verdict: Longs = np.full(expected.num_rows, _MISSING)
        self._pair_alike()
        self._pass_over_copies_upward()
        self._pair_the_rest()

    def _number_entries(self, expected: pa.Table, messages: pa.Table) -> None:
        """Number each pair of message id and received_at, the same way on both sides."""
        ids = pa.chunked_array([column(expected, "message_id"), column(messages, "message_id")])
        tables = expected, messages
        at, incarnation = (
            np.concatenate([longs(table, name) for table in tables])
            for name in ("received_at", "incarnation")
        )
        if _overlap(incarnation, at):
            at = pair_codes(number_codes(incarnation), at)
        entry = _entry_numbers(ids, at)
        self._entry_of_expected = entry[: expected.num_rows]
        self._entry_of_message = entry[expected.num_rows :]
        self._entries = int(entry.max(initial=-1)) + 1

    def _note_versions(self) -> None:
        """Find out what is of version 2, and which rows there are about copies upward (MC-10)."""
        second = is_of_version_2(self._messages)
        by_entry = np.zeros(self._entries, np.bool_)
        by_entry[self._entry_of_message[second]] = True
        self._mine_second: Flags = by_entry[self._entry_of_expected]
        self._their_second = second
        up = self._mine_second & (self.mine_do == _FORWARDED)
        self._mine_up: Flags = up & (self.recipients[1] < 0) & (self.addresses[1] < 0)
        up = second & are(column(self._messages, "kind"), "multicast")
        self._their_up: Flags = up & (self.recipients[2] < 0)

    def _counting_rows(self) -> Longs:
        """The rows with the outcome of an entry: QUEUED ones only where there is no other.

        Or where that is the expected outcome: then what came of the waiting is another matter.
        """
        queued = self.their_outcome == _QUEUED
        order = np.argsort(longs(self._messages, "seq"), kind="stable")
        if not queued.any():
            return np.asarray(order)
        entry = self._entry_of_message
        ended = np.zeros(self._entries, np.bool_)
        ended[entry[~queued]] = True
        first = np.zeros(len(queued), np.bool_)
        waiting = order[queued[order]]
        first[waiting[ranks(entry[waiting]) == 0]] = True
        counts = ~queued | (first & ~ended[entry])
        if (self.mine_do == _QUEUED).any():
            waits = np.zeros(self._entries, np.bool_)
            waits[entry[queued]] = True
            due = np.zeros(self._entries, np.bool_)
            due[self._entry_of_expected[self.mine_do == _QUEUED]] = True
            counts = np.where((waits & due)[entry], first, counts)
        return np.asarray(order[counts[order]])

    def _pair_alike(self) -> None:
        """Pair the outcomes that are as expected: by recipient, by address, or by reason."""
        expected, told = self._texts()
        text = np.append(expected, told[self.theirs])
        if int(text.max(initial=0)) > 2**62 // (4 * self._entries + 4):
            text = number_codes(text)
        width = int(text.max(initial=0)) + 2
        count = len(self.mine_do)
        entry = np.append(self._entry_of_expected, self._theirs_of)
        did = np.append(self.mine_do, self._theirs_did)
        keys = (entry * 4 + did) * width + text + 1
        mine, theirs = keys[:count], keys[count:]
        self._pair_only_ones(mine, theirs)
        self._pair_copies(mine, theirs)
        rows = np.flatnonzero(self._mine_second & (self.mine_do == _FORWARDED) & (self.mine < 0))
        others = np.flatnonzero((self._theirs_did == _FORWARDED) & self.unclaimed)
        self._answer(rows, others, mine[rows], theirs[others], _OK)
        self._pair_upward_to_unknown()
        self._pair_what_waited()
        rows = np.flatnonzero((self.mine_do == _DELIVERED) & (self.mine < 0))
        others = np.flatnonzero((self._theirs_did == _DELIVERED) & self.unclaimed)
        self._answer(rows, others, mine[rows], theirs[others], _OK)
        rows, others = self._left(_DROPPED)
        self._pair_by_name(rows, others, mine[rows], theirs[others], _OK)
        rows, others = self._left(_DROPPED)
        self._answer(rows, others, mine[rows], theirs[others], _OK)
        self._pair_waiting()

    def _pair_upward_to_unknown(self) -> None:
        """Pair copies upward that left before the peer had given its name."""
        unnamed = self._their_up[self.theirs] & (self.next_nodes[2][self.theirs] < 0)
        others = np.flatnonzero(unnamed & (self._theirs_did == _FORWARDED) & self.unclaimed)
        rows = self._sorted(np.flatnonzero(self._mine_up & (self.mine < 0)))
        mine, theirs = self._entry_of_expected[rows], self._theirs_of[others]
        self._answer(rows, others, mine, theirs, _OK)

    def _pair_what_waited(self) -> None:
        """Pair durable messages that got on after all, by the way that there was then."""
        durable = flags(self._messages, "durable")[self.theirs] & self._their_second[self.theirs]
        if not durable.any():
            return
        for mine, theirs in _GOT_ON:
            others = np.flatnonzero(durable & np.isin(self._theirs_did, theirs) & self.unclaimed)
            rows = self._sorted(np.flatnonzero((self.mine_do == mine) & (self.mine < 0)))
            keys = self._entry_of_expected[rows], self._theirs_of[others]
            self._pair_by_name(rows, others, *keys, _OK)

    def _pair_waiting(self) -> None:
        """Pair a message that was only queued with everything that was expected of it."""
        queued = np.flatnonzero(self._theirs_did == _QUEUED)
        if len(queued):
            waiting = np.full(self._entries, _NONE)
            waiting[self._theirs_of[queued]] = queued
            self.mine = np.where(self.mine < 0, waiting[self._entry_of_expected], self.mine)
            self.verdict[(self.mine_do == _QUEUED) & (self.mine >= 0)] = _OK
            self.unclaimed[queued] = False

    def _pair_only_ones(self, mine: Longs, theirs: Longs) -> None:
        """Pair what is alone in its entry on both sides: nearly all rows, and nothing to sort."""
        expected, told = self._entry_of_expected, self._theirs_of
        alone = np.bincount(expected, minlength=self._entries) == 1
        alone &= np.bincount(told, minlength=self._entries) == 1
        match = np.zeros(self._entries, np.int64)
        match[told] = np.arange(len(told))
        rows = np.flatnonzero(alone[expected])
        others = match[expected[rows]]
        alike = mine[rows] == theirs[others]
        rows, others = rows[alike], others[alike]
        self.mine[rows] = others
        self.unclaimed[others] = False
        self.verdict[rows] = _OK

    def _pair_copies(self, mine: Longs, theirs: Longs) -> None:
        """In version 1, one copy matches all receivers behind its address (MC-9)."""
        first = ~self._mine_second
        rows = np.flatnonzero(first & (self.mine_do == _FORWARDED) & (self.mine < 0))
        sent = np.flatnonzero((self._theirs_did == _FORWARDED) & self.unclaimed)
        if not len(rows) or not len(sent):
            return
        keys, counts = np.unique(mine[rows], return_counts=True)
        place = np.minimum(np.searchsorted(keys, theirs[sent]), len(keys) - 1)
        allowed = (keys[place] == theirs[sent]) & (ranks(theirs[sent]) < counts[place])
        self.unclaimed[sent[allowed]] = False
        copies, which = np.unique(theirs[sent], return_index=True)
        found = np.minimum(np.searchsorted(copies, mine[rows]), len(copies) - 1)
        hit = copies[found] == mine[rows]
        self.mine[rows[hit]] = sent[which[found[hit]]]
        self.verdict[rows[hit]] = _OK

    def _pass_over_copies_upward(self) -> None:
        """Skip copies to a parent or broker, of which version 1 does not tell enough (MC-10)."""
        multicast = are(column(self._messages, "kind"), "multicast") & ~self._their_second
        self.unclaimed &= ~(multicast[self.theirs] & (self._theirs_did == _FORWARDED))

    def _pair_the_rest(self) -> None:
        """Pair the remaining rows of an entry: first by recipient, then in order."""
        rows, others = self._left()
        mine, theirs = self._entry_of_expected[rows], self._theirs_of[others]
        self._pair_by_name(rows, others, mine, theirs, _DIFFERENT)
        rows, others = self._left()
        mine, theirs = self._entry_of_expected[rows], self._theirs_of[others]
        self._answer(rows, others, mine, theirs, _DIFFERENT)

    def _left(self, outcome: int | None = None) -> tuple[Longs, Longs]:
        """The unpaired rows; expected ones in the order of their recipients."""
        open_ones, unclaimed = self.mine < 0, self.unclaimed
        if outcome is not None:
            open_ones = open_ones & (self.mine_do == outcome)
            unclaimed = unclaimed & (self._theirs_did == outcome)
        rows, others = np.flatnonzero(open_ones), np.flatnonzero(unclaimed)
        if not len(rows) or not len(others):
            return rows[:0], others[:0]
        return self._sorted(rows), others

    def _sorted(self, rows: Longs) -> Longs:
        """Expected rows in the order of their recipients, those upward in that of the nodes."""
        for name in ("next_node", "recipient"):
            texts = taken(self._expected, name, rows)
            order = pc.array_sort_indices(texts, null_placement="at_start")  # it is stable
            rows = rows[np.asarray(order).astype(np.int64)]
        return rows

    def _pair_by_name(
        self, rows: Longs, others: Longs, mine: Longs, theirs: Longs, verdict: int
    ) -> None:
        """Pair rows of the same key that name the same recipient, or the same node above."""
        names = self._names
        rows_named, others_named = names[0][rows] >= 0, names[1][self.theirs[others]] >= 0
        rows, mine = rows[rows_named], mine[rows_named]
        others, theirs = others[others_named], theirs[others_named]
        if not len(rows) or not len(others):
            return
        name = np.append(names[0][rows], names[1][self.theirs[others]])
        keys = number_codes(np.append(mine, theirs)) * (int(name.max()) + 1) + name
        self._answer(rows, others, keys[: len(rows)], keys[len(rows) :], verdict)

    @cached_property
    def _names(self) -> tuple[Longs, Longs]:
        """Whom each row is for, on both sides: its recipient, or upward the next node."""
        first = len(self.recipients[0])
        found = []
        for side, up in ((1, self._mine_up), (2, self._their_up)):
            node = self.next_nodes[side]
            above = np.where(up & (node >= 0), first + node, _NONE)
            found.append(np.where(self.recipients[side] < 0, above, self.recipients[side]))
        return found[0], found[1]

    def _answer(self, rows: Longs, others: Longs, mine: Longs, theirs: Longs, verdict: int) -> None:
        """Pair the first of each key with the first, the second with the second, and so on."""
        if not len(rows) or not len(others):
            return
        key = number_codes(np.append(mine, theirs))
        first, second = key[: len(rows)], key[len(rows) :]
        rank, other_rank = ranks(first), ranks(second)
        width = int(max(rank.max(), other_rank.max())) + 1
        numbered, others_numbered = first * width + rank, second * width + other_rank
        order = np.argsort(others_numbered)
        ordered = others_numbered[order]
        place = np.minimum(np.searchsorted(ordered, numbered), len(ordered) - 1)
        hit = ordered[place] == numbered
        matches = others[order[place[hit]]]
        self.mine[rows[hit]] = matches
        self.unclaimed[matches] = False
        self.verdict[rows[hit]] = verdict

    def common(self, mine: str, theirs: str) -> Common:
        """The distinct strings of a column on both sides, and the code of each row."""
        return common_texts(column(self._expected, mine), column(self._messages, theirs))

    def _texts(self) -> tuple[Longs, Longs]:
        """What rows must share besides the outcome: the recipient, the address, or the reason.

        A copy that was forwarded in version 2 has both, or, if it goes upward, the next node.
        """
        found = []
        for side, (did, second, up) in enumerate(
            (
                (self.mine_do, self._mine_second, self._mine_up),
                (self.their_outcome, self._their_second, self._their_up),
            ),
            1,
        ):
            who, where, why = (
                texts[side] for texts in (self.recipients, self.addresses, self.reasons)
            )
            if self._their_second.any():
                where = np.where(second, self._ways(side, up), where)
            found.append(np.where(did == _DELIVERED, who, np.where(did == _FORWARDED, where, why)))
        return found[0], found[1]

    def _ways(self, side: int, up: Flags) -> Longs:
        """A number for each recipient and address, or for each node above."""
        who, where, above = (
            texts[side] for texts in (self.recipients, self.addresses, self.next_nodes)
        )
        nodes = len(self.next_nodes[0]) + 1
        width = len(self.recipients[0]) + 1
        return np.where(up, above + 1, nodes + (where + 1) * width + who + 1)


def _overlap(incarnation: Longs, at: Longs) -> bool:
    """Whether two incarnations may share a timestamp, as when the clock was set back."""
    known, which = numbered(incarnation)
    if len(known) < 2:
        return False
    if len(known) > _FEW:
        return True
    spans = [at[which == number] for number in range(len(known))]
    bounds = sorted((int(span.min()), int(span.max())) for span in spans)
    return any(high >= low for (_, high), (low, _) in pairwise(bounds))


def _outcome_codes(table: pa.Table) -> Longs:
    told = encoded(column(table, "outcome"))
    # A dictionary may contain strings that only rejected rows have.
    found = pc.fill_null(pc.index_in(told.dictionary, value_set=_OUTCOMES), -1)
    return np.asarray(found).astype(np.int64)[codes(told)]


def _entry_numbers(ids: pa.ChunkedArray, at: Longs) -> Longs:
    """A number for each distinct pair of id and timestamp.

    Messages hardly ever share a timestamp, and checking that costs less than numbering
    their ids.
    """
    cells = [_cells(part) for part in ids.chunks]
    if any(part is None for part in cells):
        return pair_codes(codes(ids.combine_chunks()), at)
    words = np.concatenate(cells)
    order = np.argsort(at, kind="stable")  # fast if they are in order, as here
    ordered = at[order]
    begins = np.append(True, ordered[1:] != ordered[:-1])[: len(at)]
    number = np.empty(len(at), np.int64)
    number[order] = np.cumsum(begins) - 1
    again = np.flatnonzero(~begins)
    differs = words.take(order[again], axis=0) != words.take(order[again - 1], axis=0)
    mixed = again[differs.any(axis=1)]
    if len(mixed):
        shared = np.isin(number, number[order[mixed]])
        some = ids.filter(pa.array(shared)).combine_chunks()
        number[shared] = len(at) + pair_codes(codes(some), at[shared])
    return number


def _cells(ids: pa.Array) -> Any:
    """The bytes of ids as four numbers each; None if there is an invalid id."""
    if not len(ids):
        return np.zeros((0, ID_DIGITS // 8), np.uint64)
    if ids.type != TEXT or not are_as_long_as_ids(ids):
        return None
    return text_bytes(ids).view(np.uint64).reshape(-1, ID_DIGITS // 8)
