"""Groups as a transport: `gossip#group/member` in a route leads to a member of a group (WK-10).

A link is a pipe between two members (pipe.py) that carries the same bytes as a TCP connection
between nodes. Members join when somebody listens or dials, and leave when nothing needs them any
more. What a member is reached by, a router or directly, is the business of its group.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Final

from waystation.core.budget import Account
from waystation.core.discovery import DiscoveryMethod
from waystation.core.gossip import MemberChange, MemberKind
from waystation.core.membership import Member
from waystation.core.outcome import Reason
from waystation.errors import LocalError, WaystationError, quote
from waystation.groups.group import Group
from waystation.groups.pipe import Key, Kind, Pipe, head, read_head
from waystation.groups.settings import GroupLimits, parse_via
from waystation.net.server import InputBudget
from waystation.net.tasks import Tasks
from waystation.net.tls import Tls
from waystation.transports.tcp import TcpLimits, TcpLink
from waystation.transports.transport import Link, LinkOwner, ServerState

ANY: Final = "*"
"""As the name of a member: take a name that is not in use."""

_GOING: Final = frozenset({MemberKind.LEAVE, MemberKind.SUSPECT, MemberKind.INVALIDATE})

Accept = Callable[[], LinkOwner | None]


def parse_member(place: str) -> tuple[str, str]:
    """The group and the member that a place names.

    >>> parse_member("fleet/truck-7")
    ('fleet', 'truck-7')
    """
    group, mark, member = place.partition("/")
    if not (mark and group and member):
        raise LocalError(
            f"invalid member {quote(place)}",
            rule="AD-1",
            hint="write group/member",
        )
    return group, member


class GossipLink(TcpLink):
    """A link to a member of a group."""

    def __init__(self, owner: LinkOwner, limits: TcpLimits, place: str) -> None:
        super().__init__(owner, limits, limits.of_connections())
        self.place = place  # the peer as it stands in a route; a pipe has no other


class Endpoint:
    """One member of one group, and the pipes that lead from it to others."""

    def __init__(
        self, group: Group, limits: TcpLimits, when_unused: Callable[[Endpoint], None]
    ) -> None:
        self.group = group
        self.name = group.me.name
        self.uses = 1
        self.accept: Accept | None = None
        self.closing: asyncio.Task[None] | None = None
        self.unread = Account(group.limits.budget)  # in pipes whose links are not read
        self._limits = limits
        self._when_unused = when_unused
        self._loop = asyncio.get_running_loop()
        self._pipes: dict[Key, Pipe] = {}
        self._open_links: dict[Key, GossipLink] = {}
        self._input_budget = InputBudget(limits.input, self._open_links.values)
        self._offered: dict[Key, tuple[LinkOwner, asyncio.TimerHandle]] = {}  # nothing came yet
        self._dialling: dict[Key, tuple[LinkOwner, asyncio.Future[Link | None]]] = {}
        self._numbers = itertools.count(secrets.randbits(48))
        group.handler = self._received
        group.on_cut.append(self._cut_off)
        group.on_change.append(self._changed)

    def release(self) -> None:
        """One use less."""
        self.uses -= 1
        if not self.uses:
            self._when_unused(self)

    async def dial(self, member: Member, owner: LinkOwner) -> Link:
        """Open a pipe to a member."""
        key = (member.uuid, next(self._numbers), True)
        answer: asyncio.Future[Link | None] = self._loop.create_future()
        self._dialling[key] = owner, answer
        try:
            self._post(Kind.OPEN, key)
            link = await answer
        except BaseException:
            self._post(Kind.RESET, key)
            raise
        finally:
            self._dialling.pop(key, None)
        if link is None:
            raise ConnectionRefusedError(f"{self.group.group}/{member}: nobody listens")
        return link

    def _begin(self, member: Member, key: Key, owner: LinkOwner) -> Link:
        pipe = self._pipes[key] = Pipe(self.group, member, key, self._ended, self.unread)
        self.uses += 1
        link = GossipLink(owner, self._limits, f"{self.group.group}/{member.name}")
        link.input_budget = self._input_budget
        self._open_links[key] = link
        pipe.attach(link)
        return link

    def _post(self, kind: Kind, key: Key) -> None:
        if self.group.is_connected:
            self.group.post(key[0], head(kind, key))

    # What the group tells

    def _received(self, member: Member, payloads: Sequence[bytes | None]) -> None:
        for payload in payloads:
            if payload is None:
                continue
            found = read_head(payload, member.uuid)
            if found is None:
                self.group.counts[Reason.MALFORMED.value] += 1
                continue
            kind, key = found
            if key in self._offered:
                self._take_up(member, key, kind)
            pipe = self._pipes.get(key)
            if pipe is not None:
                pipe.on_message(kind, payload)
            elif kind is Kind.OPEN:
                self._open(key)
            elif kind in (Kind.ACCEPT, Kind.REFUSE):
                self._answer(member, key, accepted=kind is Kind.ACCEPT)

    def _open(self, key: Key) -> None:
        owner = None if self.accept is None or key[2] else self.accept()
        if owner is None:
            self._post(Kind.REFUSE, key)
            return
        self._post(Kind.ACCEPT, key)
        timer = self._loop.call_later(self._limits.greeting, self._give_up_on_silence, key)
        self._offered[key] = owner, timer

    def _take_up(self, member: Member, key: Key, kind: Kind) -> None:
        """Begin a link when its first bytes are there: not every dialler is still there then."""
        if kind is Kind.DATA:
            owner, timer = self._offered.pop(key)
            timer.cancel()
            self._begin(member, key, owner)
        elif kind is not Kind.OPEN:
            self._withdraw(key, "the dialler went away")

    def _withdraw(self, key: Key, detail: str) -> None:
        owner, timer = self._offered.pop(key)
        timer.cancel()
        owner.closed(Reason.REFUSED, detail)

    def _give_up_on_silence(self, key: Key) -> None:
        self._post(Kind.RESET, key)
        self._withdraw(key, f"the dialler said nothing for {self._limits.greeting:g} s")

    def _answer(self, member: Member, key: Key, *, accepted: bool) -> None:
        owner, answer = self._dialling.pop(key, (None, None))
        if answer is None or owner is None or answer.done():
            if accepted:  # nobody waits for it any more
                self._post(Kind.RESET, key)
        elif accepted:  # begun at once, since what follows is for it
            answer.set_result(self._begin(member, key, owner))
        else:
            answer.set_result(None)

    def _cut_off(self, detail: str) -> None:
        for pipe in list(self._pipes.values()):
            pipe.reset(ConnectionError(detail))

    def _changed(self, change: MemberChange) -> None:
        if change.kind not in _GOING:
            return
        uuid = change.mapping.uuid
        for pipe in [pipe for key, pipe in self._pipes.items() if key[0] == uuid]:
            end = pipe.fail if change.kind is MemberKind.INVALIDATE else pipe.reset
            end(ConnectionError(f"{change.mapping.member} is gone"))
        for key in [key for key in self._offered if key[0] == uuid]:
            self._withdraw(key, "the dialler is gone")
        for key, (_, answer) in self._dialling.items():
            if key[0] == uuid and not answer.done():
                answer.set_result(None)

    def _ended(self, pipe: Pipe, error: Exception | None) -> None:
        self._pipes.pop(pipe.key, None)
        self.release()
        if self.closing is None:
            self._tell_lost(pipe, error)
        else:  # the end of the link is told when nothing of it is left
            self.closing.add_done_callback(lambda _: self._tell_lost(pipe, error))

    def _tell_lost(self, pipe: Pipe, error: Exception | None) -> None:
        pipe.tell_lost(error)
        self._open_links.pop(pipe.key, None)


class GossipListener:
    """A member that others can open links to."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint: Endpoint | None = endpoint
        self.place = f"{endpoint.group.group}/{endpoint.name}"

    async def close(self) -> None:
        """Accept no more links; those that are open stay."""
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is None:
            return
        endpoint.accept = None
        endpoint.release()
        if endpoint.closing is not None:
            await asyncio.wait([endpoint.closing])


