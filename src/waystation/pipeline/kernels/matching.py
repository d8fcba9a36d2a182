"""Which patterns match which multicast ids, for many of both (MC-3, MC-4): by shape, not by pairs.

There are few shapes of patterns: the depth, where the `+` are, whether a `*` ends it. For each
shape, an id is rewritten to what a matching pattern would be, and looked up. So the cost
depends on ids and shapes, not on patterns (MC-16), and there is no regular expression per pattern.
Arrow in, numbers out; no Spark.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from waystation.core.multicast import MAX_LENGTH, ONE, REST, is_multicast_id
from waystation.pipeline.kernels.columns import Flags, Longs, text_bounds, text_bytes

# The usual form of ids and patterns; others are parsed one by one, as the live node parses them.
_NAME: Final = r"[!\"$-),-.0-~]+"  # printable ASCII without space, +, * and #
_USUAL_ID: Final = rf"^{_NAME}/{_NAME}(/[A-Za-z0-9]+){{0,20}}$"
_USUAL_PATTERN: Final = rf"^({_NAME}|\+)/({_NAME}|\+)(/([A-Za-z0-9]+|\+)){{0,20}}(/\*)?$"

_NAMED: Final = "x"  # stands for a segment without a wildcard in the shape of a pattern


def are_usual_patterns(texts: pa.Array) -> Flags:
    """Which strings are patterns, by their usual form."""
    return _look_like(texts, _USUAL_PATTERN)


def are_ids(texts: pa.Array) -> Flags:
    """Which strings are ids that can be published.

    >>> are_ids(pa.array(["garage/heat", "garage/+"])).tolist()
    [True, False]
    """
    found = _look_like(texts, _USUAL_ID)
    for number in np.flatnonzero(~found).tolist():
        found[number] = is_multicast_id(texts[number].as_py())
    return found


def _look_like(texts: pa.Array, expression: str) -> Flags:
    short = pc.less_equal(pc.binary_length(texts), MAX_LENGTH)
    found = pc.and_(short, pc.match_substring_regex(texts, expression))
    return np.array(pc.fill_null(found, False))


def match(ids: pa.Array, patterns: pa.Array) -> tuple[Longs, Longs]:
    """All pairs of an id and a pattern that matches it, by number, sorted by id.

    Both are distinct strings: valid ids and valid patterns.

    >>> published, subscribed = pa.array(["p/b/x", "p/c"]), pa.array(["p/b/*", "p/+", "p/c"])
    >>> [found.tolist() for found in match(published, subscribed)]
    [[0, 1, 1], [0, 1, 2]]
    """
    alike = pc.index_in(patterns, value_set=ids)  # most patterns have no wildcard
    pairs = [(np.asarray(alike.drop_null()).astype(np.int64), np.flatnonzero(alike.is_valid()))]
    wild = _with_wildcards(patterns)
    if len(wild):
        pairs += _match_wildcards(ids, patterns.take(pa.array(wild)), wild)
    found_ids = np.concatenate([pair[0] for pair in pairs])
    found_patterns = np.concatenate([pair[1] for pair in pairs])
    order = np.lexsort((found_patterns, found_ids))
    return found_ids[order], found_patterns[order]


def _with_wildcards(patterns: pa.Array) -> Longs:
    """The numbers of the patterns with a `+` or a `*`."""
    bytes, bounds = text_bytes(patterns), text_bounds(patterns)
    places = np.flatnonzero((bytes == ord(ONE)) | (bytes == ord(REST)))
    found = np.searchsorted(bounds, places + bounds[0], "right") - 1
    return np.asarray(found[np.append(True, found[1:] != found[:-1])[: len(found)]])


def _match_wildcards(ids: pa.Array, patterns: pa.Array, numbers: Longs) -> list[Any]:
    shapes = pc.replace_substring_regex(patterns, r"[^/+*]+", _NAMED).dictionary_encode()
    shape_of = np.asarray(shapes.indices)
    segments = _Segments(ids)
    pairs = []
    for code, shape in enumerate(shapes.dictionary.to_pylist()):
        members = np.flatnonzero(shape_of == code)
        of_shape = patterns.take(pa.array(members))
        for rows, masked in segments.masked(shape.split("/")):
            pairs.append(_looked_up(masked, rows, of_shape, numbers[members]))
    return pairs


def _looked_up(
    texts: pa.Array, rows: Longs, patterns: pa.Array, numbers: Longs
) -> tuple[Longs, Longs]:
    """Where a string is one of the patterns: its row, and the number of the pattern."""
    found = pc.index_in(texts, value_set=patterns)
    hits = np.asarray(found.is_valid())
    return rows[hits], numbers[np.asarray(found.drop_null()).astype(np.int64)]


class _Segments:
    """The segments of ids, grouped by depth."""

    def __init__(self, ids: pa.Array) -> None:
        split = pc.split_pattern(ids, "/")
        depths = np.asarray(pc.list_value_length(split)).astype(np.int64)
        starts = np.asarray(split.offsets)[:-1].astype(np.int64)
        self._values = split.values
        self._by_depth = [
            (int(depth), rows, starts[rows])
            for depth in np.unique(depths)
            for rows in [np.flatnonzero(depths == depth)]
        ]

    def masked(self, shape: list[str]) -> list[tuple[Longs, pa.Array]]:
        """The ids that a pattern of this shape could match, and how the pattern would read."""
        rest = shape[-1] == REST
        named = shape[:-1] if rest else shape
        found = []
        for depth, rows, starts in self._by_depth:
            if depth == len(named) or (rest and depth > len(named)):
                parts = [
                    self._values.take(pa.array(starts + place))
                    if kind == _NAMED
                    else pa.repeat(pa.scalar(ONE), len(rows))
                    for place, kind in enumerate(named)
                ]
                if rest:
                    parts.append(pa.repeat(pa.scalar(REST), len(rows)))
                found.append((rows, pc.binary_join_element_wise(*parts, "/")))
        return found
