"""What reaches a node of the first version is in words that it knows (UP-1, UP-2).

The bytes between two nodes are recorded, and read by the first version itself.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from tests.peers.version_peer import (
    NEW,
    OLD,
    TEST_SECONDS,
    Child,
    Children,
    both_ways,
    built,
    children,
    with_children,
)
from waystation.wire.ockam import FrameDecoder, Reassembly

pytestmark = [pytest.mark.peer, pytest.mark.timeout(TEST_SECONDS)]

NUMBER = 400
"""Messages of 60 kB: more than sockets and a receiver have room for."""

PRESSURE = 3.0
"""Seconds; a hold is told when pressure lasts, and renewed after two."""

FIELDS = {
    "announce": {"participants"},
    "withdraw": {"participants"},
    "subscribe": {"pairs"},
    "unsubscribe": {"pairs"},
    "resolved": {"number", "found"},
    "declined": {"why"},
}
"""What the first version's own payloads consist of; it ignores what else is in them."""


@pytest.fixture(scope="module", autouse=True)
def _first_version() -> None:
    built()


class Tap:
    """A way to a listener; what goes over it is recorded, link by link."""

    def __init__(self) -> None:
        self.place = ""
        self.inward: list[bytearray] = []  # to the listener
        self.outward: list[bytearray] = []  # from it

    async def serve(self, target: str, reader: Reader, writer: Writer) -> None:
        host, _, port = target.removeprefix("tcp://").rpartition(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        self.inward.append(bytearray())
        self.outward.append(bytearray())
        await asyncio.gather(
            _record(reader, far_writer, self.inward[-1]),
            _record(far_reader, writer, self.outward[-1]),
        )


Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter


async def _record(reader: Reader, writer: Writer, record: bytearray) -> None:
    try:
        while data := await reader.read(65536):
            record += data
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def tapped(target: str) -> AsyncIterator[Tap]:
    tap = Tap()
    server = await asyncio.start_server(
        lambda reader, writer: tap.serve(target, reader, writer), "127.0.0.1", 0
    )
    async with server:
        port = server.sockets[0].getsockname()[1]
        tap.place = f"tcp://127.0.0.1:{port}"
        yield tap


async def talk_about_everything(hub: Child, leaf: Child) -> None:
    """Whatever two nodes have to tell each other, at last while both are under pressure."""
    both = ((hub, leaf), (leaf, hub))
    for here, _ in both:
        await here.ask("serve", f"echo-{here.name}", f"spare-{here.name}")
        await here.ask("serve_when_told", f"slow-{here.name}")
        await here.ask("subscribe", "weather", "rain")
    await hub.until("knows", f"slow-{leaf.name}")
    await hub.until("number_of_subscribers", answer=2)
    for here, there in both:
        expected = f"{there.name}: hello"
        assert await here.ask("request", f"echo-{there.name}", "hello") == expected
        assert "no reply" in await here.ask("request", "nobody", "hello")
        await here.ask("publish", "weather", "rain", f"by {here.name}")
    for here, _ in both:
        await here.until("number_taken", "weather/rain", answer=2)
        await here.ask("stop_serving", f"spare-{here.name}")
        await here.ask("unsubscribe", "weather", "rain")
    await hub.ask("register", f"echo-{hub.name}", "garage", "washing")
    await leaf.until("discover", "garage", "washing", answer=[f"echo-{hub.name}"])
    for here, there in both:
        await here.ask("flood", f"slow-{there.name}", NUMBER, 60_000)
    await asyncio.sleep(PRESSURE)
    for here, _ in both:
        await here.ask("go_on")
    for here, there in both:
        await here.until("is_busy", answer=False)
        expected = f"{there.name}: at last"
        await here.until("request", f"echo-{there.name}", "at last", answer=expected)


def payloads(data: bytes) -> list[dict[str, Any]]:
    """What was told for the session itself."""
    return [
        json.loads(message.payload)
        for message in FrameDecoder().feed(data)
        if not message.onward_route.addresses and message.payload
    ]


async def recorded(fleet: Children, hub_version: str, leaf_version: str) -> Tap:
    """What a hub and its leaf tell each other."""
    hub = await fleet.hub(hub_version, "hub")
    await hub.ask("host_directory")
    async with tapped(hub.place) as tap:
        leaf = await fleet.start(leaf_version, "leaf")
        await leaf.ask("join", tap.place)
        await leaf.ask("ask_directory", "parent => waystation.directory")
        await talk_about_everything(hub, leaf)
        await leaf.stop()
        await hub.stop()
    return tap


@pytest.mark.rule("UP-1", "UP-2")
@both_ways
@with_children
async def test_the_first_version_knows_every_word_that_it_is_told(
    hub_version: str, leaf_version: str
) -> None:
    async with children() as fleet:
        tap = await recorded(fleet, hub_version, leaf_version)
        first, today = [await fleet.start(version, version) for version in (OLD, NEW)]
        for data in tap.inward if hub_version == OLD else tap.outward:
            await check_words(bytes(data), first, today)


@with_children
async def test_among_themselves_nodes_of_today_say_more() -> None:
    """Else what was recorded above would show nothing."""
    async with children() as fleet:
        tap = await recorded(fleet, NEW, NEW)
        for way in (tap.inward, tap.outward):
            kinds = {word["waystation"] for data in way for word in payloads(bytes(data))}
            assert {"clock", "hold", "go"} <= kinds


async def check_words(data: bytes, first: Child, today: Child) -> None:
    """The first version reads these bytes, and as today's does."""
    encoded = base64.b64encode(data).decode()
    read = await first.ask("reads", encoded)
    assert [None] not in read, [word for word in payloads(data) if word["waystation"] not in FIELDS]
    assert read == await today.ask("reads", encoded)
    for word in payloads(data):
        kind = word.pop("waystation")
        if kind in FIELDS:
            assert set(word) >= FIELDS[kind]
        if kind == "announce":
            for name, visible, expiry in word["participants"]:
                assert isinstance(name, str)
                assert isinstance(visible, bool)
                assert expiry is None or isinstance(expiry, int)


class DatagramTap(asyncio.DatagramProtocol):
    """A way to a UDP listener for one link; both directions are recorded."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.inward: list[bytes] = []
        self.outward: list[bytes] = []
        self.losing = 0  # so many of the next datagrams from the listener
        self.near: asyncio.DatagramTransport
        self._target = target
        self._from: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.near = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, address: Any) -> None:
        if address == self._target:
            self.outward.append(data)
            if self.losing:
                self.losing -= 1
            else:
                self.near.sendto(data, self._from)
        else:
            self._from = address
            self.inward.append(data)
            self.near.sendto(data, self._target)


@asynccontextmanager
async def tapped_datagrams(target: str) -> AsyncIterator[tuple[DatagramTap, str]]:
    host, _, port = target.removeprefix("udp://").rpartition(":")
    loop = asyncio.get_running_loop()
    transport, tap = await loop.create_datagram_endpoint(
        lambda: DatagramTap((host, int(port))), ("127.0.0.1", 0)
    )
    try:
        yield tap, f"udp://127.0.0.1:{transport.get_extra_info('sockname')[1]}"
    finally:
        transport.close()


def datagram_words(datagrams: list[bytes]) -> set[str]:
    """The kinds of what was told for the session itself."""
    reassembly = Reassembly()
    messages = [reassembly.feed(datagram) for datagram in datagrams]
    found = [message.payload for message in messages if message is not None and message.payload]
    words = [json.loads(payload) for payload in found if payload.startswith(b"{")]
    return {word["waystation"] for word in words}


@pytest.mark.rule("UP-1")
@pytest.mark.parametrize("losing", [0, 1], ids=["nothing lost", "a hello lost"])
@pytest.mark.parametrize(
    ("hub_version", "leaf_version"),
    [(OLD, NEW), (NEW, OLD), (NEW, NEW)],
    ids=["0.1 hub", "0.2 hub", "both 0.2"],
)
@with_children
async def test_over_udp_only_who_acknowledges_is_sent_numbers(
    hub_version: str, leaf_version: str, losing: int
) -> None:
    async with children() as fleet:
        hub = await fleet.start(hub_version, "hub", hub=True)
        await hub.ask("use", "udp")
        await hub.listen("udp://127.0.0.1:0")
        leaf = await fleet.start(leaf_version, "leaf")
        await leaf.ask("use", "udp")
        async with tapped_datagrams(hub.place) as (tap, place):
            tap.losing = losing
            await leaf.ask("join", place)
            await leaf.ask("serve", "echo")
            await hub.until("request", "echo", "hello", 1.0, answer="leaf: hello")
        told = datagram_words(tap.inward) | datagram_words(tap.outward)
        if OLD in (hub_version, leaf_version):
            assert not {"numbered", "ack"} & told
        else:
            assert {"numbered", "ack"} <= told
