"""Listening, dialling, dialling again: where the sessions of a node come from and go to (WK-8).

A route that names a place, as `tcp#10.0.0.2:4000`, opens a session there or takes the one that is
open. A session that was asked for by `connect` keeps its name and gets a new link when it loses the
one it has. All others end with their link, and their names with them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from waystation.core.address import LOCAL, Address
from waystation.core.address_types import PeerTypes
from waystation.core.outcome import Reason
from waystation.core.record import SessionKind, SessionRecord
from waystation.core.routing import RoutingEntry
from waystation.errors import LocalError, UnreachableError, quote
from waystation.net.backoff import Backoff
from waystation.node.policy import Wait, check_seconds
from waystation.node.session import Session
from waystation.transports.transport import Broadcaster, Link, Listener, Transport
from waystation.wire.hello import Greeting, Hello

if TYPE_CHECKING:
    from waystation.node.node import Node

_log = logging.getLogger("waystation.node")


class Limits(Struct, frozen=True, kw_only=True):
    """How much a node takes from its peers, and how long it waits for them.

    There are at most `sessions`. With a token, a peer has `greeting` seconds to prove that it knows
    it. A session that has nothing to say sends a heartbeat every `heartbeat` seconds (0: never),
    and ends when the peer promised the same and is not heard for three of them. What a peer sent
    waits for room here no longer than `stall` seconds, and the rest of what it sends behind it; nor
    does a worker wait longer for whoever gets its answers. What a peer sends to a name that nobody
    has waits `appear` seconds for somebody to take it. No leaf announces more than `participants`.
    """

    sessions: int = 20_000
    greeting: float = 10.0
    heartbeat: float = 15.0
    stall: float = 30.0
    appear: float = 0.0
    participants: int = 100_000


class _Cooling:
    """A place that could not be reached: nobody knocks there again before the time is over."""

    __slots__ = ("backoff", "until")

    def __init__(self) -> None:
        self.backoff = Backoff()
        self.until = 0.0


class Listening:
    """A listener of a node; `address` is how it stands in a route."""

    def __init__(self, listener: Listener, address: Address, url: str) -> None:
        self._listener = listener
        self.address = address
        self.url = url

    @property
    def place(self) -> str:
        """The place, with the port that was chosen if any would do."""
        return self._listener.place

    async def close(self) -> None:
        """Accept no more links."""
        await self._listener.close()


class Connections:
    """The transports, listeners and sessions of one node."""

    COOLING = 1_000  # so many unreachable places are remembered
    NAMING = 1.0  # seconds that a parent has to say its name before one goes on without it
    CLOSING = 10.0  # seconds that a link has to end, once it was told to

    def __init__(
        self, node: Node, limits: Limits, token: bytes | None, *, dial_for_peers: bool
    ) -> None:
        self.node = node
        self.limits = limits
        self.patience = Wait(limits.stall)
        self.table_time = 0.25  # to hear the types of a peer that may have none to tell
        self.dial_for_peers = dial_for_peers
        self.by_place: dict[Address, Session] = {}
        self.sessions: dict[bytes, Session] = {}
        self._token = token
        self._transports: dict[int, Transport] = {}
        self._listeners: list[Listening] = []
        self._cooling: dict[Address, _Cooling] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._broadcasters: list[Broadcaster] = []
        self._unstarted: list[Broadcaster] = []
        self._known_types: dict[object, PeerTypes] = {}
        self.closing = False

    # Transports and places

    def use(self, transport: Transport) -> int:
        """Carry messages over a transport from now on."""
        types, name = self.node.router.types, transport.type_name
        number = types.register(name, types.usual(name))
        self._transports[number] = transport
        if isinstance(transport, Broadcaster):
            self.node.multicasts.use(transport)
            self._broadcasters.append(transport)
            self._unstarted.append(transport)
            self.start_broadcasters()
        return number

    def start_broadcasters(self) -> None:
        """Let broadcasters connect, as soon as there is an event loop."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        waiting, self._unstarted = self._unstarted, []
        for broadcaster in waiting:
            self._hold(loop.create_task(broadcaster.start(), name="waystation broadcaster"))

    def transport(self, number: int) -> Transport | None:
        """The transport of an address type."""
        return self._transports.get(number)

    def parse(self, text: str) -> Address:
        """The address that a text means: `tcp://host:port`, as well as `tcp#host:port`."""
        kind, mark, place = text.partition("://")
        address = Address.parse(f"{kind}#{place}" if mark else text, self.node.router.types.numbers)
        if address.type not in self._transports:
            names = sorted(t.type_name for t in self._transports.values())
            raise LocalError(
                f"no transport of this node goes to {quote(text)}",
                rule="AD-2",
                hint=f"use one of {', '.join(names)}, or add a transport with node.use",
            )
        if address.name.startswith("0x"):  # no text
            raise LocalError(f"{quote(text)} is no place", rule="AD-1", hint="write it as text")
        return address

    async def listen(self, text: str, token: bytes | None, *, outside: bool) -> Listening:
        """Open a listener."""
        address = self.parse(text)
        transport = self._transports[address.type]

        def accept() -> Session | None:
            if self._takes_no_more():
                detail = "there are as many sessions as the limit allows"
                self._tell(SessionKind.REFUSED, "", address, None, Reason.REFUSED, detail)
                return None
            session = self._session(Address(address.type, b"?"), token, opened_here=False)
            session.outside = outside
            return session

        listener = await transport.listen(address.data.decode(), accept)
        found = Address(address.type, listener.place.encode())
        listening = Listening(listener, found, f"{transport.type_name}://{listener.place}")
        self._listeners.append(listening)
        self.node.router.table.set_own_addresses(found.address for found in self._listeners)
        return listening

    async def connect(
        self,
        places: Sequence[str],
        name: str | None,
        token: bytes | None,
        *,
        wait: float | None,
        keep: bool,
        parent: bool,
    ) -> Session:
        """Open a session under a name of its own, and keep it open."""
        addresses = [self.parse(place) for place in places]
        if not addresses or len({address.type for address in addresses}) != 1:
            raise LocalError(
                f"the places {quote(places)} are none, or of several types",
                rule="WK-8",
                hint="give one or more places of one peer on one transport",
            )
        own = None if name is None else self._free_name(name)
        session = self._session(addresses[0], token, opened_here=True, own=own, kept=keep)
        session.places = len(addresses)
        self._register(session)
        if parent:
            self.node.hierarchy.adopt(session)
        self.by_place.setdefault(session.place, session)
        loop = asyncio.get_running_loop()
        keeper = loop.create_task(
            self._keep(session, [address.data.decode() for address in addresses]),
            name=f"waystation session {session.name}",
        )
        session.keeper = keeper
        self._hold(keeper)
        if wait is not None:
            await self._wait_until_open(session, wait)
        return session

    def reach(self, place: Address) -> Session | None:
        """The session to a place; None when it was just found that nobody is there."""
        session = self.by_place.get(place)
        if session is not None:
            return session
        cooling = self._cooling.get(place)
        loop = asyncio.get_running_loop()
        if self._takes_no_more() or (cooling is not None and loop.time() < cooling.until):
            return None
        session = self._session(place, None, opened_here=True)
        self.by_place[place] = session
        self._hold(loop.create_task(self._reach(session), name=f"waystation dial {place}"))
        return session

    def own_address(self) -> str | None:
        """Where the first listener of this node is reached, with the name of its type."""
        for listening in self._listeners:
            kind = self.node.router.types.name(listening.address.type)
            return f"{kind}#{listening.place}"
        return None

    # What sessions tell

    def link_made(self, session: Session, link: Link) -> bool:
        """Count a session whose link is there; says whether it may stay."""
        if not session.opened_here or session.places > 1:
            self._move(session, Address(session.place.type, link.place.encode()))
        if self._takes_no_more():
            return session.address.data in self.sessions
        self.sessions[session.address.data] = session
        return True

    def link_opened(self, session: Session) -> None:
        """Give a session its place in the routing table."""
        session.openings += 1
        self._cooling.pop(session.place, None)
        self._register(session)
        self._tell(SessionKind.OPENED, session.name, session.place, session.peer, None, "")
        self.node.hierarchy.opened(session)
        session.changed()

    def link_closed(
        self, session: Session, reason: Reason | None, detail: str, *, was_open: bool
    ) -> None:
        """Note the end of a link; the session ends with it, unless it is kept."""
        kind = SessionKind.CLOSED if was_open else SessionKind.REFUSED
        self._tell(kind, session.name, session.place, session.peer, reason, detail)
        session.failure = detail
        if was_open:
            self.node.hierarchy.lost(session)
        if not was_open and not session.kept and session.opened_here:
            self._cool_down(session.place)
        if not session.kept or session.ended:
            self._forget(session)
        session.changed()

    def peer_types(self, theirs: Mapping[str, int] | None, *, opened_here: bool) -> PeerTypes:
        """The translation of address types for a session (AD-3); many peers share one."""
        ours = self.node.router.types
        told = None if theirs is None else tuple(sorted(theirs.items()))
        key = (told, opened_here, len(ours.numbers))
        found = self._known_types.get(key)
        if found is None:
            found = PeerTypes.of_session(ours, theirs, opened_here=opened_here)
            if len(self._known_types) >= 256:
                self._known_types.clear()
            self._known_types[key] = found
        return found

    # Closing

    async def close_session(self, session: Session) -> None:
        """End a session and wait until its link is gone."""
        session.ended = True
        session.end_link()
        session.changed()
        with contextlib.suppress(TimeoutError):  # of a link that never tells that it ended
            async with asyncio.timeout(self.CLOSING):
                while session.has_link:
                    await asyncio.shield(session.change)
        self._forget(session)

    def stop_listening(self) -> None:
        """Take no new sessions, and nothing more from those that are there."""
        self.closing = True
        for session in list(self.sessions.values()):
            session.pause_reading()

    async def close(self) -> None:
        """End everything."""
        self.closing = True
        for listening in self._listeners:
            await listening.close()
        sessions = {*self.sessions.values(), *self.by_place.values()}
        await asyncio.gather(*(self.close_session(session) for session in sessions))
        await asyncio.gather(*(broadcaster.close() for broadcaster in self._broadcasters))
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Inside

    def _session(
        self,
        place: Address,
        token: bytes | None,
        *,
        opened_here: bool,
        own: Address | None = None,
        kept: bool = False,
    ) -> Session:
        token = self._token if token is None else token  # the node's, unless it has one of its own
        if own is None:
            kind = self.node.router.types.name(place.type)
            own = Address(LOCAL, f"{kind}-{secrets.token_hex(8)}".encode())

        def greet() -> Greeting:
            hello = Hello(
                self.node.name,
                dict(self.node.router.types.numbers),
                self.limits.heartbeat,
                "" if token is None else secrets.token_hex(16),
                token is not None,
            )
            return Greeting(hello, token, opened_here=opened_here)

        return Session(self, own, place, greet, opened_here=opened_here, kept=kept)

    def _free_name(self, name: str) -> Address:
        """The address of a session that is to have this name, if no leaf announced it."""
        address = self.node.free_address(name)
        entry = self.node.router.table.lookup(address.name, self.node.tick() // 1000)
        if entry is not None and entry.local:
            raise LocalError(
                f"a leaf has announced the name {quote(name)}",
                rule="RE-6",
                hint="choose another name for the session",
            )
        return address

    def _register(self, session: Session) -> None:
        """The session's name is a routing entry, which says where its peer is."""
        if not session.registered:
            session.registered = True
            entry = RoutingEntry(session.name, session.place, local=False)
            self.node.add_receiver(session.address, session, entry)

    def _move(self, session: Session, place: Address) -> None:
        """Say where the peer of a session is, now that it is known."""
        if self.by_place.get(session.place) is session:
            del self.by_place[session.place]
            self.by_place.setdefault(place, session)
        session.move_to(place)
        if session.registered:
            self.node.put_route(RoutingEntry(session.name, place, local=False))

    def _forget(self, session: Session) -> None:
        session.ended = True
        self.sessions.pop(session.address.data, None)
        if self.by_place.get(session.place) is session:
            del self.by_place[session.place]
        if session.registered:
            session.registered = False
            self.node.hierarchy.disown(session)
            self.node.remove_receiver(session.address)
        session.turn_away()
        if session.keeper is not None and session.keeper is not asyncio.current_task():
            session.keeper.cancel()

    async def _reach(self, session: Session) -> None:
        """Dial a place that a route named."""
        if not await self._dial(session, [session.place.data.decode(errors="replace")]):
            self._cool_down(session.place)
            self._forget(session)

    async def _keep(self, session: Session, places: list[str]) -> None:
        """Dial, and dial again whenever the link is gone."""
        backoff = Backoff()
        while not session.ended:
            opened = session.openings
            if await self._dial(session, places):
                while session.has_link or session.is_stalled:
                    await asyncio.shield(session.change)
            if not session.kept:
                self._forget(session)
                return
            if session.openings > opened:
                backoff.reset()
            places.append(places.pop(0))  # the next first, should this one accept and then fail
            await asyncio.sleep(backoff.next())

    async def _dial(self, session: Session, places: Sequence[str]) -> bool:
        try:
            await self._transports[session.place.type].dial(places, session)
        except (OSError, ValueError) as error:  # the latter from names that no resolver takes
            session.failure = str(error) or type(error).__name__
            reason, why = Reason.TRANSPORT_DOWN, session.failure
            self._tell(SessionKind.REFUSED, session.name, session.place, None, reason, why)
            session.changed()
            return False
        return True

    async def _wait_until_open(self, session: Session, seconds: float) -> None:
        try:
            async with asyncio.timeout(check_seconds(seconds)):
                while not session.is_open and not session.ended:
                    await asyncio.shield(session.change)
        except TimeoutError:
            pass
        except BaseException:
            self._abandon(session)
            raise
        if not session.is_open:
            self._abandon(session)
            detail = session.failure or f"no answer within {seconds:g} s"
            raise UnreachableError(str(session.place), detail)
        if session.is_parent:
            await self._wait_for_name(session)

    async def _wait_for_name(self, session: Session) -> None:
        """Give a parent a moment to say who it is: its first words may come one by one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.NAMING):
                while session.peer is None and not session.ended:
                    await asyncio.shield(session.change)

    def _abandon(self, session: Session) -> None:
        self._forget(session)
        session.end_link(at_once=True)

    def _cool_down(self, place: Address) -> None:
        cooling = self._cooling.get(place)
        if cooling is None:
            if len(self._cooling) >= self.COOLING:
                self._cooling.clear()
            cooling = self._cooling[place] = _Cooling()
        cooling.until = asyncio.get_running_loop().time() + cooling.backoff.next()

    def _hold(self, task: asyncio.Task[None]) -> None:
        """Keep a task from being collected while it runs."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _takes_no_more(self) -> bool:
        return self.closing or len(self.sessions) >= self.limits.sessions

    def _tell(
        self,
        kind: SessionKind,
        name: str,
        place: Address,
        peer: str | None,
        reason: Reason | None,
        detail: str,
    ) -> None:
        node = self.node
        if name and reason is not None:
            _log.info("session %s with %s: %s, %s", name, place, reason, detail)
        node.tell(SessionRecord(kind, name, str(place), peer, reason, detail, node.tick()))
