"""A fleet in the simulation: a machine for each node, its program, and the record of both."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any, Final

from msgspec import Struct

from waystation.core.address import LOCAL
from waystation.core.clock import current_clock
from waystation.core.message import Message
from waystation.core.multicast import ADDRESS_TYPE
from waystation.core.record import ChangeRecord, MessageRecord, Record, SessionRecord
from waystation.core.routing import RouteChange
from waystation.errors import NoAnswerError, UndeliverableError
from waystation.node import Context, Limits, Node
from waystation.testing.lab.history import Change, Got, History, Row, Sent, SessionEvent, Table
from waystation.testing.lab.journals import SimulatedDisk, SimulatedJournal
from waystation.testing.lab.topology import Topology
from waystation.testing.simulation import Machine, Simulation
from waystation.transports.udp import Udp

PORT: Final = 4000
TOPICS: Final = ("news", "alarms")
MOST_CHANGES: Final = 20_000
"""Changes of routing tables after which a fleet will never settle; it needs a tenth of that."""

LIMITS: Final = Limits(heartbeat=2.0, stall=5.0, greeting=3.0)
"""Shorter than the defaults, so that much happens in a minute."""


class Plan(Struct, frozen=True, kw_only=True):
    """How much is sent, and when; times are virtual seconds."""

    messages: int = 2_000
    warm_up: float = 5.0
    faults_until: float = 60.0
    recovery: float = 75.0  # more than the 60 s for which a parent's answer is remembered
    calm: float = 15.0
    quiet: float = 30.0


class LabNode:
    """One life of a node."""

    def __init__(self, fleet: Fleet, name: str, life: int) -> None:
        self.fleet = fleet
        self.name = name
        self.life = life
        self.node: Node | None = None
        self._chance = random.Random(f"{fleet.history.seed} {name} {life}")  # noqa: S311
        self._numbers: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Be a node until the machine goes."""
        fleet, topology = self.fleet, self.fleet.history.topology
        is_hub = self.name in topology.hubs
        node = self.node = Node(self.name, hub=is_hub, limits=LIMITS, clock=current_clock())
        if topology.over_udp:
            node.use(Udp())
        node.observe(self._note)
        node.observe(SimulatedJournal(fleet.disk, self.name).note)
        node.start_worker((f"work-{self.name}",), self._work)
        if is_hub:
            await node.listen(f"tcp://{self.name}:{PORT}")
            if topology.over_udp:
                await node.listen(f"udp://{self.name}:{PORT}")
        kind = "udp" if self.name in topology.over_udp else "tcp"
        for parent in topology.parents[self.name]:
            await node.connect(
                f"{kind}://{parent}:{PORT}", name=f"to-{parent}", parent=True, wait=None
            )
        for topic in TOPICS:
            if self._chance.random() < 0.6:
                self._subscribe(node, topic)
        await self._send_all(node)
        await asyncio.Event().wait()

    def _subscribe(self, node: Node, topic: str) -> None:
        def heard(message: Message) -> None:
            self._got(message, f"{self.name} on {topic}")

        node.subscribe("+", topic, "*", callback=heard)

    async def _work(self, message: Message, context: Context) -> None:
        self._got(message, context.address.name)
        if message.payload.startswith(b"request "):
            await context.reply(b"reply " + message.payload)

    def _got(self, message: Message, receiver: str) -> None:
        uid = uid_of(message.payload)
        self.fleet.history.got.append(Got(uid, self.fleet.now(), self.name, self.life, receiver))

    # What it sends

    async def _send_all(self, node: Node) -> None:
        loop, chance, fleet = asyncio.get_running_loop(), self._chance, self.fleet
        while fleet.now() < fleet.history.quiet_from:
            await asyncio.sleep(chance.expovariate(fleet.rate))
            if fleet.now() < fleet.history.quiet_from:
                task = loop.create_task(self._send_one(node))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _send_one(self, node: Node) -> None:
        chance = self._chance
        kind = chance.choices(("send", "request", "publish"), (70, 20, 10))[0]
        others = [name for name in self.fleet.names if name != self.name]
        to = chance.choice(TOPICS) if kind == "publish" else f"work-{chance.choice(others)}"
        self._numbers[to] += 1
        uid = f"{self.name}.{self.life}>{to}:{self._numbers[to]}"
        sent = Sent(uid, self.fleet.now(), self.name, self.life, kind, to, self._numbers[to])
        self.fleet.history.sent.append(sent)
        payload = f"{kind} {uid} ".encode() + bytes(chance.choice((10, 100, 1000)))
        ttl = chance.choice((None, None, 5.0, 20.0))
        sent.outcome = await self._outcome(node, kind, to, payload, ttl)
        sent.ended = self.fleet.now()

    async def _outcome(
        self, node: Node, kind: str, to: str, payload: bytes, ttl: float | None
    ) -> str:
        if kind == "publish":
            verdicts = await node.publish(to, payload, ttl=ttl)
            return ",".join(str(verdict.reason or verdict.outcome) for verdict in verdicts)
        if kind == "send":
            verdict = await node.send(to, payload, ttl=ttl)
            return str(verdict.reason or verdict.outcome)
        try:
            await node.request(to, payload, timeout=10.0)
        except UndeliverableError as error:
            return str(error.reason)
        except NoAnswerError:
            return "NO_ANSWER"
        return "ANSWERED"

    # What it tells

    def _note(self, record: Record) -> None:
        history, at = self.fleet.history, self.fleet.now()
        if isinstance(record, MessageRecord):
            row = self._row(record, at)
            if row is not None:
                history.rows.append(row)
        elif isinstance(record, SessionRecord):
            history.sessions.append(
                SessionEvent(
                    at, self.name, self.life, record.kind.value, self.fleet.node_at(record.place)
                )
            )
        elif isinstance(record, ChangeRecord) and isinstance(record.change, RouteChange):
            change = record.change
            history.changes.append(
                Change(at, self.name, self.life, change.kind.value, change.entry.participant)
            )
            if len(history.changes) == MOST_CHANGES:
                self.fleet.simulation.give_up(f"{MOST_CHANGES} changes of routing tables")

    def _row(self, record: MessageRecord, at: float) -> Row | None:
        message, verdict = record.arrival.message, record.verdict
        uid = uid_of(message.payload)
        if not uid:
            return None
        first = message.onward_route.addresses[:1]
        return Row(
            uid,
            at,
            self.name,
            self.life,
            record.arrival.received_at,
            verdict.outcome.value,
            None if verdict.reason is None else verdict.reason.value,
            verdict.recipient,
            None if verdict.address is None else self.fleet.node_at(str(verdict.address)),
            len(message.return_route.addresses),
            bool(first) and first[0].type == ADDRESS_TYPE,
        )

    def table(self) -> Table:
        """Where each participant leads from here."""
        assert self.node is not None
        router, entries = self.node.router, {}
        for entry in router.table.snapshot(self.node.now()).values():
            if entry.participant.startswith("work-"):
                entries[entry.participant] = self._leads_to(entry.address)
        return Table(self.name, entries)

    def _leads_to(self, address: Any) -> str:
        assert self.node is not None
        if address.type != LOCAL:
            return self.fleet.node_at(str(address)) or "?"
        if address.name == f"work-{self.name}":
            return self.name
        for session in self.node.sessions:
            if session.address == address:
                return session.peer or "?"
        return "?"


