"""The charts of the report: round tick marks, and nothing that overlaps."""

from __future__ import annotations

import re
from collections import Counter
from itertools import combinations
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from waystation.report.blocks import Figure, Words, spread
from waystation.report.charts import (
    NARROW,
    WIDE,
    Range,
    Series,
    columns,
    heat,
    heat_map,
    ranges,
    stacked_bars,
)
from waystation.report.layout import positions
from waystation.report.numbers import duration, percentile, round_ticks, share, short
from waystation.report.svg import named, tag, text_width
from waystation.report.tally import Tally
from waystation.report.times import DAY, MOST_BINS, Bins, moment, time_ticks, width_said
from waystation.report.topology import Graph, Vertex, _joined, draw, reduced

INSTANTS = st.integers(0, 253_370_764_800_000_000)
SPANS = st.integers(1_000, 400 * DAY)

Box = tuple[float, float, float, float]


def texts(picture: Markup, chosen: str = "") -> list[tuple[str, Box]]:
    """The texts of a picture, with their approximate boxes."""
    found = []
    for one in ET.fromstring(picture).iter("text"):  # noqa: S314 - it is our own
        if chosen not in (one.get("class") or ""):
            continue
        said = "".join([one.text or "", *(child.tail or "" for child in one)])
        x, y, wide = float(one.get("x", "0")), float(one.get("y", "0")), text_width(said)
        left = {"middle": x - wide / 2, "end": x - wide}.get(one.get("text-anchor", ""), x)
        found.append((said, (left, y - 10, left + wide, y + 3)))
    return found


def overlapping(boxes: list[tuple[str, Box]]) -> list[tuple[str, str]]:
    return [
        (one, other)
        for (one, a), (other, b) in combinations(boxes, 2)
        if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
    ]


@given(INSTANTS, SPANS)
def test_bins_cover_the_span_and_are_few(first: int, span: int) -> None:
    bins = Bins.over(first, first + span)
    assert bins.start <= first
    assert bins.end > first + span
    assert 1 <= bins.count <= MOST_BINS
    assert width_said(bins.width)


@given(INSTANTS, SPANS, st.integers(1, 14))
def test_time_ticks_are_in_the_range_and_not_too_many(first: int, span: int, most: int) -> None:
    ticks = time_ticks(first, first + span, most)
    assert len(ticks) <= most + 1
    assert all(first <= tick.at <= first + span for tick in ticks)
    assert not ticks or ticks[0].day


@given(INSTANTS, SPANS, st.sampled_from([WIDE, NARROW]))
def test_labels_of_a_time_axis_do_not_overlap(first: int, span: int, width: int) -> None:
    bins = Bins.over(first, first + span)
    series = [Series("NO_ROUTE", "r-no-route", [1] * bins.count)]
    picture = stacked_bars(bins, series, width, "drops")
    boxes = texts(picture)
    assert overlapping(boxes) == []
    assert all(box[0] >= -2 and box[2] <= width + 2 for _, box in boxes)


@given(st.integers(0, 10**12), st.integers(2, 8))
def test_axis_ticks_are_round_and_reach_the_maximum(highest: int, most: int) -> None:
    ticks = round_ticks(highest, most)
    assert ticks[0] == 0
    assert ticks[-1] >= highest
    assert len(ticks) <= most + 2
    assert all(tick == int(tick) for tick in ticks)


@given(
    st.lists(
        st.tuples(st.floats(1, 1e9), st.floats(1, 100), st.floats(1, 100)), min_size=1, max_size=9
    )
)
def test_ranges_stay_in_the_picture(rows: list[tuple[float, float, float]]) -> None:
    told = [
        Range(f"tcp, hop {n}", "t-1", low, low * a, low * a * b, 3)
        for n, (low, a, b) in enumerate(rows)
    ]
    for width in (WIDE, NARROW):
        picture = ranges(told, width, "latency")
        for line in ET.fromstring(picture).iter("circle"):  # noqa: S314
            assert 0 <= float(line.get("cx", "-1")) <= width
        assert overlapping([box for box in texts(picture) if not box[0].startswith("tcp")]) == []


def test_columns_of_a_phone_do_not_overlap() -> None:
    bars = [(f"{n}-{2 * n}", 10**n, "t-1") for n in range(1, 7)]
    assert overlapping(texts(columns(bars, NARROW, "fan-out"))) == []


def test_a_heat_map_has_a_cell_for_each_active_bin() -> None:
    bins = Bins(0, DAY, 3)
    picture = heat_map(bins, [("a", [(0, 5), (0, 0), (5, 5)])], WIDE, "health")
    fields = ET.fromstring(picture).findall("rect")  # noqa: S314
    assert [field.get("class") for field in fields] == ["fill heat-0", "fill heat-5"]
    assert "5 of 5 dropped (100%)" in picture
    assert heat(0, 0) == "heat-0"


def fleet(hubs: int, leaves: int) -> Graph:
    """A ring of hubs with leaves."""
    sent: Counter[tuple[str, str]] = Counter()
    vertices = []
    for hub in range(hubs):
        vertices.append(Vertex(f"hub-{hub:04}", 1_000 - hub, hub))
        sent[f"hub-{hub:04}", f"hub-{(hub + 1) % hubs:04}"] += 50
        for leaf in range(leaves):
            vertices.append(Vertex(f"leaf-{hub:04}-{leaf:02}", 60 - leaf, leaf % 3))
            sent[f"hub-{hub:04}", vertices[-1].name] += 9
    return _joined(vertices, sent, Counter({("hub-0000", "leaf-0000-00"): 3}))


