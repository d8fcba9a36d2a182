"""The links of a simulated fleet, and the sessions over them.

A link has a node that dials and one that listens. It carries a session while both run and nothing
is wrong between them. A node that stops says so; that a node crashed, or that a link broke, the
other side notices some seconds later, and what is sent meanwhile never arrives. Pure arithmetic,
as in fleet.py; the times are true ones, whatever the nodes' clocks show.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from waystation.simulate.fleet import (
    DURATION,
    HUB,
    MILLISECOND,
    NEVER,
    SECOND,
    WINDOWS,
    Array,
    Dice,
    Fleet,
    Uptimes,
    uptimes,
)

ANNOUNCED: Final = MILLISECOND
"""After a session opened: the leaf has announced its name."""

SUBSCRIBED: Final = 2 * MILLISECOND
"""And its subscriptions."""

_SPAN: Final = 4 * DURATION


class End(IntEnum):
    """What ended a session."""

    NONE = 0
    DIALER = 1  # the node that dials ended
    LISTENER = 2
    LINK = 3  # the link broke


class Sessions(NamedTuple):
    """Sessions, by link and in the order of time."""

    link: Array
    number: Array  # among those of its link
    opened: Array
    breaks: Array  # what would arrive from then on does not
    end: Array
    dialer_window: Array
    listener_window: Array
    dialer_until: Array  # when that side knows that it is over, or ends itself
    dialer_told: Array  # whether that side records it
    listener_until: Array
    listener_told: Array

    def where(self, chosen: Array) -> Sessions:
        """A selection of the sessions."""
        return Sessions(*(column[chosen] for column in self))

    def latest(self, link: Array, at: Array, start: int) -> Array:
        """The last session of each link that opened up to a time; -1 if none did."""
        if not len(self.link):
            return np.full(len(at), -1)
        keys = self.link * _SPAN + (self.opened - start)
        found: Array = np.searchsorted(keys, link * _SPAN + (at - start), side="right") - 1
        return np.where((found >= 0) & (self.link[found] == link), found, -1)

    def reopened(self) -> Array:
        """When the next session of the same link opened; NEVER if none did."""
        again = np.full(len(self.link), NEVER)
        if len(again):
            same = self.link[1:] == self.link[:-1]
            again[:-1][same] = self.opened[1:][same]
        return again


def leaf_sessions(fleet: Fleet, cell: int, ups: Uptimes) -> Sessions:
    """Between the leaves of a cell, which dial, and their hub; the link is the leaf's number."""
    leaves = np.arange(1, fleet.leaves(cell) + 1)
    hub = Uptimes(*(np.broadcast_to(column[HUB], (len(leaves), WINDOWS)) for column in ups))
    dialers = Uptimes(*(column[leaves] for column in ups))
    return _sessions(fleet, Dice(fleet.seed, cell, 6), leaves, dialers, hub)


def hub_sessions(fleet: Fleet, cell: int) -> Sessions:
    """Between the hub of a cell, which dials, and that of the next; all of link 0."""
    near, far = uptimes(fleet, cell), uptimes(fleet, fleet.following(cell))
    hubs = [Uptimes(*(column[:1] for column in ups)) for ups in (near, far)]
    return _sessions(fleet, Dice(fleet.seed, cell, 7), np.zeros(1, np.int64), *hubs)


def _sessions(
    fleet: Fleet, dice: Dice, link: Array, dialer: Uptimes, listener: Uptimes
) -> Sessions:
    broken = fleet.start + dice.pick("broken", link, 0.1 * DURATION, 0.9 * DURATION)
    breaks = (dice.throw("breaks", link) < 0.3) & ("close" not in fleet.otherwise.without)
    broken = np.where(breaks, broken, NEVER)
    repaired = broken + dice.pick("repaired", link, 4 * SECOND, 12 * SECOND)
    parts = []
    for near in range(WINDOWS):
        for far in range(WINDOWS):
            numbers = (link * WINDOWS + near) * WINDOWS + far
            begin = np.maximum(dialer.begin[:, near], listener.begin[:, far])
            opened = begin + dice.pick("dials", numbers, 150 * MILLISECOND, 900 * MILLISECOND)
            ended = np.minimum(dialer.end[:, near], listener.end[:, far])
            end = np.where(dialer.end[:, near] <= ended, End.DIALER, End.LISTENER)
            end = np.where(ended == NEVER, End.NONE, end)
            there = (begin < NEVER) & (opened < ended - SECOND)
            cut = there & (opened + SECOND < broken) & (repaired < ended - SECOND)
            for chosen, since, until, why in (
                (there & ~cut, opened, ended, end),
                (cut, opened, broken, np.full(len(link), End.LINK)),
                (cut, repaired, ended, end),
            ):
                windows = (np.full(len(link), near), np.full(len(link), far))
                columns = (link, since, until, why, *windows)
                parts.append(tuple(column[chosen] for column in columns))
    joined = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.lexsort((joined[1], joined[0]))
    return _noticed(dice, dialer, listener, int(link[0]), *(column[order] for column in joined))


def _noticed(
    dice: Dice,
    dialer: Uptimes,
    listener: Uptimes,
    first_link: int,
    link: Array,
    opened: Array,
    ended: Array,
    end: Array,
    near: Array,
    far: Array,
) -> Sessions:
    """The sessions, with the times at which both sides notice that they are over."""
    row = link - first_link
    first = np.append(True, link[1:] != link[:-1]) if len(link) else np.zeros(0, bool)
    begins = np.flatnonzero(first)
    number = np.arange(len(link)) - np.repeat(begins, np.diff(np.append(begins, len(link))))
    breaks = np.where(ended == NEVER, NEVER, np.where(end == End.LINK, ended, ended - MILLISECOND))
    bare = Sessions(link, number, opened, breaks, end, near, far, *[opened] * 4)
    latest = bare.reopened() - MILLISECOND  # a new session replaces one whose end is not known yet
    known = []
    for side, ups, window, other, other_window in (
        (End.DIALER, dialer, near, listener, far),
        (End.LISTENER, listener, far, dialer, near),
    ):
        own_end = ups.end[row, window]
        notices = dice.pick(f"notices {side}", link * 64 + number, 300 * MILLISECOND, 3 * SECOND)
        told = (end != End.NONE) & (end != End.LINK) & other.stopped[row, other_window]
        until = np.minimum(ended + np.where(told, MILLISECOND, notices), latest)
        until = np.where((end == side) | (end == End.NONE), own_end, until)
        records = (end != side) & (end != End.NONE) & (until < own_end - MILLISECOND)
        known += [np.where(records, until, own_end), records]
    return Sessions(link, number, opened, breaks, end, near, far, *known)
