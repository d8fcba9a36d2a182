"""Tasks: each has a name and an owner that holds it, and none of them fails unnoticed.

asyncio holds tasks by weak references only, and tells of a failure when the last reference is gone,
which may be never. So everything that runs on by itself is started by `Tasks.start`; a test checks
that nothing else creates tasks. Work of many small steps, like messages, has no tasks at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from functools import partial
from typing import Any, Final, TypeVar

from msgspec import Struct

T = TypeVar("T")


class TaskCounts(Struct):
    """What became of the tasks of this process."""

    failed: int = 0


COUNTS: Final = TaskCounts()


class Tasks:
    """The tasks of one owner, which end with it at the latest."""

    __slots__ = ("_running",)

    def __init__(self) -> None:
        self._running: dict[asyncio.Task[Any], None] = {}

    def __len__(self) -> int:
        return len(self._running)

    def start(
        self,
        work: Coroutine[Any, Any, T],
        name: str,
        *,
        endless: bool = False,
        if_failed: Callable[[], object] | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        """Run a task, and tell if it fails: if it raises, or returns although it is `endless`.

        `if_failed` is called then, to put in order what needs the task.
        """
        task = subtask(work, name, context)
        self._running[task] = None
        task.add_done_callback(partial(self._ended, endless, if_failed))
        return task

    def cancel(self) -> None:
        """End them soon, all but the one that asks for it."""
        for task in self._others():
            task.cancel()

    async def stop(self) -> None:
        """End them, all but the one that asks for it, and wait until they have ended."""
        self.cancel()
        if others := self._others():
            await asyncio.wait(others)

    def _others(self) -> list[asyncio.Task[Any]]:
        current = asyncio.current_task()
        return [task for task in self._running if task is not current]

    def _ended(
        self, endless: bool, if_failed: Callable[[], object] | None, task: asyncio.Task[Any]
    ) -> None:
        del self._running[task]
        why, error = _failure(task, endless=endless)
        if not why:
            return
        report(f"task {task.get_name()!r} {why}", error)
        if if_failed is not None:
            if_failed()


def subtask(
    work: Coroutine[Any, Any, T], name: str, context: Context | None = None
) -> asyncio.Task[T]:
    """A task of which whoever starts it takes what it returns or raises."""
    loop = asyncio.get_running_loop()
    return loop.create_task(work, name=f"waystation {name}", context=context)


class Begun:
    """The rest of some work: its task awaits this."""

    __slots__ = ("_awaited", "_error", "_interruption", "_work")

    def __init__(
        self, work: Coroutine[Any, Any, None], awaited: Any, error: BaseException | None
    ) -> None:
        self._work = work
        self._awaited = awaited
        self._error = error  # that it ended with
        self._interruption: BaseException | None = None

    def interrupt(self, error: BaseException) -> None:
        """Raise an error where the work waits."""
        self._interruption = error

    def __await__(self) -> Generator[Any, Any, None]:
        if self._error is not None:
            raise self._error
        work, awaited = self._work, self._awaited
        resume: Callable[[], Any] | None = None
        if self._interruption is not None:
            resume = partial(work.throw, self._interruption)
        else:
            _mark(awaited, given=True)
        while True:
            if resume is not None:
                try:
                    awaited = resume()
                except StopIteration:
                    return
            try:
                resume = partial(work.send, (yield awaited))
            except GeneratorExit:
                work.close()
                raise
            except BaseException as error:  # noqa: BLE001 - it is the work's
                resume = partial(work.throw, error)


def begin(
    work: Coroutine[Any, Any, None], task: asyncio.Task[Any], context: Context
) -> Begun | None:
    """Do some work of a task that sleeps, at once and up to where it waits for something.

    Returns the rest, for the task to await; None if there is none. To the work it looks as if its
    task ran, which is in this context. Nothing else may run meanwhile: no task is the current one.
    """
    loop = task.get_loop()
    asyncio.tasks._enter_task(loop, task)  # noqa: SLF001 - as asyncio's own eager tasks do
    try:
        awaited = context.run(work.send, None)
    except StopIteration:
        return None
    except BaseException as error:  # noqa: BLE001 - its task raises it
        return Begun(work, None, error)
    finally:
        asyncio.tasks._leave_task(loop, task)  # noqa: SLF001
    _mark(awaited, given=False)
    return Begun(work, awaited, None)


def _mark(awaited: Any, *, given: bool) -> None:
    """Say whether a future is just given to a task; others may await it before this task does."""
    if getattr(awaited, "_asyncio_future_blocking", None) is not None:
        awaited._asyncio_future_blocking = given  # noqa: SLF001


def report(what: str, error: BaseException | None = None) -> None:
    """Count a failure and tell the event loop, which logs it unless the program has it do other."""
    COUNTS.failed += 1
    told: dict[str, object] = {"message": what}
    if error is not None:
        told["exception"] = error
    asyncio.get_running_loop().call_exception_handler(told)


def _failure(task: asyncio.Task[Any], *, endless: bool) -> tuple[str, BaseException | None]:
    """Why the end of a task was unexpected, and what it raised; "" if it was not."""
    if task.cancelled():
        # Nobody cancelled the task itself: what it waited for was cancelled.
        return ("" if task.cancelling() else "was cancelled by what it waited for"), None
    if (error := task.exception()) is not None:
        return "failed", error
    return ("ended too early" if endless else ""), None
