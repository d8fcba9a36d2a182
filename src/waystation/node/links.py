"""Listening and connecting: where the sessions of a node come from, and where they end (WK-8).

A route that names a place, as `tcp#10.0.0.2:4000`, opens a session there or uses the one that is
open. A session made by `connect` keeps its name and gets a new link when it loses the one it has.
All others end with their link, and their names with them.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct, structs

from waystation import __version__
from waystation.core.address import LOCAL, Address
from waystation.core.address_types import PeerTypes
from waystation.core.budget import MIB
from waystation.core.outcome import Reason
from waystation.core.record import SessionKind, SessionRecord, SessionRole
from waystation.core.routing import RoutingEntry
from waystation.core.tokens import Token, Tokens
from waystation.errors import LocalError, UnreachableError, quote
from waystation.net.backoff import Backoff
from waystation.net.dialer import keep
from waystation.net.tasks import Tasks
from waystation.node.identities import Identities
from waystation.node.policy import check_seconds
from waystation.node.session import TOO_MANY_SESSIONS, Ending, Session
from waystation.transports.schemes import SCHEMES, split_url
from waystation.transports.transport import Broadcaster, HasCertificate, Link, Listener, Transport
from waystation.wire import acknowledged, custody, flow, hierarchy
from waystation.wire import clock as wire_clock
from waystation.wire.hello import CAPABILITY as IDENTITY
from waystation.wire.hello import Greeting, Hello

if TYPE_CHECKING:
    from waystation.node.kernel import Kernel

CAPABILITIES: Final[tuple[str, ...]] = (
    acknowledged.CAPABILITY,
    wire_clock.CAPABILITY,
    flow.CAPABILITY,
    hierarchy.CAPABILITY,
    IDENTITY,
    custody.PASSES,
)
"""What a node of this version understands beside the payloads of the first version (UP-1)."""

_log = logging.getLogger("waystation.node")


class Limits(Struct, frozen=True, kw_only=True):
    """How much a node takes from its peers, and how long it waits for them.

    There are at most `sessions`. With a token, a peer has `greeting` seconds to prove that it knows
    it. An idle session sends a heartbeat every `heartbeat` seconds (0: never), and ends when the
    peer promised the same and is not heard for three of them. What peers sent, and workers sent on,
    is dropped when its receiver had no room for `stall` seconds and took nothing in that time. A
    message from a peer to a name that nobody has waits `appear` seconds for it to appear. A message
    of a sender here whose policy names no time waits at most `reconnect` seconds for a session
    without a link. A leaf announces at most `participants`. When another claims a name, who has it
    is to show a sign of life within `contest` seconds, else its session is ended.

    What was received and is not settled is counted in bytes: a payload and 512 bytes for each
    message. The node holds about `budget` of them, a session `share` (at least the largest frame
    and 64 KiB), and one receiver `receiver`. At most `control` bytes of what sessions say to each
    other wait for a peer that does not read.
    """

    sessions: int = 20_000
    greeting: float = 10.0
    heartbeat: float = 15.0
    stall: float = 30.0
    appear: float = 0.0
    reconnect: float = 30.0
    participants: int = 100_000
    contest: float = 3.0
    budget: int = 256 * MIB
    share: int = 16 * MIB + 64 * 1024
    receiver: int = 8 * MIB
    control: int = MIB


_SERVERS = {"mqtt": "broker", "gossip": "gossip router"}
"""What a transport goes through, and cannot do without."""


class _Asked(Struct, eq=False):
    """The tokens that a listener asks for; None for those of its node."""

    tokens: Tokens | None


class Listening(Struct, frozen=True, eq=False):
    """A listener of a node; `address` is how it stands in a route."""

    _listener: Listener
    address: Address
    url: str
    _asked: _Asked

    def __repr__(self) -> str:
        return f"<Listening on {self.url}>"

    @property
    def place(self) -> str:
        """The place, with the port that was chosen if any would do."""
        return self._listener.place

    async def close(self) -> None:
        """Accept no more links."""
        await self._listener.close()

    def renew_certificate(self) -> None:
        """Use the certificate that is in its file now, if it has one."""
        if isinstance(self._listener, HasCertificate):
            self._listener.renew_certificate()


class Links:
    """The transports, listeners and sessions of one node."""

    UNREACHABLE_LIMIT = 1_000  # unreachable places that are remembered
    NAME_TIMEOUT = 1.0  # seconds that a parent has to tell its name before `connect` returns

    def __init__(
        self,
        kernel: Kernel,
        token: bytes | None,
        tokens: Iterable[Token],
        identities: Identities,
        *,
        dial_for_peers: bool,
    ) -> None:
        self.kernel = kernel
        self.limits = kernel.limits
        self.types_timeout = 0.25  # seconds for a peer, which may know no hello, to tell its types
        self.dial_for_peers = dial_for_peers
        self.by_place: dict[Address, Session] = {}
        self.sessions: dict[bytes, Session] = {}
        self.identities = identities
        self._token = Tokens.shared(token)  # that this node shows to those it connects to
        self.tokens: Tokens | None = _tokens(token, tokens)  # that it asks for
        self.transports: dict[int, Transport] = {}  # by address type
        self.listening: list[Listening] = []
        self.unreachable: dict[Address, tuple[Backoff, float]] = {}  # and when to try again
        self._tasks = Tasks()
        self._unstarted: list[Broadcaster] = []
        self._known_types: dict[object, PeerTypes] = {}
        self.closing = False

    # Transports and places

    def use(self, transport: Transport) -> None:
        """Carry messages over a transport from now on."""
        types, name = self.kernel.router.types, transport.type_name
        number = types.register(name, types.usual(name))
        self.transports[number] = transport
        if isinstance(transport, Broadcaster):
            self.kernel.broadcasts.use(transport)
            self._unstarted.append(transport)
            self.start_broadcasters()

    def start_broadcasters(self) -> None:
        """Let broadcasters connect, as soon as there is an event loop."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        while self._unstarted:
            self._tasks.start(self._unstarted.pop(0).start(), "broadcaster")

    def parse(self, text: str) -> Address:
        """The address that a text means: `tcp://host:port`, as well as `tcp#host:port`."""
        if not isinstance(text, str) or not text:
            raise LocalError(
                f"{quote(text)} is not the address of a peer",
                rule="AD-1",
                hint="write tcp://host:port; of several, one after the other",
            )
        kind, mark, place = text.partition("://")
        if mark:
            kind = kind.partition("+")[0]  # `joynr+ws` says what it runs over, too
            self._load(text)
        address = Address.parse(
            f"{kind}#{place}" if mark else text, self.kernel.router.types.numbers
        )
        if address.type not in self.transports:
            some = ", ".join(sorted(t.type_name for t in self.transports.values()))
            lacks_scheme = ":" in text and "#" not in text and not mark
            raise LocalError(
                f"no transport for the address {quote(text)}",
                rule="AD-2",
                hint=f"write tcp://{text}"
                if lacks_scheme
                else f"write tcp://host:port, or add a transport with node.use; it has {some}",
            )
        if address.name.startswith("0x"):  # bytes that are not text
            raise LocalError(
                f"invalid address {quote(text)}", rule="AD-1", hint="write it as text, not as bytes"
            )
        return address

    def _load(self, url: str) -> None:
        """Use the transport of a URL with its usual settings, unless it is used already."""
        kind = url.partition("://")[0].partition("+")[0]
        if any(transport.type_name == kind for transport in self.transports.values()):
            return
        if kind in _SERVERS:
            raise LocalError(
                f"no transport for {quote(url)}: it needs the settings of its {_SERVERS[kind]}",
                rule="AD-2",
                hint=f"add it: node.use({kind.capitalize()}(…)), from waystation.transports.{kind}",
            )
        scheme, _ = split_url(url)
        self.use(SCHEMES[scheme].load_transport()())

    async def listen(self, text: str, tokens: Tokens | None, *, outside: bool) -> Listening:
        """Open a listener; without tokens of its own it asks for those of the node."""
        address = self.parse(text)
        transport, own = self.transports[address.type], _Asked(tokens)

        def accept() -> Session | None:
            if self._is_full():
                _log.debug("listener %s: a peer is refused, %s", text, TOO_MANY_SESSIONS)
                refused = (SessionKind.REFUSED, "", str(address), None)
                ending = (Reason.REFUSED, TOO_MANY_SESSIONS, self.kernel.tick())
                role = SessionRole.OUTSIDE if outside else SessionRole.PEER
                self.kernel.notify(SessionRecord(*refused, *ending, role, transport.type_name))
                return None
            asked = own.tokens or self.tokens
            session = self._session(Address(address.type, b"?"), asked, outgoing=False)
            session.from_outside = outside
            session.asked = own
            return session

        listener = await transport.listen(address.data.decode(), accept)
        found = Address(address.type, listener.place.encode())
        scheme = getattr(transport, "scheme", transport.type_name)
        listening = Listening(listener, found, f"{scheme}://{listener.place}", own)
        self.listening.append(listening)
        self.kernel.router.table.set_own_addresses(found.address for found in self.listening)
        return listening

    async def connect(
        self,
        places: Sequence[str],
        name: str | None,
        token: bytes | None,
        *,
        wait: float | None,
        reconnects: bool,
        parent: bool,
    ) -> Session:
        """Open a session under a name of its own, and keep it open."""
        addresses = [self.parse(place) for place in places]
        if not addresses or len({address.type for address in addresses}) != 1:
            raise LocalError(
                f"cannot connect to {quote(places)}: no address, or addresses of several types",
                rule="WK-8",
                hint="give one or more addresses of one peer, all on one transport",
            )
        own = None if name is None else self._free_address(name)
        shown = self._token if token is None else Tokens.shared(token)
        session = self._session(addresses[0], shown, own, outgoing=True)
        session.reconnects = reconnects
        session.candidates = len(addresses)
        self._register(session)
        if parent:
            self.kernel.hierarchy.add_parent(session)
        self.by_place.setdefault(session.place, session)
        found = [address.data.decode() for address in addresses]
        connecting = self._keep(session, found) if reconnects else self._dial_once(session, found)
        session.keeper = self._tasks.start(
            connecting, f"session {session.name}", if_failed=session.give_up
        )
        if wait is not None:
            await self._wait_until_open(session, wait)
        return session

    def reach(self, place: Address) -> Session | None:
        """The session with a place, which is opened if need be; None while it cannot be reached."""
        session = self.by_place.get(place)
        if session is not None:
            return session
        loop = asyncio.get_running_loop()
        _, retry_at = self.unreachable.get(place, (None, 0.0))
        if self._is_full() or loop.time() < retry_at:
            return None
        session = self._session(place, self._token, outgoing=True)
        self.by_place[place] = session
        dialling = self._dial_once(session, [place.data.decode(errors="replace")])
        self._tasks.start(dialling, f"dial {place}", if_failed=session.give_up)
        return session

    def change_tokens(self, token: bytes | None, tokens: Iterable[Token]) -> None:
        """Show and ask for other tokens from now on."""
        former_shown, self._token = self._token, Tokens.shared(token)
        former_asked, self.tokens = self.tokens, _tokens(token, tokens)
        for session in list(self.sessions.values()):
            if session.outgoing:
                session.change_tokens(former_shown, self._token)
            else:
                session.change_tokens(former_asked, self.tokens)

    def change_token_of(self, one: Listening | Session, token: bytes | None) -> None:
        """Ask for another token at a listener, or show another in a session that was opened here.

        Without one, it is that of the node again.
        """
        tokens = Tokens.shared(token)
        if isinstance(one, Session):
            one.use_tokens(tokens or self._token)
            return
        asked = one._asked  # noqa: SLF001 - they are one thing
        asked.tokens = tokens
        for session in list(self.sessions.values()):
            if session.asked is asked:
                session.use_tokens(tokens or self.tokens)

    def renew_certificates(self) -> None:
        """Let listeners read their certificates again; those who dial do so each time."""
        for listening in self.listening:
            listening.renew_certificate()

    # What sessions tell

    def link_made(self, session: Session, link: Link) -> bool:
        """Count a session whose link was made; returns False if there are too many."""
        if not session.outgoing or session.candidates > 1:
            self._set_place(session, Address(session.place.type, link.place.encode()))
        if self._is_full():
            return session.address.data in self.sessions
        self.sessions[session.address.data] = session
        return True

    def link_opened(self, session: Session) -> None:
        """Enter a session's name into the routing table, and announce what is here to a parent."""
        session.openings += 1
        self.unreachable.pop(session.place, None)
        if not self._is_registered(session):
            self._register(session)
        self.kernel.hierarchy.link_opened(session)
        self.kernel.custody.link_opened(session)

    def greeted(self, session: Session) -> None:
        """Tell a peer what only some understand, now that it has said so, in an open session."""
        self.kernel.custody.kept.link_opened(session)

    def tell_opened(self, session: Session) -> None:
        """Tell that a session is open, now that its peer has told its name, or told none."""
        self.identities.handshakes["proven" if session.who else "unproven"] += 1
        self._tell(SessionKind.OPENED, session, session.peer, (None, ""))

    def link_closed(self, session: Session) -> None:
        """Tell that an open session lost its link."""
        session.down_since = asyncio.get_running_loop().time()
        self._tell(SessionKind.CLOSED, session, session.peer, session.ending)
        self.kernel.hierarchy.link_lost(session)
        self.kernel.custody.transfers.link_lost(session)

    def link_refused(self, session: Session, peer: str | None) -> None:
        """Tell that a session got no link, or lost it before it opened; delay the next attempt."""
        if session.ending[0] is Reason.REFUSED:
            self.identities.handshakes["refused"] += 1
        self._tell(SessionKind.REFUSED, session, peer, session.ending)
        if session.reconnects or not session.outgoing:
            return
        backoff, _ = self.unreachable.get(session.place) or (Backoff(), 0.0)
        if len(self.unreachable) >= self.UNREACHABLE_LIMIT:
            self.unreachable.clear()
        retry_at = asyncio.get_running_loop().time() + backoff.next()
        self.unreachable[session.place] = (backoff, retry_at)

    def forget(self, session: Session) -> None:
        """Remove a session's name, reject what waits for it, and connect no more."""
        self.sessions.pop(session.address.data, None)
        if self.by_place.get(session.place) is session:
            del self.by_place[session.place]
        if self._is_registered(session):
            self.kernel.hierarchy.session_ended(session)
            self.kernel.remove_receiver(session.address)
        session.reject_all()
        if session.keeper is not None and session.keeper is not asyncio.current_task():
            session.keeper.cancel()

    def peer_types(self, theirs: Mapping[str, int] | None, *, outgoing: bool) -> PeerTypes:
        """The translation of address types for a session (AD-3); many peers share one."""
        ours = self.kernel.router.types
        told = None if theirs is None else tuple(sorted(theirs.items()))
        key = (told, outgoing, len(ours.numbers))
        found = self._known_types.get(key)
        if found is None:
            found = PeerTypes.of_session(ours, theirs, opened_here=outgoing)
            if len(self._known_types) >= 256:
                self._known_types.clear()
            self._known_types[key] = found
        return found

    def measure_clocks(self) -> None:
        """Measure how far the clocks of all peers are off, since our own changes."""
        for session in list(self.sessions.values()):
            session.measure_clock()

    def transport_name(self, place: Address) -> str | None:
        """The name of the transport to a place."""
        return self.kernel.router.types.name(place.type)

    @property
    def has_waiting(self) -> bool:
        """Whether a link is still to be given what a worker or a peer sent."""
        return any(session.is_open and session.has_held for session in self.sessions.values())

    # Closing

    def stop_listening(self) -> None:
        """Take no new sessions, and nothing more from those that are there."""
        self.closing = True
        for session in list(self.sessions.values()):
            session.pause_reading()

    async def close(self) -> None:
        """End everything."""
        self.closing = True
        for listening in self.listening:
            await listening.close()
        sessions = dict.fromkeys([*self.sessions.values(), *self.by_place.values()])
        await asyncio.gather(*(session.close() for session in sessions))
        await asyncio.gather(*(each.close() for each in self.kernel.broadcasts.broadcasters))
        await self._tasks.stop()

    # Inside

    def greeting(
        self, tokens: Tokens | None, *, outgoing: bool, to: int = 0, certificate: bytes = b""
    ) -> Greeting:
        """The greeting for a new link: each has a nonce of its own.

        To a parent, `to` is the number of the link, and the greeting tells our secret (CL-1).
        `certificate` is the hash of the listener's, over TLS.
        """
        own = self.identities.own
        hello = Hello(
            self.kernel.name,
            dict(self.kernel.router.types.numbers),
            self.limits.heartbeat,
            secrets.token_hex(16),
            tokens is not None,
            __version__,
            (*CAPABILITIES, *self.kernel.custody.capabilities),
            self.kernel.tick(),
            self.kernel.clock_off_us,
            self.kernel.hierarchy.secret if to else "",
            to,
            own is not None,
            self.kernel.incarnation,
        )
        return Greeting(hello, tokens, initiator=outgoing, identity=own, certificate=certificate)

    def _session(
        self,
        place: Address,
        tokens: Tokens | None,
        own: Address | None = None,
        *,
        outgoing: bool,
    ) -> Session:
        if own is None:
            kind = self.kernel.router.types.name(place.type)
            own = Address(LOCAL, f"{kind}-{secrets.token_hex(8)}".encode())
        greeting = self.greeting(tokens, outgoing=outgoing)
        return Session(self, own, place, tokens, greeting, outgoing)

    def _free_address(self, name: str) -> Address:
        """The address of a session that is to have this name, if no leaf announced it."""
        address = self.kernel.free_address(name)
        entry = self.kernel.entry(address.name)
        if entry is not None and entry.local:
            raise LocalError(
                f"a leaf has announced the name {quote(name)}",
                rule="RE-6",
                hint="choose another name for the session",
            )
        return address

    def _register(self, session: Session) -> None:
        """Make the session's name a routing entry, which tells where its peer is."""
        entry = RoutingEntry(session.name, session.place, local=False)
        self.kernel.add_receiver(session.address, session, entry)

    def _is_registered(self, session: Session) -> bool:
        return self.kernel.own_receiver(session.name) is session

    def _set_place(self, session: Session, place: Address) -> None:
        """Note where the peer of a session is, now that it is known."""
        if self.by_place.get(session.place) is session:
            del self.by_place[session.place]
            self.by_place.setdefault(place, session)
        session.move_to(place)
        if self._is_registered(session):
            self._register(session)

    async def _dial_once(self, session: Session, places: list[str]) -> None:
        """Connect a session that ends with its link."""
        if not await self._dial(session, places):
            session.give_up()

    async def _keep(self, session: Session, places: list[str]) -> None:
        """Connect, and connect again whenever the link is gone, until the session is forgotten."""

        async def connect() -> bool:
            opened = session.openings
            if await self._dial(session, places):
                while session.has_link or session.has_backlog:
                    await asyncio.shield(session.change)
            places.append(places.pop(0))  # the next first, should this one accept and then fail
            return session.openings > opened

        await keep(connect, backoff=Backoff())

    async def _dial(self, session: Session, places: Sequence[str]) -> bool:
        """Try to make a link; returns whether one was made."""
        _log.debug("session %s: connecting to %s", session.name, ", ".join(places))
        try:
            await self.transports[session.place.type].dial(places, session)
        except (OSError, ValueError) as error:  # the latter from names that no resolver takes
            session.not_connected(str(error) or type(error).__name__)
            return session.has_link
        return True

    async def _wait_until_open(self, session: Session, seconds: float) -> None:
        try:
            await session.until(lambda: session.is_open or session.ended, check_seconds(seconds))
        except BaseException:
            session.give_up()
            raise
        if not session.is_open:
            session.give_up()
            detail = session.failure or f"no answer within {seconds:g} s"
            raise UnreachableError(str(session.place), detail)
        if session.is_parent or session.peer is not None:
            # Its hello, which names it, or its proof may come after the session opened.
            await session.until(
                lambda: session.is_introduced or not session.is_open, self.NAME_TIMEOUT
            )

    def _is_full(self) -> bool:
        return self.closing or len(self.sessions) >= self.limits.sessions

    def _tell(self, kind: SessionKind, session: Session, peer: str | None, ending: Ending) -> None:
        reason, detail = ending
        level = logging.DEBUG if reason is None else logging.INFO
        why = f": {detail}" if reason is None else f": {reason}, {detail}"
        _log.log(
            level,
            "session %s with %s at %s %s%s",
            *(session.name, peer or "an unknown node", session.place, kind.value),
            why if detail else "",
        )
        record = session.record(self.kernel.tick())
        self.kernel.notify(
            structs.replace(record, kind=kind, peer=peer, reason=reason, detail=detail)
        )


def _tokens(shared: bytes | None, own: Iterable[Token]) -> Tokens | None:
    """The tokens that a node asks for: one for everybody, and those of some names."""
    every = [*([] if shared is None else [Token(shared)]), *own]
    return Tokens(every) if every else None
