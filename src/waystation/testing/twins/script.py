"""What happens to a fleet from outside: who sends what and when, what is fed, and what breaks.

All of it is drawn from a seed, and none of it depends on what the nodes do. Instants are virtual
seconds.
"""

from __future__ import annotations

import random
from typing import Final

from msgspec import Struct

from waystation.core.message import HOP_LIMIT

TOP: Final = "hub-a"
"""The hub above all others, which alone knows the depots."""

BEGIN: Final = 4.0
"""When the first message is sent: everybody is connected by then."""

FROM, UNTIL = 12.0, 40.0  # when something may break
COMPARED_UNTIL: Final = 48.0
"""What is sent later only shows that those who are there still write."""

END: Final = 58.0

TOPICS: Final = ("news", "alarms")
INBOX: Final = 1_000


class Letter(Struct, frozen=True, kw_only=True):
    """What somebody is to send."""

    number: int
    at: float
    sender: str  # a node
    kind: str  # send, request or publish
    to: str  # a route, or what is published
    ttl: float | None = None
    waits: bool = False  # whether its sender waits for a link that is gone


class Feed(Struct, frozen=True, kw_only=True):
    """A routing entry that a directory outside of the fleet puts at a node, or removes."""

    at: float
    node: str
    participant: str
    session: str | None  # that it leads to; None removes it
    ttl: float | None = None
    sticky: bool = False


class Hearing(Struct, frozen=True, kw_only=True):
    """A subscription; its receiver may hear another pattern as well, from some instant on."""

    node: str
    label: str
    pattern: tuple[str, str, str]
    until: float | None = None
    also: tuple[str, str, str] | None = None
    also_from: float = 0.0


class Trouble(Struct, frozen=True, kw_only=True):
    """Something that breaks, and when it is mended."""

    kind: str  # crash, stop, hang up, cut or clog
    node: str
    at: float
    until: float


class Script(Struct, frozen=True, kw_only=True):
    """All that happens to a fleet from outside."""

    seed: int
    hubs: dict[str, list[str]]  # with their parents
    leaves: dict[str, str]
    depots: list[str]  # peers of the top hub, which knows their workers by feeds only
    letters: tuple[Letter, ...] = ()
    feeds: tuple[Feed, ...] = ()
    hearings: tuple[Hearing, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    slow: dict[str, float] = {}  # seconds that the worker of a node takes for each message
    inbox: dict[str, int] = {}  # of the workers of these nodes, if not as usual
    hop_limit: int = HOP_LIMIT
    refused: tuple[str, ...] = ()  # nodes to whose workers nobody may send, by the hubs' grants
    is_guarded: bool = False  # whether the lower hubs have grants

    @property
    def parents(self) -> dict[str, list[str]]:
        """The parents of every node that has some."""
        return {**self.hubs, **{leaf: [hub] for leaf, hub in self.leaves.items()}}

    @property
    def names(self) -> list[str]:
        """Everybody."""
        return [*self.hubs, *self.depots, *self.leaves]


def script_of(seed: int, messages: int = 300) -> Script:
    """What happens in the fleet of a seed if nothing breaks."""
    chance = random.Random(f"twins {seed}")  # noqa: S311 - it must repeat
    lower = [f"hub-{letter}" for letter in "bcd"[: chance.randint(2, 3)]]
    hubs: dict[str, list[str]] = {TOP: [], **{hub: [TOP] for hub in lower}}
    leaves = {f"leaf-{n}": lower[n % len(lower)] for n in range(1, chance.randint(4, 6) + 1)}
    depots = [f"depot-{n}" for n in range(1, chance.randint(2, 3) + 1)]
    bare = Script(seed=seed, hubs=hubs, leaves=leaves, depots=depots)
    hearings = tuple(_hearing(chance, leaf, n) for n, leaf in enumerate(leaves))
    return Script(
        seed=seed,
        hubs=hubs,
        leaves=leaves,
        depots=depots,
        letters=_letters(chance, bare, messages),
        feeds=tuple(feed for depot in depots for feed in _feeds(chance, depot)),
        hearings=hearings,
    )


def route_to(script: Script, sender: str, target: str) -> str:
    """The route from a node to the worker of another, by way of the hub above both."""
    worker = worker_of(target)
    hops: list[str] = []
    here = sender
    while here != TOP:
        here = script.parents[here][0]
        hops.append(f"to-{here}")
        if script.parents.get(target) == [here]:
            break
    return " => ".join([*hops, worker])


def worker_of(node: str) -> str:
    """The name of the worker of a node."""
    return f"goods-{node}" if node.startswith("depot") else f"work-{node}"


def _letters(chance: random.Random, script: Script, messages: int) -> tuple[Letter, ...]:
    senders = [*script.leaves, TOP]
    targets = [*script.leaves, *script.depots, *script.depots]
    found = []
    for number in range(messages):
        at = round(chance.uniform(BEGIN, END), 6)
        sender = chance.choice(senders)
        kind = chance.choices(("send", "request", "publish"), (75, 5, 20))[0]
        if kind == "publish":
            to = chance.choice(TOPICS)
        else:
            others = [name for name in targets if name != sender]
            to = route_to(script, sender, chance.choice(others))
        ttl = 5.0 if kind == "request" else chance.choice((None, None, 1.5, 6.0))
        waits = chance.random() < 0.3
        letter = Letter(number=number, at=at, sender=sender, kind=kind, to=to, ttl=ttl, waits=waits)
        found.append(letter)
    return tuple(sorted(found, key=lambda letter: letter.at))


def _feeds(chance: random.Random, depot: str) -> list[Feed]:
    """Puts that are renewed too late now and then, so that there are gaps."""
    found, at = [], 1.0
    while at < END:
        ttl = round(chance.uniform(3.0, 6.0), 3)
        found.append(
            Feed(
                at=round(at, 3),
                node=TOP,
                participant=worker_of(depot),
                session=f"to-{depot}",
                ttl=ttl,
            )
        )
        at += ttl * chance.choice((0.6, 0.8, 0.9, 1.5, 2.5))
    return found


def _hearing(chance: random.Random, leaf: str, number: int) -> Hearing:
    topic = TOPICS[number % len(TOPICS)]
    provider = chance.choice(("+", "+", "leaf-1"))
    return Hearing(node=leaf, label=f"{leaf} hears", pattern=(provider, topic, "*"))
