"""A changed past, as a change file says it: which changes there are, and what each is about.

Every selector is optional, with `*` as a wildcard. Nothing here reads a journal.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct, structs

from waystation.core.address import Address
from waystation.core.grants import Grant, Grants
from waystation.errors import LocalError, quote
from waystation.pipeline.instants import instant

Span: TypeAlias = tuple[int, int]
Names: TypeAlias = str | tuple[str, ...]
"""One name, or several."""

_UNITS: Final = {"ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000}
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h)")
_FIRST: Final = -(2**63)
_LAST: Final = 2**63 - 1
_RULE: Final = "SP-9"


class Ttl(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Routing entries, or messages, live longer or shorter."""

    routes: bool = False
    messages: bool = False
    node: str = "*"
    participant: str = "*"
    factor: float | None = None
    at_least: str | None = None
    never: bool = False

    def check(self) -> None:
        """Raise a LocalError if it says nothing, or two things at once."""
        if self.routes == self.messages:
            raise _invalid("[[ttl]] must say routes = true or messages = true")
        if [self.factor is not None, self.at_least is not None, self.never].count(True) != 1:
            raise _invalid("[[ttl]] needs exactly one of factor, at_least and never")
        if self.factor is not None and not 0 < self.factor < 1e9:
            raise _invalid(f"[[ttl]] factor must be above 0, not {self.factor}")
        if self.at_least is not None:
            duration(self.at_least)

    def __str__(self) -> str:
        what = _about("routes" if self.routes else "messages", self.node, self.participant)
        if self.never:
            return f"{what} had never expired"
        if self.factor is not None:
            return f"{what} had lived {self.factor:g} times as long"
        return f"{what} had lived at least {self.at_least}"


