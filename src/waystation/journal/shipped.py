"""What of a journal has arrived where it is shipped to: a note in it, which retention obeys.

    JOURNAL/.ship                          where the journal is shipped to
    JOURNAL/<table>/node=<node>/_shipped   the sealed files that have arrived there, one per line

A line is written after the arrival. If it is lost, the file is looked for at the target again, and
found. A file that changed since, because it was compacted, has not arrived yet.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from zlib import crc32

from msgspec import Struct

from waystation.journal.layout import Stem

MARK: Final = ".ship"
SHIPPED: Final = "_shipped"
_AT_ONCE: Final = 2**20


class Content(Struct, frozen=True):
    """What identifies the content of a file: its size and its CRC-32."""

    size: int
    checksum: int


def content_of(path: Path, size: int | None = None) -> Content:
    """The identity of a file, or of its first `size` bytes; raises OSError if it is not there."""
    checksum, length = 0, 0
    with path.open("rb") as file:
        while chunk := file.read(_AT_ONCE if size is None else min(_AT_ONCE, size - length)):
            checksum = crc32(chunk, checksum)
            length += len(chunk)
    return Content(length, checksum)


def target_of(journal: Path) -> str | None:
    """Where a journal is shipped to; None if it is not."""
    try:
        return (journal / MARK).read_text("utf-8").strip() or None
    except OSError:
        return None


def mark_shipping(journal: Path, target: str) -> None:
    """Say that the journal is shipped, so that nothing is removed before it has arrived."""
    if target_of(journal) == target:
        return
    hidden = journal / f"{MARK}.new"
    hidden.write_text(f"{target}\n", "utf-8")
    hidden.replace(journal / MARK)


class Arrivals:
    """The sealed files of one table of one node that have arrived at the target."""

    def __init__(self, directory: Path, target: str) -> None:
        self._path = directory / SHIPPED
        self._directory = directory
        self._target = f"{crc32(target.encode()):08x}"
        self._known: dict[str, tuple[Content, int]] = {}
        self._written = 0  # lines
        for line in self._lines():
            fields = line.split()
            if len(fields) == 5 and fields[0] == self._target and _are_numbers(fields[2:]):
                size, checksum, modified = map(int, fields[2:])
                self._known[fields[1]] = Content(size, checksum), modified
            self._written += 1

    def content(self, name: str) -> Content | None:
        """What arrived under a name; None if nothing did."""
        known = self._known.get(name)
        return None if known is None else known[0]

    def has(self, name: str) -> bool:
        """Whether the file of this name has arrived as it is now."""
        known = self._known.get(name)
        if known is None:
            return False
        try:
            now = (self._directory / name).stat()
        except OSError:
            return False
        return (now.st_size, now.st_mtime_ns) == (known[0].size, known[1])

    def add(self, name: str, content: Content) -> None:
        """Say that a file has arrived."""
        try:
            modified = (self._directory / name).stat().st_mtime_ns
        except FileNotFoundError:
            return  # removed meanwhile
        self._known[name] = content, modified
        self._append([self._line(name)])

    def stems(self) -> set[Stem]:
        """The files that have arrived, whether they are still here or not."""
        return {stem for stem in map(Stem.parse, self._known) if stem is not None}

    def forget(self, name: str) -> None:
        """Forget a file that is no longer here; `tidy` makes that last."""
        self._known.pop(name, None)

    def tidy(self) -> None:
        """Write the note again if most of it is about files that were forgotten."""
        if self._written > 2 * len(self._known) + 100:
            self._rewrite()

    def _line(self, name: str) -> str:
        content, modified = self._known[name]
        return f"{self._target} {name} {content.size} {content.checksum} {modified}\n"

    def _lines(self) -> list[str]:
        try:
            return self._path.read_text("ascii", "replace").splitlines()
        except OSError:
            return []

    def _append(self, lines: Iterable[str]) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(self._path, flags, 0o644)
        try:
            os.write(descriptor, "".join(lines).encode())
        finally:
            os.close(descriptor)

    def _rewrite(self) -> None:
        hidden = self._path.with_name(f".{SHIPPED}.new")
        hidden.write_text("".join(map(self._line, self._known)), "ascii")
        hidden.replace(self._path)
        self._written = len(self._known)


def _are_numbers(fields: list[str]) -> bool:
    return all(field.isascii() and field.isdigit() for field in fields)
