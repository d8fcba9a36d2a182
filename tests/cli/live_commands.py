"""What tests of the live commands share: a node in a thread of its own, and commands to call."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from waystation.cli import main
from waystation.config import check_file, running
from waystation.demo.processes import WAYSTATION
from waystation.node import Node

PATIENCE = 60.0
"""Seconds after which whatever a test waits for will not come any more."""


class Served:
    """A node that runs in another thread; `url` is where it listens."""

    def __init__(self) -> None:
        self.url = ""
        self.error: BaseException | None = None
        self.node: Node | None = None
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None

    def run(self, file: Path) -> None:
        """Serve until `stop`; called in the thread."""
        try:
            asyncio.run(self._serve(file))
        except BaseException as error:  # noqa: BLE001 - told in the other thread
            self.error = error
        finally:
            self._ready.set()

    async def _serve(self, file: Path) -> None:
        plan, problems = check_file(file)
        assert plan is not None, problems
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        async with running(plan) as live:
            self.node = live.node
            self.url = live.listening[0].url
            self._ready.set()
            await self._end.wait()

    def wait(self) -> None:
        """Return when it listens."""
        assert self._ready.wait(PATIENCE)
        assert self.error is None, self.error

    def stop(self) -> None:
        """Let it end."""
        if self._loop is not None and self._end is not None and self._loop.is_running():
            self._loop.call_soon_threadsafe(self._end.set)


@contextmanager
def served(directory: Path, text: str) -> Iterator[Served]:
    """The node of this configuration, running."""
    file = directory / "served.toml"
    file.write_text(text, "utf-8")
    node = Served()
    thread = threading.Thread(target=node.run, args=(file,))
    thread.start()
    try:
        node.wait()
        yield node
    finally:
        node.stop()
        thread.join(PATIENCE)
    assert node.error is None, node.error


class Commands:
    """Calls a command in this process; gives its exit code, and what it printed."""

    def __init__(self, captured: pytest.CaptureFixture[str]) -> None:
        self._captured = captured

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        said = self._captured.readouterr()
        return int(ended.value.code or 0), said.out, said.err


@contextmanager
def started(
    *arguments: str, ready: str, **variables: str
) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A command as a process, once it has said a line that contains `ready`; with its lines."""
    with subprocess.Popen(
        [*WAYSTATION, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | variables,
    ) as process:
        try:
            assert process.stdout
            lines: list[str] = []
            for line in process.stdout:
                lines.append(line.rstrip("\n"))
                if ready in line or len(lines) > 100:
                    break
            assert lines, "it ended without a word"
            assert ready in lines[-1], lines
            yield process, lines
        finally:
            process.kill()
