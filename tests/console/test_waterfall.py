"""The waterfall of a message: rows in causal order, bars on one axis of time."""

from __future__ import annotations

from typing import Any

import pytest

from waystation.console.waterfall import NARROWEST, Waterfall, stops, waterfalls
from waystation.why.explanation import Explanation, Hop, Step, Way

ID, REPLY = "a" * 32, "b" * 32
BEGIN = 1_794_814_841_379_000


def step(at: int, outcome: str = "FORWARDED", to: str | None = None, **more: Any) -> Step:
    return Step(BEGIN + at, outcome, more.get("reason"), None, more.get("recipient"), to)


def hop(node: str, at: int, *steps: Step, follows: int | None = None, **more: Any) -> Hop:
    return Hop(
        node, 1, BEGIN + at, ("0#x",), (), None, 3, None, steps, (), True, None,
        follows=follows, **more,
    )  # fmt: skip


def way(**more: Any) -> Way:
    counts = dict.fromkeys(
        ("hops", "delivered", "lost_copies", "unknown_copies", "left_fleet", "waiting"), 0
    )
    options: dict[str, Any] = {
        "origin": "a/1", "outcome": "DELIVERED", "reason": None, "place": "c", "summary": "",
        "notes": (), "started": BEGIN, "ended": BEGIN, "latency_us": 0, "complete": True,
        "looped": False, "internal": False, "answers": None, "answered_by": None, "legs": 1,
        "symmetric": None, **counts, **more,
    }  # fmt: skip
    return Way(**options)


def request() -> Explanation:
    """A request from a to c, by way of b, whose clock is 50 ms ahead."""
    return Explanation(
        ID,
        (
            hop("a", 0, step(1_000, to="b")),
            hop("b", 52_000, step(54_000, to="c"), follows=0, clock_ahead_us=50_000),
            hop("c", 5_000, step(10_000, "DELIVERED", recipient="echo"), follows=1),
        ),
        "delivered",
        ways=(way(answered_by=REPLY),),
    )


def reply() -> Explanation:
    return Explanation(
        REPLY,
        (
            hop("c", 10_000, step(11_000, to="b")),
            hop("b", 62_000, step(63_000, to="a"), follows=0, clock_ahead_us=50_000),
            hop("a", 15_000, step(20_000, "DELIVERED", recipient="request-1"), follows=1),
        ),
        "delivered",
        ways=(way(answers=ID),),
    )


def test_bars_are_on_one_axis_with_clocks_corrected() -> None:
    [fall] = waterfalls(request())
    assert fall.span_us == 10_000
    assert [(row.hop.node, row.left, row.width) for row in fall.rows] == [
        ("a", 0, 10), ("b", 20, 20), ("c", 50, 50),
    ]  # fmt: skip
    assert [(row.offset_us, row.stay_us) for row in fall.rows] == [
        (0, 1_000), (2_000, 2_000), (5_000, 5_000),
    ]  # fmt: skip
    assert fall.replies == []


def test_the_reply_is_below_on_the_same_axis() -> None:
    [fall] = waterfalls(request(), [reply()])
    assert fall.span_us == 20_000
    assert [row.hop.node for row in fall.rows + fall.replies] == ["a", "b", "c", "c", "b", "a"]
    assert [row.left for row in fall.replies] == [50, 60, 75]
    assert all(row.is_reply for row in fall.replies)


def test_a_reply_to_another_message_is_left_out() -> None:
    other = Explanation(REPLY, reply().hops, "", ways=(way(answers="c" * 32),))
    assert waterfalls(request(), [other])[0].replies == []


def test_the_topology_is_lit_there_and_back() -> None:
    assert stops(waterfalls(request(), [reply()])) == ["a", "b", "c", "", "c", "b", "a"]


def test_routes_are_told_in_names() -> None:
    session = "0#tcp-0123456789abcdef"
    there = Hop(
        "b", 1, BEGIN, (session, "0#echo"), (session, "0#request-0123456789abcdef"), None, 3, None,
        (step(1, to="c"),), (), True, None, follows=0,
    )  # fmt: skip
    explanation = Explanation(ID, (hop("a", 0, step(1, to="b")), there), "", ways=(way(),))
    first, second = waterfalls(explanation)[0].rows
    assert (first.onward, first.back) == ("x", "")
    assert (second.onward, second.back) == ("c → echo", "a → a request")


def test_a_message_ended_with_its_last_step_by_the_common_clock() -> None:
    [fall] = waterfalls(request(), [reply()])
    assert fall.ended == BEGIN + 10_000  # the reply, and a clock that is ahead, do not count


def test_a_path_that_branches_and_one_that_ends_on_the_way_are_lit() -> None:
    explanation = Explanation(
        ID,
        (
            hop("hub", 0, step(1, to="b"), step(2, to="c"), step(3, to="gone")),
            hop("b", 10, step(11, "DELIVERED"), follows=0),
            hop("c", 20, step(21, "DROPPED", reason="NO_ROUTE"), follows=0),
        ),
        "",
        ways=(way(),),
    )
    falls = waterfalls(explanation)
    assert stops(falls) == ["hub", "gone", "", "hub", "b", "", "hub", "c"]
    assert [row.is_dropped for row in falls[0].rows] == [False, False, True]
    assert [(row.came_from, row.is_branch) for row in falls[0].rows] == [
        ("", False), ("hub", False), ("hub", True),
    ]  # fmt: skip


@pytest.mark.parametrize("hops", [(), (hop("a", 0),), (hop("a", 0, step(-5)),)])
def test_a_message_that_took_no_time_is_drawn(hops: tuple[Hop, ...]) -> None:
    [fall] = waterfalls(Explanation(ID, hops, "", ways=(way(),)))
    assert isinstance(fall, Waterfall)
    assert [(row.left, row.width) for row in fall.rows] == [(0, NARROWEST)] * len(hops)


def test_ways_of_different_origins_have_rows_of_their_own() -> None:
    hops = (hop("a", 0, step(1)), hop("z", 0, step(1), way=1))
    falls = waterfalls(Explanation(ID, hops, "", ways=(way(), way(origin="z/1"))))
    assert [[row.hop.node for row in fall.rows] for fall in falls] == [["a"], ["z"]]
    assert all(fall.several for fall in falls)
