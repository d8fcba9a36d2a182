"""Numbers in readable form, and percentiles from counts of rounded values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

BUCKETS: Final = 50
"""Buckets per power of ten: a percentile is accurate to within three percent."""


def count(number: int) -> str:
    """A number with thousands separators.

    >>> count(3412)
    '3,412'
    """
    return f"{number:,}"


def short(number: float) -> str:
    """A number for an axis or a tile.

    >>> [short(number) for number in (0, 950, 9_999, 12_300, 4_000_000, 2.5)]
    ['0', '950', '9,999', '12.3k', '4M', '2.5']
    """
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= unit:
            size = min(unit, 1e3) if letter == "k" else unit
            return (
                f"{number / size:.3g}{letter}"
                if number / size < 1000
                else f"{number / size:,.0f}{letter}"
            )
    return f"{number:,.0f}" if number == int(number) else f"{number:.3g}"


def share(part: int, whole: int) -> str:
    """A share in percent; a share above zero is never shown as zero.

    >>> share(1, 3), share(0, 3), share(1, 1_000_000), share(999_999, 1_000_000)
    ('33%', '0%', '<0.01%', '>99.9%')
    """
    if not whole or not part:
        return "0%"
    percent = 100 * part / whole
    if percent < 0.01:
        return "<0.01%"
    if 99.9 < percent < 100:
        return ">99.9%"
    return (
        f"{percent:.2g}%"
        if percent < 10
        else f"{percent:.3g}%"
        if percent > 99
        else f"{percent:.0f}%"
    )


def duration(microseconds: float) -> str:
    """How long something took.

    >>> [duration(taken) for taken in (0, 41, 2_730, 1_300_000, 90_000_000, 7_200_000_000)]
    ['0 µs', '41 µs', '2.7 ms', '1.3 s', '1.5 min', '2 h']
    """
    units = ((86_400e6, "d"), (3_600e6, "h"), (60e6, "min"), (1e6, "s"), (1e3, "ms"))
    for unit, name in units:
        if microseconds >= unit * 0.9995:
            size = microseconds / unit
            return f"{size:.2g} {name}" if size < 10 else f"{size:,.0f} {name}"
    return f"{microseconds:.0f} µs"


def round_duration(microseconds: float) -> str:
    """A round duration for an axis; in seconds from one second on.

    >>> round_duration(1_000), round_duration(100_000_000)
    ('1 ms', '100 s')
    """
    if microseconds < 1e6:
        return duration(microseconds)
    return f"{microseconds / 1e6:,.0f} s"


def size_said(size: int) -> str:
    """So many bytes.

    >>> size_said(900), size_said(1_500_000)
    ('900 B', '1.5 MB')
    """
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size} B"


def buckets_of(microseconds: Any) -> Any:
    """The bucket of each duration in an array; all below a microsecond are in the first."""
    return np.floor(np.log10(np.maximum(microseconds, 1)) * BUCKETS).astype(np.int64)


def bucket_middle(bucket: int) -> float:
    """The duration that represents a bucket, in microseconds."""
    return float(10 ** ((bucket + 0.5) / BUCKETS)) if bucket else 1.0


def percentile(counts: Mapping[int, int], wanted: float) -> float | None:
    """A percentile, from counts by bucket.

    >>> round(percentile({100: 98, 200: 2}, 0.5)), round(percentile({100: 98, 200: 2}, 0.99))
    (102, 10233)
    """
    rank = math.ceil(wanted * sum(counts.values()))
    for bucket in sorted(counts):
        rank -= counts[bucket]
        if rank <= 0:
            return bucket_middle(bucket)
    return None


def round_ticks(highest: float, most: int) -> list[float]:
    """Round numbers from zero to the maximum or just above it.

    >>> round_ticks(870, 4)
    [0.0, 250.0, 500.0, 750.0, 1000.0]
    """
    least = max(highest, 1) / most
    power = 10.0 ** math.floor(math.log10(least))
    step = next(power * digit for digit in (1, 2, 2.5, 5, 10) if power * digit >= least * 0.999)
    step = max(step, 1) if step != 2.5 else 5
    return [step * number for number in range(math.ceil(max(highest, 1) / step - 1e-9) + 1)]
