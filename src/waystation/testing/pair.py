"""Two nodes over a transport that is checked, and a path between them that fails on demand.

What a check of `check_transport` works with; no check stands here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, TypeAlias

from msgspec import Struct

from waystation.node import Limits, Listening, Node, Session
from waystation.testing.path import FaultyPath
from waystation.testing.waiting import until
from waystation.transports.transport import Transport

BEAT: Final = 0.5
"""Seconds between heartbeats: a lost peer is noticed soon, a busy machine is not taken for one."""

MakePath: TypeAlias = Callable[[str], AbstractAsyncContextManager[FaultyPath]]


class Pair(Struct, frozen=True, kw_only=True):
    """What a check has to work with; the fields are the parameters of `check_transport`."""

    make: Callable[[], Transport]
    place: str
    path: MakePath
    largest: int
    too_large: int
    flood: int
    time_factor: float
    token: bytes | None

    def node(self, name: str, *, heartbeat: float = 5.0, stall: float = 30.0) -> Node:
        """A node with the transport."""
        limits = Limits(heartbeat=heartbeat, stall=stall)
        return Node(name, transports=[self.make()], limits=limits, token=self.token)

    @asynccontextmanager
    async def nodes(self, *, heartbeat: float = 5.0) -> AsyncIterator[tuple[Node, Node, Listening]]:
        """Two nodes; the second listens."""
        async with (
            self.node("left", heartbeat=heartbeat) as left,
            self.node("right", heartbeat=heartbeat) as right,
        ):
            yield left, right, await right.listen(self.place)

    @asynccontextmanager
    async def faulty(
        self, *, heartbeat: float = BEAT
    ) -> AsyncIterator[tuple[Node, Node, Session, FaultyPath]]:
        """Two nodes and a kept session from the first to the second, over a faulty path."""
        async with (
            self.nodes(heartbeat=heartbeat) as (left, right, listening),
            self.path(listening.place) as path,
        ):
            kind = listening.url.partition("://")[0]
            yield left, right, await left.connect(f"{kind}://{path.place}", name="right"), path

    async def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait until a condition holds; the error says what did not happen."""
        try:
            await until(condition, 15 * self.time_factor)
        except AssertionError:
            raise AssertionError(f"not so: {what}") from None


Check: TypeAlias = Callable[[Pair], Awaitable[None]]
