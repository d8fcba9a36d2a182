"""What a gossip router accepts and how long it waits: values, and their checks."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct, structs

from waystation.core.budget import MIB
from waystation.core.gossip import MemberLimits
from waystation.errors import LocalError, quote
from waystation.net.connection import UNADMITTED, ConnectionLimits
from waystation.net.server import ServerLimits
from waystation.wire.java import FormatLimits

SlowReceiver: TypeAlias = Literal["shed", "disconnect"]
"""What to do with a receiver whose queue is full (GR-10).

Either way it loses the messages that find no room, and nobody waits for it. With `shed` that is
all; with `disconnect` it is also given up once it has taken nothing for a while.
"""


class Settings(Struct, frozen=True, kw_only=True):
    """The limits of a router.

    `message` is the largest message in bytes, and `queue` bytes may wait for one receiver, `budget`
    bytes for all of them: then each has an equal part, and a quarter above it the one that holds
    most is given up. When half of its queue waits for a receiver, its senders are held back for up
    to `patience` seconds (0: never). A client that has not registered a member sends `unadmitted`
    bytes at most in one message. All clients together have `input` bytes of unfinished messages
    here; over it those with the largest are disconnected. After `silence` seconds a connection ends
    that should have sent heartbeats, or has not sent its first byte. A message that has begun has
    to be complete after `frame` seconds, or later as long as 4 KiB of it arrive for each second.
    With `disconnect`, a receiver that loses messages ends after `stall` seconds without taking a
    byte. After `dead` seconds without a sign of its machine the system ends a connection. `linger`
    is the time to write what is left when a connection closes. With `suspect`, the others in a
    group are told when a member's connections are lost, and it has not come back for
    `suspect_after` seconds.

    >>> Settings(queue=0)
    Traceback (most recent call last):
    waystation.errors.LocalError: the setting queue is 0; give more than 0
    """

    groups: int = 10_000
    members_per_group: int = 10_000
    members_per_connection: int = 1_000
    connections: int = 10_000
    message: int = 16 << 20
    unadmitted: int = UNADMITTED
    input: int = 256 * MIB
    queue: int = 8 * MIB
    budget: int = 256 * MIB
    slow_receiver: SlowReceiver = "disconnect"
    patience: float = 0.1
    stall: float = 10.0
    silence: float = 60.0
    frame: float = 30.0
    dead: float = 60.0
    linger: float = 5.0
    backlog: int = 1024
    suspect: bool = True
    suspect_after: float = 1.0

    def __post_init__(self) -> None:
        for name, value in structs.asdict(self).items():
            if name == "slow_receiver":
                if value not in {"shed", "disconnect"}:
                    raise LocalError(
                        f"invalid policy for slow receivers: {quote(value)}",
                        rule="GR-10",
                        hint="give 'shed' or 'disconnect'",
                    )
            elif name in {"patience", "suspect_after"}:
                if not value >= 0:
                    raise LocalError(
                        f"the setting {name} is {quote(value)}",
                        rule="GR-10",
                        hint="give 0 or more",
                    )
            elif name != "suspect" and not value > 0:
                raise LocalError(
                    f"the setting {name} is {quote(value)}",
                    rule="GR-10",
                    hint="give more than 0",
                )

    def of_members(self) -> MemberLimits:
        """The part that the rules of membership need."""
        return MemberLimits(
            groups=self.groups,
            members_per_group=self.members_per_group,
            members_per_connection=self.members_per_connection,
            silence_ms=max(1, int(self.silence * 1000)),
            suspect_after_ms=int(self.suspect_after * 1000),
        )

    def of_connections(self) -> ConnectionLimits:
        """The part that a connection needs; half of a queue is where senders are held back."""
        return ConnectionLimits(
            high_water=self.queue // 2,
            first_byte=self.silence,
            frame=self.frame,
            linger=self.linger,
            dead=self.dead,
            user_timeout=True,
        )

    def of_server(self) -> ServerLimits:
        """The part that the listener needs."""
        return ServerLimits(
            connections=self.connections,
            handshake=self.silence,
            input=self.input,
            backlog=self.backlog,
        )

    def of_format(self) -> FormatLimits:
        """The part that the decoders need."""
        return FormatLimits(frame=self.message, control=min(self.message, 1 << 20))

    def of_format_for_strangers(self) -> FormatLimits:
        """What the decoders need for a client that has registered no member."""
        most = min(self.message, self.unadmitted)
        return FormatLimits(frame=most, control=most)
