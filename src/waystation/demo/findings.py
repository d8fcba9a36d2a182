"""Finds what went wrong in a fleet, from the evidence alone.

Each kind of problem has a function that finds it. A loss belongs to one finding: the first that
explains it claims it. Nothing here knows the injected faults; comparison.py compares them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, TypeAlias

from msgspec import Struct

from waystation.demo.evidence import (
    DELIVERED,
    VANISHED,
    Evidence,
    Incarnation,
    Interval,
    MessageOutcome,
)
from waystation.demo.faults import FaultKind
from waystation.why.spans import span

SECOND: Final = 1_000_000
SLACK: Final = 2 * SECOND
"""Maximum microseconds between a cause and the record of its effect."""

_RELATED: Final = 5 * SECOND  # losses within this time of each other are reported together
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EVER: Final = 1 << 62
_TELLING: Final = ("NO_ROUTE", "NO_SUBSCRIBER")  # the tables say most about these reasons
_UNREACHABLE: Final = frozenset({"NO_ROUTE", "TRANSPORT_DOWN"})
_INTERNAL: Final = ("request-", "waystation.", "subscriber-", "tcp-", "ws-", "mqtt-", "gossip-")

Mark: TypeAlias = tuple[str | None, str]
"""A message and a node."""

Explain: TypeAlias = Callable[[str], str | None]
"""Explains the loss of a message, by its id."""


class Finding(Struct, frozen=True):
    """Something that happened to the fleet, and the messages it cost."""

    kind: FaultKind
    subject: str
    began: int
    ended: int
    sentences: list[str]
    lost: int  # messages
    example: str | None  # the id of one of them
    claims: frozenset[Mark]


class Losses:
    """The losses that no finding has explained yet."""

    def __init__(self, evidence: Evidence) -> None:
        self._left = list(evidence.losses)

    def __iter__(self) -> Iterator[MessageOutcome]:
        return iter(list(self._left))

    def claim(self, explains: Callable[[MessageOutcome], bool]) -> list[MessageOutcome]:
        """Remove and return the losses that are explained."""
        claimed = [drop for drop in self._left if explains(drop)]
        self._left = [drop for drop in self._left if not explains(drop)]
        return claimed


def find(evidence: Evidence, explain: Explain) -> list[Finding]:
    """All findings in the order of time."""
    losses = Losses(evidence)
    finders = (find_restarts, find_deaths, find_expiries, find_full_queues)
    found = [finding for finder in finders for finding in finder(evidence, losses)]
    found += find_unheard(losses, explain)
    return sorted(found, key=lambda finding: finding.began)


def find_restarts(evidence: Evidence, losses: Losses) -> Iterator[Finding]:
    """Nodes that were stopped and restarted, and what that cost."""
    for life in evidence.incarnations():
        if life.is_cut_off or life.next_began is None:
            continue
        away = _Outage.of(evidence, life, life.next_began)
        cost = losses.claim(away.explains)
        known = ""
        names = listed(name for name in sorted(away.behind.names) if not is_internal(name))
        if names:
            known = f" {span(away.known_again - life.next_began)} later it knew {names} again."
        stopped = (
            f"{life.node} stopped at {clock(life.last_word)} and restarted at "
            f"{clock(life.next_began)}.{known}"
        )
        window = (life.last_word, away.known_again)
        yield _finding(FaultKind.RESTARTED, life.node, cost, [stopped, _costs(cost)], window)


class _Unreachable(Struct, frozen=True):
    """Participants that could not be reached, and the period in which that mattered."""

    names: frozenset[str]
    since: int
    until: int
    back: dict[tuple[str, str], int]  # when each node knew each of them again

    @classmethod
    def of(cls, evidence: Evidence, names: Iterable[str], since: int, until: int) -> _Unreachable:
        absent = frozenset(names)
        back: dict[tuple[str, str], int] = {}
        for interval in evidence.intervals:
            if interval.participant in absent and interval.valid_from >= until:
                back.setdefault((interval.node, interval.participant), interval.valid_from)
        return cls(absent, since, until + SLACK, back)

    def explains(self, drop: MessageOutcome) -> bool:
        """Whether a message was lost because it was for one of them."""
        if drop.reason not in _UNREACHABLE or drop.recipient not in self.names:
            return False
        back = self.back.get((drop.node, drop.recipient or ""), 0)
        return self.since <= drop.at <= max(back, self.until)


class _Outage(Struct, frozen=True):
    """A node that was down: the participants behind it, its leaves, and its end."""

    node: str
    leaves: frozenset[str]
    known_again: int
    behind: _Unreachable

    @classmethod
    def of(cls, evidence: Evidence, life: Incarnation, next_began: int) -> _Outage:
        mine = [i for i in evidence.intervals if i.node == life.node and _is_of_a_leaf(i)]
        since = life.last_word - SLACK
        before = {
            interval.participant
            for interval in mine
            if interval.incarnation == life.incarnation and (interval.valid_to or _EVER) >= since
        }
        again: dict[str, int] = {}
        for interval in mine:
            if interval.incarnation > life.incarnation and interval.participant in before:
                again.setdefault(interval.participant, interval.valid_from)
        known = max([next_began, *again.values()])
        leaves = frozenset(i.node for i in evidence.intervals if i.participant == life.node)
        return cls(life.node, leaves, known, _Unreachable.of(evidence, again, since, known))

    def explains(self, drop: MessageOutcome) -> bool:
        """Whether the outage explains a loss."""
        if drop.reason == "QUEUE_FULL":
            return False
        near = drop.node == self.node or drop.node in self.leaves
        lasts = self.behind.since <= drop.at <= self.behind.until
        cut_off = lasts and (near or drop.reason == "TRANSPORT_DOWN")
        vanished = lasts and drop.reason == VANISHED and drop.next_node == self.node
        return cut_off or vanished or self.behind.explains(drop)


def find_deaths(evidence: Evidence, losses: Losses) -> Iterator[Finding]:
    """Nodes that crashed: their journal breaks off, and continues with a new incarnation."""
    for life in evidence.incarnations():
        if not life.is_cut_off or life.next_began is None:
            continue
        own = {i.participant for i in evidence.intervals if i.node == life.node and i.is_own}
        unreachable = _Unreachable.of(evidence, own, life.last_word, life.next_began)
        cost = losses.claim(partial(_died, life=life, unreachable=unreachable))
        noticed = _missed(evidence, life, unreachable)
        missed = "" if noticed is None else f"; other nodes noticed {span(noticed)} later"
        ended = (
            f"{life.node} crashed: its journal breaks off at "
            f"{clock(life.last_word)}{missed}. It restarted at {clock(life.next_began)}."
        )
        lived = (life.last_word, life.next_began)
        yield _finding(FaultKind.KILLED, life.node, cost, [ended, _costs(cost)], lived)


def _died(drop: MessageOutcome, life: Incarnation, unreachable: _Unreachable) -> bool:
    """Whether a message was lost because a node crashed: on the way there, or for want of it."""
    lasts = life.last_word - SLACK <= drop.at <= unreachable.until
    on_the_way = drop.reason in (VANISHED, "TRANSPORT_DOWN") and drop.next_node == life.node
    return (lasts and on_the_way) or unreachable.explains(drop)


def _missed(evidence: Evidence, life: Incarnation, unreachable: _Unreachable) -> int | None:
    """How long after a node's last record another one noticed."""
    noticed = [
        interval.valid_to
        for interval in evidence.intervals
        if interval.participant in unreachable.names
        and interval.node != life.node
        and interval.closed_by == "removed"
        and interval.valid_to is not None
        and unreachable.since <= interval.valid_to <= unreachable.until
    ]
    return min(noticed) - life.last_word if noticed else None


