"""The view of the past: a moment, chosen on a timeline, and what moved then.

Collects values from history.py and movements.py, as views.py does for the present. Reading happens
in a thread, for one page at a time, and a journal is looked at for new rows at most every few
seconds. This module needs pyarrow.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from waystation.console.formatting import INTERNALS, full_instant, number, plain
from waystation.console.history import History, Tables
from waystation.console.layout import Options, draw
from waystation.console.moment import Moment, Traffic, moment
from waystation.console.movements import SECOND, Bucket, Movements, Moves, Timeline
from waystation.errors import LocalError

WINDOW: Final = 2 * SECOND
"""The time that one step of a replay shows, in microseconds, at the speed of the events."""

SPEEDS: Final = (1, 10, 60)
MAX_MOVES: Final = 300
"""Maximum number of steps that a replay of one window shows."""

LISTED: Final = 12
"""Number of steps, and of changes, that are listed."""

ROWS: Final = 50
REFRESH: Final = 2.0
"""Seconds between two looks for new rows."""

HEIGHT: Final = 40
"""The height of the timeline, in units of its drawing."""

_RECENT: Final = 600 * SECOND
_BUSY: Final = 10  # much is more than one in so many of what the busiest part of the time has


class PastRequest(Struct, frozen=True):
    """What a page asks for: a moment in microseconds (None: the latest traffic), and tables."""

    at: int | None = None
    node: str = ""
    find: str = ""
    speed: int = 1
    options: Options = Options()


class Drawing(Struct, frozen=True):
    """The timeline as SVG paths, in a box of one unit per bucket."""

    width: int
    messages: str
    drops: str


class Past:
    """The past of a fleet, as its journal tells it."""

    def __init__(self, journal: Path, console: str = "") -> None:
        self._console = console  # the name of its node, which is shown only among internals
        self._history = History(journal)
        self._movements = Movements(journal)
        self._reading = asyncio.Lock()
        self._refreshed = -REFRESH

    async def show(self, asked: PastRequest) -> dict[str, Any]:
        """The values of the view."""
        async with self._reading:
            return await asyncio.to_thread(self._show, asked)

    async def fleet(self, at: int, options: Options) -> dict[str, Any]:
        """The fleet of a moment and what had moved just before, without any tables."""
        async with self._reading:
            return await asyncio.to_thread(self._fleet, at, options)

    def _fleet(self, at: int, options: Options) -> dict[str, Any]:
        self._refresh()
        history, internals = self._history, options.internals
        moves = self._movements.between(at - WINDOW, at, 0, history, internals=internals)
        then = moment(history, at, Traffic(moves.rates, moves.drops), self._hidden(internals))
        return {"at": at, "moment": then, "picture": draw(then.graph, options), "options": options}

    def _show(self, asked: PastRequest) -> dict[str, Any]:
        self._refresh()
        history = self._history
        timeline = self._movements.timeline(history.first, history.last, history)
        if timeline is None:
            raise LocalError("the journal is empty", rule="OB-4", hint="let a node write to it")
        span = WINDOW * asked.speed
        at = latest_traffic(timeline) if asked.at is None else asked.at
        at = min(max(at, timeline.first), timeline.last)
        internals = asked.options.internals
        moves = self._movements.between(at, at + span, MAX_MOVES, history, internals=internals)
        hidden = self._hidden(internals)
        then = moment(history, at, Traffic(moves.rates, moves.drops), hidden)
        node = self._chosen(asked.node, then)
        return {
            "at": at,
            "span": span,
            "speed": asked.speed,
            "speeds": SPEEDS,
            "timeline": timeline,
            "drawing": drawing(timeline),
            "cursor": _share(at, timeline),
            "marks": self._marks(timeline),
            "moment": then,
            "picture": draw(then.graph, asked.options),
            "options": asked.options,
            "moves": moves,
            "listed": _listed(moves),
            "changes": history.changes(at - _RECENT, at + 1, LISTED, hidden),
            "node": node,
            "find": asked.find,
            "tables": self._tables(node, at, asked),
            "words": words(then, moves, span),
            "cut": history.is_cut or timeline.is_cut,
            "unread": history.unread,
            "problems": list(history.problems)[:LISTED],
        }

    def _hidden(self, internals: bool) -> str:
        return "" if internals else self._console

    def _refresh(self) -> None:
        now = time.monotonic()
        if now - self._refreshed >= REFRESH:
            self._history.refresh()
            self._movements.refresh()
            self._refreshed = time.monotonic()

    def _marks(self, timeline: Timeline) -> list[float]:
        """Where on the timeline something broke."""
        until = timeline.last + 1
        found = self._history.changes(timeline.first, until, 10_000, self._console)
        return sorted({round(_share(change.at, timeline), 1) for change in found if change.bad})

    def _chosen(self, name: str, then: Moment) -> str:
        names = [node.name for node in then.nodes]
        if name in names:
            return name
        hubs = [node.name for node in then.nodes if node.is_hub]
        return next(iter([*hubs, *names]), "")

    def _tables(self, node: str, at: int, asked: PastRequest) -> Tables:
        hidden = None if asked.options.internals else INTERNALS
        return self._history.tables(node, at, asked.find, ROWS, hidden=hidden)


def past_request(query: Mapping[str, str], options: Options) -> PastRequest:
    """What a query asks for; raises LocalError if it names no time."""
    speed = query.get("speed", "")
    return PastRequest(
        at=parse_moment(query.get("at", "")),
        node=query.get("node", ""),
        find=query.get("find", "").strip(),
        speed=int(speed) if speed in map(str, SPEEDS) else 1,
        options=options,
    )


def parse_moment(text: str) -> int | None:
    """A moment in microseconds, given as such or as a date and time; None if none is given.

    >>> parse_moment("1700000000123456"), parse_moment("2023-11-14 22:13:20.123Z"), parse_moment("")
    (1700000000123456, 1700000000123000, None)
    """
    given = text.strip()
    if not given:
        return None
    if given.isascii() and given.isdigit() and len(given) < 18:
        return int(given)
    try:
        told = datetime.fromisoformat(given)
        return round((told if told.tzinfo else told.replace(tzinfo=UTC)).timestamp() * SECOND)
    except (ValueError, OverflowError, OSError):
        raise LocalError(
            f"invalid time {plain(given)!r}", rule="OB-4", hint="such as 2026-05-01 12:00:00"
        ) from None


def drawing(timeline: Timeline) -> Drawing:
    """The bars of a timeline; small numbers stay visible beside large ones."""
    return Drawing(
        len(timeline.buckets),
        _bars(timeline, lambda bucket: bucket.messages),
        _bars(timeline, lambda bucket: bucket.drops),
    )


def _bars(timeline: Timeline, value: Callable[[Bucket], int]) -> str:
    parts = []
    for place, bucket in enumerate(timeline.buckets):
        if value(bucket):
            height = max(1.5, HEIGHT * (value(bucket) / timeline.most) ** 0.5)
            parts.append(f"M{place} {HEIGHT}v-{height:.1f}h.9v{height:.1f}z")
    return "".join(parts)


def latest_traffic(timeline: Timeline) -> int:
    """When much moved last: of a fleet that has ended, or is idle, the end shows little."""
    least = timeline.most / _BUSY
    busy = [place for place, one in enumerate(timeline.buckets) if one.messages > least]
    if not busy:
        return timeline.last
    length = (timeline.last - timeline.first) / len(timeline.buckets)
    return timeline.first + round(busy[-1] * length)


def _share(at: int, timeline: Timeline) -> float:
    """Where a moment is on the timeline, in units of its drawing."""
    length = timeline.last - timeline.first
    return round(len(timeline.buckets) * (at - timeline.first) / length, 2)


def _listed(moves: Moves) -> list[Any]:
    """The steps to list: drops before others."""
    chosen = sorted(moves.steps, key=lambda step: (not step.is_dropped, step.at))[:LISTED]
    return sorted(chosen, key=lambda step: step.at)


def words(then: Moment, moves: Moves, span: int) -> str:
    """A moment in a sentence."""
    here = sum(node.state == "here" for node in then.nodes)
    parts = [f"{number(here)} {'node' if here == 1 else 'nodes'} running"]
    if then.gone:
        parts.append(f"{number(then.gone)} gone")
    parts.append(f"{number(moves.total)} message steps in {number(span / SECOND)} s")
    if moves.dropped:
        parts.append(f"{number(moves.dropped)} dropped")
    return f"{full_instant(then.at)}: {', '.join(parts)}"
