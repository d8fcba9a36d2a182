from __future__ import annotations

import uuid as standard
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from waystation.core.identity import (
    MAX_CHANGES,
    AddressCache,
    Failover,
    First,
    LogicalAddress,
    Mapping,
    Physical,
    RoundRobin,
    Selection,
    Uuid,
    uuid_text,
)
from waystation.errors import LocalError

AGE_MS = 120_000
RANDOM = st.binary(min_size=16, max_size=16)


def uuid(number: int) -> Uuid:
    return number.to_bytes(16, "big")


def mapping(number: int, *physical: Physical, stamp: int = 0, name: str | None = None) -> Mapping:
    return Mapping(LogicalAddress(uuid(number), name or f"m{number}"), physical, stamp)


ME = mapping(0, "10.0.0.1:7800")
TRUCK = mapping(7, "10.0.0.7:7800", name="truck-7")
CAR = mapping(8, "10.0.0.8:7800", name="car-8")


def a_cache(*known: Mapping, selection: Selection | None = None) -> AddressCache:
    cache = AddressCache(ME, selection, age_ms=AGE_MS)
    for each in known:
        cache.learn(each)
    return cache


def uuids(mappings: tuple[Mapping, ...] | list[Mapping]) -> list[Uuid]:
    return [each.uuid for each in mappings]


# Who a member is


@pytest.mark.rule("LA-1")
def test_members_are_equal_if_their_uuids_are_whatever_their_names() -> None:
    truck = LogicalAddress(uuid(7), "truck-7")
    same, other = LogicalAddress(uuid(7), "the red one"), LogicalAddress(uuid(8), "truck-7")
    assert (truck == same, truck == other, truck == uuid(7)) == (True, False, False)
    assert (truck != same, truck != other, truck != uuid(7)) == (False, True, True)


@pytest.mark.rule("LA-1")
def test_the_hash_uses_the_uuid_only() -> None:
    names = {LogicalAddress(uuid(7), "truck-7"): 1, LogicalAddress(uuid(8), "truck-7"): 2}
    assert names[LogicalAddress(uuid(7), "the red one")] == 1
    assert names[LogicalAddress(uuid(8), "the red one")] == 2


@pytest.mark.rule("LA-1")
def test_a_member_prints_as_its_name() -> None:
    assert str(LogicalAddress(uuid(7), "truck-7")) == "truck-7"
    assert f"to {TRUCK.member}" == "to truck-7"


@pytest.mark.rule("LA-1")
@given(RANDOM)
def test_a_uuid_is_written_as_everybody_writes_it(random_bytes: bytes) -> None:
    assert uuid_text(random_bytes) == str(standard.UUID(bytes=random_bytes))


@pytest.mark.rule("LA-2")
@given(RANDOM)
def test_a_fresh_uuid_is_a_random_one_and_wastes_no_randomness(random_bytes: bytes) -> None:
    made = standard.UUID(bytes=LogicalAddress.fresh(None, "garage", random_bytes).uuid)
    assert (made.version, made.variant) == (4, standard.RFC_4122)
    chosen_bits = (0xF << 76) | (0x3 << 62)
    assert (made.int ^ int.from_bytes(random_bytes, "big")) & ~chosen_bits == 0


@pytest.mark.rule("LA-2")
def test_each_connect_makes_another_member_of_the_same_name() -> None:
    before = LogicalAddress.fresh("truck-7", "garage", bytes(range(16)))
    after = LogicalAddress.fresh("truck-7", "garage", bytes(range(16, 32)))
    assert before != after
    assert str(before) == str(after) == "truck-7"


@pytest.mark.rule("LA-2")
@pytest.mark.parametrize("host", ["garage", "garage.example", "garage.example.org"])
def test_without_a_name_one_is_made_from_the_host_name(host: str) -> None:
    assert str(LogicalAddress.fresh(None, host, bytes(14) + b"\x01\x02")) == "garage-258"


