"""The simulated network: machines, the ways between them, and what can be wrong with those.

Between two machines lie two ways, one in each direction. A way has a latency, drawn anew for each
piece, and can be blocked: streams then wait, datagrams are lost. Datagrams can also be lost or
repeated at random, or overtake one another.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import socket
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol

from waystation.net.place import place_of
from waystation.testing.simulation.datagrams import DatagramSocket
from waystation.testing.simulation.process import Machine, Process, ProcessState
from waystation.testing.simulation.streams import SimulatedServer, SimulatedTransport

if TYPE_CHECKING:
    from waystation.testing.simulation.loop import SimulatedLoop

FIRST_PORT: Final = 40_000

_TIE: Final = 1e-9
"""Seconds between two pieces of a stream: timers of the same instant have no order."""

_Way = tuple[Machine, Machine]
_Piece = tuple[Process, Process, Callable[[], None], "Order | None"]


class Order(Protocol):
    """Whose pieces arrive in the order in which they were sent."""

    last_arrival: float


class Network:
    """All machines and what is between them; a `Simulation` makes it."""

    def __init__(self, chance: random.Random) -> None:
        self.loop: SimulatedLoop  # set by the simulation, which makes both
        self.latency = (0.000_2, 0.002)
        """Seconds that a piece is under way: at least and at most."""
        self.loss = 0.0
        """The share of datagrams that never arrive."""
        self.duplication = 0.0
        """The share of datagrams that arrive twice."""
        self.reorders = False
        """Whether datagrams overtake one another."""
        self.tap: Callable[[Process, Process, bytes], None] | None = None
        """Called with what one process sends another over a stream, if somebody listens in."""
        self.machines: dict[str, Machine] = {}
        self._chance = chance
        self._by_address: dict[str, Machine] = {}
        self._listeners: dict[tuple[str, int], SimulatedServer] = {}
        self._datagrams: dict[tuple[str, int], list[DatagramSocket]] = {}
        self._blocked: dict[_Way, list[_Piece]] = {}
        self._ports: dict[str, int] = {}

    # Machines

    def machine(self, name: str) -> Machine:
        """A new machine; its name is also the name of its host."""
        address = f"10.77.{len(self.machines) // 250}.{len(self.machines) % 250 + 1}"
        machine = self.machines[name] = Machine(self, name, address)
        self._by_address[address] = machine
        return machine

    def resolve(self, host: str) -> str:
        """The address of a host, given by name or address."""
        found = self.machines.get(host)
        return host if found is None else found.address

    # What can be wrong

    def block(self, source: Machine, target: Machine) -> None:
        """Let nothing through from one machine to another, in this direction."""
        self._blocked.setdefault((source, target), [])

    def unblock(self, source: Machine, target: Machine) -> None:
        """Let everything through again, and what has waited first."""
        for piece in self._blocked.pop((source, target), []):
            self.carry(*piece)

    def partition(self, one: Iterable[Machine], other: Iterable[Machine]) -> None:
        """Separate two sets of machines, in both directions."""
        others = list(other)
        for here in one:
            for there in others:
                self.block(here, there)
                self.block(there, here)

    def heal(self) -> None:
        """Let everything through everywhere."""
        for way in list(self._blocked):
            self.unblock(*way)

    @property
    def blocked(self) -> list[_Way]:
        """The ways through which nothing goes at the moment."""
        return list(self._blocked)

    # How things get from one machine to another

    def carry(
        self,
        source: Process,
        target: Process,
        act: Callable[[], None],
        order: Order | None = None,
    ) -> None:
        """Do something at the target when it has got there."""
        way = source.machine, target.machine
        held = self._blocked.get(way)
        if held is not None:
            held.append((source, target, act, order))
            return
        at = self.loop.time() + self._delay(way)
        if order is not None:
            at = order.last_arrival = max(at, order.last_arrival + _TIE)
        # A dead process has a system, too: what arrives for it is not held back.
        context = None if target.state is ProcessState.DEAD else target.context.copy()
        self.loop.call_at(at, act, context=context)

    def _delay(self, way: _Way) -> float:
        if way[0] is way[1]:
            return 0.000_01
        return self._chance.uniform(*self.latency)

    # Streams

    def listen(
        self,
        process: Process,
        make: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
    ) -> SimulatedServer:
        """Listen on a machine; port 0 takes a free one."""
        host = self._own_address(process, host)
        port = port or self.free_port(process.machine)
        if (host, port) in self._listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        server = SimulatedServer(self, process, make, (host, port))
        self._listeners[host, port] = server
        process.servers[server] = None
        return server

    def stop_listening(self, server: SimulatedServer) -> None:
        """Accept nobody there any more."""
        if self._listeners.get(server.address) is server:
            del self._listeners[server.address]
        server.process.servers.pop(server, None)

    def dial(self, process: Process, address: tuple[str, int]) -> asyncio.Future[Any]:
        """Connect; gives this end of the stream, or says why not, once an answer has come."""
        answer = self.loop.create_future()
        target = self._by_address.get(address[0])
        if target is None:
            answer.set_exception(OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH)))
            return answer
        system = Process(target, 0)  # it answers also while the program is stopped
        self.carry(process, system, lambda: self._knock(process, system, address, answer))
        return answer

    def _knock(
        self,
        caller: Process,
        system: Process,
        address: tuple[str, int],
        answer: asyncio.Future[Any],
    ) -> None:
        if not system.machine.is_on:
            return
        server = self._listeners.get(address)
        if server is None:
            self.carry(system, caller, lambda: _settle(answer, ConnectionRefusedError()))
            return
        local = f"{caller.machine.address}:{self.free_port(caller.machine)}"
        here = SimulatedTransport(self, caller, local, place_of(address))
        there = SimulatedTransport(self, server.process, place_of(address), local)
        here.peer, there.peer = there, here
        self.carry(system, caller, lambda: _settle(answer, here))
        self.loop.call_soon(
            lambda: there.begin(server.make()), context=server.process.context.copy()
        )

    def free_port(self, machine: Machine) -> int:
        """A port of a machine that nobody has had."""
        port = self._ports[machine.name] = self._ports.get(machine.name, FIRST_PORT) + 1
        return port

    def close_all_of(self, process: Process) -> None:
        """Close what a killed process had open."""
        for server in list(process.servers):
            self.stop_listening(server)
        for opened in list(process.sockets):
            opened.close()
        for transport in list(process.transports):
            transport.system_closes()

    def forget_all_of(self, process: Process) -> None:
        """Forget what a machine had open that was switched off."""
        for server in list(process.servers):
            self.stop_listening(server)
        for opened in list(process.sockets):
            opened.close()

    def _own_address(self, process: Process, host: str) -> str:
        if host in {"", "0.0.0.0", "127.0.0.1"}:  # noqa: S104 - what programs write
            return process.machine.address
        if host != process.machine.address:
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
        return host

    # Datagrams

    def make_socket(self, process: Process, family: int, kind: int) -> Any:
        """A socket of either kind."""
        assert family == socket.AF_INET
        if kind == socket.SOCK_DGRAM:
            return DatagramSocket(self, process)
        return StreamSocket(self, process)

    def bind_datagrams(self, bound: DatagramSocket, address: tuple[str, int]) -> None:
        """Let a socket receive what is sent to an address."""
        self._datagrams.setdefault(address, []).append(bound)

    def unbind_datagrams(self, bound: DatagramSocket) -> None:
        """Let a socket receive nothing more."""
        for sockets in self._datagrams.values():
            if bound in sockets:
                sockets.remove(bound)

    def send_datagram(self, source: DatagramSocket, data: bytes, address: tuple[str, int]) -> None:
        """Send a datagram to everybody who receives at an address."""
        for target in list(self._datagrams.get(address, ())):
            way = source.process.machine, target.process.machine
            if way in self._blocked:
                continue
            copies = 1
            if way[0] is not way[1]:
                copies -= self._chance.random() < self.loss
                copies += copies and self._chance.random() < self.duplication
            order = None if self.reorders else source.order_to(target)
            for _ in range(copies):
                arrive = target.arrival(data, source.address)
                self.carry(source.process, target.process, arrive, order)


class StreamSocket:
    """A socket that connects, and is then handed over to the loop."""

    def __init__(self, network: Network, process: Process) -> None:
        self._network = network
        self._process = process
        self._stream: SimulatedTransport | None = None

    async def connect_stream(self, address: tuple[str, int]) -> None:
        """Connect, or raise as the system does."""
        self._stream = await self._network.dial(self._process, address)

    def take_stream(self) -> SimulatedTransport:
        """What came of it."""
        assert self._stream is not None
        return self._stream

    def setblocking(self, flag: bool) -> None:
        """Never wait, as ever."""

    def close(self) -> None:
        """Forget it."""
        if self._stream is not None and self._stream.get_protocol() is None:
            self._stream.abort()


def _settle(answer: asyncio.Future[Any], result: object) -> None:
    if answer.done():
        if isinstance(result, SimulatedTransport):
            result.abort()
    elif isinstance(result, Exception):
        answer.set_exception(
            ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        )
    else:
        answer.set_result(result)
