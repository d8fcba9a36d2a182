"""Checks of a transport against peers that misbehave, for `check_transport`.

    await check_transport(Tcp, "tcp://127.0.0.1:0", checks=HOSTILE_CHECKS)

The peer is the bare owner of a link that the transport itself dialled: it stays silent, floods,
never reads, sends what no node would, and leaves at every moment. So these checks know no format,
and hold for every transport. What can only be said in bytes is checked by `check_listener`.

Each check ends with a node that does nothing wrong: it must still be served.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from waystation.core.address import Address, Route
from waystation.core.message import Message
from waystation.core.outcome import Reason
from waystation.node import Limits, Listening, Node
from waystation.testing.checks import require
from waystation.testing.pair import Check, Pair
from waystation.testing.recorder import Recorder
from waystation.testing.workers import echo
from waystation.transports.transport import Broadcaster, Link, Transport
from waystation.wire.hello import PAYLOAD_LIMIT

FLOOD: Final = 20_000
"""This many messages are a flood."""

UNREAD: Final = 2_000
"""This many requests of 10 KB are sent by a peer that reads no answer, unless it is held back."""

HELD: Final = 0.2
"""Seconds after which a peer that is still held back need not send more."""

SERVED: Final = 10.0
"""Seconds within which a peer that does nothing wrong gets its answer."""

_TOKEN: Final = b"a token that the peer does not know"
_ECHO: Final = Address(0, b"echo")
_BACK: Final = Route((Address(0, b"app"),))

_GARBAGE: Final = (
    b"\xff" * 100,
    b"{",
    b'{"waystation": "hello"}',
    b'{"waystation": "hello", "node": 7, "types": []}',
    b'{"waystation": "announce", "participants": [[]]}',
    b'{"waystation": "resolved", "number": -1}',
    b"[" * 10_000,
    bytes(PAYLOAD_LIMIT + 1),
)
"""Payloads for a session that no session sends."""


class HostilePeer:
    """The owner of a link, which does nothing by itself and keeps nothing of what it receives."""

    def __init__(self, leave_when: str = "") -> None:
        self.address = Address(0, b"hostile")
        self.admitted = True
        self.is_stranger = True
        self.account = None
        self.is_held = False
        self.is_over = False
        self.link: Link | None = None
        self._leave_when = leave_when  # `opened` or `answered`

    def opened(self, link: Link) -> None:
        """Note the link."""
        self.link = link
        self._leave_if("opened")

    def answered(self) -> None:
        """Note that the listener speaks the format."""
        self._leave_if("answered")

    def received(self, messages: Sequence[Message]) -> None:
        """Ignore what comes."""

    def sent(self, messages: int | None = None) -> None:
        """Ignore what left."""

    def pause(self) -> None:
        """Note that the listener holds this peer back."""
        self.is_held = True

    def resume(self) -> None:
        """Note that it does no longer."""
        self.is_held = False

    def closed(self, reason: Reason | None, detail: str) -> None:
        """Note the end."""
        del reason, detail
        self.is_over = True

    def send(self, payload: bytes, *route: Address) -> None:
        """Send a message, to `echo` unless a route is given; nothing once the link has ended."""
        if self.link is not None and not self.is_over:
            onward = Route((self.address, *(route or (_ECHO,))))
            self.link.send(Message(onward, _BACK, payload))

    def send_control(self, payload: bytes) -> None:
        """Send a payload for the session itself."""
        if self.link is not None and not self.is_over:
            self.link.send_control(payload)

    def _leave_if(self, state: str) -> None:
        if state == self._leave_when and self.link is not None:
            self.link.abort()


class _Scene:
    """A node that listens, and a transport for hostile peers of it."""

    def __init__(self, pair: Pair, node: Node, listening: Listening, transport: Transport) -> None:
        self.pair = pair
        self.node = node
        self.listening = listening
        self.recorder = Recorder(node)
        self._transport = transport
        echo(node)

    async def peer(self, leave_when: str = "") -> HostilePeer:
        """A hostile peer with a link to the node."""
        peer = HostilePeer(leave_when)
        with suppress(OSError):  # one that leaves at once may never have had a link
            peer.link = await self._transport.dial([self.listening.place], peer)
        return peer

    async def serves_others(self) -> None:
        """Check that a node that does nothing wrong gets an answer."""
        async with self.pair.node("honest") as honest:
            route = f"{self.listening.address} => echo"
            timeout = SERVED * self.pair.time_factor
            answer = await honest.request(route, b"honest", timeout=timeout)
            require(answer.payload == b"honest", f"the answer is {answer.payload!r}")

    async def is_rid_of(self, *peers: HostilePeer) -> None:
        """Let peers leave, and check that nothing of them stays and each message was told once."""
        open_ones = [peer for peer in peers if peer.link is not None and not peer.is_over]
        for peer in open_ones:
            if peer.link is not None:
                peer.link.resume_reading()
                peer.link.close()
        await self.pair.until(lambda: all(peer.is_over for peer in open_ones), "links end")
        await self.pair.until(lambda: not self.node.sessions, "sessions end with their peers")
        self.recorder.check_outcomes()


@asynccontextmanager
async def _scene(pair: Pair, limits: Limits | None = None) -> AsyncIterator[_Scene]:
    node = Node(
        "right",
        transports=[pair.make()],
        limits=limits or Limits(heartbeat=0.0),
        token=pair.token,
    )
    async with node, _started(pair.make) as transport:
        yield _Scene(pair, node, await node.listen(pair.place), transport)
        await node.close(drain=0)


@asynccontextmanager
async def _started(make: Callable[[], Transport]) -> AsyncIterator[Transport]:
    """A transport without a node; one that needs a connection of its own gets it."""
    transport = make()
    if not isinstance(transport, Broadcaster):
        yield transport
        return
    transport.attach(lambda multicast_id, message: None)  # noqa: ARG005
    starting = asyncio.ensure_future(transport.start())
    try:
        yield transport
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await transport.close()


async def _ends_a_session_that_proves_nothing(pair: Pair) -> None:
    limits = Limits(heartbeat=0.0, greeting=0.3)
    right = Node("right", transports=[pair.make()], limits=limits, token=_TOKEN)
    async with right, _started(pair.make) as transport:
        listening = await right.listen(pair.place)
        peer = HostilePeer()
        try:
            with suppress(OSError):
                peer.link = await transport.dial([listening.place], peer)
                peer.send(b"not yet")
                await pair.until(lambda: peer.is_over, "the session ends after `greeting` seconds")
            await pair.until(lambda: not right.sessions, "nothing stays of it")
        finally:
            if peer.link is not None:
                peer.link.abort()


async def _survives_a_silent_peer(pair: Pair) -> None:
    async with _scene(pair) as scene:
        peers = [await scene.peer() for _ in range(20)]
        await scene.serves_others()
        await scene.is_rid_of(*peers)


async def _survives_a_flood(pair: Pair) -> None:
    async with _scene(pair) as scene:
        peer = await scene.peer()
        for number in range(FLOOD):
            peer.send(b"flood", *(() if number % 2 else (Address(0, b"nobody"),)))
            if number % 100 == 0 or peer.is_held:
                await asyncio.sleep(0)
        await scene.serves_others()
        await scene.is_rid_of(peer)


async def _serves_others_while_a_peer_never_reads(pair: Pair) -> None:
    async with _scene(pair) as scene:
        peer = await scene.peer()
        if peer.link is not None:
            peer.link.pause_reading()
        for _ in range(UNREAD):
            peer.send(bytes(10_000))
            await asyncio.sleep(0)
            if peer.is_held:
                await asyncio.sleep(HELD)
                if peer.is_held:
                    break
        await scene.serves_others()
        await scene.is_rid_of(peer)


async def _survives_garbage_after_the_handshake(pair: Pair) -> None:
    async with _scene(pair) as scene:
        for garbage in _GARBAGE:
            peer = await scene.peer()
            peer.send_control(garbage)
            peer.send_control(garbage)
            peer.send(b"?", Address(250, b"of no known type"))
            peer.send(b"?", Address(0, b""))
            peer.send(b"?", Address(0, b"\xff"), _ECHO)
            await scene.serves_others()
            await scene.is_rid_of(peer)


async def _survives_a_close_in_every_state(pair: Pair) -> None:
    async with _scene(pair) as scene:
        peers = [await scene.peer(leave_when=state) for state in ("opened", "answered")]
        for size in (0, 1, 100_000):
            aborting, closing = await scene.peer(), await scene.peer()
            peers += [aborting, closing]
            if size:
                aborting.send(bytes(min(size, pair.largest)))
            if aborting.link is not None:
                aborting.link.abort()
            closing.send(b"last word")
            if closing.link is not None:
                closing.link.close()
        await scene.serves_others()
        await scene.is_rid_of(*peers)


HOSTILE_CHECKS: Final[dict[str, Check]] = {
    "ends a session that proves nothing": _ends_a_session_that_proves_nothing,
    "survives a silent peer": _survives_a_silent_peer,
    "survives a flood": _survives_a_flood,
    "serves others while a peer never reads": _serves_others_while_a_peer_never_reads,
    "survives garbage after the handshake": _survives_garbage_after_the_handshake,
    "survives a close in every state": _survives_a_close_in_every_state,
}
"""Every hostile check by its name."""
