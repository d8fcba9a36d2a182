"""What each page shows: collects values from the fleet, the journal and sent messages.

How pages look is in templates/, and how they are requested in pages.py.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Container, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from waystation.console.fleet import Fleet, Watched
from waystation.console.layout import Options
from waystation.console.letters import Letters
from waystation.console.sending import Sender, SendRequest
from waystation.console.topology import peer_name, picture
from waystation.console.vitals import vitals
from waystation.core.message import INTERNAL, check_message_id
from waystation.core.spoken import is_internal
from waystation.errors import LocalError, WaystationError
from waystation.node.status import (
    Question,
    RouteStatus,
    SessionStatus,
    Snapshot,
    SubscriptionStatus,
)

if TYPE_CHECKING:
    from waystation.console.losses import Feed
    from waystation.console.past import Past

PAGE: Final = 50
"""Number of rows on a page."""

FIRST_FEW: Final = 20
"""Number of rows per node when all nodes are shown."""

MAX_REFRESHED: Final = 5_000
"""Tables with more entries than this are not refreshed automatically."""

MAX_REPLIES: Final = 4
MAX_STOPS: Final = 60
"""Maximum number of nodes on the path of a message that are drawn although they are folded."""
MAX_PAYLOAD: Final = 64 * 1024
MAX_TTL: Final = 3_600.0

Query: TypeAlias = Mapping[str, str]
Values: TypeAlias = dict[str, Any]
View: TypeAlias = Callable[[Query, Options], Awaitable[Values]]
"""A view: what is asked for, and what the picture beside it is to show."""


_EMPTY: Final[Query] = {
    "via": "",
    "route": "",
    "payload": "",
    "coding": "text",
    "ttl": "10",
    "reply": "yes",
}
"""The initial values of the form for a message."""


class Table(Struct, frozen=True, kw_only=True):
    """The rows of one node; `problem` says why there are none."""

    watched: Watched
    rows: list[Any]
    fitting: int | None
    total: int
    at: int = 0  # milliseconds, by the node's clock
    problem: str = ""
    internal: int = 0  # number of rows left out, of what nodes say to each other


class _Kind(Struct, frozen=True):
    """How the rows of a table are requested, and where they are in a snapshot."""

    ask: Callable[[str, int, int, Query], Question]
    told: str  # the name of a field of Snapshot


_ROUTES: Final = _Kind(
    lambda find, most, skip, query: Question(
        routes=most, sessions=0, filter=find, skip_routes=skip, over=query.get("over", "").strip()
    ),
    "routes",
)
_SESSIONS: Final = _Kind(
    lambda find, most, skip, _: Question(
        routes=0, sessions=most, find_sessions=find, skip_sessions=skip
    ),
    "sessions",
)
_SUBSCRIPTIONS: Final = _Kind(
    lambda find, most, skip, _: Question(
        routes=0, sessions=0, subscriptions=most, find_subscriptions=find, skip_subscriptions=skip
    ),
    "subscriptions",
)
_CONTESTED: Final = _Kind(
    lambda find, most, skip, _: Question(
        routes=0, sessions=0, contested=most, find_contested=find, skip_contested=skip
    ),
    "contested",
)


class Views:
    """The views of a console, by name."""

    def __init__(
        self,
        fleet: Fleet,
        sender: Sender,
        journal: Path | None,
        tables: Path | None,
        stores: tuple[Path, ...] = (),
    ) -> None:
        self._fleet = fleet
        self._sender = sender
        self._journal = journal
        self._tables = tables
        self.has_journal = journal is not None
        self.letters = Letters(stores)
        self._looking = asyncio.Lock()
        self._asking = asyncio.Lock()
        self._known_feed: Feed | None = None
        self._known_past: Past | None = None
        self.by_name: dict[str, View] = {
            "connections": lambda query, _: self._table(_SESSIONS, query),
            "routes": lambda query, _: self._table(_ROUTES, query),
            "subscriptions": lambda query, _: self._table(_SUBSCRIPTIONS, query),
            "contested": lambda query, _: self._table(_CONTESTED, query),
            "incidents": lambda query, _: self._incidents(query),
            "past": self.past,
            "why": self.why,
            "letters": lambda query, _: self.letters.view(query),
            "send": lambda query, _: self._send(query),
        }

    def fleet(self, options: Options) -> Values:
        """What every page shows: the picture and the nodes."""
        watched = self._fleet.watched
        return {
            "nodes": watched,
            "picture": picture(watched, self._fleet.node.name, options),
            "options": options,
            "vitals": vitals(watched),
        }

    # Tables

    async def _table(self, kind: _Kind, query: Query) -> Values:
        chosen = self._fleet.at(query.get("node", ""))
        find = query.get("find", "").strip()
        page = max(1, _whole(query.get("page", "1"), 1))
        of_one = chosen is not None
        most = PAGE if of_one else FIRST_FEW
        skip = (page - 1) * PAGE if of_one else 0
        asked = [chosen] if chosen is not None else self._fleet.watched
        found = await asyncio.gather(
            *(self._ask(kind, watched, query, find, most, skip) for watched in asked)
        )
        fitting = (found[0].fitting or 0) if of_one and found else 0
        return {
            "tables": found,
            "nodes": self._fleet.watched,
            "chosen": chosen,
            "find": find,
            "over": query.get("over", "").strip(),
            "internals": query.get("internals") == "yes",
            "peers": {watched.url: _peers(watched) for watched in asked},
            "page": page,
            "pages": max(1, -(-fitting // PAGE)),
            "first": skip + 1,
            "live": all(table.total <= MAX_REFRESHED for table in found),
        }

    async def _ask(
        self, kind: _Kind, watched: Watched, query: Query, find: str, most: int, skip: int
    ) -> Table:
        pattern = find if "*" in find else f"*{find}*" if find else "*"
        try:
            seen = await self._fleet.ask(watched, kind.ask(pattern, most, skip, query))
            if kind is _ROUTES and seen.routes_fitting is None and find:  # too many to search
                seen = await self._fleet.ask(watched, kind.ask(find, most, skip, query))
        except WaystationError as error:
            return Table(watched=watched, rows=[], fitting=None, total=0, problem=_said(error))
        return self._without_internals(_table_of(kind, watched, seen), query)

    def _without_internals(self, table: Table, query: Query) -> Table:
        """A table without what only nodes use, and without this console; unless it is asked for."""
        if query.get("internals") == "yes":
            return table
        own = self._fleet.node.name
        seen = table.watched.seen
        sessions = {session.name for session in seen.sessions} if seen is not None else set()
        rows = [row for row in table.rows if not _is_internal(row, own, sessions)]
        return replace(table, rows=rows, internal=len(table.rows) - len(rows))

    # One message

    async def why(self, query: Query, options: Options) -> Values:
        """The explanation of a message, and the fleet of the moment when it ended."""
        id = query.get("id", "").strip().lower()
        values: Values = {
            "id": id,
            "explanation": None,
            "falls": [],
            "stops": [],
            "picture": None,
            "problem": "",
            "has_journal": self.has_journal,
            "has_past": self._journal is not None or self._tables is not None,
        }
        if not id:
            return values
        try:
            values |= await asyncio.to_thread(self._waterfall, id)
            falls = values["falls"]
            if self._journal is not None and any(fall.rows for fall in falls):
                passed = options.shown | set(values["stops"][:MAX_STOPS])
                at = max(fall.ended for fall in falls if fall.rows)
                values |= await self._past_of(self._journal).fleet(
                    at, replace(options, shown=frozenset(passed))
                )
        except (LocalError, OSError) as error:
            values["problem"] = _said(error)
        return values

    # The past

    async def _incidents(self, query: Query) -> Values:
        internals = query.get("internals") == "yes"
        values: Values = {
            "has_journal": self.has_journal,
            "losses": None,
            "asked": query.get("ask", ""),
            "remedy": None,
            "problem": "",
            "internals": internals,
        }
        if self._journal is None:
            return values
        try:
            feed = await asyncio.to_thread(self._feed, self._journal)
            async with self._looking:  # a thread for one page at a time
                values["losses"] = await asyncio.to_thread(feed.losses, internals=internals)
            if values["asked"]:
                async with self._asking:
                    values["remedy"] = await asyncio.to_thread(feed.remedy, values["asked"])
        except (LocalError, OSError) as error:
            values["problem"] = _said(error)
        return values

    def _feed(self, journal: Path) -> Feed:
        from waystation.console.losses import Feed  # noqa: PLC0415 - it needs pyarrow

        if self._known_feed is None:
            self._known_feed = Feed(journal)
        return self._known_feed

    async def past(self, query: Query, options: Options) -> Values:
        """A past moment, with a picture drawn as asked for; without a journal there is none."""
        values: Values = {"has_journal": self.has_journal, "problem": "", "picture": None}
        if self._journal is None:
            return values
        from waystation.console.past import past_request  # noqa: PLC0415 - it needs pyarrow

        try:
            asked = past_request(query, options)
            return values | await self._past_of(self._journal).show(asked)
        except (LocalError, OSError) as error:
            return values | {"problem": _said(error)}

    def _past_of(self, journal: Path) -> Past:
        from waystation.console.past import Past  # noqa: PLC0415 - it needs pyarrow

        if self._known_past is None:
            self._known_past = Past(journal, self._fleet.node.name)
        return self._known_past

    def _waterfall(self, id: str) -> Values:
        """The explanation of a message and of its replies, and how they are drawn."""
        from waystation.console.waterfall import stops, waterfalls  # noqa: PLC0415 - it needs pyarrow

        explanation = self._explain(id)
        replies = []
        for way in explanation.ways[:MAX_REPLIES]:
            with contextlib.suppress(LocalError, OSError):  # its request is explained anyway
                replies += [self._explain(way.answered_by)] if way.answered_by else []
        falls = waterfalls(explanation, replies)
        return {"explanation": explanation, "falls": falls, "stops": stops(falls)}

    def _explain(self, id: str) -> Any:
        check_message_id(id)
        if self._journal is None and self._tables is None:
            raise LocalError(
                "the console has no journal", rule="OB-4", hint="start it with --journal"
            )
        from waystation.why import explain  # noqa: PLC0415 - it needs pyarrow
        from waystation.why.tables import explain_from_tables  # noqa: PLC0415

        if self._journal is not None:
            try:
                return explain(self._journal, id)
            except LocalError:
                if self._tables is None:
                    raise
        assert self._tables is not None
        return explain_from_tables(self._tables, id)

    # Sending

    async def _send(self, query: Query) -> Values:
        watch = query.get("watch", "")
        dispatch = self._sender.find(watch)
        filled = _EMPTY if dispatch is None else _filled(dispatch.order)
        if "route" in query:
            filled = {name: query.get(name, _EMPTY[name]) for name in _EMPTY}
        return {
            "nodes": self._fleet.watched,
            "order": filled,
            "problem": "",
            "dispatch": dispatch,
            "stops": [] if dispatch is None else dispatch.stops,
            "unknown": bool(watch) and dispatch is None,
            "kept": self._sender.kept,
            "has_journal": self.has_journal,
        }

    def dispatch(self, form: Query) -> str:
        """Send the message of a form and return its id; raises LocalError if it is invalid."""
        via = self._fleet.at(form.get("via", ""))
        if via is None:
            raise LocalError("no node is selected", rule="AD-5", hint="select one to send through")
        return self._sender.send(
            SendRequest(
                via=via,
                route=form.get("route", ""),
                payload=_payload(form.get("payload", ""), form.get("coding", "text")),
                ttl=_ttl(form.get("ttl", "")),
                reply=form.get("reply") == "yes",
            )
        ).id

    async def form(self, form: Query, problem: str) -> Values:
        """The form with the values given, and the problem."""
        kept = {"route": "", "reply": "", **form}
        return {**await self._send(kept), "problem": problem}


def _table_of(kind: _Kind, watched: Watched, seen: Snapshot) -> Table:
    return Table(
        watched=watched,
        rows=getattr(seen, kind.told)[:PAGE],
        fitting=getattr(seen, f"{kind.told}_fitting"),
        total=getattr(seen, f"{kind.told}_total"),
        at=seen.at,
    )


def _peers(watched: Watched) -> dict[str, str]:
    """What the peers of a node call themselves, by the addresses of their sessions."""
    if watched.seen is None:
        return {}
    return {f"0#{session.name}": peer_name(session) for session in watched.seen.sessions}


def _is_internal(row: Any, own: str, sessions: Container[str]) -> bool:
    """Whether a row is about the nodes' own traffic, a session itself, or this console."""
    if isinstance(row, SessionStatus):
        return row.peer == own
    if isinstance(row, RouteStatus) and row.participant in sessions:
        return True
    if isinstance(row, SubscriptionStatus):
        return row.receiver.startswith(INTERNAL)
    return is_internal(row.participant)


