"""The limits of a member of a group."""

from __future__ import annotations

from msgspec import Struct, structs

from waystation.errors import LocalError, quote


class GroupLimits(Struct, frozen=True, kw_only=True):
    """How much a member keeps, and how long it waits; times are in seconds.

    `window` messages and `window_bytes` may be on their way to one member, or to all of them,
    before a sender has to wait. A message to all waits `laggards` for members that do not keep up;
    then they lose it. `inbox` messages wait to be read. `waiting` messages wait for an address that
    is not known (LA-6). `changes` of the membership wait for each reader of them. Every `beat` a
    sign of life goes out; who is silent for four of them is suspected, as is a router for three.
    What is on its way to a member that vanished is kept for `grace`, should it come back.
    `cache_age` and `cache_size` say when members that left are forgotten (LA-3). A direct member
    accepts `connections`; whoever connects has `greeting` to say which group it is of, and `frame`
    to finish a packet that it began.

    >>> GroupLimits(window=0)
    Traceback (most recent call last):
    waystation.errors.LocalError: the limit window is 0; give more than 0
    """

    window: int = 1_024
    window_bytes: int = 4 << 20
    laggards: float = 1.0
    inbox: int = 10_000
    waiting: int = 10_000
    changes: int = 10_000
    beat: float = 2.0
    grace: float = 5.0
    linger: float = 1.0
    dial: float = 3.0
    cache_age: float = 120.0
    cache_size: int = 2_000
    connections: int = 10_000
    greeting: float = 10.0
    frame: float = 60.0

    def __post_init__(self) -> None:
        for name, value in structs.asdict(self).items():
            if not value > 0:
                raise LocalError(
                    f"the limit {name} is {quote(value)}", rule="LA-6", hint="give more than 0"
                )
