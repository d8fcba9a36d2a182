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

from waystation.core.gossip import MemberChange, MemberKind
from waystation.core.outcome import Reason
from waystation.errors import LocalError, WaystationError, quote
from waystation.groups.group import Group
from waystation.groups.member import GroupLimits, Member
from waystation.groups.pipe import ACCEPT, DATA, OPEN, REFUSE, RESET, Key, Pipe, head, read_head
from waystation.groups.via import parse_via
from waystation.net.tls import Tls
from waystation.transports.tcp import TcpLimits, TcpLink
from waystation.transports.transport import Link, LinkOwner

ANY: Final = "*"
"""As the name of a member: one that nobody has."""

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
            f"{quote(place)} names no member of a group",
            rule="AD-1",
            hint="write group/member",
        )
    return group, member


class GossipLink(TcpLink):
    """A link to a member of a group."""

    def __init__(self, owner: LinkOwner, limits: TcpLimits, place: str) -> None:
        super().__init__(owner, limits.frame, limits.of_connections())
        self.place = place  # the peer as it stands in a route; a pipe has no other


class Room:
    """One member of one group, and the pipes that lead from it to others."""

    def __init__(self, group: Group, name: str, limits: TcpLimits) -> None:
        self.group = group
        self.name = name
        self.uses = 0
        self.accept: Accept | None = None
        self.closing: asyncio.Task[None] | None = None
        self._limits = limits
        self._pipes: dict[Key, Pipe] = {}
        self._offered: dict[Key, LinkOwner] = {}  # accepted, and nothing has come yet
        self._dialling: dict[Key, tuple[LinkOwner, asyncio.Future[Link | None]]] = {}
        self._numbers = itertools.count(secrets.randbits(48))
        self._left: Callable[[Room], None] = _nothing
        group.handler = self._received
        group.on_cut.append(self._cut_off)
        group.on_change.append(self._changed)

    def when_unused(self, act: Callable[[Room], None]) -> None:
        """Have a function called when nobody uses the room any more."""
        self._left = act

    def release(self) -> None:
        """One use less."""
        self.uses -= 1
        if not self.uses:
            self._left(self)

    async def dial(self, member: Member, owner: LinkOwner) -> Link:
        """Open a pipe to a member."""
        key = (member.uuid, next(self._numbers), True)
        answer: asyncio.Future[Link | None] = asyncio.get_running_loop().create_future()
        self._dialling[key] = owner, answer
        try:
            self.group.post(member.uuid, head(OPEN, key))
            link = await answer
        except BaseException:
            if self.group.is_connected:
                self.group.post(member.uuid, head(RESET, key))
            raise
        finally:
            self._dialling.pop(key, None)
        if link is None:
            raise ConnectionRefusedError(f"{self.group.group}/{member}: nobody listens")
        return link

    def _begin(self, member: Member, key: Key, owner: LinkOwner) -> Link:
        pipe = Pipe(self.group, member, key, self._ended)
        self._pipes[key] = pipe
        self.uses += 1
        link = GossipLink(owner, self._limits, f"{self.group.group}/{member.name}")
        pipe.attach(link)
        return link

    # What the group tells

    def _received(self, member: Member, payloads: Sequence[bytes | None]) -> None:
        for payload in payloads:
            found = None if payload is None else read_head(payload, member.uuid)
            if found is None or payload is None:
                continue
            kind, key = found
            pipe = self._pipes.get(key)
            if pipe is None and key in self._offered:
                pipe = self._take_up(member, key, kind)
            if pipe is not None:
                pipe.on_message(kind, payload)
            elif kind == OPEN:
                self._open(member, key)
            elif kind in (ACCEPT, REFUSE):
                self._answer(member, key, accepted=kind == ACCEPT)

    def _open(self, member: Member, key: Key) -> None:
        owner = None if self.accept is None or key[2] else self.accept()
        if owner is None:
            self.group.post(member.uuid, head(REFUSE, key))
            return
        self.group.post(member.uuid, head(ACCEPT, key))
        self._offered[key] = owner

    def _take_up(self, member: Member, key: Key, kind: int) -> Pipe | None:
        """Begin a link when its first bytes are there: not every dialler is still there then."""
        owner = self._offered.pop(key)
        if kind == DATA:
            self._begin(member, key, owner)
            return self._pipes[key]
        owner.closed(Reason.REFUSED, "the dialler went away")
        return None

    def _answer(self, member: Member, key: Key, *, accepted: bool) -> None:
        owner, answer = self._dialling.pop(key, (None, None))
        if answer is None or owner is None or answer.done():
            if accepted:  # nobody waits for it any more
                self.group.post(member.uuid, head(RESET, key))
        elif accepted:  # begun at once, since what follows is for it
            answer.set_result(self._begin(member, key, owner))
        else:
            answer.set_result(None)

    def _cut_off(self, detail: str) -> None:
        self._fail_all(list(self._pipes.values()), ConnectionError(detail))

    def _changed(self, change: MemberChange) -> None:
        if change.kind in _GOING:
            uuid = change.mapping.uuid
            gone = [pipe for key, pipe in self._pipes.items() if key[0] == uuid]
            self._fail_all(gone, ConnectionError(f"{change.mapping.member} is gone"))
            for key in [key for key in self._offered if key[0] == uuid]:
                self._offered.pop(key).closed(Reason.REFUSED, "the dialler is gone")
            for key, (_, answer) in self._dialling.items():
                if key[0] == uuid and not answer.done():
                    answer.set_result(None)

    def _fail_all(self, pipes: Iterable[Pipe], error: Exception) -> None:
        for pipe in pipes:
            if self.group.is_connected:
                self.group.post(pipe.key[0], head(RESET, pipe.key))
            pipe.fail(error)

    def _ended(self, pipe: Pipe, error: Exception | None) -> None:
        self._pipes.pop(pipe.key, None)
        self.release()
        if self.closing is None:
            pipe.tell_lost(error)
        else:  # the end of the link is told when nothing of it is left
            self.closing.add_done_callback(lambda _: pipe.tell_lost(error))


