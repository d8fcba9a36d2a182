from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace

from tests.rule_errors import breaks
from waystation.core.expiry import NEVER
from waystation.core.gossip import (
    ConnectionId,
    Dialect,
    Disconnect,
    Effect,
    GossipRouter,
    MemberChange,
    MemberKind,
    MemberLimits,
    Refused,
    Registered,
    Suspect,
    Unregistered,
)
from waystation.core.identity import LogicalAddress, Mapping, Physical, Uuid
from waystation.errors import LocalError

J2 = Dialect.JGROUPS2
J5 = Dialect.JGROUPS5
SILENCE = MemberLimits().silence_ms
HELD = MemberLimits().suspect_after_ms


def member(number: int, name: str | None = None) -> LogicalAddress:
    return LogicalAddress(bytes(15) + bytes([number]), name or f"truck-{number}")


ONE, TWO, THREE = member(1), member(2), member(3)
HERE: tuple[Physical, ...] = ("10.0.0.1:7800",)
THERE: tuple[Physical, ...] = ("10.0.0.2:7800", "10.1.0.2:7800")


def router_with(*dialects: Dialect, limits: MemberLimits | None = None) -> GossipRouter:
    """A router with connections 1, 2, 3… that speak these dialects, all opened at 0."""
    router = GossipRouter(limits)
    for number, dialect in enumerate(dialects, start=1):
        router.connected(number, dialect, now=0)
    return router


def join(router: GossipRouter, connection: ConnectionId, group: str, who: LogicalAddress) -> None:
    """Register a member that must find room."""
    first, *_ = router.register(connection, group, who, HERE)
    assert first == Registered(connection, group, who)


def change(kind: MemberKind, group: str, who: LogicalAddress) -> MemberChange:
    return MemberChange(kind, group, Mapping(who, HERE))


def told(effects: Iterable[Effect]) -> list[tuple[set[ConnectionId], str, list[LogicalAddress]]]:
    """Who learns of whose deaths."""
    return [
        (set(effect.connections), effect.group, list(effect.members))
        for effect in effects
        if isinstance(effect, Suspect)
    ]


def dead(router: GossipRouter, connection: ConnectionId, now: int = 0) -> list[Effect]:
    """What is told when a connection ended without a word, at once and after the wait."""
    return router.closed(connection, now) + router.wake(now + HELD)


def spelled(effects: Iterable[Effect]) -> list[str]:
    """Effects in full: equality leaves names out (LA-1), and who is told comes in no order."""
    return [
        repr(
            replace(effect, connections=tuple(sorted(effect.connections)))
            if isinstance(effect, Suspect)
            else effect
        )
        for effect in effects
    ]


@pytest.fixture(params=[J2, J5], ids=["2.12", "5"])
def dialect(request: pytest.FixtureRequest) -> Dialect:
    assert isinstance(request.param, Dialect)
    return request.param


# Connections


@pytest.mark.rule("GR-1")
def test_an_open_connection_registers_nobody(dialect: Dialect) -> None:
    router = router_with(dialect)
    assert router.groups(1) == []
    assert router.members(1, "fleet") == []
    assert router.route(1, "fleet", None) == ()


@pytest.mark.rule("GR-1")
def test_a_connection_asks_and_sends_without_registering(dialect: Dialect) -> None:
    router = router_with(dialect, dialect)
    join(router, 1, "fleet", ONE)
    assert router.groups(2) == ["fleet"]
    assert router.members(2, "fleet") == [Mapping(ONE, HERE)]
    assert router.route(2, "fleet", ONE.uuid) == (1,)
    assert router.closed(2, 0) == []  # and nobody misses it


@pytest.mark.rule("GR-1")
def test_a_connection_that_is_open_cannot_open_again(dialect: Dialect) -> None:
    router = router_with(dialect)
    join(router, 1, "fleet", ONE)
    with pytest.raises(LocalError, match="connection 1 is already open") as caught:
        router.connected(1, dialect, now=5)
    assert caught.value.rule == "GR-1"
    assert router.route(1, "fleet", ONE.uuid) == (1,)


@pytest.mark.rule("GR-1")
@pytest.mark.parametrize(
    "use",
    [
        lambda router, gone: router.heard(gone, 5),
        lambda router, gone: router.register(gone, "fleet", TWO, HERE),
        lambda router, gone: router.unregister(gone, "fleet", ONE.uuid),
        lambda router, gone: router.members(gone, "fleet"),
        lambda router, gone: router.groups(gone),
        lambda router, gone: router.route(gone, "fleet", ONE.uuid),
    ],
    ids=["heard", "register", "unregister", "members", "groups", "route"],
)
def test_a_connection_that_is_not_open_cannot_be_used(
    use: Callable[[GossipRouter, ConnectionId], object],
) -> None:
    router = router_with(J5, J5, J5)
    join(router, 2, "fleet", ONE)
    for gone in (1, 3):
        router.closed(gone, 0)
    for gone in (1, 3, 9):
        with pytest.raises(LocalError, match=f"connection {gone} is not open") as caught:
            use(router, gone)
        assert caught.value.rule == "GR-1"
    assert router.members(2, "fleet") == [Mapping(ONE, HERE)]
    assert router.wake_at() == SILENCE


def test_the_end_of_a_connection_that_the_router_ended_itself_is_no_news() -> None:
    router = router_with(J2)
    join(router, 1, "fleet", ONE)
    for now in (0, 1):
        router.heard(1, now, heartbeat=True)
    assert router.wake(SILENCE + 1)[-1] == Disconnect(1, "silent for 60000 ms")
    assert router.closed(1, SILENCE + 1) == []
    assert router.closed(1, SILENCE + 1, goodbye=True) == []


# Members


@pytest.mark.rule("OB-4")
@pytest.mark.rule("GR-2")
def test_a_member_registers_with_group_name_and_addresses(dialect: Dialect) -> None:
    router = router_with(dialect)
    assert router.register(1, "fleet", ONE, THERE) == [
        Registered(1, "fleet", ONE),
        MemberChange(MemberKind.JOIN, "fleet", Mapping(ONE, THERE)),
    ]
    assert router.groups(1) == ["fleet"]
    assert router.route(1, "fleet", ONE.uuid) == (1,)


def test_a_change_of_membership_reads_as_a_line() -> None:
    line = str(change(MemberKind.JOIN, "fleet", ONE))
    assert line == "join truck-1 (00000000-0000-0000-0000-000000000001) fleet"


