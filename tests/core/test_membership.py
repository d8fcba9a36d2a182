"""The life of a peer as a table: every pair of state and event, and any sequence of events."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.rule_errors import breaks
from waystation.core.identity import LogicalAddress, Mapping
from waystation.core.membership import (
    MEMBERS,
    SHARING_TRANSITIONS,
    TRANSITIONS,
    Effect,
    Event,
    Member,
    Membership,
    Peer,
    Sharing,
    SharingEffect,
    SharingEvent,
    State,
    sharing_step,
    step,
)
from waystation.core.sequences import Outgoing
from waystation.errors import LocalError

S, E, F = State, Event, Effect
H, HE, HF = Sharing, SharingEvent, SharingEffect

OTHERS = frozenset(State) - MEMBERS - {S.GONE}
IMPOSSIBLE = {
    *product([S.GONE], Event),  # its record is no longer there
    *product(MEMBERS, (E.STRANGE_MESSAGE, E.GRACE_OVER, E.AGED_OUT)),
    *product(OTHERS, [E.MOVED]),  # nobody was told where it is
}
SHARING_IMPOSSIBLE = {
    *product([H.JOINING, H.FOLLOWING, H.LAGGING], [HE.ENTERED]),  # once, until it has left
    *product([H.APART, H.LAGGING], [HE.TOO_SLOW]),  # nobody waits for it
}


def uuid_of(number: int) -> bytes:
    return bytes(14) + number.to_bytes(2, "big")


def mapping(number: int, *places: str, name: str = "truck") -> Mapping:
    return Mapping(LogicalAddress(uuid_of(number), name), places)


def name_of(value: object) -> str:
    named = isinstance(value, State | Event | Sharing | SharingEvent)
    return value.name if named else repr(value)  # type: ignore[attr-defined]


# --- The product of states and events -------------------------------------------------------------


@pytest.mark.parametrize(("state", "event"), list(product(State, Event)), ids=name_of)
def test_every_pair_is_in_the_table_or_cannot_happen(state: State, event: Event) -> None:
    if (state, event) in IMPOSSIBLE:
        with pytest.raises(LocalError, match=event.name, check=breaks("LA-2")):
            step(state, event)
        return
    after, effects = step(state, event)
    assert (after, effects) == TRANSITIONS[state, event]
    assert len(set(effects)) == len(effects)


@pytest.mark.parametrize(("state", "event"), TRANSITIONS, ids=name_of)
def test_each_change_of_the_membership_is_told_once(state: State, event: Event) -> None:
    after, effects = TRANSITIONS[state, event]
    joins, leaves = after in MEMBERS and state in OTHERS, state in MEMBERS and after not in MEMBERS
    assert (F.ADMIT in effects) == joins
    told = [effect for effect in effects if effect in {F.SUSPECT, F.DISMISS}]
    assert told == ([F.DISMISS if after is S.GONE else F.SUSPECT] if leaves else [])
    assert (F.TELL_MOVED in effects) == (event is E.MOVED)


@pytest.mark.parametrize(("state", "event"), TRANSITIONS, ids=name_of)
def test_whoever_goes_for_good_leaves_no_message(state: State, event: Event) -> None:
    after, effects = TRANSITIONS[state, event]
    drops = {F.DROP_LOST, F.DROP_UNROUTABLE} & set(effects)
    if after is S.GONE:
        assert len(drops) == 1
    if drops:
        assert (F.DROP_UNROUTABLE in drops) == (event is E.SAID_GOODBYE)


@pytest.mark.rule("LA-8")
@pytest.mark.parametrize("state", [s for s in State if s is not S.GONE], ids=name_of)
def test_a_goodbye_is_the_end_in_every_state(state: State) -> None:
    assert step(state, E.SAID_GOODBYE)[0] is S.GONE


@pytest.mark.parametrize("state", [S.UNKNOWN, S.SUSPECTED], ids=name_of)
@pytest.mark.parametrize("event", [E.NAMED, E.SPOKE], ids=name_of)
def test_a_joiner_is_admitted_before_it_gets_anything(state: State, event: Event) -> None:
    after = S.PRESENT if event is E.SPOKE else S.LISTED
    assert step(state, event) == (after, (F.ADMIT, F.SEND_AGAIN))


@pytest.mark.parametrize(("sharing", "event"), list(product(Sharing, SharingEvent)), ids=name_of)
def test_every_pair_of_sharing_is_in_the_table_or_cannot_happen(
    sharing: Sharing, event: SharingEvent
) -> None:
    if (sharing, event) in SHARING_IMPOSSIBLE:
        with pytest.raises(LocalError, match=event.name, check=breaks("LA-2")):
            sharing_step(sharing, event)
        return
    after, effects = sharing_step(sharing, event)
    assert (after, effects) == SHARING_TRANSITIONS[sharing, event]
    waited_for = {H.JOINING, H.FOLLOWING}
    assert (HF.START in effects) == (after in waited_for and sharing not in waited_for)
    assert (HF.STOP in effects) == (after not in waited_for and sharing in waited_for)
    assert (HF.TELL_START in effects) == ((sharing, after) == (H.JOINING, H.FOLLOWING))
    assert (HF.COUNT_LOST in effects) == (event is HE.TOO_SLOW)
    assert (HF.COUNT_MISSED in effects) == ((sharing, after) == (H.LAGGING, H.JOINING))


def test_every_state_is_reached_and_every_effect_is_used() -> None:
    for table, states, effects in (
        (TRANSITIONS, State, Effect),
        (SHARING_TRANSITIONS, Sharing, SharingEffect),
    ):
        steps: Iterable[tuple[object, tuple[object, ...]]] = table.values()
        found = list(steps)
        assert {after for after, _ in found} == set(states)
        assert {effect for _, done in found for effect in done} == set(effects)


def test_the_words_of_the_tables_are_explained_once_each() -> None:
    for words in (State, Event, Effect, Sharing, SharingEvent, SharingEffect):
        assert len({member.value for member in words}) == len(words.__members__)


# --- Any sequence of events -----------------------------------------------------------------------


class Peers(RuleBasedStateMachine):
    """A few peers to which anything happens that can."""

    def __init__(self) -> None:
        super().__init__()
        self.membership = Membership(capacity=3)
        self.joined: list[bytes] = []
        self.now = 0.0

    @rule(number=st.integers(0, 5), event=st.sampled_from(Event))
    def happens(self, number: int, event: Event) -> None:
        peer = self.membership.peer(uuid_of(number))
        if (peer.state, event) in IMPOSSIBLE:
            with pytest.raises(LocalError):
                self.membership.happens(peer, event)
            return
        effects = self.membership.happens(peer, event)
        if F.ADMIT in effects:
            self.joined.append(peer.uuid)
        if {F.SUSPECT, F.DISMISS} & set(effects):
            self.joined.remove(peer.uuid)
        if F.DROP_LOST in effects or F.DROP_UNROUTABLE in effects:
            peer.outgoing = None

    @rule(number=st.integers(0, 5))
    def send(self, number: int) -> None:
        peer = self.membership.peer(uuid_of(number))
        if peer.outgoing is None:
            peer.outgoing = Outgoing(10)
        peer.outgoing.push(b"x")

    @precondition(lambda self: self.membership.peers)
    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        peer = data.draw(st.sampled_from(list(self.membership.peers.values())))
        if peer.outgoing is not None:
            peer.outgoing.give_up()

    @rule(seconds=st.floats(0, 6))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for peer, event in self.membership.overdue(self.now, 5.0):
            assert peer.state not in MEMBERS
            assert (event is E.GRACE_OVER) == bool(peer.undelivered)
            self.membership.happens(peer, event)
            peer.outgoing = None

    @invariant()
    def the_members_are_those_that_were_told_of_in_the_same_order(self) -> None:
        membership = self.membership
        assert list(membership.members) == self.joined
        for uuid, peer in membership.peers.items():
            assert uuid == peer.uuid
            assert (peer.state in MEMBERS) == (uuid in membership.members)
            assert peer.state is not S.GONE
            if peer.state in MEMBERS:
                assert peer.undelivered_since is None
        assert set(membership.members) <= set(membership.peers)


TestPeers = Peers.TestCase


@given(st.lists(st.sampled_from(SharingEvent), max_size=40))
def test_what_goes_to_all_waits_for_a_peer_from_start_to_stop(events: list[SharingEvent]) -> None:
    sharing, waits = H.APART, False
    for event in [*events, HE.LEFT]:
        if (sharing, event) in SHARING_IMPOSSIBLE:
            continue
        sharing, effects = sharing_step(sharing, event)
        for effect in effects:
            if effect in {HF.START, HF.STOP}:
                assert waits == (effect is HF.STOP)
                waits = not waits
            elif effect in {HF.TELL_START, HF.COUNT_LOST}:
                assert waits
    assert (sharing, waits) == (H.APART, False)


# --- What the records say -------------------------------------------------------------------------


def joined(membership: Membership, number: int, *places: str, event: Event = E.SPOKE) -> Peer:
    peer = membership.peer(uuid_of(number))
    membership.happens(peer, event)
    peer.found_at(mapping(number, *places))
    return peer


@pytest.mark.rule("LA-2")
def test_a_member_whose_places_are_all_taken_over_is_replaced() -> None:
    membership = Membership(capacity=10)
    one = joined(membership, 1, "h:1")
    joined(membership, 2, "h:1", "h:2")
    joined(membership, 3)
    assert membership.replaced_by(mapping(4, "h:1")) == [one]
    assert membership.replaced_by(mapping(1, "h:1")) == []


def test_places_fail_and_answer() -> None:
    membership = Membership(capacity=2)
    one, two = joined(membership, 1, "h:1"), joined(membership, 2, "h:1", "h:2")
    assert membership.at("h:1") == [one, two]
    membership.place_failed("h:1")
    assert [membership.is_unreachable(peer) for peer in (one, two)] == [True, False]
    membership.place_answered("h:1")
    assert not membership.is_unreachable(one)
    for number in range(3):
        membership.place_failed(f"h:{number}")
    assert membership.silent_places == {"h:2"}  # there are bounds to it


def test_all_places_are_covered_by_members_or_silence() -> None:
    membership = Membership(capacity=10)
    joined(membership, 1, "h:1")
    assert not membership.cover(["h:1", "h:2", "h:3"], ["h:2"])
    membership.place_failed("h:3")
    assert membership.cover(["h:1", "h:2", "h:3"], ["h:2"])


def test_who_was_not_heard_and_who_has_not_answered() -> None:
    membership = Membership(capacity=10)
    one, two = joined(membership, 1), joined(membership, 2, event=E.NAMED)
    one.heard_at, two.heard_at = 5.0, 3.0
    assert membership.silent_since(4.0) == [two]
    assert membership.unanswered() == [two]


def test_a_peer_knows_when_it_has_moved() -> None:
    peer = Peer(uuid_of(1))
    assert peer.physical == ()
    assert peer.has_moved(mapping(1, "h:1"))
    peer.found_at(mapping(1, "h:1"))
    assert peer.member == Member(LogicalAddress(uuid_of(1), "truck"), ("h:1",))
    assert not peer.has_moved(mapping(1, "h:1"))
    assert peer.has_moved(mapping(1, "h:2"))
    assert peer.has_moved(mapping(1, "h:1", name="the red one"))


def test_what_is_on_its_way_to_nobody_waits_for_the_grace_and_no_longer() -> None:
    membership = Membership(capacity=10)
    peer = joined(membership, 1)
    peer.outgoing = Outgoing(10)
    peer.outgoing.push(b"x")
    assert membership.overdue(0.0, 5.0) == []
    membership.happens(peer, E.LOST)
    assert membership.overdue(1.0, 5.0) == []
    assert membership.overdue(6.0, 5.0) == [(peer, E.GRACE_OVER)]
    peer.outgoing.give_up()
    assert membership.overdue(7.0, 5.0) == []
    assert peer.undelivered_since is None


def test_senders_that_somebody_made_up_are_forgotten() -> None:
    membership = Membership(capacity=100)
    lost = joined(membership, 1)
    membership.happens(lost, E.LOST)
    kept = membership.peer(uuid_of(2))
    kept.outgoing = Outgoing(10)
    kept.outgoing.push(b"x")
    for number in range(3, 5_000):
        membership.happens(membership.peer(uuid_of(number)), E.STRANGE_MESSAGE)
        assert len(membership.peers) <= 100
    assert {lost.uuid, kept.uuid} <= set(membership.peers)


@pytest.mark.rule("LA-1")
def test_a_member_is_its_uuid_and_prints_as_its_name() -> None:
    one = Member(LogicalAddress(uuid_of(1), "truck-7"), ("127.0.0.1:1",))
    other = Member(LogicalAddress(uuid_of(1), "the red one"))
    assert one == other
    assert hash(one) == hash(other)
    assert one != Member(LogicalAddress(uuid_of(2), "truck-7"))
    assert str(one) == one.name == "truck-7"
    assert one.uuid == uuid_of(1)
    assert one.uuid_text == "00000000-0000-0000-0000-000000000001"
