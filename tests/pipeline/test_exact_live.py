"""Journals of live nodes: a healthy run is `ok` throughout, and each fault shows, and only that.

All nodes write one journal, each scenario with nodes of its own, so that Spark reads it once.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.node.live import place_address
from tests.pipeline.frames import assert_same, collected
from tests.pipeline.journals import read
from waystation import pipeline
from waystation.core.address import Address
from waystation.core.outcome import Reason
from waystation.core.routing import RoutingEntry
from waystation.errors import UndeliverableError
from waystation.node import FAIL, Node, Queue
from waystation.node.policy import Wait
from waystation.testing import Gate, Recorder, collect, echo, oracle, run_checked, until
from waystation.testing.oracle import Row

pytestmark = pytest.mark.timeout(600)  # Spark on a loaded machine takes its time

RUN_TIME_REASONS = {Reason.TRANSPORT_DOWN, Reason.QUEUE_FULL, Reason.FAILED, Reason.REFUSED}


async def be_healthy(directory: Path) -> None:
    """Requests over one and two hops, by address and by name, and what the rules drop."""
    async with (
        Node("garage", journal=directory) as garage,
        Node("gate", journal=directory) as gate,
        Node("truck", journal=directory) as truck,
    ):
        echo(garage)
        kept = collect(garage, "store", "shelf")
        door = await garage.listen("tcp://127.0.0.1:0")
        outer = await gate.listen("tcp://127.0.0.1:0")
        session = await gate.connect(f"tcp://{door.place}", name="inside")
        by_place = f"tcp#{door.place} => echo"
        by_session = f"tcp#{outer.place} => {session.name} => echo"
        for route in (by_place, by_session):
            for number in range(20):
                answer = await truck.request(route, b"%d" % number)
                assert answer.payload == b"%d" % number
        truck.put_route(RoutingEntry("store", place_address(door.place), local=False))
        truck.put_route(RoutingEntry("gone", Address(1, b"x:1"), local=False, expiry=1_000))
        for name in ("store", "gone", "nobody"):
            await truck.send(name, b"parcel")
        await truck.send("store", b"late", ttl=0)
        await until(lambda: len(kept) == 1)
        await publish(garage)


async def publish(node: Node) -> None:
    """Broadcasts with one, two and no subscribers."""
    heard: list[bytes] = []
    for partition in ("eu/+", "eu/de"):
        node.subscribe(
            node.name, "heat", partition, callback=lambda message: heard.append(message.payload)
        )
    for partition in ("eu/de", "eu/fr", "us"):
        await node.publish("heat", b"21", partition=partition)
    await until(lambda: len(heard) == 3)


async def lose_the_peer(directory: Path) -> Recorder:
    """The peer's link is cut, and its listener is closed."""
    async with Node("caller", journal=directory) as caller:
        told = Recorder(caller)
        async with Node("victim") as victim:
            echo(victim)
            door = await victim.listen("tcp://127.0.0.1:0")
            await caller.request(f"tcp#{door.place} => echo", b"hello")
            for session in victim.sessions:
                session.abort_link()
        with pytest.raises(UndeliverableError):
            await caller.request(f"tcp#{door.place} => echo", b"still there?", timeout=20)
        return told


async def fill_an_inbox(directory: Path) -> Recorder:
    """A worker cannot keep up with senders that do not wait; some messages are queued."""
    async with Node("crowded", journal=directory) as node:
        told, gate = Recorder(node), Gate(node, "slow")
        for _ in range(5):
            await node.send("slow", b"now", policy=FAIL)
        queued = await node.send("slow", b"later", policy=Queue(30))
        assert queued.outcome == "QUEUED"
        gate.free.set()
        await until(lambda: b"later" in gate.got)
        return told


async def stop_a_worker(directory: Path) -> Recorder:
    """Messages that wait for a stopped worker have no route, and neither have later ones."""
    async with Node("short", journal=directory) as node:
        told = Recorder(node)
        Gate(node, "worker", inbox=10)
        for _ in range(3):
            await node.send("worker", b"too late", policy=Wait(20))
        await asyncio.sleep(0)
        await node.stop_worker("worker")
        await node.send("worker", b"far too late")
        return told


async def be_tampered_with(directory: Path, name: str) -> None:
    async with Node(name, journal=directory) as node:
        collect(node, "worker", "other")
        node.put_route(RoutingEntry("worker", Address(1, b"elsewhere:1"), local=False))
        for target in ("worker", "other"):
            await node.send(target, b"hello")


def rewrite(directory: Path, table: str, node: str, change: Any) -> None:
    [path] = (directory / table / f"node={node}").glob("*.parquet")
    changed = change(pq.ParquetFile(path).read())
    pq.write_table(changed.replace_schema_metadata(None), path)  # also without the checksum


def claim_acceptance(rows: pa.Table) -> pa.Table:
    """Mark the refused put as accepted."""
    column = rows.schema.get_field_index("accepted")
    return rows.set_column(column, "accepted", pa.array([True] * len(rows)))


