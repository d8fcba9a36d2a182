"""Every transport that a session may go over, each with what it needs beside the two nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from msgspec import Struct

from tests.groups.crowd import routers
from tests.transports.mqtt_live import broker_here
from waystation.groups import GroupLimits
from waystation.transports.gossip import Gossip
from waystation.transports.mqtt import Mqtt

SCHEMES: Final = ("tcp", "ws", "udp", "http", "mqtt", "gossip")


class Carrier(Struct, frozen=True):
    """Where to listen, and the options of a node that can."""

    url: str
    options: Callable[[], dict[str, Any]] = dict


@asynccontextmanager
async def carrier(scheme: str) -> AsyncIterator[Carrier]:
    """A transport; MQTT has a broker between the nodes, gossip a router."""
    if scheme == "mqtt":
        async with broker_here() as broker:
            at = f"mqtt://{broker.place}"
            yield Carrier("mqtt://+", lambda: {"transports": [Mqtt(at)]})
    elif scheme == "gossip":
        async with routers() as found:
            at, limits = f"gossip://{found.places[0]}", GroupLimits(linger=0.5)
            yield Carrier(
                "gossip://fleet/*", lambda: {"transports": [Gossip(at, group_limits=limits)]}
            )
    else:
        yield Carrier(f"{scheme}://127.0.0.1:0")
