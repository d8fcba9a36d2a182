"""What a client wants from its broker, and what the broker has been told of it. No sockets here.

The two are compared, not counted, so that they cannot drift apart: whatever happens in one turn of
the event loop, at its end the broker is told of the difference (MC-12).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, TypeVar

from mqtt5 import QoS, RetainHandling, SubAckReasonCode, TopicFilter

from waystation.mqtt.packets import REFUSED, words_of

FILTERS: Final = 200
"""No packet has more filters than this."""

_log: Final = logging.getLogger("waystation.mqtt")

T = TypeVar("T")


class Subscriptions:
    """The filters of a client, over all its connections.

    >>> subscriptions = Subscriptions()
    >>> subscriptions.want("fleet/+", 1)
    >>> added, removed = subscriptions.take_changes()
    >>> [[asked.pattern for asked in batch] for batch in added], list(removed)
    ([['fleet/+']], [])
    >>> subscriptions.is_settled
    False
    >>> subscriptions.granted(["fleet/+"], [SubAckReasonCode.GRANTED_QOS_AT_LEAST_ONCE])
    >>> subscriptions.is_settled
    True
    """

    def __init__(self) -> None:
        self._wanted: dict[str, TopicFilter] = {}
        self._answers: dict[str, asyncio.Future[SubAckReasonCode]] = {}  # for who waits for them
        self._told: dict[str, SubAckReasonCode | None] = {}  # what the broker says, once it does
        self._changed: dict[str, None] = {}  # in this turn

    @property
    def is_settled(self) -> bool:
        """Whether the broker has answered for all that is wanted, and knows of nothing else."""
        return self._wanted.keys() == self._told.keys() and None not in self._told.values()

    def want(self, filter: str, qos: int, *, no_local: bool = False) -> None:
        """Want what matches a filter."""
        self._wanted[filter] = TopicFilter(
            filter,
            max_qos=QoS(qos),
            no_local=no_local,
            retain_handling=RetainHandling.SEND_IF_SUBSCRIPTION_NOT_EXISTS,
        )
        self._changed[filter] = None

    async def answer(self, filter: str) -> SubAckReasonCode:
        """Wait for what the broker says to a filter."""
        if (code := self._told.get(filter)) is not None:
            return code
        waiting = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._answers.setdefault(filter, waiting))

    def unwant(self, filter: str) -> None:
        """Want what matches a filter no longer."""
        if self._wanted.pop(filter, None) is not None:
            self._answers.pop(filter, None)
            self._changed[filter] = None

    def start_over(self) -> None:
        """Tell everything again: this is another connection."""
        self._told.clear()
        self._changed = dict.fromkeys(self._wanted)

    def take_changes(self) -> tuple[Iterator[list[TopicFilter]], Iterator[list[str]]]:
        """What to subscribe to and what to unsubscribe from now, in batches of one packet."""
        changed, self._changed = self._changed, {}
        removed = [f for f in changed if f not in self._wanted and f in self._told]
        added = [f for f in changed if f in self._wanted and f not in self._told]
        for filter in removed:
            del self._told[filter]
        self._told.update(dict.fromkeys(added))
        return _batches(self._wanted[filter] for filter in added), _batches(removed)

    def granted(self, filters: Sequence[str], codes: Sequence[SubAckReasonCode]) -> None:
        """Note what the broker says to some filters."""
        for filter, code in zip(filters, codes, strict=False):
            if int(code) >= REFUSED:
                _log.warning("the broker refused the filter %r: %s", filter, words_of(code))
            if filter in self._told:
                self._told[filter] = code
                if (answer := self._answers.pop(filter, None)) is not None:
                    answer.set_result(code)


def _batches(items: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(items)
    while batch := list(islice(rest, FILTERS)):
        yield batch