class Fleet:
    """All nodes of a topology, each on its machine."""

    def __init__(self, simulation: Simulation, topology: Topology, plan: Plan) -> None:
        self.simulation = simulation
        self.plan = plan
        self.disk = SimulatedDisk()
        self.history = History(simulation.seed, topology)
        self.names = list(topology.parents)
        self.machines: dict[str, Machine] = {
            name: simulation.network.machine(name) for name in self.names
        }
        self.nodes: dict[str, LabNode] = {}
        active = plan.faults_until + plan.recovery + plan.calm
        self.rate = plan.messages / active / len(self.names)
        self.history.calm_from = plan.faults_until + plan.recovery
        self.history.quiet_from = active
        self._by_address = {machine.address: name for name, machine in self.machines.items()}

    def now(self) -> float:
        """The virtual time."""
        return self.simulation.loop.time()

    def start(self, name: str) -> None:
        """Begin a life of a node."""
        life = self.history.lives[name] = self.history.lives.get(name, 0) + 1
        node = self.nodes[name] = LabNode(self, name, life)
        self.machines[name].run(node.run)

    def node_at(self, place: str) -> str | None:
        """The node on whose machine a place is: `tcp#10.77.0.3:4000`, or `tcp#hub-a:4000`."""
        host = place.rpartition("#")[2].rpartition(":")[0]
        return host if host in self.machines else self._by_address.get(host)


def uid_of(payload: bytes) -> str:
    """The uid in a payload; a reply has one of its own."""
    words = payload.split(b" ", 3)
    if words[0] == b"reply" and len(words) > 2:
        return f"reply to {words[2].decode()}"
    return words[1].decode() if len(words) > 1 and words[0] in _KINDS else ""


_KINDS = {b"send", b"request", b"publish"}
