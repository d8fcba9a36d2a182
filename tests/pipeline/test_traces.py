"""The kernel of traces against the core, which tells the way of one message at a time."""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.core.journeys import LATER, NODES, SHORT, SILENT, Journey
from tests.pipeline.journals import of_faults
from tests.pipeline.second_version import LEAVES, SmallFleet
from tests.pipeline.watched import assert_up_to_date, engine, made_at_once, table_in, take_in
from waystation import pipeline
from waystation.core.coverage import MARGIN, Life
from waystation.core.visits import Step, tied, traced
from waystation.journal.schema import MESSAGES
from waystation.pipeline.kernels.answering import tied as tied_tables
from waystation.pipeline.kernels.evidence import Facts, Known
from waystation.pipeline.kernels.tracing import (
    assembled,
    coded_steps,
    packed,
    received_from_answers,
    sent_to_requests,
    together,
    trace,
    unpacked,
)
from waystation.pipeline.schema import plain_schema
from waystation.testing.oracle import trace_row

BEGIN = 1_700_000_000_000_000
SECOND = 1_000_000
DAY = 86_400 * SECOND
HOUR = 3_600 * SECOND

Messages = dict[str, list[Step]]


def table(messages: Messages) -> pa.Table:
    """The rows of messages as steps, in an order that tells nothing."""
    rows: list[dict[str, Any]] = []
    for id, steps in messages.items():
        for step in steps:
            row = {name: getattr(step, name) for name in step.__struct_fields__}
            rows.append({**row, "message_id": id, "return": row.pop("back")})
    Random(len(rows)).shuffle(rows)
    columns = {}
    for field in [*plain_schema(MESSAGES), pa.field("node", pa.string())]:
        values = [row.get(field.name) for row in rows]
        if field.name == "from_global":
            values = [bool(value) for value in values]
        if pa.types.is_timestamp(field.type):
            columns[field.name] = pa.array(values, pa.int64()).view(field.type)
        else:
            columns[field.name] = pa.array(values, field.type)
    return coded_steps(pa.table(columns))


def told_by_core(messages: Messages, known: Known) -> list[dict[str, Any]]:
    evidence = known.evidence()
    told = tied({id: traced(id, steps, evidence) for id, steps in messages.items()})
    return [trace_row(id, found) for id, traces in told.items() for found in traces]


def by_name(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    found = {(row["message_id"], row["origin"], row["started"], row["ended"]): row for row in rows}
    assert len(found) == len(rows)
    return found


def plain(made: pa.Table) -> list[dict[str, Any]]:
    """Rows with numbers for instants."""
    fields = []
    for field in made.schema:
        type = field.type
        if pa.types.is_timestamp(type):
            type = pa.int64()
        elif pa.types.is_list(type) and pa.types.is_struct(type.value_type):
            parts = [
                pa.field(part.name, pa.int64() if pa.types.is_timestamp(part.type) else part.type)
                for part in type.value_type
            ]
            type = pa.list_(pa.struct(parts))
        fields.append(pa.field(field.name, type))
    rows: list[dict[str, Any]] = made.cast(pa.schema(fields)).to_pylist()
    return rows


def agree(messages: Messages, known: Known) -> list[dict[str, Any]]:
    """The traces of both, which must be the same."""
    made = plain(trace(table(messages), paths=True, facts=Facts(known)))
    core = by_name(told_by_core(messages, known))
    kernel = by_name(made)
    assert kernel.keys() == core.keys()
    for key, row in core.items():
        assert kernel[key] == row
    return made


# Journeys: what nodes really write


def of_journeys(seeds: list[int]) -> tuple[Messages, Known]:
    messages = {f"{seed + 1:032x}": Journey(seed).steps for seed in seeds}
    lives = {n: [Life(1, 0, 1 if n in SHORT else LATER)] for n in NODES if n not in SILENT}
    ahead = Journey(seeds[0]).ahead  # for the others these are wrong, which is no excuse
    first = BEGIN // HOUR * HOUR
    hours = {first + number * HOUR: ahead for number in range(-1, 3)}
    return messages, Known(lives, hours, frozenset(), has_answers=True)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=20, unique=True))
def test_journeys_are_told_as_the_core_tells_them(seeds: list[int]) -> None:
    agree(*of_journeys(seeds))


# Anything: few names and times, so that much coincides

TIMES = [BEGIN + at for at in (0, 1, SECOND, 2 * SECOND, 9 * SECOND, 60 * SECOND)]
ROUTES = [(), ("0#w",), ("0#v", "0#w"), ("0#u", "0#v", "0#w"), ("1#h:1", "0#w"), ("0#z",)]
ONWARD = [("0#x", "0#y", "0#z"), ("0#y", "0#z"), ("0#z",), (), ("9#n",), ("1#h:2", "0#z")]
NAMES = ("a", "b", "c", "d")

