"""Members of older releases of JGroups, from 4.x on: each with its own archive and our program."""

from __future__ import annotations

import contextlib
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.peers.jgroups_peer import SOURCES, VERSIONS, Member, Process, call, check_sum
from tests.peers.kept import kept, needed

RELEASES: tuple[str, ...] = tuple(str(pinned["version"]) for pinned in VERSIONS["older"])
PROGRAM = "Member5.java"


def build() -> Path:
    """The directory with a directory for each release."""
    sources = {name: (SOURCES / name).read_bytes() for name in ("versions.toml", PROGRAM)}
    return kept("jgroups-older", sources, _make)


def _make(sources: dict[str, bytes], home: Path) -> None:
    with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
        workshop, result = Path(scratch) / "workshop", Path(scratch) / "result"
        workshop.mkdir()
        for pinned in VERSIONS["older"]:
            version = str(pinned["version"])
            there = result / version
            there.mkdir(parents=True)
            what = f"-Dartifact={VERSIONS['jgroups5']['artifact']}:{version}"
            where = f"-DoutputDirectory={there}"
            call(["mvn", "-q", "-B", "dependency:copy", what, where], workshop)
            jar = (there / f"jgroups-{version}.jar").rename(there / "jgroups.jar")
            check_sum(jar, pinned["sha256"])
            source = workshop / PROGRAM
            text = sources[PROGRAM].decode()
            if version.startswith("4."):  # where a message and its bytes have other names
                text = text.replace("getArray()", "getRawBuffer()")
                text = text.replace("import org.jgroups.BytesMessage;\n", "")
                text = text.replace("new BytesMessage(", "new Message(")
            source.write_text(text, "utf-8")
            call(["javac", "-nowarn", "-cp", str(jar), "-d", str(there), str(source)], workshop)
        result.rename(home)  # seen whole or not at all


class OlderMember(Member):
    """A member of an older release."""

    def __init__(self, release: str, config: str, cluster: str, name: str) -> None:
        there = build() / release
        self._folder = tempfile.TemporaryDirectory(prefix="jgroups-")
        path = Path(self._folder.name) / "stack.xml"
        path.write_text(config, "utf-8")
        classes = ["-Xmx256m", "-cp", f"{there}/jgroups.jar:{there}"]
        Process.__init__(self, name, [*classes, "Member5", str(path), cluster, name])


def shipped(release: str, name: str) -> str:
    """A configuration from the archive of a release."""
    with zipfile.ZipFile(build() / release / "jgroups.jar") as archive:
        return archive.read(name).decode()


@contextlib.contextmanager
def members(release: str) -> Iterator[Callable[[str, str], OlderMember]]:
    """Starts members (configuration, name) of a group, and ends them all at the end."""
    needed("the Java peer `jgroups`", build)
    started: list[OlderMember] = []

    def start(config: str, name: str) -> OlderMember:
        member = OlderMember(release, config, "demo", name)
        started.append(member)
        member.until(lambda lines: "connected" in lines)
        return member

    try:
        yield start
    finally:
        for member in started:
            member.kill()
