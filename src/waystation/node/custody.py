"""Durable messages: custody from the sender's disk to the worker (DU).

A node with a store writes a durable message before it tells anybody that it has it. From then on it
tries to pass it on: to a worker of its own, or to the next node that has a store, which writes it
and says so; only on that word is it forgotten here (DU-2). Nodes say so in messages to the receiver
`waystation.custody`, so it works over every transport. A node without a store passes such messages
on. Each way that custody ends is a record, after it is on disk.

What a node has of one pair is a lane: its letters go one after the other, in order, a batch at a
time to another node, and one at a time to a worker (DU-4). Lanes do not wait for each other.

Where a letter goes next stands in `custody_ways`; how it gets there in `custody_transfers` (to
another node), `custody_handing` (to a worker) and `custody_spreading` (to subscribers). What is on
disk stands in `store`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct, structs

from waystation.core.address import LOCAL, Route
from waystation.core.custody import (
    WINDOW,
    CustodyArrival,
    Handled,
    Lane,
    Letter,
    Numbers,
    Pair,
    pause_after,
)
from waystation.core.expiry import LAST_INSTANT, expiry_after
from waystation.core.message import Message
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.core.routing import RoutingEntry
from waystation.errors import DecodeError, LocalError, quote
from waystation.node.askers import Entrance
from waystation.node.custody_handing import Handing
from waystation.node.custody_lanes import CustodyLane
from waystation.node.custody_spreading import Spreading
from waystation.node.custody_taking import ADDRESS, Taking, arrival_of, receiver_of, recipient_of
from waystation.node.custody_transfers import Transfers
from waystation.node.custody_ways import Absent, End, Hop, Spread, Way, Ways, Worker
from waystation.node.custody_wishes import Wishes
from waystation.node.deposits import Deposits
from waystation.node.kept import KeptSubscriptions
from waystation.node.policy import check_seconds
from waystation.node.session import Session
from waystation.node.store import (
    ExpiredRow,
    Job,
    KnownPair,
    LetterRow,
    NewRow,
    Store,
    StoreSettings,
)
from waystation.wire import custody as wire
from waystation.wire.custody import Answer

if TYPE_CHECKING:
    from waystation.node.kernel import Kernel

SWEEP: Final = 1.0
"""Seconds between two looks for letters whose life is over."""

SWEPT: Final = 500
"""Letters that one look finds, at most."""

_log = logging.getLogger("waystation.node")


class CustodySnapshot(Struct, frozen=True):
    """What a node has in custody, and how busy its store is."""

    messages: int
    bytes: int
    dead: int
    commits: int
    oldest_us: int | None  # since when the oldest is queued
    parked: int  # messages whose receiver is not there
    pairs: int
    trouble: str


class Custody:
    """The durable messages of one node; without a store it only passes those of others on."""

    def __init__(self, kernel: Kernel, settings: StoreSettings | None) -> None:
        self.kernel = kernel
        self.store = None if settings is None else Store(settings)
        self.absent: dict[str, dict[CustodyLane, None]] = {}  # by the name that lanes wait for
        self.ways = Ways(kernel)
        self.transfers = Transfers(self)
        self.deposits = Deposits(kernel)
        self._handing = Handing(self)
        self._spreading = Spreading(self)
        self._lanes: dict[Pair, CustodyLane] = {}
        self._by_id: dict[int, KnownPair] = {}
        self._held: dict[str, list[int]] = {}  # by receiver: messages and bytes
        self._all = [0, 0]
        self.unwritten = [0, 0]  # messages and bytes that wait for the disk
        self.lowest: dict[Pair, int] = {}  # as told by who offered letters of others' pairs
        self._oldest: int | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._is_closing = False
        if self.store is not None:
            for known in self.store.pairs.values():
                self._by_id[known.id] = known
                self.count(known.pair.participant, known.messages, known.bytes)
            kernel.hierarchy.keep_secret(self.store.secret, self.store.link_base)
            self._wishes = Wishes(self, self.store)
        self.kept = KeptSubscriptions(self, self.store)

    @property
    def capabilities(self) -> tuple[str, ...]:
        """What the hello says of a node with a store (DU-2)."""
        return () if self.store is None else (wire.TAKES,)

    def start(self) -> None:
        """Go on with what an earlier process had, once there is an event loop."""
        if self.store is None or self._sweeper is not None or self._is_closing:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        self._sweeper = loop.call_later(SWEEP, self._sweep)
        for known in list(self.store.pairs.values()):
            if known.messages:
                self.go(self._lane(known))

    def serve(self) -> None:
        """Receive what other nodes say about custody."""
        if self.kernel.own_receiver(wire.WORKER) is None:
            entry = RoutingEntry(wire.WORKER, ADDRESS, local=True)
            self.kernel.add_receiver(ADDRESS, Taking(self), entry)

    def is_custody(self, message: Message) -> bool:
        """Whether what is inside a message is judged, and not the message (ID-3).

        That is what is taken out here. An answer may be on its way to another node.
        """
        addresses, receivers = message.onward_route.addresses, self.kernel.receivers
        if addresses == (ADDRESS,):
            return True
        return (
            addresses[-1:] == (ADDRESS,)
            and all(
                one.type == LOCAL and isinstance(receivers.get(one.data), Session)
                for one in addresses[:-1]
            )
            and isinstance(wire.read(message.payload), Answer)
        )

    def snapshot(self) -> CustodySnapshot | None:
        """How much there is; None without a store."""
        store = self.store
        if store is None:
            return None
        waiting = sum(one.lane.messages for lanes in self.absent.values() for one in lanes)
        messages, size = (all - new for all, new in zip(self._all, self.unwritten, strict=True))
        return CustodySnapshot(
            messages,
            size,
            store.dead,
            store.commits,
            self._oldest if messages else None,
            waiting,
            len(store.pairs),
            store.trouble,
        )

    async def close(self) -> None:
        """Write what happened, and let the store go; what is in it waits for the next process."""
        self._is_closing = True
        for lane in self._lanes.values():
            if lane.timer is not None:
                lane.timer.cancel()
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self.store is not None:
            await asyncio.to_thread(self.store.close)
            await asyncio.sleep(0)  # who waits for the disk is told
        if self.kernel.own_receiver(wire.WORKER) is not None:
            self.kernel.remove_receiver(ADDRESS)

    # Sending

    async def send(self, message: Message, sender: str) -> Verdict:
        """Take custody of a message that is sent here; QUEUED when it is on disk (DU-1)."""
        kernel, store = self.kernel, self.need_store()
        self._check_channel(message)
        receiver = receiver_of(message.onward_route)
        at = kernel.stamp()
        arrival = arrival_of(Letter(1, message, at, received_at=at))
        size = Letter(1, message, at).size
        pair = Pair(store.id, sender, receiver)
        recipient = recipient_of(pair)
        if not (self.has_room(receiver, 1, size) and self.may_know(pair)):
            return kernel.drop(arrival, Reason.QUEUE_FULL, recipient)
        self.start()
        known = self.known(pair)
        letter = Letter(known.numbers.draw(message.expiry), message, at, received_at=at)
        written: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()

        def done(new: list[int]) -> None:  # noqa: ARG001
            verdict = kernel.end(arrival, Verdict(Outcome.QUEUED, None, recipient))
            self.enter(known, [letter])
            if not written.done():
                written.set_result(verdict)

        def refused(why: str) -> None:  # noqa: ARG001 - the store has logged it
            verdict = kernel.drop(arrival, Reason.QUEUE_FULL, recipient)
            if not written.done():
                written.set_result(verdict)

        self.put(known, [letter], done, refused, own=True)
        return await written

    def _check_channel(self, message: Message) -> None:
        """Check that a channel that it goes through can be opened again after a restart."""
        first = message.onward_route.first
        receiver = None if first is None else self.kernel.receivers.get(first.data)
        if isinstance(receiver, Entrance) and not receiver.is_lasting:
            raise LocalError(
                "a durable message through a secure channel without a name of its own",
                rule="DU-1",
                hint="open the channel with a name, and again with it after a restart",
            )

    def expiry_in(self, seconds: float | None) -> float:
        """When a durable message dies that lives this long: the store has a default (DU-1)."""
        ttl = self.need_store().settings.ttl if seconds is None else check_seconds(seconds)
        return min(expiry_after(self.kernel.stamp() // 1000, int(ttl * 1000)), LAST_INSTANT)

    def need_store(self) -> Store:
        """The store; raises LocalError without one."""
        if self.store is None:
            raise LocalError(
                f"node {quote(self.kernel.name)} has no store for durable messages",
                rule="DU-1",
                hint='give it one: Node(name, store="DIR"), or [node] store = "DIR"',
            )
        return self.store

    # What is in the store

    def may_know(self, pair: Pair) -> bool:
        """Whether a pair is known, or there is room for one more."""
        store = self.need_store()
        return pair in store.pairs or len(store.pairs) < store.settings.pairs

    def known(self, pair: Pair) -> KnownPair:
        """A pair, which is entered if it is new."""
        store = self.need_store()
        known = store.pairs.get(pair)
        if known is None:
            id = len(self._by_id) + 1
            known = KnownPair(id, pair, Numbers(), Handled())
            store.pairs[pair] = self._by_id[id] = known
            store.add_pair(known)
        return known

    def _lane(self, known: KnownPair) -> CustodyLane:
        lane = self._lanes.get(known.pair)
        if lane is None:
            lane = CustodyLane(Lane(known.pair, known.messages, known.bytes), known)
            self._lanes[known.pair] = lane
        return lane

    def put(
        self,
        known: KnownPair,
        letters: list[Letter],
        done: Callable[[list[int]], None],
        refused: Callable[[str], None],
        *,
        own: bool,
        also: Job | None = None,
    ) -> None:
        """Write letters, and `also` something else with them; they have their room from now on.

        `done` gets the numbers that were not there before.
        """
        store, names = self.need_store(), self.kernel.router.types.name
        rows = [
            NewRow(
                one.number,
                one.message.id,
                one.queued_at,
                one.message.expiry,
                one.size,
                one.received_at,
                one.via,
                wire.body(one, names),
            )
            for one in letters
        ]
        size = sum(one.size for one in letters)
        self.count(known.pair.participant, len(letters), size)
        self._count_unwritten(len(letters), size)
        lane = self._lane(known)
        first = letters[0].message.onward_route.addresses[0]
        goes_to_worker = lane.lane.messages < WINDOW and self.ways.is_worker(first)
        started = letters[-1].number if goes_to_worker else 0  # it saves a commit of its own

        def written(new: list[int]) -> None:
            self._count_unwritten(-len(letters), -size)
            known.started = max(known.started, started)
            there = set(new)
            self.release(known, [one for one in letters if one.number not in there])
            done(new)

        def not_written(why: str) -> None:
            self._count_unwritten(-len(letters), -size)
            self.release(known, letters)
            refused(why)

        store.put(known, rows, written, not_written, own=own, started=started, also=also)

    def _count_unwritten(self, messages: int, size: int) -> None:
        self.unwritten[0] += messages
        self.unwritten[1] += size

    def enter(self, known: KnownPair, letters: Iterable[Letter]) -> None:
        """Have letters in custody that are on disk now."""
        lane = self._lane(known)
        for letter in letters:
            lane.lane.add(letter)
        self.go(lane)

    def has_room(self, receiver: str, messages: int, size: int) -> bool:
        """Whether there is room for so many more messages for a receiver (DU-5)."""
        settings, (held, held_bytes) = self.need_store().settings, self._all
        theirs, their_bytes = self._held.get(receiver, (0, 0))
        return (
            held + messages <= settings.messages
            and held_bytes + size <= settings.bytes
            and theirs + messages <= settings.receiver_messages
            and their_bytes + size <= settings.receiver_bytes
        )

    def learn_lowest(self, known: KnownPair, lowest: int) -> None:
        """Note which numbers of another store's pair are not alive any more (DU-3)."""
        if known.pair.store != self.need_store().id:
            self.lowest[known.pair] = max(lowest, self.lowest.get(known.pair, 1))
            known.handled.close_below(lowest)

    def count(self, receiver: str, messages: int, size: int) -> None:
        """Count what came, or went."""
        held = self._held.setdefault(receiver, [0, 0])
        for counts in (held, self._all):
            counts[0] += messages
            counts[1] += size
        if not held[0]:
            del self._held[receiver]

    def release(self, known: KnownPair, letters: Sequence[Letter]) -> None:
        """Let others have the room of letters that are not on disk, or no longer."""
        if letters:
            size = sum(one.size for one in letters)
            self.count(known.pair.participant, -len(letters), -size)

    # Going on

    def go(self, lane: CustodyLane) -> None:
        """Do what can be done for the first letter of a lane."""
        while not (self._is_closing or lane.is_asking_store or self.kernel.links.closing):
            if not (lane.lane.needs_load or lane.lane.is_idle):
                return
            left = lane.due - asyncio.get_running_loop().time()
            if left > 0:
                self._come_back(lane, left)
                return
            if lane.lane.needs_load:
                self._load_or_park(lane)
                return
            letter = lane.lane.first()
            if letter.message.expired(self.kernel.tick() // 1000):
                lane.lane.take(1, 0)
                self.bury(lane, letter, Reason.EXPIRED)
                continue
            self._wait_no_longer(lane)
            own = lane.pair.store == self.need_store().id
            way = self.ways.find(letter.message, sent_here=own, turn=lane.failures)
            if isinstance(way, End):
                lane.lane.take(1, 0)
                self.bury(lane, letter, way.reason)
                continue
            self._send(lane, letter, way)
            return

    def _send(self, lane: CustodyLane, letter: Letter, way: Way) -> None:
        """Let the first letter of a lane, perhaps with others, go its way."""
        if isinstance(way, Worker):
            self._handing.hand_over(lane, letter, way)
        elif isinstance(way, Hop):
            self.transfers.offer(lane, way)
        elif isinstance(way, Absent):
            self.park(lane, way.name)
        elif isinstance(way, Spread):
            self._spreading.spread(lane, letter, way)
        else:
            self.retry(lane)

    def _load_or_park(self, lane: CustodyLane) -> None:
        """Load letters, unless it is known that nobody can have them yet."""
        own = lane.pair.store == self.need_store().id
        if lane.absent is not None and self.ways.is_absent(lane.absent, sent_here=own):
            self.park(lane, lane.absent)
        else:
            self._load(lane)

    def _load(self, lane: CustodyLane) -> None:
        """Read the first letters of a lane from the disk."""
        store, types = self.need_store(), self.kernel.router.types
        lane.is_asking_store = True

        def loaded(rows: list[LetterRow]) -> None:
            lane.is_asking_store = False
            letters, more = [], lane.lane.messages > len(rows)
            for row in rows:
                try:
                    letter = wire.letter_of(row.body, types.numbers)
                except DecodeError as error:
                    self._bury_row(lane, row, str(error))
                    continue
                is_ours = row.received_at is not None
                letters.append(
                    structs.replace(
                        letter,
                        attempt=row.attempt,
                        failures=row.failures,
                        received_at=row.received_at or self.kernel.tick(),
                        via=row.via if is_ours else None,
                    )
                )
            lane.lane.load(letters, more=more)
            self.go(lane)

        store.load(lane.known, WINDOW, loaded)

    def _bury_row(self, lane: CustodyLane, row: LetterRow, problem: str) -> None:
        """Bury a letter that this node cannot read any more, since it lacks a transport."""
        kernel, known = self.kernel, lane.known
        known.handled.note(row.number)
        lane.lane.discount(1, row.size)
        at, nowhere = kernel.tick(), Route()
        arrival = CustodyArrival(Message(nowhere, nowhere, b"", row.message_id), at)
        verdict = Verdict.dropped(Reason.UNKNOWN_TYPE, recipient_of(lane.pair))

        def buried() -> None:
            self.count(lane.pair.participant, -1, -row.size)
            kernel.end(arrival, verdict)

        args = (Reason.UNKNOWN_TYPE, problem, at, row.attempt)
        self.need_store().bury(known, row.number, *args, buried)

    def retry(self, lane: CustodyLane, pause: float | None = None) -> None:
        """Try again later, for longer each time; or after a pause, which is not for a failure."""
        if pause is None:
            lane.failures += 1
            pause = pause_after(lane.failures)
        loop = asyncio.get_running_loop()
        lane.due = loop.time() + pause
        self._come_back(lane, pause)

    def _come_back(self, lane: CustodyLane, seconds: float) -> None:
        if lane.timer is not None:
            lane.timer.cancel()
        lane.timer = asyncio.get_running_loop().call_later(seconds, self.go, lane)

    def _wait_no_longer(self, lane: CustodyLane) -> None:
        if lane.timer is not None:
            lane.timer.cancel()
            lane.timer = None
        lane.waits_for_handler = False
        name, lane.absent = lane.absent, None
        if name is not None and name in self.absent:
            self.absent[name].pop(lane, None)
            if not self.absent[name]:
                del self.absent[name]

    def park(self, lane: CustodyLane, name: str) -> None:
        """Wait for somebody who is not there, and ask the parents now and then."""
        lane.absent = name
        self.absent.setdefault(name, {})[lane] = None
        lane.lane.unload()
        if self.kernel.hierarchy.parents and not self.kernel.is_reserved(name):
            self.kernel.hierarchy.questions.ask(name, lambda _: None)
        self.retry(lane)

    def appeared(self, name: str) -> None:
        """Go on with what waits for a name that has a route now."""
        lanes = list(self.absent.get(name, ()))
        loop = asyncio.get_running_loop()
        for lane in lanes:
            loop.call_soon(self.hurry, lane)

    def link_opened(self, session: Session) -> None:
        """Go on with what waits for a link."""
        if session.ended:
            return
        self.start()
        self.kept.link_opened(session)
        for lane in list(self._lanes.values()):
            self.hurry(lane)

    def subscriber(self, name: str) -> str:
        """The participant that a durable subscription of this node is."""
        self.need_store()
        own = self.kept.name_of(name)
        self.kernel.free_address(own)
        return own

    def hurry(self, lane: CustodyLane) -> None:
        """Try now what waits for a while, unless its handler raised."""
        if not lane.waits_for_handler and lane.transfer is None:
            lane.due, lane.failures = 0.0, 0
            self.go(lane)

    # The end

    def bury(
        self, lane: CustodyLane, letter: Letter, reason: Reason | None, detail: str = ""
    ) -> None:
        """End a letter that is in hand, undelivered: it becomes a dead letter (DU-5)."""
        assert reason is not None
        kernel, known = self.kernel, lane.known
        lane.lane.settle([letter.number])
        known.handled.note(letter.number)
        arrival = arrival_of(letter, attempt=letter.attempt or None)
        verdict = Verdict.dropped(reason, recipient_of(lane.pair))

        def buried() -> None:
            self.release(known, [letter])
            kernel.end(arrival, verdict)

        args = (reason, detail, kernel.tick(), letter.attempt)
        self.need_store().bury(known, letter.number, *args, buried)

    def _sweep(self) -> None:
        """Look for letters whose life is over, wherever they stand, and how old the oldest is."""
        store = self.need_store()
        loop = asyncio.get_running_loop()
        self._sweeper = loop.call_later(SWEEP, self._sweep)
        self._wishes.look()
        self.kept.sweep()
        if self._all[0] and not store.trouble:
            store.expired(self.kernel.tick() // 1000, SWEPT, self._swept)
            store.oldest(self._note_oldest)

    def _note_oldest(self, oldest: int | None) -> None:
        self._oldest = oldest

    def _swept(self, rows: list[ExpiredRow]) -> None:
        self.end_rows(rows, Reason.EXPIRED)

    def end_rows(self, rows: list[ExpiredRow], reason: Reason, detail: str = "") -> int:
        """End letters wherever they stand, but those that somebody has; returns how many."""
        ended = 0
        for row in rows:
            known = self._by_id[row.pair]
            lane = self._lane(known)
            in_hand = any(one.number == row.number for one in lane.lane.in_hand)
            if in_hand or lane.is_asking_store or known.handled.knows(row.number):
                continue  # who has it sees to it
            with contextlib.suppress(DecodeError):
                letter = wire.letter_of(row.body, self.kernel.router.types.numbers)
                at = self.kernel.tick()
                letter = structs.replace(letter, attempt=row.attempt, received_at=at)
                if not lane.lane.settle([row.number]):  # it was on disk only
                    lane.lane.discount(1, row.size)
                self.bury(lane, letter, reason, detail)
                ended += 1
        return ended

    def hurry_all(self) -> None:
        """Try everything now."""
        for lane in list(self._lanes.values()):
            lane.waits_for_handler = False
            self.hurry(lane)
