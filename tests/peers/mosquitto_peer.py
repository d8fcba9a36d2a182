"""A real Mosquitto, for the tests against it and the benchmarks beside it.

The one that is installed is taken; without it, Debian's packages are fetched once and unpacked,
nothing is installed (kept.py says where they lie).

    python -m tests.peers.mosquitto_peer    tell where the program is
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.peers.kept import PeerMissing, called, kept, needed

PACKAGES = ("mosquitto", "libmosquitto1", "libcjson1", "libdlt2", "libwrap0")
FETCH_SECONDS = 120
READY_SECONDS = 20.0

CONFIGURATION = """\
listener {port} 127.0.0.1
allow_anonymous true
persistence false
log_dest none
"""


@functools.cache
def build() -> tuple[Path, Path]:
    """The program and the directory of the libraries that it needs; PeerMissing without them."""
    installed = shutil.which("mosquitto") or shutil.which("/usr/sbin/mosquitto")
    if installed is not None:
        return Path(installed), Path("/usr/lib")
    home = kept("mosquitto", {"packages": " ".join(PACKAGES).encode()}, make)
    return home / "usr/sbin/mosquitto", home / f"usr/lib/{platform.machine()}-linux-gnu"


def make(sources: dict[str, bytes], home: Path) -> None:
    """Fetch and unpack, in a directory that is renamed when all is there."""
    with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
        workshop, result = Path(scratch) / "workshop", Path(scratch) / "result"
        workshop.mkdir()
        call(["apt-get", "download", *sources["packages"].decode().split()], workshop)
        for archive in workshop.glob("*.deb"):
            call(["dpkg", "-x", str(archive), str(result)], workshop)
        result.rename(home)  # seen whole or not at all


def call(command: list[str], workshop: Path) -> None:
    done = called(command, workshop, FETCH_SECONDS)
    if done.returncode:
        reason = " ".join((done.stderr + done.stdout).split())
        raise PeerMissing(f"{command[0]} failed: {reason[-400:]}")


def built() -> None:
    """Have the program, for a test."""
    needed("Mosquitto", build)


def version() -> str:
    """What the program says of itself."""
    program, libraries = build()
    words = subprocess.run(
        [program, "-h"],
        env=os.environ | {"LD_LIBRARY_PATH": str(libraries)},
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    return words[2] if len(words) > 2 else "unknown"


class Mosquitto:
    """A broker that can be killed and started again, at the same place."""

    def __init__(self, folder: Path, more: str = "") -> None:
        self._folder = folder
        self._more = more
        self._process: subprocess.Popen[bytes] | None = None
        with socket.create_server(("127.0.0.1", 0)) as found:
            self._port = int(found.getsockname()[1])
        self.place = f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """The number of its process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, and wait until it listens."""
        program, libraries = build()
        file = self._folder / "mosquitto.conf"
        file.write_text(CONFIGURATION.format(port=self._port) + self._more)
        self._process = subprocess.Popen(
            [program, "-c", file],
            env=os.environ | {"LD_LIBRARY_PATH": str(libraries)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + READY_SECONDS
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self._port), 1).close()
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise PeerMissing("Mosquitto does not listen")
            time.sleep(0.02)

    def kill(self) -> None:
        """End it at once, as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextlib.contextmanager
def mosquitto(more: str = "") -> Iterator[Mosquitto]:
    """A broker on the loopback interface; `more` is added to its configuration."""
    with tempfile.TemporaryDirectory(prefix="waystation-mosquitto-") as folder:
        broker = Mosquitto(Path(folder), more)
        broker.start()
        try:
            yield broker
        finally:
            broker.kill()


if __name__ == "__main__":
    sys.stdout.write(f"{build()[0]}\n")
