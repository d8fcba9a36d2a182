"""Multicast ids, patterns, and who receives what (MC).

An id is `provider/broadcast[/partition…]`. A pattern is an id in which `+` stands for one segment
and a last `*` for any number of them, none included. Matching goes by whole segments; there is no
regular expression anywhere, so no character means more than itself (MC-6).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from itertools import chain
from typing import Final

from msgspec import Struct

from waystation.errors import LocalError, quote

ONE: Final = "+"
REST: Final = "*"

ADDRESS_TYPE: Final = 255
"""The address type of multicast ids, the same in every node: `255#garage/temperature`."""

MAX_SEGMENTS: Final = 64
"""No id has more segments. A fleet's partitions have five or six; this bounds what is walked."""

MAX_LENGTH: Final = 65_535
"""No id or pattern has more characters: MQTT could not carry it."""


class MulticastId(Struct, frozen=True):
    """What a provider publishes under (MC-1): never with a wildcard (MC-5).

    >>> print(MulticastId.of("garage", "temperature", "eu/de/munich"))
    garage/temperature/eu/de/munich
    >>> MulticastId.of("garage", "temperature", "eu/+")
    Traceback (most recent call last):
    waystation.errors.LocalError: 'garage/temperature/eu/+' is published with the wildcard '+'; ...
    """

    provider: str
    broadcast: str
    partition: tuple[str, ...] = ()

    @classmethod
    def of(cls, provider: str, broadcast: str, partition: str | Iterable[str] = ()) -> MulticastId:
        """An id from its parts; the partition as one text with slashes or as segments."""
        return cls.parse(_joined(provider, broadcast, partition))

    @classmethod
    def parse(cls, text: str) -> MulticastId:
        """Read an id, or raise the LocalError that says what is wrong with it."""
        segments = _checked_segments(text)
        for wildcard in (ONE, REST):
            if wildcard in segments:
                raise LocalError(
                    f"{quote(text)} is published with the wildcard {wildcard!r}",
                    rule="MC-5",
                    hint="name every segment; wildcards are for subscriptions",
                )
        if len(segments) < 2:
            raise LocalError(
                f"{quote(text)} is no multicast id",
                rule="MC-1",
                hint="write provider/broadcast, then the partition if there is one",
            )
        return cls(segments[0], segments[1], tuple(segments[2:]))

    def __str__(self) -> str:
        return "/".join((self.provider, self.broadcast, *self.partition))


def is_multicast_id(text: str) -> bool:
    """Whether something can be published under this text: what `MulticastId.parse` accepts.

    >>> is_multicast_id("garage/temperature/eu"), is_multicast_id("garage/temperature/+")
    (True, False)
    """
    if len(text) > MAX_LENGTH:
        return False
    if _usual_id(text):
        return True
    try:
        MulticastId.parse(text)
    except LocalError:
        return False
    return True


# Most ids look like this; it only saves time. (Matching goes by segments, not by such expressions.)
_usual_id: Final = re.compile(
    r"[!\"$-),-.0-~]+/[!\"$-),-.0-~]+"  # printable ASCII without space, +, * and #, twice
    rf"(/[A-Za-z0-9]+){{0,{MAX_SEGMENTS - 2}}}"
).fullmatch


def pattern_of(provider: str, broadcast: str, partition: str | Iterable[str] = ()) -> str:
    """The pattern of a subscription from its parts, checked.

    >>> pattern_of("garage", "temperature", "eu/+/munich"), pattern_of("garage", "temperature")
    ('garage/temperature/eu/+/munich', 'garage/temperature')
    """
    pattern = _joined(provider, broadcast, partition)
    check_pattern(pattern)
    return pattern


def check_pattern(pattern: str) -> list[str]:
    """The segments of a pattern, or the LocalError that says what is wrong with it.

    >>> check_pattern("garage/*/munich")
    Traceback (most recent call last):
    waystation.errors.LocalError: pattern 'garage/*/munich' has '*' before its end; ...
    """
    segments = _checked_segments(pattern)
    if REST in segments[:-1]:
        raise LocalError(
            f"pattern {quote(pattern)} has '*' before its end",
            rule="MC-4",
            hint="use '+' for one segment in between, '*' as the last segment only",
        )
    if len(segments) < 2 and segments != [REST]:
        raise LocalError(
            f"{quote(pattern)} is no pattern of a multicast id",
            rule="MC-1",
            hint="write provider/broadcast, then the partition; wildcards may stand for segments",
        )
    return segments


def mqtt_filter(pattern: str) -> str:
    """A pattern as an MQTT topic filter (MC-12).

    >>> mqtt_filter("garage/temperature/+/*")
    'garage/temperature/+/#'
    """
    return pattern[:-1] + "#" if pattern.endswith(REST) else pattern


