"""A node as an application of a cluster controller: here one of ours stands for joynr's own."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from tests.joynr.app import app, controller, frame, request
from waystation.core.clock import SteadyClock, use_clock
from waystation.core.message import Message
from waystation.core.outcome import Reason
from waystation.errors import LocalError
from waystation.node import Context, Limits, Node
from waystation.testing import DEADLINE, async_test, collect, until
from waystation.transports.joynr import JoynrWebSocket, controller_time
from waystation.transports.joynr.controller_time import ControllerTime, answer_to
from waystation.transports.joynr.directory import directory_reply, discovery_call
from waystation.wire.clock import ClockSample, encode
from waystation.wire.joynr import RemoteException, Reply

REPLY = {"_typeName": "joynr.Reply", "requestReplyId": "r1", "response": ["welcome"]}
QUIET = Limits(heartbeat=0.0)
HOUR = 3600


async def door(message: Message, context: Context) -> None:
    del message
    await context.reply(json.dumps(REPLY).encode())


@async_test
async def test_a_leaf_and_applications_reach_each_other() -> None:
    async with (
        controller() as (_, place, _),
        app(place, "alice") as alice,
        Node("leaf", transports=[JoynrWebSocket()], limits=QUIET) as leaf,
    ):
        parent = await leaf.connect(f"joynr+ws://{place}", parent=True)
        leaf.start_worker(("door-1",), door)
        await leaf.ready()
        await alice.send(frame("door-1", "alice-1", "rq", request("open"), z4="r1"))
        await until(lambda: alice.frames)
        assert json.loads(alice.frames[0].body) == REPLY
        await leaf.register("door-1", "fleet", "way/Door")
        assert [found["participantId"] for found in await alice.lookup()] == ["door-1"]
        await leaf.unregister("door-1")
        assert await alice.lookup() == []
        await alice.provide("lamp-1", domain="yard")
        (found,) = await leaf.discover("yard", "way/Door")
        assert found.participant == "lamp-1"
        async with leaf.subscribe("lamp-1", "bell", "*") as bell:
            id = "lamp-1/bell/eu"
            body = {"_typeName": "joynr.MulticastPublication", "multicastId": id}
            await alice.send(frame(id, "lamp-1", "m", body))
            async for rang in bell:
                assert json.loads(rang.payload) == body
                break
        for _ in range(2):
            alice.frames.clear()
            question = leaf.request("lamp-1", json.dumps(request("light")).encode())
            asking = asyncio.ensure_future(question)
            await until(lambda: alice.frames)
            back = alice.frames[0].sender
            await alice.send(frame(back, "lamp-1", "rp", REPLY, z4="r1"))
            assert json.loads((await asking).payload) == REPLY
        parent.abort_link()
        await until(lambda: parent.openings == 2)
        await leaf.ready()
        alice.frames.clear()
        await alice.send(frame("door-1", "alice-1", "rq", request("open"), z4="r1"))
        await until(lambda: alice.frames)
        await leaf.stop_worker("door-1")
        await until(lambda: alice.frames)


@pytest.mark.rule("TM-2")
@pytest.mark.parametrize("ahead", [-HOUR, HOUR])
@async_test
async def test_a_message_lives_as_long_at_a_leaf_whose_clock_is_off(ahead: int) -> None:
    question = json.dumps(request("open")).encode()

    async def far(hub: Node, place: str) -> None:
        use_clock(SteadyClock(lambda: time.time_ns() + ahead * 10**9, time.monotonic_ns))
        limits = Limits(heartbeat=0.05)
        leaf = Node("leaf", transports=[JoynrWebSocket()], limits=limits)
        async with leaf, app(place, "alice") as alice:
            await leaf.connect(f"joynr+ws://{place}", parent=True)
            leaf.start_worker(("door-1",), door)
            await leaf.ready()
            assert (await leaf.request("gate", question, timeout=DEADLINE)).payload
            assert (await hub.request("door-1", question, timeout=DEADLINE)).payload
            await alice.send(frame("door-1", "alice-1", "rq", request("open"), z4="r1"))
            await until(lambda: alice.frames)
            got = collect(leaf, "bell")
            await leaf.ready()
            await leaf.register("bell", "fleet", "way/Door", ttl=60)
            (found,) = await alice.lookup()
            assert 0 < found["expiryDateMs"] - hub.now() <= 61_000
            one_way = {"_typeName": "joynr.OneWayRequest", "methodName": "ring"}
            await alice.send(frame("bell", "alice-1", "o", one_way))
            await until(lambda: got)
            assert 0 < got[0].expiry - leaf.now() <= 61_000

    async with controller() as (hub, place, _):
        hub.start_worker(("gate",), door)
        await asyncio.create_task(far(hub, place))


def test_only_a_controller_that_tells_the_time_is_asked() -> None:
    silent, telling = ControllerTime(), ControllerTime()
    for headers in ([], ["soon"], ["9" * 20], ["\u0663"]):
        silent.told(headers)
    assert silent.question() == b""
    silent.answered(encode(ClockSample(0, 1, 1)))
    assert (silent.ahead, silent.here(5), silent.there(5)) == (0, 5, 5)
    now = controller_time.now()
    telling.told([str(now + HOUR * 10**6)])
    assert round(telling.ahead, -3) == HOUR * 1000
    assert telling.there(telling.here(now // 1000)) == now // 1000
    asked = telling.question()
    assert answer_to(asked)
    assert telling.question() == b""  # since it was asked a moment ago
    telling.answered(b"7")
    telling.answered(encode(ClockSample(1, 2, 2)))  # to a question that was not asked
    assert telling.ahead
    telling.answered(answer_to(asked))  # its clock was set since the handshake
    assert telling.ahead == 0
    assert answer_to(answer_to(asked)) == b""


@async_test
async def test_what_cannot_be_said_there_is_refused() -> None:
    async with (
        controller() as (_, place, _),
        Node("leaf", transports=[JoynrWebSocket()], limits=QUIET) as leaf,
    ):
        parent = await leaf.connect(f"joynr+ws://{place}", parent=True)
        assert (await leaf.send(f"{parent.name} => x", b"plain")).reason is Reason.MALFORMED
        large = json.dumps(request("open", "x" * 4_000_000)).encode()
        with pytest.raises(Exception, match="TOO_LARGE"):
            await leaf.request(f"{parent.name} => x", large)
        received = collect(leaf, "door-1")
        await leaf.ready()
        async with app(place, "alice") as alice:
            for number in range(200):
                body = {"_typeName": "joynr.OneWayRequest", "methodName": f"{number}"}
                await alice.send(frame("door-1", f"alice-{number}", "o", body))
            await until(lambda: len(received) == 200)


def test_questions_for_a_directory_become_calls() -> None:
    method, parameters = discovery_call(
        b'{"ask":"lookup","domain":"fleet","name":"way/Door","scope":"LOCAL_AND_GLOBAL"}'
    )
    assert method == "lookup"
    assert parameters[0] == ("String[]", ["fleet"])
    provider = {"participant": "door-1", "domain": "fleet", "name": "way/Door", "expiry": 5}
    asked = {"ask": "register", "provider": provider, "everywhere": True}
    method, parameters = discovery_call(json.dumps(asked).encode())
    assert method == "add"
    assert parameters[0][1].qos.scope == "GLOBAL"
    assert parameters[0][1].expiry_date_ms == 5
    with pytest.raises(LocalError, match="no question"):
        discovery_call(b"no JSON")
    failed = Reply(request_reply_id="1", error=RemoteException.of("no"))
    assert directory_reply(failed) == b'{"providers":[],"error":"no"}'
