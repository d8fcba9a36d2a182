"""What time it is at a cluster controller that is a node of ours (TM-2).

A frame of joynr's says when it expires and is passed on as it is, with its signature. Nobody on its
way can translate that, so all that goes through a cluster controller is meant on the clock of that.
A node that is its application translates what it reads and writes.

joynr has no word for this. The cluster controller tells the time in its half of the handshake, and
is then asked now and then, in pongs that answer no ping: whoever does not know them ignores them
(RFC 6455, 5.5.3). One that tells no time is never asked, and taken to have ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from waystation.core.clock import PeerClock, now_ns, shifted
from waystation.core.expiry import Expiry
from waystation.wire import clock as wire
from waystation.wire.clock import ClockSample

HEADER: Final = "Waystation-Time"
"""A header of the handshake's answer: microseconds since the epoch."""

INTERVAL: Final = 2_000_000
"""Microseconds between two questions; in that time a clock is slewed by a tenth of a second."""

_DIGITS: Final = 20


class ControllerTime:
    """The clock of one cluster controller, and times there and here."""

    def __init__(self) -> None:
        self._clock: PeerClock | None = None  # until it told the time
        self._asked = 0  # when

    @property
    def ahead(self) -> int:
        """How far the clock there is ahead of ours, in milliseconds."""
        return 0 if self._clock is None else self._clock.shift_ms

    def told(self, headers: Sequence[str]) -> None:
        """Take the time from the header of the handshake, if there is one."""
        for header in headers[:1]:
            if header.isdecimal() and header.isascii() and len(header) < _DIGITS:
                self._clock = PeerClock()
                self._clock.hear(int(header), now())

    def question(self) -> bytes:
        """What to ask it now, if that is due and it knows an answer."""
        if self._clock is None:
            return b""
        at = now()
        if at - self._asked < INTERVAL:
            return b""
        self._asked = at
        return wire.encode(ClockSample(at))

    def answered(self, pong: bytes) -> None:
        """Take the answer to a question."""
        sample = wire.read(pong)
        if self._clock is not None and sample is not None and sample.asked == self._asked:
            self._clock.sample(sample.asked, sample.received, sample.answered, now())

    def here(self, expiry: Expiry) -> Expiry:
        """A time there on our clock."""
        return shifted(expiry, self.ahead) if self.ahead else expiry

    def there(self, expiry: Expiry) -> Expiry:
        """A time here on its clock."""
        return shifted(expiry, -self.ahead) if self.ahead else expiry


def now() -> int:
    """The time here, in microseconds."""
    return now_ns() // 1000


def answer_to(pong: bytes) -> bytes:
    """The pong that answers a question for the time; empty if it is none.

    >>> answer_to(b"7"), answer_to(wire.encode(ClockSample(7)))[:31]
    (b'', b'{"waystation":"clock","asked":7')
    """
    sample = wire.read(pong)
    if sample is None or sample.is_answer:
        return b""
    at = now()
    return wire.encode(ClockSample(sample.asked, at, at))
