"""A pipe without a network: its windows, and its end in every state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from waystation.core.budget import Account
from waystation.core.identity import LogicalAddress
from waystation.core.membership import Member
from waystation.core.outcome import Reason
from waystation.groups.pipe import CHUNK, WINDOW, Key, Kind, Pipe, PipeState, head, read_head
from waystation.testing import async_test

PEER = Member(LogicalAddress(bytes(15) + b"\1", "peer"))
KEY: Key = (PEER.uuid, 7, True)


class FakeGroup:
    """Keeps what a pipe sends, until somebody says what became of it."""

    is_connected = True
    has_window = True

    def is_full(self, uuid: bytes) -> bool:
        assert uuid == PEER.uuid
        return not self.has_window

    def __init__(self) -> None:
        self.sent: list[tuple[Kind, bytes]] = []
        self.on_ends: list[Callable[[Reason | None], None]] = []

    def post(self, uuid: bytes, payload: bytes, on_end: Any = None) -> None:
        assert uuid == PEER.uuid
        found = read_head(payload, uuid)
        assert found is not None
        self.sent.append((found[0], payload[9:]))
        if on_end is not None:
            self.on_ends.append(on_end)

    def kinds(self) -> list[Kind]:
        return [kind for kind, _ in self.sent]

    def all_arrive(self, reason: Reason | None = None) -> None:
        while self.on_ends:
            self.on_ends.pop(0)(reason)


class FakeProtocol:
    """Keeps what a pipe says to its protocol."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.data = b""

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, error: Exception | None) -> None:
        self.calls.append(f"lost: {error}")

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: self.calls.append(name)


class End:
    """One end of a pipe, and what it told."""

    def __init__(self, unread: Account | None = None) -> None:
        self.group = FakeGroup()
        self.protocol = FakeProtocol()
        self.pipe = Pipe(
            self.group,  # type: ignore[arg-type]
            PEER,
            KEY,
            lambda pipe, error: pipe.tell_lost(error),
            unread,
        )
        self.pipe.attach(self.protocol)

    def hear(self, kind: Kind, body: bytes = b"") -> None:
        self.pipe.on_message(kind, head(kind, KEY) + body)


