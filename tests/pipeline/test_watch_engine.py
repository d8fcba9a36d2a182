"""However files arrive, after each batch the tables are those of a build (SP-3)."""

from __future__ import annotations

import random
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from tests.pipeline.frames import assert_same
from tests.pipeline.journals import (
    Scenario,
    busy,
    journal_of,
    many,
    of_faults,
    scenarios_2,
    write,
)
from tests.pipeline.small import BEGIN, SECOND, put_rows, row
from tests.pipeline.test_exact_files import worsened
from tests.pipeline.watched import (
    assert_up_to_date,
    engine,
    every_file,
    made_at_once,
    sliced,
    table_in,
    take_in,
)
from waystation.errors import LocalError
from waystation.journal.housekeeping import compact
from waystation.pipeline.tables import WATCHED
from waystation.pipeline.watching import buckets, node_step, segments, traces
from waystation.pipeline.watching import engine as engines
from waystation.pipeline.watching.buckets import bucket_of
from waystation.pipeline.watching.store import Ledger, Store
from waystation.simulate.fleet import Fleet
from waystation.simulate.journal import write_fleet
from waystation.testing import oracle
from waystation.why.finished import StoredTables

pytestmark = pytest.mark.timeout(600)


def arrive(source: Path, journal: Path, paths: list[str]) -> None:
    for path in paths:
        (journal / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / path, journal / path)


def in_batches(paths: list[str], rng: random.Random, count: int) -> list[list[str]]:
    cuts = sorted(rng.randrange(len(paths) + 1) for _ in range(count - 1))
    return [paths[low:high] for low, high in pairwise([0, *cuts, len(paths)])]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("fleet") / "journal"
    made = Fleet(nodes=5, participants=30, messages=600, seed=5)
    write_fleet(made, directory)
    return directory


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    directory = tmp_path / "journal"
    directory.mkdir()
    return directory


def check_any_order(
    place: Path,
    seed: int,
    scenarios: list[Scenario] | None = None,
    tables: tuple[str, ...] = WATCHED,
) -> None:
    """Late, twice, out of order, new nodes, restarts, clocks set back, invalid rows, no Parquet."""
    rng = random.Random(seed)
    if scenarios is None:
        scenarios = [*many(4), *(busy(seed * 10 + number, 60) for number in range(3))]
    rows, _ = worsened(journal_of(scenarios))
    source, journal = place / "source", place / "journal"
    write(source, rows, seed=seed, chunk=rng.choice([20, 60]))
    paths = every_file(source)
    rng.shuffle(paths)
    for number, path in enumerate(rng.sample(paths, 3)):
        copy = str(Path(path).parent / f"copy-{number}.parquet")
        shutil.copy2(source / path, source / copy)
        paths.insert(rng.randrange(len(paths)), copy)
    broken, stray = str(Path(paths[0]).parent / "5-5.parquet"), "messages/stray.parquet"
    for path in (broken, stray):
        (source / path).write_bytes(b"PAR1 this is none PAR1")
    paths += [broken, stray]
    journal.mkdir()
    watch = engine(journal, place)
    for part in in_batches(paths, rng, 4):
        arrive(source, journal, part)
        take_in(watch, journal)
        assert_up_to_date(place / "tables", journal, tables)
    watch.close()


VERDICTS = ("expected", "audit", "session_history")


@pytest.mark.rule("SP-3")
@pytest.mark.parametrize("seed", [1, *of_faults(2, 3)])
def test_verdicts_on_version_2_are_those_of_a_build_in_any_order_of_files(
    tmp_path: Path, seed: int
) -> None:
    lives = [busy(seed * 10 + number, 80, version=2) for number in range(3)]
    check_any_order(tmp_path, seed, [*many(3, scenarios_2), *lives, busy(seed)], VERDICTS)


