"""Send the rows of frames as messages: the writer behind `df.write.format("waystation")`.

Each task runs one node with one session, to the node that the option `via` names. Messages
are sent in windows. A message that comes back follows each window: since a session keeps the
order, the other node has then accepted everything before it. The other node may still hold it in
memory when it dies; so confirmed windows are kept as well, as far as there is room for
them. When the session breaks, it is reopened and everything that is kept is sent again, with the
same ids: messages arrive at least once.

With `durable`, a window is confirmed when the other node has all of it in its store, and what is
confirmed need not be kept.

At a hub, the task announces itself, and sends that message to its own worker. A node
that is not a hub accepts no announcement; there it is sent to an address type that nobody routes,
to which each of our nodes replies at once with an error. That would work everywhere, but leaves a
record of a dropped message for each window.

This is the only module of the pipeline that knows of live nodes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from waystation.core.address import LOCAL, Address, Route
from waystation.core.message import Message
from waystation.core.multicast import ADDRESS_TYPE as MULTICAST
from waystation.core.outcome import Reason
from waystation.errors import (
    LocalError,
    NoReplyError,
    UndeliverableError,
    UnreachableError,
    WaystationError,
)
from waystation.node import Context, Node, Session, Wait, run
from waystation.pipeline.sink.options import Sending
from waystation.pipeline.sink.rows import (
    BadRowError,
    Ids,
    Outgoing,
    check_columns_to_send,
    outgoing,
)
from waystation.transports.tcp import Tcp
from waystation.transports.transport import Transport

WINDOW_BYTES: Final = 4 * 2**20
"""A window is complete with this much payload, however few messages it has."""

AHEAD: Final = 2
"""Maximum number of windows in flight; then one has to be confirmed."""

_VIA: Final = "via"
_QUESTION: Final = "confirm"  # an address type that nobody routes
_BATCH: Final = "streaming.sql.batchId"  # as Spark calls it
_ROUTES: Final = 65_536  # maximum number of cached routes
_ITS_OWN_FAULT: Final = (Reason.TOO_LARGE, Reason.MALFORMED, Reason.NO_ROUTE, Reason.HOP_LIMIT)
_NO_ROOM: Final = (Reason.QUEUE_FULL, Reason.TRANSPORT_DOWN)
_FULL_PAUSE: Final = 0.2  # seconds until a full store is asked again
_NOWHERE: Final = Route()
_OVERHEAD: Final = 500  # bytes that a message takes in memory besides its payload
_log = logging.getLogger("waystation.pipeline")


@dataclass
class Sent(WriterCommitMessage):
    """What a task sent.

    `expired` counts the messages that had expired before they were sent; `repeated` counts
    those that were sent again because a session broke.
    """

    messages: int = 0
    bytes: int = 0
    expired: int = 0
    repeated: int = 0
    tasks: int = 1


class NotConfirmedError(WaystationError):
    """The node that messages were sent via did not confirm them in time."""

    def __init__(self, via: str, seconds: float, detail: str) -> None:
        super().__init__(f"{via} confirmed nothing for {seconds:g} s: {detail}")


class FrameSender(DataSourceArrowWriter):
    """Sends the rows of a frame."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self.sending = _checked(options, schema, overwrite=overwrite, streaming=False)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        """Send the rows of one task."""
        return send_all(iterator, self.sending, batch=None)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log how much was sent."""
        _summarise(messages, self.sending)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log how much was sent before the failure: that cannot be undone."""
        _tell("was given up after", _total(messages), self.sending)


class StreamSender(DataSourceStreamArrowWriter):
    """Sends the rows of each batch of a stream."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self.sending = _checked(options, schema, overwrite=overwrite, streaming=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        """Send the rows of one task; a repeated batch has the same number."""
        context = TaskContext.get()
        batch = None if context is None else context.getLocalProperty(_BATCH)
        if batch is None:
            raise LocalError(
                "this batch of a stream has no number", rule="AD-7", hint="use PySpark 4.2 or newer"
            )
        return send_all(iterator, self.sending, batch=batch)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log how much was sent."""
        _summarise(messages, self.sending, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log how much was sent before the failure."""
        _tell(f"gave batch {batchId} up after", _total(messages), self.sending)


def send_all(batches: Iterator[pa.RecordBatch], sending: Sending, *, batch: str | None) -> Sent:
    """Send the rows of one task; returns when all are confirmed, and raises an error otherwise."""
    return run(_send_all(batches, sending, Ids(sending.campaign, batch)))


async def _send_all(batches: Iterator[pa.RecordBatch], sending: Sending, ids: Ids) -> Sent:
    transports = [_transport(sending)]
    async with Node(sending.name, transports=transports, token=sending.secret()) as node:
        echoes = _Echoes(node)
        session = await node.connect(*sending.via, name=_VIA, wait=sending.timeout, parent=True)
        outlet = _Outlet(node, session, echoes, sending)
        row = 0
        async for batch in _ahead(batches):
            for window in _windows(outgoing(batch, sending.key, ids, row), sending.window):
                await outlet.send(window)
            row += batch.num_rows
        await outlet.confirm_all()
        return outlet.sent


class _Echoes:
    """Messages that come back, over a session that may have to be reopened."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._numbers = count()
        self._awaited: dict[bytes, asyncio.Future[None]] = {}
        self._heard_in = 0  # the connection of the session in which the announcement was accepted
        name = f"confirm-{secrets.token_hex(8)}"
        node.start_worker((name,), self._hear)
        self._here = Address(LOCAL, name.encode())
        unknown = node.register_type(_QUESTION, lambda *_: Reason.REFUSED)
        self._nowhere = Address(unknown, b"waystation")

    async def call(self, session: Session, seconds: float) -> str:
        """Wait until the other node has accepted everything sent before; returns why if not."""
        opening = session.openings
        if self._heard_in == opening:
            return await self._call_back(session, seconds)
        problem = await self._ask(session, seconds)
        if not problem and not session.complaints:  # it would have declined before it replied
            self._heard_in = opening
        return problem

    async def _call_back(self, session: Session, seconds: float) -> str:
        payload = b"%d" % next(self._numbers)
        self._awaited[payload] = back = asyncio.get_running_loop().create_future()
        route = Route((session.address, self._here))
        expiry = self._node.expiry_in(seconds)
        message = Message(route, _NOWHERE, payload, self._node.new_id(), expiry)
        try:
            async with asyncio.timeout(seconds):
                verdict = await self._node.route(message)
                if verdict.reason is not None:
                    return str(verdict.reason)
                await back
        except TimeoutError:
            return "nothing came back"
        finally:
            del self._awaited[payload]
        return ""

    def _hear(self, message: Message, _: Context) -> None:
        back = self._awaited.get(message.payload)
        if back is not None and not back.done():
            back.set_result(None)

    async def _ask(self, session: Session, seconds: float) -> str:
        route = Route((session.address, self._nowhere))
        try:
            await self._node.request(route, b"", timeout=seconds)
        except UndeliverableError as error:
            return str(error) if error.node is None else ""  # or the other node reports it
        except NoReplyError as error:
            return f"{error}; is it a Waystation node?"
        return ""


class _Window:
    """Messages that are confirmed together."""

    def __init__(self, messages: list[tuple[int, Message]]) -> None:
        self.messages = messages  # with the numbers of their rows
        self.opening = 0  # of the session, when they were sent
        self.confirmation: asyncio.Task[str] | None = None
        self.size = sum(len(message.payload) + _OVERHEAD for _, message in messages)


class _Outlet:
    """What a task sends through: a session, and the windows that may have to be sent again."""

    def __init__(self, node: Node, session: Session, echoes: _Echoes, sending: Sending) -> None:
        self.sent = Sent()
        self._node = node
        self._session = session
        self._sending = sending
        self._policy = Wait(sending.timeout)
        self._sent_off: deque[_Window] = deque()  # and not yet confirmed
        self._kept: deque[_Window] = deque()  # although they are confirmed
        self._kept_size = 0
        self._routes: dict[str, Route] = {}
        self._echoes = echoes
        self._broken_since: float | None = None  # time of the last confirmation

    async def send(self, rows: list[Outgoing]) -> None:
        """Send messages; waits while too many windows are in flight."""
        window = _Window([(row.row, self._message(row)) for row in rows])
        self._sent_off.append(window)
        await self._pass_on(window)
        self.sent.messages += len(rows)
        self.sent.bytes += sum(len(row.payload) for row in rows)
        while len(self._sent_off) > AHEAD:
            await self._confirm_next()

    async def confirm_all(self) -> None:
        """Wait until everything is confirmed."""
        while self._sent_off:
            await self._confirm_next()

    async def _confirm_next(self) -> None:
        """Wait for the oldest window; send everything again if the session broke meanwhile."""
        if await self._is_confirmed(self._sent_off[0]):
            self._broken_since = None
            self._keep(self._sent_off.popleft())
        else:
            _log.info("the session with %s broke; sending again", self._sending.via[0])
            self._give_up_if_it_breaks_on_and_on()
            await self._send_again()

    def _give_up_if_it_breaks_on_and_on(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._broken_since is None:
            self._broken_since = now
        elif now - self._broken_since > self._sending.timeout:
            raise UnreachableError(self._sending.via[0], self._session.failure)

    def _keep(self, window: _Window) -> None:
        window.confirmation = None
        if self._sending.durable:
            return  # it is on a disk
        self._kept.append(window)
        self._kept_size += window.size
        while self._kept_size > self._sending.keep:
            self._kept_size -= self._kept.popleft().size

    async def _send_again(self) -> None:
        for window in self._sent_off:
            if window.confirmation is not None:
                window.confirmation.cancel()
        self._sent_off.extendleft(reversed(self._kept))
        self._kept.clear()
        self._kept_size = 0
        for window in self._sent_off:
            await self._pass_on(window)
            self.sent.repeated += len(window.messages)

    async def _pass_on(self, window: _Window) -> None:
        await self._open()
        window.opening = self._session.openings
        if self._sending.durable:
            given = self._deposit(window)
            window.confirmation = asyncio.get_running_loop().create_task(given)
            return
        route, policy = self._node.route, self._policy
        expired = set()
        for row, message in window.messages:
            verdict = await route(message, policy)
            if verdict.reason is Reason.EXPIRED:
                expired.add(row)
            elif verdict.reason is not None:
                self._refuse(row, verdict.reason)
        if expired:
            self.sent.expired += len(expired)
            window.messages = [one for one in window.messages if one[0] not in expired]
        echo = self._echoes.call(self._session, self._sending.timeout)
        window.confirmation = asyncio.get_running_loop().create_task(echo)

    async def _deposit(self, window: _Window) -> str:
        """Wait until the other node has a window in custody; returns why if not (DU-1)."""
        node, seconds = self._node, self._sending.timeout
        clock = asyncio.get_running_loop().time
        deadline = clock() + seconds
        while window.messages:
            each = [message.departed() for _, message in window.messages]
            try:
                reasons = await node.deposit(self._session, each, timeout=seconds)
            except NoReplyError as error:
                return str(error)
            rows = list(zip(window.messages, reasons, strict=True))
            self.sent.expired += sum(reason is Reason.EXPIRED for reason in reasons)
            window.messages = [one for one, reason in rows if reason in _NO_ROOM]
            for (row, _), reason in rows:
                if reason is not None and reason is not Reason.EXPIRED and reason not in _NO_ROOM:
                    raise BadRowError(row, f"it was refused, {reason}")
            if window.messages and clock() >= deadline:
                return f"row {window.messages[0][0]} found no room, {Reason.QUEUE_FULL}"
            if window.messages:
                await asyncio.sleep(_FULL_PAUSE)
        return ""

    async def _open(self) -> None:
        """Wait until the session is open; the node reconnects by itself."""
        session = self._session
        try:
            async with asyncio.timeout(self._sending.timeout):
                while not session.is_open:
                    await asyncio.shield(session.change)
        except TimeoutError:
            raise UnreachableError(self._sending.via[0], session.failure or "no reply") from None

    async def _is_confirmed(self, window: _Window) -> bool:
        """Wait until the message after a window comes back; False if the session broke before."""
        session, confirmation = self._session, window.confirmation
        assert confirmation is not None  # it was sent
        while not confirmation.done() and self._goes_on(window):
            await asyncio.wait((confirmation, session.change), return_when=asyncio.FIRST_COMPLETED)
        if not self._goes_on(window):
            confirmation.cancel()
            return False
        if problem := confirmation.result():
            raise NotConfirmedError(self._sending.via[0], self._sending.timeout, problem)
        return True

    def _goes_on(self, window: _Window) -> bool:
        """Whether the session is still the one over which a window was sent."""
        return self._session.is_open and self._session.openings == window.opening

    def _message(self, row: Outgoing) -> Message:
        try:
            onward = self._route(row)
        except LocalError as error:
            raise BadRowError(row.row, str(error)) from None
        expiry = self._node.expiry_in(row.ttl)
        return Message(onward, _NOWHERE, row.payload, row.id, expiry)

    def _route(self, row: Outgoing) -> Route:
        """The route of a row, which begins at the other node."""
        via = self._session.address
        if row.route is None:
            assert row.multicast_id is not None  # a row has one of them
            return Route((via, Address(MULTICAST, row.multicast_id.encode())))
        found = self._routes.get(row.route)
        if found is None:
            types = self._node.router.types
            types.reserve_usual(row.route)
            parsed = Route.parse(row.route, types.numbers)
            if not parsed.addresses:
                raise LocalError("its route is empty", rule="AD-6", hint="write hub => truck-7")
            found = parsed.pushed(via)
            if len(self._routes) >= _ROUTES:
                self._routes.clear()
            self._routes[row.route] = found
        return found

    def _refuse(self, row: int, reason: Reason) -> None:
        if reason in _ITS_OWN_FAULT:
            raise BadRowError(row, f"it was refused, {reason}")
        via, seconds = self._sending.via[0], self._sending.timeout
        raise NotConfirmedError(via, seconds, f"row {row} found no room, {reason}")


async def _ahead(batches: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
    """The batches, read in another thread, so that the node can continue while Spark works."""
    coming = asyncio.create_task(asyncio.to_thread(next, batches, None))
    try:
        while (batch := await coming) is not None:
            coming = asyncio.create_task(asyncio.to_thread(next, batches, None))
            yield batch
    finally:
        coming.cancel()


def _windows(rows: Iterable[Outgoing], most: int) -> Iterator[list[Outgoing]]:
    """Rows in windows, limited by the number of messages and by their size."""
    window: list[Outgoing] = []
    size = 0
    for row in rows:
        window.append(row)
        size += len(row.payload)
        if len(window) >= most or size >= WINDOW_BYTES:
            yield window
            window, size = [], 0
    if window:
        yield window


def _transport(sending: Sending) -> Transport:
    if sending.scheme == "tcp":
        return Tcp(tls=sending.tls)
    from waystation.transports.websocket import WebSocket  # noqa: PLC0415 - it needs websockets

    return WebSocket(tls=sending.tls)


def _checked(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool, streaming: bool
) -> Sending:
    if overwrite:
        raise LocalError(
            "messages that were sent cannot be overwritten",
            rule="AD-4",
            hint="use mode append, or the output mode append or update",
        )
    sending = Sending.of(options, streaming=streaming)
    check_columns_to_send(schema, sending.key)
    return sending


def _total(messages: Iterable[WriterCommitMessage | None]) -> Sent:
    total = Sent(tasks=0)
    for sent in messages:
        if isinstance(sent, Sent):
            total.messages += sent.messages
            total.bytes += sent.bytes
            total.expired += sent.expired
            total.repeated += sent.repeated
            total.tasks += 1
    return total


def _summarise(
    messages: list[WriterCommitMessage | None], sending: Sending, batch: int | None = None
) -> None:
    total = _total(messages)
    _tell("sent", total, sending)
    if sending.summary is not None:
        found: dict[str, Any] = {"campaign": sending.campaign, "batch": batch, **asdict(total)}
        Path(sending.summary).write_text(json.dumps(found) + "\n", "utf-8")


def _tell(what: str, total: Sent, sending: Sending) -> None:
    _log.info(
        "campaign %s %s %d messages, %d of them again, in %d tasks",
        sending.campaign,
        what,
        total.messages,
        total.repeated,
        total.tasks,
    )
