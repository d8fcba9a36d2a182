from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.rule_errors import breaks
from waystation.core.address import Address
from waystation.core.expiry import LAST_INSTANT, NEVER, Deadlines
from waystation.core.routing import (
    REPLACES,
    Refusal,
    RouteChange,
    RouteKind,
    RoutingEntry,
    RoutingTable,
)
from waystation.errors import LocalError

HERE = Address(0, b"truck")
ELSEWHERE = Address(1, b"10.0.0.7:4000")
OTHER = Address(1, b"10.0.0.8:4000")
OWN = Address(7, b"hub-a/inbox")


def local(**fields: Any) -> RoutingEntry:
    return RoutingEntry(**{"participant": "truck", "address": HERE, "local": True, **fields})


def remote(**fields: Any) -> RoutingEntry:
    return RoutingEntry(**{"participant": "truck", "address": ELSEWHERE, "local": False, **fields})


def table_with(*entries: RoutingEntry) -> RoutingTable:
    table = RoutingTable()
    for entry in entries:
        assert table.put(entry, now=0).accepted
    return table


@pytest.mark.rule("RE-1")
def test_an_entry_has_one_address_and_four_facts() -> None:
    entry = RoutingEntry("truck", HERE, local=True, visible=True, expiry=5, sticky=True)
    fields = ("participant", "address", "local", "visible", "expiry", "sticky")
    assert RoutingEntry.__struct_fields__ == fields
    assert RoutingEntry("truck", HERE, local=True) == local(
        visible=False, expiry=NEVER, sticky=False
    )
    assert entry.alive(10**15)


@pytest.mark.rule("RE-2")
def test_a_put_over_nothing_creates_the_one_entry() -> None:
    table = RoutingTable()
    assert table.lookup("truck", now=0) is None
    change = table.put(remote(), now=0)
    assert change == RouteChange(RouteKind.PUT, remote())
    assert table.lookup("truck", now=0) == remote()
    assert len(table) == 1


@pytest.mark.rule("RE-2")
@pytest.mark.parametrize("held", [0, 1, 2])
def test_new_entries_join_those_that_an_address_has(held: int) -> None:
    names = [f"old-{number}" for number in range(held)]
    table = table_with(*(local(participant=name) for name in names))
    new = {name: local(participant=name) for name in ("a", "b")}
    assert table.put_new(new, HERE)
    assert not table.put_new(new, HERE)
    assert {*table.participants_at(HERE, 0)} == {*names, "a", "b"}
    assert len(table.remove_address(HERE, 0)) == held + 2


@pytest.mark.rule("RE-3")
@pytest.mark.rule("RE-4")
@pytest.mark.rule("RE-5")
@pytest.mark.rule("RE-6")
def test_the_replace_rules_are_one_table_of_all_four_cases() -> None:
    assert REPLACES == {
        (True, True): True,
        (False, True): True,
        (False, False): True,
        (True, False): False,
    }


@pytest.mark.rule("RE-3")
def test_local_replaces_local() -> None:
    table = table_with(local())
    assert table.put(local(address=Address(3, b"leaf-1")), now=1).accepted
    assert table.lookup("truck", now=1) == local(address=Address(3, b"leaf-1"))


@pytest.mark.rule("RE-4")
def test_local_replaces_remote() -> None:
    table = table_with(remote())
    assert table.put(local(), now=1).accepted
    assert table.lookup("truck", now=1) == local()


@pytest.mark.rule("RE-5")
def test_remote_replaces_remote() -> None:
    table = table_with(remote())
    assert table.put(remote(address=OTHER), now=1).accepted
    assert table.lookup("truck", now=1) == remote(address=OTHER)


@pytest.mark.rule("RE-6")
@pytest.mark.rule("RE-14")
def test_remote_never_replaces_local() -> None:
    table = table_with(local(expiry=5_000))
    change = table.put(remote(expiry=9_000, sticky=True, visible=True), now=1)
    assert not change.accepted
    assert change.refusal is Refusal.LOCAL_STAYS
    assert change.journalled
    assert table.lookup("truck", now=1) == local(expiry=5_000)
    assert table.lookup("truck", now=5_000) is None


@pytest.mark.rule("RE-7")
@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [(5_000, 9_000, 9_000), (9_000, 5_000, 9_000), (5_000, NEVER, NEVER), (NEVER, 5_000, NEVER)],
)
def test_the_later_expiry_is_kept(before: float, after: float, kept: float) -> None:
    table = table_with(remote(expiry=before))
    assert table.put(remote(address=OTHER, expiry=after), now=1).entry.expiry == after
    assert table.lookup("truck", now=1) == remote(address=OTHER, expiry=kept)


