"""A hub and a truck behind it, each a process of its own, for tests that kill them.

Started as a program, this file is one of the two: `hub PORT` or `truck PORT FILE`. The truck writes
each message to the file, its id and its payload without trailing blanks, before it accepts the
next. While there is a file FILE.closed it accepts none, and FILE.waiting shows that one waits.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from waystation.core.message import Message
from waystation.node import Context, Limits, Node

PATIENCE = 60.0
"""Maximum seconds that a test waits for anything."""


class Child:
    """A process that prints when it is ready."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = [sys.executable, "-m", "tests.pipeline.sink_fleet", *arguments]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start it, and wait until it is ready."""
        root = Path(__file__).parents[2]
        self._process = subprocess.Popen(self._arguments, stdout=subprocess.PIPE, cwd=root)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        return self

    def kill(self) -> None:
        """Kill it, as a power failure would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None


class Fleet:
    """A hub with a port of its own, and a truck that writes its messages to a file."""

    def __init__(self, directory: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"tcp://127.0.0.1:{port}"
        self.log = directory / "truck.log"
        self.log.touch()
        self.hub = Child("hub", str(port))
        self.truck = Child("truck", str(port), str(self.log))

    def __enter__(self) -> Self:
        self.hub.start()
        self.truck.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.truck.kill()
        self.hub.kill()

    def got(self) -> list[tuple[str, str]]:
        """The id and the payload of every message that the truck got."""
        lines = self.log.read_text("utf-8").splitlines()
        return [(line[:32], line[33:]) for line in lines if len(line) > 32]

    def close_gate(self) -> None:
        """Let the truck accept nothing more; its senders will have to wait."""
        Path(f"{self.log}.closed").touch()

    def open_gate(self) -> None:
        """Let it continue."""
        Path(f"{self.log}.closed").unlink()

    def somebody_waits(self) -> bool:
        """Whether a message waits for the truck to continue."""
        return Path(f"{self.log}.waiting").exists()

    def payloads(self) -> set[str]:
        """The messages that the truck got, each once."""
        return {payload for _, payload in self.got()}


def until(condition: Callable[[], object]) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never came to it"
        time.sleep(0.01)


async def _hub(port: str) -> None:
    # Messages for a truck that is not back yet wait for it.
    async with Node("hub", hub=True, limits=Limits(appear=PATIENCE)) as node:
        await node.listen(f"tcp://127.0.0.1:{port}")
        print("ready", flush=True)  # noqa: T201
        await asyncio.Event().wait()


async def _truck(port: str, file: str) -> None:
    log = Path(file).open("a", encoding="utf-8", buffering=1)  # noqa: ASYNC230, SIM115

    gate, waiting = Path(f"{file}.closed"), Path(f"{file}.waiting")

    async def note(message: Message, context: Context | None = None) -> None:  # noqa: ARG001
        while gate.exists():  # noqa: ASYNC240 - another process opens it
            waiting.touch()  # noqa: ASYNC240
            await asyncio.sleep(0.01)
        log.write(f"{message.id} {message.payload.decode().rstrip()}\n")

    async with Node("truck") as node:
        node.start_worker(("truck-7",), note)
        node.subscribe("office", "recall", "eu/+", callback=note)
        await node.connect(f"tcp://127.0.0.1:{port}", name="hub", parent=True)
        await node.request("hub => waystation.directory", b"")  # it was received before this
        print("ready", flush=True)  # noqa: T201
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_hub(sys.argv[2]) if sys.argv[1] == "hub" else _truck(*sys.argv[2:]))
