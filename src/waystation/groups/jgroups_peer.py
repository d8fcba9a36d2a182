"""Plain bytes between a Python program and members of a JGroups 5 group, through a gossip router.

A `JGroupsPeer` is no member of the group's view: it has no protocol stack, only a registration at
the router. What it sends reaches the `Receiver` of every member, or of one, once or not at all, in
no order; it hears what members send with the flags OOB, NO_RELIABILITY, NO_FC and DONT_BUNDLE.
Nothing is numbered, acknowledged or sent again. For members of our own make, with all of that, see
group.py.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Final, Self

from msgspec import Struct

from waystation.core.identity import LogicalAddress, Uuid, uuid_text
from waystation.core.message import not_bytes_error
from waystation.core.outcome import Reason
from waystation.errors import DecodeError, LocalError
from waystation.net import randomness
from waystation.net.backoff import Backoff
from waystation.net.connection import Connection, ConnectionLimits, Failure
from waystation.net.dialer import dial, keep
from waystation.net.hosts import host_name
from waystation.net.tasks import Tasks
from waystation.net.tls import Tls
from waystation.wire import jgroups5
from waystation.wire.jgroups import UuidAddress
from waystation.wire.jgroups5 import Release
from waystation.wire.jgroups5_members import NO_RELIABILITY, encode_plain, read_messages

INBOX: Final = 10_000
"""So many messages wait to be taken; then the oldest is lost, and counted."""


class PlainMessage(Struct, frozen=True):
    """Bytes that a member sent, and to whom: to this peer, or to all."""

    payload: bytes
    sender: Uuid
    to_all: bool

    def __str__(self) -> str:
        return f"{len(self.payload)} bytes from {uuid_text(self.sender)}"


class JGroupsPeer:
    """Sends bytes to the members of a group and takes theirs; `async with` connects it.

    `release` is that of the group's members, such as (5, 5, 7): they ignore messages of another
    major or minor one. Without it, it is learnt from the first message that is heard, and `send`
    waits for that. After a lost connection it connects and registers again.
    """

    def __init__(
        self,
        router: str,
        group: str,
        *,
        name: str | None = None,
        release: Release | None = None,
        tls: Tls | None = None,
        timeout: float = 10.0,
    ) -> None:
        random = randomness.random_bytes(16)
        self.address = LogicalAddress.fresh(name, host_name(), random)
        self.lost = 0  # messages that nobody took in time
        self._router = router
        self._group = group
        self._release = release
        self._tls = tls
        self._timeout = timeout
        self._here = UuidAddress(self.address.uuid)
        self._connection: _RouterConnection | None = None
        self._inbox: deque[PlainMessage] = deque()
        self._questions: deque[asyncio.Future[list[LogicalAddress]]] = deque()
        self._changed = asyncio.Event()  # a message came, the release is known, or it is over
        self._closed = False
        self._tasks = Tasks()

    async def __aenter__(self) -> Self:
        connection = await self._connect()
        self._tasks.start(self._keep(connection), "JGroups peer", endless=True)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closed = True
        self._changed.set()
        await self._tasks.stop()
        if self._connection is not None:
            self._connection.leave(self._group, self._here)
            await self._connection.ended.wait()

    @property
    def release(self) -> Release | None:
        """The release of the group's members, once it is known."""
        return self._release

    async def send(self, payload: bytes, to: Uuid | LogicalAddress | None = None) -> None:
        """Send bytes to one member, or to all of the group: once, or not at all.

        Raises a ConnectionError while there is no connection to the router.
        """
        if not isinstance(payload, bytes):
            raise not_bytes_error(payload)
        release = self._release or await self._learn_release()
        uuid = to.uuid if isinstance(to, LogicalAddress) else to
        destination = None if uuid is None else UuidAddress(uuid)
        plain = encode_plain(payload, self._here, destination, self._group, release)
        frame = jgroups5.Message(self._group, destination, self._here, plain)
        self._connected().give(jgroups5.encode(frame))

    async def members(self) -> list[LogicalAddress]:
        """Who is registered at the router for this group, with names: members, and peers."""
        answer: asyncio.Future[list[LogicalAddress]] = asyncio.get_running_loop().create_future()
        connection = self._connected()
        self._questions.append(answer)
        connection.give(jgroups5.encode(jgroups5.GetMembers(self._group)))
        async with asyncio.timeout(self._timeout):
            return await answer

    async def receive(self) -> PlainMessage:
        """The next message; EOFError when the peer is closed."""
        while not self._inbox:
            if self._closed:
                raise EOFError("the peer is closed")
            self._changed.clear()
            await self._changed.wait()
        return self._inbox.popleft()

    async def __aiter__(self) -> AsyncIterator[PlainMessage]:
        while True:
            try:
                yield await self.receive()
            except EOFError:
                return

    # How it works

    def _connected(self) -> _RouterConnection:
        connection = self._connection
        if connection is None or not connection.is_open:
            raise ConnectionError(f"no connection to the router {self._router}")
        return connection

    async def _learn_release(self) -> Release:
        try:
            async with asyncio.timeout(self._timeout):
                while self._release is None and not self._closed:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass
        if self._release is None:
            raise LocalError(
                f"no member of {self._group!r} was heard within {self._timeout:g} s,"
                " so their release of JGroups is not known",
                rule="GR-11",
                hint="give it, such as release=(5, 5, 7)",
            )
        return self._release

    async def _connect(self) -> _RouterConnection:
        connection = _RouterConnection(self)
        seconds = self._timeout
        places = [self._router]
        await dial(lambda _: connection, places, timeout=seconds, tls=self._tls, handshake=seconds)
        register = jgroups5.Register(self._group, self._here, self.address.name)
        connection.give(jgroups5.encode(register))
        self._connection = connection
        return connection

    async def _keep(self, first: _RouterConnection) -> None:
        await first.ended.wait()

        async def again() -> bool:
            try:
                connection = await self._connect()
            except OSError:
                return False
            await connection.ended.wait()
            return True

        await keep(again, backoff=Backoff())

    def heard(self, value: jgroups5.Value) -> None:
        """Take what the router sent."""
        if isinstance(value, jgroups5.Members):
            self._answer(value)
        elif isinstance(value, jgroups5.Message) and value.sender != self._here:
            self._take(value)

    def _answer(self, value: jgroups5.Members) -> None:
        found = [
            LogicalAddress(entry.address.key, entry.name or "")
            for entry in value.members
            if entry.address is not None
        ]
        if self._questions and not (question := self._questions.popleft()).done():
            question.set_result(found)

    def _take(self, frame: jgroups5.Message) -> None:
        if self._release is None:
            self._release = jgroups5.release_of(frame.payload)
            self._changed.set()
        for message in read_messages(frame.payload):
            sender = message.sender or frame.sender
            is_for_us = message.is_plain and message.flags & NO_RELIABILITY
            if is_for_us and message.payload is not None and sender is not None:
                if len(self._inbox) >= INBOX:
                    self._inbox.popleft()
                    self.lost += 1
                to_all = message.destination is None
                self._inbox.append(PlainMessage(message.payload, sender.key, to_all))
                self._changed.set()

    def disconnected(self) -> None:
        """Fail the questions that nobody will answer any more."""
        while self._questions:
            question = self._questions.popleft()
            if not question.done():
                question.set_exception(ConnectionError(f"the router {self._router} is gone"))


class _RouterConnection(Connection):
    """A connection to the router; `ended` tells its end."""

    def __init__(self, peer: JGroupsPeer) -> None:
        super().__init__(ConnectionLimits(first_byte=None))
        self._peer = peer
        self._decoder = jgroups5.Decoder()
        self.ended = asyncio.Event()

    def on_open(self) -> None:
        """Speak first; a router owes no greeting."""
        self.peer_spoke()

    def on_data(self, data: bytes) -> None:
        """Hand in what the router passes on."""
        try:
            values = self._decoder.feed(data)
        except DecodeError as error:
            self.fail(Reason.MALFORMED, str(error))
            return
        for value in values:
            self._peer.heard(value)

    @property
    def is_with_stranger(self) -> bool:
        """Always: the router may be JGroups' own."""
        return True

    def count_unfinished(self) -> int:
        """What is there of a frame."""
        return self._decoder.pending

    def leave(self, group: str, address: UuidAddress) -> None:
        """Tell the router that this is no accident, and end."""
        self.write(jgroups5.encode(jgroups5.Unregister(group, address)))
        self.close()

    def on_closed(self, failure: Failure | None) -> None:
        """Tell whoever waits."""
        del failure
        self.ended.set()
        self._peer.disconnected()