@pytest.mark.rule("RE-8")
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("after", [True, False])
def test_sticky_if_either_was_sticky(before: bool, after: bool) -> None:
    table = table_with(remote(sticky=before))
    table.put(remote(address=OTHER, sticky=after), now=1)
    assert table.lookup("truck", now=1) == remote(address=OTHER, sticky=before or after)


@pytest.mark.rule("RE-9")
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("after", [True, False])
def test_the_newest_accepted_put_decides_visibility(before: bool, after: bool) -> None:
    table = table_with(remote(visible=before, expiry=9_000))
    table.put(remote(visible=after, expiry=5_000), now=1)
    assert table.lookup("truck", now=1) == remote(visible=after, expiry=9_000)


@pytest.mark.rule("RE-10")
def test_an_entry_is_dead_from_the_very_instant_of_its_expiry() -> None:
    table = table_with(remote(expiry=5_000))
    assert table.lookup("truck", now=4_999) is not None
    assert table.contains("truck", now=4_999)
    assert table.snapshot(now=4_999) == {"truck": remote(expiry=5_000)}
    assert table.participants() == ["truck"]
    assert table.participants_at(ELSEWHERE, now=4_999) == ["truck"]
    assert table.lookup("truck", now=5_000) is None
    assert not table.contains("truck", now=5_000)
    assert table.snapshot(now=5_000) == {}
    assert table.participants_at(ELSEWHERE, now=5_000) == []


@pytest.mark.rule("RE-10")
def test_a_sticky_entry_outlives_its_expiry() -> None:
    table = table_with(remote(expiry=5_000, sticky=True))
    assert table.purge(now=10**9) == []
    assert table.lookup("truck", now=10**9) == remote(expiry=5_000, sticky=True)


@pytest.mark.rule("RE-10")
def test_an_entry_that_became_sticky_outlives_the_expiry_it_was_filed_under() -> None:
    table = table_with(remote(expiry=5_000))
    table.put(remote(expiry=5_000, sticky=True), now=1)
    assert table.purge(now=10**9) == []
    assert table.contains("truck", now=10**9)


@pytest.mark.rule("RE-10")
def test_a_put_over_a_dead_entry_is_a_put_over_nothing() -> None:
    table = table_with(local(expiry=5_000, visible=True))
    assert table.put(remote(expiry=6_000), now=5_000).accepted
    assert table.lookup("truck", now=5_000) == remote(expiry=6_000)


@pytest.mark.rule("RE-11")
def test_remove_deletes_sticky_or_not() -> None:
    for entry in (local(), local(sticky=True, expiry=5)):
        table = table_with(entry)
        assert table.remove("truck", now=9) == RouteChange(RouteKind.REMOVE, entry)
        assert table.lookup("truck", now=9) is None
        assert len(table) == 0


@pytest.mark.rule("RE-11")
def test_removing_what_is_not_there_is_no_error_and_no_event() -> None:
    table = table_with(local(expiry=5_000))
    assert table.remove("nobody", now=0) is None
    assert table.remove("truck", now=5_000) is None
    assert len(table) == 0


@pytest.mark.rule("RE-12")
def test_a_closed_connection_takes_every_entry_that_points_at_it() -> None:
    connection = Address(3, b"leaf-1")
    behind = [local(participant=f"p{number}", address=connection) for number in range(3)]
    table = table_with(local(), behind[0], local(participant="stays", address=OTHER), *behind[1:])
    table.put(local(participant="p1", address=OTHER), now=1)  # moved away meanwhile
    table.put(local(participant="dead", address=connection, expiry=5), now=1)
    changes = table.remove_address(connection, now=9)
    assert [change.entry.participant for change in changes] == ["p0", "p2"]
    assert all(change.kind is RouteKind.REMOVE for change in changes)
    assert set(table.snapshot(now=9)) == {"truck", "stays", "p1"}
    assert table.remove_address(connection, now=9) == []
    assert table.remove_address(Address(3, b"never-seen"), now=9) == []


@pytest.mark.rule("RE-12")
def test_a_closed_connection_costs_what_was_behind_it_and_not_the_table() -> None:
    looked_at: list[str] = []

    class Counting(dict[str, RoutingEntry]):
        def __getitem__(self, key: str) -> RoutingEntry:
            looked_at.append(key)
            return super().__getitem__(key)

        def __iter__(self) -> Iterator[str]:
            raise AssertionError

        items = values = __iter__  # type: ignore[assignment]

    table = table_with(*(remote(participant=f"p{number}") for number in range(1_000)))
    for number in range(3):
        table.put(local(participant=f"leaf-{number}", address=OTHER), now=0)
    table._entries = Counting(table._entries)
    assert len(table.remove_address(OTHER, now=0)) == 3
    assert sorted(looked_at) == ["leaf-0", "leaf-1", "leaf-2"]


