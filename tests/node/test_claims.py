"""Claims to names in live nodes: who has a name, who gets it next, and who is told (CL)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from itertools import permutations, product
from typing import Any

import msgspec
import pytest

from tests.node.live import nothing_is_left, raw_listener
from tests.node.test_hierarchy_attacks import Attacker, attacked, entries
from waystation.core.claims import PATH_LIMIT
from waystation.core.outcome import Reason
from waystation.core.record import ClaimKind
from waystation.core.routing import RouteKind
from waystation.node import Limits, Node
from waystation.node.hierarchy import Hierarchy
from waystation.testing import Fleet, async_test, settle, until
from waystation.wire.hello import Hello, owner_of
from waystation.wire.hierarchy import (
    Announce,
    Contested,
    Resolve,
    Resolved,
    Subscribe,
    Unsubscribe,
    Withdraw,
    read,
)
from waystation.wire.ockam import PREFACE

QUICK = Limits(heartbeat=0.0, contest=0.3)
PATIENT = Limits(heartbeat=0.0, contest=600.0)
"""Who is contested has all the time it wants, so that only a sign of life decides."""

TRUCK = "truck-7"
Scenario = Callable[[Fleet], Any]


def over_memory(scenario: Scenario) -> Callable[[], None]:
    """A test of a fleet in memory, in which nobody has to hurry."""

    def test() -> None:
        Fleet(limits=PATIENT).run(scenario)

    test.__name__ = scenario.__name__
    return test


def over_tcp(scenario: Scenario) -> Callable[[], None]:
    """A test of a fleet over TCP, in which who is contested has little time."""

    def test() -> None:
        Fleet.over_tcp(limits=QUICK).run(scenario)

    test.__name__ = scenario.__name__
    return test


def next_node(node: Node, participant: str) -> str | None:
    """The peer that a node's table leads to."""
    entry = node.router.table.lookup(participant, node.now())
    if entry is None:
        return None
    return next(s.peer for s in node.sessions if s.address == entry.address)


def named(name: str, node: Node) -> str:
    """Let a worker answer with the name of its node."""

    @node.worker(name)
    async def answer(message: Any, context: Any) -> None:  # noqa: ARG001
        await context.reply(node.name.encode())

    return name


async def who_has(node: Node, participant: str) -> str:
    return (await node.request(participant, b"who?")).payload.decode()


def hierarchy(node: Node) -> Hierarchy:
    return node._kernel.hierarchy  # noqa: SLF001 - nobody else counts claims


def taken(node: Node) -> dict[str, str]:
    return hierarchy(node).taken


def claims(node: Node) -> int:
    return hierarchy(node).claims.known.count


# The next claim is the entry at once


@pytest.mark.rule("CL-1")
@pytest.mark.parametrize("killed", ["first", "second"])
def test_of_two_instances_of_a_service_the_other_goes_on(killed: str) -> None:
    async def scenario(fleet: Fleet) -> None:
        hub = await fleet.hub("hub")
        for name in ("first", "second"):
            named("service", await fleet.leaf(name, hub))
            await fleet.knows(hub, "service")
        await until(lambda: claims(hub) == 2)
        await fleet.kill(fleet[killed])
        other = {"first": "second", "second": "first"}[killed]
        await until(lambda: next_node(hub, "service") == other)
        assert await who_has(hub, "service") == other

    Fleet(limits=PATIENT).run(scenario)


@pytest.mark.rule("CL-1")
@over_memory
async def test_a_leaf_with_two_parents_is_reached_when_one_is_killed(fleet: Fleet) -> None:
    top = await fleet.hub("top")
    left, right = await fleet.hub("left", top), await fleet.hub("right", top)
    leaf = await fleet.leaf("leaf", left, right)
    named(TRUCK, leaf)
    await until(lambda: claims(top) == 2)
    first = next_node(top, TRUCK)
    assert first is not None
    await fleet.kill(fleet[first])
    await until(lambda: next_node(top, TRUCK) in {"left", "right"} - {first})
    assert await who_has(top, TRUCK) == "leaf"


