"""The gossip router: membership, connections and mappings as a state machine (GR).

Inputs are method calls, with `now` where time matters; those that change something return effects,
which the caller must carry out in order. A group maps each member to its registration, which has
the connections that lead to it and the member's physical addresses; a connection lists its
registrations. There are no other tables that could disagree with these.

A member is there as long as one of its paths is: the end of another does not affect it.
"""

from __future__ import annotations

from collections.abc import Collection
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

MISSED_BEATS: Final = 3
"""So many of its own heartbeat intervals a client may be silent, if that is longer than the limit.

How often a client beats is its own setting, which no message tells, so it is learnt: silence means
nothing until two heartbeats have come. Before that, and for clients that send none, a half-open
connection is found by the keep-alive of its socket, not here.
"""

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


class Suspect(Struct, frozen=True):
    """Effect: tell these connections which members of the group died lately (GR-8)."""

    dialect: Dialect
    connections: tuple[ConnectionId, ...]
    group: str
    members: tuple[LogicalAddress, ...]


class Disconnect(Struct, frozen=True):
    """Effect: close a connection; the router has forgotten it already."""

    connection: ConnectionId
    why: str


Effect: TypeAlias = MemberChange | Registered | Refused | Unregistered | Suspect | Disconnect


class MemberLimits(Struct, frozen=True):
    """Limits of the router; registrations above them are refused.

    A connection whose client beats is considered dead after `silence_ms`. A group learns of a death
    after `suspect_after_ms`, unless the member has come back by then.
    """

    groups: int = 10_000
    members_per_group: int = 10_000
    members_per_connection: int = 1_000
    silence_ms: int = 60_000
    suspect_after_ms: int = 1_000


class _Registration(Struct, frozen=True):
    """A member of a group, and its paths: the connections that registered it, newest last."""

    mapping: Mapping
    paths: tuple[ConnectionId, ...]


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
        """The newest path of each member; a connection once, however many members it has."""
        if self._connections is None:
            newest = (registration.paths[-1] for registration in self.members.values())
            self._connections = tuple(dict.fromkeys(newest))
        return self._connections


_GroupKey: TypeAlias = tuple[Dialect, str]