@pytest.mark.rule("GR-3")
def test_one_connection_carries_many_members_in_many_groups(dialect: Dialect) -> None:
    router = router_with(dialect, dialect)
    for group in ("fleet", "depot", "garage"):
        for who in (ONE, TWO, THREE):
            join(router, 1, group, who)
    join(router, 2, "fleet", member(4))
    assert sorted(router.groups(1)) == ["depot", "fleet", "garage"]
    for group in ("fleet", "depot", "garage"):
        assert [router.route(2, group, who.uuid) for who in (ONE, TWO, THREE)] == [(1,)] * 3
    assert router.unregister(1, "depot", TWO.uuid)[1:] == [change(MemberKind.LEAVE, "depot", TWO)]
    assert router.route(2, "depot", TWO.uuid) == ()
    assert router.route(2, "garage", TWO.uuid) == (1,)
    assert [entry.member for entry in router.members(2, "depot")] == [ONE, THREE]


@pytest.mark.rule("GR-4")
def test_members_come_with_address_name_and_physical_addresses(dialect: Dialect) -> None:
    router = router_with(dialect, dialect, dialect)
    router.register(1, "fleet", ONE, HERE)
    router.register(2, "fleet", TWO, THERE)
    router.register(2, "fleet", THREE, ())
    router.register(3, "depot", member(4), HERE)
    for asker in (1, 2, 3):
        listed = [
            (entry.uuid, entry.member.name, entry.physical)
            for entry in router.members(asker, "fleet")
        ]
        assert sorted(listed) == [
            (ONE.uuid, "truck-1", HERE),
            (TWO.uuid, "truck-2", THERE),
            (THREE.uuid, "truck-3", ()),
        ]
    assert router.members(1, "garage") == []


@pytest.mark.rule("GR-2")
@pytest.mark.rule("GR-4")
def test_registering_again_on_the_same_connection_only_answers(dialect: Dialect) -> None:
    router = router_with(dialect)
    join(router, 1, "fleet", ONE)
    assert router.register(1, "fleet", ONE, HERE) == [Registered(1, "fleet", ONE)]
    assert router.members(1, "fleet") == [Mapping(ONE, HERE)]
    assert router.closed(1, 0) == [change(MemberKind.SUSPECT, "fleet", ONE)]  # one member, not two


@pytest.mark.rule("GR-2")
@pytest.mark.rule("GR-4")
@pytest.mark.parametrize("connection", [1, 2], ids=["same connection", "new connection"])
def test_registering_again_with_other_addresses_replaces_them(
    dialect: Dialect, connection: ConnectionId
) -> None:
    router = router_with(dialect, dialect)
    join(router, 1, "fleet", ONE)
    assert router.register(connection, "fleet", ONE, THERE)[:2] == [
        Registered(connection, "fleet", ONE),
        MemberChange(MemberKind.ADDRESS, "fleet", Mapping(ONE, THERE)),
    ]
    assert router.members(connection, "fleet") == [Mapping(ONE, THERE)]


@pytest.mark.rule("GR-2")
@pytest.mark.rule("GR-4")
@pytest.mark.parametrize("connection", [1, 2], ids=["same connection", "new connection"])
def test_the_newest_name_of_a_member_is_the_one_that_is_told_and_stored(
    dialect: Dialect, connection: ConnectionId
) -> None:
    router = router_with(dialect, dialect)
    renamed = member(1, "the red one")
    join(router, 1, "fleet", ONE)
    assert spelled(router.register(connection, "fleet", renamed, HERE)[:2]) == spelled(
        [Registered(connection, "fleet", renamed), change(MemberKind.ADDRESS, "fleet", renamed)]
    )
    assert [entry.member.name for entry in router.members(connection, "fleet")] == ["the red one"]
    ended = router.closed(1, 0) + router.closed(2, 0)
    assert spelled(ended) == spelled([change(MemberKind.SUSPECT, "fleet", renamed)])


# Routing


@pytest.mark.rule("GR-5")
def test_a_message_to_a_member_goes_to_that_member_only(dialect: Dialect) -> None:
    router = router_with(dialect, dialect, dialect)
    for connection, who in enumerate((ONE, TWO, THREE), start=1):
        join(router, connection, "fleet", who)
    assert router.route(1, "fleet", TWO.uuid) == (2,)
    assert router.route(2, "fleet", TWO.uuid) == (2,)  # to itself as well
    assert router.route(1, "fleet", member(9).uuid) == ()


@pytest.mark.rule("GR-5")
def test_a_message_without_an_address_goes_to_the_group_once_over_each_connection(
    dialect: Dialect,
) -> None:
    router = router_with(dialect, dialect, dialect)
    join(router, 1, "fleet", ONE)
    join(router, 2, "fleet", TWO)
    join(router, 2, "fleet", THREE)
    for sender in (1, 2, 3):
        assert sorted(router.route(sender, "fleet", None)) == [1, 2]


@pytest.mark.rule("GR-5")
def test_every_change_of_a_group_is_seen_by_the_next_message(dialect: Dialect) -> None:
    router = router_with(dialect, dialect)
    join(router, 1, "fleet", ONE)
    assert router.route(1, "fleet", None) == (1,)
    join(router, 2, "fleet", TWO)
    assert router.route(1, "fleet", None) == (1, 2)
    router.unregister(1, "fleet", ONE.uuid)
    assert router.route(1, "fleet", None) == (2,)
    router.closed(2, 0)
    assert router.route(1, "fleet", None) == ()


@pytest.mark.rule("GR-6")
def test_members_of_other_groups_never_see_it(dialect: Dialect) -> None:
    router = router_with(dialect, dialect)
    join(router, 1, "fleet", ONE)
    join(router, 2, "depot", TWO)
    assert router.route(1, "fleet", None) == (1,)
    assert router.route(1, "depot", None) == (2,)
    assert router.route(1, "fleet", TWO.uuid) == ()
    assert router.route(1, "garage", None) == router.route(1, "garage", ONE.uuid) == ()


