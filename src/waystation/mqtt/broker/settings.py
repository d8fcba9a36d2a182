"""What a broker accepts and how long it waits: values, and their checks."""

from __future__ import annotations

from typing import Final

from msgspec import Struct, structs

from waystation.core.budget import MIB
from waystation.errors import LocalError, quote
from waystation.mqtt.packets import PACKET_LIMIT
from waystation.net.connection import UNADMITTED, ConnectionLimits
from waystation.net.server import ServerLimits

DEAD: Final = 60.0
"""Seconds after which the system takes a silent machine for gone."""


class Settings(Struct, frozen=True, kw_only=True):
    """The limits of a broker; times are in seconds.

    `connections` limits the clients that are connected, and `sessions` includes those that are
    away. A client has at most `subscriptions`, and `packet` is the largest packet in bytes; until
    it is admitted, `unadmitted`. A packet that has begun has to be complete after `frame` seconds,
    or later as long as 4 KiB of it arrive for each second. All clients together have `input` bytes
    of unfinished packets here; over it those with the largest are disconnected. At most
    `queue` messages wait for a client, and `queue_bytes` bytes with those that it has not
    acknowledged; more is dropped, and counted. For all clients together at most `budget` bytes
    wait: then each has an equal part, and a quarter above it the session ends that holds most. At
    most `retained` messages and `retained_bytes` bytes are retained. Passwords are checked by
    `checks` threads; who sent a wrong one is told so after `penalty` seconds. A client may send
    `receive_maximum` messages before the first is acknowledged, and have `aliases` for topics. A
    session ends `session_expiry` seconds after its client has left, or earlier if the client asks
    for it. A client has `greeting` seconds to connect and prove who it is; `linger` is the time to
    write what is left at the end.

    >>> Settings(queue=0)
    Traceback (most recent call last):
    waystation.errors.LocalError: invalid setting queue=0; give more than 0
    """

    connections: int = 10_000
    sessions: int = 20_000
    subscriptions: int = 100_000
    packet: int = PACKET_LIMIT
    unadmitted: int = UNADMITTED
    input: int = 256 << 20
    queue: int = 10_000
    queue_bytes: int = 64 * MIB
    budget: int = 256 * MIB
    retained: int = 100_000
    retained_bytes: int = 256 * MIB
    checks: int = 4
    penalty: float = 1.0
    receive_maximum: int = 1_000
    aliases: int = 100
    session_expiry: int = 7 * 24 * 3600
    greeting: float = 10.0
    frame: float = 30.0
    linger: float = 5.0
    backlog: int = 1024

    def __post_init__(self) -> None:
        for name, value in structs.asdict(self).items():
            hint = "" if value > 0 else "give more than 0"
            if name in ("receive_maximum", "aliases") and value > 65_535:
                hint = "give at most 65535"
            if hint:
                raise LocalError(f"invalid setting {name}={quote(value)}", rule="MC-12", hint=hint)

    def of_connections(self) -> ConnectionLimits:
        """The part that a connection needs."""
        return ConnectionLimits(
            high_water=max(65_536, min(self.queue_bytes // 2, 1 << 20)),
            first_byte=self.greeting,
            frame=self.frame,
            linger=self.linger,
            dead=DEAD,
        )

    def of_server(self) -> ServerLimits:
        """The part that the listener needs."""
        return ServerLimits(
            connections=self.connections,
            handshake=self.greeting,
            input=self.input,
            backlog=self.backlog,
        )

    def of_strangers(self) -> int:
        """The largest packet of a client that is not admitted."""
        return min(self.packet, self.unadmitted)
