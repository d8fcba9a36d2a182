"""Mosquitto in a namespace of the live lab: killed and started again as the nodes are."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Final

from waystation.testing.lab.members import BROKER_PORT
from waystation.testing.live.namespaces import Network

_CONFIGURATION: Final = f"""\
listener {BROKER_PORT} 0.0.0.0
allow_anonymous true
persistence false
log_dest none
"""


def find_mosquitto() -> Path | None:
    """The program that is installed, if one is; Debian has it where only root looks."""
    found = shutil.which("mosquitto") or shutil.which("/usr/sbin/mosquitto")
    return None if found is None else Path(found)


class Mosquitto:
    """One broker, which keeps nothing beyond its process."""

    def __init__(self, name: str, program: Path, network: Network, directory: Path) -> None:
        self._name = name
        self._program = program
        self._network = network
        self._file = directory / "mosquitto.conf"
        self._file.write_text(_CONFIGURATION)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; its libraries may lie beside it, where it was unpacked."""
        libraries = self._program.parent.parent / f"lib/{platform.machine()}-linux-gnu"
        words = (str(self._program), "-c", str(self._file))
        self._process = subprocess.Popen(  # noqa: S603 - what is written here
            self._network.command(self._name, *words),
            env=os.environ | {"LD_LIBRARY_PATH": str(libraries)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