@pytest.mark.rule("GR-6")
@pytest.mark.rule("GR-8")
@pytest.mark.rule("GR-9")
def test_groups_of_one_name_in_two_dialects_never_meet() -> None:
    router = router_with(J2, J5)
    join(router, 1, "fleet", ONE)
    assert router.groups(2) == []
    assert router.members(2, "fleet") == []
    assert router.register(2, "fleet", ONE, THERE) == [  # a join of its own
        Registered(2, "fleet", ONE),
        MemberChange(MemberKind.JOIN, "fleet", Mapping(ONE, THERE)),
    ]
    join(router, 2, "fleet", TWO)
    assert router.members(1, "fleet") == [Mapping(ONE, HERE)]
    assert (router.route(1, "fleet", None), router.route(2, "fleet", None)) == ((1,), (2,))
    assert (router.route(1, "fleet", ONE.uuid), router.route(2, "fleet", ONE.uuid)) == ((1,), (2,))
    assert router.route(1, "fleet", TWO.uuid) == ()
    router.unregister(2, "fleet", ONE.uuid)
    assert router.route(1, "fleet", ONE.uuid) == (1,)
    assert told(dead(router, 1)) == [(set(), "fleet", [ONE])]  # to nobody
    assert router.members(2, "fleet") == [Mapping(TWO, HERE)]


# Leaving


@pytest.mark.rule("GR-7")
def test_a_member_that_leaves_takes_nobody_along(dialect: Dialect) -> None:
    router = router_with(dialect, dialect)
    for group in ("fleet", "depot"):
        join(router, 1, group, ONE)
    join(router, 1, "fleet", TWO)
    join(router, 2, "fleet", THREE)
    assert router.unregister(1, "fleet", ONE.uuid) == [
        Unregistered(1, "fleet", ONE.uuid),
        change(MemberKind.LEAVE, "fleet", ONE),
    ]
    assert [entry.member for entry in router.members(1, "fleet")] == [TWO, THREE]
    assert router.members(1, "depot") == [Mapping(ONE, HERE)]


@pytest.mark.rule("GR-7")
def test_a_connection_whose_last_member_left_is_still_good(dialect: Dialect) -> None:
    router = router_with(dialect)
    join(router, 1, "fleet", ONE)
    router.unregister(1, "fleet", ONE.uuid)
    assert router.groups(1) == []
    join(router, 1, "fleet", ONE)
    assert router.route(1, "fleet", ONE.uuid) == (1,)


@pytest.mark.rule("GR-7")
def test_only_the_owner_makes_a_member_leave(dialect: Dialect) -> None:
    router = router_with(dialect, dialect)
    join(router, 1, "fleet", ONE)
    assert router.unregister(2, "fleet", ONE.uuid) == [Unregistered(2, "fleet", ONE.uuid)]
    assert router.route(2, "fleet", ONE.uuid) == (1,)


@pytest.mark.rule("GR-7")
def test_leaving_what_one_is_not_in_is_answered_all_the_same(dialect: Dialect) -> None:
    router = router_with(dialect)
    join(router, 1, "fleet", ONE)
    for group, who in (("garage", ONE), ("fleet", TWO), ("fleet", ONE), ("fleet", ONE)):
        first, *_ = router.unregister(1, group, who.uuid)
        assert first == Unregistered(1, group, who.uuid)
    assert router.unregister(1, "fleet", ONE.uuid)[1:] == []  # the second time nothing happens


# The end of a connection


@pytest.mark.rule("GR-8")
def test_a_closed_connection_takes_all_its_members_along_and_the_groups_learn_of_it(
    dialect: Dialect,
) -> None:
    router = router_with(dialect, dialect, dialect)
    join(router, 1, "fleet", ONE)
    join(router, 1, "depot", ONE)
    join(router, 1, "fleet", TWO)
    join(router, 2, "fleet", THREE)
    join(router, 3, "depot", THREE)
    assert router.closed(1, 0) == [
        change(MemberKind.SUSPECT, "fleet", ONE),
        change(MemberKind.SUSPECT, "depot", ONE),
        change(MemberKind.SUSPECT, "fleet", TWO),
    ]
    assert router.wake_at() == HELD
    assert router.wake(HELD - 1) == []
    assert router.wake(HELD) == [
        Suspect(dialect, (2,), "fleet", (ONE, TWO)),
        Suspect(dialect, (3,), "depot", (ONE,)),
    ]
    assert router.wake(HELD) == []
    assert router.members(2, "fleet") == router.members(2, "depot") == [Mapping(THREE, HERE)]
    assert router.route(2, "fleet", ONE.uuid) == router.route(2, "fleet", TWO.uuid) == ()


@pytest.mark.rule("GR-8")
def test_nobody_is_told_when_nobody_is_left(dialect: Dialect) -> None:
    router = router_with(dialect, dialect)
    join(router, 1, "fleet", ONE)
    join(router, 2, "depot", TWO)
    assert told(dead(router, 1)) == [(set(), "fleet", [ONE])]
    assert router.groups(2) == ["depot"]


@pytest.mark.rule("GR-8")
def test_a_member_that_left_first_is_not_suspected(dialect: Dialect) -> None:
    router = router_with(dialect, dialect)
    join(router, 1, "fleet", ONE)
    join(router, 2, "fleet", TWO)
    router.unregister(1, "fleet", ONE.uuid)
    assert dead(router, 1) == []


@pytest.mark.rule("GR-8")
def test_goodbye_in_2_12_is_a_quiet_leave() -> None:
    router = router_with(J2, J2)
    join(router, 1, "fleet", ONE)
    join(router, 2, "fleet", TWO)
    assert router.closed(1, 0, goodbye=True) == [change(MemberKind.LEAVE, "fleet", ONE)]
    assert router.wake(HELD) == []
    assert router.members(2, "fleet") == [Mapping(TWO, HERE)]


@pytest.mark.rule("GR-8")
def test_goodbye_in_5_without_leaving_makes_suspects() -> None:
    router = router_with(J5, J5)
    join(router, 1, "fleet", ONE)
    join(router, 2, "fleet", TWO)
    assert router.closed(1, 0, goodbye=True) == [change(MemberKind.SUSPECT, "fleet", ONE)]
    assert told(router.wake(HELD)) == [({2}, "fleet", [ONE])]


@pytest.mark.rule("GR-8")
def test_a_member_that_registers_again_in_time_is_not_suspected(dialect: Dialect) -> None:
    router = router_with(dialect, dialect, dialect)
    for connection, who in enumerate((ONE, TWO, THREE), start=1):
        join(router, connection, "fleet", who)
    router.closed(1, 100)
    router.closed(2, 200)
    assert router.members(3, "fleet") == [Mapping(THREE, HERE)]  # neither is reachable
    router.connected(4, dialect, 300)
    assert router.register(4, "fleet", ONE, HERE)[1:] == [change(MemberKind.JOIN, "fleet", ONE)]
    assert router.wake_at() == 200 + HELD
    assert told(router.wake(200 + HELD)) == [({3, 4}, "fleet", [TWO])]


