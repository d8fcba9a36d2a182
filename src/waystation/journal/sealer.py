"""The thread that seals: slow work on files that nobody waits for.

It recovers what former incarnations left, seals retired tails, and applies retention. What it
cannot do now stays in the tail, where readers find it, and is tried again.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

from waystation.journal.losses import Losses
from waystation.journal.recovery import recover
from waystation.journal.retention import Keep, apply_retention
from waystation.journal.seal import seal_tail
from waystation.journal.tail import Tail

_LOG = logging.getLogger("waystation.journal")
_RETRY_SECONDS = 5.0
_RETENTION_SECONDS = 60.0


class Sealer:
    """Seals what it is handed, in order, until it is stopped and has no more."""

    def __init__(
        self,
        journal: Path,
        node: str,
        incarnation: int,
        *,
        fsync: bool,
        keep: Keep,
        losses: Losses,
        may_recover: Callable[[], bool],
    ) -> None:
        self._journal = journal
        self._node = node
        self._incarnation = incarnation
        self._fsync = fsync
        self._keep = keep
        self._losses = losses
        self._may_recover = may_recover  # only who holds the node's lock touches others' tails
        self._retired: deque[Tail] = deque()
        self._recovered = False
        self._tried = Event()  # to recover, with whatever success
        self._retained = float("-inf")
        self._complained = False
        self._wake = Event()
        self._stopping = False
        self._thread = Thread(target=self._run, name=f"journal-sealer-{node}", daemon=True)

    def start(self) -> None:
        """Begin with what former incarnations left."""
        self._wake.set()
        self._thread.start()

    def seal(self, tail: Tail) -> None:
        """Take over a tail that is closed."""
        self._retired.append(tail)
        self._wake.set()

    def wait_until_tried(self, timeout: float) -> None:
        """Wait until what former incarnations lost is known, if it can be."""
        self._tried.wait(timeout)

    def stop(self, timeout: float) -> None:
        """Do what is left, once, and end."""
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            self._wake.wait(_RETRY_SECONDS if self._behind() else _RETENTION_SECONDS)
            self._wake.clear()
            stopping = self._stopping
            try:
                self._work()
            except OSError as error:
                self._complain(error)
            except Exception:  # noqa: BLE001 - whatever it is, the node goes on
                _LOG.exception("the journal of %s could not seal", self._node)
            self._tried.set()
            if stopping:
                break

    def _behind(self) -> bool:
        return bool(self._retired) or not self._recovered

    def _work(self) -> None:
        if not self._recovered and self._may_recover():
            recover(
                self._journal,
                self._node,
                self._incarnation,
                fsync=self._fsync,
                report=self._losses.add,
            )
            self._recovered = True
        while self._retired:
            self._seal(self._retired[0])
            self._retired.popleft()
        self._complained = False
        self._retain()

    def _seal(self, tail: Tail) -> None:
        try:
            content = seal_tail(tail.directory, tail.table, tail.stem, fsync=self._fsync)
        except FileNotFoundError:
            self._losses.add(tail.rows, f"{tail.table}/{tail.path.name[1:]} vanished")
            return
        if content.rows < tail.rows:
            self._losses.add(
                tail.rows - content.rows,
                f"{tail.table}/{tail.path.name[1:]} unreadable: {content.problem}",
            )

    def _retain(self) -> None:
        now = time.monotonic()
        if now - self._retained >= _RETENTION_SECONDS or self._stopping:
            self._retained = now
            apply_retention(self._journal, self._node, self._keep, time.time())

    def _complain(self, error: OSError) -> None:
        if not self._complained:
            self._complained = True
            _LOG.warning("the journal of %s cannot be sealed for now: %s", self._node, error)
