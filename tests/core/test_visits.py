"""The way of one message: which visit follows which, and what became of each copy."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.core.journeys import BEGIN, LATER, MESSAGE, MINUTE, SECOND, Journey
from waystation.core.coverage import Life
from waystation.core.visits import (
    DAY,
    VANISHED,
    Evidence,
    Fate,
    Step,
    Trace,
    last_name,
    step_of,
    tied,
    trace_of,
    traced,
)

HOUR = 60 * MINUTE
COVERED = {name: [Life(1, 0, LATER)] for name in ("a", "b", "c", "hub", "hub-2")}


def evidence(roles: dict[tuple[str, str], str] | None = None, **lives: list[Life]) -> Evidence:
    return Evidence(
        role=lambda node, _incarnation, session: (roles or {}).get((node, session)),
        lives={**COVERED, **lives},
    )


class Rows:
    """Rows of one message, in the order in which they are written, a second apart."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def add(self, node: str, received: int, outcome: str, **columns: Any) -> Rows:
        columns = {
            "incarnation": 1,
            "at": BEGIN + (received + 1) * SECOND,
            "version": 2,
            "onward": ("0#sink",),
            "recipient": "sink",
            **columns,
        }
        seq = len(self.steps) + 1
        when = BEGIN + received * SECOND
        self.steps.append(Step(node=node, seq=seq, received_at=when, outcome=outcome, **columns))
        return self

    def traces(self, known: Evidence | None = None) -> list[Trace]:
        return traced(MESSAGE, reversed(self.steps), known or evidence())

    def trace(self, known: Evidence | None = None) -> Trace:
        [found] = self.traces(known)
        return found


def fates(trace: Trace) -> list[Fate]:
    return [fate for visit in trace.visits for fate in visit.fates]


def way(trace: Trace) -> list[tuple[str, int | None, int]]:
    return [(visit.node, visit.follows, visit.rule) for visit in trace.visits]


# Any journey


@given(st.integers(0, 2**32))
def test_every_journey_is_told_as_it_was(seed: int) -> None:
    journey = Journey(seed)
    rows = list(journey.steps)
    Random(seed).shuffle(rows)
    [trace] = traced(MESSAGE, rows, journey.evidence)
    assert trace.origin == journey.origin
    assert len(trace.visits) == len(journey.truth)
    for visit in trace.visits:
        true = journey.truth[visit.node, visit.received_at]
        former = None if visit.follows is None else trace.visits[visit.follows]
        assert true.follows == (None if former is None else (former.node, former.received_at))
        assert list(visit.fates) == true.fates
        assert visit.depth == (0 if former is None else former.depth + 1)
    order = [visit.depth for visit in trace.visits]
    assert order == sorted(order)
    assert trace_of(trace.origin, list(trace.visits), list(trace.losses)) == trace


@given(st.integers(0, 2**32))
def test_what_is_counted_adds_up(seed: int) -> None:
    journey = Journey(seed)
    [trace] = traced(MESSAGE, journey.steps, journey.evidence)
    became = fates(trace)
    assert trace.delivered == became.count(Fate.DELIVERED)
    assert trace.unknown_copies == became.count(Fate.UNKNOWN)
    assert trace.left_fleet == became.count(Fate.LEFT)
    assert trace.lost_copies == len(trace.losses) == len({loss.recipient for loss in trace.losses})
    assert trace.hops == len(trace.visits) - 1
    assert trace.started <= trace.ended
    assert 0 <= trace.latency <= trace.ended - trace.started
    got = {s.recipient for s in journey.steps if s.outcome == "DELIVERED"}
    assert not got & {loss.recipient for loss in trace.losses}
    assert (trace.outcome == "DROPPED") == bool(trace.losses)
    last = trace.last_loss
    assert (None if last is None else last.reason) == trace.reason
    assert last is None or trace.visits[last.visit].node == trace.place
    assert trace.waiting == became.count(Fate.WAITING)
    open_ends = trace.losses or trace.unknown_copies or trace.waiting
    assert trace.complete == (not open_ends)
    for loss in trace.losses:
        visit = trace.visits[loss.visit]
        fate = visit.fates[loss.step]
        wanted = {Fate.VANISHED: VANISHED, Fate.DROPPED: visit.steps[loss.step].reason}
        assert loss.reason == wanted[fate]


