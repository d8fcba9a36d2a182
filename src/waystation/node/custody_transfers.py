"""Durable messages on their way to other nodes: offered, and forgotten on their word (DU-2)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec import Struct, structs

from waystation.core.address import Route
from waystation.core.custody import ENDED, LONGEST_PAUSE, Letter
from waystation.core.message import Arrival, Message
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.node.askers import Entrance
from waystation.node.custody_lanes import BATCH, CustodyLane
from waystation.node.custody_taking import ADDRESS, arrival_of, recipient_of
from waystation.node.custody_ways import Hop
from waystation.node.session import Session
from waystation.node.store import KnownPair
from waystation.wire import custody as wire
from waystation.wire.custody import Answer

if TYPE_CHECKING:
    from waystation.node.custody import Custody

BATCH_BYTES: Final = 256 * 1024
"""Bytes that are offered at once, unless a single letter is larger."""

TRANSFER_LIFE: Final = 60_000
"""Milliseconds that an offer lives on its way."""

_TO_US: Final = Route((ADDRESS,))

# Nothing changes about these by offering a letter again.
_FINAL: Final = frozenset(
    {
        Reason.REFUSED,
        Reason.HOP_LIMIT,
        Reason.EXPIRED,
        Reason.MALFORMED,
        Reason.TOO_LARGE,
        Reason.UNKNOWN_TYPE,
    }
)


def _first_name(letter: Letter) -> str:
    return letter.message.onward_route.addresses[0].name


class _Transfer(Struct, frozen=True):
    """Letters that were offered to another node, which has not answered yet."""

    lane: CustodyLane
    letters: tuple[Letter, ...]
    session: Session | Entrance
    receiver: str  # the name that the other node is to find

    def is_answered_by(self, arrival: Arrival) -> bool:
        """Whether a message came from the node that they were offered to."""
        if isinstance(self.session, Entrance):
            return arrival.message.return_route.first == self.session.address
        return arrival.via == self.session.name

    def is_unknown_to_parent(self, refused: Mapping[int, Reason]) -> bool:
        """Whether a parent which told of the receiver has no way to it any more.

        It may have been started anew, and nobody has asked it since.
        """
        is_parent = isinstance(self.session, Session) and self.session.is_parent
        return is_parent and set(refused.values()) == {Reason.NO_ROUTE}


class Transfers:
    """What one node has offered to others, and waits to be told of."""

    def __init__(self, custody: Custody) -> None:
        self._custody = custody
        self._kernel = custody.kernel
        self._transfers: dict[str, _Transfer] = {}

    def link_lost(self, session: Session | Entrance) -> None:
        """Offer what was offered over a link or channel that is gone again, over any other."""
        loop = asyncio.get_running_loop()
        for id, transfer in list(self._transfers.items()):
            if transfer.session is session:
                self._take_back(id)
                loop.call_soon(self._custody.hurry, transfer.lane)

    def offer(self, lane: CustodyLane, way: Hop) -> None:
        """Offer letters to the next node, or send one to a stranger (DU-6)."""
        session = way.session
        if not session.is_open:
            self._custody.retry(lane)  # or earlier, when it opens
        elif isinstance(session, Entrance):
            self._transfer(lane, way)  # nobody says hello in a channel: it takes them, or does not
        elif session.hello is None:
            if self._custody.ways.is_stranger(session):
                self._send_to_stranger(lane, session)
            else:
                self._custody.retry(lane, 0.1)  # its hello may be under way
        elif session.can(wire.TAKES) or session.can(wire.PASSES):
            self._transfer(lane, way)
        else:
            self._custody.retry(lane)

    def _transfer(self, lane: CustodyLane, way: Hop) -> None:
        kernel, store, session = self._kernel, self._custody.need_store(), way.session
        now = kernel.tick() // 1000
        letters = lane.lane.take(way.most or lane.batch, BATCH_BYTES)
        sent = tuple(structs.replace(one, message=way.forward(one.message)) for one in letters)
        expiry = now + TRANSFER_LIFE
        id, known = kernel.new_id(), lane.known
        own = known.pair.store == store.id
        lowest = known.numbers.lowest(now) if own else self._custody.lowest.get(known.pair, 1)
        lowest = min(lowest, letters[0].number)
        payload = wire.take(id, known.pair, lowest, sent, expiry, kernel.router.types.name)
        onward = Route((session.address, ADDRESS))
        lane.transfer = id
        self._transfers[id] = _Transfer(lane, letters, session, _first_name(sent[0]))
        verdict = kernel.post(Message(onward, _TO_US, payload, id, expiry))
        if verdict.reason is Reason.TOO_LARGE and len(letters) == 1:
            del self._transfers[id]
            lane.transfer = None
            self._custody.bury(lane, letters[0], Reason.TOO_LARGE)
            self._custody.go(lane)
        elif verdict.reason is not None:
            self._take_back(id)
            self._custody.retry(lane)
        else:
            answer = store.settings.answer
            longer = min(LONGEST_PAUSE, answer * 2 ** min(lane.failures, 4))
            loop = asyncio.get_running_loop()
            lane.timer = loop.call_later(max(answer, longer), self._unanswered, id)

    def _unanswered(self, id: str) -> None:
        """Offer letters again, at once: it was waited for long enough."""
        transfer = self._take_back(id)
        if transfer is not None:
            transfer.lane.failures += 1
            self._custody.retry(transfer.lane, 0.0)

    def _take_back(self, id: str) -> _Transfer | None:
        """Let letters wait again that nobody took; smaller batches may get through."""
        transfer = self._transfers.pop(id, None)
        if transfer is not None:
            lane = transfer.lane
            lane.transfer = None
            lane.batch = 1
            lane.lane.give_back()
            if lane.timer is not None:
                lane.timer.cancel()
                lane.timer = None
        return transfer

    def answered(self, arrival: Arrival, told: Answer) -> None:
        """Forget what another node has in custody now, on its word (DU-2)."""
        transfer = self._transfers.get(told.transfer)
        if transfer is None or not transfer.is_answered_by(arrival):
            return  # of an offer that was given up: it is made again
        del self._transfers[told.transfer]
        lane = transfer.lane
        lane.transfer = None
        if lane.timer is not None:
            lane.timer.cancel()
            lane.timer = None
        refused, ended = dict(told.refused), set(told.ended)
        taken = [one for one in transfer.letters if one.number not in refused]
        if taken:
            lane.failures, lane.batch = 0, min(BATCH, 2 * lane.batch)
            self._forget(lane, transfer, taken, told.node, ended)
        for one in transfer.letters:
            reason = refused.get(one.number)
            if reason in _FINAL:
                self._custody.bury(lane, one, reason)
        lane.lane.give_back()
        if not refused or taken:
            self._custody.go(lane)
        elif transfer.is_unknown_to_parent(refused):
            self._custody.park(lane, transfer.receiver)  # until a parent knows it again
        else:
            self._custody.retry(lane)

    def _forget(
        self,
        lane: CustodyLane,
        transfer: _Transfer,
        taken: list[Letter],
        node: str,
        ended: set[int],
    ) -> None:
        kernel, session = self._kernel, transfer.session
        numbers = [one.number for one in taken]
        lane.lane.settle(numbers)

        def forgotten() -> None:
            self._custody.release(lane.known, taken)
            place = session.address if isinstance(session, Entrance) else session.place
            verdict = Verdict(Outcome.FORWARDED, None, recipient_of(lane.pair), place)
            for one in taken:
                custodian = ENDED if one.number in ended else node
                kernel.end(arrival_of(one, custodian=custodian), verdict, session.name)

        self._custody.need_store().forget(lane.known, numbers, forgotten)

    def _send_to_stranger(self, lane: CustodyLane, session: Session) -> None:
        """Send a letter plainly: the promise ends when its bytes have left (DU-6)."""
        (letter,) = lane.lane.take(1, 0)
        lost: list[Reason | None] = []
        arrival = arrival_of(letter, custodian=ENDED, settled=lambda reason, _: lost.append(reason))
        loop = asyncio.get_running_loop()
        verdict = self._kernel.take(arrival)
        lane.is_asking_store = True

        def look() -> None:
            if lost:
                lane.is_asking_store = False
                lane.lane.give_back()
                self._custody.retry(lane)
            elif session.has_unsettled(arrival):
                lane.timer = loop.call_later(0.01, look)
            else:
                lane.is_asking_store = False
                self._forget_sent(lane, letter)
                self._custody.go(lane)

        if verdict.reason is not None:
            lost.append(verdict.reason)
        loop.call_soon(look)

    def _forget_sent(self, lane: CustodyLane, letter: Letter) -> None:
        """Forget a letter that a stranger has; that its bytes have left is recorded."""
        lane.lane.settle([letter.number])
        release = partial(self._custody.release, lane.known, [letter])
        self._custody.need_store().forget(lane.known, [letter.number], release)

    def keep(self, known: KnownPair, numbers: Collection[int]) -> None:
        """Forget none of these letters by the answer to an offer that was made before now.

        Another node that has them too offers them, and forgets them when this node says that it has
        them. Would this node forget them on the word of a node that has had them meanwhile, perhaps
        that same one, they could be lost: so each goes on only by an offer that is made after it
        came.
        """
        for id, transfer in list(self._transfers.items()):
            is_meant = transfer.lane.known is known
            if is_meant and any(one.number in numbers for one in transfer.letters):
                self._take_back(id)
                self._custody.retry(transfer.lane)