@pytest.mark.rule("LA-2")
@pytest.mark.parametrize("random_bytes", [b"", b"fifteen bytes..", b"seventeen bytes.."])
def test_a_uuid_is_made_of_sixteen_bytes(random_bytes: bytes) -> None:
    with pytest.raises(LocalError) as caught:
        LogicalAddress.fresh("truck-7", "garage", random_bytes)
    assert caught.value.rule == "LA-2"
    assert repr(random_bytes) in str(caught.value)


@pytest.mark.rule("LA-2")
def test_a_restarted_member_is_a_different_member_on_the_same_host_and_port() -> None:
    before = Mapping(LogicalAddress.fresh("truck-7", "garage", bytes(range(16))), TRUCK.physical)
    after = Mapping(LogicalAddress.fresh("truck-7", "garage", bytes(range(16, 32))), TRUCK.physical)
    cache = a_cache(before)
    assert cache.learn(after)
    cache.invalidate(before.uuid, now=5)
    assert cache.lookup(before.uuid) is None
    assert cache.lookup(after.uuid) == after


# What the cache holds


@pytest.mark.rule("LA-3")
def test_the_cache_maps_a_uuid_to_its_physical_addresses_and_its_name() -> None:
    cache = a_cache(mapping(7, "10.0.0.7:7800", "192.168.0.7:7800", name="truck-7"))
    known = cache.lookup(uuid(7))
    assert known is not None
    assert known.physical == ("10.0.0.7:7800", "192.168.0.7:7800")
    assert str(known.member) == "truck-7"


@pytest.mark.rule("LA-3")
def test_the_cache_holds_the_own_mapping_first() -> None:
    cache = a_cache(TRUCK, CAR)
    assert cache.mappings() == [ME, TRUCK, CAR]
    assert len(cache) == 3


@pytest.mark.rule("LA-3")
def test_no_physical_address_is_selected_for_who_is_unknown_or_has_none() -> None:
    cache = a_cache(mapping(7))
    assert cache.lookup(uuid(8)) is None
    assert cache.select(uuid(8)) is None
    assert cache.select(uuid(7)) is None


@pytest.mark.rule("LA-7")
def test_a_mapping_is_learnt_if_it_is_new() -> None:
    cache = a_cache()
    assert cache.learn(TRUCK)
    assert not cache.learn(TRUCK)
    assert cache.lookup(TRUCK.uuid) == TRUCK


@pytest.mark.rule("LA-7")
def test_nobody_tells_a_node_where_it_is_itself() -> None:
    cache = a_cache()
    assert not cache.learn(mapping(0, "10.6.6.6:7800", stamp=9))
    assert cache.own == cache.lookup(ME.uuid) == ME


@pytest.mark.rule("LA-7")
def test_the_own_word_of_a_member_without_stamps_replaces_what_is_known() -> None:
    cache = a_cache(TRUCK)
    assert cache.learn(Mapping(TRUCK.member, ("10.0.0.99:7800",)))
    assert cache.select(uuid(7)) == "10.0.0.99:7800"


@pytest.mark.rule("LA-7")
def test_a_member_may_take_another_name() -> None:
    cache = a_cache(TRUCK)
    assert cache.learn(mapping(7, *TRUCK.physical, name="the red one"))
    known = cache.lookup(uuid(7))
    assert known is not None
    assert str(known.member) == "the red one"


@pytest.mark.rule("LA-5")
def test_hearsay_about_a_member_without_stamps_only_fills_a_gap() -> None:
    cache = a_cache()
    assert cache.learn(TRUCK, first_hand=False)
    assert not cache.learn(mapping(7, "10.0.0.99:7800"), first_hand=False)
    assert cache.lookup(uuid(7)) == TRUCK


# Which of its physical addresses to use


class Last:
    """A strategy of somebody else's."""

    def choose(self, uuid: Uuid, physical: tuple[Physical, ...]) -> Physical:  # noqa: ARG002
        return physical[-1]

    def failed(self, uuid: Uuid, physical: Physical) -> None:
        pass

    def forget(self, uuid: Uuid) -> None:
        pass


def chosen(cache: AddressCache, times: int) -> list[Physical | None]:
    return [cache.select(uuid(7)) for _ in range(times)]


