"""Run a command so that it ends with the process that started it.

Run as `python end_with_parent.py PID SIGNAL COMMAND...`: the command is sent SIGNAL when the
process PID, its parent, ends. This file imports nothing of Waystation, so that it starts within
milliseconds. Only Linux can do this; elsewhere the command simply runs.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

_SET_PARENT_DEATH_SIGNAL: Final = 1


def end_with_parent(command: Sequence[str], *, by: signal.Signals = signal.SIGTERM) -> list[str]:
    """Wrap a command: what runs it has it sent a signal when this process ends."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(int(by)), *command]


def main(arguments: list[str]) -> None:
    """Ask the kernel for a signal when the parent ends, then become the command."""
    parent, number, *command = arguments
    if sys.platform.startswith("linux"):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_SET_PARENT_DEATH_SIGNAL, int(number), 0, 0, 0)
        if os.getppid() != int(parent):  # it ended before we asked
            sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606 - there is no shell in it


if __name__ == "__main__":
    main(sys.argv[1:])
