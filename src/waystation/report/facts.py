"""All numbers of the page, as queries of the tables and their results.

How they are shown is not decided here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field, structs

from waystation.core.incidents import Incident
from waystation.pipeline.reach import Reach
from waystation.report.arrays import Found
from waystation.report.changes import Changes, count_changes
from waystation.report.hops import Hops, follow, type_named
from waystation.report.numbers import BUCKETS
from waystation.report.reading import Row, Tables, identified, micros, with_numbers
from waystation.report.times import MILLISECOND, MINUTE, SECOND, Band, Bins

Stage = Callable[[str], None]

FEW_WINDOWS: Final = 8
"""With fewer windows than this, `health` is too coarse for a chart, and paths are counted."""

FLOW_NODES: Final = 24
"""Maximum number of nodes that are shown over time."""

_DROPPED: Final = "DROPPED"
_SECOND_COPY: Final = "DUPLICATE"  # nobody misses it
_FINEST: Final = 100 * MILLISECOND  # the bins of the shortest time ranges, and
_FEWEST: Final = 10  # the minimum number of them


class Load(Struct):
    """The outcomes of messages at one node, or at all."""

    outcomes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    bytes: int = 0

    @property
    def messages(self) -> int:
        """The number of outcomes."""
        return self.outcomes.total()

    @property
    def dropped(self) -> int:
        """The number of losses among them."""
        return self.outcomes[_DROPPED]


class Speed(Struct):
    """How long messages stayed in nodes: the medians and the 99th percentiles of windows."""

    typical: Counter[int] = field(default_factory=Counter)  # bucket of p50
    slow: Counter[int] = field(default_factory=Counter)  # bucket of p99
    worst: float = 0.0  # the highest p99, in microseconds


class Judgement(Struct, frozen=True):
    """Equal rows of `audit`, and their number."""

    verdict: str
    node: str
    reason: str | None
    expected: str | None
    actual: str | None
    found: Found


class Ending(Struct, frozen=True):
    """Equal traces, and their number."""

    complete: bool
    looped: bool
    symmetric: bool | None
    outcome: str
    found: Found


class Fate(Struct, frozen=True):
    """Equal rows of `whatif`, and their number."""

    change: str | None
    verdict: str
    before: tuple[str | None, str | None]  # outcome and reason
    after: tuple[str | None, str | None]
    rows: int
    message_id: str  # one of them


class Facts(Struct):
    """All facts."""

    missing: tuple[str, ...]
    reach: Reach | None  # whose records these are
    bins: Bins
    span: tuple[int, int] | None  # first and last timestamp of any message
    outside: int  # messages before or after the drawn time range
    fine: bool  # whether outcomes over time come from paths
    loads: dict[str, Load]
    flow: dict[tuple[int, str | None, str, str | None], int]  # bin, node, outcome, reason
    speeds: dict[str, Speed]  # by address type
    node_speeds: dict[str, Speed]
    hops: Hops
    nowhere: dict[tuple[int, int], Found]  # by sender and receiver: along stale routes
    sessions: set[tuple[str, str]]  # nodes that were connected
    changes: Changes
    judgements: list[Judgement]
    verdicts: Counter[tuple[str, str | None, str | None]]  # verdict, expected, actual
    endings: list[Ending]
    patterns: list[tuple[str, int]]
    pattern_count: int
    subscriptions: tuple[int, int]  # ever, and at the end
    rejects: list[Row]
    incidents: list[Incident] | None  # the costliest first; None if the table is not there
    what_if: list[Fate] | None  # None if nothing was asked

    @property
    def costly(self) -> list[Incident]:
        """The incidents that cost messages."""
        return [incident for incident in self.incidents or () if incident.lost]

    @property
    def total(self) -> Load:
        """The outcomes at all nodes."""
        total = Load()
        for load in self.loads.values():
            total.outcomes.update(load.outcomes)
            total.reasons.update(load.reasons)
            total.bytes += load.bytes
        return total

    @property
    def messages(self) -> int:
        """The number of messages with a trace."""
        return sum(ending.found.messages for ending in self.endings)


def gather(tables: Tables, stage: Stage) -> Facts:
    """Query the tables for all facts."""
    stage("health")
    loads = _loads(tables)
    span, bins, outside, fine = _span(tables)
    incidents = _incidents(tables)
    bins = structs.replace(bins, bands=bands_of(incidents or [], bins))
    shown = sorted(loads, key=lambda node: (-loads[node].dropped, -loads[node].messages, node))
    stage("traces")
    hops = follow(tables, loads, bins if fine else None)
    flow = _fine_flow(hops) if fine else _coarse_flow(tables, bins, shown[:FLOW_NODES])
    endings = _endings(tables)
    stage("expected")
    nowhere = hops.suspects.confirmed(tables, hops.nodes)
    stage("speeds")
    speeds = _speeds(tables, "address_type", None)
    node_speeds = _speeds(tables, "node", shown[:200])
    stage("route_history")
    changes = count_changes(tables, bins)
    stage("audit")
    judgements, verdicts = _judgements(tables), _verdicts(tables)
    stage("subscription_history")
    patterns, subscriptions = _patterns(tables, bins.end)
    stage("rejects")
    rejects = tables.grouped(
        "rejects", {"table": pc.field("table"), "problem": pc.field("problem")}
    )
    return Facts(
        missing=tables.missing,
        reach=tables.reach(),
        bins=bins,
        span=span,
        outside=outside,
        fine=fine,
        loads=loads,
        flow=flow,
        speeds=_named(speeds),
        node_speeds=node_speeds,
        hops=hops,
        nowhere=nowhere,
        sessions=_sessions(tables),
        changes=changes,
        judgements=judgements,
        verdicts=verdicts,
        endings=endings,
        patterns=patterns[:PATTERNS],
        pattern_count=len(patterns),
        subscriptions=subscriptions,
        rejects=sorted(rejects, key=lambda row: -row["rows"]),
        incidents=incidents,
        what_if=_what_if(tables),
    )


PATTERNS: Final = 15
BANDS: Final = 12
"""Maximum number of incidents that charts show, the costliest."""

_LONGEST: Final = 4  # a band of more than one in so many parts of a chart would say nothing


def _incidents(tables: Tables) -> list[Incident] | None:
    """All incidents, the costliest first."""
    if not tables.has("incidents"):
        return None
    names = list(Incident.__struct_fields__)
    found = [
        Incident(**row)
        for batch in tables.batches("incidents", names)
        for row in with_numbers(batch).to_pylist()
    ]
    return sorted(found, key=lambda one: (-one.lost, one.started, one.kind, one.node or ""))


def _what_if(tables: Tables) -> list[Fate] | None:
    """How applications' messages ended, and how they would have."""
    if not tables.has("whatif"):
        return None
    ends = ("before_outcome", "before_reason", "after_outcome", "after_reason")
    keys = {name: pc.field(name) for name in ("change", "verdict", *ends)}
    values = {"message_id": (pc.field("message_id"), "min")}
    return [
        Fate(
            row["change"],
            row["verdict"],
            (row["before_outcome"], row["before_reason"]),
            (row["after_outcome"], row["after_reason"]),
            row["rows"],
            row["message_id"],
        )
        for row in tables.grouped("whatif", keys, values, ~pc.field("internal"))
    ]