@pytest.mark.rule("CL-1", "CL-7")
@over_memory
async def test_only_the_best_claim_is_in_the_table_and_a_change_is_a_remove_then_a_put(
    fleet: Fleet,
) -> None:
    hub = await fleet.hub("hub")
    first = await fleet.leaf("first", hub)
    named("service", first)
    await fleet.knows(hub, "service")
    named("service", await fleet.leaf("second", hub))
    await until(lambda: claims(hub) == 2)
    await fleet.stop(first)
    await until(lambda: next_node(hub, "service") == "second")
    changes = [c.kind for c in fleet.recorder(hub).routes if c.entry.participant == "service"]
    assert changes == [RouteKind.PUT, RouteKind.REMOVE, RouteKind.PUT]
    kinds = [(r.kind, r.origin) for r in fleet.recorder(hub).claims]
    assert kinds == [
        (ClaimKind.CLAIM, "first"),
        (ClaimKind.CONTESTED, "second"),
        (ClaimKind.WITHDRAW, "first"),
    ]


@pytest.mark.rule("CL-2")
@over_memory
async def test_taking_back_a_claim_ends_that_claim_only(fleet: Fleet) -> None:
    top = await fleet.hub("top")
    left, right = await fleet.hub("left", top), await fleet.hub("right", top)
    await fleet.leaf("leaf", left, right)
    named(TRUCK, fleet["leaf"])
    named("service", await fleet.leaf("first", top))
    await fleet.knows(top, "service")
    second = await fleet.leaf("second", top)
    named("service", second)
    await until(lambda: claims(top) == 4)
    await second.stop_worker("service")
    await until(lambda: claims(top) == 3)
    assert await who_has(top, "service") == "first"
    assert await who_has(top, TRUCK) == "leaf"


@pytest.mark.rule("CL-1")
@over_memory
async def test_a_claim_has_the_name_again_when_the_hub_itself_no_longer_has_it(
    fleet: Fleet,
) -> None:
    hub = await fleet.hub("hub")
    leaf = await fleet.leaf("leaf", hub)
    named("service", leaf)
    await fleet.knows(hub, "service")
    named("service", hub)
    assert await who_has(hub, "service") == "hub"
    await hub.stop_worker("service")
    assert await who_has(hub, "service") == "leaf"


@pytest.mark.rule("CL-1")
@async_test
async def test_when_the_best_claim_expires_the_next_is_the_entry() -> None:
    async with attacked(limits=QUICK) as (center, _, place):
        first, second = await Attacker.dial(place), await Attacker.dial(place)
        first.announce(TRUCK, expiry=center.now() + 700)
        await first.was_heard()
        second.announce(TRUCK)
        await second.was_heard()
        await first.was_heard()
        at_first = entries(center)[TRUCK]
        await until(lambda: entries(center).get(TRUCK) not in (None, at_first))
        first.close()
        second.close()


# Rings, diamonds and meshes


RINGS = {
    "each other's parent": {"a": ["b"], "b": ["a"]},
    "ring": {"a": ["b"], "b": ["c"], "c": ["a"]},
    "diamond": {"top": [], "a": ["top"], "b": ["top"], "c": ["a", "b"]},
    "mesh": {"a": ["b", "c"], "b": ["a", "c"], "c": ["a", "b"]},
}


async def ring_of(fleet: Fleet, shape: str) -> tuple[list[Node], list[Node], list[Node]]:
    """Hubs in a circle, those of them that hear of every name, and a leaf for each hub."""
    hubs = {name: await fleet.hub(name) for name in RINGS[shape]}
    for name, parents in RINGS[shape].items():
        for parent in parents:
            await fleet.connect(hubs[name], hubs[parent], parent=True)
    leaves = [await fleet.leaf(f"leaf-{name}", hub) for name, hub in hubs.items()]
    for leaf in leaves:
        named(f"work-{leaf.name}", leaf)
    upper = [hubs["top"]] if shape == "diamond" else list(hubs.values())
    for leaf, hub in product(leaves, upper):
        await fleet.knows(hub, f"work-{leaf.name}")
    return list(hubs.values()), upper, leaves


