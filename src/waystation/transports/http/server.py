"""The listening side of HTTP: requests to channels, and answers.

    POST   /channels        opens a channel: 201, its id, and its place in Location
    POST   /channels/<id>   takes in messages: 202
    GET    /channels/<id>   gives out messages: a batch, or a stream of events
    DELETE /channels/<id>   ends it: 204

Here is what HTTP asks for and nothing else: what is kept for a client is the channel's business,
and the bytes on the wire, the sockets and their limits are that of net/asgi.py. Every request is
bounded in size and in time.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from waystation.core.message import Message
from waystation.core.outcome import Reason
from waystation.errors import DecodeError
from waystation.net.asgi import HttpConnection, HttpServer, Receive, Scope, Send
from waystation.net.connection import MINIMUM_RATE
from waystation.net.held import FREE, HeldBytes
from waystation.net.hosts import HostNames, host_name
from waystation.net.place import parse_place, place_of
from waystation.transports.http.channel import Channel, Frame
from waystation.transports.http.json_messages import read_messages, write_frames
from waystation.transports.http.transport import Http, OpenedChannel
from waystation.transports.transport import LinkOwner

OCTETS: Final = "application/octet-stream"
JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
LAST: Final = "waystation-last"
"""The header that says the number of the last frame in an answer, for `after` in the next."""

GONE: Final = 1_000
"""Number of channels that ended and are remembered, to tell clients that still ask for them."""

KEEP_ALIVE: Final = 15.0
"""Seconds after which a stream of events without news sends a comment, so that proxies keep it."""

HELP: Final = """This is a Waystation node. It speaks:

