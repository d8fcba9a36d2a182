"""Durable messages in the hands of workers: given, and recorded when they were handled (DU-7)."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec import structs

from waystation.core.custody import LONGEST_PAUSE, WINDOW, Letter, pause_after
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.node.custody_lanes import CustodyLane
from waystation.node.custody_taking import arrival_of, recipient_of
from waystation.node.custody_ways import Worker
from waystation.node.inbox import Pending
from waystation.node.receiver import InboxReceiver, NoRoom

if TYPE_CHECKING:
    from waystation.node.custody import Custody

DETAIL_LIMIT: Final = 2_000
"""Characters of an exception that a dead letter keeps."""


class Handing:
    """Gives letters to the workers of one node."""

    def __init__(self, custody: Custody) -> None:
        self._custody = custody
        self._kernel = custody.kernel

    def hand_over(self, lane: CustodyLane, letter: Letter, way: Worker) -> None:
        """Give a letter to its worker, after it is noted that it may be handled now."""
        known = lane.known
        if letter.number > known.started:
            lane.is_asking_store = True

            number = letter.number + WINDOW

            def started() -> None:
                lane.is_asking_store = False
                known.started = max(known.started, number)
                self._custody.go(lane)

            self._custody.need_store().start(known, number, started)
            return
        lane.lane.take(1, 0)
        receiver: InboxReceiver = way.receiver
        arrival = arrival_of(
            structs.replace(letter, message=way.forward(letter.message)),
            attempt=letter.attempt + 1,
            late=known.handled.is_late(letter.number),
            settled=partial(self._handled, lane, letter, receiver.verdict),
        )
        if type(receiver.offer(arrival)) is NoRoom:
            pending = Pending()
            pending.add_done_callback(partial(self._entered, lane))
            receiver.wait_for_room(arrival, pending)

    def _entered(self, lane: CustodyLane, pending: asyncio.Future[Verdict | None]) -> None:
        if pending.cancelled() or pending.result() is None:  # the worker was stopped
            lane.lane.give_back()
            self._custody.go(lane)

    def _handled(
        self,
        lane: CustodyLane,
        letter: Letter,
        verdict: Verdict,
        reason: Reason | None,
        error: BaseException | None,
    ) -> None:
        """Record what became of a letter that its worker had."""
        kernel, store, known = self._kernel, self._custody.need_store(), lane.known
        attempt = letter.attempt + 1
        if reason is None:
            known.handled.note(letter.number)
            lane.lane.settle([letter.number])
            arrival = arrival_of(letter, attempt=attempt)

            def recorded() -> None:
                self._custody.release(known, [letter])
                kernel.end(arrival, verdict)

            store.handled(known, letter.number, recorded)
        elif reason is Reason.EXPIRED:
            self._custody.bury(lane, letter, reason)
        elif reason is Reason.FAILED:
            self._handler_raised(lane, letter, error)
        else:  # the worker was stopped, or the node is closing
            lane.lane.give_back(structs.replace(letter, attempt=attempt))
        self._custody.go(lane)

    def _handler_raised(
        self, lane: CustodyLane, letter: Letter, error: BaseException | None
    ) -> None:
        """Try again later, or give up after so many attempts (DU-7)."""
        store, failures = self._custody.need_store(), letter.failures + 1
        detail = f"{type(error).__name__}: {error}"[:DETAIL_LIMIT]
        attempt = letter.attempt + 1
        if failures >= store.settings.attempts:
            tried = structs.replace(letter, attempt=attempt)
            self._custody.bury(lane, tried, Reason.FAILED, detail)
            return
        queued = Verdict(Outcome.QUEUED, None, recipient_of(lane.pair))
        record = partial(self._kernel.end, arrival_of(letter, attempt=attempt), queued)
        store.failed(lane.known, letter.number, attempt, failures, detail, record)
        lane.lane.give_back(structs.replace(letter, attempt=attempt, failures=failures))
        lane.waits_for_handler = True
        pause = min(LONGEST_PAUSE, pause_after(failures) * store.settings.pause)
        lane.due = asyncio.get_running_loop().time() + pause
