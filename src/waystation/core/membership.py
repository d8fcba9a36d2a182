"""What a member of a group knows of the others: one record per peer, with its state (LA).

A peer is another member, or a sender that may be one. `TRANSITIONS` has its life cycle, and
`SHARING_TRANSITIONS` whether it gets messages to all members; docs/explanation/groups.md shows
both, generated from these tables.

What may be here, and what may not:

Rule 1. Nothing here knows a socket, a clock or a message. Times are seconds of a monotonic
        clock, given by the caller. An event is something that has already happened; an effect
        names something that `waystation.groups.streams` then does, in the order given.

Rule 2. Events do not carry conditions. Where the next state depends on something else, there are
        two events, and whoever knows the condition chooses one (NAMED or SPOKE).

Rule 3. Every pair of state and event is either in a table or cannot happen, and raises:
        - messages of a member are accepted and never STRANGE, and messages to it are not given
          up or forgotten while it is a member: no GRACE_OVER or AGED_OUT then;
        - only a member has announced addresses: nobody else has MOVED;
        - nothing happens to a peer that is GONE: its record has been deleted.

A peer that is SUSPECTED keeps its record: it may come back, and what it sent before must not be
accepted twice. identity.py and discovery.py deal with addresses.
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
    r"""A member of a group: its identity, and its current addresses.

    Two values are equal when they are the same member, wherever it is (LA-1).

    >>> truck = Member(LogicalAddress(bytes(15) + b"\7", "truck-7"), ("10.0.0.7:7800",))
    >>> print(truck, truck.uuid_text, truck == Member(truck.address))
    truck-7 00000000-0000-0000-0000-000000000007 True
    """

    address: LogicalAddress
    physical: tuple[Physical, ...] = ()

    @classmethod
    def of(cls, mapping: AddressMapping) -> Member:
        """The member of a mapping."""
        return cls(mapping.member, mapping.physical)

    @property
    def name(self) -> str:
        """Its name for people; it need not be unique."""
        return self.address.name

    @property
    def uuid(self) -> Uuid:
        """Its UUID, new for each connect (LA-2)."""
        return self.address.uuid

    @property
    def uuid_text(self) -> str:
        """The UUID as text, as in the journal."""
        return uuid_text(self.address.uuid)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Member) and self.address == other.address

    def __ne__(self, other: object) -> bool:  # that of Struct compares all fields
        return not self == other

    def __hash__(self) -> int:
        return hash(self.address)

    def __str__(self) -> str:
        return self.address.name


class Word(Enum):
    """Base of the enums; hashed by identity, since the hash of an enum costs a call each time."""

    __hash__ = object.__hash__


class State(Word):
    """The states of a peer."""

    UNKNOWN = "not a member; it sent messages, or messages wait for it"
    LISTED = "a member according to others; it has not confirmed this itself"
    PRESENT = "a member that has announced itself"
    SUSPECTED = "a former member that nobody sees any more; it may come back"
    GONE = "its record is deleted"


class Event(Word):
    """What can happen to a peer."""

    STRANGE_MESSAGE = "a message came from it, and its address is unknown"
    NAMED = "a router or a member named it, or a message came from it and its address is known"
    SPOKE = "it announced its name and addresses itself"
    MOVED = "its name or its addresses have changed"
    LOST = "nobody sees it any more, or another member has its addresses"
    SAID_GOODBYE = "it has closed"
    GRACE_OVER = "messages have waited for it too long"
    AGED_OUT = "it left long ago, or was never known"


class Effect(Word):
    """What to do about an event."""

    ASK_WHERE = "ask the others where it is"
    ADMIT = "suspect members that had its addresses, send it messages to all, report that it joined"
    TELL_MOVED = "report its new addresses or name"
    SUSPECT = "let its address age, no longer wait for it, report that it is suspected"
    DISMISS = "no longer wait for it, report that it has closed"
    SEND_AGAIN = "send again what it has not acknowledged"
    DROP_LOST = "drop the messages to it: TRANSPORT_DOWN"
    DROP_UNROUTABLE = "drop the messages to it: NO_ROUTE"


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
    """The next state of a peer, and what to do about the event.

    >>> step(State.LISTED, Event.SPOKE)
    (<State.PRESENT: 'a member that has announced itself'>, ())
    >>> step(State.PRESENT, Event.GRACE_OVER)
    Traceback (most recent call last):
    waystation.errors.LocalError: GRACE_OVER cannot happen to a peer in the state PRESENT; ...
    """
    found = TRANSITIONS.get((state, event))
    if found is None:
        raise _impossible(event, state)
    return found


class Sharing(Word):
    """Whether a peer gets messages to all members, which go in one packet."""

    APART = "it does not get them"
    JOINING = "it gets them from now on, and has not been told the first number"
    FOLLOWING = "it gets all of them"
    LAGGING = "it could not keep up, and gets none until it has room again"


class SharingEvent(Word):
    """What can happen to a peer's share in messages to all."""

    ENTERED = "the peer has become a member"
    NEXT_DUE = "a message is about to go to all"
    TOO_SLOW = "it is the last one that others wait for, and their time is over"
    ROOM_AGAIN = "it reports that it has room"
    LEFT = "the peer is no longer a member"