@pytest.mark.rule("CL-2", "CL-3")
@pytest.mark.parametrize("shape", RINGS)
def test_hubs_in_a_circle_settle_and_are_silent(shape: str) -> None:
    async def scenario(fleet: Fleet) -> None:
        hubs, upper, leaves = await ring_of(fleet, shape)
        for leaf, other in permutations(leaves, 2):
            assert await who_has(other, f"work-{leaf.name}") == leaf.name
        await fleet.kill(fleet["leaf-a"])
        for hub in upper:
            await fleet.forgets(hub, "work-leaf-a")
        await settle()
        told = [len(fleet.recorder(hub).claims) for hub in hubs]
        for _ in range(5):
            await settle()
        assert told == [len(fleet.recorder(hub).claims) for hub in hubs]
        for hub in hubs:
            routes = Counter(change.entry.participant for change in fleet.recorder(hub).routes)
            assert max(routes[f"work-{leaf.name}"] for leaf in leaves) <= 8
            assert fleet.recorder(hub).counts()["HOP_LIMIT"] == 0

    Fleet(limits=PATIENT).run(scenario)


@pytest.mark.rule("CL-3")
@async_test
async def test_what_is_known_is_neither_put_nor_announced_again() -> None:
    told: list[Any] = []

    async def parent(peer: Any) -> None:
        peer.say(PREFACE)
        while True:
            told.append(read(await peer.hear_control()))

    async with raw_listener(parent) as above, attacked() as (center, journal, place):
        up = await center.connect(f"tcp://{above}", name="up", parent=True)
        leaf = await Attacker.dial(place)
        for _ in range(10):
            leaf.announce(TRUCK)
            await leaf.was_heard()
        await until(lambda: any(isinstance(one, Announce) for one in told))
        assert len([c for c in journal.routes if c.entry.participant == TRUCK]) == 1
        announced = [one for one in told if isinstance(one, Announce)]
        names = [name for one in announced for name, _, _ in one.participants]
        assert names.count(TRUCK) == 1
        leaf.close()
        up.abort_link()
        await up.close()


@pytest.mark.rule("CL-3")
@over_memory
async def test_a_name_that_changes_too_often_is_announced_later(fleet: Fleet) -> None:
    top = await fleet.hub("top")
    hub = await fleet.hub("hub", top)
    leaf = await fleet.leaf("leaf", hub)
    for _ in range(3):
        named(TRUCK, leaf)
        await fleet.knows(hub, TRUCK)
        await leaf.stop_worker(TRUCK)
        await fleet.forgets(hub, TRUCK)
    named(TRUCK, leaf)
    await fleet.knows(hub, TRUCK)
    assert await who_has(hub, TRUCK) == "leaf"  # who has the session acts at once
    await fleet.knows(top, TRUCK)
    kinds = [record.kind for record in fleet.recorder(hub).claims]
    assert kinds[-2:] == [ClaimKind.HELD, ClaimKind.RELEASED] or ClaimKind.HELD in kinds
    assert ClaimKind.RELEASED in kinds
    assert kinds.index(ClaimKind.RELEASED) > kinds.index(ClaimKind.HELD)
    announced = [r for r in fleet.recorder(top).claims if r.kind is ClaimKind.CLAIM]
    assert len(announced) <= 4


# Two owners


@pytest.mark.rule("CL-4", "CL-6")
@over_memory
async def test_a_live_holder_keeps_its_name_and_both_are_told(fleet: Fleet) -> None:
    hub = await fleet.hub("hub")
    holder, other = await fleet.leaf("holder", hub), await fleet.leaf("other", hub)
    named("service", holder)
    await fleet.knows(hub, "service")
    named("service", other)
    await until(lambda: taken(other) == {"service": "holder"})
    assert taken(holder) == {}
    assert await who_has(hub, "service") == "holder"
    await holder.stop_worker("service")
    await until(lambda: next_node(hub, "service") == "other")
    await until(lambda: taken(other) == {})
    assert await who_has(hub, "service") == "other"


