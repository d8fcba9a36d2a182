"""The messages of a simulated fleet, hop by hop, and the outcome of each.

Pure arithmetic on arrays, as in fleet.py. A message goes from an application at a leaf up to the
hub and down to the leaf of its recipient, or through the hub of the next cell. A publication goes
from the hub to the leaves that subscribed to it, and there to the subscribers. The rules decide at
each hop; faults that the rules do not cover are added, and every loss is recorded with its cause.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from waystation.core.message import HOP_LIMIT
from waystation.pipeline.fleet import (
    APPS,
    BROADCASTS,
    DURATION,
    HUB,
    MILLISECOND,
    NEVER,
    NOBODY,
    SECOND,
    STRANGERS,
    Array,
    Cell,
    Dice,
    Fleet,
    Found,
    Loss,
    Uptimes,
    uptimes,
)


class Outcome(IntEnum):
    """The outcome of a message, as a number to compute with."""

    DELIVERED = 0
    FORWARDED = 1
    QUEUED = 2
    DROPPED = 3


class Way(IntEnum):
    """How far a message travels."""

    WITHIN = 0  # within its cell
    ACROSS = 1  # to the next cell
    PUBLISHED = 2


class Sent(NamedTuple):
    """Messages at their origin, in one cell."""

    number: Array  # number of the message in its cell
    way: Array
    node: Array
    app: Array
    at: Array
    target: Array  # a participant of the destination cell; beyond the last one, an unknown one
    padding: Array  # addresses that its return route already has
    expiry: Array
    bytes: Array
    broadcast: Array
    region: Array
    zone: Array

    def where(self, chosen: Array) -> Sent:
        """A selection of the messages."""
        return Sent(*(column[chosen] for column in self))


def sent(fleet: Fleet, cell: int, ups: Uptimes, first: int, last: int) -> Sent:
    """The messages that begin in a cell, from one number to another."""
    dice, number = Dice(fleet.seed, cell, 1), np.arange(first, last)
    _, messages = fleet.sizes(cell)
    leaves = fleet.leaves(cell)
    kind = dice.throw("way", number)
    across = (kind < 0.15) & (fleet.cells > 1)
    way = np.select([across, kind > 0.9], [Way.ACROSS, Way.PUBLISHED], Way.WITHIN)
    node = np.where(way == Way.PUBLISHED, HUB, 1 + dice.pick("node", number, 0, leaves))
    begin = fleet.start + 5 * SECOND
    share = (number + dice.throw("when", number)) / max(messages, 1)
    at = begin + (share * (DURATION - 10 * SECOND)).astype(np.int64)
    down = ups.window(node, at) < 0
    up_again = np.min(np.where(ups.begin[node] > at[:, None], ups.begin[node], NEVER), axis=1)
    waits = dice.pick("burst", number, 1, 2 * SECOND)  # what waited for the node arrives at once
    at = np.where(down, up_again + waits, at)
    own = np.where(way == Way.ACROSS, fleet.sizes(fleet.following(cell))[0], fleet.sizes(cell)[0])
    # A few participants get most of the messages.
    target = (own * dice.throw("target", number) ** 3).astype(np.int64)
    stranger = (dice.throw("stranger", number) < 0.002) | (own == 0)
    target = np.where(stranger, own + dice.pick("who", number, 0, STRANGERS), target)
    going_round = dice.throw("round", number)
    padding = np.where(going_round < 0.001, HOP_LIMIT - 3 + dice.pick("laps", number, 0, 3), 0)
    patience = dice.throw("patience", number)
    ttl = np.where(patience < 0.02, dice.pick("ttl", number, 2, 5), 30_000) * MILLISECOND
    expiry = np.where(patience > 0.8, NEVER, at // MILLISECOND * MILLISECOND + ttl)
    regions, zones = _partitions(fleet, cell)
    unwanted = dice.throw("unwanted", number) < 0.02
    broadcast = np.where(unwanted, BROADCASTS, dice.pick("broadcast", number, 0, BROADCASTS))
    return Sent(
        number,
        way,
        node,
        dice.pick("app", number, 0, APPS),
        at,
        target,
        padding,
        expiry,
        dice.pick("bytes", number, 16, 512),
        broadcast,
        dice.pick("region", number, 0, regions),
        dice.pick("zone", number, 0, zones),
    )


def _partitions(fleet: Fleet, cell: int) -> tuple[int, int]:
    subscribers = fleet.sizes(cell)[0] // (4 * fleet.leaves(cell))
    return max(5, subscribers // 80), max(8, subscribers // 40)


class Hop(NamedTuple):
    """The outcomes of messages at one kind of node, and which of them went on from there."""

    received_at: Array
    at: Array
    outcome: Array
    loss: Array
    next: Array  # the node it was sent to, in its cell; NEXT_HUB; or NOBODY
    travels: Array  # whether it reached that node
    arrives: Array  # when


NEXT_HUB: Final = -2


class Verdicts(NamedTuple):
    """What the tables decide: outcome, loss, and destination."""

    outcome: Array
    loss: Array
    next: Array

    @classmethod
    def forwarded(cls, to: int, count: int) -> Verdicts:
        """The same verdict for all."""
        return cls(np.full(count, Outcome.FORWARDED), np.full(count, Loss.NONE), np.full(count, to))

    @classmethod
    def of(cls, found: Found, outcome: Outcome, next: Any) -> Verdicts:
        """The verdicts for the results of a lookup."""
        outcomes = np.where(found.found, outcome, Outcome.DROPPED)
        return cls(outcomes, found.loss, np.where(found.found, next, NOBODY))


NextIsUp: TypeAlias = Callable[[Array, Array], Array]
"""Whether the node that a message was sent to is up at that time."""


class Rows(NamedTuple):
    """Outcomes of messages at the nodes of one cell."""

    foreign: Array  # whether the message began in the preceding cell
    number: Array
    way: Array
    stage: Array  # how many nodes it has passed
    sender: Array  # the node where it began
    app: Array
    padding: Array
    target: Array
    expiry: Array
    bytes: Array
    topic: Array  # broadcast, region and zone as one number; NOBODY
    node: Array
    window: Array
    received_at: Array
    at: Array
    outcome: Array
    loss: Array
    next: Array
    recipient: Array  # a participant; NOBODY

    def where(self, chosen: Array) -> Rows:
        """A selection of the rows."""
        return Rows(*(column[chosen] for column in self))

    @classmethod
    def together(cls, parts: list[Rows]) -> Rows:
        """The rows of several sources."""
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


class Traffic:
    """The messages of one cell, hop by hop, by the rules, with faults that these do not cover."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.fleet = cell.fleet
        self._rows: list[Rows] = []

    def rows(self, share: float, until: float) -> Rows:
        """The rows of the messages that begin in a part of the time, 0 to 1."""
        fleet, cell = self.fleet, self.cell
        self._rows = []
        own = self._sent(cell.number, cell.uptimes, share, until)
        self._depart(own)
        if fleet.cells > 1:
            before = fleet.preceding(cell.number)
            ups = uptimes(fleet, before)
            messages = self._sent(before, ups, share, until)
            messages = messages.where(messages.way == Way.ACROSS)
            first = self._first_hop(before, ups, messages)
            messages, arrives = messages.where(first.travels), first.arrives[first.travels]
            second = self._to_next_hub(before, ups, messages, arrives)
            travels = second.travels
            self._arrive_at_hub(messages.where(travels), second.arrives[travels], foreign=True)
        return Rows.together(self._rows)

    def _sent(self, cell: int, ups: Uptimes, share: float, until: float) -> Sent:
        _, messages = self.fleet.sizes(cell)
        return sent(self.fleet, cell, ups, round(messages * share), round(messages * until))

    def _depart(self, own: Sent) -> None:
        cell, published = self.cell, own.way == Way.PUBLISHED
        self._publish(own.where(published))
        messages = own.where(~published)
        hop = self._first_hop(cell.number, cell.uptimes, messages)
        window = cell.uptimes.window(messages.node, messages.at)
        self._note(messages, hop, 0, messages.node, window)
        messages, arrives = messages.where(hop.travels), hop.arrives[hop.travels]
        across = messages.way == Way.ACROSS
        self._arrive_at_hub(messages.where(~across), arrives[~across], foreign=False)
        messages, arrives = messages.where(across), arrives[across]
        hop = self._to_next_hub(cell.number, cell.uptimes, messages, arrives)
        hubs = np.zeros(len(arrives), np.int64)
        self._note(messages, hop, 1, hubs, cell.uptimes.window(hubs, arrives))

    def _first_hop(self, cell: int, ups: Uptimes, messages: Sent) -> Hop:
        """From the leaf where a message begins to its hub."""
        verdicts = Verdicts.forwarded(HUB, len(messages.at))
        return self._hop(cell, 0, messages, messages.at, verdicts, ups.window)

    def _to_next_hub(self, cell: int, ups: Uptimes, messages: Sent, arrives: Array) -> Hop:
        """From a hub to that of the next cell, whatever the recipient."""
        del ups
        following = uptimes(self.fleet, self.fleet.following(cell))

        def next_up(_: Array, at: Array) -> Array:
            return following.window(np.zeros(len(at), np.int64), at)

        verdicts = Verdicts.forwarded(NEXT_HUB, len(arrives))
        return self._hop(cell, 1, messages, arrives, verdicts, next_up)

    def _arrive_at_hub(self, messages: Sent, arrives: Array, *, foreign: bool) -> None:
        """At the hub of the recipient, and on to its leaf."""
        cell, stage = self.cell, 2 if foreign else 1
        origin = self.fleet.preceding(cell.number) if foreign else cell.number
        hubs = np.zeros(len(arrives), np.int64)
        window = cell.uptimes.window(hubs, arrives)
        found = cell.at_the_hub(messages.target, arrives, window)
        verdicts = Verdicts.of(found, Outcome.FORWARDED, found.leaf)
        hop = self._hop(origin, stage, messages, arrives, verdicts, cell.uptimes.window)
        self._note(messages, hop, stage, hubs, window, foreign=foreign)
        messages, arrives, leaf = (
            messages.where(hop.travels),
            hop.arrives[hop.travels],
            hop.next[hop.travels],
        )
        window = cell.uptimes.window(leaf, arrives)
        found = cell.at_leaf(leaf, messages.target, arrives, window)
        verdicts = Verdicts.of(found, Outcome.DELIVERED, NOBODY)
        hop = self._hop(origin, stage + 1, messages, arrives, verdicts, None)
        delivered = np.where(hop.outcome == Outcome.DELIVERED, messages.target, NOBODY)
        last = (messages, hop, stage + 1, leaf, window)
        self._note(*last, foreign=foreign, recipient=delivered)
        self._note_queued(*last, foreign=foreign)

    def _publish(self, messages: Sent) -> None:
        """At the hub: a copy for each subscribed leaf; at the leaves: one for each subscriber."""
        cell, ups = self.cell, self.cell.uptimes
        hubs = np.zeros(len(messages.at), np.int64)
        window = ups.window(hubs, messages.at)
        ready = messages.at >= ups.begin[HUB, window] + SECOND
        pub, leaf = np.nonzero(
            cell.wanted_by_leaf(np.arange(1, cell.leaves + 1), messages.broadcast[:, None])
            & (messages.broadcast < BROADCASTS)[:, None]
            & ready[:, None]
        )
        leaf += 1
        self._note_unwanted(messages, hubs, window, messages.at, pub, 0)
        copies = messages.where(pub)
        count = len(pub)
        verdicts = Verdicts(np.full(count, Outcome.FORWARDED), np.full(count, Loss.NONE), leaf)
        which = copies.number * 64 + leaf
        hop = self._hop(
            cell.number, 0, copies, copies.at, verdicts, ups.window, which, published=True
        )
        keep = _first_of_a_drop(pub, hop.loss)
        self._note(copies, hop, 0, hubs[pub], window[pub], chosen=keep)
        copies, leaf, arrives = (
            copies.where(hop.travels),
            leaf[hop.travels],
            hop.arrives[hop.travels],
        )
        window = ups.window(leaf, arrives)
        pub, who = cell.receivers(leaf, arrives, copies.broadcast, copies.region, copies.zone)
        self._note_unwanted(copies, leaf, window, arrives, pub, 1)
        leaf, window, arrives, last = leaf[pub], window[pub], arrives[pub], copies.where(pub)
        found = cell.at_leaf(leaf, who, arrives, window)
        verdicts = Verdicts.of(found, Outcome.DELIVERED, NOBODY)
        which = last.number * 1_000_003 + who
        hop = self._hop(cell.number, 1, last, arrives, verdicts, None, which, published=True)
        keep = _first_of_a_drop(pub, hop.loss)
        delivered = np.where(hop.outcome == Outcome.DELIVERED, who, NOBODY)
        self._note(last, hop, 1, leaf, window, recipient=delivered, chosen=keep)

    def _note_unwanted(
        self, messages: Sent, node: Array, window: Array, at: Array, wanted: Array, stage: int
    ) -> None:
        """Publications without a subscriber at a node."""
        chosen = np.ones(len(at), bool)
        chosen[wanted] = False
        messages, at = messages.where(chosen), at[chosen]
        count = len(at)
        verdicts = Verdicts(
            np.full(count, Outcome.DROPPED),
            np.full(count, Loss.NO_SUBSCRIBER),
            np.full(count, NOBODY),
        )
        hop = self._hop(self.cell.number, stage, messages, at, verdicts, None)
        self._note(messages, hop, stage, node[chosen], window[chosen])

    def _hop(
        self,
        cell: int,
        stage: int,
        messages: Sent,
        received_at: Array,
        verdicts: Verdicts,
        next_up: NextIsUp | None,
        numbers: Array | None = None,
        *,
        published: bool = False,
    ) -> Hop:
        """Let messages that began in a cell enter a node there or elsewhere.

        Copies of a publication never vanish: a trace could not show which one did.
        """
        numbers = messages.number if numbers is None else numbers
        dice = Dice(self.fleet.seed, cell, 2, stage)
        at = received_at + dice.pick("works", numbers, 20, 300)
        arrives = at + dice.pick("travels", numbers, 200, 3_000)
        expired = received_at >= messages.expiry
        too_far = 1 + stage + messages.padding >= HOP_LIMIT
        loss = np.select([expired, too_far], [Loss.EXPIRED, Loss.HOP_LIMIT], verdicts.loss)
        outcome = np.where(expired | too_far, Outcome.DROPPED, verdicts.outcome)
        delivered, forwarded = outcome == Outcome.DELIVERED, outcome == Outcome.FORWARDED
        trouble, silent = dice.throw("trouble", numbers), dice.throw("silent", numbers) < 0.5
        down = np.zeros(len(at), bool)
        if next_up is not None:
            down = forwarded & (next_up(np.maximum(verdicts.next, 0), arrives) < 0)
        quietly = down & silent & (not published)
        by_chance = forwarded & (trouble < 0.0005) & (not published)
        fault = np.select(
            [
                delivered & (trouble < 0.001),
                delivered & (trouble < 0.0015),
                quietly | by_chance,
                down,
            ],
            [Loss.QUEUE_FULL, Loss.FAILED, Loss.VANISHED, Loss.TRANSPORT_DOWN],
            Loss.NONE,
        )
        loss = np.where(fault != Loss.NONE, fault, loss)
        vanished = loss == Loss.VANISHED
        outcome = np.where((loss != Loss.NONE) & ~vanished, Outcome.DROPPED, outcome)
        forwarded = outcome == Outcome.FORWARDED
        to = np.where(forwarded, verdicts.next, NOBODY)
        return Hop(received_at, at, outcome, loss, to, forwarded & ~vanished, arrives)

    def _note(
        self,
        messages: Sent,
        hop: Hop,
        stage: int,
        node: Array,
        window: Array,
        *,
        foreign: bool = False,
        recipient: Array | None = None,
        chosen: Array | None = None,
    ) -> None:
        count = len(node)
        published = messages.way == Way.PUBLISHED
        cell = self.cell
        topic = (messages.broadcast * cell.regions + messages.region) * cell.zones + messages.zone
        rows = Rows(
            foreign=np.full(count, foreign),
            number=messages.number,
            way=messages.way,
            stage=np.full(count, stage),
            sender=messages.node,
            app=messages.app,
            padding=messages.padding,
            target=messages.target,
            expiry=messages.expiry,
            bytes=messages.bytes,
            topic=np.where(published, topic, NOBODY),
            node=node,
            window=window,
            received_at=hop.received_at,
            at=hop.at,
            outcome=hop.outcome,
            loss=hop.loss,
            next=hop.next,
            recipient=np.full(count, NOBODY) if recipient is None else recipient,
        )
        self._rows.append(rows if chosen is None else rows.where(chosen))

    def _note_queued(
        self, messages: Sent, hop: Hop, stage: int, node: Array, window: Array, *, foreign: bool
    ) -> None:
        """Queue some of the delivered messages first."""
        waits = Dice(self.fleet.seed, 3).throw("waits", messages.number) < 0.01
        waits &= hop.outcome == Outcome.DELIVERED
        queued = hop._replace(
            at=hop.received_at + 10,
            outcome=np.full(len(node), Outcome.QUEUED),
            next=np.full(len(node), NOBODY),
        )
        self._note(messages, queued, stage, node, window, foreign=foreign, chosen=waits)


def _first_of_a_drop(publication: Array, loss: Array) -> Array:
    """Which rows are in the journal: a message that is too old or too far is dropped once."""
    repeated = (loss == Loss.EXPIRED) | (loss == Loss.HOP_LIMIT)
    repeated[1:] &= publication[1:] == publication[:-1]
    repeated[:1] = False
    first: Array = ~repeated
    return first