@pytest.mark.rule("LA-4")
def test_the_strategy_is_pluggable() -> None:
    assert chosen(a_cache(mapping(7, "p", "q", "r"), selection=Last()), 2) == ["r", "r"]


@pytest.mark.rule("LA-4")
def test_first_is_always_the_first() -> None:
    cache = a_cache(mapping(7, "p", "q"), selection=First())
    cache.failed(uuid(7), "p")
    assert chosen(cache, 2) == ["p", "p"]


@pytest.mark.rule("LA-4")
def test_round_robin_uses_each_in_turn() -> None:
    cache = a_cache(mapping(7, "p", "q", "r"), mapping(8, "s", "t"), selection=RoundRobin())
    assert chosen(cache, 4) == ["p", "q", "r", "p"]
    assert cache.select(uuid(8)) == "s"  # each member has turns of its own


@pytest.mark.rule("LA-4")
def test_round_robin_goes_on_when_an_address_fails() -> None:
    cache = a_cache(mapping(7, "p", "q"), selection=RoundRobin())
    assert chosen(cache, 1) == ["p"]
    cache.failed(uuid(7), "p")
    assert chosen(cache, 1) == ["q"]


@pytest.mark.rule("LA-4")
def test_failover_stays_with_an_address_until_it_stops_working() -> None:
    cache = a_cache(mapping(7, "p", "q", "r"))  # fail-over is what you get without choosing
    assert chosen(cache, 3) == ["p", "p", "p"]
    cache.failed(uuid(7), "p")
    assert chosen(cache, 3) == ["q", "q", "q"]


@pytest.mark.rule("LA-4")
def test_when_all_have_failed_the_longest_ago_is_tried_again() -> None:
    cache = a_cache(mapping(7, "p", "q"))
    for place in ["p", "q", "p"]:
        cache.failed(uuid(7), place)
    assert chosen(cache, 1) == ["q"]


@pytest.mark.rule("LA-4")
def test_the_only_address_is_used_even_after_it_failed() -> None:
    cache = a_cache(TRUCK)
    cache.failed(TRUCK.uuid, TRUCK.physical[0])
    assert cache.select(TRUCK.uuid) == TRUCK.physical[0]


@pytest.mark.rule("LA-4")
@given(
    st.lists(st.sampled_from("pqr"), min_size=2, unique=True),
    st.lists(st.sampled_from("pqr"), max_size=12),
)
def test_failover_never_chooses_a_failed_address_before_a_working_one(
    physical: list[Physical], failures: list[Physical]
) -> None:
    cache = a_cache(mapping(7, *physical))
    for place in failures:
        cache.failed(uuid(7), place)
    last_failure = {place: index for index, place in enumerate(failures)}
    expected = min(physical, key=lambda place: last_failure.get(place, -1))
    assert cache.select(uuid(7)) == expected


@pytest.mark.rule("LA-8")
@pytest.mark.parametrize("selection", [First(), RoundRobin(), Failover()])
def test_what_a_strategy_remembered_of_a_member_goes_with_it(selection: Selection) -> None:
    selection.choose(uuid(7), ("p", "q"))
    selection.failed(uuid(7), "p")
    selection.forget(uuid(7))
    selection.forget(uuid(8))  # of whom nothing was remembered
    assert selection.choose(uuid(7), ("p", "q")) == "p"


@pytest.mark.rule("LA-8")
def test_the_strategy_hears_that_a_member_is_gone() -> None:
    cache = a_cache(mapping(7, "p", "q"), selection=RoundRobin())
    assert chosen(cache, 1) == ["p"]
    cache.leave(uuid(7), now=0)
    cache.purge(now=AGE_MS)
    cache.learn(mapping(7, "p", "q"))
    assert chosen(cache, 1) == ["p"]


@pytest.mark.rule("LA-8")
def test_a_connection_that_breaks_after_the_goodbye_leaves_no_trace() -> None:
    strategy = Failover()
    cache = a_cache(selection=strategy)
    for number in range(1, 100):
        cache.learn(mapping(number, "p", "q"))
        cache.invalidate(uuid(number), now=number)
        cache.failed(uuid(number), "p")
    assert not strategy._failed


