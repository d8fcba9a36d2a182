"""Copies and further replies in the journals of live nodes: nobody calls them a mistake (OB-2)."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.node.test_broadcasts import Heard
from tests.node.test_hubs import QUIET
from waystation.core.message import Message
from waystation.node import Context, Node
from waystation.testing import Recorder, run_checked, until
from waystation.testing.lab.journals import audit
from waystation.why import explain


async def diamond(directory: Path) -> str:
    """A publisher with two parents below one hub, all of them journalled; the id of a broadcast."""
    async with AsyncExitStack() as stack:

        async def node(name: str) -> tuple[Node, str]:
            made = Node(name, hub=name != "a", limits=QUIET, journal=directory)
            found = await stack.enter_async_context(made)
            return found, (await found.listen("tcp://127.0.0.1:0")).url

        top, url = await node("top")
        a, _ = await node("a")
        for name in ("left", "right"):
            middle, middle_url = await node(name)
            await middle.connect(url, name="up", parent=True)
            await a.connect(middle_url, name=name, parent=True)

        @a.worker("stutter")
        async def stutter(message: Message, context: Context) -> None:
            await context.reply(message.payload)
            await context.reply(b"again")

        heard, at_top = Heard(), Recorder(top)
        top.subscribe("a", "news", callback=heard)
        a.subscribe("a", "news", callback=heard)
        await until(lambda: len(top.router.subscriptions) == 2)
        await a.publish("news", b"1")
        await until(lambda: at_top.counts()["DUPLICATE"] and len(heard.payloads) == 2)
        for _ in range(2):
            await a.request("stutter", b"?")
        return at_top.messages[0].arrival.message.id


@pytest.mark.rule("OB-2", "FL-6", "SP-2")
def test_the_audit_and_why_agree_with_what_was_dropped_as_a_copy(tmp_path: Path) -> None:
    ids: list[str] = []

    async def scenario() -> None:
        ids.append(await diamond(tmp_path))

    run_checked(scenario)
    assert list(audit(tmp_path)) == []
    found = explain(tmp_path, ids[0])
    reasons = {step.reason for hop in found.hops for step in hop.steps}
    assert "DUPLICATE" in reasons
    assert [hop.node for hop in found.hops if not hop.as_expected] == []
    assert found.summary.startswith("delivered at")


@pytest.mark.rule("SP-2", "MC-10")
def test_a_broadcast_that_waited_for_the_first_parent_is_as_expected(tmp_path: Path) -> None:
    ids: list[str] = []

    async def scenario() -> None:
        async with (
            Node("top", hub=True, limits=QUIET, journal=tmp_path) as top,
            Node("a", limits=QUIET, journal=tmp_path) as a,
        ):
            url = (await top.listen("tcp://127.0.0.1:0")).url
            heard = Heard()
            top.subscribe("+", "news", callback=heard)
            await a.connect(url, name="hub", parent=True, wait=None)
            sent = await a.publish("news", b"early")
            await until(lambda: bool(heard.payloads))
            ids.append(sent.id)

    run_checked(scenario)
    assert list(audit(tmp_path)) == []
    found = explain(tmp_path, ids[0])
    assert [hop.node for hop in found.hops] == ["a", "top"]
    assert [hop.node for hop in found.hops if not hop.as_expected] == []
