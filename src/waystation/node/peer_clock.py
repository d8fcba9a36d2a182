"""Measures the clock of a session's peer, so that its times can be understood (TM-2, TM-3).

When a session opens, the peer's hello tells the time; a few questions and answers then tell it more
exactly. They are repeated every ten minutes, and whenever one of the two clocks was slewed by a
quarter of a second.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final

from waystation.core.clock import PeerClock
from waystation.core.record import PeerClockRecord
from waystation.wire import clock as wire
from waystation.wire.clock import ClockSample
from waystation.wire.hello import Hello

if TYPE_CHECKING:
    from waystation.node.session import Session

FIRST_SAMPLES: Final = 4
"""Questions when a session opens."""

LATER_SAMPLES: Final = 2
"""Questions each time after that."""

INTERVAL: Final = 600.0
"""Seconds between two measurements."""

TOLD_INTERVAL: Final = 60.0
"""Seconds after which another row of the journal may tell that an offset has changed."""

SHORTEST: Final = 1.0
"""Seconds between two measurements, however often a peer gives cause for one."""

CHANGE: Final = 1_000
"""A change of an offset by more microseconds than this is journalled."""


class PeerClockMeter:
    """The clock of the peer at the other end of one link."""

    __slots__ = ("_asked", "_began", "_left", "_session", "_timer", "_told", "_told_at", "clock")

    def __init__(self, session: Session) -> None:
        self._session = session
        self.clock: PeerClock | None = None  # until the peer told the time
        self._asked = 0  # when, if an answer is awaited
        self._left = 0  # questions of this measurement
        self._began: float | None = None  # the last measurement, by the clock of the loop
        self._told = 0
        self._told_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def greeted(self, hello: Hello) -> None:
        """Take the time from the peer's hello."""
        if hello.time:
            self.clock = PeerClock()
            self.clock.hear(hello.time, self._now())
            self._session.clock_measured(self.clock)

    def begin(self, hello: Hello | None) -> None:
        """Measure for the first time: the session is open, and the hello, if any, has come."""
        if hello is None or self.clock is None or self._began is not None:
            return
        if wire.CAPABILITY in hello.can:
            self._measure(FIRST_SAMPLES)
        else:
            self._tell()

    def measure_soon(self) -> None:
        """Measure again, since one of the two clocks may have changed."""
        if self._began is None or self._left or self._seconds_since(self._began) < SHORTEST:
            return
        self._measure()

    def receive(self, payload: bytes) -> bool:
        """Take a question or an answer of the peer; False if it is neither."""
        sample = wire.read(payload)
        if sample is None:
            return False
        now = self._now()
        if not sample.is_answer:
            self._session.answer(wire.encode(ClockSample(sample.asked, now, now)))
            if self.clock is not None and self.clock.doubts(sample.asked, now):
                self.measure_soon()
        elif sample.asked == self._asked and self.clock is not None:
            self.clock.sample(sample.asked, sample.received, sample.answered, now)
            self._session.clock_measured(self.clock)
            self._left -= 1
            if self._left:
                self._ask()
            else:
                self._finish()
        return True

    def stop(self) -> None:
        """Measure no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _now(self) -> int:
        return self._session.kernel.tick()

    @staticmethod
    def _seconds_since(then: float | None) -> float:
        return math.inf if then is None else asyncio.get_running_loop().time() - then

    def _measure(self, samples: int = LATER_SAMPLES) -> None:
        self._began = asyncio.get_running_loop().time()
        self._left = samples
        self._schedule(TOLD_INTERVAL)  # in case that no answer comes
        self._ask()

    def _ask(self) -> None:
        self._asked = self._now()
        self._session.send_control(wire.encode(ClockSample(self._asked)))

    def _finish(self) -> None:
        self._asked = 0
        assert self.clock is not None
        changed = abs(self.clock.offset_us - self._told) > CHANGE
        silent = self._seconds_since(self._told_at)
        if silent >= (TOLD_INTERVAL if changed else INTERVAL):
            self._tell()
            changed = False
        self._schedule(max(SHORTEST, TOLD_INTERVAL - silent) if changed else INTERVAL)

    def _tell(self) -> None:
        assert self.clock is not None
        session, clock = self._session, self.clock
        self._told, self._told_at = clock.offset_us, asyncio.get_running_loop().time()
        at = self._now()
        session.kernel.notify(
            PeerClockRecord(session.record(at), clock.offset_us, clock.rtt_us, at)
        )

    def _schedule(self, seconds: float) -> None:
        self.stop()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._measure)
