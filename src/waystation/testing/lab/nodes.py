"""Hubs and leaves in the lab: what they send, and what they tell of themselves."""

from __future__ import annotations

from typing import Final

from waystation.core.address import LOCAL, Address
from waystation.core.message import Message
from waystation.core.multicast import ADDRESS_TYPE
from waystation.core.record import ChangeRecord, MessageRecord, Record, SessionRecord
from waystation.core.routing import RouteChange
from waystation.errors import NoReplyError, UndeliverableError
from waystation.node import Context, Limits, Node
from waystation.testing.lab.history import Change, Row, SessionEvent, Table
from waystation.testing.lab.journals import SimulatedJournal
from waystation.testing.lab.life import Life, uid_of
from waystation.transports.udp import Udp

PORT: Final = 4000
TOPICS: Final = ("news", "alarms")
MOST_CHANGES: Final = 20_000
"""Changes of routing tables after which a fleet will never settle; it needs a tenth of that."""

INBOX: Final = 8
"""Messages that wait for a worker, so few that one which is stuck is full within seconds."""

LIMITS: Final = Limits(heartbeat=2.0, stall=5.0, greeting=3.0)
"""Shorter than the defaults, so that much happens in a minute."""


class NodeLife(Life):
    """A node, with a worker that answers requests, and some subscriptions."""

    async def run(self) -> None:
        """Listen, connect and subscribe as the topology says, and send."""
        topology = self.fleet.history.topology
        is_hub = self.name in topology.hubs
        node = self.node = Node(self.name, hub=is_hub, limits=LIMITS)
        if topology.over_udp:
            node.use(Udp())
        node.observe(self._note)
        node.observe(SimulatedJournal(self.fleet.disk, self.name).note)
        node.start_worker((f"work-{self.name}",), self._work, inbox=INBOX)
        if is_hub:
            await node.listen(f"tcp://{self.name}:{PORT}")
            if topology.over_udp:
                await node.listen(f"udp://{self.name}:{PORT}")
        kind = "udp" if self.name in topology.over_udp else "tcp"
        for parent in topology.parents[self.name]:
            url = f"{kind}://{parent}:{PORT}"
            await node.connect(url, name=f"to-{parent}", parent=True, wait=None)
        for topic in TOPICS:
            if self.chance.random() < 0.6:
                self._subscribe(topic)
        await self.send_all()

    def _subscribe(self, topic: str) -> None:
        def heard(message: Message) -> None:
            self.note_received(message.payload, f"{self.name} on {topic}")

        self.node.subscribe("+", topic, "*", callback=heard)

    async def _work(self, message: Message, context: Context) -> None:
        await self.take_time()
        self.note_received(message.payload, context.address.name)
        if message.payload.startswith(b"request "):
            await context.reply(b"reply " + message.payload)

    # What it sends

    def draw(self) -> tuple[str, str]:
        """A message or a request to somebody, or a broadcast; half of them to whoever is slow."""
        kind = self.chance.choices(("send", "request", "publish"), (70, 20, 10))[0]
        if kind == "publish":
            return kind, self.chance.choice(TOPICS)
        others = [name for name in self.fleet.history.topology.parents if name != self.name]
        slow = [name for name in others if name in self.fleet.slow]
        if slow and self.chance.random() < 0.5:
            others = slow
        return kind, f"work-{self.chance.choice(others)}"

    async def send(self, kind: str, to: str, payload: bytes) -> str:
        """Send it by the call that is made for it."""
        ttl = self.chance.choice((None, None, 5.0, 20.0))
        if kind == "publish":
            verdicts = await self.node.publish(to, payload, ttl=ttl)
            return ",".join(str(verdict.reason or verdict.outcome) for verdict in verdicts)
        if kind == "send":
            verdict = await self.node.send(to, payload, ttl=ttl)
            return str(verdict.reason or verdict.outcome)
        try:
            await self.node.request(to, payload, timeout=10.0)
        except UndeliverableError as error:
            return str(error.reason)
        except NoReplyError:
            return "NO_REPLY"
        return "REPLIED"

    # What it tells

    def _note(self, record: Record) -> None:
        history, at = self.fleet.history, self.fleet.now()
        if isinstance(record, MessageRecord):
            row = self._row(record, at)
            if row is not None:
                history.rows.append(row)
        elif isinstance(record, SessionRecord):
            peer = self.fleet.node_at(record.place)
            history.sessions.append(
                SessionEvent(at, self.name, self.number, record.kind.value, peer)
            )
        elif isinstance(record, ChangeRecord) and isinstance(record.change, RouteChange):
            kind, participant = record.change.kind.value, record.change.entry.participant
            history.changes.append(Change(at, self.name, self.number, kind, participant))
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
            self.number,
            record.arrival.received_at,
            verdict.outcome.value,
            None if verdict.reason is None else verdict.reason.value,
            verdict.recipient,
            None if verdict.address is None else self.fleet.node_at(str(verdict.address)),
            len(message.return_route.addresses),
            bool(first) and first[0].type == ADDRESS_TYPE,
        )

    def table(self) -> Table:
        """Where each worker of the fleet is, as seen from here."""
        entries = {
            entry.participant: self._leads_to(entry.address)
            for entry in self.node.router.table.snapshot(self.node.now()).values()
            if entry.participant.startswith("work-")
        }
        return Table(self.name, entries)

    def _leads_to(self, address: Address) -> str:
        if address.type != LOCAL:
            return self.fleet.node_at(str(address)) or "?"
        if address.name == f"work-{self.name}":
            return self.name
        peers = (session.peer for session in self.node.sessions if session.address == address)
        return next(peers, None) or "?"