visits = st.fixed_dictionaries(
    {
        "node": st.sampled_from(NAMES[:3]),
        "incarnation": st.sampled_from((1, 1, 2)),
        "received_at": st.sampled_from(TIMES),
        "onward": st.sampled_from(ONWARD),
        "back": st.sampled_from(ROUTES),
        "via": st.sampled_from((None, None, "s", "global")),
        "from_node": st.sampled_from((None, *NAMES)),
        "from_global": st.booleans(),
        "origin": st.sampled_from((None, None, None, "a/1", "b/1")),
        "answers": st.sampled_from((None, None, f"{1:032x}", f"{2:032x}")),
        "version": st.sampled_from((1, 2, 2, 2)),
        "expiry": st.sampled_from((None, BEGIN + SECOND, BEGIN + DAY)),
        "sender": st.sampled_from((None, "me")),
        "internal": st.sampled_from((None, False, False, True)),
        "durable": st.sampled_from((None, False, True)),
    }
)
steps = st.fixed_dictionaries(
    {
        "took": st.sampled_from((0, 0, 1, SECOND, 2 * DAY)),
        "outcome": st.sampled_from(("FORWARDED",) * 6 + ("DELIVERED",) * 3 + ("DROPPED", "QUEUED")),
        "next_node": st.sampled_from((None, *NAMES)),
        "out": st.sampled_from((None, "s", "t", "global")),
        "copy": st.sampled_from((None, 0, 1)),
        "recipient": st.sampled_from((None, "x", "z")),
        "reason": st.sampled_from(("NO_ROUTE", "DUPLICATE", "NO_SUBSCRIBER", "EXPIRED")),
        "next_hop": st.sampled_from((None, "1#h:1")),
    }
)
messages = st.tuples(
    st.sampled_from((None, None, "p/b")),
    st.lists(st.tuples(visits, st.lists(steps, min_size=1, max_size=4)), min_size=1, max_size=6),
)


def of_any(number: int, message: tuple[str | None, list[Any]]) -> list[Step]:
    multicast, entered = message
    found, known = [], set()
    for seq, (visit, rows) in enumerate(entered):
        entry = (visit["node"], visit["incarnation"], visit["received_at"])
        if entry in known:
            continue  # what a visit has in common is the same in all of its rows
        known.add(entry)
        for place, told in enumerate(rows):
            row = {**told, "at": visit["received_at"] + told["took"]}
            del row["took"]
            if row["outcome"] != "DROPPED":
                row["reason"] = None
            if row["outcome"] in ("DELIVERED", "QUEUED"):
                row["next_node"] = row["out"] = None
            if visit["version"] == 1:
                row |= {"next_node": None, "out": None, "copy": None}
            more = {**visit, **row, "multicast_id": multicast, "seq": 10 * seq + place + number}
            if visit["version"] == 1:
                more |= {"via": None, "from_node": None, "origin": None, "answers": None}
            found.append(Step(**more))
    return found


lives = st.lists(
    st.tuples(st.sampled_from(TIMES), st.sampled_from((1.0, 1.0, 0.5))), min_size=1, max_size=2
)


def lives_of(told: list[tuple[int, float]], until: int, gap: bool) -> list[Life]:
    begins = sorted(at - SECOND for at, _ in told)
    return [
        Life(
            number,
            begin,
            begin + until,
            begins[number] if number < len(begins) else None,
            told[number - 1][1],
            ((begin, begin + SECOND),) if gap else (),
        )
        for number, begin in enumerate(begins, 1)
    ]


knowledge = st.builds(
    lambda lived, until, gap, ahead, broker: Known(
        {node: lives_of(told, until, gap) for node, told in lived.items()},
        {BEGIN // HOUR * HOUR: ahead},
        frozenset((node, 1, "global") for node in broker),
        has_answers=True,
    ),
    st.dictionaries(st.sampled_from(NAMES), lives, max_size=4),
    st.sampled_from((SECOND, MARGIN + SECOND, HOUR)),
    st.booleans(),
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from((0, SECOND, -SECOND)), max_size=3),
    st.lists(st.sampled_from(NAMES), max_size=3),
)


@settings(max_examples=settings().max_examples * 2)
@given(st.lists(messages, min_size=1, max_size=4), knowledge)
def test_anything_is_told_as_the_core_tells_it(found: list[Any], known: Known) -> None:
    told = {f"{number:032x}": of_any(number, message) for number, message in enumerate(found, 1)}
    agree(told, known)