@given(st.integers(0, 2**32))
def test_without_what_version_two_tells_the_visits_follow_as_well(seed: int) -> None:
    journey = Journey(seed)
    assume(not any(step.from_global for step in journey.steps))  # of which version 1 told nothing
    rows = [
        replace(s, version=1, via=None, from_node=None, out=None, next_node=None, origin=None)
        for s in journey.steps
    ]
    [trace] = traced(MESSAGE, rows, journey.evidence)
    for visit in trace.visits:
        true = journey.truth[visit.node, visit.received_at]
        former = None if visit.follows is None else trace.visits[visit.follows]
        assert true.follows == (None if former is None else (former.node, former.received_at))


# Which visit follows which


def there(**columns: Any) -> dict[str, Any]:
    return {"out": "tcp-1", "next_node": "b", "origin": "a/1", **columns}


def here(**columns: Any) -> dict[str, Any]:
    return {"via": "tcp-2", "from_node": "a", "back": ("0#tcp-2",), **columns}


def test_of_several_that_fit_the_latest_before_it_counts() -> None:
    rows = Rows()
    for received in (0, 2, 6):
        rows.add("a", received, "FORWARDED", **there())
    rows.add("b", 4, "DELIVERED", **here())
    trace = rows.trace()
    assert [visit.received_at for visit in trace.visits if visit.fates == (Fate.PASSED_ON,)] == [
        BEGIN + 2 * SECOND
    ]


def test_if_all_were_received_later_the_earliest_counts() -> None:
    rows = Rows().add("a", 6, "FORWARDED", **there()).add("a", 8, "FORWARDED", **there())
    trace = rows.add("b", 4, "DELIVERED", **here()).trace()
    assert trace.visits[2].follows == 0
    assert trace.visits[0].received_at == BEGIN + 6 * SECOND


@pytest.mark.parametrize(
    ("columns", "follows"),
    [
        ({}, True),
        ({"from_global": False}, False),
        ({"via": "tcp-9"}, False),
        ({"onward": ("255#a/other",)}, False),
        ({"via": None}, False),
    ],
)
def test_over_a_broker_both_sides_know_it_as_global(columns: dict[str, Any], follows: bool) -> None:
    roles = {("a", "mqtt-1"): "global", ("b", "mqtt-2"): "global"}
    about = {"onward": ("255#a/news",), "multicast_id": "a/news"}
    rows = Rows().add("a", 0, "FORWARDED", out="mqtt-1", origin="a/1", **about, recipient=None)
    rows.add("a", 0, "DROPPED", reason="QUEUE_FULL", out="mqtt-1", origin="a/1", **about)
    for received in (4, 5):
        came = {"via": "mqtt-2", "from_global": True, **about, **columns}
        rows.add("b", received, "DELIVERED", **came)
    trace = rows.trace(evidence(roles))
    assert [visit.rule for visit in trace.visits] == ([0, 3, 3] if follows else [0, 0, 0])
    assert trace.visits[0].fates[0] == (Fate.PASSED_ON if follows else Fate.LEFT)


def test_a_visit_that_came_from_the_broker_does_not_follow_another_such() -> None:
    roles = {("a", "mqtt-1"): "global", ("b", "mqtt-2"): "global"}
    rows = Rows().add("a", 0, "FORWARDED", out="mqtt-1", from_global=True, via="mqtt-1")
    trace = rows.add("b", 4, "DELIVERED", via="mqtt-2", from_global=True).trace(evidence(roles))
    assert [visit.follows for visit in trace.visits] == [None, None]


def test_a_visit_with_an_origin_follows_only_what_its_own_node_sent_on() -> None:
    rows = Rows().add("a", 0, "FORWARDED", **there())
    rows.add("b", 4, "DELIVERED", back=("0#tcp-2",), via="tcp-2", origin="b/1")
    first, second = rows.traces()
    assert (first.origin, second.origin) == ("a/1", "b/1")
    assert fates(first) == [Fate.VANISHED]
    rows = Rows().add("a", 0, "DELIVERED", onward=("0#w", "0#sink"), recipient="w", origin="a/1")
    rows.add("a", 2, "DELIVERED", back=("0#w",), origin="a/1")
    assert way(rows.trace()) == [("a", None, 0), ("a", 0, 1)]