# What the next message carries


@pytest.mark.rule("LA-5")
def test_the_next_message_carries_a_change() -> None:
    cache = a_cache(TRUCK)
    cache.learn(CAR)
    assert cache.changes_for(TRUCK.uuid) == (CAR,)
    assert cache.changes_for(TRUCK.uuid) == ()


@pytest.mark.rule("LA-5")
def test_the_next_message_to_all_carries_a_change() -> None:
    cache = a_cache(TRUCK)
    assert cache.changes_for_all() == (ME, TRUCK)
    assert cache.changes_for_all() == ()
    cache.learn(CAR)
    assert cache.changes_for_all() == (CAR,)


@pytest.mark.rule("LA-5")
def test_each_member_is_told_for_itself() -> None:
    cache = a_cache(TRUCK, CAR)
    cache.move(["10.0.0.2:7800"])
    assert cache.changes_for(TRUCK.uuid) == (CAR, cache.own)
    assert cache.changes_for(CAR.uuid) == (cache.own,)


@pytest.mark.rule("LA-5")
def test_what_all_were_told_need_not_be_told_to_each() -> None:
    cache = a_cache(TRUCK)
    cache.learn(CAR)
    cache.changes_for_all()
    assert cache.changes_for(TRUCK.uuid) == ()


@pytest.mark.rule("LA-5")
def test_a_member_is_not_told_of_itself_nor_of_what_was_before_it() -> None:
    cache = a_cache(TRUCK, CAR)
    assert cache.changes_for(CAR.uuid) == ()
    cache.learn(mapping(8, "10.0.0.88:7800", stamp=1))
    assert cache.changes_for(CAR.uuid) == ()


@pytest.mark.rule("LA-5")
def test_of_several_changes_of_a_member_the_last_is_told() -> None:
    cache = a_cache(TRUCK, CAR)
    cache.changes_for(TRUCK.uuid)
    for stamp in (1, 2, 3):
        cache.learn(mapping(8, f"10.0.0.8:{stamp}", stamp=stamp))
    assert cache.changes_for(TRUCK.uuid) == (mapping(8, "10.0.0.8:3", stamp=3),)


@pytest.mark.rule("LA-5")
def test_many_changes_are_spread_over_messages_without_repeats_or_gaps() -> None:
    cache = a_cache(TRUCK)
    news = [mapping(number, "p") for number in range(100, 100 + 2 * MAX_CHANGES + 3)]
    for each in news:
        cache.learn(each)
    one, two, three, four = (cache.changes_for(TRUCK.uuid) for _ in range(4))
    assert (len(one), len(two), len(three), four) == (MAX_CHANGES, MAX_CHANGES, 3, ())
    assert [*one, *two, *three] == news
    told_to_all = [cache.changes_for_all() for _ in range(4)]
    assert [each for part in told_to_all for each in part] == [ME, TRUCK, *news]
    assert max(map(len, told_to_all)) == MAX_CHANGES


@pytest.mark.rule("LA-5")
def test_a_stranger_is_told_nothing_and_takes_no_memory() -> None:
    cache = a_cache(TRUCK)
    assert cache.changes_for(uuid(99)) == ()
    assert uuid(99) not in cache._told


@pytest.mark.rule("LA-5")
def test_who_was_forgotten_is_not_told_of() -> None:
    cache = a_cache(TRUCK, CAR)
    cache.invalidate(CAR.uuid, now=5)
    assert cache.changes_for(TRUCK.uuid) == ()
    assert cache.changes_for_all() == (ME, TRUCK)


# Newer statements win wherever they meet


@pytest.mark.rule("LA-5")
@pytest.mark.rule("LA-10")
@pytest.mark.parametrize("first_hand", [True, False])
def test_a_newer_stamp_always_wins(first_hand: bool) -> None:
    cache = a_cache(mapping(7, "p", stamp=1))
    assert cache.learn(mapping(7, "q", stamp=2), first_hand=first_hand)
    assert cache.select(uuid(7)) == "q"