@pytest.mark.rule("GR-8")
def test_deaths_that_are_due_together_are_told_together(dialect: Dialect) -> None:
    router = router_with(*[dialect] * 5)
    for connection in range(1, 6):
        join(router, connection, "fleet", member(connection))
    for connection, now in ((1, 10), (2, 20), (3, 500)):
        router.closed(connection, now)
    assert told(router.wake(100 + HELD)) == [({4, 5}, "fleet", [ONE, TWO])]
    assert told(router.wake(500 + HELD)) == [({4, 5}, "fleet", [THREE])]


# One member, two connections


@pytest.mark.rule("GR-9")
def test_the_newest_path_of_a_member_is_used_and_the_others_stay(dialect: Dialect) -> None:
    router = router_with(dialect, dialect, dialect)
    join(router, 1, "fleet", ONE)
    assert router.register(2, "fleet", ONE, HERE) == [Registered(2, "fleet", ONE)]
    assert router.route(3, "fleet", ONE.uuid) == router.route(3, "fleet", None) == (2,)
    assert router.members(3, "fleet") == [Mapping(ONE, HERE)]  # one member
    assert dead(router, 2) == []  # and nobody learns that a path went
    assert router.route(3, "fleet", ONE.uuid) == router.route(3, "fleet", None) == (1,)


@pytest.mark.rule("GR-8")
@pytest.mark.rule("GR-9")
@pytest.mark.parametrize("last", [1, 2])
def test_the_group_learns_of_a_death_when_the_last_path_dies(dialect: Dialect, last: int) -> None:
    router = router_with(dialect, dialect, dialect)
    join(router, 1, "fleet", ONE)
    join(router, 2, "fleet", ONE)
    join(router, 3, "fleet", TWO)
    assert dead(router, 3 - last) == []
    assert router.route(3, "fleet", ONE.uuid) == (last,)
    assert dead(router, last) == [
        change(MemberKind.SUSPECT, "fleet", ONE),
        Suspect(dialect, (3,), "fleet", (ONE,)),
    ]


@pytest.mark.rule("GR-7")
@pytest.mark.rule("GR-9")
@pytest.mark.parametrize("used", [1, 2])
def test_leaving_over_any_path_ends_the_member(dialect: Dialect, used: int) -> None:
    router = router_with(dialect, dialect, dialect)
    join(router, 1, "fleet", ONE)
    join(router, 2, "fleet", ONE)
    assert router.unregister(used, "fleet", ONE.uuid) == [
        Unregistered(used, "fleet", ONE.uuid),
        change(MemberKind.LEAVE, "fleet", ONE),
    ]
    assert router.members(3, "fleet") == []
    assert router.unregister(3 - used, "fleet", ONE.uuid)[1:] == []
    for connection in (1, 2):
        assert not router.owned(connection)
        assert dead(router, connection) == []


@pytest.mark.rule("GR-9")
def test_another_path_in_one_group_leaves_the_other_groups_alone(dialect: Dialect) -> None:
    router = router_with(dialect, dialect)
    join(router, 1, "fleet", ONE)
    join(router, 1, "depot", ONE)
    join(router, 2, "fleet", ONE)
    assert router.route(2, "depot", ONE.uuid) == (1,)
    assert router.route(2, "fleet", ONE.uuid) == (2,)
    assert list(router.owned(1)) == [("fleet", ONE.uuid), ("depot", ONE.uuid)]


@pytest.mark.rule("GR-9")
def test_the_path_that_registered_last_is_the_newest(dialect: Dialect) -> None:
    router = router_with(dialect, dialect)
    for connection in (1, 2, 1):
        join(router, connection, "fleet", ONE)
        assert router.route(connection, "fleet", None) == (connection,)
    assert dead(router, 1) == []
    assert router.route(2, "fleet", ONE.uuid) == (2,)


# What a correct router must do and the original ones do not


@pytest.mark.rule("GR-2")
def test_checklist_1_the_answer_to_connect_comes_before_anything_else(dialect: Dialect) -> None:
    router = router_with(dialect, dialect)
    for connection, physical in ((1, HERE), (1, THERE), (2, HERE), (2, HERE)):
        first, *others = router.register(connection, "fleet", ONE, physical)
        assert first == Registered(connection, "fleet", ONE)
        assert not any(isinstance(effect, Registered) for effect in others)


@pytest.mark.rule("GR-8")
@pytest.mark.rule("GR-9")
@pytest.mark.parametrize("goodbye", [True, False])
def test_checklist_2_a_close_removes_only_those_with_no_other_path(
    dialect: Dialect, goodbye: bool
) -> None:
    router = router_with(dialect, dialect)
    join(router, 1, "fleet", ONE)
    join(router, 1, "depot", TWO)
    join(router, 2, "fleet", ONE)
    gone = router.closed(1, 0, goodbye=goodbye)
    assert [effect.mapping.member for effect in gone if isinstance(effect, MemberChange)] == [TWO]
    assert router.members(2, "fleet") == [Mapping(ONE, HERE)]
    assert router.route(2, "fleet", ONE.uuid) == (2,)


@pytest.mark.rule("GR-8")
def test_checklist_3_suspect_goes_only_where_the_dead_was_and_once(dialect: Dialect) -> None:
    router = router_with(dialect, dialect, dialect)
    join(router, 1, "fleet", ONE)
    join(router, 1, "fleet", TWO)
    join(router, 1, "depot", TWO)
    router.register(1, "fleet", ONE, THERE)  # again, which must not make it die twice
    for who in (THREE, member(4)):
        join(router, 2, "fleet", who)
    join(router, 3, "depot", member(5))
    join(router, 3, "garage", member(5))
    router.route(1, "garage", None)  # to have spoken to a group is not to be in it
    gone = dead(router, 1)
    assert told(gone) == [({2}, "fleet", [TWO, ONE]), ({3}, "depot", [TWO])]
    assert [len(effect.connections) for effect in gone if isinstance(effect, Suspect)] == [1, 1]


@pytest.mark.rule("GR-8")
@pytest.mark.rule("GR-9")
def test_checklist_3_the_successor_never_hears_that_it_is_dead(dialect: Dialect) -> None:
    router = router_with(dialect, dialect, dialect)
    join(router, 1, "fleet", ONE)
    join(router, 1, "fleet", TWO)
    join(router, 3, "fleet", THREE)
    assert told(router.register(2, "fleet", ONE, HERE)) == []
    assert told(dead(router, 1)) == [({2, 3}, "fleet", [TWO])]


