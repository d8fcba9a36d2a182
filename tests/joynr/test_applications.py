"""Applications at a hub: what they say to the routing provider, and what reaches them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.joynr.app import app, controller, frame, request
from waystation.core.message import Message
from waystation.core.outcome import Reason
from waystation.core.record import SessionKind
from waystation.errors import LocalError
from waystation.joynr import ClusterController
from waystation.node import Context, Limits, Node
from waystation.testing import (
    LISTENER_CHECKS,
    ListenerCase,
    StartedListener,
    async_test,
    check_listener,
    collect,
    run_checked,
    settle,
    until,
)
from waystation.transports.joynr import JoynrLimits, JoynrWebSocket
from waystation.transports.joynr.application import Announced, Applications
from waystation.transports.tcp import Tcp
from waystation.wire import smrf
from waystation.wire.joynr_frames import custom_headers
from waystation.wire.joynr_services import ROUTING_PROVIDER, encode_opening

HASTY = JoynrLimits(greeting=1.0, finish=1.0, linger=0.5)
UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
REPLY = {"_typeName": "joynr.Reply", "requestReplyId": "r1", "response": ["welcome"]}


def publication(id: str) -> dict[str, object]:
    return {"_typeName": "joynr.MulticastPublication", "multicastId": id, "response": ["la"]}


@pytest.mark.rule("AD-4")
@async_test
async def test_frames_between_applications_are_untouched() -> None:
    async with (
        controller() as (_, place, recorder),
        app(place, "alice") as alice,
        app(place, "bob") as bob,
    ):
        await alice.announce("door-1")
        asked = frame("door-1", "bob-1", "rq", request("open", "bob"), z4="r1", tenant="7")
        await bob.send(asked)
        await until(lambda: alice.raw)
        assert alice.raw == [asked]
        reply = frame("bob-1", "door-1", "rp", REPLY, z4="r1")
        await alice.send(reply)
        await until(lambda: bob.raw)
        assert bob.raw == [reply]
    opened = [record for record in recorder.sessions if record.kind is SessionKind.OPENED]
    assert {record.peer for record in opened} == {"alice", "bob"}
    assert {record.transport for record in opened} == {"joynr"}


@async_test
async def test_what_the_routing_provider_tells() -> None:
    async with controller() as (node, place, _), app(place, "alice") as alice:
        for method in ("getGlobalAddress", "getReplyToAddress"):
            address = json.loads(await alice.route(method))
            assert address["_typeName"] == "joynr.system.RoutingTypes.MqttAddress"
            assert address["topic"] == "hubs/hub"
        assert await alice.route("resolveNextHop", "door-1") is False
        collect(node, "door-1")
        assert await alice.route("resolveNextHop", "door-1") is True
        assert await alice.route("resolveNextHop", "0#tcp-1 => 0#door-1") is True
        assert await alice.route("resolveNextHop", "alice-proxy") is True
        unknown = await alice.route("becomeRich")
        assert unknown["_typeName"] == "joynr.exceptions.MethodInvocationException"
        wrong = await alice.route("addNextHop", 7)
        assert "parameter 1" in wrong["detailMessage"]
        pattern = await alice.route("addMulticastReceiver", "a/b/*/c", "alice-1", "a")
        assert pattern["_typeName"] == "joynr.exceptions.ProviderRuntimeException"
        await alice.send(frame(ROUTING_PROVIDER, "alice-1", "o", {"_typeName": "x"}))
        assert await alice.route("removeNextHop", "nobody") is None


@pytest.mark.rule("RE-12")
@async_test
async def test_names_come_and_go_with_calls_and_with_the_connection() -> None:
    async with controller() as (node, place, _):
        async with app(place, "alice") as alice:
            await alice.announce("door-1", visible=True)
            entry = node.router.table.lookup("door-1", node.now())
            assert entry is not None
            assert entry.visible
            await alice.announce("door-1", visible=False)
            entry = node.router.table.lookup("door-1", node.now())
            assert entry is not None
            assert not entry.visible
            await alice.route("removeNextHop", "door-1")
            assert node.router.table.lookup("door-1", node.now()) is None
            await alice.announce("door-2")
        await until(lambda: node.router.table.lookup("door-2", node.now()) is None)


@pytest.mark.rule("MC-9")
@async_test
async def test_a_broadcast_goes_once_to_each_application_that_has_a_matching_pattern() -> None:
    async with (
        controller() as (node, place, _),
        app(place, "alice") as alice,
        app(place, "bob") as bob,
        app(place, "carol") as carol,
    ):
        await alice.announce("door-1")
        for receiver, pattern in (
            (bob, "door-1/bell/eu/+/munich"),
            (bob, "door-1/bell/*"),
            (carol, "door-1/bell/us/*"),
        ):
            await receiver.announce(f"{receiver.id}-1")
            await receiver.route("addMulticastReceiver", pattern, f"{receiver.id}-1", "door-1")
        heard: list[Message] = []
        async with node.subscribe("door-1", "bell", "*", callback=heard.append):
            id = "door-1/bell/eu/de/munich"
            rang = frame(id, "door-1", "m", publication(id))
            await alice.send(rang)
            await until(lambda: bob.raw and heard)
            assert json.loads(heard[0].payload) == publication(id)
        await bob.route("removeMulticastReceiver", "door-1/bell/*", "bob-1", "door-1")
        await bob.route("removeMulticastReceiver", "door-1/bell/eu/+/munich", "bob-1", "door-1")
        await alice.send(frame(id, "door-1", "m", publication(id)))
        await alice.route("getGlobalAddress")
        assert bob.raw == [rang]
        assert not carol.raw


@async_test
async def test_an_application_that_connects_again_is_found_where_it_was() -> None:
    async with controller() as (node, place, _), app(place, "bob") as bob:
        async with app(place, "alice") as alice:
            await alice.announce("door-1", visible=True)
            await alice.announce("alice-1")
            await alice.route("addMulticastReceiver", "bob-1/bell/*", "alice-1", "bob-1")
        await until(lambda: not node.router.table.contains("door-1", node.now()))
        async with app(place, "alice") as alice:  # and says nothing but its address, as Java does
            await until(lambda: node.router.table.contains("door-1", node.now()))
            await bob.send(frame("door-1", "bob-1", "o", {"_typeName": "joynr.OneWayRequest"}))
            await bob.send(frame("bob-1/bell", "bob-1", "m", publication("bob-1/bell")))
            await until(lambda: len(alice.raw) == 2)


@async_test
async def test_a_newer_connection_of_an_application_takes_over() -> None:
    async with (
        controller() as (node, place, _),
        app(place, "bob") as bob,
        app(place, "alice") as old,
        app(place, "alice") as new,
    ):
        await old.announce("door-1")
        await new.announce("door-1")
        await bob.send(frame("door-1", "bob-1", "o", {"_typeName": "joynr.OneWayRequest"}))
        await until(lambda: new.raw)
        assert not old.raw
        assert len(node.sessions) == 3


@pytest.mark.rule("CL-4")
@async_test
async def test_who_holds_a_name_that_another_application_claims_keeps_it_while_it_lives() -> None:
    async with (
        controller() as (_, place, recorder),
        app(place, "bob") as bob,
        app(place, "alice") as alice,
    ):
        await alice.announce("door-1")
        async with app(place, "mallory") as mallory:
            await mallory.announce("door-1")
            await until(lambda: any(claim.kind.value == "contested" for claim in recorder.claims))
            await bob.send(frame("door-1", "bob-1", "o", {"_typeName": "joynr.OneWayRequest"}))
            await until(lambda: alice.raw)
            assert not mallory.raw


@async_test
async def test_a_worker_is_asked_and_asks_with_the_headers_of_the_application() -> None:
    seen: list[dict[str, str]] = []

    async def door(message: Message, context: Context) -> None:
        seen.append(dict(custom_headers(message)))
        await context.reply(json.dumps(REPLY).encode())

    async with controller() as (node, place, _), app(place, "alice") as alice:
        node.start_worker(("door-1",), door)
        asked = frame("door-1", "alice-1", "rq", request("open"), z4="r1", tenant="7", ttl=50_000)
        await alice.send(asked)
        await until(lambda: alice.frames)
        reply = alice.frames[0]
        assert (reply.recipient, reply.sender) == ("alice-1", "door-1")
        assert reply.headers["c-tenant"] == "7"
        assert reply.headers["c-z4"] == "r1"
        assert reply.ttl == smrf.decode(asked).ttl
        assert seen == [{"tenant": "7"}]
        await alice.announce("lamp-1")
        question = asyncio.ensure_future(
            node.request("lamp-1", json.dumps(request("light")).encode())
        )
        await until(lambda: len(alice.frames) == 2)
        asking = alice.frames[1]
        await alice.send(frame(asking.sender, "lamp-1", "rp", REPLY, z4="r1"))
        assert json.loads((await question).payload) == REPLY


@async_test
async def test_applications_at_two_hubs_and_a_leaf_reach_each_other() -> None:
    async with (
        Node("top", hub=True, transports=[Tcp()], limits=Limits(heartbeat=0.0)) as top,
        controller("left") as (left, at_left, _),
        controller("right") as (right, at_right, _),
        Node("leaf", transports=[Tcp()], limits=Limits(heartbeat=0.0)) as leaf,
    ):
        above = (await top.listen("tcp://127.0.0.1:0")).url
        for hub in (left, right):
            await hub.connect(above, parent=True)
        at_hub = (await left.listen("tcp://127.0.0.1:0")).url
        await leaf.connect(at_hub, parent=True)
        received = collect(leaf, "lamp-1")
        await leaf.ready()
        async with app(at_left, "alice") as alice, app(at_right, "bob") as bob:
            await alice.announce("door-1")
            assert await bob.route("resolveNextHop", "door-1") is True
            await bob.send(frame("door-1", "bob-1", "rq", request("open", "bob"), z4="r1"))
            await until(lambda: alice.frames)
            assert json.loads(alice.frames[0].body) == request("open", "bob")
            back = alice.frames[0].sender
            await alice.send(frame(back, "door-1", "rp", REPLY, z4="r1"))
            await until(lambda: bob.frames)
            assert (bob.frames[0].recipient, bob.frames[0].headers["c-z4"]) == ("bob-1", "r1")
            await bob.send(frame("lamp-1", "bob-1", "o", {"_typeName": "joynr.OneWayRequest"}))
            await until(lambda: received)


@async_test
async def test_a_participant_whose_name_none_of_ours_could_have() -> None:
    async with (
        controller() as (_, place, _),
        app(place, "alice") as alice,
        app(place, "bob") as bob,
    ):
        await alice.announce("0xdoor 1")
        asked = frame("0xdoor 1", "0xbob", "rq", request("open"), z4="r1")
        await bob.send(asked)
        await until(lambda: alice.raw)
        assert alice.raw == [asked]


# What may go wrong


@asynccontextmanager
async def _listener() -> AsyncIterator[StartedListener]:
    async with controller(limits=HASTY) as (node, place, _):
        yield StartedListener(place, lambda: not node.sessions)
        await node.close(drain=0)


async def _serve(place: str) -> None:
    async with app(place, "honest") as honest:
        assert "hubs/hub" in await honest.route("getGlobalAddress")


def _websocket_frame(payload: bytes) -> bytes:
    """A binary message, masked with zeros."""
    return b"\x82\xfe" + len(payload).to_bytes(2, "big") + bytes(4) + payload


HOSTILE = ListenerCase(
    start=_listener,
    serve=_serve,
    opening=UPGRADE,
    frame=_websocket_frame(encode_opening("hostile").replace(b"}", b" " * 80 + b"}")),
    reply=b"\r\n\r\n",
    begun=UPGRADE + b"\x82\xff" + (15_000_000).to_bytes(8, "big") + bytes(4),
    seconds=5.0,
)


@pytest.mark.rule("FL-2")
@pytest.mark.parametrize("check", LISTENER_CHECKS)
def test_the_listener_survives_hostile_peers(check: str) -> None:
    async def scenario() -> None:
        await check_listener(HOSTILE, checks={check: LISTENER_CHECKS[check]})

    run_checked(scenario)


async def _say_and_listen(websocket: ClientConnection, said: Sequence[bytes | str]) -> None:
    for one in said:
        await websocket.send(one)
    await websocket.recv()


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ([b"no opening"], Reason.MALFORMED),
        ([encode_opening("x" * 2_000)], Reason.TOO_LARGE),
        ([encode_opening("x"), b"no frame"], Reason.MALFORMED),
        ([encode_opening("x"), frame("a", "b", "zz", {})], Reason.MALFORMED),
        ([encode_opening("x"), frame(ROUTING_PROVIDER, "b", "rq", {})], Reason.MALFORMED),
        ([encode_opening("x"), "text"], Reason.MALFORMED),
        ([encode_opening("x"), bytes(5_000_000)], Reason.TOO_LARGE),
    ],
)
def test_what_is_wrong_ends_the_connection_and_is_on_record(
    said: list[bytes | str], reason: Reason
) -> None:
    async def scenario() -> None:
        async with controller() as (node, place, recorder):
            websocket = await connect(f"ws://{place}", compression=None)
            with pytest.raises(ConnectionClosed):
                await _say_and_listen(websocket, said)
            await websocket.wait_closed()
            await until(lambda: recorder.sessions and not node.sessions)
            assert recorder.sessions[-1].reason is reason

    run_checked(scenario)


@async_test
async def test_who_never_says_its_address_is_let_go() -> None:
    async with controller(limits=HASTY) as (node, place, recorder):
        async with connect(f"ws://{place}", compression=None) as websocket:
            with pytest.raises(ConnectionClosed):
                await websocket.recv()
        await until(lambda: not node.sessions)
        assert "said its address" in recorder.sessions[-1].detail


@pytest.mark.rule("FL-5")
@async_test
async def test_an_application_that_calls_and_never_reads_is_given_up() -> None:
    async with controller(limits=HASTY) as (node, place, recorder):
        async with connect(f"ws://{place}", compression=None, max_queue=1) as websocket:
            await websocket.send(encode_opening("hostile"))
            websocket.transport.pause_reading()
            call = frame(ROUTING_PROVIDER, "hostile-1", "rq", request("getGlobalAddress"), z4="r1")
            with pytest.raises(ConnectionClosed):
                await _say_and_listen(websocket, [call] * 200_000)
            websocket.transport.abort()
        await until(lambda: not node.sessions)
        assert recorder.sessions[-1].reason is Reason.QUEUE_FULL


@async_test
async def test_many_questions_at_once_get_an_answer_each() -> None:
    async with controller() as (_, place, _), app(place, "alice") as alice:
        answers = await asyncio.gather(
            *(alice.route("resolveNextHop", f"nobody-{number}") for number in range(1_500))
        )
        assert len(answers) == 1_500


@async_test
async def test_what_is_no_word_of_joynr_s_is_not_sent_to_an_application() -> None:
    async with controller() as (node, place, _), app(place, "alice") as alice:
        await alice.announce("door-1")
        assert (await node.send("door-1", b"plain")).reason is Reason.MALFORMED
        large = json.dumps(request("open", "x" * 4_000_000)).encode()
        with pytest.raises(Exception, match="TOO_LARGE"):
            await node.request("door-1", large)
        assert (await node.send("door-1", json.dumps(REPLY).encode())).reason is Reason.NO_ROUTE
        await settle()
        assert not alice.raw


def test_what_applications_announced_is_not_remembered_for_ever() -> None:
    known = Applications(limit=10)
    for number in range(20):
        first = known.came(f"app-{number}")
        first.names["door"] = True
        second = known.came(f"app-{number}")
        known.left(f"app-{number}", first)
        known.left(f"app-{number}", second)
    assert not known.came("app-0").names
    assert known.came("app-19").names == {"door": True}
    assert len(Announced()) == 1


@async_test
async def test_only_a_hub_takes_applications() -> None:
    async with Node("plain", transports=[JoynrWebSocket()]) as node:
        with pytest.raises(LocalError, match="hub"):
            ClusterController(node).start()
