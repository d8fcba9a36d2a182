"""Identities, grants and budgets of nodes in the lab, a hub that repeats, and an intruder."""

from __future__ import annotations

import asyncio
import hashlib
import random
from functools import cache
from typing import TYPE_CHECKING, Final

from msgspec import structs

from waystation.core.grants import Grant, Grants
from waystation.core.message import Message
from waystation.core.outcome import Outcome
from waystation.core.record import MessageRecord, Record
from waystation.errors import WaystationError
from waystation.node import Context, Limits, Node
from waystation.testing.lab.history import Sent
from waystation.testing.lab.life import Life, uid_of
from waystation.testing.simulation.process import EPOCH
from waystation.wire.identity import PrivateIdentity

if TYPE_CHECKING:
    from waystation.testing.lab.around import Around
    from waystation.testing.lab.topology import Topology

REPEATED: Final = 0.05
"""The share of sealed messages that the hub between sends on once more, a while later."""


@cache
def identity_of(name: str) -> PrivateIdentity:
    """The identity of a node, the same in every life."""
    seed = hashlib.sha256(f"lab {name}".encode()).digest()
    return PrivateIdentity.create(seed, EPOCH // 10**9 - 3600)


def grants_of(topology: Topology) -> Grants:
    """What the leaves of a fleet may do; vaults are for nobody."""
    return Grants(
        Grant(
            identity=(identity_of(leaf).identifier,),
            announce=(leaf, f"work-{leaf}", f"vault-{leaf}", f"secure-{leaf}", "subscriber-*"),
            send=("work-*", "secure-*"),
            publish=(f"{leaf}/*",),
            subscribe=("*",),
        )
        for leaf in topology.leaves
    )


def crowded(limits: Limits, budget: int) -> Limits:
    """Limits of a node with little memory."""
    return structs.replace(
        limits, budget=budget, receiver=budget // 16, share=192 * 1024, control=budget // 16
    )


def repeat_now_and_then(node: Node, chance: random.Random, fleet: Around) -> None:
    """Let a node send some of what passes through it once more, as a hostile one may."""

    def note(record: Record) -> None:
        if not isinstance(record, MessageRecord) or record.verdict.outcome != Outcome.FORWARDED:
            return
        message = record.arrival.message
        is_sealed = any(b"secure-channel-" in hop.data for hop in message.onward_route.addresses)
        if is_sealed and chance.random() < REPEATED:
            seconds = chance.choice((0.0, 0.5, 5.0))
            asyncio.get_running_loop().call_later(seconds, node.post, message)
            fleet.history.repeated += 1

    node.observe(note)


class IntruderLife(Life):
    """A node that nobody granted anything, and that tries everything."""

    async def run(self) -> None:
        """Claim the names of others, listen to everything, and send."""
        topology = self.fleet.history.topology
        node = self.node = Node(self.name, identity=identity_of(self.name))
        for leaf in topology.leaves:
            node.start_worker((f"work-{leaf}",), self._work)
        node.subscribe("+", "+", "*", callback=self._heard)
        url = f"tcp://{topology.guards[0]}:4000"
        await node.connect(url, name="way", parent=True, wait=None)
        await self.send_all()

    async def _work(self, message: Message, context: Context) -> None:
        self.note_received(message.payload, context.address.name)

    def _heard(self, message: Message) -> None:
        if not uid_of(message.payload).startswith(self.name):  # its own are nobody's secret
            self.note_received(message.payload, f"{self.name} on +/+/*")

    def draw(self) -> tuple[str, str]:
        """What is not granted: a message, a broadcast in another's name."""
        leaf = self.chance.choice(list(self.fleet.history.topology.leaves))
        return "forbidden", self.chance.choice((f"work-{leaf}", f"{leaf}/news"))

    async def send(self, sent: Sent, payload: bytes) -> str:
        """Try it."""
        leaf, _, topic = sent.to.partition("/")
        try:
            if topic:
                await self.node.publish(topic, payload, provider=leaf)
                return "published"
            verdict = await self.node.send(f"way => {sent.to}", payload)
        except WaystationError as error:
            return type(error).__name__
        return str(verdict.reason or verdict.outcome)
