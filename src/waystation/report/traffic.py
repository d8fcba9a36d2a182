"""Sections on traffic: the topology, the drops over time, the health of each node."""

from __future__ import annotations

from collections import Counter
from typing import Final

from waystation.core.spoken import plural
from waystation.report.blocks import Cell, Figure, Grid, Key, Section, Words, band_keys, figure, top
from waystation.report.charts import (
    HEATS,
    NARROW,
    WIDE,
    Series,
    heat_map,
    stacked_bars,
)
from waystation.report.facts import FLOW_NODES, Facts, Load
from waystation.report.numbers import (
    count,
    duration,
    percentile,
    share,
    size_said,
)
from waystation.report.svg import WHOLE, named
from waystation.report.times import width_said
from waystation.report.topology import Graph, draw, graph_of, reduced
from waystation.report.words import REASONS, reason_colour

LINKS: Final = 20
NODES: Final = 200

_WIDE_VERTICES: Final = 60
_NARROW_VERTICES: Final = 22
_DROPPED: Final = "DROPPED"


def topology(facts: Facts) -> Section:
    """Who sent to whom."""
    graph = graph_of(facts)
    says = (
        "Each circle is a node, sized by its messages; a red arc around it is the share that it "
        "dropped. Lines are copies sent between nodes, dashed red where some were lost. "
        "Look for red, and for nodes with a single thin line."
    )
    if not graph.vertices:
        return Section("topology", "Topology", says, (Words("These tables have no activity."),))
    blocks: list[Figure | Grid | Words] = [_graph_figure(graph)]
    if graph.edges:
        blocks.append(_links(graph))
    else:
        blocks.append(Words("No message passed two nodes, so there are no lines."))
    if facts.hops.places:
        blocks.append(
            Words(
                f"{plural(len(facts.hops.places), 'address', 'addresses')} are drawn as they are "
                "written: rows of version 1 of the journal do not say which node has them."
            )
        )
    if facts.hops.without_path:
        blocks.append(
            Words(f"{plural(facts.hops.without_path, 'trace')} had no path and could not be drawn.")
        )
    return Section("topology", "Topology", says, tuple(blocks))


def _graph_figure(graph: Graph) -> Figure:
    wide, narrow = reduced(graph, _WIDE_VERTICES), reduced(graph, _NARROW_VERTICES)
    label = f"A graph of {plural(len(graph.vertices), 'node')}"
    legend = [
        Key("node", "node", "dot"),
        Key("ring", "dropped there", "arc"),
        Key("link", "copies sent", "line"),
    ]
    if wide.bundles:
        legend.append(Key("bundle", "leaves of one node, together", "dot"))
    if not all(edge.sent for edge in graph.edges):
        legend.append(Key("quiet", "a session that carried no copy", "line"))
    if any(edge.vanished for edge in graph.edges):
        legend.append(Key("lossy", "some never seen again (wide: 1% or more)", "line"))
    legend += [Key("foreign", told, "dot") for told in _foreign(graph)]
    return Figure(
        draw(wide, WIDE, label),
        draw(narrow, NARROW, label),
        tuple(legend),
        _left_out(graph, wide, narrow),
    )


def _foreign(graph: Graph) -> list[str]:
    """What the circles are that are no nodes of the fleet."""
    by_meaning: dict[str, list[str]] = {}
    for vertex in graph.vertices:
        if vertex.foreign:
            by_meaning.setdefault(vertex.foreign, []).append(named(vertex.name))
    return [
        f"{names[0]}{f' and {len(names) - 1} more' if names[1:] else ''}: {meaning}"
        for meaning, names in by_meaning.items()
    ]


def _left_out(graph: Graph, wide: Graph, narrow: Graph) -> str:
    """What the picture does not show; the phone's may show less, and is then described as well."""
    if narrow is graph or (not narrow.left_out and not narrow.bundles):
        return ""
    nodes = sum(not vertex.foreign for vertex in graph.vertices)

    def told(small: Graph) -> str:
        if small.left_out:
            return f"the busiest {count(nodes - small.left_out)} of {count(nodes)} nodes"
        return f"all {count(nodes)} nodes"

    both = told(wide) if told(wide) == told(narrow) else f"{told(wide)} (on a phone {told(narrow)})"
    return f"Drawn: {both}; if there are too many, the leaves of a node are drawn as one circle."


def _links(graph: Graph) -> Grid:
    pairs = []
    for edge in graph.edges:
        one, other = graph.vertices[edge.one], graph.vertices[edge.other]
        pairs.append((edge.sent, edge.vanished, one.name, other.name, edge.there, edge.back))
    pairs.sort(key=lambda pair: (-pair[1], -pair[0], pair[2], pair[3]))
    most = max(pair[0] for pair in pairs) or 1
    rows = tuple(
        (
            name_cell(one),
            name_cell(other),
            number_cell(there),
            number_cell(back),
            number_cell(sent, sent / most),
            number_cell(vanished),
        )
        for sent, vanished, one, other, there, back in pairs[:LINKS]
    )
    columns = (
        ("node", "name"),
        ("other node", "name"),
        ("copies there", "number"),
        ("copies back", "number"),
        ("together", "number"),
        ("never seen again", "number"),
    )
    note = top(len(rows), len(pairs), "links, the lossiest first")
    return Grid("Links between nodes", columns, rows, note)


