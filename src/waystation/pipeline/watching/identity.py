"""Ids of messages as numbers: fast to compare, to sort and to distribute over tasks."""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waystation.pipeline.kernels.columns import id_words

Hashes: TypeAlias = npt.NDArray[np.uint64]

_FACTORS: Final = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))


def hashes(ids: pa.Array) -> Hashes:
    """A 64-bit hash of each id, of 32 lower-case hexadecimal digits.

    >>> len(set(hashes(pa.array([f"{n:032x}" for n in range(100)])).tolist()))
    100
    """
    high, low = id_words(ids)
    mixed: Hashes = high * _FACTORS[0] + low
    mixed ^= mixed >> np.uint64(32)
    mixed *= _FACTORS[1]
    mixed ^= mixed >> np.uint64(29)
    return mixed


def held_in(needles: Hashes, sorted_hashes: Hashes) -> npt.NDArray[np.bool_]:
    """Which of the needles are among sorted hashes."""
    if not len(sorted_hashes) or not len(needles):
        return np.zeros(len(needles), np.bool_)
    place = np.minimum(np.searchsorted(sorted_hashes, needles), len(sorted_hashes) - 1)
    found: npt.NDArray[np.bool_] = sorted_hashes[place] == needles
    return found