def test_rows_of_one_copy_that_name_different_nodes_are_told_as_the_core_tells_them() -> None:
    common: dict[str, Any] = {
        "node": "a", "incarnation": 1, "at": BEGIN, "received_at": BEGIN, "version": 2,
        "outcome": "FORWARDED", "onward": ("0#x",), "out": "s", "copy": 0,
    }  # fmt: skip
    rows = [Step(seq=1, **common), Step(seq=2, next_node="a", recipient="x", **common)]
    [made] = agree({f"{1:032x}": rows}, Known({"a": [Life(1, BEGIN, BEGIN + HOUR)]}))
    assert (made["outcome"], made["lost_copies"]) == ("FORWARDED", 0)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("version", [1, 2])
def test_a_wide_broadcast_is_told_as_the_core_tells_it(seed: int, version: int) -> None:
    """Many copies leave one visit, and many visits follow it, by their routes or by sessions."""
    rng = Random(seed)
    names = [None, *(f"r{number}" for number in range(20))]
    same: dict[str, Any] = {"incarnation": 1, "onward": (), "multicast_id": "p/b"}
    rows = [
        Step(
            **same,
            node="hub",
            seq=seq,
            at=BEGIN + rng.randint(0, 3),
            received_at=BEGIN,
            outcome=rng.choice(("FORWARDED", "FORWARDED", "DELIVERED")),
            recipient=rng.choice(names),
            version=1 if seed % 2 else version,
            next_node=f"n{seq % 30}" if version > 1 else None,
        )
        for seq in range(60)
    ]
    for seq in range(50):
        whom, at = rng.choice(names[: 1 + seed * 6]), BEGIN + rng.randint(5, 30)
        told = Step(
            **same,
            node=f"n{seq % 30}",
            seq=seq,
            at=at,
            received_at=at,
            outcome="DELIVERED",
            recipient=whom,
            back=("0#s",),
            version=version,
            via="s" if version > 1 else None,
            from_node="hub" if version > 1 else None,
        )
        more = rng.choice(names)
        rows += [told, msgspec.structs.replace(told, seq=100 + seq, recipient=more)][: 1 + seq % 2]
    [made] = agree({f"{1:032x}": rows}, Known({"hub": [Life(1, BEGIN, BEGIN + HOUR)]}))
    assert len(made["path"]) == len(rows)


def test_parts_that_are_assembled_apart_are_tied_together(monkeypatch: pytest.MonkeyPatch) -> None:
    told: Messages = defaultdict(list)
    for number in range(1, 41):
        common: dict[str, Any] = {
            "incarnation": 1,
            "received_at": BEGIN + number,
            "at": BEGIN + number + 1,
        }
        for id, nodes in ((number, ("a", "b")), (1000 + number, ("b", "a"))):
            answers = None if id == number else f"{number:032x}"
            for place, node in enumerate(nodes):
                told[f"{id:032x}"].append(
                    Step(
                        node=node,
                        seq=place,
                        outcome="DELIVERED" if place else "FORWARDED",
                        next_node=None if place else nodes[1],
                        from_node=nodes[0] if place else None,
                        via="s" if place else None,
                        origin=None if place else f"{node}/1",
                        onward=("0#x",),
                        back=("0#s",) * place,
                        answers=None if place else answers,
                        **common,
                    )
                )
    known = Known(has_answers=True)
    sent = list(packed(iter([table(told)]), 3, paths=True))
    parts: dict[int, list[pa.Table]] = defaultdict(list)
    for rows in sent:
        for part, blob in zip(rows["part"].to_pylist(), rows["steps"], strict=True):
            parts[part] += unpacked(pa.array([blob.as_py()]))
    assert len(parts) == 3
    monkeypatch.setattr("waystation.pipeline.kernels.tracing.TRACES_AT_ONCE", 5)
    tying: dict[int, list[pa.Table]] = defaultdict(list)
    for held in parts.values():
        for rows in sent_to_requests(assembled(together(held), Facts(known)), 3):
            tying[rows["part"][0].as_py()] += unpacked(rows["steps"].combine_chunks())
    assert all(rows.num_rows <= 5 for held in tying.values() for rows in held)
    made = [tied_tables(*received_from_answers(held)) for held in tying.values()]
    rows = plain(pa.concat_tables(made))
    assert by_name(rows) == by_name(agree(told, known))
    assert {row["symmetric"] for row in rows if row["answered_by"] is not None} == {True}
    assert sum(row["answered_by"] is not None for row in rows) == 40


@pytest.mark.parametrize(("late", "answered"), [(0, True), (1, False)])
def test_an_answer_counts_up_to_a_day_after_its_request(late: int, answered: bool) -> None:
    told: Messages = {}
    for number, since in ((1, 0), (2, DAY + late)):
        told[f"{number:032x}"] = [
            Step(
                node="a",
                incarnation=1,
                seq=number,
                at=BEGIN + since,
                received_at=BEGIN + since,
                outcome="DELIVERED",
                origin="a/1",
                onward=("0#x",),
                answers=f"{1:032x}" if since else None,
            )
        ]
    [request] = [row for row in agree(told, Known(has_answers=True)) if row["answers"] is None]
    assert (request["answered_by"] is not None) == answered
    assert request["legs"] == 1 + answered


