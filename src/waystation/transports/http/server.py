"""The listening side of HTTP: requests to channels, and answers.

    POST   /channels        opens a channel: 201, its id, and its place in Location
    POST   /channels/<id>   takes in messages: 202
    GET    /channels/<id>   gives out messages: a batch, or a stream of events
    DELETE /channels/<id>   ends it: 204

Here is what HTTP asks for and nothing else: what is kept for a client is the channel's business,
and the bytes on the wire are those of uvicorn. Every request is bounded in size and in time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from email.utils import formatdate
from typing import Any, Final, TypeAlias, cast

import h11
import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from waystation.core.message import Message
from waystation.core.outcome import Reason
from waystation.errors import DecodeError
from waystation.net.place import parse_place, place_of
from waystation.net.sockets import listening_at, prepare
from waystation.net.tls import Tls
from waystation.transports.http.channel import Channel, Frame
from waystation.transports.http.json_messages import read_messages, write_frames
from waystation.transports.http.transport import HttpCounts, HttpLimits
from waystation.transports.transport import LinkOwner

OCTETS: Final = "application/octet-stream"
JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
LAST: Final = "waystation-last"
"""The header that says the number of the last frame in an answer, for `after` in the next."""

GONE: Final = 1_000
"""So many channels that ended are remembered, to tell who still asks for them."""

SIGN_OF_LIFE: Final = 15.0
"""Seconds after which a stream of events with nothing to tell says so."""

HELP: Final = """This is a Waystation node. It speaks:

