"""Ids for messages: different from one another, not secret (AD-7)."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable
from typing import Final

_ENDINGS: Final = tuple(f"{number:03x}" for number in range(16**3))


def new_ids() -> Callable[[], str]:
    """A function that gives another id each time.

    Half of an id is random and the same for all that the function gives, the rest is a count. They
    are put together in C from end to end, since every message has one: what stands before the last
    three digits is written once for 4096 of them.

    >>> new_id = new_ids()
    >>> first, second = new_id(), new_id()
    >>> len(first), first != second, first[:16] == second[:16]
    (32, True, True)
    """
    start = secrets.randbits(36) + 1
    beginnings = map(f"{secrets.randbits(64):016x}%013x".__mod__, itertools.count(start))
    endings = itertools.repeat(_ENDINGS)
    batches = map(map, (beginning.__add__ for beginning in beginnings), endings)
    return itertools.chain.from_iterable(batches).__next__
