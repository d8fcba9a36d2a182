"""The dialling side of HTTP: a link that posts what it is given and asks for what there is.

A link has two connections and two tasks: one posts, batch after batch, so that order is kept; one
asks for messages, and asks again. A connection that breaks in the middle of a request ends the
link, since nobody can say whether the other end took what was posted; the session dials again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NoReturn

import h11
import msgspec

from waystation.core.outcome import Reason
from waystation.net.backoff import Backoff
from waystation.net.connection import Connection, ConnectionLimits, ConnectionState, Failure
from waystation.net.dialer import dial as dial_place
from waystation.net.dialer import within
from waystation.net.place import parse_place
from waystation.net.tasks import Tasks
from waystation.transports.http.channel import ChannelEnd
from waystation.transports.http.transport import Http, OpenedChannel
from waystation.transports.transport import LinkOwner

OCTETS: Final = (("content-type", "application/octet-stream"),)
ACCEPT: Final = (("accept", "application/octet-stream"),)


async def dial(transport: Http, places: Sequence[str], owner: LinkOwner) -> HttpLink:
    """A link to the first place that opens a channel; an OSError says why there is none."""
    for place in places:
        parse_place(place)
    errors: list[str] = []
    for place in places:
        requests = Requests(transport, place)
        try:
            async with within(transport.limits.dial / len(places), [place]):
                return HttpLink(owner, requests, await _open_channel(requests))
        except BaseException as error:
            requests.drop()
            if not isinstance(error, OSError | ValueError):
                raise
            errors.append(str(error) if isinstance(error, TimeoutError) else f"{place}: {error}")
    raise ConnectionError("; ".join(errors) or "there is no place to connect to")


async def _open_channel(requests: Requests) -> OpenedChannel:
    answer = await requests.request("POST", "/channels")
    if answer.status != 201:
        raise ConnectionError(f"no channel: {answer.problem}")
    try:
        return msgspec.json.decode(answer.body, type=OpenedChannel)
    except msgspec.DecodeError as error:
        raise ConnectionError(f"this is no Waystation node ({error})") from None


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


class _RequestConnection(Connection):
    """A connection to a listener, for one request after the other."""

    __slots__ = ("_answer", "_body", "_head", "_http", "_limit")

    def __init__(self, limits: ConnectionLimits, limit: int) -> None:
        super().__init__(limits)
        self._limit = limit  # bytes of the body of an answer
        self._http = h11.Connection(h11.CLIENT)
        self._answer: asyncio.Future[Answer] | None = None  # that the request waits for
        self._head: h11.Response | None = None
        self._body = bytearray()

    async def request(
        self, method: str, target: str, headers: list[tuple[str, str]], body: bytes
    ) -> Answer:
        """Ask, and wait for the answer; an OSError says why there is none."""
        send = self._http.send
        head = send(h11.Request(method=method, target=target, headers=headers)) or b""
        self.write(head + (send(h11.Data(data=body)) or b""))
        send(h11.EndOfMessage())
        self.flush()
        self._answer = self._loop.create_future()
        try:
            return await self._answer
        finally:
            self._answer = None

    # What the connection tells

    def on_data(self, data: bytes) -> None:
        """Read the answer; what comes without a request can belong to none."""
        if self._answer is None or self._answer.done():
            self.abort()
            return
        try:
            self._http.receive_data(data)
            self._read()
        except h11.ProtocolError as error:
            self.fail(Reason.MALFORMED, f"this is no HTTP: {error}")

    def count_unfinished(self) -> int:
        """What is there of an answer that has begun; a poll that waits has none yet."""
        if self._answer is None or self._answer.done():
            return 0
        return len(self._body) + len(self._http.trailing_data[0]) + (self._head is not None)

    def on_eof(self) -> None:
        """Complete an answer whose end is that of the connection."""
        if self.is_open and self._http.their_state is not h11.SEND_RESPONSE:
            self.on_data(b"")

    def on_closed(self, failure: Failure | None) -> None:
        """Tell whoever waits for an answer."""
        if self._answer is not None and not self._answer.done():
            detail = "the connection ended before the answer" if failure is None else failure.detail
            self._answer.set_exception(ConnectionError(detail))

    def _read(self) -> None:
        while (event := self._http.next_event()) is not h11.NEED_DATA:
            if isinstance(event, h11.Response):
                self._head = event
            elif isinstance(event, h11.Data):
                self._body += event.data
                if len(self._body) > self._limit:
                    self.fail(Reason.TOO_LARGE, "the answer is too large")
                    return
            elif isinstance(event, h11.EndOfMessage):
                self._complete()
                return

    def _complete(self) -> None:
        head, http = self._head, self._http
        assert head is not None
        assert self._answer is not None
        answer = Answer(head.status_code, dict(head.headers), bytes(self._body))
        self._answer.set_result(answer)
        self._body.clear()
        self._head = None
        if http.our_state is http.their_state is h11.DONE and not http.trailing_data[0]:
            http.start_next_cycle()
        else:
            self.abort()


class Requests:
    """Requests to one place, in order; connects again when the connection ended between two."""

    def __init__(self, transport: Http, place: str) -> None:
        self.place = place
        self.transport = transport
        self._connection: _RequestConnection | None = None

    async def request(
        self,
        method: str,
        target: str,
        headers: Sequence[tuple[str, str]] = (),
        body: bytes = b"",
    ) -> Answer:
        """Ask, and wait for the answer. What breaks or makes no sense is an OSError."""
        connection = self._connection
        if connection is None or not connection.is_open:
            connection = self._connection = await self._connect()
        length = ("content-length", str(len(body)))
        fields = [("host", self.place), ("user-agent", "waystation"), length, *headers]
        return await connection.request(method, target, fields, body)

    def drop(self) -> None:
        """Close the connection at once."""
        if self._connection is not None:
            self._connection.abort()

    async def _connect(self) -> _RequestConnection:
        limits = self.transport.limits
        silent = msgspec.structs.replace(
            limits.of_connections(),
            first_byte=None,  # until it asks
            frame=limits.finish,
        )
        return await dial_place(
            lambda _: _RequestConnection(silent, limits.post),
            [self.place],
            timeout=limits.dial,
            tls=self.transport.tls,
            handshake=limits.greeting,
        )


class _EndError(Exception):
    """The link ends, for this reason; None for an orderly end."""

    def __init__(self, reason: Reason | None, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class HttpLink(ChannelEnd):
    """A channel at a listener, as the side that opened it sees it."""

    def __init__(self, owner: LinkOwner, requests: Requests, channel: OpenedChannel) -> None:
        limits = requests.transport.limits
        super().__init__(owner, requests.place, limits, keep=0)
        self._frame_limit = min(limits.frame, channel.frame)
        self._theirs = channel
        self._path = f"/channels/{channel.id}"
        self._posts = requests
        self._polls = Requests(requests.transport, requests.place)
        self._decoder = self._fresh_decoder()
        self._last = 0  # the number of the last frame that came
        self._tasks = Tasks()
        self.hand_over()
        owner.answered()
        if self.state is not ConnectionState.CLOSED:
            for work in (self._post_all, self._poll_all):
                name = f"http {self.place}"
                self._tasks.start(self._run(work), name, if_failed=self.abort)

    def say_goodbye(self) -> None:
        """Post what is left, and then end the channel."""
        self._news.set()

    # Posting

    async def _post_all(self) -> NoReturn:
        limit = max(1, self._theirs.post - self._theirs.frame)  # one frame may go beyond it
        while True:
            await self._news.wait()
            self._news.clear()
            while frames := self._out.take(limit):
                await self._post(b"".join([frame.data for frame in frames]))
                messages = self._out.settle(self._out.given)
                if messages:
                    self.owner.sent(messages)
                self.note_room(self._out.size)
            if self.state is ConnectionState.CLOSING:
                await self._posts.request("DELETE", f"{self._path}?after={self._last}")
                self.owner.sent()
                raise _EndError(None, "closed")

    async def _post(self, body: bytes) -> None:
        backoff = Backoff()
        while True:
            async with asyncio.timeout(self._limits.body + self._limits.dead):
                answer = await self._posts.request("POST", self._path, OCTETS, body)
            if answer.status == 202:
                return
            if answer.status not in (429, 503):
                raise _refused(answer)
            await asyncio.sleep(_retry_after(answer) or backoff.next())

    # Asking

    async def _poll_all(self) -> None:
        wait = min(self._theirs.wait, self._limits.wait)
        while True:
            async with asyncio.timeout(wait + self._limits.dead):
                answer = await self._ask(f"wait={wait:g}")
            if answer.status not in (200, 204):
                raise _refused(answer)
            self._last = _last(answer)
            messages = self._decoder.feed(answer.body)
            error = self._decoder.error
            await self._until_read()
            if self.state is not ConnectionState.OPEN:
                return
            self.owner.received(messages)
            if error is not None or self._decoder.unfinished:
                reason = Reason.TOO_LARGE if error and error.too_large else Reason.MALFORMED
                raise _EndError(reason, str(error or "an answer ends in the middle of a frame"))

    async def _ask(self, query: str) -> Answer:
        target = f"{self._path}?after={self._last}&{query}"
        return await self._polls.request("GET", target, ACCEPT)

    async def _until_read(self) -> None:
        """Wait until the owner takes messages, and let the channel live meanwhile."""
        while not self.room.is_set():
            try:
                async with asyncio.timeout(max(1.0, self._theirs.idle) / 3):
                    await self.room.wait()
            except TimeoutError:
                await self._ask("limit=0")

    # Ending

    async def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except _EndError as end:
            self.end(end.reason, str(end))
        except OSError as error:
            self.end(Reason.TRANSPORT_DOWN, f"{type(error).__name__}: {error}")

    def on_end(self) -> None:
        """Ask for nothing more."""
        self._tasks.cancel()
        self._posts.drop()
        self._polls.drop()


def _refused(answer: Answer) -> _EndError:
    """How a link ends when its listener refuses a request."""
    if answer.status == 410 and b'"reason":null' in answer.body:
        return _EndError(None, "closed")
    reason = {400: Reason.MALFORMED, 413: Reason.TOO_LARGE}.get(
        answer.status, Reason.TRANSPORT_DOWN
    )
    return _EndError(reason, answer.problem)


def _last(answer: Answer) -> int:
    try:
        return int(answer.headers[b"waystation-last"])
    except (KeyError, ValueError):
        raise _EndError(Reason.MALFORMED, "the answer does not say its last number") from None


def _retry_after(answer: Answer) -> float | None:
    """How many seconds to wait, if the other end says so."""
    try:
        return min(30.0, max(0.05, float(answer.headers[b"retry-after"])))
    except (KeyError, ValueError):
        return None
