"""Bytes that are held for others: accounts, each with a limit, all within one budget (FL-1).

Whoever keeps what a peer sent takes its size from an account and gives it back when it is settled:
a session for frames in part, a receiver for what waits for it. An account may belong to another,
which then counts the same bytes. Nothing is enforced here: the owner of an account asks for room
first, and decides what to do without it. Pure: only arithmetic, so that it costs little.
"""

from __future__ import annotations

from typing import Final

OVERHEAD: Final = 512
"""Bytes that a message counts beside its payload."""

MIB: Final = 1024 * 1024


class Account:
    """How many bytes are held under one heading, and how many may be.

    >>> node = Account(100)
    >>> session = Account(40, node)
    >>> session.has_room(60)  # an empty account takes one message of any allowed size
    True
    >>> session.take(60)
    >>> session.is_over, session.has_room(1), node.used
    (True, False, 60)
    >>> session.give_back(60)
    >>> session.used, node.used
    (0, 0)
    """

    __slots__ = ("limit", "parent", "used")

    def __init__(self, limit: int, parent: Account | None = None) -> None:
        self.limit = limit
        self.parent = parent
        self.used = 0

    @property
    def is_over(self) -> bool:
        """Whether more is held than may be."""
        return self.used > self.limit

    @property
    def is_half_full(self) -> bool:
        """Whether senders should be asked to wait."""
        return 2 * self.used >= self.limit

    @property
    def is_nearly_empty(self) -> bool:
        """Whether senders may go on: at most a quarter is held."""
        return 4 * self.used <= self.limit

    def has_room(self, size: int) -> bool:
        """Whether this many more bytes may be held; an empty account takes whatever comes first."""
        return not self.used or self.used + size <= self.limit

    def take(self, size: int) -> None:
        """Hold this many more bytes."""
        account: Account | None = self
        while account is not None:
            account.used += size
            account = account.parent

    def give_back(self, size: int) -> None:
        """Hold this many fewer bytes."""
        self.take(-size)
