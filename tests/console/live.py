"""Shared by tests of the console: a small fleet, a console that watches it, a simple browser."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tests.node.live import QUICK
from waystation.console import Console, Settings
from waystation.core.message import Message
from waystation.journal import Journal
from waystation.node import Context, Node
from waystation.node.status import STATUS, Question, SessionStatus, Status
from waystation.testing import DEADLINE, echo

SOON = 0.05
"""Seconds between two polls of a console in a test."""


class Page(Struct):
    """A response."""

    status: int
    headers: Mapping[str, str]
    text: str


class Browser:
    """Requests pages; keeps no cookies and follows no redirects."""

    def __init__(self, url: str) -> None:
        self.place = urlsplit(url).netloc

    async def get(self, path: str, **headers: str) -> Page:
        """GET a page; header names are written with underscores."""
        return await asyncio.to_thread(self._ask, "GET", path, None, headers)

    async def post(self, path: str, form: Mapping[str, str] | str, **headers: str) -> Page:
        """POST a form, as from a page of the console unless `Origin` says otherwise."""
        body = form if isinstance(form, str) else urlencode(form)
        given = {"Origin": f"http://{self.place}", **headers}
        return await asyncio.to_thread(self._ask, "POST", path, body, given)

    async def until(self, path: str, condition: Callable[[str], object], **headers: str) -> str:
        """The text of a page, once it satisfies a condition."""
        deadline = asyncio.get_running_loop().time() + DEADLINE
        while True:
            page = await self.get(path, **headers)
            if condition(page.text):
                return page.text
            assert asyncio.get_running_loop().time() < deadline, page.text
            await asyncio.sleep(0.02)

    @asynccontextmanager
    async def events(
        self, query: str = ""
    ) -> AsyncIterator[AsyncIterator[tuple[str, dict[str, Any]]]]:
        """The events of the console, as they come; `query` says what the picture is to show."""
        reader, writer = await asyncio.open_connection(*self.place.split(":"))
        writer.write(f"GET /events{query} HTTP/1.1\r\nHost: {self.place}\r\n\r\n".encode())
        try:
            yield self._read(reader)
        finally:
            writer.close()

    async def _read(
        self, reader: asyncio.StreamReader
    ) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        name = ""
        held = b""
        while True:
            async with asyncio.timeout(DEADLINE):
                data = await reader.read(1 << 20)
            if not data:
                return
            *lines, held = (held + data).split(b"\n")
            for line in lines:
                kind, _, value = line.partition(b": ")
                if kind == b"event":
                    name = value.decode()
                elif kind == b"data":
                    yield name, json.loads(value)

    def _ask(self, method: str, path: str, body: str | None, headers: Mapping[str, str]) -> Page:
        connection = http.client.HTTPConnection(self.place, timeout=DEADLINE)
        try:
            told = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, told)
            answer = connection.getresponse()
            return Page(answer.status, dict(answer.getheaders()), answer.read().decode())
        finally:
            connection.close()


class Told(Struct):
    """A node with a status, and its URL."""

    node: Node
    url: str


@asynccontextmanager
async def telling(name: str, journal: Path | None, **options: Any) -> AsyncIterator[Node]:
    """A node with a status and a journal that is flushed at once."""
    kept = None if journal is None else Journal(journal, name, flush_seconds=0.02)
    try:
        async with Node(name, limits=QUICK, **options) as node:
            if kept is not None:
                node.observe(kept.note)
            status = Status(node)
            status.start()
            try:
                yield node
            finally:
                status.stop()
    finally:
        if kept is not None:
            await asyncio.to_thread(kept.close)


@asynccontextmanager
async def hub(
    name: str = "hub",
    url: str = "tcp://127.0.0.1:0",
    journal: Path | None = None,
    **options: Any,
) -> AsyncIterator[Told]:
    """A hub with an echo."""
    async with telling(name, journal, hub=True, **options) as node:
        echo(node)
        listening = await node.listen(url)
        yield Told(node, listening.url)


@asynccontextmanager
async def pretending(name: str, leaves: Sequence[str], *hubs: str) -> AsyncIterator[Told]:
    """A node that says it is a hub with these leaves and these other hubs."""

    def session(peer: str, count: int) -> SessionStatus:
        return SessionStatus(
            f"tcp-{peer}", "1#10.0.0.9:1", peer, open=True, opened_here=peer in hubs[:1],
            messages_in=count, waiting=30 if peer.endswith("-stuck") else 0,
        )  # fmt: skip

    async with Node(name, limits=QUICK) as node:
        status = Status(node)

        async def answer(message: Message, context: Context) -> None:
            asked = msgspec.json.decode(message.payload, type=Question)
            seen = status.snapshot(asked)
            peers = [*hubs, *leaves]
            sessions = [
                session(peer, int(seen.uptime * (1 + number % 7)))
                for number, peer in enumerate(peers)
            ]
            told = replace(
                seen,
                hub=True,
                sessions=sessions[: asked.sessions],
                sessions_fitting=len(peers),
                sessions_total=len(peers),
            )
            await context.reply(msgspec.json.encode(told))

        node.start_worker((STATUS,), answer, reserved=True)
        yield Told(node, (await node.listen("tcp://127.0.0.1:0")).url)


@asynccontextmanager
async def leaf(
    name: str, parent: Told, journal: Path | None = None, **options: Any
) -> AsyncIterator[Told]:
    """A leaf that also listens, with an echo under its own name."""
    async with telling(name, journal, **options) as node:
        echo(node, f"{name}-echo")
        listening = await node.listen("tcp://127.0.0.1:0")
        await node.connect(parent.url, parent=True)
        yield Told(node, listening.url)


@asynccontextmanager
async def shown(*urls: str, interval: float = SOON, **settings: Any) -> AsyncIterator[Browser]:
    """A console that watches these URLs, and a browser for it."""
    made = Settings(connect=urls, listen="127.0.0.1:0", interval=interval, **settings)
    async with Node("console", limits=QUICK) as node, Console.running(node, made) as console:
        yield Browser(console.url)
