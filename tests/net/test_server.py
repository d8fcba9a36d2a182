from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
from msgspec import structs

from tests.net.test_connection import CALM, Noted
from tests.node.live import runs_on_every_loop
from tests.transports.certificates import authority
from waystation.net.backoff import Backoff
from waystation.net.connection import ConnectionLimits
from waystation.net.dialer import dial, keep
from waystation.net.place import parse_place
from waystation.net.server import Server, ServerLimits
from waystation.net.tls import Tls
from waystation.testing import until

LOG = logging.getLogger("waystation.test")
HOST = "127.0.0.1"


@asynccontextmanager
async def serving(
    limits: ServerLimits | None = None,
    tls: Tls | None = None,
    connections: ConnectionLimits = CALM,
) -> AsyncIterator[tuple[Server, list[Noted]]]:
    made: list[Noted] = []

    def make() -> Noted:
        made.append(Noted(connections))
        return made[-1]

    server = Server(make, limits=limits, tls=tls, log=LOG)
    await server.start(f"{HOST}:0")
    try:
        yield server, made
    finally:
        await server.drain(0.1)
        await until(lambda: not server.connections)


def raw(server: Server) -> socket.socket:
    return socket.create_connection(parse_place(server.place))


@runs_on_every_loop
async def test_connections_are_counted_while_they_last() -> None:
    async with serving() as (server, made):
        with raw(server):
            await until(lambda: len(server.connections) == 1)
        await until(lambda: not server.connections)
        assert (server.opened, made[0].end) == (1, None)


@runs_on_every_loop
async def test_one_too_many_is_refused_and_counted() -> None:
    async with serving(ServerLimits(connections=1)) as (server, _):
        with raw(server), raw(server):
            await until(lambda: server.refused["connections"] == 1)
            assert len(server.connections) == 1
        await until(lambda: not server.connections)
        with raw(server):
            await until(lambda: len(server.connections) == 1)


@runs_on_every_loop
async def test_a_frame_that_is_never_finished_ends_its_connection_alone() -> None:
    hasty = structs.replace(CALM, frame=0.1)
    async with serving(connections=hasty) as (server, made):
        with raw(server) as half, raw(server) as whole:
            half.sendall(b"whole\nhal")
            whole.sendall(b"whole\n")
            await until(lambda: len(server.connections) == 2)
            await until(lambda: made[0].end != "not ended")
            assert "unfinished" in str(made[0].end)
            assert made[1].end == "not ended"


@pytest.mark.rule("FL-1")
@runs_on_every_loop
async def test_too_many_unfinished_frames_cost_whoever_has_the_largest() -> None:
    async with serving(ServerLimits(input=3000)) as (server, made):
        account = server.input_budget.account
        with raw(server) as first, raw(server) as second, raw(server) as third:
            for client, size in ((first, 1000), (second, 1500), (third, 500)):
                client.sendall(b"whole\n" + bytes(size))
            await until(lambda: account.used == 3000)
            third.sendall(bytes(100))
            await until(lambda: made[1].end != "not ended")
            assert "the largest" in str(made[1].end)
            assert (account.used, made[0].end, made[2].end) == (1600, "not ended", "not ended")
            first.sendall(b"\n")
            await until(lambda: account.used == 600)
        await until(lambda: not account.used)


@runs_on_every_loop
async def test_a_tls_handshake_that_never_ends_is_given_up() -> None:
    failed: list[str] = []

    class Silent(Noted):
        def on_handshake_failed(self) -> None:
            failed.append(self.place)

    tls = authority().tls("server")
    server = Server(Silent, limits=ServerLimits(handshake=0.1), tls=tls, log=LOG)
    await server.start(f"{HOST}:0")
    with raw(server):
        await until(lambda: failed)
    await server.drain(0.1)


@runs_on_every_loop
async def test_a_tls_handshake_of_garbage_is_counted() -> None:
    async with serving(tls=authority().tls("server")) as (server, _):
        with raw(server) as client:
            client.send(b"this is no TLS\r\n" * 10)
            await until(lambda: server.refused["tls"] == 1)


@runs_on_every_loop
async def test_a_server_that_drains_accepts_nobody_and_ends_who_stays() -> None:
    async with serving() as (server, made):
        with raw(server):
            await until(lambda: len(server.connections) == 1)
            await server.drain(0.05)
            await until(lambda: made[0].end is None)
            with pytest.raises(OSError):
                raw(server).close()


@contextmanager
def no_descriptors_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        while True:
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    try:
        yield
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@runs_on_every_loop
async def test_a_lack_of_descriptors_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(ServerLimits(handshake=0.1)) as (server, _):
        with no_descriptors_left():
            await until(lambda: "out of file descriptors" in caplog.text)
        assert server.place in caplog.text
        with raw(server):
            await until(lambda: len(server.connections) == 1)


@runs_on_every_loop
async def test_the_first_place_that_answers_is_taken() -> None:
    async with serving() as (server, _):
        with socket.socket() as bound:
            bound.bind((HOST, 0))
            dead = f"{HOST}:{bound.getsockname()[1]}"
            made = await dial(lambda _: Noted(CALM), [dead, server.place], timeout=10)
        assert made.place == server.place
        made.abort()
        await until(lambda: made.end is None)


@runs_on_every_loop
async def test_keeping_waits_longer_after_each_failure_and_begins_anew_after_a_success() -> None:
    waits: list[float] = []
    results = iter([False, False, True, False])

    class Watched(Backoff):
        def next(self) -> float:
            waits.append(super().next())
            return 0.0

    async def connect() -> bool:
        try:
            return next(results)
        except StopIteration:
            raise asyncio.CancelledError from None

    with pytest.raises(asyncio.CancelledError):
        await keep(connect, backoff=Watched(first=1.0, most=8.0, chance=lambda: 1.0))
    assert waits == [1.0, 2.0, 1.0, 2.0]
