"""`waystation top`: watch nodes in the terminal, or print their status as lines or JSON.

It requests snapshots from the worker `waystation.status` of each node, which must be enabled there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

import click
import msgspec
from msgspec import Struct
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from waystation.cli.options import SECONDS, SETTINGS, json_option, print_json
from waystation.cli.peer import URL, node_for, peer_options
from waystation.core.budget import MIB
from waystation.core.outcome import Outcome
from waystation.core.spoken import is_internal, place
from waystation.errors import LocalError, NoReplyError, UndeliverableError
from waystation.node import Node
from waystation.node.contested import ClaimsSnapshot
from waystation.node.flow import Snapshot as Load
from waystation.node.runner import run, stop_signals
from waystation.node.status import STATUS, Question, RouteStatus, Snapshot

_HELP: Final = """Watch a node: its messages, drops by reason, sessions and routing table.

With several URLs, watch one line per node. A node must have [status] enabled = true, and its access
rules must allow requests to waystation.status. If stdout is not a terminal, one line per node and
poll is printed.

\b
Examples:
  waystation top tcp://127.0.0.1:4000
  waystation top tcp://hub-a:4000 tcp://hub-b:4000
  waystation top tcp://127.0.0.1:4000 --filter "truck-*" --interval 5
  waystation top tcp://127.0.0.1:4000 --once --json
