"""Waiting for conditions instead of times, so that no test depends on how busy the machine is."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Final

DEADLINE: Final = 30.0
"""Seconds after which a condition that does not hold yet is taken never to hold."""

_INTERVAL: Final = 0.002
_SETTLING_TURNS: Final = 20


async def until(condition: Callable[[], object], seconds: float = DEADLINE) -> None:
    """Wait until a condition holds; raises AssertionError, which shows it, after the deadline.

    >>> found = []
    >>> async def scenario():
    ...     asyncio.get_running_loop().call_soon(found.append, 1)
    ...     await until(lambda: found)
    >>> asyncio.run(scenario())
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + seconds
    while not condition():
        if clock() >= deadline:
            raise AssertionError(f"not within {seconds:g} s: {_source_of(condition)}")
        await asyncio.sleep(_INTERVAL)


def wait_until(condition: Callable[[], object], seconds: float = DEADLINE) -> None:
    """Do as `until` does, in a test without an event loop.

    >>> wait_until(lambda: True)
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {seconds:g} s: {_source_of(condition)}")
        time.sleep(_INTERVAL)


async def settle() -> None:
    """Let everything happen that is ready to, in this event loop; nothing outside is waited for."""
    for _ in range(_SETTLING_TURNS):
        await asyncio.sleep(0)


def _source_of(condition: Callable[[], object]) -> str:
    try:
        return inspect.getsource(condition).strip()
    except (OSError, TypeError):  # not written in a file
        return repr(condition)