@pytest.mark.rule("RE-13")
def test_a_global_request_puts_its_sender_and_only_ever_extends_it() -> None:
    table = RoutingTable()
    for expiry, kept in ((5_000, 5_000), (9_000, 9_000), (6_000, 9_000)):
        entry = RoutingEntry.of_request("app-1", ELSEWHERE, expiry)
        assert table.put(entry, now=1).accepted
        assert table.lookup("app-1", now=1) == RoutingEntry(
            "app-1", ELSEWHERE, local=False, visible=True, expiry=kept
        )


@pytest.mark.rule("RE-14")
def test_what_a_look_up_found_replaces_remote_entries_only() -> None:
    table = table_with(remote(), local(participant="mine"))
    found = RoutingEntry.of_discovery("passing", OTHER, expiry=5_000)
    assert found == RoutingEntry("passing", OTHER, local=False, visible=True, expiry=5_000)
    assert table.put(RoutingEntry.of_discovery("truck", OTHER), now=1).accepted
    assert not table.put(RoutingEntry.of_discovery("mine", OTHER), now=1).accepted
    assert table.lookup("truck", now=1) == remote(address=OTHER, visible=True)
    assert table.lookup("mine", now=1) == local(participant="mine")


@pytest.mark.rule("RE-15")
def test_the_own_global_address_is_never_a_route_to_somebody() -> None:
    table = RoutingTable(own_addresses=[OWN])
    change = table.put(remote(address=OWN), now=0)
    assert change.refusal is Refusal.OWN_ADDRESS
    assert not change.journalled
    assert table.lookup("truck", now=0) is None
    assert table.put(remote(), now=0).accepted
    assert not table.put(remote(address=OWN), now=0).accepted
    assert table.lookup("truck", now=0) == remote()
    table.set_own_addresses([OTHER])  # the broker gave it another inbox
    assert table.put(remote(address=OWN), now=0).accepted
    assert table.put(remote(address=OTHER), now=0).refusal is Refusal.OWN_ADDRESS


@pytest.mark.rule("OB-4")
def test_a_put_is_an_event_as_it_was_asked_for_and_not_as_it_was_merged() -> None:
    table = table_with(remote(expiry=9_000, sticky=True))
    asked = remote(address=OTHER, expiry=5_000)
    assert table.put(asked, now=1) == RouteChange(RouteKind.PUT, asked)
    removed = table.remove("truck", now=1)
    assert removed is not None
    assert removed.entry == remote(address=OTHER, expiry=9_000, sticky=True)
    assert removed.accepted


@pytest.mark.rule("RE-17")
def test_cleaning_up_touches_only_what_has_expired() -> None:
    table = RoutingTable()
    for number in range(500):
        table.put(remote(participant=f"later-{number}", expiry=10**9 + number), now=0)
        table.put(remote(participant=f"ever-{number}"), now=0)
    table.put(remote(participant="soon", expiry=5_000), now=0)
    assert table.purge(now=5_000) == []
    assert len(table._deadlines) == 501
    assert table.purge(now=5_000 + Deadlines.SLOT_MS) == ["soon"]
    assert len(table._deadlines) == 500
    assert not table._unsorted
    assert len(table) == 1_000


@pytest.mark.rule("RE-10")
@pytest.mark.rule("RE-17")
def test_cleaning_up_spares_what_was_extended_and_finds_it_later() -> None:
    table = table_with(
        remote(participant="extended", expiry=5_000),
        remote(participant="removed", expiry=5_000),
        remote(participant="again", expiry=5_000),
        remote(participant="for-ever", expiry=5_000),
    )
    table.purge(now=0)  # they are filed under their first expiry
    table.put(remote(participant="extended", expiry=50_000), now=1)
    table.put(remote(participant="for-ever"), now=1)
    table.remove("removed", now=1)
    table.remove("again", now=1)
    table.put(remote(participant="again", expiry=90_000), now=1)
    assert table.purge(now=20_000) == []
    assert set(table.snapshot(now=20_000)) == {"extended", "again", "for-ever"}
    assert table.purge(now=60_000) == ["extended"]
    assert table.purge(now=100_000) == ["again"]
    assert table.purge(now=10**9) == []
    assert len(table) == 1
    assert len(table._deadlines) == 0


