"""TLS and mutual TLS: who gets in, who does not, and what is told of it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.node.live import (
    QUICK,
    RawPeer,
    nothing_is_left,
    raw_listener,
    runs_on_every_loop,
    serving,
)
from tests.transports.certificates import authority, stranger
from waystation.errors import LocalError, UnreachableError
from waystation.net.tls import Tls
from waystation.node import Node
from waystation.testing import Recorder, echo, until
from waystation.transports.tcp import Tcp, TcpLimits

HOST = "127.0.0.1"


@asynccontextmanager
async def nodes(
    there: Tls | None, here: Tls | None
) -> AsyncIterator[tuple[Node, Node, Recorder, str]]:
    """A dialler, a listener with its journal, and its place."""
    limits = TcpLimits(greeting=0.5, dial=1.0)
    async with (
        serving(transports=[Tcp(tls=there, limits=limits)]) as (server, journal, place),
        Node("client", transports=[Tcp(tls=here, limits=limits)], limits=QUICK) as client,
    ):
        echo(client)
        yield client, server, journal, place


async def _works(client: Node, server: Node, place: str) -> None:
    await client.connect(f"tcp://{place}", name="hub")
    assert (await client.request("hub => echo", bytes(300_000))).payload == bytes(300_000)
    await until(lambda: server.sessions)
    (back,) = server.sessions
    assert (await server.request(f"{back.name} => echo", b"back")).payload == b"back"


@runs_on_every_loop
async def test_a_dialler_that_believes_the_authority_gets_in() -> None:
    async with nodes(authority().tls(HOST), authority().tls()) as (client, server, _, place):
        await _works(client, server, place)


@runs_on_every_loop
async def test_with_mutual_tls_both_show_a_certificate() -> None:
    there, here = authority().tls(HOST, mutual=True), authority().tls("client.example")
    async with nodes(there, here) as (client, server, _, place):
        await _works(client, server, place)


@runs_on_every_loop
async def test_the_name_that_counts_can_be_given() -> None:
    there, here = authority().tls("hub.example"), authority().tls(name="hub.example")
    async with nodes(there, here) as (client, server, _, place):
        await _works(client, server, place)


@pytest.mark.parametrize(
    ("names", "believes_stranger", "name"),
    [((HOST,), True, None), (("hub.example",), False, None), ((HOST,), False, "hub.example")],
    ids=["an unknown authority", "another host", "another name"],
)
@runs_on_every_loop
async def test_a_dialler_refuses_a_certificate_that_it_cannot_believe(
    names: tuple[str, ...], believes_stranger: bool, name: str | None
) -> None:
    here = (stranger() if believes_stranger else authority()).tls(name=name)
    async with nodes(authority().tls(*names), here) as (client, server, journal, place):
        told = Recorder(client)
        with pytest.raises(UnreachableError, match="certificate verify failed"):
            await client.connect(f"tcp://{place}", keep=False)
        await nothing_is_left(client)
        await nothing_is_left(server)
        assert told.session_events() == [("refused", "TRANSPORT_DOWN")]
        assert "opened" not in [kind for kind, _ in journal.session_events()]


@pytest.mark.parametrize("brings", [(), ("client.example",)], ids=["none", "a stranger's"])
@runs_on_every_loop
async def test_with_mutual_tls_another_certificate_or_none_opens_nothing_at_the_listener(
    brings: tuple[str, ...],
) -> None:
    there = authority().tls(HOST, mutual=True)
    certificate, key = stranger().issue(*brings) if brings else (None, None)
    here = Tls(certificate=certificate, key=key, authorities=authority().file)
    async with nodes(there, here) as (client, server, journal, place):
        with contextlib.suppress(UnreachableError):  # or it opens, and ends at once
            await client.connect(f"tcp://{place}", keep=False, wait=1)
        await nothing_is_left(client)
        await nothing_is_left(server)
        assert "opened" not in [kind for kind, _ in journal.session_events()]
        assert journal.messages == []


@runs_on_every_loop
async def test_a_plain_dialler_opens_nothing_at_a_tls_listener() -> None:
    async with nodes(authority().tls(HOST), None) as (client, server, journal, place):
        await client.send(f"tcp#{place} => echo", b"in plain words")
        await nothing_is_left(client)
        await nothing_is_left(server)
        assert "opened" not in [kind for kind, _ in journal.session_events()]
        assert journal.messages == []


@runs_on_every_loop
async def test_a_listener_tells_of_a_handshake_that_failed() -> None:
    async with nodes(authority().tls(HOST), None) as (_, server, journal, place):
        peer = await RawPeer.dial(place, b"no handshake at all")
        await peer.ended()
        await nothing_is_left(server)
        await until(journal.session_events)
        assert journal.session_events() == [("refused", "REFUSED")]


@runs_on_every_loop
async def test_a_tls_dialler_gets_nowhere_with_a_plain_listener() -> None:
    async with nodes(None, authority().tls()) as (client, server, journal, place):
        with pytest.raises(UnreachableError):
            await client.connect(f"tcp://{place}", keep=False)
        await nothing_is_left(client)
        await nothing_is_left(server)
        assert journal.session_events()[-1][1] == "MALFORMED"


@runs_on_every_loop
async def test_a_listener_that_never_answers_the_handshake_is_given_up() -> None:
    async def silent(peer: RawPeer) -> None:
        await peer.reader.read()

    limits = TcpLimits(greeting=5, dial=0.2)
    transport = Tcp(tls=authority().tls(), limits=limits)
    async with (
        raw_listener(silent) as place,
        Node("client", transports=[transport], limits=QUICK) as client,
    ):
        with pytest.raises(UnreachableError):
            await client.connect(f"tcp://{place}", keep=False, wait=5)
        await nothing_is_left(client)


@runs_on_every_loop
async def test_a_dialler_that_never_begins_the_handshake_is_given_up() -> None:
    async with nodes(authority().tls(HOST), authority().tls()) as (client, server, _, place):
        peers = [await RawPeer.dial(place, b"") for _ in range(20)]
        await _works(client, server, place)
        await asyncio.gather(*(peer.ended() for peer in peers))


def test_files_that_cannot_be_used_are_named() -> None:
    certificate, key = authority().issue(HOST)
    missing = Path("/nowhere/authority.pem")
    for tls in (
        Tls(certificate=certificate, key=stranger().issue(HOST)[1]),
        Tls(certificate=key),
        Tls(certificate=certificate, key=key, authorities=missing),
    ):
        with pytest.raises(LocalError, match="cannot be used"):
            tls.for_listener()
    with pytest.raises(LocalError, match=r"/nowhere/authority\.pem"):
        Tls(authorities=missing).for_dialler()


def test_a_listener_needs_a_certificate_and_for_mutual_tls_authorities() -> None:
    certificate, key = authority().issue(HOST)
    with pytest.raises(LocalError, match="no certificate"):
        Tls().for_listener()
    with pytest.raises(LocalError, match="no authorities"):
        Tls(certificate=certificate, key=key, mutual=True).for_listener()


def test_old_versions_of_tls_are_not_spoken() -> None:
    for context in (authority().tls(HOST).for_listener(), Tls().for_dialler()):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert Tls().for_dialler().verify_mode is ssl.CERT_REQUIRED
    assert Tls().for_dialler().check_hostname
