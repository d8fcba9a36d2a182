"""Many names in one announcement: each is taken, or refused, as if it had come alone (CL-2)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.node.test_hierarchy_attacks import Attacker, attacked, entries
from waystation.core.address import Address
from waystation.core.record import ChangeRecord
from waystation.core.routing import RouteChange, RoutingEntry
from waystation.node import Limits, Node
from waystation.testing import MemoryNetwork, async_test, echo, until
from waystation.wire.hierarchy import Announce, encode

ODD = (
    *("", " ", "a b", "a=>b", "0xff", "a\n", "x" * 1_025, "waystation.x", "request-1", "ü", "\x7f"),
    *(f"tcp-{7:016x}", f"subscriber-{7:016x}", f"truck-{'y' * 16}"),
)
BATCHES: list[list[tuple[str, bool, int | None]]] = [
    [(f"truck-{number}", number == 2, None) for number in range(5)],
    [("one", False, None)],
    [("two", False, None), ("three", True, None)],
    [("two", False, None), ("four", False, None), ("two", True, None)],
    [("five", False, 10**15), ("six", False, None)],
    [("gone", False, 1), ("seven", False, None)],
    [("elsewhere", False, None), ("eight", False, None)],
    [("echo", False, None), ("nine", False, None)],
    [(f"many-{number}", False, None) for number in range(256)],
]
BATCHES += [[(name, False, None), (f"beside-{n}", False, None)] for n, name in enumerate(ODD)]


@pytest.mark.rule("CL-2")
@async_test
async def test_what_stands_beside_a_name_that_is_refused_is_taken() -> None:
    async with attacked() as (center, _, place):
        attacker = await Attacker.dial(place)
        refused = ["echo", "waystation.x", "", "a b", "x" * 1_025, f"tcp-{7:016x}"]
        names = ["first", *(part for name in refused for part in (name, f"beside-{len(name)}"))]
        attacker.announce(*names)
        await attacker.was_heard()
        taken = {"first", *(f"beside-{len(name)}" for name in refused)}
        assert taken <= entries(center).keys()
        while len(attacker.declined()) < len(refused):  # a reply may overtake what is declined
            await attacker.was_heard()
        assert len(attacker.declined()) == len(refused)
        attacker.announce(*names)  # the same again: nothing to take, and no other complaint
        await attacker.was_heard()
        assert len(attacker.declined()) == len(refused)
        attacker.close()


@pytest.mark.rule("CL-2")
@async_test
async def test_of_two_words_for_one_name_the_last_holds() -> None:
    async with attacked() as (center, _, place):
        attacker = await Attacker.dial(place)
        end = center.now() + 600_000
        attacker.tell(Announce([("a", False, end), ("b", False, None), ("a", True, None)]))
        await attacker.was_heard()
        table = center.router.table
        first, other = table.lookup("a", end + 1), table.lookup("b", end + 1)
        assert first is not None
        assert first.visible
        assert other is not None
        assert not other.visible
        attacker.close()


@pytest.mark.rule("CL-2")
@async_test
async def test_one_announcement_has_no_more_names_than_a_session_may() -> None:
    limits = Limits(heartbeat=0.0, participants=3)
    async with attacked(limits=limits) as (center, _, place):
        attacker = await Attacker.dial(place)
        attacker.announce("a", "b", "c", "d", "e", "a")
        await attacker.was_heard()
        assert [name for name in "abcde" if name in entries(center)] == ["a", "b", "c"]
        assert "at most 3 participants" in attacker.declined()[0]
        attacker.close()


@pytest.mark.rule("CL-2")
@async_test
async def test_each_relayed_name_is_declined_whose_claim_makes_no_sense() -> None:
    async with attacked() as (center, _, place):
        attacker = await Attacker.dial(place)
        names: list[Any] = [(name, False, None) for name in ("a", "b", "c", "d")]
        far, bad = (0, 1, ["leaf", "far"]), (5, 1, ["leaf", "far"])
        attacker.tell(Announce(names, owners=[("red", 0)], claims=[far, bad, bad, far]))
        await attacker.was_heard()
        assert [name for name in "abcd" if name in entries(center)] == ["a", "d"]
        assert [why for why in attacker.declined() if "invalid claim" in why] == [
            "invalid claim to 'b'",
            "invalid claim to 'c'",
        ]
        attacker.close()


@pytest.mark.rule("RE-12")
@async_test
async def test_a_session_that_ends_while_its_names_are_put_leaves_none() -> None:
    async with attacked() as (center, _, place):
        attacker = await Attacker.dial(place)
        await attacker.was_heard()
        [session] = center.sessions
        hierarchy = center._kernel.hierarchy  # noqa: SLF001 - as if its link had failed

        def end_session(record: Any) -> None:
            change = record.change if isinstance(record, ChangeRecord) else None
            if isinstance(change, RouteChange) and change.entry.participant == "a":
                center._kernel.observers.remove(end_session)  # noqa: SLF001
                hierarchy.claims.session_ended(session)

        center._kernel.observers.append(end_session)  # noqa: SLF001
        attacker.announce("a", "b", "c")
        await attacker.was_heard()
        assert not {"a", "b", "c"} & entries(center).keys()
        assert hierarchy.claims.known.count == 0
        attacker.close()


async def taken_by(*, is_observed: bool, in_one: bool) -> list[Any]:
    """What a hub has after all batches: each at once, or one name after the other."""
    network = MemoryNetwork()
    limits = Limits(heartbeat=0.0, participants=300)
    async with (
        Node("hub", hub=True, transports=[network.transport()], limits=limits) as hub,
        Node("leaf", transports=[network.transport()], limits=limits) as leaf,
    ):
        echo(hub)
        hub.put_route(RoutingEntry("elsewhere", Address(1, b"far:1"), local=False))
        if is_observed:
            hub.observe(lambda _: None)
        await leaf.connect(f"mem://{(await hub.listen('mem://any')).place}")
        await until(lambda: hub.sessions and hub.sessions[0].peer)
        [session] = hub.sessions
        for batch in BATCHES:
            for part in [batch] if in_one else [[each] for each in batch]:
                hub._kernel.hierarchy.receive(session, encode(Announce(part)))  # noqa: SLF001
        known = hub._kernel.hierarchy.claims.known  # noqa: SLF001
        table = hub.router.table
        told = {
            name: (entry.address == session.address, entry.local, entry.visible, entry.expiry)
            for name, entry in table.snapshot(hub.now()).items()
            if name != session.name
        }
        at_session = sorted(table.participants_at(session.address, hub.now()))
        return [told, at_session, sorted(session.participants), known.count, len(known)]


@pytest.mark.rule("CL-2")
@async_test
async def test_names_are_taken_together_as_one_by_one() -> None:
    wanted = await taken_by(is_observed=True, in_one=False)
    assert "truck-2" in wanted[0]
    assert wanted[0]["elsewhere"][0]
    assert await taken_by(is_observed=False, in_one=False) == wanted
    for is_observed in (True, False):
        assert await taken_by(is_observed=is_observed, in_one=True) == wanted
