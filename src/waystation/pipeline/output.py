"""Tables on disk, replaced atomically: a reader sees the old table or the new one (SP-5).

A table is written to a hidden directory beside its final one, which one rename then replaces.
A process that is killed in between leaves the old table, and a hidden directory that the next run
removes. Tables must be on a file system with renames (a local disk, NFS); no Spark here.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from pathlib import Path
from typing import Final

from waystation.errors import LocalError, quote

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2


class Place:
    """The directory of one table, and the hidden one where it is written."""

    def __init__(self, out: Path, table: str) -> None:
        self.path = out / table
        self.hidden = out / f".{table}.new"
        self._former = out / f".{table}.former"

    def prepare(self) -> str:
        """Remove what a killed run left; returns the directory to write to."""
        if self._former.exists() and not self.path.exists():
            self._former.rename(self.path)  # it was killed between two renames
        for left in (self.hidden, self._former):
            shutil.rmtree(left, ignore_errors=True)
        return str(self.hidden)

    def replace(self) -> None:
        """Move the written table to its final directory."""
        if not self.path.exists():
            self.hidden.rename(self.path)
            return
        if _exchange(self.hidden, self.path):
            self.hidden.rename(self._former)
        else:
            self.path.rename(self._former)
            self.hidden.rename(self.path)
        shutil.rmtree(self._former, ignore_errors=True)

    def size(self) -> int:
        """The size of the table in bytes."""
        return sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file())


def prepared_directory(out: Path) -> Path:
    """The directory for the tables, created if it does not exist."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LocalError(
            f"cannot write the tables to {quote(str(out))}: {error.strerror}",
            rule="SP-5",
            hint="give a writable directory",
        ) from None
    return out.absolute()


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two directories atomically; False if the system does not support it."""
    if not sys.platform.startswith("linux"):
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    names = [os.fsencode(path) for path in (one, other)]
    return bool(rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0)