def drops(facts: Facts) -> Section:
    """Drops by reason over time."""
    says = "Number of dropped messages over time, by reason. Look for bars that stand out."
    reasons: Counter[str] = Counter()
    for (_, node, outcome, reason), number in facts.flow.items():
        if node is None and outcome == _DROPPED:
            reasons[reason or "unknown"] += number
    if not reasons:
        return Section("drops", "Drops over time", says, (Words("Nothing was dropped.", "good"),))
    ordered = sorted(reasons, key=lambda reason: (-reasons[reason], reason))
    series = [Series(r, reason_colour(r), _over_time(facts, r)) for r in ordered]
    legend = [
        Key(
            one.colour,
            one.name,
            number=reasons[one.name],
            meaning=REASONS.get(one.name, "not a known reason"),
        )
        for one in series
    ]
    legend += band_keys(facts.bins)
    label = f"Drops over time by reason: {', '.join(ordered)}"
    caption = f"One bar per {width_said(facts.bins.width)}, times in UTC."
    if facts.fine:
        caption += " Counted from the paths of messages, since the time range is short."
    blocks: list[Figure | Words] = [
        figure(lambda width: stacked_bars(facts.bins, series, width, label), legend, caption)
    ]
    if facts.outside:
        blocks.append(
            Words(
                f"{plural(facts.outside, 'outcome')} are far outside this time range: wrong "
                "clocks; they are not drawn."
            )
        )
    return Section("drops", "Drops over time", says, tuple(blocks))


def _over_time(facts: Facts, reason: str) -> list[int]:
    values = [0] * facts.bins.count
    for (part, node, outcome, given), number in facts.flow.items():
        if node is None and outcome == _DROPPED and (given or "unknown") == reason and part >= 0:
            values[part] += number
    return values


def nodes(facts: Facts) -> Section:
    """The health of each node."""
    says = (
        "The share of messages that each node dropped, over time and in total. "
        "Look for a dark row (one node in trouble) and a dark column (all nodes at once)."
    )
    if not facts.loads:
        return Section("nodes", "Health by node", says, (Words("The table health has no rows."),))
    ordered = sorted(
        facts.loads, key=lambda n: (-facts.loads[n].dropped, -facts.loads[n].messages, n)
    )
    return Section(
        "nodes", "Health by node", says, (_heat_figure(facts, ordered), _node_grid(facts, ordered))
    )


def _heat_figure(facts: Facts, ordered: list[str]) -> Figure:
    shown = ordered[:FLOW_NODES]
    cells = {node: [[0, 0] for _ in range(facts.bins.count)] for node in shown}
    for (part, node, outcome, _), number in facts.flow.items():
        if node in cells and part >= 0:
            cells[node][part][1] += number
            cells[node][part][0] += number * (outcome == _DROPPED)
    rows = [(node, [(d, m) for d, m in cells[node]]) for node in shown]
    legend = [
        Key(f"heat-{step}", f"dropped: {told}" if not step else told)
        for step, (_, told) in enumerate(HEATS)
    ]
    legend += band_keys(facts.bins)
    width = width_said(facts.bins.width)
    caption = f"One cell per {width}, times in UTC; empty if the node was idle."
    more = top(len(shown), len(ordered), "nodes, by number of drops")
    label = "Drops by node over time"
    return figure(
        lambda width: heat_map(facts.bins, rows, width, label),
        legend,
        f"{caption} Shown: {more}." if more else caption,
    )


def _node_grid(facts: Facts, ordered: list[str]) -> Grid:
    columns = (
        ("node", "name"),
        ("handled", "number"),
        ("delivered", "number"),
        ("forwarded", "number"),
        ("dropped", "number"),
        ("share", "number"),
        ("mostly because", "text"),
        ("bytes", "number"),
        ("p50", "number"),
        ("worst p99", "number"),
    )
    most = max(load.messages for load in facts.loads.values()) or 1
    rows = tuple(_node_row(facts, node, most) for node in ordered[:NODES])
    note = top(len(rows), len(ordered), "nodes, by number of drops")
    return Grid("All nodes" if not note else "Nodes", columns, rows, note)


def _node_row(facts: Facts, node: str, most: int) -> tuple[Cell, ...]:
    load = facts.loads[node]
    speed = facts.node_speeds.get(node)
    median = percentile(speed.typical, 0.5) if speed else None
    return (
        name_cell(node),
        number_cell(load.messages, load.messages / most),
        number_cell(load.outcomes["DELIVERED"]),
        number_cell(load.outcomes["FORWARDED"]),
        number_cell(load.dropped),
        Cell(share(load.dropped, load.messages), order=load.dropped / max(load.messages, 1)),
        _main_reason(load),
        Cell(size_said(load.bytes), order=load.bytes),
        duration_cell(median),
        duration_cell(speed.worst if speed else None),
    )


def _main_reason(load: Load) -> Cell:
    if not load.reasons:
        return Cell("", order="")
    reason = min(load.reasons, key=lambda reason: (-load.reasons[reason], reason))
    return Cell(reason, whole=REASONS.get(reason, ""), order=reason)


def name_cell(name: str) -> Cell:
    """A name from outside: shortened and made visible, with the full name as a tooltip."""
    seen = named(name, 36)
    return Cell(seen, whole=named(name, WHOLE) if seen != name else "", order=seen)


def number_cell(number: int, bar: float | None = None) -> Cell:
    """A number, with a bar behind it where numbers are compared."""
    return Cell(count(number), order=number, bar=bar)


def duration_cell(microseconds: float | None) -> Cell:
    """A duration, if it is known."""
    if microseconds is None:
        return Cell("", order=-1)
    return Cell(duration(microseconds), order=microseconds)
