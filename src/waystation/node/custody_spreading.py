"""Durable broadcasts: a letter for each durable subscription, and on to a parent (DU-8)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import structs

from waystation.core.address import LOCAL, Address, Route
from waystation.core.custody import Letter
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.node.custody_lanes import CustodyLane
from waystation.node.custody_taking import arrival_of
from waystation.node.custody_ways import Hop, Spread

if TYPE_CHECKING:
    from waystation.node.custody import Custody


class Spreading:
    """Spreads the broadcasts that one node has in custody."""

    def __init__(self, custody: Custody) -> None:
        self._custody = custody
        self._kernel = custody.kernel

    def spread(self, lane: CustodyLane, letter: Letter, way: Spread) -> None:
        """Make a letter of a broadcast for each durable subscriber, and give it to a parent (DU-8).

        The copies are on disk before the letter that they were made of is given away.
        """
        if lane.spread < letter.number:
            lane.is_asking_store = True
            self._copy(lane, letter, self._custody.kept.match(way.multicast_id))
        elif way.parent is not None:
            self._custody.transfers.offer(lane, Hop(way.parent, lambda message: message, most=1))
        elif self._kernel.hierarchy.parents:
            self._custody.retry(lane)  # none of them can be reached
        else:
            lane.lane.take(1, 0)
            self._end_spread(lane, letter)
            self._custody.go(lane)

    def _copy(self, lane: CustodyLane, letter: Letter, subscribers: list[str]) -> None:
        waiting = set(subscribers)

        def finished(subscriber: str) -> None:
            waiting.discard(subscriber)
            if not waiting:
                lane.is_asking_store = False
                lane.spread = letter.number
                lane.copies = len(subscribers)
                self._custody.go(lane)

        def not_written(why: str) -> None:  # noqa: ARG001 - the store has logged it
            lane.is_asking_store = False
            self._custody.retry(lane)

        for subscriber in subscribers:
            self._copy_for(subscriber, lane, letter, finished, not_written)
        if not subscribers:
            lane.is_asking_store = False
            lane.spread, lane.copies = letter.number, 0
            self._custody.go(lane)

    def _copy_for(
        self,
        subscriber: str,
        lane: CustodyLane,
        letter: Letter,
        finished: Callable[[str], None],
        not_written: Callable[[str], None],
    ) -> None:
        kernel, message = self._kernel, letter.message
        loop, pair = asyncio.get_running_loop(), lane.pair.of_copy(subscriber)
        if not (
            self._custody.may_know(pair) and self._custody.has_room(subscriber, 1, letter.size)
        ):
            arrival = arrival_of(letter)
            kernel.drop(arrival, Reason.QUEUE_FULL, subscriber)
            loop.call_soon(finished, subscriber)
            return
        known = self._custody.known(pair)
        if known.handled.knows(letter.number):
            loop.call_soon(finished, subscriber)
            return
        to = Address(LOCAL, subscriber.encode())
        onward = Route((to, *message.onward_route.addresses))
        copied = message.rerouted(onward, message.return_route)
        copy = structs.replace(letter, message=copied, attempt=0, failures=0)

        def done(new: list[int]) -> None:
            if new:
                arrival = arrival_of(copy)
                kernel.end(arrival, Verdict(Outcome.QUEUED, None, subscriber))
                self._custody.enter(known, [copy])
            finished(subscriber)

        self._custody.put(known, [copy], done, not_written, own=False)

    def _end_spread(self, lane: CustodyLane, letter: Letter) -> None:
        """End the custody of a broadcast that is in hand: its copies go their own ways now."""
        kernel, known, copies = self._kernel, lane.known, lane.copies
        known.handled.note(letter.number)
        lane.lane.settle([letter.number])

        def ended() -> None:
            self._custody.release(known, [letter])
            if not copies:
                kernel.end(arrival_of(letter), Verdict.dropped(Reason.NO_SUBSCRIBER))

        self._custody.need_store().handled(known, letter.number, ended)
