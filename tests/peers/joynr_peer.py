"""A joynr node of another make: npm `smrf` and `mqtt` behind a pipe (joynr/peer.js)."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.peers.kept import from_npm, needed, tool

PROGRAM = Path(__file__).parent / "joynr"
INSTALL_SECONDS = 120
PATIENCE = 40.0


def build() -> Path:
    """The directory with the pinned packages."""
    return from_npm("joynr", PROGRAM, INSTALL_SECONDS)


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
