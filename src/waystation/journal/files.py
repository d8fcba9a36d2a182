"""What is done with files of any kind: is it still there, and has the disk got it?"""

from __future__ import annotations

import os
from pathlib import Path


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
