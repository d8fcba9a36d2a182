"""Multicast ids, patterns and subscriptions (MC).

An id is `provider/broadcast[/partition…]`. A pattern is an id in which `+` stands for one segment
and a final `*` for zero or more. Matching compares whole segments, without regular expressions, so
no other character is special (MC-6).
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
"""Maximum number of segments of an id; partitions of fleets have five or six."""

MAX_LENGTH: Final = 65_535
"""Maximum number of characters of an id or pattern, as in MQTT."""


class MulticastId(Struct, frozen=True):
    """The id that a provider publishes under (MC-1), without wildcards (MC-5).

    >>> print(MulticastId.of("garage", "temperature", "eu/de/munich"))
    garage/temperature/eu/de/munich
    >>> MulticastId.of("garage", "temperature", "eu/+")
    Traceback (most recent call last):
    waystation.errors.LocalError: multicast id 'garage/temperature/eu/+' has the wildcard '+'; ...
    """

    provider: str
    broadcast: str
    partition: tuple[str, ...] = ()

    @classmethod
    def of(cls, provider: str, broadcast: str, partition: str | Iterable[str] = ()) -> MulticastId:
        """An id from its parts; the partition is text with slashes, or segments."""
        return cls.parse(_joined(provider, broadcast, partition))

    @classmethod
    def parse(cls, text: str) -> MulticastId:
        """Parse an id; raises a LocalError if it is invalid."""
        segments = _checked_segments(text)
        for wildcard in (ONE, REST):
            if wildcard in segments:
                raise LocalError(
                    f"multicast id {quote(text)} has the wildcard {wildcard!r}",
                    rule="MC-5",
                    hint="name every segment; wildcards are for subscriptions",
                )
        if len(segments) < 2:
            raise LocalError(
                f"invalid multicast id {quote(text)}",
                rule="MC-1",
                hint="write provider/broadcast or provider/broadcast/partition",
            )
        return cls(segments[0], segments[1], tuple(segments[2:]))

    def __str__(self) -> str:
        return "/".join((self.provider, self.broadcast, *self.partition))


def is_multicast_id(text: str) -> bool:
    """Whether this is a valid multicast id, which `MulticastId.parse` accepts.

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


# A fast check that most ids pass. (Matching compares segments and uses no regular expression.)
_usual_id: Final = re.compile(
    r"[!\"$-),-.0-~]+/[!\"$-),-.0-~]+"  # printable ASCII without space, +, * and #, twice
    rf"(/[A-Za-z0-9]+){{0,{MAX_SEGMENTS - 2}}}"
).fullmatch


def pattern_of(provider: str, broadcast: str, partition: str | Iterable[str] = ()) -> str:
    """The pattern of a subscription, built from its parts and checked.

    >>> pattern_of("garage", "temperature", "eu/+/munich"), pattern_of("garage", "temperature")
    ('garage/temperature/eu/+/munich', 'garage/temperature')
    """
    pattern = _joined(provider, broadcast, partition)
    check_pattern(pattern)
    return pattern


def check_pattern(pattern: str) -> list[str]:
    """The segments of a pattern; raises a LocalError if it is invalid.

    >>> check_pattern("garage/*/munich")
    Traceback (most recent call last):
    waystation.errors.LocalError: pattern 'garage/*/munich' has '*' before its end; ...
    """
    segments = _checked_segments(pattern)
    if REST in segments[:-1]:
        raise LocalError(
            f"pattern {quote(pattern)} has '*' before its end",
            rule="MC-4",
            hint="use '+' for a single segment, and '*' only as the last segment",
        )
    if len(segments) < 2 and segments != [REST]:
        raise LocalError(
            f"invalid multicast pattern {quote(pattern)}",
            rule="MC-1",
            hint="write provider/broadcast[/partition], with wildcards for whole segments",
        )
    return segments


def mqtt_filter(pattern: str) -> str:
    """A pattern as an MQTT topic filter (MC-12).

    >>> mqtt_filter("garage/temperature/+/*")
    'garage/temperature/+/#'
    """
    return pattern[:-1] + "#" if pattern.endswith(REST) else pattern


def _joined(provider: str, broadcast: str, partition: str | Iterable[str]) -> str:
    if isinstance(partition, str):
        partition = (partition,) if partition else ()
    rest = partition if isinstance(partition, Iterable) else (partition,)
    segments = (provider, broadcast, *rest)
    for segment in segments:
        if not isinstance(segment, str):
            raise LocalError(
                f"{quote(segment)} is not text",
                rule="MC-1",
                hint="give provider, broadcast and partition as text",
            )
    for part in (provider, broadcast):
        if "/" in part:
            raise LocalError(
                f"{quote(part)} has a slash",
                rule="MC-1",
                hint="give provider, broadcast and partition separately",
            )
    return "/".join(segments)


def _checked_segments(text: str) -> list[str]:
    """Split an id or a pattern, and check its segments (MC-2, MC-3)."""
    if not isinstance(text, str):
        raise LocalError(
            f"invalid multicast id {quote(text)}",
            rule="MC-1",
            hint="give text, such as str(id)",
        )
    if len(text) > MAX_LENGTH:
        raise LocalError(
            f"multicast id {quote(text)} is too long: {len(text)} characters",
            rule="MC-1",
            hint=f"use at most {MAX_LENGTH}",
        )
    if text.count("/") >= MAX_SEGMENTS:  # counted before anything is built
        raise LocalError(
            f"multicast id {quote(text)} has more than {MAX_SEGMENTS} segments",
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
                f"invalid segment {quote(segment)} in {quote(text)}",
                rule="MC-2",
                hint="use one or more of the characters A-Z, a-z and 0-9",
            )
    return segments


