"""Which broadcasts a node has met already, so that a second copy is known as one (FL-6).

A broadcast reaches a node by every way there is: over several parents, around a ring of hubs, from
several hubs on one broker, and back from where it was sent. Only the first copy counts. What came
down from a parent or a global transport does not go up from here; if a copy then comes from below,
it still has to, once. A copy that has expired counts for nothing: another may come over a session
that knows the clock of who sent it, and may not have expired.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

REMEMBERED: Final = 32_768
"""Number of broadcasts that a node remembers at least: the latest."""


class Copy(Enum):
    """What a copy is to a node that may have met others."""

    FIRST = auto()
    FIRST_UPWARD = auto()  # known here, but those above may not have it
    REPEATED = auto()


_FIRST: Final = Copy.FIRST  # looked up for each broadcast


class Copies:
    """The broadcasts that a node met last.

    They are told apart by their id and by what they were published under: a worker may publish what
    it got under another name, and who may publish under one name cannot silence another.

    >>> copies = Copies()
    >>> print(copies.meet("4bf9" * 8, "garage/open", upward=False))
    Copy.FIRST
    >>> print(copies.meet("4bf9" * 8, "garage/open", upward=True))
    Copy.FIRST_UPWARD
    >>> print(copies.meet("4bf9" * 8, "garage/open", upward=True))
    Copy.REPEATED
    """

    __slots__ = ("_earlier", "_latest", "_limit")

    def __init__(self, limit: int = REMEMBERED) -> None:
        self._limit = limit
        # By the hash of both: whether one of the copies was to go up. To keep the texts would take
        # more memory, and more time than all the rest. When the latest are as many as the limit,
        # they become the earlier ones: so there are up to twice as many, and none is moved.
        self._latest: dict[int, bool] = {}
        self._earlier: dict[int, bool] = {}

    def __len__(self) -> int:
        return len(self._latest) + len(self._earlier)

    def meet(self, id: str, multicast_id: str, *, upward: bool, expired: bool = False) -> Copy:
        """Note a copy; `upward` for one that is to go on to those above, if there are any.

        One that has `expired` ends here, and is not noted.
        """
        latest, key = self._latest, hash((id, multicast_id))
        met = latest if key in latest else self._earlier
        if key not in met:
            if not expired:
                latest[key] = upward
                if len(latest) >= self._limit:
                    self._earlier, self._latest = latest, {}
            return _FIRST
        went_up = met[key]
        if went_up or not upward or expired:
            return Copy.REPEATED
        met[key] = True
        return Copy.FIRST_UPWARD
