"""The clock of a process, and what is known of the clocks of its peers (TM-1, TM-2).

This is the only place that reads the wall clock. Everybody else asks the clock of the process: it
begins with the wall clock and goes on with the time that passes, also while the machine sleeps.
When somebody sets the wall clock, it follows slowly, so that nothing expires at once and nothing
lives for an hour too long; a difference of more than ten minutes it does not follow at all.

The clock belongs to the context, so every program in a simulation has the one of its own machine,
and nobody has to pass it on. Who asks for every message keeps `current_clock()` when it is made;
everybody else calls `now_ns`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Final, TypeAlias
from weakref import WeakMethod

from waystation.core.expiry import LAST_INSTANT, NEVER, Expiry

Clock: TypeAlias = Callable[[], int]
"""Gives nanoseconds: since the epoch, or since whenever the machine was started."""

COMPARE_INTERVAL: Final = 100_000_000
"""Nanoseconds between two looks at the wall clock."""

SLEW: Final = 20
"""A second is mended in this many: the clock is never more than 5 % too fast or too slow."""

FOLLOWED: Final = 600 * 10**9
"""A difference of more nanoseconds to the wall clock is reported and not followed."""

UNNOTICED: Final = 1_000_000
"""A difference of fewer nanoseconds to the wall clock is none."""

SAME_CLOCK: Final = 50_000
"""Microseconds. Clocks of two nodes that differ by less are taken for the same."""

HELLO_DELAY: Final = 2_000_000
"""Microseconds for which a hello may have been on its way: so far behind, a clock may be right."""

MOVED: Final = 250_000_000
"""Nanoseconds: when it was slewed by so much, peers should measure it again."""

Watcher: TypeAlias = Callable[[], None]


class SteadyClock:
    """A clock that never jumps, steered by a wall clock that may.

    Until it is pinned nothing depends on it, and it is set whenever the wall clock is: so a machine
    without a battery may start in 1970. It never goes back once it is pinned. Threads may share it.

    While `boottime()` is before `steady_until`, it is `ahead` of it: who asks for every message may
    look at that first, as `read` does, without a call.

    >>> wall, passed = [1_000 * 10**9], [0]
    >>> clock = SteadyClock(lambda: wall[0], lambda: passed[0])
    >>> clock.pin()
    >>> wall[0], passed[0] = 1_021 * 10**9, 20 * 10**9  # 20 s pass; the wall clock gains one
    >>> clock.read() // 10**9
    1020
    >>> wall[0], passed[0] = 1_041 * 10**9, 40 * 10**9
    >>> clock.read() // 10**9, clock.offset_us()
    (1041, 0)
    """

    __slots__ = (
        "_course",
        "_earliest",
        "_pinned",
        "_told",
        "_wall",
        "_watchers",
        "ahead",
        "ahead_us",
        "boottime",
        "is_off",
        "steady_until",
    )

    def __init__(self, wall: Clock, boottime: Clock) -> None:
        self._wall = wall
        self.boottime = boottime
        self._pinned = False
        self._earliest = 0
        self._watchers: list[WeakMethod[Watcher]] = []
        self.is_off = False
        """Whether the wall clock differs by too much to be followed."""
        # Since when it runs as it does, how far it was ahead of the boot time then, and what it has
        # to gain or lose. One value, so that another thread sees all of it or nothing.
        self._course = (0, 0, 0)
        self.steady_until = 0  # until then it is this far ahead, and nothing else is to be done
        self.ahead = self.ahead_us = 0
        self._run_from(boottime(), wall(), 0)
        self._told = self.ahead  # how far it was ahead when the watchers were called

    def read(self) -> int:
        """The instant, in nanoseconds since the epoch."""
        boottime = self.boottime
        passed = boottime()
        if passed < self.steady_until:
            return passed + self.ahead
        return self._read_and_compare(passed)

    __call__ = read

    def pin(self) -> None:
        """Let it not be set any more: something depends on it from now on."""
        if not self._pinned:
            self._compare(self.boottime(), self.read())
            self._pinned = True

    def not_before(self, instant: int) -> None:
        """Let it begin after what happened before its process was started, unless it is pinned."""
        if not self._pinned and instant > self._earliest:
            self._earliest = instant
            passed = self.boottime()
            self._compare(passed, max(self._wall(), instant))

    def wall(self) -> int:
        """The wall clock: for times that strangers compare with theirs, as those of keys."""
        return self._wall()

    def offset_us(self) -> int:
        """How far the wall clock is ahead of it now, in microseconds."""
        return (self._wall() - self.read()) // 1000

    @property
    def is_slewing(self) -> bool:
        """Whether it runs too fast or too slow, until it agrees with the wall clock again."""
        return self._course[2] != 0

    def watch(self, watcher: Watcher) -> None:
        """Call a method, in whichever thread, when `is_off` changes or it was slewed for a while.

        The method's object may go whenever it likes.
        """
        self._watchers = [one for one in self._watchers if one() is not None]
        self._watchers.append(WeakMethod(watcher))

    def unwatch(self, watcher: Watcher) -> None:
        """Call a method no more."""
        self._watchers = [one for one in self._watchers if one() not in (None, watcher)]

    def _read_and_compare(self, passed: int) -> int:
        since, ahead, slew = self._course
        elapsed = passed - since
        mended = min(elapsed // SLEW, slew) if slew > 0 else max(-elapsed // SLEW, slew)
        now = passed + ahead + mended
        return now if elapsed < COMPARE_INTERVAL else self._compare(passed, now)

    def _compare(self, passed: int, now: int) -> int:
        """Look at the wall clock and choose the course; returns the instant."""
        wall = self._wall()
        if not self._pinned and wall >= self._earliest:
            now = wall
        offset = wall - now
        is_off = abs(offset) > FOLLOWED
        slew = 0 if is_off or abs(offset) < UNNOTICED else offset
        self._run_from(passed, now, slew)
        moved = abs(now - passed - self._told)
        if is_off != self.is_off or moved >= (MOVED if slew else SAME_CLOCK * 1000):
            self.is_off, self._told = is_off, now - passed
            for watcher in [one() for one in self._watchers]:
                if watcher is not None:
                    watcher()
        return now

    def _run_from(self, passed: int, now: int, slew: int) -> None:
        self.steady_until = 0
        self.ahead_us = (now - passed) // 1000
        self.ahead = now - passed
        self._course = (passed, now - passed, slew)
        if not slew:
            self.steady_until = passed + COMPARE_INTERVAL


def _boottime() -> Clock:
    """The time since the machine was started, which goes on while it is suspended.

    Where there is no such clock, it is one that may stand still meanwhile.
    """
    number = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic_ns if number is None else partial(time.clock_gettime_ns, number)


_of_this_process: Final = SteadyClock(time.time_ns, _boottime())
_clock: Final[ContextVar[SteadyClock]] = ContextVar("waystation clock", default=_of_this_process)


def current_clock() -> SteadyClock:
    """The clock of whatever runs now.

    >>> current_clock().read() > 1_700_000_000_000_000_000
    True
    """
    return _clock.get()


def now_ns() -> int:
    """The instant, in nanoseconds since the epoch."""
    return _clock.get().read()


def use_clock(clock: SteadyClock) -> None:
    """Let whatever is made in this context from now on have another clock."""
    _clock.set(clock)


# The clocks of peers.


class PeerClock:
    """How far the clock of a peer is ahead of ours, by what was measured.

    Four instants tell the offset: when we asked, when the peer got that and answered, and when the
    answer came. The time on the way there and back adds up to the round trip; as nobody knows how
    it divides, the offset is uncertain by half of it. So of several samples that of the least round
    trip counts, until a later one contradicts it.

    >>> clock = PeerClock()
    >>> clock.hear(theirs=5_000_000, ours=1_000_000)
    >>> clock.offset_us, clock.rtt_us
    (4000000, None)
    >>> clock.sample(1_000_000, 4_010_000, 4_010_100, 1_020_100)
    >>> clock.offset_us, clock.rtt_us
    (3000000, 20000)
    """

    __slots__ = ("offset_us", "rtt_us")

    def __init__(self) -> None:
        self.offset_us = 0
        self.rtt_us: int | None = None  # None: nothing was measured yet

    @property
    def shift_ms(self) -> int:
        """What is to be taken off the peer's times, in milliseconds; 0 for hardly any.

        Nothing is taken off that may come from the way: half of a round trip, or a hello's delay.
        """
        if self.rtt_us is not None:
            is_sure = abs(self.offset_us) >= SAME_CLOCK + self.rtt_us // 2
        else:
            is_sure = not -HELLO_DELAY < self.offset_us < SAME_CLOCK
        return round(self.offset_us / 1000) if is_sure else 0

    def hear(self, theirs: int, ours: int) -> None:
        """Take the time that a hello tells, in microseconds; it was on its way for a while."""
        if 0 < theirs <= LAST_INSTANT * 1000:
            self.offset_us = theirs - ours

    def sample(self, asked: int, received: int, answered: int, heard: int) -> None:
        """Take the four instants of a question and its answer, in microseconds."""
        rtt = (heard - asked) - (answered - received)
        if rtt < 0 or not 0 < received <= answered <= LAST_INSTANT * 1000:
            return
        offset = ((received - asked) + (answered - heard)) // 2
        kept = self.rtt_us
        # Both are right only if what they leave open overlaps; else a clock was set meanwhile.
        if kept is None or rtt <= kept or abs(offset - self.offset_us) > (rtt + kept) // 2 + 1:
            self.offset_us, self.rtt_us = offset, rtt

    def doubts(self, theirs: int, ours: int) -> bool:
        """Whether what a peer's question says of its clock calls for another measurement."""
        delay = 0 if self.rtt_us is None else self.rtt_us
        return abs(theirs - ours - self.offset_us) > SAME_CLOCK + delay


def shifted(expiry: Expiry, milliseconds: int) -> Expiry:
    """An expiry on a clock that is this far ahead, on ours (TM-2).

    >>> shifted(5_000, 1_000), shifted(5_000, -1_000), shifted(NEVER, 1_000), shifted(500, 1_000)
    (4000, 6000, inf, 0)
    """
    if expiry == NEVER:
        return NEVER
    moved = max(0, expiry - milliseconds)
    return moved if moved <= LAST_INSTANT else NEVER
