"""TCP links by themselves, with an owner that only takes notes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

import pytest

from tests.node.live import RawPeer, full_listener, raw_listener, runs_on_every_loop
from waystation.core.address import Address, Route
from waystation.core.budget import Account
from waystation.core.message import Message
from waystation.core.outcome import Reason
from waystation.errors import LocalError
from waystation.testing import async_test, settle, until
from waystation.transports.tcp import Tcp, TcpLimits
from waystation.transports.transport import Link
from waystation.wire.ockam import HEARTBEAT_FRAME, PREFACE, encode_control, encode_frame


class Notes:
    """An owner of a link that notes what it is told."""

    def __init__(self, name: bytes = b"link") -> None:
        self.address = Address(0, name)
        self.admitted = True
        self.is_stranger = False
        self.account: Account | None = None
        self.link: Link | None = None
        self.told: list[str] = []
        self.messages: list[Message] = []
        self.end: tuple[Reason | None, str] | None = None
        self.settled = 0

    def opened(self, link: Link) -> None:
        assert self.link is None
        self.link = link
        self.told.append("opened")

    def answered(self) -> None:
        self.told.append("answered")

    def received(self, messages: Sequence[Message]) -> None:
        self.messages += messages

    def sent(self, messages: int | None = None) -> None:  # noqa: ARG002
        self.settled += 1

    def pause(self) -> None:
        self.told.append("pause")

    def resume(self) -> None:
        self.told.append("resume")

    def closed(self, reason: Reason | None, detail: str) -> None:
        assert self.end is None
        self.end = (reason, detail)


def message(payload: bytes = b"x") -> Message:
    return Message(Route.parse("link => echo"), Route.parse("app"), payload, id="4bf9" * 8)


async def _silent(peer: RawPeer) -> None:
    peer.say(PREFACE)
    await asyncio.Event().wait()


@pytest.mark.rule("WK-10")
@runs_on_every_loop
async def test_a_link_writes_the_preface_and_then_frames_without_its_own_address() -> None:
    heard = bytearray()

    async def listen(peer: RawPeer) -> None:
        peer.say(PREFACE + encode_frame(Message(Route.parse("a"), Route.parse("b"), b"in")))
        while data := await peer.reader.read(65536):
            heard.extend(data)

    async with raw_listener(listen) as place:
        owner = Notes()
        link = await Tcp(limits=TcpLimits(linger=0.5)).dial([place], owner)
        assert link.place == place
        assert link.send(message()) is None
        link.send_control(b"")
        link.send_control(b"hello")
        await until(lambda: owner.messages)
        await until(lambda: owner.settled)
        link.close()
        await until(lambda: owner.end)
        await settle()
        assert bytes(heard) == PREFACE + encode_frame(message().departed()) + HEARTBEAT_FRAME + (
            encode_control(b"hello")
        )
        assert str(owner.messages[0].return_route) == "0#link => 0#b"
        assert owner.end == (None, "closed")


@runs_on_every_loop
async def test_what_cannot_be_written_has_a_reason_and_harms_nothing() -> None:
    async with raw_listener(_silent) as place:
        owner = Notes()
        link = await Tcp(limits=TcpLimits(frame=1000)).dial([place], owner)
        assert link.send(message(bytes(1000))) is Reason.TOO_LARGE
        assert link.send(Message(Route.parse("link"), Route(), b"")) is Reason.NO_ROUTE
        bad = Message(Route.parse("link => x"), Route(), b"", id="no id")
        assert link.send(bad) is Reason.MALFORMED
        assert link.send(message()) is None
        link.abort()
        await until(lambda: owner.end)


@runs_on_every_loop
async def test_a_link_asks_for_a_pause_when_the_peer_does_not_read_and_ends_in_time() -> None:
    async with raw_listener(_silent) as place:
        owner = Notes()
        limits = TcpLimits(unsent=64 * 1024, linger=0.2)
        link = await Tcp(limits=limits).dial([place], owner)
        for _ in range(10_000):
            if "pause" in owner.told:
                break
            link.send(message(bytes(8192)))
            await asyncio.sleep(0)
        assert owner.told[-1] == "pause"
        link.close()
        link.close()
        await until(lambda: owner.end)


@runs_on_every_loop
async def test_a_paused_reader_hands_in_nothing_until_it_reads_again() -> None:
    owner, theirs = Notes(), Notes(b"other")
    transport = Tcp()
    listener = await transport.listen("127.0.0.1:0", lambda: theirs)
    link = await transport.dial([listener.place], owner)
    await until(lambda: theirs.link)
    assert theirs.link is not None
    theirs.link.pause_reading()
    theirs.link.pause_reading()
    for _ in range(100):
        link.send(message())
    await asyncio.sleep(0.05)
    assert theirs.messages == []
    theirs.link.resume_reading()
    theirs.link.resume_reading()
    await until(lambda: len(theirs.messages) == 100)
    link.close()
    await until(lambda: owner.end)
    await until(lambda: theirs.end)
    assert theirs.end == (None, "closed")
    theirs.link.pause_reading()
    theirs.link.resume_reading()
    theirs.link.close()
    theirs.link.abort()
    assert theirs.link.send(message()) is None  # too late, and harmless
    await settle()
    await listener.close()


@runs_on_every_loop
async def test_a_listener_may_refuse_and_stops_when_it_is_closed() -> None:
    transport = Tcp()
    listener = await transport.listen("127.0.0.1:0", lambda: None)
    await (await RawPeer.dial(listener.place)).ended()
    await listener.close()
    with pytest.raises(OSError, match=listener.place):
        await transport.dial([listener.place], Notes())


@runs_on_every_loop
async def test_a_listener_that_is_closed_leaves_its_links_alone() -> None:
    owner = Notes()
    listener = await Tcp().listen("127.0.0.1:0", lambda: owner)
    peer = await RawPeer.dial(listener.place)
    await until(lambda: owner.link)
    await listener.close()
    peer.send("a", b"still")
    await until(lambda: owner.messages)
    peer.close()
    await until(lambda: owner.end)


@runs_on_every_loop
async def test_of_several_places_the_first_that_answers_is_taken_and_the_others_let_go() -> None:
    reached: list[str] = []

    async def listen(peer: RawPeer) -> None:
        peer.say(PREFACE)
        reached.append("here")
        await peer.reader.read()

    async with raw_listener(listen) as one, raw_listener(listen) as two:
        owner = Notes()
        link = await Tcp().dial(["[fe80::1%none]:1", one, two], owner)
        assert link.place == one
        await asyncio.sleep(0.4)  # longer than a second attempt would wait
        assert reached == ["here"]
        link.abort()
        await until(lambda: owner.end)


@async_test
async def test_a_name_that_no_resolver_takes_does_not_spoil_the_other_places() -> None:
    async with raw_listener(_silent) as place:
        owner = Notes()
        link = await Tcp().dial(["a..b:1", place], owner)
        link.abort()
        await until(lambda: owner.end)


@runs_on_every_loop
async def test_every_attempt_that_failed_is_named() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(OSError, match=place) as caught:
            await Tcp().dial([place, "[fe80::1%none]:1"], Notes())
    assert "fe80::1" in str(caught.value)
    with pytest.raises(OSError, match="no address"):
        await Tcp().dial([], Notes())


@async_test
async def test_a_dial_takes_no_longer_than_its_limit() -> None:
    with full_listener() as stuck, pytest.raises(TimeoutError):
        await Tcp(limits=TcpLimits(dial=0.2)).dial([stuck], Notes())


@pytest.mark.parametrize("place", ["nowhere", "127.0.0.1", "127.0.0.1:99999"])
@async_test
async def test_what_is_no_place_is_refused(place: str) -> None:
    with pytest.raises(LocalError):
        await Tcp().listen(place, lambda: None)
    with pytest.raises(LocalError):
        await Tcp().dial([place], Notes())


@runs_on_every_loop
async def test_ipv6_places_have_brackets() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    owner, theirs = Notes(), Notes()
    try:
        listener = await Tcp().listen("[::1]:0", lambda: theirs)
    except OSError:
        pytest.skip("no IPv6 here")
    assert listener.place.startswith("[::1]:")
    link = await Tcp().dial([listener.place], owner)
    assert link.place == listener.place
    link.close()
    await until(lambda: owner.end)
    await until(lambda: theirs.end)
    await listener.close()
