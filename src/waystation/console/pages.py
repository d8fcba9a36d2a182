"""Requests and responses: the view of each URL, as a whole page, a fragment of one, or events.

Each view has one URL. A browser gets the whole page; the script of the page requests the same URL
with the header X-Fragment and gets the view alone, or its rows. So everything works without the
script, but is not refreshed automatically.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from msgspec import Struct
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import (
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from waystation.console import formatting
from waystation.console.auth import LOGIN, TokenAuth
from waystation.console.fleet import Fleet
from waystation.console.formatting import plain
from waystation.console.layout import Options
from waystation.console.sending import Dispatch, Sender
from waystation.console.sparkline import sparklines
from waystation.console.strip import strip
from waystation.console.views import MAX_PAYLOAD, Values, Views
from waystation.core.incidents import as_sentence
from waystation.errors import LocalError
from waystation.net.tasks import subtask

_HERE: Final = Path(__file__).parent
_MAX_FORM: Final = 4 * MAX_PAYLOAD  # every byte may be percent-encoded
_MAX_STREAMS: Final = 100
_FLEET_INTERVAL: Final = 0.3  # seconds between two pictures in a stream
_MAX_NAMES: Final = 64
_KEEPALIVE: Final = 15.0  # seconds after which an idle stream sends a comment
_FILTERS: Final = (
    "plain", "instant", "full_instant", "since", "duration", "number", "rate", "payload", "place",
    "receiver", "receivers",
)  # fmt: skip
_TITLES: Final = {
    "connections": "Connections",
    "routes": "Routes",
    "subscriptions": "Subscriptions",
    "contested": "Contested",
    "incidents": "Incidents",
    "past": "Past",
    "why": "Why",
    "letters": "Letters",
    "send": "Send",
}
_GROUPS: Final = (
    ("connections", "routes", "subscriptions", "contested"),
    ("incidents", "past", "why"),
    ("letters", "send"),
)
"""The views as they stand together: what is, what was, and what can be done."""


def templates() -> Environment:
    """The template environment; values are escaped, and missing ones are errors."""
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in _FILTERS:
        environment.filters[name] = getattr(formatting, name)
    environment.filters |= {"sparklines": sparklines, "strip": strip, "sentence": as_sentence}
    environment.globals |= {"titles": _TITLES, "groups": _GROUPS}
    return environment


class _Drawn(Struct, frozen=True):
    """The fleet as it is now, as HTML."""

    vitals: str
    fleet: str


class Pages:
    """The web application; `end` ends its event streams."""

    def __init__(self, fleet: Fleet, sender: Sender, views: Views, auth: TokenAuth) -> None:
        self._fleet = fleet
        self._sender = sender
        self._views = views
        self._auth = auth
        self._templates = templates()
        self._ending = asyncio.Event()
        self._streams = 0
        self._drawn: tuple[int, dict[Options, _Drawn]] = (-1, {})
        self.app = Starlette(
            routes=[
                Route("/", self._first),
                Route(LOGIN, self._login, methods=["GET", "POST"]),
                Route("/events", self._events),
                Route("/send", self._sent, methods=["POST"]),
                Route("/letters", self._wished, methods=["POST"]),
                *(Route(f"/{name}", self._view) for name in views.by_name),
                Mount("/static", StaticFiles(directory=_HERE / "static")),
            ]
        )

    def end(self) -> None:
        """End all event streams."""
        self._ending.set()
        self._fleet.changes.notify()

    # Pages

    async def _first(self, _: Request) -> Response:
        return RedirectResponse("/connections", 303)

    async def _login(self, request: Request) -> Response:
        if not self._auth.is_required:
            return RedirectResponse("/", 303)
        given: Mapping[str, str] = request.query_params
        if request.method == "POST":
            given = await _form(request) or {}
        token = given.get("token", "").strip()
        if self._auth.accepts(token):
            return self._auth.log_in(RedirectResponse("/connections", 303))
        wrong = bool(token) or request.method == "POST"
        return HTMLResponse(self._rendered("login.html", {"wrong": wrong}), 403 if wrong else 200)

    async def _view(self, request: Request) -> Response:
        name = request.url.path.strip("/")
        values = await self._views.by_name[name](request.query_params, _options(request))
        part = request.headers.get("x-fragment")
        if part == "moment" and name == "past":
            return self._moment(values)
        if part == "fleet" and name == "why":
            drawn = "" if values["picture"] is None else self._past_part(values)
            return HTMLResponse(drawn)
        return self._response(request, name, values)

    def _moment(self, values: Values) -> Response:
        """A moment of the past for the script: HTML of its parts, and what moved."""
        if values["picture"] is None:
            return _json({"problem": values["problem"] or "there is no journal"}, 422)
        begin = values["at"]
        steps = [
            (step.at - begin, plain(step.node), plain(step.to), step.is_dropped)
            for step in values["moves"].steps
        ]
        return _json(
            {
                "at": begin,
                "span": values["span"],
                "first": values["timeline"].first,
                "last": values["timeline"].last,
                "words": values["words"],
                "fleet": self._past_part(values),
                "rows": self._rendered("past_rows.html", {**values, "view": "past"}),
                "moves": steps,
            }
        )

    def _past_part(self, values: Values) -> str:
        return self._rendered("past_fleet.html", {**values, "options": values["options"]})

    async def _sent(self, request: Request) -> Response:
        form = await _form(request)
        if form is None:
            return PlainTextResponse("The message is too large for the console.\n", 413)
        try:
            id = self._views.dispatch(form)
        except LocalError as error:
            problem = f"{error.problem}; {error.hint}"
            return self._response(request, "send", await self._views.form(form, problem), 422)
        return RedirectResponse(f"/send?watch={id}", 303)

    async def _wished(self, request: Request) -> Response:
        """Retry or drop durable messages."""
        form = await _form(request)
        if form is None:
            return PlainTextResponse("The form is too large.\n", 413)
        values = await self._views.letters.act(form)
        return self._response(request, "letters", values, 422 if values["problem"] else 200)

    def _response(self, request: Request, name: str, values: Values, status: int = 200) -> Response:
        """A view as a response: the fragment, its rows, or the whole page."""
        part = request.headers.get("x-fragment")
        values = {**values, "view": name}
        if part == "rows":
            return HTMLResponse(self._rendered(f"{name}_rows.html", values), status)
        if part:
            if name == "why" and values["picture"] is not None:  # the script puts it in its place
                values["beside"] = Markup(self._past_part(values))  # noqa: S704 - from a template
            return HTMLResponse(self._rendered(f"{name}.html", values), status)
        now = self._fleet_part(_options(request, values.get("stops", ())))
        is_past = name in ("past", "why") and values["picture"] is not None
        fleet = self._past_part(values) if is_past else now.fleet
        values |= {"fleet": Markup(fleet), "head": Markup(now.vitals)}  # noqa: S704 - from templates
        return HTMLResponse(self._rendered("page.html", values), status)

    def _rendered(self, template: str, values: Values) -> str:
        return self._templates.get_template(template).render(values)

    def _fleet_part(self, options: Options) -> _Drawn:
        """The fleet as HTML, rendered once per change for all clients with the same options."""
        count = self._fleet.changes.count
        if self._drawn[0] != count or len(self._drawn[1]) > _MAX_STREAMS:
            self._drawn = (count, {})
        known = self._drawn[1]
        if options not in known:
            values = self._views.fleet(options)
            parts = (self._rendered(name, values) for name in ("vitals.html", "fleet.html"))
            known[options] = _Drawn(*parts)
        return known[options]

    # Events

    async def _events(self, request: Request) -> Response:
        if self._streams >= _MAX_STREAMS:
            return PlainTextResponse("Too many open pages.\n", 503)
        return StreamingResponse(self._stream(_options(request)), media_type="text/event-stream")

    async def _stream(self, options: Options) -> AsyncIterator[bytes]:
        """Events: the fleet after polls, not too often, and each message in flight."""
        self._streams += 1
        try:
            told = {dispatch.id: dispatch.version for dispatch in self._sender.kept}
            clock = asyncio.get_running_loop().time
            fleet, shown, next_fleet = None, -1, clock()
            while not self._ending.is_set():
                sent, drawn = self._sender.changes.count, self._fleet.changes.count
                if drawn != shown and clock() >= next_fleet:
                    shown, next_fleet = drawn, clock() + _FLEET_INTERVAL
                    if fleet != (part := self._fleet_part(options)):
                        fleet = part
                        yield _event("fleet", {"html": part.vitals + part.fleet})
                for dispatch in self._sender.kept:
                    if told.get(dispatch.id) != dispatch.version:
                        told[dispatch.id] = dispatch.version
                        yield _event("hops", self._hops(dispatch))
                if drawn != shown:  # for which it is too early
                    await self._sender.changes.wait_after(sent, max(0.0, next_fleet - clock()))
                elif not await self._changed(drawn, sent):
                    yield b": keep-alive\n\n"
        finally:
            self._streams -= 1

    async def _changed(self, fleet: int, sender: int) -> bool:
        """Wait for a change of the fleet or of a message; return False on a timeout."""
        waits = [
            subtask(self._fleet.changes.wait_after(fleet, _KEEPALIVE), "console fleet"),
            subtask(self._sender.changes.wait_after(sender, _KEEPALIVE), "console sender"),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return self._fleet.changes.count != fleet or self._sender.changes.count != sender

    def _hops(self, dispatch: Dispatch) -> Mapping[str, object]:
        values = {"dispatch": dispatch, "has_journal": self._views.has_journal}
        return {
            "id": dispatch.id,
            "stops": dispatch.stops,
            "html": self._rendered("hops.html", values),
        }


def _options(request: Request, stops: Iterable[str] = ()) -> Options:
    """What the picture is to show; at most so many names, whatever is asked for."""
    asked = request.query_params
    shown = [*asked.getlist("show"), *stops]
    return Options(
        unfolded=frozenset(map(plain, asked.getlist("unfold")[:_MAX_NAMES])),
        shown=frozenset(map(plain, shown[:_MAX_NAMES])),
        internals=asked.get("internals") == "yes",
    )


def _json(value: object, status: int = 200) -> Response:
    """A value as JSON."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


async def _form(request: Request) -> dict[str, str] | None:
    """The fields of a form; None if it is too large."""
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > _MAX_FORM:
                return None
    except ClientDisconnect:
        return None
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=20)
    except ValueError:
        return {}
    return dict(pairs)


def _event(name: str, data: Mapping[str, object]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(data))
