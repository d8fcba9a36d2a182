"""A stream of bytes between two members of a group: an asyncio transport over their messages.

Each message that belongs to a pipe says so in its first nine bytes: what it is, and of which pipe.
A pipe has a window of its own, so that one whose reader is slow holds up no other.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from waystation.core.identity import Uuid
from waystation.core.outcome import Reason
from waystation.groups.group import Group
from waystation.groups.member import Member

OPEN, ACCEPT, REFUSE, DATA, CREDIT, EOF, CLOSE, RESET = range(1, 9)
DIALLER: Final = 0x80
"""Set in what comes from the side that opened the pipe."""

CHUNK: Final = 32 * 1024
WINDOW: Final = 512 * 1024
"""So many bytes may be with the peer before its reader has taken them."""

_HEAD: Final = struct.Struct(">BQ")
_COUNT: Final = struct.Struct(">I")

Key = tuple[Uuid, int, bool]
"""The peer, the number of the pipe, and whether it was opened here."""


def read_head(payload: bytes, sender: Uuid) -> tuple[int, Key] | None:
    """What a message is, and of which pipe; None when it is of no pipe at all."""
    if len(payload) < _HEAD.size:
        return None
    code, number = _HEAD.unpack_from(payload)
    kind = code & ~DIALLER
    return (kind, (sender, number, not code & DIALLER)) if OPEN <= kind <= RESET else None


def head(kind: int, key: Key) -> bytes:
    """The first bytes of a message."""
    return _HEAD.pack(kind | (DIALLER if key[2] else 0), key[1])


class _Flying:
    """A piece on its way."""

    __slots__ = ("_pipe", "_size")

    def __init__(self, pipe: Pipe, size: int) -> None:
        self._pipe = pipe
        self._size = size

    def ended(self, reason: Reason | None) -> None:
        self._pipe.landed(self._size, reason)


class Pipe(asyncio.Transport):
    """One end of a pipe."""

    def __init__(
        self, group: Group, peer: Member, key: Key, ended: Callable[[Pipe, Exception | None], None]
    ) -> None:
        super().__init__({"peername": (peer.name, 0)})
        self.key = key
        self.peer = peer
        self._group = group
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._protocol: Any = None
        self._waiting: deque[bytes] = deque()  # for room in the window
        self._size = 0  # bytes that wait, or are on their way
        self._window = WINDOW
        self._taken = 0  # bytes read since the peer was told
        self._held: deque[bytes] = deque()  # came while nothing is read
        self._reading = True
        self._eof = False  # nothing more is written
        self._eof_sent = False
        self._eof_held = False
        self._closing = False
        self._over = False
        self._paused = False
        self._high, self._low = 64 * 1024, 16 * 1024

    def attach(self, protocol: Any) -> None:
        """Begin: the protocol is told of everything from now on."""
        self._protocol = protocol
        protocol.connection_made(self)

    # What a protocol asks of a transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes to the peer."""
        if self._closing or self._eof or not data:
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
        return self._closing

    def is_reading(self) -> bool:
        """Whether what comes is handed in."""
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        """Hand in nothing more; the peer has to wait when the window is full."""
        self._reading = False

    def resume_reading(self) -> None:
        """Hand in what came meanwhile."""
        self._reading = True
        while self._held and self._reading and not self._over:
            self._hand_in(self._held.popleft())
        if self._eof_held and not self._held:
            self._eof_held = False
            self._on_eof()

    def can_write_eof(self) -> bool:
        """Say that one side can end before the other."""
        return True

    def write_eof(self) -> None:
        """Say that nothing more is written."""
        if not self._eof:
            self._eof = True
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
        if self._closing:
            return
        self._closing = True
        self._held.clear()
        self._push()

    def abort(self) -> None:
        """End at once."""
        self._post(RESET)
        self.fail(None)

    # What the peer says

    def on_message(self, kind: int, payload: bytes) -> None:
        """Do what a message asks for."""
        if self._over:
            return
        if kind == DATA:
            self._on_data(payload[_HEAD.size :])
        elif kind == CREDIT:
            self._window += _COUNT.unpack_from(payload, _HEAD.size)[0]
            self._push()
        elif kind == EOF:
            if self._held:
                self._eof_held = True
            else:
                self._on_eof()
        elif kind == CLOSE:
            self.fail(None)
        elif kind == RESET:
            self.fail(ConnectionResetError("the peer ended it"))

    def landed(self, size: int, reason: Reason | None) -> None:
        """A piece arrived, or was lost."""
        if self._over:
            return
        if reason is not None:
            self.fail(ConnectionError(f"the way to {self.peer} is gone: {reason}"))
            return
        self._size -= size
        if self._paused and self._size <= self._low:
            self._paused = False
            self._protocol.resume_writing()
        self._finish()

    def fail(self, error: Exception | None) -> None:
        """It is over."""
        if self._over:
            return
        self._over = self._closing = True
        self._waiting.clear()
        self._held.clear()
        self._loop.call_soon(self._ended, self, error)

    def tell_lost(self, error: Exception | None) -> None:
        """The last that the protocol hears."""
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    # How it works

    def _on_data(self, data: bytes) -> None:
        if self._closing:
            self._give_credit(len(data))
        elif self._reading and not self._held:
            self._hand_in(data)
        else:
            self._held.append(data)

    def _hand_in(self, data: bytes) -> None:
        self._give_credit(len(data))
        self._protocol.data_received(data)

    def _give_credit(self, size: int) -> None:
        self._taken += size
        if self._taken >= WINDOW // 4:
            self._post(CREDIT, _COUNT.pack(self._taken))
            self._taken = 0

    def _on_eof(self) -> None:
        if not self._closing:
            self._protocol.eof_received()
        self.close()

    def _push(self) -> None:
        while self._waiting and self._window > 0 and not self._over:
            data = self._waiting.popleft()
            self._window -= len(data)
            self._post(DATA, data)
        if self._eof and not self._eof_sent and not self._waiting:
            self._eof_sent = True
            self._post(EOF)
        self._finish()

    def _finish(self) -> None:
        if self._closing and not self._over and not self._waiting and not self._size:
            self._post(CLOSE)
            self.fail(None)

    def _post(self, kind: int, body: bytes = b"") -> None:
        if not self._over and self._group.is_connected:
            note = _Flying(self, len(body)) if kind == DATA else None
            self._group.post(self.key[0], head(kind, self.key) + body, note)
