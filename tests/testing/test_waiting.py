"""Waits end when their condition holds, and say which did not."""

from __future__ import annotations

import asyncio
import threading

import pytest

from waystation.testing import async_test, run_checked, settle, until, wait_until


@async_test
async def test_a_wait_ends_when_its_condition_holds() -> None:
    found: list[int] = []
    asyncio.get_running_loop().call_later(0.01, found.append, 1)
    await until(lambda: found)
    with pytest.raises(AssertionError, match=r"not within 0.01 s: .*len\(found\) == 2"):
        await until(lambda: len(found) == 2, 0.01)


def test_a_wait_without_an_event_loop_does_the_same() -> None:
    found = threading.Event()
    threading.Timer(0.01, found.set).start()
    wait_until(found.is_set)
    with pytest.raises(AssertionError, match=r"not within 0.01 s: <method-wrapper"):
        wait_until([].__len__, 0.01)


@async_test
async def test_what_is_ready_happens_while_a_test_settles() -> None:
    found: list[int] = []
    loop = asyncio.get_running_loop()
    loop.call_soon(loop.call_soon, found.append, 1)
    await settle()
    assert found == [1]


def test_a_test_that_never_ends_fails() -> None:
    with pytest.raises(TimeoutError):
        run_checked(asyncio.Event().wait, seconds=0.01)  # type: ignore[arg-type]