@pytest.mark.rule("GR-9")
def test_checklist_4_a_connect_again_closes_nobody(dialect: Dialect) -> None:
    router = router_with(dialect, dialect, dialect)
    join(router, 1, "fleet", ONE)
    join(router, 3, "fleet", TWO)
    assert router.register(2, "fleet", ONE, HERE) == [Registered(2, "fleet", ONE)]
    assert sorted(router.route(3, "fleet", None)) == [2, 3]
    assert router.route(1, "fleet", TWO.uuid) == (3,)  # the older path still sends


@pytest.mark.rule("GR-8")
def test_checklist_6_a_dead_peer_is_found_without_traffic_and_without_being_configured(
    dialect: Dialect,
) -> None:
    router = router_with(dialect, dialect)
    join(router, 1, "fleet", ONE)
    join(router, 2, "fleet", TWO)
    for now in (0, 5_000):  # as 2.12 does by default
        router.heard(1, now, heartbeat=True)
    assert router.wake_at() == SILENCE == 60_000
    assert router.wake(SILENCE) == []
    assert router.wake(SILENCE + 5_000) == [
        change(MemberKind.SUSPECT, "fleet", ONE),
        Disconnect(1, "silent for 60000 ms"),
    ]
    assert told(router.wake(SILENCE + 5_000 + HELD)) == [({2}, "fleet", [ONE])]
    assert router.members(2, "fleet") == [Mapping(TWO, HERE)]
    assert router.closed(1, 0) == []


@pytest.mark.rule("GR-2")
@pytest.mark.parametrize(
    ("limits", "group", "why"),
    [
        (MemberLimits(members_per_connection=2), "fleet", "over 2 members on one connection"),
        (MemberLimits(groups=2), "garage", "over 2 groups"),
        (MemberLimits(members_per_group=1), "fleet", "over 1 members in one group"),
    ],
)
def test_checklist_7_what_is_too_much_is_refused_before_anything_is_stored(
    dialect: Dialect, limits: MemberLimits, group: str, why: str
) -> None:
    router = router_with(dialect, limits=limits)
    join(router, 1, "fleet", ONE)
    join(router, 1, "depot", ONE)
    assert router.register(1, group, TWO, HERE) == [Refused(1, group, TWO, why)]
    assert router.groups(1) == ["fleet", "depot"]
    assert router.route(1, group, TWO.uuid) == ()
    router.closed(1, 0)
    assert router._groups == {}


# Limits


def test_who_is_in_already_needs_no_room() -> None:
    full = MemberLimits(groups=1, members_per_group=1, members_per_connection=1)
    router = router_with(J5, J5, limits=full)
    join(router, 1, "fleet", ONE)
    join(router, 1, "fleet", ONE)
    join(router, 2, "fleet", ONE)
    assert router.route(2, "fleet", None) == (2,)


def test_a_router_with_no_room_for_groups_has_room_for_members() -> None:
    router = router_with(J5, limits=MemberLimits(groups=1))
    join(router, 1, "fleet", ONE)
    join(router, 1, "fleet", TWO)
    assert len(router.members(1, "fleet")) == 2


def test_who_leaves_makes_room() -> None:
    router = router_with(
        J5, limits=MemberLimits(groups=1, members_per_group=1, members_per_connection=1)
    )
    join(router, 1, "fleet", ONE)
    router.unregister(1, "fleet", ONE.uuid)
    join(router, 1, "depot", TWO)
    assert router.groups(1) == ["depot"]


def test_another_path_counts_as_a_member_of_the_connection() -> None:
    router = router_with(J5, J5, limits=MemberLimits(members_per_connection=1))
    join(router, 1, "fleet", ONE)
    join(router, 2, "fleet", TWO)
    assert router.register(2, "fleet", ONE, THERE) == [
        Refused(2, "fleet", ONE, "over 1 members on one connection")
    ]
    assert router.route(2, "fleet", ONE.uuid) == (1,)
    assert router.members(2, "fleet") == [Mapping(ONE, HERE), Mapping(TWO, HERE)]


@pytest.mark.rule("GR-2")
@pytest.mark.parametrize("name", MemberLimits.__struct_fields__)
@pytest.mark.parametrize("value", [0, -1])
def test_a_limit_that_leaves_room_for_nothing_is_a_mistake(name: str, value: int) -> None:
    if (name, value) == ("suspect_after_ms", 0):
        GossipRouter(MemberLimits(suspect_after_ms=0))  # tells at once
        return
    with pytest.raises(LocalError, match=f"invalid limit {name} {value}; ") as caught:
        GossipRouter(replace(MemberLimits(), **{name: value}))
    assert caught.value.rule == "GR-2"


# Silence


def test_a_number_that_is_given_again_is_another_connection() -> None:
    router = GossipRouter(MemberLimits(silence_ms=100))
    for now in range(50):
        router.connected(1, Dialect.JGROUPS5, now=now)
        router.closed(1, 0)
    router.connected(1, Dialect.JGROUPS5, now=60)
    for now in range(100, 1_000, 50):
        assert router.wake(now) == []
    assert len(router._checks) == 1


def test_what_is_no_dialect_or_no_list_of_addresses_is_refused_by_name_and_rule() -> None:
    router = GossipRouter()
    with pytest.raises(LocalError, match=r"invalid dialect 'JGroups 5'", check=breaks("GR-1")):
        router.connected(1, "JGroups 5", now=0)  # type: ignore[arg-type]
    router.connected(1, Dialect.JGROUPS5, now=0)
    member = LogicalAddress(bytes(16), "m")
    with pytest.raises(
        LocalError, match=r"'10.0.0.1:1' is a single physical address", check=breaks("LA-3")
    ):
        router.register(1, "fleet", member, "10.0.0.1:1")  # type: ignore[arg-type]
    with pytest.raises(LocalError, match=r"invalid limit groups '5'", check=breaks("GR-2")):
        GossipRouter(MemberLimits(groups="5"))  # type: ignore[arg-type]


def test_nothing_to_look_at_without_connections() -> None:
    router = GossipRouter()
    assert router.wake_at() == NEVER
    assert router.wake(10**12) == []


def beating(router: GossipRouter, *connections: ConnectionId) -> None:
    """Two heartbeats, at -1 and 0: from then on silence counts."""
    for connection in connections:
        for now in (-1, 0):
            router.heard(connection, now, heartbeat=True)