def _check_name(segment: str, text: str) -> None:
    # Applications choose the names of providers and broadcasts, so dots and dashes are allowed.
    if not segment.isprintable() or not segment or not set(segment).isdisjoint("+*# "):
        raise LocalError(
            f"invalid provider or broadcast {quote(segment)} in {quote(text)}",
            rule="MC-1",
            hint="use printable characters without space, '/', '+', '*' or '#'",
        )


class SubscriptionKind(StrEnum):
    """Kinds of subscription changes, as in the journal."""

    SUBSCRIBE = "subscribe"
    UNSUBSCRIBE = "unsubscribe"


class SubscriptionChange(Struct, frozen=True, gc=False):
    """A change of the subscriptions, for the journal (OB-4).

    `edge` says that the pattern got its first receiver or lost its last one, which is when a broker
    has to be informed (MC-12).
    """

    kind: SubscriptionKind
    pattern: str
    receiver: str
    edge: bool


_Receivers = dict[str, None]  # an ordered set, so that a fan-out can be replayed


class _Node:
    """A node of the trie of patterns."""

    __slots__ = ("below", "children", "here", "one")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.one: _Node | None = None  # the child for `+`
        self.here: _Receivers | None = None  # receivers of the pattern that ends here
        self.below: _Receivers | None = None  # receivers of the pattern that ends here with `*`

    def unused(self) -> bool:
        return not self.children and self.one is None and self.here is None and self.below is None

    def child(self, segment: str) -> _Node:
        child = self.one if segment == ONE else self.children.get(segment)
        assert child is not None  # called only along an inserted pattern
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

    Patterns without wildcards are found by one lookup; the others are in a trie of segments, of
    which a match visits only the branches that agree so far (MC-16). Matches are cached until a
    subscription changes, since a fleet publishes under the same ids again and again. `remember`
    limits the cache, counted in receivers (an id counts by its length); 0 disables it. `walks`
    counts the matches that were not in the cache.
    """

    def __init__(self, remember: int = 1_000_000) -> None:
        self._receivers: dict[str, _Receivers] = {}  # by pattern
        self._patterns: dict[str, dict[str, None]] = {}  # by receiver
        self._wildcards = _Node()  # patterns with wildcards
        self._remembered: dict[str, tuple[str, ...]] = {}
        self._remember = self._room = remember
        self.walks = 0

    def __len__(self) -> int:
        """Number of subscriptions, that is, pairs of a pattern and a receiver."""
        return sum(map(len, self._receivers.values()))

    def match(self, id: str) -> tuple[str, ...]:
        """The receivers of messages published under this id, each once.

        An invalid id (MC-2, MC-5) has no receivers.
        """
        found = self._remembered.get(id)
        return self._walk(id) if found is None else found

    def subscribe(self, pattern: str, receiver: str) -> SubscriptionChange | None:
        """Add a subscription; returns None if it existed already (MC-8)."""
        if not isinstance(receiver, str) or not receiver:
            raise LocalError(
                f"invalid receiver {quote(receiver)}", rule="MC-8", hint="name the participant"
            )
        receivers = self._receivers.get(pattern)
        if receivers is None:
            segments = check_pattern(pattern)
            receivers = self._receivers[pattern] = {}
            if _has_wildcard(segments):
                self._insert(segments, receivers)
        elif receiver in receivers:
            return None
        edge = not receivers
        receivers[receiver] = None
        self._patterns.setdefault(receiver, {})[pattern] = None
        self._forget_matches()
        return SubscriptionChange(SubscriptionKind.SUBSCRIBE, pattern, receiver, edge)

    def unsubscribe(self, pattern: str, receiver: str) -> SubscriptionChange | None:
        """Remove a subscription; returns None if there was none (MC-8)."""
        receivers = self._receivers.get(pattern)
        if receivers is None or receiver not in receivers:
            return None
        del receivers[receiver]
        if not receivers:
            del self._receivers[pattern]
            segments = pattern.split("/")
            if _has_wildcard(segments):
                self._delete(segments)
        patterns = self._patterns[receiver]
        del patterns[pattern]
        if not patterns:
            del self._patterns[receiver]
        self._forget_matches()
        return SubscriptionChange(SubscriptionKind.UNSUBSCRIBE, pattern, receiver, not receivers)

    def unsubscribe_all(self, receiver: str) -> list[SubscriptionChange]:
        """Remove all subscriptions of a receiver, for instance when it leaves."""
        changes = (self.unsubscribe(pattern, receiver) for pattern in self.patterns_of(receiver))
        return [change for change in changes if change is not None]

    def patterns(self) -> list[str]:
        """All patterns that have a receiver, to subscribe to at a broker after a reconnect."""
        return list(self._receivers)

    def patterns_of(self, receiver: str) -> list[str]:
        """The patterns of one receiver."""
        return list(self._patterns.get(receiver, ()))

    def count(self, pattern: str) -> int:
        """Number of receivers of a pattern (MC-12)."""
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
        self._search(id.split("/"), groups)
        if not groups:
            found: tuple[str, ...] = ()
        elif len(groups) == 1:
            found = tuple(groups[0])
        else:
            found = tuple(dict.fromkeys(chain(*groups)))
        cost = len(found) + 1 + len(id) // 8  # a receiver takes eight bytes of memory
        if self._room < cost <= self._remember:
            self._forget_matches()
        if cost <= self._room:
            self._room -= cost
            self._remembered[id] = found
        return found

    def _search(self, segments: list[str], groups: list[_Receivers]) -> None:
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

    def _insert(self, segments: list[str], receivers: _Receivers) -> None:
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

    def _delete(self, segments: list[str]) -> None:
        """Remove a pattern from the trie, and the nodes that are no longer needed."""
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
