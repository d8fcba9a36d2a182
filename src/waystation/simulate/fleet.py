"""A simulated fleet: its nodes, and the participants that come and go there.

Pure arithmetic on arrays, without files and without Spark. Everything random is a hash of the seed
and of what it is about, never of earlier results, so that any part of the fleet can be
computed anywhere, in any order, with the same result.

The fleet is made of cells: a hub and its leaves. A participant sits at a leaf, where it has a local
entry, and renews a lease at the hub, which knows the leaf. Who is where, and what the tables
hold at any time, is computed here; what is sent, in traffic.py. Times are microseconds since the
epoch.
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from waystation.core.message import HOP_LIMIT

Array: TypeAlias = npt.NDArray[Any]

SECOND: Final = 1_000_000
MILLISECOND: Final = 1_000
DURATION: Final = 3_600 * SECOND
LEASE: Final = 600 * SECOND
RENEWAL: Final = 240 * SECOND
WINDOWS: Final = 3  # maximum number of times that a node is up
STAYS: Final = 3  # maximum number of leaves that a participant is at, one after the other
APPS: Final = 4  # applications that send, at each node
OURS: Final = APPS  # and after them one that belongs to the node itself
SENDERS: Final = APPS + 1
STRANGERS: Final = 64  # names that nobody has
BROADCASTS: Final = 4  # that may have subscribers; there is one more that nobody subscribes to
NEVER: Final = np.iinfo(np.int64).max // 2
NOBODY: Final = -1

HUB: Final = 0
"""The number of the hub among the nodes of its cell; leaves count from 1."""


class Loss(IntEnum):
    """Why a message, or one copy of it, did not reach a recipient."""

    NONE = 0
    HOP_LIMIT = 1
    EXPIRED = 2
    NO_SUBSCRIBER = 3
    NO_ROUTE_NEVER = 4  # the name was never known there
    NO_ROUTE_REMOVED = 5
    NO_ROUTE_EXPIRED = 6
    NO_ROUTE_STOPPED = 7  # known only to an earlier incarnation, which was stopped
    NO_ROUTE_RESTART = 8  # or which ended without a stop record
    QUEUE_FULL = 9
    FAILED = 10
    TRANSPORT_DOWN = 11
    VANISHED = 12  # sent to the next node, and never seen again
    NO_ROUTE_CLOSED = 13  # the session that an answer was to go back over
    DUPLICATE = 14  # a second copy: nobody misses it

    @property
    def cause(self) -> tuple[str, str | None]:
        """The reason in the journal, if there is one, and the cause behind it.

        >>> Loss.NO_ROUTE_EXPIRED.cause, Loss.QUEUE_FULL.cause
        (('NO_ROUTE', 'expired'), ('QUEUE_FULL', None))
        """
        reason, _, detail = self.name.partition("NO_ROUTE_")
        return (reason, None) if reason else ("NO_ROUTE", detail.lower())


class Dice:
    """Randomness that depends on the seed, on a keyword, and on a number."""

    def __init__(self, seed: int, *place: int) -> None:
        self._seed = zlib.crc32(repr((seed, *place)).encode())

    def bits(self, word: str, numbers: Array) -> Array:
        """64 random bits for each number."""
        salt = (self._seed << 32) | zlib.crc32(word.encode())
        bits = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        bits += np.uint64(salt)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            bits ^= bits >> np.uint64(shift)
            bits *= np.uint64(factor)
        mixed: Array = bits ^ (bits >> np.uint64(31))
        return mixed

    def throw(self, word: str, numbers: Array) -> Array:
        """From 0 to 1, excluding 1."""
        thrown: Array = (self.bits(word, numbers) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return thrown

    def pick(self, word: str, numbers: Array, low: Any, high: Any) -> Array:
        """An integer from `low` to `high`, excluding `high`."""
        picked: Array = (low + self.throw(word, numbers) * (high - low)).astype(np.int64)
        return picked


class Otherwise(Struct, frozen=True, omit_defaults=True):
    """What is different from the fleet that the same seed gives without it."""

    lease: int = LEASE  # how long the hub keeps an entry that is not renewed
    sticky: bool = False  # whether all entries of hubs are
    hop_limit: int = HOP_LIMIT
    life: float = 1.0  # how many times as long messages live
    without: tuple[str, ...] = ()  # crash, stop, close: what does not happen


class Fleet(Struct, frozen=True, dict=True):
    """The size of a fleet, and the seed that determines everything else."""

    nodes: int
    participants: int
    messages: int
    seed: int = 0
    start: int = 1_767_225_600 * SECOND  # the start of 2026
    gaps: bool = False  # whether the journals of some nodes are incomplete
    otherwise: Otherwise = Otherwise()

    @cached_property
    def cells(self) -> int:
        """The number of hubs."""
        leaves = min(max(self.nodes // 8, 1), 16)
        return max(1, self.nodes // (leaves + 1))

    def leaves(self, cell: int) -> int:
        """The number of leaves of a hub."""
        return self.nodes // self.cells + (cell < self.nodes % self.cells) - 1

    def sizes(self, cell: int) -> tuple[int, int]:
        """The number of participants in a cell, and of messages that begin there.

        The first cells are busier than the others.
        """
        own = _share(self.participants, cell, self.cells)
        first = self._bounds[cell - 1] if cell else 0
        return own, int(self._bounds[cell] - first)

    @cached_property
    def _bounds(self) -> Array:
        """The end of each cell's range of message numbers; computed once for all cells."""
        weights = 1.0 / np.sqrt(np.arange(1, self.cells + 1))
        shares: Array = np.cumsum(weights) / weights.sum()
        bounds: Array = np.floor(self.messages * shares + 0.5).astype(int)
        bounds[-1] = self.messages
        return bounds

    def following(self, cell: int) -> int:
        """The cell that a cell sends to."""
        return (cell + 1) % self.cells

    def preceding(self, cell: int) -> int:
        """The cell that sends to this one."""
        return (cell - 1) % self.cells


