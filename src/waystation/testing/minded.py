"""A program that becomes another one, which ends when the process that started it does.

Run as `python minded.py PID SIGNAL COMMAND...`, where PID is the process to end with, and SIGNAL
what the command is sent then. It imports nothing of Waystation, so that it costs a few
milliseconds. Where the system cannot do this (only Linux can), the command runs all the same.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

_SET_PARENT_DEATH_SIGNAL: Final = 1


def minded(command: Sequence[str], *, by: signal.Signals = signal.SIGTERM) -> list[str]:
    """The command that runs another one and has it sent a signal when this process ends."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(int(by)), *command]


def main(arguments: list[str]) -> None:
    """Ask the kernel for a signal when the parent ends, and become the command."""
    parent, number, *command = arguments
    if sys.platform.startswith("linux"):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_SET_PARENT_DEATH_SIGNAL, int(number), 0, 0, 0)
        if os.getppid() != int(parent):  # it ended before we could ask
            sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606 - there is no shell in it


if __name__ == "__main__":
    main(sys.argv[1:])