@pytest.mark.rule("LA-5")
@pytest.mark.rule("LA-10")
@pytest.mark.parametrize("first_hand", [True, False])
@pytest.mark.parametrize("stamp", [0, 1, 2])
def test_an_older_or_equal_stamp_never_wins(stamp: int, first_hand: bool) -> None:
    cache = a_cache(mapping(7, "p", stamp=2))
    assert not cache.learn(mapping(7, "q", stamp=stamp), first_hand=first_hand)
    assert cache.select(uuid(7)) == "p"


@pytest.mark.rule("LA-5")
@pytest.mark.rule("LA-10")
def test_a_member_that_moved_there_and_back_is_not_sent_away_by_old_news() -> None:
    cache = a_cache(mapping(7, "p", stamp=0))
    cache.learn(mapping(7, "p", stamp=2))  # between the two it was at q
    assert not cache.learn(mapping(7, "q", stamp=1), first_hand=False)
    assert cache.select(uuid(7)) == "p"


@pytest.mark.rule("LA-3")
def test_without_stamps_hearsay_fills_a_gap_and_silence_erases_nothing() -> None:
    cache = a_cache(mapping(7))
    assert cache.learn(mapping(7, "p"), first_hand=False)  # it was known, but not where
    assert not cache.learn(mapping(7, "q"), first_hand=False)
    assert not cache.learn(mapping(7), first_hand=True)
    assert not cache.learn(mapping(7, "p"), first_hand=True)
    assert cache.learn(mapping(7, "q"), first_hand=True)
    assert cache.select(uuid(7)) == "q"


@pytest.mark.rule("LA-5")
def test_old_news_takes_no_memory() -> None:
    cache = a_cache(TRUCK)
    for stamp in range(1, 1_000):
        cache.learn(mapping(99, f"p{stamp}", stamp=stamp))
        assert len(cache._news) <= 80
    assert cache.changes_for(TRUCK.uuid) == (mapping(99, "p999", stamp=999),)


@pytest.mark.rule("LA-4")
def test_new_addresses_start_without_the_failures_of_the_old_ones() -> None:
    cache = a_cache(mapping(7, "p", "q", stamp=1))
    cache.failed(uuid(7), "p")
    assert cache.select(uuid(7)) == "q"
    assert cache.learn(mapping(7, "p", "q", stamp=2))  # the same ones, said again
    assert cache.select(uuid(7)) == "q"
    assert cache.learn(mapping(7, "p", "r", stamp=3))
    assert cache.select(uuid(7)) == "p"


@pytest.mark.rule("LA-5")
@pytest.mark.rule("LA-10")
@given(
    places=st.lists(st.sampled_from("pqr"), min_size=1, max_size=5),
    heard=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4), st.booleans()), max_size=12),
    order=st.permutations([(a, b) for a in (1, 2, 3) for b in (1, 2, 3) if a != b]),
)
def test_nodes_that_contradict_each_other_converge_on_the_newest_and_fall_silent(
    places: list[Physical], heard: list[tuple[int, int, bool]], order: list[tuple[int, int]]
) -> None:
    nodes = {number: AddressCache(mapping(number, f"n{number}")) for number in (1, 2, 3)}
    for node in nodes.values():
        for other in nodes.values():
            node.learn(other.own)
    newest = -1
    for number, index, first_hand in heard:
        stamp = index % len(places)
        newest = max(newest, stamp)
        nodes[number].learn(mapping(7, places[stamp], stamp=stamp + 1), first_hand=first_hand)
    for _ in range(4):  # everybody sends to everybody, some times over
        told = 0
        for sender, receiver in order:
            for change in nodes[sender].changes_for(uuid(receiver)):
                nodes[receiver].learn(change, first_hand=False)
                told += 1
    assert told == 0  # nothing goes round for ever
    expected = None if newest < 0 else mapping(7, places[newest], stamp=newest + 1)
    assert [node.lookup(uuid(7)) for node in nodes.values()] == [expected] * 3