@pytest.mark.rule("SP-3")
@pytest.mark.parametrize("seed", [0, *of_faults(1, 2, 3)])
def test_verdicts_on_version_2_are_those_of_a_build_as_nodes_seal_their_files(
    tmp_path: Path, journal: Path, seed: int
) -> None:
    lives = [busy(seed * 10 + number, 150, version=2) for number in range(3)]
    write(tmp_path / "whole", journal_of(lives), chunk=100_000)
    source = tmp_path / "source"
    paths = sliced(tmp_path / "whole", source, 10)
    watch = engine(journal, tmp_path)
    for part in in_batches(paths, random.Random(seed), 6):
        arrive(source, journal, part)
        take_in(watch, journal)
        assert_up_to_date(tmp_path / "tables", journal, VERDICTS)
    watch.close()


@pytest.mark.rule("SP-3")
@pytest.mark.rule("SP-5")
def test_after_each_batch_the_tables_are_those_of_a_build_in_any_order_of_files(
    tmp_path: Path,
) -> None:
    check_any_order(tmp_path, 1)


@pytest.mark.fault
@pytest.mark.parametrize("seed", range(2, 12))
def test_many_files_in_any_order(tmp_path: Path, seed: int) -> None:
    check_any_order(tmp_path, seed)


@pytest.mark.rule("SP-3")
@pytest.mark.parametrize("disorder", [0, 25])
def test_files_are_processed_one_after_the_other_as_nodes_seal_them(
    tmp_path: Path, journal: Path, fleet: Path, monkeypatch: pytest.MonkeyPatch, disorder: int
) -> None:
    monkeypatch.setattr(traces, "FEW", 64)
    monkeypatch.setattr(segments, "SMALLEST", 32)
    rng = random.Random(disorder)
    source = tmp_path / "source"
    paths = sliced(fleet, source, 60)
    order = sorted(range(len(paths)), key=lambda place: place + rng.uniform(0, disorder))
    if disorder:
        monkeypatch.setattr(buckets, "PORTION_BYTES", 20_000)
    else:  # then no node is ever processed again from the beginning
        monkeypatch.setattr(node_step, "_started_over", None)
    watch = engine(journal, tmp_path)
    for part in in_batches([paths[place] for place in order], rng, 4):
        arrive(source, journal, part)
        take_in(watch, journal)
        assert_up_to_date(tmp_path / "tables", journal)
    watch.close()


def messages(first: int, count: int, **fields: Any) -> list[dict[str, Any]]:
    return [
        row("messages", seq, message_id=f"{seq:032x}", **fields)
        for seq in range(first, first + count)
    ]


@pytest.mark.rule("SP-3")
def test_a_message_that_waited_is_decided_again_when_it_enters_again(
    tmp_path: Path, journal: Path
) -> None:
    put_rows(journal, "nodes", [row("nodes", 0)])
    put_rows(journal, "routes", [row("routes", 1)])
    waiting = row(
        "messages", 2, message_id=f"{999:032x}", outcome="QUEUED", recipient=None, onward=["0#b"]
    )
    put_rows(journal, "messages", [waiting, *messages(3, 40)])
    watch = engine(journal, tmp_path)
    take_in(watch, journal)
    put_rows(journal, "messages", messages(50, 40))
    take_in(watch, journal)
    assert "QUEUED" in table_in(tmp_path / "tables", "audit").column("actual").to_pylist()
    put_rows(journal, "messages", [row("messages", 100, message_id=f"{999:032x}")])
    take_in(watch, journal)
    assert "QUEUED" not in table_in(tmp_path / "tables", "audit").column("actual").to_pylist()
    assert_up_to_date(tmp_path / "tables", journal)
    ended = {**waiting, "seq": 101, "at": BEGIN + 101 * SECOND, "outcome": "DROPPED"}
    put_rows(journal, "messages", [{**ended, "reason": "EXPIRED"}])
    take_in(watch, journal)
    assert_up_to_date(tmp_path / "tables", journal)
    watch.close()