@pytest.mark.rule("CL-4", "CL-6")
def test_a_holder_behind_another_hub_keeps_its_name() -> None:
    async def scenario(fleet: Fleet) -> None:
        top = await fleet.hub("top")
        left, right = await fleet.hub("left", top), await fleet.hub("right", top)
        holder, other = await fleet.leaf("holder", left), await fleet.leaf("other", right)
        named("service", holder)
        await fleet.knows(top, "service")
        named("service", other)
        await until(lambda: taken(other) == {"service": "holder"})
        assert await who_has(top, "service") == "holder"
        assert next_node(right, "service") == "other"  # of its own leaf a hub knows nothing better
        await fleet.kill(holder)
        await until(lambda: next_node(top, "service") == "right")
        await until(lambda: taken(other) == {})

    Fleet(limits=QUICK).run(scenario)


@pytest.mark.rule("CL-6")
@over_tcp
async def test_a_holder_that_is_silent_loses_its_name_and_its_session(fleet: Fleet) -> None:
    hub = await fleet.hub("hub")
    holder = await fleet.leaf("holder", hub)
    named("service", holder)
    await fleet.knows(hub, "service")
    other = await fleet.leaf("other", hub)
    fleet.freeze(holder)
    named("service", other)
    await until(lambda: next_node(hub, "service") == "other")
    closed = [r for r in fleet.recorder(hub).sessions if r.reason is Reason.TRANSPORT_DOWN]
    assert "silent for 0.3 s while somebody else claims 'service'" in closed[-1].detail
    assert taken(other) == {}
    fleet.heal()
    await until(lambda: taken(holder) == {"service": "other"})  # it comes back, and stands by


@pytest.mark.rule("CL-6")
@over_tcp
async def test_a_leaf_that_restarts_while_its_old_session_is_half_open_is_reached(
    fleet: Fleet,
) -> None:
    top = await fleet.hub("top")
    left, right = await fleet.hub("left", top), await fleet.hub("right", top)
    leaf = await fleet.leaf("leaf", left)
    named(TRUCK, leaf)
    await fleet.knows(top, TRUCK)
    fleet.freeze(leaf)
    await fleet.stop(leaf)
    assert next_node(top, TRUCK) == "left"  # which has not heard of it
    leaf = await fleet.leaf("leaf", right)
    named(TRUCK, leaf)
    await until(lambda: next_node(top, TRUCK) == "right")
    assert await who_has(top, TRUCK) == "leaf"
    await until(lambda: next_node(left, TRUCK) is None)
    await settle()
    assert taken(leaf) == {}


@pytest.mark.rule("CL-1", "CL-6")
@over_tcp
async def test_a_leaf_that_roams_is_reached_at_once_and_its_old_session_is_ended(
    fleet: Fleet,
) -> None:
    top = await fleet.hub("top", limits=PATIENT)  # nothing here waits for a contest
    left, right = await fleet.hub("left", top), await fleet.hub("right", top)
    leaf = await fleet.leaf("leaf", left)
    named(TRUCK, leaf)
    await fleet.knows(top, TRUCK)
    fleet.freeze(leaf)
    await leaf.sessions[0].close()
    await fleet.connect(leaf, right, parent=True)
    await until(lambda: next_node(top, TRUCK) == "right")
    assert await who_has(top, TRUCK) == "leaf"
    await until(lambda: next_node(left, TRUCK) is None)  # it was asked by the top
    assert {record.kind for record in fleet.recorder(top).claims} <= {
        ClaimKind.CLAIM,
        ClaimKind.WITHDRAW,
    }


@pytest.mark.rule("CL-6")
@over_tcp
async def test_a_hub_that_roams_takes_what_it_relays_with_it(fleet: Fleet) -> None:
    top = await fleet.hub("top")
    hub = await fleet.hub("hub", top)
    named(TRUCK, await fleet.leaf("leaf", hub))
    await fleet.knows(top, TRUCK)
    [old] = top.sessions
    fleet.freeze(top)
    hub.sessions[0].abort_link()
    fleet.heal()
    await fleet.connect(hub, top, parent=True, name="top-again")
    await until(lambda: old not in top.sessions)
    await until(lambda: next_node(top, TRUCK) == "hub")
    assert await who_has(top, TRUCK) == "leaf"