@pytest.mark.rule("LA-10")
def test_moving_keeps_the_identity_and_outdoes_what_was_said_before() -> None:
    here, there = a_cache(), AddressCache(CAR)
    moves = [here.own, here.move(["10.9.9.9:7800"]), here.move(["p", "q"]), here.move([])]
    assert here.own == here.lookup(ME.uuid) == moves[-1]
    assert {str(each.member) for each in moves} == {str(ME.member)}
    assert all(before.member == after.member for before, after in pairwise(moves))
    assert [there.learn(each) for each in moves] == [True] * 4
    assert [there.learn(each) for each in moves] == [False] * 4
    assert here.changes_for_all() == (here.own,)


# Forgetting


@pytest.mark.rule("LA-8")
def test_a_member_that_said_goodbye_is_forgotten_at_once() -> None:
    cache = a_cache(TRUCK)
    assert cache.invalidate(TRUCK.uuid, now=5)
    assert cache.lookup(TRUCK.uuid) is None
    assert cache.mappings() == [ME]
    assert not cache.invalidate(TRUCK.uuid, now=6)


@pytest.mark.rule("LA-8")
def test_hearsay_does_not_bring_back_who_said_goodbye() -> None:
    cache = a_cache(TRUCK)
    cache.invalidate(TRUCK.uuid, now=5)
    cache.purge(now=5 + AGE_MS - 1)
    assert not cache.learn(mapping(7, "p", stamp=9), first_hand=False)
    cache.purge(now=5 + AGE_MS)
    assert cache.learn(TRUCK, first_hand=False)


@pytest.mark.rule("LA-8")
def test_the_goodbye_may_arrive_before_the_mapping() -> None:
    cache = a_cache()
    assert not cache.invalidate(TRUCK.uuid, now=5)
    assert not cache.learn(TRUCK)


@pytest.mark.rule("LA-3")
@pytest.mark.rule("LA-8")
def test_the_own_mapping_is_never_lost() -> None:
    cache = AddressCache(ME, age_ms=0, capacity=0)
    assert not cache.invalidate(ME.uuid, now=5)
    cache.leave(ME.uuid, now=5)
    cache.retain([], now=5)
    assert cache.purge(now=10**9) == []
    assert cache.mappings() == [ME]


@pytest.mark.rule("LA-3")
def test_a_member_that_left_still_answers_until_it_has_aged() -> None:
    cache = a_cache(TRUCK, CAR)
    cache.leave(TRUCK.uuid, now=1_000)  # the age counts from here, however long it was known
    cache.leave(TRUCK.uuid, now=9_000)  # and not anew
    assert cache.purge(now=1_000 + AGE_MS - 1) == []
    assert cache.select(TRUCK.uuid) == TRUCK.physical[0]
    assert cache.purge(now=1_000 + AGE_MS) == [TRUCK.uuid]
    assert cache.mappings() == [ME, CAR]


@pytest.mark.rule("LA-3")
def test_leaving_means_nothing_for_who_is_not_known() -> None:
    cache = a_cache()
    cache.leave(TRUCK.uuid, now=0)
    cache.learn(TRUCK)
    assert cache.purge(now=10**9) == []


@pytest.mark.rule("LA-3")
def test_a_member_that_speaks_again_has_not_left_but_hearsay_is_no_sign_of_life() -> None:
    cache = a_cache(TRUCK, CAR)
    cache.retain([], now=0)
    cache.learn(TRUCK)
    cache.learn(CAR, first_hand=False)
    assert cache.purge(now=AGE_MS) == [CAR.uuid]


@pytest.mark.rule("LA-3")
def test_the_membership_decides_who_has_left_and_who_is_back() -> None:
    cache = a_cache(TRUCK, CAR)
    cache.retain([CAR.uuid], now=0)
    cache.retain([TRUCK.uuid], now=10)
    assert cache.purge(now=AGE_MS) == []
    assert cache.purge(now=AGE_MS + 10) == [CAR.uuid]


