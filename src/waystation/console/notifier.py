"""Wakes tasks that wait for a change; it carries no data."""

from __future__ import annotations

import asyncio


class Notifier:
    """Counts changes, and wakes those who wait for the next one.

    >>> async def main():
    ...     changes = Notifier()
    ...     changes.notify()
    ...     return await changes.wait_after(0, seconds=1.0)
    >>> asyncio.run(main())
    1
    """

    def __init__(self) -> None:
        self.count = 0
        self._waiting: list[asyncio.Future[None]] = []

    def notify(self) -> None:
        """Count a change, and wake all waiting tasks."""
        self.count += 1
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_after(self, count: int, seconds: float) -> int:
        """Wait until the count differs from `count`, at most `seconds`; return the count."""
        if self.count == count:
            changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(changed)
            try:
                await asyncio.wait([changed], timeout=seconds)
            finally:
                if changed in self._waiting:
                    self._waiting.remove(changed)
        return self.count