def bands_of(incidents: list[Incident], bins: Bins) -> tuple[Band, ...]:
    """When the costliest incidents were; those that overlap are one band."""
    drawn = [
        Band(one.started, max(one.ended or 0, one.started), one.cause)
        for one in incidents
        if (one.ended or 0) - one.started <= (bins.end - bins.start) // _LONGEST
    ][:BANDS]
    bands: list[Band] = []
    for band in sorted(drawn, key=lambda band: (band.start, band.end, band.text)):
        if bands and band.start <= bands[-1].end:
            last = bands.pop()
            end, text = max(last.end, band.end), f"{last.text}\n{band.text}"
            bands.append(Band(last.start, end, text))
        else:
            bands.append(band)
    return tuple(bands)


def _sessions(tables: Tables) -> set[tuple[str, str]]:
    """Which nodes had a session with which, by the names that they gave each other."""
    keys = {name: pc.field(name) for name in ("node", "peer")}
    found = tables.grouped("session_history", keys, where=pc.field("peer").is_valid())
    return {(row["node"], row["peer"]) for row in found if row["node"] is not None}


# Outcomes by node and time


def _loads(tables: Tables) -> dict[str, Load]:
    keys = {name: pc.field(name) for name in ("node", "outcome", "reason")}
    sums = {name: (pc.field(name), "sum") for name in ("messages", "bytes")}
    loads: dict[str, Load] = defaultdict(Load)
    for row in tables.grouped("health", keys, sums):
        load = loads[row["node"] or ""]
        if row["reason"] == _SECOND_COPY:
            load.outcomes[_SECOND_COPY] += row["messages"]
            continue
        load.outcomes[row["outcome"]] += row["messages"]
        load.bytes += row["bytes"] or 0
        if row["outcome"] == _DROPPED:
            load.reasons[row["reason"] or "unknown"] += row["messages"]
    return dict(loads)