def _joined(provider: str, broadcast: str, partition: str | Iterable[str]) -> str:
    for part in (provider, broadcast):
        if "/" in part:
            raise LocalError(
                f"{quote(part)} has a slash",
                rule="MC-1",
                hint="give provider, broadcast and partition apart from each other",
            )
    if isinstance(partition, str):
        partition = (partition,) if partition else ()
    return "/".join((provider, broadcast, *partition))


def _checked_segments(text: str) -> list[str]:
    """Split an id or a pattern; what its segments may hold is checked here (MC-2, MC-3)."""
    if not isinstance(text, str):
        raise LocalError(
            f"{quote(text)} is no multicast id",
            rule="MC-1",
            hint="give a text, as str(id) does",
        )
    if len(text) > MAX_LENGTH:
        raise LocalError(
            f"{quote(text)} has {len(text)} characters",
            rule="MC-1",
            hint=f"use at most {MAX_LENGTH}",
        )
    if text.count("/") >= MAX_SEGMENTS:  # counted before anything is built
        raise LocalError(
            f"{quote(text)} has more than {MAX_SEGMENTS} segments",
            rule="MC-1",
            hint="use a shallower partition",
        )
    segments = text.split("/")
    for position, segment in enumerate(segments):
        if segment in (ONE, REST):
            continue
        if position < 2:
            _check_name(segment, text)
        elif not (segment.isascii() and segment.isalnum()):
            raise LocalError(
                f"segment {quote(segment)} of {quote(text)} is not made of letters and digits",
                rule="MC-2",
                hint="use one or more of A-Z, a-z and 0-9",
            )
    return segments


def _check_name(segment: str, text: str) -> None:
    # Providers and broadcasts are named by applications: dots and dashes are theirs to use.
    if not segment.isprintable() or not segment or not set(segment).isdisjoint("+*# "):
        raise LocalError(
            f"{quote(segment)} in {quote(text)} names no provider or broadcast",
            rule="MC-1",
            hint="use printable characters without space, '/', '+', '*' or '#'",
        )


class SubscriptionKind(StrEnum):
    """What happened to the subscriptions, in the journal's words."""

    SUBSCRIBE = "subscribe"
    UNSUBSCRIBE = "unsubscribe"


class SubscriptionChange(Struct, frozen=True, gc=False):
    """One event of the subscriptions, for the journal to store (OB-4).

    `edge` says that the pattern got its first receiver or lost its last one, which is when a broker
    must be told (MC-12).
    """

    kind: SubscriptionKind
    pattern: str
    receiver: str
    edge: bool


_Receivers = dict[str, None]  # a set that keeps its order, so that a fan-out can be played again


class _Node:
    """A place in the trie: where the patterns that begin alike part from each other."""

    __slots__ = ("below", "children", "here", "one")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.one: _Node | None = None  # where `+` leads
        self.here: _Receivers | None = None  # of the pattern that ends here
        self.below: _Receivers | None = None  # of the pattern that ends here with a `*`

    def unused(self) -> bool:
        return not self.children and self.one is None and self.here is None and self.below is None

    def child(self, segment: str) -> _Node:
        child = self.one if segment == ONE else self.children.get(segment)
        assert child is not None  # asked only along a pattern that was planted
        return child

    def cut(self, segment: str) -> None:
        if segment == ONE:
            self.one = None
        else:
            del self.children[segment]


def _has_wildcard(segments: list[str]) -> bool:
    return ONE in segments or segments[-1] == REST


