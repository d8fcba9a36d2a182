"""Real JGroups, 2.12 and 5.x: members that do what a test says, and their own routers.

For the tests against them and for the benchmarks beside them; no test and no measurement stands
here. The archives are fetched once, at the pinned versions (jgroups/versions.toml), and kept with
our compiled programs as kept.py says.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from tests.peers.kept import PeerMissing, called, kept, needed

SOURCES = Path(__file__).parent / "jgroups"
VERSIONS = tomllib.loads((SOURCES / "versions.toml").read_text("utf-8"))
FETCH_SECONDS = 300
READY_SECONDS = 40
PATIENCE = 60.0
"""Seconds after which whatever a test waits for will not come any more."""

Generation = Literal[2, 5]


class PeerFailed(Exception):  # noqa: N818 - the peer has failed, and says why
    """The peer did not do what it was asked; the text has its last words."""


# --- Building -------------------------------------------------------------------------------------


@functools.cache
def build() -> Path:
    """The directory with jgroups2.jar, jgroups5.jar and our classes; PeerMissing without them."""
    names = ("versions.toml", "Member2.java", "Member5.java")
    sources = {name: (SOURCES / name).read_bytes() for name in names}
    return kept("jgroups", sources, make)


def make(sources: dict[str, bytes], home: Path) -> None:
    """Fetch and compile, in a directory that is renamed when all is there."""
    with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
        workshop, result = Path(scratch) / "workshop", Path(scratch) / "result"
        workshop.mkdir()
        result.mkdir()
        for name, contents in sources.items():
            (workshop / name).write_bytes(contents)
        shutil.copy(fetch_2(workshop), result / "jgroups2.jar")
        shutil.copy(fetch_5(workshop), result / "jgroups5.jar")
        for generation in (2, 5):
            jar = result / f"jgroups{generation}.jar"
            check_sum(jar, VERSIONS[f"jgroups{generation}"]["sha256"])
            source = workshop / f"Member{generation}.java"
            call(["javac", "-nowarn", "-cp", str(jar), "-d", str(result), str(source)], workshop)
        result.rename(home)  # seen whole or not at all


def fetch_2(workshop: Path) -> Path:
    pinned = VERSIONS["jgroups2"]
    call(["apt-get", "download", pinned["package"]], workshop)
    (archive,) = workshop.glob(f"{pinned['package']}_*.deb")
    call(["dpkg", "-x", str(archive), str(workshop / "deb")], workshop)
    return workshop / "deb" / str(pinned["jar"])


def fetch_5(workshop: Path) -> Path:
    pinned = VERSIONS["jgroups5"]
    what = f"-Dartifact={pinned['artifact']}:{pinned['version']}"
    where = f"-DoutputDirectory={workshop}"
    call(["mvn", "-q", "-B", "dependency:copy", what, where], workshop)
    return workshop / f"jgroups-{pinned['version']}.jar"


def check_sum(jar: Path, expected: str) -> None:
    found = hashlib.sha256(jar.read_bytes()).hexdigest()
    if found != expected:
        raise PeerMissing(f"{jar.name} has the SHA-256 {found}, not the pinned {expected}")


def call(command: list[str], workshop: Path) -> None:
    done = called(command, workshop, FETCH_SECONDS)
    if done.returncode:
        reason = " ".join((done.stderr + done.stdout).split())
        raise PeerMissing(f"{command[0]} failed: {reason[-400:]}")


def built() -> Path:
    """The directory, for a test."""
    return needed("the Java peer `jgroups`", build)


# --- Running --------------------------------------------------------------------------------------


def shipped(generation: Generation, name: str) -> str:
    """A configuration from the archive itself."""
    with zipfile.ZipFile(build() / f"jgroups{generation}.jar") as archive:
        return archive.read(name).decode()


class Process:
    """A Java program, the lines that it has printed, and what is said to it."""

    def __init__(self, name: str, arguments: list[str]) -> None:
        self.name = name
        self.lines: list[str] = []
        self._heard = threading.Condition()
        java = shutil.which("java")
        if java is None:
            raise PeerMissing("there is no java")
        common = ["-Djava.net.preferIPv4Stack=true", "-Djgroups.bind_addr=127.0.0.1"]
        self.process = subprocess.Popen(
            [java, *common, *arguments],
            stdin=subprocess.PIPE,  # when we end, however that comes, it reads the end of it
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            with self._heard:
                self.lines.append(line.rstrip("\n"))
                self._heard.notify_all()

    def until(self, condition: Callable[[list[str]], object], seconds: float = PATIENCE) -> None:
        """Wait until what it printed is as expected."""
        with self._heard:
            if not self._heard.wait_for(lambda: condition(self.lines), seconds):
                last = "\n".join(self.lines[-30:])
                raise PeerFailed(f"{self.name} did not come to it; its last words:\n{last}")

    def say(self, line: str) -> None:
        """Give it a line."""
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """End it at once; more than once is fine."""
        self.process.kill()
        self.process.wait(READY_SECONDS)
        self._listener.join(READY_SECONDS)
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                assert pipe
                pipe.close()


class Member(Process):
    """A member of a group; the words it knows stand in Member5.java."""

    def __init__(self, generation: Generation, config: str, cluster: str, name: str) -> None:
        home = build()
        self._folder = tempfile.TemporaryDirectory(prefix="jgroups-")
        path = Path(self._folder.name) / "stack.xml"
        path.write_text(config, "utf-8")
        classes = ["-Xmx256m", "-cp", f"{home}/jgroups{generation}.jar:{home}"]
        program = [f"Member{generation}", str(path), cluster, name]
        super().__init__(name, [*classes, *program])

    def views(self, *names: str) -> None:
        """Wait until its newest view has these members, in any order."""
        wanted = sorted(names)

        def newest(lines: list[str]) -> bool:
            views = [line.removeprefix("view ") for line in lines if line.startswith("view ")]
            return bool(views) and sorted(views[-1].split(",")) == wanted

        self.until(newest)

    def got(self, *texts: str) -> None:
        """Wait until it has got these."""
        self.until(lambda lines: all(f"got {text}" in lines for text in texts))

    def heard_from(self, sender: str) -> list[str]:
        """The texts of one sender, in order."""
        start = f"got {sender} "
        return [line.removeprefix(start) for line in self.lines if line.startswith(start)]

    def leave(self) -> None:
        """Have it leave its group and end."""
        self.say("leave")
        self.process.wait(READY_SECONDS)

    def kill(self) -> None:
        """End it without a word to the others."""
        super().kill()
        self._folder.cleanup()


@contextlib.contextmanager
def members() -> Iterator[Callable[[Generation, str, str, str], Member]]:
    """Starts members (generation, configuration, cluster, name), and ends them all at the end."""
    started: list[Member] = []

    def start(generation: Generation, config: str, cluster: str, name: str) -> Member:
        member = Member(generation, config, cluster, name)
        started.append(member)
        member.until(lambda lines: "connected" in lines)
        return member

    try:
        yield start
    finally:
        for member in started:
            member.kill()


@contextlib.contextmanager
def real_router(generation: Generation, *options: str) -> Iterator[tuple[Process, int]]:
    """JGroups' own router, and its port."""
    home = build()
    port = free_port()
    bind = "-bind_addr" if generation == 2 else "-bindaddress"
    program = ["org.jgroups.stack.GossipRouter", "-port", str(port), bind, "127.0.0.1", *options]
    process = Process(f"router {generation}", ["-cp", f"{home}/jgroups{generation}.jar", *program])
    try:
        wait_for_port(port)
        yield process, port
    finally:
        process.kill()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise PeerFailed(f"nobody listens on port {port}") from None
            time.sleep(0.05)
        else:
            return