class SharingEffect(Word):
    """What to do about such an event."""

    START = "wait for its acknowledgements from the next message on"
    TELL_START = "tell it the first number"
    COUNT_LOST = "count the messages that it loses"
    STOP = "no longer wait for its acknowledgements"
    COUNT_MISSED = "count the messages sent while it was lagging"


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
    """The next sharing state of a peer, and what to do about the event.

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
    """What is known about one peer, what is sent to it, and what comes from it."""

    uuid: Uuid
    state: State = State.UNKNOWN
    sharing: Sharing = Sharing.APART
    mapping: AddressMapping | None = None
    """Its identity and addresses, as reported to the group."""
    member: Member | None = None
    """The mapping in the form that users get."""
    outgoing: Outgoing | None = None
    arrivals: Arrivals | None = None
    verdict: Verdict | None = None
    """For messages to it; only while it is a member."""
    heard_at: float = -inf
    asked_at: float = -inf
    """When others were last asked for its address."""
    filled_at: float = -inf
    filled_all_at: float = -inf
    """When a gap was last filled: in messages to it alone, and in messages to all."""
    lagging_from: int = 0
    """The first number that it misses while it is lagging."""
    undelivered_since: float | None = None
    """Since when messages wait for it although it is not a member."""

    @property
    def undelivered(self) -> int:
        """The number of unacknowledged messages to it."""
        return 0 if self.outgoing is None else len(self.outgoing)

    @property
    def physical(self) -> tuple[Physical, ...]:
        """Its addresses, as reported to the group."""
        return () if self.mapping is None else self.mapping.physical

    def found_at(self, mapping: AddressMapping) -> None:
        """Set its addresses, as reported to the group."""
        self.mapping = mapping
        self.member = Member.of(mapping)

    def has_moved(self, mapping: AddressMapping) -> bool:
        """Whether its addresses or its name differ from those reported to the group."""
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
        self.members: dict[Uuid, Peer] = {}  # the members, in the order in which they joined
        self.silent_places: set[Physical] = set()  # places where nobody answers
        self._capacity = capacity

    def peer(self, uuid: Uuid) -> Peer:
        """The record of a peer, created if there is none.

        At most `capacity` records are kept of peers that are not members, and for which no messages
        wait: anybody can invent senders.
        """
        found = self.peers.get(uuid)
        if found is None:
            if len(self.peers) - len(self.members) >= self._capacity:
                self._forget_idle()
            found = self.peers[uuid] = Peer(uuid)
        return found

    def happens(self, peer: Peer, event: Event) -> tuple[Effect, ...]:
        """Apply an event to a peer; returns what to do about it."""
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
        """The members whose addresses another one has taken over completely."""
        places = set(mapping.physical)
        return [
            peer
            for peer in self.members.values()
            if peer.uuid != mapping.uuid and peer.physical and places.issuperset(peer.physical)
        ]

    def at(self, place: Physical) -> list[Peer]:
        """The members with this physical address."""
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
        """The peers that are not members, and whose time is over."""
        if len(self.peers) == len(self.members):
            return []
        others = [peer for peer in self.peers.values() if peer.state not in MEMBERS]
        return [(peer, event) for peer in others if (event := _time_is_over(peer, now, grace))]

    def unanswered(self) -> list[Peer]:
        """The members that have not announced themselves."""
        return [peer for peer in self.members.values() if peer.state is State.LISTED]

    def cover(self, hosts: Iterable[Physical], own: Iterable[Physical]) -> bool:
        """Whether each of these places belongs to a member, or nobody answers there."""
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
