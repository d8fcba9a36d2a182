"""The gossip router: membership, connections and mappings as a state machine (GR).

Inputs are method calls, with `now` where time matters; those that change something return effects,
which the caller must carry out in order. A group maps each member to its registration, which has
the connection that owns it and the member's physical addresses; a connection lists its
registrations. There are no other tables that could disagree with these.

Only its owner removes a registration: it belongs to the connection that made it last, and the end
of another connection does not affect it.
"""

from __future__ import annotations

from collections.abc import Mapping as ReadOnlyDict
from enum import Enum, StrEnum
from heapq import heappop, heappush
from typing import Final, TypeAlias

from msgspec import Struct, structs

from waystation.core.expiry import NEVER, Expiry
from waystation.core.identity import (
    LogicalAddress,
    Mapping,
    Physical,
    Uuid,
    check_places,
    uuid_text,
)
from waystation.errors import LocalError, quote


class Dialect(Enum):
    """The protocol of a connection. Groups of different dialects are separate."""

    JGROUPS2 = "JGroups 2.12"
    JGROUPS5 = "JGroups 5"


SUSPECTS_AFTER_GOODBYE: Final[ReadOnlyDict[Dialect, bool]] = {
    # Whether a group gets a SUSPECT for a member whose connection said goodbye without leaving the
    # group, as each generation expects.
    Dialect.JGROUPS2: False,
    Dialect.JGROUPS5: True,
}

ALWAYS_BEATS: Final[ReadOnlyDict[Dialect, bool]] = {
    # Whether every client of a dialect sends heartbeats, so that silence means death. Those of 5.x
    # do so only when configured: there silence counts from the first heartbeat on, and a half-open
    # connection that never sent one is found by the keep-alive of its socket, not here.
    Dialect.JGROUPS2: True,
    Dialect.JGROUPS5: False,
}

ConnectionId: TypeAlias = int


class MemberKind(StrEnum):
    """Kinds of membership changes, as in the journal."""

    JOIN = "join"
    LEAVE = "leave"
    SUSPECT = "suspect"
    INVALIDATE = "invalidate"
    ADDRESS = "address"


class MemberChange(Struct, frozen=True):
    """Effect: a change of the membership, for the journal (OB-4)."""

    kind: MemberKind
    group: str
    mapping: Mapping

    def __str__(self) -> str:
        member = self.mapping.member
        return f"{self.kind} {member} ({uuid_text(member.uuid)}) {self.group}"


class Registered(Struct, frozen=True):
    """Effect: reply that the member is registered, before anything else can reach it."""

    connection: ConnectionId
    group: str
    member: LogicalAddress


class Refused(Struct, frozen=True):
    """Effect: reply that the member is not registered, and why."""

    connection: ConnectionId
    group: str
    member: LogicalAddress
    why: str


class Unregistered(Struct, frozen=True):
    """Effect: reply that the member is no longer registered."""

    connection: ConnectionId
    group: str
    uuid: Uuid


class Superseded(Struct, frozen=True):
    """Effect: tell a connection that a newer one has taken over its member (GR-9)."""

    connection: ConnectionId
    group: str
    member: LogicalAddress


class Suspect(Struct, frozen=True):
    """Effect: tell these connections that a member of the group is dead (GR-8)."""

    connections: tuple[ConnectionId, ...]
    group: str
    member: LogicalAddress


class Disconnect(Struct, frozen=True):
    """Effect: close a connection; the router has forgotten it already."""

    connection: ConnectionId
    why: str


Effect: TypeAlias = (
    MemberChange | Registered | Refused | Unregistered | Superseded | Suspect | Disconnect
)


class MemberLimits(Struct, frozen=True):
    """Limits of the router; registrations above them are refused."""

    groups: int = 10_000
    members_per_group: int = 10_000
    members_per_connection: int = 1_000
    silence_ms: int = 60_000  # silence after which a connection is considered dead


class _Registration(Struct, frozen=True):
    mapping: Mapping
    connection: ConnectionId


class _Group:
    """The members of one group, and the connections that reach them all."""

    __slots__ = ("_connections", "members")

    def __init__(self) -> None:
        self.members: dict[Uuid, _Registration] = {}
        self._connections: tuple[ConnectionId, ...] | None = None

    def put(self, registration: _Registration) -> None:
        self.members[registration.mapping.uuid] = registration
        self._connections = None

    def remove(self, uuid: Uuid) -> _Registration:
        self._connections = None
        return self.members.pop(uuid)

    def connections(self) -> tuple[ConnectionId, ...]:
        """Each connection once, however many members it has."""
        if self._connections is None:
            owners = (registration.connection for registration in self.members.values())
            self._connections = tuple(dict.fromkeys(owners))
        return self._connections


