"""`waystation journal`: readable, filterable, and machine-readable with --json."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import structs

from tests.journal.traffic import (
    BEGIN,
    FORWARDED,
    NO_ROUTE,
    change_record,
    message_record,
    until,
)
from waystation.cli import main
from waystation.cli.options import TABLES
from waystation.core.multicast import SubscriptionChange, SubscriptionKind
from waystation.core.record import ChangeRecord, MessageRecord
from waystation.journal import Journal
from waystation.journal.housekeeping import TARGET_BYTES
from waystation.journal.schema import SCHEMAS

Run = Callable[..., tuple[int, list[str], str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> tuple[int, list[str], str]:
        with pytest.raises(SystemExit) as ended:
            main(["journal", *map(str, arguments)])
        captured = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, captured.out.splitlines(), captured.err

    return call


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with Journal(tmp_path, "garage", incarnation=5, clock=lambda: BEGIN) as journal:
        journal.note(change_record(1, "truck-7"))
        journal.note(message_record(2))
        journal.note(message_record(3, FORWARDED, expiry=BEGIN // 1_000))
        journal.note(message_record(4, NO_ROUTE))
        subscribe = SubscriptionChange(SubscriptionKind.SUBSCRIBE, "p/door", "app", edge=True)
        journal.note(ChangeRecord(subscribe, BEGIN + 5))
        multicast = message_record(6)
        published = structs.replace(multicast.arrival, multicast_id="p/door")
        journal.note(MessageRecord(published, FORWARDED, BEGIN + 6))
    Journal(tmp_path, "hall", incarnation=6, clock=lambda: BEGIN + 10).close()
    return tmp_path


def test_cat_prints_one_readable_line_a_row(run: Run, directory: Path) -> None:
    code, lines, errors = run("cat", directory)
    assert (code, errors) == (0, "")
    assert len(lines) == 10
    assert lines[1] == (
        "2023-11-14T22:13:20.000001Z garage 5-1 routes   put participant=truck-7 address=0#truck-7 "
        "local accepted"
    )
    assert lines[4] == (
        "2023-11-14T22:13:20.000005Z garage 5-4 messages DROPPED NO_ROUTE "
        "00000000000000000000000000000004 unicast [0#echo] from [1#10.0.0.2:4000 => 0#app] "
        "recipient=truck-8 bytes=4 received_at=2023-11-14T22:13:20.000004Z origin=garage/5"
    )


@pytest.mark.parametrize(
    ("options", "seqs"),
    [
        ("--table routes", [1]),
        ("--table routes --table subscriptions", [1, 5]),
        ("--node hall", [0, 1]),
        (f"--message {3:032x}", [3]),
        ("--outcome dropped", [4]),
        ("--outcome DELIVERED --outcome FORWARDED", [2, 3, 6]),
        ("--reason NO_ROUTE", [4]),
        ("--participant truck-7", [1, 3, 6]),
        ("--participant echo --node garage", [2, 3, 4, 6]),
        ("--participant app --table subscriptions", [5]),
        ("--since 2023-11-14T22:13:20.000004 --node garage", [3, 4, 5, 6, 7]),
        ("--until 2023-11-14T23:13:20.000002+01:00 --node garage", [0, 1]),
        ("--since 1d", []),
    ],
)
def test_cat_applies_its_filters(run: Run, directory: Path, options: str, seqs: list[int]) -> None:
    code, lines, _ = run("cat", directory, "--json", *options.split())
    assert code == 0
    assert [json.loads(line)["seq"] for line in lines] == seqs


def test_json_has_the_columns_of_the_contract(run: Run, directory: Path) -> None:
    _, lines, _ = run("cat", directory, "--json")
    found: dict[str, dict[str, Any]] = {}
    for row in map(json.loads, lines):
        found.setdefault(row["table"], row)
    for table, row in found.items():
        assert list(row) == ["table", "node", *SCHEMAS[table].names]
    assert found["messages"]["received_at"] == "2023-11-14T22:13:20.000002Z"
    assert found["messages"]["expiry"] is None


def test_an_option_can_be_an_environment_variable(
    run: Run, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAYSTATION_JOURNAL", str(directory))
    monkeypatch.setenv("WAYSTATION_TABLE", "routes")
    _, lines, _ = run("cat")
    assert len(lines) == 1


@pytest.mark.parametrize("time", ["yesterday", "2023-13-01", "1w"])
def test_an_invalid_time_is_wrong_usage(run: Run, directory: Path, time: str) -> None:
    code, _, errors = run("cat", directory, "--since", time)
    assert code == 2
    assert f"invalid timestamp {time!r}" in errors


def test_a_missing_directory_is_wrong_usage(run: Run, tmp_path: Path) -> None:
    assert run("cat", tmp_path / "nothing")[0] == 2


def test_tail_prints_the_last_rows(run: Run, directory: Path) -> None:
    _, lines, _ = run("tail", directory, "-n", 3, "--json")
    assert [json.loads(line)["seq"] for line in lines] == [7, 0, 1]
    assert run("tail", directory, "-n", 0)[1] == []


def test_tail_follows_a_live_journal(tmp_path: Path) -> None:
    with Journal(tmp_path, "garage", flush_seconds=0.02) as journal:
        code = "import sys; from waystation.cli import main; main(sys.argv[1:])"
        command = [sys.executable, "-c", code, "journal", "tail", "-f", "--json", str(tmp_path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            assert json.loads(process.stdout.readline())["kind"] == "start"
            for number in (1, 2):
                journal.note(message_record(number))
                assert json.loads(process.stdout.readline())["message_id"] == f"{number:032x}"
        finally:
            process.kill()
            process.wait(30)
            process.stdout.close()


def test_check_finds_no_problem_in_a_valid_journal(run: Run, directory: Path) -> None:
    assert run("check", directory) == (0, ["no problems"], "")
    assert run("check", directory, "--json") == (0, [], "")


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(change(pq.ParquetFile(path).read()), path)


def problems(run: Run, directory: Path) -> list[str]:
    code, lines, _ = run("check", directory, "--json")
    assert code == 1
    assert run("check", directory)[0] == 1
    return [json.loads(line)["kind"] for line in lines]


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda table: table.drop_columns(["outcome"]), "schema"),
        (lambda table: table.set_column(12, "bytes", table["bytes"].cast(pa.int64())), "schema"),
        (lambda table: table.take([1, 0, 2, 3]), "order"),
        (lambda table: table.set_column(1, "seq", pa.array([1, 3, 4, 6])), "seq"),
        (lambda table: table.set_column(0, "incarnation", pa.array([9] * 4)), "incarnation"),
        (lambda table: table.set_column(1, "seq", pa.array([2, 3, 3, 6])), "order"),
        (lambda table: table.set_column(1, "seq", pa.array([2, 3, 4, None])), "seq"),
        (lambda table: table.set_column(1, "seq", pa.array([2, 3, 5, 6])), "duplicate"),
    ],
)
def test_check_names_what_is_wrong_with_rows(
    run: Run, directory: Path, change: Callable[[pa.Table], pa.Table], kind: str
) -> None:
    rewrite(directory / "messages/node=garage/5-2.parquet", change)
    assert kind in problems(run, directory)


def test_check_names_what_is_wrong_with_files(run: Run, directory: Path) -> None:
    messages = directory / "messages/node=garage"
    (messages / "part-0.parquet").touch()
    (messages / "005-9.parquet").touch()
    (directory / "cheese").mkdir()
    (directory / "routes/somewhere").mkdir()
    (directory / "_temporary").mkdir()
    (directory / "routes/.hidden").mkdir()
    (directory / "nodes/node=garage/5-0.parquet").write_bytes(b"rubbish")
    found = problems(run, directory)
    assert found.count("name") == 4
    assert "unreadable" in found


def test_check_finds_a_missing_file_and_a_torn_tail(run: Run, directory: Path) -> None:
    (directory / "messages/node=garage/5-2.parquet").unlink()
    (directory / "routes/node=garage/.5-100.arrows").write_bytes(b"rubbish")
    assert sorted(problems(run, directory)) == ["gap", "torn"]


def test_an_unreadable_file_is_reported_on_stderr(run: Run, directory: Path) -> None:
    (directory / "messages/node=garage/5-2.parquet").write_bytes(b"rubbish")
    code, lines, errors = run("cat", directory)
    assert (code, len(lines)) == (0, 6)
    assert "5-2.parquet: " in errors


def test_compact_merges_files(run: Run, tmp_path: Path) -> None:
    with Journal(tmp_path, "garage", flush_seconds=0.005, seal_bytes=1) as journal:
        for number in range(3):
            journal.note(message_record(number))
            wait_for_messages(tmp_path, number + 1)
    code, [line], _ = run("compact", tmp_path)
    assert code == 0
    assert "rows moved" in line
    _, [line], _ = run("compact", tmp_path, "--json", "--target-bytes", TARGET_BYTES)
    assert json.loads(line) == {"before": 2, "after": 2, "rows": 0}


def wait_for_messages(directory: Path, count: int) -> None:
    until(lambda: len(list(directory.glob("messages/*/*.parquet"))) >= count)


def test_the_command_line_knows_the_tables_without_loading_the_journal() -> None:
    assert sorted(SCHEMAS) == list(TABLES)
    code = (
        "import sys; from waystation.cli import waystation; "
        "sys.exit('pyarrow' in sys.modules or 'waystation.journal' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_pyarrow_the_message_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None; sys.path_importer_cache.clear()\n"
        "import importlib.util; importlib.util.find_spec = lambda name: None\n"
        "from waystation.cli import main; main(['journal', 'cat', sys.argv[1]])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ},
    )
    assert result.returncode == 1
    assert "pip install 'waystation[journal]'" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_journal_can_be_checked_while_it_is_written(run: Run, tmp_path: Path) -> None:
    with Journal(tmp_path, "garage", flush_seconds=0.002, seal_bytes=20_000) as journal:
        for round in range(30):
            for number in range(100):
                journal.note(message_record(100 * round + number))
                journal.note(change_record(number))
            assert run("check", tmp_path) == (0, ["no problems"], "")
