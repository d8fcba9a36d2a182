"""`waystation simulate` and `waystation pipeline`: what they print, where, and how they end."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.journal.test_damage import damage_second_batch
from tests.journal.test_recovery import left_tail
from tests.pipeline.journals import read
from waystation import cli, pipeline
from waystation.journal import Journal
from waystation.simulate.fleet import Fleet
from waystation.simulate.journal import write_fleet

pytestmark = pytest.mark.timeout(600)  # Spark on a loaded machine takes its time

Run = Callable[..., tuple[int, str, str]]

COMMANDS = ("pipeline", "simulate")


@pytest.fixture
def run(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Run:
    """The command line in this process, with the session of the tests."""
    del spark  # the existing session is used
    monkeypatch.setattr(cli, "COMMANDS", tuple({*cli.COMMANDS, *COMMANDS}))

    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main([*map(str, arguments)])
        captured = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, captured.out, captured.err

    return call


def run_alone(*arguments: object, **environment: str | None) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own."""
    code = (
        f"import waystation.cli as cli; cli.COMMANDS = tuple({{*cli.COMMANDS, *{COMMANDS!r}}})\n"
        "import sys, importlib.util\n"
        "for name in sys.argv.pop(1).split(): sys.modules[name] = None\n"
        "find, loaded = importlib.util.find_spec, sys.modules\n"
        "importlib.util.find_spec = lambda n: None if loaded.get(n, 0) is None else find(n)\n"
        "cli.main(sys.argv[1:])"
    )
    missing = environment.pop("missing", None) or ""
    wanted = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, "-c", code, missing, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={name: value for name, value in wanted.items() if value is not None},
    )


SIZE = ("--nodes", 3, "--participants", 20, "--messages", 300)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("command") / "journal"
    made = Fleet(nodes=3, participants=20, messages=300, seed=3)
    write_fleet(made, directory)
    return directory