def test_late_routes_cause_messages_to_be_decided_again(tmp_path: Path, journal: Path) -> None:
    put_rows(journal, "messages", messages(10, 30))
    watch = engine(journal, tmp_path)
    take_in(watch, journal)
    assert {*table_in(tmp_path / "tables", "expected").column("outcome").to_pylist()} == {"DROPPED"}
    put_rows(journal, "routes", [row("routes", 1), row("routes", 20, kind="remove")])
    take_in(watch, journal)
    assert_up_to_date(tmp_path / "tables", journal)
    put_rows(journal, "routes", [row("routes", 30, expiry=BEGIN + 35 * SECOND)])
    put_rows(journal, "nodes", [row("nodes", 50, kind="stop")])
    take_in(watch, journal)
    assert_up_to_date(tmp_path / "tables", journal)
    watch.close()


def test_a_compacted_journal_gives_the_same_tables(tmp_path: Path, journal: Path) -> None:
    for first in range(0, 60, 20):
        put_rows(journal, "messages", messages(first, 20))
        put_rows(journal, "routes", [row("routes", 100 + first)])
    watch = engine(journal, tmp_path)
    take_in(watch, journal)
    before = table_in(tmp_path / "tables", "traces").num_rows
    assert compact(journal, lambda *_: None).after < 6
    put_rows(journal, "messages", messages(80, 5))
    take_in(watch, journal)
    assert_up_to_date(tmp_path / "tables", journal)
    assert table_in(tmp_path / "tables", "traces").num_rows == before + 5
    for path in (journal / "messages" / "node=garage").iterdir():
        path.unlink()
    put_rows(journal, "messages", messages(90, 5))
    take_in(watch, journal)
    assert_up_to_date(tmp_path / "tables", journal)
    watch.close()


def test_unchanged_files_are_not_rewritten(tmp_path: Path, journal: Path) -> None:
    watch = engine(journal, tmp_path)
    assert bucket_of("garage", 3) != bucket_of("yard", 3)
    for node in ("garage", "yard"):
        put_rows(journal, "messages", messages(0, 50), node=node)
    take_in(watch, journal)
    before = {path.name for path in (tmp_path / "tables" / "audit").iterdir()}
    version = (tmp_path / "tables" / "rejects" / "_version").read_text()
    for number in range(1, 16):
        put_rows(journal, "messages", messages(number * 100, 3))
        assert take_in(watch, journal)
    after = {path.name for path in (tmp_path / "tables" / "audit").iterdir()}
    assert before & after - {"_version", "empty.parquet"}
    assert len(after) < 16
    assert (tmp_path / "tables" / "rejects" / "_version").read_text() == version
    assert take_in(watch, journal) is None  # nothing is new
    assert_up_to_date(tmp_path / "tables", journal)
    watch.close()