_GroupKey: TypeAlias = tuple[Dialect, str]


class _Connection:
    __slots__ = ("beats", "dialect", "last_heard", "number", "owned")

    def __init__(self, dialect: Dialect, now: Expiry, number: int) -> None:
        self.number = number
        self.dialect = dialect
        self.owned: dict[tuple[str, Uuid], None] = {}  # what it registered, in that order
        self.last_heard = now
        self.beats = ALWAYS_BEATS[dialect]


class GossipRouter:
    r"""The state of a gossip router.

    >>> router = GossipRouter()
    >>> router.connected(1, Dialect.JGROUPS5, now=0)
    >>> truck = LogicalAddress(bytes(15) + b"\7", "truck-7")
    >>> for effect in router.register(1, "fleet", truck, ("10.0.0.7:7800",)): print(effect)
    Registered(connection=1, group='fleet', member=...)
    join truck-7 (00000000-0000-0000-0000-000000000007) fleet
    >>> router.route(1, "fleet", truck.uuid), router.route(1, "fleet", None)
    ((1,), (1,))
    """

    def __init__(self, limits: MemberLimits | None = None) -> None:
        self.limits = MemberLimits() if limits is None else limits
        for name, value in structs.asdict(self.limits).items():
            if not isinstance(value, int) or value < 1:
                raise LocalError(
                    f"invalid limit {name} {quote(value)}",
                    rule="GR-2",
                    hint="give 1 or more",
                )
        self._groups: dict[_GroupKey, _Group] = {}
        self._connections: dict[ConnectionId, _Connection] = {}
        self._checks: list[
            tuple[Expiry, int, ConnectionId]
        ] = []  # a heap: when to check which connection
        self._opened = 0  # connections so far; tells connections with a reused number apart

    def connected(self, connection: ConnectionId, dialect: Dialect, now: Expiry) -> None:
        """A connection opened; this registers no member (GR-1)."""
        if connection in self._connections:
            raise LocalError(
                f"connection {connection} is already open", rule="GR-1", hint="use a new number"
            )
        if not isinstance(dialect, Dialect):
            raise LocalError(
                f"invalid dialect {quote(dialect)}", rule="GR-1", hint="give a Dialect"
            )
        self._opened += 1
        self._connections[connection] = _Connection(dialect, now, self._opened)
        heappush(self._checks, (now + self.limits.silence_ms, self._opened, connection))

    def heard(self, connection: ConnectionId, now: Expiry, *, heartbeat: bool = False) -> None:
        """Something arrived on a connection, so it is alive."""
        state = self._state(connection)
        state.last_heard = now
        if heartbeat:
            state.beats = True

    def register(
        self,
        connection: ConnectionId,
        group: str,
        member: LogicalAddress,
        physical: tuple[Physical, ...],
    ) -> list[Effect]:
        """CONNECT or REGISTER: a member joins a group over this connection (GR-2, GR-3).

        An existing member is taken over from the connection that had it (GR-9).
        """
        physical = check_places(physical)
        state = self._state(connection)
        key = (state.dialect, group)
        there = self._groups.get(key)
        before = there.members.get(member.uuid) if there is not None else None
        if before is None or before.connection != connection:
            why = self._exceeded_limit(state, there, taking_over=before is not None)
            if why is not None:
                return [Refused(connection, group, member, why)]
        if there is None:
            there = self._groups[key] = _Group()
        mapping = Mapping(member, physical)
        there.put(_Registration(mapping, connection))
        state.owned[group, member.uuid] = None
        effects: list[Effect] = [Registered(connection, group, member)]
        if before is None:
            effects.append(MemberChange(MemberKind.JOIN, group, mapping))
        elif (before.mapping.physical, before.mapping.member.name) != (physical, member.name):
            effects.append(MemberChange(MemberKind.ADDRESS, group, mapping))
        if before is not None and before.connection != connection:
            effects += self._supersede(before, group, member)
        return effects

    def unregister(self, connection: ConnectionId, group: str, uuid: Uuid) -> list[Effect]:
        """DISCONNECT or UNREGISTER: a member leaves a group (GR-7).

        Only its own connection can make it leave. Another connection gets the same reply, since
        the member is indeed not registered there.
        """
        state = self._state(connection)
        effects: list[Effect] = [Unregistered(connection, group, uuid)]
        if (group, uuid) in state.owned:
            del state.owned[group, uuid]
            mapping = self._remove(state.dialect, group, uuid)
            effects.append(MemberChange(MemberKind.LEAVE, group, mapping))
        return effects

    def members(self, connection: ConnectionId, group: str) -> list[Mapping]:
        """GET-MEMBERS: the members of a group, with names and physical addresses (GR-4)."""
        there = self._groups.get((self._state(connection).dialect, group))
        if there is None:
            return []
        return [registration.mapping for registration in there.members.values()]

    def groups(self, connection: ConnectionId) -> list[str]:
        """The names of the groups that this connection can see."""
        dialect = self._state(connection).dialect
        return [name for speaks, name in self._groups if speaks is dialect]

    def route(
        self, connection: ConnectionId, group: str, uuid: Uuid | None
    ) -> tuple[ConnectionId, ...]:
        """ROUTE: the connections that a message goes to; empty if there are none (GR-5, GR-6).

        Without a UUID it goes to the whole group, once over each connection, including the
        sender's.
        """
        there = self._groups.get((self._state(connection).dialect, group))
        if there is None:
            return ()
        if uuid is None:
            return there.connections()
        registration = there.members.get(uuid)
        return () if registration is None else (registration.connection,)

    def closed(self, connection: ConnectionId, *, goodbye: bool = False) -> list[Effect]:
        """A connection ended: its members are removed, and their groups are told (GR-8).

        `goodbye` says that the peer announced it.
        """
        state = self._connections.pop(connection, None)
        if state is None:  # the router itself closed it
            return []
        suspects = not goodbye or SUSPECTS_AFTER_GOODBYE[state.dialect]
        kind = MemberKind.SUSPECT if suspects else MemberKind.LEAVE
        effects: list[Effect] = []
        # All are removed before any connection is told, so that none of the told is dead.
        gone = [(group, self._remove(state.dialect, group, uuid)) for group, uuid in state.owned]
        for group, mapping in gone:
            effects.append(MemberChange(kind, group, mapping))
            there = self._groups.get((state.dialect, group))
            if suspects and there is not None:
                effects.append(Suspect(there.connections(), group, mapping.member))
        return effects

    def wake_at(self) -> Expiry:
        """When to call `wake` next; NEVER if there is nothing to check."""
        return self._checks[0][0] if self._checks else NEVER

    def wake(self, now: Expiry) -> list[Effect]:
        """Close the connections that have been silent for too long."""
        effects: list[Effect] = []
        while self._checks and self._checks[0][0] <= now:
            _, number, connection = heappop(self._checks)
            state = self._connections.get(connection)
            if state is None or state.number != number:
                continue  # closed meanwhile
            # One check per connection and interval, however much it sends in between.
            due = state.last_heard + self.limits.silence_ms
            if due > now:
                heappush(self._checks, (due, number, connection))
                continue
            if not state.beats:
                heappush(self._checks, (now + self.limits.silence_ms, number, connection))
                continue
            effects += self.closed(connection)
            effects.append(Disconnect(connection, f"silent for {now - state.last_heard} ms"))
        return effects

    def _state(self, connection: ConnectionId) -> _Connection:
        state = self._connections.get(connection)
        if state is None:
            raise LocalError(
                f"connection {connection} is not open",
                rule="GR-1",
                hint="call `connected` first, and nothing after `closed` or a Disconnect effect",
            )
        return state

    def _exceeded_limit(
        self, state: _Connection, there: _Group | None, *, taking_over: bool
    ) -> str | None:
        if len(state.owned) >= self.limits.members_per_connection:
            return f"over {self.limits.members_per_connection} members on one connection"
        if taking_over:  # then neither group nor member is new
            return None
        if there is None and len(self._groups) >= self.limits.groups:
            return f"over {self.limits.groups} groups"
        if there is not None and len(there.members) >= self.limits.members_per_group:
            return f"over {self.limits.members_per_group} members in one group"
        return None

    def _supersede(self, before: _Registration, group: str, member: LogicalAddress) -> list[Effect]:
        loser = self._connections[before.connection]
        del loser.owned[group, member.uuid]
        effects: list[Effect] = [Superseded(before.connection, group, member)]
        if not loser.owned:
            del self._connections[before.connection]
            effects.append(Disconnect(before.connection, "a newer connection took over"))
        return effects

    def _remove(self, dialect: Dialect, group: str, uuid: Uuid) -> Mapping:
        there = self._groups[dialect, group]
        registration = there.remove(uuid)
        if not there.members:
            del self._groups[dialect, group]
        return registration.mapping
