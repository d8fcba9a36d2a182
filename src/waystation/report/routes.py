"""Sections on routing entries: how much they changed, and which had outlived what they led to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from waystation.core.spoken import plural
from waystation.report.blocks import (
    Branch,
    Cell,
    Figure,
    Grid,
    Key,
    Section,
    Tree,
    Words,
    band_keys,
    figure,
    spread,
    top,
)
from waystation.report.changes import AGES, KINDS, LATER, QUIET, Entry
from waystation.report.charts import Bar, Series, stacked_bars
from waystation.report.facts import Facts
from waystation.report.numbers import count, duration, share
from waystation.report.svg import named
from waystation.report.times import moment, width_said
from waystation.report.traffic import name_cell, number_cell
from waystation.report.words import ENDS, why_command

RESTLESS: Final = 15
STALE_LINKS: Final = 20

_UNREST: Final = "moved or lost"


def churn(facts: Facts) -> Section:
    """How routing entries came and went."""
    says = (
        "Routing entries that ended, by cause. Renewals are normal; "
        "look for waves of expiries, restarts and moves, "
        "and for nodes or participants that change constantly."
    )
    changes = facts.changes
    if not changes.entries:
        return Section(
            "churn", "Route churn", says, (Words("The table route_history has no rows."),)
        )
    blocks: list[Figure | Grid | Words] = []
    totals: Counter[str] = Counter()
    for (part, kind), number in changes.ended.items():
        totals[kind] += number * (part != LATER)
    if totals.total():
        blocks.append(_churn_figure(facts, totals))
    else:
        blocks.append(Words("No entry ended in this time range.", "good"))
    later = sum(number for (part, _), number in changes.ended.items() if part == LATER)
    opened = f"{plural(changes.entries, 'entry', 'entries')} in all"
    if later:
        blocks.append(
            Words(
                f"{opened}; {count(later)} ended, or would have expired, only after the time range "
                "shown."
            )
        )
    blocks += [*_node_churn(facts), *_restless(facts)]
    return Section("churn", "Route churn", says, tuple(blocks))


def _churn_figure(facts: Facts, totals: Counter[str]) -> Figure:
    bins = facts.bins
    series = [
        Series(kind, f"k-{kind}", [facts.changes.ended[part, kind] for part in range(bins.count)])
        for kind in KINDS
        if totals[kind]
    ]
    legend = [Key(one.colour, ENDS[one.name], number=totals[one.name]) for one in series]
    legend += band_keys(bins)
    caption = f"One bar per {width_said(bins.width)}, times in UTC."
    label = "Routing entries that ended, over time"
    return figure(lambda width: stacked_bars(bins, series, width, label), legend, caption)


def _node_churn(facts: Facts) -> list[Grid]:
    by_node: dict[str, Counter[str]] = {}
    for (node, kind), number in facts.changes.by_node.items():
        by_node.setdefault(node, Counter())[kind] += number
    unrest = {node: _unrest(kinds) for node, kinds in by_node.items()}
    ordered = sorted(by_node, key=lambda node: (-unrest[node], node))
    kinds = [kind for kind in KINDS if any(found[kind] for found in by_node.values())]
    if not ordered:
        return []
    most = max(unrest.values()) or 1
    rows = tuple(
        (
            name_cell(node),
            number_cell(unrest[node], unrest[node] / most),
            *(number_cell(by_node[node][kind]) for kind in kinds),
        )
        for node in ordered[:RESTLESS]
    )
    titles = (("node", "name"), (_UNREST, "number"), *((kind, "number") for kind in kinds))
    return [
        Grid("Nodes whose tables changed most", titles, rows, top(len(rows), len(ordered), "nodes"))
    ]


def _unrest(kinds: Counter[str]) -> int:
    return kinds.total() - sum(kinds[quiet] for quiet in QUIET)


def _restless(facts: Facts) -> list[Grid]:
    tally = facts.changes.restless
    found = tally.most_common(RESTLESS)
    if not found or found[0][1] < 2:
        return []
    rows = tuple((name_cell(name), number_cell(n, n / found[0][1])) for name, n in found)
    note = top(len(rows), len(tally), "participants")
    if tally.overlooked:
        note = f"top {len(rows)}; counts may be too low by up to {count(tally.overlooked)}"
    columns = (("participant", "name"), (_UNREST, "number"))
    return [Grid("Participants that changed most", columns, rows, note)]


def stale(facts: Facts, tables: str | Path) -> Section:
    """Routes that had outlived what they led to."""
    says = (
        "Routes used although their participant was gone: a node sent a message along one, "
        "and the next node did not know the name. Look for pairs of nodes that appear "
        "repeatedly: there, leases are too long or removals get lost."
    )
    blocks: list[Figure | Grid | Words | Tree] = [*_nowhere(facts, tables), *_standing(facts)]
    return Section("stale", "Stale routes", says, tuple(blocks))


def _nowhere(facts: Facts, tables: str | Path) -> list[Words | Tree]:
    names = facts.hops.names
    found = sorted(
        facts.nowhere.items(),
        key=lambda item: (-item[1].messages, names[item[0][0]], names[item[0][1]]),
    )
    if not found:
        return [Words("No message was sent along a stale route.", "good")]
    total = sum(one.messages for _, one in found)
    branches = tuple(
        Branch(
            f"{named(names[a])} → {named(names[b])}",
            one.messages,
            share(one.messages, total),
            foreign=True,
            commands=tuple(why_command(id, tables) for id in one.examples),
        )
        for (a, b), one in found[:STALE_LINKS]
    )
    more = top(len(branches), len(found), "pairs of nodes")
    words = (
        f"{plural(total, 'message')} used a stale route, "
        f"between {plural(len(found), 'pair')} of nodes{f' ({more})' if more else ''}."
    )
    return [Words(words, "bad"), Tree(branches)]


def _standing(facts: Facts) -> list[Figure | Words | Grid]:
    """Entries that existed at the end, by age; of these the sticky ones past their expiry."""
    changes = facts.changes
    if not changes.standing:
        return []
    bars = [
        (label, changes.standing[label, True] + changes.standing[label, False], "t-1")
        for label, _ in AGES
    ]
    bars = [(label.replace("under ", "< ").replace(" or more", "+"), n, c) for label, n, c in bars]
    forever = sum(n for (_, leased), n in changes.standing.items() if not leased)
    total = changes.standing.total()
    caption = (
        f"{plural(total, 'entry', 'entries')} to other nodes existed at the end, "
        "by the time since their last change; "
        f"{count(forever)} of them never expire."
    )
    label = "Existing routing entries by age"
    blocks: list[Figure | Words | Grid] = [spread(bars, label, caption, _short)]
    if changes.overdue:
        blocks.append(
            Words(
                f"{plural(changes.overdue, 'sticky entry', 'sticky entries')} existed "
                "past their expiry.",
                "bad",
            )
        )
        blocks.append(
            _entries(
                "Sticky entries past their expiry", facts, changes.oldest_overdue, changes.overdue
            )
        )
    blocks.append(_entries("Oldest entries", facts, changes.oldest, total))
    return blocks


def _short(bars: Sequence[Bar]) -> list[Bar]:
    words = (
        ("a minute", "1m"),
        ("minutes", "m"),
        ("an hour", "1h"),
        ("hours", "h"),
        ("a day", "1d"),
    )
    short = []
    for label, number, colour in bars:
        for long, brief in words:
            label = label.replace(long, brief)  # noqa: PLW2901
        short.append((label.replace("< ", "<").replace(" ", ""), number, colour))
    return short


def _entries(title: str, facts: Facts, entries: list[Entry], all: int) -> Grid:
    end = facts.bins.end
    rows = tuple(
        (
            name_cell(entry.node),
            name_cell(entry.participant),
            name_cell(entry.address),
            Cell(moment(entry.since), order=entry.since),
            Cell(duration(end - entry.since), order=end - entry.since),
            Cell(
                moment(entry.expiry) if entry.expiry is not None else "never",
                order=entry.expiry or 0,
            ),
        )
        for entry in entries
    )
    titles = (
        ("node", "name"),
        ("participant", "name"),
        ("address", "name"),
        ("unchanged since", "text"),
        ("for", "number"),
        ("expires", "text"),
    )
    return Grid(title, titles, rows, top(len(rows), all, "entries"))
