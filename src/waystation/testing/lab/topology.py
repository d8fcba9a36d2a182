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
    stores: list[str] = []
    """Nodes with a store, which send durable messages to one another."""
    brokers: list[str] = []
    over_mqtt: list[str] = []
    """Hubs whose way to their parent is the broker; both then publish there, too."""
    over_joynr: list[str] = []
    """Leaves that speak joynr's protocol over WebSocket."""
    guards: list[str] = []
    """Hubs with grants: who has no identity there, or no grant, may do nothing."""
    intruders: list[str] = []
    """Those who try all the same, at the first of the guards."""
    lists: bool = False
    """Whether leaves register what they offer, and are found by that."""
    older: list[str] = []
    """Nodes that say they know none of what later versions brought."""
    budget: int = 0
    """Bytes that a node may hold, if that is little; messages are then large."""
    on_disk: list[str] = []
    """Nodes that write their journals to a disk which has faults."""

    @property
    def parents(self) -> dict[str, list[str]]:
        """The parents of every node."""
        return {**self.hubs, **self.leaves}

    @property
    def names(self) -> list[str]:
        """Everybody who has a machine."""
        others = (self.routers, self.members, self.brokers, self.intruders)
        return [*self.hubs, *self.leaves, *(name for some in others for name in some)]


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


def durable(chance: random.Random) -> Topology:
    """Two levels in which everybody has a store, except one hub."""
    found = two_levels(chance)
    stores = [name for name in found.parents if name != "hub-b"]
    return structs.replace(found, name="durable", stores=stores)


def brokered(chance: random.Random) -> Topology:
    """Two hubs on one broker, one of them the other's parent over it."""
    hubs = {"hub-a": [], "hub-b": ["hub-a"]}
    leaves = {leaf: [chance.choice(list(hubs))] for leaf in _leaves(4)}
    return Topology("brokered", hubs, leaves, brokers=["broker"], over_mqtt=["hub-b"])


def joynr(chance: random.Random) -> Topology:
    """A star in which some leaves speak joynr's protocol."""
    found = star(chance)
    some = chance.sample(list(found.leaves), len(found.leaves) // 2)
    return structs.replace(found, name="joynr", over_joynr=some)


def guarded(chance: random.Random) -> Topology:
    """A star with grants, secure channels through a hub that nobody trusts, and an intruder."""
    found = star(chance)
    return structs.replace(found, name="guarded", guards=list(found.hubs), intruders=["mallory"])


def listed(chance: random.Random) -> Topology:
    """Two levels in which leaves are found by what they offer."""
    return structs.replace(two_levels(chance), name="listed", lists=True)


def versions(chance: random.Random) -> Topology:
    """Two levels in which some know none of what later versions brought."""
    found = two_levels(chance)
    some = chance.sample(list(found.leaves), 2) + chance.sample(["hub-b", "hub-c"], 1)
    return structs.replace(found, name="versions", older=some)


def crowded(chance: random.Random) -> Topology:
    """A large star with so little memory that three large messages for each leaf are too much."""
    leaves = {leaf: ["hub-a"] for leaf in _leaves(chance.randint(8, 12))}
    return Topology("crowded", {"hub-a": []}, leaves, budget=512 * 1024)


def disks(chance: random.Random) -> Topology:
    """A star whose journals lie on disks with faults."""
    found = star(chance)
    return structs.replace(found, name="disks", on_disk=list(found.parents)[:3])


TOPOLOGIES: Final[Mapping[str, Callable[[random.Random], Topology]]] = {
    "star": star,
    "two-levels": two_levels,
    "diamond": diamond,
    "lossy": lossy,
    "ring": ring,
    "mesh": mesh,
    "group": group,
    "mixed": mixed,
    "durable": durable,
    "brokered": brokered,
    "joynr": joynr,
    "guarded": guarded,
    "listed": listed,
    "versions": versions,
    "crowded": crowded,
    "disks": disks,
}


def _leaves(number: int) -> list[str]:
    return [f"leaf-{n}" for n in range(1, number + 1)]
