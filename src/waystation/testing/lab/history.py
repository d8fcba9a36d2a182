"""What happened in a simulated fleet: all that a checker may look at, written and read as JSON.

Instants are virtual seconds. A message is known by its `uid`, which its payload begins with. A node
that was restarted has a new life.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Self

import msgspec
from msgspec import Struct

from waystation.testing.lab.topology import Topology

KINDS: Final = frozenset(
    {
        *("send", "request", "publish"),
        *("to-one", "to-all"),  # in a group
        "durable",
        "sealed",  # a request through a secure channel
        "found",  # a request to whom the directory named
        "forbidden",  # what is not granted
    }
)


class Sent(Struct):
    """What somebody sent, and what came of it as far as the sender was told."""

    uid: str
    at: float
    node: str
    life: int
    kind: str  # one of KINDS
    to: str  # a participant, or a multicast id
    seq: int  # among what this life of the node sent there
    ended: float | None = None
    outcome: str = ""  # empty if the sender died first
    ttl: float | None = None


class Got(Struct, frozen=True):
    """What a worker or a subscription received."""

    uid: str
    at: float
    node: str
    life: int
    receiver: str
    attempt: int = 1
    is_late: bool = False


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
    is_durable: bool = False
    message_id: str = ""
    clock: float = 0.0  # what the node's own clock said, less `at`: compare it with that of others


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


class Start(Struct, frozen=True):
    """When a life of somebody began."""

    at: float
    node: str
    life: int


class Load(Struct, frozen=True):
    """The most that a life of a node held at once, of its budget; bytes."""

    node: str
    life: int
    most: int
    budget: int
    share: int  # what one session may have beyond it: a frame that has begun is read to its end


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
    starts: list[Start] = []
    subscribed: dict[str, list[str]] = {}  # the patterns of each node, in its last life
    found: dict[str, list[str]] = {}  # whom each node finds in the directory at the end
    leaks: list[str] = []  # what was read between the ends of a secure channel
    repeated: int = 0  # sealed messages that a hostile hub sent on again
    loads: list[Load] = []
    noted: list[str] = []  # how journals on faulty disks differ from what they were given
    undone: dict[str, int] = {}  # durable messages that each store has at the end
    waiting: dict[str, list[str]] = {}  # and what they wait for
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