@pytest.mark.rule("CL-6")
@async_test
async def test_a_name_that_its_holder_no_longer_has_is_lost_to_it() -> None:
    async with attacked(limits=PATIENT) as (center, _, place):
        first, second = await Attacker.dial(place), await Attacker.dial(place)
        first.announce(TRUCK, "other")
        await first.was_heard()
        at_first = entries(center)[TRUCK]
        second.announce(TRUCK)
        while not isinstance(probe := read(await first.hear_control()), Resolve):
            pass
        assert (probe.participant, probe.probe) == (TRUCK, True)
        first.tell(Resolved(probe.number, False))
        await first.was_heard()
        await until(lambda: entries(center)[TRUCK] != at_first)
        assert entries(center)["other"] == at_first
        first.close()
        second.close()


@pytest.mark.rule("CL-6")
@async_test
async def test_anything_that_is_heard_is_a_sign_of_life() -> None:
    async with attacked(limits=QUICK) as (center, _, place):
        first, second = await Attacker.dial(place), await Attacker.dial(place)
        first.announce(TRUCK)
        await first.was_heard()
        at_first = entries(center)[TRUCK]
        for number in range(10):
            second.announce(TRUCK)
            first.control(b"")  # a heartbeat
            await asyncio.sleep(QUICK.contest / 5)
            second.tell(Withdraw([TRUCK]))
            await second.was_heard()
            assert number >= 0
        assert entries(center)[TRUCK] == at_first
        assert len(center.sessions) == 2
        first.close()
        second.close()


# Names that cannot be claimed


@pytest.mark.rule("CL-4")
@async_test
async def test_the_form_of_a_session_name_cannot_be_claimed() -> None:
    async with attacked() as (center, _, place):
        attacker = await Attacker.dial(place)
        gone = f"tcp-{7:016x}"  # of no session that lives
        attacker.announce(gone, f"truck-{7:016x}")
        await attacker.was_heard()
        assert gone not in entries(center)
        assert f"truck-{7:016x}" in entries(center)
        assert "has the form of a session's name" in attacker.declined()[0]
        attacker.close()


@pytest.mark.rule("CL-4")
@async_test
async def test_the_name_of_a_subscriber_is_never_inherited() -> None:
    async with attacked() as (center, _, place):
        owner, attacker = await Attacker.dial(place), await Attacker.dial(place)
        name = f"subscriber-{7:016x}"
        owner.announce(name)
        await owner.was_heard()
        attacker.announce(name)
        await attacker.was_heard()
        assert "is the subscriber of another node" in attacker.declined()[0]
        owner.close()
        await until(lambda: name not in entries(center))
        attacker.close()


@pytest.mark.rule("CL-4", "RE-13")
@async_test
async def test_a_request_from_outside_does_not_get_a_name_that_was_claimed() -> None:
    async with attacked() as (center, _, place):
        outside = await center.listen("tcp://127.0.0.1:0", outside=True)
        leaf, attacker = await Attacker.dial(place), await Attacker.dial(outside.place)
        leaf.announce(TRUCK)
        await leaf.was_heard()
        leaf.close()
        await until(lambda: TRUCK not in entries(center))
        for name in (TRUCK, "truck-8"):
            attacker.send("echo", b"?", back=name)
            assert (await attacker.hear()).payload == b"?"
        assert TRUCK not in entries(center)
        assert "truck-8" in entries(center)
        attacker.close()


# What the standby has