@pytest.mark.rule("GR-8")
def test_whoever_speaks_in_time_lives_and_whoever_does_not_dies_at_the_instant() -> None:
    router = router_with(J2)
    beating(router, 1)
    router.heard(1, now=SILENCE - 1)
    assert router.wake(SILENCE) == []
    assert router.wake_at() == 2 * SILENCE - 1
    assert router.wake(2 * SILENCE - 2) == []
    assert router.wake(2 * SILENCE - 1) == [Disconnect(1, "silent for 60000 ms")]
    assert router.wake_at() == NEVER


@pytest.mark.rule("GR-8")
def test_a_late_look_finds_the_dead_all_the_same() -> None:
    router = router_with(J2)
    beating(router, 1)
    router.heard(1, now=500)
    assert router.wake(SILENCE + 1_500) == [Disconnect(1, "silent for 61000 ms")]


@pytest.mark.rule("GR-8")
def test_silence_says_nothing_until_the_second_heartbeat(dialect: Dialect) -> None:
    router = router_with(dialect)
    join(router, 1, "fleet", ONE)
    now = 0
    for _ in range(5):
        now += SILENCE
        assert router.wake(now) == []
    router.heard(1, now, heartbeat=True)
    assert router.wake(now + SILENCE) == []
    now += 2 * SILENCE
    router.heard(1, now)  # other traffic is a sign of life, and no heartbeat
    assert router.wake(now + SILENCE) == []


@pytest.mark.rule("GR-8")
def test_a_client_may_miss_two_of_its_own_heartbeats_however_rare_they_are(
    dialect: Dialect,
) -> None:
    router = router_with(dialect)
    join(router, 1, "fleet", ONE)
    pause, now = 2 * SILENCE, 0
    for _ in range(4):
        assert router.wake(now) == []
        router.heard(1, now, heartbeat=True)
        now += pause
    now -= pause
    router.heard(1, now + 10, heartbeat=True)  # an early one makes nobody less patient
    assert router.wake(now + 10 + 3 * pause - 1) == []
    assert router.wake(now + 10 + 3 * pause) == [
        change(MemberKind.SUSPECT, "fleet", ONE),
        Disconnect(1, f"silent for {3 * pause} ms"),
    ]


@pytest.mark.rule("GR-8")
def test_each_of_many_silent_connections_ends_once() -> None:
    router = router_with(J2, J2, J2, J2)
    beating(router, 1, 2, 3, 4)
    for connection in (1, 2, 3):
        join(router, connection, "fleet", member(connection))
    router.heard(3, now=SILENCE)
    effects = router.wake(SILENCE)
    ended = [effect.connection for effect in effects if isinstance(effect, Disconnect)]
    assert sorted(ended) == [1, 2, 4]
    assert told(router.wake(SILENCE + HELD)) == [({3}, "fleet", [ONE, TWO])]
    assert router.wake(SILENCE + HELD) == []
    assert router.route(3, "fleet", None) == (3,)


def test_words_cost_no_memory_and_no_looks() -> None:
    router = router_with(J5, J5)
    for now in range(1_000):
        router.heard(1, now, heartbeat=True)
    assert len(router._checks) == 2


@pytest.mark.rule("GR-8")
def test_nothing_stays_behind_when_all_have_gone(dialect: Dialect) -> None:
    router = router_with(dialect, dialect, dialect)
    for connection in (1, 2, 3):
        for group in ("fleet", "depot"):
            join(router, connection, group, member(connection))
            join(router, connection, group, ONE)
    for connection in (1, 2, 3):
        router.closed(connection, 0)
    assert (router._groups, router._connections) == ({}, {})
    assert all(not effect.connections for effect in router.wake(SILENCE))  # type: ignore[union-attr]
    assert (router._checks, router._deaths) == ([], {})


# The router beside a slow and obvious one


class Entry(NamedTuple):
    connection: ConnectionId
    dialect: Dialect
    group: str
    member: LogicalAddress
    physical: tuple[Physical, ...]


class Death(NamedTuple):
    at: int
    dialect: Dialect
    group: str
    member: LogicalAddress


