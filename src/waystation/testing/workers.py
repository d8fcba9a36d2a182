"""Workers that tests often need: one that answers, one that collects, one that can be held up."""

from __future__ import annotations

import asyncio
from typing import Any

from waystation.core.message import Message
from waystation.node import Context, Node


def echo(node: Node, name: str = "echo") -> None:
    """Start a worker that replies with the payload it got."""

    async def handle(message: Message, context: Context) -> None:
        await context.reply(message.payload)

    node.start_worker((name,), handle)


def collect(node: Node, *names: str, **options: Any) -> list[Message]:
    """Start a worker that collects its messages; returns the list that grows.

    The options are those of `Node.start_worker`.
    """
    found: list[Message] = []

    def handle(message: Message, context: Context) -> None:  # noqa: ARG001
        found.append(message)

    node.start_worker(names, handle, **options)
    return found


class Gate:
    """A worker that handles nothing until it is opened: `gate.free.set()`.

    `got` has the payloads that it handled since.
    """

    def __init__(self, node: Node, name: str, inbox: int = 1) -> None:
        self.free = asyncio.Event()
        self.got: list[bytes] = []
        node.start_worker((name,), self._handle, inbox=inbox)

    async def _handle(self, message: Message, context: Context) -> None:  # noqa: ARG002
        await self.free.wait()
        self.got.append(message.payload)
