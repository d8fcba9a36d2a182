"""The life of a peer as a table: every pair of state and event, and any sequence of events."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.core.lifecycles import Lifecycle, check_descriptions, name_of
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

LIFE = Lifecycle(TRANSITIONS, step, IMPOSSIBLE, "LA-2")
SHARING_LIFE = Lifecycle(SHARING_TRANSITIONS, sharing_step, SHARING_IMPOSSIBLE, "LA-2")


def uuid_of(number: int) -> bytes:
    return bytes(14) + number.to_bytes(2, "big")


def mapping(number: int, *places: str, name: str = "truck") -> Mapping:
    return Mapping(LogicalAddress(uuid_of(number), name), places)


# --- The product of states and events -------------------------------------------------------------


@pytest.mark.parametrize(("state", "event"), list(product(State, Event)), ids=name_of)
def test_every_pair_is_in_the_table_or_cannot_happen(state: State, event: Event) -> None:
    LIFE.check_pair(state, event)


@pytest.mark.parametrize(("state", "event"), TRANSITIONS, ids=name_of)
def test_each_change_of_the_membership_is_reported_once(state: State, event: Event) -> None:
    after, effects = TRANSITIONS[state, event]
    joins, leaves = after in MEMBERS and state in OTHERS, state in MEMBERS and after not in MEMBERS
    assert (F.ADMIT in effects) == joins
    told = [effect for effect in effects if effect in {F.SUSPECT, F.DISMISS}]
    assert told == ([F.DISMISS if after is S.GONE else F.SUSPECT] if leaves else [])
    assert (F.TELL_MOVED in effects) == (event is E.MOVED)


@pytest.mark.parametrize(("state", "event"), TRANSITIONS, ids=name_of)
def test_a_peer_that_is_gone_leaves_no_messages(state: State, event: Event) -> None:
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
    SHARING_LIFE.check_pair(sharing, event)


@pytest.mark.parametrize(("sharing", "event"), SHARING_TRANSITIONS, ids=name_of)
def test_acknowledgements_are_awaited_while_a_peer_gets_messages_to_all(
    sharing: Sharing, event: SharingEvent
) -> None:
    after, effects = SHARING_TRANSITIONS[sharing, event]
    waited_for = {H.JOINING, H.FOLLOWING}
    assert (HF.START in effects) == (after in waited_for and sharing not in waited_for)
    assert (HF.STOP in effects) == (after not in waited_for and sharing in waited_for)
    assert (HF.TELL_START in effects) == ((sharing, after) == (H.JOINING, H.FOLLOWING))
    assert (HF.COUNT_LOST in effects) == (event is HE.TOO_SLOW)
    assert (HF.COUNT_MISSED in effects) == ((sharing, after) == (H.LAGGING, H.JOINING))


def test_every_state_is_reached_and_every_effect_is_used() -> None:
    LIFE.check_all_used(S.UNKNOWN, Effect)
    SHARING_LIFE.check_all_used(H.APART, SharingEffect)


def test_every_word_of_the_tables_has_a_description_of_its_own() -> None:
    check_descriptions(State, Event, Effect, Sharing, SharingEvent, SharingEffect)


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
    def the_members_are_those_reported_in_the_same_order(self) -> None:
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
def test_acknowledgements_of_a_peer_are_awaited_from_start_to_stop(
    events: list[SharingEvent],
) -> None:
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
    assert membership.silent_places == {"h:2"}  # their number is limited


def test_all_places_are_covered_by_members_or_silence() -> None:
    membership = Membership(capacity=10)
    joined(membership, 1, "h:1")
    assert not membership.cover(["h:1", "h:2", "h:3"], ["h:2"])
    membership.place_failed("h:3")
    assert membership.cover(["h:1", "h:2", "h:3"], ["h:2"])


def test_silent_members_and_members_that_have_not_replied() -> None:
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


def test_messages_to_a_lost_member_wait_for_the_grace_period() -> None:
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


def test_invented_senders_are_forgotten() -> None:
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