class Sticky(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Routing entries stay after they expired."""

    node: str = "*"
    participant: str = "*"

    def __str__(self) -> str:
        return f"{_about('routes', self.node, self.participant)} had been sticky"


class Put(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A routing entry or a subscription that was not made."""

    at: str
    node: str
    participant: str | None = None
    address: str | None = None
    local: bool = False
    visible: bool = False
    expiry: str | None = None
    pattern: str | None = None
    receiver: str | None = None

    def check(self) -> None:
        """Raise a LocalError if it is neither an entry nor a subscription."""
        instant(self.at)
        if self.participant is not None:
            if self.address is None or self.pattern is not None:
                raise _invalid("[[put]] of a route needs participant and address")
            Address.parse(self.address)
            if self.expiry is not None:
                instant(self.expiry)
        elif self.pattern is None or self.receiver is None:
            raise _invalid("[[put]] needs participant and address, or pattern and receiver")

    def __str__(self) -> str:
        if self.participant is not None:
            return f"{self.node} had routed {self.participant} to {self.address} from {self.at} on"
        return f"{self.receiver} had subscribed to {self.pattern} at {self.node} at {self.at}"


class Remove(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The end of a routing entry or of a subscription that did not end."""

    at: str
    node: str
    participant: str | None = None
    pattern: str | None = None
    receiver: str | None = None

    def check(self) -> None:
        """Raise a LocalError if it names neither an entry nor a subscription."""
        instant(self.at)
        if (self.participant is None) == (self.pattern is None or self.receiver is None):
            raise _invalid("[[remove]] needs participant, or pattern and receiver")

    def __str__(self) -> str:
        if self.participant is not None:
            return f"{self.node} had removed the route of {self.participant} at {self.at}"
        return f"{self.receiver} had unsubscribed from {self.pattern} at {self.node} at {self.at}"


class Without(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that happened is left out; of a session, `participant` is the peer."""

    kind: Literal["crash", "stop", "close", "remove", "unsubscribe"]
    node: str = "*"
    participant: str = "*"
    since: str | None = None
    until: str | None = None

    @property
    def span(self) -> Span:
        """The microseconds that it is about, [since, until)."""
        since = _FIRST if self.since is None else instant(self.since)
        until = _LAST if self.until is None else instant(self.until)
        return since, until

    def check(self) -> None:
        """Raise a LocalError if it names no time."""
        since, until = self.span
        if since >= until:
            raise _invalid(f"[[without]] {self.kind}: since must be before until")

    def __str__(self) -> str:
        when = _between(self.since, self.until)
        who = "no node" if self.node == "*" else self.node
        done = {
            "crash": f"{who} had {'' if self.node == '*' else 'not '}crashed",
            "stop": f"{who} had {'' if self.node == '*' else 'not '}been stopped",
            "close": f"the sessions of {_all(self.node, 'nodes')}{_with(self.participant)} "
            "had stayed open",
            "remove": f"{_about('routes', self.node, self.participant)} had not been removed",
            "unsubscribe": f"nobody had unsubscribed at {_all(self.node, 'nodes')}",
        }
        return done[self.kind] + when


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of the nodes."""

    hop_limit: int | None = None

    def __str__(self) -> str:
        return f"the hop limit had been {self.hop_limit}"


class Room(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A receiver lets more messages wait, or fewer."""

    node: str = "*"
    participant: str = "*"
    messages: int | None = None
    bytes: int | None = None

    def check(self) -> None:
        """Raise a LocalError if it gives no room."""
        if self.messages is None and self.bytes is None:
            raise _invalid("[[room]] needs messages or bytes")
        if any(size is not None and size < 1 for size in (self.messages, self.bytes)):
            raise _invalid("[[room]] messages and bytes must be 1 or more")

    def __str__(self) -> str:
        sizes = [
            f"{number:,} {what}"
            for number, what in ((self.messages, "messages"), (self.bytes, "bytes"))
            if number is not None
        ]
        who = "every receiver" if self.participant == "*" else self.participant
        where = "" if self.node == "*" else f" at {self.node}"
        return f"{who}{where} had had room for {' and '.join(sizes)}"


class Given(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A grant, as a node has it; those for a node are all that it would have had."""

    node: str = "*"
    identity: Names = ()
    certificate: Names = ()
    token: Names = ()
    anyone: bool = False
    announce: Names = ()
    subscribe: Names = ()
    publish: Names = ()
    register: Names = ()
    send: Names = ()

    def grant(self) -> Grant:
        """The grant; a LocalError says why it is none."""
        given = {
            name: (value,) if isinstance(value, str) else tuple(value)
            for name, value in structs.asdict(self).items()
            if name not in ("node", "anyone")
        }
        return Grant(anyone=self.anyone, **given)

    def check(self) -> None:
        """Raise a LocalError if it grants nothing, or nobody."""
        try:
            self.grant()
        except LocalError as error:
            raise _invalid(f"[[grant]] {error.problem}") from None

    def __str__(self) -> str:
        return f"the grants of {_all(self.node, 'nodes')} had been those of the file"


Change: TypeAlias = Ttl | Sticky | Put | Remove | Without | Room | Given | Limits


class Changes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that would have been different."""

    ttl: list[Ttl] = []
    sticky: list[Sticky] = []
    put: list[Put] = []
    remove: list[Remove] = []
    without: list[Without] = []
    room: list[Room] = []
    grant: list[Given] = []
    limits: Limits = Limits()

    def each(self) -> Sequence[Change]:
        """Every change."""
        limits = [self.limits] if self.limits.hop_limit is not None else []
        events: list[Change] = [*self.put, *self.remove, *self.without]
        return [*self.ttl, *self.sticky, *events, *self.room, *self.grant, *limits]

    def grants_at(self, node: str) -> Grants | None:
        """The grants that a node would have had; None if it has those that it had."""
        found = [one.grant() for one in self.grant if selects(one.node, node)]
        return Grants(found) if found else None

    def rooms_at(self, node: str) -> list[Room]:
        """The rooms that receivers at a node would have had."""
        return [one for one in self.room if selects(one.node, node)]

    def __str__(self) -> str:
        """What is assumed, to go on with "If"."""
        said = dict.fromkeys(map(str, self.each()))
        return ", and ".join(said) or "nothing had been different"

    def check(self) -> None:
        """Raise a LocalError that says what is wrong."""
        for change in self.each():
            if not isinstance(change, Sticky | Limits):
                change.check()
        hop_limit = self.limits.hop_limit
        if hop_limit is not None and hop_limit < 1:
            raise _invalid(f"hop_limit must be 1 or more, not {hop_limit}")


def read_changes(path: str | Path) -> Changes:
    """The changes in a file; a LocalError says what is wrong with it."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise LocalError(
            f"cannot read {quote(str(path))}: {reason}", rule=_RULE, hint="give a change file"
        ) from error
    try:
        return parse_changes(text)
    except LocalError as error:
        raise LocalError(f"{path}: {error.problem}", rule=_RULE, hint=error.hint) from None


def parse_changes(text: str) -> Changes:
    r"""The changes that TOML says.

    >>> str(parse_changes("[[ttl]]\nroutes = true\nfactor = 4"))
    'all routes had lived 4 times as long'
    """
    try:
        return changes_of(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise _invalid(str(error)) from None


def changes_of(told: dict[str, Any]) -> Changes:
    """The changes in the form that a TOML file has."""
    try:
        changes = msgspec.convert(_with_texts(told), Changes)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None
    changes.check()
    return changes


def _with_texts(told: Any) -> Any:
    """The same with texts for times, which TOML may have as such."""
    if isinstance(told, dict):
        return {name: _with_texts(value) for name, value in told.items()}
    if isinstance(told, list):
        return [_with_texts(value) for value in told]
    return told.isoformat() if isinstance(told, datetime) else told


def duration(text: str) -> int:
    """A duration in microseconds.

    >>> duration("60s"), duration("1.5 h"), duration("20ms")
    (60000000, 5400000000, 20000)
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise _invalid(f"invalid duration {quote(text)}; write 60s, 5m, 2h or 200ms")
    return round(float(found[1]) * _UNITS[found[2]])


@cache
def _pattern(selector: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, selector.split("*"))), re.DOTALL)


def selects(selector: str, name: str | None) -> bool:
    """Whether a selector with wildcards is about a name.

    >>> selects("truck-*", "truck-7"), selects("*", None), selects("hub", "hub-a")
    (True, True, False)
    """
    return selector == "*" or (name is not None and _pattern(selector).fullmatch(name) is not None)


def lengthened(change: Ttl, since: int, expiry: int) -> int:
    """When something expires that began `since` then and had this expiry."""
    if change.never:
        return _LAST
    if change.factor is not None:
        return min(since + round((expiry - since) * change.factor), _LAST)
    assert change.at_least is not None
    return max(expiry, since + duration(change.at_least))


def _about(what: str, node: str, participant: str) -> str:
    whose = "" if participant == "*" else f" to {participant}"
    where = "" if node == "*" else f" at {node}"
    return f"{'all ' if not whose else ''}{what}{whose}{where}"


def _with(peer: str) -> str:
    return "" if peer == "*" else f" with {peer}"


def _all(selector: str, what: str) -> str:
    return f"all {what}" if selector == "*" else selector


def _between(since: object, until: object) -> str:
    first = "" if since is None else f" from {since}"
    return first + ("" if until is None else f" until {until}")


def _invalid(problem: str) -> LocalError:
    return LocalError(
        f"invalid change: {problem}", rule=_RULE, hint="docs/how-to/ask-what-if.md has examples"
    )
