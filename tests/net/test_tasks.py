"""No task fails unnoticed, and none outlives its owner."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from waystation.net.backoff import Backoff
from waystation.net.dialer import keep
from waystation.net.tasks import COUNTS, Tasks, subtask
from waystation.testing import settle, until


def _run(scenario: Callable[[], Awaitable[None]]) -> tuple[list[dict[str, Any]], int]:
    """Run a scenario; what the event loop was told, and how many tasks failed."""
    told: list[dict[str, Any]] = []
    before = COUNTS.failed

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        await scenario()
        await settle()

    asyncio.run(run())
    return told, COUNTS.failed - before


async def _raise(error: BaseException) -> None:
    await asyncio.sleep(0)
    raise error


async def _for_ever() -> None:
    await asyncio.Event().wait()


def test_a_task_that_raises_is_told_counted_and_put_in_order() -> None:
    mended: list[str] = []

    async def scenario() -> None:
        tasks = Tasks()
        tasks.start(_raise(ValueError("broken")), "part", if_failed=lambda: mended.append("part"))
        assert len(tasks) == 1
        await settle()
        assert len(tasks) == 0

    told, failed = _run(scenario)
    assert [(each["message"], str(each["exception"])) for each in told] == [
        ("task 'waystation part' failed", "broken")
    ]
    assert (failed, mended) == (1, ["part"])


def test_an_endless_task_that_returns_has_failed() -> None:
    async def scenario() -> None:
        Tasks().start(asyncio.sleep(0), "part", endless=True)
        await settle()

    told, failed = _run(scenario)
    assert [each["message"] for each in told] == ["task 'waystation part' ended too early"]
    assert failed == 1


def test_a_task_whose_awaited_future_is_cancelled_has_failed() -> None:
    async def scenario() -> None:
        awaited = subtask(_for_ever(), "awaited")

        async def wait() -> None:
            await awaited

        Tasks().start(wait(), "part")
        await settle()
        awaited.cancel()
        await settle()

    told, failed = _run(scenario)
    assert [each["message"] for each in told] == [
        "task 'waystation part' was cancelled by what it waited for"
    ]
    assert failed == 1


def test_a_task_that_returns_or_is_cancelled_has_not_failed() -> None:
    async def scenario() -> None:
        tasks = Tasks()
        assert await tasks.start(asyncio.sleep(0, "done"), "short") == "done"
        endless = tasks.start(_for_ever(), "endless", endless=True)
        await settle()
        await tasks.stop()
        assert endless.cancelled()
        await tasks.stop()

    assert _run(scenario) == ([], 0)


def test_a_task_that_stops_the_tasks_of_its_owner_goes_on() -> None:
    ended: list[str] = []

    async def scenario() -> None:
        tasks = Tasks()
        other = tasks.start(_for_ever(), "other")

        async def stop() -> None:
            await tasks.stop()
            ended.append("one")

        await tasks.start(stop(), "one")
        assert other.cancelled()

    assert _run(scenario) == ([], 0)
    assert ended == ["one"]


def test_what_a_subtask_raises_is_for_who_started_it() -> None:
    async def scenario() -> None:
        with pytest.raises(ValueError, match="broken"):
            await subtask(_raise(ValueError("broken")), "part")

    assert _run(scenario) == ([], 0)


def test_who_connects_again_goes_on_after_a_mistake_of_ours() -> None:
    attempts: list[int] = []

    async def connect() -> bool:
        attempts.append(1)
        if len(attempts) == 1:
            raise TypeError("broken")
        return False

    async def scenario() -> None:
        tasks = Tasks()
        tasks.start(keep(connect, backoff=Backoff(first=0.001, most=0.001)), "keeper", endless=True)
        await until(lambda: len(attempts) >= 3)
        await tasks.stop()

    told, failed = _run(scenario)
    assert [str(each["exception"]) for each in told] == ["broken"]
    assert failed == 1
