"""Sessions: a link to a peer under a local name, and everything around it that is not bytes (WK-8).

A session is a receiver like any worker: what is addressed to its name goes over its link. It says
hello, proves the token, translates address types, sends heartbeats and notices their absence, keeps
messages waiting while the link is slow or gone, and passes on to the peer that somebody here is
slow. Who dials, listens and dials again is the node's business (links.py).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import structs

from waystation.core.address import LOCAL, Address
from waystation.core.address_types import PeerTypes
from waystation.core.message import NO_ID, Arrival, Message
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.errors import RemoteError
from waystation.node.inbox import WaitingLine
from waystation.transports.transport import Link
from waystation.wire.hello import Greeting, Hello

if TYPE_CHECKING:
    from waystation.node.links import Connections

Verdicts: TypeAlias = tuple[Verdict, ...]  # one for each who gets the message behind a session

MISSED_BEATS: Final = 3
"""A peer that promised heartbeats and missed so many is gone."""


MOST_UNREAD: Final = 1024 * 1024
"""So many bytes of answers wait for a peer that does not read them."""


class Session:
    """One peer, over one link at a time."""

    __slots__ = (
        "__weakref__",
        "_admission",
        "_answered",
        "_backlog",
        "_beat",
        "_by_name",
        "_by_place",
        "_connections",
        "_failure",
        "_greeting",
        "_heard",
        "_link",
        "_make_greeting",
        "_missed",
        "_opened",
        "_paused",
        "_ready",
        "_said",
        "_send",
        "_stalled",
        "_types",
        "_unread",
        "_unsettled",
        "_waiting",
        "address",
        "change",
        "checked_at",
        "complaints",
        "ended",
        "failure",
        "is_parent",
        "keeper",
        "kept",
        "opened_here",
        "openings",
        "outside",
        "participants",
        "place",
        "places",
        "registered",
        "subscriptions",
        "verdict",
    )

    def __init__(
        self,
        connections: Connections,
        address: Address,
        place: Address,
        make_greeting: Callable[[], Greeting],
        *,
        opened_here: bool,
        kept: bool = False,
    ) -> None:
        self.address = address
        self.opened_here = opened_here
        self.kept = kept  # it stays when its link goes, and gets another
        self.ended = False
        self.registered = False  # its name is a routing entry
        self.keeper: asyncio.Task[None] | None = None  # dials again when the link is gone
        self.openings = 0
        self.is_parent = False
        self.outside = False  # its peer is reached over a global transport (RE-13, MC-11)
        self.participants: set[str] = set()  # that its peer announced, or asked as from outside
        self.checked_at = 0  # when it was last seen which of them are still there
        self.subscriptions = 0  # of its participants
        self.complaints: set[str] = set()  # about what its peer said
        self.places = 1  # where its peer may be
        self.failure = ""  # how the last link ended, or why there was none
        self.change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._connections = connections
        self._make_greeting = make_greeting
        self._greeting = make_greeting()
        self._link: Link | None = None
        self._send: Callable[[Message], Reason | None] = _send_nothing
        self._ready = False  # a message can be given to the link now, and nobody waits for that
        self._answered = False
        self._opened = False
        self._paused = False
        self._types = PeerTypes()
        self._waiting: WaitingLine[tuple[Arrival, Message, Verdicts]] = WaitingLine()
        # Given to the link, and not yet out of our hands; with what is to be said of it then.
        self._unsettled: list[tuple[Arrival, Verdicts]] = []
        self._backlog: deque[Message] = deque()  # received, behind one that nobody had room for
        self._stalled = False
        self._heard = self._said = False
        self._missed = 0
        self._unread = 0  # bytes of answers, since the peer no longer keeps up
        self._beat: asyncio.TimerHandle | None = None
        self._admission: asyncio.TimerHandle | None = None
        self._failure: tuple[Reason, str] | None = None
        self.move_to(place)

    def move_to(self, place: Address) -> None:
        """Say where the peer is."""
        self.place = place
        self.verdict = Verdict(Outcome.FORWARDED, None, self.name, place)
        self._by_name = (self.verdict,)
        self._by_place = (Verdict(Outcome.FORWARDED, None, None, place),)

    @property
    def name(self) -> str:
        """The local name that stands for it in routes."""
        return self.address.name

    @property
    def peer(self) -> str | None:
        """The name that the peer gave itself; None while it said none."""
        hello = self._greeting.peer
        return None if hello is None else hello.node

    @property
    def is_open(self) -> bool:
        """Whether messages can go over it now, be it slowly."""
        return self._opened

    @property
    def is_stalled(self) -> bool:
        """Whether what came from the peer waits for room here."""
        return self._stalled

    @property
    def has_link(self) -> bool:
        """Whether there is a link, be it open for messages or not."""
        return self._link is not None

    async def close(self) -> None:
        """End it: what was given to it is written, what waits for it is TRANSPORT_DOWN."""
        await self._connections.close_session(self)

    # A receiver of messages

    @property
    def refusal(self) -> Reason:
        """Why it takes no message at the moment."""
        return Reason.QUEUE_FULL if self.is_open else Reason.TRANSPORT_DOWN

    def offer(self, arrival: Arrival) -> Verdict | None:
        """Take a message that is addressed to it, if the link can have it now."""
        if not self._ready:
            return None
        message = arrival.message
        return self._carry(arrival, message, self._verdicts_on(message))

    def line_up(self, arrival: Arrival, deadline: float | None) -> asyncio.Future[Verdict | None]:
        """Take a message as soon as the link can have it."""
        verdicts = self._verdicts_on(arrival.message)
        return self.line_up_for(arrival, arrival.message, verdicts, deadline)

    def waiting(self) -> int:
        """How many messages are lined up."""
        return len(self._waiting.line)

    def offer_for(self, arrival: Arrival, message: Message, verdicts: Verdicts) -> Verdict | None:
        """Like `offer`, with the routes that the message has on its way out, and its verdicts."""
        return self._carry(arrival, message, verdicts) if self._ready else None

    def line_up_for(
        self, arrival: Arrival, message: Message, verdicts: Verdicts, deadline: float | None
    ) -> asyncio.Future[Verdict | None]:
        """Like `line_up`, with the routes that the message has on its way out."""
        self._ready = False
        return self._waiting.join((arrival, message, verdicts), deadline)

    def outbound(self, message: Message) -> Message:
        """A message as it is given to this session for somebody behind it."""
        return message.rerouted(message.onward_route.pushed(self.place), message.return_route)

    def say(self, payload: bytes) -> None:
        """Tell the peer's session something, in order with the messages."""
        if self._link is not None and self._opened:
            self._said = True
            self._link.send_control(payload)

    def answer(self, payload: bytes) -> None:
        """Say something because the peer did; one that asks on and never reads is ended."""
        self._unread = self._unread + len(payload) if self._paused else 0
        if self._unread > MOST_UNREAD:
            self._fail(Reason.QUEUE_FULL, "the peer asks, and does not read the answers")
        self.say(payload)

    def _carry(self, arrival: Arrival, message: Message, verdicts: Verdicts) -> Verdict:
        """Give a message to the link."""
        if self._types.outward:
            message = message.rerouted(
                self._types.to_peer(message.onward_route), self._types.to_peer(message.return_route)
            )
        reason = self._send(message)
        if reason is None:
            self._unsettled.append((arrival, verdicts))
            return verdicts[0]
        node = self._connections.node
        for verdict in verdicts[1:]:
            node.end(arrival, Verdict.dropped(reason, verdict.recipient))
        return node.end(arrival, Verdict.dropped(reason, verdicts[0].recipient))

    # The owner of a link

    def opened(self, link: Link) -> None:
        """Greet the peer."""
        self._link = link
        self._send = link.send
        self._greeting = self._make_greeting()
        self._paused = False
        self._failure = None
        connections = self._connections
        if not connections.link_made(self, link):
            self._fail(Reason.REFUSED, "there are as many sessions as the limit allows")
            return
        link.send_control(self._greeting.first())
        loop = asyncio.get_running_loop()
        if not self._greeting.admitted:
            self._admission = loop.call_later(connections.limits.greeting, self._refuse_silence)
        self._types = connections.peer_types(None, opened_here=self.opened_here)
        if connections.limits.heartbeat:
            self._missed = 0
            self._beat = loop.call_later(connections.limits.heartbeat, self._keep_alive)

    def answered(self) -> None:
        """Let messages follow, if neither a token nor the peer's numbers have to be waited for."""
        self._answered = True
        if not self._greeting.admitted:
            return
        if self.opened_here and self._types.outward and self._greeting.peer is None:
            # Our numbers are not the standard ones; are they what this peer will read?
            loop = asyncio.get_running_loop()
            self._admission = loop.call_later(self._connections.table_time, self._open_up)
        else:
            self._open_up()

    def received(self, messages: Sequence[Message]) -> None:
        """Let each message find its receiver, in order."""
        self._heard = True
        if self._stalled:  # also when a new link comes while what the old one brought still waits
            self._backlog.extend(messages)
            self.pause_reading()
        else:
            self._connections.node.tick()
            self._hand_in(deque(messages))

    def sent(self, messages: int | None = None) -> None:
        """Note that so many more messages are out of our hands."""
        self._said = True
        settled = self._unsettled
        if messages is None or messages >= len(settled):
            self._unsettled = []
        else:
            self._unsettled = settled[messages:]
            settled = settled[:messages]
        if settled:
            self._connections.node.end_all(settled)

    def _verdicts_on(self, message: Message) -> Verdicts:
        """What the rules say of a message that goes here, by whatever name it was sent."""
        first = message.onward_route.addresses[0]
        if first.type != LOCAL:
            return self._by_place
        if first.data == self.address.data:
            return self._by_name
        return (Verdict(Outcome.FORWARDED, None, first.name, self.place),)

    def pause(self) -> None:
        """Let senders wait."""
        self._paused = True
        self._ready = False

    def resume(self) -> None:
        """Give the link what waits, in order, as far as it takes it."""
        self._paused = False
        self._catch_up()

    def closed(self, reason: Reason | None, detail: str) -> None:
        """Forget the link, and what it had not written."""
        if self._failure is not None:
            reason, detail = self._failure
        was_open, self._opened = self._opened, False
        self._answered = False
        self._link = None
        self._send = _send_nothing
        self._ready = False
        for alarm in (self._beat, self._admission):
            if alarm is not None:
                alarm.cancel()
        self._beat = self._admission = None
        lost, self._unsettled = self._unsettled, []
        self._connections.node.lose_all(lost)
        self._connections.link_closed(self, reason, detail, was_open=was_open)

    def turn_away(self) -> None:
        """Tell who waits that there will be no link."""
        self._waiting.turn_away()

    def end_link(self, *, at_once: bool = False) -> None:
        """End the link, if there is one; `closed` follows."""
        if self._link is not None:
            if at_once:
                self._link.abort()
            else:
                self._say_no_more()
                self._link.close()

    def _say_no_more(self) -> None:
        """Give nothing to a link that says goodbye, not even a heartbeat."""
        self._send = _no_longer
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None

    def pause_reading(self) -> None:
        """Take nothing more from the peer."""
        if self._link is not None:
            self._link.pause_reading()

    # Greeting

    def _control(self, payload: bytes) -> None:
        if not payload:
            return
        greeting = self._greeting
        if self._opened and self._connections.node.hierarchy.hear(self, payload):
            return
        knew_peer, was_admitted = greeting.peer is not None, greeting.admitted
        try:
            answer = greeting.hear(payload)
        except RemoteError as error:
            self._fail(Reason.REFUSED, str(error))
            return
        if answer is not None and self._link is not None:
            self._link.send_control(answer)
        if greeting.peer is not None and not knew_peer:
            self._learn(greeting.peer)
        if greeting.admitted and not was_admitted:
            self._open_up()

    def _learn(self, peer: Hello) -> None:
        self._types = self._connections.peer_types(peer.types, opened_here=self.opened_here)
        if self._greeting.admitted:
            self._open_up()
        self.changed()

    def _open_up(self) -> None:
        """Let messages through: the peer is who it should be, and its numbers are known."""
        if self._opened or self._link is None or not self._answered:
            return
        self._opened = True
        if self._admission is not None:
            self._admission.cancel()
            self._admission = None
        self._connections.link_opened(self)
        self._catch_up()

    def changed(self) -> None:
        """Wake up who waits for this session to open or to close."""
        change, self.change = self.change, asyncio.get_running_loop().create_future()
        if not change.done():
            change.set_result(None)

    def _refuse_silence(self) -> None:
        self._admission = None
        seconds = self._connections.limits.greeting
        self._fail(Reason.REFUSED, f"the peer proved nothing for {seconds:g} s")

    def _fail(self, reason: Reason, detail: str) -> None:
        if self._failure is None:
            self._failure = (reason, detail)
        self.end_link(at_once=True)

    def _keep_alive(self) -> None:
        link, connections = self._link, self._connections
        if link is None:
            return
        peer = self._greeting.peer
        # A session that does not read hears nothing, and that is not the peer's fault.
        self._missed = 0 if self._heard or self._stalled else self._missed + 1
        beat = connections.limits.heartbeat
        if (
            peer is not None
            and peer.beat > 0
            and self._missed * beat > MISSED_BEATS * max(peer.beat, beat)
        ):
            silence = self._missed * beat
            self._fail(Reason.TRANSPORT_DOWN, f"nothing was heard for {silence:g} s")
            return
        if not self._said and not self._paused:
            link.send_control(b"")
        self._heard = self._said = False
        self._beat = asyncio.get_running_loop().call_later(beat, self._keep_alive)

    # Messages from the peer

    def _hand_in(self, messages: deque[Message]) -> None:
        """Let messages find their receivers, up to the first that has no room."""
        node, types = self._connections.node, self._types
        access, outside = node.access, self.outside
        from_global = outside or self.is_parent
        while messages:
            message = messages.popleft()
            if not message.onward_route.addresses:
                self._control(message.payload)
                types = self._types
                continue
            if not self._greeting.admitted:
                self._turn_down([message, *messages])
                return
            if message.id == NO_ID:  # from a peer that gives none (AD-7)
                message = structs.replace(message, id=node.new_id())
            if types.inward:
                message = message.rerouted(
                    types.from_peer(message.onward_route), types.from_peer(message.return_route)
                )
            if access is not None and not node.allows(message, self.peer or ""):
                node.end(node.arrival(message), Verdict.dropped(Reason.REFUSED))
                continue
            if outside:
                node.remember_sender(message, self)
            stuck = node.arrive(message, from_global)
            if stuck is not None:
                self._stall(messages)
                stuck.add_done_callback(self._go_on)
                return

    def _turn_down(self, messages: Sequence[Message]) -> None:
        """End messages from somebody who has not proven anything, and the link with them."""
        node = self._connections.node
        for message in messages:
            node.end(node.arrival(message), Verdict.dropped(Reason.REFUSED))
        self._fail(Reason.REFUSED, "the peer sent a message before it proved the token")

    def _stall(self, rest: deque[Message]) -> None:
        """Read no more: somebody here has no room for what came (WK-6)."""
        self._stalled = True
        self._backlog = rest
        if self._link is not None:
            self._link.pause_reading()

    def _go_on(self, _: asyncio.Future[Verdict | None]) -> None:
        self._stalled = False
        backlog, self._backlog = self._backlog, deque()
        self._connections.node.tick()
        self._hand_in(backlog)
        if self._stalled:
            return
        if self._link is None:
            self.changed()  # whoever wants to dial again has waited for this
        elif not self._connections.closing:
            self._link.resume_reading()

    def _catch_up(self) -> None:
        """Give the link what waits for it."""
        while self._opened and not self._paused:
            first = self._waiting.next()
            if first is None:
                self._ready = self._opened
                return
            (arrival, message, verdicts), room = first
            node = self._connections.node
            if message.expired(node.tick() // 1000):
                for verdict in verdicts:
                    node.end(arrival, Verdict.dropped(Reason.EXPIRED, verdict.recipient))
                room.set_result(Verdict.dropped(Reason.EXPIRED, verdicts[0].recipient))
            else:
                room.set_result(self._carry(arrival, message, verdicts))


def _no_longer(message: Message) -> Reason | None:  # noqa: ARG001
    return Reason.TRANSPORT_DOWN


def _send_nothing(message: Message) -> Reason | None:
    raise AssertionError(message)  # a session without a link is not ready
