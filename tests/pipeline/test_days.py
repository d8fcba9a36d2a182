"""Days of tables: built alone, in any order, again when files arrive late, and removed (SP-6)."""

from __future__ import annotations

import json
import random
import shutil
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.pipeline.day_journals import DAY, content, differences, micros, stretched
from tests.pipeline.journals import of_faults
from tests.pipeline.second_version import SmallFleet
from tests.pipeline.small import BEGIN, put_rows, row
from tests.pipeline.test_incidents import written
from waystation import pipeline
from waystation.cli import waystation
from waystation.errors import LocalError
from waystation.pipeline.days import day_numbers, day_text, directory_of, read_state
from waystation.pipeline.store import DeltaStore, Place
from waystation.report import write_report
from waystation.simulate.fleet import Fleet
from waystation.why.finished import StoredTables
from waystation.why.tables import explain_from_tables

pytestmark = pytest.mark.timeout(1800)  # Spark on a loaded machine takes its time

HOUR = DAY // 24
TODAY = BEGIN // DAY
MIDNIGHT = (TODAY + 1) * DAY - BEGIN  # the first one, from BEGIN on
CROSSING = {
    "route_history": ("valid_from", "valid_to"),
    "subscription_history": ("valid_from", "valid_to"),
    "session_history": ("opened_at", "closed_at"),
    "traces": ("started", "ended"),
    "coverage": ("from_time", "to_time"),
    "incidents": ("started", "ended"),
}
"""What lasts, and the columns that tell from when to when."""


