"""`waystation node`: it runs what a file describes, says what is wrong with it, ends cleanly."""

from __future__ import annotations

import json
import signal
import socket
import urllib.request
from pathlib import Path

import pytest

from tests.cli.live_commands import PATIENCE, Commands, started
from waystation.journal.read import JournalReader

GOOD = """\
[node]
name = "hub"
[[listen]]
url = "tcp://127.0.0.1:0"
[[worker]]
names = "echo"
handler = "waystation.config.workers:echo"
[journal]
directory = "J"
"""


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capsys)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    file = tmp_path / "node.toml"
    file.write_text(GOOD)
    return file


def bad(directory: Path, text: str) -> Path:
    file = directory / "bad.toml"
    file.write_text(text)
    return file


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_node_runs_until_it_is_told_to_end(
    good: Path, how: signal.Signals, call: Commands
) -> None:
    with started("node", ready="is ready", WAYSTATION_CONFIG=str(good)) as (process, lines):
        assert lines[-1] == "node hub is ready"
        url = lines[-2].removeprefix("listening on ")
        assert call("send", "echo", "hello", "--via", url, "--request") == (0, "hello\n", "")
        process.send_signal(how)
        assert process.wait(PATIENCE) == 0
        assert process.stdout
        assert process.stdout.read() == ""
    rows = list(JournalReader(good.parent / "J", lambda *_: None).entries())
    kinds = [row.fields["kind"] for row in rows if row.table == "nodes"]
    assert kinds == ["start", "stop"]


def test_it_can_be_told_to_end_while_it_waits_for_a_peer(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"tcp://127.0.0.1:{closed.getsockname()[1]}"
    file = bad(tmp_path, f'[node]\nname = "a"\n[[connect]]\nurl = "{url}"\nwait = 600\n')
    with started("node", "--config", str(file), "--verbose", ready="session") as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


def test_programs_learn_where_it_listens(good: Path) -> None:
    with started("node", "--config", str(good), "--json", ready="{") as (_, lines):
        told = json.loads(lines[-1])
        assert told["node"] == "hub"
        assert [url.rsplit(":", 1)[0] for url in told["listening"]] == ["tcp://127.0.0.1"]


def test_check_only_checks(good: Path, call: Commands) -> None:
    assert call("node", "--config", str(good), "--check") == (0, f"{good}: no problems\n", "")
    assert call("node", "--config", str(good), "--check", "--json") == (0, "[]\n", "")
    assert not (good.parent / "J").exists()


def test_one_mistake_is_one_line(tmp_path: Path, call: Commands) -> None:
    file = bad(tmp_path, '[node]\nnam = "hub"\nname = "hub"\n')
    code, out, err = call("node", "--config", str(file))
    assert (code, out) == (1, "")
    assert err == f"waystation: {file}:2: node.nam: unknown key; did you mean `name`\n"


def test_several_mistakes_are_a_line_each_and_a_sum(tmp_path: Path, call: Commands) -> None:
    file = bad(tmp_path, "[node]\nhub = 3\n[status]\nenabled = 7\n")
    code, out, err = call("node", "--config", str(file), "--check")
    assert (code, out) == (1, "")
    first, second, third, last = err.splitlines()
    assert first.startswith(f"{file}:1: node.name: ")
    assert second.startswith(f"{file}:2: node.hub: ")
    assert third.startswith(f"{file}:4: status.enabled: ")
    assert last == f"waystation: {file} has 3 problems"


def test_mistakes_can_be_read_by_programs(tmp_path: Path, call: Commands) -> None:
    file = bad(tmp_path, "[node]\nhub = 3\n")
    code, out, err = call("node", "--config", str(file), "--check", "--json")
    assert (code, err) == (1, "")
    assert [(problem["line"], problem["key"]) for problem in json.loads(out)] == [
        (1, "node.name"),
        (2, "node.hub"),
    ]


def test_what_goes_wrong_at_the_start_names_the_line(tmp_path: Path, call: Commands) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        url = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        file = bad(tmp_path, f'[node]\nname = "a"\n[[listen]]\nurl = "{url}"\n')
        code, out, err = call("node", "--config", str(file))
    assert (code, out) == (1, "")
    assert f"{file}:4: listen[0].url: " in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("arguments", [(), ("--config", "/no/such/file")])
def test_wrong_usage_is_exit_2(call: Commands, arguments: tuple[str, ...]) -> None:
    code, out, err = call("node", *arguments)
    assert (code, out) == (2, "")
    assert "--config" in err


@pytest.mark.parametrize("where", ["option", "file"])
def test_a_node_answers_for_its_metrics(good: Path, where: str) -> None:
    place = "127.0.0.1:0"
    options: tuple[str, ...] = ("--metrics", place)
    if where == "file":
        good.write_text(GOOD.replace('"hub"', f'"hub"\nmetrics = "{place}"'))
        options = ()
    with started("node", "--config", str(good), *options, ready="is ready") as (process, lines):
        [url] = [line.split()[-1] for line in lines if line.startswith("metrics on ")]
        with urllib.request.urlopen(url, timeout=PATIENCE) as response:  # noqa: S310 - http
            assert "waystation_node_draining 0" in response.read().decode().splitlines()
        with urllib.request.urlopen(url.replace("metrics", "health")) as response:  # noqa: S310 - http
            assert json.loads(response.read())["listening"] == [lines[-2].split()[-1]]
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


def test_metrics_are_in_the_json_of_a_node(good: Path) -> None:
    options = ("--config", str(good), "--metrics", "127.0.0.1:0", "--json")
    with started("node", *options, ready="listening") as (process, lines):
        told = json.loads(lines[-1])
        with urllib.request.urlopen(told["metrics"], timeout=PATIENCE) as response:  # noqa: S310 - http
            assert response.status == 200
        process.terminate()
        assert process.wait(PATIENCE) == 0


def test_a_place_for_metrics_that_is_taken_names_the_key(tmp_path: Path, call: Commands) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        file = bad(tmp_path, f'[node]\nname = "hub"\nmetrics = "{place}"\n')
        code, _, said = call("node", "--config", str(file))
    assert code == 1
    assert "node.metrics" in said
    assert place in said
