"""The output directory of a demonstration: its files, and exclusive use of it.

    OUT/demo.json       marks the directory as a demonstration's, and has its results
    OUT/processes.json  all processes of the fleet, with their pids
    OUT/deeds.json      the injected faults
    OUT/config/  OUT/logs/  OUT/journal/  OUT/tables/  OUT/report.html

Files are replaced atomically. Nothing else in the directory is touched.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from waystation.errors import LocalError, quote
from waystation.journal.files import FileLock

SUMMARY_FILE: Final = "demo.json"
_LOCK: Final = ".demo.lock"
_DIRECTORIES: Final = ("config", "logs", "journal", "tables")
_FILES: Final = ("processes.json", "deeds.json", "report.html")
_RULE: Final = "OB-4"


class DemoDirectory:
    """The output directory of one demonstration."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.config = out / "config"
        self.logs = out / "logs"
        self.journal = out / "journal"
        self.tables = out / "tables"
        self.report = out / "report.html"

    def write(self, name: str, value: Any) -> None:
        """Write a value to a file as JSON."""
        text = msgspec.json.format(msgspec.json.encode(value), indent=1)
        replace(self.out / name, text.decode() + "\n")


def replace(file: Path, text: str) -> None:
    """Replace a file atomically."""
    hidden = file.with_name(f".{file.name}.new")
    hidden.write_text(text, "utf-8")
    hidden.replace(file)


@contextmanager
def prepared(out: Path) -> Iterator[DemoDirectory]:
    """The directory of a demonstration, empty, and locked while it is used."""
    _check(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = FileLock(out / _LOCK, "runs a demonstration there")
    except OSError as error:
        raise LocalError(
            f"{quote(str(out))} cannot be used: {error.strerror}",
            rule=_RULE,
            hint="give a directory that can be written to",
        ) from None
    try:
        directory = DemoDirectory(out.absolute())
        directory.write(SUMMARY_FILE, {"state": "running"})  # first, to mark the directory as ours
        _clear(directory.out)
        for name in _DIRECTORIES:
            (directory.out / name).mkdir()
        try:
            yield directory
        except BaseException:
            directory.write(SUMMARY_FILE, {"state": "interrupted"})
            raise
    finally:
        lock.release()


def _check(out: Path) -> None:
    """Refuse a directory with files that are not from a demonstration."""
    if not out.exists():
        return
    if not out.is_dir():
        raise LocalError(f"{quote(str(out))} is not a directory", rule=_RULE, hint="give another")
    if (out / SUMMARY_FILE).exists():
        return
    if any(path.name != _LOCK for path in out.iterdir()):
        raise LocalError(
            f"{quote(str(out))} is not empty and not from an earlier demo",
            rule=_RULE,
            hint="give a new directory",
        )


def _clear(out: Path) -> None:
    """Remove the files of an earlier demonstration."""
    for name in _DIRECTORIES:
        shutil.rmtree(out / name, ignore_errors=True)
    for name in _FILES:
        (out / name).unlink(missing_ok=True)
        (out / f".{name}.new").unlink(missing_ok=True)
