"""What a member is told before it connects: how its group is reached (LA-9), and its limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct, structs

from waystation.core.budget import MIB
from waystation.core.discovery import DiscoveryMethod
from waystation.errors import LocalError, quote
from waystation.net.place import parse_place
from waystation.net.tls import Tls

_METHODS: Final[Mapping[str, DiscoveryMethod]] = {
    "gossip": DiscoveryMethod.TUNNEL,
    "gossip+tcp": DiscoveryMethod.ROUTER,
    "tcp": DiscoveryMethod.HOSTS,
    "udp": DiscoveryMethod.MULTICAST,
}


class Via(Struct, frozen=True):
    """A method, and the places that it begins with: routers, hosts, or one multicast address."""

    method: DiscoveryMethod
    places: tuple[str, ...]


def parse_via(via: str | Iterable[str]) -> Via:
    """Read one address or several; all must be of one kind.

    >>> parse_via("gossip://127.0.0.1:12001,127.0.0.1:12002").places
    ('127.0.0.1:12001', '127.0.0.1:12002')
    >>> parse_via(["udp://239.1.2.3:45588"]).method.value
    'UDP multicast'
    >>> parse_via("http://example")
    Traceback (most recent call last):
    waystation.errors.LocalError: invalid group address 'http://example'; write gossip://...
    """
    texts = [via] if isinstance(via, str) else list(via)
    found: dict[str, None] = {}
    kinds: set[str] = set()
    for text in texts:
        kind, mark, places = text.partition("://")
        if not mark or kind not in _METHODS:
            raise LocalError(
                f"invalid group address {quote(text)}",
                rule="LA-9",
                hint="write gossip://, gossip+tcp://, tcp:// or udp://, then host:port",
            )
        kinds.add(kind)
        for place in places.split(","):
            parse_place(place)
            found[place] = None
    if len(kinds) != 1 or (kinds == {"udp"} and len(found) != 1):
        raise LocalError(
            f"{quote(via)} mixes several ways to a group",
            rule="LA-9",
            hint="give addresses of one kind, and of udp:// only one",
        )
    return Via(_METHODS[kinds.pop()], tuple(found))


class GroupLimits(Struct, frozen=True, kw_only=True):
    """How much a member keeps, and how long it waits; times are in seconds.

    `window` messages and `window_bytes` may be on their way to one member, or to all of them,
    before a sender has to wait; as much waits here of a member that is held back. All members
    together may have `budget` bytes on their way, and when these are spent each has an equal part.
    A message to all waits `laggards` for members that do not keep up; then they lose it. `inbox`
    messages and `inbox_bytes` wait to be read. `waiting` messages and `waiting_bytes` wait for an
    address that is not known (LA-6). `changes` of the membership wait for each reader of them.
    Every `beat` a sign of life goes out; who is silent for four of them is suspected, as is a
    router for three. What is on its way to a member that vanished is kept for `grace`, should it
    come back. `cache_age` and `cache_size` say when members that left are forgotten (LA-3). A
    direct member accepts `connections`; whoever connects has `greeting` to say which group it is
    of. A packet that has begun has to be complete after `frame`, or longer as long as 4 KiB of it
    arrive for each second. At most `input` bytes of unfinished packets are kept.

    >>> GroupLimits(window=0)
    Traceback (most recent call last):
    waystation.errors.LocalError: the limit window is 0; give more than 0
    """

    window: int = 1_024
    window_bytes: int = 4 * MIB
    budget: int = 256 * MIB
    laggards: float = 1.0
    inbox: int = 10_000
    inbox_bytes: int = 8 * MIB
    waiting: int = 10_000
    waiting_bytes: int = 8 * MIB
    changes: int = 10_000
    beat: float = 2.0
    grace: float = 5.0
    linger: float = 1.0
    dial: float = 3.0
    cache_age: float = 120.0
    cache_size: int = 2_000
    connections: int = 10_000
    greeting: float = 10.0
    frame: float = 30.0
    input: int = 256 << 20

    def __post_init__(self) -> None:
        for name, value in structs.asdict(self).items():
            if not value > 0:
                raise LocalError(
                    f"the limit {name} is {quote(value)}", rule="LA-6", hint="give more than 0"
                )


class CarrierSettings(Struct, frozen=True, kw_only=True):
    """What a carrier needs to know of its group."""

    group: str
    dialect: str
    tls: Tls | None
    token: bytes
    limits: GroupLimits
