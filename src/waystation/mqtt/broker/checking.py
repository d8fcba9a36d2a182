"""Checking passwords: in threads, a few at a time, and in turns (FL-2).

A check takes much of a processor's time, on purpose. So wrong passwords must not keep right ones
waiting: whoever asks (an address, and under which name) waits in a line of its own, and the lines
take turns. An address that has failed lately gets one check at a time, with a pause after each that
fails; its answer comes late, too, and it may have only so many clients wait.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, TypeAlias

REMEMBERED: Final = 10_000
"""Addresses that failed lately and are remembered."""

MEMORY: Final = 60.0
"""Seconds for which an address counts as one that failed lately."""

WAITING: Final = 100
"""Clients of such an address that may wait for their check."""

PAUSES: Final = 20
"""This many checks of such an address may fail within the time that a failed one waits."""

Check: TypeAlias = Callable[[], bool]


class _Line(NamedTuple):
    address: str
    user: str | None


class PasswordChecks:
    """Threads that check passwords, and who waits for them."""

    def __init__(self, threads: int, penalty: float) -> None:
        self._threads = threads
        self._penalty = penalty
        self._pool = ThreadPoolExecutor(threads, "waystation broker passwords")
        self._lines: dict[_Line, deque[tuple[Check, asyncio.Future[bool]]]] = {}  # in turns
        self._waiting: Counter[str] = Counter()  # by address
        self._running: Counter[str] = Counter()  # by address
        self._failed: dict[str, float] = {}  # when each address failed last
        self._resting: set[str] = set()  # addresses

    def close(self) -> None:
        """Check nothing more."""
        self._lines.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def ask(self, address: str, user: str | None, check: Check) -> asyncio.Future[bool] | None:
        """Have a password checked; None if too many of this address wait already.

        Whoever no longer waits for the answer cancels it.
        """
        if self._waiting[address] >= WAITING and self._failed_lately(address):
            return None
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(_Line(address, user), deque()).append((check, answer))
        self._waiting[address] += 1
        self._start()
        return answer

    def _start(self) -> None:
        """Begin as many checks as there are threads."""
        while self._running.total() < self._threads:
            line = next((line for line in self._lines if self._may_begin(line.address)), None)
            if line is None:
                return
            waiting = self._lines.pop(line)
            check, answer = waiting.popleft()
            if waiting:
                self._lines[line] = waiting  # behind the others
            _less(self._waiting, line.address)
            if not answer.done():
                self._begin(line.address, check, answer)

    def _may_begin(self, address: str) -> bool:
        if address in self._resting:
            return False
        return not self._running[address] or not self._failed_lately(address)

    def _begin(self, address: str, check: Check, answer: asyncio.Future[bool]) -> None:
        def end(done: asyncio.Future[bool]) -> None:
            _less(self._running, address)
            if done.cancelled():
                answer.cancel()
                return
            error = done.exception()
            if error is None and not done.result():
                self._rest(address)
                loop.call_later(self._penalty, _tell, answer, done)
            else:
                _tell(answer, done)
            self._start()

        loop = asyncio.get_running_loop()
        self._running[address] += 1
        loop.run_in_executor(self._pool, check).add_done_callback(end)

    def _rest(self, address: str) -> None:
        """Let an address wait for a moment: what it sent was wrong."""
        loop = asyncio.get_running_loop()
        self._failed.pop(address, None)
        if len(self._failed) >= REMEMBERED:
            del self._failed[next(iter(self._failed))]
        self._failed[address] = loop.time()
        self._resting.add(address)
        loop.call_later(self._penalty / PAUSES, self._wake, address)

    def _wake(self, address: str) -> None:
        self._resting.discard(address)
        self._start()

    def _failed_lately(self, address: str) -> bool:
        failed = self._failed.get(address)
        return failed is not None and asyncio.get_running_loop().time() - failed < MEMORY


def _less(counter: Counter[str], address: str) -> None:
    counter[address] -= 1
    if not counter[address]:
        del counter[address]


def _tell(answer: asyncio.Future[bool], done: asyncio.Future[bool]) -> None:
    if not answer.done():
        error = done.exception()
        if error is None:
            answer.set_result(done.result())
        else:
            answer.set_exception(error)
