"""The dialling side of HTTP: a link that posts what it is given and asks for what there is.

A link has two connections and two tasks: one posts, batch after batch, so that order is kept; one
asks for messages, and asks again. A connection that breaks in the middle of a request ends the
link, since nobody can say whether the other end took what was posted; the session dials again.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final, NoReturn

import h11
import msgspec

from waystation.core.message import Message
from waystation.core.outcome import Reason
from waystation.errors import LocalError
from waystation.net.place import parse_place
from waystation.net.sockets import prepare
from waystation.net.tls import Tls
from waystation.transports.http.channel import REASONS
from waystation.transports.http.transport import HttpLimits
from waystation.transports.transport import LinkOwner
from waystation.wire.ockam import (
    HEARTBEAT_FRAME,
    PREFACE,
    FrameDecoder,
    encode_control,
    encode_departure,
)

LATER: Final = 1.0
"""Seconds after which to come again, if the other end does not say."""

OCTETS: Final = (("content-type", "application/octet-stream"),)
ACCEPT: Final = (("accept", "application/octet-stream"),)


async def dial(
    places: Sequence[str], owner: LinkOwner, tls: Tls | None, limits: HttpLimits
) -> HttpLink:
    """A link to the first place that opens a channel; an OSError says why there is none."""
    parsed = [parse_place(place) for place in places]
    context = tls.for_dialler() if tls else None
    errors: list[str] = []
    for place, (host, port) in zip(places, parsed, strict=True):
        site = Site(place, host, port, context, (tls.name if tls else None) or host, limits)
        try:
            async with asyncio.timeout(limits.dial / len(places)):
                connection = Connection(site)
                try:
                    channel = await _open_channel(connection)
                except BaseException:
                    connection.drop()
                    raise
        except TimeoutError:
            errors.append(f"{place}: no answer within {limits.dial / len(places):g} s")
        except (OSError, ValueError) as error:
            errors.append(f"{place}: {error}")
        else:
            return HttpLink(owner, site, connection, channel)
    raise ConnectionError("; ".join(errors) or "there is no place to connect to")


class Opened(msgspec.Struct):
    """What a listener says of the channel that it opened."""

    id: str
    frame: int
    post: int
    wait: float
    idle: float


async def _open_channel(connection: Connection) -> Opened:
    answer = await connection.request("POST", "/channels")
    if answer.status != 201:
        raise ConnectionError(f"no channel: {answer.problem}")
    try:
        return msgspec.json.decode(answer.body, type=Opened)
    except msgspec.DecodeError as error:
        raise ConnectionError(f"this is no Waystation node ({error})") from None


class Site(msgspec.Struct, frozen=True):
    """Where to connect to, and how."""

    place: str
    host: str
    port: int
    tls: ssl.SSLContext | None
    name: str  # that the certificate must have
    limits: HttpLimits


class Answer(msgspec.Struct, frozen=True):
    """What came back for a request."""

    status: int
    headers: Mapping[bytes, bytes]
    body: bytes

    @property
    def problem(self) -> str:
        """What the other end says is wrong."""
        try:
            said = msgspec.json.decode(self.body, type=dict[str, str | None]).get("error")
        except msgspec.DecodeError:
            said = None
        return f"{said} ({self.status})" if said else f"the answer is {self.status}"


class Connection:
    """One connection, which is opened again when it was closed between two requests."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._http = h11.Connection(h11.CLIENT)

    async def request(
        self,
        method: str,
        target: str,
        headers: Sequence[tuple[str, str]] = (),
        body: bytes = b"",
    ) -> Answer:
        """Ask, and wait for the answer. What breaks or makes no sense is an OSError."""
        try:
            reader, writer = await self._stream()
            length = ("content-length", str(len(body)))
            fields = [("host", self._site.place), ("user-agent", "waystation"), length, *headers]
            send = self._http.send
            head = send(h11.Request(method=method, target=target, headers=fields)) or b""
            writer.write(head + (send(h11.Data(data=body)) or b""))
            send(h11.EndOfMessage())
            await writer.drain()
            return await self._answer(reader)
        except h11.ProtocolError as error:
            self.drop()
            raise ConnectionError(f"this is no HTTP: {error}") from error

    def drop(self) -> None:
        """Close it at once."""
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None

    async def _stream(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = self._reader, self._writer
        if reader is not None and writer is not None:
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
            self.drop()
        site = self._site
        self._http = h11.Connection(h11.CLIENT)
        if site.tls is None:
            reader, writer = await asyncio.open_connection(site.host, site.port)
        else:
            reader, writer = await asyncio.open_connection(
                site.host,
                site.port,
                ssl=site.tls,
                server_hostname=site.name,
                ssl_handshake_timeout=site.limits.greeting,
            )
        prepare(writer.get_extra_info("socket"), site.limits.dead)
        self._reader, self._writer = reader, writer
        return reader, writer

    async def _answer(self, reader: asyncio.StreamReader) -> Answer:
        status, headers = 0, dict[bytes, bytes]()
        parts: list[bytes] = []
        size = 0
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                data = await reader.read(65536)
                if not data and self._http.their_state is h11.SEND_RESPONSE:
                    raise ConnectionError("the connection ended before the answer")
                self._http.receive_data(data)
            elif isinstance(event, h11.Response):
                status, headers = event.status_code, dict(event.headers)
            elif isinstance(event, h11.Data):
                size += len(event.data)
                if size > self._site.limits.post:
                    raise ConnectionError("the answer is too large")
                parts.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                break
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        else:
            self.drop()
        return Answer(status, headers, b"".join(parts))


class _OverError(Exception):
    """The link ends, for this reason."""

    def __init__(self, reason: Reason | None, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class HttpLink:
    """A channel at a listener, as the side that opened it sees it."""

    def __init__(
        self, owner: LinkOwner, site: Site, connection: Connection, channel: Opened
    ) -> None:
        self.place = site.place
        self._owner = owner
        self._limits = site.limits
        self._theirs = channel
        self._frame = min(site.limits.frame, channel.frame)
        self._path = f"/channels/{channel.id}"
        self._posts = connection
        self._polls = Connection(site)
        self._decoder = FrameDecoder(limit=site.limits.frame, via=owner.address)
        self._decoder.feed(PREFACE)
        self._last = 0  # the number of the last frame that came
        self._frames: list[tuple[bytes, bool]] = []  # with whether each is a message
        self._size = 0
        self._due = asyncio.Event()  # there is something to post
        self._reads = asyncio.Event()  # the owner takes messages
        self._reads.set()
        self._paused = False
        self._closing = False
        self._ended = False
        self._loop = loop = asyncio.get_running_loop()
        self._alarm: asyncio.TimerHandle | None = None
        owner.opened(self)
        owner.answered()
        self._tasks = (
            loop.create_task(
                self._run(self._post_all()), name=f"waystation http post {self.place}"
            ),
            loop.create_task(
                self._run(self._poll_all()), name=f"waystation http poll {self.place}"
            ),
        )

    # What the owner asks for

    def send(self, message: Message) -> Reason | None:
        """Encode a message and put it with the others of the next request."""
        try:
            frame = encode_departure(message, limit=self._frame)
        except LocalError as error:
            return REASONS.get(error.rule, Reason.MALFORMED)
        self._put(frame, is_message=True)
        if self._size > self._limits.unsent and not self._paused:
            self._paused = True
            self._owner.pause()
        return None

    def send_control(self, payload: bytes) -> None:
        """Put a payload for the other session with the messages of the next request."""
        self._put(encode_control(payload) if payload else HEARTBEAT_FRAME, is_message=False)

    def pause_reading(self) -> None:
        """Ask for nothing more; the other end then holds its senders back."""
        self._reads.clear()

    def resume_reading(self) -> None:
        """Ask again."""
        self._reads.set()

    def close(self) -> None:
        """Post what is left, within the time for it, and end the channel."""
        if self._closing or self._ended:
            return
        self._closing = True
        self._due.set()
        self._alarm = self._loop.call_later(self._limits.linger, self._end_lingering)

    def abort(self) -> None:
        """End at once."""
        self._closing = True
        self._loop.call_soon(self._end, Reason.TRANSPORT_DOWN, "aborted")

    # Posting

    def _put(self, frame: bytes, *, is_message: bool) -> None:
        if not self._closing:
            self._frames.append((frame, is_message))
            self._size += len(frame)
            self._due.set()

    async def _post_all(self) -> NoReturn:
        while True:
            await self._due.wait()
            self._due.clear()
            while self._frames:
                await self._post(self._next_batch())
                if self._paused and self._size <= self._limits.unsent // 4:
                    self._paused = False
                    self._owner.resume()
            if self._closing:
                await self._posts.request("DELETE", f"{self._path}?after={self._last}")
                self._owner.sent()
                raise _OverError(None, "closed")

    def _next_batch(self) -> list[tuple[bytes, bool]]:
        """As many frames as the other end takes in one request."""
        size = count = 0
        for count, (frame, _) in enumerate(self._frames):
            size += len(frame)
            if size > self._theirs.post and count:
                break
        else:
            count += 1
        batch, self._frames = self._frames[:count], self._frames[count:]
        self._size -= sum(len(frame) for frame, _ in batch)
        return batch

    async def _post(self, batch: list[tuple[bytes, bool]]) -> None:
        body = b"".join([frame for frame, _ in batch])
        while True:
            async with asyncio.timeout(self._limits.body + self._limits.dead):
                answer = await self._posts.request("POST", self._path, OCTETS, body)
            if answer.status == 202:
                break
            if answer.status not in (429, 503):
                raise _over(answer)
            await asyncio.sleep(_later(answer))
        messages = sum(is_message for _, is_message in batch)
        if messages:
            self._owner.sent(messages)

    # Asking

    async def _poll_all(self) -> None:
        wait = min(self._theirs.wait, self._limits.wait)
        while True:
            async with asyncio.timeout(wait + self._limits.dead):
                answer = await self._ask(f"wait={wait:g}")
            if answer.status not in (200, 204):
                raise _over(answer)
            self._last = _last(answer)
            messages = self._decoder.feed(answer.body)
            error = self._decoder.error
            await self._until_read()
            if self._closing:
                return
            self._owner.received(messages)
            if error is not None or self._decoder.unfinished:
                reason = Reason.TOO_LARGE if error and error.too_large else Reason.MALFORMED
                raise _OverError(reason, str(error or "an answer ends in the middle of a frame"))

    async def _ask(self, query: str) -> Answer:
        target = f"{self._path}?after={self._last}&{query}"
        return await self._polls.request("GET", target, ACCEPT)

    async def _until_read(self) -> None:
        """Wait until the owner takes messages, and let the channel live meanwhile."""
        while not self._reads.is_set():
            try:
                async with asyncio.timeout(self._theirs.idle / 3):
                    await self._reads.wait()
            except TimeoutError:
                await self._ask("limit=0")

    # Ending

    async def _run(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except _OverError as over:
            self._end(over.reason, str(over))
        except (OSError, EOFError) as error:
            self._end(Reason.TRANSPORT_DOWN, f"{type(error).__name__}: {error}")

    def _end_lingering(self) -> None:
        self._end(Reason.TRANSPORT_DOWN, "the peer did not take what was left")

    def _end(self, reason: Reason | None, detail: str) -> None:
        """Tell the owner that it is over, once."""
        if self._ended:
            return
        self._ended = self._closing = True
        if self._alarm is not None:
            self._alarm.cancel()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._posts.drop()
        self._polls.drop()
        self._frames.clear()
        self._owner.closed(reason, detail)


def _over(answer: Answer) -> _OverError:
    """How a link ends with an answer that is none."""
    if answer.status == 410 and b'"reason":null' in answer.body:
        return _OverError(None, "closed")
    reason = {400: Reason.MALFORMED, 413: Reason.TOO_LARGE}.get(
        answer.status, Reason.TRANSPORT_DOWN
    )
    return _OverError(reason, answer.problem)


def _last(answer: Answer) -> int:
    try:
        return int(answer.headers[b"waystation-last"])
    except (KeyError, ValueError):
        raise _OverError(Reason.MALFORMED, "the answer does not say its last number") from None


def _later(answer: Answer) -> float:
    try:
        return min(max(float(answer.headers.get(b"retry-after", b"")), 0.05), 30.0)
    except ValueError:
        return LATER
