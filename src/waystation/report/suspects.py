"""Which messages used a stale route: a routing entry sent them on, but the next node had none.

The path of a message shows that the next node did not know the name. Only `expected` shows whether
a routing entry for that name led there, or the sender had named that node itself; it is read again,
for these messages. A message with several recipients counts by one of them.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from waystation.report.arrays import Array, Found, distinct, numbered
from waystation.report.reading import Tables

_COLUMNS: Final = ["message_id", "node", "outcome", "reason", "recipient"]
_DIGITS: Final = 32
_WEIGHTS: Final = np.uint64(1) << (np.uint64(4) * np.arange(15, -1, -1, dtype=np.uint64))
_ODD: Final = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))


class Suspects:
    """Messages that arrived at a node which did not know the name: 32 bytes each."""

    def __init__(self) -> None:
        self._ids: list[Array] = [np.zeros((0, 2), np.uint64)]
        self._senders: list[Array] = [np.zeros(0, np.int64)]
        self._receivers: list[Array] = [np.zeros(0, np.int64)]

    def add(self, ids: Any, senders: Array, receivers: Array) -> None:
        """Add messages, by the codes of the nodes."""
        sound = _sound(ids)
        self._ids.append(_decoded(ids.filter(pa.array(sound))))
        self._senders.append(senders[sound])
        self._receivers.append(receivers[sound])

    def confirmed(self, tables: Tables, nodes: dict[str, int]) -> dict[tuple[int, int], Found]:
        """Those that the sender had an entry for, by sender and receiver.

        An entry of the sender led there if it looked up the name that the receiver did not know.
        """
        ids, senders, receivers = map(np.concatenate, (self._ids, self._senders, self._receivers))
        if not len(ids):
            return {}
        led, missed = _Names(_keys(ids, senders)), _Names(_keys(ids, receivers))
        for batch in tables.batches("expected", _COLUMNS, pc.field("recipient").is_valid()):
            led.find(batch.filter(pc.field("outcome") == "FORWARDED"), nodes)
            missed.find(batch.filter(pc.field("reason") == "NO_ROUTE"), nodes)
        chosen = (led.names != 0) & (led.names == missed.names)
        return _grouped(ids[chosen], senders[chosen], receivers[chosen])


class _Names:
    """The recipients of messages at a node, as hashes: zero if unknown."""

    def __init__(self, keys: Array) -> None:
        self._known, self._places = np.unique(keys, return_inverse=True)
        self._names = np.zeros(len(self._known), np.int64)

    def find(self, rows: Any, nodes: dict[str, int]) -> None:
        """Look for the messages in rows of `expected`."""
        own = rows.filter(pa.array(_sound(rows.column("message_id"))))
        if not own.num_rows:
            return
        keys = _keys(_decoded(own.column("message_id")), numbered(own.column("node"), nodes))
        place = np.minimum(np.searchsorted(self._known, keys), len(self._known) - 1)
        found = np.flatnonzero(self._known[place] == keys)
        names = own.column("recipient").take(pa.array(found)).to_pylist()
        self._names[place[found]] = [hash(name) for name in names]

    @property
    def names(self) -> Array:
        """The names, in the order of the keys."""
        names: Array = self._names[self._places]
        return names


def _grouped(ids: Array, senders: Array, receivers: Array) -> dict[tuple[int, int], Found]:
    order = np.lexsort((ids[:, 1], ids[:, 0]))
    ids, senders, receivers = ids[order], senders[order], receivers[order]
    found: dict[tuple[int, int], Found] = {}
    if not len(ids):
        return found
    first, numbers = distinct(senders, receivers)
    last = len(ids) - 1 - distinct(senders[::-1], receivers[::-1])[0]
    for begin, end, number in zip(first.tolist(), last.tolist(), numbers.tolist(), strict=True):
        pair = (int(senders[begin]), int(receivers[begin]))
        found[pair] = Found(number, _text(ids[begin]), _text(ids[end]))
    return found


def _sound(ids: Any) -> Array:
    whole = pc.fill_null(pc.equal(pc.binary_length(ids), _DIGITS), False)
    sound: Array = whole.to_numpy(zero_copy_only=False)
    return sound


def _decoded(ids: Any) -> Array:
    """Ids as two numbers each."""
    fixed = ids.cast(pa.binary(_DIGITS))
    text = np.frombuffer(fixed.buffers()[1] or b"", np.uint8)
    text = text[fixed.offset * _DIGITS : (fixed.offset + len(fixed)) * _DIGITS]
    digits = ((text & 15) + 9 * (text >> 6)).astype(np.uint64).reshape(-1, 2, 16)
    numbers: Array = (digits * _WEIGHTS).sum(axis=2, dtype=np.uint64)
    return numbers


def _keys(ids: Array, nodes: Array) -> Array:
    """A hash of a message and a node, practically unique."""
    mixed = ids[:, 0] ^ (ids[:, 1] * _ODD[0]) ^ (nodes.astype(np.uint64) * _ODD[1])
    keys: Array = mixed ^ (mixed >> np.uint64(29))
    return keys


def _text(id: Array) -> str:
    return f"{int(id[0]):016x}{int(id[1]):016x}"
