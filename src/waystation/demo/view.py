"""The display of the fleet while it runs: a live table in a terminal, otherwise lines.

It displays what it is given, and knows nothing of processes or journals.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Protocol, Self

from msgspec import Struct
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

_OUTCOMES: Final = ("DELIVERED", "FORWARDED", "QUEUED")
_LINES: Final = 8  # of the latest messages
EVERY: Final = 5.0
"""Seconds between lines about the traffic."""


class Picture(Struct, frozen=True):
    """A snapshot of the fleet: its processes, and the outcomes of messages at each node."""

    members: Mapping[str, str]  # transports by name
    absent: frozenset[str]
    counts: Mapping[str, Counter[str]]
    rates: Mapping[str, Mapping[str, float]]

    def dropped(self, node: str) -> Counter[str]:
        """Drops at a node, by reason."""
        found = self.counts.get(node, Counter())
        return Counter({word: n for word, n in found.items() if word not in _OUTCOMES and n})


class View(Protocol):
    """A display."""

    def __enter__(self) -> Self:
        """Start the display."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the display."""
        ...

    def say(self, line: str) -> None:
        """Show a message."""
        ...

    def draw(self, picture: Picture) -> None:
        """Show the current state of the fleet."""
        ...


def view_on(console: Console) -> View:
    """The display for a console: live if it is a terminal."""
    return LiveView(console) if console.is_terminal else Lines(console)


class Lines:
    """A display of one line per message, and now and then a line about the traffic."""

    def __init__(self, console: Console, *, every: float = EVERY) -> None:
        self._console = console
        self._every = every
        self._began = self._told = time.monotonic()

    def __enter__(self) -> Self:
        self._began = self._told = time.monotonic()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Does nothing."""

    def say(self, line: str) -> None:
        """Print the message with the time since the start."""
        self._console.print(
            Text(f"{time.monotonic() - self._began:6.1f} s  {line}"), soft_wrap=True
        )

    def draw(self, picture: Picture) -> None:
        """Print totals of the traffic, if enough time has passed."""
        now = time.monotonic()
        if now - self._told >= self._every and any(picture.counts.values()):
            self._told = now
            self.say(_sum(picture))


class LiveView:
    """A display of a table of the fleet with the latest messages below it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._said: deque[str] = deque(maxlen=_LINES)
        self._picture: Picture | None = None
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.stop()

    def say(self, line: str) -> None:
        """Add the message below the table."""
        self._said.append(f"{time.monotonic() - self._began:6.1f} s  {line}")
        self._show()

    def draw(self, picture: Picture) -> None:
        """Redraw the table."""
        self._picture = picture
        self._show()

    def _show(self) -> None:
        below = Text("\n".join(self._said), overflow="ellipsis", no_wrap=True)
        table = [] if self._picture is None else [_table(self._picture)]
        self._live.update(Group(*table, below), refresh=True)


def _table(picture: Picture) -> Table:
    table = Table(title=_sum(picture), title_justify="left", box=None, pad_edge=False)
    for column in ("", "transports", "delivered/s", "forwarded/s", "dropped/s", "drops by reason"):
        numeric = column.endswith("/s")
        table.add_column(column, justify="right" if numeric else "left", header_style="dim")
    for name, speaks in picture.members.items():
        rates, drops = picture.rates.get(name, {}), picture.dropped(name)
        delivered, forwarded = (rates.get(word, 0.0) for word in _OUTCOMES[:2])
        dropping = sum(rates.get(word, 0.0) for word in drops)
        away = name in picture.absent
        cells = [f"{rate:.0f}" for rate in (delivered, forwarded, dropping)]
        if away or not rates:
            cells = ["away" if away else "", "", ""]
        reasons = Text(_reasons(drops), "red" if dropping > 0 else "dim")
        table.add_row(Text(name, "dim red" if away else "bold"), speaks, *cells, reasons)
    return table


def _sum(picture: Picture) -> str:
    total: Counter[str] = Counter()
    drops: Counter[str] = Counter()
    for node, counted in picture.counts.items():
        total += counted
        drops += picture.dropped(node)
    told = f"{total['DELIVERED']:,} delivered, {total['FORWARDED']:,} forwarded"
    return f"{told}, {drops.total():,} dropped{f' ({_reasons(drops)})' if drops else ''}"


def _reasons(drops: Counter[str]) -> str:
    return ", ".join(f"{reason} {number:,}" for reason, number in drops.most_common())
