"""How a router speaks JGroups 5.x (and what from 4.0 on is the same): frames in, frames out.

Messages are passed on as they came, byte for byte: neighbours for the same receivers as one piece
of the received buffer, never looked into. Where the real router's two modes differ from each other
or keep silent, wire/jgroups5.py and docs/explanation/gossip-router.md say what is done here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from waystation.core.gossip import Dialect
from waystation.errors import DecodeError
from waystation.gossip_router.reader import REQUEST, TURN, Reader
from waystation.wire.jgroups import Address
from waystation.wire.jgroups5 import (
    ALL_GROUPS,
    GetMembers,
    Goodbye,
    Heartbeat,
    Members,
    PingData,
    Register,
    Run,
    Suspect,
    Unregister,
    Value,
    decode,
    encode,
    read_head,
    scan,
)

_HEARTBEAT = encode(Heartbeat())


class Reader5(Reader):
    """Reads what a client of 5.x sends."""

    dialect: ClassVar[Dialect] = Dialect.JGROUPS5
    registered = refused = unregistered = b""  # a client expects no answer, and understands none
    farewell = encode(Goodbye())

    _rest = 0  # where its last, unfinished frame begins
    _end = 0
    _runs: Iterator[Run] = iter(())

    def _begin(self, data: bytes | bytearray, start: int, end: int) -> None:
        try:
            runs, rest, self.need = scan(data, start, end, known=self._known, limits=self._limits)
        except DecodeError as error:
            self._fail(error)
            return
        self._data, self._rest, self._end = data, rest, end
        self._runs = iter(runs)
        self.progressed = bool(runs)

    def go_on(self) -> bool:
        """Work through the runs; False when the turn is over before them."""
        self._work = 0
        data = self._data
        view = memoryview(data)
        self._check_routes()
        routes, forward = self._routes, self._forward
        for run in self._runs:
            head, first, last, count = run
            if head:
                targets = routes.get(head) or self._find(data, run)
                if targets:
                    forward(targets, view[first:last].tobytes(), count, head)
            else:
                try:
                    self._handle(decode(data, first, last, self._limits))
                except DecodeError as error:
                    self._fail(error)
                if not self.client.is_open:
                    return True
                self._check_routes()
                if not self.client.takes_answers():
                    return False
            if self._work >= TURN:
                return False
        return self._keep_rest()

    def _keep_rest(self) -> bool:
        data, rest, end = self._data, self._rest, self._end
        self._data, self._rest, self._end = b"", 0, 0
        if rest < end:
            if not self.need:  # what follows is malformed; the scan says how
                self._begin(data, rest, end)
                # Or it was too large, until what came before registered a member.
                return self.go_on() if self.client.is_open else True
            self.held += memoryview(data)[rest:end]
        return True

    def _handle(self, value: Value) -> None:
        client, server = self.client, self.server
        self._work += REQUEST
        self._counts.requests[type(value).__name__.lower()] += 1
        if isinstance(value, Register):
            self._register(value)
        elif isinstance(value, Unregister):
            if value.group is not None and value.address is not None:
                server.unregister(client, value.group, value.address.key)
        elif isinstance(value, GetMembers):
            self._tell_members(value.group)
        elif isinstance(value, Heartbeat):
            server.heard(client, heartbeat=True)
            client.tell(_HEARTBEAT)
        elif isinstance(value, Goodbye):
            server.left(client)

    def _register(self, value: Register) -> None:
        if value.group is None or value.address is None:
            self.server.reject(self.client, "malformed", "a REGISTER without group or address")
            return
        entry = PingData(value.address, value.name, value.physical)
        self.server.register(self.client, value.group, entry, (value.physical,), value.token)

    def _tell_members(self, group: str | None) -> None:
        client, server = self.client, self.server
        if group is not None:
            client.tell(server.members(client, group, _members))
            return
        groups = server.groups(client)
        self._work += REQUEST * len(groups)
        for name in groups:
            entries = server.entries(client, name)
            client.tell(_members(ALL_GROUPS + name, entries, last=name == groups[-1]))
        if not groups:
            client.tell(_members(ALL_GROUPS, (), last=True))

    @staticmethod
    def _destination(head: bytes) -> tuple[str | None, Address | None]:
        fields = read_head(head)
        return fields.group, fields.destination

    def _size_at(self, piece: bytes | bytearray, position: int) -> int:
        return 4 + int.from_bytes(piece[position : position + 4], "big")

    def suspect(self, group: str, address: Address | None) -> bytes:
        """One frame, which names the group."""
        return encode(Suspect(group, address))


def _members(group: str, entries: tuple[PingData, ...], *, last: bool = True) -> bytes:
    return encode(Members(group, entries, last))
