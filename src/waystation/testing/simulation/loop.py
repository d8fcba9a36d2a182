"""An event loop in virtual time: whole fleets in one process, the same for the same seed.

Time passes only when nothing is left to do, and then jumps to the next timer. What is done belongs
to a process (`CURRENT`), by the context in which it was scheduled: the handles of a process that
was killed are dropped, those of one that is stopped wait until it goes on.

There is no selector and there are no threads: sockets are those of the simulated network, and what
is meant for a thread runs at once.
"""

from __future__ import annotations

import asyncio
import heapq
import socket
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from waystation.testing.simulation.network import Network
    from waystation.testing.simulation.process import Process
    from waystation.testing.simulation.streams import SimulatedServer, SimulatedTransport

CURRENT: Final[ContextVar[Process | None]] = ContextVar(
    "waystation simulated process", default=None
)
"""The process that whatever runs now belongs to; None for the simulation itself."""


class SimulationError(RuntimeError):
    """The simulation cannot do what was asked of it, or waits for what can never happen."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """See the module; made by `Simulation`."""

    def __init__(self, network: Network, most_events: int) -> None:
        super().__init__()
        self._network = network
        self._most_events = most_events
        self.given_up = ""
        """Why the simulation is to end now, if it is."""
        self._now = 0.0
        self.events = 0
        """How many callbacks have run."""

    def time(self) -> float:
        """The virtual seconds since the simulation began."""
        return self._now

    # How it runs

    def _run_once(self) -> None:
        ready, timers = self._ready, self._scheduled  # type: ignore[attr-defined]
        if not ready:
            self._skip_to_next_timer(timers)
        if self.events > self._most_events:
            self.given_up = f"{self.events} events"
        if self.given_up:
            raise SimulationError(f"it never settles: {self.given_up} by {self._now:.3f} s")
        now = self._now
        while timers and timers[0]._when <= now:
            timer = heapq.heappop(timers)
            timer._scheduled = False
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            process = handle._context.get(CURRENT)
            if process is None or process.admits(handle):
                self.events += 1
                handle._run()

    def _skip_to_next_timer(self, timers: list[Any]) -> None:
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)._scheduled = False
        if timers:
            self._now = max(self._now, timers[0]._when)
        elif not self._stopping:  # type: ignore[attr-defined]
            raise SimulationError("nothing is left to happen, and the simulation has not ended")

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Leave it where it is: it is skipped when its time comes."""

    def _write_to_self(self) -> None:
        """Nobody sleeps here who had to be woken."""

    def _process_events(self, event_list: object) -> None:
        raise AssertionError(event_list)

    def resume(self, handles: list[asyncio.Handle]) -> None:
        """Run what was held back, before whatever comes later."""
        self._ready.extend(handles)  # type: ignore[attr-defined]

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None) -> Any:
        """Start a task, which its process holds on to: it must not run on when that is killed."""
        task = super().create_task(coro, name=name, context=context)
        process = CURRENT.get() if context is None else context.get(CURRENT)
        if process is not None:
            process.tasks[task] = None
            task.add_done_callback(process.tasks.pop)
        return task

    # What programs ask the system for

    def make_socket(self, family: int, kind: int) -> Any:
        """A socket of the simulated network, on the machine of the current process."""
        return self._network.make_socket(here(), family, kind)

    async def getaddrinfo(  # noqa: D102 - as in asyncio
        self,
        host: bytes | str | None,
        port: bytes | str | int | None,
        *,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> list[Any]:
        del family, proto, flags
        assert isinstance(host, str)
        address = self._network.resolve(host)
        return [(socket.AF_INET, type or socket.SOCK_STREAM, 0, "", (address, int(port or 0)))]

    async def create_server(  # type: ignore[override]  # noqa: D102 - as in asyncio
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        *,
        ssl: object = None,
        **options: Any,
    ) -> SimulatedServer:
        del options
        _refuse_tls(ssl)
        return self._network.listen(here(), protocol_factory, self._network.resolve(host), port)

    async def sock_connect(self, sock: Any, address: Any) -> None:  # noqa: D102 - as in asyncio
        await sock.connect_stream(address)

    async def create_connection(  # type: ignore[override]  # noqa: D102 - as in asyncio
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        *,
        sock: Any,
        ssl: object = None,
        **options: Any,
    ) -> tuple[SimulatedTransport, asyncio.BaseProtocol]:
        del options
        _refuse_tls(ssl)
        transport: SimulatedTransport = sock.take_stream()
        protocol = protocol_factory()
        transport.begin(protocol)
        return transport, protocol

    def add_reader(self, fd: Any, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        """Call a function when a simulated datagram socket has something to read."""
        fd.on_readable(lambda: callback(*args))

    def remove_reader(self, fd: Any) -> bool:
        """Call nothing any more."""
        fd.on_readable(None)
        return True

    def remove_writer(self, fd: Any) -> bool:  # noqa: ARG002 - a simulated socket is never full
        """Do nothing: a simulated datagram socket always takes what it is given."""
        return False

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run it now: there are no threads."""
        del executor
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is its caller's
            done.set_exception(error)
        return done


def here() -> Process:
    """The process that runs now."""
    process = CURRENT.get()
    if process is None:
        raise SimulationError("no machine, so no sockets: run it by machine.run(program)")
    return process


def _refuse_tls(ssl: object) -> None:
    if ssl is not None:
        raise SimulationError("TLS is not simulated: run the fleet without it")
