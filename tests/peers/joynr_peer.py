"""A joynr node of another make: npm `smrf` and `mqtt` behind a pipe (joynr/peer.js)."""

from __future__ import annotations

import contextlib
import json
import queue
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.peers.kept import PeerMissing, called, kept, needed, tool

PROGRAM = Path(__file__).parent / "joynr"
INSTALL_SECONDS = 120
PATIENCE = 40.0


def build() -> Path:
    """The directory with the pinned packages."""
    sources = {"package-lock.json": (PROGRAM / "package-lock.json").read_bytes()}
    return kept("joynr", sources, make)


def make(sources: dict[str, bytes], home: Path) -> None:
    """Have npm install what the lock file says, in a directory that is renamed at the end."""
    del sources  # the lock file names the directory; npm wants package.json beside it
    with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
        workshop = Path(scratch) / "joynr"
        workshop.mkdir()
        for name in ("package.json", "package-lock.json"):
            shutil.copy(PROGRAM / name, workshop)
        options = ("--prefix", str(workshop), "--ignore-scripts", "--no-audit", "--no-fund")
        patience = ("--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-timeout=30000")
        run = called(["npm", "ci", *options, *patience], workshop, INSTALL_SECONDS)
        if run.returncode:
            errors = [line for line in run.stderr.splitlines() if line.startswith("npm error")]
            raise PeerMissing(f"npm could not install it: {'; '.join(errors)[:300]}")
        workshop.rename(home)


class JoynrPeer:
    """The program, the lines that it says, and what is said to it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self.seen: list[dict[str, Any]] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._events.put(json.loads(line))

    def told(self, kind: str) -> Any:
        """Wait for the next event of a kind; what comes before it goes into `seen`."""
        while True:
            event = self._events.get(timeout=PATIENCE)
            if kind in event:
                return event[kind]
            self.seen.append(event)

    def tell(self, **order: Any) -> None:
        """Say what to do."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def subscribe(self, filter: str) -> None:
        """Let it hear more than its own topic."""
        self.tell(subscribe=filter)
        self.told("subscribed")

    def publish(self, topic: str, recipient: str, headers: dict[str, str], body: Any) -> None:
        """Let it publish a frame."""
        words = {"topic": topic, "recipient": recipient, "sender": "js-provider"}
        self.tell(publish={**words, "headers": headers, "body": json.dumps(body)})
        self.told("published")


@contextlib.contextmanager
def joynr_peer(place: str, topic: str) -> Iterator[JoynrPeer]:
    """A peer that is connected to a broker and listens on a topic of its own."""
    node = needed("the npm peer `joynr`", lambda: tool("node"))
    home = needed("the npm peer `joynr`", build)
    process = subprocess.Popen(
        [node, str(PROGRAM / "peer.js"), str(home), f"mqtt://{place}", topic],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    with process:
        try:
            peer = JoynrPeer(process)
            peer.told("ready")
            yield peer
        finally:
            process.kill()
