"""Ids for messages: random, so that nobody can tell one from another that he saw (AD-7, FL-6)."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import chain
from typing import Final
from weakref import WeakSet

from waystation.net import randomness

_BATCH: Final = 256


class _Ids:
    """Ids that were drawn together and not given yet."""

    def __init__(self) -> None:
        self.batch: list[str] = []

    def draw(self) -> list[str]:
        self.batch = randomness.random_bytes(16 * _BATCH).hex(" ", 16).split(" ")
        return self.batch


_all: Final[WeakSet[_Ids]] = WeakSet()


def new_ids() -> Callable[[], str]:
    """A function that gives another id each time: 128 random bits.

    Every message has one. So they are drawn many at a time, and given in C from end to end. A fork
    empties the batch of the child, which must not give what its parent gives.

    >>> new_id = new_ids()
    >>> first, second = new_id(), new_id()
    >>> len(first), first != second
    (32, True)
    """
    ids = _Ids()
    _all.add(ids)
    return chain.from_iterable(iter(ids.draw, None)).__next__


def _forget_drawn() -> None:
    for ids in _all:
        ids.batch.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_forget_drawn)
