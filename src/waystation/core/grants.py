"""Grants: who may announce, subscribe, publish, register and send, by what they have proven (ID-3).

Only the decision lives here; the node asks for it at the session where something enters. Where
there are grants, what none of them gives is refused. Where there are none, nothing is asked.

Names are matched as by access rules: `*` stands for any characters. Broadcasts are matched by
segments, as subscriptions are: `+` for one of them, `*` at the end for any number. A subscription
is granted if all that it can match is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Final

from msgspec import Struct

from waystation.core.access import MAX_CACHED, MAX_CACHED_LENGTH, REPLY_PREFIXES, matches
from waystation.core.address import LOCAL, Address, Route
from waystation.core.address_types import is_session_name
from waystation.core.multicast import ADDRESS_TYPE as MULTICAST
from waystation.core.who import Who
from waystation.errors import LocalError, quote

DIRECTORY: Final = "waystation.directory"
"""The worker that registers providers: who may register may send to it."""


class Action(StrEnum):
    """What can be granted."""

    ANNOUNCE = "announce"  # have a name: messages to it go there
    SUBSCRIBE = "subscribe"
    PUBLISH = "publish"
    REGISTER = "register"  # list a provider, or join a group at a gossip router
    SEND = "send"


BY_SEGMENTS: Final = frozenset({Action.SUBSCRIBE, Action.PUBLISH})
"""What is granted by the segments of a broadcast."""


class Grant(Struct, frozen=True, kw_only=True):
    """Who may do what.

    Who has proven one of these identities, has one of these names in its certificate, or one of
    these tokens of its own; with `anyone`, everybody.
    """

    identity: tuple[str, ...] = ()
    certificate: tuple[str, ...] = ()
    token: tuple[str, ...] = ()
    anyone: bool = False
    announce: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    publish: tuple[str, ...] = ()
    register: tuple[str, ...] = ()
    send: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (self.identity or self.certificate or self.token or self.anyone):
            raise LocalError(
                "a grant for nobody",
                rule="ID-3",
                hint="give identity, certificate, token, or anyone = true",
            )
        if not any(self.patterns(action) for action in Action):
            raise LocalError(
                f"a grant of nothing to {self.holder}",
                rule="ID-3",
                hint=f"give one or more of {', '.join(Action)}",
            )

    def patterns(self, action: Action) -> tuple[str, ...]:
        """What may be done."""
        found: tuple[str, ...] = getattr(self, action.value)
        return found

    def is_for(self, who: Who) -> bool:
        """Whether somebody has it."""
        return (
            self.anyone
            or who.identity in self.identity
            or who.token in self.token
            or any(
                matches(pattern, name) for pattern in self.certificate for name in who.certificate
            )
        )

    def gives(self, action: Action, name: str) -> bool:
        """Whether it lets its holders do something."""
        fits = covers if action in BY_SEGMENTS else matches
        return any(fits(pattern, name) for pattern in self.patterns(action))

    @property
    def holder(self) -> str:
        """Who has it, as text."""
        kinds = [("identity", self.identity), ("certificate", self.certificate)]
        kinds.append(("token", self.token))
        named = [f"{kind} {' or '.join(names)}" for kind, names in kinds if names]
        return " or ".join([*named, *(["anyone"] if self.anyone else [])])

    def __str__(self) -> str:
        given = (
            f"{action} {', '.join(self.patterns(action))}"
            for action in Action
            if self.patterns(action)
        )
        return f"{self.holder} may {'; '.join(given)}"


class Grants:
    """All grants of a node.

    >>> grants = Grants([Grant(token=("truck-*",), announce=("truck-*",), send=("telemetry",))])
    >>> truck = Who(token="truck-*")
    >>> grants.allows(truck, Action.ANNOUNCE, "truck-7"), grants.allows(Who(), Action.SEND, "admin")
    (True, False)
    >>> grants.explain(Who(), Action.ANNOUNCE, "truck-7")
    'an unproven peer may not announce truck-7: that is granted to token truck-* only'
    """

    __slots__ = ("_decided", "_grants", "_max_cached", "_routes")

    def __init__(self, grants: Iterable[Grant], *, cached: int = MAX_CACHED) -> None:
        self._grants = tuple(grants)
        self._max_cached = cached
        self._decided: dict[tuple[Who, Action, str], bool] = {}
        self._routes: dict[tuple[Who, Route], bool] = {}

    def __iter__(self) -> Iterator[Grant]:
        return iter(self._grants)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Grants) and self._grants == other._grants

    def __hash__(self) -> int:
        return hash(self._grants)

    def allows(self, who: Who, action: Action, name: str) -> bool:
        """Whether somebody may do something."""
        question = (who, action, name)
        allowed = self._decided.get(question)
        if allowed is None:
            allowed = any(grant.is_for(who) and grant.gives(action, name) for grant in self._grants)
            if len(name) <= MAX_CACHED_LENGTH:
                if len(self._decided) >= self._max_cached:
                    self._decided.clear()
                self._decided[question] = allowed
        return allowed

    def gives_name(self, name: str) -> bool:
        """Whether a name is given to somebody at all (CL-4)."""
        return any(grant.gives(Action.ANNOUNCE, name) for grant in self._grants)

    def admits(self, who: Who, route: Route) -> bool:
        """Whether somebody may send along a route, that is, to every name in it."""
        allowed = self._routes.get((who, route))
        if allowed is None:
            allowed = self.refused_in(who, route) is None
            if sum(len(address.data) for address in route.addresses) <= MAX_CACHED_LENGTH:
                if len(self._routes) >= self._max_cached:
                    self._routes.clear()
                self._routes[who, route] = allowed
        return allowed

    def refused_in(self, who: Who, route: Route) -> tuple[Action, str] | None:
        """What somebody may not do that wants to send along a route; None if all is granted.

        The names of sessions and requests are drawn by chance, and known from return routes alone:
        whoever has one answers.
        """
        for address in route.addresses:
            asked = _asked(address)
            if asked is not None and not self._may_send(who, *asked):
                return asked
        return None

    def _may_send(self, who: Who, action: Action, name: str) -> bool:
        if self.allows(who, action, name):
            return True
        return name == DIRECTORY and any(
            grant.is_for(who) and grant.register for grant in self._grants
        )

    def explain(self, who: Who, action: Action, name: str, called: str | None = None) -> str:
        """Whether somebody may do something, and why; `called` is what to call them."""
        asker = called or who.text or "an unproven peer"
        for grant in self._grants:
            if grant.is_for(who) and grant.gives(action, name):
                return f"{asker} may {action} {name}: {grant}"
        others = dict.fromkeys(g.holder for g in self._grants if g.gives(action, name))
        if others:
            held = f"that is granted to {' and '.join(others)} only"
            return f"{asker} may not {action} {name}: {held}"
        return f"{asker} may not {action} {name}: no grant gives it to anybody"


def covers(granted: str, asked: str) -> bool:
    """Whether all that a subscription or an id can match is granted.

    >>> covers("hub/alerts/*", "hub/alerts/+/fire"), covers("hub/+/x", "hub/*")
    (True, False)
    >>> covers("truck-*/position", "truck-7/position")
    True
    """
    have, want = granted.split("/"), asked.split("/")
    for index, part in enumerate(have):
        if part == "*" and index == len(have) - 1:
            return index <= len(want)
        if index >= len(want):
            return False
        wanted = want[index]
        if wanted in ("+", "*"):
            if part != "+" or wanted == "*":
                return False
        elif part != "+" and not matches(part, wanted):
            return False
    return len(want) == len(have)


def is_answer(address: Address) -> bool:
    """Whether only who was asked something knows an address, since it was drawn by chance.

    >>> is_answer(Address(LOCAL, b"request-5")), is_answer(Address(LOCAL, b"brakes"))
    (True, False)
    """
    return _asked(address) is None


def _asked(address: Address) -> tuple[Action, str] | None:
    """What a message to an address asks for; None for an answer."""
    if address.type == MULTICAST:
        return Action.PUBLISH, address.name
    if address.type != LOCAL:
        return Action.SEND, str(address)
    name = address.name
    return None if name.startswith(REPLY_PREFIXES) or is_session_name(name) else (Action.SEND, name)


def action_of(text: str) -> Action:
    """The action of this name."""
    try:
        return Action(text)
    except ValueError:
        raise LocalError(
            f"{quote(text)} cannot be granted", rule="ID-3", hint=f"give one of {', '.join(Action)}"
        ) from None