class Subscriptions:
    """Who receives which broadcasts at one node (MC-8).

    >>> subscriptions = Subscriptions()
    >>> subscriptions.subscribe("garage/temperature/eu/+/munich", "dashboard").edge
    True
    >>> subscriptions.match("garage/temperature/eu/de/munich")
    ('dashboard',)

    A pattern without wildcards is found by one look-up; the others stand in a trie of segments, and
    a match walks only where some pattern agrees so far (MC-16). What an id matched is remembered
    until a subscription changes, since a fleet publishes under the same ids again and again.
    `remember` bounds that memory, counted in receivers (an id counts by its length); 0 turns it
    off. `walks` counts the matches that were not remembered.
    """

    def __init__(self, remember: int = 1_000_000) -> None:
        self._receivers: dict[str, _Receivers] = {}  # by pattern
        self._patterns: dict[str, dict[str, None]] = {}  # by receiver
        self._wildcards = _Node()  # the patterns that have any
        self._remembered: dict[str, tuple[str, ...]] = {}
        self._remember = self._room = remember
        self.walks = 0

    def __len__(self) -> int:
        """How many subscriptions there are: pairs of a pattern and a receiver."""
        return sum(map(len, self._receivers.values()))

    def match(self, id: str) -> tuple[str, ...]:
        """The receivers of what is published under this id, each once.

        Under a text that is no id (MC-2, MC-5) nobody receives anything.
        """
        found = self._remembered.get(id)
        return self._walk(id) if found is None else found

    def subscribe(self, pattern: str, receiver: str) -> SubscriptionChange | None:
        """Add a subscription; None when it was there already (MC-8)."""
        if not isinstance(receiver, str) or not receiver:
            raise LocalError(
                f"{quote(receiver)} receives nothing", rule="MC-8", hint="name the participant"
            )
        receivers = self._receivers.get(pattern)
        if receivers is None:
            segments = check_pattern(pattern)
            receivers = self._receivers[pattern] = {}
            if _has_wildcard(segments):
                self._plant(segments, receivers)
        elif receiver in receivers:
            return None
        edge = not receivers
        receivers[receiver] = None
        self._patterns.setdefault(receiver, {})[pattern] = None
        self._forget_matches()
        return SubscriptionChange(SubscriptionKind.SUBSCRIBE, pattern, receiver, edge)

    def unsubscribe(self, pattern: str, receiver: str) -> SubscriptionChange | None:
        """Take a subscription away; None when it was not there (MC-8)."""
        receivers = self._receivers.get(pattern)
        if receivers is None or receiver not in receivers:
            return None
        del receivers[receiver]
        if not receivers:
            del self._receivers[pattern]
            segments = pattern.split("/")
            if _has_wildcard(segments):
                self._uproot(segments)
        patterns = self._patterns[receiver]
        del patterns[pattern]
        if not patterns:
            del self._patterns[receiver]
        self._forget_matches()
        return SubscriptionChange(SubscriptionKind.UNSUBSCRIBE, pattern, receiver, not receivers)

    def unsubscribe_all(self, receiver: str) -> list[SubscriptionChange]:
        """Take away all that a receiver subscribed to, as when it goes."""
        changes = (self.unsubscribe(pattern, receiver) for pattern in self.patterns_of(receiver))
        return [change for change in changes if change is not None]

    def patterns(self) -> list[str]:
        """Every pattern that has a receiver: what a broker must be told again after a reconnect."""
        return list(self._receivers)

    def patterns_of(self, receiver: str) -> list[str]:
        """What one receiver subscribed to."""
        return list(self._patterns.get(receiver, ()))

    def count(self, pattern: str) -> int:
        """How many receivers a pattern has: the receivers themselves, counted (MC-12)."""
        return len(self._receivers.get(pattern, ()))

    def snapshot(self) -> list[tuple[str, str]]:
        """All pairs of a pattern and a receiver."""
        return [(pattern, name) for pattern, names in self._receivers.items() for name in names]

    def _walk(self, id: str) -> tuple[str, ...]:
        """The receivers whose patterns match this id, each once (MC-7)."""
        self.walks += 1
        if not is_multicast_id(id):
            return ()
        groups: list[_Receivers] = []
        exact = self._receivers.get(id)
        if exact is not None:
            groups.append(exact)
        self._climb(id.split("/"), groups)
        if not groups:
            found: tuple[str, ...] = ()
        elif len(groups) == 1:
            found = tuple(groups[0])
        else:
            found = tuple(dict.fromkeys(chain(*groups)))
        cost = len(found) + 1 + len(id) // 8  # a receiver takes eight bytes
        if self._room < cost <= self._remember:
            self._forget_matches()
        if cost <= self._room:
            self._room -= cost
            self._remembered[id] = found
        return found

    def _climb(self, segments: list[str], groups: list[_Receivers]) -> None:
        """Collect the receivers of all patterns with wildcards that match these segments."""
        nodes = [self._wildcards]
        for segment in segments:
            following = []
            for node in nodes:
                if node.below is not None:
                    groups.append(node.below)
                child = node.children.get(segment)
                if child is not None:
                    following.append(child)
                if node.one is not None:
                    following.append(node.one)
            if not following:
                return
            nodes = following
        for node in nodes:
            if node.below is not None:
                groups.append(node.below)
            if node.here is not None:
                groups.append(node.here)

    def _plant(self, segments: list[str], receivers: _Receivers) -> None:
        node = self._wildcards
        for segment in segments:
            if segment == REST:
                node.below = receivers
                return
            if segment == ONE:
                node.one = node = node.one or _Node()
            else:
                node = node.children.setdefault(segment, _Node())
        node.here = receivers

    def _uproot(self, segments: list[str]) -> None:
        """Take a pattern out of the trie, and with it the places that nobody needs any more."""
        steps = segments[:-1] if segments[-1] == REST else segments
        path = [self._wildcards]
        for segment in steps:
            path.append(path[-1].child(segment))
        if steps is segments:
            path[-1].here = None
        else:
            path[-1].below = None
        for segment in reversed(steps):
            if not path.pop().unused():
                return
            path[-1].cut(segment)

    def _forget_matches(self) -> None:
        if self._remembered:
            self._remembered.clear()
        self._room = self._remember
