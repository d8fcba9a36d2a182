"""How a router speaks JGroups 2.10 to 2.12, whose structures do not say how long they are.

Messages are passed on without their group, as the real router does, so each gets a new head. The
real router sometimes closes without a word, or takes what is not its own; what is done here instead
stands in docs/explanation/gossip-router.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, ClassVar

from waystation.core.gossip import Dialect
from waystation.core.outcome import Reason
from waystation.gossip_router.outcomes import Told
from waystation.gossip_router.reader import REQUEST, TURN, Reader
from waystation.wire.jgroups import Address
from waystation.wire.jgroups2 import (
    Close,
    Connect,
    ConnectAnswer,
    Disconnect,
    DisconnectAnswer,
    GossipGet,
    Message,
    Ping,
    PingData,
    Request,
    RequestDecoder,
    Run,
    Suspect,
    encode,
    encode_members,
    encode_ping_data,
    forwarded,
    read_head,
    scan,
    size_at,
)

if TYPE_CHECKING:
    from waystation.gossip_router.client import Client
    from waystation.gossip_router.server import GossipServer

_NOT_LEFT = encode(DisconnectAnswer(ok=False))


class Reader2(Reader):
    """Reads what a client of 2.12 sends."""

    dialect: ClassVar[Dialect] = Dialect.JGROUPS2
    registered = encode(ConnectAnswer(ok=True))
    refused = encode(ConnectAnswer(ok=False))
    unregistered = encode(DisconnectAnswer(ok=True))
    farewell = b""  # the end of the connection says it

    _position = 0
    _end = 0
    _runs: Iterator[Run] = iter(())
    _structure = False  # whether the decoder is reading something other than a usual message

    def __init__(self, client: Client, server: GossipServer) -> None:
        super().__init__(client, server)
        self._decoder = RequestDecoder(self._limits)

    def count_held(self) -> int:
        """What there is of a structure, here or in the decoder."""
        return len(self.held) + self._decoder.pending

    def admit(self) -> None:
        """Take structures of any allowed size."""
        super().admit()
        self._decoder.change_limits(self._limits)

    def _begin(self, data: bytes | bytearray, start: int, end: int) -> None:
        self._data, self._position, self._end = data, start, end
        self.need = 1
        self.progressed = False

    def go_on(self) -> bool:
        """Work through the data; False when the turn is over before that."""
        self._work = 0
        while self.client.is_open:
            if not self._pass_on():
                return False
            if self._position == self._end:
                break
            if self._structure:
                self._read_structure()
                if self._work >= TURN or not self.client.takes_answers():
                    return False
            elif not self._look():
                break
        self._data, self._position, self._end = b"", 0, 0
        return True

    def _look(self) -> bool:
        """Find the next messages; False when the rest is too short to go on."""
        data, position, end = self._data, self._position, self._end
        runs, rest, need = scan(data, position, end, known=self._known, limits=self._limits)
        self._runs, self._position = iter(runs), rest
        self._structure = need == 0
        if runs:
            self.progressed = True
            return True
        if not need:
            return True
        self.need = need
        self.held += memoryview(data)[rest:end]
        return False

    def _pass_on(self) -> bool:
        """Pass on the messages that were found; False when the turn is over before them."""
        self._check_routes()
        for run in self._runs:
            head, _, _, count = run
            targets = self._routes.get(head) or self._find(self._data, run)
            if targets:
                self._work += count >> 6  # each gets a new head
                self._forward(targets, forwarded(self._data, run), count, head)
            if self._work >= TURN:
                return False
        return True

    def _read_structure(self) -> None:
        """Read on in a structure, and not a byte beyond its end."""
        decoder = self._decoder
        stop = min(self._position + decoder.needed, self._end)
        requests = decoder.feed(self._data[self._position : stop])
        self._position = stop
        for request in requests:
            self._structure = False
            self.progressed = True
            self._handle(request)
        if decoder.error is not None and self.client.is_open:
            self._fail(decoder.error)

    def _handle(self, request: Request) -> None:
        client, server = self.client, self.server
        self._work += REQUEST
        if isinstance(request, Message):
            self._pass_on_unusual(request)
            return
        self._counts.requests[type(request).__name__.lower()] += 1
        if isinstance(request, Connect):
            self._connect(request)
        elif isinstance(request, Disconnect):
            self._disconnect(request)
        elif isinstance(request, GossipGet):
            if request.group is None:
                server.reject(client, "malformed", "a GOSSIP_GET without group")
            else:
                client.tell(server.members(client, request.group))
        elif isinstance(request, Ping):
            server.heard(client, heartbeat=True)
        elif isinstance(request, Close):
            server.left(client)

    def _pass_on_unusual(self, message: Message) -> None:
        """Pass on a message with fields that clients never use; one without payload is dropped."""
        where = message.group, message.destination
        targets, reason = self._targets(*where)
        if not message.payload:
            reason = Reason.MALFORMED
        if reason is None:
            plain = encode(Message(None, message.destination, message.payload))
            self._forward(targets, plain, 1, where)
            return
        self._drop(1, reason)
        if self._outcomes is not None:
            told = Told(len(encode(message)), self._sender_in(message.group))
            self._tell_dropped(self._outcomes, where, [told], reason)

    def _connect(self, request: Connect) -> None:
        if request.group is None or request.address is None:
            self.client.tell(self.refused)
            self.server.reject(self.client, "malformed", "a CONNECT without group or address")
            return
        entry = PingData(request.address, request.name, request.physical)
        self.server.register(self.client, request.group, entry, request.physical or ())

    def _disconnect(self, request: Disconnect) -> None:
        if request.address is None:
            self.client.tell(_NOT_LEFT)
        elif request.group is not None:
            self.server.unregister(self.client, request.group, request.address.key)
        else:
            self.server.unregister_everywhere(self.client, request.address.key)

    @staticmethod
    def _destination(head: bytes) -> tuple[str | None, Address | None]:
        fields = read_head(head)
        return fields.group, fields.destination

    @staticmethod
    def encode_entry(entry: PingData) -> bytes:
        """A member, as a list of members has it."""
        return encode_ping_data(entry)

    @staticmethod
    def encode_list(group: str, entries: Collection[bytes]) -> bytes:
        """A list without the name of its group."""
        del group
        return encode_members(entries)

    def _size_at(self, piece: bytes | bytearray, position: int) -> int:
        return size_at(piece, position)

    def suspect(self, group: str, address: Address | None) -> bytes:  # noqa: ARG002 - there is no place for it
        """A structure, and the address behind it."""
        return encode(Suspect(address))