class FlatList:
    """A router that keeps one list of all registrations, oldest first, and searches all of it.

    A member is what its newest registration says; all of one member say the same.
    """

    def __init__(self, limits: MemberLimits) -> None:
        self.limits = limits
        self.dialects: dict[ConnectionId, Dialect] = {}  # of the open connections
        self.last_word: dict[ConnectionId, int] = {}
        self.beats: dict[ConnectionId, list[int]] = {}
        self.entries: list[Entry] = []
        self.deaths: list[Death] = []  # that were not told yet

    def paths(self, dialect: Dialect, group: str, uuid: Uuid) -> list[Entry]:
        return [
            entry
            for entry in self.entries
            if (entry.dialect, entry.group, entry.member.uuid) == (dialect, group, uuid)
        ]

    def within(self, dialect: Dialect, group: str) -> list[Entry]:
        """The newest path of each member."""
        newest = {
            entry.member.uuid: entry
            for entry in self.entries
            if (entry.dialect, entry.group) == (dialect, group)
        }
        return list(newest.values())

    def of(self, connection: ConnectionId) -> list[Entry]:
        return [entry for entry in self.entries if entry.connection == connection]

    def find(self, dialect: Dialect, group: str, uuid: Uuid) -> Entry | None:
        paths = self.paths(dialect, group, uuid)
        return paths[-1] if paths else None

    def reasons_to_refuse(self, new: Entry) -> list[str]:
        paths = self.paths(new.dialect, new.group, new.member.uuid)
        groups = {(entry.dialect, entry.group) for entry in self.entries}
        reasons = []
        if new.connection not in [path.connection for path in paths]:
            most = self.limits.members_per_connection
            if len(self.of(new.connection)) >= most:
                reasons.append(f"over {most} members on one connection")
        if not paths:
            if (new.dialect, new.group) not in groups and len(groups) >= self.limits.groups:
                reasons.append(f"over {self.limits.groups} groups")
            if len(self.within(new.dialect, new.group)) >= self.limits.members_per_group:
                reasons.append(f"over {self.limits.members_per_group} members in one group")
        return reasons

    def register(self, new: Entry) -> list[Effect]:
        before = self.find(new.dialect, new.group, new.member.uuid)
        mapping = Mapping(new.member, new.physical)
        effects: list[Effect] = [Registered(new.connection, new.group, new.member)]
        if before is None:
            effects.append(MemberChange(MemberKind.JOIN, new.group, mapping))
        elif (before.member.name, before.physical) != (new.member.name, new.physical):
            effects.append(MemberChange(MemberKind.ADDRESS, new.group, mapping))
        paths = self.paths(new.dialect, new.group, new.member.uuid)
        for path in paths:
            where = self.entries.index(path)
            self.entries[where] = path._replace(member=new.member, physical=new.physical)
        if (again := [path for path in paths if path.connection == new.connection]) != []:
            self.entries.remove(again[0]._replace(member=new.member, physical=new.physical))
        self.entries.append(new)
        self.deaths = [
            death
            for death in self.deaths
            if (death.dialect, death.group, death.member) != (new.dialect, new.group, new.member)
        ]
        return effects

    def unregister(self, connection: ConnectionId, group: str, uuid: Uuid) -> list[Effect]:
        effects: list[Effect] = [Unregistered(connection, group, uuid)]
        paths = self.paths(self.dialects[connection], group, uuid)
        if connection in [path.connection for path in paths]:
            self.entries = [entry for entry in self.entries if entry not in paths]
            mapping = Mapping(paths[-1].member, paths[-1].physical)
            effects.append(MemberChange(MemberKind.LEAVE, group, mapping))
        return effects

    def close(self, connection: ConnectionId, now: int, *, goodbye: bool) -> list[Effect]:
        dialect = self.dialects.pop(connection)
        quiet = goodbye and dialect is J2
        gone = self.of(connection)
        self.entries = [entry for entry in self.entries if entry.connection != connection]
        effects: list[Effect] = []
        for entry in gone:
            if self.find(dialect, entry.group, entry.member.uuid) is not None:
                continue
            kind = MemberKind.LEAVE if quiet else MemberKind.SUSPECT
            mapping = Mapping(entry.member, entry.physical)
            effects.append(MemberChange(kind, entry.group, mapping))
            if not quiet:
                self.deaths.append(Death(now, dialect, entry.group, entry.member))
        return effects

    def tell(self, now: int) -> list[Effect]:
        due = [death for death in self.deaths if now >= death.at + self.limits.suspect_after_ms]
        self.deaths = self.deaths[len(due) :]
        effects: list[Effect] = []
        for dialect, group in dict.fromkeys((death.dialect, death.group) for death in due):
            members = [death.member for death in due if death[1:3] == (dialect, group)]
            left = {other.connection for other in self.within(dialect, group)}
            effects.append(Suspect(dialect, tuple(left), group, tuple(members)))
        return effects

    def patience(self, connection: ConnectionId) -> int | None:
        beats = self.beats.get(connection, [])
        if len(beats) < 2:
            return None
        longest = max(later - earlier for earlier, later in pairwise(beats))
        return max(self.limits.silence_ms, 3 * longest)

    def silent(self, now: int) -> set[ConnectionId]:
        found = set()
        for connection in self.dialects:
            patience = self.patience(connection)
            if patience is not None and now >= self.last_word[connection] + patience:
                found.add(connection)
        return found


GROUPS = ("fleet", "depot", "garage", "yard")
MEMBERS = [member(number) for number in range(1, 6)]
WHICH = st.integers(0, 11)  # one of the open connections, counted round
SOON = 100
LIMITS = st.sampled_from(
    [
        MemberLimits(silence_ms=SOON, suspect_after_ms=0),
        MemberLimits(
            groups=3,
            members_per_group=3,
            members_per_connection=4,
            silence_ms=SOON,
            suspect_after_ms=40,
        ),
        MemberLimits(
            groups=2,
            members_per_group=2,
            members_per_connection=2,
            silence_ms=SOON,
            suspect_after_ms=40,
        ),
    ]
)
NEW_MEMBERS = st.tuples(
    WHICH,
    st.sampled_from(GROUPS),
    st.builds(member, st.integers(1, 5), st.sampled_from(["truck", "car"])),
    st.sampled_from([(), HERE, THERE]),
)
NewMember: TypeAlias = tuple[int, str, LogicalAddress, tuple[Physical, ...]]
Row: TypeAlias = tuple[str, Uuid, str, tuple[Physical, ...]]


def row(group: str, who: LogicalAddress, physical: tuple[Physical, ...]) -> Row:
    """A member as the journal stores it."""
    return group, who.uuid, who.name, physical


