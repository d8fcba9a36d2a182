"""Messages of a node without a store, given into the custody of the node next to it (DU-1).

A task of Spark or a command lives too short to have a store of its own. It gives what it sends to a
node that has one, and waits until that says that everything is on its disk. An answer can be lost:
who gives a message again makes two of it, with one id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from waystation.core.address import Route
from waystation.core.custody import Letter
from waystation.core.message import Arrival, Message
from waystation.core.outcome import Reason
from waystation.errors import LocalError, NoReplyError, quote
from waystation.node.custody_taking import ADDRESS
from waystation.node.session import NAME_TIME, Session
from waystation.wire import custody as wire
from waystation.wire.custody import Answer

if TYPE_CHECKING:
    from waystation.node.kernel import Kernel

BATCH: Final = 256
"""Messages that are given at once."""

BATCH_BYTES: Final = 256 * 1024
"""Bytes of them, unless a single one is larger."""

_TO_US: Final = Route((ADDRESS,))


class Deposits:
    """What one node has given to others, and waits to be told of."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._awaited: dict[str, tuple[Session, asyncio.Future[Answer]]] = {}

    async def give(
        self, session: Session, messages: Sequence[Message], seconds: float
    ) -> list[Reason | None]:
        """Give messages to the peer of a session; returns why it did not take them, or None each.

        Their routes begin at the peer. What has no expiry lives as long as the peer's store says.
        """
        await _check(session)
        given = [self._start(session, batch, seconds) for batch in _batches(messages)]
        reasons: list[Reason | None] = []
        try:
            async with asyncio.timeout(seconds):
                for batch, refused, _, answered in given:
                    if refused is not None:
                        reasons += [refused] * len(batch)
                        continue
                    told = await answered
                    each = dict(told.refused)
                    reasons += [each.get(number) for number in range(1, len(batch) + 1)]
        except TimeoutError:
            route = f"{quote(session.name)}, which was to take custody,"
            raise NoReplyError(route, seconds) from None
        finally:
            for _, _, id, _ in given:
                self._awaited.pop(id, None)
        return reasons

    def _start(
        self, session: Session, batch: list[Message], seconds: float
    ) -> tuple[list[Message], Reason | None, str, asyncio.Future[Answer]]:
        kernel, id = self._kernel, self._kernel.new_id()
        now, expiry = kernel.stamp(), kernel.expiry_in(seconds)
        letters = [Letter(number, message, now) for number, message in enumerate(batch, 1)]
        payload = wire.deposit(id, letters, expiry, kernel.router.types.name)
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._awaited[id] = (session, answered)
        onward = Route((session.address, ADDRESS))
        verdict = kernel.post(Message(onward, _TO_US, payload, id, expiry))
        return batch, verdict.reason, id, answered

    def answered(self, arrival: Arrival, told: Answer) -> bool:
        """Take an answer; returns whether it is one to something that was given."""
        session, answered = self._awaited.get(told.transfer, (None, None))
        if session is None or answered is None or arrival.via != session.name:
            return False
        if not answered.done():
            answered.set_result(told)
        return True


async def _check(session: Session) -> None:
    """Wait for the peer's hello; raises LocalError if it does not take custody."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + NAME_TIME
    while session.hello is None and session.is_open and clock() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    if session.hello is not None and not session.can(wire.TAKES):
        raise LocalError(
            f"{quote(session.peer or session.name)} has no store for durable messages",
            rule="DU-1",
            hint='give that node one: [node] store = "DIR"',
        )


def _batches(messages: Sequence[Message]) -> Iterator[list[Message]]:
    batch: list[Message] = []
    size = 0
    for message in messages:
        size += len(message.payload)
        if batch and (len(batch) >= BATCH or size > BATCH_BYTES):
            yield batch
            batch, size = [], len(message.payload)
        batch.append(message)
    if batch:
        yield batch
