"""Gossip routers in processes of their own, that can be killed and started again."""

from __future__ import annotations

import socket
import subprocess
import time
from types import TracebackType
from typing import Self

from waystation.demo.processes import WAYSTATION


class Router:
    """A router on a port that stays."""

    def __init__(self) -> None:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.place = f"127.0.0.1:{found.getsockname()[1]}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, and wait until it listens."""
        command = [*WAYSTATION, "router", "--listen", self.place]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)  # noqa: S603
        host, port = self.place.split(":")
        while True:
            try:
                socket.create_connection((host, int(port)), 1).close()
            except OSError:
                time.sleep(0.005)
            else:
                return

    def kill(self) -> None:
        """Let it vanish."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
