"""The life of a session as a table: every pair of state and event, and any sequence of events."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.lifecycles import Lifecycle, check_descriptions, name_of
from waystation.core.session import (
    ENDING,
    LINKED,
    TRANSITIONS,
    Effect,
    Event,
    Flow,
    State,
    step,
)
from waystation.errors import LocalError

S, E, F = State, Event, Effect

PAIRS = list(product(State, Event))
IMPOSSIBLE = {
    *product(LINKED, (E.LINK_MADE, E.LINK_UNWANTED)),  # one link at a time
    *product(frozenset(State) - LINKED, [E.LINK_LOST]),
    *product((S.ANSWERED, S.OPEN), [E.ANSWERED]),  # told once
    *product(frozenset(State) - {S.ANSWERED}, [E.TYPES_TIMEOUT]),  # its timer is stopped
}

LIFE = Lifecycle(TRANSITIONS, step, IMPOSSIBLE, "WK-8")


# --- The product of states and events -------------------------------------------------------------


@pytest.mark.rule("WK-8")
@pytest.mark.parametrize(("state", "event"), PAIRS, ids=name_of)
def test_every_pair_is_in_the_table_or_cannot_happen(state: State, event: Event) -> None:
    LIFE.check_pair(state, event)


@pytest.mark.parametrize(("state", "event"), TRANSITIONS, ids=name_of)
def test_there_is_a_link_from_link_made_to_link_lost(state: State, event: Event) -> None:
    after, effects = TRANSITIONS[state, event]
    gains, loses = event in {E.LINK_MADE, E.LINK_UNWANTED}, event is E.LINK_LOST
    assert (after in LINKED) == (gains or (state in LINKED and not loses))
    assert (F.RELEASE_LINK in effects) == loses
    if {F.CLOSE_LINK, F.ABORT_LINK} & set(effects):
        assert after in LINKED
        assert effects[-1] in {F.CLOSE_LINK, F.ABORT_LINK}  # a link may be lost at once


@pytest.mark.parametrize(("state", "event"), TRANSITIONS, ids=name_of)
def test_a_session_that_ends_never_opens_again(state: State, event: Event) -> None:
    after, effects = TRANSITIONS[state, event]
    if state in ENDING:
        assert after in ENDING
        assert F.TELL_OPENED not in effects
        assert F.GREET not in effects


@pytest.mark.parametrize("event", [e for e in Event if (S.ENDED, e) in TRANSITIONS], ids=name_of)
def test_after_the_end_only_a_late_link_is_ended(event: Event) -> None:
    after, effects = step(S.ENDED, event)
    if event in {E.LINK_MADE, E.LINK_UNWANTED}:
        assert (after, effects) == (S.WITHDRAWING, (F.ABORT_LINK,))
    else:
        assert (after, effects) == (S.ENDED, ())


@pytest.mark.parametrize(("state", "event"), TRANSITIONS, ids=name_of)
def test_a_session_opens_from_answered_and_only_then_sends_messages(
    state: State, event: Event
) -> None:
    after, effects = TRANSITIONS[state, event]
    opens = after is S.OPEN and state is not S.OPEN
    assert opens == (F.TELL_OPENED in effects) == (F.SEND_WAITING in effects)
    if opens:
        assert state is S.ANSWERED


@pytest.mark.parametrize("state", State, ids=name_of)
@pytest.mark.parametrize("event", [E.CLOSE_ASKED, E.GIVEN_UP], ids=name_of)
def test_a_session_can_be_ended_in_every_state(state: State, event: Event) -> None:
    after, effects = step(state, event)
    assert after in ENDING
    if after is not state:
        assert F.WAKE in effects


@pytest.mark.parametrize("state", State, ids=name_of)
def test_a_session_that_is_given_up_is_forgotten_at_once(state: State) -> None:
    effects = step(state, E.GIVEN_UP)[1]
    assert (F.FORGET in effects) == (state is not S.ENDED)


@pytest.mark.parametrize(("state", "event"), TRANSITIONS, ids=name_of)
def test_each_lost_link_is_reported_as_closed_or_refused(state: State, event: Event) -> None:
    effects = TRANSITIONS[state, event][1]
    told = [f for f in effects if f in {F.TELL_CLOSED, F.TELL_REFUSED}]
    was_open = state in {S.OPEN, S.BREAKING, S.CLOSING}
    expected = [F.TELL_CLOSED if was_open else F.TELL_REFUSED] if event is E.LINK_LOST else []
    assert told == expected


def test_every_state_is_reached_and_every_effect_is_used() -> None:
    LIFE.check_all_used(S.DISCONNECTED, Effect)


def test_every_word_of_the_table_has_a_description_of_its_own() -> None:
    check_descriptions(State, Event, Effect, Flow)


# --- Any sequence of events -----------------------------------------------------------------------


class Observed:
    """What somebody who carries out the effects can see of one session."""

    def __init__(self) -> None:
        self.state = S.DISCONNECTED
        self.done: Counter[Effect] = Counter()
        self.links = 0
        self.opened = 0  # over the link that is there
        self.timers = False

    def happens(self, event: Event) -> None:
        before = self.state
        self.state, effects = step(before, event)
        if event in {E.LINK_MADE, E.LINK_UNWANTED}:
            self.links += 1
            self.opened = 0
        for effect in effects:
            self.carry_out(effect, before)
        assert self.links == self.done[F.RELEASE_LINK] + (self.state in LINKED)
        if self.state in {S.REFUSING, S.BREAKING, *ENDING, S.DISCONNECTED}:
            assert not self.timers

    def carry_out(self, effect: Effect, before: State) -> None:
        self.done[effect] += 1
        if effect is F.GREET:
            self.timers = True
        elif effect is F.STOP_TIMERS:
            self.timers = False
        elif effect is F.TELL_OPENED:
            self.opened += 1
            assert self.opened == 1
            assert self.state is S.OPEN
        elif effect is F.TELL_CLOSED:
            assert self.opened == 1
        elif effect is F.TELL_REFUSED:
            assert self.opened == 0
        elif effect is F.SEND_WAITING:
            assert self.state is S.OPEN
        elif effect in {F.CLOSE_LINK, F.ABORT_LINK}:
            assert before not in {S.REFUSING, S.BREAKING}  # its link is aborted already


@pytest.mark.rule("WK-8")
@given(st.lists(st.sampled_from(Event), max_size=60))
def test_any_sequence_of_events_keeps_the_rules(events: list[Event]) -> None:
    session = Observed()
    for event in events:
        if (session.state, event) in IMPOSSIBLE:
            with pytest.raises(LocalError):
                step(session.state, event)
        else:
            session.happens(event)
    # Whatever happened, it can be ended, and the loss of each link was reported once.
    session.happens(E.GIVEN_UP)
    if session.state in LINKED:
        session.happens(E.LINK_LOST)
    assert session.state is S.ENDED
    assert session.links == session.done[F.TELL_CLOSED] + session.done[F.TELL_REFUSED]
    assert session.done[F.TELL_OPENED] == session.done[F.TELL_CLOSED]
    assert session.done[F.FORGET] > 0


@given(st.lists(st.sampled_from(Event), max_size=60))
def test_a_session_that_is_asked_to_close_ends_with_its_link(events: list[Event]) -> None:
    session = Observed()
    for event in [*events, E.CLOSE_ASKED]:
        if (session.state, event) not in IMPOSSIBLE:
            session.happens(event)
    if session.state in LINKED:
        session.happens(E.LINK_LOST)
    assert session.state is S.ENDED
    assert session.done[F.FORGET] > 0
