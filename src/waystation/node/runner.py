"""Running a program: on the fastest event loop there is, until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from waystation.errors import LocalError, quote

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, as `asyncio.run` does, on uvloop where that is installed.

    >>> async def main():
    ...     return 42
    >>> run(main())
    42
    """
    if callable(main):
        raise LocalError(
            f"{quote(main)} is a function, not what a call of it gives",
            rule="WK-1",
            hint="write waystation.run(main())",
        )
    try:
        import uvloop  # noqa: PLC0415 - not everywhere
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


@contextmanager
def stop_signals() -> Iterator[asyncio.Event]:
    """An event that is set when this process is told to stop (SIGTERM, SIGINT)."""
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, told.set)
    try:
        yield told
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


@contextmanager
def hangup_signals(reload: Callable[[], None]) -> Iterator[None]:
    """Have a function called whenever this process gets SIGHUP."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, reload)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
