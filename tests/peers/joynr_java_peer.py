"""Real joynr applications in Java, and a real cluster controller, which do what a test says.

joynr's own generator makes the code of the interface `way/Door` from Door.fidl; everything comes
from Maven Central at the version that pom.xml pins, and is kept as kept.py says.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

from tests.peers.kept import PeerMissing, called, kept, needed, tool

SOURCES = Path(__file__).parent / "joynr_java"
FETCH_SECONDS = 900
PATIENCE = 60.0


def build() -> Path:
    """The directory with joynr's archives and our compiled program."""
    names = ("pom.xml", "Door.fidl", "App.java", "Controller.java")
    return kept("joynr-java", {name: (SOURCES / name).read_bytes() for name in names}, make)


def make(sources: dict[str, bytes], home: Path) -> None:
    """Fetch, generate and compile, in a directory that is renamed when all is there."""
    with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
        workshop, result = Path(scratch) / "workshop", Path(scratch) / "result"
        places = {
            "pom.xml": workshop,
            "Door.fidl": workshop / "src" / "main" / "model",
            "App.java": workshop / "src" / "main" / "java",
            "Controller.java": workshop / "src" / "main" / "java",
        }
        for name, place in places.items():
            place.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(sources[name])
        goals = ["generate-sources", "dependency:copy-dependencies"]
        call(["mvn", "-q", "-B", *goals, f"-DoutputDirectory={result / 'lib'}"], workshop)
        classes = result / "classes"
        classes.mkdir()
        files = map(str, workshop.rglob("*.java"))
        call(
            ["javac", "-nowarn", "-cp", f"{result / 'lib'}/*", "-d", str(classes), *files], workshop
        )
        result.rename(home)  # seen whole or not at all


def call(command: list[str], workshop: Path) -> None:
    done = called(command, workshop, FETCH_SECONDS)
    if done.returncode:
        reason = " ".join((done.stderr + done.stdout).split())
        raise PeerMissing(f"{command[0]} failed: {reason[-400:]}")


class JavaApp:
    """A program that runs, what it has printed, and what is said to it; see App.java."""

    def __init__(self, process: asyncio.subprocess.Process, name: str) -> None:
        self.name = name
        self.lines: list[str] = []
        self.process = process
        self._changed = asyncio.Event()
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        assert self.process.stdout
        async for line in self.process.stdout:
            self.lines.append(line.decode().rstrip("\n"))
            self._changed.set()

    def say(self, order: str) -> None:
        """Give it an order."""
        assert self.process.stdin
        self.process.stdin.write(f"{order}\n".encode())

    async def until(self, condition: Callable[[list[str]], object]) -> None:
        """Wait until what it printed is as expected."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not condition(self.lines):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            last = "\n".join(self.lines[-30:])
            raise AssertionError(f"{self.name} did not come to it; it said:\n{last}") from None

    async def does(self, order: str, expected: str) -> str:
        """Give it an order; returns the first line after that which begins as expected."""
        start = len(self.lines)
        self.say(order)
        await self.until(lambda lines: [x for x in lines[start:] if x.startswith(expected)])
        return next(line for line in self.lines[start:] if line.startswith(expected))

    async def hears(self, line: str) -> None:
        """Wait until it has printed a line."""
        await self.until(lambda lines: line in lines)

    async def end(self) -> None:
        """End it at once."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        await self._reading


@contextlib.asynccontextmanager
async def java_app(
    kind: str, where: str | int, name: str, settings: Mapping[str, str] | None = None
) -> AsyncIterator[JavaApp]:
    """A program of a kind (`ws`, `mqtt`, `controller`), where App.java says what it needs."""
    home = needed("the Java peer `joynr`", build)
    java = needed("the Java peer `joynr`", lambda: tool("java"))
    folder = tempfile.mkdtemp(prefix="joynr-")
    arguments = ["-Xmx192m", "-cp", f"{home}/classes:{home}/lib/*", "App", kind, str(where), folder]
    arguments += [f"{key}={value}" for key, value in (settings or {}).items()]
    with (Path(folder) / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            java,
            *arguments,
            cwd=folder,  # where it leaves files of its own
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
    app = JavaApp(process, name)
    try:
        await app.hears("ready")
        yield app
    finally:
        await app.end()
        shutil.rmtree(folder, ignore_errors=True)
