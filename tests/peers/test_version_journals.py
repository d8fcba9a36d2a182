"""Journals of both versions side by side, and one that goes on in the other version (UP-4)."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from tests.peers.version_peer import (
    NEW,
    OLD,
    PATIENCE,
    TEST_SECONDS,
    Child,
    built,
    children,
    with_children,
)
from tests.pipeline.journals import read
from waystation.journal.check import check
from waystation.testing import until
from waystation.why import explain

pytestmark = [pytest.mark.peer, pytest.mark.timeout(TEST_SECONDS)]

REQUESTS = 20


@pytest.fixture(scope="module", autouse=True)
def _first_version() -> None:
    built()


def rows(journal: Path, **wanted: Any) -> list[dict[str, Any]]:
    """The rows of messages in which these columns have these values."""
    return [
        row
        for row in read(journal).get("messages", [])
        if all(row[column] == value for column, value in wanted.items())
    ]


async def ask_itself(node: Child, journal: Path) -> None:
    """Requests whose rows are in the journal at the end."""
    before = len(rows(journal, recipient="echo", outcome="DELIVERED"))
    for number in range(REQUESTS):
        assert await node.ask("request", "echo", str(number)) == f"hub: {number}"
    after = before + REQUESTS
    await until(
        lambda: len(rows(journal, recipient="echo", outcome="DELIVERED")) == after, PATIENCE
    )


@pytest.mark.rule("UP-4")
@pytest.mark.parametrize("end", ["stop", "kill"])
@with_children
async def test_a_journal_goes_on_in_the_other_version_and_back(tmp_path: Path, end: str) -> None:
    """Also when the former process was killed, and the other version recovers what it left."""
    versions = (OLD, NEW, OLD, NEW)
    async with children() as fleet:
        for version in versions:
            node = await fleet.start(version, "hub", journal=str(tmp_path))
            await node.ask("serve", "echo")
            await ask_itself(node, tmp_path)
            await (node.stop() if end == "stop" else node.kill())
        last = await fleet.start(OLD, "hub", journal=str(tmp_path))
        await last.stop()
    found = rows(tmp_path, recipient="echo", outcome="DELIVERED")
    counts = Counter(row["incarnation"] for row in found)
    assert list(counts.values()) == [REQUESTS] * len(versions)
    assert check(tmp_path) == []


@pytest.mark.ci
@pytest.mark.rule("UP-4")
@pytest.mark.parametrize("hub_version", [OLD, NEW], ids=["0.1 hub", "0.2 hub"])
@with_children
async def test_a_way_through_both_versions_is_explained(tmp_path: Path, hub_version: str) -> None:
    await ask_over_hub(tmp_path, hub_version)
    [first, *_] = rows(tmp_path, node="asker", onward=["0#echo"])
    explanation = explain(tmp_path, first["message_id"])
    assert sorted(hop.node for hop in explanation.hops) == ["asker", "hub", "leaf"]
    assert explanation.summary.startswith("delivered at ")


@pytest.mark.rule("UP-4")
@with_children
async def test_the_pipeline_reads_both_versions(tmp_path: Path) -> None:
    journal, out = tmp_path / "journal", tmp_path / "out"
    await ask_over_hub(journal, OLD)
    await ask_over_hub(journal, NEW)  # the same nodes, now of the other version
    command = "from waystation.cli import main; main()"
    arguments = ("pipeline", "build", "--journal", str(journal), "--out", str(out))
    built = subprocess.run(  # noqa: ASYNC221 - there is nothing else to do
        [sys.executable, "-c", command, *arguments], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    asked = {row["message_id"] for row in rows(journal, node="asker", onward=["0#echo"])}
    assert len(asked) == 2
    for trace in table(out, "traces"):
        if trace["message_id"] in asked:
            assert trace["outcome"] == "DELIVERED"
            assert {visit["node"] for visit in trace["path"]} == {"asker", "hub", "leaf"}
            asked.remove(trace["message_id"])
    assert not asked
    assert {row["verdict"] for row in table(out, "audit")} == {"ok"}
    assert table(out, "rejects") == []


async def ask_over_hub(journal: Path, hub_version: str) -> None:
    """A leaf asks another one, over a hub of the other version."""
    leaf_version = NEW if hub_version == OLD else OLD
    async with children() as fleet:
        hub = await fleet.hub(hub_version, "hub", journal=str(journal))
        leaf = await fleet.leaf(leaf_version, "leaf", hub, journal=str(journal))
        asker = await fleet.leaf(leaf_version, "asker", hub, journal=str(journal))
        await leaf.ask("serve", "echo")
        await hub.until("knows", "echo")
        assert await asker.ask("request", "echo", "hello") == "leaf: hello"
        for node in (asker, leaf, hub):
            await node.stop()


def table(out: Path, name: str) -> list[dict[str, Any]]:
    """The rows of a table."""
    return list(ds.dataset(out / name).to_table().to_pylist())
