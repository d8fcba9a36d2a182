"""A real HDFS: Hadoop's own name node and data node, in one Java process on the loopback."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.peers.kept import PeerMissing, called, kept, needed, tool

SOURCES = Path(__file__).parent / "hadoop"
FETCH_SECONDS = 900.0


def build() -> Path:
    """The directory with the archives and our program."""
    files = ("pom.xml", "Cluster.java")
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
        source = str(workshop / "Cluster.java")
        _call(["javac", "-nowarn", "-cp", libraries, "-d", str(result), source], workshop)
        result.rename(home)  # seen whole or not at all


def _call(command: list[str], workshop: Path) -> None:
    done = called(command, workshop, FETCH_SECONDS)
    if done.returncode:
        reason = " ".join((done.stderr + done.stdout).split())
        raise PeerMissing(f"{command[0]} failed: {reason[-400:]}")


@contextmanager
def hdfs(directory: Path) -> Iterator[str]:
    """The URI of an empty HDFS, which runs until the end."""
    home = needed("HDFS", build)
    classes = f"{home}:{home / 'lib'}/*"
    with subprocess.Popen(
        [tool("java"), "-Xmx512m", "-cp", classes, "Cluster", str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("ready "):
                    yield f"hdfs://127.0.0.1:{line.split()[1]}"
                    return
            raise AssertionError("HDFS did not start")
        finally:
            process.kill()
