"""What the journal needs of the file system: locks, file identity, fsync.

Nothing here knows the journal's names or formats.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from waystation.errors import LocalError


class FileLock:
    """An exclusive lock on a file, held from construction until `release`.

    It is the kernel's (flock), so it ends with the process, however that ends. The file stays, and
    its presence means nothing.
    """

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
                hint="stop that one first, or choose another directory or node name",
            ) from None
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def in_place(self) -> bool:
        """Whether the path still names our file; if not, another process could lock a new one."""
        return is_same_file(self._path, self._descriptor)

    def release(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)


def is_same_file(path: Path, descriptor: int) -> bool:
    """Whether a path names the file that this descriptor has open."""
    try:
        named, held = path.stat(), os.fstat(descriptor)
    except OSError:
        return False
    return (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)


def sync_path(path: Path) -> None:
    """Wait until a file's content, or a directory's entries, are on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(directory: Path) -> None:
    """Wait until a table's directory and its parents up to the journal are on disk."""
    for path in (directory, directory.parent, directory.parent.parent):
        sync_path(path)
