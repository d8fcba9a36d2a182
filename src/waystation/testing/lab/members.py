"""Gossip routers, members of a group, and brokers in the lab."""

from __future__ import annotations

import asyncio
from typing import Final

from waystation.gossip_router import GossipServer
from waystation.groups import Group
from waystation.mqtt.broker import Broker
from waystation.testing.lab.history import Sent
from waystation.testing.lab.life import Life

PORT: Final = 12001
BROKER_PORT: Final = 1883


class ServerLife(Life):
    """What only serves others, and sends nothing of its own."""

    def draw(self) -> tuple[str, str]:
        """Nothing is ever asked of it."""
        raise AssertionError

    async def send(self, sent: Sent, payload: bytes) -> str:
        """Nothing is ever sent by it."""
        raise AssertionError(sent, payload)


class RouterLife(ServerLife):
    """A gossip router."""

    async def run(self) -> None:
        """Listen."""
        self.server = GossipServer()
        await self.server.start(f"{self.name}:{PORT}")
        await asyncio.Event().wait()


class BrokerLife(ServerLife):
    """An MQTT broker, which keeps nothing beyond its process."""

    async def run(self) -> None:
        """Listen."""
        self.broker = Broker()
        await self.broker.start(f"{self.name}:{BROKER_PORT}")
        await asyncio.Event().wait()


class MemberLife(Life):
    """A member of the group, over all routers."""

    async def run(self) -> None:
        """Join, read and send."""
        routers = ",".join(f"{name}:{PORT}" for name in self.fleet.history.topology.routers)
        self.group = Group("fleet", name=self.name, via=f"gossip://{routers}", wait=None)
        await self.group.connect()
        self._reading = asyncio.get_running_loop().create_task(self._read())
        await self.send_all()

    async def _read(self) -> None:
        async for _, payload in self.group.messages():
            await self.take_time()
            self.note_received(payload, self.name)

    def draw(self) -> tuple[str, str]:
        """A message to a member, or to all."""
        others = [name for name in self.fleet.history.topology.members if name != self.name]
        if self.chance.random() < 0.2:
            return "to-all", "*"
        return "to-one", self.chance.choice(others)

    async def send(self, sent: Sent, payload: bytes) -> str:
        """Send it to the newest member of that name."""
        receiver = None
        if sent.kind == "to-one":
            found = [member for member in await self.group.members() if member.name == sent.to]
            if not found:
                return "not a member"
            receiver = found[-1]
        verdict = await self.group.send(payload, to=receiver, wait=10.0)
        return str(verdict.reason or verdict.outcome)

    async def view(self) -> list[str]:
        """Whom it sees, itself included."""
        return sorted(member.name for member in await self.group.members())