"""
Look: TypeAlias = Callable[[], Awaitable[Snapshot]]
"""Requests one snapshot from a node."""

_HISTORY: Final = 30  # polls that a sparkline shows
_NUMERIC: Final = (
    "count", "per second", "waiting", "bytes", "messages", "messages/s", "dropped/s", "sessions",
    "routes",
)  # fmt: skip
_BARS: Final = "▁▂▃▄▅▆▇█"

_CONNECT_TIMEOUT: Final = 10.0  # seconds at least, however short --timeout is
_CONTESTED: Final = 10  # names that are shown, of those that several owners claim
_OUTCOMES: Final = tuple(str(outcome) for outcome in Outcome if outcome is not Outcome.DROPPED)


class View(Struct, frozen=True, kw_only=True):
    """What to watch, and how."""

    urls: tuple[str, ...]
    interval: float
    once: bool
    filter: str
    routes: int
    internals: bool
    timeout: float
    name: str


@click.command(help=_HELP, context_settings=SETTINGS)
@click.argument("urls", metavar="URL...", type=URL, nargs=-1, required=True)
@click.option("--interval", type=SECONDS, default=1.0, help="Seconds between polls.")
@click.option("--once", is_flag=True, help="Poll once and exit.")
@click.option(
    "--filter", default="*", metavar="PATTERN", help="Only routes of participants that match."
)
@click.option(
    "--routes", default=20, type=click.IntRange(0, 1_000), help="Maximum number of routes to show."
)
@click.option(
    "--internals", is_flag=True, help="Also names that only nodes use, such as those of sessions."
)
@click.option("--timeout", type=SECONDS, default=10.0, help="Seconds to wait for a reply.")
@click.option("--name", default="top", help="Name of this node.")
@json_option
@peer_options
def top(*, as_json: bool, **options: Any) -> None:
    """Watch a node."""
    view = View(**{name: options.pop(name) for name in View.__struct_fields__})
    run(_watch(view, options, as_json=as_json))


class Watched:
    """A node that is watched: its last snapshot, why there is none, and its traffic."""

    def __init__(self, url: str, look: Look) -> None:
        self.url = url
        self.look = look
        self.seen: Snapshot | None = None
        self.problem = ""
        self.traffic: deque[tuple[float, float]] = deque(maxlen=_HISTORY)  # messages, drops

    async def poll(self) -> Snapshot:
        """Request a snapshot; raises a LocalError if there is none."""
        try:
            seen = await self.look()
        except LocalError as error:
            self.problem = error.problem
            self.traffic.append((0.0, 0.0))
            raise
        self.seen, self.problem = seen, ""
        drops = sum(rate for name, rate in seen.rates.items() if name not in _OUTCOMES)
        self.traffic.append((sum(seen.rates.values()), drops))
        return seen

    async def poll_if_there(self) -> None:
        """Request a snapshot; what is wrong is remembered."""
        with suppress(LocalError):
            await self.poll()


async def _watch(view: View, options: dict[str, Any], *, as_json: bool) -> None:
    console = Console()
    wait = max(view.timeout, _CONNECT_TIMEOUT)
    async with node_for(view.name, view.urls, options) as node:
        watched = [
            Watched(url, _looks(node, f"watched-{number}", url, view))
            for number, url in enumerate(dict.fromkeys(view.urls), 1)
        ]
        single = watched[0] if len(watched) == 1 else None
        for number, one in enumerate(watched, 1):
            session = await node.connect(
                one.url, name=f"watched-{number}", wait=wait if single else None
            )
            if single is None and not session.is_open:  # the others are shown meanwhile
                await asyncio.wait([session.change], timeout=wait / len(watched))
        with stop_signals() as stop:  # before this, Ctrl-C ends the process
            printed = as_json or view.once or not console.is_terminal
            if single is not None:
                if printed:
                    await _print(single, view, stop, console, as_json=as_json)
                else:
                    await _draw(single, view, stop, console)
            elif printed:
                await _print_several(watched, view, stop, console, as_json=as_json)
            else:
                await _draw_several(watched, view, stop, console)


def _looks(node: Node, session: str, url: str, view: View) -> Look:
    """What requests snapshots of a node over a session."""
    asked = Question(routes=view.routes, filter=view.filter, contested=_CONTESTED)
    question = msgspec.json.encode(asked)

    async def look() -> Snapshot:
        try:
            reply = await node.request(f"{session} => {STATUS}", question, timeout=view.timeout)
        except (NoReplyError, UndeliverableError) as error:
            raise _no_status(url, error) from error
        return _read(reply.payload, url)

    return look


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
    one: Watched, view: View, stop: asyncio.Event, console: Console, *, as_json: bool
) -> None:
    """Poll and print: JSON or one line per poll; with --once, the full picture."""
    seen: Snapshot | None = await one.poll()
    while True:
        if seen is not None and as_json:
            print_json(seen)
        elif seen is not None and view.once:
            console.print(picture(seen, one.traffic, internals=view.internals))
        elif seen is not None:
            click.echo(line(seen))
        if view.once or await _stopped_within(view.interval, stop):
            return
        try:
            seen = await one.poll()
        except LocalError as error:  # it replied before, and may come back
            seen = None
            click.echo(f"waystation: {error.problem}", err=True)


async def _draw(one: Watched, view: View, stop: asyncio.Event, console: Console) -> None:
    """Redraw the picture on every poll, until asked to stop."""
    drawn = picture(await one.poll(), one.traffic, internals=view.internals)
    with Live(drawn, console=console, screen=True, auto_refresh=False) as live:
        while not await _stopped_within(view.interval, stop):
            try:
                drawn = picture(await one.poll(), one.traffic, internals=view.internals)
                live.update(drawn, refresh=True)
            except LocalError as error:  # keep the last picture on the screen
                live.update(Group(Text(error.problem, "red"), drawn), refresh=True)


async def _print_several(
    watched: list[Watched], view: View, stop: asyncio.Event, console: Console, *, as_json: bool
) -> None:
    """Poll and print: JSON or a line for each node; with --once, a table."""
    while True:
        await asyncio.gather(*(one.poll_if_there() for one in watched))
        if view.once and not as_json:
            console.print(overview(watched))
        else:
            for one in watched:
                if one.problem or one.seen is None:
                    click.echo(f"waystation: {one.problem or 'no status'}", err=True)
                else:
                    told = msgspec.json.encode(one.seen).decode() if as_json else line(one.seen)
                    click.echo(told)
        if view.once or await _stopped_within(view.interval, stop):
            break
    if view.once and all(one.seen is None for one in watched):
        raise LocalError(watched[0].problem, rule="OB-2", hint="check the URLs")


async def _draw_several(
    watched: list[Watched], view: View, stop: asyncio.Event, console: Console
) -> None:
    """Redraw the table of all nodes on every poll, until asked to stop."""
    with Live(overview(watched), console=console, screen=True, auto_refresh=False) as live:
        while True:
            await asyncio.gather(*(one.poll_if_there() for one in watched))
            live.update(overview(watched), refresh=True)
            if await _stopped_within(view.interval, stop):
                return


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
    durable = "" if seen.custody is None else f", {seen.custody.messages} durable"
    contested = f", {seen.contested_total} contested names" if seen.contested_total else ""
    return (
        f"{_printable(seen.node)} {_since(seen.uptime)}: {text}; "
        f"{seen.sessions_total} sessions, {seen.routes_total} routes{durable}{contested}"
    )


def sparkline(values: Iterable[float]) -> str:
    """Values as bars, the largest as high as possible.

    >>> sparkline([0, 4, 8, 14])
    '▁▃▅█'
    """
    found = list(values)
    most = max(found, default=0) or 1
    return "".join(_BARS[round(value / most * (len(_BARS) - 1))] for value in found)


def overview(watched: Iterable[Watched]) -> Table:
    """Several nodes as a table, a line for each; those in trouble are red."""
    columns = ("node", "up", "messages/s", "", "dropped/s", "", "sessions", "routes", "trouble")
    table = _table("", *columns)
    for one in watched:
        seen = one.seen
        if seen is None:
            table.add_row(
                _plain(one.url), *[""] * 7, _plain(one.problem or "connecting"), style="red"
            )
            continue
        messages, drops = one.traffic[-1]
        table.add_row(
            _plain(seen.node),
            _since(seen.uptime),
            f"{messages:,.1f}",
            sparkline(all for all, _ in one.traffic),
            f"{drops:,.1f}",
            sparkline(bad for _, bad in one.traffic) if any(bad for _, bad in one.traffic) else "",
            f"{seen.sessions_total:,}",
            f"{seen.routes_total:,}",
            _plain(", ".join(_troubles(one, seen))),
            style="red" if one.problem else "",
        )
    return table


def _troubles(one: Watched, seen: Snapshot) -> Iterable[str]:
    """What is wrong with a node, in words."""
    if one.problem:
        yield "away"
    if seen.journal_lost:
        yield f"journal lost {seen.journal_lost:,}"
    if seen.contested_total:
        yield f"{seen.contested_total:,} contested"
    if seen.custody is not None and seen.custody.dead:
        yield f"{seen.custody.dead:,} dead"
    stalled = sum(session.stalled for session in seen.sessions)
    if stalled:
        yield f"{stalled} stalled"
    if seen.clock_off:
        yield "wall clock off"


def picture(
    seen: Snapshot, traffic: Sequence[tuple[float, float]] = (), *, internals: bool = False
) -> RenderableType:
    """A snapshot as tables."""
    head = _head(seen)
    if len(traffic) > 1:
        head.append(f"  {sparkline(all for all, _ in traffic)}", "cyan")
    parts: list[RenderableType] = [head, _messages(seen), _sessions(seen, internals=internals)]
    if seen.flow is not None and (seen.flow.receivers or seen.flow.sessions):
        parts.append(_flow(seen.flow))
    if seen.claims is not None and seen.claims != ClaimsSnapshot():
        parts.append(_claims(seen, seen.claims))
    return Group(*parts, _routes(seen, internals=internals))


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
    if seen.custody is not None:
        held, dead = seen.custody.messages, seen.custody.dead
        text.append(f"  {held:,} durable, {dead:,} dead", "red" if dead else "")
        if seen.custody.trouble:
            text.append(f"  store: {_printable(seen.custody.trouble)}", "red")
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
    for name, count in seen.internal_drops.items():
        table.add_row(_plain(f"internal {name}"), f"{count:,}", "", style="dim")
    return table


def _sessions(seen: Snapshot, *, internals: bool) -> Table:
    events = ", ".join(f"{_printable(kind)} {count}" for kind, count in seen.session_events.items())
    title = f"sessions: {seen.sessions_total}" + (f" ({events})" if events else "")
    columns = ("peer", "proven", "version", "place", "state", "waiting")
    table = _table(title, *columns, *(("session",) if internals else ()))
    for session in seen.sessions:
        state = "open" if session.open else "opening"
        table.add_row(
            _plain(session.peer or "-"),
            _plain(_shortened(session.identity) if session.identity else "no"),
            _plain(session.version or "-"),
            _plain(place(session.place)),
            "stalled" if session.stalled else state,
            str(session.waiting),
            *([Text(_printable(session.name), "dim")] if internals else []),
        )
    return table


def _shortened(identity: str) -> str:
    """An identity in a column: enough of an identifier to know it by."""
    return identity if len(identity) <= 24 else f"{identity[:12]}…"


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
        f"claims: {claims.claims}, {claims.standbys} standing by, {claims.contested} names "
        f"contested, {claims.held_back} held back, {sum(claims.refused.values())} refused, "
        f"{claims.silent} of {claims.probes} probes unanswered"
    )
    title = f"contested names: {len(seen.contested)} of {seen.contested_total}"
    table = _table(title, "name", "holder", "standing by", "for")
    for contest in seen.contested:
        nodes = [_claimant(standby.node, standby.proven) for standby in contest.standbys]
        some = ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")
        held = _since((seen.at - contest.since) / 1000)
        holder = _claimant(contest.holder, contest.proven)
        table.add_row(_plain(contest.participant), _plain(holder), _plain(some), held)
    return Group(Text(text, "italic"), *([table] if seen.contested else []))


def _claimant(node: str, proven: bool | None) -> str:
    """A node that claims a name, and whether it has proven who it is, if that is known."""
    return node if proven is None else f"{node} ({'proven' if proven else 'unproven'})"


def _routes(seen: Snapshot, *, internals: bool) -> Table:
    shown = [route for route in seen.routes if internals or not is_internal(route.participant)]
    title = f"routes: {len(shown)} of {seen.routes_total}"
    if len(shown) < len(seen.routes):
        title += f" ({len(seen.routes) - len(shown)} internal not shown)"
    table = _table(title, "participant", "leads to", "local", "visible", "expires in")
    peers = {f"0#{session.name}": session.peer for session in seen.sessions}
    for route in shown:
        left = "-" if route.expiry is None else _since((route.expiry - seen.at) / 1000)
        marks = ("yes" if mark else "" for mark in (route.local, route.visible))
        table.add_row(
            _plain(route.participant),
            _plain(peers.get(route.address) or _leads_to(route)),
            *marks,
            "sticky" if route.sticky else left,
        )
    return table


def _leads_to(route: RouteStatus) -> str:
    if route.address == f"0#{route.participant}":
        return "this node"
    return place(route.address)


def _table(title: str, *columns: str) -> Table:
    table = Table(
        title=Text(title, "italic") if title else None,
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    for column in columns:
        numeric = column in _NUMERIC
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
