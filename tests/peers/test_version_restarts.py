"""A fleet under traffic goes from one version to the other, node by node, and back (UP-4).

Numbers are sent, and published, without a pause. What is sent while all nodes on the way are there
arrives, once. What is under way while one of them restarts may be lost, between versions as within
one: the first version's own restart has to meet the same checks. How much that is depends on how
long a node is away, and is not compared. Where nothing is under way meanwhile, amounts are: all
that is sent arrives, whichever versions meet. What was sent and what came is kept in files, so that
it outlives the processes.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.peers.version_peer import (
    NEW,
    OLD,
    PATIENCE,
    TEST_SECONDS,
    Child,
    Children,
    built,
    children,
    with_children,
)

pytestmark = [pytest.mark.peer, pytest.mark.timeout(TEST_SECONDS)]

ORDER = ("top", "middle", "beside", "sink", "source")  # hubs first, then leaves
PARENTS = {"middle": "top", "beside": "middle", "sink": "middle", "source": "top"}
HUBS = ("top", "middle")
KINDS = ("sent", "published")


@pytest.fixture(scope="module", autouse=True)
def _first_version() -> None:
    built()


class Fleet:
    """A top hub with a leaf that sends, and a hub below it with a leaf that receives."""

    def __init__(self, processes: Children, directory: Path, *, pulses: bool = True) -> None:
        self.nodes: dict[str, Child] = {}
        self._pulses = pulses
        self.restarts: dict[str, dict[str, range]] = {}  # what may be lost, by who restarted
        self._processes = processes
        self._directory = directory

    async def start(self, name: str, version: str) -> None:
        """Start a node, where it was before if it was."""
        former = self.nodes.get(name)
        node = await self._processes.start(version, name, hub=name in HUBS)
        self.nodes[name] = node
        await node.ask("keep_drops", str(self._directory / "dropped"))
        if name in HUBS:
            await node.listen("tcp://127.0.0.1:0" if former is None else former.place)
        if name in PARENTS:
            await node.ask("join", self.nodes[PARENTS[name]].place)
        if name == "sink":
            await node.ask("count", "sink", str(self._directory / "came"))
            await node.ask("count_broadcasts", "pulse", "beat", str(self._directory / "came"))
        elif name == "source" and self._pulses:
            first = self.last_sent() + 1
            await node.ask("pulse", "sink", "beat", str(self._directory / "began"), first)

    async def restart(self, name: str, version: str) -> None:
        """Restart a node, as another version, and note what is under way meanwhile."""
        before = self.last_sent()
        for kind in KINDS:  # all of it has come, or was lost before
            await self.settled(kind, before)
        await self.nodes[name].stop()
        await self.start(name, version)
        after = self.last_sent()
        ranges = {}
        for kind in KINDS:
            healed = await self.first_after(kind, after)
            ranges[kind] = range(before + 1, healed)
        self.restarts[name] = ranges

    async def restart_quietly(self, name: str, version: str) -> None:
        """Restart a node while nothing is under way, and wait until all know all again."""
        await self.nodes[name].stop()
        if name in ("middle", "sink"):  # who is left must have noticed, or it may believe too early
            for hub in HUBS[: 1 + (name == "sink")]:
                await self.nodes[hub].until("knows", "sink", answer=False)
                await self.nodes[hub].until("number_of_subscribers", answer=0)
            # What the hub tells the leaf of it comes before the reply.
            await self.nodes["source"].ask("request", "nobody", "?", 10.0)
        await self.start(name, version)
        await self.know_all()

    async def know_all(self) -> None:
        """Wait until every node has its parent, and the hubs know the ways."""
        for name, parent in PARENTS.items():
            await self.nodes[name].until("is_joined", parent)
        for hub in reversed(HUBS):
            await self.nodes[hub].until("knows", "sink")
            await self.nodes[hub].until("number_of_subscribers", answer=1)

    async def send(self, numbers: range) -> None:
        """Send and publish some numbers, and wait until all have come."""
        for number in numbers:
            await self.nodes["source"].ask("send", "sink", f"sent {number}")
            await self.nodes["source"].ask("publish", "pulse", "beat", f"published {number}")
        for kind in KINDS:
            await self.settled(kind, numbers[-1])

    async def stop(self) -> None:
        """Send no more, and wait for the last."""
        await self.nodes["source"].ask("stop_pulse")
        last = self.last_sent()
        for kind in KINDS:
            await self.settled(kind, last - 1)  # the very last may have been given up

    def last_sent(self) -> int:
        """The number that was sent last."""
        began = self._lines("began")
        return began[-1] if began else 0

    def came(self, kind: str) -> list[int]:
        """The numbers that came."""
        words = [line.split() for line in self._lines("came")]
        return [int(number) for word, number in words if word == kind]

    def dropped(self) -> Counter[str]:
        """Why numbers were dropped."""
        return Counter(reason for _, reason, text in self._lines("dropped") if _is_number(text))

    def may_be_lost(self, kind: str) -> set[int]:
        """What was under way while a node restarted that it had to pass."""
        return {
            number
            for name, ranges in self.restarts.items()
            if name != "beside"
            for number in ranges[kind]
        }

    async def settled(self, kind: str, last: int) -> None:
        """Wait until everything up to a number has come, but what may be lost."""
        expected = set(range(1, last + 1)) - self.may_be_lost(kind)
        await _until(
            lambda: expected <= set(self.came(kind)), lambda: self._missing(kind, expected)
        )

    async def first_after(self, kind: str, number: int) -> int:
        """Wait until a later number comes; which."""

        def later() -> list[int]:
            return [came for came in self.came(kind) if came > number]

        await _until(lambda: bool(later()), lambda: f"nothing {kind} after {number} came")
        return min(later())

    def _missing(self, kind: str, expected: set[int]) -> str:
        missing = sorted(expected - set(self.came(kind)))
        return f"{kind}, but never came: {missing[:20]}; dropped: {self.dropped()}"

    def _lines(self, name: str) -> list[Any]:
        path = self._directory / name
        if not path.exists():
            return []
        whole = path.read_text("utf-8").rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]


def _is_number(text: str) -> bool:
    return text.split(" ", maxsplit=1)[0] in KINDS


async def _until(condition: Callable[[], bool], problem: Callable[[], str]) -> None:
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, problem()
        await asyncio.sleep(0.05)


async def roll(directory: Path, before: str, after: str) -> set[str]:
    """Restart all nodes, one after the other; why something was lost.

    Nothing was but what was under way when a node restarted that it had to pass.
    """
    async with children() as processes:
        fleet = Fleet(processes, directory)
        for name in ORDER:
            await fleet.start(name, before)
        for kind in KINDS:
            await fleet.first_after(kind, 0)
        first = {kind: min(fleet.came(kind)) for kind in KINDS}
        fleet.restarts["start"] = {kind: range(1, first[kind]) for kind in KINDS}
        for name in ORDER:
            await fleet.restart(name, after)
            assert {node.version for node in fleet.nodes.values()} <= {before, after}
        await fleet.stop()
        for kind in KINDS:
            came = fleet.came(kind)
            assert len(came) == len(set(came)), "nothing comes twice"
            lost = set(range(first[kind], fleet.last_sent())) - set(came)
            assert lost <= fleet.may_be_lost(kind)
        assert [node.version for node in fleet.nodes.values()] == [after] * len(ORDER)
        return set(fleet.dropped())


versions = pytest.mark.parametrize(
    ("before", "after"),
    [(OLD, OLD), (OLD, NEW), (NEW, OLD)],
    ids=["the yardstick", "forth", "and back"],
)


@pytest.mark.rule("UP-4")
@versions
@with_children
async def test_a_rolling_restart_loses_only_what_was_under_way_through_the_node_that_restarted(
    tmp_path: Path, before: str, after: str
) -> None:
    why = await roll(tmp_path, before, after)
    assert why <= {"NO_ROUTE", "NO_SUBSCRIBER", "TRANSPORT_DOWN"}


@pytest.mark.rule("UP-4")
@versions
@with_children
async def test_what_is_sent_between_the_restarts_arrives_to_the_last_message(
    tmp_path: Path, before: str, after: str
) -> None:
    async with children() as processes:
        fleet = Fleet(processes, tmp_path, pulses=False)
        for name in ORDER:
            await fleet.start(name, before)
        await fleet.know_all()
        await fleet.send(range(1, 26))
        for turn, name in enumerate(ORDER, 1):
            await fleet.restart_quietly(name, after)
            await fleet.send(range(25 * turn + 1, 25 * (turn + 1) + 1))
        sent = list(range(1, 25 * (len(ORDER) + 1) + 1))
        assert {kind: sorted(fleet.came(kind)) for kind in KINDS} == dict.fromkeys(KINDS, sent)
        assert set(fleet.dropped()) <= {"NO_SUBSCRIBER"}  # which 0.1 says of what goes up as well
        assert [node.version for node in fleet.nodes.values()] == [after] * len(ORDER)