def find_expiries(evidence: Evidence, losses: Losses) -> Iterator[Finding]:
    """Routes that expired while messages for them still arrived."""
    entries: defaultdict[tuple[str, str], list[Interval]] = defaultdict(list)
    for interval in evidence.intervals:
        entries[interval.node, interval.participant].append(interval)
    for (node, participant), history in entries.items():
        for interval, after in zip(history, [*history[1:], None], strict=True):
            if interval.closed_by != "expired" or interval.valid_to is None:
                continue
            gap = (interval.valid_to, _EVER if after is None else after.valid_from)
            names, reasons = frozenset({participant}), frozenset({"NO_ROUTE"})
            cost = losses.claim(
                partial(_is_among, node=node, window=gap, recipients=names, reasons=reasons)
            )
            if cost:
                sentence = _expiry(cost, participant, gap)
                until = min(gap[1], cost[-1].at)
                yield _finding(FaultKind.EXPIRED, participant, cost, [sentence], (gap[0], until))


def _expiry(cost: Sequence[MessageOutcome], participant: str, gap: tuple[int, int]) -> str:
    first, last = cost[0], cost[-1]
    again = "" if gap[1] == _EVER else f"; a new one came {span(gap[1] - last.at)} after the last"
    return (
        f"{_messages(len(cost))} to {participant} {_were(len(cost))} dropped at {first.node} "
        f"{_when(cost)} (NO_ROUTE): its route had expired {span(first.at - gap[0])} before the "
        f"first{again}."
    )


def find_full_queues(evidence: Evidence, losses: Losses) -> Iterator[Finding]:
    """Receivers whose queue was full."""
    full = frozenset({"QUEUE_FULL"})
    for node in sorted({drop.node for drop in losses if drop.reason in full}):
        for cost in _bursts(losses.claim(partial(_is_among, node=node, reasons=full))):
            ids = {drop.message_id for drop in cost}
            elsewhere = {
                message_outcome.message_id
                for message_outcome in evidence.outcomes
                if message_outcome.outcome == DELIVERED and message_outcome.node != node
            }
            sentence = (
                f"{_messages(len(cost))} {_were(len(cost))} dropped at {node} {_when(cost)} "
                "(QUEUE_FULL): the receiver's queue was full. "
                f"{len(ids & elsewhere)} of them were delivered elsewhere."
            )
            yield _finding(FaultKind.STALLED, node, cost, [sentence], (cost[0].at, cost[-1].at))