def _share(total: int, number: int, parts: int) -> int:
    return total // parts + (number < total % parts)


class Uptimes(NamedTuple):
    """When the nodes of a cell ran: arrays of nodes by windows; NEVER where there is none."""

    begin: Array
    end: Array
    stopped: Array  # whether the window ended with a stop record

    def window(self, node: Array, at: Array) -> Array:
        """The window of a node that contains a time; -1 while the node is down.

        The end of a window counts as down: nothing that begins there would be finished.
        """
        found = np.full(len(at), -1)
        for number in range(WINDOWS):
            up = (self.begin[node, number] <= at) & (at < self.end[node, number] - MILLISECOND)
            found = np.where(up, number, found)
        return found


def uptimes(fleet: Fleet, cell: int) -> Uptimes:
    """When each node of a cell ran."""
    dice = Dice(fleet.seed, cell)
    nodes = np.arange(fleet.leaves(cell) + 1)
    restarts = np.searchsorted([0.75, 0.93], dice.throw("restarts", nodes), side="right")
    begin = np.full((len(nodes), WINDOWS), NEVER)
    end = np.full((len(nodes), WINDOWS), NEVER)
    stopped = np.zeros((len(nodes), WINDOWS), bool)
    begin[:, 0] = fleet.start + dice.pick("boot", nodes, 0, SECOND)
    window = np.zeros(len(nodes), np.int64)
    for number, (early, late) in enumerate(((0.3, 0.5), (0.6, 0.8))):
        falls = dice.pick(f"fall {number}", nodes, early * DURATION, late * DURATION)
        down = dice.pick(f"down {number}", nodes, SECOND, 20 * SECOND)
        says_so = dice.throw(f"word {number}", nodes) < 0.5
        happens = np.where(
            says_so, "stop" not in fleet.otherwise.without, "crash" not in fleet.otherwise.without
        )
        again = np.flatnonzero((restarts > number) & happens)
        end[again, window[again]] = fleet.start + falls[again]
        stopped[again, window[again]] = says_so[again]
        window[again] += 1
        begin[again, window[again]] = fleet.start + (falls + down)[again]
    return Uptimes(begin, end, stopped)


def clocks(fleet: Fleet, cell: int) -> Array:
    """How far the clock of each node of a cell is ahead of the true time: whole milliseconds.

    Most differ by a little, some by a fraction of a second, and a few leaves by minutes.
    """
    dice = Dice(fleet.seed, cell, 8)
    nodes = np.arange(fleet.leaves(cell) + 1)
    how = np.searchsorted([0.85, 0.95], dice.throw("clock", nodes), side="right")
    how = np.where(nodes == HUB, np.minimum(how, 1), how)
    most = np.array([4, 900, 180_000])[how]
    ahead: Array = dice.pick("ahead", nodes, -most, most + 1) * MILLISECOND
    return ahead


