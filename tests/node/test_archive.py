"""A hub's archive worker: a leaf's journal arrives over its session, whoever is killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from tests.journal.test_ship import files_in, write
from tests.journal.traffic import message_record
from tests.node.durable_fleet import free_port
from waystation.demo.processes import WAYSTATION
from waystation.journal import Journal
from waystation.journal.check import check
from waystation.journal.shipped import content_of
from waystation.node.archive import ArchiveWorker, Begun, Look, Part, Remove

PATIENCE = 120.0


def test_no_request_makes_an_archive_lose_rows(tmp_path: Path) -> None:
    write(tmp_path / "journal")
    name = next(iter(files_in(tmp_path / "journal")))
    source = tmp_path / "journal" / name
    content, data = content_of(source), source.read_bytes()
    worker = ArchiveWorker(tmp_path / "archive")
    assert worker.answer(b"nothing of ours").refused
    assert worker.answer(msgspec.msgpack.encode(Look("../../etc/passwd"))).refused
    assert worker.answer(msgspec.msgpack.encode(Part(name, content, 0, data))).have == content.size
    assert worker.answer(msgspec.msgpack.encode(Look(name))).held == content
    assert worker.answer(msgspec.msgpack.encode(Begun(name, content))).have == 0
    assert "in no other file" in worker.answer(msgspec.msgpack.encode(Remove(name))).refused
    assert files_in(tmp_path / "archive") == {name: data}
    tail = f"{Path(name).parent}/.{Path(name).stem}.tail"
    (tmp_path / "archive" / tail).write_bytes(b"copied before")
    assert not worker.answer(msgspec.msgpack.encode(Remove(tail))).refused
    assert files_in(tmp_path / "archive") == {name: data}


def config(tmp_path: Path, name: str, text: str) -> Path:
    file = tmp_path / f"{name}.toml"
    file.write_text(f'[node]\nname = "{name}"\n{text}')
    return file


@contextmanager
def running(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A command as a process, which is killed at the end."""
    with subprocess.Popen(
        [*WAYSTATION, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def started(process: subprocess.Popen[str], ready: str) -> str:
    """The first line of a process with this text."""
    assert process.stdout is not None
    for line in process.stdout:
        if ready in line:
            return line
    raise AssertionError(f"it ended without {ready!r}")


def hub_in(tmp_path: Path, place: str) -> Path:
    return config(
        tmp_path,
        "hub",
        f"""hub = true

[[listen]]
url = "tcp://{place}"

[archive]
directory = "{tmp_path / "archive"}"
""",
    )


def free_place() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.mark.timeout(600)
def test_a_journal_arrives_whoever_is_killed_at_any_moment(tmp_path: Path) -> None:
    chance = random.Random(7)
    place, journal = free_place(), tmp_path / "journal"
    hub_file, archive = hub_in(tmp_path, place), tmp_path / "archive"
    route = f"tcp#{place} => waystation.archive"
    for incarnation in range(1, 4):
        with Journal(journal, "leaf", incarnation=incarnation, seal_bytes=20_000) as writer:
            for number in range(1, 3_000):
                writer.note(message_record(number))
    for _ in range(4):
        with (
            running("node", "--config", hub_file) as hub,
            running("journal", "ship", journal, "--to", route, "--every", 0.1) as ship,
        ):
            victim = chance.choice([hub, ship])
            deadline = time.monotonic() + PATIENCE
            wanted = len(files_in(archive)) + 1
            while len(files_in(archive)) < min(wanted, len(files_in(journal))):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            os.kill(victim.pid, signal.SIGKILL)
    with running("node", "--config", hub_file) as hub:
        started(hub, "tcp://")
        done = subprocess.run(
            [*WAYSTATION, "journal", "ship", str(journal), "--to", route, "--once"],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
    assert (done.returncode, done.stderr) == (0, ""), done
    assert files_in(archive) == files_in(journal)
    assert not check(archive)
    assert not list(archive.rglob("*.part"))


@pytest.mark.timeout(600)
def test_a_node_ships_its_own_journal_over_its_session(tmp_path: Path) -> None:
    place = free_place()
    leaf_file = config(
        tmp_path,
        "leaf",
        f"""
[[parent]]
url = "tcp://{place}"

[journal]
directory = "journal"
ship = "0#waystation.archive"
ship_seconds = 0.2
seal_seconds = 0.5
""",
    )
    archive = tmp_path / "archive"
    with (
        running("node", "--config", hub_in(tmp_path, place)),
        running("node", "--config", leaf_file) as leaf,
    ):
        deadline = time.monotonic() + PATIENCE
        while not any(name.endswith(".parquet") for name in files_in(archive)):
            assert leaf.poll() is None, leaf.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
    names = set(files_in(archive))
    assert all("node=leaf" in name for name in names)
