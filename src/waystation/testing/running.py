"""Running a coroutine as a test: it has a deadline, and fails on errors of the event loop."""

from __future__ import annotations

import asyncio
import functools
import gc
from collections.abc import Awaitable, Callable
from typing import Any, Final, ParamSpec

RUN_SECONDS: Final = 100.0
"""Seconds that a whole test may take, on a busy machine as well."""

MakeLoop = Callable[[], asyncio.AbstractEventLoop]
_P = ParamSpec("_P")


def run_checked(
    scenario: Callable[[], Awaitable[None]],
    make_loop: MakeLoop = asyncio.new_event_loop,
    seconds: float = RUN_SECONDS,
) -> None:
    """Run a coroutine to its end; fails if the event loop reported an error meanwhile.

    An exception in a callback, or in a task that nobody awaits, is such an error.
    """
    reported: list[dict[str, Any]] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context))
        await asyncio.wait_for(scenario(), seconds)
        await asyncio.sleep(0)
        gc.collect()  # an exception that nobody retrieved is reported when its task is collected
        await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(run())
    if reported:
        raise AssertionError(f"the event loop reported errors: {reported}")


def async_test(scenario: Callable[_P, Awaitable[None]]) -> Callable[_P, None]:
    """Make a plain test of a coroutine function, for any test runner.

    >>> @async_test
    ... async def test_nothing():
    ...     await asyncio.sleep(0)
    >>> test_nothing()
    """

    @functools.wraps(scenario)
    def test(*args: _P.args, **options: _P.kwargs) -> None:
        run_checked(lambda: scenario(*args, **options))

    return test
