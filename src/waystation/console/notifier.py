"""A bell: wakes whoever waits for news. Here is no news, only that there is some."""

from __future__ import annotations

import asyncio


class Notifier:
    """Rings; whoever waits knows by the count whether it rang since.

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
        """Wake everybody."""
        self.count += 1
        waiting, self._waiting = self._waiting, []
        for listener in waiting:
            if not listener.done():
                listener.set_result(None)

    async def wait_after(self, count: int, seconds: float) -> int:
        """Wait until it has rung more often than that, or so long; the count then."""
        if self.count == count:
            rung: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(rung)
            try:
                await asyncio.wait([rung], timeout=seconds)
            finally:
                if rung in self._waiting:
                    self._waiting.remove(rung)
        return self.count
