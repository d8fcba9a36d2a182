"""The past of a fleet: what its journal says of any moment, and what moved then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.console.live import hub, leaf, shown
from tests.core import journeys
from tests.pipeline.small import BEGIN, INCARNATION, SECOND, put_rows, row, table_of
from tests.why.fleets import MadeUp, write_journal
from waystation.console.history import History, routes_at, subscriptions_at
from waystation.console.layout import Options, draw
from waystation.console.moment import Moment, moment
from waystation.console.movements import Bucket, Movements, Timeline
from waystation.console.past import Past, PastRequest, drawing, latest_traffic, parse_moment
from waystation.core.routing import RoutingTable
from waystation.errors import LocalError
from waystation.journal.schema import (
    MEMBERS,
    MESSAGES,
    NODES,
    ROUTES,
    SCHEMAS,
    SESSIONS,
    SUBSCRIPTIONS,
)
from waystation.testing import async_test, until
from waystation.why import explain
from waystation.why.journal import entry_of, intervals


def at(second: float) -> int:
    return BEGIN + round(second * SECOND)


INTERNALS = Options(internals=True)


def session(seq: int, kind: str, name: str, peer: str | None, **more: Any) -> dict[str, Any]:
    told = {"role": "peer", "transport": "tcp", "place": "1#10.0.0.9:1", "detail": None}
    return row(SESSIONS, seq, kind=kind, session=name, peer=peer, **{**told, **more})


def message(seq: int, **more: Any) -> dict[str, Any]:
    return row(MESSAGES, seq, message_id=f"{seq:032x}", **more)


def put_journal(tmp_path: Path) -> None:
    """A hub whose truck is killed at second 10, and whose van stops at second 20."""
    put_rows(tmp_path, NODES, [row(NODES, 0, kind="start")], "hub")
    put_rows(
        tmp_path,
        SESSIONS,
        [
            session(2, "open", "s-truck", "truck", role="leaf"),
            session(3, "open", "s-van", "van", role="leaf", transport="ws"),
            session(4, "open", "mqtt-1", None, role="global", transport="mqtt", place="7#b:1883"),
            session(
                *(10, "close", "s-truck", "truck"),
                role="leaf",
                reason="TRANSPORT_DOWN",
                detail="ended without a goodbye",
            ),
            session(20, "close", "s-van", "van", role="leaf", detail="closed"),
        ],
        "hub",
    )
    for name, seq in (("truck", 2), ("van", 3)):
        lives = [row(NODES, 0, 0, kind="start")]
        lives += [row(NODES, 20, kind="stop")] if name == "van" else []
        put_rows(tmp_path, NODES, lives, name)
        rows = [session(seq, "open", "hub", "hub", role="parent")]
        rows += [session(19, "close", "hub", "hub", role="parent")] if name == "van" else []
        put_rows(tmp_path, SESSIONS, rows, name)
    put_rows(
        tmp_path,
        MEMBERS,
        [
            row(MEMBERS, 5, kind="join", uuid="u", name="van", grp="fleet"),
            row(MEMBERS, 18, kind="leave", uuid="u", name="van", grp="fleet"),
        ],
        "router",
    )


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    put_journal(tmp_path)
    return tmp_path


def moment_at(journal: Path, second: float) -> Moment:
    history = History(journal)
    history.refresh()
    return moment(history, at(second))


def links(found: Moment) -> dict[frozenset[str], str]:
    return {ends: link.state for ends, link in found.graph.links.items()}


def states(found: Moment) -> dict[str, str]:
    return {node.name: node.state for node in found.nodes}


def test_the_topology_of_a_moment_is_what_both_ends_say(journal: Path) -> None:
    early = moment_at(journal, 1)
    assert states(early) == {"hub": "here", "truck": "here", "van": "here"}
    assert links(early) == {}
    calm = moment_at(journal, 6)
    assert links(calm) == {
        frozenset({"hub", "truck"}): "open",
        frozenset({"hub", "van"}): "open",
        frozenset({"hub", "broker b:1883"}): "open",
        frozenset({"van", "router"}): "open",
    }
    kinds = {box.key: box.kind for box in calm.graph.boxes.values()}
    assert kinds["hub"] == "hub"
    assert kinds["broker b:1883"] == kinds["router"] == "server"
    labels = {box.label for box in draw(calm.graph, Options()).boxes}
    assert "broker" in labels


def test_a_node_that_was_killed_is_gone_when_its_peers_have_lost_it(journal: Path) -> None:
    after = moment_at(journal, 12)
    assert states(after) == {"hub": "here", "truck": "gone", "van": "here", "router": "here"}
    assert links(after)[frozenset({"hub", "truck"})] == "gone"
    assert links(after)[frozenset({"hub", "van"})] == "open"


def test_a_node_that_stopped_is_gone_and_later_forgotten(journal: Path) -> None:
    after = moment_at(journal, 30)
    assert states(after)["van"] == "gone"
    assert frozenset({"van", "router"}) not in links(after)
    assert "van" not in states(moment_at(journal, 30 + 3600))


def test_the_console_itself_is_shown_among_internals_only(journal: Path) -> None:
    told = {"peer": "console", "role": "peer", "transport": "tcp", "place": "1#a:1"}
    rows = [
        row(SESSIONS, 30, 5 * SECOND, kind="open", session="s-look", **told),
        row(SESSIONS, 31, 9 * SECOND, kind="close", session="s-look", detail="closed", **told),
        row(SESSIONS, 32, 9 * SECOND, kind="open", session="s-again", **told),
    ]
    put_rows(journal, SESSIONS, rows, "hub")

    async def scenario() -> None:
        plain, everything = PastRequest(at=at(12)), PastRequest(at=at(12), options=INTERNALS)
        past = Past(journal, "console")
        shown_values = await past.show(plain)
        assert "console" not in {box.key for box in shown_values["picture"].boxes}
        assert not any("console" in change.text for change in shown_values["changes"])
        assert max(change.at for change in shown_values["changes"]) <= at(12)
        assert shown_values["marks"] == [10.0]  # when the truck was lost; the van said goodbye
        shown_values = await past.show(everything)
        assert "console" in {box.key for box in shown_values["picture"].boxes}
        assert any("console" in change.text for change in shown_values["changes"])

    async_test(scenario)()


def test_changes_are_told_in_words_the_latest_first(journal: Path) -> None:
    history = History(journal)
    history.refresh()
    told = [(change.node, change.text, change.bad) for change in history.changes(at(9), at(12), 9)]
    assert told == [("hub", "lost truck: ended without a goodbye", True)]
    ended = [(change.text, change.bad) for change in history.changes(at(20), at(21), 9)]
    assert ("disconnected from van", False) in ended
    assert len(history.changes(at(0), at(60), 3)) == 3


def test_the_moment_to_begin_with_is_a_busy_one() -> None:
    """What nodes say to each other goes on when nothing else does."""
    buckets = [Bucket(number, 0) for number in (3, 100, 80, 4, 2)]
    assert latest_traffic(Timeline(0, 500, buckets, 100, is_cut=False)) == 200
    assert latest_traffic(Timeline(0, 500, [Bucket(0, 0)], 0, is_cut=False)) == 500


def test_what_is_written_later_is_read_later(journal: Path) -> None:
    history = History(journal)
    history.refresh()
    put_rows(journal, NODES, [row(NODES, 40, kind="start")], "new")
    history.refresh()
    assert "new" in history.lives
    assert len(history.sessions["hub"]) == 3


def test_a_journal_that_is_too_large_is_cut_and_says_so(journal: Path) -> None:
    history = History(journal, max_rows=3)
    history.refresh()
    assert history.is_cut


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "remove"]),
        st.sampled_from(["truck", "van"]),
        st.booleans(),  # local
        st.booleans(),  # sticky
        st.none() | st.integers(0, 12),  # expiry
    ),
    max_size=12,
)


@given(CHANGES, st.integers(0, 14))
def test_the_routes_of_a_moment_are_those_of_the_routing_table(
    changes: list[tuple[Any, ...]], second: int
) -> None:
    table, rows = RoutingTable(), []
    for seq, (kind, name, local, sticky, expiry) in enumerate(changes, 1):
        change = row(
            ROUTES, seq, kind=kind, participant=name, address=f"0#{name}-{seq}", local=local,
            sticky=sticky, expiry=None if expiry is None else at(expiry),
        )  # fmt: skip
        if kind == "put":
            change["accepted"] = table.put(entry_of(change), at(seq) // 1000).accepted
        else:
            table.remove(name, at(seq) // 1000)
        rows.append(change)
    expected = {
        (name, one.address)
        for name in ("truck", "van")
        for one in intervals([change for change in rows if change["participant"] == name])
        if one.since <= at(second) and (one.until is None or at(second) < one.until)
    }
    batches = table_of(ROUTES, rows).cast(SCHEMAS[ROUTES]).to_batches() if rows else []
    found = routes_at(batches, INCARNATION, at(second))
    assert {(name, str(entry.address)) for name, entry in found.items()} == expected


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("ab"), st.sampled_from("xy")), max_size=9))
def test_the_subscriptions_of_a_moment_are_those_not_yet_ended(
    changes: list[tuple[bool, str, str]],
) -> None:
    rows: list[dict[str, Any]] = []
    held: set[tuple[str, str]] = set()
    for seq, (begins, pattern, receiver) in enumerate(changes, 1):
        kind = "subscribe" if begins else "unsubscribe"
        rows.append(row(SUBSCRIPTIONS, seq, kind=kind, pattern=pattern, receiver=receiver))
        held = held | {(pattern, receiver)} if begins else held - {(pattern, receiver)}
    schema = SCHEMAS[SUBSCRIPTIONS]
    batches = table_of(SUBSCRIPTIONS, rows).cast(schema).to_batches() if rows else []
    assert subscriptions_at(batches, INCARNATION, at(99)) == sorted(held)


def test_routes_name_the_peer_instead_of_its_session(journal: Path) -> None:
    put_rows(
        journal,
        ROUTES,
        [
            row(ROUTES, 6, participant="s-van", address="1#10.0.0.9:1"),
            row(ROUTES, 7, participant="van", address="0#s-van"),
            row(ROUTES, 8, participant="subscriber-0011223344556677", address="0#s-van"),
        ],
        "hub",
    )
    receiver = "subscriber-0011223344556677"
    put_rows(journal, SUBSCRIPTIONS, [row(SUBSCRIPTIONS, 9, receiver=receiver)], "hub")
    history = History(journal)
    history.refresh()
    shown_tables = history.tables("hub", at(15), "", 10, hidden=("waystation.", "subscriber-"))
    assert [(one.participant, one.peer) for one in shown_tables.routes] == [("van", "van")]
    assert [(one.pattern, one.node) for one in shown_tables.subscriptions] == [("p/b/*", "van")]
    assert shown_tables.routes_total == 3
    assert len(history.tables("hub", at(15), "", 10).routes) == 3
    assert history.tables("hub", at(15), "nobody", 10).routes == []
    assert history.tables("van", at(25), "", 10).routes_total == 0


def put_messages(journal: Path) -> None:
    put_rows(
        journal,
        MESSAGES,
        [
            message(11, outcome="FORWARDED", next_node="van"),
            message(12, outcome="FORWARDED", out="mqtt-1"),
            message(13, outcome="DROPPED", reason="NO_ROUTE", recipient="truck"),
            message(14, outcome="DELIVERED", internal=True),
            message(15, outcome="DELIVERED", recipient="echo"),
        ],
        "hub",
        version=2,
    )


@pytest.fixture
def moved(journal: Path) -> Path:
    put_messages(journal)
    return journal


def test_what_moved_is_in_order_and_counted(moved: Path) -> None:
    history, movements = History(moved), Movements(moved)
    history.refresh()
    movements.refresh()
    found = movements.between(at(11), at(15), 9, history, internals=False)
    assert [(step.to, step.outcome) for step in found.steps] == [
        ("van", "FORWARDED"), ("broker b:1883", "FORWARDED"), ("", "DROPPED"),
    ]  # fmt: skip
    assert (found.total, found.dropped) == (3, 1)
    assert found.rates["hub", "van"] == 0.25
    assert found.drops == {"hub": 0.25}
    assert movements.between(at(11), at(16), 9, history, internals=True).total == 5
    assert movements.between(at(16), at(99), 9, history, internals=True).total == 0


def test_of_many_steps_drops_are_kept(moved: Path) -> None:
    history, movements = History(moved), Movements(moved)
    found = movements.between(at(0), at(99), 2, history, internals=True)
    assert len(found.steps) == 2
    assert any(step.is_dropped for step in found.steps)
    assert found.total == 5


def test_the_timeline_counts_messages_and_drops(moved: Path) -> None:
    movements = Movements(moved)
    movements.refresh()
    movements.refresh()  # counts nothing twice
    timeline = movements.timeline(at(0), at(20), History(moved))
    assert timeline is not None
    assert sum(bucket.messages for bucket in timeline.buckets) == 5
    assert sum(bucket.drops for bucket in timeline.buckets) == 1
    assert (timeline.first, timeline.last) == (at(0), at(20))
    assert drawing(timeline).drops.count("M") == 1
    assert Movements(moved / "nothing").timeline(None, None, History(moved)) is None


def test_older_files_are_left_out_of_the_timeline_where_there_are_too_many(moved: Path) -> None:
    put_rows(moved, MESSAGES, [message(30, outcome="DELIVERED")], "hub", version=2)
    movements = Movements(moved, max_counted=1)
    movements.refresh()
    timeline = movements.timeline(None, None, History(moved))
    assert timeline is not None
    assert timeline.is_cut
    assert sum(bucket.messages for bucket in timeline.buckets) == 1


def test_clocks_are_corrected(journal: Path) -> None:
    measured = {"offset_us": 5 * SECOND, "rtt_us": 10}
    put_rows(journal, SESSIONS, [session(21, "clock", "s-x", "late", **measured)], "hub")
    put_rows(journal, NODES, [row(NODES, 12, kind="start")], "late")
    assert "late" not in states(moment_at(journal, 6.9))
    assert "late" in states(moment_at(journal, 7.1))


def test_a_moment_is_a_number_or_a_time() -> None:
    assert parse_moment("2023-11-14T22:13:20+00:00") == 1_700_000_000_000_000
    for wrong in ("yesterday", "9" * 30, "٣"):
        with pytest.raises(LocalError, match="invalid time"):
            parse_moment(wrong)


def test_files_of_the_first_version_lack_columns(tmp_path: Path) -> None:
    old = pa.table({
        name: column
        for name, column in zip(
            SCHEMAS[MESSAGES].names,
            table_of(MESSAGES, [message(1, outcome="DELIVERED")]).columns,
            strict=True,
        )
        if name not in ("internal", "next_node", "out")
    })  # fmt: skip
    directory = tmp_path / MESSAGES / "node=hub"
    directory.mkdir(parents=True)
    import pyarrow.parquet as pq  # noqa: PLC0415

    pq.write_table(old, directory / f"{INCARNATION}-1.parquet")
    found = Movements(tmp_path).between(at(0), at(9), 9, History(tmp_path), internals=False)
    assert found.total == 1


@async_test
async def test_the_page_shows_a_past_moment_and_what_moved(tmp_path: Path) -> None:
    async with (
        hub(journal=tmp_path) as top,
        leaf("truck", top, tmp_path),
        shown(top.url, journal=tmp_path) as browser,
    ):
        await until(lambda: "truck-echo" in top.node.router.table.snapshot(0))
        await top.node.request("truck-echo", b"")
        late = "/past?at=99999999999999999"  # the end of what is on record
        text = await browser.until(
            late, lambda text: "badge then" in text and 'data-node="truck"' in text
        )
        assert 'type="range"' in text
        told = json.loads((await browser.get("/past", X_Fragment="moment")).text)
        begins = told["first"]
        parts = await browser.get(f"/past?at={begins}&node=hub", X_Fragment="moment")
        early = json.loads(parts.text)
        assert early["at"] == begins
        assert 'data-node="truck"' not in early["fleet"]
        assert early["moves"] == [] or early["moves"][0][0] >= 0
        assert "invalid time" in (await browser.get("/past?at=yesterday")).text
        refused = await browser.get("/past?at=yesterday", X_Fragment="moment")
        assert refused.status == 422


@async_test
async def test_beside_an_explanation_is_the_fleet_of_that_moment(moved: Path) -> None:
    async with hub("another") as top, shown(top.url, journal=moved) as browser:
        id = message(14)["message_id"]
        page = (await browser.get(f"/why?id={id}")).text
        assert "data-then" in page
        assert 'class="badge then"' in page
        assert 'data-node="truck"' in page
        assert 'data-node="another"' not in page
        view = (await browser.get(f"/why?id={id}", X_Fragment="view")).text
        assert '<template data-beside><div id="topology">' in view
        assert "data-beside" not in page  # there it is in its place
        drawn = (await browser.get(f"/why?id={id}&internals=yes", X_Fragment="fleet")).text
        assert drawn.startswith('<div id="topology">')
        unknown = await browser.get(f"/why?id={'ab' * 16}", X_Fragment="fleet")
        assert unknown.text == ""
        assert 'data-node="another"' in (await browser.get(f"/why?id={'ab' * 16}")).text


@async_test
async def test_without_a_journal_there_is_no_past(tmp_path: Path) -> None:
    async with hub() as top:
        async with shown(top.url) as browser:
            assert "has no journal" in (await browser.get("/past")).text
            assert "has no journal" in (await browser.get("/incidents")).text
        async with shown(top.url, journal=tmp_path) as browser:
            assert "the journal is empty" in (await browser.get("/past")).text


@pytest.mark.rule("TM-3")
@pytest.mark.parametrize("measured", [False, True])
def test_the_past_is_told_by_the_clocks_that_an_explanation_goes_by(
    tmp_path: Path, measured: bool
) -> None:
    """Clocks are three minutes apart, and sessions or only traffic tells of that."""
    apart = {
        node: (3 - 6 * (number % 2)) * journeys.MINUTE for number, node in enumerate(journeys.NODES)
    }
    fleet = MadeUp(3, 500, apart, measured=measured)
    write_journal(tmp_path, fleet.journal())
    history, movements = History(tmp_path), Movements(tmp_path)
    history.refresh()
    movements.refresh()
    first, last = history.first, history.last
    assert first is not None
    assert last is not None
    timeline = movements.timeline(first, last, history)
    assert timeline is not None
    moves = movements.between(first, last + 1, 10**6, history, internals=True)
    assert sum(bucket.messages for bucket in timeline.buckets) == moves.total
    corrected = 0
    for id in sorted(fleet.journeys)[::50]:
        told = explain(tmp_path, id)
        steps = sorted(
            (step.at - hop.clock_ahead_us, hop.node, step.outcome)
            for hop in told.hops
            for step in hop.steps
        )
        moved = [(one.at, one.node, one.outcome) for one in moves.steps if one.message_id == id]
        assert sorted(moved) == steps
        for at, *_ in steps:
            assert timeline.first <= at <= timeline.last
        corrected += any(hop.clock_ahead_us for hop in told.hops)
    assert corrected