def test_simulate_writes_a_journal_and_says_what_is_in_it(
    run: Run, fleet: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "journal"
    code, out, err = run("simulate", *SIZE, "--out", directory, "--seed", 3)
    assert (code, err) == (0, "")
    rows = read(directory)
    assert rows == read(fleet)
    assert out.startswith(f"wrote {directory} in ")
    assert f"{len(rows['messages']):,} messages" in out
    assert f"losses; what was behind them is in {directory}/_truth" in out


def test_simulate_as_json_is_json_and_nothing_else(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAYSTATION_SEED", "9")
    monkeypatch.setenv("WAYSTATION_OUT", str(tmp_path / "journal"))
    code, out, err = run("simulate", *SIZE, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["nodes"] == 3
    told = json.loads((tmp_path / "journal" / "_truth" / "fleet.json").read_text())
    assert told["seed"] == 9


def test_simulate_refuses_an_existing_directory(run: Run, fleet: Path) -> None:
    code, out, err = run("simulate", *SIZE, "--out", fleet)
    assert (code, out) == (1, "")
    assert "is not empty; give a new directory" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("simulate --nodes 1 --participants 1 --messages 1 --out x", "'--nodes': 1 is not in"),
        ("simulate --nodes 5", "Missing option '--participants'"),
        ("pipeline build --journal nowhere --out x", "'nowhere' does not exist"),
        (
            "pipeline table --journal . --at tomorrow",
            "invalid timestamp 'tomorrow'; write 2026-05-01",
        ),
        ("pipeline watchh", "there is no command 'watchh'; did you mean `watch`"),
    ],
)
def test_wrong_usage_is_one_line_on_stderr_and_exit_2(
    run: Run, arguments: str, complaint: str
) -> None:
    code, out, err = run(*arguments.split())
    assert (code, out) == (2, "")
    assert complaint in err
    assert err.count("\n") == 1


def test_build_writes_the_tables_and_sums_up(run: Run, fleet: Path, tmp_path: Path) -> None:
    code, out, err = run("pipeline", "build", "--journal", fleet, "--out", tmp_path / "tables")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("3 of 3 nodes, complete until 2026-01-01 ")
    assert lines[1].startswith("read ")
    assert [line.split()[0] for line in lines[2:-1]] == list(pipeline.TABLES)
    assert lines[-1].startswith(f"wrote {tmp_path / 'tables'} in ")
    assert {path.name for path in (tmp_path / "tables").iterdir()} >= set(pipeline.TABLES)


def test_build_of_one_node_as_json(run: Run, fleet: Path, tmp_path: Path) -> None:
    options = ("--node", "hub-0000", "--since", "2026-01-01T00:10:00", "--json")
    code, out, err = run("pipeline", "build", "--journal", fleet, "--out", tmp_path / "t", *options)
    assert (code, err) == (0, "")
    summary = json.loads(out)
    since = 1_767_225_600_000_000 + 600_000_000
    messages = [row for row in read(fleet)["messages"] if row["at"] >= since]
    ids = {row["message_id"] for row in messages if row["node"] == "hub-0000"}
    assert summary["tables"]["traces"]["rows"] == len(ids)
    assert summary["rejected"] == 0


def test_build_begins_with_who_is_missing_as_lost_does(
    run: Run, fleet: Path, tmp_path: Path
) -> None:
    journal, tables = tmp_path / "journal", tmp_path / "tables"
    shutil.copytree(fleet, journal)
    gone = max(path.name for path in (journal / "messages").iterdir())
    for directory in journal.glob(f"*/{gone}"):
        shutil.rmtree(directory)
    code, out, err = run("pipeline", "build", "--journal", journal, "--out", tables)
    assert (code, err) == (0, "")
    first = out.splitlines()[0]
    assert first.startswith("2 of 3 nodes, complete until 2026-01-01 ")
    assert first.endswith(f"; no record of {gone.removeprefix('node=')}")
    for source in (("--journal", journal), ("--tables", tables)):
        code, out, err = run("lost", *source)
        assert (code, out.splitlines()[0]) == (0, first)
    code, out, err = run("pipeline", "build", "--journal", journal, "--out", tables, "--json")
    told = json.loads(out)["reach"]
    code, out, err = run("lost", "--tables", tables, "--json")
    assert told == json.loads(out)["reach"]
    assert told["missing"] == [gone.removeprefix("node=")]
    page = tmp_path / "page.html"
    code, out, err = run("pipeline", "report", "--tables", tables, "--out", page, "--json")
    assert (code, json.loads(out)["out"], err) == (0, str(page), "")
    assert first in page.read_text()


@pytest.mark.rule("OB-9", "SP-5")
def test_build_says_that_a_batch_of_a_tail_is_damaged_and_goes_without_that_alone(
    run: Run, tmp_path: Path
) -> None:
    journal, tables = tmp_path / "journal", tmp_path / "tables"
    damage_second_batch(left_tail(journal))
    code, out, err = run("pipeline", "build", "--journal", journal, "--out", tables, "--json")
    assert code == 0
    sealed, damage = err.splitlines()
    assert sealed == "waystation: garage: 2 tails sealed, 21 rows"
    assert damage.startswith("  incarnation 5: messages/5-1.tail: ")
    assert damage.endswith(", 10 rows: wrong checksum")
    summary = json.loads(out)
    assert (summary["rows_in"]["messages"], summary["rejected"]) == (20, 0)
    judged = {row["message_id"] for row in pq.read_table(tables / "expected").to_pylist()}
    assert judged == {f"{number:032x}" for number in (*range(10), *range(20, 30))}
    [life] = pq.read_table(tables / "coverage").to_pylist()
    assert life["lost"] == 10


def test_table_prints_the_routing_table_at_a_moment(run: Run, fleet: Path) -> None:
    at = ("--at", "2026-01-01T00:30:00", "--node", "hub-0000")
    code, out, err = run("pipeline", "table", "--journal", fleet, *at)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    code, out, err = run("pipeline", "table", "--journal", fleet, *at, "--json")
    assert (code, err) == (0, "")
    entries = json.loads(out)
    assert lines[0] == f"hub-0000: {len(entries)} entries at 2026-01-01T00:30:00Z"
    assert len(lines) == 1 + len(entries)
    [app] = [entry for entry in entries if entry["participant"] == "app-0"]
    assert (app["node"], app["address"], app["local"], app["expiry"]) == (
        "hub-0000",
        "0#app-0",
        True,
        None,
    )
    assert lines[1].split()[:4] == ["app-0", "0#app-0", "local", "since"]
    code, out, _ = run("pipeline", "table", "--journal", fleet, "--at", "2020-01-01")
    assert (code, out) == (0, "no entries at 2020-01-01T00:00:00Z\n")


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (KeyboardInterrupt(), "waystation: interrupted"),
        (OSError(28, "No space left on device"), "No space left on device"),
    ],
)
def test_an_error_is_one_line_on_stderr_and_exit_1(
    run: Run,
    fleet: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    trouble: BaseException,
    said: str,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise trouble

    monkeypatch.setattr(pipeline, "build", fail)
    code, out, err = run("pipeline", "build", "--journal", fleet, "--out", tmp_path / "tables")
    assert (code, out) == (1, "")
    assert said in err
    assert len(err.strip().splitlines()) == 1


def kept(directory: Path) -> Path:
    """A journal with nothing but a node's start."""
    Journal(directory, "garage").close()
    return directory


def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    for arguments in (
        ("simulate", *SIZE, "--out", tmp_path / "journal"),
        ("pipeline", "build", "--journal", kept(tmp_path), "--out", tmp_path / "tables"),
        ("pipeline", "table", "--journal", tmp_path, "--at", "1d"),
    ):
        result = run_alone(*arguments, missing="pyspark")
        assert (result.returncode, result.stdout) == (1, "")
        assert "pip install 'waystation[spark]'" in result.stderr
        assert result.stderr.count("\n") == 1


def test_without_java_it_says_what_to_install(tmp_path: Path) -> None:
    arguments = ("pipeline", "table", "--journal", kept(tmp_path), "--at", "1d")
    result = run_alone(*arguments, PATH=str(tmp_path), JAVA_HOME=None)
    assert (result.returncode, result.stdout) == (1, "")
    assert "install Java 17 or 21" in result.stderr
    assert result.stderr.count("\n") == 1


def test_nothing_but_its_own_output_is_printed(tmp_path: Path) -> None:
    """With a session of its own, for which Java prints messages."""
    environment = {"WAYSTATION_JOURNAL": str(kept(tmp_path)), "WAYSTATION_MASTER": "local[1]"}
    result = run_alone("pipeline", "table", "--at", "2026-01-01T00:30:00", "--json", **environment)
    assert (result.returncode, result.stdout, result.stderr) == (0, "[]\n", "")


def test_a_spark_error_is_one_line(tmp_path: Path) -> None:
    journal = kept(tmp_path)
    arguments = ("pipeline", "table", "--journal", journal, "--at", "1d", "--master", "nonsense")
    result = run_alone(*arguments)
    assert (result.returncode, result.stdout) == (1, "")
    assert "cannot start Spark at nonsense: Master must either be" in result.stderr
    # On a busy machine it says before that it waits.
    said = [line for line in result.stderr.splitlines() if "waiting for executors" not in line]
    assert len(said) == 1
