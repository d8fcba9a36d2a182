"""What happened in a simulated fleet: all that a checker may look at, written and read as JSON.

Instants are virtual seconds. A message is known by its `uid`, which its payload begins with. A node
that was restarted has a new life.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

import msgspec
from msgspec import Struct

from waystation.testing.lab.topology import Topology


class Sent(Struct):
    """What somebody sent, and what came of it as far as the sender was told."""

    uid: str
    at: float
    node: str
    life: int
    kind: str  # send, request or publish; in a group to-one or to-all
    to: str  # a participant, or a multicast id
    seq: int  # among what this life of the node sent there
    ended: float | None = None
    outcome: str = ""  # empty if the sender died first


class Got(Struct, frozen=True):
    """What a worker or a subscription received."""

    uid: str
    at: float
    node: str
    life: int
    receiver: str


class Row(Struct, frozen=True):
    """How a message ended at a node."""

    uid: str
    at: float
    node: str
    life: int
    entered: int  # the node's own instant at which it came: one entry of it into the node
    outcome: str
    reason: str | None
    recipient: str | None
    next_node: str | None
    hops: int
    is_broadcast: bool


class Change(Struct, frozen=True):
    """A change of a routing table."""

    at: float
    node: str
    life: int
    kind: str
    participant: str


class SessionEvent(Struct, frozen=True):
    """What happened to a session."""

    at: float
    node: str
    life: int
    kind: str
    peer: str | None


class Fault(Struct, frozen=True):
    """Something that the lab broke, and until when."""

    kind: str
    at: float
    until: float
    nodes: tuple[str, ...]
    number: int


class Table(Struct, frozen=True):
    """The routing table of a node at the end: each participant, and the node that it leads to."""

    node: str
    entries: dict[str, str]


class History(Struct):
    """One run of the lab."""

    seed: int
    topology: Topology
    sent: list[Sent] = []
    got: list[Got] = []
    rows: list[Row] = []
    changes: list[Change] = []
    sessions: list[SessionEvent] = []
    faults: list[Fault] = []
    tables: list[Table] = []
    views: dict[str, list[str]] = {}  # whom each member of a group sees at the end
    lives: dict[str, int] = {}
    calm_from: float = 0.0  # after the last fault, once everything has had time to recover
    quiet_from: float = 0.0  # from here on nobody sends anything
    ended: float = 0.0
    problem: str = ""  # why it was broken off, if it was

    def write(self, path: Path) -> None:
        """Write it to a file."""
        path.write_bytes(msgspec.json.encode(self))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read it from a file."""
        return msgspec.json.decode(path.read_bytes(), type=cls)
