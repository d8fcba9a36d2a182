"""A real HDFS and a real YARN: Hadoop's own servers, each in one Java process on the loopback."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.peers.kept import PeerMissing, called, kept, needed, tool

SOURCES = Path(__file__).parent / "hadoop"
PROGRAMS = ("Cluster.java", "Yarn.java")
FETCH_SECONDS = 900.0


def build() -> Path:
    """The directory with the archives and our programs."""
    files = ("pom.xml", *PROGRAMS)
    return kept("hadoop", {name: (SOURCES / name).read_bytes() for name in files}, _make)


def _make(sources: dict[str, bytes], home: Path) -> None:
    with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
        workshop, result = Path(scratch) / "workshop", Path(scratch) / "result"
        workshop.mkdir()
        for name, content in sources.items():
            (workshop / name).write_bytes(content)
        fetched = f"-DoutputDirectory={result / 'lib'}"
        _call(["mvn", "-q", "-B", "dependency:copy-dependencies", fetched], workshop)
        libraries = f"{result / 'lib'}/*"
        _call(["javac", "-nowarn", "-cp", libraries, "-d", str(result), *PROGRAMS], workshop)
        result.rename(home)  # seen whole or not at all


def _call(command: list[str], workshop: Path) -> None:
    done = called(command, workshop, FETCH_SECONDS)
    if done.returncode:
        reason = " ".join((done.stderr + done.stdout).split())
        raise PeerMissing(f"{command[0]} failed: {reason[-400:]}")


@contextmanager
def hdfs(directory: Path) -> Iterator[str]:
    """The URI of an empty HDFS, which runs until the end."""
    with _running("HDFS", "Cluster", directory) as port:
        yield f"hdfs://127.0.0.1:{port}"


@contextmanager
def yarn(directory: Path) -> Iterator[str]:
    """The directory that HADOOP_CONF_DIR must name to reach a YARN, which runs until the end."""
    with _running("YARN", "Yarn", directory) as conf:
        yield conf


@contextmanager
def _running(peer: str, program: str, directory: Path) -> Iterator[str]:
    """Run one of our programs; what it says when it is ready."""
    home = needed(peer, build)
    classes = f"{home}:{home / 'lib'}/*"
    with subprocess.Popen(
        [tool("java"), "-Xmx512m", "-cp", classes, program, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("ready "):
                    yield line.split()[1]
                    return
            raise AssertionError(f"{peer} did not start")
        finally:
            process.kill()