POST   /channels        open a channel; the answer has its id
POST   /channels/<id>   send: {"to": "echo", "payload": "hello"}
GET    /channels/<id>   receive, waiting up to ?wait=seconds; or as a stream of events
DELETE /channels/<id>   end it
"""

_log = logging.getLogger("waystation.http")


async def listen(
    transport: Http, place: str, accept: Callable[[], LinkOwner | None]
) -> HttpListener:
    """Open a listener."""
    names = HostNames(parse_place(place)[0], [host_name(), *transport.hosts])
    listener = HttpListener(transport, names, accept)
    await listener.server.start(place)
    return listener


class _Problem(Exception):  # noqa: N818 - an answer that is told by raising it
    """Why a request is refused."""

    def __init__(self, status: int, error: str, **headers: str) -> None:
        super().__init__(error)
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class HttpListener:
    """A listening socket, its channels, and the requests to them: an ASGI application."""

    def __init__(
        self, transport: Http, names: HostNames, accept: Callable[[], LinkOwner | None]
    ) -> None:
        limits = self._limits = transport.limits
        self.counts = transport.counts
        self.server = HttpServer(
            self,
            limits=limits.of_servers(),
            connection_limits=limits.of_connections(),
            body=limits.body + limits.greeting,  # so that the client can be told why
            keep=limits.keep,
            tls=transport.tls,
            log=_log,
            refused=self.counts.refused_connections,
        )
        self._accept = accept
        self._names = names
        self._open: dict[str, Channel] = {}
        self.held: HeldBytes[Channel] = HeldBytes(
            limits.budget, lambda channel: channel.kept, _give_up
        )
        self._gone: dict[str, tuple[Reason | None, str]] = {}
        self._closing = False
        self._app = Starlette(
            routes=[
                Route("/", _help),
                Route("/channels", self._opened, methods=["POST"]),
                Route("/channels/{id}", self._asked, methods=["GET", "POST", "DELETE"]),
            ],
            exception_handlers={_Problem: _tell_problem},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, unless it comes from a page of another site."""
        refusal = self._refusal(Headers(scope=scope))
        await (refusal or self._app)(scope, receive, send)

    @property
    def place(self) -> str:
        """Where it listens, with the port that was chosen if any would do."""
        return self.server.place

    def renew_certificate(self) -> None:
        """Use the certificate that is in its file now for the connections to come (ID-5)."""
        self.server.renew_certificate()

    async def close(self) -> None:
        """Open no more channels; the socket stays for those that are open, until the last ends."""
        self._closing = True
        if not self._open:
            self.server.stop()

    def _refusal(self, headers: Headers) -> Response | None:
        """Refuse pages of other sites: a browser would let them use a node on its machine.

        Such a page says where it comes from (Origin), or pretends to be ours by a name that points
        here (Host). A program may know this node by any name, unless it runs on this machine.
        """
        origin, host = headers.get("origin"), headers.get("host", "")
        if origin is not None and origin.partition("://")[2] != host:
            return _json({"error": "pages of other sites cannot use this node"}, 403)
        from_browser = origin is not None or "sec-fetch-site" in headers
        if (self._names.is_local or from_browser) and host not in self._names:
            return _json({"error": "this node is not known by that name"}, 421)
        return None

    # Requests

    async def _opened(self, request: Request) -> Response:
        owner = None
        if not self._closing and len(self._open) < self._limits.channels:
            owner = self._accept()
        if owner is None:
            self.counts.refused += 1
            raise _Problem(503, "this node opens no more channels", retry_after="1")
        place = place_of(tuple(request.client) if request.client else ("?", 0))
        channel = Channel(owner, self._limits, place, self._ended, self.held)
        self._open[channel.id] = channel
        self.counts.opened += 1
        channel.hand_over()
        owner.answered()
        limits = self._limits
        opened = OpenedChannel(channel.id, limits.frame, limits.post, limits.wait, limits.idle)
        return _json(opened, 201, {"location": f"/channels/{channel.id}"})

    async def _asked(self, request: Request) -> Response:
        id = request.path_params["id"]
        channel = self._open.get(id)
        if channel is None:
            if id not in self._gone:
                raise _Problem(404, "there is no such channel")
            return self._gone_answer(id)
        methods = {"GET": self._get, "POST": self._post, "DELETE": self._delete}
        answer = methods.get(request.method)
        if answer is None:  # HEAD, which Starlette takes for a GET
            raise _Problem(405, "use GET, POST or DELETE")
        channel.begin()
        try:
            return await answer(channel, request)
        except _Ended:
            return self._gone_answer(id)
        finally:
            channel.done()

    async def _post(self, channel: Channel, request: Request) -> Response:
        """Take in messages: all of them, or none."""
        is_json = _is_json(request)
        most = self._most(channel) if is_json else self._limits.post  # frames may prove the token
        self._check_length(request.headers.get("content-length", "0"), most)
        await self._wait_for_room(channel)
        try:
            body = await self._body(channel, request, is_json=is_json)
            if not channel.is_open:  # the client may still fetch, but nothing is taken any more
                await channel.over.wait()
                raise _Ended
            messages = await self._decoded(channel, body, is_json=is_json)
            await channel.hand_in(messages)
        finally:
            channel.end_post()
        if not is_json:
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
        request.state.connection.when_closed = channel.look_again
        if limit and not await channel.wait_for_frames(
            wait, lambda: request.state.connection.is_open, only_messages=as_json
        ):
            raise _Problem(409, "another request asks for the messages of this channel now")
        if await request.is_disconnected():
            raise _Ended
        frames = channel.take(min(limit, self._limits.batch))
        if channel.ended and not frames:
            raise _Ended
        answer = _Batch(channel, frames, as_json=as_json, acknowledges=after is not None)
        answer.written = partial(self._see_it_read, request.state.connection)
        return answer

    async def _delete(self, channel: Channel, request: Request) -> Response:
        """End a channel."""
        after = request.query_params.get("after")
        channel.settle(channel.given if after is None else _number(after, "after"))
        channel.end(None, "closed")
        return Response(status_code=204)

    # The parts of requests

    async def _wait_for_room(self, channel: Channel) -> None:
        """Until it is this request's turn and the node has room; then `posting` is held."""
        try:
            async with asyncio.timeout(self._limits.hold):
                await channel.posting.acquire()
                try:
                    await channel.room.wait()
                except BaseException:
                    channel.posting.release()
                    raise
        except TimeoutError:
            self.counts.held_back += 1
            raise _Problem(429, "the node has no room for this; retry", retry_after="1") from None

    async def _events(
        self, channel: Channel, connection: HttpConnection, *, as_json: bool
    ) -> AsyncIterator[bytes]:
        """What there is for the client, as it comes, until the channel ends or somebody else asks.

        When it is asked for the next event, the one before is out of our hands; when that takes too
        long, the client does not read, and the connection ends.
        """
        loop = asyncio.get_running_loop()
        alarm: asyncio.TimerHandle | None = None
        channel.begin()
        try:
            while await channel.wait_for_frames(KEEP_ALIVE):
                frames = channel.take(self._limits.batch)
                last = channel.given
                ended = channel.ended and not frames
                alarm = loop.call_later(self._limits.body, connection.abort)
                yield _event(frames, last, as_json=as_json, ended=ended)
                alarm.cancel()
                channel.settle(last)
                if ended:
                    return
        finally:
            if alarm is not None:
                alarm.cancel()
            channel.done()

    def _see_it_read(self, connection: HttpConnection, before: int = -1) -> None:
        """End a connection whose client takes nothing of its answer for too long."""
        if connection.unsent <= FREE or not connection.is_open:
            return
        taken = connection.written - connection.unsent
        if taken == before:
            connection.abort()
        else:
            loop = asyncio.get_running_loop()
            loop.call_later(self._limits.body, self._see_it_read, connection, taken)

    async def _body(self, channel: Channel, request: Request, *, is_json: bool) -> bytes:
        """The body, or what is left of it when its beginning was needed to admit the client."""
        parts: list[bytes] = []
        size, seconds = 0, self._limits.body
        enough = step = int(seconds * MINIMUM_RATE)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds) as deadline:
                async for part in request.stream():
                    size += len(part)
                    parts.append(part)
                    channel.note_posted(size)
                    if size > self._most(channel) and not is_json:
                        # A node posts its proof and what waits behind it together.
                        front = await self._decoded(channel, b"".join(parts), is_front=True)
                        await channel.hand_in(front)
                        parts = []
                    self._check_length(size, self._most(channel))
                    if size >= enough:  # it is slow, but it comes
                        enough = size + step
                        deadline.reschedule(loop.time() + seconds)
        except TimeoutError:
            raise _Problem(408, "the body did not come in time") from None
        except ClientDisconnect:
            raise _Ended from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _most(self, channel: Channel) -> int:
        """The most bytes in the body of a request: few, until its client is admitted."""
        return self._limits.post if channel.owner.admitted else self._limits.of_strangers()

    def _check_length(self, length: str | int, most: int) -> None:
        if int(length) > most:
            self.counts.too_large += 1
            raise _Problem(413, f"a request has at most {most} bytes")

    async def _decoded(
        self, channel: Channel, body: bytes, *, is_json: bool = False, is_front: bool = False
    ) -> list[Message]:
        try:
            if is_json:
                return read_messages(body, channel.owner.address)
            return channel.decode_front(body) if is_front else await channel.decode(body)
        except (DecodeError, ValueError, msgspec.DecodeError) as error:
            if isinstance(error, DecodeError) and error.too_large:
                self.counts.too_large += 1
                raise _Problem(413, str(error)) from None
            self.counts.malformed += 1
            raise _Problem(400, str(error)) from None

    def _ended(self, channel: Channel, reason: Reason | None, detail: str) -> None:
        del self._open[channel.id]
        if len(self._gone) >= GONE:
            del self._gone[next(iter(self._gone))]
        self._gone[channel.id] = (reason, detail)
        self.counts.expired += channel.expired
        if self._closing and not self._open:
            self.server.stop()

    def _gone_answer(self, id: str) -> Response:
        reason, detail = self._gone.get(id, (Reason.TRANSPORT_DOWN, "gone"))
        return _json({"error": f"the channel has ended: {detail}", "reason": reason}, 410)


