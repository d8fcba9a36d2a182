"""How long a durable message waits for its next attempt, in simulated time (DU-2)."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Coroutine
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from waystation.core.custody import LONGEST_PAUSE
from waystation.core.message import Message
from waystation.net.connection import Connection, ConnectionLimits
from waystation.net.server import Server
from waystation.node import Context, Node, StoreSettings, custody
from waystation.node.custody_ways import HELLO_TIME
from waystation.testing import until
from waystation.testing.lab.stores import SimulatedStore, StoreDisk
from waystation.testing.simulation import Simulation
from waystation.wire.ockam import PREFACE

SOON = 5.0
"""Seconds for a link to be made anew, and for a message to take its way."""


class Slow(random.Random):
    """The chance of a disk that takes a tenth of a second for everything."""

    def uniform(self, a: float, b: float) -> float:
        del a, b
        return 0.1


class Fleet:
    """A phone below a hub without a store, and an office at the top; each on its machine."""

    def __init__(self, simulation: Simulation) -> None:
        self.network = simulation.network
        self.machines = {name: self.network.machine(name) for name in ("top", "hub", "phone")}
        self.nodes: dict[str, Node] = {}
        self.handled: list[bytes] = []
        self._disks = {name: StoreDisk(Slow()) for name in ("top", "phone")}

    def open_store(self, settings: StoreSettings) -> SimulatedStore:
        return SimulatedStore(settings, self._disks[Path(settings.directory).name])

    async def start(self, name: str, parent: str | None = None) -> Node:
        """Start a node, and wait until its parent knows it."""

        async def run() -> None:
            store = StoreSettings(directory=name) if name in self._disks else None
            node = Node(name, hub=name != "phone", store=store)
            if name == "top":
                node.start_worker(("office",), self._handle)
            if name != "phone":
                await node.listen(f"tcp://{name}:4000")
            if parent is not None:
                await node.connect(f"tcp://{parent}:4000", name=parent, parent=True, wait=None)
            self.nodes[name] = node
            await asyncio.Event().wait()

        self.nodes.pop(name, None)
        self.machines[name].run(run)
        await until(lambda: name in self.nodes)
        if parent is not None:
            await until(lambda: name in [s.peer for s in self.nodes[parent].sessions])
        return self.nodes[name]

    async def at_phone(self, doing: Coroutine[Any, Any, object]) -> None:
        """Do something in the phone's process."""
        process = self.machines["phone"].process
        assert process is not None
        await asyncio.get_running_loop().create_task(doing, context=process.context.copy())

    async def send(self, payload: bytes, to: str = "office") -> None:
        """Send a durable message."""
        await self.at_phone(self.nodes["phone"].send(to, payload, durable=True))

    def _handle(self, message: Message, _: Context) -> None:
        self.handled.append(message.payload)

    @property
    def left(self) -> int:
        """The messages that the phone has in custody."""
        held = self.nodes["phone"].custody
        assert held is not None
        return held.messages


@pytest.mark.rule("DU-2")
def test_a_lost_answer_is_waited_for_no_longer_than_a_minute_after_many_failures() -> None:
    """It was over a minute, and then the pause came on top: the message seemed to stay for ever."""

    async def main(simulation: Simulation) -> None:
        fleet = Fleet(simulation)
        with patch.object(custody, "Store", fleet.open_store):
            await fleet.start("top")
            await fleet.start("hub", "top")
            await fleet.start("phone", "hub")
            await fleet.send(b"0")
            await until(lambda: not fleet.left)
            fleet.machines["top"].kill()
            await fleet.send(b"1")
            await asyncio.sleep(20)  # it is offered in vain, five times
            await fleet.start("top")
            (way,) = [one for one in fleet.nodes["hub"].sessions if one.is_parent]
            await until(lambda: way.is_open and way.peer == "top")
            await until(lambda: fleet.nodes["top"]._kernel.custody.unwritten[0], 60)  # noqa: SLF001
            fleet.machines["top"].kill()  # and it has not answered
            await fleet.start("top")
            await until(lambda: not fleet.left, LONGEST_PAUSE + SOON)
            assert fleet.handled == [b"0", b"1"]

    Simulation(1).run(main)


@pytest.mark.rule("DU-2")
def test_a_hub_without_a_store_that_was_started_anew_is_asked_for_the_receiver_again() -> None:
    """It knew nobody any more, and the phone went on to offer what is for somebody above it."""

    async def main(simulation: Simulation) -> None:
        fleet = Fleet(simulation)
        with patch.object(custody, "Store", fleet.open_store):
            await fleet.start("top")
            await fleet.start("hub", "top")
            await fleet.start("phone", "hub")
            await fleet.send(b"0")
            await until(lambda: not fleet.left)
            fleet.machines["hub"].kill()
            await fleet.start("hub", "top")
            await until(lambda: "phone" in [s.peer for s in fleet.nodes["hub"].sessions], 60)
            await fleet.send(b"1")
            await until(lambda: not fleet.left, SOON)
            assert fleet.handled == [b"0", b"1"]

    Simulation(1).run(main)


class Mute(Connection):
    """A peer whose first words are lost on their way, again and again."""

    def __init__(self) -> None:
        super().__init__(ConnectionLimits(first_byte=None))
        self.came = b""

    def on_open(self) -> None:
        assert self.transport is not None
        self.transport.write(PREFACE)

    def on_data(self, data: bytes) -> None:
        self.came += data

    def count_unfinished(self) -> int:
        return 0


@pytest.mark.rule("DU-6")
def test_a_parent_is_no_stranger_however_late_its_hello_is() -> None:
    """The promise ended there, as if it took no custody: with its process the message was lost."""

    async def main(simulation: Simulation) -> None:
        fleet, accepted = Fleet(simulation), list[Mute]()

        def accept() -> Mute:
            accepted.append(Mute())
            return accepted[-1]

        async def listen() -> None:
            await Server(accept, log=logging.getLogger("test")).start("hub:4000")
            await asyncio.Event().wait()

        with patch.object(custody, "Store", fleet.open_store):
            fleet.machines["hub"].run(listen)
            phone = await fleet.start("phone")
            connecting = phone.connect("tcp://hub:4000", name="hub", parent=True, wait=None)
            await fleet.at_phone(connecting)
            await fleet.send(b"0", "hub => office")
            await asyncio.sleep(HELLO_TIME + SOON)
            assert accepted
            assert not any(b"office" in one.came for one in accepted)
            assert fleet.left == 1

    Simulation(1).run(main)
