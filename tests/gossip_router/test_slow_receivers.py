"""A receiver that does not read: it loses messages or its connection, and nobody else notices."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from tests.gossip_router.clients import Client2, Client5, serving, uuid
from tests.node.live import runs_on_every_loop
from waystation.gossip_router import RouterMetrics
from waystation.gossip_router.backpressure import SenderHold
from waystation.gossip_router.server import GossipServer
from waystation.net.place import parse_place
from waystation.testing import async_test, until
from waystation.wire import jgroups2, jgroups5

PAYLOAD = bytes(1000)


def message(generation: int, number: int) -> bytes:
    payload = number.to_bytes(4, "big") + PAYLOAD
    if generation == 5:
        return jgroups5.encode(jgroups5.Message("g", None, uuid(99), payload))
    return jgroups2.encode(jgroups2.Message("g", None, payload))


async def stuck(server: GossipServer, generation: int) -> Client2 | Client5:
    """A member whose socket nobody reads."""
    kind = Client5 if generation == 5 else Client2
    client = await kind.open(server)
    await client.join("g", 1)
    client.stop_reading()
    return client


@pytest.mark.rule("GR-10")
@pytest.mark.parametrize("generation", [2, 5])
@runs_on_every_loop
async def test_a_stuck_receiver_loses_messages_and_delays_nobody(generation: int) -> None:
    kind = Client5 if generation == 5 else Client2
    async with (
        serving(queue=100_000, slow_receiver="shed") as (server, _),
        await stuck(server, generation) as dead,
        await kind.open(server) as healthy,
        await kind.open(server) as sender,
    ):
        await healthy.join("g", 2)
        count, got = 20_000, 0
        sent_on = len(message(generation, 0)) - (4 if generation == 2 else 0)
        for start in range(0, count, 500):
            sender.send(b"".join(message(generation, start + i) for i in range(500)))
            got += len(await healthy.get(500 * sent_on))  # or the test's patience ends
        assert got == count * sent_on
        shed = server.counts.dropped["QUEUE_FULL"]
        assert server.counts.delivered + shed == 2 * count
        assert 0 < shed < count
        joined = ("g", uuid(1).key)
        (receiver,) = (c for c in server.clients() if joined in server.members_of(c))
        assert receiver.unsent <= 100_000
        assert set(server.counts.disconnected) == set()
        dead.reset()


@pytest.mark.rule("GR-10")
@runs_on_every_loop
async def test_a_receiver_that_reads_again_gets_whole_messages_again() -> None:
    async with (
        serving(queue=100_000, slow_receiver="shed") as (server, _),
        await stuck(server, 5) as slow,
        await Client5.open(server) as sender,
    ):
        assert isinstance(slow, Client5)
        for start in range(0, 20_000, 500):
            sender.send(b"".join(message(5, start + i) for i in range(500)))
            await sender.sync()
        slow.read_again()
        delivered = server.counts.delivered
        numbers = [await number_of(slow) for _ in range(delivered)]
        assert numbers == sorted(set(numbers))
        sender.send(message(5, 99_999))
        assert await number_of(slow) == 99_999


async def number_of(client: Client5) -> int:
    value = await client.frame()
    assert isinstance(value, jgroups5.Message)
    return int.from_bytes(value.payload[:4], "big")


@pytest.mark.rule("GR-10")
@pytest.mark.parametrize("generation", [2, 5])
@runs_on_every_loop
async def test_with_the_other_policy_a_stuck_receiver_is_given_up_and_suspected(
    generation: int,
) -> None:
    kind = Client5 if generation == 5 else Client2
    async with (
        serving(queue=100_000, slow_receiver="disconnect", stall=0.2) as (server, _),
        await stuck(server, generation),
        await kind.open(server) as watcher,
    ):
        await watcher.join("g", 2)
        suspected = False
        start = 0
        while not suspected:
            watcher.send(b"".join(message(generation, start + i) for i in range(200)))
            start += 200
            for answer in await watcher.sync():
                suspected |= isinstance(answer, jgroups2.Suspect | jgroups5.Suspect)
            assert start < 1_000_000
        assert server.counts.disconnected == {"stuck": 1}
        assert server.counts.members == {"join": 2, "suspect": 1}


@pytest.mark.rule("GR-10")
@async_test
async def test_a_slow_receiver_that_still_reads_is_not_given_up() -> None:
    async with (
        serving(queue=50_000, stall=0.3) as (server, _),
        await Client5.open(server) as sender,
    ):
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect(parse_place(server.place))
            slow.sendall(jgroups5.encode(jgroups5.Register("g", uuid(1))))
            await until(lambda: server.counts.members["join"] == 1)
            for start in range(0, 20_000, 200):
                sender.send(b"".join(message(5, start + i) for i in range(200)))
                await sender.sync()
                slow.recv(50_000)
                await asyncio.sleep(0.01)
            assert server.counts.dropped["QUEUE_FULL"] > 0
            assert server.counts.disconnected == {}


@pytest.mark.rule("GR-10")
@async_test
async def test_one_message_larger_than_the_queue_passes_when_nothing_waits() -> None:
    async with serving(queue=1000) as (server, _), await Client5.open(server) as client:
        await client.join("g", 1)
        large = jgroups5.Message("g", uuid(1), None, bytes(500_000))
        client.say(large)
        assert await client.frame() == large


@pytest.mark.rule("GR-10")
@runs_on_every_loop
async def test_who_asks_and_does_not_read_the_answers_waits_and_nobody_else_does() -> None:
    async with (
        serving(queue=200_000) as (server, _),
        await Client5.open(server) as many,
        await Client5.open(server) as greedy,
        await Client5.open(server) as other,
    ):
        many.say(*(jgroups5.Register("g", uuid(number), "m" * 200) for number in range(1, 500)))
        await many.sync()
        greedy.stop_reading()
        question = jgroups5.encode(jgroups5.GetMembers("g"))
        greedy.send(question * 400)  # the answers would be 40 MB, of which systems buffer some
        for _ in range(50):
            assert await other.sync() == []
        (client,) = (c for c in server.clients() if c.place.endswith(port_of(greedy)))
        await until(lambda: client.peer_is_slow)
        assert client.unsent < 1_000_000
        greedy.read_again()
        for _ in range(400):
            found = await greedy.frame()
            assert isinstance(found, jgroups5.Members)
            assert len(found.members) == 499


def port_of(client: Client5) -> str:
    return f":{client.writer.get_extra_info('sockname')[1]}"


@pytest.mark.rule("GR-10")
@async_test
async def test_who_does_not_even_take_notices_is_given_up() -> None:
    async with (
        serving(queue=20_000, slow_receiver="shed") as (server, _),
        await stuck(server, 5),
    ):
        for turn in range(1, 2000):
            async with await Client5.open(server) as doomed:
                doomed.say(
                    *(jgroups5.Register("g", uuid(1000 * turn + n), "m") for n in range(900)),
                    jgroups5.Message("g", uuid(1), None, bytes(200_000)),
                )
                await doomed.sync()
            if server.counts.disconnected:
                break
        assert server.counts.disconnected == {"stuck": 1}


@pytest.mark.rule("GR-10")
@runs_on_every_loop
async def test_a_receiver_that_catches_up_in_a_moment_loses_nothing() -> None:
    async with (
        serving(queue=1_000_000, patience=5.0) as (server, _),
        await Client5.open(server) as receiver,
        await Client5.open(server) as sender,
    ):
        await receiver.join("g", 1)
        sender.send(b"".join(message(5, number) for number in range(20_000)))
        for number in range(20_000):
            assert await number_of(receiver) == number
        assert server.counts.dropped == {}


@pytest.mark.rule("GR-10")
@runs_on_every_loop
async def test_nobody_waits_for_a_stuck_receiver_more_than_once_in_a_while() -> None:
    async with (
        serving(queue=100_000, slow_receiver="shed", patience=0.05) as (server, _),
        await stuck(server, 5) as dead,
        await Client5.open(server) as sender,
    ):
        await sender.join("g", 2)
        for start in range(0, 20_000, 100):
            sender.send(b"".join(message(5, start + i) for i in range(100)))
            assert len(await sender.sync()) == 100
        assert server.counts.waits == {"in vain": 1}
        dead.reset()


@pytest.mark.rule("GR-10")
@async_test
async def test_without_patience_nobody_ever_waits() -> None:
    async with (
        serving(queue=100_000, slow_receiver="shed", patience=0) as (server, _),
        await stuck(server, 5) as dead,
        await Client5.open(server) as sender,
    ):
        for start in range(0, 20_000, 100):
            sender.send(b"".join(message(5, start + i) for i in range(100)))
            await sender.sync()
        assert server.counts.waits == {}
        assert server.counts.dropped["QUEUE_FULL"] > 0
        dead.reset()


class Held:
    """A sender that counts."""

    def __init__(self) -> None:
        self.holds = 0

    def hold(self) -> None:
        self.holds += 1

    def release(self) -> None:
        self.holds -= 1


@pytest.mark.rule("GR-10")
@async_test
async def test_senders_are_held_back_once_and_then_more_rarely_each_time() -> None:
    loop = asyncio.get_running_loop()
    counts: Counter[str] = Counter()
    hold, sender = SenderHold(loop, 0.01, counts), Held()
    hold.hold_back(sender)
    hold.hold_back(sender)
    assert sender.holds == 1
    await until(lambda: sender.holds == 0)
    hold.hold_back(sender)  # the receiver has not caught up
    assert sender.holds == 0
    hold.caught_up()
    hold.hold_back(sender)  # it has, and nobody waits for it for a while
    assert sender.holds == 0
    await asyncio.sleep(0.25)
    hold.hold_back(sender)
    assert sender.holds == 1
    hold.caught_up()
    assert sender.holds == 0
    hold.hold_back(sender)  # without delay: it did catch up
    assert sender.holds == 1
    hold.release_all()
    assert sender.holds == 0
    assert counts == {"in vain": 1, "caught up": 1}


@async_test
async def test_a_flood_of_requests_takes_turns_with_the_others() -> None:
    async with (
        serving(members_per_connection=20_000) as (server, _),
        await Client2.open(server) as flood,
        await Client2.open(server) as other,
    ):
        flood.say(*(jgroups2.Connect("g", uuid(number)) for number in range(1, 5000)))
        turns = 0
        while server.counts.members["join"] < 4999:
            assert await other.sync() == []
            turns += 1
        assert turns > 5
        for _ in range(4999):
            assert await flood.answer() == jgroups2.ConnectAnswer(ok=True)


@pytest.mark.rule("FL-1")
@pytest.mark.rule("FL-3")
@pytest.mark.parametrize("policy", ["shed", "disconnect"])
@runs_on_every_loop
async def test_stuck_receivers_are_bounded_together_and_others_get_everything(policy: str) -> None:
    budget = 4 << 20
    async with (
        serving(queue=1 << 20, budget=budget, slow_receiver=policy, patience=0) as (server, _),
        await Client5.open(server) as sender,
        await Client5.open(server) as healthy,
        AsyncExitStack() as stack,
    ):
        for number in range(1, 31):
            client = await stack.enter_async_context(await Client5.open(server))
            await client.join("g", number)
            client.stop_reading()
        await healthy.join("g", 99)
        await sender.join("senders", 98)  # who is no member may not send as much
        large = [jgroups5.Message("g", None, uuid(0), bytes([n]) * 100_000) for n in range(100)]
        for start in range(0, 100, 5):
            sender.say(*large[start : start + 5])
            for expected in large[start : start + 5]:
                while isinstance(found := await healthy.frame(), jgroups5.Suspect):
                    pass  # of one that was given up
                assert found == expected
        assert server.counts.dropped["QUEUE_FULL"] > 0
        await until(lambda: sum(client.unsent for client in server.clients()) <= 5 * budget // 4)
        server.held.measure_all()
        assert server.held.shares.total.used <= 5 * budget // 4
        assert max(each.unsent for each in server.clients()) <= 1 << 20


@pytest.mark.rule("FL-1")
@runs_on_every_loop
async def test_the_receiver_that_holds_most_is_given_up_a_quarter_above_the_budget() -> None:
    async with (
        serving(queue=1 << 20, budget=500_000, slow_receiver="shed") as (server, _),
        await stuck(server, 5),
        await Client5.open(server) as other,
    ):
        await other.join("h", 2)
        for _ in range(100):  # an empty queue takes each, until the system takes none any more
            other.say(jgroups5.Message("g", uuid(1), None, bytes(700_000)))
            await other.sync()
            if server.counts.disconnected:
                break
            await asyncio.sleep(0.01)
        assert server.counts.disconnected == {"over budget": 1}
        own = jgroups5.Message("h", uuid(2), None, b"still here")
        other.say(own)
        while await other.frame() != own:
            pass


@pytest.mark.rule("FL-1")
@async_test
async def test_metrics_tell_for_whom_most_waits() -> None:
    async with (
        serving(slow_receiver="shed", patience=0) as (server, _),
        await stuck(server, 5) as dead,
        await Client5.open(server) as sender,
    ):
        await sender.join("senders", 98)
        for _ in range(100):
            sender.say(jgroups5.Message("g", uuid(1), None, bytes(200_000)))
            await sender.sync()
        text = RouterMetrics(server).metrics()
        assert f"waystation_router_budget_bytes {256 << 20}" in text
        (line,) = [
            line for line in text.splitlines() if line.startswith("waystation_router_receiver_q")
        ]
        port = dead.writer.get_extra_info("sockname")[1]
        assert f'receiver="127.0.0.1:{port}"' in line
        assert float(line.split()[-1]) > 1_000_000
        dead.reset()
