"""What nodes measured of each other's clocks, put together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.core.corrections import HOUR, Link, Measured, corrections, hour_of, links_by_hour

NAMES = [f"n{number}" for number in range(8)]


def test_offsets_add_up_along_the_way_of_the_least_round_trips() -> None:
    links = [
        Link(100, "hub", "a", 5_000, 1),
        Link(100, "hub", "b", -7_000, 1),
        Link(900, "hub", "c", 1, 1),
        Link(200, "b", "c", 20_000, 1),
    ]
    assert corrections(links) == {"hub": 0, "a": 5_000, "b": -7_000, "c": 13_000}


def test_of_two_nodes_the_measurement_of_the_least_round_trip_counts() -> None:
    assert corrections([Link(9, "a", "b", 50, 1), Link(3, "b", "a", -70, 1)]) == {"a": 0, "b": 70}


def test_the_reference_has_the_most_sessions_then_the_smallest_name() -> None:
    assert corrections([Link(1, "b", "a", 5, 1)]) == {"a": 0, "b": -5}
    links = [Link(1, "b", "a", 5, 1), Link(1, "c", "b", 1, 1)]
    assert corrections(links)["b"] == 0
    assert corrections([Link(1, "b", "a", 5, 1), Link(1, "c", "d", 1, 9)])["a"] == 0
    assert corrections([]) == {}


def test_an_hour_begins_on_the_hour() -> None:
    assert hour_of(3 * HOUR + 5) == 3 * HOUR


def test_the_best_measurement_of_an_hour_counts_with_all_sessions() -> None:
    rows = [
        Measured("a", 5, "s1", "b", 10, 9),
        Measured("a", 6, "s2", "b", 20, 4),
        Measured("a", 7, "s2", "b", 30, 4),
        Measured("a", HOUR + 1, "s2", "b", 40, 8),
        Measured("a", 8, "s3", None, 50, 1),
        Measured("a", 8, "s3", "a", 50, 1),
        Measured("a", 8, "s3", "c", None, 1),
        Measured("a", 8, "s3", "c", 50, None),
    ]
    assert links_by_hour(rows) == {
        0: [Link(4, "a", "b", 20, 2)],
        HOUR: [Link(8, "a", "b", 40, 1)],
    }


@pytest.mark.rule("TM-3")
@given(
    st.lists(st.integers(-(10**9), 10**9), min_size=8, max_size=8),
    st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES), st.integers(0, 99))),
)
def test_exact_measurements_bring_all_clocks_of_a_group_together(
    true: list[int], pairs: list[tuple[str, str, int]]
) -> None:
    clock = dict(zip(NAMES, true, strict=True))
    links = [Link(rtt, a, b, clock[b] - clock[a], 1) for a, b, rtt in pairs if a != b]
    found = corrections(links)
    assert set(found) == {name for a, b, _ in pairs if a != b for name in (a, b)}
    for link in links:
        assert found[link.peer] - found[link.node] == link.offset_us
