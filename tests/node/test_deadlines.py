from __future__ import annotations

import asyncio

from tests.node.live import runs_on_every_loop
from waystation.node.deadlines import Deadlines
from waystation.testing import until


class Waiting:
    """Something that ends by itself, and tells in which order."""

    def __init__(self, name: str, ended: list[str]) -> None:
        self.deadline = 0
        self._name = name
        self._ended = ended

    def give_up(self) -> None:
        self._ended.append(self._name)


def timers() -> int:
    """How many timers of the event loop there are that were not cancelled."""
    scheduled = getattr(asyncio.get_running_loop(), "_scheduled", ())
    return sum(not handle.cancelled() for handle in scheduled)


@runs_on_every_loop
async def test_all_end_in_the_order_of_their_time_whatever_the_order_they_came_in() -> None:
    deadlines, ended = Deadlines(), list[str]()
    for name, seconds in (("third", 0.03), ("first", 0.01), ("second", 0.02), ("fourth", 0.04)):
        deadlines.start(Waiting(name, ended), seconds)
    assert len(deadlines) == 4
    await until(lambda: len(ended) == 4)
    assert ended == ["first", "second", "third", "fourth"]
    assert len(deadlines) == 0


@runs_on_every_loop
async def test_who_was_stopped_does_not_end_and_may_wait_again() -> None:
    deadlines, ended = Deadlines(), list[str]()
    again, other = Waiting("again", ended), Waiting("other", ended)
    deadlines.start(again, 0.001)
    deadlines.start(other, 0.03)
    deadlines.stop(again)
    deadlines.stop(again)
    deadlines.start(again, 0.06)
    await until(lambda: len(ended) == 2)
    assert ended == ["other", "again"]
    deadlines.stop(again)
    assert len(deadlines) == 0


def test_one_timer_serves_all() -> None:
    async def scenario() -> None:
        deadlines, ended = Deadlines(), list[str]()
        before = timers()
        for number in range(1_000):
            deadlines.start(Waiting("one", ended), 60.0 - number / 100)
        assert timers() == before + 1
        deadlines.close()
        assert timers() == before
        assert len(deadlines) == 0

    asyncio.run(scenario())


def test_those_who_need_not_wait_any_more_are_forgotten() -> None:
    async def scenario() -> None:
        deadlines, ended = Deadlines(), list[str]()
        waits = Waiting("waits", ended)
        deadlines.start(waits, 60.0)
        most = 0
        for _ in range(10_000):
            one = Waiting("one", ended)
            deadlines.start(one, 30.0)
            deadlines.stop(one)
            most = max(most, deadlines.held)
        assert most < 200
        assert len(deadlines) == 1
        deadlines.close()
        deadlines.stop(waits)
        assert len(deadlines) == 0

    asyncio.run(scenario())


@runs_on_every_loop
async def test_who_gives_up_may_let_others_wait() -> None:
    deadlines, ended = Deadlines(), list[str]()

    class Starter(Waiting):
        def give_up(self) -> None:
            super().give_up()
            deadlines.start(Waiting("started then", ended), 0.001)

    deadlines.start(Starter("starter", ended), 0.001)
    deadlines.start(Waiting("later", ended), 0.1)
    await until(lambda: len(ended) == 3)
    assert ended == ["starter", "started then", "later"]
