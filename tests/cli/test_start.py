"""What a command imports, which is most of the time that it takes to start."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.why.fleets import MadeUp, write_journal
from waystation.node import Node
from waystation.testing import async_test

PROGRAM = """
import json, sys
from waystation.cli import main
try:
    main()
finally:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""
SPARK = {"pyspark", "py4j", "pandas"}
CONSOLE = {"jinja2", "rich", "starlette", "uvicorn"}
COLUMNS = {"numpy", "pyarrow", "duckdb", "polars", "deltalake"}
CRYPTOGRAPHY = {"cryptography"}
LIVE = {"asyncio", "uvloop", "sqlite3", "waystation.node", "waystation.net.connection"}
OTHERS = {"mqtt5", "opentelemetry", "websockets", "hdfs_native"}
NEVER = SPARK | CONSOLE | CRYPTOGRAPHY | OTHERS | {"cloudpickle", "dateutil"}


def imported(*arguments: str) -> set[str]:
    """The modules that a process has when a command has ended."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        capture_output=True, text=True, check=False, timeout=60, env=plain,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.fixture
def journal(tmp_path: Path) -> tuple[str, str]:
    """A small journal, and the id of a message in it."""

    async def write() -> str:
        async with Node("hub", journal=tmp_path / "journal") as node:
            return (await node.send("nobody", b"hello")).id

    return str(tmp_path / "journal"), asyncio.run(write())


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("--version",),
        ("completion", "bash"),
        ("rules",),
        ("rules", "--help"),
        ("journal", "--help"),
        ("journal", "cat", "--help"),
        ("why", "--help"),
        ("lost", "--help"),
    ],
    ids=" ".join,
)
def test_whoever_asks_for_help_waits_for_nothing_that_is_not_needed(
    arguments: tuple[str, ...],
) -> None:
    assert imported(*arguments) & (NEVER | COLUMNS | LIVE) == set()


def test_help_of_send_needs_no_more_than_the_live_half() -> None:
    assert imported("send", "--help") & (NEVER | COLUMNS) == set()


@async_test
async def test_send_needs_no_more_than_the_live_half() -> None:
    async with Node("hub") as node:
        node.start_worker(("sink",), lambda *_: None)
        listening = await node.listen("tcp://127.0.0.1:0")
        url = f"tcp://{listening.place}"
        modules = await asyncio.to_thread(imported, "send", "sink", "hello", "--via", url)
    assert "waystation.node" in modules
    unused = {"waystation.transports.http", "waystation.transports.udp", "waystation.wire.noise"}
    assert modules & (NEVER | COLUMNS | unused) == set()


@pytest.mark.parametrize("command", ["cat", "check", "why", "lost"])
def test_who_reads_a_journal_needs_nothing_of_the_live_half(
    command: str, journal: tuple[str, str]
) -> None:
    directory, id = journal
    arguments = {
        "cat": ("journal", "cat", directory),
        "check": ("journal", "check", directory),
        "why": ("why", id, "--journal", directory),
        "lost": ("lost", "--journal", directory),
    }[command]
    modules = imported(*arguments)
    assert "pyarrow" in modules
    unused = set() if command == "lost" else {"numpy"}
    others = {"waystation.cli.journal", "waystation.cli.peer", "waystation.cli.serving"}
    unused |= others if command in ("why", "lost") else set()
    assert modules & (NEVER | LIVE | unused) == set()


def test_why_takes_numpy_only_where_the_traffic_must_tell_of_clocks(tmp_path: Path) -> None:
    """Nothing measured these clocks, so that messages between the nodes are read by columns."""
    journal = MadeUp(11, 40, measured=False).journal()
    write_journal(tmp_path, journal)
    id = journal["messages"][5]["message_id"]
    assert "numpy" in imported("why", id, "--journal", str(tmp_path))


def test_why_finds_the_last_loss_although_that_takes_numpy(journal: tuple[str, str]) -> None:
    directory, _ = journal
    assert "numpy" in imported("why", "--last-loss", "--journal", directory)
