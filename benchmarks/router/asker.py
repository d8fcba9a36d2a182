"""Ask a router for its list of members at a steady pace: `python -m benchmarks.router.asker PORT`.

A process of its own, so that what the members keep a processor busy with does not count as a delay
of the router. It asks until its input is closed, and prints the delays in seconds, as JSON.
"""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from tests.gossip_router.churn import GROUP
from waystation.wire.jgroups5 import Decoder, GetMembers, Members, encode

PACE = 0.05
PATIENCE = 60.0
_QUESTION = encode(GetMembers(GROUP))


@contextmanager
def asking(port: int, delays: list[float]) -> Iterator[None]:
    """Have another process ask while the block runs; then `delays` has the seconds it waited."""
    command = [sys.executable, "-m", "benchmarks.router.asker", str(port)]
    with subprocess.Popen(  # noqa: S603 - ourselves
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield
            found, _ = process.communicate(timeout=PATIENCE)
            delays += json.loads(found)
        finally:
            process.kill()


def ask_until_closed(port: int, until: IO[str]) -> list[float]:
    """The delay of each list, asked for one after the other."""
    delays = []
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as router:
        while not select.select([until], [], [], PACE)[0]:
            delays.append(_ask(router))
    return delays


def _ask(router: socket.socket) -> float:
    decoder = Decoder()
    before = time.perf_counter()
    router.sendall(_QUESTION)
    while data := router.recv(1 << 18):
        if any(isinstance(value, Members) for value in decoder.feed(data)):
            return time.perf_counter() - before
    raise EOFError("the router hung up")


if __name__ == "__main__":
    print(json.dumps(ask_until_closed(int(sys.argv[1]), sys.stdin)))