@pytest.mark.rule("CL-1", "MC-8")
@over_memory
async def test_subscriptions_belong_to_the_claim(fleet: Fleet) -> None:
    top = await fleet.hub("top")
    left, right = await fleet.hub("left", top), await fleet.hub("right", top)
    leaf = await fleet.leaf("leaf", left, right)
    got: list[bytes] = []
    leaf.subscribe("+", "news", callback=lambda message: got.append(message.payload))
    await until(lambda: claims(top) == 2)
    await until(lambda: len(top.router.subscriptions) == 1)
    await top.publish("news", b"first")
    await until(lambda: got == [b"first"])
    [receiver] = top.router.subscriptions.match("top/news")
    before = next_node(top, receiver)
    assert before is not None
    await fleet.kill(fleet[before])
    await until(lambda: next_node(top, receiver) in {"left", "right"} - {before})
    await top.publish("news", b"second")
    await until(lambda: got == [b"first", b"second"])


@pytest.mark.rule("CL-1", "MC-8")
@async_test
async def test_a_standby_subscribes_and_unsubscribes_for_when_it_has_the_name() -> None:
    async with attacked(limits=PATIENT) as (center, _, place):
        first, second = await Attacker.dial(place), await Attacker.dial(place)
        first.announce(TRUCK)
        first.tell(Subscribe([("p/a", TRUCK), ("p/b", TRUCK)]))
        await first.was_heard()
        second.announce(TRUCK)
        second.tell(
            Subscribe([("p/b", TRUCK), ("p/c", TRUCK), ("p/c", TRUCK), ("p/d", TRUCK)]),
            Subscribe([("p/x y", TRUCK)]),
            Unsubscribe([("p/d", TRUCK), ("p/d", TRUCK)]),
        )
        await second.was_heard()
        assert sorted(center.router.subscriptions.snapshot()) == [("p/a", TRUCK), ("p/b", TRUCK)]
        first.close()
        await until(lambda: len(center.sessions) == 1)
        assert sorted(center.router.subscriptions.snapshot()) == [("p/b", TRUCK), ("p/c", TRUCK)]
        [session] = center.sessions
        assert session.subscriptions == 2
        second.close()


# Peers of the first version


def greet(peer: Attacker, node: str, **options: Any) -> None:
    peer.control(msgspec.json.encode(Hello(node, {"local": 0, "tcp": 1}, **options)))


def greet_as(peer: Attacker, node: str, secret: str, number: int = 1) -> None:
    """Say the hello of a leaf that knows claims."""
    greet(peer, node, can=("claims",), secret=secret, session=number)


@pytest.mark.rule("UP-1", "CL-1")
@async_test
async def test_a_leaf_of_the_first_version_takes_over_from_itself_and_from_nobody_else() -> None:
    async with attacked(limits=PATIENT) as (center, _, place):
        old, again, other = [await Attacker.dial(place) for _ in range(3)]
        greet(old, "leaf")
        old.announce(TRUCK)
        await old.was_heard()
        at_old = entries(center)[TRUCK]
        greet(other, "other")
        other.announce(TRUCK)
        await other.was_heard()
        assert entries(center)[TRUCK] == at_old
        greet(again, "leaf")
        again.announce(TRUCK)
        await again.was_heard()
        assert entries(center)[TRUCK] not in (at_old, None)
        await center.send(TRUCK, b"to the newest")
        assert (await again.hear()).payload == b"to the newest"
        for peer in (old, again, other):
            assert not any(isinstance(read(one), Contested) for one in peer.controls)
            peer.close()


@pytest.mark.rule("UP-1", "UP-2")
@pytest.mark.parametrize("can", [(), ("claims",)], ids=["0.1", "claims"])
@async_test
async def test_a_parent_is_told_what_it_understands(can: tuple[str, ...]) -> None:
    told: list[Any] = []

    async def parent(peer: Any) -> None:
        peer.say(PREFACE)
        greet(peer, "above", can=can)
        while True:
            told.append(read(await peer.hear_control()))

    async with raw_listener(parent) as above, attacked() as (center, _, place):
        up = await center.connect(f"tcp://{above}", name="up", parent=True)
        await until(lambda: up.peer == "above")
        leaf = await Attacker.dial(place)
        greet_as(leaf, "leaf", "swordfish", 5)
        leaf.announce(TRUCK)
        await until(lambda: any(_names(one) == [TRUCK] for one in told))
        [announced] = [one for one in told if _names(one) == [TRUCK]]
        if can:
            assert announced.owners == [(owner_of("swordfish"), 0)]
            assert announced.claims == [(0, 5, ["leaf", "hub"])]
        else:
            assert announced == Announce([(TRUCK, True, None)])
        leaf.close()
        up.abort_link()
        await up.close()


