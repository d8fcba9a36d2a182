"""HTTP: a transport between nodes, and a way in for clients that have nothing but HTTP."""

from __future__ import annotations

import asyncio
import hmac
import http.client
import json
import re
import shlex
import socket
import subprocess
import sys
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.node.live import LOOPS, QUICK, RawPeer, nothing_is_left, raw_listener, runs_on_every_loop
from tests.transports.certificates import authority
from tests.transports.test_tcp import Notes, message
from waystation.core.address import Address, Route
from waystation.core.message import Message
from waystation.core.outcome import Reason
from waystation.errors import LocalError, UnreachableError
from waystation.net.held import HeldBytes
from waystation.net.hosts import HostNames, host_name
from waystation.net.place import parse_place
from waystation.node import FAIL, Limits, Node, Wait
from waystation.testing import (
    Gate,
    Recorder,
    async_test,
    check_transport,
    collect,
    conformance,
    echo,
    run_checked,
    settle,
    until,
)
from waystation.transports.http import Http, HttpLimits
from waystation.transports.http.channel import Channel, Frame, Outgoing
from waystation.transports.http.server import HttpListener
from waystation.transports.transport import Transport
from waystation.wire.hello import PROOF_PURPOSE
from waystation.wire.ockam import PREFACE, FrameDecoder, encode_frame

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/connect-over-http.md"
OCTETS = {"Content-Type": "application/octet-stream"}
FRAMES = {"Accept": "application/octet-stream"}
EVENTS = {"Accept": "text/event-stream"}
SECRET = b"secret"
SMALL = HttpLimits(frame=2 * 1024 * 1024, unsent=64 * 1024)


# --- Between nodes --------------------------------------------------------------------------------


def _plain() -> Transport:
    return Http(limits=SMALL)


def _encrypted() -> Transport:
    return Http(tls=authority().tls("127.0.0.1", mutual=True), limits=SMALL)


@pytest.mark.rule("WK-10")
@pytest.mark.rule("WK-8")
@pytest.mark.parametrize(
    ("make", "loop"),
    [(_plain, "asyncio"), (_encrypted, "uvloop")],
    ids=["plain, asyncio", "tls, uvloop"],
)
def test_http_passes_the_kit(make: Callable[[], Transport], loop: str) -> None:
    async def scenario() -> None:
        result = await check_transport(make, "http://127.0.0.1:0", too_large=3 * 1024 * 1024)
        assert result.passed == tuple(conformance.CHECKS)

    run_checked(scenario, LOOPS[loop], seconds=110)


@asynccontextmanager
async def door(
    limits: HttpLimits | None = None, node_limits: Limits = QUICK, **options: Any
) -> AsyncIterator[tuple[Node, Http, str]]:
    """A node with an echo that listens, its transport, and its place."""
    transport = Http(limits=limits)
    async with Node("server", transports=[transport], limits=node_limits, **options) as node:
        echo(node)
        yield node, transport, (await node.listen("http://127.0.0.1:0")).place


async def closed(listener: Any) -> None:
    """Close a listener whose channels have ended, and wait for its connections to end."""
    await listener.close()
    await until(lambda: not listener.server.connections)


@runs_on_every_loop
async def test_a_token_is_proven_over_http_as_over_any_transport() -> None:
    async with (
        door(token=SECRET) as (server, _, place),
        Node("client", transports=[Http()], limits=QUICK, token=SECRET) as client,
        Node("stranger", transports=[Http()], limits=QUICK, token=b"guess") as stranger,
    ):
        route = f"http#{place} => echo"
        assert (await client.request(route, b"hi")).payload == b"hi"
        with pytest.raises(UnreachableError):
            await stranger.connect(f"http://{place}", keep=False, wait=1)
        await until(lambda: len(server.sessions) == 1)


@runs_on_every_loop
async def test_both_nodes_say_goodbye_in_order_whoever_leaves() -> None:
    async with Node("client", transports=[Http()], limits=QUICK) as client:
        journal, kept = Recorder(client), collect(client, "sink")
        async with door() as (server, _, place):
            await client.connect(f"http://{place}", name="hub", keep=False)
            await until(lambda: server.sessions)
            back = server.sessions[0].name
            for number in range(300):
                await server.send(f"{back} => sink", b"%d" % number)
        await until(lambda: not client.sessions)
        assert [int(m.payload) for m in kept] == list(range(300))
        assert journal.session_events() == [("opened", None), ("closed", None)]
        await nothing_is_left(client)


@runs_on_every_loop
async def test_what_the_client_said_it_has_is_told_as_sent_and_no_more() -> None:
    owner, theirs = Notes(), Notes(b"other")
    transport = Http()
    listener: Any = await transport.listen("127.0.0.1:0", lambda: theirs)
    link = await transport.dial([listener.place], owner)
    assert theirs.link is not None
    assert (owner.told, theirs.told) == (["opened", "answered"], ["opened", "answered"])
    assert theirs.link.send(message(b"out")) is None
    await until(lambda: owner.messages)
    await until(lambda: theirs.settled == 1)
    assert link.send(message(b"in")) is None
    await until(lambda: theirs.messages)
    await until(lambda: owner.settled == 1)
    assert str(theirs.messages[0].return_route) == "0#other => 0#app"
    link.close()
    await until(lambda: owner.end)
    await until(lambda: theirs.end)
    assert (owner.end, theirs.end) == ((None, "closed"), (None, "closed"))
    for ended in (link, theirs.link):
        ended.close()
        ended.abort()
        ended.pause_reading()
        ended.resume_reading()
        ended.send_control(b"")
        assert ended.send(message()) is None  # too late, and harmless
    await closed(listener)