def find_unheard(losses: Losses, explain: Explain) -> Iterator[Finding]:
    """Broadcasts without any receiver."""
    by_id: defaultdict[str, list[MessageOutcome]] = defaultdict(list)
    for drop in losses.claim(partial(_is_among, reasons=frozenset({"NO_SUBSCRIBER"}))):
        by_id[drop.multicast_id or ""].append(drop)
    for multicast_id, cost in by_id.items():
        number = len({drop.message_id for drop in cost})
        why = explain(cost[-1].message_id)
        nodes = listed(dict.fromkeys(drop.node for drop in cost))
        sentence = (
            f"{number} broadcast{'s' * (number != 1)} under {multicast_id} had no receiver "
            f"(NO_SUBSCRIBER at {nodes}){f': {why}' if why else ''}."
        )
        provider = multicast_id.partition("/")[0]
        yield _finding(FaultKind.UNHEARD, provider, cost, [sentence], (cost[0].at, cost[-1].at))


# Internals


def _is_among(
    drop: MessageOutcome,
    *,
    node: str | None = None,
    window: tuple[int, int] = (0, _EVER),
    recipients: frozenset[str] | None = None,
    reasons: frozenset[str],
) -> bool:
    return (
        drop.reason in reasons
        and window[0] <= drop.at < window[1]
        and (node is None or drop.node == node)
        and (recipients is None or drop.recipient in recipients)
    )


def _finding(
    kind: FaultKind,
    subject: str,
    cost: Sequence[MessageOutcome],
    sentences: list[str],
    window: tuple[int, int],
) -> Finding:
    telling = sorted(cost, key=lambda drop: drop.reason not in _TELLING)
    plain = (drop.message_id for drop in telling if not is_internal(drop.recipient or ""))
    return Finding(
        kind,
        subject,
        *window,
        sentences,
        len({drop.message_id for drop in cost}),
        next(plain, cost[0].message_id if cost else None),
        frozenset((drop.message_id, drop.node) for drop in cost),
    )


def _costs(cost: Sequence[MessageOutcome]) -> str:
    """What was lost, by node and reason."""
    if not cost:
        return "It cost no messages."
    places = Counter((drop.node, drop.reason) for drop in cost)
    told = [f"{number} at {node} ({reason})" for (node, reason), number in places.most_common()]
    recipients = {drop.recipient for drop in cost}
    to = f" to {recipients.pop()}" if len(recipients) == 1 and None not in recipients else ""
    were = f"{_messages(len(cost))}{to} {_were(len(cost))}"
    return f"{were} lost {_when(cost)}: {', '.join(told)}."


def _bursts(drops: Sequence[MessageOutcome]) -> Iterator[list[MessageOutcome]]:
    """Groups of losses that are close in time."""
    burst: list[MessageOutcome] = []
    for drop in drops:
        if burst and drop.at > burst[-1].at + _RELATED:
            yield burst
            burst = []
        burst.append(drop)
    if burst:
        yield burst


def _is_of_a_leaf(interval: Interval) -> bool:
    """Whether an entry is of a participant behind a leaf: local, and reached over a session."""
    return interval.local and interval.address.startswith("0#") and not interval.is_own


def is_internal(name: str) -> bool:
    """Whether a name is internal to the nodes."""
    return name.startswith(_INTERNAL)


def clock(microseconds: int) -> str:
    """The time of day, to the millisecond, UTC.

    >>> clock(1_700_000_000_120_900)
    '22:13:20.120'
    """
    moment = _EPOCH + timedelta(microseconds=microseconds)
    return f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03}"


def day_and_clock(microseconds: int) -> str:
    """A time in the format that commands accept.

    >>> day_and_clock(1_700_000_000_120_900)
    '2023-11-14T22:13:20.120Z'
    """
    moment = _EPOCH + timedelta(microseconds=microseconds)
    return f"{moment:%Y-%m-%d}T{clock(microseconds)}Z"


def listed(names: Iterable[str]) -> str:
    """Names joined with commas and "and".

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    found = list(names)
    return f"{', '.join(found[:-1])} and {found[-1]}" if len(found) > 1 else "".join(found)


def _when(cost: Sequence[MessageOutcome]) -> str:
    first, last = cost[0].at, cost[-1].at
    return f"between {clock(first)} and {clock(last)}" if len(cost) > 1 else f"at {clock(first)}"


def _messages(number: int) -> str:
    return f"{number:,} message{'s' * (number != 1)}"


def _were(number: int) -> str:
    return "were" if number != 1 else "was"
