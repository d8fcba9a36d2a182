"""What nodes measured of each other's clocks, put together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.core.corrections import (
    HOUR,
    SESSION,
    TRAFFIC,
    Delay,
    Link,
    Measured,
    corrections,
    estimates,
    groups_of,
    hour_of,
    links_by_hour,
    strangers,
)

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


def test_traffic_tells_the_offset_by_half_of_the_difference_of_the_least_delays() -> None:
    delays = [
        Delay("a", "b", 0, HOUR, 1_000_700, 6),
        Delay("a", "b", 0, 0, 1_000_500, 4),
        Delay("b", "a", HOUR, 0, -999_900, 10),
    ]
    assert estimates(delays) == {0: [Link(600, "a", "b", 1_000_200, 1, TRAFFIC)]}


def test_each_node_has_an_estimate_by_the_hours_of_its_own_clock() -> None:
    delays = [Delay("a", "b", 0, HOUR, HOUR + 50, 10), Delay("b", "a", HOUR, 0, 10 - HOUR, 12)]
    assert estimates(delays) == {
        0: [Link(60, "a", "b", HOUR + 20, 1, TRAFFIC)],
        HOUR: [Link(60, "b", "a", -HOUR - 20, 1, TRAFFIC)],
    }


@pytest.mark.parametrize(("there", "back"), [(9, 10), (10, 9), (10, 0)])
def test_few_messages_in_one_direction_tell_nothing(there: int, back: int) -> None:
    delays = [Delay("a", "b", 0, 0, 5, there), Delay("b", "a", 0, 0, 5, back)]
    assert estimates(delays[: 1 + bool(back)]) == {}


def test_a_round_trip_is_never_less_than_nothing() -> None:
    delays = [Delay("a", "b", 0, 0, -30, 10), Delay("b", "a", 0, 0, 10, 10)]
    assert [link.rtt_us for link in estimates(delays)[0]] == [0, 0]


def test_what_a_session_measured_counts_before_what_traffic_tells() -> None:
    links = [Link(5, "a", "b", 70, 1, TRAFFIC), Link(900, "b", "a", -20, 1, SESSION)]
    assert corrections(links) == {"a": 0, "b": 20}


def test_measurements_connect_nodes_to_groups() -> None:
    links = [Link(1, "a", "b", 0, 1), Link(1, "c", "d", 0, 1), Link(1, "e", "d", 0, 1)]
    links += [Link(1, "b", "d", 0, 1), Link(1, "x", "y", 0, 1)]
    groups = groups_of(links)
    assert len({groups[name] for name in "abcde"}) == 1
    assert groups["x"] == groups["y"] != groups["a"]
    assert "z" not in groups


def test_traffic_is_asked_only_of_nodes_that_an_hours_measurements_do_not_connect() -> None:
    measured = {0: [Link(1, "hub", "a", 0, 1), Link(1, "hub", "b", 0, 1)]}
    peers = {"a": {0: {"b", "c"}, HOUR: {"hub"}}, "b": {0: {"a"}}, "hub": {}, "c": {}}
    assert strangers(measured, peers) == {"a": {0: ["c"], HOUR: ["hub"]}}
    del peers["c"]  # it keeps no journal
    assert strangers(measured, peers) == {"a": {HOUR: ["hub"]}}


@pytest.mark.rule("TM-3")
@given(
    st.integers(-(10**10), 10**10),
    st.lists(st.integers(0, 10**6), min_size=1, max_size=20),
    st.lists(st.integers(0, 10**6), min_size=1, max_size=20),
)
def test_an_estimate_is_off_by_at_most_half_of_its_round_trip(
    ahead: int, there: list[int], back: list[int]
) -> None:
    delays = [Delay("a", "b", 0, 0, took + ahead, 10) for took in there]
    delays += [Delay("b", "a", 0, 0, took - ahead, 10) for took in back]
    for link in estimates(delays)[0]:
        true = ahead if link.node == "a" else -ahead
        assert 2 * abs(link.offset_us - true) <= link.rtt_us + 1