@runs_on_every_loop
async def test_what_cannot_be_written_has_a_reason_on_both_sides() -> None:
    owner, theirs = Notes(), Notes(b"other")
    transport = Http(limits=HttpLimits(frame=1000))
    listener: Any = await transport.listen("127.0.0.1:0", lambda: theirs)
    link = await Http().dial([listener.place], owner)
    assert theirs.link is not None
    for end in (link, theirs.link):  # the dialler keeps to the limit of the listener
        assert end.send(message(bytes(1000))) is Reason.TOO_LARGE
        assert end.send(Message(Route.parse("link"), Route(), b"")) is Reason.NO_ROUTE
    link.abort()
    theirs.link.abort()
    await until(lambda: owner.end)
    await until(lambda: theirs.end)
    await closed(listener)


@runs_on_every_loop
async def test_senders_pause_on_either_side_while_the_other_does_not_take_what_there_is() -> None:
    owner, theirs = Notes(), Notes(b"other")
    transport = Http(limits=HttpLimits(unsent=10_000, batch=10_000, hold=0.05))
    listener: Any = await transport.listen("127.0.0.1:0", lambda: theirs)
    link = await transport.dial([listener.place], owner)
    assert theirs.link is not None
    for there, here, end in ((theirs, owner, link), (owner, theirs, theirs.link)):
        assert there.link is not None
        there.link.pause_reading()
        sent = 0
        while "pause" not in here.told:
            end.send(message(b"%-999d" % sent))
            sent += 1
            await asyncio.sleep(0)
            assert sent < 1000
        await asyncio.sleep(0.2)
        assert there.messages == []
        there.link.resume_reading()
        await until(lambda there=there, sent=sent: len(there.messages) == sent)  # type: ignore[misc]
        await until(lambda here=here: here.told[-1] == "resume")  # type: ignore[misc]
    assert transport.counts.held_back > 0
    link.close()
    await until(lambda: owner.end)
    await closed(listener)


@async_test
async def test_a_listener_that_is_closed_opens_no_channel_and_serves_those_that_are_open() -> None:
    transport = Http()
    async with Node("server", transports=[transport], limits=QUICK) as server:
        echo(server)
        listening = await server.listen("http://127.0.0.1:0")
        client = Client(listening.place)
        one = await client.open()
        await listening.close()
        assert (await client.ask("POST", "/channels")).status == 503
        assert transport.counts.refused == 1
        assert await one.echoes("still here")
        await one.end()
        await until(lambda: _refused(listening.place))


def _refused(place: str) -> bool:
    try:
        socket.create_connection(parse_place(place)).close()
    except ConnectionRefusedError:
        return True
    return False


# --- What a dialler meets -------------------------------------------------------------------------


def _answering(*answers: bytes) -> Callable[[RawPeer], Awaitable[None]]:
    """A listener that gives these answers, whatever it is asked; the last again and again."""

    left = list(answers)

    async def serve(peer: RawPeer) -> None:
        while await peer.reader.readuntil(b"\r\n\r\n"):
            peer.say(left.pop(0) if len(left) > 1 else left[0])

    return serve


def _answer(status: int, body: bytes = b"", headers: str = "") -> bytes:
    length = f"Content-Length: {len(body)}\r\n" if status != 204 else ""
    return f"HTTP/1.1 {status} x\r\n{length}{headers}\r\n".encode() + body


CHANNEL = _answer(201, b'{"id":"x","frame":1000,"post":2000,"wait":1,"idle":1}')


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"SSH-2.0-x\r\n\r\n", "this is no HTTP"),
        (_answer(404), "the answer is 404"),
        (_answer(503, b'{"error":"no more"}'), "no more \\(503\\)"),
        (_answer(201, b"{}"), "no Waystation node"),
        (b"", "no answer within"),
        (b"HTTP/1.1 200 x\r\nContent-Length: 99999999\r\n\r\n" + bytes(10_000), "too large"),
    ],
    ids=["no HTTP", "no such page", "no more", "something else", "silence", "a flood"],
)
@async_test
async def test_a_dial_says_why_there_is_no_channel(answer: bytes, says: str) -> None:
    async with raw_listener(_answering(answer)) as place:
        limits = HttpLimits(dial=10.0 if answer else 0.2, frame=1000, batch=1000)
        with pytest.raises(OSError, match=says):
            await Http(limits=limits).dial([place], Notes())


