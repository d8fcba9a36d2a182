"""Ways between two peers on which things go wrong when they are told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from waystation.net.streams import open_stream, serving_streams


class FaultyPath(Protocol):
    """A way to a listener, with faults."""

    @property
    def place(self) -> str:
        """Where to dial instead of the listener's own place."""
        ...

    def cut(self) -> None:
        """Break every link that goes this way, at once."""
        ...

    def cut_after(self, size: int) -> None:
        """Break every link once so many more bytes have gone through to the listener."""
        ...

    def freeze(self) -> None:
        """Let nothing through, in either direction, and tell nobody."""
        ...

    def thaw(self) -> None:
        """Let everything through again."""
        ...

    def refuse(self, *, refuse: bool) -> None:
        """Break every new link as soon as it is there, or no longer."""
        ...


class TcpPath:
    """A proxy for byte streams."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._refusing = False
        self._left: int | None = None
        self.place = ""

    def cut(self) -> None:
        """Break every link."""
        self._left = None
        for writer in self._writers:
            writer.transport.abort()

    def cut_after(self, size: int) -> None:
        """Break every link after so many more bytes."""
        self._left = size

    def freeze(self) -> None:
        """Pass nothing on."""
        self._open.clear()

    def thaw(self) -> None:
        """Pass everything on."""
        self._open.set()

    def refuse(self, *, refuse: bool) -> None:
        """Break new links, or no longer."""
        self._refusing = refuse

    async def serve(self, inward: asyncio.StreamReader, outward: asyncio.StreamWriter) -> None:
        """Join one dialler to the listener."""
        self._writers.add(outward)
        joined = {outward}
        try:
            if self._refusing:
                return
            far_in, far_out = await open_stream(self._target)
            joined.add(far_out)
            self._writers.add(far_out)
            if not outward.transport.is_closing():  # cut already
                await asyncio.gather(
                    self._pump(inward, far_out, counts=True),
                    self._pump(far_in, outward, counts=False),
                )
        except OSError:
            pass
        finally:
            self._writers -= joined
            for writer in joined:
                writer.transport.abort()

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, counts: bool
    ) -> None:
        try:
            while data := await source.read(65536):
                await self._open.wait()
                if counts and self._left is not None:
                    data = data[: self._left]
                    self._left -= len(data)
                if sink.transport.is_closing():
                    return
                sink.write(data)
                await sink.drain()
                if counts and self._left == 0:
                    await asyncio.sleep(0.05)  # let the peer have what was let through
                    self.cut()
            await self._open.wait()  # nobody hears of the end of what is frozen either
            if not sink.transport.is_closing():
                sink.write_eof()  # the other direction goes on, as on a real path
        except OSError:
            await self._open.wait()
            sink.transport.abort()


@asynccontextmanager
async def tcp_path(target: str) -> AsyncIterator[TcpPath]:
    """A faulty path to a TCP listener, on this machine's loopback interface."""
    path = TcpPath(target)
    async with serving_streams(path.serve, "127.0.0.1:0") as path.place:
        try:
            yield path
        finally:
            path.thaw()
            path.cut()
            await asyncio.sleep(0)
