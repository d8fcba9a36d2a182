"""What a node in the lab tells of itself: its records, its journal, and how much it holds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from waystation.core.clock import current_clock
from waystation.core.custody import CustodyArrival
from waystation.core.message import Arrival
from waystation.core.multicast import ADDRESS_TYPE
from waystation.core.outcome import Verdict
from waystation.core.record import ChangeRecord, MessageRecord, Record, SessionRecord
from waystation.core.routing import RouteChange
from waystation.testing.lab.history import Change, Load, Row, SessionEvent
from waystation.testing.lab.life import uid_of

if TYPE_CHECKING:
    from waystation.testing.lab.nodes import NodeLife

MOST_CHANGES: Final = 20_000
"""Changes of routing tables after which a fleet will never settle; it needs a tenth of that."""

LOOK: Final = 0.25
"""Seconds between two looks at what a node holds."""


class Teller:
    """Writes down what happens at one life of a node."""

    def __init__(self, life: NodeLife) -> None:
        self._life = life
        self._fleet = life.fleet
        self._node = life.node
        self._clock = current_clock()
        self._most = 0
        self._changes = 0
        life.node.observe(self._note)
        for note in life.fleet.journals_of(life.name):
            life.node.observe(note)

    def watch_budget(self) -> None:
        """Look again and again how much the node holds: what it received and has not settled.

        What its own program sends and waits for is for the program to bound.
        """
        topology, kernel = self._fleet.history.topology, self._node._kernel  # noqa: SLF001
        if not topology.budget:
            return
        loads, limit = self._fleet.history.loads, kernel.limits
        number = len(loads)
        name, life = self._life.name, self._life.number
        loads.append(Load(name, life, 0, limit.budget, limit.share))

        def look() -> None:
            own = kernel.flow.aside + self._life.own_waiting
            self._most = max(self._most, kernel.flow.account.used - own)
            loads[number] = Load(name, life, self._most, limit.budget, limit.share)
            asyncio.get_running_loop().call_later(LOOK, look)

        look()

    def _note(self, record: Record) -> None:
        history, at, life = self._fleet.history, self._fleet.now(), self._life
        if isinstance(record, MessageRecord):
            row = self._row(record.arrival, record.verdict, at)
            if row is not None:
                history.rows.append(row)
        elif isinstance(record, SessionRecord):
            peer = self._fleet.node_at(record.place) or record.peer
            event = SessionEvent(at, life.name, life.number, record.kind.value, peer)
            history.sessions.append(event)
        elif isinstance(record, ChangeRecord) and isinstance(record.change, RouteChange):
            kind, participant = record.change.kind.value, record.change.entry.participant
            history.changes.append(Change(at, life.name, life.number, kind, participant))
            self._changes += 1
            if self._changes == MOST_CHANGES:
                self._fleet.give_up(f"{MOST_CHANGES} changes of routing tables")

    def _row(self, arrival: Arrival, verdict: Verdict, at: float) -> Row | None:
        message = arrival.message
        uid = uid_of(message.payload)
        if not uid:
            return None
        first = message.onward_route.addresses[:1]
        return Row(
            uid,
            at,
            self._life.name,
            self._life.number,
            arrival.received_at,
            verdict.outcome.value,
            None if verdict.reason is None else verdict.reason.value,
            verdict.recipient,
            self._next_node(verdict),
            len(message.return_route.addresses),
            bool(first) and first[0].type == ADDRESS_TYPE,
            isinstance(arrival, CustodyArrival),
            message.id,
            self._clock.read() / 1e9 - at,
        )

    def _next_node(self, verdict: Verdict) -> str | None:
        if verdict.address is None:
            return None
        return self._fleet.node_at(str(verdict.address))