@pytest.mark.parametrize(
    ("answer", "end"),
    [
        (_answer(410, b'{"error":"bye","reason":null}'), (None, "closed")),
        (_answer(410, b'{"error":"bye","reason":"X"}'), (Reason.TRANSPORT_DOWN, "bye (410)")),
        (_answer(500), (Reason.TRANSPORT_DOWN, "the answer is 500")),
        (_answer(413), (Reason.TOO_LARGE, "the answer is 413")),
        (_answer(200, b"\xff" * 9, "Waystation-Last: 1\r\n"), (Reason.TOO_LARGE, None)),
        (_answer(200, b"\x00\x00\x00\x01\xff", "Waystation-Last: 1\r\n"), (Reason.MALFORMED, None)),
        (_answer(200, b"\x00", "Waystation-Last: 1\r\n"), (Reason.MALFORMED, None)),
        (_answer(204), (Reason.MALFORMED, "the answer does not say its last number")),
        (b"HTTP/1.1 200 x\r\nContent-Length: x\r\n\r\n", (Reason.TRANSPORT_DOWN, None)),
    ],
)
@async_test
async def test_an_answer_that_is_none_ends_the_link_with_a_reason(
    answer: bytes, end: tuple[Reason | None, str | None]
) -> None:
    async with raw_listener(_answering(CHANNEL, answer)) as place:
        owner = Notes()
        await Http().dial([place], owner)
        await until(lambda: owner.end)
        assert owner.end is not None
        assert owner.end[0] is end[0]
        assert end[1] in (None, owner.end[1])


@async_test
async def test_a_dialler_comes_again_when_it_is_told_to_and_loses_nothing() -> None:
    posted: list[bytes] = []

    async def serve(peer: RawPeer) -> None:
        while head := await peer.reader.readuntil(b"\r\n\r\n"):
            size = int(re.search(rb"content-length: (\d+)", head)[1])  # type: ignore[index]
            body = await peer.reader.readexactly(size)
            if head.startswith(b"POST /channels "):
                peer.say(CHANNEL)
            elif head.startswith(b"GET"):
                await asyncio.Event().wait()
            else:
                posted.append(body)
                again = len(posted) in (1, 2)
                peer.say(_answer(429, b"", "Retry-After: 0\r\n") if again else _answer(202))

    async with raw_listener(serve) as place:
        owner = Notes()
        link = await Http().dial(["[fe80::1%none]:1", place], owner)
        link.send(message())
        await until(lambda: owner.settled == 1)
        assert posted == [encode_frame(message().departed())] * 3
        link.close()
        await until(lambda: owner.end)


@pytest.mark.parametrize("later", ["nan", "-1", "soon", "1e-9"])
@async_test
async def test_a_listener_that_says_nonsense_about_when_to_retry_is_asked_again(later: str) -> None:
    retry = _answer(503, b"", f"Retry-After: {later}\r\n")
    answers = [CHANNEL, retry, retry, _answer(202)]

    async def serve(peer: RawPeer) -> None:
        while head := await peer.reader.readuntil(b"\r\n\r\n"):
            await peer.reader.readexactly(int(re.search(rb"content-length: (\d+)", head)[1]))  # type: ignore[index]
            if head.startswith(b"GET"):
                await asyncio.Event().wait()
            peer.say(answers.pop(0))

    async with raw_listener(serve) as place:
        owner = Notes()
        link = await Http().dial([place], owner)
        link.send(message())
        await until(lambda: owner.settled == 1)
        link.abort()
        await until(lambda: owner.end)


@pytest.mark.parametrize("extra", [b"more", _answer(408), _answer(200, b"x"), bytes(100_000)])
@async_test
async def test_bytes_that_nobody_asked_for_harm_no_link(extra: bytes) -> None:
    posts = 0

    async def serve(peer: RawPeer) -> None:
        nonlocal posts
        while head := await peer.reader.readuntil(b"\r\n\r\n"):
            await peer.reader.readexactly(int(re.search(rb"content-length: (\d+)", head)[1]))  # type: ignore[index]
            if head.startswith(b"GET"):
                await asyncio.Event().wait()
            opens = head.startswith(b"POST /channels ")
            posts += not opens
            peer.say(CHANNEL if opens else _answer(202) + extra)

    async with raw_listener(serve) as place:
        owner = Notes()
        link = await Http().dial([place], owner)
        for number in range(3):
            link.send(message())
            await until(lambda number=number: posts == number + 1)  # type: ignore[misc]
            await until(lambda number=number: owner.settled == number + 1)  # type: ignore[misc]
            await settle()
        assert owner.end is None  # it connected again each time
        link.abort()
        await until(lambda: owner.end)


@async_test
async def test_a_dialler_that_does_not_read_keeps_its_channel_alive() -> None:
    asked: list[bytes] = []

    async def serve(peer: RawPeer) -> None:
        while line := await peer.reader.readuntil(b"\r\n\r\n"):
            asked.append(line.split(b" ")[1])
            opens = line.startswith(b"POST")
            peer.say(CHANNEL if opens else _answer(204, b"", "Waystation-Last: 3\r\n"))

    async with raw_listener(serve) as place:
        owner = Notes()
        link = await Http().dial([place], owner)
        link.pause_reading()
        await until(lambda: asked.count(b"/channels/x?after=3&limit=0") == 2)
        link.resume_reading()
        await until(lambda: b"/channels/x?after=3&wait=1" in asked)
        link.abort()
        await until(lambda: owner.end)