def _span(tables: Tables) -> tuple[tuple[int, int] | None, Bins, int, bool]:
    """The time range of the messages, and the bins in which it is drawn."""
    windows = {
        row["window"]: row["messages"]
        for row in tables.grouped(
            "health",
            {"window": micros("window_start")},
            {"messages": (pc.field("messages"), "sum")},
        )
        if row["window"] is not None
    }
    seen = tables.grouped(
        "traces", {}, {"first": (micros("started"), "min"), "last": (micros("ended"), "max")}
    )
    span = None
    if seen and seen[0]["first"] is not None:
        span = (seen[0]["first"], seen[0]["last"])
    elif windows:
        span = (min(windows), max(windows))
    if len(windows) >= FEW_WINDOWS or (windows and not tables.rows("traces")):
        first, last = _without_outliers(windows)
        outside = sum(number for at, number in windows.items() if not first <= at <= last)
        return span, Bins.over(first, last, at_least=_shortest(windows)), outside, False
    if span is not None:
        return span, Bins.over(*span, at_least=_FINEST, fewest=_FEWEST), 0, True
    routes = _route_span(tables)
    return None, Bins.over(*routes, at_least=_FINEST, fewest=_FEWEST), 0, False


def _without_outliers(windows: dict[int, int]) -> tuple[int, int]:
    """First and last window; a clock that is years off must not stretch the chart."""
    ordered = sorted(windows)
    spare = sum(windows.values()) // 1_000
    first = _after(ordered, windows, spare)
    last = _after(ordered[::-1], windows, spare)
    if ordered[-1] - ordered[0] > 4 * max(last - first, MINUTE):
        return first, last
    return ordered[0], ordered[-1]


def _after(ordered: list[int], windows: dict[int, int], spare: int) -> int:
    for window in ordered:
        spare -= windows[window]
        if spare < 0:
            return window
    return ordered[-1]


def _shortest(windows: dict[int, int]) -> int:
    """The length of the windows of `health`, as far as it can be seen."""
    ordered = sorted(windows)
    return min((later - at for at, later in pairwise(ordered)), default=MINUTE)


def _route_span(tables: Tables) -> tuple[int, int]:
    found = tables.grouped(
        "route_history",
        {},
        {"first": (micros("valid_from"), "min"), "last": (micros("valid_from"), "max")},
    )
    return (found[0]["first"], found[0]["last"]) if found else (0, SECOND)


def _fine_flow(hops: Hops) -> dict[tuple[int, str | None, str, str | None], int]:
    flow: Counter[tuple[int, str | None, str, str | None]] = Counter()
    for key, number in hops.flow.items():
        flow[key.part, key.node, key.outcome, key.reason] += number
        flow[key.part, None, key.outcome, key.reason] += number
    return dict(flow)


