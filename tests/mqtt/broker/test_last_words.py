"""A client that said goodbye before a write to it failed has said goodbye."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import cast

from mqtt5 import ConnectPacket, DisconnectPacket, PublishPacket, Will

from tests.mqtt.broker.test_broker import client, serving
from waystation.mqtt.broker.connection import ClientConnection
from waystation.mqtt.packets import PONG
from waystation.net.place import parse_place
from waystation.testing import DEADLINE, async_test, until


def connected(place: str, packet: bytes) -> socket.socket:
    """A client that the broker let in, as a plain socket."""
    made = socket.create_connection(parse_place(place), DEADLINE)
    made.sendall(packet)
    assert made.recv(1) == b"\x20"
    return made


@async_test
async def test_no_will_of_a_client_that_said_goodbye_and_was_reset() -> None:
    async with serving() as broker, client(broker, "watcher") as watcher:
        await watcher.subscribe("will", "news")
        with_will = ConnectPacket("leaver", clean_start=True, will=Will("will", payload=b"I died"))
        leaver = await asyncio.to_thread(connected, broker.place, with_will.write())
        connections = cast("list[ClientConnection]", list(broker._server.connections))
        here = next(c for c in connections if c.session.key.client_id == "leaver")
        leaver.sendall(PublishPacket("news", b"last").write() + DisconnectPacket().write())
        leaver.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        leaver.close()  # with CONNACK half read
        here.say(PONG)
        broker.flush()  # which fails, before anything is read
        assert (await watcher.hear()).payload == b"last"
        await until(lambda: len(broker._server.connections) == 1)
        async with client(broker, "other") as other:
            other.say(PublishPacket("news", b"after"))
            assert (await watcher.hear()).payload == b"after"  # and no will came between
