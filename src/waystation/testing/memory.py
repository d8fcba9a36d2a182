"""A network in memory: links without sockets, with faults on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import ClassVar

from waystation.core.address import Route
from waystation.core.message import Message
from waystation.core.outcome import Reason
from waystation.transports.transport import Link, LinkOwner

UNSENT = 1_000
"""So many messages wait in a link before its senders have to."""

_NOWHERE = Route()


class MemoryLink:
    """One end of a link."""

    def __init__(self, network: MemoryNetwork, owner: LinkOwner, place: str) -> None:
        self.place = place
        self._network = network
        self.owner = owner
        self.peer: MemoryLink | None = None
        self._outbox: list[Message] = []
        self.inbox: list[Message] = []
        self._reading = True
        self._paused = False
        self._due = False
        self.closed = False

    def join(self, peer: MemoryLink) -> None:
        """Make a pair of links."""
        self.peer, peer.peer = peer, self

    def open(self) -> None:
        """Tell the owner."""
        self.owner.opened(self)
        self.owner.answered()

    def send(self, message: Message) -> Reason | None:
        """Take a message to the peer with the others of this turn."""
        if len(message.onward_route) < 2:
            return Reason.NO_ROUTE
        if len(message.payload) > self._network.limit:
            return Reason.TOO_LARGE
        self._put(message.departed())
        return None

    def send_control(self, payload: bytes) -> None:
        """Take a payload to the peer's session."""
        self._put(Message(_NOWHERE, _NOWHERE, payload))

    def pause_reading(self) -> None:
        """Hand in nothing more."""
        self._reading = False

    def resume_reading(self) -> None:
        """Hand in what came meanwhile."""
        self._reading = True
        self.schedule()

    def close(self) -> None:
        """Deliver what was taken, and end."""
        self._move()
        self.end(None, "closed")

    def abort(self) -> None:
        """End at once."""
        self._outbox.clear()
        self.end(Reason.TRANSPORT_DOWN, "aborted")

    def end(self, reason: Reason | None, detail: str) -> None:
        """End both ends."""
        for link in (self, self.peer):
            if link is not None and not link.closed:
                link.closed = True
                self._network.links.discard(link)
                asyncio.get_running_loop().call_soon(link.finish, reason, detail)

    def move(self) -> None:
        """Bring along what waits: the way is free again."""
        self.schedule()

    def finish(self, reason: Reason | None, detail: str) -> None:
        """Tell the owner of the end."""
        if reason is None:
            self._hand_in()
        self.owner.closed(reason, detail)

    def _put(self, message: Message) -> None:
        if not self.closed:
            self._outbox.append(message)
            self.schedule()
            if len(self._outbox) >= UNSENT and not self._paused:
                self._paused = True
                self.owner.pause()

    def schedule(self) -> None:
        """Move what there is at the end of this turn."""
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._due = False
        if self.closed:
            return
        self._hand_in()
        if not self._network.frozen:
            self._move()

    def _move(self) -> None:
        """Carry messages over, as many as the other end has room for."""
        peer = self.peer
        assert peer is not None
        room = UNSENT - len(peer.inbox)
        if self._outbox and room > 0:
            peer.inbox += [_arrived(m, peer.owner) for m in self._outbox[:room]]
            del self._outbox[:room]
            peer.schedule()
        if not self._outbox:
            self.owner.sent()
        if self._paused and len(self._outbox) < UNSENT // 2:
            self._paused = False
            self.owner.resume()

    def _hand_in(self) -> None:
        if self.inbox and self._reading:
            messages, self.inbox = self.inbox, []
            self.owner.received(messages)
            if self.peer is not None:
                self.peer.schedule()


def _arrived(message: Message, owner: LinkOwner) -> Message:
    return message.arrived(owner.address) if message.onward_route.addresses else message


class _Listener:
    def __init__(self, network: MemoryNetwork, place: str) -> None:
        self._network = network
        self.place = place

    async def close(self) -> None:
        self._network.listeners.pop(self.place, None)


class MemoryNetwork:
    """The places of a test, and what goes wrong between them. It is a FaultyPath to itself."""

    def __init__(self, *, limit: int = 16 * 1024 * 1024) -> None:
        self.limit = limit
        self.frozen = False
        self.listeners: dict[str, Callable[[], LinkOwner | None]] = {}
        self.links: set[MemoryLink] = set()
        self.place = ""
        self._refusing = False
        self._places = 0

    def transport(self) -> MemoryTransport:
        """A transport of this network."""
        return MemoryTransport(self)

    @asynccontextmanager
    async def path(self, target: str) -> AsyncIterator[MemoryNetwork]:
        """The faulty path to a listener."""
        self.place = target
        yield self
        self.thaw()
        self.refuse(refuse=False)

    def new_place(self) -> str:
        """A place that nobody has."""
        self._places += 1
        return f"place-{self._places}"

    def dial(self, place: str, owner: LinkOwner) -> MemoryLink:
        """Open a link."""
        accept = self.listeners.get(place)
        far_owner = None if accept is None or self._refusing or self.frozen else accept()
        if far_owner is None:
            raise ConnectionRefusedError(f"{place}: nobody listens")
        here = MemoryLink(self, owner, place)
        there = MemoryLink(self, far_owner, self.new_place())
        here.join(there)
        self.links |= {here, there}
        there.open()
        here.open()
        return here

    def cut(self) -> None:
        """Break every link."""
        for link in list(self.links):
            link.end(Reason.TRANSPORT_DOWN, "cut")

    def cut_after(self, size: int) -> None:  # noqa: ARG002 - there are no bytes to count
        """Break every link: a message goes as a whole or not at all."""
        self.cut()

    def freeze(self) -> None:
        """Let nothing through."""
        self.frozen = True

    def thaw(self) -> None:
        """Let everything through."""
        self.frozen = False
        for link in list(self.links):
            link.move()

    def refuse(self, *, refuse: bool) -> None:
        """Refuse new links, or no longer."""
        self._refusing = refuse


class MemoryTransport:
    """Links in memory: addresses `mem#place`."""

    type_name: ClassVar[str] = "mem"

    def __init__(self, network: MemoryNetwork) -> None:
        self._network = network

    async def listen(self, place: str, accept: Callable[[], LinkOwner | None]) -> _Listener:
        """Listen at a place; `any` takes a new one."""
        if place == "any":
            place = self._network.new_place()
        if place in self._network.listeners:
            raise OSError(f"{place}: somebody listens there already")
        self._network.listeners[place] = accept
        return _Listener(self._network, place)

    async def dial(self, places: Sequence[str], owner: LinkOwner) -> Link:
        """Open a link to the first place where somebody listens."""
        problem: OSError | None = None
        for place in places:
            try:
                return self._network.dial(place, owner)
            except OSError as error:
                problem = error
        raise problem or ConnectionError("there is no place to connect to")
