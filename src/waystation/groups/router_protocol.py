"""What a member says to a gossip router, in either dialect: bytes only, no sockets (GR-11).

The formats are those of wire/jgroups2.py and wire/jgroups5.py; here is what a client says in them,
and what it makes of the answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from waystation.core.identity import LogicalAddress, Mapping, Uuid
from waystation.errors import DecodeError, LocalError, quote
from waystation.wire import jgroups2, jgroups5
from waystation.wire.java import FormatLimits
from waystation.wire.jgroups import Address, PhysicalAddress, UuidAddress

LIMITS: Final = FormatLimits(frame=64 << 20, control=4 << 20)
"""A member takes larger frames from its router than a router takes from its clients."""


class Answers(Struct):
    """What the router said in some bytes."""

    error: DecodeError | None = None  # behind the rest
    refused: bool = False
    packets: list[bytes] = []
    lists: list[list[Mapping]] = []
    gone: list[Uuid] = []


class JGroups5:
    """JGroups 5.x."""

    def __init__(self, group: str, token: bytes) -> None:
        self._group = group
        self._token = token
        self._decoder = jgroups5.Decoder(LIMITS)

    @property
    def pending(self) -> int:
        """How many bytes of a frame are there that is not complete."""
        return self._decoder.pending

    def register(self, own: Mapping) -> bytes:
        """REGISTER, with the first of our places: the format has room for one.

        The heartbeat behind it shows a router that we know its SUSPECT: older clients send none.
        """
        places = _physical(own)
        request = jgroups5.Register(
            self._group,
            UuidAddress(own.uuid),
            own.member.name,
            places[0] if places else None,
            self._token,
        )
        return jgroups5.encode(request) + self.beat()

    def unregister(self, own: Mapping) -> bytes:
        """UNREGISTER, and goodbye."""
        left = jgroups5.Unregister(self._group, UuidAddress(own.uuid))
        return jgroups5.encode(left) + jgroups5.encode(jgroups5.Goodbye())

    def ask(self) -> bytes:
        """GET_MBRS."""
        return jgroups5.encode(jgroups5.GetMembers(self._group))

    def beat(self) -> bytes:
        """HEARTBEAT, which comes back."""
        return jgroups5.encode(jgroups5.Heartbeat())

    def message(self, own: Uuid, destination: Uuid | None, packet: bytes) -> bytes:
        """MESSAGE."""
        to = None if destination is None else UuidAddress(destination)
        return jgroups5.encode(jgroups5.Message(self._group, to, UuidAddress(own), packet))

    def read(self, data: bytes) -> Answers:
        """Take frames apart."""
        values = self._decoder.feed(data)
        said = Answers(self._decoder.error)
        for value in values:
            if isinstance(value, jgroups5.Message):
                said.packets.append(value.payload)
            elif isinstance(value, jgroups5.Members) and value.group == self._group:
                said.lists.append(_mappings((m, (m.physical,)) for m in value.members))
            elif isinstance(value, jgroups5.Suspect) and value.group == self._group:
                said.gone += _uuids(value.address)
        return said


class JGroups2:
    """JGroups 2.10 to 2.12."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._decoder = jgroups2.AnswerDecoder(LIMITS)
        self._asked: deque[bool] = deque()  # for the members, or only for a sign of life

    @property
    def pending(self) -> int:
        """How many bytes of a frame are there that is not complete."""
        return self._decoder.pending

    def register(self, own: Mapping) -> bytes:
        """CONNECT, with all our places."""
        self._decoder.expect_connect_answer()
        request = jgroups2.Connect(
            self._group, UuidAddress(own.uuid), own.member.name, _physical(own)
        )
        return jgroups2.encode(request)

    def unregister(self, own: Mapping) -> bytes:
        """DISCONNECT, and CLOSE."""
        left = jgroups2.Disconnect(self._group, UuidAddress(own.uuid))
        return jgroups2.encode(left) + jgroups2.encode(jgroups2.Close())

    def ask(self) -> bytes:
        """GOSSIP_GET."""
        return self._get(self._group, for_members=True)

    def beat(self) -> bytes:
        """PING, which has no answer; so also ask for a group that has no members."""
        return jgroups2.encode(jgroups2.Ping()) + self._get("", for_members=False)

    def message(self, own: Uuid, destination: Uuid | None, packet: bytes) -> bytes:
        """MESSAGE; who sent it stands in the packet."""
        del own
        to = None if destination is None else UuidAddress(destination)
        return jgroups2.encode(jgroups2.Message(self._group, to, packet))

    def read(self, data: bytes) -> Answers:
        """Take structures apart."""
        values = self._decoder.feed(data)
        said = Answers(self._decoder.error)
        for value in values:
            if isinstance(value, jgroups2.Message):
                said.packets.append(value.payload or b"")
            elif isinstance(value, jgroups2.Members):
                if self._asked.popleft():
                    said.lists.append(_mappings((m, m.physical or ()) for m in value.members))
            elif isinstance(value, jgroups2.Suspect):
                said.gone += _uuids(value.address)
            elif isinstance(value, jgroups2.ConnectAnswer) and not value.ok:
                said.refused = True
        return said

    def _get(self, group: str, *, for_members: bool) -> bytes:
        self._decoder.expect_members()
        self._asked.append(for_members)
        return jgroups2.encode(jgroups2.GossipGet(group))


def check_dialect(dialect: str, token: bytes) -> str:
    """Return the dialect, or raise the LocalError that says what is wrong with it."""
    if dialect not in {"jgroups5", "jgroups2"}:
        raise LocalError(
            f"unknown dialect {quote(dialect)}",
            rule="GR-11",
            hint="give 'jgroups5' or 'jgroups2'",
        )
    if token and dialect != "jgroups5":
        raise LocalError(
            "the dialect jgroups2 has no tokens",
            rule="GR-2",
            hint="use 'jgroups5', or a certificate",
        )
    return dialect


def make_protocol(dialect: str, group: str, token: bytes) -> JGroups5 | JGroups2:
    """What one connection needs, from its beginning to its end."""
    return JGroups5(group, token) if dialect == "jgroups5" else JGroups2(group)


def _physical(own: Mapping) -> tuple[PhysicalAddress, ...]:
    return tuple(PhysicalAddress.parse(place) for place in own.physical)


def _mappings(
    found: Iterable[tuple[jgroups2.PingData | jgroups5.PingData, Sequence[Address | None]]],
) -> list[Mapping]:
    """The members of a list whose addresses are UUIDs; others are none of ours."""
    return [
        Mapping(
            LogicalAddress(uuid, data.name or ""),
            tuple(str(place) for place in places if isinstance(place, PhysicalAddress)),
        )
        for data, places in found
        for uuid in _uuids(data.address)
    ]


def _uuids(address: Address | None) -> list[Uuid]:
    return [address.uuid] if isinstance(address, UuidAddress) else []
