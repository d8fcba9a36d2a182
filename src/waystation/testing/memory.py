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

_NOWHERE = Route()


class MemoryLink:
    """One end of a link."""

    def __init__(
        self, network: MemoryNetwork, owner: LinkOwner, place: str, path: MemoryPath | None
    ) -> None:
        self.place = place
        self.path = path
        self.owner = owner
        self.peer: MemoryLink | None = None
        self.outbox: list[Message] = []
        self.inbox: list[Message] = []
        self._network = network
        self._reading = True
        self._paused = False
        self._due = False
        self.closed = False

    def join(self, peer: MemoryLink) -> None:
        """Be one of two ends of a link."""
        self.peer, peer.peer = peer, self
        self._network.add(self)
        self._network.add(peer)

    def open(self) -> None:
        """Tell the owner."""
        self.owner.opened(self)
        self.owner.answered()

    def send(self, message: Message) -> Reason | None:
        """Take a message to the peer, with the others of this turn."""
        if len(message.onward_route) < 2:
            return Reason.NO_ROUTE
        if len(message.payload) > self._network.limit:
            return Reason.TOO_LARGE
        self.put(message.departed())
        return None

    def send_control(self, payload: bytes) -> None:
        """Take a payload to the peer's session."""
        self.put(Message(_NOWHERE, _NOWHERE, payload))

    def pause_reading(self) -> None:
        """Hand in nothing more."""
        self._reading = False

    def resume_reading(self) -> None:
        """Hand in what came meanwhile."""
        self._reading = True
        self.schedule()

    def close(self) -> None:
        """Deliver what was taken, and end."""
        self.carry_over()
        self.end(None, "closed")

    def abort(self) -> None:
        """End at once."""
        self.outbox.clear()
        self.end(Reason.TRANSPORT_DOWN, "aborted")

    def end(self, reason: Reason | None, detail: str) -> None:
        """End both ends."""
        for link in (self, self.peer):
            if link is not None and not link.closed:
                link.closed = True
                self._network.remove(link)
                asyncio.get_running_loop().call_soon(link.finish, reason, detail)

    def finish(self, reason: Reason | None, detail: str) -> None:
        """Tell the owner of the end."""
        if reason is None:
            self.hand_in()
        self.owner.closed(reason, detail)

    def put(self, message: Message) -> None:
        """Put a message with the others of this turn."""
        if not self.closed:
            self.outbox.append(message)
            self.schedule()
            if len(self.outbox) >= self._network.unsent and not self._paused:
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
        self.hand_in()
        if self.path is None or not self.path.frozen:
            self.carry_over()

    def carry_over(self) -> None:
        """Move messages to the other end, as many as it has room for."""
        peer = self.peer
        assert peer is not None
        room = self._network.unsent - len(peer.inbox)
        if self.outbox and room > 0:
            peer.inbox += [_arrived(m, peer.owner) for m in self.outbox[:room]]
            del self.outbox[:room]
            peer.schedule()
        if not self.outbox:
            self.owner.sent()
        if self._paused and len(self.outbox) < self._network.unsent // 2:
            self._paused = False
            self.owner.resume()

    def hand_in(self) -> None:
        """Give the owner what arrived, unless it is not reading."""
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


class MemoryPath:
    """A way to a listener in memory, on which faults can be injected (a FaultyPath).

    It has a place of its own. Links that are dialled there lead to the listener, and suffer the
    faults; links that are dialled to the listener's own place do not.
    """

    def __init__(self, place: str, target: str) -> None:
        self.place = place
        self.target = target
        self.links: set[MemoryLink] = set()
        self.frozen = False
        self.refusing = False

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
            link.schedule()

    def refuse(self, *, refuse: bool) -> None:
        """Refuse new links, or no longer."""
        self.refusing = refuse


class MemoryNetwork:
    """A network in memory, with places to listen at and paths on which things go wrong.

    A link carries payloads of at most `limit` bytes, and has at most `unsent` messages waiting in
    each direction before its senders have to wait. `make_link` makes each end of a link.
    """

    def __init__(
        self,
        *,
        limit: int = 16 * 1024 * 1024,
        unsent: int = 1_000,
        make_link: type[MemoryLink] = MemoryLink,
    ) -> None:
        self.limit = limit
        self.unsent = unsent
        self.listeners: dict[str, Callable[[], LinkOwner | None]] = {}
        self.links: set[MemoryLink] = set()
        self._make_link = make_link
        self._paths: dict[str, MemoryPath] = {}
        self._places = 0

    def transport(self) -> MemoryTransport:
        """A transport of this network."""
        return MemoryTransport(self)

    @asynccontextmanager
    async def path(self, target: str) -> AsyncIterator[MemoryPath]:
        """A faulty path to the listener at a place."""
        path = MemoryPath(self.new_place(), target)
        self._paths[path.place] = path
        try:
            yield path
        finally:
            del self._paths[path.place]
            path.cut()

    def new_place(self) -> str:
        """A place that nobody has."""
        self._places += 1
        return f"place-{self._places}"

    def dial(self, place: str, owner: LinkOwner) -> MemoryLink:
        """Open a link."""
        path = self._paths.get(place)
        blocked = path is not None and (path.refusing or path.frozen)
        accept = None if blocked else self.listeners.get(path.target if path else place)
        far_owner = None if accept is None else accept()
        if far_owner is None:
            raise ConnectionRefusedError(f"{place}: nobody listens")
        here = self._make_link(self, owner, place, path)
        there = self._make_link(self, far_owner, self.new_place(), path)
        here.join(there)
        there.open()
        here.open()
        return here

    def add(self, link: MemoryLink) -> None:
        """Count an end of a link."""
        self.links.add(link)
        if link.path is not None:
            link.path.links.add(link)

    def remove(self, link: MemoryLink) -> None:
        """Count an end of a link no longer."""
        self.links.discard(link)
        if link.path is not None:
            link.path.links.discard(link)


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
            raise OSError(f"{place}: already in use")
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