@async_test
async def test_a_connection_that_was_closed_between_two_requests_is_opened_again() -> None:
    owner, theirs = Notes(), Notes(b"other")
    transport = Http(limits=HttpLimits(keep=0.05))
    listener: Any = await transport.listen("127.0.0.1:0", lambda: theirs)
    link = await transport.dial([listener.place], owner)
    for number in range(3):
        link.send(message(b"%d" % number))
        await until(lambda number=number: owner.settled == number + 1)  # type: ignore[misc]
        await until(lambda: len(listener.server.connections) == 1)  # on which it asks for messages
        await settle()  # and the link has noticed
    assert [m.payload for m in theirs.messages] == [b"0", b"1", b"2"]
    assert owner.end is None
    link.close()
    await until(lambda: owner.end and theirs.end)
    await closed(listener)


@async_test
async def test_a_link_that_cannot_say_goodbye_ends_in_time() -> None:
    async def serve(peer: RawPeer) -> None:
        if (await peer.reader.readuntil(b"\r\n\r\n")).startswith(b"POST"):
            peer.say(CHANNEL)
        await asyncio.Event().wait()

    async with raw_listener(serve) as place:
        owner = Notes()
        link = await Http(limits=HttpLimits(linger=0.1)).dial([place], owner)
        link.send(message())
        link.close()
        await until(lambda: owner.end)
        assert owner.end == (Reason.TRANSPORT_DOWN, "the peer did not take what was left")


# --- Clients that have nothing but HTTP -----------------------------------------------------------


