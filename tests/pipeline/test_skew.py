"""Extremes: a node with nearly all rows, a message of 10,000 hops, many receivers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.pipeline.small import BEGIN, INCARNATION, SECOND, put_file, put_rows, row, table_of
from waystation import pipeline
from waystation.pipeline import work
from waystation.pipeline.building import rows_in
from waystation.pipeline.kernels.comparing import compare, waiting_ids
from waystation.pipeline.kernels.deciding import Past, decide
from waystation.pipeline.kernels.folding import fold_routes, route_parts
from waystation.pipeline.kernels.lifetimes import EXPIRED, Lifetimes
from waystation.pipeline.kernels.matching import match
from waystation.pipeline.kernels.node_data import FileData, Share, Tuning
from waystation.pipeline.kernels.node_tables import past_of
from waystation.pipeline.kernels.route_fold import LOCAL, route_folds
from waystation.pipeline.kernels.tracing import coded_steps, packed, steps, trace, unpacked
from waystation.pipeline.listing import File, Wanted, list_journal
from waystation.pipeline.schema import VERSION
from waystation.pipeline.tables import BUILT


def shares(journal: Path, table: str) -> list[Share]:
    listing = list_journal(str(journal), Wanted())
    return work.plan_shares(listing, (table, "routes", "subscriptions"), split=True)


def opened(journal: Path, share: Share, **tuning: int) -> FileData:
    return FileData(str(journal), share, Wanted(), Tuning(**tuning))


def sorted_rows(tables: list[pa.Table]) -> list[str]:
    return sorted(str(found) for table in tables for found in table.to_pylist())


@pytest.fixture
def tiny_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "SPLIT_BYTES", 1_000)
    monkeypatch.setattr(work, "ROWS_PER_SHARE", 100)
    monkeypatch.setattr(work, "EVENTS_PER_SHARE", 100)


@pytest.mark.usefixtures("tiny_shares")
def test_a_large_node_is_folded_in_parts_by_participant_to_the_same_history(tmp_path: Path) -> None:
    rows = [row("routes", seq, participant=f"p{seq % 37}") for seq in range(1, 500)]
    put_rows(tmp_path, "nodes", [row("nodes", 0), row("nodes", 600, kind="stop")])
    put_rows(tmp_path, "routes", rows)
    parts = shares(tmp_path, "routes")
    assert len(parts) == 5
    found = [opened(tmp_path, part).route_history for part in parts]
    assert all(part.num_rows for part in found)
    [node] = list_journal(str(tmp_path), Wanted()).nodes.items()
    whole = opened(tmp_path, Share(*node)).route_history
    assert sorted_rows(found) == sorted_rows([whole])


def test_a_history_is_folded_in_parts_to_the_same_rows(tmp_path: Path) -> None:
    put_rows(tmp_path, "routes", [row("routes", s, participant=f"p{s % 37}") for s in range(500)])
    listened = [row("subscriptions", s, receiver=f"r{s % 7}") for s in range(500, 900)]
    put_rows(tmp_path, "subscriptions", listened)
    [node] = list_journal(str(tmp_path), Wanted()).nodes.items()
    found = []
    for at_once in (1_000, 60):
        data = opened(tmp_path, Share(*node), folded_at_once=at_once)
        found.append(sorted_rows([data.route_history, data.subscription_history]))
    events = data.coded_events("routes")
    assert len(list(route_parts(events, data.lifetimes(), 60))) == 9  # complete folds
    assert found[0] == found[1]


def test_strings_that_hardly_repeat_are_read_plain_to_the_same_tables(tmp_path: Path) -> None:
    routes = [row("routes", s, participant=f"p{s % 250}", address=f"1#h{s}") for s in range(500)]
    routes[7]["address"] = "no type#x"
    routes[9].update(kind="remove", address=None)
    put_rows(tmp_path, "routes", routes)
    listened = [row("subscriptions", s, receiver=f"r{s}") for s in range(500, 900)]
    listened[5]["receiver"] = None
    put_rows(tmp_path, "subscriptions", listened)
    sent = [row("messages", s, onward=[f"0#p{s % 300}"]) for s in range(900, 1_300)]
    for number, message in enumerate(sent):
        message["message_id"] = f"{number:032x}"
    put_rows(tmp_path, "messages", sent)
    [node] = list_journal(str(tmp_path), Wanted()).nodes.items()
    found = []
    for many in (10_000, 1):
        data = opened(tmp_path, Share(*node), many_rows=many)
        rows = data.coded_events("messages")
        ruled = list(decide("garage", rows, past_of(data, rows)))
        found.append(sorted_rows([data.route_history, data.subscription_history, *ruled]))
        assert [(reject[0], reject[4]) for reject in data.rejects] == [
            ("routes", "address is not a valid address"),
            ("subscriptions", "receiver is empty"),
        ]
    assert data.coded_events("routes").schema.field("address").type == pa.string()
    assert found[0] == found[1]


@pytest.mark.usefixtures("tiny_shares")
def test_a_large_node_is_decided_and_audited_in_spans_to_the_same_rows(tmp_path: Path) -> None:
    put_rows(tmp_path, "routes", [row("routes", 0), row("routes", 300, kind="remove")])
    messages = [row("messages", seq, message_id=f"{seq // 2 + 1:032x}") for seq in range(1, 600)]
    for early in messages[:40:2]:  # queued, and recorded again much later
        early["outcome"], early["recipient"] = "QUEUED", None
    messages[-1]["message_id"] = messages[0]["message_id"]
    path = put_rows(tmp_path, "messages", messages)
    pq.write_table(table_of("messages", messages), path, row_group_size=50)
    parts = shares(tmp_path, "messages")
    assert len(parts) == 6

    def audited(share: Share) -> pa.Table:
        data = opened(tmp_path, share)
        rows = data.events("messages")
        ruled = list(decide("garage", rows, past_of(data, rows)))
        whole = pa.concat_tables(ruled)
        return compare("garage", whole, rows, data.later_entries(waiting_ids(rows)))

    [node] = list_journal(str(tmp_path), Wanted()).nodes.items()
    assert sorted_rows([audited(part) for part in parts]) == sorted_rows([audited(Share(*node))])
    firsts = [opened(tmp_path, part).is_first_share for part in parts]
    assert firsts == [True, *[False] * 5]


def test_tasks_get_about_equal_work_and_every_node_is_done_once() -> None:
    made = [Share(f"n{number}", {}) for number in range(100)]
    bundles = work._bundled(made, ("routes",), 7)
    in_order = sorted(bundles, key=lambda bundle: made.index(bundle[0]))
    assert [share for bundle in in_order for share in bundle] == made  # neighbours stay together
    assert max(map(len, bundles)) - min(map(len, bundles)) <= 1


def test_the_most_expensive_task_comes_first_and_large_work_gets_more_tasks() -> None:
    sizes = [1, 30, 1, 1, 2, 90, 1]
    made = [
        Share(f"n{number}", {"routes": [File("f", size * 2**20, 1, 1)]})
        for number, size in enumerate(sizes)
    ]
    bundles = work._bundled(made, ("routes",), 3)
    assert made[5] in bundles[0]
    for wanted, count in ((1, 4), (4, 7), (200, 7)):
        assert work._tasks(wanted, made, ("routes",)) == count
    assert work._tasks(2, made[:1], ("routes",)) == 1


def test_a_node_with_most_of_the_rows_is_shared_out_among_the_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "SPLIT_BYTES", 1_000)
    for node, count in (("large", 4_000), ("small", 10)):
        put_rows(tmp_path, "routes", [row("routes", s) for s in range(count)], node)
        messages = [row("messages", s, message_id=f"{s:032x}") for s in range(count, 2 * count)]
        path = put_rows(tmp_path, "messages", messages, node)
        pq.write_table(table_of("messages", messages), path, row_group_size=100)
    listing = list_journal(str(tmp_path), Wanted())
    for tables in (("routes",), ("messages", "routes")):
        made = work.plan_shares(listing, tables, split=True, tasks=4)
        of_large = [share for share in made if share.node == "large"]
        assert 2 < len(of_large) <= 5
        assert len(made) == len(of_large) + 1
        costs = [work._cost(share, tables) for share in of_large]
        assert max(costs) == min(costs)


@pytest.mark.usefixtures("tiny_shares")
def test_no_frame_has_a_row_twice_when_a_node_is_split(spark: SparkSession, tmp_path: Path) -> None:
    routes = [row("routes", seq, participant=f"p{seq}") for seq in range(300)]
    routes[7]["participant"] = ""
    messages = [row("messages", seq, message_id=f"{seq:032x}") for seq in range(300, 900)]
    messages[8]["message_id"] = "no id"
    put_rows(tmp_path, "routes", routes)
    path = put_rows(tmp_path, "messages", messages)
    pq.write_table(table_of("messages", messages), path, row_group_size=50)
    journal = pipeline.read_journal(spark, tmp_path)
    assert journal.routes.count() == 299
    assert journal.messages.count() == 599
    history = pipeline.route_history(journal.routes)
    assert history.count() == 299
    assert pipeline.rejects(journal).count() == 2
    subscriptions = pipeline.subscription_history(journal.subscriptions)
    ruled = pipeline.expected(journal.messages, history, subscriptions)
    assert pipeline.audit(ruled, journal.messages).count() == 599
    assert rows_in(journal)["messages"] == 600


def _of_files(table: str, rows: list[dict[str, Any]], nodes: list[str]) -> pa.Table:
    """Rows as they are read: with their node, and the version of their file."""
    made = table_of(table, rows).append_column("node", pa.array(nodes))
    return made.append_column(VERSION, pa.array([1] * len(rows), pa.int16()))


def steps_of(rows: list[dict[str, Any]], nodes: list[str]) -> pa.Table:
    return steps(_of_files("messages", rows, nodes))


def test_a_message_of_ten_thousand_hops_has_its_path() -> None:
    count = 10_000
    forwarded = {"outcome": "FORWARDED", "next_hop": "1#x"}
    rows = [{**row("messages", seq), **forwarded, "return": [f"1#h{seq}"]} for seq in range(count)]
    found = trace(steps_of(rows, [f"n{seq % 100:02}" for seq in range(count)]), paths=True)
    [made] = found.to_pylist()
    assert (made["hops"], len(made["path"]), made["looped"]) == (count - 1, count, True)
    assert not made["complete"]
    [bare] = trace(steps_of(rows[:1], ["n"]), paths=False).to_pylist()
    assert bare["path"] is None


def test_routes_of_any_length_are_distinguished() -> None:
    rng = np.random.default_rng(5)
    routes = [[f"1#h{n}" for n in rng.integers(0, 3, rng.integers(0, 60))] for _ in range(3_000)]
    rows = [{**row("messages", seq), "return": route} for seq, route in enumerate(routes)]
    found = steps_of(rows, ["n"] * len(rows)).column("back").to_pylist()
    assert found == ["".join(f" {address}" for address in route) for route in routes]


def test_steps_come_together_by_message_whatever_part_they_went_to() -> None:
    rows = [
        row("messages", seq, message_id=f"{seq % 700:032x}", onward=[f"0#w{seq}"])
        for seq in range(2_000)
    ]
    whole = coded_steps(_of_files("messages", rows, ["n"] * 2_000))
    pieces = iter([whole.slice(0, 900), whole.slice(900)])
    [sent] = packed(pieces, 3, paths=True)
    assert sent.column("part").to_pylist() == [0, 1, 2]
    parts = [trace(table, paths=True) for table in unpacked(sent.column("steps").combine_chunks())]
    assert sorted_rows(parts) == sorted_rows([trace(whole.filter(_known(whole)), paths=True)])


def _known(rows: pa.Table) -> pa.Array:
    return pc.not_equal(rows.column("message_id"), f"{0:032x}")


def test_many_receivers_are_decided_in_portions() -> None:
    crowd = 3_000
    subscribed = [row("subscriptions", seq, receiver=f"r{seq}") for seq in range(crowd)]
    from waystation.pipeline.kernels.folding import fold_subscriptions  # noqa: PLC0415 - beside its use

    history = fold_subscriptions("n", table_of("subscriptions", subscribed), Lifetimes())
    sent = [
        row(
            "messages",
            crowd + seq,
            kind="multicast",
            multicast_id="p/b/x",
            message_id=f"{seq:032x}",
        )
        for seq in range(1, 5)
    ]
    nobody = BUILT["route_history"].empty_table()
    past = Past(nobody, history)
    pieces = list(decide("n", table_of("messages", sent), past, at_once=1_000))
    assert [piece.num_rows for piece in pieces] == [crowd] * 4
    assert set(pieces[0].column("reason").to_pylist()) == {"NO_ROUTE"}


def test_matching_many_ids_finds_what_the_core_finds() -> None:
    from waystation.core.multicast import Subscriptions  # noqa: PLC0415 - the oracle

    rng = np.random.default_rng(7)
    words = ["a", "b", "c", "+"]
    ids = sorted({"/".join(rng.choice(words[:3], size=rng.integers(2, 6))) for _ in range(200)})
    patterns = {"/".join(rng.choice(words, size=rng.integers(2, 6))) for _ in range(200)}
    patterns |= {f"{pattern}/*" for pattern in list(patterns)[:60]} | {"*", "+/*"}
    listed = sorted(patterns)
    core = Subscriptions()
    for pattern in listed:
        core.subscribe(pattern, pattern)
    found: dict[str, set[str]] = {id: set() for id in ids}
    for id, pattern in zip(*match(pa.array(ids), pa.array(listed)), strict=True):
        found[ids[id]].add(listed[pattern])
    assert found == {id: set(core.match(id)) for id in ids}


@pytest.mark.parametrize("rounds", [0, 1, 8])
def test_a_fold_with_many_lives_is_the_same_in_rounds_and_row_by_row(rounds: int) -> None:
    events = []
    for number in range(200):  # each time a refused put hides that the local one has expired
        at = number * 10 * SECOND
        ends, late = BEGIN + at + 2 * SECOND, BEGIN + at + 15 * SECOND
        events.append(row("routes", 2 * number, at, expiry=ends))
        events.append(row("routes", 2 * number + 1, at + SECOND, local=False, expiry=late))
    [fold] = route_folds(table_of("routes", events), rounds=rounds)
    rows, _, causes = fold.intervals(Lifetimes())
    assert len(rows) == 200
    assert set(causes.tolist()) == {EXPIRED}
    assert (fold.rows["marks"][rows] & LOCAL).all()


def test_distant_timestamps_are_compared_exactly() -> None:
    last = 253_402_300_799_999_000
    events = [
        row("routes", seq, participant=f"p{seq % 3}", expiry=last if seq % 2 else BEGIN + seq)
        for seq in range(40_000)
    ]
    folds = list(route_folds(table_of("routes", events)))
    assert all(fold._scale._distinct is not None for fold in folds)  # too far apart for distances
    held = {expiry for fold in folds for expiry in fold.expiry.tolist()}
    assert held <= {last, *(BEGIN + seq for seq in range(40_000))}


def test_a_journal_in_several_files_in_any_order_is_read_as_one(tmp_path: Path) -> None:
    rows = [row("routes", seq, participant=f"p{seq % 5}") for seq in range(60)]
    rng = np.random.default_rng(3)
    for number, part in enumerate(np.array_split(rng.permutation(60), 7)):
        content = table_of("routes", [rows[index] for index in part.tolist()])
        put_file(tmp_path / "split", "routes", "garage", f"part-{number}.parquet", content)
    put_rows(tmp_path / "whole", "routes", rows)
    found = []
    for name in ("split", "whole"):
        [node] = list_journal(str(tmp_path / name), Wanted()).nodes.items()
        found.append(sorted_rows([opened(tmp_path / name, Share(*node)).route_history]))
    assert found[0] == found[1]
    assert INCARNATION * 1_000 == BEGIN


def test_an_expiry_at_the_epoch_is_not_special() -> None:
    events = [
        row("routes", 0, participant="old", expiry=0),
        row("routes", 1, participant="old", expiry=None),
        row("routes", 2, participant="old", expiry=BEGIN + SECOND),
        row("routes", 3, participant="new", expiry=None),
    ]
    found = fold_routes("n", table_of("routes", events), Lifetimes()).to_pylist()
    assert [(each["participant"], each["expiry"], each["closed_by"]) for each in found] == [
        ("old", None, "replaced"),
        ("old", None, None),
        ("new", None, None),
    ]
