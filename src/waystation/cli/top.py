"""`waystation top`: a node as it is now, in the terminal, or in lines and JSON for programs.

What is shown is what the node's worker `waystation.status` tells; it must be switched on there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

import click
import msgspec
from msgspec import Struct
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from waystation.cli.options import SECONDS, SETTINGS, json_option
from waystation.cli.peer import URL, node_for, peer_options
from waystation.core.outcome import Outcome
from waystation.errors import LocalError, NoAnswerError, UndeliverableError
from waystation.node.runner import run, stop_signals
from waystation.node.status import STATUS, Question, Snapshot

_HELP: Final = """Watch a node: its messages, drops by reason, sessions and routing table.

The node must have [status] enabled = true, and its access rules must let this end ask
waystation.status. Away from a terminal it prints one line for each look.

\b
Examples:
  waystation top tcp://127.0.0.1:4000
  waystation top tcp://127.0.0.1:4000 --filter "truck-*" --interval 5
  waystation top tcp://127.0.0.1:4000 --once --json
"""
Look: TypeAlias = Callable[[], Awaitable[Snapshot]]
"""Asks the node once."""

_PATIENCE: Final = 10.0  # seconds for the session, however short a look may be
_OUTCOMES: Final = tuple(str(outcome) for outcome in Outcome if outcome is not Outcome.DROPPED)


class View(Struct, frozen=True, kw_only=True):
    """What to watch, and how often."""

    url: str
    interval: float
    once: bool
    filter: str
    routes: int
    timeout: float
    name: str


@click.command(help=_HELP, context_settings=SETTINGS)
@click.argument("url", type=URL)
@click.option("--interval", type=SECONDS, default=1.0, help="Seconds between two looks.")
@click.option("--once", is_flag=True, help="Look once, and end.")
@click.option("--filter", default="*", metavar="PATTERN", help="Only participants that fit.")
@click.option("--routes", default=20, type=click.IntRange(0, 1_000), help="So many at the most.")
@click.option("--timeout", type=SECONDS, default=10.0, help="Seconds to wait for an answer.")
@click.option("--name", default="top", help="What this end calls itself.")
@json_option
@peer_options
def top(*, as_json: bool, **options: Any) -> None:
    """Watch a node."""
    view = View(**{name: options.pop(name) for name in View.__struct_fields__})
    run(_watch(view, options, as_json=as_json))


async def _watch(view: View, options: dict[str, Any], *, as_json: bool) -> None:
    console = Console()
    async with node_for(view.name, [view.url], options) as node:
        await node.connect(view.url, name="watched", wait=max(view.timeout, _PATIENCE))
        with stop_signals() as told_to_end:  # until here Ctrl-C just ends it
            question = msgspec.json.encode(Question(routes=view.routes, filter=view.filter))

            async def look() -> Snapshot:
                route = f"watched => {STATUS}"
                try:
                    answer = await node.request(route, question, timeout=view.timeout)
                except (NoAnswerError, UndeliverableError) as error:
                    raise _no_status(view.url, error) from error
                return _read(answer.payload, view.url)

            if as_json or view.once or not console.is_terminal:
                await _print(look, view, told_to_end, console, as_json=as_json)
            else:
                await _draw(look, view, told_to_end, console)


def _no_status(url: str, error: Exception) -> LocalError:
    return LocalError(
        f"{url} does not tell its status ({error})",
        rule="OB-2",
        hint="let the node have [status] enabled = true, and let its access rules allow it",
    )


def _read(payload: bytes, url: str) -> Snapshot:
    try:
        return msgspec.json.decode(payload, type=Snapshot)
    except msgspec.MsgspecError as error:
        raise _no_status(url, error) from error


async def _print(
    look: Look, view: View, told_to_end: asyncio.Event, console: Console, *, as_json: bool
) -> None:
    """One look after the other: JSON or a line each; a single look as a whole picture."""
    seen: Snapshot | None = await look()
    while True:
        if seen is not None and as_json:
            click.echo(msgspec.json.encode(seen).decode())
        elif seen is not None and view.once:
            console.print(picture(seen))
        elif seen is not None:
            click.echo(line(seen))
        if view.once or await _is_over(view.interval, told_to_end):
            return
        try:
            seen = await look()
        except LocalError as error:  # it was there, and may come back
            seen = None
            click.echo(f"waystation: {error.problem}", err=True)


async def _draw(look: Look, view: View, told_to_end: asyncio.Event, console: Console) -> None:
    """Draw over what was there, until told to end."""
    drawn = picture(await look())
    with Live(drawn, console=console, screen=True, auto_refresh=False) as live:
        while not await _is_over(view.interval, told_to_end):
            try:
                drawn = picture(await look())
                live.update(drawn, refresh=True)
            except LocalError as error:  # what was seen last stays on the screen
                live.update(Group(Text(error.problem, "red"), drawn), refresh=True)


async def _is_over(seconds: float, told_to_end: asyncio.Event) -> bool:
    """Wait until the next look; says whether there is none."""
    try:
        await asyncio.wait_for(told_to_end.wait(), seconds)
    except TimeoutError:
        return False
    return True


def line(seen: Snapshot) -> str:
    """A snapshot on one line: what happened, and how often in a second."""
    counts = [
        f"{_harmless(name)} {count} ({seen.rates.get(name, 0):g}/s)"
        for name, count in _ordered(seen)
    ]
    words = ", ".join(counts) or "no messages yet"
    return (
        f"{_harmless(seen.node)} {_since(seen.uptime)}: {words}; "
        f"{seen.sessions_total} sessions, {seen.routes_total} routes"
    )


def picture(seen: Snapshot) -> RenderableType:
    """A snapshot for the eye."""
    parts: list[RenderableType] = [_head(seen), _messages(seen), _sessions(seen), _routes(seen)]
    return Group(*parts)


def _head(seen: Snapshot) -> Text:
    at = datetime.fromtimestamp(seen.at / 1000, UTC).strftime("%H:%M:%SZ")
    text = Text()
    text.append(_harmless(seen.node), "bold")
    text.append(f"  up {_since(seen.uptime)}  at {at}")
    text.append(f"  {seen.bytes:,} bytes ({seen.bytes_rate:,.0f}/s)")
    if seen.journal_lost is not None:
        text.append(f"  journal lost {seen.journal_lost}", "red" if seen.journal_lost else "")
    return text


def _messages(seen: Snapshot) -> Table:
    table = _table("messages", "outcome or reason", "count", "a second")
    for name, count in _ordered(seen):
        style = "" if name in _OUTCOMES else "red"
        table.add_row(_plain(name), f"{count:,}", f"{seen.rates.get(name, 0):,.1f}", style=style)
    return table


def _sessions(seen: Snapshot) -> Table:
    events = ", ".join(f"{_harmless(kind)} {count}" for kind, count in seen.session_events.items())
    title = f"sessions: {seen.sessions_total}" + (f" ({events})" if events else "")
    table = _table(title, "name", "peer", "place", "state", "waiting")
    for session in seen.sessions:
        state = "open" if session.open else "opening"
        table.add_row(
            _plain(session.name),
            _plain(session.peer or "-"),
            _plain(session.place),
            "stalled" if session.stalled else state,
            str(session.waiting),
        )
    return table


def _routes(seen: Snapshot) -> Table:
    title = f"routes: {len(seen.routes)} of {seen.routes_total}"
    table = _table(title, "participant", "address", "local", "visible", "expires in")
    for route in seen.routes:
        left = "-" if route.expiry is None else _since((route.expiry - seen.at) / 1000)
        marks = ("yes" if mark else "" for mark in (route.local, route.visible))
        table.add_row(
            _plain(route.participant),
            _plain(route.address),
            *marks,
            "sticky" if route.sticky else left,
        )
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=Text(title, "italic"), title_justify="left", box=None, pad_edge=False)
    for column in columns:
        numeric = column in ("count", "a second", "waiting")
        table.add_column(column, justify="right" if numeric else "left", header_style="dim")
    return table


def _ordered(seen: Snapshot) -> Iterable[tuple[str, int]]:
    """Outcomes first, then the reasons of drops, the most frequent first."""
    return sorted(seen.counts.items(), key=lambda pair: (pair[0] not in _OUTCOMES, -pair[1]))


def _since(seconds: float) -> str:
    return str(timedelta(seconds=int(max(0, seconds))))


def _plain(text: str) -> Text:
    """A cell that is no markup."""
    return Text(_harmless(text))


def _harmless(text: str) -> str:
    """A peer's words, without anything that a terminal would obey."""
    return "".join(mark if mark.isprintable() else "?" for mark in text)
