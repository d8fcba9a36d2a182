"""The shapes of fleets that the lab tries: who is a hub, who is a leaf, and whose."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct, structs


class Topology(Struct, frozen=True):
    """Hubs and leaves by name, each with the hubs that are its parents."""

    name: str
    hubs: dict[str, list[str]]
    leaves: dict[str, list[str]]
    over_udp: list[str] = []
    """Leaves that connect over UDP; all others do over TCP."""
    routers: list[str] = []
    members: list[str] = []
    """Members of a group, over all of the routers."""

    @property
    def parents(self) -> dict[str, list[str]]:
        """The parents of every node."""
        return {**self.hubs, **self.leaves}

    @property
    def names(self) -> list[str]:
        """Everybody who has a machine."""
        return [*self.hubs, *self.leaves, *self.routers, *self.members]


def star(chance: random.Random) -> Topology:
    """One hub, and leaves around it."""
    leaves = _leaves(chance.randint(4, 7))
    return Topology("star", {"hub-a": []}, {leaf: ["hub-a"] for leaf in leaves})


def two_levels(chance: random.Random) -> Topology:
    """A hub above two or three others, which have leaves."""
    lower = [f"hub-{letter}" for letter in "bcd"[: chance.randint(2, 3)]]
    hubs = {"hub-a": [], **{hub: ["hub-a"] for hub in lower}}
    leaves = {leaf: [chance.choice(lower)] for leaf in _leaves(5)}
    return Topology("two-levels", hubs, leaves)


def diamond(chance: random.Random) -> Topology:
    """Leaves with two parents each, both below one hub."""
    hubs = {"hub-a": [], "hub-b": ["hub-a"], "hub-c": ["hub-a"]}
    leaves = {leaf: ["hub-b", "hub-c"] for leaf in _leaves(3)}
    leaves |= {f"leaf-{n}": [chance.choice(["hub-b", "hub-c"])] for n in (4, 5)}
    return Topology("diamond", hubs, leaves)


def lossy(chance: random.Random) -> Topology:
    """A star in which some leaves are connected over UDP."""
    found = star(chance)
    some = chance.sample(list(found.leaves), len(found.leaves) // 2)
    return structs.replace(found, name="lossy", over_udp=some)


def ring(chance: random.Random) -> Topology:
    """Hubs that are each other's parents, all around."""
    names = ["hub-a", "hub-b", "hub-c"]
    hubs = {hub: [names[(n + 1) % 3]] for n, hub in enumerate(names)}
    return Topology("ring", hubs, {leaf: [chance.choice(names)] for leaf in _leaves(5)})


def mesh(chance: random.Random) -> Topology:
    """Hubs of which each has all others as parents."""
    names = ["hub-a", "hub-b", "hub-c"]
    hubs = {hub: [other for other in names if other != hub] for hub in names}
    return Topology("mesh", hubs, {leaf: [chance.choice(names)] for leaf in _leaves(4)})


def group(chance: random.Random) -> Topology:
    """A group over two gossip routers."""
    members = [f"member-{n}" for n in range(1, chance.randint(4, 6) + 1)]
    return Topology("group", {}, {}, routers=["router-a", "router-b"], members=members)


def mixed(chance: random.Random) -> Topology:
    """A star, and a group beside it."""
    found = group(chance)
    return structs.replace(star(chance), name="mixed", routers=found.routers, members=found.members)


TOPOLOGIES: Final[Mapping[str, Callable[[random.Random], Topology]]] = {
    "star": star,
    "two-levels": two_levels,
    "diamond": diamond,
    "lossy": lossy,
    "ring": ring,
    "mesh": mesh,
    "group": group,
    "mixed": mixed,
}


def _leaves(number: int) -> list[str]:
    return [f"leaf-{n}" for n in range(1, number + 1)]
