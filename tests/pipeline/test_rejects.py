"""A row that is rejected changes nothing but `rejects`, whatever it says (SP-5); without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline.journals import Scenario, journal_of, scenarios, scenarios_2, write
from tests.pipeline.small import BEGIN, INCARNATION, SECOND, put_rows, row
from tests.pipeline.watched import assert_up_to_date, engine, made_at_once, take_in
from waystation.pipeline import TABLES
from waystation.pipeline.tables import BUILT
from waystation.testing.oracle import Row, Tables

YEAR_10000 = 253_402_300_800_000_000
NOT_ADDRESSES = ("0#x y", "", "999#z", "what#z", "0#0xz", "256#", "1#\t")

wrong_routes = st.sampled_from(NOT_ADDRESSES).flatmap(
    lambda bad: st.sampled_from([[bad], [bad, "0#a"], ["0#a", bad]])
)
of_every_table: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [{"kind": "nap"}, {"kind": None}, {"kind": ""}, {"at": None}, {"at": -5}, {"at": YEAR_10000}]
)
WRONG: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "messages": st.one_of(
        of_every_table,
        wrong_routes.map(lambda route: {"onward": route}),
        wrong_routes.map(lambda route: {"return": route}),
        st.sampled_from(
            [
                {"message_id": "xyz"},
                {"message_id": None},
                {"message_id": "Z" * 32},
                {"kind": "multicast", "multicast_id": None},
                {"outcome": "EATEN"},
                {"outcome": ""},
                {"onward": None},
                {"bytes": -1},
                {"received_at": YEAR_10000},
                {"received_at": -1},
                {"expiry": -1},
            ]
        ),
    ),
    "routes": st.one_of(
        of_every_table,
        st.sampled_from(NOT_ADDRESSES).map(lambda bad: {"kind": "put", "address": bad}),
        st.sampled_from(
            [
                {"participant": ""},
                {"participant": None},
                {"kind": "put", "local": None},
                {"kind": "put", "expiry": -1},
            ]
        ),
    ),
    "subscriptions": st.one_of(
        of_every_table,
        st.sampled_from(
            [{"pattern": "p/*/x"}, {"pattern": ""}, {"pattern": None}, {"receiver": ""}]
        ),
    ),
    "nodes": of_every_table,
    "sessions": st.one_of(of_every_table, st.just({"session": None})),
    "members": st.one_of(of_every_table, st.sampled_from([{"grp": None}, {"uuid": ""}])),
    "claims": st.one_of(of_every_table, st.sampled_from([{"participant": ""}, {"session": None}])),
}
EXTRA = ("members", "claims")  # scenarios have no rows of these


@st.composite
def journals_with_rejects(draw: st.DrawFn) -> tuple[Tables, Tables]:
    """A journal, and the same with some rows that cannot be valid."""
    scenario: Scenario = draw(st.one_of(scenarios, scenarios_2))
    rows = journal_of([scenario])
    _send_to_members(rows, draw(st.integers(0, 3)))
    for table in draw(st.sets(st.sampled_from(EXTRA))):
        rows[table] = [_extra(rows, table)]
    spoiled = {table: list(own) for table, own in rows.items()}
    for table in draw(st.lists(st.sampled_from(sorted({*rows, *EXTRA})), min_size=1, max_size=4)):
        own = rows.get(table) or [_extra(spoiled, table)]
        sound = draw(st.sampled_from(own))
        bad: Row = {**sound, **draw(WRONG[table]), "seq": draw(_seqs(spoiled, sound))}
        spoiled.setdefault(table, []).append(bad)
    return rows, spoiled


def _send_to_members(rows: Tables, every: int) -> None:
    """Let some messages be for members of a group, which a gossip router does not judge."""
    sent = rows.get("messages", [])
    ids = sorted({each["message_id"] for each in sent})
    chosen = set(ids[::every]) if every else set()
    for each in sent:
        if each["message_id"] in chosen:
            each["onward"] = ["6#member", *each["onward"]]


def _extra(rows: Tables, table: str) -> Row:
    """A valid row that follows the last one of an incarnation."""
    every = [each for own in rows.values() for each in own]
    last = max(every, key=lambda each: (each["incarnation"], each["seq"]))
    place = {name: last[name] for name in ("node", "incarnation", "at")}
    return {**row(table, last["seq"] + 1), **place}


def _seqs(rows: Mapping[str, list[Row]], row: Row) -> st.SearchStrategy[int]:
    """A number that no row of the incarnation has: after all of them, or between two."""
    name = row["node"], row["incarnation"]
    every = (each for own in rows.values() for each in own)
    taken = {each["seq"] for each in every if (each["node"], each["incarnation"]) == name}
    return st.integers(0, max(taken) + 1_000).filter(lambda seq: seq not in taken)


def tables_of(place: Path, rows: Tables, chunk: int) -> dict[str, Counter[str]]:
    made = made_at_once(write(place, rows, chunk=chunk))
    return {
        table: Counter(map(str, made[table].cast(BUILT[table]).to_pylist())) for table in TABLES
    }


@pytest.mark.rule("SP-5")
@settings(max_examples=settings().max_examples // 4)
@given(both=journals_with_rejects(), chunk=st.sampled_from([1, 3, 1_000]))
def test_a_journal_with_rejects_gives_the_tables_of_the_journal_without_them(
    both: tuple[Tables, Tables], chunk: int
) -> None:
    rows, spoiled = both
    with TemporaryDirectory() as place:
        wanted = tables_of(Path(place) / "sound", rows, chunk)
        found = tables_of(Path(place) / "spoiled", spoiled, chunk)
    added = sum(map(len, spoiled.values())) - sum(map(len, rows.values()))
    assert found.pop("rejects").total() == wanted.pop("rejects").total() + added
    for table, counted in wanted.items():
        assert found[table] == counted, table


@pytest.mark.rule("SP-5")
def test_a_reject_does_not_begin_an_incarnation(tmp_path: Path) -> None:
    """Without its start row, an incarnation begins at its first record, and ends the one before."""
    put_rows(tmp_path, "routes", [row("routes", 0)])
    later = {"incarnation": INCARNATION + 5_000}
    bad = row("routes", 0, at=1, address="999#z", **later)
    sound = row("routes", 3, at=9 * SECOND, participant="b", **later)
    put_rows(tmp_path, "routes", [bad, sound])
    made = made_at_once(tmp_path)
    ends = made["route_history"].column("valid_to").cast(pa.int64()).to_pylist()
    assert ends == [BEGIN + 9 * SECOND, None]
    assert made["rejects"].num_rows == 1


@pytest.mark.rule("SP-5")
@pytest.mark.parametrize(("fields", "judged"), [({"uuid": ""}, 1), ({}, 0)])
def test_a_reject_about_a_member_makes_no_gossip_router(
    tmp_path: Path, fields: dict[str, Any], judged: int
) -> None:
    """What a gossip router passes on to members is not judged; at other nodes it is."""
    journal = tmp_path / "journal"
    sent = row("messages", 0, onward=["6#member"], outcome="DROPPED", reason="NO_ROUTE")
    put_rows(journal, "messages", [sent], version=2)
    put_rows(journal, "members", [row("members", 1, **fields)], version=2)
    made = made_at_once(journal)
    assert (made["expected"].num_rows, made["rejects"].num_rows) == (judged, judged)
    assert made["losses"].num_rows == 1 - judged  # it has no trace, so only a router tells
    take_in(engine(journal, tmp_path), journal)
    assert_up_to_date(tmp_path / "tables", journal)


@pytest.mark.rule("SP-5")
@pytest.mark.parametrize("bad", NOT_ADDRESSES)
def test_an_invalid_address_in_a_dictionary_is_nobodys(bad: str) -> None:
    from waystation.pipeline.kernels.lookup import local_names  # noqa: PLC0415 - beside its use

    assert local_names(pa.array(["0#a", bad, "b"])).to_pylist() == ["a", None, "b"]
