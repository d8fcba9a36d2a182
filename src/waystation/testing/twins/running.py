"""Run a script: real nodes on a simulated network, and the journal that they leave."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from msgspec import Struct

from waystation.core.address import LOCAL, Address
from waystation.core.expiry import NEVER
from waystation.core.message import Message
from waystation.core.multicast import pattern_of
from waystation.core.record import OWN_SOURCE, MessageRecord, Record
from waystation.core.routing import RoutingEntry
from waystation.errors import WaystationError
from waystation.net.backoff import Backoff
from waystation.node import FAIL, WAIT, Context, Limits, Node
from waystation.node.broadcasts import Subscription
from waystation.testing.lab.journals import SimulatedDisk, SimulatedJournal
from waystation.testing.simulation import Machine, ProcessState, Simulation
from waystation.testing.simulation.loop import CURRENT
from waystation.testing.twins.guarding import grants_of, identity_of
from waystation.testing.twins.script import (
    END,
    INBOX,
    TOP,
    Feed,
    Hearing,
    Letter,
    Script,
    Trouble,
    worker_of,
)

PORT: Final = 4000
LIMITS: Final = Limits(heartbeat=1.0, stall=5.0, greeting=3.0, reconnect=4.0)
MOST_EVENTS: Final = 1_000_000
SIZE: Final = 100  # bytes of a payload, about


_next: Final = Backoff.next


class Run(Struct, frozen=True):
    """What a run left."""

    journal: Path
    letters: dict[str, int]  # the number of each message, by its id
    labels: dict[str, str]  # of the receivers of broadcasts, by their names
    got: frozenset[tuple[int, str]]  # which letters reached whom, as the applications say


def run(script: Script, journal: Path) -> Run:
    """Let everything happen, and keep the journal."""
    simulation = Simulation(script.seed, most_events=MOST_EVENTS)
    simulation.network._chance = _ByTime(script.seed, simulation)  # noqa: SLF001
    stage = _Stage(simulation, script)
    with patch.object(Backoff, "next", _wait):
        simulation.run(stage.play)
    stage.disk.seal(journal)
    return Run(journal, stage.letters, stage.labels, frozenset(stage.got))


def _wait(backoff: Backoff) -> float:
    """How long somebody waits before it connects again: by its name, and the number of attempts.

    Else what happens to one would change how long all others wait from then on.
    """
    process, attempts = CURRENT.get(), backoff._attempts  # noqa: SLF001 - nobody else asks for it
    name = "" if process is None else process.machine.name
    chance = random.Random(f"{name} {attempts}")  # noqa: S311 - it must repeat
    backoff._chance = chance.random  # noqa: SLF001
    return _next(backoff)


class _ByTime(random.Random):
    """Chances that depend on the instant alone: both runs have the same network."""

    def __init__(self, seed: int, simulation: Simulation) -> None:
        super().__init__(0)
        self._seed = seed
        self._simulation = simulation

    def random(self) -> float:
        """A number that is always the same at an instant."""
        now = self._simulation.loop.time()
        return random.Random(f"{self._seed} {now:.6f}").random()  # noqa: S311


class _Stage:
    """A fleet that follows a script."""

    def __init__(self, simulation: Simulation, script: Script) -> None:
        self.simulation = simulation
        self.script = script
        self.disk = SimulatedDisk()
        self.machines: dict[str, Machine] = {
            name: simulation.network.machine(name) for name in script.names
        }
        self.lives: dict[str, _Life] = {}
        self.letters: dict[str, int] = {}
        self.labels: dict[str, str] = {}
        self.got: set[tuple[int, str]] = set()

    async def play(self, simulation: Simulation) -> None:
        """Let everything happen in its time."""
        script = self.script
        for name in script.names:
            self.start(name)
        deeds: list[tuple[float, Callable[[Any], None], Any]]
        deeds = [(letter.at, self._send, letter) for letter in script.letters]
        deeds += [(feed.at, self._feed, feed) for feed in script.feeds]
        deeds += [(h.until, self._unhear, h) for h in script.hearings if h.until is not None]
        deeds += [(h.also_from, self._hear_also, h) for h in script.hearings if h.also is not None]
        broken = [asyncio.ensure_future(self._break(trouble)) for trouble in script.troubles]
        for at, act, about in sorted(deeds, key=lambda deed: deed[0]):
            await asyncio.sleep(at - simulation.loop.time())
            act(about)
        await asyncio.gather(*broken)
        await asyncio.sleep(max(0.0, END + 4.0 - simulation.loop.time()))

    def start(self, name: str) -> None:
        """Begin a life of somebody."""
        life = self.lives[name] = _Life(self, name)
        self.machines[name].run(life.run)

    def _living(self, name: str) -> _Life | None:
        process = self.machines[name].process
        runs = process is not None and process.state is ProcessState.RUNNING
        return self.lives[name] if runs else None

    def _do(self, name: str, act: Callable[[_Life], Coroutine[Any, Any, None]]) -> None:
        """Let somebody who lives do something, in its own process."""
        life, process = self._living(name), self.machines[name].process
        if life is not None and process is not None and life.is_ready:
            task = self.simulation.loop.create_task(act(life), context=process.context.copy())
            life.tasks.add(task)
            task.add_done_callback(life.tasks.discard)

    def _send(self, letter: Letter) -> None:
        self._do(letter.sender, lambda life: life.send(letter))

    def _feed(self, feed: Feed) -> None:
        self._do(feed.node, lambda life: life.feed(feed))

    def _unhear(self, hearing: Hearing) -> None:
        self._do(hearing.node, lambda life: life.unhear(hearing))

    def _hear_also(self, hearing: Hearing) -> None:
        self._do(hearing.node, lambda life: life.hear_also(hearing))

    async def _break(self, trouble: Trouble) -> None:
        await asyncio.sleep(trouble.at - self.simulation.loop.time())
        seconds = trouble.until - trouble.at
        machine = self.machines[trouble.node]
        above = (self.script.parents.get(trouble.node) or [TOP])[0]
        ways = [(machine, self.machines[above]), (self.machines[above], machine)]
        network = self.simulation.network
        if trouble.kind in ("crash", "stop"):
            if trouble.kind == "stop":
                await self._stop(trouble.node)
            machine.kill()
            await asyncio.sleep(trouble.until - self.simulation.loop.time())
            self.start(trouble.node)
        elif trouble.kind == "hang up":
            self._do(trouble.node, lambda life: life.hang_up(above, seconds))
            await asyncio.sleep(seconds)
        else:
            for way in ways if trouble.kind == "cut" else ways[1:]:
                network.block(*way)
            await asyncio.sleep(seconds)
            for way in ways:
                network.unblock(*way)

    async def _stop(self, name: str) -> None:
        process = self.machines[name].process
        assert process is not None
        await self.simulation.loop.create_task(
            self.lives[name].stop(), context=process.context.copy()
        )


class _Life:
    """A node, with a worker, from its start to its end."""

    def __init__(self, stage: _Stage, name: str) -> None:
        self._stage = stage
        self._script = stage.script
        self.name = name
        self.is_ready = False
        self.tasks: set[asyncio.Task[None]] = set()
        self._heard: dict[str, Subscription] = {}

    async def run(self) -> None:
        """Listen, connect and subscribe as the script says."""
        script, name = self._script, self.name
        guarded = script.is_guarded
        self.node = node = Node(
            name,
            hub=name in script.hubs,
            limits=LIMITS,
            hop_limit=script.hop_limit,
            identity=identity_of(name) if guarded else None,
            grants=grants_of(script) if guarded and script.hubs.get(name) else None,
        )
        self.journal = SimulatedJournal(self._stage.disk, name)
        node.observe(self._note)
        node.observe(self.journal.note)
        node.start_worker((worker_of(name),), self._work, inbox=script.inbox.get(name, INBOX))
        if name in script.hubs or name in script.depots:
            await node.listen(f"tcp://{name}:{PORT}")
        for hearing in script.hearings:
            if hearing.node == name:
                self._hear(hearing)
        for parent in script.parents.get(name, []):
            await self._connect(parent, parent=True)
        if name == TOP:
            for depot in script.depots:
                await self._connect(depot, parent=False)
        self.is_ready = True
        await asyncio.Event().wait()

    async def _connect(self, other: str, *, parent: bool) -> None:
        url = f"tcp://{other}:{PORT}"
        await self.node.connect(url, name=f"to-{other}", parent=parent, wait=None)

    def _note(self, record: Record) -> None:
        if isinstance(record, MessageRecord):
            message = record.arrival.message
            number = _number(message.payload)
            if number is not None:
                self._stage.letters[message.id] = number

    async def _work(self, message: Message, context: Context) -> None:
        seconds = self._script.slow.get(self.name)
        if seconds is not None:
            await asyncio.sleep(seconds)
        number = _number(message.payload)
        if number is not None:
            self._stage.got.add((number, worker_of(self.name)))
        if message.payload.startswith(b"request"):
            await context.reply(b"reply")

    # What the script wants of it

    async def send(self, letter: Letter) -> None:
        """Send a letter."""
        payload = f"{letter.kind} {letter.number} ".encode().ljust(SIZE, b".")
        policy = WAIT if letter.waits else FAIL
        node = self.node
        with contextlib.suppress(WaystationError):
            if letter.kind == "publish":
                await node.publish(letter.to, payload, ttl=letter.ttl, policy=FAIL)
            elif letter.kind == "request":
                await node.request(letter.to, payload, timeout=letter.ttl or 0.0, policy=policy)
            else:
                await node.send(letter.to, payload, ttl=letter.ttl, policy=policy)

    async def feed(self, feed: Feed) -> None:
        """Put or remove a routing entry."""
        if feed.session is None:
            self.node.remove_route(feed.participant)
            return
        address = Address(LOCAL, feed.session.encode())
        expiry = NEVER if feed.ttl is None else self.node.expiry_in(feed.ttl)
        entry = RoutingEntry.of(
            feed.participant, address, local=True, expiry=expiry, sticky=feed.sticky
        )
        with contextlib.suppress(WaystationError):  # it has no session with the depot now
            self.node.put_route(entry)

    def _hear(self, hearing: Hearing) -> None:
        label, seconds = hearing.label, self._script.slow.get(self.name)

        async def heard(message: Message) -> None:
            number = _number(message.payload)
            if number is not None:
                self._stage.got.add((number, label))
            if seconds is not None:
                await asyncio.sleep(seconds)

        inbox = self._script.inbox.get(self.name, INBOX)
        subscription = self.node.subscribe(*hearing.pattern, callback=heard, inbox=inbox)
        self._heard[label] = subscription
        self._stage.labels[subscription.address.name] = label

    async def unhear(self, hearing: Hearing) -> None:
        """End a subscription."""
        subscription = self._heard.pop(hearing.label, None)
        if subscription is not None:
            await subscription.close()

    async def hear_also(self, hearing: Hearing) -> None:
        """Let the receiver of a subscription hear something else, too."""
        assert hearing.also is not None
        broadcasts = self.node._kernel.broadcasts  # noqa: SLF001 - no program needs that
        receiver = self._heard[hearing.label].address.name
        broadcasts.add_subscriber(pattern_of(*hearing.also), receiver, OWN_SOURCE)

    async def hang_up(self, other: str, seconds: float) -> None:
        """Close the session with another, and open it again later."""
        for session in self.node.sessions:
            if session.name == f"to-{other}":
                await session.close()
        await asyncio.sleep(seconds)
        await self._connect(other, parent=True)

    async def stop(self) -> None:
        """End in good order."""
        await self.node.close(drain=1.0)
        self.journal.close()


def _number(payload: bytes) -> int | None:
    """The number of a letter in its payload; None for what is none, as a reply."""
    kind, _, rest = payload.partition(b" ")
    if kind not in (b"send", b"request", b"publish"):
        return None
    return int(rest.partition(b" ")[0])
