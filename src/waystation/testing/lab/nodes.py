"""Hubs and leaves in the lab: what they are, what they send, and what they receive."""

from __future__ import annotations

import asyncio
from typing import Final
from unittest.mock import patch

from waystation.core.address import LOCAL, Address
from waystation.core.message import Message
from waystation.core.multicast import pattern_of
from waystation.errors import LocalError, NoReplyError, UndeliverableError, WaystationError
from waystation.joynr import ClusterController
from waystation.node import Context, Limits, Node, links
from waystation.node.channels import SecureChannel
from waystation.node.custody_lanes import CustodyLane
from waystation.testing.lab import guarding, joynr
from waystation.testing.lab.history import Sent, Table
from waystation.testing.lab.life import Life, kind_of
from waystation.testing.lab.members import BROKER_PORT
from waystation.testing.lab.telling import Teller
from waystation.transports.joynr import JoynrWebSocket
from waystation.transports.mqtt import Mqtt
from waystation.transports.tcp import Tcp, TcpLimits
from waystation.transports.transport import Transport
from waystation.transports.udp import Udp

PORT: Final = 4000
JOYNR_PORT: Final = 4242
HUB_TOPICS: Final = "hubs/"
"""How the topics of hubs begin that are connected over a broker."""

TOPICS: Final = ("news", "alarms")
PARTS: Final = ("", "eu", "eu/berlin")
PATTERNS: Final = (("+", "*"), ("+", "*"), ("+", "eu/+"), ("leaf-1", "*"), ("+", "eu/berlin"))
"""Providers and partitions that are subscribed to."""

INBOX: Final = 8
"""Messages that wait for a worker, so few that one which is stuck is full within seconds."""

LIMITS: Final = Limits(heartbeat=2.0, stall=5.0, greeting=3.0)
"""Shorter than the defaults, so that much happens in a minute."""

LISTED: Final = 20.0
"""Seconds that a registration lives; it is renewed twice in that time."""