def test_the_longest_return_route_counts_when_a_node_between_is_silent() -> None:
    rows = Rows().add("a", 0, "FORWARDED", **there(next_node="hub"))
    rows.add("hub", 2, "FORWARDED", out="tcp-3", next_node="quiet", **here())
    rows.add("c", 9, "DELIVERED", via="tcp-5", from_node="quiet", back=("0#5", "0#4", "0#tcp-2"))
    assert way(rows.trace()) == [("a", None, 0), ("hub", 0, 2), ("c", 1, 4)]


def test_a_copy_for_a_silent_node_is_that_which_arrives_from_a_node_that_nobody_named() -> None:
    rows = Rows().add("a", 0, "FORWARDED", **there(next_node="hub"))
    rows.add("a", 0, "FORWARDED", **there(out="tcp-9", next_node="quiet"))
    rows.add("c", 9, "DELIVERED", via="tcp-5", from_node="other", back=("0#5", "0#4"))
    trace = rows.trace()
    assert way(trace) == [("a", None, 0), ("c", 0, 4)]
    assert fates(trace) == [Fate.VANISHED, Fate.PASSED_ON, Fate.DELIVERED]


# Origins


def test_visits_of_unknown_origin_belong_to_the_only_known_one() -> None:
    rows = Rows().add("a", 0, "DELIVERED", origin="a/1")
    rows.add("b", 4, "DELIVERED", from_node="gone", via="x", back=("0#x",), onward=("0#else",))
    assert rows.trace().origin == "a/1"
    rows.add("c", 9, "DELIVERED", origin="c/1")
    assert {trace.origin for trace in rows.traces()} == {"a/1", "c/1", None}