@pytest.mark.parametrize(("hubs", "leaves"), [(1, 0), (1, 1), (2, 0), (2, 8), (4, 14), (9, 2)])
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_a_topology_is_inside_its_picture_and_names_do_not_overlap(
    hubs: int, leaves: int, width: int
) -> None:
    graph = fleet(hubs, leaves)
    picture = draw(graph, width, "topology")
    drawn = ET.fromstring(picture)  # noqa: S314
    height = float(drawn.get("height", "0"))
    circles = [c for c in drawn.iter("circle") if c.get("class") == "node"]
    assert len(circles) == len(graph.vertices)
    for circle in circles:
        x, y, r = (float(circle.get(key, "0")) for key in ("cx", "cy", "r"))
        assert r <= x <= width - r
        assert r <= y <= height - r
    names = texts(picture, "name")
    assert overlapping(names) == []
    assert len(names) >= min(len(circles), 5)
    assert draw(graph, width, "topology") == picture


def test_circles_do_not_overlap() -> None:
    graph = fleet(4, 14)
    links = [(edge.one, edge.other) for edge in graph.edges]
    radii = np.full(len(graph.vertices), 9.0)
    placed = positions(len(graph.vertices), links, (800.0, 520.0), radii)
    for one, other in combinations(placed, 2):
        assert np.hypot(*(one - other)) > 16


def test_a_large_fleet_is_drawn_with_its_leaves_bundled() -> None:
    graph = reduced(fleet(20, 16), 60)
    assert len(graph.vertices) == 40
    assert graph.bundles == 20
    assert graph.left_out == 0
    assert sum(vertex.nodes for vertex in graph.vertices) == 20 * 17
    assert sum(edge.vanished for edge in graph.edges) == 3


def test_a_very_large_fleet_is_reduced_to_the_busiest_nodes() -> None:
    graph = reduced(fleet(300, 16), 60)
    assert len(graph.vertices) == 60
    assert graph.left_out + sum(vertex.nodes for vertex in graph.vertices) == 300 * 17


def test_a_small_graph_is_left_as_it_is() -> None:
    graph = fleet(2, 3)
    assert reduced(graph, 60) is graph


def test_names_show_hidden_characters() -> None:
    assert named("") == "(no name)"
    assert named("a\nb\x00") == "a\\u000ab\\u0000"
    assert named("hub-" + "7" * 99, 11) == "hub-7…77777"
    assert len(named("x" * 10_000, 24)) == 24
    assert text_width("漢字") > text_width("ab")


def test_attributes_and_text_are_escaped() -> None:
    made = tag("text", "<b>", class_='"', data_x=1.04)
    assert made == '<text class="&#34;" data-x="1">&lt;b&gt;</text>'
    assert tag("g", made, x=None) == f"<g>{made}</g>"


def test_numbers_are_formatted_for_people() -> None:
    assert [short(n) for n in (0, 1_234, 99_999, 1_234_567, 5e9, 5e12)] == [
        "0",
        "1,234",
        "100k",
        "1.23M",
        "5G",
        "5,000G",
    ]
    assert (share(1, 2), share(5, 0), share(2, 2)) == ("50%", "0%", "100%")
    assert (duration(999.6), duration(59_990_000)) == ("1 ms", "1 min")
    assert percentile({}, 0.5) is None
    assert moment(0) == "1970-01-01 00:00:00"


@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(1, 9)), max_size=60),
    st.integers(2, 6),
)
def test_the_error_of_a_tally_is_within_its_bound(
    counted: list[tuple[str, int]], most: int
) -> None:
    tally, truth = Tally(most), Counter[str]()
    for name, number in counted:
        tally.add([(name, number)])
        truth[name] += number
    told = dict(tally.most_common(99))
    assert len(tally) <= most
    for name, number in truth.items():
        assert number - tally.overlooked <= told.get(name, 0) <= number


def test_every_reason_has_a_colour_of_its_own_in_both_schemes() -> None:
    from importlib.resources import files  # noqa: PLC0415

    from waystation.core.outcome import Reason  # noqa: PLC0415
    from waystation.report.words import REASONS, reason_colour  # noqa: PLC0415

    assert {*REASONS} == {str(reason) for reason in Reason}
    style = files("waystation.report").joinpath("templates/style.css").read_text("utf-8")
    for reason in REASONS:
        variable = reason_colour(reason).removeprefix("r-")
        colours = re.findall(rf"--{variable}: (#[0-9a-f]{{6}});", style)
        assert len(colours) == 2, reason
        assert f".{reason_colour(reason)} {{ color: var(--{variable}); }}" in style


def test_where_all_is_in_one_group_words_say_which() -> None:
    bars = [("< 1 ms", 0, "t-1"), ("< 10 ms", 7, "t-1")]
    assert spread(bars, "latency", "7 messages.") == Words(
        "7 messages. All are in one group: < 10 ms."
    )
    assert isinstance(spread([("< 1 ms", 2, "t-1"), *bars], "latency", "9 messages."), Figure)