class NodeLife(Life):
    """A node, with a worker that answers requests, and some subscriptions."""

    async def run(self) -> None:
        """Listen, connect and subscribe as the topology says, and send."""
        topology = self.fleet.history.topology
        is_hub = self.name in topology.hubs
        node = self.node = self._make()
        self._channels: dict[str, SecureChannel] = {}
        teller = Teller(self)
        teller.watch_budget()
        node.start_worker((f"work-{self.name}",), self._work, inbox=INBOX)
        if topology.guards:
            self._guard()
        if is_hub:
            await self._listen()
        for parent in topology.parents[self.name]:
            url = self._url_of(parent)
            await node.connect(url, name=f"to-{parent}", parent=True, wait=None)
        patterns = [self._subscribe(topic) for topic in TOPICS if self.chance.random() < 0.6]
        self.fleet.history.subscribed[self.name] = patterns
        if topology.lists and self.name in topology.leaves:
            self._listing = asyncio.get_running_loop().create_task(self._register())
        await self.send_all()

    # What it is

    def _make(self) -> Node:
        topology, name = self.fleet.history.topology, self.name
        limits, frames = LIMITS, TcpLimits()
        if topology.budget:
            frames = TcpLimits(frame=128 * 1024)
            limits = guarding.crowded(LIMITS, topology.budget)
        transports: list[Transport] = [Tcp(limits=frames)]
        if topology.over_udp:
            transports.append(Udp())
        if topology.brokers and name in topology.hubs:
            broker = self.fleet.host_of(topology.brokers[0])
            url = f"mqtt://{broker}:{BROKER_PORT}"
            transports.append(Mqtt(url, topic=HUB_TOPICS + name))
        if topology.over_joynr:
            transports.append(JoynrWebSocket())
        node = Node(
            name,
            hub=name in topology.hubs,
            limits=limits,
            transports=transports,
            store=self.fleet.store_of(name) if name in topology.stores else None,
            identity=guarding.identity_of(name) if topology.guards else None,
            grants=guarding.grants_of(topology) if name in topology.guards else None,
        )
        if name in topology.older:
            _forget_capabilities(node)
        return node

    async def _listen(self) -> None:
        topology, node, host = self.fleet.history.topology, self.node, self.fleet.host_of(self.name)
        await node.listen(f"tcp://{host}:{PORT}")
        if topology.over_udp:
            await node.listen(f"udp://{host}:{PORT}")
        if topology.brokers:
            await node.listen("mqtt://+")
        if topology.over_joynr:
            self._controller = ClusterController(node)
            self._controller.start()
            await node.listen(f"joynr+ws://{host}:{JOYNR_PORT}")

    def _url_of(self, parent: str) -> str:
        topology, host = self.fleet.history.topology, self.fleet.host_of(parent)
        if self.name in topology.over_mqtt:
            return f"mqtt://{HUB_TOPICS}{parent}"
        if self.name in topology.over_joynr:
            return f"joynr+ws://{host}:{JOYNR_PORT}"
        kind = "udp" if self.name in topology.over_udp else "tcp"
        return f"{kind}://{host}:{PORT}"

    def _guard(self) -> None:
        """Have what not everybody may send to, and take secure channels."""
        node, topology = self.node, self.fleet.history.topology
        node.start_worker((f"vault-{self.name}",), self._work, inbox=INBOX)
        if self.name in topology.leaves:
            trusted = [guarding.identity_of(leaf).identifier for leaf in topology.leaves]
            node.secure_listener(f"secure-{self.name}", trust=trusted)
        else:
            guarding.repeat_now_and_then(node, self.chance, self.fleet)

    def _subscribe(self, topic: str) -> str:
        provider, partition = self.chance.choice(PATTERNS)
        pattern = pattern_of(provider, topic, partition)

        def heard(message: Message) -> None:
            self.note_received(message.payload, f"{self.name} on {pattern}")

        self.node.subscribe(provider, topic, partition, callback=heard)
        return pattern

    async def _register(self) -> None:
        """List the worker, again and again: whoever is not renewed is forgotten."""
        while True:
            try:
                await self.node.register(f"work-{self.name}", "fleet", "work", ttl=LISTED)
            except WaystationError:
                await asyncio.sleep(1.0)
            else:
                await asyncio.sleep(LISTED / 2)

    async def _work(self, message: Message, context: Context) -> None:
        await self.take_time()
        attempt, late = context.attempt, context.late
        payload = message.payload
        self.note_received(payload, context.address.name, attempt, is_late=late)
        if kind_of(payload) in {"request", "sealed", "found"}:
            is_joynr = bool(self.fleet.history.topology.over_joynr)
            await context.reply(joynr.reply_to(payload) if is_joynr else b"reply " + payload)

    # What it sends

    def draw(self) -> tuple[str, str]:
        """A message or a request to somebody, or a broadcast; half of them to whoever is slow."""
        topology = self.fleet.history.topology
        kinds = {"send": 70, "request": 20, "publish": 10}
        if self.name in topology.stores:
            kinds["durable"] = 40
        if topology.guards and self.name in topology.leaves:
            kinds |= {"sealed": 30, "forbidden": 10}
        if topology.lists:
            kinds["found"] = 20
        kind = self.chance.choices(list(kinds), list(kinds.values()))[0]
        if kind == "publish":
            return kind, self.chance.choice(TOPICS)
        others = [name for name in self._receivers(kind) if name != self.name]
        slow = [name for name in others if name in self.fleet.slow]
        if slow and self.chance.random() < 0.5:
            others = slow
        word = "vault" if kind == "forbidden" else "work"
        return kind, f"{word}-{self.chance.choice(others)}"

    def _receivers(self, kind: str) -> list[str]:
        topology = self.fleet.history.topology
        if kind == "durable":
            return topology.stores
        if kind == "forbidden":
            return topology.guards
        return list(topology.leaves if kind in {"sealed", "found"} else topology.parents)

    async def send(self, sent: Sent, payload: bytes) -> str:
        """Send it by the call that is made for it."""
        node, to, sender = self.node, sent.to, None
        if self.fleet.history.topology.over_joynr:
            payload, sender = joynr.wrapped(sent, payload), f"work-{self.name}"
        if sent.kind == "durable":
            verdict = await node.send(to, payload, durable=True)
            return str(verdict.reason or verdict.outcome)
        sent.ttl = ttl = self.chance.choice((None, None, 5.0, 20.0))
        if sent.kind == "publish":
            part = self.chance.choice(PARTS)
            sent.to = f"{self.name}/{to}" + (f"/{part}" if part else "")
            self.fleet.told(sent)  # what is known by now: the process may be killed before its end
            published = await node.publish(to, payload, partition=part, ttl=ttl)
            return ",".join(str(verdict.reason or verdict.outcome) for verdict in published)
        if sent.kind == "send":
            self.fleet.told(sent)
            verdict = await node.send(to, payload, ttl=ttl, sender=sender)
            return str(verdict.reason or verdict.outcome)
        sent.ttl = 10.0
        self.fleet.told(sent)
        try:
            await self._request(sent.kind, to, payload)
        except UndeliverableError as error:
            return str(error.reason)
        except NoReplyError:
            return "NO_REPLY"
        except WaystationError as error:
            return type(error).__name__
        return "REPLIED"

    async def _request(self, kind: str, to: str, payload: bytes) -> None:
        if kind == "sealed":
            channel = await self._channel_to(to.removeprefix("work-"))
            try:
                await channel.request(to, payload, timeout=10.0)
            except WaystationError:
                self._channels.pop(channel.name, None)
                raise
            return
        if kind == "found":
            found = await self.node.discover("fleet", "work")
            if to not in (provider.participant for provider in found):
                raise LocalError(f"{to} is not listed", rule="RE-14", hint="wait until it is")
        await self.node.request(to, payload, timeout=10.0)

    async def _channel_to(self, leaf: str) -> SecureChannel:
        """The channel to a leaf; a new one if the last did not answer."""
        known = [c for c in self._channels.values() if c.identity == _identifier(leaf)]
        if known and not known[0].closed:
            return known[0]
        route, trust = f"secure-{leaf}", _identifier(leaf)
        channel = await self.node.secure_channel(route, trust=trust, timeout=10.0)
        self._channels[channel.name] = channel
        return channel

    # What it knows at the end

    def table(self) -> Table:
        """Where each worker of the fleet is, as seen from here."""
        entries = {
            entry.participant: self._leads_to(entry.address)
            for entry in self.node.router.table.snapshot(self.node.now()).values()
            if entry.participant.startswith("work-")
        }
        return Table(self.name, entries)

    def undone(self) -> int:
        """How many durable messages it has, with dead letters."""
        held = self.node.custody
        return 0 if held is None else held.messages + held.dead

    def waiting(self) -> list[str]:
        """What its durable messages wait for."""
        lanes = self.node._kernel.custody._lanes.values()  # noqa: SLF001 - nobody else asks
        return [_explain(lane) for lane in lanes if lane.lane.messages]

    async def providers(self) -> list[str]:
        """Who is found in the directory."""
        return sorted(one.participant for one in await self.node.discover("fleet", "work"))

    def _leads_to(self, address: Address) -> str:
        if address.type != LOCAL:
            return self.fleet.node_at(str(address)) or "?"
        if address.name == f"work-{self.name}":
            return self.name
        for session in self.node.sessions:
            if session.address == address:
                return self.fleet.node_at(str(session.place)) or session.peer or "?"
        return "?"


