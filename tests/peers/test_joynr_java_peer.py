"""Real joynr applications in Java: at our hub as at their cluster controller, and over MQTT."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from tests.joynr.app import controller
from tests.peers.joynr_java_peer import JavaApp, build, java_app
from tests.peers.kept import needed, tool
from waystation.core.message import Message
from waystation.joynr import ClusterController, custom_headers
from waystation.mqtt.broker import Broker
from waystation.node import Context, Node
from waystation.testing import run_checked, settle, until
from waystation.transports.mqtt import Mqtt
from waystation.wire.joynr import Reply, Request, decode_payload, encode_payload

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]


def patiently(scenario: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """A test whose peers take their time."""

    @functools.wraps(scenario)
    def test() -> None:
        run_checked(scenario, seconds=240)

    return test


def port_of(place: str) -> str:
    return place.rpartition(":")[2]


async def everything_works(door: JavaApp, visitor: JavaApp) -> None:
    """A request, an error, a call without a reply, an attribute, a subscription, a broadcast."""
    await visitor.does("open bob", "opened welcome bob")
    assert "because" in await visitor.does("fail because", "error fail")
    visitor.say("knock bob")
    await door.hears("knocked bob")
    await visitor.does("follow", "following")
    await visitor.does("set 7", "set")
    await visitor.hears("moved 7")
    await visitor.does("get", "position 7")
    await visitor.does("hear eu + munich", "hearing")
    await door.does("ring la eu de munich", "ringing")
    await visitor.hears("rang la")


@pytest.mark.ci
@patiently
async def test_two_applications_at_our_hub() -> None:
    async with (
        controller() as (node, place, _),
        java_app("ws", port_of(place), "alice") as alice,
        java_app("ws", port_of(place), "bob") as bob,
    ):
        await alice.does("provide fleet local", "provided")
        await bob.does("find fleet local", "found")
        await everything_works(alice, bob)
        # Nobody else hears what is rung elsewhere, or when the subscription is over.
        await alice.does("ring do us de munich", "ringing")
        await bob.does("hush", "hushed")
        await alice.does("ring re eu de munich", "ringing")
        await bob.does("open again", "opened welcome again")
        assert [line for line in bob.lines if line.startswith("rang")] == ["rang la"]
        # Their connections are lost, and they come back with nothing but their addresses.
        await bob.does("hear eu *", "hearing")
        for session in list(node.sessions):
            session.abort_link()
        await until(lambda: not node.sessions)
        await until(lambda: len(node.sessions) == 2, seconds=60)
        await settle()
        await bob.does("open back", "opened welcome back")
        await alice.does("ring mi eu", "ringing")
        await bob.hears("rang mi")
        assert await node.discover("fleet", "way/Door")
        await alice.does("withdraw fleet", "withdrawn")
        while await node.discover("fleet", "way/Door"):
            await settle()


@patiently
async def test_an_application_and_our_own_workers() -> None:
    headers: list[dict[str, str]] = []

    async def door(message: Message, context: Context) -> None:
        request = decode_payload(message.payload)
        if isinstance(request, Request):
            headers.append(dict(custom_headers(message)))
            welcome = (f"our welcome {request.params[0]}",)
            reply = Reply(request_reply_id=request.request_reply_id, response=welcome)
            await context.reply(encode_payload(reply))

    async with (
        controller() as (node, place, _),
        java_app("ws", port_of(place), "alice") as alice,
    ):
        node.start_worker(("our-door",), door)
        serving = ClusterController(node)
        await serving.register("our-door", "yard", "way/Door", version=(1, 0))
        await alice.does("find yard local", "found")
        await alice.does("open alice", "opened our welcome alice")
        await alice.does("header tenant 7 alice", "opened our welcome alice")
        assert headers == [{}, {"tenant": "7"}]
        await alice.does("fixed yard our-door", "found")
        await alice.does("open fixed", "opened our welcome fixed")
        await alice.does("hear eu *", "hearing")
        publication = {"_typeName": "joynr.MulticastPublication", "response": ["ours"]}
        publication["multicastId"] = "our-door/bell/eu/de"
        await node.publish(
            "bell", json.dumps(publication).encode(), partition="eu/de", provider="our-door"
        )
        await alice.hears("rang ours")
        # The other way: a worker asks the application.
        await alice.does("provide fleet local", "provided")
        (provider,) = await serving.discover("fleet", "way/Door")
        request = Request(
            method_name="open",
            param_datatypes=("String",),
            params=("worker",),
            request_reply_id=node.new_id(),
        )
        answer = await node.request(provider, encode_payload(request))
        reply = decode_payload(answer.payload)
        assert isinstance(reply, Reply)
        assert reply.response == ("welcome worker",)


@asynccontextmanager
async def bridge(prefix: str = "") -> AsyncIterator[tuple[Node, str, str]]:
    """A hub between applications and a broker, with the global directory, and where both are."""
    broker = Broker()
    await broker.start("127.0.0.1:0")
    topic = f"{prefix}hubs/hub"
    mqtt = Mqtt(f"mqtt://{broker.place}", topic=topic, prefix=prefix, format="joynr")
    try:
        async with controller(transports=[mqtt], directory=True, topic=topic) as (node, place, _):
            await node.listen(f"mqtt://{topic}", outside=True)
            await node.listen("mqtt://discoverydirectory_channelid", outside=True)
            yield node, place, broker.place
    finally:
        await broker.drain()


@patiently
async def test_an_application_at_our_hub_and_one_at_the_broker() -> None:
    async with (
        bridge() as (_, place, at_broker),
        java_app("ws", port_of(place), "alice") as alice,
        java_app("mqtt", f"tcp://{at_broker}", "bob") as bob,
    ):
        await alice.does("provide fleet global", "provided")
        await bob.does("find fleet global", "found")
        await everything_works(alice, bob)
        await bob.does("provide yard global", "provided")
        await alice.does("find yard then", "found")
        await everything_works(bob, alice)


BACKEND = {
    "joynr.messaging.channelid": "backend-1",
    "joynr.messaging.mqtt.enable.sharedsubscriptions": "true",
    "joynr.messaging.mqtt.topicprefix.unicast": "fleet/",
    "joynr.messaging.mqtt.topicprefix.multicast": "fleet/",
    "joynr.participant.fleet.way.door.v1": "door-of-the-backend",
}
"""Of nodes that share a topic, of which each message reaches one; and prefixes of topics."""


@patiently
async def test_a_backend_of_two_nodes_that_share_their_subscription() -> None:
    async with (
        bridge("fleet/") as (_, place, at_broker),
        java_app("ws", port_of(place), "alice") as alice,
        java_app("mqtt", f"tcp://{at_broker}", "bob", BACKEND) as bob,
        java_app("mqtt", f"tcp://{at_broker}", "carol", BACKEND) as carol,
    ):
        for node in (bob, carol):
            await node.does("provide fleet global", "provided")
        await alice.does("find fleet global", "found")
        for number in range(3):
            await alice.does(f"open {number}", f"opened welcome {number}")
        for number in range(6):
            alice.say(f"knock {number}")
        every = sorted(f"knocked {number}" for number in range(6))
        both = (bob.lines, carol.lines)
        heard = functools.partial(knocks, *both)
        await until(lambda: len(heard()) == len(every), seconds=60)
        assert heard() == every
        assert all(any(line.startswith("knocked") for line in lines) for lines in both)
        # What a node asks is answered to that node alone.
        await alice.does("provide yard global", "provided")
        for node in (bob, carol):
            await node.does("find yard global", "found")
            await everything_works(alice, node)
        # Broadcasts go below the prefix, to every node.
        await alice.does("hear eu *", "hearing")
        await carol.does("ring do eu de", "ringing")
        await alice.hears("rang do")


def knocks(*lines: list[str]) -> list[str]:
    """Who knocked at any of several applications."""
    return sorted(line for each in lines for line in each if line.startswith("knocked"))


@pytest.mark.ci
def test_our_node_at_a_cluster_controller_of_joynr_s_own() -> None:
    """In a network of its own: joynr's server listens on all addresses of its machine."""
    needed("the Java peer `joynr`", build)
    unshare = needed("the Java peer `joynr`", lambda: tool("unshare"))
    inside = f"ip link set lo up && exec {sys.executable} -m tests.peers.joynr_leaf_child"
    done = subprocess.run(
        [unshare, "--map-root-user", "--net", "sh", "-c", inside],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
