"""Our broker does what a broker does, as an independent client sees it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.mqtt.broker.behaviour import BrokerBehaviour
from waystation.mqtt.broker import Broker


class _Thread(threading.Thread):
    """A broker with an event loop of its own: the client blocks."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.ready = threading.Event()
        self.place = ""

    def run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        broker = Broker()
        await broker.start("127.0.0.1:0")
        self.place = broker.place
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        self.ready.set()
        await self._end.wait()
        await broker.drain()

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self.join(20)


@contextmanager
def in_thread() -> Iterator[str]:
    """Where a broker of ours is that needs no event loop of the test's."""
    thread = _Thread()
    thread.start()
    assert thread.ready.wait(20)
    try:
        yield thread.place
    finally:
        thread.end()


@pytest.fixture(scope="module")
def place() -> Iterator[str]:
    with in_thread() as found:
        yield found


class TestOurBroker(BrokerBehaviour):
    pass
