"""Durable messages in a fleet of real processes, under every fault at random moments (DU-3).

A sender, two hubs and three workers, one of them with two parents, each with a store on a small
disk of its own. Nodes are killed and started again, disks are full for a while, and links are cut,
frozen and refused. Everything is written down by the processes as it happens; `durable_checker`
compares it at the end with the stores and the journals.

    python -m tests.node.durable_fleet DIRECTORY KILLS SEED [--disks]
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import random
import socket
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import msgspec

from tests.node.durable_checker import check, held
from tests.node.durable_child import Plan, run
from tests.node.durable_disks import Disk
from waystation.testing import until
from waystation.testing.path import TcpPath, tcp_path

FORKS = multiprocessing.get_context("forkserver")  # a process starts without importing anything
WORKERS = ("one", "two", "both")
NAMES = ("hub", "other", *WORKERS, "sender")
PATIENCE = 120.0


def free_port() -> int:
    with contextlib.closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Process:
    """One node of the fleet, which can be killed and started again."""

    def __init__(self, plan: Plan, disk: Disk | None) -> None:
        self.plan = plan
        self.disk = disk
        self.store = Path(plan.store)
        self.directory = Path(plan.directory)
        self.directory.mkdir()
        self._running: ForkServerProcess | None = None
        self._starts_before = 0

    def start(self) -> None:
        self._starts_before = self.starts()
        self._running = FORKS.Process(target=run, args=(self.plan,), daemon=True)
        self._running.start()

    @property
    def is_alive(self) -> bool:
        return self._running is not None and self._running.is_alive()

    def kill(self) -> None:
        """End it as `kill -9` does; it must not have ended by itself, unless its disk is full."""
        is_excused = self.disk is not None and self.disk.is_full
        assert self.is_alive or is_excused, self.log()
        self.end()

    def end(self) -> None:
        if self._running is not None:
            self._running.kill()
            self._running.join()

    async def revive(self) -> None:
        """Wait until it runs; start it again if it could not start on a full disk."""
        await until(lambda: self._is_up() or not self.is_alive, PATIENCE)
        if not self.is_alive:
            self.end()
            self.start()
            await until(self._is_up, PATIENCE)

    def _is_up(self) -> bool:
        return self.starts() > self._starts_before

    def log(self) -> str:
        path = self.directory / "log"
        return path.read_text() if path.exists() else ""

    def lines(self) -> list[list[str]]:
        path = self.directory / "lines"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def starts(self) -> int:
        return sum(line[0] == "started" for line in self.lines())


class Fleet:
    """The processes, the paths between them, and chance."""

    def __init__(self, chance: random.Random) -> None:
        self.processes: dict[str, Process] = {}
        self.paths: list[TcpPath] = []
        self.faults = 0
        self._chance = chance

    def lines(self) -> dict[str, list[list[str]]]:
        return {name: one.lines() for name, one in self.processes.items()}

    def stores(self) -> dict[str, Path]:
        return {name: one.store for name, one in self.processes.items()}

    async def kill_one(self) -> None:
        """Kill any node at any moment, and start it again."""
        chance = self._chance
        process = chance.choice(list(self.processes.values()))
        await asyncio.sleep(chance.uniform(0.0, 0.3))
        process.kill()
        process.start()
        if chance.random() < 0.7:  # else the next is killed while this one starts
            await process.revive()

    async def break_a_link(self) -> None:
        """Cut a link, or let nothing through for a while, or let nobody dial."""
        chance = self._chance
        path = chance.choice(self.paths)
        fault = chance.choice(("cut", "cut amid", "freeze", "refuse"))
        if fault == "freeze":
            path.freeze()
            await self.kill_one()
            path.thaw()
        elif fault == "refuse":
            path.refuse(refuse=True)
            path.cut()
            await self.kill_one()
            path.refuse(refuse=False)
        elif fault == "cut amid":
            path.cut_after(chance.randrange(1, 20_000))
        else:
            path.cut()

    async def fill_a_disk(self) -> None:
        """Let a disk be full while its node goes on, and perhaps while it starts."""
        process = self._chance.choice(list(self.processes.values()))
        disk = process.disk
        assert disk is not None
        _truncate(process.store)  # or it goes on in the room that its files have
        known = process.log().count("cannot be written")
        disk.fill()
        for _ in range(20):
            await asyncio.sleep(0.05)
            if process.log().count("cannot be written") > known:
                break
        if self._chance.random() < 0.5:
            process.kill()
            process.start()
            await asyncio.sleep(self._chance.uniform(0.0, 0.5))
        disk.clear()
        await process.revive()

    async def rest(self) -> None:
        """Let the sender stop, and wait until nobody has anything in custody."""
        sender = self.processes["sender"]
        (sender.directory / "stop").write_text("")
        await until(lambda: sender.lines()[-1][0] == "stopped", PATIENCE)
        stores = list(self.stores().values())
        before, left = -1, 0
        while left != before:  # as long as it gets on, however slowly
            before = left = sum(map(held, stores))
            for _ in range(int(PATIENCE)):
                if not left:
                    return
                await asyncio.sleep(1.0)
                left = sum(map(held, stores))
                if left < before:
                    break
        raise AssertionError(f"{left} messages do not get on")


def _truncate(store: Path) -> None:
    """Let the files of a store have no room to spare."""
    db = sqlite3.connect(store / "custody.sqlite")
    with contextlib.closing(db), contextlib.suppress(sqlite3.OperationalError):  # it is busy
        db.execute("pragma wal_checkpoint(truncate)")


@contextlib.asynccontextmanager
async def fleet(
    directory: Path, disks: dict[str, Disk] | None, chance: random.Random
) -> AsyncIterator[Fleet]:
    """A sender and a worker below one hub, a worker below another, and one below both."""
    made = Fleet(chance)
    hub, other = (f"127.0.0.1:{free_port()}" for _ in range(2))
    async with AsyncExitStack() as stack:

        async def add(name: str, *parents: str, **more: object) -> None:
            paths = [await stack.enter_async_context(tcp_path(parent)) for parent in parents]
            made.paths += paths
            disk = None if disks is None else disks[name]
            options = {
                "name": name,
                "directory": str(directory / name),
                "store": str(directory / name / "store" if disk is None else disk.path / "store"),
                "journal": str(directory / "journal"),
                "parents": [f"tcp://{path.place}" for path in paths],
            }
            made.processes[name] = Process(msgspec.convert({**options, **more}, Plan), disk)

        await add("hub", listen=f"tcp://{hub}")
        await add("other", hub, listen=f"tcp://{other}")
        await add("one", hub, worker="one")
        await add("two", other, worker="two")
        await add("both", other, hub, worker="both")
        await add("sender", hub, receivers=WORKERS)
        try:
            for process in made.processes.values():
                process.start()
            yield made
        finally:
            for process in made.processes.values():
                process.end()


async def main(directory: Path, kills: int, seed: int, *, disks: bool) -> None:
    """Run a fleet, let everything happen to it, and check what is left."""
    chance = random.Random(seed)
    small = {name: Disk(disk_of(directory, name)) for name in NAMES} if disks else None
    async with fleet(directory, small, chance) as made:
        both = made.processes["both"]
        await until(lambda: any(line[0] == "handled" for line in both.lines()), PATIENCE)
        for number in range(kills):
            await made.kill_one()
            if number % 4 == 3:
                await made.break_a_link()
            if number % 8 == 7 and disks:
                await made.fill_a_disk()
        await made.rest()
        check(made.lines(), made.stores(), directory / "journal", WORKERS)
        logs = "".join(one.log() for one in made.processes.values())
        assert not disks or "disk is full" in logs


def disk_of(directory: Path, name: str) -> Path:
    """Where the disk of a node is mounted."""
    return directory / "disks" / name


if __name__ == "__main__":
    FORKS.set_forkserver_preload(["tests.node.durable_child", "waystation.journal.write"])
    where, count, number, *more = sys.argv[1:]
    asyncio.run(main(Path(where), int(count), int(number), disks="--disks" in more))