class Got:
    """An answer."""

    def __init__(self, status: int, headers: Any, body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """A plain HTTP client, in threads of its own: one connection for each request."""

    def __init__(self, place: str) -> None:
        self.place = place

    async def ask(
        self, method: str, target: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Got:
        return await asyncio.to_thread(self._ask, method, target, body, headers or {})

    def _ask(self, method: str, target: str, body: Any, headers: dict[str, str]) -> Got:
        connection = http.client.HTTPConnection(self.place, timeout=20)
        try:
            connection.request(method, target, body, headers, encode_chunked=False)
            response = connection.getresponse()
            return Got(response.status, response.headers, response.read())
        finally:
            connection.close()

    async def open(self) -> ChannelOf:
        answer = await self.ask("POST", "/channels")
        assert answer.status == 201
        path = f"/channels/{answer.json['id']}"
        assert answer.headers["Location"] == path
        return ChannelOf(self, path)


class ChannelOf:
    """A channel of such a client."""

    def __init__(self, client: Client, path: str) -> None:
        self._client = client
        self.path = path

    async def post(self, value: Any) -> Got:
        return await self._client.ask(
            "POST", self.path, json.dumps(value), {"Content-Type": "application/json"}
        )

    async def post_frames(self, *messages: Message) -> Got:
        return await self._client.ask(
            "POST", self.path, b"".join(map(encode_frame, messages)), OCTETS
        )

    async def get(self, query: str = "", headers: dict[str, str] | None = None) -> Got:
        return await self._client.ask("GET", f"{self.path}?{query}", headers=headers)

    async def echoes(self, payload: str) -> bool:
        assert (await self.post({"to": "echo", "payload": payload})).status == 202
        answer = (await self.get("wait=20")).json
        return [m["payload"] for m in answer["messages"]] == [payload]

    async def end(self) -> None:
        assert (await self._client.ask("DELETE", self.path)).status == 204


@asynccontextmanager
async def channel(
    limits: HttpLimits | None = None, **options: Any
) -> AsyncIterator[tuple[Node, Http, Client, ChannelOf]]:
    """A node that listens, and an open channel of a plain client."""
    async with door(limits, **options) as (node, transport, place):
        client = Client(place)
        yield node, transport, client, await client.open()


def _messages(body: bytes) -> list[Message]:
    return [m for m in FrameDecoder().feed(PREFACE + body) if m.onward_route.addresses]


def _curl(line: str, place: str, id: str) -> tuple[str, str, str | None, dict[str, str]]:
    """What a line with curl asks for: method, target, body, headers."""
    line = line.replace("$AT", f"http://{place}").replace("$ID", id)
    words = iter(shlex.split(line))
    assert next(words) == "curl"
    method, target, body, headers = "GET", "", None, {"Accept": "*/*"}
    for word in words:
        if word == "-X":
            method = next(words)
        elif word == "-H":
            name, value = next(words).split(": ")
            headers[name] = value
        elif word == "--json":
            method, body = "POST", next(words)
            headers |= {"Content-Type": "application/json", "Accept": "application/json"}
        elif word != "-N":
            target = word.removeprefix(f"http://{place}")
    return method, target, body, headers


@async_test
async def test_the_lines_of_the_page_do_what_it_says() -> None:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    lines = [line for line in "".join(blocks).splitlines() if line.startswith("curl ")]
    opens, says, hears, says_more, streams, ends = lines
    async with door() as (_, _, place):
        client = Client(place)
        answer = await client.ask(*_curl(opens, place, ""))
        assert answer.status == 201
        id = answer.json["id"]
        assert (await client.ask(*_curl(says, place, id))).status == 202
        answer = await client.ask(*_curl(hears, place, id))
        [got] = answer.json["messages"]
        assert (got["to"], got["from"], got["payload"]) == ("0#http", "0#echo", "hello")
        assert answer.json["session"][0]["waystation"] == "hello"
        assert (await client.ask(*_curl(says_more, place, id))).status == 202
        method, target, _, headers = _curl(streams, place, id)
        assert method == "GET"
        stream = await Stream.open(place, target, headers)
        found: list[Any] = []
        while len(found) < 2:
            found += json.loads((await stream.event())["data"])["messages"]
        assert found[0]["payload"] == "one"
        assert found[1]["payload_base64"] == "AP8="
        assert (await client.ask(*_curl(ends, place, id))).status == 204
        assert (await stream.event())["event"] == "closed"
        stream.close()
        gone = await client.ask(*_curl(hears, place, id))
        assert (gone.status, gone.json["reason"]) == (410, None)


class Stream:
    """A stream of server-sent events."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._text = b""

    @classmethod
    async def open(cls, place: str, target: str, headers: dict[str, str]) -> Stream:
        reader, writer = await asyncio.open_connection(*parse_place(place))
        lines = [f"GET {target} HTTP/1.1", f"Host: {place}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head.splitlines()[0]
        assert b"text/event-stream" in head
        return cls(reader, writer)

    async def event(self) -> dict[str, str]:
        async with asyncio.timeout(20):
            while b"\n\n" not in self._text:
                size = int(await self._reader.readline(), 16)
                self._text += await self._reader.readexactly(size)
                await self._reader.readline()
        event, _, self._text = self._text.partition(b"\n\n")
        return dict(line.partition(": ")[::2] for line in event.decode().splitlines())

    def close(self) -> None:
        self._writer.transport.abort()


@async_test
async def test_frames_go_in_and_come_out_as_any_node_reads_and_writes_them() -> None:
    async with channel() as (_, _, _, one):
        sent = [Message(Route.parse("echo"), Route.parse("me"), b"%d" % n) for n in range(100)]
        answer = await one.post_frames(*sent)
        assert (answer.status, answer.body) == (202, b"")
        found: list[Message] = []
        while len(found) < len(sent):
            answer = await one.get("wait=20", FRAMES)
            assert answer.status == 200
            found += _messages(answer.body)
        assert [m.payload for m in found] == [m.payload for m in sent]
        assert {str(m.onward_route) for m in found} == {"0#me"}
        assert (await one.get("", FRAMES)).status == 204
        await one.end()


@async_test
async def test_what_was_lost_on_the_way_can_be_asked_for_again_until_it_is_acknowledged() -> None:
    async with channel() as (_, _, _, one):
        for payload in ("a", "b"):
            assert await one.echoes(payload)
        last = (await one.get()).json["last"]
        again = (await one.get("after=0")).json
        assert [m["payload"] for m in again["messages"]] == ["a", "b"]
        assert [m["payload"] for m in (await one.get(f"after={last - 1}")).json["messages"]] == [
            "b"
        ]
        assert (await one.get(f"after={last}")).json["messages"] == []
        assert (await one.get("after=0")).status == 409
        assert (await one.get(f"after={last + 1}")).status == 409
        assert await one.echoes("c")


@async_test
async def test_a_stream_of_events_goes_on_where_it_broke() -> None:
    async with channel() as (node, _, client, one):
        first = await Stream.open(client.place, one.path, EVENTS)
        await first.event()  # the node's hello
        await one.post({"to": "echo", "payload": "1"})
        event = await first.event()
        assert [m.payload for m in _messages(b64decode(event["data"]))] == [b"1"]
        first.close()
        (session,) = node.sessions
        await node.send(f"{session.name} => http", b"2")
        before = str(int(event["id"]) - 1)
        second = await Stream.open(client.place, one.path, EVENTS | {"Last-Event-ID": before})
        found: list[bytes] = []
        while len(found) < 2:
            found += [m.payload for m in _messages(b64decode((await second.event())["data"]))]
        assert found == [b"1", b"2"]
        second.close()
        await one.end()


@async_test
async def test_a_stream_that_nobody_reads_is_cut_and_can_go_on_later() -> None:
    theirs = Notes()
    transport = Http(limits=HttpLimits(body=0.3, unsent=100_000, batch=100_000))
    listener: Any = await transport.listen("127.0.0.1:0", lambda: theirs)
    one = await Client(listener.place).open()
    head = f"GET {one.path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
    peer = await RawPeer.dial(listener.place, head.encode(), room=4096)
    peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await until(lambda: listener.server.connections)
    assert theirs.link is not None
    while listener.server.connections:
        if "pause" not in theirs.told[-1:]:
            theirs.link.send(message(bytes(9999)))
        await asyncio.sleep(0.001)
    assert (await one.get()).status == 200
    assert theirs.end is None
    peer.reset()
    await one.end()
    await closed(listener)


@async_test
async def test_the_newest_request_gets_the_messages_and_the_older_one_ends() -> None:
    async with channel() as (_, _, client, one):
        stream = await Stream.open(client.place, one.path, EVENTS)
        await stream.event()
        older = asyncio.ensure_future(one.get("wait=20"))
        newer = asyncio.ensure_future(one.get("wait=20"))
        done, _ = await asyncio.wait([older, newer], return_when=asyncio.FIRST_COMPLETED)
        assert [task.result().status for task in done] == [409]
        await one.post({"to": "echo", "payload": "x"})
        (other,) = {older, newer} - done
        assert [m["payload"] for m in (await other).json["messages"]] == ["x"]
        stream.close()
        await one.end()


@async_test
async def test_a_client_proves_the_token_in_json() -> None:
    async with channel(token=SECRET) as (_, _, _, one):
        [hello] = (await one.get()).json["session"]
        mine = {"waystation": "hello", "node": "curl", "types": {}, "nonce": "n", "token": True}
        assert (await one.post({"session": mine})).status == 202
        text = PROOF_PURPOSE + b"opener n " + hello["nonce"].encode()
        proof = hmac.digest(SECRET, text, "sha256").hex()
        assert (await one.post({"session": {"waystation": "proof", "proof": proof}})).status == 202
        assert await one.echoes("let in")
        await one.end()


@async_test
async def test_without_the_token_nothing_is_delivered() -> None:
    async with channel(token=SECRET) as (node, _, _, one):
        journal = Recorder(node)
        await one.post({"to": "echo", "payload": "x"})
        await until(lambda: journal.messages)
        assert journal.counts() == {"REFUSED": 1}
        assert (await one.get("wait=20")).status == 410


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{", "truncated"),
        (b'{"payload": "x"}', "goes nowhere"),
        (b'{"to": "a b"}', "white space"),
        (b'{"to": "echo", "ttl": -1}', "cannot live"),
        (b'{"to": "echo", "id": "x"}', "invalid message id"),
        (b'{"to": "echo", "payload_base64": "?"}', "not valid base64"),
        (b'{"to": "echo", "colour": "red"}', "colour"),
        (b'[{"to": "echo"}, {}]', "goes nowhere"),
        (b"\xff", "utf-8|malformed"),
        (b'{"session": {"a": ' + b"[" * 100_000, "too deeply"),
    ],
)
@async_test
async def test_json_that_makes_no_sense_is_told_and_nothing_of_it_is_taken(
    body: bytes, says: str
) -> None:
    async with channel() as (node, transport, client, one):
        journal = Recorder(node)
        kind = {"Content-Type": "application/json"}
        answer = await client.ask("POST", one.path, body, kind)
        assert answer.status == 400
        assert re.search(says, answer.json["error"]), answer.json
        assert transport.counts.malformed == 1
        assert journal.messages == []
        assert await one.echoes("still here")


@async_test
async def test_frames_that_make_no_sense_are_told_and_nothing_of_them_is_taken() -> None:
    async with channel(HttpLimits(frame=100_000)) as (node, transport, client, one):
        journal = Recorder(node)
        whole = encode_frame(Message(Route.parse("echo"), Route.parse("me"), b"whole"))
        for bad, status in (
            (whole + whole[:-1], 400),
            (whole + b"\x00\x00\x00\x02\xff\xff", 400),
            (whole + b"\x7f\xff\xff\xff", 413),
            (bytes(100_000 + 256 * 1024 + 1), 413),
        ):
            assert (await client.ask("POST", one.path, bad, OCTETS)).status == status
        chunked = (bytes(65536) for _ in range(6))
        assert (await client.ask("POST", one.path, chunked, OCTETS)).status in (400, 413)
        assert transport.counts.malformed + transport.counts.too_large == 5
        assert journal.messages == []
        assert await one.echoes("still here")


@async_test
async def test_many_messages_in_one_request_all_arrive_in_order() -> None:
    async with channel() as (node, _, _, one):
        found = collect(node, "sink")
        sent = [Message(Route.parse("sink"), Route(), b"%d" % n) for n in range(5_000)]
        assert (await one.post_frames(*sent)).status == 202
        await until(lambda: len(found) == len(sent))
        assert [m.payload for m in found] == [m.payload for m in sent]


@async_test
async def test_a_request_that_is_none_is_told_so() -> None:
    async with channel() as (_, _, client, one):
        assert (await client.ask("GET", "/")).body.startswith(b"This is a Waystation node")
        assert (await client.ask("POST", one.path, b"x")).status == 415
        for query in ("wait=nan", "wait=-1", "wait=x", "after=x", "limit=-1"):
            assert (await one.get(query)).status == 400, query
        assert (await client.ask("HEAD", one.path)).status == 405
        assert (await client.ask("PUT", one.path)).status == 405
        assert (await client.ask("GET", "/channels/guess")).status == 404
        elsewhere = {"Origin": "http://elsewhere.example"}
        for target in ("/channels", one.path):
            assert (await client.ask("POST", target, headers=elsewhere)).status == 403
        own = {"Origin": f"http://{client.place}", "Content-Type": "application/json"}
        assert (await client.ask("POST", one.path, b'{"to": "echo"}', own)).status == 202
        await one.end()


FOREIGN = {"Host": "evil.example"}
PAGE_UNDER_FOREIGN_NAME = {"Host": "evil.example", "Origin": "http://evil.example"}


@async_test
async def test_a_foreign_name_that_points_to_this_machine_is_refused() -> None:
    async with channel() as (_, _, client, one):
        for headers in (FOREIGN, PAGE_UNDER_FOREIGN_NAME, {"Host": "127.0.0.1.evil.example"}):
            for method, target in (("GET", "/"), ("POST", "/channels"), ("GET", one.path)):
                answer = await client.ask(method, target, headers=headers)
                assert (answer.status, "error" in answer.json) == (421, True)
        port = client.place.rpartition(":")[2]
        for name in (f"localhost:{port}", "LOCALHOST", f"[::1]:{port}", "127.0.0.2", host_name()):
            assert (await client.ask("GET", "/", headers={"Host": name})).status == 200
        assert await one.echoes("still here")


@async_test
async def test_a_name_that_is_allowed_is_served() -> None:
    transport = Http(hosts=["Proxy.example"])
    listener = await transport.listen("127.0.0.1:0", Notes)
    client = Client(listener.place)
    own = {"Host": "proxy.example", "Origin": "https://proxy.example"}
    answer = await client.ask("POST", "/channels", headers=own)
    assert answer.status == 201
    assert (await client.ask("POST", "/channels", headers=FOREIGN)).status == 421
    assert (await client.ask("DELETE", answer.headers["Location"], headers=own)).status == 204
    await closed(listener)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "hub.example:8080"}, 200),  # a program, which knows the node by a name of its own
        ({"host": "10.0.0.1", "origin": "http://10.0.0.1"}, 200),
        ({"host": "evil.example", "origin": "http://evil.example"}, 421),
        ({"host": "evil.example", "sec-fetch-site": "same-origin"}, 421),
        ({"host": "10.0.0.1", "origin": "http://evil.example"}, 403),
    ],
)
@async_test
async def test_where_others_can_connect_pages_under_foreign_names_are_refused(
    headers: dict[str, str], status: int
) -> None:
    told: list[Any] = []

    async def send(event: Any) -> None:
        told.append(event)

    async def receive() -> Any:
        return {"type": "http.request"}

    names = HostNames("0.0.0.0")  # noqa: S104 - nothing listens there
    channels = HttpListener(Http(), names, lambda: None)
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "GET", "path": "/", "headers": pairs, "query_string": b""}
    await channels(scope, receive, send)
    assert told[0]["status"] == status


@async_test
async def test_every_channel_has_an_id_that_nobody_guesses() -> None:
    async with door() as (_, _, place):
        ids = {(await Client(place).open()).path.rpartition("/")[2] for _ in range(5)}
        assert len(ids) == 5
        assert min(map(len, ids)) >= 32


@pytest.mark.rule("WK-6")
@async_test
async def test_a_full_node_holds_a_client_back_and_loses_nothing() -> None:
    little = Limits(heartbeat=0, receiver=5_000)
    async with channel(HttpLimits(hold=0.1), node_limits=little) as (node, transport, _, one):
        gate = Gate(node, "stuck")
        taken = 0
        while taken < 100:
            answer = await one.post({"to": "stuck", "payload": str(taken)})
            if answer.status != 202:
                break
            taken += 1
        assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
        assert transport.counts.held_back == 1
        gate.free.set()
        await until(lambda: len(gate.got) == taken)
        assert (await one.post({"to": "stuck", "payload": "last"})).status == 202
        await until(lambda: len(gate.got) == taken + 1)
        assert gate.got == [*(b"%d" % n for n in range(taken)), b"last"]


@pytest.mark.rule("WK-6")
@async_test
async def test_senders_wait_for_a_client_that_fetches_nothing() -> None:
    async with channel(HttpLimits(unsent=20_000)) as (node, _, _, one):
        await until(lambda: node.sessions)
        route = f"{node.sessions[0].name} => http"
        sent = 0
        while (await node.send(route, b"%-999d" % sent, policy=FAIL)).reason is None:
            sent += 1
            assert sent < 100
        waits = asyncio.ensure_future(node.send(route, b"waits", policy=Wait(20)))
        found: list[Any] = []
        while len(found) <= sent:
            found += (await one.get("wait=20")).json["messages"]
        assert (await waits).reason is None
        assert found[-1]["payload"] == "waits"


@async_test
async def test_a_node_has_so_many_channels_and_no_more() -> None:
    async with door(HttpLimits(channels=2)) as (_, transport, place):
        client = Client(place)
        one, _ = await client.open(), await client.open()
        answer = await client.ask("POST", "/channels")
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        await one.end()
        await client.open()
        assert (transport.counts.opened, transport.counts.refused) == (3, 1)


@async_test
async def test_a_channel_that_nobody_asks_for_ends() -> None:
    async with channel(HttpLimits(idle=0.2)) as (node, transport, _, one):
        await until(lambda: not node.sessions)
        assert transport.counts.expired == 1
        answer = await one.get()
        assert answer.status == 410
        assert "asked for nothing" in answer.json["error"]
        await nothing_is_left(node)


@async_test
async def test_a_channel_with_a_request_under_way_does_not_end() -> None:
    owner = Notes()
    held: HeldBytes[Channel] = HeldBytes(1, lambda channel: channel.kept, lambda _: None)
    one = Channel(owner, HttpLimits(idle=0.02), "here", lambda *_: None, held)
    one.begin()
    await asyncio.sleep(0.2)
    assert not one.ended
    one.done()
    await until(lambda: owner.end)
    assert one.expired


@pytest.mark.parametrize(
    "said", [b"", b"GET /channels/x HTTP/1.1\r\nHo", b"POST /channels HTTP/1.1\r\n"]
)
@async_test
async def test_a_client_that_does_not_say_what_it_wants_is_let_go(said: bytes) -> None:
    async with door(HttpLimits(greeting=0.2)) as (node, _, place):
        peer = await RawPeer.dial(place, said)
        await peer.ended()
        await nothing_is_left(node)


@async_test
async def test_a_client_that_does_not_send_its_body_is_told_so_and_let_go() -> None:
    async with channel(HttpLimits(body=0.3, greeting=1.0)) as (node, _, client, one):
        head = f"POST {one.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        peer = await RawPeer.dial(client.place, f"{head}Content-Length: 9\r\n\r\n".encode())
        assert (await peer.reader.readline()).startswith(b"HTTP/1.1 408")
        await peer.ended()
        peer = await RawPeer.dial(client.place, f"{head}Content-Length: 9\r\n\r\n1".encode())
        peer.close()  # and one that leaves
        assert len(node.sessions) == 1


@pytest.mark.rule("FL-2")
@async_test
async def test_a_body_that_comes_slowly_is_taken() -> None:
    async with channel(HttpLimits(body=0.3)) as (_, _, client, one):
        payload = bytes(40_000)
        body = encode_frame(Message(Route.parse("echo"), Route.parse("app"), payload))
        head = f"POST {one.path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        peer = await RawPeer.dial(
            client.place, f"{head}Content-Type: application/octet-stream\r\n\r\n".encode()
        )
        for start in range(0, len(body), 1000):  # more than a second in all
            peer.say(body[start : start + 1000])
            await asyncio.sleep(0.03)
        assert (await peer.reader.readline()).startswith(b"HTTP/1.1 202")
        peer.close()


@async_test
async def test_a_client_that_leaves_while_it_waits_is_missed_from_then_on() -> None:
    async with channel(HttpLimits(idle=0.3, wait=25.0)) as (node, transport, client, one):
        await one.get()  # the hello
        ask = f"GET {one.path}?wait=25 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        peer = await RawPeer.dial(client.place, ask.encode())
        await asyncio.sleep(0.6)
        assert node.sessions  # as long as it asks
        peer.reset()
        async with asyncio.timeout(15):
            await until(lambda: not node.sessions)
        assert transport.counts.expired == 1


@async_test
async def test_there_are_so_many_connections_and_no_more() -> None:
    async with door(HttpLimits(connections=3)) as (_, transport, place):
        peers = [await RawPeer.dial(place, b"GET") for _ in range(3)]
        await until(lambda: transport.counts.refused_connections["connections"] == 0)
        await (await RawPeer.dial(place, b"GET")).ended()
        assert transport.counts.refused_connections["connections"] == 1
        for peer in peers:
            peer.close()


@async_test
async def test_what_was_not_fetched_when_a_node_ends_is_told_as_lost() -> None:
    async with channel(HttpLimits(linger=0.2)) as (node, _, _, _):
        journal = Recorder(node)
        await until(lambda: node.sessions)
        await node.send(f"{node.sessions[0].name} => http", b"never fetched")
    assert journal.counts() == {"TRANSPORT_DOWN": 1}


# --- What is kept for a client --------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from(["put", "take", "back", "settle"]), st.integers(0, 9))))
def test_frames_are_given_out_in_order_and_settled_once(steps: list[tuple[str, int]]) -> None:
    out = Outgoing(keep=30)
    every: list[Frame] = []
    settled = counted = 0
    for step, number in steps:
        if step == "put":
            every.append(Frame(bytes([len(every) % 256]) * number, number % 3 != 0))
            out.put(every[-1])
        elif step == "take":
            before = out.given
            assert out.take(number * 5) == every[before : out.given]
        elif step == "back":
            if out.rewind(number):
                assert out.given == number
        else:
            upto = min(number, out.given)
            counted += out.settle(number)
            settled = max(settled, upto)
        assert out.size == sum(len(frame.data) for frame in every[out.given :])
        assert out.messages == sum(frame.is_message for frame in every[out.given :])
    out.take(10**9)
    counted += out.settle(out.given)
    assert out.done
    assert counted >= sum(frame.is_message for frame in every[:settled])


# --- Without the extra ----------------------------------------------------------------------------


def test_without_the_web_server_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    monkeypatch.delitem(sys.modules, "waystation.transports.http.server", raising=False)
    with pytest.raises(LocalError, match=r"pip install 'waystation\[http\]'"):
        Http()


def test_nothing_of_the_web_server_is_loaded_before_it_is_wanted() -> None:
    code = "import waystation.transports.http, sys; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"starlette", "uvicorn", "h11", "anyio"} & set(loaded)


@pytest.mark.parametrize("place", ["nowhere", "127.0.0.1:99999"])
@async_test
async def test_what_is_no_place_is_refused(place: str) -> None:
    with pytest.raises(LocalError):
        await Http().listen(place, lambda: None)
    with pytest.raises(LocalError):
        await Http().dial([place], Notes())
    with pytest.raises(OSError, match="no place"):
        await Http().dial([], Notes())


@async_test
async def test_the_address_of_a_channel_is_in_front_of_the_way_back() -> None:
    async with channel() as (node, _, _, one):
        found = collect(node, "sink")
        await one.post({"to": "sink", "from": "me", "payload": "x", "id": "4bf9" * 8})
        await until(lambda: found)
        (session,) = node.sessions
        assert found[0].return_route == Route((session.address, Address(0, b"me")))
        assert found[0].id == "4bf9" * 8