@pytest.mark.rule("SP-3")
@pytest.mark.parametrize("moment", ["before it counts", "before it is published"])
def test_an_interrupted_batch_is_repeated_or_completed(
    tmp_path: Path, journal: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    put_rows(journal, "messages", messages(1, 20))
    watch = engine(journal, tmp_path)
    take_in(watch, journal)
    put_rows(journal, "messages", messages(21, 20))

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    if moment == "before it counts":
        monkeypatch.setattr(Ledger, "write", die)
    else:
        monkeypatch.setattr(Store, "publish", die)
    with pytest.raises(KeyboardInterrupt):
        take_in(watch, journal)
    assert table_in(tmp_path / "tables", "traces").num_rows == 20
    watch.close()
    monkeypatch.undo()
    again = engine(journal, tmp_path)
    take_in(again, journal)
    assert_up_to_date(tmp_path / "tables", journal)
    again.close()
    store = tmp_path / "tables" / ".watch"
    kept = {str(path.relative_to(store)) for path in store.rglob("*") if path.is_file()}
    last = Ledger(tmp_path / "checkpoint").read()
    assert last is not None
    assert kept == {"lock", *last.kept_files()}  # nothing is left of the interrupted batch


@pytest.mark.rule("SP-3")
def test_concurrent_readers_see_complete_tables(tmp_path: Path, journal: Path) -> None:
    watch = engine(journal, tmp_path)
    over = threading.Event()
    seen: list[int] = []

    def read() -> None:
        while not over.is_set():
            audit = StoredTables(tmp_path / "tables").dataset("audit")
            if audit is not None:
                seen.append(audit.to_table().num_rows)

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(read)
        for number in range(6):
            put_rows(journal, "messages", messages(1 + 7 * number, 7))
            take_in(watch, journal)
        over.set()
        reader.result()
    watch.close()
    assert seen == sorted(seen)
    assert {rows % 7 for rows in seen} == {0}


def test_removed_tables_are_rebuilt(tmp_path: Path, journal: Path) -> None:
    watch = engine(journal, tmp_path)
    assert all(table_in(tmp_path / "tables", table).num_rows == 0 for table in WATCHED)
    put_rows(journal, "messages", messages(0, 20))
    take_in(watch, journal)
    watch.close()
    shutil.rmtree(tmp_path / "tables")
    again = engine(journal, tmp_path)
    assert_up_to_date(tmp_path / "tables", journal)
    assert take_in(again, journal) is None
    again.close()


def test_a_missing_journal_a_second_watch_and_another_checkpoint_are_refused(
    tmp_path: Path, journal: Path
) -> None:
    with pytest.raises(LocalError, match="no such journal"):
        engine(tmp_path / "nowhere", tmp_path)
    watch = engine(journal, tmp_path)
    with pytest.raises(LocalError, match="keeps these tables up to date"):
        engine(journal, tmp_path)
    put_rows(journal, "messages", messages(0, 2))
    take_in(watch, journal)
    watch.close()
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(LocalError, match="the checkpoint belongs to the journal"):
        engine(other, tmp_path)
    (tmp_path / "checkpoint" / "batches" / "last").write_bytes(b"\x00")
    with pytest.raises(LocalError, match="is damaged"):
        engine(journal, tmp_path)


def test_tables_that_were_not_kept_before_are_made_from_all_files(
    tmp_path: Path, journal: Path
) -> None:
    """A checkpoint of a version that kept fewer tables knows less than these need."""
    put_rows(journal, "sessions", [row("sessions", 1)])
    watch = engine(journal, tmp_path)
    take_in(watch, journal)
    watch.close()
    ledger = Ledger(tmp_path / "checkpoint")
    last = ledger.read()
    assert last is not None
    former = [table for table in last.tables if table != "session_history"]
    ledger.write(replace(last, tables=former, files={}))
    watch = engine(journal, tmp_path)
    assert_up_to_date(tmp_path / "tables", journal)
    assert table_in(tmp_path / "tables", "session_history").num_rows == 1
    assert take_in(watch, journal) is None
    watch.close()


def test_health_from_tallies_is_what_the_oracle_says(tmp_path: Path) -> None:
    rows = journal_of([busy(77), busy(78)])
    journal = write(tmp_path / "journal", {"messages": rows["messages"]}, chunk=50)
    found = made_at_once(journal)["health"]

    def rounded(row: dict[str, Any]) -> dict[str, Any]:
        instant = row["window_start"]
        start = instant if isinstance(instant, int) else round(instant.timestamp() * 1e6)
        shown = {name: round(row[name], 6) for name in ("p50_ms", "p99_ms")}
        return {**row, **shown, "window_start": start}

    wanted = oracle.health({"messages": rows["messages"]})
    assert_same(map(rounded, found.to_pylist()), map(rounded, wanted))


def test_a_report_describes_a_batch(tmp_path: Path, journal: Path) -> None:
    put_rows(journal, "routes", [row("routes", s, address=f"1#h:{s % 2}") for s in range(10)])
    dropped = messages(20, 4, outcome="DROPPED", reason="NO_ROUTE", recipient=None)
    put_rows(journal, "messages", [*messages(10, 6), *dropped])
    watch = engine(journal, tmp_path)
    batch = take_in(watch, journal)
    assert batch is not None
    assert (batch.number, batch.files, batch.rows, batch.messages) == (0, 2, 20, 10)
    assert batch.dropped == {"NO_ROUTE": 4}
    assert batch.lag > 0
    assert len(batch.reports["garage"].changes["a"]) == 9
    assert watch.batch > engines.NO_BATCH
    assert pq.read_metadata(journal / every_file(journal)[0]).num_rows
    watch.close()