def _names(told: Any) -> list[str]:
    return [name for name, _, _ in told.participants] if isinstance(told, Announce) else []


@pytest.mark.rule("CL-1")
@async_test
async def test_only_a_parent_is_told_the_secret_and_the_number_of_the_link() -> None:
    heard: list[Hello] = []

    async def listener(peer: Any) -> None:
        peer.say(PREFACE)
        heard.append(msgspec.json.decode(await peer.hear_control(), type=Hello))

    async with raw_listener(listener) as place, Node("node", limits=QUICK) as node:
        for number, parent in enumerate((False, True, True)):
            session = await node.connect(f"tcp://{place}", name=f"s{number}", parent=parent)
            while len(heard) <= number:
                await settle()
            session.give_up()
        assert [hello.session for hello in heard] == [0, 1, 2]
        assert heard[0].secret == ""
        assert heard[1].secret == heard[2].secret != ""


# Peers that lie


LIES: dict[str, Announce] = {
    "no such owner": Announce([("a", True, None)], owners=[], claims=[(0, 1, ["x", "y"])]),
    "owner below zero": Announce([("a", True, None)], owners=[("o", 1)], claims=[(-1, 1, ["x"])]),
    "too few claims": Announce(
        [("a", True, None), ("b", True, None)], owners=[("o", 1)], claims=[(0, 1, ["x"])]
    ),
    "too many claims": Announce([], owners=[("o", 1)], claims=[(0, 1, ["x"])]),
    "number too large": Announce(
        [("a", True, None)], owners=[("o", 1)], claims=[(0, 2**63, ["x"])]
    ),
    "number below zero": Announce([("a", True, None)], owners=[("o", 1)], claims=[(0, -1, ["x"])]),
    "path too long": Announce(
        [("a", True, None)],
        owners=[("o", 1)],
        claims=[(0, 1, [f"n{number}" for number in range(PATH_LIMIT)])],
    ),
    "path with a book": Announce(
        [("a", True, None)], owners=[("o", 1)], claims=[(0, 1, ["x" * 100_000])]
    ),
    "owner with a book": Announce(
        [("a", True, None)], owners=[("o" * 100_000, 1)], claims=[(0, 1, ["x"])]
    ),
    "path of the hub": Announce([("a", True, None)], owners=[("o", 1)], claims=[(0, 1, ["hub"])]),
}


@pytest.mark.rule("CL-2")
@pytest.mark.parametrize("lie", LIES)
@async_test
async def test_a_claim_that_makes_no_sense_is_not_taken(lie: str) -> None:
    async with attacked() as (center, _, place):
        attacker = await Attacker.dial(place)
        greet_as(attacker, "liar", "s")
        attacker.tell(LIES[lie])
        attacker.announce("honest")
        await attacker.was_heard()
        assert "a" not in entries(center)
        assert "honest" in entries(center)
        attacker.close()


@pytest.mark.parametrize("lowest", [-1, 2**63, 2**200])
@async_test
async def test_a_lowest_number_that_is_none_ends_nothing(lowest: int) -> None:
    async with attacked() as (center, _, place):
        attacker = await Attacker.dial(place)
        greet_as(attacker, "liar", "s")
        attacker.announce("honest")
        attacker.tell(Announce([], lowest=lowest, owners=[(owner_of("s"), lowest)]))
        await attacker.was_heard()
        assert "honest" in entries(center)
        attacker.close()


@pytest.mark.rule("CL-1", "UP-1")
@async_test
async def test_nobody_says_that_the_sessions_of_a_first_version_leaf_have_ended() -> None:
    async with attacked() as (center, _, place):
        leaf, attacker = await Attacker.dial(place), await Attacker.dial(place)
        greet(leaf, "leaf")
        leaf.announce(TRUCK)
        await leaf.was_heard()
        greet_as(attacker, "liar", "s")
        attacker.tell(Announce([], owners=[("node:leaf", 2**62)]))
        await attacker.was_heard()
        assert TRUCK in entries(center)
        leaf.close()
        attacker.close()


