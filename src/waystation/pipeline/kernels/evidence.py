"""What journals tell beside the rows of messages, for the tasks that assemble traces.

The clocks' corrections by hour, the incarnations of each node with what is on record of them, and
which sessions lead to a broker: little, and the same for every task. No Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, Final
from zlib import crc32

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field
from msgspec.structs import replace

from waystation.core.corrections import HOUR, Link, hour_of
from waystation.core.coverage import MARGIN, Life, covers
from waystation.core.visits import GLOBAL, Evidence, Fate
from waystation.pipeline.kernels.columns import Flags, Longs, codes

FATES: Final = tuple(Fate)
"""What can become of a copy; kernels have the index."""

_CODE: Final = {fate: number for number, fate in enumerate(FATES)}


class Known(Struct, frozen=True):
    """What the journals tell of all nodes."""

    lives: dict[str, list[Life]] = field(default_factory=dict)
    hours: dict[int, dict[str, int]] = field(default_factory=dict)  # corrections, in microseconds
    brokers: frozenset[tuple[str, int, str]] = frozenset()  # node, incarnation, session
    has_answers: bool = False  # whether any message may be an answer
    estimated: dict[int, list[Link]] = field(default_factory=dict)  # what traffic tells of clocks

    def encoded(self) -> bytes:
        """As bytes, for tasks."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decoded(cls, data: bytes) -> Known:
        """From such bytes."""
        return msgspec.msgpack.decode(data, type=cls)

    def evidence(self) -> Evidence:
        """The same for the core, which takes one message at a time."""
        hours, brokers = self.hours, self.brokers
        return Evidence(
            correction=lambda node, at: hours.get(hour_of(at), {}).get(node, 0),
            role=lambda *session: GLOBAL if session in brokers else None,
            lives=self.lives,
        )


NOTHING: Final = Known()


def changed_nodes(former: Known, known: Known) -> list[str]:
    """The nodes of which something else changed than how far their records reach."""
    found = {
        node
        for node in former.lives.keys() | known.lives.keys()
        if _without_ends(former.lives.get(node, [])) != _without_ends(known.lives.get(node, []))
    }
    for hour in former.hours.keys() | known.hours.keys():
        one, other = former.hours.get(hour, {}), known.hours.get(hour, {})
        for node in one.keys() | other.keys():
            if one.get(node, 0) != other.get(node, 0):
                found.add(node)
    found |= {node for node, *_ in former.brokers ^ known.brokers}
    return sorted(found)


def _without_ends(lives: list[Life]) -> list[Life]:
    return [replace(life, latest=0) for life in lives]


class Facts:
    """The same by whole columns."""

    def __init__(self, known: Known = NOTHING) -> None:
        self.known = known

    @cached_property
    def evidence(self) -> Evidence:
        """For single messages."""
        return self.known.evidence()

    @cached_property
    def _corrected(self) -> dict[str, tuple[Longs, Longs]]:
        """The hours of each node with a correction, and these."""
        by_node: dict[str, list[tuple[int, int]]] = {}
        for hour, corrections in sorted(self.known.hours.items()):
            for node, ahead in corrections.items():
                if ahead:
                    by_node.setdefault(node, []).append((hour // HOUR, ahead))
        return {
            node: (np.array([h for h, _ in told], np.int64), np.array([a for _, a in told]))
            for node, told in by_node.items()
        }

    def ahead(self, names: Any, node: Longs, at: Longs) -> Longs:
        """How far clocks are ahead: of the nodes with these codes, at instants of these."""
        found = np.zeros(len(at), np.int64)
        if not self._corrected:
            return found
        for code, name in enumerate(names.to_pylist()):
            if name not in self._corrected:
                continue
            hours, ahead = self._corrected[name]
            rows = np.flatnonzero(node == code)
            hour = at[rows] // HOUR
            place = np.minimum(np.searchsorted(hours, hour), len(hours) - 1)
            found[rows] = np.where(hours[place] == hour, ahead[place], 0)
        return found

    def to_broker(self, names: Any, node: Longs, incarnation: Longs, sessions: Any) -> Flags:
        """Which rows have a session of role `global`."""
        found = np.zeros(len(node), np.bool_)
        if not self.known.brokers:
            return found
        known_nodes = {name: code for code, name in enumerate(names.to_pylist())}
        known_sessions = {text: code for code, text in enumerate(sessions.dictionary.to_pylist())}
        session = codes(sessions)
        for name, life, text in self.known.brokers:
            if name in known_nodes and text in known_sessions:
                found |= (
                    (session == known_sessions[text])
                    & (node == known_nodes[name])
                    & (incarnation == life)
                )
        return found

    def fates_of_left(
        self, names: Any, there: Longs, at: Longs, version: Longs, ids: Any
    ) -> tuple[Longs, Flags]:
        """What became of copies that left, and that nothing follows; and which are under way.

        `there` are codes of next nodes, negative for none; `at` is when they left, corrected.
        """
        under_way = np.zeros(len(at), np.bool_)
        fate = np.where(version > 1, _CODE[Fate.LEFT], _CODE[Fate.UNKNOWN])
        for code in np.unique(there[there >= 0]).tolist():
            name = names[code].as_py()
            rows = np.flatnonzero(there == code)
            lives = self.known.lives.get(name, [])
            if not lives:
                fate[rows] = _CODE[Fate.LEFT]
                continue
            where = np.zeros(len(rows), np.int64)
            theirs = at[rows] + self.ahead(pa.array([name]), where, at[rows])
            covered = _covers(lives, theirs, ids.take(pa.array(rows)))
            fate[rows] = np.where(covered, _CODE[Fate.VANISHED], _CODE[Fate.UNKNOWN])
            under_way[rows] = theirs + MARGIN > max(life.latest for life in lives)
        return fate, under_way

    def may_be_under_way(self, node: str, at: int) -> bool:
        """Whether a node's record does not reach far enough to tell of a copy that left then."""
        lives = self.known.lives.get(node, [])
        theirs = at + self.evidence.correction(node, at)
        return bool(lives) and theirs + MARGIN > max(life.latest for life in lives)


NO_FACTS: Final = Facts()


def _covers(lives: list[Life], at: Longs, ids: Any) -> Flags:
    """Whether a node would have these messages at these instants (core/coverage.py)."""
    begins = np.array([life.begins for life in lives], np.int64)
    if (np.diff(begins) < 0).any():  # its clock was set back
        pairs = zip(at.tolist(), ids.to_pylist(), strict=True)
        return np.array([covers(lives, then, id) for then, id in pairs], np.bool_)
    current = np.searchsorted(begins, at, "right") - 1
    latest = np.array([life.latest for life in lives], np.int64)
    reached = np.maximum.accumulate(latest[::-1])[::-1]
    found: Flags = (current >= 0) & (reached[np.maximum(current, 0)] >= at + MARGIN)
    for number, life in enumerate(lives):
        if life.gaps or life.sample < 1:
            rows = np.flatnonzero(found & (current == number))
            for since, until in life.gaps:
                found[rows[(since <= at[rows]) & (at[rows] <= until)]] = False
            found[rows] &= _are_sampled(ids.take(pa.array(rows)).to_pylist(), life.sample)
    return found


def _are_sampled(ids: Iterable[str], share: float) -> Flags:
    threshold = round(share * 2**32)
    return np.array([crc32(id.encode()) < threshold for id in ids], np.bool_)


def last_names(routes: Any) -> pa.Array:
    """The last name in each route, a text with a space in front of each address; else null."""
    found = pc.extract_regex(routes, r"(?s)^.* 0#(?P<name>[^ ]*)")
    return pc.struct_field(found, "name")
