"""The picture of a fleet: where nodes are, and which lines connect them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from waystation.console.fleet import State
from waystation.console.topology import MAX_COLUMNS, MAX_PEERS, Picture, picture
from waystation.node.status import SessionStatus, Snapshot


def session(peer: str | None, *, dialed: bool = False, **more: Any) -> SessionStatus:
    options = {"open": True, **more}
    return SessionStatus("tcp-1", "1#10.0.0.9:1", peer, opened_here=dialed, **options)


def watched(name: str, *sessions: SessionStatus, state: State = State.HERE, **more: Any) -> Any:
    seen = Snapshot(
        node=name, at=0, uptime=0, counts={}, rates={}, bytes=0, bytes_rate=0, routes_total=0,
        routes=[], sessions_total=more.pop("total", len(sessions)), sessions=list(sessions),
        session_events={}, journal_lost=None, **more,
    )  # fmt: skip
    return SimpleNamespace(name=name, url=f"tcp://{name}:1", state=state, seen=seen)


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


def test_many_peers_are_drawn_as_a_number() -> None:
    sessions = [session(f"leaf-{number}") for number in range(MAX_PEERS + 3)]
    drawn = picture([watched("hub", *sessions, total=len(sessions) + 100)])
    [more] = [box for box in drawn.boxes if box.kind == "more"]
    assert more.hidden == 103
    assert len(drawn.boxes) == 1 + MAX_PEERS + 1


def test_the_console_itself_is_not_drawn() -> None:
    drawn = picture([watched("hub", session("console"), session(None))], "console")
    assert [box.key for box in drawn.boxes] == ["hub", "1#10.0.0.9:1"]


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
    assert len(columns(drawn)) <= MAX_COLUMNS


def test_a_node_without_a_status_is_drawn_with_its_url() -> None:
    away = SimpleNamespace(name="tcp://gone:1", url="tcp://gone:1", state=State.AWAY, seen=None)
    drawn = picture([away])  # type: ignore[list-item]
    assert [(box.key, box.state) for box in drawn.boxes] == [("tcp://gone:1", "away")]
    assert picture([]).boxes == []