@pytest.mark.rule("LA-3")
def test_of_too_many_the_earliest_leavers_go_and_members_never() -> None:
    cache = AddressCache(ME, age_ms=AGE_MS, capacity=3)
    for number in range(1, 6):
        cache.learn(mapping(number, "p"))
    assert cache.purge(now=0) == []  # five members may well be more than the capacity
    for number in (4, 2, 5, 1):
        cache.leave(uuid(number), now=0)
    assert cache.purge(now=0) == [uuid(4), uuid(2), uuid(5)]
    assert uuids(cache.mappings()) == [uuid(0), uuid(1), uuid(3)]


@pytest.mark.rule("LA-8")
def test_the_memory_of_goodbyes_is_bounded() -> None:
    cache = AddressCache(ME, age_ms=AGE_MS, capacity=3)
    for number in range(1, 6):
        cache.invalidate(uuid(number), now=number)
    assert [cache.learn(mapping(number, "p")) for number in range(1, 6)] == [True] * 2 + [False] * 3


# The cache beside a slow and obvious one


FEW = st.integers(1, 4)
STATEMENTS = st.builds(
    lambda number, stamp, place: mapping(
        number, *(("p",), ("q", "p"), ("p", "q"))[place if stamp == 0 else stamp % 3], stamp=stamp
    ),
    FEW,
    st.integers(0, 5),  # the same places come back under newer stamps
    st.integers(0, 2),
)


class Oracle:
    """The rules of the cache with plain lists: slow, and easy to check by eye."""

    def __init__(self, age_ms: int, capacity: int) -> None:
        self.age_ms = age_ms
        self.capacity = capacity
        self.known = {ME.uuid: ME}
        self.left: list[tuple[Uuid, int]] = []
        self.gone: list[tuple[Uuid, int]] = []
        # Whose changes each member has yet to hear, the longest known first; None is "all".
        self.unheard: dict[Uuid | None, list[Uuid]] = {None: [ME.uuid]}

    def change(self, new: Mapping) -> None:
        joins = new.uuid not in self.known
        self.known[new.uuid] = new
        for unheard in self.unheard.values():
            unheard[:] = [uuid for uuid in unheard if uuid != new.uuid] + [new.uuid]
        if joins:
            self.unheard[new.uuid] = []

    def learn(self, new: Mapping, *, first_hand: bool) -> bool:
        if new.uuid == ME.uuid or new.uuid in dict(self.gone):
            return False
        old = self.known.get(new.uuid)
        if first_hand:
            self.left = [(uuid, when) for uuid, when in self.left if uuid != new.uuid]
        own_word = first_hand and old is not None and old.stamp == new.stamp == 0
        if old is None or new.stamp > old.stamp or (own_word and new.physical != old.physical):
            self.change(new)
            return True
        return False

    def leave(self, uuid: Uuid, now: int) -> None:
        if uuid in self.known and uuid != ME.uuid and uuid not in dict(self.left):
            self.left.append((uuid, now))

    def retain(self, members: list[Uuid], now: int) -> None:
        self.left = [(uuid, when) for uuid, when in self.left if uuid not in members]
        for uuid in self.known:
            if uuid not in members:
                self.leave(uuid, now)

    def forget(self, uuid: Uuid) -> None:
        self.known.pop(uuid, None)
        self.left = [(who, when) for who, when in self.left if who != uuid]
        self.unheard.pop(uuid, None)
        for unheard in self.unheard.values():
            unheard[:] = [who for who in unheard if who != uuid]

    def invalidate(self, uuid: Uuid, now: int) -> bool:
        was_known = uuid in self.known
        if uuid not in dict(self.gone):
            self.gone = [*self.gone, (uuid, now)][-self.capacity :]
        self.forget(uuid)
        return was_known

    def purge(self, now: int) -> list[Uuid]:
        evicted = []
        for uuid, when in list(self.left):
            if now - when >= self.age_ms or len(self.known) > self.capacity:
                self.forget(uuid)
                evicted.append(uuid)
        self.gone = [(uuid, when) for uuid, when in self.gone if now - when < self.age_ms]
        return evicted

    def tell(self, listener: Uuid | None) -> tuple[Mapping, ...]:
        told = self.unheard.get(listener, [])[:MAX_CHANGES]
        for each in self.unheard.values() if listener is None else [self.unheard.get(listener, [])]:
            each[:] = [uuid for uuid in each if uuid not in told]
        return tuple(self.known[uuid] for uuid in told if uuid != listener)


