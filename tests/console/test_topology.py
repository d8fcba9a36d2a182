"""The picture of a fleet: where nodes are, and which lines connect them."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from waystation.console.fleet import State
from waystation.console.layout import MAX_LEAVES, Options, Picture
from waystation.console.topology import picture, transport_of
from waystation.node.status import SessionStatus, Snapshot


def session(peer: str | None, *, dialed: bool = False, **more: Any) -> SessionStatus:
    options = {"open": True, **more}
    return SessionStatus(f"tcp-{peer}", "1#10.0.0.9:1", peer, opened_here=dialed, **options)


def watched(name: str, *sessions: SessionStatus, state: State = State.HERE, **more: Any) -> Any:
    rates, gone = more.pop("rates", {}), more.pop("gone", {})
    traffic = more.pop("traffic", [])
    seen = Snapshot(
        node=name, at=0, uptime=0, counts={}, rates={}, bytes=0, bytes_rate=0, routes_total=0,
        routes=[], sessions_total=more.pop("total", len(sessions)), sessions=list(sessions),
        session_events={}, journal_lost=None, **more,
    )  # fmt: skip
    return SimpleNamespace(
        name=name, url=f"tcp://{name}:1", state=state, seen=seen, rates=rates, gone=gone,
        traffic=traffic,
    )  # fmt: skip


def columns(drawn: Picture) -> list[list[str]]:
    by_x: dict[float, list[str]] = {}
    for box in sorted(drawn.boxes, key=lambda box: (box.x, box.y)):
        by_x.setdefault(box.x, []).append(box.key)
    return list(by_x.values())


def test_a_node_is_to_the_right_of_those_it_connected_to() -> None:
    drawn = picture([
        watched("hub", session("truck"), session("gate"), hub=True),
        watched("gate", session("hub", dialed=True, parent=True), session("sensor")),
    ])  # fmt: skip
    assert columns(drawn) == [["hub"], ["gate", "truck"], ["sensor"]]
    kinds = {box.key: box.kind for box in drawn.boxes}
    assert kinds == {"hub": "hub", "gate": "node", "truck": "peer", "sensor": "peer"}
    assert {(line.left, line.right) for line in drawn.lines} == {
        ("hub", "gate"), ("hub", "truck"), ("gate", "sensor"),
    }  # fmt: skip


def test_boxes_do_not_overlap_and_are_inside_the_picture() -> None:
    drawn = picture([
        watched(f"hub-{n}", *(session(f"leaf-{n}-{m}") for m in range(5)), session("hub-0"))
        for n in range(4)
    ])  # fmt: skip
    assert len({(box.x, box.y) for box in drawn.boxes}) == len(drawn.boxes)
    assert all(0 < box.x < drawn.width and 0 < box.y < drawn.height for box in drawn.boxes)


def large_fleet() -> list[Any]:
    """Seven hubs that are connected to each other, and 500 leaves."""
    hubs = [f"hub-{number}" for number in range(7)]
    return [
        watched(
            hub,
            *(session(other, dialed=other < hub) for other in hubs if other != hub),
            *(session(f"leaf-{hub}-{number:03}") for number in range(71 + (hub <= "hub-2"))),
            hub=True,
        )
        for hub in hubs
    ]


def test_seven_hubs_and_500_leaves_are_hubs_in_order_and_one_box_of_leaves_each() -> None:
    drawn = picture(large_fleet())
    hubs = [box for box in drawn.boxes if box.kind == "hub"]
    assert columns(drawn)[0] == [f"hub-{number}" for number in range(7)]
    folds = [box for box in drawn.boxes if box.kind == "fold"]
    assert sum(box.count for box in folds) == drawn.leaves == 500
    assert len(drawn.boxes) == len(hubs) + len(folds) == 14
    assert drawn.height < 500
    assert len([line for line in drawn.lines if line.left in {hub.key for hub in hubs}]) == 21 + 7


def test_hubs_keep_their_places_whatever_leaves_come_and_go() -> None:
    def places(fleet: list[Any]) -> dict[str, tuple[float, float]]:
        return {box.key: (box.x, box.y) for box in picture(fleet).boxes if box.kind == "hub"}

    fleet = large_fleet()
    before = places(fleet)
    fleet[2].seen.sessions[20:] = []
    fleet[4].seen.sessions.append(session("another"))
    assert places(fleet) == before


def test_unfolded_leaves_are_drawn_without_overlap_those_in_trouble_first() -> None:
    fleet = large_fleet()
    fleet[1].seen.sessions.append(session("zz-slow", waiting=4))
    drawn = picture(fleet, options=Options(unfolded=frozenset({"hub-1"})))
    leaves = [box for box in drawn.boxes if box.kind == "leaf"]
    assert len(leaves) == 73
    assert min(leaves, key=lambda box: (box.y, box.x)).key == "zz-slow"
    [fold] = [box for box in drawn.boxes if box.of == "hub-1"]
    assert (fold.unfolded, fold.count, fold.trouble, fold.state) == (True, 73, 1, "trouble")
    for one in drawn.boxes:
        for other in drawn.boxes:
            apart = one.x + one.width <= other.x or one.y + one.height <= other.y
            turned = other.x + other.width <= one.x or other.y + other.height <= one.y
            assert one is other or apart or turned, (one.key, other.key)


def test_each_folded_leaf_is_a_dot_in_its_box() -> None:
    fleet = large_fleet()
    fleet[1].seen.sessions[-1] = session("zz-slow", waiting=4)
    fleet[1].gone["gone-1"] = 1.0
    [fold] = [box for box in picture(fleet).boxes if box.of == "hub-1"]
    assert {dots.state: dots.path.count("M") for dots in fold.dots} == {
        "here": 71, "slow": 1, "gone": 1,
    }  # fmt: skip
    for dots in fold.dots:
        for x, y in re.findall(r"M([\d.]+) ([\d.]+)h0", dots.path):
            assert fold.x < float(x) < fold.x + fold.width
            assert fold.y < float(y) < fold.y + fold.height


def test_where_there_are_too_many_leaves_a_dot_is_the_worst_of_several() -> None:
    leaves = [session(f"leaf-{number:04}", stalled=number == 77) for number in range(2_000)]
    [fold] = [box for box in picture([watched("hub", *leaves)]).boxes if box.kind == "fold"]
    drawn = {dots.state: dots.path.count("M") for dots in fold.dots}
    assert drawn["slow"] == 1
    assert 300 < drawn["here"] < 501


def test_leaves_on_a_path_are_drawn_although_the_others_are_folded() -> None:
    drawn = picture(large_fleet(), options=Options(shown=frozenset({"leaf-hub-3-007"})))
    assert "leaf-hub-3-007" in {box.key for box in drawn.boxes}
    assert ("hub-3", "leaf-hub-3-007") in {(line.left, line.right) for line in drawn.lines}
    assert sum(box.count for box in drawn.boxes) == 499


def test_sessions_that_were_not_listed_are_counted() -> None:
    sessions = [session(f"leaf-{number}") for number in range(MAX_LEAVES + 1)]
    drawn = picture([watched("hub", *sessions, total=len(sessions) + 100, hub=True)])
    [fold] = [box for box in drawn.boxes if box.kind == "fold"]
    assert fold.count == len(sessions) + 100 == drawn.leaves


def test_a_peer_that_disconnected_is_drawn_as_gone_unless_it_is_elsewhere() -> None:
    one = watched("one", session("truck-1"), hub=True, gone={"truck-2": 1.0, "truck-3": 1.0})
    two = watched("two", session("truck-3"), hub=True)
    drawn = picture([one, two])
    states = {box.key: box.state for box in drawn.boxes}
    assert states == {
        "one": "here", "two": "here", "truck-1": "here", "truck-2": "gone", "truck-3": "here",
    }  # fmt: skip
    assert drawn.trouble == 1
    assert {(line.left, line.right): line.state for line in drawn.lines}["one", "truck-2"] == "gone"


def test_a_line_tells_transport_rate_and_trouble() -> None:
    drawn = picture([
        watched(
            "hub", session("truck", waiting=40), session("van"), hub=True,
            rates={"tcp-truck": (12.0, 0.34), "tcp-van": (0.0, 0.52)},
        )
    ])  # fmt: skip
    assert {line.right: line.label for line in drawn.lines} == {
        "truck": "40 waiting", "van": "tcp · 0.5/s",
    }  # fmt: skip
    assert "hub to truck: tcp · 12/s · 40 waiting" in {line.title for line in drawn.lines}


def test_lines_are_as_thick_as_what_moves_over_them_and_show_where_to() -> None:
    drawn = picture([
        watched(
            "hub", session("busy"), session("calm"), session("idle"), session("up", dialed=True),
            hub=True,
            rates={"tcp-busy": (400.0, 30.0), "tcp-calm": (0.0, 0.3), "tcp-up": (0.0, 2.0)},
        )
    ])  # fmt: skip
    found = {(line.left, line.right): (line.weight, line.flows) for line in drawn.lines}
    assert found["hub", "busy"] == (4, ("left", "right"))  # in is towards the hub
    assert found["hub", "calm"] == (1, ("right",))
    assert found["hub", "idle"] == (0, ())
    assert found["hub", "up"] == (2, ("right",))


def test_nothing_flows_over_a_line_to_who_is_away() -> None:
    rates = {"tcp-truck": (5.0, 5.0)}
    [line] = picture([watched("hub", session("truck"), state=State.AWAY, rates=rates)]).lines
    assert (line.weight, line.flows) == (0, ())


def test_a_node_that_drops_says_how_much() -> None:
    drawn = picture([watched("hub", traffic=[(9.0, 0.5)]), watched("other", traffic=[])])
    assert {box.key: box.drops for box in drawn.boxes} == {"hub": 0.5, "other": 0}


def test_arcs_are_drawn_from_the_upper_hub_to_the_lower() -> None:
    drawn = picture(large_fleet())
    places = {box.key: box.y for box in drawn.boxes}
    arcs = [line for line in drawn.lines if line.right.startswith("hub-")]
    assert len(arcs) == 21
    assert all(places[line.left] < places[line.right] for line in arcs)


def test_folded_leaves_have_the_sum_of_their_rates() -> None:
    names = [f"leaf-{number}" for number in range(10)]
    rates = {f"tcp-{name}": (1.5, 0.5) for name in names}
    drawn = picture([watched("hub", *map(session, names), hub=True, rates=rates)])
    assert [line.label for line in drawn.lines] == ["tcp · 20/s"]


def test_the_console_itself_is_drawn_only_among_internals() -> None:
    fleet = [watched("hub", session("console"), session(None))]
    assert [box.key for box in picture(fleet, "console").boxes] == ["tcp 10.0.0.9:1", "hub"]
    drawn = picture(fleet, "console", Options(internals=True))
    assert "console" in {box.key for box in drawn.boxes}


def test_the_transport_of_an_unknown_kind_is_its_number() -> None:
    assert [transport_of(place) for place in ("1#a:1", "8#a:1", "99#x", "x")] == [
        "tcp", "http", "99", "",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("state", "more", "line"),
    [
        (State.HERE, {}, "open"),
        (State.HERE, {"waiting": 4}, "slow"),
        (State.HERE, {"stalled": True}, "slow"),
        (State.AWAY, {}, "away"),
    ],
)
def test_a_line_shows_the_state_of_the_connection(
    state: State, more: dict[str, Any], line: str
) -> None:
    drawn = picture([watched("hub", session("truck", **more), state=state)])
    assert [found.state for found in drawn.lines] == [line]


def test_nodes_that_connect_in_a_circle_are_drawn() -> None:
    names = ["a", "b", "c"]
    drawn = picture([
        watched(name, session(names[number - 1], dialed=True)) for number, name in enumerate(names)
    ])  # fmt: skip
    assert len(drawn.boxes) == len(drawn.lines) == 3
    assert len({(box.x, box.y) for box in drawn.boxes}) == 3


def test_a_node_without_a_status_is_drawn_with_its_url() -> None:
    away = SimpleNamespace(
        name="tcp://gone:1", url="tcp://gone:1", state=State.AWAY, seen=None, rates={}, gone={},
        traffic=[],
    )  # fmt: skip
    drawn = picture([away])  # type: ignore[list-item]
    assert [(box.key, box.state) for box in drawn.boxes] == [("tcp://gone:1", "away")]
    assert picture([]).boxes == []