POST   /channels        open a channel; the answer has its id
POST   /channels/<id>   send: {"to": "echo", "payload": "hello"}
GET    /channels/<id>   receive, waiting up to ?wait=seconds; or as a stream of events
DELETE /channels/<id>   end it
"""

Read: TypeAlias = Callable[[Channel, bytes], Awaitable[list[Message]]]
"""Makes messages of the body of a request."""

_log = logging.getLogger("waystation.http")


async def listen(
    place: str,
    accept: Callable[[], LinkOwner | None],
    tls: Tls | None,
    limits: HttpLimits,
    counts: HttpCounts,
) -> HttpListener:
    """Open a listener."""
    host, port = parse_place(place)
    state = ServerState()
    channels = Channels(accept, limits, counts)
    config = Config(
        channels.app,
        lifespan="off",
        http="h11",
        ws="none",
        log_config=None,
        proxy_headers=False,
        timeout_keep_alive=cast("int", limits.keep),
    )
    context = tls.for_listener() if tls else None
    with listening_at(place):
        server = await asyncio.get_running_loop().create_server(
            lambda: _Connection(config, state, limits, counts),
            host,
            port,
            backlog=limits.backlog,
            ssl=context,
            ssl_handshake_timeout=limits.greeting if tls else None,
        )
    return HttpListener(server, state, channels, limits)


class HttpListener:
    """A listening socket, and the channels of those who came."""

    def __init__(
        self,
        server: asyncio.Server,
        state: ServerState,
        channels: Channels,
        limits: HttpLimits,
    ) -> None:
        self.place = place_of(server.sockets[0].getsockname())
        self._server = server
        self._state = state
        self._channels = channels
        self._limits = limits

    async def close(self) -> None:
        """Open no more channels; the socket stays for those that are open, until the last ends."""
        self._channels.close(self._stop)

    def _stop(self) -> None:
        self._server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        asyncio.get_running_loop().call_later(self._limits.linger, self._cut)

    def _cut(self) -> None:
        for connection in list(self._state.connections):
            connection.transport.abort()


class _Connection(H11Protocol):
    """A connection whose client has to say what it wants, and within a time."""

    def __init__(
        self, config: Config, state: ServerState, limits: HttpLimits, counts: HttpCounts
    ) -> None:
        super().__init__(config, state, {"connection": self}, asyncio.get_running_loop())
        self.logger = _log
        self.access_log = False  # the path of a request has a secret in it
        self._limits = limits
        self._counts = counts
        self._alarm: asyncio.TimerHandle | None = None
        self._dated = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= self._limits.connections:
            self._counts.turned_away += 1
            self.transport = transport
            transport.abort()
            return
        prepare(transport.get_extra_info("socket"), self._limits.dead)
        super().connection_made(transport)
        self._set_alarm()

    def data_received(self, data: bytes) -> None:
        self._say_date()
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._set_alarm()  # for the rest of the head
        else:
            self._stop_alarm()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:  # of a request that was answered before its end
            self._set_alarm()

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():  # of an answer that nobody reads
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_alarm()
        super().connection_lost(exc)

    def _say_date(self) -> None:
        now = int(time.time())
        if now != self._dated:
            self._dated = now
            self.server_state.default_headers = [(b"date", formatdate(now, usegmt=True).encode())]

    def _set_alarm(self) -> None:
        if self._alarm is None:
            self._alarm = self.loop.call_later(self._limits.greeting, self._give_up)

    def _stop_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _give_up(self) -> None:
        self._alarm = None
        self.transport.abort()


class _Problem(Exception):  # noqa: N818 - an answer that is told by raising it
    """Why a request is not done."""

    def __init__(self, status: int, error: str, *, later: float | None = None) -> None:
        super().__init__(error)
        self.status = status
        self.later = later


class Channels:
    """The channels of one listener, and the requests to them."""

    def __init__(
        self, accept: Callable[[], LinkOwner | None], limits: HttpLimits, counts: HttpCounts
    ) -> None:
        self.counts = counts
        self._accept = accept
        self._limits = limits
        self._open: dict[str, Channel] = {}
        self._gone: dict[str, tuple[Reason | None, str]] = {}
        self._when_empty: Callable[[], None] | None = None
        self.app = Starlette(
            routes=[
                Route("/", _help),
                Route("/channels", self._opened, methods=["POST"]),
                Route("/channels/{id}", self._asked, methods=["GET", "POST", "DELETE"]),
            ],
            exception_handlers={_Problem: _tell_problem},
        )

    def close(self, when_empty: Callable[[], None]) -> None:
        """Open no more; `when_empty` is called when the last one has ended."""
        self._when_empty = when_empty
        if not self._open:
            when_empty()

    # Requests

    async def _opened(self, request: Request) -> Response:
        _check_origin(request)
        owner = None
        if self._when_empty is None and len(self._open) < self._limits.channels:
            owner = self._accept()
        if owner is None:
            self.counts.refused += 1
            raise _Problem(503, "this node takes no more channels", later=1)
        place = place_of(tuple(request.client) if request.client else ("?", 0))
        channel = Channel(owner, self._limits, place, self._ended)
        self._open[channel.id] = channel
        self.counts.opened += 1
        owner.opened(channel)
        owner.answered()
        told = {
            "id": channel.id,
            "frame": self._limits.frame,
            "post": self._limits.post,
            "wait": self._limits.wait,
            "idle": self._limits.idle,
        }
        return _json(told, 201, {"location": f"/channels/{channel.id}"})

    async def _asked(self, request: Request) -> Response:
        _check_origin(request)
        id = request.path_params["id"]
        channel = self._open.get(id)
        if channel is None:
            if id not in self._gone:
                raise _Problem(404, "there is no such channel")
            return self._gone_answer(id)
        ask = _METHODS.get(request.method)
        if ask is None:  # HEAD, which Starlette takes for a GET
            raise _Problem(405, "use GET, POST or DELETE")
        channel.begin()
        try:
            return await ask(self, channel, request)
        except _Ended:
            return self._gone_answer(id)
        finally:
            channel.done()

    async def _post(self, channel: Channel, request: Request) -> Response:
        """Take in messages: all of them, or none."""
        read = self._reader(request)
        self._check_length(request.headers.get("content-length", "0"))
        await self._wait_for_room(channel)
        try:
            body = await self._body(request)
            if channel.closing:  # the client may fetch what is left, but nothing is taken any more
                await channel.over.wait()
                raise _Ended
            messages = await self._decoded(read, channel, body)
            await channel.hand_in(messages)
        finally:
            channel.posting.release()
        if read is _read_frames:
            return Response(status_code=202)
        ids = [message.id for message in messages if message.onward_route.addresses]
        return _json({"ids": ids}, 202)

    async def _get(self, channel: Channel, request: Request) -> Response:
        """Give out messages, at once or as soon as there are any."""
        accept = request.headers.get("accept", "")
        query = request.query_params
        streams = EVENTS in accept
        after = query.get("after") or (request.headers.get("last-event-id") if streams else None)
        if after is None:
            channel.settle(channel.given)  # who asks for more has had what came before
        elif not channel.go_back_to(_number(after, "after")):
            raise _Problem(409, f"what came after {after} is no longer kept; open a new channel")
        as_json = query.get("form") == "json" if streams else OCTETS not in accept
        if streams:
            headers = {"cache-control": "no-store"}
            events = self._events(channel, request.state.connection, as_json=as_json)
            return StreamingResponse(events, media_type=EVENTS, headers=headers)
        wait = min(_seconds(query.get("wait", "0")), self._limits.wait)
        limit = _number(query.get("limit", str(self._limits.batch)), "limit")
        if limit and not await channel.wait_for_frames(wait, only_messages=as_json):
            raise _Problem(409, "another request asks for the messages of this channel now")
        if await request.is_disconnected():
            raise _Ended
        frames = channel.take(min(limit, self._limits.batch))
        if channel.ended and not frames:
            raise _Ended
        acknowledges = after is not None
        return _Batch(channel, frames, as_json=as_json, acknowledges=acknowledges)

    async def _delete(self, channel: Channel, request: Request) -> Response:
        """End a channel."""
        after = request.query_params.get("after")
        channel.settle(channel.given if after is None else _number(after, "after"))
        channel.end(None, "closed")
        return Response(status_code=204)

    # The parts of requests

    async def _wait_for_room(self, channel: Channel) -> None:
        """Until it is this request's turn and the node has room; then `posting` is held."""
        held = False
        try:
            async with asyncio.timeout(self._limits.hold):
                held = await channel.posting.acquire()
                await channel.room.wait()
        except BaseException as error:
            if held:
                channel.posting.release()
            if not isinstance(error, TimeoutError):
                raise
            self.counts.held_back += 1
            raise _Problem(429, "the node has no room for this; come again", later=1) from None

    async def _events(
        self, channel: Channel, connection: _Connection, *, as_json: bool
    ) -> AsyncIterator[bytes]:
        """What there is for the client, as it comes, until the channel ends or somebody else asks.

        When it is asked for the next event, the one before is out of our hands; when that takes too
        long, the client does not read, and the connection ends.
        """
        loop = asyncio.get_running_loop()
        alarm: asyncio.TimerHandle | None = None
        channel.begin()
        try:
            while await channel.wait_for_frames(SIGN_OF_LIFE):
                frames = channel.take(self._limits.batch)
                last = channel.given
                ended = channel.ended and not frames
                alarm = loop.call_later(self._limits.body, connection.transport.abort)
                yield _event(frames, last, as_json=as_json, ended=ended)
                alarm.cancel()
                channel.settle(last)
                if ended:
                    return
        finally:
            if alarm is not None:
                alarm.cancel()
            channel.done()

    def _reader(self, request: Request) -> Read:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == OCTETS:
            return _read_frames
        if kind == JSON:
            return _read_json
        raise _Problem(415, f"send {JSON}, or Ockam's frames as {OCTETS}")

    async def _body(self, request: Request) -> bytes:
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._limits.body):
                async for part in request.stream():
                    size += len(part)
                    self._check_length(size)
                    parts.append(part)
        except TimeoutError:
            raise _Problem(408, "the body did not come in time") from None
        except ClientDisconnect:
            raise _Ended from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _check_length(self, length: str | int) -> None:
        if int(length) > self._limits.post:
            self.counts.too_large += 1
            raise _Problem(413, f"a request has at most {self._limits.post} bytes")

    async def _decoded(self, read: Read, channel: Channel, body: bytes) -> list[Message]:
        try:
            return await read(channel, body)
        except DecodeError as error:
            if error.too_large:
                self.counts.too_large += 1
                raise _Problem(413, str(error)) from None
            self.counts.malformed += 1
            raise _Problem(400, str(error)) from None
        except (ValueError, msgspec.DecodeError) as error:
            self.counts.malformed += 1
            raise _Problem(400, str(error)) from None

    def _ended(self, channel: Channel, reason: Reason | None, detail: str) -> None:
        del self._open[channel.id]
        if len(self._gone) >= GONE:
            del self._gone[next(iter(self._gone))]
        self._gone[channel.id] = (reason, detail)
        self.counts.expired += channel.expired
        if self._when_empty is not None and not self._open:
            self._when_empty()

    def _gone_answer(self, id: str) -> Response:
        reason, detail = self._gone.get(id, (Reason.TRANSPORT_DOWN, "gone"))
        return _json({"error": f"the channel has ended: {detail}", "reason": reason}, 410)


