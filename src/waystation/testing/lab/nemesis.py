"""What the lab breaks, drawn from the seed; everything is mended in the end.

A deed is drawn with a randomness of its own, so that leaving one out does not change the others:
that is how a failing seed is shrunk.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, TypeAlias

from msgspec import Struct

from waystation.testing.lab.fleet import Fleet
from waystation.testing.lab.history import Fault
from waystation.testing.simulation import Machine, ProcessState

MOST: Final = 6
"""Faults of one seed."""


KILLS: Final = 12
"""Kills beside these, in a fleet of stores: what they promise is about that."""

BESIDE: Final = -1
"""The number of a fault that is part of another."""


class Deed(Struct, frozen=True):
    """One fault: which, when, and for how long."""

    number: int
    kind: str
    begin: float
    seconds: float


def deeds_of(seed: int, first: float, last: float) -> list[Deed]:
    """The faults of a seed, between two instants."""
    chance = random.Random(f"deeds {seed}")  # noqa: S311
    found = []
    for number in range(chance.randint(0, MOST)):
        begin = chance.uniform(first, last - 10)
        seconds = chance.uniform(0.5, min(20.0, last - begin - 2))
        found.append(Deed(number, chance.choice(list(KINDS)), begin, seconds))
    return found


def kills_of(seed: int, first: float, last: float) -> list[Deed]:
    """The kills in a fleet of stores, one after the other between two instants."""
    chance = random.Random(f"kills {seed}")  # noqa: S311
    each = (last - first) / KILLS
    return [
        Deed(MOST + number, "kill", first + each * number, chance.uniform(0.1, each))
        for number in range(KILLS)
    ]


class Nemesis:
    """Breaks a fleet, one fault after the other or several at once."""

    def __init__(self, fleet: Fleet, only: Collection[int] | None = None) -> None:
        self.fleet = fleet
        self.network = fleet.simulation.network
        plan = fleet.plan
        when = fleet.history.seed, plan.warm_up, plan.faults_until
        deeds = deeds_of(*when)
        if fleet.history.topology.stores:
            deeds += kills_of(*when)
        self.deeds = [deed for deed in deeds if only is None or deed.number in only]

    async def run(self) -> None:
        """Do all deeds, and mend everything."""
        await asyncio.gather(*(self._do(deed) for deed in self.deeds))

    async def _do(self, deed: Deed) -> None:
        fleet = self.fleet
        await asyncio.sleep(deed.begin - fleet.now())
        at = fleet.now()
        chance = random.Random(f"{fleet.history.seed} {deed.number}")  # noqa: S311
        nodes = await KINDS[deed.kind](self, chance, deed.seconds)
        if nodes:
            fleet.history.faults.append(Fault(deed.kind, at, fleet.now(), nodes, deed.number))

    def somebody(self, chance: random.Random) -> str | None:
        """A node that lives, and to which nothing is being done."""
        running = [
            name
            for name, machine in self.fleet.machines.items()
            if machine.process is not None and machine.process.state is ProcessState.RUNNING
        ]
        return chance.choice(running) if len(running) > 1 else None

    async def block(self, ways: list[tuple[Machine, Machine]], seconds: float) -> None:
        """Let nothing through there for a while."""
        for way in ways:
            self.network.block(*way)
        await asyncio.sleep(seconds)
        for way in ways:
            self.network.unblock(*way)


_Kind: TypeAlias = Callable[[Nemesis, random.Random, float], Awaitable[tuple[str, ...]]]


async def _kill(nemesis: Nemesis, chance: random.Random, seconds: float) -> tuple[str, ...]:
    """Kill a process, and start it again later."""
    return await _replace(nemesis, chance, seconds, Machine.kill)


async def _switch_off(nemesis: Nemesis, chance: random.Random, seconds: float) -> tuple[str, ...]:
    """Switch a machine off, and on again later."""
    return await _replace(nemesis, chance, seconds, Machine.switch_off)


async def _replace(
    nemesis: Nemesis, chance: random.Random, seconds: float, end: Callable[[Machine], None]
) -> tuple[str, ...]:
    name = nemesis.somebody(chance)
    if name is None:
        return ()
    end(nemesis.fleet.machines[name])
    await asyncio.sleep(seconds)
    nemesis.fleet.start(name)
    return (name,)


async def _stop(nemesis: Nemesis, chance: random.Random, seconds: float) -> tuple[str, ...]:
    """Stop a process for a while (SIGSTOP)."""
    name = nemesis.somebody(chance)
    if name is None:
        return ()
    machine = nemesis.fleet.machines[name]
    machine.stop()
    await asyncio.sleep(seconds)
    machine.go_on()
    return (name,)


async def _partition(nemesis: Nemesis, chance: random.Random, seconds: float) -> tuple[str, ...]:
    """Separate some machines from the others."""
    names, machines = nemesis.fleet.names, nemesis.fleet.machines
    some = chance.sample(names, chance.randint(1, len(names) - 1))
    here = [machines[name] for name in some]
    there = [machines[name] for name in names if name not in some]
    ways = [way for one in here for other in there for way in ((one, other), (other, one))]
    await nemesis.block(ways, seconds)
    return tuple(some)


async def _one_way(nemesis: Nemesis, chance: random.Random, seconds: float) -> tuple[str, ...]:
    """Let nothing from one machine reach another."""
    names = chance.sample(nemesis.fleet.names, 2)
    source, target = (nemesis.fleet.machines[name] for name in names)
    await nemesis.block([(source, target)], seconds)
    return tuple(names)


async def _swizzle_clog(nemesis: Nemesis, chance: random.Random, seconds: float) -> tuple[str, ...]:
    """Block the ways of some machines one by one, and unblock them in another order."""
    names, machines = nemesis.fleet.names, nemesis.fleet.machines
    some = chance.sample(names, min(3, len(names)))
    ways = [
        way
        for name in some
        for other in names
        if other != name
        for way in ((machines[name], machines[other]), (machines[other], machines[name]))
    ]
    for act, pause in ((nemesis.network.block, seconds / 2), (nemesis.network.unblock, 0.0)):
        chance.shuffle(ways)
        for way in ways:
            act(*way)
            await asyncio.sleep(seconds / 4 / len(ways))
        await asyncio.sleep(pause)
    return tuple(some)


async def _slow(nemesis: Nemesis, chance: random.Random, seconds: float) -> tuple[str, ...]:
    """Let everything take long."""
    network = nemesis.network
    before, network.latency = network.latency, (0.05, chance.uniform(0.1, 0.8))
    await asyncio.sleep(seconds)
    network.latency = before
    return tuple(nemesis.fleet.names)


async def _lose(nemesis: Nemesis, chance: random.Random, seconds: float) -> tuple[str, ...]:
    """Lose, repeat and reorder datagrams, everywhere."""
    network = nemesis.network
    network.reorders = True
    network.loss, network.duplication = chance.uniform(0.01, 0.3), chance.uniform(0.01, 0.2)
    await asyncio.sleep(seconds)
    network.loss = network.duplication = 0.0
    network.reorders = False
    return tuple(nemesis.fleet.names)


async def _set_clock(nemesis: Nemesis, chance: random.Random, seconds: float) -> tuple[str, ...]:
    """Let a clock jump, and jump back later; some are started anew while it is wrong."""
    fleet = nemesis.fleet
    name = chance.choice(fleet.names)
    machine, ahead = fleet.machines[name], chance.choice((-3600.0, -30.0, 30.0, 3600.0))
    machine.set_clock(ahead=ahead)
    process = machine.process
    if process is not None and process.state is ProcessState.RUNNING and chance.random() < 0.4:
        machine.kill()
        fleet.start(name)
        fleet.history.faults.append(Fault("kill", fleet.now(), fleet.now(), (name,), BESIDE))
    await asyncio.sleep(seconds)
    machine.set_clock(ahead=-ahead)
    return (name,)


async def _drift(nemesis: Nemesis, chance: random.Random, seconds: float) -> tuple[str, ...]:
    """Let a clock run fast or slow for a while; what it gained or lost stays."""
    name = chance.choice(nemesis.fleet.names)
    machine = nemesis.fleet.machines[name]
    machine.set_drift(chance.uniform(-0.05, 0.05))
    await asyncio.sleep(seconds)
    machine.set_drift(0.0)
    return (name,)


async def _slow_receiver(
    nemesis: Nemesis, chance: random.Random, seconds: float
) -> tuple[str, ...]:
    """Let the receiver on a machine take long for each message."""
    name = chance.choice(nemesis.fleet.names)
    nemesis.fleet.slow[name] = chance.choice((0.05, 0.5, 30.0))
    await asyncio.sleep(seconds)
    nemesis.fleet.slow.pop(name, None)
    return (name,)


async def _fill_disk(nemesis: Nemesis, chance: random.Random, seconds: float) -> tuple[str, ...]:
    """Let the disk of a machine be full, or fail, for a while."""
    fleet = nemesis.fleet
    name = chance.choice(fleet.names)
    error = chance.choice((errno.ENOSPC, errno.EIO))
    store, disk = fleet.stores.get(name), fleet.disks.by_node.get(name)
    if store is not None:
        store.trouble = os.strerror(error)
    if disk is not None:
        disk.error = error
    await asyncio.sleep(seconds)
    if store is not None:
        store.trouble = ""
    if disk is not None:
        disk.error = 0
    return (name,)


async def _flip_bits(nemesis: Nemesis, chance: random.Random, seconds: float) -> tuple[str, ...]:
    """Change single bits of what is on the disks of journals."""
    disks = nemesis.fleet.disks
    if not disks.by_node:
        return ()
    name = chance.choice(list(disks.by_node))
    for _ in range(3):
        await asyncio.sleep(seconds / 3)
        disks.flip_a_bit(name, chance)
    return (name,)


KINDS: Final[Mapping[str, _Kind]] = {
    "kill": _kill,
    "switch off": _switch_off,
    "stop": _stop,
    "partition": _partition,
    "one way": _one_way,
    "swizzle-clog": _swizzle_clog,
    "slow": _slow,
    "lose": _lose,
    "set clock": _set_clock,
    "drift": _drift,
    "slow receiver": _slow_receiver,
    "fill disk": _fill_disk,
    "flip bits": _flip_bits,
}
