"""The console of a demonstration: it is there while the fleet runs, and afterwards."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from waystation.demo.console import DemoConsole
from waystation.demo.directory import DemoDirectory
from waystation.errors import LocalError
from waystation.net.place import parse_place
from waystation.testing import DEADLINE


@pytest.fixture
def directory(tmp_path: Path) -> DemoDirectory:
    made = DemoDirectory(tmp_path)
    for path in (made.logs, made.journal):
        path.mkdir()
    return made


def fleet() -> Any:
    """A fleet of which nobody answers: the console is served all the same."""
    return SimpleNamespace(url=lambda _hub, _over: "tcp://127.0.0.1:1")


def wait(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_it_serves_until_it_is_closed(directory: DemoDirectory) -> None:
    console = DemoConsole(directory, "127.0.0.1:0")
    try:
        url = console.open(fleet(), wait)
        with urllib.request.urlopen(f"{url}past", timeout=DEADLINE) as page:  # noqa: S310 - our own
            assert b"the journal is empty" in page.read()
    finally:
        console.close()
    console.stay()  # returns at once
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=DEADLINE)  # noqa: S310


def test_a_place_that_is_taken_is_named(directory: DemoDirectory) -> None:
    async def taken() -> None:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        async with server:
            host, port = server.sockets[0].getsockname()
            console = DemoConsole(directory, f"{host}:{port}")
            assert parse_place(f"{host}:{port}")
            with pytest.raises(LocalError, match=r"no console: waystation: .*in use"):
                await asyncio.to_thread(console.open, fleet(), wait)
            console.close()

    asyncio.run(taken())


def test_closing_what_was_not_opened_is_nothing(directory: DemoDirectory) -> None:
    DemoConsole(directory, "127.0.0.1:0").close()
