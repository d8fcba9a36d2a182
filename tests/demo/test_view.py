"""The display of the fleet: a live table in a terminal, lines otherwise."""

from __future__ import annotations

import io
from collections import Counter

from rich.console import Console

from waystation.demo.view import Lines, LiveView, Picture, view_on

PICTURE = Picture(
    {"hub-a": "tcp, ws", "truck-2": "ws", "broker": "MQTT"},
    frozenset({"truck-2"}),
    {"hub-a": Counter(DELIVERED=1_200, FORWARDED=30, NO_ROUTE=7)},
    {"hub-a": {"DELIVERED": 55.2, "FORWARDED": 4.0, "NO_ROUTE": 2.6}},
)


def console(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=110, color_system=None)


def printed(on: Console) -> str:
    assert isinstance(on.file, io.StringIO)
    return on.file.getvalue()


def test_a_terminal_gets_a_table_and_anything_else_gets_lines() -> None:
    assert isinstance(view_on(console(terminal=True)), LiveView)
    assert isinstance(view_on(console(terminal=False)), Lines)


def test_a_message_is_a_line_with_its_time() -> None:
    on = console(terminal=False)
    with Lines(on) as lines:
        lines.say("on purpose: [bold] is no markup")
    assert printed(on).endswith(" s  on purpose: [bold] is no markup\n")


def test_traffic_is_printed_at_most_once_per_interval() -> None:
    on = console(terminal=False)
    with Lines(on, every=3_600.0) as lines:
        lines.draw(PICTURE)
    assert printed(on) == ""
    with Lines(on, every=0.0) as lines:
        lines.draw(PICTURE)
        lines.draw(Picture({}, frozenset(), {}, {}))
    [line] = printed(on).splitlines()
    assert line.endswith("1,200 delivered, 30 forwarded, 7 dropped (NO_ROUTE 7)")


def test_the_table_shows_rates_drops_and_absent_nodes() -> None:
    on = console(terminal=True)
    with LiveView(on) as live:
        live.draw(PICTURE)
        live.say("fault: truck-2 is killed")
    shown = printed(on)
    rows = {line.split()[0]: line.split()[1:] for line in shown.splitlines() if line.split()}
    assert rows["hub-a"] == ["tcp,", "ws", "55", "4", "3", "NO_ROUTE", "7"]
    assert rows["truck-2"] == ["ws", "away"]
    assert rows["broker"] == ["MQTT"]
    assert "fault: truck-2 is killed" in shown