@pytest.mark.rule("RE-17")
def test_who_comes_and_goes_leaves_nothing_behind_even_if_nobody_cleans_up() -> None:
    table = RoutingTable()
    for number in range(10_000):
        table.put(remote(participant=f"p{number}", expiry=10**9), now=0)
        table.remove(f"p{number}", now=0)
        assert len(table._unsorted) <= 1_100


@pytest.mark.rule("RE-17")
def test_a_large_table_is_not_gone_through_for_a_few_removals() -> None:
    table = table_with(*(remote(participant=f"p{n}", expiry=10**9) for n in range(5_000)))
    deadlines = table._deadlines
    for number in range(2_000):
        table.remove(f"p{number}", now=0)
    assert table._deadlines is deadlines


@pytest.mark.rule("RE-17")
def test_memory_follows_the_entries_and_not_their_changes() -> None:
    table = table_with(*(remote(participant=f"p{number}", expiry=5_000) for number in range(10)))
    for now in range(20_000):
        table.put(remote(participant="p0", expiry=10**6 + now), now=0)
        table.put(remote(participant="passing", address=OTHER, expiry=10**9), now=0)
        table.remove("passing", now=0)
        if now % 500 == 0:
            table.purge(now=0)
    assert len(table._unsorted) + len(table._deadlines) < 3_000
    assert set(table._at_address) == {ELSEWHERE}
    table.purge(now=2 * 10**6)
    assert len(table) == 0
    assert not table._at_address
    table.purge(now=2 * 10**9)
    assert len(table._deadlines) == 0


@pytest.mark.rule("RE-1")
@pytest.mark.parametrize("expiry", [-1, 1.5, LAST_INSTANT + 1, float("nan"), float("-inf"), None])
def test_an_expiry_that_is_no_instant_is_refused_by_name_and_rule(expiry: float) -> None:
    table = table_with(local())
    with pytest.raises(LocalError) as caught:
        table.put(remote(expiry=expiry), now=0)
    assert str(caught.value) == (
        f"invalid expiry {expiry!r}; give whole milliseconds since the epoch, "
        f"0 to {LAST_INSTANT}, or NEVER"
    )
    assert table.snapshot(now=0) == {"truck": local()}


@pytest.mark.rule("RE-1")
@pytest.mark.parametrize("participant", ["", b"truck", None, 7])
def test_a_participant_that_is_no_text_is_refused(participant: Any) -> None:
    table = RoutingTable()
    with pytest.raises(LocalError, match=r"invalid participant", check=breaks("RE-1")):
        table.put(local(participant=participant), now=0)
    assert len(table) == 0


@pytest.mark.rule("RE-1")
@pytest.mark.parametrize("participant", ["", "truck 7", "a=>b", "0xff", "a\n", b"truck", None, 7])
def test_a_participant_that_no_address_could_name_is_refused(participant: Any) -> None:
    with pytest.raises(LocalError) as caught:
        RoutingEntry.of(participant, HERE, local=True)
    assert str(caught.value) == (
        f"invalid participant {participant!r}; give text without white "
        "space or =>, not starting with 0x"
    )


@pytest.mark.rule("RE-1")
@pytest.mark.parametrize("participant", ["0", "0ab", "x0x", "a=b>c", "größe", "a#b"])
def test_unusual_participants_are_fine(participant: str) -> None:
    entry = RoutingEntry.of(participant, HERE, local=True, visible=True, expiry=5, sticky=True)
    assert entry == local(participant=participant, visible=True, expiry=5, sticky=True)
    assert table_with(entry).contains(participant, now=0)


@pytest.mark.rule("RE-12")
def test_one_participant_behind_an_address_needs_no_set() -> None:
    table = table_with(local(), remote(participant="a"), remote(participant="b"))
    assert table._at_address == {HERE: "truck", ELSEWHERE: {"a": None, "b": None}}


@pytest.mark.rule("RE-1")
def test_an_entry_that_points_at_no_address_is_refused_by_name_and_rule() -> None:
    with pytest.raises(LocalError) as caught:
        RoutingTable().put(local(address="0#truck"), now=0)
    assert str(caught.value) == "invalid address '0#truck' for participant 'truck'; give an Address"
    with pytest.raises(LocalError, match=r"invalid address None for participant"):
        RoutingEntry.of("truck", None, local=True)  # type: ignore[arg-type]
    with pytest.raises(LocalError, match=r"invalid expiry -5", check=breaks("RE-1")):
        RoutingEntry.of("truck", HERE, local=True, expiry=-5)
    assert RoutingEntry.of("truck", HERE, local=True) == local()