@pytest.mark.parametrize("hello", [{"session": 2**63}, {"session": -1}, {"secret": "s" * 300}])
@async_test
async def test_a_hello_that_numbers_sessions_in_an_invalid_way_ends_the_link(
    hello: dict[str, Any],
) -> None:
    async with attacked() as (_, journal, place):
        attacker = await Attacker.dial(place)
        greet(attacker, "liar", can=("claims",), **hello)
        await attacker.ended()
        await until(lambda: any("invalid way" in record.detail for record in journal.sessions))


@pytest.mark.rule("CL-4")
@async_test
async def test_of_its_own_names_the_hello_says_who_owns_them() -> None:
    async with attacked(limits=PATIENT) as (center, journal, place):
        honest, liar = await Attacker.dial(place), await Attacker.dial(place)
        greet_as(honest, "honest", "secret")
        honest.announce(TRUCK)
        await honest.was_heard()
        at_honest = entries(center)[TRUCK]
        greet_as(liar, "liar", "other", 9)
        stolen = owner_of("secret")
        liar.tell(Announce([(TRUCK, True, None)], owners=[(stolen, 0)], claims=[(0, 9, ["liar"])]))
        await liar.was_heard()
        assert entries(center)[TRUCK] == at_honest
        assert journal.claims[-1].kind is ClaimKind.CONTESTED
        assert journal.claims[-1].owner == owner_of("other")
        honest.close()
        liar.close()


@pytest.mark.rule("CL-4", "CL-6")
@async_test
async def test_a_flood_of_contested_names_costs_the_holder_little() -> None:
    async with attacked(limits=PATIENT) as (center, _, place):
        holder, attacker = await Attacker.dial(place), await Attacker.dial(place)
        greet_as(holder, "holder", "holder")
        names = [f"name-{number}" for number in range(5_000)]
        for peer in (holder, attacker):
            for begin in range(0, len(names), 500):
                peer.announce(*names[begin : begin + 500])
            await peer.was_heard()
        probes = [one for one in map(read, holder.controls) if isinstance(one, Resolve)]
        holder.tell(*(Resolved(probe.number, True) for probe in probes))
        await holder.was_heard()
        assert len(probes) <= 1
        at = entries(center)
        assert len({at[name] for name in names}) == 1
        attacker.reset()
        await until(lambda: len(center.sessions) == 1)
        holder.close()


@pytest.mark.rule("CL-4")
@async_test
async def test_only_a_parent_says_what_is_contested() -> None:
    async with attacked() as (center, _, place):
        attacker = await Attacker.dial(place)
        attacker.tell(Contested([("echo", "liar", True)]))
        await attacker.was_heard()
        assert taken(center) == {}
        attacker.close()


@pytest.mark.rule("CL-2")
@over_memory
async def test_a_parent_with_our_own_name_is_a_parent_like_any_other(fleet: Fleet) -> None:
    hub = await fleet.hub("same")
    async with Node("same", transports=[fleet._make()], limits=PATIENT) as leaf:
        await leaf.connect(f"mem://{hub.listening[0].place}", parent=True)
        named(TRUCK, leaf)
        await fleet.knows(hub, TRUCK)


@pytest.mark.rule("CL-1")
@over_memory
async def test_nothing_is_left_of_claims_when_their_sessions_are_gone(fleet: Fleet) -> None:
    hub = await fleet.hub("hub")
    for name in ("first", "second"):
        leaf = await fleet.leaf(name, hub)
        named("service", leaf)
        leaf.subscribe("+", "news")
        await fleet.ready()
    for name in ("first", "second"):
        await fleet.stop(fleet[name])
    await nothing_is_left(hub)
    assert claims(hub) == 0
    kept = {**vars(hierarchy(hub).claims), **vars(hierarchy(hub).contests)}
    left = {name: value for name, value in kept.items() if isinstance(value, dict | set) and value}
    assert left == {}
