"""The HTTP port for monitoring."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.node.live import runs_on_every_loop
from waystation.net.monitor import Health, Monitor
from waystation.net.place import parse_place
from waystation.testing import DEADLINE, async_test, until


class Program:
    """Something to watch."""

    draining = False
    text = "a_total 1\n"

    def metrics(self) -> str:
        return self.text

    def health(self) -> Health:
        return Health(draining=self.draining, listening="here:1")


async def ask(monitor: Monitor, request: bytes) -> tuple[str, str]:
    """The first line and the body of the response."""
    reader, writer = await asyncio.open_connection(*parse_place(monitor.place))
    writer.write(request)
    response = (await asyncio.wait_for(reader.read(), DEADLINE)).decode()
    writer.close()
    head, _, body = response.partition("\r\n\r\n")
    assert f"Content-Length: {len(body)}" in head or not body
    return head.split("\r\n")[0], body


@asynccontextmanager
async def monitoring(program: Program, seconds: float = 5.0) -> AsyncIterator[Monitor]:
    monitor = Monitor(program, timeout=seconds)
    await monitor.start("127.0.0.1:0")
    try:
        yield monitor
    finally:
        monitor.close()


@runs_on_every_loop
async def test_it_tells_metrics_and_health() -> None:
    program = Program()
    async with monitoring(program) as monitor:
        assert await ask(monitor, b"GET /metrics HTTP/1.1\r\nHost: localhost:9\r\n\r\n") == (
            "HTTP/1.1 200 OK",
            "a_total 1\n",
        )
        assert await ask(monitor, b"GET /health?x=1 HTTP/1.0\r\n\r\n") == (
            "HTTP/1.1 200 OK",
            '{"status":"ok","listening":"here:1"}\n',
        )
        program.draining = True
        status, body = await ask(monitor, b"GET /health HTTP/1.1\r\n\r\n")
        assert status == "HTTP/1.1 503 Service Unavailable"
        assert '"draining"' in body


@runs_on_every_loop
async def test_a_page_under_a_foreign_name_that_points_here_reads_nothing() -> None:
    async with monitoring(Program()) as monitor:
        for name in (b"evil.example", b"evil.example:9090", b"127.0.0.1.evil.example", b"10.0.0.1"):
            request = b"GET /metrics HTTP/1.1\r\nAccept: */*\r\nhOST: %s\r\n\r\n" % name
            status, body = await ask(monitor, request)
            assert status.startswith("HTTP/1.1 421 ")
            assert "a_total" not in body
        for name in (b"127.0.0.1:9090", b"[::1]:9090", b"LOCALHOST"):
            request = b"GET /metrics HTTP/1.1\r\nHost: %s\r\n\r\n" % name
            assert (await ask(monitor, request))[0] == "HTTP/1.1 200 OK"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", "200"),
        (b"nonsense\r\n\r\n", "400"),
        (b"GET /metrics SPDY/3\r\n\r\n", "400"),
        (b"\x16\x03\x01 \xff\r\n\r\n", "400"),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 20_000, "431"),
    ],
)
@async_test
async def test_other_requests_get_the_right_status(request_: bytes, status: str) -> None:
    async with monitoring(Program()) as monitor:
        assert (await ask(monitor, request_))[0].split()[1] == status


@runs_on_every_loop
async def test_a_long_response_arrives_whole() -> None:
    program = Program()
    program.text = "x" * 5_000_000
    async with monitoring(program) as monitor:
        assert (await ask(monitor, b"GET /metrics HTTP/1.1\r\n\r\n"))[1] == program.text


@async_test
async def test_a_request_byte_by_byte_is_read_and_what_follows_it_is_not() -> None:
    async with monitoring(Program()) as monitor:
        reader, writer = await asyncio.open_connection(*parse_place(monitor.place))
        for byte in b"GET /health HTTP/1.1\r\n\r\n":
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n" * 1_000)
        response = await asyncio.wait_for(reader.read(), DEADLINE)
        assert response.count(b"HTTP/1.1 200 OK") == 1
        writer.close()


@async_test
async def test_connections_over_the_limit_end_and_room_comes_back() -> None:
    async with monitoring(Program()) as monitor:
        streams = [await asyncio.open_connection(*parse_place(monitor.place)) for _ in range(64)]
        with contextlib.suppress(ConnectionResetError):
            assert await ask(monitor, b"GET /health HTTP/1.1\r\n\r\n") == ("", "")
        for reader, writer in streams:
            writer.write(b"GET /health HTTP/1.1\r\n\r\n")
            assert b"200 OK" in await asyncio.wait_for(reader.read(), DEADLINE)
            writer.close()
        assert (await ask(monitor, b"GET /health HTTP/1.1\r\n\r\n"))[0] == "HTTP/1.1 200 OK"


@pytest.mark.parametrize("start", [b"", b"GET /met"])
@runs_on_every_loop
async def test_who_never_completes_a_request_is_cut_off(start: bytes) -> None:
    async with monitoring(Program(), seconds=0.2) as monitor:
        _, writer = await asyncio.open_connection(*parse_place(monitor.place))
        writer.write(start)
        await until(lambda: len(monitor.connections) == 1)
        async with asyncio.timeout(DEADLINE):
            while monitor.connections:
                writer.write(b"x" if start else b"")  # a byte now and then is no request
                await asyncio.sleep(0.01)
        writer.close()


@runs_on_every_loop
async def test_who_does_not_read_the_response_is_cut_off() -> None:
    program = Program()
    program.text = "x" * 50_000_000
    async with monitoring(program, seconds=0.2) as monitor:
        _, writer = await asyncio.open_connection(*parse_place(monitor.place), limit=1024)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        await until(lambda: len(monitor.connections) == 1)
        await until(lambda: not monitor.connections)
        writer.close()
