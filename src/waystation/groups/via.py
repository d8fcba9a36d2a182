"""How a group is reached: the addresses that `via` may hold, and what they mean (LA-9)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from waystation.core.discovery import Way
from waystation.errors import LocalError, quote
from waystation.net.place import parse_place

_WAYS: Final[Mapping[str, Way]] = {
    "gossip": Way.TUNNEL,
    "gossip+tcp": Way.ROUTER,
    "tcp": Way.HOSTS,
    "udp": Way.MULTICAST,
}


class Via(Struct, frozen=True):
    """A way, and the places that it begins with: routers, hosts, or one multicast address."""

    way: Way
    places: tuple[str, ...]


def parse_via(via: str | Iterable[str]) -> Via:
    """Read one address or several; all must be of one kind.

    >>> parse_via("gossip://127.0.0.1:12001,127.0.0.1:12002").places
    ('127.0.0.1:12001', '127.0.0.1:12002')
    >>> parse_via(["udp://239.1.2.3:45588"]).way.value
    'UDP multicast'
    >>> parse_via("http://example")
    Traceback (most recent call last):
    waystation.errors.LocalError: 'http://example' leads to no group; write gossip://...
    """
    texts = [via] if isinstance(via, str) else list(via)
    found: dict[str, None] = {}
    kinds: set[str] = set()
    for text in texts:
        kind, mark, places = text.partition("://")
        if not mark or kind not in _WAYS:
            raise LocalError(
                f"{quote(text)} leads to no group",
                rule="LA-9",
                hint="write gossip://, gossip+tcp://, tcp:// or udp://, then host:port",
            )
        kinds.add(kind)
        for place in places.split(","):
            parse_place(place)
            found[place] = None
    if len(kinds) != 1 or (kinds == {"udp"} and len(found) != 1):
        raise LocalError(
            f"{quote(via)} is not one way to a group",
            rule="LA-9",
            hint="give addresses of one kind, and of udp:// only one",
        )
    return Via(_WAYS[kinds.pop()], tuple(found))
