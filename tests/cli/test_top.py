"""`waystation top`: what a node tells of itself, for the eye, for lines and for programs."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from msgspec import structs
from rich.console import Console

from tests.cli.live_commands import PATIENCE, Commands, Served, served, started
from waystation import __version__
from waystation.cli.top import Watched, line, overview, picture
from waystation.demo.processes import WAYSTATION
from waystation.node.contested import ClaimsSnapshot, Contest, Standby
from waystation.node.links import CAPABILITIES
from waystation.node.status import RouteStatus, SessionStatus, Snapshot

HUB = """\
[node]
name = "hub"
hub = true
[[listen]]
url = "tcp://127.0.0.1:0"
[[worker]]
names = ["echo", "truck-7", "truck-8"]
handler = "waystation.config.workers:echo"
[status]
enabled = true
[[access]]
allow = ["top", "send"]
to = "*"
"""

SEEN = Snapshot(
    node="hub\x1b[2J",
    at=1_700_000_000_000,
    uptime=3_725.5,
    counts={"DELIVERED": 1_200, "NO_ROUTE": 3, "REFUSED": 30},
    rates={"DELIVERED": 12.5, "NO_ROUTE": 0.0, "REFUSED": 1.0},
    bytes=5_000,
    bytes_rate=100.0,
    routes_total=70,
    routes=[
        RouteStatus("echo", "0#echo", local=True),
        RouteStatus("[red]x[/red]", "0#a", local=False, expiry=1_700_000_005_000),
        RouteStatus("held", "0#b", local=False, visible=True, sticky=True),
    ],
    sessions_total=2,
    sessions=[
        SessionStatus(
            *("tcp-1", "1#127.0.0.1:1", "truck-7"),
            open=True,
            opened_here=False,
            waiting=4,
            version="0.2.0\x1b",
        ),
        SessionStatus("tcp-2", "1#127.0.0.1:2", None, open=False, opened_here=True),
    ],
    session_events={"opened": 5, "refused": 1},
    journal_lost=7,
    internal_drops={"NO_ROUTE": 4},
)


async def unasked() -> Snapshot:
    raise AssertionError("nobody asked")


def test_several_nodes_are_a_line_each_with_what_troubles_them() -> None:
    here, gone = Watched("tcp://a:1", unasked), Watched("tcp://b:1", unasked)
    here.seen = SEEN
    here.traffic.extend([(1.0, 0.0), (8.0, 2.0)])
    gone.problem = "no answer"
    out = StringIO()
    Console(file=out, width=160).print(overview([here, gone]))
    lines = out.getvalue().splitlines()
    assert "hub?[2J" in lines[1]
    assert "▂█" in lines[1]
    assert "journal lost 7" in lines[1]
    assert "tcp://b:1" in lines[2]
    assert "no answer" in lines[2]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capsys)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("hub"), HUB) as node:
        yield node


def test_the_picture_has_messages_sessions_and_routes() -> None:
    console = Console(file=StringIO(), width=100, force_terminal=False)
    console.print(picture(SEEN))
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    lines = [" ".join(row.split()) for row in text.splitlines()]
    head = "hub?[2J version 0.1 up 1:02:05 at 22:13:20Z 5,000 bytes (100/s) journal lost 7"
    assert head in lines
    rows = ["DELIVERED 1,200 12.5", "REFUSED 30 1.0", "NO_ROUTE 3 0.0"]
    assert [row for row in lines if row in rows] == rows  # the most frequent drops first
    assert "internal NO_ROUTE 4" in lines
    assert "sessions: 2 (opened 5, refused 1)" in lines
    assert "truck-7 no 0.2.0? tcp 127.0.0.1:1 open 4" in lines
    assert "- no - tcp 127.0.0.1:2 opening 0" in lines
    assert "routes: 3 of 70" in lines
    assert "echo this node yes -" in lines
    assert "[red]x[/red] a 0:00:05" in lines
    assert "held b yes sticky" in lines


def test_names_that_only_nodes_use_are_shown_if_asked_for() -> None:
    own = [
        RouteStatus(name, "0#x", local=True) for name in ("waystation.status", "tcp-" + "a" * 16)
    ]
    seen = structs.replace(SEEN, routes=[*own, *SEEN.routes])
    console = Console(file=StringIO(), width=100, force_terminal=False)
    console.print(picture(seen))
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    assert "routes: 3 of 70 (2 internal not shown)" in text
    assert "waystation.status" not in text
    console.print(picture(seen, internals=True))
    text = console.file.getvalue()
    assert "routes: 5 of 70" in text
    assert "waystation.status" in text
    assert "tcp-1" in text


@pytest.mark.rule("ID-2")
def test_proven_and_unproven_names_are_told_apart() -> None:
    proven = structs.replace(SEEN.sessions[0], identity="I" + "0123456789ab" * 5 + "0123")
    certified = structs.replace(proven, name="tcp-3", identity="certificate:truck-7")
    seen = structs.replace(SEEN, sessions=[proven, certified, SEEN.sessions[1]])
    console = Console(file=StringIO(), width=120, force_terminal=False)
    console.print(picture(seen))
    assert isinstance(console.file, StringIO)
    lines = [" ".join(row.split()) for row in console.file.getvalue().splitlines()]
    assert "truck-7 I0123456789a… 0.2.0? tcp 127.0.0.1:1 open 4" in lines
    assert "truck-7 certificate:truck-7 0.2.0? tcp 127.0.0.1:1 open 4" in lines
    assert "- no - tcp 127.0.0.1:2 opening 0" in lines


@pytest.mark.rule("ID-2")
def test_who_claims_a_contested_name_is_told_as_proven_or_unproven() -> None:
    standbys = (Standby("truck-7b", "tcp-2", proven=False), Standby("truck-7c", "tcp-3"))
    contest = Contest("truck-7", "truck-7a", "tcp-1", 1_699_999_990_000, standbys, proven=True)
    seen = structs.replace(
        SEEN, claims=ClaimsSnapshot(3, 2, 1), contested_total=1, contested=[contest]
    )
    console = Console(file=StringIO(), width=120, force_terminal=False)
    console.print(picture(seen))
    assert isinstance(console.file, StringIO)
    lines = [" ".join(row.split()) for row in console.file.getvalue().splitlines()]
    assert "truck-7 truck-7a (proven) truck-7b (unproven), truck-7c 0:00:10" in lines


@pytest.mark.rule("CL-4")
def test_contested_names_have_a_table_and_a_word_on_the_line() -> None:
    many = tuple(Standby(f"truck-7{letter}", "tcp-9") for letter in "bcde")
    seen = structs.replace(
        SEEN,
        claims=ClaimsSnapshot(70, 5, 12, 2, 9, 1, {"its path names this node": 3, "other": 1}),
        contested_total=12,
        contested=[
            Contest("truck-7", "truck-7a", "tcp-1", 1_699_999_990_000, many),
            Contest("[b]x", "here", "tcp-1", 1_700_000_000_000, (Standby("\x1b", "tcp-2"),)),
        ],
    )
    console = Console(file=StringIO(), width=120, force_terminal=False)
    console.print(picture(seen))
    assert isinstance(console.file, StringIO)
    lines = [" ".join(row.split()) for row in console.file.getvalue().splitlines()]
    assert (
        "claims: 70, 5 standing by, 12 names contested, 2 held back, 4 refused, 1 of 9 probes "
        "unanswered"
    ) in lines
    assert "contested names: 2 of 12" in lines
    assert "truck-7 truck-7a truck-7b, truck-7c, truck-7d and 1 more 0:00:10" in lines
    assert "[b]x here ? 0:00:00" in lines
    assert line(seen).endswith("; 2 sessions, 70 routes, 12 contested names")


@pytest.mark.parametrize("claims", [0, 70])
def test_claims_that_nobody_contests_are_counted_and_need_no_table(claims: int) -> None:
    console = Console(file=StringIO(), width=120, force_terminal=False)
    console.print(picture(structs.replace(SEEN, claims=ClaimsSnapshot(claims))))
    assert isinstance(console.file, StringIO)
    shown = console.file.getvalue()
    assert ("claims: 70, 0 standing by, 0 names contested, 0 held back" in shown) == bool(claims)
    assert "contested names" not in shown


def test_a_line_says_it_shortly() -> None:
    assert line(SEEN) == (
        "hub?[2J 1:02:05: DELIVERED 1200 (12.5/s), REFUSED 30 (1/s), NO_ROUTE 3 (0/s); "
        "2 sessions, 70 routes"
    )


def test_a_single_look_is_a_picture_or_json(hub: Served, call: Commands) -> None:
    assert call("send", "echo", "hello", "--via", hub.url, "--request")[0] == 0
    code, out, err = call("top", hub.url, "--once")
    assert (code, err) == (0, "")
    assert "DELIVERED" in out
    assert "truck-8" in out
    code, out, err = call("top", hub.url, "--once", "--json", "--filter", "truck-*")
    told = json.loads(out)
    assert (code, err) == (0, "")
    assert [route["participant"] for route in told["routes"]] == ["truck-7", "truck-8"]
    assert told["counts"]["DELIVERED"] >= 1
    [asking] = [session for session in told["sessions"] if session["peer"] == "top"]
    assert asking["version"] == told["version"] == __version__
    assert asking["can"] == list(CAPABILITIES)


def test_several_nodes_are_looked_at_together(hub: Served, call: Commands) -> None:
    nobody = "tcp://127.0.0.1:1"
    code, out, err = call("top", hub.url, nobody, "--once", "--json", "--timeout", "1")
    assert code == 0
    assert [json.loads(line)["node"] for line in out.splitlines()] == ["hub"]
    assert nobody in err
    code, out, _ = call("top", hub.url, nobody, "--once", "--timeout", "1")
    assert code == 0
    assert "hub" in out
    assert "messages/s" in out


def test_away_from_a_terminal_it_prints_lines_until_told_to_end(hub: Served) -> None:
    with started("top", hub.url, "--interval", "0.05", ready="hub ") as (process, _):
        assert process.stdout
        assert process.stdout.readline().startswith("hub ")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0


def test_in_a_terminal_it_draws_over_what_was_there(hub: Served) -> None:
    terminal, own = pty.openpty()
    with subprocess.Popen(
        [*WAYSTATION, "top", hub.url, "--interval", "0.05"],
        stdout=own,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100", "LINES": "40"},
    ) as process:
        os.close(own)
        try:
            drawn = b""
            while drawn.count(b"routes: ") < 2:
                assert select.select([terminal], [], [], PATIENCE)[0]
                drawn += os.read(terminal, 65_536)
            assert b"\x1b[?1049h" in drawn  # the other screen of the terminal
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(OSError):  # what a terminal that nobody uses answers
                while left := os.read(terminal, 65_536):
                    drawn += left
            assert process.wait(PATIENCE) == 0
            assert b"\x1b[?1049l" in drawn
        finally:
            process.kill()
            os.close(terminal)


def test_a_node_that_comes_back_is_watched_on(tmp_path: Path) -> None:
    with served(tmp_path, HUB) as first:
        url = first.url
        arguments = ("top", url, "--interval", "0.05", "--timeout", "4", "--json")
        with started(*arguments, ready='"node"') as (process, _):
            assert process.stdout
            first.stop()
            assert any("cannot get the status of" in told for told in process.stdout)
            with served(tmp_path, HUB.replace("tcp://127.0.0.1:0", url)):
                lines = (told for told in process.stdout if told.startswith("{"))
                uptimes = [json.loads(next(lines))["uptime"] for _ in range(2)]
                assert uptimes[0] < uptimes[1]
                process.send_signal(signal.SIGTERM)
                process.stdout.read()
                assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize("name", ["top", "spy"])
def test_a_node_that_does_not_tell_is_one_line(
    hub: Served, call: Commands, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if name == "spy":  # the access rules of this hub do not know it
        code, out, err = call("top", hub.url, "--once", "--name", "spy")
    else:
        silent = HUB.replace("enabled = true", "enabled = false")
        with served(tmp_path_factory.mktemp("silent"), silent) as node:
            code, out, err = call("top", node.url, "--once", "--timeout", "20")
    assert (code, out) == (1, "")
    assert "cannot get the status of" in err
    assert ("REFUSED" if name == "spy" else "NO_ROUTE") in err
    assert len(err.splitlines()) == 1
