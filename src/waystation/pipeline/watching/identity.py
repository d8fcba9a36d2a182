"""Ids of messages as numbers: quick to compare, to sort and to spread over tasks. Only that."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Hashes: TypeAlias = npt.NDArray[np.uint64]

_DIGITS: Final = 32
_VALUES: Final = np.zeros(256, np.uint8)
_VALUES[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16, dtype=np.uint8)
_FACTORS: Final = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))


def hashes(ids: pa.Array) -> Hashes:
    """64 bits of each id, of 32 lower-case hex digits, as good as random.

    >>> len(set(hashes(pa.array([f"{n:032x}" for n in range(100)])).tolist()))
    100
    """
    if not len(ids):
        return np.zeros(0, np.uint64)
    digits = _VALUES[_bytes_of(ids).reshape(len(ids), _DIGITS)]
    halves = np.ascontiguousarray(digits[:, ::2] << 4 | digits[:, 1::2]).view(">u8")
    mixed: Hashes = halves[:, 0].astype(np.uint64) * _FACTORS[0] + halves[:, 1].astype(np.uint64)
    mixed ^= mixed >> np.uint64(32)
    mixed *= _FACTORS[1]
    mixed ^= mixed >> np.uint64(29)
    return mixed


def held_in(needles: Hashes, sorted_hashes: Hashes) -> npt.NDArray[np.bool_]:
    """Which of the needles are among hashes that are sorted."""
    if not len(sorted_hashes) or not len(needles):
        return np.zeros(len(needles), np.bool_)
    place = np.minimum(np.searchsorted(sorted_hashes, needles), len(sorted_hashes) - 1)
    found: npt.NDArray[np.bool_] = sorted_hashes[place] == needles
    return found


def _bytes_of(texts: Any) -> npt.NDArray[np.uint8]:
    """The bytes of all texts, one after the other; none may be null."""
    _, offsets, data = texts.buffers()
    bounds = np.frombuffer(offsets, np.int32, len(texts) + 1, texts.offset * 4)
    return np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]
