"""How a router speaks JGroups 5.x (and what from 4.0 on is the same): frames in, frames out.

Messages are passed on as they came, byte for byte: neighbours for the same receivers as one piece
of the received buffer, never looked into. Where the real router's two modes differ from each other
or keep silent, wire/jgroups5.py and docs/explanation/gossip-router.md say what is done here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import ClassVar

from waystation.core.gossip import Dialect
from waystation.errors import DecodeError
from waystation.gossip_router.outcomes import Told
from waystation.gossip_router.reader import REQUEST, TURN, Reader
from waystation.wire.jgroups import Address
from waystation.wire.jgroups5 import (
    ALL_GROUPS,
    GOODBYE_KNOWN,
    SUSPECT_MOVED,
    GetMembers,
    Goodbye,
    Heartbeat,
    Message,
    PingData,
    Register,
    Release,
    Run,
    Unregister,
    Value,
    decode,
    encode,
    encode_members,
    encode_ping_data,
    encode_suspect,
    read_head,
    release_of,
    scan,
)
from waystation.wire.jgroups5_members import MemberMessage, read_messages

LOOKS = 16
"""This many messages of a client are looked at for its release; then it stays unknown."""

_HEARTBEAT = encode(Heartbeat())
_GOODBYE = encode(Goodbye())


class Reader5(Reader):
    """Reads what a client of 5.x sends."""

    dialect: ClassVar[Dialect] = Dialect.JGROUPS5
    registered = refused = unregistered = b""  # a client expects no answer, and understands none

    _rest = 0  # where its last, unfinished frame begins
    _end = 0
    _runs: Iterator[Run] = iter(())
    _release: Release | None = None  # of the client, as far as it is known
    _looks = 0  # how many messages were looked at to learn it

    @property
    def farewell(self) -> bytes:
        """A goodbye, for those who know it: others take it for a broken frame."""
        release = self._release
        return _GOODBYE if release is not None and release >= GOODBYE_KNOWN else b""

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
                if self._looks < LOOKS:
                    self._learn_release(data, first)
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

    def _learn_release(self, data: bytes | bytearray, first: int) -> None:
        """Look at a message for the release of its sender, which it begins with."""
        self._looks += 1
        frame = decode(data, first, first + self._size_at(data, first), self._limits)
        release = release_of(frame.payload) if isinstance(frame, Message) else None
        if release is not None:
            self._release = release
            self._looks = LOOKS

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
            self._release = self._release or SUSPECT_MOVED  # no older one sends it
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
            client.tell(server.members(client, group))
            return
        groups = server.groups(client)
        self._work += REQUEST * len(groups)
        for name in groups:
            entries = server.entries(client, name)
            last = name == groups[-1]
            client.tell(encode_members(ALL_GROUPS + name, entries, last=last))
        if not groups:
            client.tell(encode_members(ALL_GROUPS, (), last=True))

    @staticmethod
    def encode_entry(entry: PingData) -> bytes:
        """A member, as a list of members has it."""
        return encode_ping_data(entry)

    @staticmethod
    def encode_list(group: str, entries: Collection[bytes]) -> bytes:
        """One frame is always the last, and a client before 5.4.4 does not know that number."""
        return encode_members(group, entries, last=False)

    @staticmethod
    def _destination(head: bytes) -> tuple[str | None, Address | None]:
        fields = read_head(head)
        return fields.group, fields.destination

    def _describe(
        self, data: bytes | bytearray, first: int, last: int, sender: bytes | None
    ) -> list[Told]:
        """The messages that a frame carries; members put several into one."""
        frame = decode(data, first, last, self._limits)
        assert isinstance(frame, Message)
        if frame.sender is not None:
            sender = frame.sender.key
        told = [_told(frame, message, sender) for message in read_messages(frame.payload)]
        return told or [Told(last - first, sender)]

    def _size_at(self, piece: bytes | bytearray, position: int) -> int:
        return 4 + int.from_bytes(piece[position : position + 4], "big")

    @property
    def suspect_form(self) -> object:
        """What the number of SUSPECT depends on."""
        return self._release and self._release >= SUSPECT_MOVED

    def suspect(self, group: str, address: Address | None) -> bytes:
        """One frame, which names the group; its number depends on the release."""
        release = self._release
        return b"" if release is None else encode_suspect(group, address, release)


def _told(frame: Message, message: MemberMessage, sender: bytes | None) -> Told:
    """Name a message as its members do: who sent it first, to whom, and under which number."""
    if message.sender is not None:
        sender = message.sender.key
    numbered = message.numbered
    if numbered is None or sender is None:
        return Told(message.size, sender)
    if not numbered.is_message or numbered.number is None:
        return Told(message.size, sender, str(numbered))
    to = frame.destination
    # One that was for all is sent again to one alone, and is the same message.
    whom = to.key.hex() if to is not None and numbered.protocol == "UNICAST3" else "all"
    series = f"{frame.group} {numbered.protocol} {sender.hex()} {whom} {numbered.connection}"
    return Told(message.size, sender, str(numbered), series, numbered.number)
