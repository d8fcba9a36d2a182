"""Networks of hubs and leaves settle, and then find every name, whatever happened before.

A network may be a tree, or have rings and meshes in which hubs are each other's parents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Final, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.claims_network import Hub, Leaf, Link, Network

Edges: TypeAlias = list[tuple[int, int]]  # child and parent, by number

SHAPES: Final[Mapping[str, Callable[[int], Edges]]] = {
    "chain": lambda hubs: [(at, at + 1) for at in range(hubs - 1)],
    "tree": lambda hubs: [(at, (at - 1) // 2) for at in range(1, hubs)],
    "two tops": lambda hubs: [(at, top) for at in range(2, hubs) for top in (0, 1)],
    "diamond": lambda hubs: [
        *((at, 0) for at in range(1, hubs - 1)),
        *((hubs - 1, at) for at in range(1, hubs - 1)),
    ],
    "one-way ring": lambda hubs: [(at, (at + 1) % hubs) for at in range(hubs) if hubs > 1],
    "ring": lambda hubs: sorted(
        {(at, (at + way) % hubs) for at in range(hubs) for way in (1, -1) if hubs > 1}
    ),
    "mesh": lambda hubs: [(at, to) for at in range(hubs) for to in range(hubs) if at != to],
}


class Scene:
    """A network, and what may happen to it."""

    def __init__(
        self, shape: str, hubs: int, seed: int, leaves: int = 2, *, twice: bool = False
    ) -> None:
        self.chance = Random(seed)
        self.network = Network(self.chance, ("a", "b"), hubs, twice=twice)
        self.edges = SHAPES[shape](hubs)
        for child, parent in self.edges:
            self.network.hubs[child].connect(self.network.hubs[parent])
        for _ in range(leaves):
            self.network.add_leaf(*self.chance.sample(self.network.names, 2)).connect(self.hub)

    @property
    def hub(self) -> Hub:
        return self.chance.choice(self.network.hubs)

    @property
    def leaf(self) -> Leaf:
        return self.chance.choice(self.network.leaves)

    def happens(self, event: str) -> None:
        """Let something happen from outside, and perhaps some of what follows."""
        getattr(self, event)()
        for _ in range(self.chance.choice([0, 1, 3, 10, 100])):
            self.network.step()

    def leaf_connects(self) -> None:
        leaf = self.leaf
        if len(leaf.links) < 3:
            leaf.connect(self.hub)

    def leaf_closes(self) -> None:
        self._give_up(self.leaf.links, silently=False)

    def leaf_is_cut_off(self) -> None:
        self._give_up(self.leaf.links, silently=True)

    def hub_is_cut_off(self) -> None:
        self._give_up(self.hub.links, silently=self.chance.random() < 0.5)

    def leaf_roams(self) -> None:
        self.leaf_is_cut_off()
        self.leaf_connects()

    def leaf_restarts(self) -> None:
        self.leaf.restart(self.hub)

    def leaf_ends(self) -> None:
        self.leaf.end(silently=self.chance.random() < 0.5)

    def participant_starts(self) -> None:
        self.leaf.start(self.chance.choice(self.network.names))

    def participant_stops(self) -> None:
        self.leaf.stop(self.chance.choice(self.network.names))

    def session_ends_at_the_hub(self) -> None:
        sessions = list(self.hub.sessions.values())
        if sessions:
            link = self.chance.choice(sessions)
            link.hub.ended(link)

    def hub_comes_back(self) -> None:
        hubs = self.network.hubs
        child, parent = self.chance.choice(self.edges or [(0, 0)])
        if child != parent and all(link.hub is not hubs[parent] for link in hubs[child].links):
            hubs[child].connect(hubs[parent])

    # What the claims themselves repair, without any heartbeat

    def leaf_redials(self) -> None:
        """A leaf's address changes: one with a single link may go anywhere, others go back."""
        leaf = self.leaf
        link = self.chance.choice(leaf.links)
        leaf.give_up(link, silently=True)
        leaf.connect(self.hub if not leaf.links else link.hub)

    def hub_redials(self) -> None:
        links = self.hub.links
        if links and not self.network.is_probing:
            link = self.chance.choice(links)
            link.child.give_up(link, silently=True)
            link.child.connect(link.hub)

    def _give_up(self, links: list[Link], *, silently: bool) -> None:
        if links:
            link = self.chance.choice(links)
            link.child.give_up(link, silently=silently)


CHURN: Final = [
    "leaf_connects",
    "leaf_closes",
    "leaf_is_cut_off",
    "hub_is_cut_off",
    "leaf_roams",
    "leaf_restarts",
    "leaf_ends",
    "participant_starts",
    "participant_stops",
    "session_ends_at_the_hub",
    "hub_comes_back",
]

shapes = st.sampled_from(sorted(SHAPES))
sizes = st.integers(1, 6)
seeds = st.integers(0, 2**32)
churn = st.lists(st.sampled_from(CHURN), max_size=25)


@pytest.mark.rule("CL-1", "CL-2")
@given(shapes, sizes, seeds, st.integers(1, 3), churn)
def test_any_network_settles_and_then_every_name_is_found_and_nothing_else(
    shape: str, hubs: int, seed: int, leaves: int, happened: list[str]
) -> None:
    scene = Scene(shape, hubs, seed, leaves)
    for event in happened:
        scene.happens(event)
    scene.network.run()
    scene.network.heartbeat()
    scene.network.run()
    scene.network.check()