def without_worker(rows: pa.Table) -> pa.Table:
    """Remove the first put of the worker."""
    first = pc.index(rows.column("participant"), "worker").as_py()
    return pa.concat_tables([rows.slice(0, first), rows.slice(first + 1)])


@pytest.fixture(scope="module")
def told() -> dict[str, Recorder]:
    return {}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, told: dict[str, Recorder]) -> Path:
    directory: Path = tmp_path_factory.mktemp("live") / "journal"

    async def live() -> None:
        await be_healthy(directory)
        told["caller"] = await lose_the_peer(directory)
        told["crowded"] = await fill_an_inbox(directory)
        told["short"] = await stop_a_worker(directory)
        await be_tampered_with(directory, "flagged")
        await be_tampered_with(directory, "gappy")

    run_checked(live)
    rewrite(directory, "routes", "flagged", claim_acceptance)
    rewrite(directory, "routes", "gappy", without_worker)
    return directory


@pytest.fixture(scope="module")
def journal(spark: SparkSession, directory: Path) -> pipeline.Journal:
    return pipeline.read_journal(spark, directory)


@pytest.fixture(scope="module")
def audit(journal: pipeline.Journal) -> dict[str, list[Row]]:
    frame = pipeline.audit(
        pipeline.expected(
            journal.messages,
            pipeline.route_history(journal.routes),
            pipeline.subscription_history(journal.subscriptions),
        ),
        journal.messages,
        journal.routes,
    )
    by_node = defaultdict(list)
    for row in collected(frame):
        by_node[row["node"]].append(row)
    return by_node


def findings(rows: list[Row]) -> list[tuple[str | None, str | None, str | None]]:
    """The outcomes that differ: expected, actual, and reason."""
    return sorted(
        (row["expected"], row["actual"], row["reason"]) for row in rows if row["verdict"] != "ok"
    )


@pytest.mark.rule("SP-1", "SP-2")
def test_a_healthy_run_is_ok_throughout(audit: dict[str, list[Row]]) -> None:
    for node in ("garage", "gate", "truck"):
        assert audit[node]
        assert findings(audit[node]) == [], node
    reasons = {row["reason"] for row in audit["truck"]}
    assert reasons == {None, "NO_ROUTE", "EXPIRED"}
    assert "NO_SUBSCRIBER" in {row["reason"] for row in audit["garage"]}


def test_a_lost_peer_shows_as_transport_down_drops(
    audit: dict[str, list[Row]], told: dict[str, Recorder]
) -> None:
    assert findings(audit["caller"]) == [("FORWARDED", "DROPPED", "TRANSPORT_DOWN")]
    check_ids(audit["caller"], told["caller"])


def test_a_full_inbox_shows_as_queue_full_drops(
    audit: dict[str, list[Row]], told: dict[str, Recorder]
) -> None:
    found = findings(audit["crowded"])
    assert found
    assert set(found) == {("DELIVERED", "DROPPED", "QUEUE_FULL")}
    check_ids(audit["crowded"], told["crowded"])


def check_ids(rows: list[Row], told: Recorder) -> None:
    """Exactly the messages that the node dropped for a reason that the rules cannot know."""
    dropped = [r.arrival.message.id for r in told.messages if r.verdict.reason in RUN_TIME_REASONS]
    found = [row["message_id"] for row in rows if row["verdict"] != "ok"]
    assert sorted(found) == sorted(dropped)


def test_a_stopped_worker_shows_as_drops_of_the_waiting_messages(
    audit: dict[str, list[Row]],
) -> None:
    found = findings(audit["short"])
    assert len(found) == 3
    assert {row[:2] for row in found} == {("DELIVERED", "DROPPED")}
    assert {row[2] for row in found} <= {"NO_ROUTE", "FAILED"}
    # Messages after it stopped have the outcome that the rules require.
    late = [row for row in audit["short"] if row["verdict"] == "ok"]
    assert [row["reason"] for row in late] == ["NO_ROUTE"]


def test_a_tampered_flag_shows_as_one_row_about_that_put(audit: dict[str, list[Row]]) -> None:
    [row] = [row for row in audit["flagged"] if row["verdict"] != "ok"]
    assert (row["message_id"], row["recipient"]) == (None, "worker")
    assert (row["expected"], row["actual"], row["verdict"]) == ("refused", "accepted", "different")


def test_a_removed_put_shows_as_the_outcomes_that_depend_on_it(audit: dict[str, list[Row]]) -> None:
    """Without its local entry the worker is remote, and the message was not sent there."""
    found = findings(audit["gappy"])
    assert ("FORWARDED", "DELIVERED", None) in found
    assert ("accepted", "refused", None) in found
    assert len(found) == 2


def test_all_tables_of_live_journals_are_what_the_oracle_says(
    journal: pipeline.Journal, directory: Path, audit: dict[str, list[Row]]
) -> None:
    rows = read(directory)
    assert_same([row for own in audit.values() for row in own], oracle.audit(rows))
    assert_same(collected(pipeline.route_history(journal.routes)), oracle.route_history(rows))
    assert_same(collected(pipeline.traces(journal.messages)), oracle.traces(rows))
    assert pipeline.rejects(journal).count() == 0