class CacheBesideItsOracle(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.cache = AddressCache(ME, First(), age_ms=100, capacity=6)
        self.oracle = Oracle(age_ms=100, capacity=6)

    @rule(step=st.sampled_from([0, 1, 50, 99, 100]))
    def time_passes(self, step: int) -> None:
        self.now += step

    @rule(new=STATEMENTS, first_hand=st.booleans())
    def learn(self, new: Mapping, first_hand: bool) -> None:
        expected = self.oracle.learn(new, first_hand=first_hand)
        assert self.cache.learn(new, first_hand=first_hand) is expected

    @rule(first=st.integers(100, 160), count=st.integers(1, 45))
    def learn_many(self, first: int, count: int) -> None:
        for number in range(first, first + count):
            new = mapping(number, "p")
            assert self.cache.learn(new) is self.oracle.learn(new, first_hand=True)

    @rule(physical=st.lists(st.sampled_from("pqr"), unique=True))
    def move(self, physical: list[Physical]) -> None:
        self.oracle.change(self.cache.move(physical))
        assert self.cache.own.physical == tuple(physical)

    @rule(number=st.integers(0, 4))
    def leave(self, number: int) -> None:
        self.cache.leave(uuid(number), self.now)
        self.oracle.leave(uuid(number), self.now)

    @rule(members=st.lists(st.integers(0, 4)))
    def retain(self, members: list[int]) -> None:
        self.cache.retain(map(uuid, members), self.now)
        self.oracle.retain([uuid(number) for number in members], self.now)

    @rule(number=FEW)
    def invalidate(self, number: int) -> None:
        expected = self.oracle.invalidate(uuid(number), self.now)
        assert self.cache.invalidate(uuid(number), self.now) is expected

    @rule()
    def purge(self) -> None:
        assert self.cache.purge(self.now) == self.oracle.purge(self.now)

    @rule(number=st.integers(0, 5))
    def send(self, number: int) -> None:
        assert self.cache.changes_for(uuid(number)) == self.oracle.tell(uuid(number))

    @rule()
    def send_all(self) -> None:
        assert self.cache.changes_for_all() == self.oracle.tell(None)

    @precondition(lambda self: len(self.oracle.unheard[None]) > MAX_CHANGES)
    @rule(number=FEW)
    def send_until_all_is_told(self, number: int) -> None:
        while expected := self.oracle.tell(uuid(number)):
            assert self.cache.changes_for(uuid(number)) == expected
        assert self.cache.changes_for(uuid(number)) == ()

    @invariant()
    def same_mappings(self) -> None:
        assert self.cache.mappings() == list(self.oracle.known.values())
        assert len(self.cache) == len(self.oracle.known)
        for known in self.oracle.known.values():
            assert self.cache.lookup(known.uuid) == known
            assert self.cache.select(known.uuid) == (known.physical or (None,))[0]

    @invariant()
    def memory_is_only_of_the_known(self) -> None:
        for memory in (self.cache._changed, self.cache._told, self.cache._left):
            assert set(memory) <= set(self.oracle.known)


TestAddressCache = CacheBesideItsOracle.TestCase
for proven in ("LA-3", "LA-5", "LA-8"):
    pytest.mark.rule(proven)(TestAddressCache)


@pytest.mark.rule("LA-8")
def test_who_said_goodbye_is_remembered_for_a_while() -> None:
    cache = AddressCache(mapping(1, "10.0.0.1:1"), age_ms=100)
    cache.learn(mapping(2, "10.0.0.2:1"))
    assert not cache.said_goodbye(uuid(2))
    cache.invalidate(uuid(2), now=0)
    assert cache.said_goodbye(uuid(2))
    cache.purge(now=100)
    assert not cache.said_goodbye(uuid(2))
