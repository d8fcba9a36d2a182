"""Plain streams, read and written by coroutines: for tools and proxies, never for links.

What carries messages stands on `Connection`, which has deadlines and bounds; a stream has none.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

from waystation.net.place import parse_place, place_of

StreamHandler: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def open_stream(place: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a place; an OSError says why not."""
    return await asyncio.open_connection(*parse_place(place))


@asynccontextmanager
async def serving_streams(handle: StreamHandler, place: str) -> AsyncIterator[str]:
    """Accept connections, and have a function called for each; gives the place."""
    host, port = parse_place(place)
    server = await asyncio.start_server(handle, host, port)
    try:
        yield place_of(server.sockets[0].getsockname())
    finally:
        server.close()
