"""`waystation top`: watch a node in the terminal, or print its status as lines or JSON.

It requests snapshots from the node's worker `waystation.status`, which must be enabled there.
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
from waystation.core.budget import MIB
from waystation.core.outcome import Outcome
from waystation.errors import LocalError, NoReplyError, UndeliverableError
from waystation.node.contested import ClaimsSnapshot
from waystation.node.flow import Snapshot as Load
from waystation.node.runner import run, stop_signals
from waystation.node.status import STATUS, Question, Snapshot

_HELP: Final = """Watch a node: its messages, drops by reason, sessions and routing table.

The node must have [status] enabled = true, and its access rules must allow requests to
waystation.status. If stdout is not a terminal, it prints one line per poll.

\b
Examples:
  waystation top tcp://127.0.0.1:4000
  waystation top tcp://127.0.0.1:4000 --filter "truck-*" --interval 5
  waystation top tcp://127.0.0.1:4000 --once --json
"""
Look: TypeAlias = Callable[[], Awaitable[Snapshot]]
"""Requests one snapshot from the node."""

_CONNECT_TIMEOUT: Final = 10.0  # seconds at least, however short --timeout is
_CONTESTED: Final = 10  # names that are shown, of those that several owners claim
_OUTCOMES: Final = tuple(str(outcome) for outcome in Outcome if outcome is not Outcome.DROPPED)


class View(Struct, frozen=True, kw_only=True):
    """What to watch, and how."""

    url: str
    interval: float
    once: bool
    filter: str
    routes: int
    timeout: float
    name: str


@click.command(help=_HELP, context_settings=SETTINGS)
@click.argument("url", type=URL)
@click.option("--interval", type=SECONDS, default=1.0, help="Seconds between polls.")
@click.option("--once", is_flag=True, help="Poll once and exit.")
@click.option(
    "--filter", default="*", metavar="PATTERN", help="Only routes of participants that match."
)
@click.option(
    "--routes", default=20, type=click.IntRange(0, 1_000), help="Maximum number of routes to show."
)
@click.option("--timeout", type=SECONDS, default=10.0, help="Seconds to wait for a reply.")
@click.option("--name", default="top", help="Name of this node.")
@json_option
@peer_options
def top(*, as_json: bool, **options: Any) -> None:
    """Watch a node."""
    view = View(**{name: options.pop(name) for name in View.__struct_fields__})
    run(_watch(view, options, as_json=as_json))


async def _watch(view: View, options: dict[str, Any], *, as_json: bool) -> None:
    console = Console()
    async with node_for(view.name, [view.url], options) as node:
        await node.connect(view.url, name="watched", wait=max(view.timeout, _CONNECT_TIMEOUT))
        with stop_signals() as stop:  # before this, Ctrl-C ends the process
            asked = Question(routes=view.routes, filter=view.filter, contested=_CONTESTED)
            question = msgspec.json.encode(asked)

            async def look() -> Snapshot:
                route = f"watched => {STATUS}"
                try:
                    reply = await node.request(route, question, timeout=view.timeout)
                except (NoReplyError, UndeliverableError) as error:
                    raise _no_status(view.url, error) from error
                return _read(reply.payload, view.url)

            if as_json or view.once or not console.is_terminal:
                await _print(look, view, stop, console, as_json=as_json)
            else:
                await _draw(look, view, stop, console)


def _no_status(url: str, error: Exception) -> LocalError:
    return LocalError(
        f"cannot get the status of {url} ({error})",
        rule="OB-2",
        hint="set [status] enabled = true there, and allow waystation.status in its access rules",
    )


def _read(payload: bytes, url: str) -> Snapshot:
    try:
        return msgspec.json.decode(payload, type=Snapshot)
    except msgspec.MsgspecError as error:
        raise _no_status(url, error) from error


async def _print(
    look: Look, view: View, stop: asyncio.Event, console: Console, *, as_json: bool
) -> None:
    """Poll and print: JSON or one line per poll; with --once, the full picture."""
    seen: Snapshot | None = await look()
    while True:
        if seen is not None and as_json:
            click.echo(msgspec.json.encode(seen).decode())
        elif seen is not None and view.once:
            console.print(picture(seen))
        elif seen is not None:
            click.echo(line(seen))
        if view.once or await _stopped_within(view.interval, stop):
            return
        try:
            seen = await look()
        except LocalError as error:  # it replied before, and may come back
            seen = None
            click.echo(f"waystation: {error.problem}", err=True)


async def _draw(look: Look, view: View, stop: asyncio.Event, console: Console) -> None:
    """Redraw the picture on every poll, until asked to stop."""
    drawn = picture(await look())
    with Live(drawn, console=console, screen=True, auto_refresh=False) as live:
        while not await _stopped_within(view.interval, stop):
            try:
                drawn = picture(await look())
                live.update(drawn, refresh=True)
            except LocalError as error:  # keep the last picture on the screen
                live.update(Group(Text(error.problem, "red"), drawn), refresh=True)


async def _stopped_within(seconds: float, stop: asyncio.Event) -> bool:
    """Wait for the next poll; return True if asked to stop meanwhile."""
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return False
    return True


def line(seen: Snapshot) -> str:
    """A snapshot on one line: counts of outcomes, and rates per second."""
    counts = [
        f"{_printable(name)} {count} ({seen.rates.get(name, 0):g}/s)"
        for name, count in _ordered(seen)
    ]
    text = ", ".join(counts) or "no messages yet"
    contested = f", {seen.contested_total} contested names" if seen.contested_total else ""
    return (
        f"{_printable(seen.node)} {_since(seen.uptime)}: {text}; "
        f"{seen.sessions_total} sessions, {seen.routes_total} routes{contested}"
    )


def picture(seen: Snapshot) -> RenderableType:
    """A snapshot as tables."""
    parts: list[RenderableType] = [_head(seen), _messages(seen), _sessions(seen)]
    if seen.flow is not None and (seen.flow.receivers or seen.flow.sessions):
        parts.append(_flow(seen.flow))
    if seen.claims is not None and seen.claims != ClaimsSnapshot(seen.claims.claims):
        parts.append(_claims(seen, seen.claims))
    return Group(*parts, _routes(seen))


def _head(seen: Snapshot) -> Text:
    at = datetime.fromtimestamp(seen.at / 1000, UTC).strftime("%H:%M:%SZ")
    text = Text()
    text.append(_printable(seen.node), "bold")
    text.append(f"  version {_printable(seen.version)}  up {_since(seen.uptime)}  at {at}")
    text.append(f"  {seen.bytes:,} bytes ({seen.bytes_rate:,.0f}/s)")
    if seen.flow is not None:
        full = 2 * seen.flow.used > seen.flow.limit
        used = f"  holds {seen.flow.used / MIB:,.1f} of {seen.flow.limit / MIB:,.0f} MiB"
        text.append(used, "red" if full else "")
    if seen.journal_lost is not None:
        text.append(f"  journal lost {seen.journal_lost}", "red" if seen.journal_lost else "")
    if seen.clock_off:
        off = timedelta(seconds=abs(seen.clock_offset_us) // 1_000_000)
        text.append(f"  wall clock off by {off}", "red")
    elif seen.clock_slewing:
        text.append(f"  clock {seen.clock_offset_us / 1e6:+.3f} s, being corrected", "yellow")
    return text


def _messages(seen: Snapshot) -> Table:
    table = _table("messages", "outcome or reason", "count", "per second")
    for name, count in _ordered(seen):
        style = "" if name in _OUTCOMES else "red"
        table.add_row(_plain(name), f"{count:,}", f"{seen.rates.get(name, 0):,.1f}", style=style)
    return table


def _sessions(seen: Snapshot) -> Table:
    events = ", ".join(f"{_printable(kind)} {count}" for kind, count in seen.session_events.items())
    title = f"sessions: {seen.sessions_total}" + (f" ({events})" if events else "")
    table = _table(title, "name", "peer", "version", "place", "state", "waiting")
    for session in seen.sessions:
        state = "open" if session.open else "opening"
        table.add_row(
            _plain(session.name),
            _plain(session.peer or "-"),
            _plain(session.version or "-"),
            _plain(session.place),
            "stalled" if session.stalled else state,
            str(session.waiting),
        )
    return table


def _flow(flow: Load) -> Table:
    """What waits for whom, and who is held back because of it; the largest first."""
    title = f"waiting: {flow.holds} names held here, {flow.held} at peers, {flow.unread} not read"
    table = _table(title, "receiver or session", "bytes", "messages", "held names")
    for receiver in flow.receivers:
        table.add_row(_plain(receiver.name), f"{receiver.bytes:,}", f"{receiver.messages:,}", "")
    for session in flow.sessions:
        held = [*(f"here {name}" for name in session.holds), *session.held]
        some = ", ".join(held[:3]) + (f" and {len(held) - 3} more" if len(held) > 3 else "")
        state = "" if session.is_read else "not read  "
        row = (_plain(f"from {session.name}"), f"{session.bytes:,}", "", _plain(state + some))
        table.add_row(*row)
    return table


def _claims(seen: Snapshot, claims: ClaimsSnapshot) -> RenderableType:
    """Who claims names that others have, and how many had to wait or were refused."""
    text = (
        f"claims: {claims.claims}, {claims.standbys} standing by, {claims.held_back} names held "
        f"back, {sum(claims.refused.values())} refused, {claims.silent} of {claims.probes} probes "
        "unanswered"
    )
    title = f"contested names: {len(seen.contested)} of {seen.contested_total}"
    table = _table(title, "name", "holder", "standing by", "for")
    for contest in seen.contested:
        nodes = [standby.node for standby in contest.standbys]
        some = ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")
        held = _since((seen.at - contest.since) / 1000)
        table.add_row(_plain(contest.participant), _plain(contest.holder), _plain(some), held)
    return Group(Text(text, "italic"), *([table] if seen.contested else []))


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
        numeric = column in ("count", "per second", "waiting", "bytes", "messages")
        table.add_column(column, justify="right" if numeric else "left", header_style="dim")
    return table


def _ordered(seen: Snapshot) -> Iterable[tuple[str, int]]:
    """Counts by outcome first, then by drop reason, the most frequent first."""
    return sorted(seen.counts.items(), key=lambda pair: (pair[0] not in _OUTCOMES, -pair[1]))


def _since(seconds: float) -> str:
    return str(timedelta(seconds=int(max(0, seconds))))


def _plain(text: str) -> Text:
    """A cell whose text is not interpreted as markup."""
    return Text(_printable(text))


def _printable(text: str) -> str:
    """Text from a peer, with control characters replaced."""
    return "".join(mark if mark.isprintable() else "?" for mark in text)
