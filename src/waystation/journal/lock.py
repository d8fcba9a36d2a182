"""One writer for each node and journal directory.

The lock is the kernel's (flock), so that it ends with the process, however that ends. The file
stays; it means nothing by itself.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from waystation.errors import LocalError
from waystation.journal.files import is_at


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
