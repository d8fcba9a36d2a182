"""Running a program on the fastest event loop there is."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, as `asyncio.run` does, on uvloop where that is installed.

    >>> async def main():
    ...     return 42
    >>> run(main())
    42
    """
    try:
        import uvloop  # noqa: PLC0415 - not everywhere
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)
