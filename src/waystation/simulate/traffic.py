"""The messages of a simulated fleet, hop by hop, and the outcome of each.

Pure arithmetic on arrays, as in fleet.py. A message goes from an application at a leaf up to the
hub and down to the leaf of its recipient, or through the hub of the next cell; some are requests,
whose answers go back the same way. A publication goes from its leaf up to the hub, or begins there,
and down to the leaves that subscribed to it. The rules decide at each node by its own clock; faults
that the rules do not cover are added, and every loss is recorded with its cause. Times are true
ones; only the expiry of a message is by the clock of its sender.
"""

from __future__ import annotations

from enum import IntEnum
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from waystation.core.message import HOP_LIMIT
from waystation.simulate.fleet import (
    BROADCASTS,
    DURATION,
    HUB,
    MILLISECOND,
    NEVER,
    NOBODY,
    OURS,
    SECOND,
    STRANGERS,
    Array,
    Cell,
    Dice,
    Fleet,
    Loss,
    Uptimes,
    clocks,
    uptimes,
)
from waystation.simulate.links import SUBSCRIBED, Sessions, hub_sessions, leaf_sessions


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
    answer: Array  # whether it is the answer to the message of that number
    asks: Array  # whether it wants one
    way: Array
    node: Array
    app: Array  # who sent it; of an answer, who gets it
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
    """The messages that begin in a cell, from one number to another, without answers."""
    dice, number = Dice(fleet.seed, cell, 1), np.arange(first, last)
    _, messages = fleet.sizes(cell)
    leaves = fleet.leaves(cell)
    kind = dice.throw("way", number)
    across = (kind < 0.15) & (fleet.cells > 1)
    way = np.select([across, kind > 0.9], [Way.ACROSS, Way.PUBLISHED], Way.WITHIN)
    at_hub = (way == Way.PUBLISHED) & (dice.throw("at hub", number) < 0.5)
    node = np.where(at_hub, HUB, 1 + dice.pick("node", number, 0, leaves))
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
    by_its_clock = (at + clocks(fleet, cell)[node]) // MILLISECOND * MILLISECOND
    ttl = (ttl * fleet.otherwise.life).astype(np.int64)
    expiry = np.where(patience > 0.8, NEVER, by_its_clock + ttl)
    regions, zones = _partitions(fleet, cell)
    unwanted = dice.throw("unwanted", number) < 0.02
    broadcast = np.where(unwanted, BROADCASTS, dice.pick("broadcast", number, 0, BROADCASTS))
    our_own = (way == Way.WITHIN) & (dice.throw("our own", number) < 0.02)
    asks = (way == Way.WITHIN) & ~our_own & (dice.throw("asks", number) < 0.06)
    return Sent(
        number,
        np.zeros(len(number), bool),
        asks,
        way,
        node,
        np.where(our_own, OURS, dice.pick("app", number, 0, OURS)),
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


# Who is at the other end, as a number: a node of the cell, or the hub of another cell.
NEXT_HUB: Final = -2
FORMER_HUB: Final = -3

# Sessions, by the name that they have at the node: none, and those that a node dialled. From
# ACCEPTED on the hub's sessions with its leaves, after them those with the former hub.
NO_SESSION: Final = 0
TO_HUB: Final = 1
TO_NEXT_HUB: Final = 2
ACCEPTED: Final = 3


class Visit(NamedTuple):
    """Messages that enter nodes of one cell."""

    messages: Sent
    stage: int  # how many nodes they have passed
    node: Array
    window: Array
    received_at: Array
    via: Array  # the session
    from_node: Array
    up: Array  # the session from the leaf of the sender to its hub; NOBODY
    across: Array  # the session from the hub there to the hub here; NOBODY

    def where(self, chosen: Array) -> Visit:
        """A selection, or repetition, of the messages."""
        return Visit(
            self.messages.where(chosen), self.stage, *(column[chosen] for column in self[2:])
        )


class Exit(NamedTuple):
    """Where messages leave a node to, if the rules send them on."""

    next: Array  # the node there
    out: Array  # the session, by its name here
    session: Array  # by its number; NOBODY if there never was one
    is_open: Array
    breaks: Array


class Verdicts(NamedTuple):
    """What the tables decide."""

    outcome: Array
    loss: Array

    @classmethod
    def of(cls, found: Array, outcome: Outcome, loss: Any) -> Verdicts:
        """The outcome for what was found, and the loss for the rest."""
        return cls(np.where(found, outcome, Outcome.DROPPED), np.where(found, Loss.NONE, loss))


class Step(NamedTuple):
    """What became of messages at nodes, and which of them went on from there."""

    at: Array
    outcome: Array
    loss: Array
    travels: Array  # whether it reached the next node
    arrives: Array  # when


class Rows(NamedTuple):
    """Outcomes of messages at the nodes of one cell."""

    foreign: Array  # whether the message began in the preceding cell
    number: Array
    answer: Array
    way: Array
    stage: Array
    sender: Array  # the node where it began
    app: Array
    padding: Array
    target: Array
    sent_at: Array
    expiry: Array
    bytes: Array
    topic: Array  # broadcast, region and zone as one number; NOBODY
    node: Array
    window: Array
    received_at: Array
    via: Array
    from_node: Array
    up: Array
    across: Array
    at: Array
    outcome: Array
    loss: Array
    next: Array  # the node it was sent to, or waited for; NOBODY
    out: Array
    session: Array
    recipient: Array  # a participant; FIRST_NAME; NOBODY
    copy: Array

    def where(self, chosen: Array) -> Rows:
        """A selection of the rows."""
        return Rows(*(column[chosen] for column in self))

    @classmethod
    def together(cls, parts: list[Rows]) -> Rows:
        """The rows of several sources."""
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


SENDER: Final = -2
"""As a recipient: the application that an answer goes to."""

FIRST_NAME: Final = -3
"""As a recipient: the session that an answer goes back over, which is the first name in its route.
"""


class Links(NamedTuple):
    """The sessions of a cell: its own, from its hub to the next, and from the former hub."""

    leaves: Sessions
    onward: Sessions
    former: Sessions

    @classmethod
    def of(cls, fleet: Fleet, cell: int, ups: Uptimes) -> Links:
        """The sessions of a cell."""
        nobody = leaf_sessions(fleet, cell, ups).where(slice(0, 0))  # type: ignore[arg-type]
        alone = fleet.cells == 1
        return cls(
            leaf_sessions(fleet, cell, ups),
            nobody if alone else hub_sessions(fleet, cell),
            nobody if alone else hub_sessions(fleet, fleet.preceding(cell)),
        )


class Traffic:
    """The messages of one cell, hop by hop, by the rules, with faults that these do not cover."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.fleet = cell.fleet
        self.links = Links.of(cell.fleet, cell.number, cell.uptimes)
        self._rows: list[Rows] = []

    def rows(self, share: float, until: float) -> Rows:
        """The rows of the messages that begin in a part of the time, 0 to 1."""
        fleet, cell = self.fleet, self.cell
        self._rows = []
        own = _Origin(fleet, cell.number, cell.uptimes, self.links.leaves, self.links.onward)
        self._depart(own, self._sent(cell.number, cell.uptimes, share, until))
        if fleet.cells > 1:
            before = fleet.preceding(cell.number)
            ups = uptimes(fleet, before)
            links = leaf_sessions(fleet, before, ups)
            there = _Origin(fleet, before, ups, links, self.links.former)
            messages = self._sent(before, ups, share, until)
            messages = messages.where(messages.way == Way.ACROSS)
            visit, _, step = there.at_leaf(messages)
            visit = there.at_hub(visit, step)
            leaves, step = there.to_next_hub(visit)
            self._arrive_at_hub(self._from_former_hub(visit, leaves, step), foreign=True)
        return Rows.together(self._rows)

    def _sent(self, cell: int, ups: Uptimes, share: float, until: float) -> Sent:
        _, messages = self.fleet.sizes(cell)
        return sent(self.fleet, cell, ups, round(messages * share), round(messages * until))

    # To one participant

    def _depart(self, origin: _Origin, own: Sent) -> None:
        published = own.way == Way.PUBLISHED
        self._publish(origin, own.where(published))
        visit, leaves, step = origin.at_leaf(own.where(~published))
        self._note(visit, step, leaves, recipient=visit.messages.target)
        visit = origin.at_hub(visit, step)
        across = visit.messages.way == Way.ACROSS
        self._arrive_at_hub(visit.where(~across), foreign=False)
        visit = visit.where(across)
        leaves, step = origin.to_next_hub(visit)
        self._note(visit, step, leaves, recipient=visit.messages.target)

    def _from_former_hub(self, visit: Visit, leaves: Exit, step: Step) -> Visit:
        """Messages of the former cell at this hub."""
        messages, session = visit.messages.where(step.travels), leaves.session[step.travels]
        arrives = step.arrives[step.travels]
        hubs = np.zeros(len(arrives), np.int64)
        return Visit(
            messages,
            2,
            hubs,
            self.cell.uptimes.window(hubs, arrives),
            arrives,
            ACCEPTED + len(self.links.leaves.link) + session,
            np.full(len(arrives), FORMER_HUB),
            visit.up[step.travels],
            session,
        )

    def _arrive_at_hub(self, visit: Visit, *, foreign: bool) -> None:
        """At the hub of the recipient, and on to its leaf."""
        cell, messages = self.cell, visit.messages
        found = cell.at_the_hub(messages.target, visit.received_at, visit.window)
        verdicts = Verdicts.of(found.found, Outcome.FORWARDED, found.loss)
        leaves = self._to_leaf(np.where(found.found, found.leaf, NOBODY), visit.received_at)
        step = self._step(visit, verdicts, leaves, foreign=foreign)
        self._note(visit, step, leaves, recipient=messages.target, foreign=foreign)
        visit = self._at_the_leaf(visit, leaves, step)
        messages = visit.messages
        found = cell.at_leaf(visit.node, messages.target, visit.received_at, visit.window)
        verdicts = Verdicts.of(found.found, Outcome.DELIVERED, found.loss)
        step = self._step(visit, verdicts, None, foreign=foreign, receiver=messages.target)
        self._note(visit, step, None, recipient=messages.target, foreign=foreign)
        self._note_queued(visit, step, foreign=foreign)
        if not foreign:
            self._answer(visit.where(messages.asks & (step.outcome == Outcome.DELIVERED)))

    def _to_leaf(self, leaf: Array, at: Array) -> Exit:
        """From the hub."""
        sessions = self.links.leaves
        which = sessions.latest(leaf, at, self.fleet.start)
        return Exit(
            leaf,
            np.where(which < 0, NO_SESSION, ACCEPTED + which),
            which,
            (which >= 0) & (at < _of(sessions.listener_until, which)),
            _of(sessions.breaks, which),
        )

    def _at_the_leaf(self, visit: Visit, leaves: Exit, step: Step) -> Visit:
        """What the hub sent to leaves, and reached them."""
        on = visit.where(step.travels)
        leaf, arrives = leaves.next[step.travels], step.arrives[step.travels]
        return on._replace(
            stage=visit.stage + 1,
            node=leaf,
            window=self.cell.uptimes.window(leaf, arrives),
            received_at=arrives,
            via=np.full(len(leaf), TO_HUB),
            from_node=np.full(len(leaf), HUB),
        )

    def _answer(self, asked: Visit) -> None:
        """The way back of the answers to these requests, from the leaf of whoever answers."""
        fleet, cell = self.fleet, self.cell
        requests = asked.messages
        dice = Dice(fleet.seed, cell.number, 9)
        takes = dice.pick("answers", requests.number, 400, 3_000)
        thinks = dice.pick("thinks", requests.number, SECOND, 60 * SECOND)
        takes = np.where(dice.throw("slowly", requests.number) < 0.1, thinks, takes)
        at = asked.received_at + takes
        alive = cell.uptimes.window(asked.node, at) == asked.window
        asked, requests, at = asked.where(alive), requests.where(alive), at[alive]
        by_its_clock = (at + cell.clocks[asked.node]) // MILLISECOND * MILLISECOND
        messages = requests._replace(
            answer=np.ones(len(at), bool),
            asks=np.zeros(len(at), bool),
            node=asked.node,
            at=at,
            expiry=np.where(requests.expiry == NEVER, NEVER, by_its_clock + 30 * SECOND),
            bytes=dice.pick("bytes", requests.number, 16, 128),
        )
        origin = _Origin(fleet, cell.number, cell.uptimes, self.links.leaves, self.links.onward)
        visit, leaves, _ = origin.at_leaf(messages)
        visit = visit._replace(across=asked.up)  # where the answer goes
        verdicts = Verdicts.of(leaves.is_open, Outcome.FORWARDED, Loss.NO_ROUTE_CLOSED)
        step = self._step(visit, verdicts, leaves)
        self._note(visit, step, leaves, recipient=_named(step, FIRST_NAME))
        visit = origin.at_hub(visit, step)
        sessions, back = self.links.leaves, visit.across
        live = visit.received_at < sessions.listener_until[back]
        leaves = Exit(sessions.link[back], ACCEPTED + back, back, live, sessions.breaks[back])
        verdicts = Verdicts.of(live, Outcome.FORWARDED, Loss.NO_ROUTE_CLOSED)
        step = self._step(visit, verdicts, leaves)
        self._note(visit, step, leaves, recipient=_named(step, FIRST_NAME))
        visit = self._at_the_leaf(visit, leaves, step)
        everybody = np.ones(len(visit.node), bool)
        step = self._step(visit, Verdicts.of(everybody, Outcome.DELIVERED, Loss.NONE), None)
        self._note(visit, step, None, recipient=np.full(len(visit.node), SENDER))

    # Publications

    def _publish(self, origin: _Origin, messages: Sent) -> None:
        """From a leaf up, or from the hub; there a copy for each leaf that subscribed."""
        at_hub = messages.node == HUB
        visit = origin.entered(messages.where(at_hub))
        self._fan_out(visit)
        visit, leaves, step = origin.at_leaf(messages.where(~at_hub))
        self._hand_out(visit, upward=True)
        nobody = np.full(len(visit.node), NOBODY)
        self._note(visit, step, leaves, recipient=nobody, copy=1, chosen=~_once(step.loss))
        self._fan_out(origin.at_hub(visit, step))

    def _fan_out(self, visit: Visit) -> None:
        """At the hub: to each leaf that subscribed, except where it came from."""
        cell, sessions, messages = self.cell, self.links.leaves, visit.messages
        leaf = np.arange(1, cell.leaves + 1)
        at = visit.received_at
        which = [sessions.latest(np.full(len(at), each), at, self.fleet.start) for each in leaf]
        session = np.stack(which, axis=1) if len(leaf) else np.zeros((len(at), 0), np.int64)
        subscribed = (
            (session >= 0)
            & (at[:, None] >= _of(sessions.opened, session) + SUBSCRIBED)
            & (at[:, None] < _of(sessions.listener_until, session))
        )
        pub, place = np.nonzero(
            cell.wanted_by_leaf(leaf, messages.broadcast[:, None])
            & (messages.broadcast < BROADCASTS)[:, None]
            & subscribed
            & (ACCEPTED + session != visit.via[:, None])
        )
        self._note_unwanted(visit, pub)
        session, copies = session[pub, place], visit.where(pub)
        leaves = Exit(
            leaf[place],
            ACCEPTED + session,
            session,
            np.ones(len(pub), bool),
            _of(sessions.breaks, session),
        )
        verdicts = Verdicts.of(leaves.is_open, Outcome.FORWARDED, Loss.NONE)
        numbers = copies.messages.number * 64 + leaves.next
        step = self._step(copies, verdicts, leaves, numbers)
        recipient = cell.participants + STRANGERS + leaves.next  # the leaf, by its name
        once = _once(step.loss)
        self._note(
            copies,
            step,
            leaves,
            recipient=np.where(once, NOBODY, recipient),
            chosen=~once | _first(pub),
        )
        there = self._at_the_leaf(copies, leaves, step)
        self._hand_out(there)
        self._come_twice(there, leaves.breaks[step.travels])

    def _hand_out(self, visit: Visit, *, upward: bool = False) -> None:
        """At a leaf: to each subscriber there; what also goes up may have none."""
        cell, messages = self.cell, visit.messages
        pub, who = cell.receivers(
            visit.node, visit.received_at, messages.broadcast, messages.region, messages.zone
        )
        if not upward:
            self._note_unwanted(visit, pub)
        copies = visit.where(pub)
        found = cell.at_leaf(copies.node, who, copies.received_at, copies.window)
        verdicts = Verdicts.of(found.found, Outcome.DELIVERED, found.loss)
        numbers = copies.messages.number * 1_000_003 + who
        step = self._step(copies, verdicts, None, numbers, receiver=who)
        once = _once(step.loss)
        chosen = ~once | (_first(pub) & (not upward))
        self._note(copies, step, None, recipient=np.where(once, NOBODY, who), chosen=chosen)
        if upward:
            self._note_once(visit)

    def _note_once(self, visit: Visit) -> None:
        """Publications that their own leaf drops, as too old or gone too far: one row each."""
        everybody = np.ones(len(visit.node), bool)
        step = self._step(visit, Verdicts.of(everybody, Outcome.FORWARDED, Loss.NONE), None)
        nobody = np.full(len(visit.node), NOBODY)
        self._note(visit, step, None, recipient=nobody, chosen=_once(step.loss))

    def _come_twice(self, visit: Visit, breaks: Array) -> None:
        """A few copies reach a leaf a second time."""
        messages = visit.messages
        dice = Dice(self.fleet.seed, self.cell.number, 10)
        numbers = messages.number * 64 + visit.node
        again = visit.received_at + dice.pick("again", numbers, MILLISECOND, 20 * MILLISECOND)
        fresh = again + self.cell.clocks[visit.node] < messages.expiry
        twice = (dice.throw("twice", numbers) < 0.002) & fresh & (again < breaks)
        twice &= messages.padding == 0
        visit = visit._replace(received_at=again).where(twice)
        everybody = np.ones(len(visit.node), bool)
        step = self._step(visit, Verdicts.of(~everybody, Outcome.DROPPED, Loss.DUPLICATE), None)
        self._note(visit, step, None, recipient=np.full(len(visit.node), NOBODY))

    def _note_unwanted(self, visit: Visit, wanted: Array) -> None:
        """Publications without a subscriber at a node."""
        chosen = np.ones(len(visit.node), bool)
        chosen[wanted] = False
        visit = visit.where(chosen)
        nobody = np.zeros(len(visit.node), bool)
        step = self._step(visit, Verdicts.of(nobody, Outcome.DROPPED, Loss.NO_SUBSCRIBER), None)
        self._note(visit, step, None, recipient=np.full(len(nobody), NOBODY))

    # What becomes of them

    def _step(
        self,
        visit: Visit,
        verdicts: Verdicts,
        leaves: Exit | None,
        numbers: Array | None = None,
        *,
        foreign: bool = False,
        receiver: Array | None = None,
    ) -> Step:
        """Decide about messages that entered nodes of this cell."""
        cell = self.cell
        origin = self.fleet.preceding(cell.number) if foreign else cell.number
        step = decide(self.fleet, origin, cell.clocks[visit.node], visit, verdicts, leaves, numbers)
        if receiver is None:
            return step
        known = receiver < cell.participants
        who = np.where(known, receiver, 0)
        full = known & (step.outcome == Outcome.DELIVERED)
        if len(cell.slow_from):
            full &= (cell.slow_from[who] <= step.at) & (step.at < cell.slow_until[who])
        return step._replace(
            outcome=np.where(full, Outcome.DROPPED, step.outcome),
            loss=np.where(full, Loss.QUEUE_FULL, step.loss),
        )

    def _note(
        self,
        visit: Visit,
        step: Step,
        leaves: Exit | None,
        *,
        recipient: Array,
        copy: int = 0,
        foreign: bool = False,
        chosen: Array | None = None,
    ) -> None:
        messages, count, cell = visit.messages, len(visit.node), self.cell
        published = messages.way == Way.PUBLISHED
        topic = (messages.broadcast * cell.regions + messages.region) * cell.zones + messages.zone
        full = partial(np.full, count)
        # It left, or waited for, the session.
        forwarded = step.outcome == Outcome.FORWARDED
        waited = forwarded | (step.loss == Loss.TRANSPORT_DOWN)
        if leaves is None:
            next, out, session = full(NOBODY), full(NO_SESSION), full(NOBODY)
        else:
            next = np.where(waited, leaves.next, NOBODY)
            out = np.where(waited, leaves.out, NO_SESSION)
            session = np.where(waited | (step.loss == Loss.NO_ROUTE_CLOSED), leaves.session, NOBODY)
        rows = Rows(
            foreign=full(foreign),
            number=messages.number,
            answer=messages.answer,
            way=messages.way,
            stage=np.full(count, visit.stage, np.int8),
            sender=messages.node,
            app=messages.app,
            padding=messages.padding,
            target=messages.target,
            sent_at=messages.at,
            expiry=messages.expiry,
            bytes=messages.bytes,
            topic=np.where(published, topic, NOBODY),
            node=visit.node,
            window=visit.window,
            received_at=visit.received_at,
            via=visit.via,
            from_node=visit.from_node,
            up=visit.up,
            across=visit.across,
            at=step.at,
            outcome=step.outcome.astype(np.int8),
            loss=step.loss.astype(np.int8),
            next=next,
            out=out,
            session=session,
            recipient=recipient,
            copy=np.full(count, copy, np.int8),
        )
        self._rows.append(rows if chosen is None else rows.where(chosen))

    def _note_queued(self, visit: Visit, step: Step, *, foreign: bool) -> None:
        """Queue some of the delivered messages first."""
        waits = Dice(self.fleet.seed, 3).throw("waits", visit.messages.number) < 0.01
        waits &= step.outcome == Outcome.DELIVERED
        queued = step._replace(
            at=visit.received_at + 10, outcome=np.full(len(visit.node), Outcome.QUEUED)
        )
        recipient = visit.messages.target
        self._note(visit, queued, None, recipient=recipient, foreign=foreign, chosen=waits)


class _Origin(NamedTuple):
    """The cell where messages begin: their way up to its hub, and from there to the next."""

    fleet: Fleet
    cell: int
    uptimes: Uptimes
    leaves: Sessions
    onward: Sessions

    def entered(self, messages: Sent) -> Visit:
        """Messages at the node where they begin."""
        count = len(messages.at)
        return Visit(
            messages,
            0,
            messages.node,
            self.uptimes.window(messages.node, messages.at),
            messages.at,
            np.full(count, NO_SESSION),
            np.full(count, NOBODY),
            np.full(count, NOBODY),
            np.full(count, NOBODY),
        )

    def at_leaf(self, messages: Sent) -> tuple[Visit, Exit, Step]:
        """Messages at their leaf, on to its hub."""
        visit = self.entered(messages)
        at = messages.at
        which = self.leaves.latest(messages.node, at, self.fleet.start)
        leaves = Exit(
            np.full(len(at), HUB),
            np.full(len(at), TO_HUB),
            which,
            (which >= 0) & (at < _of(self.leaves.dialer_until, which)),
            _of(self.leaves.breaks, which),
        )
        return visit._replace(up=which), leaves, self._decide(visit, leaves)

    def at_hub(self, visit: Visit, step: Step) -> Visit:
        """What leaves sent to their hub, and reached it."""
        on = visit.where(step.travels)
        arrives = step.arrives[step.travels]
        hubs = np.zeros(len(arrives), np.int64)
        return on._replace(
            stage=1,
            node=hubs,
            window=self.uptimes.window(hubs, arrives),
            received_at=arrives,
            via=ACCEPTED + on.up,
            from_node=self.leaves.link[on.up],
        )

    def to_next_hub(self, visit: Visit) -> tuple[Exit, Step]:
        """From a hub to that of the next cell, whatever the recipient."""
        at = visit.received_at
        which = self.onward.latest(np.zeros(len(at), np.int64), at, self.fleet.start)
        leaves = Exit(
            np.full(len(at), NEXT_HUB),
            np.full(len(at), TO_NEXT_HUB),
            which,
            (which >= 0) & (at < _of(self.onward.dialer_until, which)),
            _of(self.onward.breaks, which),
        )
        return leaves, self._decide(visit, leaves)

    def _decide(self, visit: Visit, leaves: Exit) -> Step:
        everybody = np.ones(len(visit.node), bool)
        verdicts = Verdicts.of(everybody, Outcome.FORWARDED, Loss.NONE)
        ahead = clocks(self.fleet, self.cell)[visit.node]
        return decide(self.fleet, self.cell, ahead, visit, verdicts, leaves)


def decide(
    fleet: Fleet,
    origin: int,
    ahead: Array,
    visit: Visit,
    verdicts: Verdicts,
    leaves: Exit | None,
    numbers: Array | None = None,
) -> Step:
    """What becomes of messages that began in a cell, at nodes whose clocks are ahead by so much."""
    messages = visit.messages
    numbers = messages.number if numbers is None else numbers
    dice = Dice(fleet.seed, origin, 2, visit.stage)
    # An answer has the number of its request, and rolls dice of its own.
    numbers = numbers + messages.answer * (1 << 39)
    at = visit.received_at + dice.pick("works", numbers, 20, 300)
    arrives = at + dice.pick("travels", numbers, 200, 3_000)
    expired = visit.received_at + ahead >= messages.expiry
    hops = 1 + visit.stage + np.where(messages.answer, 0, messages.padding)
    too_far = hops >= fleet.otherwise.hop_limit
    loss = np.select([expired, too_far], [Loss.EXPIRED, Loss.HOP_LIMIT], verdicts.loss)
    outcome = np.where(expired | too_far, Outcome.DROPPED, verdicts.outcome)
    forwarded = outcome == Outcome.FORWARDED
    trouble = dice.throw("trouble", numbers)
    fault = np.where((outcome == Outcome.DELIVERED) & (trouble < 0.0005), Loss.FAILED, Loss.NONE)
    if leaves is not None:
        gone = (arrives >= leaves.breaks) | (trouble < 0.0005)
        faults = [forwarded & ~leaves.is_open, forwarded & gone]
        fault = np.select(faults, [Loss.TRANSPORT_DOWN, Loss.VANISHED], fault)
    loss = np.where(fault != Loss.NONE, fault, loss)
    vanished = loss == Loss.VANISHED
    outcome = np.where((loss != Loss.NONE) & ~vanished, Outcome.DROPPED, outcome)
    travels = (outcome == Outcome.FORWARDED) & ~vanished
    return Step(at, outcome, loss, travels, arrives)


def _of(column: Array, which: Array) -> Array:
    """The values of these sessions; 0 for none."""
    if not len(column):
        return np.zeros(which.shape, np.int64)
    found: Array = np.where(which < 0, 0, column[which])
    return found


def _named(step: Step, recipient: int) -> Array:
    """For whom an answer was: a name is only looked up if it is neither too old nor too far."""
    named: Array = np.where(_once(step.loss), SENDER, recipient)
    return named


def _once(loss: Array) -> Array:
    """Whether a message was dropped as a whole, before anybody was looked up."""
    whole: Array = (loss == Loss.EXPIRED) | (loss == Loss.HOP_LIMIT)
    return whole


def _first(publication: Array) -> Array:
    """The first row of each publication."""
    first = np.ones(len(publication), bool)
    first[1:] = publication[1:] != publication[:-1]
    return first