def _coarse_flow(
    tables: Tables, bins: Bins, nodes: list[str]
) -> dict[tuple[int, str | None, str, str | None], int]:
    """Outcomes over time, of all nodes together and of some of them."""
    keys = {
        "part": bins.number("window_start"),
        "outcome": pc.field("outcome"),
        "reason": pc.field("reason"),
    }
    sums = {"messages": (pc.field("messages"), "sum")}
    inside = bins.within("window_start")
    flow: dict[tuple[int, str | None, str, str | None], int] = {}
    for row in tables.grouped("health", keys, sums, inside):
        flow[row["part"], None, row["outcome"], row["reason"]] = row["messages"]
    chosen = inside & pc.field("node").isin(pa.array(nodes, pa.string()))
    for row in tables.grouped("health", {**keys, "node": pc.field("node")}, sums, chosen):
        flow[row["part"], row["node"], row["outcome"], row["reason"]] = row["messages"]
    return flow


# Latency


def _speeds(tables: Tables, by: str, only: list[str] | None) -> dict[str, Speed]:
    where = None if only is None else pc.field(by).isin(pa.array(only, pa.string()))
    speeds: dict[str, Speed] = defaultdict(Speed)
    for name in ("p50_ms", "p99_ms"):
        keys = {"by": pc.field(by), "bucket": _bucket(pc.field(name))}
        values = {
            "messages": (pc.field("messages"), "sum"),
            "worst": (pc.field(name), "max"),
        }
        for row in tables.grouped("health", keys, values, where):
            if row["by"] is None or row["bucket"] is None:
                continue
            speed = speeds[row["by"]]
            counts = speed.typical if name == "p50_ms" else speed.slow
            counts[row["bucket"]] += row["messages"]
            speed.worst = max(speed.worst, row["worst"] * 1_000)
    return dict(speeds)


def _bucket(milliseconds: Any) -> Any:
    """Like `buckets_of`, for an expression in milliseconds."""
    micro = pc.max_element_wise(
        pc.multiply(milliseconds, pc.scalar(1_000.0)), pc.scalar(1.0), skip_nulls=False
    )
    return pc.floor(pc.multiply(pc.log10(micro), pc.scalar(float(BUCKETS)))).cast(pa.int64())


def _named(speeds: dict[str, Speed]) -> dict[str, Speed]:
    return {type_named(type): speed for type, speed in speeds.items()}


# Expected and actual outcomes


def _judgements(tables: Tables) -> list[Judgement]:
    """All rows that need an explanation: verdicts other than ok, and losses by the rules."""
    names = ("verdict", "node", "reason", "expected", "actual")
    rows = tables.grouped(
        "audit",
        {name: pc.field(name) for name in names},
        _EXAMPLES,
        (pc.field("verdict") != "ok") | (pc.field("actual") == _DROPPED),
    )
    return [Judgement(found=_found(row), **{name: row[name] for name in names}) for row in rows]


def _verdicts(tables: Tables) -> Counter[tuple[str, str | None, str | None]]:
    names = ("verdict", "expected", "actual")
    rows = tables.grouped("audit", {name: pc.field(name) for name in names})
    return Counter({tuple(row[name] for name in names): row["rows"] for row in rows})


def _endings(tables: Tables) -> list[Ending]:
    names = ("complete", "looped", "symmetric", "outcome")
    rows = tables.grouped("traces", {name: pc.field(name) for name in names}, _EXAMPLES)
    return [Ending(found=_found(row), **{name: row[name] for name in names}) for row in rows]


_EXAMPLES: Final = {"first": (identified(), "min"), "last": (identified(), "max")}


def _found(row: Row) -> Found:
    return Found(row["rows"], row["first"], row["last"])


def _patterns(tables: Tables, end: int) -> tuple[list[tuple[str, int]], tuple[int, int]]:
    """Patterns with their number of receivers at the end, the largest first."""
    until = micros("valid_to")
    stands = (pc.is_null(until)) | (until >= pc.scalar(end))
    rows = tables.grouped("subscription_history", {"pattern": pc.field("pattern")}, None, stands)
    found = [(row["pattern"], row["rows"]) for row in rows]
    found.sort(key=lambda item: (-item[1], item[0]))
    ever = tables.rows("subscription_history")
    return found, (ever, sum(number for _, number in found))
