"""Peers that have not set TCP_NODELAY: nothing of theirs waits for the system to acknowledge it.

Such a peer holds back what is small until what it sent before is acknowledged, and the system waits
for an answer to send along with that: for 40 ms, if none comes.
"""

from __future__ import annotations

import asyncio
import socket

import pytest
from mqtt5 import PubAckPacket, PublishPacket

from tests.gossip_router.clients import Client5, uuid
from tests.gossip_router.clients import serving as routing
from tests.mqtt.broker.test_broker import client, serving
from tests.net.test_connection import Noted
from tests.node.live import runs_on_every_loop
from waystation.core.address import Route
from waystation.core.message import Message
from waystation.groups import JGroupsPeer
from waystation.net import connection, sockets
from waystation.net.place import parse_place
from waystation.node import Node
from waystation.testing import DEADLINE, collect, until
from waystation.wire import jgroups5
from waystation.wire.ockam import PREFACE, encode_frame

Acknowledged = list[socket.socket]


@pytest.fixture
def acknowledged(monkeypatch: pytest.MonkeyPatch) -> Acknowledged:
    """The sockets on which something was acknowledged before there was an answer."""
    noted: Acknowledged = []

    def acknowledge(found: socket.socket) -> None:
        noted.append(found)
        sockets.acknowledge_at_once(found)

    monkeypatch.setattr(connection, "acknowledge_at_once", acknowledge)
    return noted


@runs_on_every_loop
async def test_an_mqtt_client_may_say_something_behind_an_acknowledgement(
    acknowledged: Acknowledged,
) -> None:
    async with serving() as broker, client(broker) as peer:
        await peer.publish("a")
        assert not acknowledged  # but answered
        peer.say(PubAckPacket(7))
        await until(lambda: acknowledged)
        assert acknowledged[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        acknowledged.clear()
        await peer.publish("a")
        assert not acknowledged
        peer.say(PublishPacket("a", b"of QoS 0, and so without an answer"))
        await until(lambda: acknowledged)


@runs_on_every_loop
async def test_a_member_of_a_group_may_say_two_things_to_another_one(
    acknowledged: Acknowledged,
) -> None:
    async with (
        routing() as (server, _),
        await Client5.open(server) as one,
        await Client5.open(server) as two,
    ):
        await one.join("g", 1)
        await two.join("g", 2)
        assert not acknowledged
        one.say(jgroups5.Message("g", uuid(2), uuid(1), b"x"))
        assert isinstance(await two.frame(), jgroups5.Message)
        await until(lambda: acknowledged)


@runs_on_every_loop
async def test_a_router_may_pass_on_two_things_to_a_member(acknowledged: Acknowledged) -> None:
    async with (
        routing() as (server, _),
        await Client5.open(server) as member,
        JGroupsPeer(server.place, "g", release=(5, 5, 7)) as peer,
    ):
        await member.join("g", 1)
        await peer.members()
        acknowledged.clear()
        member.say(jgroups5.Message("g", None, uuid(1), b"x"))
        await member.sync()  # so that the router had an answer for it
        await until(lambda: acknowledged)


@runs_on_every_loop
async def test_a_node_of_another_make_may_say_two_things(acknowledged: Acknowledged) -> None:
    async with Node("here") as here, Node("there") as there:
        got = collect(there, "sink")
        door = await there.listen("tcp://127.0.0.1:0")
        await here.connect(door.url, name="there", wait=DEADLINE)
        await until(lambda: there.sessions and there.sessions[0].hello is not None)
        acknowledged.clear()
        await here.send("there => sink", b"of a node of ours")
        await until(lambda: len(got) == 1)
        assert not acknowledged
        _, writer = await asyncio.open_connection(*parse_place(door.url.removeprefix("tcp://")))
        writer.write(PREFACE)
        message = Message(Route.parse("sink"), Route.parse("app"), b"of another make")
        writer.write(encode_frame(message))
        await until(lambda: len(got) == 2 and acknowledged)
        writer.close()


@runs_on_every_loop
async def test_a_frame_may_come_in_two_pieces(acknowledged: Acknowledged) -> None:
    loop = asyncio.get_running_loop()
    made: list[Noted] = []

    def make() -> Noted:
        made.append(Noted())
        return made[0]

    server = await loop.create_server(make, "127.0.0.1", 0)
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"whole\n")
    await until(lambda: made and made[0].data == b"whole\n")
    assert not acknowledged  # for our own peers hold nothing back
    writer.write(b"first and")
    await until(lambda: acknowledged)
    made[0].abort()
    writer.close()
    server.close()
    await server.wait_closed()