def _explain(lane: CustodyLane) -> str:
    """What the durable messages of one pair wait for."""
    pair, left = lane.pair, lane.due - asyncio.get_running_loop().time()
    states = {
        "offered to another node": lane.transfer is not None,
        "the store is asked": lane.is_asking_store,
        f"nobody has {lane.absent}": lane.absent is not None,
        "the handler raised": lane.waits_for_handler,
        f"{len(lane.lane.in_hand)} in hand": bool(lane.lane.in_hand),
        f"tried in {left:.0f} s, for the {lane.failures + 1}. time": left > 0,
    }
    why = ", ".join(state for state, holds in states.items() if holds)
    return f"{lane.lane.messages} from {pair.sender} for {pair.receiver!r}: {why or 'nothing'}"


def _identifier(name: str) -> str:
    return guarding.identity_of(name).identifier


def _forget_capabilities(node: Node) -> None:
    """Let a node say that it knows none of what later versions brought (UP-1)."""
    greeting = node._links.greeting  # noqa: SLF001 - it is in no setting, for good reasons

    def without(*asked: object, **named: object) -> object:
        with patch.object(links, "CAPABILITIES", ()):
            return greeting(*asked, **named)  # type: ignore[arg-type]

    node._links.greeting = without  # type: ignore[method-assign, assignment]  # noqa: SLF001
