"""Files of any kind: locks, whether a path still names an open file, and waiting for the disk.

A lock is the kernel's (flock): it ends with the process, however that ends. The lock file itself
stays and means nothing. Nothing here knows the journal's names or formats.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from waystation.errors import LocalError


class FileLock:
    """A lock on a file, taken when made and let go by `release`."""

    def __init__(self, path: Path, purpose: str) -> None:
        self._path = path
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise LocalError(
                f"{path} is locked: another process, or another part of this one, {purpose}",
                rule="OB-5",
                hint="end that one first, or choose another directory or node name",
            ) from None
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def in_place(self) -> bool:
        """Whether the file is still where it was; if not, somebody else could lock a new one."""
        return is_at(self._path, self._descriptor)

    def release(self) -> None:
        """Let go."""
        os.close(self._descriptor)


def is_at(path: Path, descriptor: int) -> bool:
    """Whether an open file is still the one that has this name."""
    try:
        there, held = path.stat(), os.fstat(descriptor)
    except OSError:
        return False
    return (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino)


def sync(path: Path) -> None:
    """Wait until the disk has a file, or the names in a directory."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(directory: Path) -> None:
    """Wait until the disk has the names in a table's directory, and the way to it."""
    for path in (directory, directory.parent, directory.parent.parent):
        sync(path)
