"""Heartbeats without a clock: when to send one, and when a peer has been silent for too long.

An idle session sends a heartbeat in each interval. A peer that promised the same and is not heard
for three intervals is considered gone. The owner of the clock calls `lapse` after each interval.
"""

from __future__ import annotations

from typing import Final

MISSED_BEATS: Final = 3
"""A peer that promised heartbeats and missed more than this many is considered gone."""


class Heartbeat:
    """What a session sent and received since the last interval.

    >>> beat = Heartbeat(15.0)
    >>> [beat.lapse(15, reading=True) for _ in range(4)]
    [0.0, 0.0, 0.0, 60.0]
    >>> beat.heard = True
    >>> beat.lapse(15, reading=True), beat.is_due
    (0.0, True)
    """

    __slots__ = ("_silent", "heard", "interval", "is_due", "sent")

    def __init__(self, interval: float) -> None:
        self.interval = interval  # seconds; 0 for none
        self.heard = False  # something was received since the last interval
        self.sent = False  # something was sent since the last interval
        self.is_due = False  # nothing was sent in the last interval
        self._silent = 0  # consecutive intervals without a sign of the peer

    def lapse(self, promised: float, *, reading: bool) -> float:
        """End an interval; returns the seconds of silence if the peer is gone, otherwise 0.

        `promised` are the seconds between the peer's heartbeats, 0 for none. Intervals in which the
        session was not `reading` do not count against the peer.
        """
        self._silent = 0 if self.heard or not reading else self._silent + 1
        self.is_due = not self.sent
        self.heard = self.sent = False
        silence = self._silent * self.interval
        if promised > 0 and silence > MISSED_BEATS * max(promised, self.interval):
            return silence
        return 0.0
