"""The yardstick: asyncio.Queue within one process and one loop (uvloop), no bytes on any wire.

One hop is one queue from a producer to a consumer, two hops are two queues with a task between.
The queues are bounded, as every inbox should be, and `put` waits when one is full. A round trip
puts a future beside the message, which the consumer fulfils. Nothing connects, so there is no
greeting.
"""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

import uvloop

from benchmarks.live import measure
from benchmarks.live.measure import Company, Part, Subject, Work

PACKAGES = ("uvloop",)
QUEUE_LENGTH = 1_000


class _Item(NamedTuple):
    id: str
    payload: bytes
    answer: asyncio.Future[tuple[str, bytes]] | None


_Queue = asyncio.Queue[_Item]


def stage(company: Company) -> int:
    """Start nothing: all roles are tasks of the driver's process."""
    del company
    return 0


async def _pass_on(source: _Queue, target: _Queue) -> None:
    while True:
        await target.put(await source.get())


async def _sink(source: _Queue, every: int, done: asyncio.Future[tuple[str, bytes]]) -> None:
    seen = 0
    while True:
        item = await source.get()
        if item.answer is not None:
            item.answer.set_result((item.id, item.payload))
            continue
        seen += 1
        if seen == every:
            done.set_result((item.id, item.payload))


async def _one_way(target: _Queue, work: Work, done: asyncio.Future[tuple[str, bytes]]) -> None:
    payload = measure.payload_of(work.size)
    start = time.perf_counter()
    for number in range(work.count):
        await target.put(_Item(measure.id_of(number), payload, None))
    answer = await done
    seconds = time.perf_counter() - start
    measure.check_answer(answer, (measure.id_of(work.count - 1), payload))
    measure.say_rate(work.count, seconds)


async def _round_trips(target: _Queue, work: Work) -> None:
    loop = asyncio.get_running_loop()
    payload = measure.payload_of(work.size)
    trips = []
    for number in range(measure.WARM_UP + work.count):
        start = time.perf_counter_ns()
        answer: asyncio.Future[tuple[str, bytes]] = loop.create_future()
        id = measure.id_of(number)
        await target.put(_Item(id, payload, answer))
        answered = await answer
        trips.append(time.perf_counter_ns() - start)
        measure.check_answer(answered, (id, payload))
    measure.say_trips(trips[measure.WARM_UP :])


async def _drive(work: Work) -> None:
    done: asyncio.Future[tuple[str, bytes]] = asyncio.get_running_loop().create_future()
    first: _Queue = asyncio.Queue(QUEUE_LENGTH)
    last = first if work.hops == 1 else _Queue(QUEUE_LENGTH)
    async with asyncio.TaskGroup() as tasks:
        others = [tasks.create_task(_sink(last, work.answer_every, done))]
        if last is not first:
            others.append(tasks.create_task(_pass_on(first, last)))
        if work.kind == "one way":
            await _one_way(first, work, done)
        else:
            await _round_trips(first, work)
        for task in others:
            task.cancel()


def _driver(part: Part) -> None:
    uvloop.run(_drive(part.work))


QUEUE = Subject("asyncio.Queue, in process", "benchmarks.live.queue_subject", PACKAGES, stage)
SUBJECTS = (QUEUE,)

one_way = QUEUE.one_way
round_trip = QUEUE.round_trip

if __name__ == "__main__":
    measure.play(_driver)