class Gossip:
    """Links between members of groups: addresses `gossip#group/member`.

    `via` and the options are those of `Group`; `name` is this node's in groups where it does not
    listen.
    """

    type_name: ClassVar[str] = "gossip"

    def __init__(
        self,
        via: str | Iterable[str],
        *,
        name: str | None = None,
        dialect: str = "jgroups5",
        tls: Tls | None = None,
        token: str | bytes = b"",
        limits: TcpLimits | None = None,
        group_limits: GroupLimits | None = None,
        **options: Any,
    ) -> None:
        self.limits = limits or TcpLimits()
        self._name = name
        self._via = [via] if isinstance(via, str) else list(via)
        self._servers = _routers(self._via)
        self._options = {
            "dialect": dialect,
            "tls": tls,
            "token": token,
            "limits": group_limits,
            "wait": self.limits.dial,
            **options,
        }
        self._endpoints: dict[str, list[Endpoint]] = {}
        self._joining = asyncio.Lock()
        self._leaving = Tasks()

    @property
    def servers(self) -> list[ServerState]:
        """The gossip routers, while it is a member of any group."""
        groups = [endpoint.group for found in self._endpoints.values() for endpoint in found]
        is_open = any(group.is_open for group in groups)
        return [ServerState("gossip router", place, is_open) for place in self._servers if groups]

    async def listen(self, place: str, accept: Accept) -> GossipListener:
        """Join a group under a name, and let others open links; `*` takes a new name."""
        group, name = parse_member(place)
        if name == ANY:
            name = f"member-{secrets.token_hex(6)}"
        endpoint = await self._join(group, name)
        endpoint.accept = accept
        return GossipListener(endpoint)

    async def dial(self, places: Sequence[str], owner: LinkOwner) -> Link:
        """Open a link to the first of these members that answers."""
        errors: list[str] = []
        for place in places:
            try:
                async with asyncio.timeout(self.limits.dial):
                    return await self._dial(place, owner)
            except TimeoutError:
                errors.append(f"{place}: no answer within {self.limits.dial:g} s")
            except OSError as error:
                errors.append(str(error))
        raise ConnectionError("; ".join(errors) or "no place to connect to")

    async def _dial(self, place: str, owner: LinkOwner) -> Link:
        name, member = parse_member(place)
        endpoint = await self._join(name, None)
        try:
            found = [each for each in await endpoint.group.members() if each.name == member][::-1]
            if not found:
                raise ConnectionRefusedError(f"{place}: no such member")
            return await endpoint.dial(found[0], owner)
        finally:
            endpoint.release()

    async def _join(self, group: str, name: str | None) -> Endpoint:
        """The endpoint of a member, to be released; without a name, any of the group will do."""
        async with self._joining:
            endpoints = self._endpoints.setdefault(group, [])
            for endpoint in endpoints:
                if name in (None, endpoint.name):
                    endpoint.uses += 1
                    return endpoint
            made = Group(group, via=self._via, name=name or self._name, **self._options)
            try:
                await made.connect()
            except WaystationError as error:
                raise ConnectionError(str(error)) from error
            endpoint = Endpoint(made, self.limits, self._leave)
            endpoints.append(endpoint)
            return endpoint

    def _leave(self, endpoint: Endpoint) -> None:
        name = f"leave {endpoint.group.group}/{endpoint.name}"
        self._endpoints[endpoint.group.group].remove(endpoint)
        endpoint.closing = self._leaving.start(endpoint.group.close(), name)


def _routers(via: Iterable[str]) -> tuple[str, ...]:
    """The places of the gossip routers among the addresses of a group."""
    parsed = parse_via(via)
    through = (DiscoveryMethod.ROUTER, DiscoveryMethod.TUNNEL)
    return parsed.places if parsed.method in through else ()