class _Connection:
    __slots__ = ("beat_interval", "dialect", "last_beat", "last_heard", "number", "owned")

    def __init__(self, dialect: Dialect, now: Expiry, number: int) -> None:
        self.number = number
        self.dialect = dialect
        self.owned: dict[tuple[str, Uuid], None] = {}  # what it registered, the last at the end
        self.last_heard = now
        self.last_beat: Expiry | None = None
        self.beat_interval: Expiry | None = None  # the longest so far

    def beat(self, now: Expiry) -> None:
        if self.last_beat is not None:
            self.beat_interval = max(self.beat_interval or 0, now - self.last_beat)
        self.last_beat = now


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
            least = 0 if name == "suspect_after_ms" else 1
            if not isinstance(value, int) or value < least:
                raise LocalError(
                    f"invalid limit {name} {quote(value)}",
                    rule="GR-2",
                    hint=f"give {least} or more",
                )
        self._groups: dict[_GroupKey, _Group] = {}
        self._connections: dict[ConnectionId, _Connection] = {}
        self._checks: list[
            tuple[Expiry, int, ConnectionId]
        ] = []  # a heap: when to check which connection
        self._opened = 0  # connections so far; tells connections with a reused number apart
        # Deaths that their groups have not been told yet: when to, in that order.
        self._deaths: dict[tuple[Dialect, str, Uuid], tuple[Expiry, LogicalAddress]] = {}

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
            state.beat(now)

    def register(
        self,
        connection: ConnectionId,
        group: str,
        member: LogicalAddress,
        physical: tuple[Physical, ...],
    ) -> list[Effect]:
        """CONNECT or REGISTER: a member joins a group over this connection (GR-2, GR-3).

        If another connection has registered it, this is one more path to it, and the one that is
        used from now on (GR-9).
        """
        physical = check_places(physical)
        state = self._state(connection)
        key = (state.dialect, group)
        there = self._groups.get(key)
        before = there.members.get(member.uuid) if there is not None else None
        if before is None or connection not in before.paths:
            why = self._exceeded_limit(state, there, is_member=before is not None)
            if why is not None:
                return [Refused(connection, group, member, why)]
        if there is None:
            there = self._groups[key] = _Group()
        mapping = Mapping(member, physical)
        there.put(_Registration(mapping, (*_without(before, connection), connection)))
        state.owned.pop((group, member.uuid), None)
        state.owned[group, member.uuid] = None
        self._deaths.pop((state.dialect, group, member.uuid), None)
        effects: list[Effect] = [Registered(connection, group, member)]
        if before is None:
            effects.append(MemberChange(MemberKind.JOIN, group, mapping))
        elif (before.mapping.physical, before.mapping.member.name) != (physical, member.name):
            effects.append(MemberChange(MemberKind.ADDRESS, group, mapping))
        return effects

    def unregister(self, connection: ConnectionId, group: str, uuid: Uuid) -> list[Effect]:
        """DISCONNECT or UNREGISTER: a member leaves a group, with all its paths (GR-7, GR-9).

        Only a connection that registered it can make it leave. Another connection gets the same
        reply, since the member is indeed not registered there.
        """
        state = self._state(connection)
        effects: list[Effect] = [Unregistered(connection, group, uuid)]
        if (group, uuid) in state.owned:
            registration = self._remove(state.dialect, group, uuid)
            for path in registration.paths:
                del self._connections[path].owned[group, uuid]
            effects.append(MemberChange(MemberKind.LEAVE, group, registration.mapping))
        return effects

    def owned(self, connection: ConnectionId) -> Collection[tuple[str, Uuid]]:
        """The group and the UUID of each member with a path over this connection."""
        state = self._connections.get(connection)
        return () if state is None else state.owned

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
        return () if registration is None else (registration.paths[-1],)

    def closed(
        self, connection: ConnectionId, now: Expiry, *, goodbye: bool = False
    ) -> list[Effect]:
        """A connection ended: a member whose last path it was is gone (GR-8).

        `goodbye` says that the peer announced it. Its groups are told by `wake`, a little later,
        since a client that lost its connection often registers again at once.
        """
        state = self._connections.pop(connection, None)
        if state is None:  # the router itself closed it
            return []
        suspects = not goodbye or SUSPECTS_AFTER_GOODBYE[state.dialect]
        kind = MemberKind.SUSPECT if suspects else MemberKind.LEAVE
        effects: list[Effect] = []
        for group, uuid in state.owned:
            there = self._groups[state.dialect, group]
            registration = there.members[uuid]
            paths = _without(registration, connection)
            if paths:
                there.put(_Registration(registration.mapping, paths))
                continue
            mapping = self._remove(state.dialect, group, uuid).mapping
            effects.append(MemberChange(kind, group, mapping))
            if suspects:
                due = now + self.limits.suspect_after_ms
                self._deaths[state.dialect, group, uuid] = due, mapping.member
        return effects

    def wake_at(self) -> Expiry:
        """When to call `wake` next; NEVER if there is nothing to do."""
        silence = self._checks[0][0] if self._checks else NEVER
        death, _ = next(iter(self._deaths.values()), (NEVER, None))
        return min(silence, death)

    def wake(self, now: Expiry) -> list[Effect]:
        """Close connections that are silent for too long, and tell groups who died."""
        effects: list[Effect] = []
        while self._checks and self._checks[0][0] <= now:
            _, number, connection = heappop(self._checks)
            state = self._connections.get(connection)
            if state is None or state.number != number:
                continue  # closed meanwhile
            # One check per connection and interval, however much it sends in between.
            silence = self._silence_of(state)
            due = now + self.limits.silence_ms if silence is None else state.last_heard + silence
            if due > now:
                heappush(self._checks, (due, number, connection))
                continue
            effects += self.closed(connection, now)
            effects.append(Disconnect(connection, f"silent for {now - state.last_heard} ms"))
        return effects + self._tell_deaths(now)

    def _silence_of(self, state: _Connection) -> Expiry | None:
        """How long a connection may be silent; None if that says nothing about it."""
        if state.beat_interval is None:
            return None
        return max(self.limits.silence_ms, MISSED_BEATS * state.beat_interval)

    def _tell_deaths(self, now: Expiry) -> list[Effect]:
        """One effect for each group, with all its members that died and did not come back."""
        dead: dict[_GroupKey, list[LogicalAddress]] = {}
        for (dialect, group, uuid), (due, member) in list(self._deaths.items()):
            if due > now:
                break
            del self._deaths[dialect, group, uuid]
            dead.setdefault((dialect, group), []).append(member)
        effects: list[Effect] = []
        for (dialect, group), members in dead.items():
            there = self._groups.get((dialect, group))
            told = () if there is None else there.connections()
            effects.append(Suspect(dialect, told, group, tuple(members)))
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
        self, state: _Connection, there: _Group | None, *, is_member: bool
    ) -> str | None:
        if len(state.owned) >= self.limits.members_per_connection:
            return f"over {self.limits.members_per_connection} members on one connection"
        if is_member:  # then neither group nor member is new
            return None
        if there is None and len(self._groups) >= self.limits.groups:
            return f"over {self.limits.groups} groups"
        if there is not None and len(there.members) >= self.limits.members_per_group:
            return f"over {self.limits.members_per_group} members in one group"
        return None

    def _remove(self, dialect: Dialect, group: str, uuid: Uuid) -> _Registration:
        there = self._groups[dialect, group]
        registration = there.remove(uuid)
        if not there.members:
            del self._groups[dialect, group]
        return registration


def _without(registration: _Registration | None, connection: ConnectionId) -> tuple[int, ...]:
    """The paths of a member, but for one connection."""
    if registration is None:
        return ()
    return tuple(path for path in registration.paths if path != connection)
