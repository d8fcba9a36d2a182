"""What a broker accepts and how long it waits: values, and their checks."""

from __future__ import annotations

from msgspec import Struct, structs

from waystation.errors import LocalError, quote
from waystation.mqtt.packets import PACKET_LIMIT


class Settings(Struct, frozen=True, kw_only=True):
    """The limits of a broker.

    There are at most `connections`, and at most `sessions`, those of clients that are away
    included; one has at most `subscriptions`. A packet has at most `packet` bytes. For one client
    at most `queue` messages wait, and `queue_bytes` bytes with those that it has not acknowledged;
    more than that is dropped, and counted.
    At most `retained` messages and `retained_bytes` bytes are retained. A client may have
    `receive_maximum` messages on their way that are not acknowledged, and `aliases` for topics.
    No session outlives its client by more than `session_expiry` seconds, whatever it asks for. A
    client has `greeting` seconds to say who it is; `linger` seconds are there to write what is left
    at the end.

    >>> Settings(queue=0)
    Traceback (most recent call last):
    waystation.errors.LocalError: the setting queue is 0; give more than 0
    """

    connections: int = 10_000
    sessions: int = 20_000
    subscriptions: int = 100_000
    packet: int = PACKET_LIMIT
    queue: int = 10_000
    queue_bytes: int = 64 << 20
    retained: int = 100_000
    retained_bytes: int = 256 << 20
    receive_maximum: int = 1_000
    aliases: int = 100
    session_expiry: int = 7 * 24 * 3600
    greeting: float = 10.0
    linger: float = 5.0
    backlog: int = 1024

    def __post_init__(self) -> None:
        for name, value in structs.asdict(self).items():
            if not value > 0:
                raise LocalError(
                    f"the setting {name} is {quote(value)}",
                    rule="MC-12",
                    hint="give more than 0",
                )
        for name in ("receive_maximum", "aliases"):
            if (value := getattr(self, name)) > 65_535:
                raise LocalError(
                    f"the setting {name} is {value}", rule="MC-12", hint="give at most 65535"
                )
