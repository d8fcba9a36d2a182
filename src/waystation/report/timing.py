"""The section on latency: between nodes, inside them, and from end to end."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from typing import Final

from waystation.core.spoken import plural
from waystation.pipeline.kernels.health import NO_TYPE
from waystation.report.blocks import Figure, Key, Section, Words, figure, spread
from waystation.report.charts import Range, ranges
from waystation.report.facts import Facts
from waystation.report.hops import MOST_HOPS
from waystation.report.numbers import (
    bucket_middle,
    duration,
    percentile,
    round_duration,
)

_MOST_STEPS: Final = 7  # number of columns that fit on a phone

_COLOURS: Final = {
    "tcp": "t-1",
    "udp": "t-2",
    "ws": "t-3",
    "mqtt": "t-4",
    "http": "t-5",
    "local": "t-6",
    "uds": "t-7",
    "gossip": "t-8",
}


def latency(facts: Facts) -> Section:
    """The latency of messages."""
    says = (
        "How long messages took: from node to node by hop and transport, inside nodes, "
        "and from end to end. Look for a long tail (p99 far from the median) "
        "and for a transport or hop that is slower than the others."
    )
    blocks: list[Figure | Words] = [*_between(facts), *_inside(facts), *_end_to_end(facts)]
    if not blocks:
        blocks = [Words("These tables have no timed messages.")]
    return Section("latency", "Latency", says, tuple(blocks))


def _between(facts: Facts) -> list[Figure]:
    types = list(facts.hops.types)
    by_hop: dict[tuple[str, int], Counter[int]] = {}
    by_type: dict[str, Counter[int]] = {}
    for (type, hop, bucket), number in facts.hops.travel.items():
        by_hop.setdefault((types[type], hop), Counter())[bucket] += number
        by_type.setdefault(types[type], Counter())[bucket] += number
    if not by_type:
        return []
    rows = [_range(f"{type}, all hops", type, by_type[type]) for type in sorted(by_type)]
    several = {type for type, hop in by_hop if hop > 1}
    rows += [
        _range(_hop_name(type, hop), type, by_hop[type, hop])
        for type, hop in sorted(by_hop)
        if type in several
    ]
    caption = (
        "From node to node: from the arrival at a node to the arrival at the next, "
        "by the clocks as the table clocks corrects them."
    )
    return [_ranges_figure(rows, caption, "Latency from node to node")]


def _hop_name(type: str, hop: int) -> str:
    return f"{type}, hop {hop}" if hop < MOST_HOPS else f"{type}, hop {hop} and on"


def _inside(facts: Facts) -> list[Figure]:
    rows = []
    for type, speed in sorted(facts.speeds.items()):
        low, high = percentile(speed.typical, 0.5), percentile(speed.slow, 0.5)
        if low is not None and high is not None:
            number = speed.typical.total()
            name = "no address" if type == NO_TYPE else type
            rows.append(
                Range(name, _colour(type), low, max(low, high), max(speed.worst, low), number)
            )
    if not rows:
        return []
    caption = (
        "Inside a node, from arrival to outcome, by type of address: "
        "the typical median, the typical p99, and the worst p99 of any window."
    )
    return [_ranges_figure(rows, caption, "Latency inside nodes", ("median", "p99", "worst p99"))]


def _ranges_figure(
    rows: list[Range],
    caption: str,
    label: str,
    names: tuple[str, str, str] = ("median", "p90", "p99"),
) -> Figure:
    legend = [
        Key("t-1", names[0], "dot"),
        Key("t-1", f"to {names[1]}", "thick"),
        Key("t-1", f"to {names[2]}", "thin"),
    ]
    exact = "Percentiles are accurate to within three percent."
    return figure(lambda width: ranges(rows, width, label), legend, f"{caption} {exact}")


def _range(name: str, type: str, counts: Counter[int]) -> Range:
    low, high, highest = (percentile(counts, part) or 0.0 for part in (0.5, 0.9, 0.99))
    return Range(name, _colour(type), low, high, highest, counts.total())


def _colour(type: str) -> str:
    return _COLOURS.get(type, "t-other")


def _end_to_end(facts: Facts) -> list[Figure | Words]:
    """The latency of delivered messages, from the first arrival to the last delivery."""
    number = facts.hops.outcomes.get("DELIVERED")
    counts = Counter(
        {bucket: n for (outcome, bucket), n in facts.hops.latency.items() if outcome == number}
    )
    if not counts:
        return []
    bars = [(f"< {round_duration(limit)}", number, "t-1") for limit, number in _steps(counts)]
    low, high = percentile(counts, 0.5) or 0.0, percentile(counts, 0.99) or 0.0
    caption = (
        f"From end to end: {plural(counts.total(), 'delivered message')} by latency; "
        f"median {duration(low)}, p99 {duration(high)}."
    )
    label = "Delivered messages by latency"
    return [spread(bars, label, caption)]


def _steps(counts: Counter[int]) -> list[tuple[float, int]]:
    """Counts up to 1, 2, 5, 10 and so on; if those are too many steps, up to powers of ten."""
    for digits in ((1, 2, 5), (1,)):
        limits = [digit * 10.0**power for power in range(12) for digit in digits]
        found: Counter[int] = Counter()
        for bucket, number in counts.items():
            found[bisect_right(limits, bucket_middle(bucket))] += number
        steps = range(min(found), max(found) + 1)
        if len(steps) <= _MOST_STEPS:
            break
    return [(limits[min(step, len(limits) - 1)], found[step]) for step in steps]
