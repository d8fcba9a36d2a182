"""The simulated loop, network and machines, by what a program sees of them."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

import pytest

from waystation import Node
from waystation.core.clock import current_clock
from waystation.core.message import Message
from waystation.net.connection import Connection, ConnectionLimits, Failure
from waystation.net.dialer import dial
from waystation.net.server import Server
from waystation.node import Context
from waystation.node.ids import new_ids
from waystation.testing.simulation import Simulation, SimulationError

LIMITS = ConnectionLimits(high_water=64 * 1024, first_byte=None)


class Peer(Connection):
    """A connection that remembers what came, and how it ended."""

    def __init__(self) -> None:
        super().__init__(LIMITS)
        self.came = b""
        self.crowded = 0
        self.ends: list[Failure | None] = []

    def on_data(self, data: bytes) -> None:
        self.came += data

    def count_unfinished(self) -> int:
        return 0

    def on_crowded(self) -> None:
        self.crowded += 1

    def on_closed(self, failure: Failure | None) -> None:
        self.ends.append(failure)


class Pair:
    """Two machines, and a connection between them."""

    def __init__(self, simulation: Simulation) -> None:
        self.network = simulation.network
        self.near = simulation.network.machine("near")
        self.far = simulation.network.machine("far")
        self.accepted: list[Peer] = []
        self.dialled: Peer

    async def connect(self) -> None:
        self.far.run(self._listen)
        await asyncio.sleep(1)
        await self.near.run(self._dial)

    async def _listen(self) -> None:
        def accept() -> Peer:
            self.accepted.append(Peer())
            return self.accepted[-1]

        await Server(accept, log=logging.getLogger("test")).start("far:4000")
        await asyncio.Event().wait()

    async def _dial(self) -> None:
        self.dialled = await dial(lambda _: Peer(), ["far:4000"], timeout=5)


def simulated(scenario: Callable[[Pair], Awaitable[None]], seed: int = 1) -> None:
    async def main(simulation: Simulation) -> None:
        pair = Pair(simulation)
        await pair.connect()
        await scenario(pair)

    Simulation(seed).run(main)


def test_hours_pass_in_no_time() -> None:
    async def main(simulation: Simulation) -> float:
        await asyncio.sleep(24 * 3600)
        return simulation.loop.time()

    began = time.monotonic()
    assert Simulation(1).run(main) == 24 * 3600
    assert time.monotonic() - began < 3600


def test_what_can_never_happen_is_an_error() -> None:
    async def main(simulation: Simulation) -> None:
        del simulation
        await asyncio.get_running_loop().create_future()

    with pytest.raises(SimulationError, match="nothing is left to happen"):
        Simulation(1).run(main)


def test_what_never_settles_is_an_error() -> None:
    async def main(simulation: Simulation) -> None:
        del simulation
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    with pytest.raises(SimulationError, match=r"it never settles: \d+ events"):
        Simulation(1, most_events=1_000).run(main)


def test_two_dead_ends_do_not_reset_each_other_for_ever() -> None:
    async def main(simulation: Simulation) -> None:
        pair = Pair(simulation)
        await pair.connect()
        simulation.network.latency = (0.5, 0.5)
        pair.dialled.write(b"hello")
        await asyncio.sleep(0.1)
        pair.near.kill()
        pair.far.kill()
        await asyncio.sleep(3600)

    Simulation(1, most_events=1_000).run(main)


def test_bytes_arrive_in_order_and_once() -> None:
    async def scenario(pair: Pair) -> None:
        pair.network.latency = (0.01, 0.5)
        for number in range(200):
            pair.dialled.write(b"%d " % number)
            await asyncio.sleep(0.01)
        await asyncio.sleep(2)
        assert pair.accepted[0].came == b"".join(b"%d " % number for number in range(200))

    simulated(scenario)


def test_a_receiver_that_does_not_read_holds_its_sender_back() -> None:
    async def scenario(pair: Pair) -> None:
        pair.accepted[0].pause_reading()
        pair.dialled.write(bytes(1 << 20))
        await asyncio.sleep(1)
        assert pair.dialled.peer_is_slow
        assert pair.dialled.unsent == (1 << 20) - 256 * 1024
        pair.accepted[0].resume_reading()
        await asyncio.sleep(1)
        assert len(pair.accepted[0].came) == 1 << 20
        assert not pair.dialled.unsent

    simulated(scenario)


def test_what_is_written_before_a_close_arrives() -> None:
    async def scenario(pair: Pair) -> None:
        pair.dialled.write(b"the last words")
        pair.dialled.close()
        await asyncio.sleep(1)
        assert pair.accepted[0].came == b"the last words"
        assert pair.accepted[0].ends == pair.dialled.ends == [None]

    simulated(scenario)


def test_over_a_blocked_way_streams_wait() -> None:
    async def scenario(pair: Pair) -> None:
        pair.network.block(pair.near, pair.far)
        pair.dialled.write(b"one ")
        await asyncio.sleep(5)
        pair.dialled.write(b"two")
        pair.accepted[0].write(b"the other way is open")
        await asyncio.sleep(5)
        assert pair.accepted[0].came == b""
        assert pair.dialled.came == b"the other way is open"
        pair.network.heal()
        await asyncio.sleep(1)
        assert pair.accepted[0].came == b"one two"

    simulated(scenario)


def test_a_killed_process_ends_its_connections_and_does_nothing_more() -> None:
    async def scenario(pair: Pair) -> None:
        pair.far.kill()
        await asyncio.sleep(1)
        assert pair.dialled.ends == [None]
        assert pair.accepted[0].ends == []  # it cannot hear of it any more

    simulated(scenario)


def test_a_machine_that_is_off_says_nothing_and_resets_what_it_does_not_know_later() -> None:
    async def scenario(pair: Pair) -> None:
        pair.far.switch_off()
        pair.dialled.write(b"anybody?")
        await asyncio.sleep(60)
        assert pair.dialled.ends == []
        pair.far.run(asyncio.Event().wait)
        pair.dialled.write(b"anybody?")
        await asyncio.sleep(1)
        (failure,) = pair.dialled.ends
        assert failure is not None
        assert "reset" in failure.detail

    simulated(scenario)


def test_a_stopped_process_goes_on_where_it_was() -> None:
    async def scenario(pair: Pair) -> None:
        pair.far.stop()
        pair.dialled.write(b"later")
        await asyncio.sleep(30)
        assert pair.accepted[0].came == b""
        pair.far.go_on()
        await asyncio.sleep(1)
        assert pair.accepted[0].came == b"later"

    simulated(scenario)


def test_nobody_listens() -> None:
    async def scenario(pair: Pair) -> None:
        async def refused() -> None:
            with pytest.raises(ConnectionError, match="Connection refused"):
                await dial(lambda _: Peer(), ["far:4001"], timeout=5)

        pair.near.kill()
        await pair.near.run(refused)

    simulated(scenario)


def test_an_address_is_taken_once() -> None:
    async def scenario(pair: Pair) -> None:
        async def second() -> None:
            with pytest.raises(OSError, match="in use"):
                await Server(Peer, log=logging.getLogger("test")).start("near:4000")

        async def first() -> None:
            await Server(Peer, log=logging.getLogger("test")).start("near:4000")
            await second()

        pair.near.kill()
        await pair.near.run(first)

    simulated(scenario)


def test_each_machine_has_a_clock_of_its_own() -> None:
    async def main(simulation: Simulation) -> None:
        right, wrong = (simulation.network.machine(name) for name in ("right", "wrong"))

        async def read() -> int:
            return current_clock()()

        wrong.set_clock(ahead=3600)
        wrong.set_drift(0.01)
        await asyncio.sleep(100)
        ahead = await wrong.run(read) - await right.run(read)
        assert round(ahead / 1e9, 3) == 3601.0

    Simulation(1).run(main)


def test_only_one_program_runs_on_a_machine() -> None:
    async def main(simulation: Simulation) -> None:
        machine = simulation.network.machine("one")
        with pytest.raises(SimulationError, match="nothing was ever run on one"):
            machine.kill()
        machine.run(asyncio.Event().wait)
        with pytest.raises(SimulationError, match="kill it first"):
            machine.run(asyncio.Event().wait)

    Simulation(1).run(main)


def test_the_simulation_itself_has_no_sockets() -> None:
    async def main(simulation: Simulation) -> None:
        simulation.network.machine("far")
        with pytest.raises(ConnectionError, match="no machine, so no sockets"):
            await dial(lambda _: Peer(), ["far:4000"], timeout=5)

    Simulation(1).run(main)


def test_message_ids_come_from_the_seed_and_only_in_a_simulation() -> None:
    async def draw(_: Simulation) -> list[str]:
        new_id = new_ids()
        return [new_id() for _ in range(300)]  # of several batches

    ids = Simulation(7).run(draw)
    assert Simulation(7).run(draw) == ids
    assert set(Simulation(8).run(draw)).isdisjoint(ids)
    assert new_ids()() not in ids


def test_the_same_seed_gives_the_same_history_whatever_the_hashes() -> None:
    program = (
        "from waystation.testing.lab.running import run_seed\n"
        "from waystation.testing.lab.fleet import Plan\n"
        "import hashlib, logging, msgspec\n"
        "logging.disable(logging.ERROR)\n"
        "history = run_seed(7, plan=Plan(messages=150))\n"
        "print(hashlib.sha256(msgspec.json.encode(history)).hexdigest(), len(history.rows))"
    )

    def run(hashes: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hashes}
        return subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    first = run("1")
    assert int(first.split()[1]) > 150
    assert run("2") == first


def test_real_nodes_talk() -> None:
    async def main(simulation: Simulation) -> bytes:
        garage, truck = (simulation.network.machine(name) for name in ("garage", "truck"))

        async def serve() -> None:
            node = Node("garage")

            @node.worker("echo")
            async def echo(message: Message, context: Context) -> None:
                await context.reply(message.payload)

            await node.listen("tcp://garage:4000")
            await asyncio.Event().wait()

        async def ask() -> bytes:
            async with Node("truck") as node:
                answer = await node.request("tcp#garage:4000 => echo", b"hello")
                return answer.payload

        garage.run(serve)
        await asyncio.sleep(0.1)
        answer: bytes = await truck.run(ask)
        return answer

    assert Simulation(1).run(main) == b"hello"