@pytest.mark.rule("CL-2", "CL-3")
@given(shapes, sizes, seeds, churn)
def test_after_one_change_a_name_is_told_a_bounded_number_of_times_and_then_never_again(
    shape: str, hubs: int, seed: int, happened: list[str]
) -> None:
    scene = Scene(shape, hubs, seed)
    network = scene.network
    network.run()
    for event in happened:
        before = network.bound()
        network.spoken.clear()
        getattr(scene, event)()
        bound = max(before, network.bound())
        network.run()
        assert all(words <= bound for words in network.spoken.values()), network.spoken


@pytest.mark.rule("CL-1")
@given(shapes, st.integers(2, 6), seeds, st.booleans())
def test_a_leaf_with_two_parents_is_found_when_one_has_gone_without_saying_anything(
    shape: str, hubs: int, seed: int, hub_crashes: bool
) -> None:
    scene = Scene(shape, hubs, seed, leaves=0)
    network = scene.network
    leaf = network.add_leaf("a")
    one, two = scene.chance.sample(network.hubs, 2)
    link = leaf.connect(one)
    leaf.connect(two)
    network.run()
    if hub_crashes:
        network.lose_hub(one)
    else:
        one.ended(link)
    network.run()
    network.check()
    assert two in network.reached("a")
    assert [word.path for word in network.heard].count(("leaf-0",)) == 2  # it said it once to each


@pytest.mark.rule("CL-4")
@given(shapes, sizes, seeds)
def test_a_holder_stays_everywhere_while_others_come_and_the_longest_waiting_follows(
    shape: str, hubs: int, seed: int
) -> None:
    scene = Scene(shape, hubs, seed, leaves=0)
    network = scene.network
    hub = scene.hub
    holder, second, third = (network.add_leaf("a") for _ in range(3))
    for leaf in (holder, second, third):
        leaf.connect(hub)
        network.run()
        assert all(network.way(at, "a")[-1] is holder for at in network.reached("a"))
    for leaf, heir in ((holder, second), (second, third)):
        leaf.end(silently=False)
        network.run()
        network.check()
        assert all(network.way(at, "a")[-1] is heir for at in network.reached("a"))


@pytest.mark.rule("CL-6")
@given(
    shapes,
    sizes,
    seeds,
    st.lists(
        st.sampled_from(["leaf_restarts", "leaf_redials", "hub_redials", "leaf_connects"]),
        min_size=1,
        max_size=10,
    ),
)
def test_a_leaf_that_restarts_or_roams_is_found_again_without_any_heartbeat(
    shape: str, hubs: int, seed: int, happened: list[str]
) -> None:
    scene = Scene(shape, hubs, seed, leaves=1)
    network = scene.network
    for event in happened:
        scene.happens(event)
    network.run()
    lost = [hub.name for hub in network.reached("a") if not network.arrives(hub, "a")]
    assert not lost


@pytest.mark.rule("CL-6")
@given(seeds)
def test_a_second_link_that_moves_to_another_hub_leaves_nobody_with_the_old_one(seed: int) -> None:
    # The top is the parent of a and b; c is a leaf of b, so that the new way is longer.
    chance = Random(seed)
    network = Network(chance, ("a",), 4)
    top, a, b, c = network.hubs
    for child, parent in ((a, top), (b, top), (c, b)):
        child.connect(parent)
    leaf = network.add_leaf("a")
    leaf.connect(c)
    old = leaf.connect(a)
    network.run()
    leaf.give_up(old, silently=True)
    leaf.connect(c)
    network.run()
    assert all(network.arrives(hub, "a") for hub in (top, b, c))


@pytest.mark.rule("CL-3")
@given(shapes, sizes, seeds, churn)
def test_words_that_arrive_twice_change_nothing_and_are_not_passed_on(
    shape: str, hubs: int, seed: int, happened: list[str]
) -> None:
    once, twice = Scene(shape, hubs, seed), Scene(shape, hubs, seed, twice=True)
    for scene in (once, twice):
        for event in happened:
            scene.happens(event)
        scene.network.run()
    assert once.network.spoken == twice.network.spoken
    for hub, other in zip(once.network.hubs, twice.network.hubs, strict=True):
        for name in once.network.names:
            assert hub.claims.all(name, now=0) == other.claims.all(name, now=0)


@pytest.mark.rule("CL-2")
@given(shapes, sizes, seeds, churn)
def test_words_repeated_by_a_stranger_keep_nobody_busy_and_end_with_its_session(
    shape: str, hubs: int, seed: int, happened: list[str]
) -> None:
    scene = Scene(shape, hubs, seed)
    network = scene.network
    stranger = network.add_leaf()
    link = stranger.connect(scene.hub)
    for event in happened:
        scene.happens(event)
        if network.heard and link.hub_open and link.child_open:
            link.up.append(scene.chance.choice(network.heard))
    network.run()
    for name in network.names:
        for hub in network.hubs:
            network.way(hub, name)  # without a circle
    stranger.end(silently=False)
    network.heartbeat()
    network.run()
    network.check()
