"""Ockam's own node in Rust (tests/peers/ockam): built once, started, asked, stopped.

For the tests against it and for the benchmarks beside it; no test and no measurement stands here.

Where the binary is kept stands in kept.py. The first build compiles some 200 crates, for minutes: a
test that may be the first has to have that time, by `pytest.mark.timeout(TEST_SECONDS)`.
"""

from __future__ import annotations

import contextlib
import functools
import select
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.peers.kept import PeerMissing, called, kept, needed

PROGRAM = Path(__file__).parent / "ockam"
SOURCES = ("Cargo.toml", "Cargo.lock", "src/main.rs")
BINARY = "ockam-peer"
BUILD_SECONDS = 45 * 60  # on a machine that is busy with other things
TEST_SECONDS = BUILD_SECONDS + 120
READY_SECONDS = 20
RUN_SECONDS = 100


class PeerFailed(Exception):  # noqa: N818 - the peer has failed, and says why
    """The peer ran and did not do what it was asked; the text is its own."""


# --- Building -------------------------------------------------------------------------------------


@functools.cache
def build() -> Path:
    """The program, built now if it was not before; without it, PeerMissing is raised."""
    sources = {name: (PROGRAM / name).read_bytes() for name in SOURCES}
    return kept("ockam", sources, make) / BINARY


def make(sources: dict[str, bytes], home: Path) -> None:
    """Compiles these very bytes, whatever becomes of the checkout meanwhile."""
    # It is shared by all builds, so that after a change of main.rs only that is compiled.
    target = home.parent / "ockam-target"
    with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
        workshop, result = Path(scratch) / "workshop", Path(scratch) / "result"
        for name, contents in sources.items():
            (workshop / name).parent.mkdir(parents=True, exist_ok=True)
            (workshop / name).write_bytes(contents)
        run_cargo(workshop, "build", "--release", "--locked", "--target-dir", str(target))
        result.mkdir()
        shutil.copy(target / "release" / BINARY, result)
        result.rename(home)  # seen whole or not at all


def run_cargo(workshop: Path, *arguments: str) -> None:
    patience = {"CARGO_NET_RETRY": "1", "CARGO_HTTP_TIMEOUT": "30"}
    done = called(["cargo", *arguments], workshop, BUILD_SECONDS, **patience)
    if done.returncode:
        _, _, failure = f"\n{done.stderr}".partition("\nerror")  # before it stands what went well
        reason = " ".join(failure.lstrip(": ").split())
        raise PeerMissing(f"cargo could not build it: {reason[:400]}")


def built() -> Path:
    """The program, for a test."""
    return needed("the Rust peer `ockam`", build)


# --- Running --------------------------------------------------------------------------------------


class Peer:
    """A node that stays, and a port of it; its workers are named in main.rs."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.port = port

    def kill(self) -> None:
        """Ends it at once, without a word to those connected; more than once is fine."""
        self.process.kill()
        self.process.wait(READY_SECONDS)


@contextlib.contextmanager
def serving(*options: str | int) -> Iterator[Peer]:
    """A node that listens on 127.0.0.1, until the end of the block; the options are main.rs's."""
    with staying("serve", *options) as peer:
        yield peer


@contextlib.contextmanager
def inlet(port: int, route: str) -> Iterator[Peer]:
    """The near end of a portal: it joins the node at a port, and its own port is the portal's."""
    with staying("inlet", f"127.0.0.1:{port}", route) as peer:
        yield peer


@contextlib.contextmanager
def staying(*arguments: str | int) -> Iterator[Peer]:
    process = subprocess.Popen(
        [build(), *map(str, arguments)],
        stdin=subprocess.PIPE,  # when we end, however that comes, it reads the end of it and ends
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield Peer(process, ready_port(process))
        finally:
            process.kill()


def ready_port(process: subprocess.Popen[str]) -> int:
    assert process.stdout
    if not select.select([process.stdout], [], [], READY_SECONDS)[0]:
        raise PeerFailed(f"it was not ready within {READY_SECONDS} s")
    word, _, port = process.stdout.readline().partition(" ")
    if word != "ready":
        raise PeerFailed("it has ended before it was ready; the reason is on stderr")
    return int(port)


def run(*arguments: str | int) -> str:
    """What the program prints when it is run to its end, e.g. run("bench-local", 10_000, 100)."""
    try:
        done = subprocess.run(
            [build(), *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PeerFailed(f"it did not end within {RUN_SECONDS} s") from None
    if done.returncode:
        raise PeerFailed(done.stderr.strip())
    return done.stdout.strip()


def ask(port: int, route: str, size: int = 0, count: int = 1, *options: str | int) -> str:
    """Has a node send `count` messages to us and check the replies; the last one's return route.

    It blocks: where the listener runs in this thread's event loop, use asyncio.to_thread.
    """
    said = run("ask", f"127.0.0.1:{port}", route, size, count, *options)
    ok, number, back = said.split(" ", 2)
    assert (ok, number) == ("ok", str(count))
    return back