@pytest.mark.rule("RE-1")
@given(st.text(min_size=1, max_size=12))
def test_whoever_can_be_put_is_found_under_an_address_of_that_name(name: str) -> None:
    try:
        entry = RoutingEntry.of(name, HERE, local=True)
    except LocalError:
        return
    assert table_with(entry).contains(Address(0, name.encode()).name, now=0)


PARTICIPANTS = st.sampled_from("abcd")
PLACES = st.sampled_from([HERE, ELSEWHERE, OTHER, OWN])
EXPIRIES = st.integers(0, 40_000) | st.sampled_from([0, 8_192, 10_000, 16_384, NEVER])


class RoutingTableBesideItsOracle(RuleBasedStateMachine):
    """The table against a list of events that is folded anew for every question."""

    def __init__(self) -> None:
        super().__init__()
        self.table = RoutingTable(own_addresses=[OWN])
        self.entries: dict[str, RoutingEntry] = {}
        self.now = 0

    def alive(self) -> dict[str, RoutingEntry]:
        return {
            name: entry
            for name, entry in self.entries.items()
            if entry.sticky or entry.expiry > self.now
        }

    @rule(step=st.integers(0, 3_000) | st.sampled_from([0, 1, 8_192, 20_000]))
    def wait(self, step: int) -> None:
        self.now += step

    @rule(
        participant=PARTICIPANTS,
        address=PLACES,
        is_local=st.booleans(),
        visible=st.booleans(),
        expiry=EXPIRIES,
        sticky=st.integers(0, 7).map(lambda number: number == 0),
    )
    def put(
        self,
        participant: str,
        address: Address,
        is_local: bool,
        visible: bool,
        expiry: float,
        sticky: bool,
    ) -> None:
        entry = RoutingEntry(participant, address, is_local, visible, expiry, sticky)
        before = self.alive().get(participant)
        accepted = address != OWN and (before is None or is_local or not before.local)
        change = self.table.put(entry, self.now)
        note(f"{change}")
        assert (change.kind, change.entry, change.accepted) == (RouteKind.PUT, entry, accepted)
        if not accepted:
            return
        if before is not None:
            expiry = max(expiry, before.expiry)
            sticky = sticky or before.sticky
        self.entries[participant] = RoutingEntry(
            participant, address, is_local, visible, expiry, sticky
        )

    @rule(participant=PARTICIPANTS)
    def remove(self, participant: str) -> None:
        there = self.alive().get(participant)
        change = self.table.remove(participant, self.now)
        assert (change.entry if change else None) == there
        self.entries.pop(participant, None)

    @rule(address=PLACES)
    def close(self, address: Address) -> None:
        gone = {name for name, entry in self.alive().items() if entry.address == address}
        changes = self.table.remove_address(address, self.now)
        assert {change.entry.participant for change in changes} == gone
        for name in gone:
            del self.entries[name]

    @rule(names=st.sets(PARTICIPANTS, min_size=1), address=PLACES)
    def put_new(self, names: set[str], address: Address) -> None:
        new = {name: RoutingEntry(name, address, local=True) for name in names}
        is_free = not names & set(self.table._entries) and address != OWN
        assert self.table.put_new(new, address) is is_free
        if is_free:
            self.entries |= new

    @rule()
    def purge(self) -> None:
        freed = self.table.purge(self.now)
        assert not set(freed) & set(self.alive())
        overdue = {
            name
            for name, entry in self.entries.items()
            if name not in self.alive() and entry.expiry + Deadlines.SLOT_MS <= self.now
        }
        assert not overdue & set(self.table._entries)

    @invariant()
    def same_answers(self) -> None:
        alive = self.alive()
        assert self.table.snapshot(self.now) == alive
        for name in "abcd":
            assert self.table.lookup(name, self.now) == alive.get(name)
        for place in (HERE, ELSEWHERE, OTHER, OWN):
            there = {name for name, entry in alive.items() if entry.address == place}
            assert set(self.table.participants_at(place, self.now)) == there

    @invariant()
    def indexes_agree(self) -> None:
        held = {
            address: [names] if isinstance(names, str) else list(names)
            for address, names in self.table._at_address.items()
        }
        expected: dict[Address, list[str]] = {}
        for name, entry in self.table._entries.items():
            expected.setdefault(entry.address, []).append(name)
        assert {a: sorted(n) for a, n in held.items()} == {
            a: sorted(n) for a, n in expected.items()
        }


TestRoutingTable = RoutingTableBesideItsOracle.TestCase
