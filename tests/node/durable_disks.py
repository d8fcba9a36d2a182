"""Small disks for tests, which can be full or read-only: file systems in memory.

They are in a mount namespace: a program that is started with them sees them, and all that it
starts; they are gone when it ends.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

SIZE: Final = 32
"""Megabytes of a disk."""

_BALLAST: Final = "ballast"


class Disk:
    """A disk that can be filled up."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_full = False

    def fill(self) -> None:
        """Leave no room at all."""
        self.is_full = True
        with (self.path / _BALLAST).open("wb", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 1):
                with contextlib.suppress(OSError):  # no space left
                    while True:
                        file.write(bytes(size))

    def remount(self, how: str) -> None:
        """Let it be read only (`ro`), or be written as well (`rw`); no file may be open."""
        subprocess.run(["mount", "-o", f"remount,{how}", self.path], check=True)  # noqa: S607

    def clear(self) -> None:
        """Make room again."""
        (self.path / _BALLAST).unlink(missing_ok=True)
        self.is_full = False


def with_disks(paths: Sequence[Path], command: Sequence[str]) -> list[str] | None:
    """A command that runs another one with a disk at each path; None if this user may not."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return None
    options = ["--mount"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--mount"]
    around = [unshare, *options, "sh", "-c"]
    probe = [*around, "mount -t tmpfs tmpfs /mnt"]
    if subprocess.run(probe, check=False, capture_output=True).returncode:
        return None
    for path in paths:
        path.mkdir(parents=True)
    mount = f"mount -t tmpfs -o size={SIZE}m,mode=700 tmpfs"
    mounts = [f"{mount} {shlex.quote(str(path))}" for path in paths]
    return [*around, " && ".join([*mounts, f"exec {shlex.join(command)}"])]
