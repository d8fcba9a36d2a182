"""What a client said before its socket died is served: it left, and did not die."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from pathlib import Path

import pytest

from tests.gossip_router.clients import HERE, PATIENCE, Client5, serving, uuid
from tests.node.live import runs_on_every_loop
from tests.transports.certificates import authority
from waystation.core.gossip import MemberKind
from waystation.gossip_router import GossipServer
from waystation.net.place import parse_place
from waystation.testing import async_test, until
from waystation.wire import jgroups2, jgroups5
from waystation.wire.jgroups5 import Heartbeat, Message, Register, Unregister, encode


def count_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def join(place: str, greeting: bytes, answer: bytes, tls: ssl.SSLContext | None) -> socket.socket:
    """A client that has registered a member, as a plain socket."""
    made = socket.create_connection(parse_place(place), PATIENCE)
    if tls is not None:
        made = tls.wrap_socket(made, server_hostname="127.0.0.1")
    made.sendall(greeting)
    got = b""
    while len(got) < len(answer):
        got += made.recv(len(answer) - len(got))
    assert got == answer
    return made


def say_and_vanish(client: socket.socket, words: bytes) -> None:
    """Say something, and be reset before the router, whose loop does not run now, has read it."""
    client.sendall(words)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def write_to(server: GossipServer, number: int) -> None:
    """Have the router write to a client."""
    server._clients[number].tell(encode(Heartbeat()))
    server.flush()


@pytest.mark.rule("GR-8")
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("generation", [2, 5])
@runs_on_every_loop
async def test_a_client_that_left_before_a_write_to_it_failed_is_not_suspected(
    generation: int, encrypted: bool
) -> None:
    tls = authority().tls("127.0.0.1") if encrypted else None
    context = authority().tls().for_dialler() if encrypted else None
    joins: dict[int, tuple[bytes, bytes]] = {
        2: (jgroups2.encode(jgroups2.Connect("g", uuid(2), "m", (HERE,))), b"\x0e"),
        5: (encode(Register("g", uuid(2), "m", HERE)) + encode(Heartbeat()), encode(Heartbeat())),
    }
    leave = {
        2: jgroups2.encode(jgroups2.Disconnect("g", uuid(2))),
        5: encode(Unregister("g", uuid(2))),
    }
    async with serving(tls=tls) as (server, told):
        client = await asyncio.to_thread(join, server.place, *joins[generation], context)
        say_and_vanish(client, leave[generation])
        write_to(server, 1)
        await until(lambda: not server.clients())
        kinds = [record.change.kind for record in told]
        assert kinds == [MemberKind.JOIN, MemberKind.LEAVE]


@runs_on_every_loop
async def test_messages_that_came_before_the_end_reach_their_receivers() -> None:
    async with serving() as (server, _), await Client5.open(server) as watcher:
        await watcher.join("g", 1)
        beat = encode(Heartbeat())
        client = await asyncio.to_thread(
            join, server.place, encode(Register("g", uuid(2), "m", HERE)) + beat, beat, None
        )
        message = Message("g", uuid(1), uuid(2), b"goodbye")
        say_and_vanish(client, encode(message) + encode(Unregister("g", uuid(2))))
        write_to(server, 2)
        await until(lambda: len(server.clients()) == 1)
        assert await watcher.sync() == [message]


@async_test
async def test_last_words_wait_for_nobody() -> None:
    """Neither for the client's turn nor for a receiver that its messages are held back for."""
    async with serving() as (server, told), await Client5.open(server) as watcher:
        await watcher.join("g", 1)
        beat = encode(Heartbeat())
        client = await asyncio.to_thread(
            join, server.place, encode(Register("g", uuid(2), "m", HERE)) + beat, beat, None
        )
        server._clients[2].hold()  # so it is not read
        say_and_vanish(client, 200 * beat + encode(Unregister("g", uuid(2))))
        write_to(server, 2)
        await until(lambda: len(server.clients()) == 1)
        assert [record.change.kind for record in told][-1] is MemberKind.LEAVE
        assert server.counts.requests["heartbeat"] >= 200


@pytest.mark.parametrize("words", [b"\0\0\0\x01\x63", b"\xff\xff\xff\xf0", b"\0\0\0"])
@async_test
async def test_last_words_that_make_no_sense_end_in_a_suspicion(words: bytes) -> None:
    async with serving() as (server, _), await Client5.open(server) as watcher:
        await watcher.join("g", 1)
        beat = encode(Heartbeat())
        client = await asyncio.to_thread(
            join, server.place, encode(Register("g", uuid(2), "m", HERE)) + beat, beat, None
        )
        say_and_vanish(client, words)
        write_to(server, 2)
        assert await watcher.frame() == jgroups5.Suspect("g", uuid(2))
        await until(lambda: len(server.clients()) == 1)


@async_test
async def test_a_secured_client_leaves_no_descriptor_behind() -> None:
    tls, context = authority().tls("127.0.0.1"), authority().tls().for_dialler()
    async with serving(tls=tls) as (server, _):
        before = count_descriptors()
        beat = encode(Heartbeat())
        for number in range(1, 6):
            client = await asyncio.to_thread(join, server.place, beat, beat, context)
            say_and_vanish(client, beat)
            write_to(server, number)
            await until(lambda: not server.clients())
        await until(lambda: count_descriptors() == before)