class _Ended(Exception):  # noqa: N818 - told by raising it
    """The channel, or whoever asked, is gone."""


_METHODS: Final = {
    "GET": Channels._get,  # noqa: SLF001
    "POST": Channels._post,  # noqa: SLF001
    "DELETE": Channels._delete,  # noqa: SLF001
}


class _Batch(Response):
    """Frames in one answer; the channel hears when they are written."""

    def __init__(
        self, channel: Channel, frames: list[Frame], *, as_json: bool, acknowledges: bool
    ) -> None:
        last = channel.given
        if as_json:
            body, kind = write_frames(frames, last), JSON
        else:
            body, kind = b"".join(frame.data for frame in frames), OCTETS
        headers = {LAST: str(last), "cache-control": "no-store"}
        status = 200 if body else 204
        super().__init__(body, status, headers, kind if body else None)
        self._channel = channel
        self._last = last
        self._acknowledges = acknowledges  # then the next request says what has arrived

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await super().__call__(scope, receive, send)
        if not self._acknowledges:
            self._channel.settle(self._last)


def _event(frames: list[Frame], last: int, *, as_json: bool, ended: bool) -> bytes:
    if not frames:
        return b"event: closed\ndata:\n\n" if ended else b":\n\n"  # or a sign of life
    data = write_frames(frames, last) if as_json else b64encode(b"".join(f.data for f in frames))
    return b"id: %d\ndata: %b\n\n" % (last, data)


def _check_origin(request: Request) -> None:
    """Refuse pages of other sites: a browser would let them use a node on somebody's machine."""
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
        raise _Problem(403, "pages of other sites cannot use this node")


async def _read_frames(channel: Channel, body: bytes) -> list[Message]:
    return await channel.decode(body)


async def _read_json(channel: Channel, body: bytes) -> list[Message]:
    return read_messages(body, channel.owner.address)


def _number(text: str, name: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 20:
        return int(text)
    raise _Problem(400, f"{name} is a number from 0 on")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if seconds >= 0:  # not so for "nan"
        return seconds
    raise _Problem(400, "wait is a number of seconds from 0 on")


async def _help(request: Request) -> Response:  # noqa: ARG001
    return PlainTextResponse(HELP)


async def _tell_problem(request: Request, problem: Exception) -> Response:  # noqa: ARG001
    assert isinstance(problem, _Problem)
    headers = {} if problem.later is None else {"retry-after": f"{problem.later:.0f}"}
    return _json({"error": str(problem)}, problem.status, headers)


def _json(
    value: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    return Response(msgspec.json.encode(value) + b"\n", status, headers, JSON)
