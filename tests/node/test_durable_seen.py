"""Durable messages where people look: the journal, `why`, metrics, status and configuration."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.config.files import plan, problems
from waystation.cli.top import line
from waystation.config import running
from waystation.core.message import Message
from waystation.journal.read import TableReader
from waystation.journal.schema import MESSAGES
from waystation.node import Context, Node, StoreSettings
from waystation.node.metrics import NodeMetrics
from waystation.node.status import Status
from waystation.pipeline.lost import Question, lost_in_journal
from waystation.testing import until
from waystation.testing.workers import collect
from waystation.why import explain


def quick(directory: Path) -> StoreSettings:
    return StoreSettings(directory=directory, fsync="off", pause=0.01, answer=0.5)


async def journey(directory: Path) -> str:
    """Send a message over a hub that restarts, to a worker that fails at first; its id."""
    journal = directory / "journal"
    hub_store, truck_store = quick(directory / "hub"), quick(directory / "truck")
    async with Node("hub", hub=True, store=hub_store, journal=journal) as hub:
        sent: Any = await hub.send("truck-7", b"hello", durable=True)
    async with (
        Node("hub", hub=True, store=hub_store, journal=journal) as hub,
        Node("truck", store=truck_store, journal=journal) as truck,
    ):
        handled: list[int] = []

        @truck.worker("truck-7")
        async def handle(message: Message, context: Context) -> None:  # noqa: ARG001
            if context.attempt < 3:
                raise ValueError("not yet")
            handled.append(context.attempt)

        listening = await hub.listen("tcp://127.0.0.1:0")
        await truck.connect(listening.url, parent=True)
        await until(lambda: handled and not (truck.custody and truck.custody.messages))
        await until(lambda: hub.custody and not hub.custody.messages)
    return str(sent.id)


@pytest.mark.rule("DU-7")
def test_why_tells_the_story_of_a_durable_message_across_restarts(tmp_path: Path) -> None:
    id = asyncio.run(journey(tmp_path))
    explained = explain(tmp_path / "journal", id)
    assert all(hop.as_expected for hop in explained.hops)
    told = [one for one in explained.remarks if one.startswith("durable:")]
    steps = [one.rpartition(" at ")[0] or one for one in told]
    assert [one for one in steps if "truck" in one and "from hub" not in one] == [
        "durable: QUEUED at truck, on its disk,",
        "durable: QUEUED again at truck, since its handler raised at the 1st attempt,",
        "durable: QUEUED again at truck, since its handler raised at the 2nd attempt,",
        "durable: handled by truck-7 at truck at the 3rd attempt,",
    ]
    assert [one for one in steps if "truck" not in one or "from hub" in one] == [
        "durable: QUEUED at hub, on its disk,",
        "durable: hub was started again and went on with it",
        "durable: custody passed from hub to truck",
    ]


@pytest.mark.rule("DU-1")
def test_why_says_that_a_durable_message_waits_on_disk_although_its_node_ended(
    tmp_path: Path,
) -> None:
    async def scenario() -> str:
        async with Node("hub", store=quick(tmp_path / "hub"), journal=tmp_path / "journal") as hub:
            sent: Any = await hub.send("truck-7", b"hello", durable=True)
            return str(sent.id)

    explained = explain(tmp_path / "journal", asyncio.run(scenario()))
    assert explained.summary == "still waiting at hub, on its disk, when the journal ends"
    assert lost_in_journal(str(tmp_path / "journal"), Question(internal=True)).losses == []


@pytest.mark.rule("DU-2", "DU-7")
def test_the_journal_says_who_had_custody_and_which_attempt_it_was(tmp_path: Path) -> None:
    id = asyncio.run(journey(tmp_path))
    rows = {}
    for node in ("hub", "truck"):
        reader = TableReader(tmp_path / "journal", MESSAGES, node, print)
        found = [row for batch in reader.batches() for row in batch.to_pylist()]
        assert all(row["durable"] is None for row in found if row["message_id"] != id)
        rows[node] = [
            (row["outcome"], row["attempt"], row["custodian"], row["next_node"], row["from_node"])
            for row in found
            if row["message_id"] == id and row["durable"]
        ]
    assert rows["hub"] == [
        ("QUEUED", None, None, None, None),
        ("FORWARDED", None, "truck", "truck", None),
    ]
    assert rows["truck"] == [
        ("QUEUED", None, None, None, "hub"),
        ("QUEUED", 1, None, None, "hub"),
        ("QUEUED", 2, None, None, "hub"),
        ("DELIVERED", 3, None, None, "hub"),
    ]


@pytest.mark.rule("DU-5")
def test_metrics_and_status_tell_what_is_in_custody(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node("hub", store=quick(tmp_path)) as node:
            status = Status(node)
            metrics = NodeMetrics(node, status)
            for to in ("nobody", "77#nowhere => x"):
                await node.send(to, b"hello", durable=True)
            await until(lambda: node.custody and node.custody.dead == 1)
            await until(lambda: node.custody and node.custody.oldest_us is not None)
            text = metrics.metrics()
            for sample in (
                "waystation_node_custody_messages 1",
                "waystation_node_custody_bytes 517",
                "waystation_node_custody_parked_messages 1",
                "waystation_node_dead_letters 1",
                "waystation_node_custody_failing 0",
                "waystation_node_custody_commits_total",
                "waystation_node_custody_oldest_seconds",
            ):
                assert sample in text
            assert ", 1 durable" in line(status.snapshot())
        async with Node("leaf") as node:
            assert "custody" not in NodeMetrics(node).metrics()

    asyncio.run(scenario())


def test_a_file_gives_a_node_a_store(tmp_path: Path) -> None:
    text = '[node]\nname = "hub"\nstore = "kept"\n\n[store]\nfsync = "off"\nmessages = 7\n'

    async def scenario() -> None:
        async with running(plan(tmp_path, text)) as hub:
            found = collect(hub.node, "archive")
            await hub.node.send("archive", b"hello", durable=True)
            await until(lambda: len(found) == 1)
            assert (tmp_path / "kept" / "custody.sqlite").exists()

    asyncio.run(scenario())


def test_limits_of_a_store_need_a_store(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, '[node]\nname = "hub"\n\n[store]\nmessages = 7\n')
    assert "needs a directory" in str(problem)
