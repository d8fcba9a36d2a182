from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.node.live import runs_on_every_loop
from waystation.core.budget import Account
from waystation.core.outcome import Reason
from waystation.net.connection import Connection, ConnectionLimits, ConnectionState, Failure
from waystation.testing import settle, until

QUICK = ConnectionLimits(first_byte=0.1, linger=0.2, high_water=64 * 1024)
CALM = ConnectionLimits(linger=5.0, high_water=64 * 1024)


class Noted(Connection):
    """A connection that writes down what it is told."""

    def __init__(self, limits: ConnectionLimits = CALM) -> None:
        super().__init__(limits)
        self.events: list[str] = []
        self.data = b""
        self.sent = 0
        self.end: Failure | str | None = "not ended"

    def on_open(self) -> None:
        self.events.append("open")

    def on_data(self, data: bytes) -> None:
        self.peer_spoke()
        self.data += data

    def count_unfinished(self) -> int:
        """Count a line without its end as a frame in part, once a line was complete."""
        _, end, rest = self.data.rpartition(b"\n")
        return len(rest) if end else 0

    def on_crowded(self) -> None:
        self.events.append("crowded")

    def on_clear(self) -> None:
        self.events.append("clear")

    def on_sent(self, messages: int | None) -> None:
        self.sent = self.sent + messages if messages is not None else -1

    def on_closed(self, failure: Failure | None) -> None:
        self.events.append("closed")
        self.end = failure