class Changes(NamedTuple):
    """Changes of routing entries or subscriptions, in no particular order."""

    node: Array
    at: Array
    removes: Array  # or unsubscribes
    participant: Array
    leaf: Array  # where the entry points: a leaf, or nowhere else (NOBODY)
    expiry: Array
    sticky: Array
    visible: Array
    accepted: Array

    @classmethod
    def of(cls, node: Array, at: Array, participant: Array, **more: Any) -> Changes:
        """Changes, with defaults for what is not given."""
        usual = {
            "removes": False,
            "leaf": NOBODY,
            "expiry": NEVER,
            "sticky": False,
            "visible": False,
            "accepted": True,
        }
        columns = {
            name: np.broadcast_to(np.asarray(value), at.shape)
            for name, value in {**usual, **more}.items()
        }
        return cls(node=np.broadcast_to(node, at.shape), at=at, participant=participant, **columns)

    def where(self, chosen: Array) -> Changes:
        """A selection of the changes."""
        return Changes(*(column[chosen] for column in self))

    @classmethod
    def together(cls, parts: list[Changes]) -> Changes:
        """The changes of several sources."""
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


class Known(NamedTuple):
    """Routing entries for lookups: the accepted changes, sorted by participant and time."""

    key: Array
    changes: Changes
    origin: int

    @classmethod
    def of(cls, changes: Changes, origin: int, participants: int) -> Known:
        """Index the accepted changes. With several nodes, the key is (node, participant)."""
        changes = changes.where(changes.accepted)
        key = _key(changes.node * participants + changes.participant, changes.at, origin)
        order = np.argsort(key, kind="stable")
        return cls(key[order], changes.where(order), origin)

    def last(self, holder: Array, at: Array) -> Array:
        """The index of each participant's last change up to a time; -1 if there is none."""
        if not len(self.key):
            return np.full(len(at), -1)
        key = _key(holder, at, self.origin)
        found: Array = np.searchsorted(self.key, key, side="right") - 1
        none = (found < 0) | (self.key[found] // _SPAN != holder)
        return np.where(none, -1, found)


_SPAN: Final = 4 * DURATION  # larger than any time since the start


def _key(holder: Array, at: Array, origin: int) -> Array:
    key: Array = holder * _SPAN + (at - origin)
    return key


class Found(NamedTuple):
    """The result of a lookup: whether there is an entry, where it points, and if none, why."""

    found: Array
    leaf: Array
    loss: Array
    since: Array  # when the last one ended; 0 if there never was one


class Subscribed(NamedTuple):
    """Subscriptions at the leaves: their periods, and what they cover."""

    leaf: Array
    window: Array
    participant: Array
    begin: Array
    end: Array
    kind: Array  # 0 exact, 1 any region, 2 a region with all below
    broadcast: Array
    region: Array
    zone: Array


class Cell:
    """One hub and its leaves: who is where, and what the routing tables hold at any time."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self.fleet = fleet
        self.number = number
        self.leaves = fleet.leaves(number)
        self.participants, self.messages = fleet.sizes(number)
        self.dice = Dice(fleet.seed, number)
        self.uptimes = uptimes(fleet, number)
        self.clocks = clocks(fleet, number)
        self._settle()
        self.regions = max(5, self._subscribers_a_leaf // 80)
        self.zones = max(8, self._subscribers_a_leaf // 40)
        self.leaf_changes = self._leaf_changes()
        self.at_leaves = Known.of(self.leaf_changes, fleet.start, self.participants)
        self.hub_changes = self._hub_changes()
        self.at_hub = Known.of(self.hub_changes, fleet.start, self.participants)
        self.subscribed = self._subscriptions()
        self.subscription_keys = self._sorted_subscriptions()

    @property
    def _subscribers_a_leaf(self) -> int:
        return self.participants // (4 * self.leaves)

    # Where participants are

    def _settle(self) -> None:
        """Decide when each participant is at which leaf, and how each stay ends."""
        dice, who, start = self.dice, np.arange(self.participants), self.fleet.start
        early = dice.throw("early", who) < 0.85
        latest = np.where(early, 0.05, 0.6) * DURATION
        self.begin = np.full((self.participants, STAYS), NEVER)
        self.end = np.full((self.participants, STAYS), NEVER)
        self.leaf = np.zeros((self.participants, STAYS), np.int64)
        self.departs = np.zeros((self.participants, STAYS), bool)  # and unregisters
        self.begin[:, 0] = start + 2 * SECOND + (dice.throw("join", who) * latest).astype(np.int64)
        self.leaf[:, 0] = 1 + dice.pick("leaf", who, 0, self.leaves)
        fate = dice.throw("fate", who)
        leaves, lapses, returns, moves, moves_twice = (
            (low <= fate) & (fate < high)
            for low, high in ((0.6, 0.72), (0.72, 0.82), (0.82, 0.87), (0.87, 0.97), (0.97, 1.0))
        )
        moving = moves | moves_twice
        reconnects = moving & (dice.throw("reconnects", who) < 0.4)  # to the same leaf
        for stay, ending in ((0, leaves | lapses | returns | moving), (1, moves_twice)):
            lasts = dice.pick(f"lasts {stay}", who, 0.1 * DURATION, 0.25 * DURATION)
            ends = self.begin[:, stay] + lasts
            self.end[ending, stay] = ends[ending]
        self.departs[leaves | moving, 0] = True
        self.departs[moves_twice, 1] = True
        for stay, goes_on in ((1, moving | returns), (2, moves_twice)):
            gap = dice.pick(f"gap {stay}", who, 50 * MILLISECOND, 5 * SECOND)
            gap = np.where(returns, gap + LEASE, gap)
            away = self.leaf[:, stay - 1] + 1 + dice.pick(f"away {stay}", who, 0, self.leaves - 1)
            away = np.where(reconnects, self.leaf[:, stay - 1], away)
            self.begin[goes_on, stay] = (self.end[:, stay - 1] + gap)[goes_on]
            self.leaf[goes_on, stay] = (1 + (away - 1) % self.leaves)[goes_on]
        self.sticky = (dice.throw("sticky", who) < 0.03) | self.fleet.otherwise.sticky
        self.visible = dice.throw("visible", who) < 0.5
        self.subscribes = dice.throw("subscribes", who) < 0.25
        slow = dice.throw("slow", who) < 0.02  # has no room for a while
        slows = start + dice.pick("slows", who, 0.1 * DURATION, 0.9 * DURATION)
        self.slow_from = np.where(slow, slows, NEVER)
        self.slow_until = self.slow_from + dice.pick("slow for", who, 10 * SECOND, 60 * SECOND)

    # Leaves

    def _presences(self) -> tuple[Array, ...]:
        """Each stay as long as its leaf was up: participant, stay, window, from and until."""
        parts = []
        ups = self.uptimes
        for stay in range(STAYS):
            who = np.flatnonzero(self.begin[:, stay] < NEVER)
            leaf, begin = self.leaf[who, stay], self.begin[who, stay]
            gone = np.where(self.departs[who, stay], self.end[who, stay], NEVER)
            for window in range(WINDOWS):
                up, down = ups.begin[leaf, window], ups.end[leaf, window]
                late = self.dice.pick(f"rejoin {window}", who, SECOND // 10, 10 * SECOND)
                since = np.where(up > begin, up + late, begin)
                until = np.minimum(gone, down)
                there = (up < NEVER) & (since < until - MILLISECOND)
                columns = (who, np.full(len(who), stay), np.full(len(who), window), since, until)
                parts.append(tuple(column[there] for column in columns))
        return tuple(np.concatenate(columns) for columns in zip(*parts, strict=True))

    def _leaf_changes(self) -> Changes:
        self.presences = who, stay, window, since, until = self._presences()
        leaf = self.leaf[who, stay]
        departs = self.departs[who, stay] & (until == self.end[who, stay])
        departs &= until < self.uptimes.end[leaf, window] - MILLISECOND
        self.presence_departs = departs
        # A remote entry for a participant that is local here, which is refused.
        claimed = since + 700 * MILLISECOND
        claims = (self.dice.throw("claim", who * STAYS + stay) < 0.05) & (claimed < until - SECOND)
        visible = self.visible[who]
        return Changes.together(
            [
                Changes.of(leaf, since, who, visible=visible),
                Changes.of(leaf, until, who, removes=True, visible=visible).where(departs),
                Changes.of(leaf, claimed, who, leaf=HUB, accepted=False).where(claims),
            ]
        )

    def at_leaf(self, leaf: Array, who: Array, at: Array, window: Array) -> Found:
        """Whether a participant has an entry at a leaf."""
        known = self.at_leaves
        last = known.last(leaf * self.participants + who, at)
        return self._look_up(known, last, leaf, at, window)

    # The hub

    def _hub_changes(self) -> Changes:
        parts = []
        ups, who_all = self.uptimes, np.arange(self.participants)
        jitter = self.dice.pick("renewal", who_all, 0, RENEWAL // 4)
        last_instant = self.fleet.start + DURATION
        for stay in range(STAYS):
            who = np.flatnonzero(self.begin[:, stay] < NEVER)
            begin, end = self.begin[who, stay], np.minimum(self.end[who, stay], last_instant)
            step = RENEWAL + jitter[who]
            count = np.maximum(-((begin - end) // step), 0)
            number = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
            whose = np.repeat(who, count)
            at = np.repeat(begin, count) + number * np.repeat(step, count)
            up = ups.window(np.zeros(len(at), np.int64), at) >= 0
            parts.append(
                Changes.of(
                    np.asarray(HUB),
                    at,
                    whose,
                    leaf=self.leaf[whose, stay],
                    expiry=at // MILLISECOND * MILLISECOND + self.fleet.otherwise.lease,
                    sticky=self.sticky[whose],
                    visible=self.visible[whose],
                ).where(up)
            )
        puts = Changes.together(parts)
        return Changes.together([puts, self._hub_removes(puts)])

    def _hub_removes(self, puts: Changes) -> Changes:
        """Participants that left for good are removed, if they are still there."""
        stays_left = self.departs & np.column_stack(
            [self.begin[:, 1:] == NEVER, np.ones(self.participants, bool)]
        )
        who, stay = np.nonzero(stays_left)
        at = self.end[who, stay] + 2 * MILLISECOND
        hub = np.zeros(len(who), np.int64)
        window = self.uptimes.window(hub, at)
        known = Known.of(puts, self.fleet.start, self.participants)
        there = self._look_up(known, known.last(who, at), hub, at, window).found & (window >= 0)
        before = known.changes
        last = known.last(who, at)
        gone = Changes.of(
            np.asarray(HUB),
            at,
            who,
            removes=True,
            **{
                name: getattr(before, name)[last]
                for name in ("leaf", "expiry", "sticky", "visible")
            },
        )
        return gone.where(there)

    def at_the_hub(self, who: Array, at: Array, window: Array) -> Found:
        """The entry that the hub has for a participant."""
        known = self.at_hub
        return self._look_up(known, known.last(who, at), np.zeros(len(who), np.int64), at, window)

    def put_again(self, who: Array, after: Array) -> Array:
        """When the hub's next entry for a participant began; NEVER if it had no other."""
        known = self.at_hub
        if not len(known.key):
            return np.full(len(who), NEVER)
        found = np.searchsorted(known.key, _key(who, after, known.origin), side="right")
        there = np.minimum(found, len(known.key) - 1)
        same = (found < len(known.key)) & (known.changes.participant[there] == who)
        again: Array = np.where(same, known.changes.at[there], NEVER)
        return again

    def _look_up(self, known: Known, last: Array, node: Array, at: Array, window: Array) -> Found:
        changes, ups = known.changes, self.uptimes
        if not len(changes.at):
            nobody = np.full(len(last), Loss.NO_ROUTE_NEVER)
            return Found(np.zeros(len(last), bool), nobody, nobody, np.zeros(len(last), np.int64))
        ever = last >= 0
        put = ever & ~changes.removes[last]
        same = changes.at[last] >= ups.begin[node, window]
        expires = np.where(changes.sticky[last], NEVER, changes.expiry[last])
        found = put & same & (at < expires)
        # An entry of an earlier incarnation may have expired before that incarnation ended.
        then = ups.window(node, changes.at[last])
        followed = ups.begin[node, np.minimum(then + 1, WINDOWS - 1)]
        ended = np.where(ups.stopped[node, then], ups.end[node, then], followed)
        over = put & ~same & (expires > ended)
        loss = np.select(
            [
                found,
                ~ever,
                ~put,
                over & ups.stopped[node, then],
                over,
            ],
            [
                Loss.NONE,
                Loss.NO_ROUTE_NEVER,
                Loss.NO_ROUTE_REMOVED,
                Loss.NO_ROUTE_STOPPED,
                Loss.NO_ROUTE_RESTART,
            ],
            Loss.NO_ROUTE_EXPIRED,
        )
        gone = np.select([~ever, ~put, over], [0, changes.at[last], ended], expires)
        return Found(found, changes.leaf[last], loss, np.where(found, 0, gone))

    # Subscriptions

    def _subscriptions(self) -> Subscribed:
        who, stay, window, since, until = self.presences
        leaf = self.leaf[who, stay]
        taken = self.subscribes[who]
        later = np.column_stack([self.begin[:, 1:] < NEVER, np.zeros(self.participants, bool)])
        # Some participants that leave for good do not unsubscribe.
        forgets = ~later[who, stay] & (self.dice.throw("forgets", who) < 0.2)
        ends = np.where(self.presence_departs & ~forgets, until - 1, self.uptimes.end[leaf, window])
        kind = np.searchsorted([0.7, 0.9], self.dice.throw("pattern", who), side="right")
        columns = (
            leaf,
            window,
            who,
            since + 1,
            ends,
            kind,
            self.dice.pick("broadcast", who, 0, BROADCASTS),
            self.dice.pick("region", who, 0, self.regions),
            self.dice.pick("zone", who, 0, self.zones),
        )
        return Subscribed(*(column[taken] for column in columns))

    def subscription_changes(self) -> tuple[Array, Array, Array, Array]:
        """When each subscription began or ended: node, time, whether it ended, and which one."""
        subscribed, numbers = self.subscribed, np.arange(len(self.subscribed.leaf))
        ended = subscribed.end < self.uptimes.end[subscribed.leaf, subscribed.window]
        return (
            np.concatenate([subscribed.leaf, subscribed.leaf[ended]]),
            np.concatenate([subscribed.begin, subscribed.end[ended]]),
            np.concatenate([np.zeros(len(numbers), bool), np.ones(ended.sum(), bool)]),
            np.concatenate([numbers, numbers[ended]]),
        )

    def pattern_key(
        self, kind: Any, leaf: Array, broadcast: Array, region: Array, zone: Array
    ) -> Array:
        """A number for each pattern at each leaf; segments that a wildcard covers are ignored."""
        region = np.where(kind == 1, 0, region)
        zone = np.where(kind == 2, 0, zone)
        place = ((leaf * 3 + kind) * (BROADCASTS + 1) + broadcast) * self.regions + region
        key: Array = place * self.zones + zone
        return key

    def _sorted_subscriptions(self) -> tuple[Array, Array]:
        held = self.subscribed
        key = self.pattern_key(held.kind, held.leaf, held.broadcast, held.region, held.zone)
        order = np.argsort(key, kind="stable")
        return key[order], order

    def receivers(
        self, leaf: Array, at: Array, broadcast: Array, region: Array, zone: Array
    ) -> tuple[Array, Array]:
        """The receivers of each publication at a leaf: pairs of publication and participant."""
        keys, order = self.subscription_keys
        publications, found = [], []
        for kind in range(3):
            key = self.pattern_key(kind, leaf, broadcast, region, zone)
            low, high = np.searchsorted(keys, key), np.searchsorted(keys, key, side="right")
            which, offset = expanded(high - low)
            held = order[low[which] + offset]
            subscribed = self.subscribed
            live = (subscribed.begin[held] <= at[which]) & (at[which] < subscribed.end[held])
            publications.append(which[live])
            found.append(subscribed.participant[held[live]])
        which, who = np.concatenate(publications), np.concatenate(found)
        pair = np.unique(which * max(self.participants, 1) + who)  # counts once
        return pair // max(self.participants, 1), pair % max(self.participants, 1)

    def wanted_by_leaf(self, leaf: Array, broadcast: Array) -> Array:
        """Whether a leaf subscribed to a broadcast at the hub; each subscribes to half of them."""
        wanted: Array = (leaf + broadcast) % 2 == 0
        return wanted


def expanded(count: Array) -> tuple[Array, Array]:
    """Each index repeated by its count, and the number of the repetition.

    >>> [column.tolist() for column in expanded(np.array([2, 0, 1]))]
    [[0, 0, 2], [0, 1, 0]]
    """
    which = np.repeat(np.arange(len(count)), count)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
