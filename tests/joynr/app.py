"""A joynr application as far as the wire goes: what Java's sends and expects, byte for byte."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect

from waystation.joynr import ClusterController, JoynrDirectory
from waystation.node import Limits, Node
from waystation.testing import Recorder, until
from waystation.transports.joynr import JoynrLimits, JoynrWebSocket
from waystation.transports.tcp import Tcp
from waystation.wire import smrf
from waystation.wire.joynr_services import (
    DISCOVERY_PROVIDER,
    ROUTING_PROVIDER,
    DiscoveryEntry,
    ProviderQos,
    ProviderScope,
    Version,
    encode_opening,
)

_numbers = itertools.count()


def frame(
    recipient: str, sender: str, kind: str, body: Any, *, ttl: int = 60_000, **custom: str
) -> bytes:
    """One frame, as an application writes it."""
    headers = {"t": kind, "id": f"message-{next(_numbers)}"}
    headers |= {f"c-{name}": value for name, value in custom.items()}
    ends = int(time.time() * 1000) + ttl
    return smrf.encode(
        smrf.SmrfMessage(recipient, sender, ends, headers, json.dumps(body).encode())
    )


def request(method: str, *params: Any, id: str = "r1") -> dict[str, Any]:
    return {
        "_typeName": "joynr.Request",
        "methodName": method,
        "paramDatatypes": [],
        "params": list(params),
        "requestReplyId": id,
    }


def entry(
    participant: str, domain: str = "fleet", name: str = "way/Door", *, everywhere: bool = False
) -> dict[str, Any]:
    """A provider, as an application registers it."""
    scope = ProviderScope.GLOBAL if everywhere else ProviderScope.LOCAL
    made = DiscoveryEntry(
        domain=domain,
        interface_name=name,
        participant_id=participant,
        provider_version=Version(major_version=2, minor_version=3),
        qos=ProviderQos(priority=4, scope=scope),
        expiry_date_ms=int(time.time() * 1000) + 600_000,
    )
    found: dict[str, Any] = json.loads(msgspec.json.encode(made))
    return found


class App:
    """An application that is connected."""

    def __init__(self, websocket: ClientConnection, id: str) -> None:
        self.websocket = websocket
        self.id = id
        self.raw: list[bytes] = []
        self.frames: list[smrf.SmrfMessage] = []
        self._replies: dict[str, dict[str, Any]] = {}
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        async for data in self.websocket:
            assert isinstance(data, bytes)
            found = smrf.decode(data)
            body = json.loads(found.body)
            if found.sender in (ROUTING_PROVIDER, DISCOVERY_PROVIDER):
                assert found.headers["t"] == "rp"
                assert found.headers["c-z4"] == body["requestReplyId"]
                self._replies[body["requestReplyId"]] = body
            else:
                self.raw.append(data)
                self.frames.append(found)

    async def send(self, data: bytes) -> None:
        await self.websocket.send(data)

    async def call(self, provider: str, method: str, *params: Any) -> Any:
        """Call a provider of the cluster controller; what it returns, or its error."""
        id = f"call-{next(_numbers)}"
        body = request(method, *params, id=id)
        await self.send(frame(provider, f"{self.id}-proxy", "rq", body, z4=id))
        await until(lambda: id in self._replies)
        reply = self._replies.pop(id)
        if "error" in reply:
            return reply["error"]
        return reply["response"][0] if reply["response"] else None

    async def route(self, method: str, *params: Any) -> Any:
        return await self.call(ROUTING_PROVIDER, method, *params)

    async def discovery(self, method: str, *params: Any) -> Any:
        return await self.call(DISCOVERY_PROVIDER, method, *params)

    async def announce(self, participant: str, *, visible: bool = False) -> None:
        address = json.loads(encode_opening(self.id))
        assert await self.route("addNextHop", participant, address, visible) is None

    async def provide(self, participant: str, **options: Any) -> None:
        """As a provider of Java's does: a way, then an entry."""
        await self.announce(participant, visible=options.get("everywhere", False))
        added = await self.discovery("add", entry(participant, **options), True, [])
        assert added is None, added

    async def lookup(self, domain: str = "fleet", scope: str = "LOCAL_ONLY") -> list[Any]:
        qos = {"_typeName": "joynr.types.DiscoveryQos", "discoveryScope": scope}
        found: list[Any] = await self.discovery("lookup", [domain], "way/Door", qos, [])
        return found

    async def close(self) -> None:
        await self.websocket.close()
        await self._reading


@asynccontextmanager
async def app(place: str, id: str) -> AsyncIterator[App]:
    """An application at a cluster controller."""
    async with connect(f"ws://{place}", compression=None, ping_interval=None) as websocket:
        await websocket.send(encode_opening(id))
        made = App(websocket, id)
        try:
            yield made
        finally:
            await made.close()


@asynccontextmanager
async def controller(
    name: str = "hub", limits: JoynrLimits | None = None, **options: Any
) -> AsyncIterator[tuple[Node, str, Recorder]]:
    """A hub that is a cluster controller, and where it listens."""
    transport = JoynrWebSocket(channel=f"hubs/{name}", limits=limits)
    extra = options.pop("transports", [Tcp()])
    topic = options.pop("topic", None)
    hosts = options.pop("directory", False)
    node = Node(
        name, hub=True, transports=[*extra, transport], limits=Limits(heartbeat=0.0), **options
    )
    recorder = Recorder(node)
    async with node:
        directory = JoynrDirectory(node)
        if hosts:
            directory.start()
        serving = ClusterController(node, topic=topic)
        serving.start()
        listening = await node.listen("joynr+ws://127.0.0.1:0")
        assert listening.url == f"joynr+ws://{listening.place}"
        try:
            yield node, listening.place, recorder
        finally:
            await serving.stop()
            await directory.stop()