# Whole journals


def traces_of(journal: Path) -> dict[str, dict[str, Any]]:
    return {row["message_id"]: row for row in made_at_once(journal)["traces"].to_pylist()}


def vanished(found: dict[str, dict[str, Any]]) -> set[str]:
    return {id for id, row in found.items() if row["reason"] == "VANISHED"}


@pytest.mark.rule("SP-8")
@pytest.mark.parametrize("seed", [0, *of_faults(1, 2)])
def test_what_vanished_is_found_whatever_the_clocks_say(tmp_path: Path, seed: int) -> None:
    fleet = SmallFleet(seed)
    fleet.write(tmp_path)
    found = traces_of(tmp_path)
    assert vanished(found) == fleet.vanished
    assert sum(row["unknown_copies"] + row["left_fleet"] for row in found.values()) == 0
    for row in found.values():
        nodes = [hop["node"] for hop in row["path"]]
        assert nodes[0] != "hub"
        assert row["latency_ms"] >= 0
        assert row["symmetric"] is (True if row["answered_by"] else None)
        assert row["legs"] == (2 if row["answered_by"] else 1)
    assert any(row["answered_by"] for row in found.values())
    assert {row["answers"] for row in found.values()} - {None} == {
        id for id, row in found.items() if row["answered_by"]
    }


def test_no_loss_is_invented_where_a_node_s_files_are_missing(tmp_path: Path) -> None:
    fleet = SmallFleet(1)
    fleet.write(tmp_path)
    for path in tmp_path.glob("*/node=leaf-2"):
        shutil.rmtree(path)
    found = traces_of(tmp_path)
    assert vanished(found) <= fleet.vanished
    assert sum(row["left_fleet"] for row in found.values()) > 0


def test_no_loss_is_invented_while_a_hub_is_a_minute_behind(tmp_path: Path) -> None:
    fleet = SmallFleet(1)
    paths = fleet.write(tmp_path, chunk=15)
    for path in sorted(path for path in paths if path.startswith("messages/node=hub"))[1:]:
        (tmp_path / path).unlink()
    shutil.rmtree(tmp_path / "members" / "node=hub")
    found = traces_of(tmp_path)
    assert vanished(found) < fleet.vanished
    assert sum(row["unknown_copies"] for row in found.values()) > 0
    assert sum(row["left_fleet"] for row in found.values()) == 0


def test_no_loss_is_invented_where_a_leaf_keeps_a_sample(tmp_path: Path) -> None:
    fleet = SmallFleet(1, messages=80)
    for leaf in LEAVES[:1]:
        fleet.sample(leaf, 0.5)
    fleet.write(tmp_path)
    found = traces_of(tmp_path)
    assert set() < vanished(found) <= fleet.vanished
    assert sum(row["unknown_copies"] for row in found.values()) > 0


@pytest.mark.rule("SP-3")
@pytest.mark.parametrize("seed", range(2))
def test_watched_traces_are_those_of_a_build_after_each_batch(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    source, journal = tmp_path / "source", tmp_path / "journal"
    paths = SmallFleet(seed).write(source, chunk=9)
    if seed:
        rng.shuffle(paths)
    journal.mkdir()
    watch = engine(journal, tmp_path)
    size = -(-len(paths) // 6)
    for first in range(0, len(paths), size):
        for path in paths[first : first + size]:
            (journal / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / path, journal / path)
        take_in(watch, journal)
        assert_up_to_date(tmp_path / "tables", journal, ("traces", "clocks"))
    assert table_in(tmp_path / "tables", "clocks").num_rows
    watch.close()


@pytest.mark.rule("SP-3")
@pytest.mark.timeout(600)
def test_a_build_ties_answers_and_a_changed_frame_gives_the_same_with_what_is_known(
    spark: SparkSession, tmp_path: Path
) -> None:
    SmallFleet(2).write(tmp_path)
    wanted = collected_rows(made_at_once(tmp_path)["traces"])
    journal = pipeline.read_journal(spark, tmp_path)
    assert collected_rows(pipeline.traces(journal.messages).toArrow()) == wanted
    known = pipeline.known_of(journal)
    assert known.has_answers
    changed = pipeline.traces(journal.messages.where("node is not null"), known=known)
    assert collected_rows(changed.toArrow()) == wanted


def collected_rows(made: pa.Table) -> list[str]:
    return sorted(map(str, plain(made)))