def test_rows_a_day_apart_are_another_trace() -> None:
    rows = Rows().add("a", 0, "DELIVERED", origin="a/1")
    rows.add("a", DAY // SECOND, "DELIVERED", origin="a/1")
    assert len(rows.traces()) == 1
    rows.add("a", 2 * DAY // SECOND + 1, "DELIVERED", origin="a/1")
    assert [len(trace.visits) for trace in rows.traces()] == [2, 1]
    assert traced(MESSAGE, [], evidence()) == []


# What became of it


@pytest.mark.parametrize(
    ("columns", "lives", "fate"),
    [
        ({}, {}, Fate.VANISHED),
        ({}, {"b": [Life(1, 0, BEGIN)]}, Fate.UNKNOWN),
        ({"next_node": "quiet"}, {}, Fate.LEFT),
        ({"next_node": None}, {}, Fate.LEFT),
        ({"next_node": None, "version": 1}, {}, Fate.UNKNOWN),
        ({"next_node": None, "out": "mqtt-1"}, {}, Fate.LEFT),
    ],
)
def test_a_copy_that_nothing_follows(
    columns: dict[str, Any], lives: dict[str, list[Life]], fate: Fate
) -> None:
    rows = Rows().add("a", 0, "FORWARDED", **there(**columns))
    trace = rows.trace(evidence({("a", "mqtt-1"): "global"}, **lives))
    assert fates(trace) == [fate]
    assert trace.complete is (fate is Fate.LEFT)
    if fate is Fate.VANISHED:
        assert (trace.outcome, trace.reason, trace.place) == ("DROPPED", VANISHED, "a")
    else:
        assert (trace.outcome, trace.reason, trace.place) == ("FORWARDED", None, "a")


def test_a_copy_for_several_receivers_counts_once() -> None:
    rows = Rows()
    for name in ("x", "y"):
        rows.add("a", 0, "FORWARDED", **there(next_node="quiet", recipient=name, copy=0))
    assert rows.trace().left_fleet == 1


def test_copies_for_one_node_are_paired_with_visits_in_order() -> None:
    rows = Rows()
    about = {"multicast_id": "a/news", "onward": ("255#a/news",)}
    for at, name in ((1, "x"), (2, "y"), (3, "z")):
        left = there(out=f"tcp-{name}", recipient=name, at=BEGIN + at * SECOND, **about)
        rows.add("a", 0, "FORWARDED", **left)
    for received in (4, 5):
        came = {"via": f"s{received}", "from_node": "a", "back": (f"0#s{received}",), **about}
        rows.add("b", received, "DELIVERED", recipient="x", **came)
    trace = rows.trace()
    assert trace.visits[0].fates == (Fate.PASSED_ON, Fate.PASSED_ON, Fate.VANISHED)
    assert [loss.recipient for loss in trace.losses] == ["z"]


@pytest.mark.parametrize(
    ("ends", "expiry", "fate", "outcome"),
    [
        (None, None, Fate.WAITING, "QUEUED"),
        (None, LATER + 1, Fate.WAITING, "QUEUED"),
        (None, LATER, Fate.EXPIRED, "DROPPED"),
        (BEGIN + HOUR, None, Fate.VANISHED, "DROPPED"),
        (BEGIN + HOUR, BEGIN + 2 * HOUR, Fate.VANISHED, "DROPPED"),
        (BEGIN + HOUR, BEGIN + HOUR, Fate.EXPIRED, "DROPPED"),
    ],
)
def test_a_waiting_that_nothing_settles(
    ends: int | None, expiry: int | None, fate: Fate, outcome: str
) -> None:
    trace = (
        Rows()
        .add("a", 0, "QUEUED", expiry=expiry)
        .trace(evidence(None, a=[Life(7, 0, 1), Life(1, 0, LATER, ends)]))
    )
    assert (fates(trace), trace.outcome, trace.complete) == ([fate], outcome, False)


@pytest.mark.parametrize(
    ("expiry", "fate"),
    [(None, Fate.WAITING), (LATER + 1, Fate.WAITING), (LATER, Fate.EXPIRED)],
)
def test_a_durable_message_outlives_the_process_that_it_waits_in(
    expiry: int | None, fate: Fate
) -> None:
    lives = [Life(1, 0, BEGIN, BEGIN + 1), Life(2, BEGIN + 2, LATER)]
    rows = Rows().add("a", 0, "QUEUED", expiry=expiry, durable=True)
    assert fates(rows.trace(evidence(None, a=lives))) == [fate]


def test_without_any_record_of_its_node_it_is_waiting() -> None:
    assert fates(Rows().add("quiet", 0, "QUEUED").trace()) == [Fate.WAITING]


def test_a_message_that_waited_enters_anew_and_is_no_loop() -> None:
    rows = Rows().add("a", 0, "FORWARDED", **there())
    rows.add("b", 3, "QUEUED", **here()).add("b", 8, "DELIVERED", **here())
    trace = rows.trace()
    assert fates(trace) == [Fate.PASSED_ON, Fate.SETTLED, Fate.DELIVERED]
    assert (trace.visits[2].settles, trace.looped, trace.complete) == (1, False, True)


def test_a_message_kept_over_a_restart_is_of_its_first_origin() -> None:
    rows = Rows().add("b", 0, "DELIVERED", onward=("0#other",), recipient="other", origin="b/1")
    rows.add("a", 3, "QUEUED", origin="a/1")
    rows.add("a", 8, "DELIVERED", incarnation=2, origin="a/2", back=("0#durable",))
    first, second = rows.traces()
    assert (first.origin, second.origin) == ("b/1", "a/1")
    assert fates(second) == [Fate.SETTLED, Fate.DELIVERED]


def test_each_receiver_of_a_multicast_waits_for_itself() -> None:
    about = {"multicast_id": "a/news", "onward": ("255#a/news",)}
    rows = Rows().add("a", 0, "QUEUED", recipient="x", **about)
    rows.add("a", 0, "DELIVERED", recipient="y", **about)
    assert fates(rows.trace()) == [Fate.WAITING, Fate.DELIVERED]
    assert not rows.trace().complete


def test_another_visit_does_not_settle_a_waiting_of_another_route_or_node() -> None:
    rows = Rows().add("a", 0, "QUEUED", via="tcp-1", back=("0#tcp-1",))
    rows.add("a", 5, "DELIVERED", via="tcp-7", back=("0#tcp-7",)).add("b", 6, "DELIVERED")
    assert fates(rows.trace())[0] is not Fate.SETTLED or rows.trace().visits[0].node != "a"
    assert rows.trace().waiting == 1


def test_delivered_in_version_one_may_have_been_handed_to_a_session() -> None:
    rows = Rows().add("a", 0, "DELIVERED", version=1, recipient="x")
    rows.add("a", 0, "DELIVERED", version=1, recipient="y")
    rows.add("b", 4, "DELIVERED", version=1, recipient="y", back=("0#tcp-2",))
    trace = rows.trace()
    assert fates(trace) == [Fate.DELIVERED, Fate.PASSED_ON, Fate.DELIVERED]
    assert trace.delivered == 2


# Losses


def test_a_loss_is_told_once_for_each_recipient_who_got_nothing() -> None:
    about = {"multicast_id": "a/news", "onward": ("255#a/news",)}
    rows = Rows()
    rows.add("a", 0, "DROPPED", reason="QUEUE_FULL", recipient="x", **about)
    rows.add("a", 0, "DROPPED", reason="QUEUE_FULL", recipient="y", **about)
    rows.add("b", 3, "DELIVERED", recipient="x", **about)
    rows.add("b", 5, "DROPPED", reason="TRANSPORT_DOWN", recipient="y", **about)
    rows.add("b", 7, "DROPPED", reason="DUPLICATE", recipient="z", **about)
    trace = rows.trace()
    assert [(loss.recipient, loss.reason) for loss in trace.losses] == [("y", "TRANSPORT_DOWN")]
    assert (trace.outcome, trace.reason, trace.place) == ("DROPPED", "TRANSPORT_DOWN", "b")


def test_a_copy_upward_is_lost_only_if_no_other_left() -> None:
    about = {"multicast_id": "a/news", "onward": ("255#a/news",), "recipient": None}
    down = {"reason": "TRANSPORT_DOWN", "out": "tcp-1", **about}
    rows = Rows().add("a", 0, "DROPPED", **down)
    assert rows.trace().lost_copies == 1
    rows.add("a", 0, "FORWARDED", out="tcp-2", **about)
    assert rows.trace().lost_copies == 0


def test_nobody_subscribed_is_a_loss_only_if_nobody_got_it() -> None:
    about = {"multicast_id": "a/news", "onward": ("255#a/news",)}
    nobody = {"reason": "NO_SUBSCRIBER", "recipient": None, **about}
    rows = Rows().add("a", 0, "DROPPED", **nobody).add("b", 4, "DROPPED", **nobody)
    assert [loss.reason for loss in rows.trace().losses] == ["NO_SUBSCRIBER"]
    rows.add("c", 8, "DELIVERED", **about)
    assert rows.trace().losses == ()


def test_of_version_one_a_drop_is_for_the_last_name() -> None:
    rows = Rows().add("a", 0, "DROPPED", reason="NO_ROUTE", version=1, recipient=None)
    assert rows.trace().losses[0].recipient == "sink"
    rows.add("a", 4, "DELIVERED", version=1)
    assert rows.trace().losses == ()


def test_only_second_copies_are_dropped_all_the_same() -> None:
    trace = Rows().add("a", 0, "DROPPED", reason="DUPLICATE").trace()
    assert (trace.outcome, trace.reason, trace.lost_copies) == ("DROPPED", "DUPLICATE", 0)
    assert trace.complete


def test_a_waiting_that_ended_in_another_trace_is_told_as_it_is() -> None:
    rows = Rows().add("a", 0, "QUEUED", origin="a/1")
    rows.add("b", 2, "FORWARDED", origin="b/1", out="tcp-9", next_node="a", onward=("0#sink",))
    rows.add("a", 5, "DELIVERED", from_node="b", via=None, back=("0#tcp-1",))
    first, second = rows.traces()
    assert (first.outcome, first.place, second.outcome) == ("QUEUED", "a", "DELIVERED")


def test_a_message_that_comes_again_along_the_same_route_is_in_a_loop() -> None:
    rows = Rows().add("a", 0, "FORWARDED", **there())
    rows.add("b", 2, "FORWARDED", out="tcp-3", next_node="a", **here())
    rows.add("a", 4, "DROPPED", reason="HOP_LIMIT", **here(back=("0#5", "0#tcp-2"), from_node="b"))
    assert rows.trace().looped
    assert way(rows.trace()) == [("a", None, 0), ("b", 0, 2), ("a", 1, 2)]


# Names


def test_the_recipient_is_the_last_name_of_the_first_route() -> None:
    rows = Rows().add("a", 0, "DELIVERED", onward=("0#hub", "0#sink", "1#h:1"), recipient="hub")
    assert rows.trace().recipient == "sink"
    assert Rows().add("a", 0, "FORWARDED", onward=("1#h:1",)).trace().recipient == "sink"
    heard = Rows().add("a", 0, "DELIVERED", multicast_id="a/news")
    assert (heard.trace().recipient, heard.trace().multicast_id) == (None, "a/news")
    assert last_name([]) is None


def test_a_row_becomes_a_step() -> None:
    row = {
        "node": "a", "incarnation": 1, "seq": 2, "at": 3, "received_at": 4, "kind": "unicast",
        "onward": ["0#x"], "return": None, "outcome": "DELIVERED", "unknown": 1, "internal": True,
    }  # fmt: skip
    step = step_of(row)
    assert (step.onward, step.back, step.version) == (("0#x",), (), 1)
    assert traced(MESSAGE, [step], evidence())[0].internal


# Answers


def leg(nodes: str, start: int, **columns: Any) -> Trace:
    """A message over some nodes."""
    rows = Rows()
    back: tuple[str, ...] = ()
    for place, node in enumerate(nodes):
        at = start + 2 * place
        more = dict(columns) if place == 0 else {}
        if place:
            back = (f"0#s{place}", *back)
            more = {"via": f"s{place}", "from_node": nodes[place - 1]}
        if place == len(nodes) - 1:
            rows.add(node, at, "DELIVERED", back=back, **more)
        else:
            left = {"out": f"o{place}", "next_node": nodes[place + 1]}
            rows.add(node, at, "FORWARDED", back=back, **left, **more)
    return rows.trace()


@pytest.mark.parametrize(("back", "same"), [("cba", True), ("ca", False), ("cbba", True)])
def test_an_answer_is_tied_to_its_request(back: str, same: bool) -> None:
    request = leg("abc", 0, origin="a/1")
    answer = leg(back, 20, origin="c/1", answers="1" * 32)
    later = leg("c", 30, origin="c/1", answers="1" * 32)
    found = tied({"3" * 32: [later], "2" * 32: [answer], "1" * 32: [request]})
    [told] = found["1" * 32]
    assert (told.answered_by, told.legs, told.symmetric) == ("2" * 32, 3, same)
    assert found["2" * 32] == [answer]


def test_an_answer_belongs_to_the_trace_that_came_where_it_began() -> None:
    one, other = leg("ab", 0, origin="a/1"), leg("c", 0, origin="c/1")
    answer = leg("ba", 20, origin="b/1", answers="1" * 32)
    found = tied({"1" * 32: [one, other], "2" * 32: [answer]})["1" * 32]
    assert [trace.answered_by for trace in found] == ["2" * 32, None]


def test_with_a_silent_node_between_nobody_knows_whether_the_ways_are_the_same() -> None:
    rows = Rows().add("a", 0, "FORWARDED", **there(next_node="quiet"))
    rows.add("b", 4, "DELIVERED", via="s", from_node="quiet", back=("0#s", "0#r"))
    request = rows.trace()
    answer = leg("ba", 20, origin="b/1", answers="1" * 32)
    assert tied({"1" * 32: [request], "2" * 32: [answer]})["1" * 32][0].symmetric is None
    late = leg("ba", 20, from_node="quiet", via="x", answers="1" * 32)
    plain = leg("ab", 0, origin="a/1")
    assert tied({"1" * 32: [plain], "2" * 32: [late]})["1" * 32][0].symmetric is None


def test_rows_of_version_one_that_follow_directly_leave_no_gap() -> None:
    rows = Rows().add("a", 0, "FORWARDED", version=1)
    rows.add("b", 4, "DELIVERED", version=1, back=("0#s",))
    answer = leg("ba", 20, origin="b/1", answers="1" * 32)
    assert tied({"1" * 32: [rows.trace()], "2" * 32: [answer]})["1" * 32][0].symmetric is True
