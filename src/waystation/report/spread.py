"""The section on fan-out: how many receivers each message had, and what is subscribed to."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from waystation.core.spoken import plural
from waystation.report.blocks import (
    Branch,
    Figure,
    Grid,
    Section,
    Tree,
    Words,
    spread,
    top,
)
from waystation.report.facts import Facts
from waystation.report.hops import WIDEST
from waystation.report.numbers import count, share
from waystation.report.traffic import name_cell, number_cell
from waystation.report.words import why_command


def fan_out(facts: Facts, tables: str | Path) -> Section:
    """The number of deliveries of each message."""
    says = (
        "Number of deliveries per message: one for a delivered unicast, "
        "several for a broadcast. "
        "Look for many messages without any, and for messages with very many."
    )
    blocks: list[Figure | Grid | Words | Tree] = [*_spread(facts), *_widest(facts, tables)]
    blocks += _patterns(facts)
    if not blocks:
        blocks = [Words("There are no traces and no subscriptions.")]
    return Section("fan-out", "Fan-out", says, tuple(blocks))


def _spread(facts: Facts) -> list[Figure | Words]:
    deliveries = facts.hops.deliveries
    if not deliveries:
        return []
    groups: Counter[int] = Counter()
    for number, messages in deliveries.items():
        groups[_group(number)] += messages
    bars = [
        (_group_name(group), groups[group], "bad" if group == 0 else "t-1")
        for group in range(max(groups) + 1)
    ]
    total = deliveries.total()
    got = sum(number * messages for number, messages in deliveries.items())
    caption = (
        f"Messages by number of deliveries: {plural(got, 'delivery', 'deliveries')} "
        f"of {plural(total, 'message')}; "
        f"{share(deliveries[0], total)} had no receiver."
    )
    label = "Messages by number of deliveries"
    return [spread(bars, label, caption)]


def _group(number: int) -> int:
    """0, 1, 2, 3 to 4, 5 to 8, and so on."""
    return number if number < 2 else (number - 1).bit_length() + 1


def _group_name(group: int) -> str:
    """The name of a group.

    >>> [_group_name(group) for group in range(6)]
    ['0', '1', '2', '3-4', '5-8', '9-16']
    """
    if group < 3:
        return str(group)
    low, high = 2 ** (group - 2) + 1, 2 ** (group - 1)
    return f"{low}-{high}"


def _widest(facts: Facts, tables: str | Path) -> list[Tree]:
    if not facts.hops.widest:
        return []
    commands = tuple(
        Branch(
            id,
            number,
            "deliveries",
            commands=(why_command(id, tables),),
        )
        for number, id in facts.hops.widest
    )
    many = sum(n for number, n in facts.hops.deliveries.items() if number > 1)
    label = (
        f"The {len(commands)} messages with the most deliveries"
        if len(commands) == WIDEST
        else "Messages with several deliveries"
    )
    part = f"of {count(many)} messages with several deliveries"
    return [Tree((Branch(label, len(commands), part, branches=commands),))]


def _patterns(facts: Facts) -> list[Grid | Words]:
    ever, now = facts.subscriptions
    if not ever:
        return []
    words = Words(f"{plural(now, 'subscription')} existed at the end, of {count(ever)} in total.")
    if not facts.patterns:
        return [words]
    most = facts.patterns[0][1]
    rows = tuple((name_cell(pattern), number_cell(n, n / most)) for pattern, n in facts.patterns)
    grid = Grid(
        "Patterns with the most receivers at the end",
        (("pattern", "name"), ("receivers at all nodes together", "number")),
        rows,
        top(len(rows), facts.pattern_count, "patterns"),
    )
    return [words, grid]