class GossipRouterBesideAFlatList(RuleBasedStateMachine):
    @initialize(
        limits=LIMITS,
        dialects=st.lists(st.sampled_from(Dialect), min_size=2, max_size=5),
        new=st.lists(NEW_MEMBERS, min_size=5, max_size=20),
    )
    def start(self, limits: MemberLimits, dialects: list[Dialect], new: list[NewMember]) -> None:
        self.router = GossipRouter(limits)
        self.oracle = FlatList(limits)
        self.now = 0
        self.opened = 0
        self.journal: Counter[Row] = Counter()
        for dialect in dialects:
            self.connect(dialect)
        self.register(new)

    def open(self, which: int) -> ConnectionId:
        connections = list(self.oracle.dialects)
        return connections[which % len(connections)]

    def check(
        self, effects: list[Effect], expected: list[Effect], before: Entry | None = None
    ) -> None:
        """Compare, and keep a journal; `before` is what a change of address replaces in it."""
        assert spelled(effects) == spelled(expected)
        for effect in effects:
            if isinstance(effect, MemberChange):
                told = row(effect.group, effect.mapping.member, effect.mapping.physical)
                stays = effect.kind in (MemberKind.JOIN, MemberKind.ADDRESS)
                self.journal[told] += 1 if stays else -1
                if effect.kind is MemberKind.ADDRESS:
                    assert before is not None
                    self.journal[row(before.group, before.member, before.physical)] -= 1

    @rule(step=st.integers(0, 30))
    def wait(self, step: int) -> None:
        self.now += step

    @precondition(lambda self: len(self.oracle.dialects) < 6)
    @rule(dialect=st.sampled_from(Dialect))
    def connect(self, dialect: Dialect) -> None:
        self.opened += 1
        self.router.connected(self.opened, dialect, self.now)
        self.oracle.dialects[self.opened] = dialect
        self.oracle.last_word[self.opened] = self.now

    @precondition(lambda self: self.oracle.dialects)
    @rule(which=WHICH, heartbeat=st.booleans())
    def hear(self, which: int, heartbeat: bool) -> None:
        connection = self.open(which)
        self.router.heard(connection, self.now, heartbeat=heartbeat)
        self.oracle.last_word[connection] = self.now
        if heartbeat:
            self.oracle.beats.setdefault(connection, []).append(self.now)

    @precondition(lambda self: self.oracle.dialects)
    @rule(new=st.lists(NEW_MEMBERS, min_size=1, max_size=6))
    def register(self, new: list[NewMember]) -> None:
        for which, group, who, physical in new:
            self.put(self.open(which), group, who, physical)

    @precondition(lambda self: self.oracle.entries)
    @rule(
        which=WHICH,
        entry=st.integers(0, 17),
        physical=st.none() | st.sampled_from([HERE, THERE]),
        name=st.none() | st.sampled_from(["truck", "car"]),
    )
    def register_again(
        self, which: int, entry: int, physical: tuple[Physical, ...] | None, name: str | None
    ) -> None:
        """Over the same or another connection, with the same or another name and addresses."""
        before = self.oracle.entries[entry % len(self.oracle.entries)]
        who = before.member if name is None else replace(before.member, name=name)
        where = before.physical if physical is None else physical
        self.put(self.open(which), before.group, who, where)

    def put(
        self,
        connection: ConnectionId,
        group: str,
        who: LogicalAddress,
        physical: tuple[Physical, ...],
    ) -> None:
        new = Entry(connection, self.oracle.dialects[connection], group, who, physical)
        effects = self.router.register(connection, group, who, physical)
        reasons = self.oracle.reasons_to_refuse(new)
        if reasons:
            (refused,) = effects
            assert isinstance(refused, Refused)
            assert refused.why in reasons
            assert refused == Refused(connection, group, who, refused.why)
        else:
            before = self.oracle.find(new.dialect, group, who.uuid)
            self.check(effects, self.oracle.register(new), before)

    @precondition(lambda self: self.oracle.dialects)
    @rule(which=WHICH, group=st.sampled_from(GROUPS), who=st.sampled_from(MEMBERS))
    def unregister(self, which: int, group: str, who: LogicalAddress) -> None:
        connection = self.open(which)
        effects = self.router.unregister(connection, group, who.uuid)
        self.check(effects, self.oracle.unregister(connection, group, who.uuid))

    @precondition(lambda self: self.oracle.dialects)
    @rule(which=WHICH, goodbye=st.booleans())
    def close(self, which: int, goodbye: bool) -> None:
        connection = self.open(which)
        effects = self.router.closed(connection, self.now, goodbye=goodbye)
        self.check(effects, self.oracle.close(connection, self.now, goodbye=goodbye))
        for closed in set(range(1, self.opened + 1)) - set(self.oracle.dialects):
            assert self.router.closed(closed, self.now, goodbye=goodbye) == []

    @rule(step=st.sampled_from([0, 1, 10, 30, 50, 99, 100]))
    def wake(self, step: int) -> None:
        self.now += step
        effects = self.router.wake(self.now)
        # Which of several dead connections goes first is not promised, so it is taken from here.
        ended = [effect for effect in effects if isinstance(effect, Disconnect)]
        assert sorted(end.connection for end in ended) == sorted(self.oracle.silent(self.now))
        expected: list[Effect] = []
        for end in ended:
            silence = self.now - self.oracle.last_word[end.connection]
            expected += self.oracle.close(end.connection, self.now, goodbye=False)
            expected.append(Disconnect(end.connection, f"silent for {silence} ms"))
        self.check(effects, expected + self.oracle.tell(self.now))
        # One look for each that lives; those of the closed are forgotten within one silence.
        looked_at = [connection for _, _, connection in self.router._checks]
        assert len(set(looked_at)) == len(looked_at)
        assert set(looked_at) >= set(self.oracle.dialects)
        for due, _, connection in self.router._checks:
            if connection in self.oracle.dialects:
                patience = self.oracle.patience(connection)
                assert self.now < due <= self.now + (SOON if patience is None else patience)

    @invariant()
    def every_question_has_the_same_answer(self) -> None:
        assert set(self.router._connections) == set(self.oracle.dialects)
        newest = {dialect: asker for asker, dialect in self.oracle.dialects.items()}
        for dialect, asker in newest.items():
            named = {entry.group for entry in self.oracle.entries if entry.dialect is dialect}
            assert sorted(self.router.groups(asker)) == sorted(named)
            for group in GROUPS:
                within = self.oracle.within(dialect, group)
                mappings = [Mapping(entry.member, entry.physical) for entry in within]
                members = self.router.members(asker, group)
                assert sorted(map(repr, members)) == sorted(map(repr, mappings))
                everybody = {entry.connection for entry in within}
                assert sorted(self.router.route(asker, group, None)) == sorted(everybody)
                for who in MEMBERS:
                    there = self.oracle.find(dialect, group, who.uuid)
                    expected = () if there is None else (there.connection,)
                    assert self.router.route(asker, group, who.uuid) == expected

    @invariant()
    def the_journal_tells_who_is_there_with_newest_name_and_addresses(self) -> None:
        groups = {(entry.dialect, entry.group) for entry in self.oracle.entries}
        there = Counter(
            row(entry.group, entry.member, entry.physical)
            for group in groups
            for entry in self.oracle.within(*group)
        )
        assert +self.journal == there
        assert min(self.journal.values(), default=0) >= 0  # nobody leaves who never came

    @invariant()
    def nobody_is_looked_at_too_late(self) -> None:
        looks = {connection: due for due, _, connection in self.router._checks}
        for connection in self.oracle.dialects:
            patience = self.oracle.patience(connection)
            if patience is not None:
                # The second heartbeat may come right after a look.
                assert looks[connection] <= self.oracle.last_word[connection] + patience + SOON
        deaths = [death.at + self.router.limits.suspect_after_ms for death in self.oracle.deaths]
        assert self.router.wake_at() == min([*looks.values(), *deaths], default=NEVER)

    def teardown(self) -> None:
        for connection in list(self.oracle.dialects):
            expected = self.oracle.close(connection, self.now, goodbye=False)
            self.check(self.router.closed(connection, self.now), expected)
        assert (self.router._groups, self.router._connections) == ({}, {})
        later = self.now + 10 * SOON
        self.check(self.router.wake(later), self.oracle.tell(later))
        self.router.wake(later + 100 * SOON)
        assert (self.router._checks, self.router._deaths) == ([], {})


@pytest.mark.rule("GR-1")
@pytest.mark.rule("GR-2")
@pytest.mark.rule("GR-3")
@pytest.mark.rule("GR-4")
@pytest.mark.rule("GR-5")
@pytest.mark.rule("GR-6")
@pytest.mark.rule("GR-7")
@pytest.mark.rule("GR-8")
@pytest.mark.rule("GR-9")
def test_the_router_agrees_with_a_flat_list_of_registrations() -> None:
    run_state_machine_as_test(GossipRouterBesideAFlatList)
