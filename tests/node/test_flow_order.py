"""Order and outcomes on a link, whatever happens there: pauses, holds, goes, losses, slow workers.

What one sender sends to one receiver stays in order, and each message has exactly one outcome.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress

import pytest

from waystation.core.message import Message
from waystation.core.outcome import Outcome, Reason
from waystation.node import Context, Limits, Node, Queue, Wait
from waystation.testing import MemoryNetwork, Recorder, async_test, until
from waystation.testing.hostile import HostilePeer
from waystation.wire import flow
from waystation.wire.hello import Hello

NAMES = ("a", "b", "c")
MESSAGES = 150
"""From each sender."""

LIMITS = Limits(heartbeat=0, receiver=12_000, stall=0.5)


class Taker(HostilePeer):
    """The other end of a link: it takes messages, holds names, and stops reading, at random."""

    def __init__(self, got: list[bytes], *, greets: bool) -> None:
        super().__init__()
        self._got = got
        self._greets = greets

    def answered(self) -> None:
        if self._greets:
            self.send_control(flow.encode(Hello("taker", {"tcp": 1}, can=(flow.CAPABILITY,))))

    def received(self, messages: Sequence[Message]) -> None:
        self._got += (m.payload for m in messages if m.onward_route.addresses)


def _act(chance: random.Random, takers: list[Taker]) -> None:
    """Let something happen on the newest link."""
    taker = takers[-1]
    link = taker.link
    if link is None or taker.is_over:
        return
    act = chance.random()
    names = [f"0#{name}" for name in NAMES if chance.random() < 0.5]
    if act < 0.3:
        taker.send_control(flow.encode(flow.Hold(names)))
    elif act < 0.65:
        taker.send_control(flow.encode(flow.Go(names)))
    elif act < 0.8:
        link.pause_reading()
    elif act < 0.985:
        link.resume_reading()
    else:
        link.abort()


async def _send_all(node: Node, route: str, sender: str, chance: random.Random) -> None:
    """Send numbered messages to all names, one after the other, each by some policy."""
    for number in range(MESSAGES):
        name = chance.choice(NAMES)
        payload = b"%s %s %d" % (sender.encode(), name.encode(), number)
        policy = chance.choice((Wait(5), Wait(0.05), Queue(5)))
        await node.send(
            f"{route} => {name}", payload + bytes(chance.choice((0, 300))), policy=policy
        )
        if chance.random() < 0.1:
            await asyncio.sleep(chance.random() * 0.003)


def _check_order(got: list[bytes]) -> None:
    latest: dict[tuple[bytes, bytes], int] = defaultdict(lambda: -1)
    for payload in got:
        sender, name, number = payload.rstrip(b"\0").split()
        assert int(number) > latest[sender, name], f"{payload!r} after {latest[sender, name]}"
        latest[sender, name] = int(number)


@pytest.mark.rule("FL-3", "WK-5", "OB-1")
@pytest.mark.parametrize("seed", range(16))
def test_order_and_outcomes_hold_whatever_happens(seed: int) -> None:
    chance = random.Random(seed)
    got: list[bytes] = []
    takers: list[Taker] = []

    def accept() -> Taker:
        takers.append(Taker(got, greets=seed % 4 != 0))
        return takers[-1]

    @async_test
    async def scenario() -> None:
        network = MemoryNetwork(unsent=8)
        listener = await network.transport().listen("taker", accept)
        async with (
            Node("hub", transports=[network.transport()], limits=LIMITS) as hub,
            Node("client", transports=[network.transport()], limits=LIMITS) as client,
        ):

            def pass_on(message: Message, context: Context) -> object:  # noqa: ARG001
                return context.forward()

            hub.start_worker(("door",), pass_on, inbox=4, passing=True)
            recorders = [Recorder(hub), Recorder(client)]
            listening = await hub.listen("mem://hub")
            await client.connect(listening.url, name="hub")
            out = await hub.connect(f"mem://{listener.place}", name="out")
            sending = [
                asyncio.ensure_future(_send_all(node, route, sender, random.Random(seed + place)))
                for place, (node, route, sender) in enumerate(
                    (
                        (hub, "out", "local"),
                        (hub, "out", "other"),
                        (client, "hub => out", "client"),
                        (client, "hub => door => out", "through"),
                    )
                )
            ]
            while not all(task.done() for task in sending):
                _act(chance, takers)
                await asyncio.sleep(chance.random() * 0.01)
            await asyncio.gather(*sending)
            with suppress(AttributeError):
                takers[-1].link.resume_reading()  # type: ignore[union-attr]
            takers[-1].send_control(flow.encode(flow.Go([f"0#{name}" for name in NAMES])))
            await until(lambda: out.waiting() == 0)
            await until(lambda: hub.flow.used == 0)
        await listener.close()
        _check_order(got)
        for recorder in recorders:
            recorder.check_outcomes()
            final = {
                record.arrival.message.payload
                for record in recorder.messages
                if record.verdict.outcome is not Outcome.QUEUED
            }
            entered = {record.arrival.message.payload for record in recorder.messages}
            assert final == entered
        reasons = {record.verdict.reason for record in recorders[0].messages}
        assert reasons <= {None, Reason.QUEUE_FULL, Reason.TRANSPORT_DOWN, Reason.EXPIRED}

    scenario()
