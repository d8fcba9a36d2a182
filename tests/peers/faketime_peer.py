"""Processes whose wall clock a test sets, by libfaketime; the time that passes stays what it is.

The library that is installed is taken; without it, Debian's package is fetched once and unpacked
(kept.py says where it lies).
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import platform
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.peers.kept import PeerMissing, called, kept

PACKAGE = "libfaketime"
LIBRARY = "faketime/libfaketime.so.1"
FETCH_SECONDS = 120
ANSWER_SECONDS = 60


@functools.cache
def build() -> Path:
    """The library; PeerMissing without it."""
    directory = f"lib/{platform.machine()}-linux-gnu"
    installed = Path("/usr") / directory / LIBRARY
    if installed.exists():
        return installed
    return kept("faketime", {"package": PACKAGE.encode()}, make) / "usr" / directory / LIBRARY


def make(sources: dict[str, bytes], home: Path) -> None:
    """Fetch and unpack, in a directory that is renamed when all is there."""
    with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
        workshop, result = Path(scratch) / "workshop", Path(scratch) / "result"
        workshop.mkdir()
        _call(["apt-get", "download", sources["package"].decode()], workshop)
        for archive in workshop.glob("*.deb"):
            _call(["dpkg", "-x", str(archive), str(result)], workshop)
        result.rename(home)  # seen whole or not at all


def _call(command: list[str], workshop: Path) -> None:
    done = called(command, workshop, FETCH_SECONDS)
    if done.returncode:
        reason = " ".join((done.stderr + done.stdout).split())
        raise PeerMissing(f"{command[0]} failed: {reason[-400:]}")


class Child:
    """A node in a process of its own (faketime_child.py), and its wall clock."""

    def __init__(self, process: asyncio.subprocess.Process, clock: Path) -> None:
        self._process = process
        self._clock = clock

    def set_clock(self, *, ahead: int) -> None:
        """Set its wall clock, to so many seconds ahead of ours."""
        _write(self._clock, ahead)

    async def ask(self, *words: object) -> Any:
        """Have it do something; what it answers."""
        reading, writing = self._process.stdout, self._process.stdin
        assert reading is not None
        assert writing is not None
        writing.write(json.dumps(words).encode() + b"\n")
        async with asyncio.timeout(ANSWER_SECONDS):
            return json.loads(await reading.readline())


@asynccontextmanager
async def child(library: Path, directory: Path, *, ahead: int = 0) -> AsyncIterator[Child]:
    """Start a node whose wall clock is this far ahead."""
    clock = directory / "clock"
    _write(clock, ahead)
    environment = {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.peers.faketime_child",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | environment,
    )
    try:
        yield Child(process, clock)
    finally:
        process.kill()
        await process.wait()


def _write(clock: Path, ahead: int) -> None:
    new = clock.with_suffix(".new")
    new.write_text(f"{ahead:+d}\n", "ascii")
    new.replace(clock)
