"""Journals of live nodes in version 2: what a hierarchy does is `ok`, and each fault shows.

The nodes write what version 2 means; the files are labelled with that version afterwards. No Spark:
the kernels are run as a task runs them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.pipeline.frames import assert_same
from tests.pipeline.journals import read
from tests.pipeline.test_exact_verdicts import verdicts
from waystation.journal.schema import VERSION_KEY
from waystation.node import FAIL, Node
from waystation.testing import Recorder, collect, echo, oracle, run_checked, until
from waystation.testing.oracle import Row, Tables


def label_as_version_2(journal: Path) -> None:
    for path in journal.glob("*/node=*/*.parquet"):
        rows = pq.ParquetFile(path).read()
        pq.write_table(rows.replace_schema_metadata({VERSION_KEY: b"2"}), path)


async def live(directory: Path) -> None:
    """A hub with two leaves: requests across it and back, by name, and broadcasts."""
    async with (
        Node("hub", journal=directory, hub=True) as hub,
        Node("truck", journal=directory) as truck,
        Node("garage", journal=directory) as garage,
    ):
        door = await hub.listen("tcp://127.0.0.1:0")
        for leaf in (truck, garage):
            await leaf.connect(f"tcp://{door.place}", parent=True)
        echo(garage)
        kept = collect(hub, "store")
        heard: list[bytes] = []
        garage.subscribe("truck", "position", callback=lambda m: heard.append(m.payload))
        hub.subscribe("truck", "position", callback=lambda m: heard.append(m.payload))
        truck.subscribe("truck", "position", callback=lambda m: heard.append(m.payload))
        await garage.ready()
        await truck.ready()
        for number in range(5):
            answer = await truck.request("echo", b"%d" % number)
            assert answer.payload == b"%d" % number
            await truck.publish("position", b"%d" % number)
        await truck.publish("nobody", b"hears this")
        await hub.publish("nothing", b"hears that")
        await truck.send("store", b"parcel")
        await hub.send("unknown", b"parcel")
        await until(lambda: len(heard) == 15 and len(kept) == 1)


async def meet_twice(directory: Path) -> None:
    """Two leaves with the same two parents: every broadcast comes twice, and counts once."""
    async with (
        Node("north", journal=directory, hub=True) as north,
        Node("south", journal=directory, hub=True) as south,
        Node("van", journal=directory) as van,
        Node("depot", journal=directory) as depot,
    ):
        for hub in (north, south):
            door = await hub.listen("tcp://127.0.0.1:0")
            for leaf in (van, depot):
                await leaf.connect(f"tcp://{door.place}", parent=True)
        told = Recorder(depot)
        heard: list[bytes] = []
        depot.subscribe("van", "position", callback=lambda m: heard.append(m.payload))
        await depot.ready()
        await van.ready()
        for number in range(4):
            await van.publish("position", b"%d" % number)
        await until(lambda: len(heard) == 4)
        await until(lambda: len([r for r in told.messages if r.arrival.multicast_id]) == 8)


async def lose_the_parent(directory: Path) -> None:
    """A copy for a parent that is away, and does not come back in time, is a drop."""
    async with Node("lonely", journal=directory) as lonely:
        async with Node("gone", journal=directory, hub=True) as gone:
            door = await gone.listen("tcp://127.0.0.1:0")
            await lonely.connect(f"tcp://{door.place}", parent=True)
        await until(lambda: all(not session.has_link for session in lonely.sessions))
        await lonely.publish("position", b"?", policy=FAIL)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found: Path = tmp_path_factory.mktemp("live2") / "journal"

    async def all_of_them() -> None:
        await live(found)
        await meet_twice(found)
        await lose_the_parent(found)

    run_checked(all_of_them)
    label_as_version_2(found)
    return found


@pytest.fixture(scope="module")
def found(directory: Path) -> Tables:
    return verdicts(directory)


def of_node(rows: list[Row], node: str) -> list[Row]:
    return [row for row in rows if row["node"] == node]


@pytest.mark.rule("SP-2")
def test_verdicts_on_live_journals_are_what_the_oracle_says(directory: Path, found: Tables) -> None:
    rows = read(directory)
    assert_same(found["expected"], oracle.expected(rows))
    assert_same(found["audit"], oracle.audit(rows))


@pytest.mark.rule("SP-1", "SP-2")
def test_a_healthy_hierarchy_is_ok_throughout(found: Tables) -> None:
    faults = [row for row in found["audit"] if row["verdict"] != "ok"]
    assert [row for row in faults if row["node"] != "lonely"] == []
    outcomes = defaultdict(set)
    for row in found["audit"]:
        outcomes[row["node"]].add(row["actual"])
    assert outcomes["hub"] == {"DELIVERED", "FORWARDED", "DROPPED"}


@pytest.mark.rule("MC-15")
def test_broadcasts_of_a_leaf_go_up_and_are_not_unheard_there(found: Tables) -> None:
    sent = [row for row in of_node(found["expected"], "truck") if row["multicast_id"]]
    upward = [row for row in sent if row["next_node"] == "hub"]
    assert len(upward) == 6
    assert {(row["recipient"], row["address"], row["outcome"]) for row in upward} == {
        (None, None, "FORWARDED")
    }
    assert "NO_SUBSCRIBER" not in {row["reason"] for row in sent}
    at_hub = [row for row in of_node(found["expected"], "hub") if row["multicast_id"]]
    assert "NO_SUBSCRIBER" in {row["reason"] for row in at_hub}


@pytest.mark.rule("FL-6")
def test_second_copies_are_expected_to_be_dropped(found: Tables) -> None:
    sent = [row for row in of_node(found["expected"], "van") if row["multicast_id"]]
    assert sorted(row["next_node"] for row in sent) == ["north"] * 4 + ["south"] * 4
    got = [row for row in of_node(found["audit"], "depot") if row["multicast_id"]]
    told = Counter((row["expected"], row["reason"], row["verdict"]) for row in got)
    assert told == {("DELIVERED", None, "ok"): 4, ("DROPPED", "DUPLICATE", "ok"): 4}


def test_a_copy_for_a_parent_that_is_away_shows_as_a_drop(found: Tables) -> None:
    [row] = [row for row in of_node(found["audit"], "lonely") if row["verdict"] != "ok"]
    assert (row["expected"], row["actual"], row["verdict"]) == ("FORWARDED", "DROPPED", "different")
    assert (row["recipient"], row["next_node"]) == (None, "gone")
    assert row["reason"] in ("TRANSPORT_DOWN", "QUEUE_FULL")