def _filled(order: SendRequest) -> Query:
    """The form values from which a message was sent."""
    try:
        payload, coding = order.payload.decode(), "text"
    except UnicodeDecodeError:
        payload, coding = order.payload.hex(), "hex"
    return {
        "via": order.via.url,
        "route": order.route,
        "payload": payload,
        "coding": coding,
        "ttl": f"{order.ttl:g}",
        "reply": "yes" if order.reply else "",
    }


def _said(error: Exception) -> str:
    """An error's message, without the hint for programmers."""
    return error.problem if isinstance(error, LocalError) else str(error)


def _payload(text: str, coding: str) -> bytes:
    """The payload of a form as bytes."""
    try:
        data = bytes.fromhex(text) if coding == "hex" else text.encode()
    except (ValueError, UnicodeEncodeError) as error:
        raise LocalError(
            f"invalid hexadecimal payload: {error}", rule="AD-4", hint="give two digits per byte"
        ) from error
    if len(data) > MAX_PAYLOAD:
        raise LocalError(
            f"the payload is too large: {len(data):,} bytes",
            rule="AD-4",
            hint=f"give at most {MAX_PAYLOAD:,}; `waystation send` accepts more",
        )
    return data


def _ttl(text: str) -> float:
    try:
        ttl = float(text)
    except ValueError:
        ttl = 0.0
    if not 0 < ttl <= MAX_TTL:
        raise LocalError(
            "invalid time to live",
            rule="AD-7",
            hint=f"give a number of seconds above 0, up to {MAX_TTL:g}",
        )
    return ttl


def _whole(text: str, otherwise: int) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else otherwise
