"""Nodes of the first version beside nodes of this one, each in a process of its own (UP-1, UP-4).

The first version is taken from the history of this repository, at the last commit before the second
was begun. Both run the same program (version_child.py) in the same environment: the lock file of
the first version names the same packages as today's. Where its source is kept stands in kept.py.
"""

from __future__ import annotations

import asyncio
import functools
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, ParamSpec, Self

import pytest

import waystation
from tests.peers.kept import PeerMissing, kept, needed, tool
from waystation.testing import run_checked

FIRST_COMMIT = "61eaa99fd3f243440cb15d95615eab0bbf085edd"
"""The last commit of version 0.1.0."""

P = ParamSpec("P")

ROOT = Path(__file__).resolve().parents[2]
CHILD = Path(__file__).with_name("version_child.py")

PATIENCE = 120.0
"""Seconds that a child has for what it is asked: processes start slowly on a busy machine."""

TEST_SECONDS = 600
"""The time of a whole test."""

OLD = "0.1"
NEW = "0.2"

both_ways = pytest.mark.parametrize(
    ("hub_version", "leaf_version"), [(OLD, NEW), (NEW, OLD)], ids=["0.1 hub", "0.2 hub"]
)


def with_children(scenario: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """A test that starts processes, written as a coroutine."""

    @functools.wraps(scenario)
    def test(*args: P.args, **options: P.kwargs) -> None:
        run_checked(lambda: scenario(*args, **options), seconds=TEST_SECONDS)

    return test


@functools.cache
def build() -> Path:
    """The source of the first version; PeerMissing without it."""
    return kept("waystation-0.1", {"commit": FIRST_COMMIT.encode()}, make) / "src"


def make(sources: dict[str, bytes], home: Path) -> None:
    """Unpack the commit, in a directory that is renamed when all is there."""
    archive = _archive(sources["commit"].decode(), ROOT)
    with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
        result = Path(scratch) / "result"
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(result, filter="data")
        result.rename(home)  # seen whole or not at all


def _archive(commit: str, repository: Path) -> bytes:
    command = [tool("git"), "-C", str(repository), "archive", "--format=tar", commit, "src"]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise PeerMissing(
            f"commit {commit[:12]} is not in this clone; `git fetch --unshallow` brings it"
        )
    return done.stdout


def built() -> Path:
    """The source of the first version, for a test."""
    return needed("the first version of Waystation", build)


def source_of(version: str) -> Path:
    """Where a version is imported from."""
    return build() if version == OLD else Path(waystation.__file__).parents[1]


class Child:
    """A node of either version, which does what it is asked (version_child.py says what)."""

    def __init__(
        self, process: asyncio.subprocess.Process, version: str, name: str, options: dict[str, Any]
    ) -> None:
        self.version = version
        self.name = name
        self.options = options
        self.place = ""  # where it listens
        self._process = process
        self._asking = asyncio.Lock()

    @classmethod
    async def start(cls, version: str, name: str, **options: Any) -> Self:
        """Start a process; the options are those of version_child.py."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", str(CHILD), name, json.dumps(options)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(source_of(version))},
            limit=16 * 1024 * 1024,
        )
        return cls(process, version, name, options)

    async def ask(self, what: str, *words: object, **named: object) -> Any:
        """Have it do something; what it answers."""
        reading, writing = self._process.stdout, self._process.stdin
        assert reading is not None
        assert writing is not None
        async with self._asking, asyncio.timeout(PATIENCE):
            writing.write(json.dumps([what, words, named]).encode() + b"\n")
            line = await reading.readline()
        assert line, f"{self.name} ({self.version}) has ended"
        answer = json.loads(line)
        assert "failed" not in answer, f"{self.name} ({self.version}): {answer['failed']}"
        return answer["done"]

    async def listen(self, place: str = "tcp://127.0.0.1:0") -> str:
        """Listen; where."""
        self.place = await self.ask("listen", place)
        return self.place

    async def until(self, what: str, *words: object, answer: object = True) -> None:
        """Ask until the answer is this."""
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while (found := await self.ask(what, *words)) != answer:
            asked = f"{self.name} ({self.version}): {what} {words}"
            in_time = asyncio.get_running_loop().time() < deadline
            assert in_time, f"{asked} is {found!r}, not {answer!r}"
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        """Let it close its node and end, as at an upgrade."""
        if self._process.returncode is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            async with asyncio.timeout(PATIENCE):
                await self._process.wait()
        finally:
            await self.kill()

    def freeze(self) -> None:
        """Let it do nothing more, and tell nobody."""
        self._process.send_signal(signal.SIGSTOP)

    async def kill(self) -> None:
        """End it at once; more than once is fine."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


class Children:
    """Children that end with the block."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack

    async def start(self, version: str, name: str, **options: Any) -> Child:
        """Start one more."""
        child = await Child.start(version, name, **options)
        self._stack.push_async_callback(child.kill)
        return child

    async def hub(self, version: str, name: str, parent: Child | None = None, **more: Any) -> Child:
        """Start a hub that listens."""
        hub = await self.start(version, name, hub=True, **more)
        await hub.listen()
        if parent is not None:
            await hub.ask("join", parent.place)
        return hub

    async def leaf(self, version: str, name: str, parent: Child, **more: Any) -> Child:
        """Start a leaf."""
        leaf = await self.start(version, name, **more)
        await leaf.ask("join", parent.place)
        return leaf


@asynccontextmanager
async def children() -> AsyncIterator[Children]:
    """Processes for a test."""
    async with AsyncExitStack() as stack:
        yield Children(stack)