@pytest.fixture(scope="module")
def fleets(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Journals of an hour, and of some seconds."""
    place = tmp_path_factory.mktemp("fleets")
    SmallFleet(3, 60).write(place / "small")
    return [written(place / "fleet", Fleet(3, 20, 200, seed=6, gaps=True)), place / "small"]


def days_in(out: Path) -> list[str]:
    state = read_state(str(out))
    assert state is not None
    assert state.unfinished == []
    return list(state.days)


def whole(journal: Path, out: Path, spark: SparkSession) -> dict[str, list[str]]:
    """What one build of a journal writes."""
    pipeline.build(journal, out, spark=spark)
    return content(out)


@pytest.mark.rule("SP-6")
@pytest.mark.parametrize("seed", [1, *of_faults(*range(2, 8))])
def test_days_built_in_any_order_equal_one_build(
    spark: SparkSession, fleets: list[Path], tmp_path: Path, seed: int
) -> None:
    """Midnight is within entries, subscriptions, messages under way and waiting, and incidents."""
    chance = random.Random(seed)
    begin = TODAY * DAY + chance.randint(14, 22) * HOUR + 1_234_567
    to = chance.choice([3 * DAY // 2, 2 * DAY])
    journal = tmp_path / "journal"
    for source in fleets:
        stretched(source, journal, begin=begin, to=to)
    expected = whole(journal, tmp_path / "whole", spark)
    check_crossing(tmp_path / "whole")
    first, last = (at // DAY for at in (begin, begin + to))
    days = list(map(day_text, range(first, last + 1)))
    while days == sorted(days):
        chance.shuffle(days)
    for day in days:
        pipeline.build(journal, tmp_path / "days", spark=spark, days=[day])
    assert days_in(tmp_path / "days") == sorted(days)
    assert differences(tmp_path / "days", expected) == {}


def check_crossing(out: Path) -> None:
    """Midnight is within all that can last over it: else nothing would be tried."""
    tables = {name: pq.read_table(out / name).to_pylist() for name in CROSSING}
    for name, (begin, end) in CROSSING.items():
        ends = [(row[begin].date(), row[end].date()) for row in tables[name] if row[end]]
        assert any(one != other for one, other in ends), name
    steps = [row["path"] for row in tables["traces"]]
    assert any(step[-1]["outcome"] == "QUEUED" for step in steps)


def two_days(journal: Path) -> Path:
    """An entry and a session that last over midnight, a message, a request and its answer."""
    put_rows(journal, "nodes", [row("nodes", 0, detail="waystation 0.2.0")], version=2)
    put_rows(
        journal,
        "routes",
        [row("routes", 1), row("routes", 2, participant="b", expiry=BEGIN + MIDNIGHT + HOUR)],
        version=2,
    )
    put_rows(journal, "sessions", [row("sessions", 3, peer="yard")], version=2)
    before = [
        row("messages", 10, MIDNIGHT - HOUR, received_at=BEGIN + MIDNIGHT - HOUR),
        row("messages", 11, MIDNIGHT - 5, message_id=f"{8:032x}", outcome="QUEUED"),
        row("messages", 12, MIDNIGHT - 3, message_id=f"{9:032x}"),
    ]
    put_rows(journal, "messages", before, version=2)
    after = [
        row("messages", 20, MIDNIGHT + 7, message_id=f"{8:032x}", received_at=before[1]["at"]),
        row("messages", 21, MIDNIGHT + 9, message_id=f"{10:032x}", answers=f"{9:032x}"),
    ]
    put_rows(journal, "messages", after, version=2)
    put_rows(journal, "routes", [row("routes", 22, MIDNIGHT + 11, kind="remove")], version=2)
    put_rows(journal, "nodes", [row("nodes", 30, MIDNIGHT + 2 * HOUR, kind="stop")], version=2)
    return journal


@pytest.fixture(scope="module")
def told(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What one build of the two days writes."""
    place = tmp_path_factory.mktemp("whole")
    return whole(two_days(place / "journal"), place / "tables", spark)


@pytest.fixture(scope="module")
def two_built(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The two days, and their tables by day."""
    place: Path = tmp_path_factory.mktemp("built")
    pipeline.build(two_days(place / "journal"), place / "days", spark=spark, changed=True)
    return place


@pytest.fixture
def built(two_built: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A copy of their journal and tables, to go on with."""
    shutil.copytree(two_built, tmp_path, dirs_exist_ok=True)
    return tmp_path / "journal", tmp_path / "days"


def day_of(number: int) -> date:
    return date.fromisoformat(day_text(number))


def opened(out: Path, table: str, day: int) -> list[dict[str, Any]]:
    """The rows of a day that may still change."""
    files = sorted((out / table / directory_of(day)).glob("open-*.parquet"))
    rows: list[dict[str, Any]] = [
        found for file in files for found in pq.read_table(file, partitioning=None).to_pylist()
    ]
    return rows


@pytest.mark.rule("SP-6")
@pytest.mark.parametrize(
    ("order", "large"),
    [pytest.param((0, 1), -1, marks=pytest.mark.fault), ((1, 0), 2**30)],
    ids=["by Spark", "here"],
)
def test_what_lasts_over_midnight_is_told_once_whatever_is_built_first(
    spark: SparkSession,
    told: dict[str, list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    order: tuple[int, int],
    large: int,
) -> None:
    monkeypatch.setattr("waystation.pipeline.losses.SMALL", large)  # found by Spark, or here
    journal = two_days(tmp_path / "journal")
    for number in order:
        pipeline.build(journal, tmp_path / "days", spark=spark, days=[day_text(TODAY + number)])
    assert differences(tmp_path / "days", told) == {}
    directories = sorted(path.name for path in (tmp_path / "days" / "traces").iterdir())
    assert directories == [directory_of(TODAY), directory_of(TODAY + 1)]


@pytest.mark.rule("SP-6")
def test_a_day_is_provisional_until_later_records_settle_it(
    spark: SparkSession, told: dict[str, list[str]], tmp_path: Path
) -> None:
    journal, out = two_days(tmp_path / "journal"), tmp_path / "days"
    today, tomorrow = day_text(TODAY), day_text(TODAY + 1)
    pipeline.build(journal, out, spark=spark, days=[today], lookahead=0)
    assert {found["participant"] for found in opened(out, "route_history", TODAY)} == {"a", "b"}
    assert [found["session"] for found in opened(out, "session_history", TODAY)] == ["s"]
    assert [found["actual"] for found in opened(out, "audit", TODAY)] == ["QUEUED"]
    assert [found["message_id"] for found in opened(out, "traces", TODAY)] == [f"{8:032x}"]
    assert explain_from_tables(out, f"{9:032x}").ways
    pipeline.build(journal, out, spark=spark, days=[tomorrow])
    for table in ("route_history", "session_history", "audit", "traces"):
        assert opened(out, table, TODAY) == []
    assert differences(out, told) == {}


@pytest.mark.rule("SP-6")
def test_late_files_rebuild_the_days_that_they_touch_and_no_others(
    spark: SparkSession, tmp_path: Path, fleets: list[Path]
) -> None:
    journal, out = tmp_path / "journal", tmp_path / "days"
    for source in fleets:
        stretched(source, journal, begin=TODAY * DAY + 5 * HOUR, to=4 * DAY, rows=60)
    files = sorted(path.relative_to(journal) for path in journal.rglob("messages/node=*/*.parquet"))
    late = tmp_path / "late" / files[len(files) // 2]
    late.parent.mkdir(parents=True)
    shutil.move(journal / files[len(files) // 2], late)
    days = pipeline.build(journal, out, spark=spark, changed=True).days
    assert days is not None
    assert pipeline.build(journal, out, spark=spark, changed=True).days == []
    shutil.copy(late, journal / files[len(files) // 2])
    ats = pq.read_table(late, partitioning=None)
    touched = {
        value // DAY for name in ("at", "received_at") for value in micros(ats[name]).to_pylist()
    }
    found = pipeline.build(journal, out, spark=spark, changed=True).days
    assert found == sorted(map(day_text, touched))
    assert len(found) < len(days)
    assert differences(out, whole(journal, tmp_path / "whole", spark)) == {}


@pytest.mark.rule("SP-6")
def test_night_after_night_gives_what_one_build_gives_at_the_end(
    spark: SparkSession, tmp_path: Path, fleets: list[Path]
) -> None:
    """Each night some more files are there: those that were complete by then."""
    every, journal, out = tmp_path / "every", tmp_path / "journal", tmp_path / "days"
    for source in fleets:
        stretched(source, every, begin=TODAY * DAY + 5 * HOUR, to=2 * DAY, rows=60)
    ends = {path: last_record(path) for path in sorted(every.rglob("*.parquet"))}
    built = []
    for night in range(1, 5):
        for path, end in ends.items():
            target = journal / path.relative_to(every)
            if end < (TODAY + night) * DAY + 2 * HOUR and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)
        built.append(pipeline.build(journal, out, spark=spark, changed=True).days)
    assert all(path.exists() for path in [journal / path.relative_to(every) for path in ends])
    assert built[0]
    assert differences(out, whole(journal, tmp_path / "whole", spark)) == {}


def last_record(path: Path) -> int:
    ats = pq.read_table(path, columns=["at"], partitioning=None)["at"]
    return int(max(micros(ats).to_pylist()))


@pytest.mark.rule("SP-6")
def test_only_the_last_days_are_kept(
    spark: SparkSession, built: tuple[Path, Path], tmp_path: Path
) -> None:
    journal, out = built
    assert days_in(out) == [day_text(TODAY), day_text(TODAY + 1)]
    done = pipeline.build(journal, out, spark=spark, changed=True, keep_days=1)
    assert (done.days, done.removed) == ([], [day_text(TODAY)])
    assert days_in(out) == [day_text(TODAY + 1)]
    for table in pipeline.TABLES:
        assert directory_of(TODAY) not in {path.name for path in (out / table).iterdir()}
    assert pipeline.build(journal, out, spark=spark, changed=True, keep_days=1).days == []
    write_report(out, tmp_path / "report.html", title="What is kept")


@pytest.mark.rule("SP-6")
def test_a_day_whose_records_were_removed_from_the_journal_stays_as_it_is(
    spark: SparkSession, built: tuple[Path, Path]
) -> None:
    journal, out = built
    before = content(out)
    for path in journal.rglob("*.parquet"):
        if last_record(path) < BEGIN + MIDNIGHT:
            path.unlink()
    assert pipeline.build(journal, out, spark=spark, changed=True).days == []
    put_rows(journal, "messages", [row("messages", 40, MIDNIGHT + DAY)], version=2)
    pipeline.build(journal, out, spark=spark, changed=True)
    after = content(out)
    for table in ("route_history", "traces", "expected", "session_history"):
        kept = {found for found in before[table] if f"{day_of(TODAY)!r}" in found}
        assert kept
        assert kept <= set(after[table])
    with pytest.raises(LocalError, match="no longer has all records"):
        pipeline.build(journal, out, spark=spark, days=[day_text(TODAY)])


@pytest.mark.rule("SP-6")
@pytest.mark.rule("SP-7")
def test_a_build_of_a_day_that_is_killed_leaves_the_old_days_or_is_made_good(
    spark: SparkSession,
    told: dict[str, list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    journal, out = two_days(tmp_path / "journal"), tmp_path / "days"
    pipeline.build(journal, out, spark=spark, days=[day_text(TODAY)])
    before = content(out)
    replace = Place.replace

    def die_at(table: str) -> None:
        def die(place: Place) -> None:
            if place.path.name == table:
                raise KeyboardInterrupt
            replace(place)

        monkeypatch.setattr(Place, "replace", die)
        with pytest.raises(KeyboardInterrupt):
            pipeline.build(journal, out, spark=spark, days=[day_text(TODAY + 1)])

    die_at("route_history")
    monkeypatch.setattr(Place, "replace", replace)
    (out / ".unfinished").unlink()  # nothing was replaced yet
    assert content(out) == before
    die_at("traces")
    with pytest.raises(LocalError, match="did not finish"):
        content(out)
    monkeypatch.setattr(Place, "replace", replace)
    # Whatever day is built next, that which was not published is built again.
    pipeline.build(journal, out, spark=spark, days=[day_text(TODAY)])
    assert days_in(out) == [day_text(TODAY), day_text(TODAY + 1)]
    assert differences(out, told) == {}


@pytest.mark.rule("SP-6")
@pytest.mark.rule("SP-7")
def test_days_of_delta_tables_are_committed_together(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, out = two_days(tmp_path / "journal"), tmp_path / "days"
    (journal / "messages" / "node=garage" / "broken.parquet").write_bytes(b"no file")
    expected = whole(journal, tmp_path / "whole", spark)
    pipeline.build(journal, out, spark=spark, days=[day_text(TODAY + 1)], format="delta")
    before = content(out)
    commit = DeltaStore._commit  # noqa: SLF001 - where a build is killed

    def die(store: DeltaStore, table: str, *rest: Any) -> int:
        if table == "traces":
            raise KeyboardInterrupt
        return commit(store, table, *rest)

    monkeypatch.setattr(DeltaStore, "_commit", die)
    with pytest.raises(KeyboardInterrupt):
        pipeline.build(journal, out, spark=spark, days=[day_text(TODAY)], format="delta")
    assert content(out) == before
    monkeypatch.setattr(DeltaStore, "_commit", commit)
    pipeline.build(journal, out, spark=spark, days=[day_text(TODAY)], format="delta")
    assert differences(out, expected) == {}
    table = DeltaTable(str(out / "route_history"))
    assert table.metadata().partition_columns == ["day"]
    assert table.to_pyarrow_table().num_rows == len(expected["route_history"])
    pipeline.build(journal, out, spark=spark, changed=True, keep_days=1, format="delta")
    assert days_in(out) == [day_text(TODAY + 1)]
    assert differences(out, before) == {}


@pytest.mark.rule("SP-6")
def test_other_programs_read_tables_that_are_kept_by_day(
    spark: SparkSession, two_built: Path
) -> None:
    out = two_built / "days"
    frame = spark.read.parquet(str(out / "traces"))
    assert frame.where(f"day = DATE '{day_text(TODAY)}'").count() == 3
    assert pq.read_table(out / "traces").num_rows == 4
    duckdb = pytest.importorskip("duckdb")
    read = duckdb.read_parquet(f"{out}/traces/*/*.parquet", hive_partitioning=True)
    counted = read.aggregate("day, count(*)", "day").order("day").fetchall()
    assert [(str(day), count) for day, count in counted] == [
        (day_text(TODAY), 3),
        (day_text(TODAY + 1), 1),
    ]


def run(*arguments: object) -> Any:
    return CliRunner().invoke(waystation, ["pipeline", "build", *map(str, arguments)])


def test_whole_tables_and_days_are_not_mixed(
    spark: SparkSession, built: tuple[Path, Path], tmp_path: Path
) -> None:
    journal, days = built
    pipeline.build(journal, tmp_path / "whole", spark=spark, tables=["rejects"])
    with pytest.raises(LocalError, match="are not kept by day"):
        pipeline.build(journal, tmp_path / "whole", spark=spark, changed=True)
    with pytest.raises(LocalError, match="are kept by day"):
        pipeline.build(journal, days, spark=spark)
    with pytest.raises(LocalError, match="all tables and nodes"):
        pipeline.build(journal, days, spark=spark, changed=True, tables=["health"])
    with pytest.raises(LocalError, match="kept by day have days to keep"):
        pipeline.build(journal, days, spark=spark, keep_days=3)
    for options, told in (
        (("--keep-days", 3), "need --day or --changed"),
        (("--day", "2026-13-01"), "is not a day"),
        (("--day", "2026-11-02..2026-11-01"), "ends before it begins"),
        (("--changed", "--node", "garage"), "do not go with"),
    ):
        result = run("--journal", journal, "--out", tmp_path / "other", *options)
        assert result.exit_code != 0
        assert told in f"{result.output}{result.exception}"
    assert not (tmp_path / "other").exists()


def test_days_are_named_one_by_one_or_by_their_first_and_last() -> None:
    assert day_numbers(["1970-01-02..1970-01-04", "1970-01-09"]) == {1, 2, 3, 8}
    [yesterday] = day_numbers(["yesterday"])
    assert yesterday > TODAY
    assert day_numbers([]) == set()


@pytest.mark.fault
def test_the_command_builds_days(tmp_path: Path) -> None:
    journal, out = two_days(tmp_path / "journal"), tmp_path / "days"
    result = run("--journal", journal, "--out", out, "--changed", "--master", "local[1]", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["days"] == [day_text(TODAY), day_text(TODAY + 1)]
    assert told["tables"]["traces"]["rows"] == 4


@pytest.mark.rule("SP-6")
def test_a_loss_is_of_the_day_of_its_trace_by_the_clock_of_the_first_node(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first node's clock is ten minutes ahead: there it is past midnight, corrected before."""
    journal, out = tmp_path / "journal", tmp_path / "tables"
    offset = {"kind": "clock", "peer": "garage", "offset_us": HOUR // 6, "rtt_us": 100}
    put_rows(journal, "sessions", [row("sessions", 1, MIDNIGHT + 1, **offset)], "a", version=2)
    dropped = row("messages", 5, MIDNIGHT + 5, outcome="DROPPED", reason="QUEUE_FULL")
    put_rows(journal, "messages", [dropped], version=2)
    for large, days in ((-1, None), (2**30, [day_text(TODAY + 1)])):  # by Spark, and here
        monkeypatch.setattr("waystation.pipeline.losses.SMALL", large)
        pipeline.build(journal, out / f"{large}", spark=spark, days=days or ())
        stored = StoredTables(out / f"{large}")
        for table in ("traces", "losses"):
            dataset: Any = stored.dataset(table)
            [found] = dataset.to_table(columns=["day"])["day"].to_pylist()
            assert found == day_of(TODAY + 1)
        traces: Any = stored.dataset("traces")
        [started] = traces.to_table(columns=["started"])["started"].to_pylist()
        assert started.date() == day_of(TODAY)