def _nothing(room: Room) -> None:
    del room


class GossipListener:
    """A member that others can open links to."""

    def __init__(self, room: Room) -> None:
        self._room: Room | None = room
        self.place = f"{room.group.group}/{room.name}"

    async def close(self) -> None:
        """Accept no more links; those that are open stay."""
        room, self._room = self._room, None
        if room is None:
            return
        room.accept = None
        room.release()
        if room.closing is not None:
            await asyncio.wait([room.closing])


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
        parse_via(self._via)
        self._options = {
            "dialect": dialect,
            "tls": tls,
            "token": token,
            "limits": group_limits,
            "wait": self.limits.dial,
            **options,
        }
        self._rooms: dict[str, list[Room]] = {}
        self._entering = asyncio.Lock()

    async def listen(self, place: str, accept: Accept) -> GossipListener:
        """Join a group under a name, and let others open links; `*` takes a new name."""
        group, name = parse_member(place)
        if name == ANY:
            name = f"member-{secrets.token_hex(6)}"
        room = await self._enter(group, name)
        room.accept = accept
        return GossipListener(room)

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
        raise ConnectionError("; ".join(errors) or "there is no place to connect to")

    async def _dial(self, place: str, owner: LinkOwner) -> Link:
        name, member = parse_member(place)
        room = await self._enter(name, None)
        try:
            found = [each for each in await room.group.members() if each.name == member][::-1]
            if not found:
                raise ConnectionRefusedError(f"{place}: there is no such member")
            return await room.dial(found[0], owner)
        finally:
            room.release()

    async def _enter(self, group: str, name: str | None) -> Room:
        """The room of a member, to be released; without a name, any that is there does."""
        async with self._entering:
            rooms = self._rooms.setdefault(group, [])
            for room in rooms:
                if name in (None, room.name):
                    room.uses += 1
                    return room
            made = Group(group, via=self._via, name=name or self._name, **self._options)
            try:
                await made.connect()
            except WaystationError as error:
                raise ConnectionError(str(error)) from error
            room = Room(made, made.me.name, self.limits)
            room.uses = 1
            room.when_unused(self._leave)
            rooms.append(room)
            return room

    def _leave(self, room: Room) -> None:
        name = f"waystation leave {room.group.group}/{room.name}"
        self._rooms[room.group.group].remove(room)
        room.closing = asyncio.get_running_loop().create_task(room.group.close(), name=name)
