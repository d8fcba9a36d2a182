"""Mistakes that people make at the command line: each is told in one line that says what to do."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

import pytest

from tests.cli.live_commands import PATIENCE, Commands, started
from waystation.demo.processes import WAYSTATION
from waystation.journal import Journal


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capsys)


@pytest.mark.parametrize("group", ["journal", "pipeline"])
def test_a_group_alone_says_what_there_is(group: str, call: Commands) -> None:
    code, out, err = call(group)
    assert (code, err) == (0, "")
    assert "Examples:" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ("journal", "cat", "X"),
        ("journal", "tail", "X"),
        ("journal", "check", "X"),
        ("journal", "compact", "X"),
        ("why", "1" * 32, "--journal", "X"),
        ("pipeline", "build", "--journal", "X", "--out", "T"),
        ("pipeline", "table", "--journal", "X", "--at", "1m"),
    ],
)
def test_a_directory_that_is_no_journal_is_told_before_anything_is_done(
    arguments: tuple[str, ...], tmp_path: Path, call: Commands
) -> None:
    places = {"X": tmp_path / "elsewhere", "T": tmp_path / "tables"}
    places["X"].mkdir()
    (places["X"] / "notes.txt").write_text("no journal")
    code, out, err = call(*(str(places.get(word, word)) for word in arguments))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "is not a journal: it has none of claims, members, messages" in err
    assert not places["T"].exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("journal", "tail", "J", "-n", "-5"), "-5 is not in the range"),
        (("journal", "tail", "J", "-n", "9" * 23), "is not in the range"),
        (("journal", "cat", "J", "--message", "zz"), "32 lower-case hexadecimal digits"),
        (("pipeline", "build", "--journal", "J", "--out", "T", "--node", "nobody"), "'nobody'"),
        (
            ("pipeline", "build", "--journal", "J", "--out", "T", "--since", "1h", "--until", "2h"),
            "--since must be before --until",
        ),
        (("send", "echo", "hello"), "give --via URL"),
        (("send", "a => => b", "hello", "--via", "tcp://127.0.0.1:1"), "invalid address ''"),
        (("send", "a/b/+", "x", "--publish", "--via", "tcp://127.0.0.1:1"), "a/b/+"),
        (("send", "echo", "x", "--via", "tcp://127.0.0.1:1", "--ttl", "nan"), "is not a number"),
        (("demo", "--seconds", "nan"), "is not a number"),
        (("simulate", "--nodes", "2", "--participants", "1", "--messages", "9" * 20), "range"),
    ],
)
def test_what_cannot_be_meant_is_wrong_usage(
    arguments: tuple[str, ...],
    complaint: str,
    tmp_path: Path,
    call: Commands,
) -> None:
    Journal(tmp_path / "journal", "garage").close()
    places = {"J": tmp_path / "journal", "T": tmp_path / "tables"}
    code, out, err = call(*(str(places.get(word, word)) for word in arguments))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert complaint in err
    assert not places["T"].exists()


def test_a_table_that_cannot_be_read_is_named(tmp_path: Path, call: Commands) -> None:
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "part-0.parquet").write_bytes(b"PAR1 and no more")
    code, out, err = call("why", "1" * 32, "--tables", str(tmp_path))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "the table traces in " in err
    assert "waystation pipeline build" in err


@pytest.mark.parametrize("option", ["--listen", "--metrics"])
def test_a_port_that_is_taken_is_told_without_a_number_of_the_system(option: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [*WAYSTATION, "router", "--listen", "127.0.0.1:0", option, place]
        found = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
    assert found.returncode == 1
    [line] = found.stderr.splitlines()
    assert line.startswith(f"waystation: cannot listen on {place}: ")
    assert "a port that is free" in line
    assert "Errno" not in line


@pytest.mark.rule("SP-7")
@pytest.mark.parametrize("place", ["ftp://fleet/x", "s3:/fleet", "file://elsewhere/x", "s3://"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("pipeline", "build", "--journal", "X", "--out", "T"),
        ("pipeline", "build", "--journal", "J", "--out", "X"),
        ("pipeline", "table", "--journal", "X", "--at", "1m"),
        ("pipeline", "watch", "--journal", "X", "--out", "T", "--checkpoint", "T"),
        ("pipeline", "watch", "--journal", "J", "--out", "X", "--checkpoint", "T"),
        ("pipeline", "watch", "--journal", "J", "--out", "T", "--checkpoint", "X"),
        ("pipeline", "report", "--tables", "X", "--out", "T"),
        ("pipeline", "report", "--tables", "J", "--out", "X"),
        ("why", "1" * 32, "--journal", "X"),
        ("why", "1" * 32, "--tables", "X"),
        ("journal", "cat", "X"),
        ("journal", "check", "X"),
        ("journal", "seal", "X"),
        ("simulate", "--nodes", "2", "--participants", "2", "--messages", "2", "--out", "X"),
        ("router", "--listen", "127.0.0.1:0", "--journal", "X"),
        ("demo", "--out", "X"),
    ],
)
def test_a_place_that_is_not_supported_is_refused_before_anything_is_written(
    arguments: tuple[str, ...],
    place: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: Commands,
) -> None:
    monkeypatch.chdir(tmp_path)
    Journal(tmp_path / "journal", "garage").close()
    before = sorted(tmp_path.rglob("*"))
    words = {"X": place, "T": str(tmp_path / "target"), "J": str(tmp_path / "journal")}
    code, out, err = call(*(words.get(word, word) for word in arguments))
    assert (code, out) == (2, "")
    assert place.rstrip("/") in err.splitlines()[-1]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("said", ["1", "true", "on", "YES", "t"])
def test_a_variable_asks_for_json_in_every_spelling_that_turns_a_flag_on(
    said: str, call: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAYSTATION_JSON", said)
    code, out, _ = call("rules", "XX-1")
    assert code == 2
    assert "unknown rule" in json.loads(out)["error"]


def test_a_variable_that_is_no_answer_is_told(
    call: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAYSTATION_JSON", "perhaps")
    code, out, err = call("rules")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "perhaps" in err


def test_a_server_tells_programs_where_it_listens() -> None:
    options = ("--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--json")
    for server in ("router", "broker"):
        with started(server, *options, ready="{") as (process, lines):
            told = json.loads(lines[-1])
            assert [place.rsplit(":", 1)[0] for place in told["listening"]] == ["127.0.0.1"]
            assert told["metrics"].startswith("http://127.0.0.1:")
            process.terminate()
            assert process.stdout
            rest = [json.loads(line) for line in process.stdout]
            assert process.wait(PATIENCE) == 0
        assert len(rest) == (server == "broker")  # which prints its counters at the end


def test_a_console_tells_programs_its_url() -> None:
    options = ("--connect", "tcp://127.0.0.1:1", "--listen", "127.0.0.1:0", "--json")
    with started("console", *options, ready="{") as (process, lines):
        assert json.loads(lines[-1])["url"].startswith("http://127.0.0.1:")
        process.terminate()
        assert process.wait(PATIENCE) == 0