@asynccontextmanager
async def paired(limits: ConnectionLimits = CALM) -> AsyncIterator[tuple[Noted, socket.socket]]:
    """A connection and the raw socket at its other end."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: Noted(limits), sock=ours)
    with theirs:
        try:
            yield connection, theirs
        finally:
            connection.abort()
            await until(lambda: connection.end != "not ended")


async def read(theirs: socket.socket, size: int) -> bytes:
    """Read as many bytes, or all there are before the end."""
    loop = asyncio.get_running_loop()
    found = b""
    while len(found) < size:
        piece = await loop.sock_recv(theirs, size - len(found))
        if not piece:
            break
        found += piece
    return found


@runs_on_every_loop
async def test_states_follow_one_another() -> None:
    async with paired() as (connection, theirs):
        assert connection.is_greeting
        theirs.send(b"hi")
        await until(lambda: connection.state is ConnectionState.OPEN)
        connection.close()
        await until(lambda: connection.state is ConnectionState.CLOSING)
        assert await read(theirs, 1) == b""
        theirs.close()
        await until(lambda: connection.state is ConnectionState.CLOSED)
        assert (connection.end, connection.events) == (None, ["open", "closed"])


@runs_on_every_loop
async def test_a_peer_that_says_nothing_is_ended_in_time() -> None:
    async with paired(QUICK) as (connection, _):
        await until(lambda: connection.end != "not ended")
        assert connection.end == Failure(Reason.REFUSED, "the peer said nothing for 0.1 s")


@runs_on_every_loop
async def test_what_one_turn_brings_is_written_in_order_and_told_when_it_is_out() -> None:
    async with paired() as (connection, theirs):
        for number in range(100):
            connection.give(b"%03d" % number)
        connection.write(b"end")
        assert await read(theirs, 303) == b"".join(b"%03d" % n for n in range(100)) + b"end"
        await until(lambda: connection.sent == 100)


@runs_on_every_loop
async def test_a_message_in_parts_stands_between_the_others_and_is_told_as_one() -> None:
    async with paired() as (connection, theirs):
        body = bytes(range(256)) * 400  # more than is written at once
        expected = b""
        for number in range(20):
            connection.give(b"small%02d" % number)
            connection.give_parts((b"head", body, b"tail"))
            connection.write(b"word")
            expected += b"small%02d" % number + b"head" + body + b"tailword"
            await asyncio.sleep(0)
        assert await read(theirs, len(expected)) == expected
        await until(lambda: connection.sent == 40)
        assert connection.written == len(expected)
        assert connection.unsent == 0


@runs_on_every_loop
async def test_a_message_in_parts_that_is_alone_in_its_turn_goes_at_once_when_others_did() -> None:
    async with paired() as (connection, theirs):
        for _ in range(3):  # the first of several, then alone: so the third need not wait
            connection.give_parts((b"head", b"body", b"tail"))
            written = connection.written
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert written == 36
        assert await read(theirs, 36) == b"headbodytail" * 3


@runs_on_every_loop
async def test_a_peer_that_does_not_read_crowds_and_is_told_of_only_as_far_as_it_got() -> None:
    async with paired() as (connection, theirs):
        block = bytes(32 * 1024)
        given = 0
        while "crowded" not in connection.events:
            connection.give(block)
            given += 1
            await asyncio.sleep(0)
        await settle()
        assert connection.sent < given
        assert connection.unsent > 0
        await read(theirs, given * len(block))
        await until(lambda: connection.sent == given)
        await until(lambda: connection.events[-1] == "clear")
        assert connection.unsent == 0


@runs_on_every_loop
async def test_a_sender_that_fills_a_turn_is_crowded_until_the_turn_ends() -> None:
    async with paired() as (connection, theirs):
        connection.give(bytes(16))
        connection.give(bytes(CALM.high_water))
        assert connection.events == ["open", "crowded"]
        await read(theirs, 16 + CALM.high_water)
        await until(lambda: connection.events == ["open", "crowded", "clear"])


@runs_on_every_loop
async def test_what_is_left_is_written_before_the_end() -> None:
    async with paired() as (connection, theirs):
        connection.give(b"last words")
        connection.close()
        connection.give(b"too late")
        assert await read(theirs, 100) == b"last words"
        theirs.close()
        await until(lambda: connection.end is None)
        assert connection.sent == -1  # everything that was given in time


@runs_on_every_loop
async def test_a_peer_that_does_not_read_what_is_left_is_a_failure() -> None:
    async with paired(QUICK) as (connection, _):
        connection.peer_spoke()
        for _ in range(200):
            connection.give(bytes(64 * 1024))
        connection.close()
        await until(lambda: connection.end != "not ended")
        assert connection.end == Failure(
            Reason.TRANSPORT_DOWN, "the peer did not read what was left"
        )
        assert connection.sent != -1


@runs_on_every_loop
async def test_what_comes_after_the_goodbye_is_discarded() -> None:
    async with paired() as (connection, theirs):
        connection.close()
        theirs.send(b"late")
        theirs.close()
        await until(lambda: connection.end is None)
        assert connection.data == b""


@runs_on_every_loop
async def test_a_failure_is_told_once_whatever_follows() -> None:
    async with paired() as (connection, theirs):
        connection.fail(Reason.MALFORMED, "nonsense")
        connection.fail(Reason.TOO_LARGE, "more nonsense")
        connection.close()
        theirs.close()
        await until(lambda: connection.end != "not ended")
        assert connection.end == Failure(Reason.MALFORMED, "nonsense")
        assert connection.events.count("closed") == 1


@runs_on_every_loop
async def test_an_aborted_connection_claims_nothing_to_be_sent() -> None:
    async with paired() as (connection, _):
        for _ in range(200):
            connection.give(bytes(64 * 1024))
        connection.abort()
        await until(lambda: connection.end is None)
        assert 0 <= connection.sent < 200


@runs_on_every_loop
async def test_reading_stops_and_goes_on() -> None:
    async with paired() as (connection, theirs):
        connection.pause_reading()
        connection.pause_reading()
        theirs.send(b"wait")
        await settle()
        assert connection.data == b""
        connection.resume_reading()
        connection.resume_reading()
        await until(lambda: connection.data == b"wait")


@pytest.mark.parametrize("act", ["close", "abort", "pause_reading", "resume_reading", "flush"])
@runs_on_every_loop
async def test_a_connection_that_has_ended_takes_every_call(act: str) -> None:
    async with paired() as (connection, theirs):
        theirs.close()
        await until(lambda: connection.end is None)
        connection.write(b"x")
        getattr(connection, act)()
        await settle()
        assert connection.events.count("closed") == 1


FRAMES = ConnectionLimits(first_byte=None, frame=0.3, linger=0.2)
"""With a time for frames in which a peer has to send 1228 bytes of one."""


@pytest.mark.rule("FL-2")
@runs_on_every_loop
async def test_a_frame_that_drips_ends_in_time() -> None:
    async with paired(FRAMES) as (connection, theirs):
        theirs.send(b"whole\n")
        while connection.end == "not ended":
            with contextlib.suppress(OSError):  # it may have ended by now
                theirs.send(b"x")
            await asyncio.sleep(0.02)
        assert connection.end == Failure(Reason.REFUSED, "the peer left a frame unfinished")
        assert connection.unfinished == 0


@pytest.mark.rule("FL-2")
@runs_on_every_loop
async def test_a_large_frame_that_comes_slowly_is_read_to_its_end() -> None:
    async with paired(FRAMES) as (connection, theirs):
        theirs.send(b"whole\n")
        loop = asyncio.get_running_loop()
        until_then = loop.time() + 1.2  # four times the time for a frame
        while loop.time() < until_then:
            theirs.send(bytes(1000))
            await asyncio.sleep(0.02)
        assert connection.end == "not ended"
        assert connection.unfinished > 0
        theirs.send(b"\n")
        await until(lambda: connection.unfinished == 0)


@pytest.mark.rule("FL-2")
@runs_on_every_loop
async def test_time_in_which_nothing_is_read_does_not_count() -> None:
    async with paired(FRAMES) as (connection, theirs):
        theirs.send(b"whole\nhal")
        await until(lambda: connection.unfinished == 3)
        connection.pause_reading()
        await asyncio.sleep(1.0)
        assert connection.end == "not ended"
        connection.resume_reading()
        await until(lambda: connection.end != "not ended")


@pytest.mark.rule("FL-2")
@runs_on_every_loop
async def test_each_frame_has_a_time_of_its_own() -> None:
    async with paired(FRAMES) as (connection, theirs):
        for _ in range(40):
            theirs.send(b"whole\nhal")
            await asyncio.sleep(0.02)
        assert connection.end == "not ended"
        await until(lambda: connection.end != "not ended")


@pytest.mark.rule("FL-1")
@runs_on_every_loop
async def test_a_frame_in_part_is_counted_and_given_back_however_it_ends() -> None:
    account = Account(1000)
    async with paired() as (connection, theirs):
        connection.account = account
        theirs.send(b"whole\n" + bytes(100))
        await until(lambda: account.used == 100)
        theirs.send(bytes(50))
        await until(lambda: account.used == 150)
        theirs.send(b"\n")
        await until(lambda: account.used == 0)
        theirs.send(bytes(70))
        await until(lambda: account.used == 70)
    assert account.used == 0
