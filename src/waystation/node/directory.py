"""Finding providers: in a node's own list, its parents', and the global directory (RE-14).

Each node keeps a list of what its participants, and those of its leaves, offer. One node hosts the
global directory; hubs ask it. Leaves ask their hub. All questions go to the worker
`waystation.directory` of the node that is asked, as ordinary requests, and what was found elsewhere
gets a routing entry before it is returned.

Nobody replaces or removes what somebody else listed, while that lives (CL-5). In a list of what is
behind this node it lives as long as its owner has the participant. In the list for the whole fleet
it lives until it expires, unless the hub that listed it says that the participant is gone.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from waystation.core.address import Address, Route
from waystation.core.directory import Directory, Lister, Provider, Scope
from waystation.core.expiry import NEVER
from waystation.core.grants import Action
from waystation.core.message import Message
from waystation.core.record import Cause
from waystation.core.routing import RoutingEntry
from waystation.errors import LocalError, RemoteError, WaystationError, quote
from waystation.net.tasks import Tasks
from waystation.node.askers import Entrance
from waystation.node.permissions import Grantee
from waystation.node.session import Session
from waystation.node.worker import Context

if TYPE_CHECKING:
    from waystation.node.kernel import Kernel
    from waystation.node.node import Node

_log = logging.getLogger("waystation.node")

NAME: Final = "waystation.directory"

OPEN_QUESTIONS: Final = 1_000
"""Maximum number of open questions of other nodes; more are refused."""

_ITSELF: Final = Grantee()
_PROBE_TIME: Final = 5.0  # seconds for a hub to tell whether what it listed is still there
_REMEMBERED: Final = 60_000  # milliseconds for which a found provider that never expires is routed


class _Ask(msgspec.Struct, frozen=True, tag_field="ask", kw_only=True):
    """A question for a directory; `asked` are the nodes that passed it on."""

    asked: list[str] = []


class Register(_Ask, frozen=True, tag="register"):
    """List this provider, which is a participant of this owner (CL-5)."""

    provider: Provider
    everywhere: bool = False
    owner: str = ""

    @property
    def participant(self) -> str:
        """The name of the provider."""
        return self.provider.participant


class Leave(_Ask, frozen=True, tag="leave"):
    """Take this participant of this owner off the list."""

    participant: str
    owner: str = ""


class Lookup(_Ask, frozen=True, tag="lookup"):
    """Who offers this?"""

    domain: str
    name: str
    scope: Scope


class DirectoryReply(msgspec.Struct, frozen=True):
    """What a directory replies."""

    providers: list[Provider] = []
    error: str = ""


Ask: TypeAlias = Register | Leave | Lookup

_asks: Final[msgspec.json.Decoder[Ask]] = msgspec.json.Decoder(Ask)
_answers: Final = msgspec.json.Decoder(DirectoryReply)
_encode: Final = msgspec.json.Encoder().encode


class ProviderDirectory:
    """The providers that one node knows, and the directories that it asks for more."""

    def __init__(self, node: Node, kernel: Kernel) -> None:
        self._node = node
        self._kernel = kernel
        self._here = Directory()
        self._everywhere: Directory | None = None  # of the node that hosts it
        self._beyond: str | None = None  # the route to the node that hosts it
        self._address: str | None = None  # where others reach this node
        self._offered: dict[str, Register] = {}  # what was registered here, for new parents
        self._open = Tasks()  # questions of others, news for parents

    def host(self) -> None:
        """Be the global directory."""
        self._everywhere = Directory()
        self.serve()

    def ask_at(self, route: str, address: str | None) -> None:
        """Use the global directory at the end of a route; `address` is where others reach us."""
        hops = Route.parse(route, self._kernel.router.types.numbers)
        self._beyond = str(hops) if hops.addresses[-1:] == (_WORKER,) else f"{hops} => {NAME}"
        self._address = address

    @property
    def lists_everywhere(self) -> bool:
        """Whether a provider can be listed for everybody."""
        beyond = self._everywhere is not None or self._beyond is not None
        return beyond or bool(self._kernel.hierarchy.parents)

    def find(self, participant: str) -> Provider | None:
        """What a participant of this node, or behind it, is listed as."""
        now = self._kernel.tick() // 1000
        return self._here.find(participant, now) if self._kernel.entry(participant) else None

    def serve(self) -> None:
        """Answer the questions of leaves and other nodes."""
        if self._kernel.worker(NAME) is None:
            self._node.start_worker((NAME,), self._handle, reserved=True)

    async def _handle(self, message: Message, context: Context) -> None:
        if len(self._open) >= OPEN_QUESTIONS:
            await context.reply(_encode(DirectoryReply(error="too many questions at once")))
            return
        # In a task, since others wait behind, and the reply may have to come from elsewhere.
        self._open.start(self._answer(message, context), "directory")

    def opened(self, parent: Session) -> None:
        """Tell a parent what is offered: it may have forgotten us, or never have known us."""
        if self._offered:
            self._open.start(self._offer_again(parent), "directory")

    async def _offer_again(self, parent: Session) -> None:
        now = self._kernel.tick() // 1000
        for ask in list(self._offered.values()):
            if now < ask.provider.ends():
                try:
                    await self._request(f"{parent.name} => {NAME}", ask)
                except WaystationError as error:
                    _log.warning("session %s: %s", parent.name, error)

    async def close(self) -> None:
        """Answer nothing more."""
        await self._open.stop()

    async def _answer(self, message: Message, context: Context) -> None:
        try:
            ask = self._in_own_time(_asks.decode(message.payload), message)
            lister = None
            if not isinstance(ask, Lookup):
                self._check_granted(ask.participant, message)
                self._check_name(ask.participant, message)
                lister = self._lister(ask, message)
            is_circle = self._kernel.name in ask.asked
            answer = DirectoryReply([] if is_circle else await self.do(ask, lister))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            answer = DirectoryReply(error=f"invalid question for a directory: {error}")
        except WaystationError as error:
            answer = DirectoryReply(error=str(error))
        await context.reply(_encode(answer))

    def _check_granted(self, name: str, message: Message) -> None:
        """Let nobody list a participant to whom that is not granted (ID-3)."""
        permissions = self._kernel.permissions
        if not permissions.may_sender(message, Action.REGISTER, name):
            asker = permissions.asker_of(message)
            who = "who has gone" if asker is None else asker.identity or asker.peer or asker.name
            raise RemoteError(f"{who} may not register {quote(name)}")

    def take_back(self) -> None:
        """Take what is no longer granted off the lists, also of who is away (ID-5)."""
        for listed in (self._here, self._everywhere):
            for participant, lister in [] if listed is None else listed.listers():
                grantee = Grantee(lister.session, lister.who)
                if not self._kernel.permissions.may_still(grantee, Action.REGISTER, participant):
                    assert listed is not None
                    listed.leave(participant)
                    if self._offered.pop(participant, None) is not None:
                        told = self._tell_left(Leave(participant=participant, owner=lister.owner))
                        self._open.start(told, "directory")

    async def _tell_left(self, ask: Leave) -> None:
        """Tell those who were told of a listing that it is gone."""
        try:
            if self._everywhere is None and self._beyond is not None:
                await self._request(self._beyond, ask)
            await self._ask_parents(ask)
        except WaystationError as error:
            _log.warning("%s is off the list here, but not elsewhere: %s", ask.participant, error)

    def _check_name(self, name: str, message: Message) -> None:
        """Let nobody speak for a participant that is somebody else's."""
        entry = self._kernel.entry(name)
        if entry is not None and entry.local and entry.address != message.return_route.first:
            claim = self._kernel.hierarchy.claims.best(name)
            node = self._kernel.name if claim is None else claim.origin
            raise RemoteError(f"{quote(name)} is a participant of node {quote(node)}")

    def _lister(self, ask: Register | Leave, message: Message) -> Lister | None:
        """Who asks, as this node knows it, whatever the question says; None for itself.

        A leaf speaks for the owners that it claims names for. Another hub is believed, since it
        knows its leaves. Who is at the other end of a secure channel speaks for itself. What came
        through somebody else's hands may be anybody's.
        """
        back, receivers = message.return_route.addresses, self._kernel.receivers
        passed = [receivers.get(hop.data) for hop in back]
        if all(each is not None and not isinstance(each, Session | Entrance) for each in passed):
            return None
        session, node = passed[0], ask.asked[0] if ask.asked else ""
        if isinstance(session, Entrance) and len(back) <= 2:
            who = session.asker.identity or ""
            return Lister(who, who, node or who, session.address.data, session.asker.who)
        if not isinstance(session, Session) or len(back) > 2:
            return Lister(node=node, who=self._kernel.permissions.grantee_of(message).who)
        claims = self._kernel.hierarchy.claims
        speaker = claims.speaker(session)
        is_leaf = session.participants or (session.hello is not None and session.hello.secret)
        owner = claims.owner_over(session, ask.participant) if is_leaf else ask.owner or speaker
        name = node or session.peer or session.name
        return Lister(owner, speaker, name, session.address.data, session.who)

    def lister_for(self, asked: Message) -> Lister:
        """This node, on behalf of who sent a message to one of its workers."""
        return self._own_lister(self._kernel.permissions.grantee_of(asked))

    def _own_lister(self, for_whom: Grantee = _ITSELF) -> Lister:
        own = self._kernel.hierarchy.owner
        return Lister(own, own, self._kernel.name, for_whom.session, for_whom.who)

    async def do(self, ask: Ask, lister: Lister | None = None) -> list[Provider]:
        """Do what a node asks, this one or another, here and where it has to be known."""
        now = self._kernel.tick() // 1000
        for participant in self._here.purge(now):
            self._offered.pop(participant, None)
        if self._everywhere is not None:
            self._everywhere.purge(now)
        if isinstance(ask, Lookup):
            return await self._lookup(ask, now)
        if lister is None:
            lister = self._own_lister()
        ask = msgspec.structs.replace(ask, owner=lister.owner)
        if isinstance(ask, Leave):
            await self._leave(ask, lister)
        elif ask.provider.address is not None and self._everywhere is not None:
            await self._list_everywhere(ask.provider, lister)  # by another node, for everybody
        else:
            await self._register(ask, lister)
        return []

    async def _register(self, ask: Register, lister: Lister) -> None:
        self._check_here(ask.participant, lister)
        self._here.register(ask.provider, lister)
        self._offered[ask.participant] = ask
        self._kernel.hierarchy.announce_changes()  # the parents must know whose it is
        await self._ask_parents(ask)
        if ask.everywhere and not self._kernel.hierarchy.parents:
            await self._register_everywhere(ask, lister)

    # Whose a listing is (CL-5)

    def _check_here(self, participant: str, lister: Lister) -> None:
        """Raise LocalError if somebody else lists a participant that is still there."""
        now = self._kernel.tick() // 1000
        other = self._here.listed_by_another(participant, lister, now)
        if other is not None and other.owner == self._kernel.hierarchy.claims.owner_of(participant):
            raise _listed_error(participant, other)

    async def _list_everywhere(self, provider: Provider, lister: Lister) -> None:
        """List a provider for everybody, unless somebody else's listing of it lives."""
        assert self._everywhere is not None
        now = self._kernel.tick() // 1000
        other = self._everywhere.listed_by_another(provider.participant, lister, now)
        if other is not None and await self._is_there(provider.participant, other):
            raise _listed_error(provider.participant, other)
        self._everywhere.register(provider, lister)

    async def _is_there(self, participant: str, lister: Lister) -> bool:
        """Whether what somebody listed for everybody is still there; in doubt it is.

        The hub that listed it is asked, if it is connected: one that is not vouches for nothing.
        """
        kernel = self._kernel
        if kernel.hierarchy.claims.owner_of(participant) == lister.owner:
            return True
        session = kernel.links.sessions.get(lister.session)
        assert self._everywhere is not None
        listed = self._everywhere.find(participant, kernel.tick() // 1000)
        if session is None or session.participants or listed is None:
            return False
        ask = Lookup(listed.domain, listed.name, Scope.LOCAL_ONLY)
        try:
            found = await self._request(f"{session.name} => {NAME}", ask, timeout=_PROBE_TIME)
        except WaystationError:
            return True
        return any(provider.participant == participant for provider in found)

    async def _register_everywhere(self, ask: Register, lister: Lister) -> None:
        urls = [listening.url.replace("://", "#", 1) for listening in self._node.listening]
        urls = [url for url in urls if "+" not in url]  # where only others than nodes connect
        own = self._address or next(iter(urls), None)
        known = msgspec.structs.replace(ask.provider, address=own)
        if self._everywhere is not None:
            await self._list_everywhere(known, lister)
        elif self._beyond is not None and own is None:
            raise LocalError(
                "this node has no address where others could reach it",
                rule="RE-14",
                hint="listen, or give the address to ask_directory",
            )
        elif self._beyond is not None:
            await self._request(self._beyond, Register(known, owner=ask.owner, asked=ask.asked))
        else:
            raise LocalError(
                f"{quote(ask.participant)} cannot be listed everywhere",
                rule="RE-14",
                hint="host a directory here, ask one elsewhere, or connect to a parent that does",
            )

    async def _leave(self, ask: Leave, lister: Lister) -> None:
        participant, everywhere = ask.participant, self._everywhere
        self._check_here(participant, lister)
        if everywhere is not None:
            now = self._kernel.tick() // 1000
            other = everywhere.listed_by_another(participant, lister, now)
            if other is not None:
                raise _listed_error(participant, other)
            everywhere.leave(participant)
        self._here.leave(participant)
        self._offered.pop(participant, None)
        if everywhere is None and self._beyond is not None:
            await self._request(self._beyond, ask)
        await self._ask_parents(ask)

    async def _lookup(self, ask: Lookup, now: int) -> list[Provider]:
        """Find providers, and the way to those elsewhere."""
        found: dict[str, Provider] = {}
        if ask.scope is not Scope.GLOBAL_ONLY:
            there = self._kernel.router.table.contains  # a leaf that is away may come back
            listed = self._here.lookup(ask.domain, ask.name, now)
            found = {p.participant: p for p in listed if there(p.participant, now)}
        enough = ask.scope is Scope.LOCAL_ONLY or (ask.scope is Scope.LOCAL_THEN_GLOBAL and found)
        if self._kernel.hierarchy.parents:  # what a parent lists is local as well
            elsewhere = await self._ask_parents(ask)
        else:
            elsewhere = [] if enough else await self._lookup_everywhere(ask, now)
        for provider in elsewhere:
            found.setdefault(provider.participant, provider)
        return list(found.values())

    async def _ask_parents(self, ask: Ask) -> list[Provider]:
        """Ask the parents, and remember that what they list is reached over them."""
        providers = []
        for parent in self._kernel.hierarchy.parents:
            found = await self._request(f"{parent.name} => {NAME}", ask)
            for provider in found:
                self._learn(provider, parent.address)
            providers += found
        return providers

    async def _lookup_everywhere(self, ask: Lookup, now: int) -> list[Provider]:
        if self._everywhere is not None:
            found = self._everywhere.lookup(ask.domain, ask.name, now)
        elif self._beyond is not None:
            # What is local there is not local here, and has no address.
            beyond = msgspec.structs.replace(ask, scope=Scope.GLOBAL_ONLY)
            found = await self._request(self._beyond, beyond)
        else:
            return []
        for provider in found:
            if provider.address is not None:
                self._learn(provider, provider.address)
        return found

    def _learn(self, provider: Provider, address: Address | str) -> None:
        """Remember the way to a provider elsewhere; a local entry stays what it is (RE-14)."""
        kernel = self._kernel
        expiry = provider.ends()
        if expiry == NEVER:
            expiry = kernel.tick() // 1000 + _REMEMBERED
        name = provider.participant
        if kernel.is_own_name(name) or kernel.hierarchy.claims.is_recent(name):
            return
        session = kernel.links.sessions.get(address.data) if isinstance(address, Address) else None
        if kernel.permissions.keeps_from(session, name):
            return
        try:
            if isinstance(address, str):
                address = Address.parse(address, kernel.router.types.numbers)
            entry = RoutingEntry.of_discovery(provider.participant, address, expiry)
            kernel.put_route(entry, (Cause.RESOLVED, None, None))
        except LocalError as error:
            raise RemoteError(f"a directory listed an invalid provider: {error}") from error

    async def _request(self, route: str, ask: Ask, timeout: float = 30.0) -> list[Provider]:  # noqa: ASYNC109
        """Ask another node, and tell it who passed the question on."""
        ask = msgspec.structs.replace(ask, asked=[*ask.asked, self._kernel.name])
        message = await self._node.request(route, _encode(ask), timeout=timeout)
        try:
            answer = _answers.decode(message.payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RemoteError(f"invalid reply of the directory at {route}: {error}") from error
        if answer.error:
            raise LocalError(
                f"the directory at {route} refused: {answer.error}",
                rule="RE-14",
                hint="see what it says",
            )
        return [self._provider_in_own_time(one, message) for one in answer.providers]

    def _in_own_time(self, ask: Ask, message: Message) -> Ask:
        if not isinstance(ask, Register):
            return ask
        provider = self._provider_in_own_time(ask.provider, message)
        return msgspec.structs.replace(ask, provider=provider)

    def _provider_in_own_time(self, provider: Provider, message: Message) -> Provider:
        """A provider as a message lists it, with its expiry on the clock of this node (TM-2)."""
        session = self._kernel.session_of(message)
        if session is None or provider.expiry is None:
            return provider
        expiry = session.in_own_time(provider.expiry)
        return msgspec.structs.replace(provider, expiry=None if expiry == NEVER else int(expiry))


def _listed_error(participant: str, lister: Lister) -> LocalError:
    return LocalError(
        f"{quote(participant)} is listed by node {quote(lister.node)}",
        rule="CL-5",
        hint="list it under another name, or have that node unregister it",
    )


_WORKER: Final = Address(0, NAME.encode())
