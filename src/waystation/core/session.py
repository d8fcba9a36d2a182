"""The life of a session: one table, states x events -> the next state and what to do (WK-8).

A session is a peer under a local name, over one link at a time. Its life cycle is `TRANSITIONS` and
nothing else; `docs/explanation/sessions.md` shows the table, drawn by a script.

What may be here, and what may not:

Rule 1. The table knows no link, no clock and no message. An event is something that has happened
        already; an effect names something that `waystation.node.session` then does, in the
        order given. Timers are started and stopped by effects, and come back as events.

Rule 2. Events do not carry conditions. Where the next state depends on something else, there are
        two events, and the caller picks one (LINK_MADE or LINK_UNWANTED), or a
        second event follows the first (a session that is not kept is GIVEN_UP after LINK_LOST).

Rule 3. Every pair of state and event is either in the table or cannot happen, and raises:
        - a session has one link at a time: no LINK_MADE or LINK_UNWANTED while it has one, and no
          LINK_LOST while it has none;
        - a link tells ANSWERED once: none in ANSWERED or OPEN;
        - the wait for address types ends with the state ANSWERED: no TYPES_TIMEOUT elsewhere.

Rule 4. What a peer sent may be processed late, when its link is ending or gone (it waited
        for room here). So ANSWERED, ADMITTED and FAILED are also in the table where they have no
        effect.

Rule 5. CLOSE_LINK and ABORT_LINK come last: a link may end at once, and LINK_LOST then happens
        before they return.

Whether a link accepts messages at the moment, and whether there is room here for the peer's, are
not states of this table. Either can change in any state that has a link, also before the session
opens, and the second outlives the link: together they would make four of each state. So each
direction is a `Flow` of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, TypeAlias

from waystation.errors import LocalError


class State(Enum):
    """The states of a session."""

    DISCONNECTED = "no link; one is being opened, or will be"
    GREETING = "there is a link, our hello is sent, and nothing was received"
    ANSWERED = "the peer uses our format; its proof or its address types are awaited"
    OPEN = "messages are exchanged"
    REFUSING = "the link is aborted before it opened"
    BREAKING = "the link is aborted after it opened"
    WITHDRAWING = "the session ends, with a link that never opened"
    CLOSING = "the session ends, with a link that was open"
    ENDED = "the session is over"


class Event(Enum):
    """What can happen to a session."""

    LINK_MADE = "a link to the peer can be used"
    LINK_UNWANTED = "a link was opened, but there are too many sessions"
    NO_LINK = "no link could be opened"
    ANSWERED = "the peer uses the link's format"
    ADMITTED = "the peer has proven what is required, and its address types are known or not needed"
    TYPES_TIMEOUT = "the peer has not sent its address types in time"
    FAILED = "this side cannot continue with the link"
    LINK_LOST = "the link is gone"
    CLOSE_ASKED = "the session is closed here"
    GIVEN_UP = "the node no longer keeps the session"


class Effect(Enum):
    """What to do about an event."""

    GREET = "send our hello, start the heartbeats and the timeout for the proof"
    CHECK_ADMISSION = "admit the peer, or wait for its proof or its address types"
    TELL_OPENED = "add the session's name to the routing table, report that it is open"
    STOP_ADMISSION_TIMER = "no longer wait for the proof or the address types"
    SEND_WAITING = "pass the waiting messages to the link"
    STOP_TIMERS = "stop the heartbeats and all timeouts"
    RELEASE_LINK = "drop the link, and what it had not written: TRANSPORT_DOWN"
    TELL_CLOSED = "report that an open session lost its link, and why"
    TELL_REFUSED = "report that a link was lost before it opened, and why"
    TELL_NO_LINK = "report that no link could be opened, and why"
    FORGET = "remove the session's name, reject what waits for it, open no more links"
    WAKE = "wake those who wait for the session to open or to end"
    CLOSE_LINK = "let the link write what it was given, and end"
    ABORT_LINK = "end the link at once"


Step: TypeAlias = tuple[State, tuple[Effect, ...]]

_S, _E, _F = State, Event, Effect

LINKED: Final = frozenset(State) - {_S.DISCONNECTED, _S.ENDED}
"""The states in which there is a link."""

ENDING: Final = frozenset({_S.WITHDRAWING, _S.CLOSING, _S.ENDED})
"""The states from which a session never opens again."""

_ABORT: Final = (_F.STOP_TIMERS, _F.ABORT_LINK)
_CLOSE: Final = (_F.STOP_TIMERS, _F.WAKE, _F.CLOSE_LINK)
_ABANDON: Final = (_F.STOP_TIMERS, _F.FORGET, _F.WAKE, _F.ABORT_LINK)
_OPEN: Final = (_F.STOP_ADMISSION_TIMER, _F.TELL_OPENED, _F.WAKE, _F.SEND_WAITING)
_LOSE: Final = (_F.STOP_TIMERS, _F.RELEASE_LINK)


def _nothing(event: Event, *states: State) -> dict[tuple[State, Event], Step]:
    """The rows of an event that changes nothing in these states."""
    return {(state, event): (state, ()) for state in State if state in states}


TRANSITIONS: Final[Mapping[tuple[State, Event], Step]] = {
    (_S.DISCONNECTED, _E.LINK_MADE): (_S.GREETING, (_F.GREET,)),
    (_S.DISCONNECTED, _E.LINK_UNWANTED): (_S.REFUSING, (_F.ABORT_LINK,)),
    (_S.DISCONNECTED, _E.NO_LINK): (_S.DISCONNECTED, (_F.TELL_NO_LINK, _F.WAKE)),
    (_S.DISCONNECTED, _E.CLOSE_ASKED): (_S.ENDED, (_F.FORGET, _F.WAKE)),
    (_S.DISCONNECTED, _E.GIVEN_UP): (_S.ENDED, (_F.FORGET, _F.WAKE)),
    (_S.GREETING, _E.ANSWERED): (_S.ANSWERED, (_F.CHECK_ADMISSION,)),
    (_S.GREETING, _E.FAILED): (_S.REFUSING, _ABORT),
    (_S.GREETING, _E.LINK_LOST): (_S.DISCONNECTED, (*_LOSE, _F.TELL_REFUSED, _F.WAKE)),
    (_S.GREETING, _E.CLOSE_ASKED): (_S.WITHDRAWING, _CLOSE),
    (_S.GREETING, _E.GIVEN_UP): (_S.WITHDRAWING, _ABANDON),
    (_S.ANSWERED, _E.ADMITTED): (_S.OPEN, _OPEN),
    (_S.ANSWERED, _E.TYPES_TIMEOUT): (_S.OPEN, _OPEN),
    (_S.ANSWERED, _E.FAILED): (_S.REFUSING, _ABORT),
    (_S.ANSWERED, _E.LINK_LOST): (_S.DISCONNECTED, (*_LOSE, _F.TELL_REFUSED, _F.WAKE)),
    (_S.ANSWERED, _E.CLOSE_ASKED): (_S.WITHDRAWING, _CLOSE),
    (_S.ANSWERED, _E.GIVEN_UP): (_S.WITHDRAWING, _ABANDON),
    (_S.OPEN, _E.FAILED): (_S.BREAKING, _ABORT),
    (_S.OPEN, _E.LINK_LOST): (_S.DISCONNECTED, (*_LOSE, _F.TELL_CLOSED, _F.WAKE)),
    (_S.OPEN, _E.CLOSE_ASKED): (_S.CLOSING, _CLOSE),
    (_S.OPEN, _E.GIVEN_UP): (_S.CLOSING, _ABANDON),
    (_S.REFUSING, _E.LINK_LOST): (_S.DISCONNECTED, (*_LOSE, _F.TELL_REFUSED, _F.WAKE)),
    (_S.REFUSING, _E.CLOSE_ASKED): (_S.WITHDRAWING, (_F.WAKE,)),
    (_S.REFUSING, _E.GIVEN_UP): (_S.WITHDRAWING, (_F.FORGET, _F.WAKE)),
    (_S.BREAKING, _E.LINK_LOST): (_S.DISCONNECTED, (*_LOSE, _F.TELL_CLOSED, _F.WAKE)),
    (_S.BREAKING, _E.CLOSE_ASKED): (_S.CLOSING, (_F.WAKE,)),
    (_S.BREAKING, _E.GIVEN_UP): (_S.CLOSING, (_F.FORGET, _F.WAKE)),
    (_S.WITHDRAWING, _E.FAILED): (_S.WITHDRAWING, (_F.ABORT_LINK,)),
    (_S.WITHDRAWING, _E.LINK_LOST): (_S.ENDED, (*_LOSE, _F.TELL_REFUSED, _F.FORGET, _F.WAKE)),
    (_S.WITHDRAWING, _E.GIVEN_UP): (_S.WITHDRAWING, (_F.FORGET, _F.WAKE)),
    (_S.CLOSING, _E.FAILED): (_S.CLOSING, (_F.ABORT_LINK,)),
    (_S.CLOSING, _E.LINK_LOST): (_S.ENDED, (*_LOSE, _F.TELL_CLOSED, _F.FORGET, _F.WAKE)),
    (_S.CLOSING, _E.GIVEN_UP): (_S.CLOSING, (_F.FORGET, _F.WAKE)),
    # The attempt to connect was under way when the session ended, and succeeded.
    (_S.ENDED, _E.LINK_MADE): (_S.WITHDRAWING, (_F.ABORT_LINK,)),
    (_S.ENDED, _E.LINK_UNWANTED): (_S.WITHDRAWING, (_F.ABORT_LINK,)),
    # It failed; or its time was over when it had just made a link, whose loss is told by itself.
    **_nothing(_E.NO_LINK, _S.ENDED, *LINKED),
    # Rule 4: from a link that is being ended, or is gone.
    **_nothing(_E.ANSWERED, _S.DISCONNECTED, _S.REFUSING, _S.BREAKING, *ENDING),
    **_nothing(_E.ADMITTED, *(frozenset(State) - {_S.ANSWERED})),
    **_nothing(_E.FAILED, _S.DISCONNECTED, _S.REFUSING, _S.BREAKING, _S.ENDED),
    # It is asked for already.
    **_nothing(_E.CLOSE_ASKED, *ENDING),
    **_nothing(_E.GIVEN_UP, _S.ENDED),
}


def step(state: State, event: Event) -> Step:
    """The next state of a session, and what to do about the event.

    >>> step(State.ANSWERED, Event.ADMITTED)[0].name
    'OPEN'
    >>> step(State.OPEN, Event.LINK_MADE)
    Traceback (most recent call last):
    waystation.errors.LocalError: LINK_MADE cannot happen to a session in the state OPEN; ...
    """
    found = TRANSITIONS.get((state, event))
    if found is None:
        raise LocalError(
            f"{event.name} cannot happen to a session in the state {state.name}",
            rule="WK-8",
            hint="a link tells its owner `opened` once, `answered` once and `closed` once",
        )
    return found


class Flow(Enum):
    """Whether messages flow in one direction of a session.

    Out: the link requests a pause while the peer, or the network, is slower. In: the session
    stalls while a receiver here has no room.
    """

    FREE = "messages are passed on as they come"
    HELD = "messages wait, in order"
