"""A node that is connected to a hub: what most programs of a fleet are."""

from __future__ import annotations

import secrets
from collections.abc import Generator
from typing import Any

from waystation.node.node import Node
from waystation.node.readiness import READY_TIME


def leaf(
    *urls: str, name: str | None = None, ready: float = READY_TIME, **options: Any
) -> Connecting:
    """A node that is a leaf of the hub at a URL, connected and ready.

    Of several URLs of the hub the first that answers is taken; without a name it gets one. The
    other options are those of `Node`. Raises UnreachableError if there is no such hub, and
    NotReadyError if it takes no leaves, each within `ready` seconds.

    >>> import asyncio
    >>> async def main():
    ...     async with Node("hub", hub=True) as hub:
    ...         url = (await hub.listen("tcp://127.0.0.1:0")).url
    ...         async with leaf(url, name="truck-7") as truck, leaf(url) as dispatcher:
    ...             @truck.worker("brakes")
    ...             def check(message, context):
    ...                 return b"fine"
    ...             return (await dispatcher.request("brakes", b"?")).payload
    >>> asyncio.run(main())
    b'fine'
    """
    node = Node(name or f"leaf-{secrets.token_hex(4)}", **options)
    return Connecting(node, urls, ready)


class Connecting:
    """A leaf that is not connected yet: `async with` closes it at the end, `await` does not."""

    def __init__(self, node: Node, urls: tuple[str, ...], seconds: float) -> None:
        self._node = node
        self._urls = urls
        self._seconds = seconds

    def __await__(self) -> Generator[Any, None, Node]:
        return self._connect().__await__()

    async def __aenter__(self) -> Node:
        return await self._connect()

    async def __aexit__(self, *error: object) -> None:
        await self._node.close()

    async def _connect(self) -> Node:
        node = self._node
        try:
            await node.__aenter__()
            await node.connect(*self._urls, parent=True, wait=self._seconds)
            await node.ready(self._seconds)
        except BaseException:
            await node.close()
            raise
        return node
