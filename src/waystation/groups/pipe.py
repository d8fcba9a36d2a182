"""A stream of bytes between two members of a group: a transport over their messages.

Each message that belongs to a pipe says so in its first nine bytes: what it is, and of which pipe.
A pipe has a window of its own, so that one whose reader is slow holds up no other. What runs over a
pipe is a `waystation.net.connection.Connection`, as over a socket.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import Any, Final, TypeAlias

from waystation.core.budget import Account
from waystation.core.identity import Uuid
from waystation.core.membership import Member
from waystation.core.outcome import Reason
from waystation.groups.group import Group


class Kind(IntEnum):
    """What a message of a pipe is."""

    OPEN = 1
    ACCEPT = 2
    REFUSE = 3
    DATA = 4
    CREDIT = 5
    EOF = 6
    CLOSE = 7
    RESET = 8


class PipeState(IntEnum):
    """Where a pipe is in its life; the order is that of time."""

    OPEN = 0
    FINISHED = 1  # nothing more is written from here, and the peer will be told
    CLOSING = 2  # what was written still goes out, what comes is discarded
    CLOSED = 3


DIALLER: Final = 0x80
"""Set in what comes from the side that opened the pipe."""

CHUNK: Final = 32 * 1024
WINDOW: Final = 512 * 1024
"""Bytes that may be with the peer before its reader has taken them, but for the last chunk."""

_HEAD: Final = struct.Struct(">BQ")
_COUNT: Final = struct.Struct(">I")

Key: TypeAlias = tuple[Uuid, int, bool]
"""The peer, the number of the pipe, and whether it was opened here."""


def read_head(payload: bytes, sender: Uuid) -> tuple[Kind, Key] | None:
    """What a message is, and of which pipe; None when it is no message of a pipe.

    >>> read_head(head(Kind.CREDIT, (bytes(16), 7, True)), bytes(16)) is None  # of how many bytes?
    True
    """
    if len(payload) < _HEAD.size:
        return None
    code, number = _HEAD.unpack_from(payload)
    kind = code & ~DIALLER
    if not Kind.OPEN <= kind <= Kind.RESET:
        return None
    if kind == Kind.CREDIT and len(payload) != _HEAD.size + _COUNT.size:
        return None
    return Kind(kind), (sender, number, not code & DIALLER)


def head(kind: Kind, key: Key) -> bytes:
    """The first bytes of a message."""
    return _HEAD.pack(kind | (DIALLER if key[2] else 0), key[1])


class Pipe(asyncio.Transport):
    """One end of a pipe."""

    def __init__(
        self,
        group: Group,
        peer: Member,
        key: Key,
        ended: Callable[[Pipe, Exception | None], None],
        unread: Account | None = None,
    ) -> None:
        super().__init__({"peername": (peer.name, 0)})
        self.key = key
        self.peer = peer
        self.state = PipeState.OPEN
        self._group = group
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._protocol: Any = None
        self._waiting: deque[bytes | None] = deque()  # for room in the window; None: no more comes
        self._size = 0  # bytes that wait, or are on their way
        self._in_flight = 0  # pieces that are on their way
        self._window = WINDOW  # of the peer
        self._room = WINDOW + CHUNK  # bytes that the peer may send us before we give it credit
        self._taken = 0  # bytes read since the peer was told
        self._unread = bytearray()  # came while nothing is read; never more than `_room` was
        self._unread_end = False  # and then the peer's end
        self._held = Account(WINDOW + CHUNK, unread)  # bytes of that, here and in all pipes
        self._reading = True
        self._paused = False  # the protocol was asked to write no more
        self._high, self._low = 64 * 1024, 16 * 1024

    def attach(self, protocol: Any) -> None:
        """Begin: the protocol is told of everything from now on."""
        self._protocol = protocol
        protocol.connection_made(self)

    # What a protocol asks of a transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes to the peer."""
        if self.state is not PipeState.OPEN or not data:
            return
        self._size += len(data)
        for start in range(0, len(data), CHUNK):
            self._waiting.append(bytes(data[start : start + CHUNK]))
        self._push()
        if self._size > self._high and not self._paused:
            self._paused = True
            self._protocol.pause_writing()

    def is_closing(self) -> bool:
        """Whether it ends, or has ended."""
        return self.state >= PipeState.CLOSING

    def is_reading(self) -> bool:
        """Whether what comes is handed in."""
        return self._reading and not self.is_closing()

    def pause_reading(self) -> None:
        """Hand in nothing more; the peer has to wait when the window is full."""
        self._reading = False

    def resume_reading(self) -> None:
        """Hand in what came meanwhile."""
        self._reading = True
        if self._unread:
            data, self._unread = bytes(self._unread), bytearray()
            self._held.give_back(len(data))
            self._hand_in(data)
        if self._unread_end and self._reading and not self._unread:
            self._unread_end = False
            self._hand_in(None)

    def can_write_eof(self) -> bool:
        """Say that one side can end before the other."""
        return True

    def write_eof(self) -> None:
        """Say that nothing more is written."""
        if self.state is PipeState.OPEN:
            self.state = PipeState.FINISHED
            self._waiting.append(None)
            self._push()

    def get_write_buffer_size(self) -> int:
        """How many bytes the peer has not got yet."""
        return self._size

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set when the protocol is to pause, and to go on."""
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low

    def close(self) -> None:
        """Write what is left, and end."""
        if not self.is_closing():
            self.state = PipeState.CLOSING
            self._forget_unread()
            self._push()

    def abort(self) -> None:
        """End at once."""
        self.reset(None)

    # What the peer says

    def on_message(self, kind: Kind, payload: bytes) -> None:
        """Do what a message asks for."""
        if self.state is PipeState.CLOSED:
            return
        if kind is Kind.DATA:
            self._on_data(payload[_HEAD.size :])
        elif kind is Kind.CREDIT:
            self._window += _COUNT.unpack_from(payload, _HEAD.size)[0]
            self._push()
        elif kind is Kind.EOF:
            self._take(None)
        elif kind is Kind.CLOSE:
            self.fail(None)
        elif kind is Kind.RESET:
            self.fail(ConnectionResetError("the peer reset the pipe"))

    def reset(self, error: Exception | None) -> None:
        """End at once, and have the peer end too."""
        self._post(Kind.RESET)
        self.fail(error)

    def fail(self, error: Exception | None) -> None:
        """End at once, without a word to the peer."""
        if self.state is not PipeState.CLOSED:
            self.state = PipeState.CLOSED
            self._waiting.clear()
            self._forget_unread()
            self._loop.call_soon(self._ended, self, error)

    def tell_lost(self, error: Exception | None) -> None:
        """The last that the protocol hears."""
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    # How it works

    def _forget_unread(self) -> None:
        self._unread.clear()
        self._held.give_back(self._held.used)

    def _on_data(self, data: bytes) -> None:
        if not data:
            return
        self._room -= len(data)
        if self._room < 0:
            self.reset(ConnectionError(f"{self.peer} sends more than there is room for"))
        elif self.is_closing():
            self._give_credit(len(data))
        else:
            self._take(data)

    def _take(self, data: bytes | None) -> None:
        if self._reading and not self._unread:
            self._hand_in(data)
        elif data is None:
            self._unread_end = True
        elif not self._unread_end:
            self._unread += data
            self._held.take(len(data))
            if self._held.parent is not None and self._held.parent.is_over:
                self.reset(ConnectionError("more waits in all pipes than there is room for"))

    def _hand_in(self, data: bytes | None) -> None:
        if data is not None:
            self._give_credit(len(data))
            self._protocol.data_received(data)
        else:
            if not self.is_closing():
                self._protocol.eof_received()
            self.close()

    def _give_credit(self, size: int) -> None:
        self._taken += size
        if self._taken >= WINDOW // 4:
            self._post(Kind.CREDIT, _COUNT.pack(self._taken))
            self._room += self._taken
            self._taken = 0

    def _push(self) -> None:
        waiting = self._waiting
        while waiting and (waiting[0] is None or self._may_send()):
            data = waiting.popleft()
            if data is None:
                self._post(Kind.EOF)
            else:
                self._window -= len(data)
                self._in_flight += 1
                self._post(Kind.DATA, data, partial(self._landed, len(data)))
        self._finish()

    def _landed(self, size: int, reason: Reason | None) -> None:
        """A piece arrived, or was lost."""
        if self.state is PipeState.CLOSED:
            return
        self._in_flight -= 1
        if reason is not None:
            self.fail(ConnectionError(f"the way to {self.peer} is gone: {reason}"))
            return
        self._size -= size
        if self._paused and self._size <= self._low:
            self._paused = False
            self._protocol.resume_writing()
        self._push()

    def _may_send(self) -> bool:
        """Whether the reader at the other end has room, and the way there.

        Pipes to one member share its window; each may have one piece on its way in any case, whose
        arrival makes it go on.
        """
        if self._window <= 0:
            return False
        return not self._in_flight or not self._group.is_full(self.key[0])

    def _finish(self) -> None:
        if self.state is PipeState.CLOSING and not self._waiting and not self._size:
            self._post(Kind.CLOSE)
            self.fail(None)

    def _post(
        self, kind: Kind, body: bytes = b"", on_end: Callable[[Reason | None], None] | None = None
    ) -> None:
        if self.state is not PipeState.CLOSED and self._group.is_connected:
            self._group.post(self.key[0], head(kind, self.key) + body, on_end)