class _Ended(Exception):  # noqa: N818 - told by raising it
    """The channel, or whoever asked, is gone."""


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
        self.written: Callable[[], None] = lambda: None  # called when it is handed to the socket

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await super().__call__(scope, receive, send)
        self.written()
        if not self._acknowledges:
            self._channel.settle(self._last)


def _give_up(channel: Channel) -> None:
    """End the channel for which most is held, when it is too much for all of them (FL-1)."""
    channel.end(Reason.QUEUE_FULL, "more is held for it than there is room for")


def _event(frames: list[Frame], last: int, *, as_json: bool, ended: bool) -> bytes:
    if not frames:
        return b"event: closed\ndata:\n\n" if ended else b":\n\n"  # or a sign of life
    data = write_frames(frames, last) if as_json else b64encode(b"".join(f.data for f in frames))
    return b"id: %d\ndata: %b\n\n" % (last, data)


def _is_json(request: Request) -> bool:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in (JSON, OCTETS):
        raise _Problem(415, f"send {JSON}, or Ockam's frames as {OCTETS}")
    return kind == JSON


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
    return _json({"error": str(problem)}, problem.status, problem.headers)


def _json(
    value: OpenedChannel | dict[str, Any], status: int, headers: dict[str, str] | None = None
) -> Response:
    return Response(msgspec.json.encode(value) + b"\n", status, headers, JSON)
