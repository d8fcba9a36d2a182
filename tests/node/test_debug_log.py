"""At DEBUG the log shows what a session goes through, and why a message is dropped."""

from __future__ import annotations

import logging

import pytest

from waystation.node import FAIL, Node
from waystation.testing import MemoryNetwork, async_test, collect, until


@async_test
async def test_the_life_of_a_session_can_be_followed_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger="waystation.node")
    network = MemoryNetwork()
    async with (
        Node("hub", transports=[network.transport()], hub=True) as hub,
        Node("leaf", transports=[network.transport()]) as leaf,
    ):
        collect(leaf, "truck-7")
        leaf.subscribe("hub", "news")
        await hub.listen("mem://hub")
        session = await leaf.connect("mem://hub", name="up", parent=True)
        await until(lambda: hub.router.table.contains("truck-7", hub.now()))
        await hub.send("nobody", b"", policy=FAIL)
        await session.close()
        await until(lambda: not hub.sessions)
    lines = [record.getMessage() for record in caplog.records]
    for expected in (
        "session up: connecting to hub",
        "session up: LINK_MADE, DISCONNECTED -> GREETING",
        "session up: hello from node 'hub'",
        " at 6#hub opened",
        "session up: announcing 2 participants and 1 subscriptions",
        ": 2 participants announced",
        "node hub dropped ",
        " for nobody: NO_ROUTE",
        "session up: CLOSE_ASKED, OPEN -> CLOSING",
        "session up with hub at 6#hub closed",
    ):
        assert any(expected in line for line in lines), (expected, lines)


@async_test
async def test_nothing_of_it_is_told_unless_it_is_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="waystation.node")
    async with Node("garage") as node:
        collect(node, "truck-7")
        await node.send("truck-7", b"")
        await node.send("nobody", b"", policy=FAIL)
    assert caplog.records == []
