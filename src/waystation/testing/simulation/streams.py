"""Streams of the simulated network: what TCP does, as far as a program can tell.

Bytes arrive in order and once, or not at all. A receiver that does not read holds its sender back
when `WINDOW` bytes are under way. What is sent over a way that is blocked waits there. A process
that is killed closes its connections; a machine that is switched off answers nothing, and one that
is switched on again resets what it does not know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, cast

from waystation.testing.simulation.process import Process, ProcessState

if TYPE_CHECKING:
    from waystation.testing.simulation.network import Network

WINDOW: Final = 256 * 1024
"""Bytes that may be under way in one direction: what both systems keep for a connection."""


class StreamState(IntEnum):
    """The life of one end of a stream; the order is that of time."""

    OPEN = 0
    CLOSING = 1  # what was written still goes out
    CLOSED = 2


class SimulatedTransport(asyncio.Transport):
    """One end of a stream."""

    def __init__(self, network: Network, process: Process, local: str, remote: str) -> None:
        super().__init__({"peername": _split(remote), "sockname": _split(local)})
        self.process = process
        self.peer: SimulatedTransport
        self._network = network
        self._loop = network.loop
        self._protocol: Any = None
        self._state = StreamState.OPEN
        self._reading = True
        self._early: list[Callable[[], None]] = []  # what arrived before there was a protocol
        self._out = bytearray()
        self._under_way = 0
        self.last_arrival = 0.0  # of what was sent
        self._high, self._low = 64 * 1024, 16 * 1024
        self._is_crowded = False
        self._eof_wanted = self._eof_sent = False
        self._arrived: list[bytes] = []  # and not read
        self._eof_arrived = False

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        """Belong to a protocol from now on."""
        self._protocol = protocol
        self.process.transports[self] = None
        protocol.connection_made(self)
        early, self._early = self._early, []
        for act in early:
            act()

    # asyncio.Transport

    def write(self, data: bytes | bytearray | memoryview) -> None:  # noqa: D102
        if self._state is not StreamState.OPEN or self._eof_wanted:
            return
        self._out += data
        self._pump()
        if len(self._out) > self._high and not self._is_crowded:
            self._is_crowded = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:  # noqa: D102
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:  # noqa: D102
        self._eof_wanted = True
        self._pump()

    def can_write_eof(self) -> bool:  # noqa: D102
        return True

    def get_write_buffer_size(self) -> int:  # noqa: D102
        return len(self._out)

    def get_write_buffer_limits(self) -> tuple[int, int]:  # noqa: D102
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:  # noqa: D102
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low

    def is_closing(self) -> bool:  # noqa: D102
        return self._state is not StreamState.OPEN

    def is_reading(self) -> bool:  # noqa: D102
        return self._reading and self._state is StreamState.OPEN

    def pause_reading(self) -> None:  # noqa: D102
        self._reading = False

    def resume_reading(self) -> None:  # noqa: D102
        if not self._reading:
            self._reading = True
            self._loop.call_soon(self._hand_in)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:  # noqa: D102
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:  # noqa: D102
        return cast("asyncio.BaseProtocol", self._protocol)

    def close(self) -> None:  # noqa: D102
        if self._state is not StreamState.OPEN:
            return
        self._state = StreamState.CLOSING
        if self._arrived:  # a system resets a connection that is closed with something unread
            self._send_reset()
            self._loop.call_soon(self._end, None)
            return
        self._eof_wanted = True
        self._pump()

    def abort(self) -> None:  # noqa: D102
        if self._state is StreamState.CLOSED:
            return
        self._state = StreamState.CLOSING
        self._out.clear()
        self._send_reset()
        self._loop.call_soon(self._end, None)

    # What the network brings

    def data_arrived(self, data: bytes) -> None:
        """Take bytes from the peer."""
        if self._protocol is None and self._state is StreamState.OPEN:
            self._early.append(lambda: self.data_arrived(data))
        elif self._state is StreamState.CLOSED:
            self._send_reset()
        elif self._state is StreamState.OPEN:
            self._arrived.append(data)
            self._hand_in()
        else:
            self._acknowledge(len(data))

    def eof_arrived(self) -> None:
        """Take it that the peer sends no more."""
        if self._protocol is None and self._state is StreamState.OPEN:
            self._early.append(self.eof_arrived)
        elif self._state is StreamState.OPEN:
            self._eof_arrived = True
            self._hand_in()

    def reset_arrived(self) -> None:
        """Take it that the connection is gone."""
        if self._protocol is None and self._state is StreamState.OPEN:
            self._early.append(self.reset_arrived)
        elif self._state is not StreamState.CLOSED:
            self._end(ConnectionResetError("Connection reset by peer"))

    def arrives(self, act: Callable[[], None]) -> None:
        """Let something arrive that the peer sent, as the system of a dead process would."""
        process = self.process
        if process.state is not ProcessState.DEAD:
            act()
        elif process.machine.is_on and act != self.reset_arrived:  # nobody answers a reset
            self._send_reset()

    def system_closes(self) -> None:
        """End the connection in the place of the process, which was killed."""
        self._out.clear()
        if self._arrived:
            self._send_reset()
        elif not self._eof_sent:
            self._eof_sent = True
            self._carry(self.peer.eof_arrived)
        self._state = StreamState.CLOSED

    # How it works

    def _pump(self) -> None:
        """Send what there is room for, and the end once all is sent."""
        room = WINDOW - self._under_way
        if self._out and room > 0:
            data = bytes(self._out[:room])
            del self._out[:room]
            self._under_way += len(data)
            peer = self.peer
            if self._network.tap is not None:
                self._network.tap(self.process, peer.process, data)
            self._carry(lambda: peer.data_arrived(data))
        if self._is_crowded and len(self._out) <= self._low:
            self._is_crowded = False
            if self._state is StreamState.OPEN:
                self._protocol.resume_writing()
        if self._eof_wanted and not self._out:
            if not self._eof_sent:
                self._eof_sent = True
                self._carry(self.peer.eof_arrived)
            if self._state is StreamState.CLOSING:
                self._loop.call_soon(self._end, None)

    def _carry(self, act: Callable[[], None]) -> None:
        peer = self.peer
        self._network.carry(self.process, peer.process, lambda: peer.arrives(act), self)

    def _hand_in(self) -> None:
        """Give the protocol what arrived, while it reads."""
        while self._arrived and self._reading and self._state is StreamState.OPEN:
            data = b"".join(self._arrived)
            self._arrived.clear()
            self._acknowledge(len(data))
            _receive(self._protocol, data)
        if self._eof_arrived and not self._arrived and self.is_reading():
            self._eof_arrived = False
            if not self._protocol.eof_received():
                self.close()

    def _acknowledge(self, size: int) -> None:
        """Let the peer send more."""
        peer = self.peer
        peer._under_way -= size
        if peer._out:
            self._network.carry(self.process, peer.process, peer._acknowledged)

    def _acknowledged(self) -> None:
        if self._state is not StreamState.CLOSED and self.process.state is not ProcessState.DEAD:
            self._pump()

    def _send_reset(self) -> None:
        self._carry(self.peer.reset_arrived)

    def _end(self, error: Exception | None) -> None:
        if self._state is StreamState.CLOSED:
            return
        self._state = StreamState.CLOSED
        self._out.clear()
        self.process.transports.pop(self, None)
        if self._protocol is not None:
            self._protocol.connection_lost(error)


class _Bound:
    """A listening socket, as far as anybody asks it."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def getsockname(self) -> tuple[str, int]:
        return self._address


class SimulatedServer:
    """A listener on a machine."""

    def __init__(
        self,
        network: Network,
        process: Process,
        make: Callable[[], asyncio.BaseProtocol],
        address: tuple[str, int],
    ) -> None:
        self.process = process
        self.make = make
        self.address = address
        self.sockets = (_Bound(address),)
        self._network = network

    def close(self) -> None:
        """Accept no more."""
        self._network.stop_listening(self)

    async def wait_closed(self) -> None:
        """Nothing is left to wait for."""


def _receive(protocol: Any, data: bytes) -> None:
    """Hand bytes to a protocol, as its kind wants them."""
    if not isinstance(protocol, asyncio.BufferedProtocol):
        protocol.data_received(data)
        return
    view = memoryview(data)
    while view:
        buffer = memoryview(protocol.get_buffer(len(view)))
        size = min(len(buffer), len(view))
        buffer[:size] = view[:size]
        protocol.buffer_updated(size)
        view = view[size:]


def _split(place: str) -> tuple[str, int]:
    host, _, port = place.rpartition(":")
    return host, int(port)
