"""The fleet of the demonstration: its processes, their configuration, starting and stopping them.

    dispatcher ─ tcp ─┐                      ┌─ mqtt ─── truck-3
       truck-1 ─ tcp ─┤ hub-a ─── tcp ─ hub-b ┼─ tunnel ─ truck-4
       truck-2 ─ ws ──┘   └── MQTT broker ──┘ └─ tcp ──── archive

The tunnel goes through a gossip router. Hubs, broker and router are Waystation's own commands;
leaves run a configured node as well, and generate traffic with it (leaf.py). Each process uses free
ports and prints them. Faults are injected in faults.py.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from waystation.demo.directory import DemoDirectory, replace
from waystation.demo.processes import WAYSTATION, Child, Processes
from waystation.errors import LocalError

BROKER: Final = "broker"
ROUTER: Final = "router"
HUBS: Final = ("hub-a", "hub-b")
DISPATCHER: Final = "dispatcher"
ARCHIVE: Final = "archive"
GROUP: Final = "fleet"

START: Final = 60.0
"""Seconds that a process has to become ready, even on a busy machine."""

_LISTENING: Final = re.compile(r"^listening on (\S+)$")
_LOOPBACK: Final = "127.0.0.1:0"
_RULE: Final = "OB-4"

Wait = Callable[[Callable[[], bool], float], bool]
"""Waits for a condition, at most the given seconds; returns whether it became true."""


class Truck(Struct, frozen=True):
    """A truck: its hub, the transport to it, and the region where it drives."""

    name: str
    hub: str
    over: str
    partition: str


TRUCKS: Final = (
    Truck("truck-1", "hub-a", "tcp", "eu/de/munich"),
    Truck("truck-2", "hub-a", "ws", "eu/de/berlin"),
    Truck("truck-3", "hub-b", "mqtt", "eu/fr/lyon"),
    Truck("truck-4", "hub-b", "gossip", "eu/it/turin"),
)

LEAVES: Final = (*(truck.name for truck in TRUCKS), DISPATCHER, ARCHIVE)
PROCESSES: Final = (BROKER, ROUTER, *HUBS, *LEAVES)
"""All processes; they are stopped in reverse order."""

_WAVES: Final = (
    (BROKER, ROUTER),
    ("hub-a",),
    ("hub-b", "truck-1", "truck-2", DISPATCHER),
    ("truck-3", "truck-4", ARCHIVE),
)

TRANSPORTS: Final[Mapping[str, str]] = {
    ROUTER: "JGroups",
    BROKER: "MQTT",
    "hub-a": "tcp, ws, mqtt",
    "hub-b": "tcp, mqtt, tunnel",
    DISPATCHER: "tcp",
    ARCHIVE: "tcp",
    **{truck.name: {"gossip": "tunnel"}.get(truck.over, truck.over) for truck in TRUCKS},
}
"""The transports of each process."""


class Pace(Struct, frozen=True):
    """The amount of traffic, and durations in seconds."""

    seconds: float  # of traffic, at least
    positions: float = 6.0  # published by each truck per second
    questions: float = 12.0  # requests of the dispatcher per second, to the trucks in turn

    @property
    def scale(self) -> float:
        """The factor by which all durations are shortened."""
        return min(1.0, self.seconds / 24)

    @property
    def listed(self) -> float:
        """How long a directory entry is valid without renewal."""
        return max(1.5, 4 * self.scale)

    @property
    def hold(self) -> float:
        """The minimum duration of a fault."""
        return max(0.5, 2.5 * self.scale)

    @property
    def calm(self) -> float:
        """The pause between two faults."""
        busy = 4 * self.hold + self.listed + 1
        return max(0.3, (self.seconds - busy) / 6)


def toml(tables: Mapping[str, Any]) -> str:
    """A configuration as TOML; a list becomes a repeated table.

    >>> print(toml({"node": {"name": "hub"}, "listen": [{"url": "tcp://127.0.0.1:0"}]}))
    [node]
    name = "hub"
    <BLANKLINE>
    [[listen]]
    url = "tcp://127.0.0.1:0"
    <BLANKLINE>
    """
    parts = []
    for name, found in tables.items():
        several = isinstance(found, list)
        for table in found if several else [found]:
            heading = f"[[{name}]]" if several else f"[{name}]"
            pairs = (
                f"{key} = {msgspec.json.encode(value).decode()}" for key, value in table.items()
            )
            parts.append("\n".join([heading, *pairs]) + "\n")
    return "\n".join(parts)


class Fleet:
    """The processes of the fleet.

    `wait` is the caller's function for waiting, which keeps the display up to date meanwhile.
    """

    def __init__(self, directory: DemoDirectory, pace: Pace, wait: Wait) -> None:
        self.processes = Processes(directory)
        self.pace = pace
        self.absent: set[str] = set()  # processes that were stopped on purpose
        self._directory = directory
        self._wait = wait
        self._urls: dict[str, list[str]] = {}  # the URLs where each listens

    # Starting

    def start(self, told: Callable[[str], None]) -> None:
        """Start all processes, each when those it depends on are ready."""
        for wave in _WAVES:
            for name in wave:
                self._start(name)
            for name in wave:
                if name not in LEAVES:
                    self._ready(name)
                    told(f"{name} listens on {', '.join(self._urls[name])}")
        for name in LEAVES:
            self._ready(name)
            told(f"{name} is connected over {TRANSPORTS[name]}")

    def restart(self, name: str) -> None:
        """Restart a process at its former address, and wait until it is ready."""
        self._start(name)
        self._ready(name)

    def check(self) -> None:
        """Raise if a process ended unexpectedly."""
        self.processes.check(name for name in self._urls if name not in self.absent)

    # Ending

    def kill(self, name: str) -> None:
        """Kill a process without warning."""
        self.absent.add(name)
        self.processes[name].kill()
        self.processes.note()

    def stop(self, name: str) -> None:
        """Stop a process in an orderly way."""
        self.absent.add(name)
        self.processes[name].signal(signal.SIGTERM)
        self._wait(lambda: not self.processes[name].is_running, START)
        self.processes.end([name])

    def end(self) -> None:
        """Stop all processes in order: leaves, hubs, then router and broker."""
        self.absent.update(PROCESSES)
        for names in (LEAVES, reversed(HUBS), (ROUTER, BROKER)):
            self.processes.end(names)

    # Internals

    def _start(self, name: str) -> Child:
        return self.processes.start(name, self._command(name), takes_orders=name in LEAVES)

    def _command(self, name: str) -> Sequence[str]:
        if name == BROKER:
            return (*WAYSTATION, "broker", "--listen", _LOOPBACK)
        if name == ROUTER:
            journal = str(self._directory.journal)
            return (*WAYSTATION, "router", "--listen", _LOOPBACK, "--journal", journal)
        file = self._directory.config / f"{name}.toml"
        replace(file, toml(self._configuration(name)))
        if name in HUBS:
            return (*WAYSTATION, "node", "--config", str(file))
        role = {DISPATCHER: DISPATCHER, ARCHIVE: ARCHIVE}.get(name, "truck")
        pace = msgspec.json.encode(self.pace).decode()
        return (sys.executable, "-m", "waystation.demo.leaf", str(file), role, pace)

    def _ready(self, name: str) -> None:
        """Wait until a process has printed that it listens or is ready."""
        child = self.processes[name]
        last = "is ready" if name not in (BROKER, ROUTER) else "listening on"

        def said() -> bool:
            return any(last in line for line in child.lines())

        if not self._wait(lambda: said() or not child.is_running, START):
            raise LocalError(
                f"{name} was not ready after {START:g} s", rule=_RULE, hint=f"see {child.log}"
            )
        if not said():
            self.processes.check([name])
        found = [match[1] for line in child.lines() if (match := _LISTENING.match(line))]
        self._urls[name] = found
        self.absent.discard(name)

    def url(self, name: str, over: str) -> str:
        """The URL of a process for a transport."""
        return next(url for url in self._urls[name] if url.startswith(f"{over}://"))

    def _configuration(self, name: str) -> dict[str, Any]:
        tables: dict[str, Any] = {
            "node": {"name": name, "drain": 2.0},
            "journal": {
                "directory": str(self._directory.journal),
                "flush_seconds": 0.2,
                "fsync": "never",
            },
        }
        return tables | (self._hub(name) if name in HUBS else self._leaf(name))

    def _hub(self, name: str) -> dict[str, Any]:
        before = self._urls.get(name)
        tables: dict[str, Any] = {
            "node": {"name": name, "hub": True, "drain": 1.0},
            "listen": [{"url": url} for url in before or self._listen_urls(name)],
            "status": {"enabled": True},
            "mqtt": self._mqtt(name),
        }
        if name == "hub-a":
            return tables | {"directory": {"host": True}}
        return tables | {
            "groups": self._groups(),
            "connect": [{"url": self.url("hub-a", "tcp"), "name": "hub-a"}],
            "directory": {"ask": "hub-a"},
        }

    def _listen_urls(self, name: str) -> list[str]:
        free = f"tcp://{_LOOPBACK}"
        if name == "hub-a":
            return [free, f"ws://{_LOOPBACK}"]
        return [free, f"mqtt://hubs/{name}", f"gossip://{GROUP}/{name}"]

    def _leaf(self, name: str) -> dict[str, Any]:
        truck = next((truck for truck in TRUCKS if truck.name == name), None)
        hub = {DISPATCHER: "hub-a", ARCHIVE: "hub-b"}.get(name) if truck is None else truck.hub
        assert hub is not None
        over = "tcp" if truck is None else truck.over
        parent = {"url": self.url(hub, over), "name": hub, "wait": START / 2}
        tables: dict[str, Any] = {"parent": [parent]}
        if truck is not None:
            handler = {"names": [name], "handler": "waystation.demo.traffic:tell_position"}
            tables["worker"] = [{**handler, "visible": True}]
        if over == "mqtt":
            tables["mqtt"] = self._mqtt(name)
        if over == "gossip":
            tables["groups"] = self._groups()
        return tables

    def _mqtt(self, name: str) -> dict[str, Any]:
        kind = "hubs" if name in HUBS else "leaves"
        return {
            "url": f"mqtt://{self._urls[BROKER][0]}",
            "topic": f"{kind}/{name}",
            "listen": False,
        }

    def _groups(self) -> dict[str, Any]:
        return {"via": f"gossip://{self._urls[ROUTER][0]}"}
