"""Send something to every truck in eu/+/munich that was reachable at an instant of the past.

A hub and its trucks run twice, "yesterday" and "today". Yesterday one truck drove around Paris, and
one was offline. Who was where is in the hub's journal; Spark asks it, and sends the message.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import waystation
from waystation import pipeline
from waystation.node import Wait

REGIONS = {
    "truck-1": "eu/de/munich",
    "truck-2": "eu/fr/paris",
    "truck-3": "eu/de/munich",
    "truck-4": "eu/at/munich",  # a Munich of another country
}
GREETING = b"good morning"


class Fleet:
    """A hub with a journal, and some trucks, in a thread of their own."""

    def __init__(self, journal: Path, *trucks: str) -> None:
        self.url = ""
        self.got: set[str] = set()
        self._journal = journal
        self._trucks = trucks
        self._ready, self._end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._drive()))

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    async def _drive(self) -> None:
        async with (
            waystation.Node("hub", hub=True, journal=self._journal) as hub,
            AsyncExitStack() as trucks,
        ):
            self.url = (await hub.listen("tcp://127.0.0.1:0")).url
            for name in self._trucks:
                await self._start(await trucks.enter_async_context(waystation.Node(name)))
                await hub.send(name, GREETING, policy=Wait(30, persist=True))  # once it is known
            self._ready.set()
            await asyncio.to_thread(self._end.wait)

    async def _start(self, truck: waystation.Node) -> None:
        def note(message: waystation.Message, _: waystation.Context) -> None:
            if message.payload != GREETING:
                self.got.add(f"{truck.name}: {message.payload.decode()}")

        truck.subscribe("fleet", "roadworks", REGIONS[truck.name])
        truck.start_worker((truck.name,), note)
        await truck.connect(self.url, parent=True)


def recall(journal: pipeline.Journal, at: datetime, via: str) -> None:
    """Send to every truck behind a session that wanted to hear of roadworks in a Munich."""
    table = pipeline.routing_table(pipeline.route_history(journal.routes), at)
    wishes = pipeline.routing_table(pipeline.subscription_history(journal.subscriptions), at)
    sessions = (
        wishes.where("pattern rlike '^fleet/roadworks/eu/[^/]+/munich$'")
        .join(table.withColumnRenamed("participant", "receiver"), ["node", "receiver"])
        .select("node", "address")
    )
    (
        table.where("participant like 'truck-%'")
        .join(sessions, ["node", "address"], "left_semi")
        .selectExpr("participant as route", "'come in for a check' as payload", "3600 as ttl")
        .write.format("waystation")
        .mode("append")
        .options(via=via, campaign="recall-17")
        .save()
    )


def main() -> None:
    """Drive yesterday, ask the journal, and send today."""
    place = Path(tempfile.mkdtemp()) / "journal"
    with Fleet(place, "truck-1", "truck-2", "truck-4"):
        yesterday = datetime.now(UTC)
    spark = pipeline.session(master="local[2]")
    pipeline.register(spark)
    with Fleet(place, *REGIONS) as today:
        recall(pipeline.read_journal(spark, place), yesterday, today.url)
        deadline = time.monotonic() + 60
        while len(today.got) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    for line in sorted(today.got):
        print(line)


if __name__ == "__main__":
    main()
