"""What other nodes say about custody: offers of durable messages, and answers to ours (DU-2).

A node with a store writes what is offered, and answers when it is on disk. A node without one lets
the next node answer. What is inside an offer is judged as if its sender had sent it plainly: access
rules, hop limit and expiry hold (ID-3).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from waystation.core.address import LOCAL, Address, Route
from waystation.core.custody import CustodyArrival, Letter, Pair
from waystation.core.expiry import NEVER
from waystation.core.message import Arrival, Message
from waystation.core.multicast import ADDRESS_TYPE as MULTICAST
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.errors import DecodeError
from waystation.node.askers import Asker
from waystation.node.custody_ways import Absent, End, Hop, Spread
from waystation.node.receiver import ReadyReceiver
from waystation.node.session import Session
from waystation.node.store import KnownPair
from waystation.wire import custody as wire
from waystation.wire.custody import Answer, Deposit, Keep, Take, Unkeep

if TYPE_CHECKING:
    from waystation.node.custody import Custody

BACKLOG: Final = 20_000
"""Jobs that may wait for the disk; beyond that, offers of other nodes are not taken."""

ADDRESS: Final = Address(LOCAL, wire.WORKER.encode())

_TO_US: Final = Route((ADDRESS,))
_BROADCAST: Final = f"{MULTICAST!s}#"

_log = logging.getLogger("waystation.node")


def receiver_of(route: Route) -> str:
    """Whom a durable message is for: the last name of its route."""
    last = route.addresses[-1] if route.addresses else ADDRESS
    return last.name if last.type == LOCAL else str(last)


def recipient_of(pair: Pair) -> str | None:
    """Who is named as the recipient in records; nobody for a broadcast on its way up."""
    return None if pair.receiver.startswith(_BROADCAST) else pair.participant


def arrival_of(letter: Letter, **more: Any) -> CustodyArrival:
    """A letter for the records of this node."""
    last = letter.message.onward_route.addresses[-1]
    topic = last.name if last.type == MULTICAST else None
    return CustodyArrival(
        letter.message,
        letter.received_at,
        multicast_id=topic,
        via=letter.via,
        sender=letter.sender,
        **more,
    )


class TakenDeposit:
    """What a node without a store gives: letters that get numbers of this store.

    `done` gets the numbers, in the deposit, of those that found no room, when the others are on
    disk.
    """

    def __init__(self, custody: Custody, sender: str, done: Callable[[list[int]], None]) -> None:
        self._custody = custody
        self._sender = sender
        self._done = done
        self._full: list[int] = []
        self._left = 1

    def take(self, letters: Iterable[Letter]) -> None:
        """Take what there is room for."""
        by_receiver: dict[str, list[Letter]] = {}
        for one in letters:
            by_receiver.setdefault(receiver_of(one.message.onward_route), []).append(one)
        for receiver, theirs in by_receiver.items():
            self._take_for(receiver, theirs)
        self._finish()

    def _take_for(self, receiver: str, theirs: list[Letter]) -> None:
        custody = self._custody
        pair = Pair(custody.need_store().id, self._sender, receiver)
        size = sum(one.size for one in theirs)
        numbers = [one.number for one in theirs]
        if not (custody.has_room(pair.participant, len(theirs), size) and custody.may_know(pair)):
            self._full += numbers
            return
        known = custody.known(pair)
        drawn = [self._numbered(known, one) for one in theirs]
        queued = Verdict(Outcome.QUEUED, None, recipient_of(pair))

        def written(_: list[int]) -> None:
            for one in drawn:
                custody.kernel.end(arrival_of(one), queued)
            custody.enter(known, drawn)
            self._finish()

        def refused(_: str) -> None:
            self._full += numbers
            self._finish()

        self._left += 1
        custody.put(known, drawn, written, refused, own=True)

    def _numbered(self, known: KnownPair, letter: Letter) -> Letter:
        """A letter under a number of this store, with its default of a life if it has none."""
        message = letter.message
        if message.expiry == NEVER:
            message = structs.replace(message, expiry=self._custody.expiry_in(None))
        number = known.numbers.draw(message.expiry)
        return structs.replace(letter, number=number, message=message, queued_at=letter.received_at)

    def _finish(self) -> None:
        self._left -= 1
        if not self._left:
            self._done(self._full)


class Taking(ReadyReceiver):
    """The receiver at `waystation.custody`."""

    __slots__ = ("_custody", "_kernel", "_turns", "verdict")

    def __init__(self, custody: Custody) -> None:
        self._custody = custody
        self._kernel = custody.kernel
        self._turns = count()  # of parents, for what is passed on
        self.verdict = Verdict(Outcome.DELIVERED, None, wire.WORKER, ADDRESS)

    def offer(self, arrival: Arrival) -> Verdict:
        """Take an offer, or the answer to one."""
        told = wire.read(arrival.message.payload)
        if told is None:
            return self._kernel.drop(arrival, Reason.MALFORMED, wire.WORKER)
        if isinstance(told, Answer):
            if not self._custody.deposits.answered(arrival, told):
                self._custody.transfers.answered(arrival, told)
        elif isinstance(told, Deposit):
            self._deposited(arrival, told)
        elif isinstance(told, Keep | Unkeep):
            self._custody.kept.receive(arrival, told)
        elif not self._offered(arrival, told):
            return self._kernel.drop(arrival, Reason.QUEUE_FULL, wire.WORKER)
        return self._kernel.end(arrival, self.verdict)

    def _offered(self, arrival: Arrival, told: Take) -> bool:
        """Take letters that another node offers, or pass them on; False if that is too much."""
        letters = self._letters(arrival, told)
        if letters is None:
            return True
        refused = self._judge(arrival, letters)
        if self._custody.store is None:
            self._pass_on(arrival.message, told, letters, refused)
        elif self._is_too_much():
            return False  # it is offered again
        else:
            self._take(arrival, told, letters, refused)
        return True

    def _letters(self, arrival: Arrival, told: Take | Deposit) -> list[Letter] | None:
        """The letters of an offer; None if they are no letters, which is answered."""
        message = arrival.message
        back = Route(message.return_route.addresses[:-1])
        try:
            types = self._kernel.router.types.numbers
            return wire.letters_of(told, message.expiry, back, types)
        except DecodeError as error:
            _log.debug("an offer over %s: %s", arrival.via, error)
            self._refuse(message, told, Reason.MALFORMED)
            return None

    def _refuse(self, message: Message, told: Take | Deposit, reason: Reason) -> None:
        each = [(one.number, reason) for one in told.letters]
        self._answer(message, Answer(told.transfer, self._kernel.name, [], each))

    def _is_too_much(self) -> bool:
        store, share = self._custody.need_store(), self._kernel.limits.share
        return store.backlog > BACKLOG or self._custody.unwritten[1] > share

    def _deposited(self, arrival: Arrival, told: Deposit) -> None:
        """Take custody of what a node without a store gives, as if it was sent here (DU-1)."""
        letters, message = self._letters(arrival, told), arrival.message
        if letters is None:
            return
        if self._custody.store is None:
            self._refuse(message, told, Reason.REFUSED)
            return
        if self._is_too_much():
            self._refuse(message, told, Reason.QUEUE_FULL)
            return
        session = self._kernel.session_of(message)
        sender = arrival.via if session is None else session.peer
        refused = self._judge(arrival, letters)
        taken = [
            structs.replace(one, received_at=self._kernel.tick(), via=arrival.via)
            for one in letters
            if one.number not in refused
        ]

        def done(full: list[int]) -> None:
            each = [*refused.items(), *((number, Reason.QUEUE_FULL) for number in full)]
            self._answer(message, Answer(told.transfer, self._kernel.name, [], each))

        TakenDeposit(self._custody, sender or "", done).take(taken)

    def _judge(self, arrival: Arrival, letters: list[Letter]) -> dict[int, Reason]:
        """Which letters this node would refuse, had they been sent plainly (ID-3)."""
        kernel, asker = self._kernel, self._kernel.permissions.asker_of(arrival.message)
        now, refused = kernel.tick() // 1000, dict[int, Reason]()
        for one in letters:
            onward = one.message.onward_route
            if one.message.expired(now):
                refused[one.number] = Reason.EXPIRED
            elif len(one.message.return_route.addresses) >= kernel.router.hop_limit:
                refused[one.number] = Reason.HOP_LIMIT
            elif not self._is_allowed(asker, onward):
                refused[one.number] = Reason.REFUSED
                refusal = Verdict.dropped(Reason.REFUSED, receiver_of(onward))
                at, via, sender = kernel.tick(), arrival.via, arrival.sender
                kernel.end(CustodyArrival(one.message, at, via=via, sender=sender), refusal)
        return refused

    def _is_allowed(self, asker: Asker | None, route: Route) -> bool:
        """Whether a peer may send along a route; one that has gone may do nothing that is asked."""
        access, permissions = self._kernel.access, self._kernel.permissions
        if asker is None:
            return access is None and permissions.grants is None
        is_denied = access is not None and not access.admits(asker.peer or "", route)
        return not is_denied and permissions.admits_route(asker, route)

    def _take(
        self, arrival: Arrival, told: Take, letters: list[Letter], refused: dict[int, Reason]
    ) -> None:
        custody, message = self._custody, arrival.message
        if not custody.may_know(told.pair):
            self._refuse(message, told, Reason.QUEUE_FULL)
            return
        known = custody.known(told.pair)
        custody.learn_lowest(known, told.lowest)
        ended = [one.number for one in letters if known.handled.knows(one.number)]
        for number in ended:
            refused.pop(number, None)
        new = self._choose(arrival, known, letters, refused, set(ended))
        custody.transfers.keep(known, {one.number for one in new})
        answer = Answer(told.transfer, self._kernel.name, ended, list(refused.items()))

        def done(numbers: list[int]) -> None:
            there = set(numbers)
            queued = Verdict(Outcome.QUEUED, None, recipient_of(known.pair))
            for one in new:
                if one.number in there:  # else it was here before: that was a repetition
                    self._kernel.end(arrival_of(one), queued)
            self._answer(message, answer)
            custody.enter(known, [one for one in new if one.number in there])

        def not_written(why: str) -> None:  # noqa: ARG001 - the store has logged it
            full = [(one.number, refused.get(one.number, Reason.QUEUE_FULL)) for one in letters]
            self._answer(message, structs.replace(answer, ended=[], refused=full))

        if new:
            custody.put(known, new, done, not_written, own=False)
        else:  # that the others have ended may be on its way to the disk
            custody.need_store().submit(lambda _: None, lambda _: self._answer(message, answer))

    def _choose(
        self,
        arrival: Arrival,
        known: KnownPair,
        letters: list[Letter],
        refused: dict[int, Reason],
        ended: set[int],
    ) -> list[Letter]:
        """The letters to be taken; those behind one that finds no room are refused with it."""
        new: list[Letter] = []
        size, is_full = 0, False
        for one in letters:
            if one.number in ended or one.number in refused:
                continue
            size += one.size
            messages = len(new) + 1
            is_full = is_full or not self._custody.has_room(known.pair.participant, messages, size)
            if is_full:
                refused[one.number] = Reason.QUEUE_FULL
            else:
                at = self._kernel.tick()
                sender = arrival.sender
                new.append(structs.replace(one, received_at=at, via=arrival.via, sender=sender))
        return new

    def _pass_on(
        self, message: Message, told: Take, letters: list[Letter], refused: dict[int, Reason]
    ) -> None:
        """Let another node take what this one, which has no store, cannot keep (DU-2)."""
        turn = next(self._turns)
        way = self._custody.ways.find(letters[0].message, sent_here=False, turn=turn)
        if isinstance(way, Spread) and way.parent is not None:
            way = Hop.unchanged(way.parent)
        if isinstance(way, Hop) and not refused and self._can_pass(way, message):
            onward = Route((way.session.address, ADDRESS))
            self._kernel.send_on(message.rerouted(onward, message.return_route))
            return
        reason = Reason.NO_ROUTE if isinstance(way, Absent) else Reason.TRANSPORT_DOWN
        if isinstance(way, End):
            reason = way.reason
        each = [(one.number, refused.get(one.number, reason)) for one in letters]
        self._answer(message, Answer(told.transfer, self._kernel.name, [], each))

    def _can_pass(self, way: Hop, message: Message) -> bool:
        session = way.session
        return (
            way.is_unchanged
            and isinstance(session, Session)
            and session.is_open
            and (session.can(wire.TAKES) or session.can(wire.PASSES))
            and session.address != message.return_route.first
            and not self._was_here(message)
        )

    def _was_here(self, message: Message) -> bool:
        """Whether an offer came up through this node before: hubs may be each other's parents.

        Its return route tells: names of sessions that others have opened are nobody else's.
        """
        links, before = self._kernel.links.sessions, message.return_route.addresses[1:]
        sessions = [links.get(hop.data) for hop in before if hop.type == LOCAL]
        return any(session is not None and not session.outgoing for session in sessions)

    def _answer(self, message: Message, answer: Answer) -> None:
        kernel = self._kernel
        if not kernel.links.closing:
            back, payload = message.return_route, wire.encode(answer)
            reply = Message(back, _TO_US, payload, kernel.new_id(), message.expiry)
            kernel.post(reply, replies_to=message.id)
