"""What waits to be written to one connection: bounded, and nobody waits for it (GR-10).

An outbox gathers what one turn brings for its connection and writes it at once. `room` never says
more than is true: it shrinks with what is put in, and is only measured anew when it seems too
little. So the way of a message costs no look at the socket.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Final

from waystation.gossip_router.metrics import Counts
from waystation.gossip_router.patience import Patience

_ACKNOWLEDGED: Final = struct.Struct("120xQ")
"""Where `tcpi_bytes_acked` stands in what Linux tells of a connection."""

RESERVE: Final = 1 << 18
"""So many bytes of answers and notices may wait beyond the limit for messages."""


class Outbox:
    """The way out of the connection with this number."""

    __slots__ = (
        "_counts",
        "_limit",
        "is_crowded",
        "number",
        "patience",
        "pieces",
        "room",
        "transport",
        "written",
    )

    def __init__(
        self,
        number: int,
        transport: asyncio.Transport,
        limit: int,
        patience: Patience,
        counts: Counts,
    ) -> None:
        self.number = number
        self.transport = transport
        self.pieces: list[bytes] = []  # of this turn
        self.room = limit
        self.written = 0
        self.is_crowded = False  # more than half full, until it is nearly empty
        self.patience = patience
        self._limit = limit
        self._counts = counts

    def waiting(self) -> int:
        """How many bytes the system has not taken yet."""
        return self.transport.get_write_buffer_size() + sum(map(len, self.pieces))

    def taken(self) -> int:
        """How many bytes the receiver's system has taken so far: it grows as long as it reads."""
        found = self.transport.get_extra_info("socket")
        try:
            info = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKNOWLEDGED.size)
            acknowledged: int = _ACKNOWLEDGED.unpack(info)[0]
        except (AttributeError, OSError, struct.error):  # no TCP, no such system, or closed
            return self.written - self.transport.get_write_buffer_size()
        return acknowledged

    def finds_room(self, size: int) -> bool:
        """Whether so many bytes may be put in after all, once what is in has been written."""
        self.flush()
        self.room = self._limit - self.transport.get_write_buffer_size()
        return self.room >= size

    def crowd(self) -> None:
        """More than half is full: whoever puts something in takes notice from now on."""
        self.is_crowded = True
        self.room = 0

    def clear(self) -> None:
        """Nearly nothing waits any more."""
        self.is_crowded = False
        self.patience.caught_up()

    def put(self, data: bytes) -> None:
        """Put in what is never shed: an answer, or a notice."""
        self.pieces.append(data)
        self.room -= len(data)

    def is_overfull(self) -> bool:
        """Whether there is no room even for notices."""
        return self.room < -RESERVE and not self.finds_room(-RESERVE)

    def flush(self) -> None:
        """Write what this turn brought."""
        pieces = self.pieces
        self.pieces = []
        if not pieces or self.transport.is_closing():
            return
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self.written += len(data)
        self._counts.bytes_sent += len(data)
        self.transport.write(data)
