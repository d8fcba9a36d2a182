"""Who may send to which address: an ordered list of rules, of which the first match decides (OB-2).

Only the decision lives here. Who a sender is, and what happens to a refused message (REFUSED), is
up to the node. Patterns have one wildcard: `*` stands for zero or more characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from waystation.core.address import LOCAL, STANDARD_TYPES, Address, Route
from waystation.core.multicast import ADDRESS_TYPE as MULTICAST
from waystation.errors import LocalError, quote

REPLY_PREFIXES: Final = ("request-", "secure-channel-")
"""Prefixes of the names under which a node waits for replies to its own requests, and for what
comes through a secure channel, which is judged when it is opened."""

MAX_CACHED: Final = 4_096
"""Number of cached decisions, after which the cache is cleared."""

MAX_CACHED_LENGTH: Final = 1_024
"""Characters or bytes; decisions about longer addresses and routes are not cached."""


class AccessRule(Struct, frozen=True):
    """Whether these senders may send to these addresses; both are patterns."""

    allow: bool
    senders: tuple[str, ...]
    to: tuple[str, ...]


class Access:
    """Ordered access rules; what none matches is refused, except replies to a node's own requests.

    >>> access = Access([
    ...     AccessRule(False, ("*",), ("admin",)),
    ...     AccessRule(True, ("truck-*",), ("telemetry", "fleet/*")),
    ... ])
    >>> access.allows("truck-7", "telemetry"), access.allows("truck-7", "admin")
    (True, False)
    >>> access.allows("car-1", "telemetry"), access.allows("car-1", "request-3")
    (False, True)

    Write an address of another type than 0 with the name or number of its type: `tcp#10.*`. Write a
    publication as its multicast id alone: `fleet/temperature/eu`. Decisions are cached, `cached` of
    them by sender and address and as many by sender and route.
    """

    __slots__ = ("_addresses", "_max_cached", "_routes", "_rules")

    def __init__(
        self,
        rules: Iterable[AccessRule],
        types: Mapping[str, int] = STANDARD_TYPES,
        *,
        cached: int = MAX_CACHED,
    ) -> None:
        self._max_cached = cached
        self._rules = tuple(_compiled(rule, types) for rule in rules)
        self._addresses: dict[tuple[str, str], bool] = {}
        self._routes: dict[tuple[str, bytes | Route], bool] = {}

    def allows(self, sender: str, address: str) -> bool:
        """Whether a sender may send to an address: `echo`, `1#host:port`, `255#fleet/position`."""
        question = (sender, address)
        allowed = self._addresses.get(question)
        if allowed is None:
            allowed = self._decide(sender, address)
            if len(sender) + len(address) <= MAX_CACHED_LENGTH:
                if len(self._addresses) >= self._max_cached:
                    self._addresses.clear()
                self._addresses[question] = allowed
        return allowed

    def admits(self, sender: str, route: Route) -> bool:
        """Whether a sender may send along a route, that is, to every address in it.

        Checking only the first would not be enough, since workers forward messages to the next.

        >>> access = Access([AccessRule(True, ("*",), ("hop", "echo"))])
        >>> [access.admits("a", Route.parse(text)) for text in ("hop => echo", "hop => admin")]
        [True, False]
        """
        addresses = route.addresses
        # Most messages have a single local name, which is checked faster than a whole route.
        is_name = len(addresses) == 1 and addresses[0].type == LOCAL
        question = (sender, addresses[0].data if is_name else route)
        allowed = self._routes.get(question)
        if allowed is None:
            allowed = all(self.allows(sender, _text(address)) for address in addresses)
            length = len(sender) + sum(len(address.data) for address in addresses)
            if length <= MAX_CACHED_LENGTH:
                if len(self._routes) >= self._max_cached:
                    self._routes.clear()
                self._routes[question] = allowed
        return allowed

    def _decide(self, sender: str, address: str) -> bool:
        address = address.removeprefix(f"{MULTICAST!s}#")
        for rule in self._rules:
            if _any_matches(rule.senders, sender) and _any_matches(rule.to, address):
                return rule.allow
        return address.startswith(REPLY_PREFIXES)


def matches(pattern: str, text: str) -> bool:
    """Whether a pattern matches a whole text; never backtracks.

    >>> matches("truck-*", "truck-7"), matches("*-7", "truck-7"), matches("truck", "truck-7")
    (True, True, False)
    """
    first, *others = pattern.split("*")
    if not others:
        return pattern == text
    last = others.pop()
    if len(text) < len(first) + len(last):
        return False
    if not (text.startswith(first) and text.endswith(last)):
        return False
    position, end = len(first), len(text) - len(last)
    for part in others:  # the earliest match leaves the most for the rest
        found = text.find(part, position, end)
        if found < 0:
            return False
        position = found + len(part)
    return True


def _any_matches(patterns: tuple[str, ...], text: str) -> bool:
    return any(matches(pattern, text) for pattern in patterns)


def _text(address: Address) -> str:
    name = address.name
    return name if address.type == LOCAL and "#" not in name else str(address)


def _compiled(rule: AccessRule, types: Mapping[str, int]) -> AccessRule:
    for patterns in (rule.senders, rule.to):
        if not patterns or not all(isinstance(text, str) and text for text in patterns):
            raise LocalError(
                f"an access rule for {quote(patterns)}",
                rule="OB-2",
                hint="give one or more names; * stands for any characters",
            )
    return AccessRule(rule.allow, rule.senders, tuple(_numbered(to, types) for to in rule.to))


def _numbered(pattern: str, types: Mapping[str, int]) -> str:
    """A pattern in the form of addresses: types as numbers, and no type for local names."""
    kind, mark, data = pattern.partition("#")
    if not mark:
        return pattern
    number = str(types.get(kind, kind))
    plain = number == str(MULTICAST) or (number == str(LOCAL) and "#" not in data)
    return data if plain else f"{number}#{data}"
