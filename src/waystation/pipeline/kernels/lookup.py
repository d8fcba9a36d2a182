"""Find the routing entries and sessions of many names at many times, by whole columns.

A table of intervals is searched once for all messages of a node. Arrow and numpy; no Spark.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from waystation.core.address import LOCAL, Address
from waystation.errors import LocalError
from waystation.journal.schema import TEXT
from waystation.pipeline.kernels.columns import (
    NEVER,
    Flags,
    Longs,
    chosen,
    codes,
    column,
    common_texts,
    encoded,
    flags,
    longs,
    numbered,
    picked,
)

_NONE: Final = -1
_DENSE: Final = 8
"""A table of all possible folds is kept, if at most this many times as large as the intervals."""

_USUAL_LOCAL: Final = r"^0#[!-/1-~][!-~]*$"
_NOT_LOCAL: Final = r"^[1-9][0-9]*#"


class Intervals:
    """Intervals by name and incarnation: finds the one that contains a timestamp."""

    def __init__(self, history: pa.Table, name: str, begin: str, end: str) -> None:
        names = encoded(column(history, name))
        self._names = names.dictionary
        self._incarnations, lives = numbered(longs(history, "incarnation"))
        fold = codes(names) * len(self._incarnations) + lives
        starts = longs(history, begin)
        in_order = (fold[1:] > fold[:-1]) | ((fold[1:] == fold[:-1]) & (starts[1:] > starts[:-1]))
        if not in_order.all():
            order = np.lexsort((starts, fold))
            fold, starts, history = fold[order], starts[order], history.take(pa.array(order))
        self.history = history
        self._starts = starts
        self._ends = longs(history, end, NEVER)
        self._folds = Groups(fold, len(self._incarnations) * len(self._names))

    def __len__(self) -> int:
        return len(self._starts)

    def numbers(self, names: pa.Array) -> Longs:
        """The number of each of these names here, or -1."""
        found = pc.fill_null(pc.index_in(names, value_set=self._names), _NONE)
        return np.asarray(found).astype(np.int64)

    def numbers_of(self, names: pa.DictionaryArray) -> Longs:
        """The number of each row's name here, or -1."""
        found: Longs = np.append(self.numbers(names.dictionary), _NONE)[codes(names)]
        return found

    def find(self, incarnation: Longs, name: Longs, at: Longs) -> Longs:
        """The row of the interval that contains each timestamp, or -1; names by their numbers."""
        if not len(self._starts):
            return np.full(len(at), _NONE)
        life = positions(self._incarnations, incarnation)
        known = (name >= 0) & (life >= 0)
        fold = np.where(known, name * len(self._incarnations) + life, _NONE)
        first, end = self._folds.spans(fold)
        found = self._latest(first, end, at)
        return np.where((found >= first) & (at < self._ends[found]), found, _NONE)

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


class Routes(Intervals):
    """The routing entries of a node. In all flags, the last element stands for no entry."""

    def __init__(self, history: pa.Table) -> None:
        super().__init__(history, "participant", "valid_from", "valid_to")
        self.local: Flags = np.append(flags(self.history, "local"), False)
        self._addresses = column(self.history, "address")
        self._here: Flags | None = None
        self._behind: Longs | None = None

    def visible(self, found: Longs) -> Flags:
        """Which of these rows are entries that are globally visible."""
        seen: Flags = np.append(flags(self.history, "visible"), False)[found]
        return seen

    def are_here(self, incarnation: Longs, found: Longs, at: Longs) -> Flags:
        """Which of these entries lead to somebody of the node itself, and not elsewhere (OB-1).

        Who is here has the own name as the address. A local entry may also point at such a name,
        which is looked up once more.
        """
        self._look_behind()
        assert self._here is not None
        assert self._behind is not None
        here: Flags = np.append(self._here, False)[found]
        behind = np.append(self._behind, _NONE)[found]
        rows = np.flatnonzero(behind >= 0)
        if len(rows):
            again = self.find(incarnation[rows], behind[rows], at[rows])
            here[rows] = np.append(self._here, False)[again]
        return here

    def _look_behind(self) -> None:
        """Find out, once, which entries have the own name as their address, or another local one.

        Names that never belonged to somebody here, as those of sessions, need not be looked up.
        """
        if self._here is not None:
            return
        addresses = encoded(self._addresses)
        owners = encoded(column(self.history, "participant"))
        names = local_names(addresses.dictionary)
        named = np.append(self.numbers(names), _NONE)[codes(addresses)]
        owner = self.numbers_of(owners)
        self._here = (named == owner) & (named >= 0)
        was_here = np.zeros(len(self._names) + 1, np.bool_)
        was_here[owner[self._here]] = True
        other = self.local[:-1] & ~self._here & was_here[named]
        self._behind = np.where(other, named, _NONE)

    def addresses_of(self, found: Longs) -> pa.Array:
        """The addresses of these rows; null for -1."""
        return texts_at(self._addresses, found)


class Sessions(Intervals):
    """The sessions of a node, which have names that messages can be sent to (WK-8)."""

    def __init__(self, history: pa.Table) -> None:
        super().__init__(history, "session", "opened_at", "closed_at")

    def places_of(self, found: Longs) -> pa.Array:
        """Where the peers of these sessions are; null for -1."""
        return texts_at(column(self.history, "place"), found)


def texts_at(texts: pa.Array, rows: Longs) -> pa.Array:
    """Dictionary-encoded strings of these rows; null for -1."""
    if pa.types.is_dictionary(texts.type):
        return chosen(texts, rows)
    return encoded(picked(texts, rows))


def either(some: pa.Array, others: pa.Array, instead: Flags) -> pa.Array:
    """Encoded strings: those of `others` where `instead` is true, else those of `some`."""
    texts, one, other = common_texts(some, others)
    return chosen(texts, np.where(instead, other, one))


def common_codes(some: pa.Array, others: pa.Array) -> tuple[Longs, Longs]:
    """A number for each distinct string of two columns; -1 for null."""
    _, one, other = common_texts(some, others)
    return one, other


def local_names(addresses: pa.Array) -> pa.Array:
    """The participant that each local address names; null for other types.

    Null also for what is no address: a dictionary keeps the strings of rows that were rejected.

    >>> local_names(pa.array(["0#a", "b", "1#c:1", "0#x y", "", "999#z"])).to_pylist()
    ['a', 'b', None, None, None, None]
    """
    plain = pc.fill_null(pc.match_substring_regex(addresses, _USUAL_LOCAL), False)
    other = pc.fill_null(pc.match_substring_regex(addresses, _NOT_LOCAL), False)
    odd = np.flatnonzero(~np.asarray(plain) & ~np.asarray(other))
    names = pc.if_else(plain, pc.utf8_slice_codeunits(addresses, 2), pa.scalar(None, TEXT))
    if not len(odd):
        return names
    known = pa.array(map(_local_name, addresses.take(pa.array(odd)).to_pylist()), TEXT)
    place = np.full(len(addresses), _NONE)
    place[odd] = np.arange(len(odd))
    return pc.coalesce(names, picked(known, place))


def _local_name(text: str | None) -> str | None:
    try:
        address = Address.parse(text or "")
    except LocalError:
        return None
    return address.name if address.type == LOCAL else None


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