@async_test
async def test_a_peer_that_ignores_the_window_is_reset() -> None:
    end = End()
    end.pipe.pause_reading()
    for _ in range(WINDOW // CHUNK + 1):
        end.hear(Kind.DATA, bytes(CHUNK))
    assert not end.pipe.is_closing()  # as much as an honest peer sends
    end.hear(Kind.DATA, b"x")
    assert end.pipe.state is PipeState.CLOSED
    assert end.group.kinds() == [Kind.RESET]
    await asyncio.sleep(0)
    assert end.protocol.calls[-1] == "lost: peer sends more than there is room for"
    assert end.protocol.data == b""


@pytest.mark.rule("FL-1")
@async_test
async def test_nothing_is_kept_of_empty_messages_and_repeated_ends() -> None:
    end = End()
    end.pipe.pause_reading()
    end.hear(Kind.DATA, b"x")
    for _ in range(1_000):
        end.hear(Kind.DATA)
        end.hear(Kind.EOF)
    assert end.pipe._unread == b"x"
    end.pipe.resume_reading()
    assert end.protocol.data == b"x"
    assert end.protocol.calls.count("eof_received") == 1


@pytest.mark.rule("FL-1")
@async_test
async def test_what_waits_in_all_pipes_together_is_bounded() -> None:
    unread = Account(3 * CHUNK)
    slow, slower = End(unread), End(unread)
    for end in (slow, slower):
        end.pipe.pause_reading()
        end.hear(Kind.DATA, bytes(CHUNK))
    slower.hear(Kind.DATA, bytes(CHUNK))
    assert unread.used == 3 * CHUNK
    slower.hear(Kind.DATA, bytes(CHUNK))
    assert slower.pipe.state is PipeState.CLOSED
    assert slower.group.kinds() == [Kind.RESET]
    assert slow.pipe.state is PipeState.OPEN
    assert unread.used == CHUNK
    slow.pipe.resume_reading()
    assert unread.used == 0
    slow.pipe.pause_reading()
    slow.hear(Kind.DATA, bytes(CHUNK))
    slow.pipe.close()
    assert unread.used == 0


@pytest.mark.rule("FL-3")
@async_test
async def test_pipes_to_one_member_share_its_window_and_each_goes_on() -> None:
    end = End()
    end.group.has_window = False  # others have filled it
    end.pipe.write(bytes(3 * CHUNK))
    assert end.group.kinds() == [Kind.DATA]  # one piece is on its way in any case
    end.group.all_arrive()
    assert end.group.kinds() == [Kind.DATA] * 3
    assert end.pipe.get_write_buffer_size() == 0
    end.group.has_window = True
    end.pipe.write(bytes(3 * CHUNK))
    assert end.group.kinds() == [Kind.DATA] * 6


@async_test
async def test_credit_lets_a_peer_go_on_for_ever() -> None:
    end = End()
    for _ in range(10 * WINDOW // CHUNK):
        end.hear(Kind.DATA, bytes(CHUNK))
    assert end.pipe.state is PipeState.OPEN
    credit = sum(int.from_bytes(body, "big") for _, body in end.group.sent)
    assert credit == len(end.protocol.data) == 10 * WINDOW


@async_test
async def test_a_pipe_sends_no_more_than_its_peer_has_room_for() -> None:
    end = End()
    end.pipe.write(bytes(2 * WINDOW))
    assert end.group.kinds() == (WINDOW // CHUNK) * [Kind.DATA]
    assert "pause_writing" in end.protocol.calls
    end.hear(Kind.CREDIT, (2 * WINDOW).to_bytes(4, "big"))
    end.pipe.write_eof()
    end.pipe.write(b"nothing more is written")
    assert end.group.kinds() == (2 * WINDOW // CHUNK) * [Kind.DATA] + [Kind.EOF]
    end.group.all_arrive()
    assert end.protocol.calls[-1] == "resume_writing"
    assert end.pipe.get_write_buffer_size() == 0


@async_test
async def test_what_came_before_the_end_is_read_before_it() -> None:
    end = End()
    end.pipe.pause_reading()
    end.hear(Kind.DATA, b"first")
    end.hear(Kind.EOF)
    assert "eof_received" not in end.protocol.calls
    end.pipe.resume_reading()
    assert end.protocol.data == b"first"
    assert end.protocol.calls[-1] == "eof_received"
    assert end.group.kinds() == [Kind.CLOSE]


def nothing(end: End) -> None:
    """Stay as it is."""


def unread(end: End) -> None:
    end.pipe.pause_reading()
    end.hear(Kind.DATA, b"unread")


def unwritten(end: End) -> None:
    end.pipe.write(bytes(2 * WINDOW))


def finished(end: End) -> None:
    end.pipe.write(b"the last")
    end.pipe.write_eof()


def closing(end: End) -> None:
    end.pipe.write(b"the last")
    end.pipe.close()


def closed(end: End) -> None:
    end.pipe.close()


def loses_a_piece(end: End) -> None:
    end.pipe.write(b"x")
    end.group.all_arrive(Reason.TRANSPORT_DOWN)
    end.pipe.fail(None)


ENDS: list[Callable[[End], None]] = [
    lambda end: end.pipe.abort(),
    lambda end: end.pipe.fail(ConnectionError("gone")),
    lambda end: end.hear(Kind.CLOSE),
    lambda end: end.hear(Kind.RESET),
    loses_a_piece,
]


@pytest.mark.parametrize("state", [nothing, unread, unwritten, finished, closing, closed])
@pytest.mark.parametrize("finish", ENDS)
@async_test
async def test_a_pipe_ends_once_in_every_state(
    state: Callable[[End], None], finish: Callable[[End], None]
) -> None:
    end = End()
    state(end)
    for _ in range(2):
        finish(end)
        assert end.pipe.state is PipeState.CLOSED
        assert end.pipe.is_closing()
        assert not end.pipe.is_reading()
    sent = len(end.group.sent)
    for kind in Kind:
        end.hear(kind, bytes(4))
    end.pipe.write(b"too late")
    end.pipe.write_eof()
    end.pipe.close()
    end.pipe.resume_reading()
    end.group.all_arrive()
    await asyncio.sleep(0)
    assert len(end.group.sent) == sent
    assert len([call for call in end.protocol.calls if call.startswith("lost")]) == 1


@async_test
async def test_a_pipe_that_closes_writes_what_is_left_first() -> None:
    end = End()
    end.pipe.write(b"the last")
    end.pipe.close()
    end.hear(Kind.DATA, b"is discarded")
    assert end.group.kinds() == [Kind.DATA]
    end.group.all_arrive()
    assert end.group.kinds() == [Kind.DATA, Kind.CLOSE]
    assert end.protocol.data == b""
