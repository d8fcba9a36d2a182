"""Archives: where the files of many journals arrive, each whole or not at all.

A file is known by its name in the journal and by its content. It arrives once: what is there
already is not written again, and another file of the same name is refused unless the sender knows
what it replaces. Nothing here decides what is sent.

An archive has the layout of a journal, so `pipeline build` and `why` read it. The file `_archive`
in it says that its tails are copies: nobody seals them there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol
from zlib import crc32

from waystation.errors import LocalError, WaystationError, quote
from waystation.journal.files import sync_directory, sync_path
from waystation.journal.filesystems import exists, file_system, write_whole
from waystation.journal.schema import SCHEMAS
from waystation.journal.shipped import Content, content_of
from waystation.locations import S3, located

ARCHIVE: Final = "_archive"
"""The file that says that a directory is an archive."""

CHUNK: Final = 256 * 2**10
"""Bytes that are sent at a time."""

_NAME: Final = re.compile(
    rf"({'|'.join(SCHEMAS)})/node=[^/\0]{{1,250}}/(\d+-\d+\.parquet|\.\d+-\d+\.(tail|arrows))"
)
_PART: Final = ".part"


class RefusedError(WaystationError):
    """An archive has another file of that name."""


class Archive(Protocol):
    """What a file is shipped to; methods raise OSError while it does not work."""

    def held(self, name: str) -> Content | None:
        """What is there under a name; None if nothing is."""

    def put(self, name: str, source: Path, content: Content, replaces: Content | None) -> None:
        """Copy a file; it is there, whole and verified, when this returns.

        Raises RefusedError if anything is there but what it `replaces`.
        """

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""


def checked_name(name: str) -> str:
    """The name of a file relative to its journal; raises a LocalError if it is no such name.

    >>> checked_name("messages/node=hub/../../../etc/passwd")
    Traceback (most recent call last):
    waystation.errors.LocalError: 'messages/node=hub/../../../etc/passwd' is no file of a ...
    """
    if _NAME.fullmatch(name) is None or any(part in (".", "..") for part in name.split("/")):
        raise LocalError(
            f"{quote(name)} is no file of a journal", rule="OB-5", hint="ship files of a journal"
        )
    return name


def is_archive(journal: Path) -> bool:
    """Whether a directory is an archive: what is in it was shipped there."""
    return (journal / ARCHIVE).exists()


def opened_archive(place: str | Path) -> Archive:
    """The archive in a directory or a store; raises OSError if it cannot be written."""
    found = located(place)
    return StoreArchive(found) if "://" in found else DirectoryArchive(Path(found))


class DirectoryArchive:
    """An archive in a local directory. Files that have not arrived whole are hidden."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)  # not its parents: a disk that is not mounted is not there
        (directory / ARCHIVE).touch()

    def held(self, name: str) -> Content | None:
        """What is there under a name."""
        try:
            return content_of(self.directory / checked_name(name))
        except FileNotFoundError:
            return None

    def put(self, name: str, source: Path, content: Content, replaces: Content | None) -> None:
        """Copy a file, from where an earlier attempt ended."""
        have = self.begun(name, content)
        with source.open("rb") as file:
            while True:
                file.seek(have)
                chunk = file.read(min(CHUNK, content.size - have))
                before = have
                have = self.receive(name, content, have, chunk, replaces)
                if have == content.size:
                    return
                if have <= before:
                    raise OSError(f"{source} changed while it was copied")

    def begun(self, name: str, content: Content) -> int:
        """How many bytes of a file have arrived in earlier attempts."""
        try:
            return self._part(name, content).stat().st_size
        except FileNotFoundError:
            return 0

    def receive(
        self, name: str, content: Content, offset: int, data: bytes, replaces: Content | None
    ) -> int:
        """Take a part of a file; returns how many bytes of it there are, from the beginning.

        The last part makes the file appear, if the whole is what it should be; else it starts
        again. A part that does not continue what is there changes nothing.
        """
        path, part = self.directory / checked_name(name), self._part(name, content)
        if offset + len(data) >= content.size or not offset:
            held = self.held(name)
            if held == content:
                part.unlink(missing_ok=True)
                return content.size
            if held is not None and held != replaces:
                raise RefusedError(f"{name} is there with another content")
        have = self.begun(name, content)
        if have != offset and have < content.size:
            return have
        if have < content.size:
            part.parent.mkdir(parents=True, exist_ok=True)
            with part.open("ab") as file:
                file.write(data)
            have += len(data)
        if have >= content.size:
            return self._finished(path, part, content)
        return have

    def remove(self, name: str) -> None:
        """Remove a file."""
        (self.directory / checked_name(name)).unlink(missing_ok=True)

    def _finished(self, path: Path, part: Path, content: Content) -> int:
        part.parent.mkdir(parents=True, exist_ok=True)
        part.touch()
        if content_of(part) != content:
            part.unlink()
            return 0
        sync_path(part)
        part.replace(path)
        sync_directory(path.parent)
        for left in path.parent.glob(f"{_hidden(path.name)}.*{_PART}"):  # of other contents
            left.unlink(missing_ok=True)
        return content.size

    def _part(self, name: str, content: Content) -> Path:
        path = self.directory / checked_name(name)
        unique = f"{content.checksum:08x}-{content.size}"
        return path.with_name(f"{_hidden(path.name)}.{unique}{_PART}")


def _hidden(name: str) -> str:
    return name if name.startswith(".") else f".{name}"


class StoreArchive:
    """An archive in an object store or in HDFS."""

    def __init__(self, place: str) -> None:
        self._system, self._path = file_system(place)
        self._renames = self._system.type_name != S3
        mark = f"{self._path}/{ARCHIVE}"
        if not exists(self._system, mark):
            write_whole(self._system, mark, b"\n")

    def held(self, name: str) -> Content | None:
        """What is there under a name."""
        path = self._at(name)
        return self._content(path) if exists(self._system, path) else None

    def put(self, name: str, source: Path, content: Content, replaces: Content | None) -> None:
        """Copy a file, read it again, and only then show it, where there are renames."""
        held = self.held(name)
        if held == content:
            return
        if held is not None and held != replaces:
            raise RefusedError(f"{name} is there with another content")
        path = self._at(name)
        directory, _, base = path.rpartition("/")
        written = f"{directory}/{_hidden(base)}{_PART}" if self._renames else path
        if self._renames:
            self._system.create_dir(directory, recursive=True)
        with self._system.open_output_stream(written) as stream:
            for chunk in _chunks(source, content.size):
                stream.write(chunk)
        if self._content(written) != content:
            raise OSError(f"{name} did not arrive as it was sent")
        if self._renames:
            self._system.move(written, path)

    def remove(self, name: str) -> None:
        """Remove a file."""
        path = self._at(name)
        if exists(self._system, path):
            self._system.delete_file(path)

    def _at(self, name: str) -> str:
        return f"{self._path}/{checked_name(name)}"

    def _content(self, path: str) -> Content:
        checksum, size = 0, 0
        with self._system.open_input_stream(path) as stream:
            while chunk := stream.read(16 * CHUNK):
                checksum = crc32(chunk, checksum)
                size += len(chunk)
        return Content(size, checksum)


def _chunks(source: Path, size: int) -> Iterator[bytes]:
    with source.open("rb") as file:
        while chunk := file.read(min(16 * CHUNK, size)):
            yield chunk
            size -= len(chunk)
