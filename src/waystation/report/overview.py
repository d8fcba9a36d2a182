"""The top of the page: the most important numbers, and the notable findings as sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from waystation.core.spoken import plural
from waystation.report.blocks import Finding, Tile
from waystation.report.facts import Facts
from waystation.report.numbers import count, share, short
from waystation.report.svg import named
from waystation.report.verdicts import how_it_went
from waystation.report.words import LOSSES, REASONS


def tiles(facts: Facts) -> list[Tile]:
    """The most important numbers."""
    total = facts.total
    wrong = sum(n for (verdict, _, _), n in facts.verdicts.items() if verdict != "ok")
    vanished, lost = facts.hops.lost["VANISHED"], facts.hops.lost.total()
    return [
        Tile(short(max(len(facts.loads), _recorded(facts))), "nodes"),
        Tile(short(facts.messages), "messages", note=count(facts.messages)),
        Tile(
            short(total.outcomes["DELIVERED"]),
            "deliveries",
            note=count(total.outcomes["DELIVERED"]),
        ),
        *_incident_tile(facts),
        Tile(short(lost), "losses", "bad" if lost else "good", count(lost)),
        Tile(
            short(vanished),
            "of them lost between nodes",
            "bad" if vanished else "good",
            count(vanished),
        ),
        Tile(
            short(wrong),
            "outcomes that differ from the rules",
            "bad" if wrong else "good",
            count(wrong),
        ),
    ]


def _recorded(facts: Facts) -> int:
    """How many nodes have records, also those that handled no message."""
    return facts.reach.nodes if facts.reach is not None else 0


def _incident_tile(facts: Facts) -> Iterator[Tile]:
    if facts.incidents is not None:
        number = len(facts.costly)
        yield Tile(short(number), "incidents that cost messages", "bad" if number else "good")


def findings(facts: Facts) -> list[Finding]:
    """The notable findings, the worst first; or that there are none."""
    found = [
        *_missing_tables(facts),
        *_incidents(facts),
        *_verdicts(facts),
        *_lost(facts),
        *_drops(facts),
        *_vanished(facts),
        *_stale(facts),
        *_followed(facts),
    ]
    return found or [
        Finding(
            "Nothing stands out: no message was lost, and all outcomes are as the rules require.",
            "audit",
            "good",
        )
    ]


def _missing_tables(facts: Facts) -> Iterator[Finding]:
    if facts.missing:
        noun = "table is" if len(facts.missing) == 1 else "tables are"
        yield Finding(
            f"{len(facts.missing)} {noun} missing ({', '.join(facts.missing)}); "
            "their parts of the page are left out.",
            "topology",
        )


def _incidents(facts: Facts) -> Iterator[Finding]:
    costly = facts.costly
    if costly:
        worst = costly[0]
        yield Finding(
            f"{plural(len(costly), 'incident')} cost "
            f"{plural(sum(one.lost for one in costly), 'message')}; the worst: {worst.cause} "
            f"({count(worst.lost)}).",
            "incidents",
        )


def _verdicts(facts: Facts) -> Iterator[Finding]:
    for verdict, told in (
        ("missing", "required by the rules, but missing"),
        ("unexpected", "that the rules do not require"),
        ("different", "that differ from the rules"),
    ):
        rows = [one for one in facts.judgements if one.verdict == verdict]
        number = sum(one.found.messages for one in rows)
        if not number:
            continue
        nodes, ways = Counter[str](), Counter[str]()
        for one in rows:
            nodes[one.node or ""] += one.found.messages
            ways[how_it_went(one)] += one.found.messages
        node, way = _largest(nodes), _largest(ways)
        yield Finding(
            f"{plural(number, 'outcome')} {told}: most at {named(node)} ({count(nodes[node])}), "
            f"mostly {way} ({count(ways[way])}).",
            "audit",
        )


def _lost(facts: Facts) -> Iterator[Finding]:
    lost = facts.hops.lost
    if lost:
        reason = _largest(lost)
        between = f", {count(facts.hops.internal)} more between nodes themselves"
        yield Finding(
            f"{plural(lost.total(), 'copy', 'copies')} never reached the receiver, most for "
            f"{reason} ({LOSSES.get(reason, 'not a known reason')}, {count(lost[reason])})"
            f"{between if facts.hops.internal else ''}.",
            "drops",
        )
    if facts.hops.unknown:
        copies = plural(facts.hops.unknown, "copy", "copies")
        yield Finding(
            f"What became of {copies} is unknown: the record of the next node does not say.",
            "topology",
        )


def _drops(facts: Facts) -> Iterator[Finding]:
    total = facts.total
    if not total.dropped:
        return
    reason = _largest(total.reasons)
    by_node = Counter({node: load.reasons[reason] for node, load in facts.loads.items()})
    node = _largest(by_node)
    peak = _peak(facts)
    if not facts.costly:  # incidents tell more
        yield Finding(
            f"{share(total.reasons[reason], total.dropped)} of all drops are {reason} "
            f"({REASONS.get(reason, 'not a known reason')}), "
            f"most at {named(node)} ({count(by_node[node])}).",
            "drops",
        )
    if peak is not None:
        part, number, usual = peak
        yield Finding(
            f"Drops peaked at {facts.bins.said(part)} UTC with {count(number)}, "
            f"where {count(usual)} are usual.",
            "drops",
        )


def _peak(facts: Facts) -> tuple[int, int, int] | None:
    """The bin with the most drops, if that is far more than usual."""
    parts = [0] * facts.bins.count
    for (part, node, outcome, _), number in facts.flow.items():
        if node is None and outcome == "DROPPED" and part >= 0:
            parts[part] += number
    if len(parts) < 5:
        return None
    usual = sorted(parts)[len(parts) // 2]
    part = max(range(len(parts)), key=lambda place: (parts[place], -place))
    return (part, parts[part], usual) if parts[part] > 2 * usual + 20 else None


def _vanished(facts: Facts) -> Iterator[Finding]:
    vanished = facts.hops.vanished
    if not vanished:
        return
    names = facts.hops.names
    told = Counter({f"{named(names[a])} to {named(names[b])}": n for (a, b), n in vanished.items()})
    worst = _largest(told)
    yield Finding(
        f"{plural(vanished.total(), 'copy', 'copies')} lost between nodes, "
        f"most from {worst} ({count(told[worst])}).",
        "topology",
    )


def _stale(facts: Facts) -> Iterator[Finding]:
    nowhere = facts.nowhere
    if nowhere:
        total = sum(found.messages for found in nowhere.values())
        yield Finding(f"{plural(total, 'message')} used stale routes.", "stale")


def _followed(facts: Facts) -> Iterator[Finding]:
    looped = sum(ending.found.messages for ending in facts.endings if ending.looped)
    if looped:
        yield Finding(f"{plural(looped, 'message')} went in a loop.", "followed")
    rejected = sum(row["rows"] for row in facts.rejects)
    if rejected:
        yield Finding(
            f"{plural(rejected, 'row or file', 'rows or files')} of the journal could not be used.",
            "followed",
        )


def _largest(counts: Counter[str]) -> str:
    return min(counts, key=lambda name: (-counts[name], name))
