"""What a member of a group knows of the others: one record per peer, its life as a table (LA).

A peer is another member, or somebody who may be one. Its life stands in `TRANSITIONS`, and whether
it gets what goes to all members stands in `SHARING_TRANSITIONS`; `docs/explanation/groups.md` shows
both, drawn by a program.

What may live here, and what may not:

Rule 1. Nothing here knows a socket, a clock or a message. Times are seconds of a clock that only
        grows, given by the caller. An event is something that has happened already; an effect is a
        word for something that `waystation.groups.streams` then does, in the order given.

Rule 2. Events do not carry conditions. Where the next state depends on something else, there are
        two events, and whoever knows the condition picks one (NAMED or SPOKE).

Rule 3. Every pair of state and event is either in a table or cannot happen, and raises:
        - messages of a member are taken and never STRANGE, and what goes to it is never given up
          or forgotten while it is a member: no GRACE_OVER or AGED_OUT then;
        - only of a member was it told where it is: nobody else has MOVED;
        - nothing happens to a peer that is GONE: its record is no longer there.

A peer that is SUSPECTED keeps its record: it may come back, and what it sent before must not be
taken twice. Where its address is known from is the business of identity.py and discovery.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from math import inf
from typing import Final, TypeAlias

from msgspec import Struct

from waystation.core.identity import LogicalAddress, Physical, Uuid, uuid_text
from waystation.core.identity import Mapping as AddressMapping
from waystation.core.outcome import Verdict
from waystation.core.sequences import Arrivals, Outgoing
from waystation.errors import LocalError


class Member(Struct, frozen=True, eq=False, gc=False):
    r"""A member of a group: who it is, and where it is reached at the moment.

    Two values are equal when they are the same member, wherever it is (LA-1).

    >>> truck = Member(LogicalAddress(bytes(15) + b"\7", "truck-7"), ("10.0.0.7:7800",))
    >>> print(truck, truck.uuid_text, truck == Member(truck.address))
    truck-7 00000000-0000-0000-0000-000000000007 True
    """

    address: LogicalAddress
    physical: tuple[Physical, ...] = ()

    @classmethod
    def of(cls, mapping: AddressMapping) -> Member:
        """The member that a mapping speaks of."""
        return cls(mapping.member, mapping.physical)

    @property
    def name(self) -> str:
        """What people call it; not necessarily unlike the names of others."""
        return self.address.name

    @property
    def uuid(self) -> Uuid:
        """What it is; made anew whenever it connects (LA-2)."""
        return self.address.uuid

    @property
    def uuid_text(self) -> str:
        """The UUID as people and the journal write it."""
        return uuid_text(self.address.uuid)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Member) and self.address == other.address

    def __ne__(self, other: object) -> bool:  # a struct has one of its own, which compares all
        return not self == other

    def __hash__(self) -> int:
        return hash(self.address)

    def __str__(self) -> str:
        return self.address.name


class Word(Enum):
    """A word of a table, hashed by identity: enums do it by name, which costs a call each time."""

    __hash__ = object.__hash__


class State(Word):
    """Where a peer is in its life."""

    UNKNOWN = "no member; messages came from it, or are to go to it"
    LISTED = "a member, as others say; it has not said so itself"
    PRESENT = "a member that has said itself who it is"
    SUSPECTED = "it was a member, and nobody sees it any more; it may come back"
    GONE = "its record is deleted"


class Event(Word):
    """What happens to a peer."""

    STRANGE_MESSAGE = "messages came from it, and its address is not known"
    NAMED = "a router or a member named it, or messages came from it and its address is known"
    SPOKE = "it said itself who and where it is"
    MOVED = "its name or its addresses are others than the group was told"
    LOST = "nobody sees it any more, or another member is where it was"
    SAID_GOODBYE = "it has closed"
    GRACE_OVER = "what is on its way to it has waited too long"
    AGED_OUT = "it left long ago, or nothing was ever known of it"


class Effect(Word):
    """What to do about it."""

    ASK_WHERE = "ask the others where it is"
    ADMIT = "suspect whoever had its addresses, share what goes to all with it, tell that it joined"
    TELL_MOVED = "tell that it is reached elsewhere, or has another name"
    SUSPECT = "let its address age, wait for it no longer, tell that it is suspected"
    DISMISS = "wait for it no longer, tell that it has closed"
    SEND_AGAIN = "send again what it has not acknowledged"
    DROP_LOST = "drop what is on its way to it: TRANSPORT_DOWN"
    DROP_UNROUTABLE = "drop what is on its way to it: NO_ROUTE"


Step: TypeAlias = tuple[State, tuple[Effect, ...]]

_S, _E, _F = State, Event, Effect

MEMBERS: Final = frozenset({_S.LISTED, _S.PRESENT})
"""The states of peers that are members."""

_JOIN: Final = (_F.ADMIT, _F.SEND_AGAIN)
_MOVE: Final = (_F.TELL_MOVED, _F.SEND_AGAIN)
_END: Final = (_F.DROP_UNROUTABLE, _F.DISMISS)

TRANSITIONS: Final[Mapping[tuple[State, Event], Step]] = {
    (_S.UNKNOWN, _E.STRANGE_MESSAGE): (_S.UNKNOWN, (_F.ASK_WHERE,)),
    (_S.UNKNOWN, _E.NAMED): (_S.LISTED, _JOIN),
    (_S.UNKNOWN, _E.SPOKE): (_S.PRESENT, _JOIN),
    (_S.UNKNOWN, _E.LOST): (_S.UNKNOWN, ()),
    (_S.UNKNOWN, _E.SAID_GOODBYE): (_S.GONE, (_F.DROP_UNROUTABLE,)),
    (_S.UNKNOWN, _E.GRACE_OVER): (_S.GONE, (_F.DROP_LOST,)),
    (_S.UNKNOWN, _E.AGED_OUT): (_S.GONE, (_F.DROP_LOST,)),
    (_S.LISTED, _E.NAMED): (_S.LISTED, ()),
    (_S.LISTED, _E.SPOKE): (_S.PRESENT, ()),
    (_S.LISTED, _E.MOVED): (_S.LISTED, _MOVE),
    (_S.LISTED, _E.LOST): (_S.SUSPECTED, (_F.SUSPECT,)),
    (_S.LISTED, _E.SAID_GOODBYE): (_S.GONE, _END),
    (_S.PRESENT, _E.NAMED): (_S.PRESENT, ()),
    (_S.PRESENT, _E.SPOKE): (_S.PRESENT, ()),
    (_S.PRESENT, _E.MOVED): (_S.PRESENT, _MOVE),
    (_S.PRESENT, _E.LOST): (_S.SUSPECTED, (_F.SUSPECT,)),
    (_S.PRESENT, _E.SAID_GOODBYE): (_S.GONE, _END),
    (_S.SUSPECTED, _E.STRANGE_MESSAGE): (_S.SUSPECTED, (_F.ASK_WHERE,)),
    (_S.SUSPECTED, _E.NAMED): (_S.LISTED, _JOIN),
    (_S.SUSPECTED, _E.SPOKE): (_S.PRESENT, _JOIN),
    (_S.SUSPECTED, _E.LOST): (_S.SUSPECTED, ()),
    (_S.SUSPECTED, _E.SAID_GOODBYE): (_S.GONE, (_F.DROP_UNROUTABLE,)),
    (_S.SUSPECTED, _E.GRACE_OVER): (_S.SUSPECTED, (_F.DROP_LOST,)),
    (_S.SUSPECTED, _E.AGED_OUT): (_S.GONE, (_F.DROP_LOST,)),
}


def step(state: State, event: Event) -> Step:
    """What becomes of a peer, and what to do about it.

    >>> step(State.LISTED, Event.SPOKE)
    (<State.PRESENT: 'a member that has said itself who it is'>, ())
    >>> step(State.PRESENT, Event.GRACE_OVER)
    Traceback (most recent call last):
    waystation.errors.LocalError: GRACE_OVER cannot happen to a peer in the state PRESENT; ...
    """
    found = TRANSITIONS.get((state, event))
    if found is None:
        raise _impossible(event, state)
    return found


class Sharing(Word):
    """Whether a peer gets what goes to all members in one packet."""

    APART = "it gets nothing of it"
    JOINING = "it gets what is sent from now on, and has not been told where that begins"
    FOLLOWING = "it gets everything"
    LAGGING = "it did not keep up, and gets nothing until it has room again"


class SharingEvent(Word):
    """What happens to it."""

    ENTERED = "the peer has become a member"
    NEXT_DUE = "something is about to go to all"
    TOO_SLOW = "it is the last one that others wait for, and their time is over"
    ROOM_AGAIN = "it says that it has room"
    LEFT = "the peer is no member any more"


class SharingEffect(Word):
    """What to do about it."""

    START = "wait for its acknowledgements from the next message on"
    TELL_START = "tell it which number comes first"
    COUNT_LOST = "count what it loses of what was sent"
    STOP = "no longer wait for its acknowledgements"
    COUNT_MISSED = "count what was sent while it was lagging"


SharingStep: TypeAlias = tuple[Sharing, tuple[SharingEffect, ...]]

_H, _HE, _HF = Sharing, SharingEvent, SharingEffect

SHARING_TRANSITIONS: Final[Mapping[tuple[Sharing, SharingEvent], SharingStep]] = {
    (_H.APART, _HE.ENTERED): (_H.JOINING, (_HF.START,)),
    (_H.APART, _HE.NEXT_DUE): (_H.APART, ()),
    (_H.APART, _HE.ROOM_AGAIN): (_H.APART, ()),
    (_H.APART, _HE.LEFT): (_H.APART, ()),
    (_H.JOINING, _HE.NEXT_DUE): (_H.FOLLOWING, (_HF.TELL_START,)),
    (_H.JOINING, _HE.TOO_SLOW): (_H.LAGGING, (_HF.COUNT_LOST, _HF.STOP)),
    (_H.JOINING, _HE.ROOM_AGAIN): (_H.JOINING, ()),
    (_H.JOINING, _HE.LEFT): (_H.APART, (_HF.STOP,)),
    (_H.FOLLOWING, _HE.NEXT_DUE): (_H.FOLLOWING, ()),
    (_H.FOLLOWING, _HE.TOO_SLOW): (_H.LAGGING, (_HF.COUNT_LOST, _HF.STOP)),
    (_H.FOLLOWING, _HE.ROOM_AGAIN): (_H.FOLLOWING, ()),
    (_H.FOLLOWING, _HE.LEFT): (_H.APART, (_HF.STOP,)),
    (_H.LAGGING, _HE.NEXT_DUE): (_H.LAGGING, ()),
    (_H.LAGGING, _HE.ROOM_AGAIN): (_H.JOINING, (_HF.COUNT_MISSED, _HF.START)),
    (_H.LAGGING, _HE.LEFT): (_H.APART, ()),
}


def sharing_step(sharing: Sharing, event: SharingEvent) -> SharingStep:
    """What becomes of a peer's part in what goes to all, and what to do about it.

    >>> sharing_step(Sharing.APART, SharingEvent.ENTERED)[0].name
    'JOINING'
    """
    found = SHARING_TRANSITIONS.get((sharing, event))
    if found is None:
        raise _impossible(event, sharing)
    return found


def _impossible(event: Enum, state: Enum) -> LocalError:
    return LocalError(
        f"{event.name} cannot happen to a peer in the state {state.name}",
        rule="LA-2",
        hint="the tables of waystation.core.membership say what can",
    )


class Peer(Struct, eq=False):
    """What is known of one peer, what goes to it, and what comes from it."""

    uuid: Uuid
    state: State = State.UNKNOWN
    sharing: Sharing = Sharing.APART
    mapping: AddressMapping | None = None
    """Who and where it is, as the group was told."""
    member: Member | None = None
    """The same, as users get it."""
    outgoing: Outgoing | None = None
    arrivals: Arrivals | None = None
    verdict: Verdict | None = None
    """On messages to it; only while it is a member."""
    heard_at: float = -inf
    asked_at: float = -inf
    """When others were last asked where it is."""
    filled_at: float = -inf
    filled_all_at: float = -inf
    """When a gap was last filled, in what goes to it alone and in what goes to all."""
    lagging_from: int = 0
    """The first number that it misses while it is lagging."""
    undelivered_since: float | None = None
    """Since when messages are on their way to it although it is no member."""

    @property
    def undelivered(self) -> int:
        """How many messages are on their way to it."""
        return 0 if self.outgoing is None else len(self.outgoing)

    @property
    def physical(self) -> tuple[Physical, ...]:
        """Where it is reached, as the group was told."""
        return () if self.mapping is None else self.mapping.physical

    def found_at(self, mapping: AddressMapping) -> None:
        """The group is told that it is there."""
        self.mapping = mapping
        self.member = Member.of(mapping)

    def has_moved(self, mapping: AddressMapping) -> bool:
        """Whether its addresses or its name are others than the group was told."""
        told = self.mapping
        return told is None or (told.physical, told.member.name) != (
            mapping.physical,
            mapping.member.name,
        )


class Membership:
    r"""The peers of one member.

    >>> membership = Membership(capacity=10)
    >>> peer = membership.peer(bytes(15) + b"\1")
    >>> effects = membership.happens(peer, Event.SPOKE)
    >>> list(membership.members.values()) == [peer], effects[-1].name
    (True, 'SEND_AGAIN')
    """

    def __init__(self, *, capacity: int) -> None:
        self.peers: dict[Uuid, Peer] = {}
        self.members: dict[Uuid, Peer] = {}  # those that are members, in the order of their joining
        self.silent_places: set[Physical] = set()  # nobody answers there
        self._capacity = capacity

    def peer(self, uuid: Uuid) -> Peer:
        """The record of a peer, made if there is none.

        Of peers that are no members, and to whom nothing is on its way, no more than `capacity` are
        kept: anybody can make up senders.
        """
        found = self.peers.get(uuid)
        if found is None:
            if len(self.peers) - len(self.members) >= self._capacity:
                self._forget_idle()
            found = self.peers[uuid] = Peer(uuid)
        return found

    def happens(self, peer: Peer, event: Event) -> tuple[Effect, ...]:
        """Change the state of a peer; returns what to do about it."""
        before = peer.state
        peer.state, effects = step(before, event)
        if peer.state is before:
            return effects
        was_member = before in MEMBERS
        is_member = peer.state in MEMBERS
        if is_member and not was_member:
            self.members[peer.uuid] = peer
            peer.undelivered_since = None
        elif was_member and not is_member:
            del self.members[peer.uuid]
        if peer.state is State.GONE:
            del self.peers[peer.uuid]
        return effects

    def replaced_by(self, mapping: AddressMapping) -> list[Peer]:
        """The members whose addresses are all those of another one: it has taken their place."""
        places = set(mapping.physical)
        return [
            peer
            for peer in self.members.values()
            if peer.uuid != mapping.uuid and peer.physical and places.issuperset(peer.physical)
        ]

    def at(self, place: Physical) -> list[Peer]:
        """The members that are reached at a place."""
        return [peer for peer in self.members.values() if place in peer.physical]

    def place_failed(self, place: Physical) -> None:
        """Nobody answers at a place."""
        if len(self.silent_places) >= self._capacity:
            self.silent_places.clear()
        self.silent_places.add(place)

    def place_answered(self, place: Physical) -> None:
        """Somebody answers there."""
        self.silent_places.discard(place)

    def is_unreachable(self, peer: Peer) -> bool:
        """Whether nobody answers at any place of a peer."""
        return self.silent_places.issuperset(peer.physical)

    def silent_since(self, latest: float) -> list[Peer]:
        """The members that were last heard before this time."""
        return [peer for peer in self.members.values() if peer.heard_at < latest]

    def overdue(self, now: float, grace: float) -> list[tuple[Peer, Event]]:
        """The peers that are no members, and whose time is over."""
        if len(self.peers) == len(self.members):
            return []
        others = [peer for peer in self.peers.values() if peer.state not in MEMBERS]
        return [(peer, event) for peer in others if (event := _time_is_over(peer, now, grace))]

    def unanswered(self) -> list[Peer]:
        """The members that have not said anything themselves."""
        return [peer for peer in self.members.values() if peer.state is State.LISTED]

    def cover(self, hosts: Iterable[Physical], own: Iterable[Physical]) -> bool:
        """Whether at each of these places is a member, or nobody answers there."""
        places = {place for peer in self.members.values() for place in peer.physical}
        return places.union(own, self.silent_places).issuperset(hosts)

    def _forget_idle(self) -> None:
        for peer in list(self.peers.values()):
            if peer.state is State.UNKNOWN and not peer.undelivered:
                self.happens(peer, Event.AGED_OUT)


def _time_is_over(peer: Peer, now: float, grace: float) -> Event | None:
    if not peer.undelivered:
        peer.undelivered_since = None
        return Event.AGED_OUT if peer.state is State.UNKNOWN else None
    if peer.undelivered_since is None:
        peer.undelivered_since = now
    return Event.GRACE_OVER if now - peer.undelivered_since >= grace else None
