from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.core.address import STANDARD_TYPES, Address, Route
from waystation.core.address_types import MAX_LEARNED, AddressTypes, PeerTypes, is_session_name
from waystation.errors import LocalError

RESERVED = {1, 2, 3, 4, 5}  # the standard numbers and Bluetooth of Ockam: given away to nobody else
FREE = [number for number in range(1, 256) if number not in RESERVED]
ALL = range(256)
FLOOD = {f"x{number}": number for number in range(300)}  # more types than anybody has


def types_with(**numbers: int | None) -> AddressTypes:
    """The types of a node that registered these."""
    types = AddressTypes()
    for name, number in numbers.items():
        types.register(name, number)
    return types


def full() -> AddressTypes:
    """The types of a node that has no free number left."""
    types = AddressTypes()
    for number in FREE:
        types.register(f"type{number}")
    return types


def route(*numbers: int) -> Route:
    return Route(tuple(Address(number, b"x%d" % number) for number in numbers))


def types_of(hops: Route) -> list[int]:
    return [hop.type for hop in hops]


def accepted(ours: AddressTypes, theirs: Mapping[str, int] | None) -> PeerTypes:
    """A session that the peer opened: ours is the end that translates."""
    return PeerTypes.of_session(ours, theirs, opened_here=False)


def assert_lossless(peer: PeerTypes) -> None:
    """Each number has one partner, type 0 itself: whatever comes in goes out again, and back."""
    every = route(*ALL)
    inside, outside = peer.from_peer(every), peer.to_peer(every)
    assert sorted(types_of(inside)) == sorted(types_of(outside)) == list(ALL)
    assert peer.to_peer(inside) == peer.from_peer(outside) == every
    assert types_of(inside)[0] == types_of(outside)[0] == 0
    assert [hop.data for hop in inside] == [hop.data for hop in outside] == [h.data for h in every]


# The types of one node


@pytest.mark.rule("AD-2")
def test_type_0_is_always_routed() -> None:
    types = AddressTypes()
    assert types.routes(0)
    assert types.name(0) == "local"
    assert dict(types.numbers) == {"local": 0}
    assert not any(types.routes(number) for number in range(1, 256))


@pytest.mark.rule("AD-2")
def test_type_0_cannot_be_taken_away() -> None:
    types = AddressTypes()
    types.unregister("local")
    assert types.routes(0)
    assert dict(types.numbers) == {"local": 0}


@pytest.mark.rule("AD-2")
@pytest.mark.rule("AD-3")
def test_a_registered_type_has_a_name_and_a_number_and_is_routed() -> None:
    types = AddressTypes()
    assert types.register("mqtt", 7) == 7
    assert types.routes(7)
    assert types.name(7) == "mqtt"
    assert types.numbers["mqtt"] == 7
    assert types.name(8) is None


@pytest.mark.rule("AD-2")
@pytest.mark.parametrize("number", [None, 7, 8])
def test_registering_a_type_twice_is_an_error(number: int | None) -> None:
    types = types_with(mqtt=7)
    with pytest.raises(LocalError, match="'mqtt' is already registered") as caught:
        types.register("mqtt", number)
    assert caught.value.rule == "AD-2"
    assert dict(types.numbers) == {"local": 0, "mqtt": 7}


@pytest.mark.rule("AD-2")
def test_local_is_registered_already() -> None:
    with pytest.raises(LocalError, match="'local' is already registered"):
        AddressTypes().register("local")


@pytest.mark.rule("AD-2")
@pytest.mark.parametrize(("number", "owner"), [(0, "local"), (7, "mqtt"), (255, "gossip")])
def test_a_number_that_is_taken_is_an_error(number: int, owner: str) -> None:
    types = types_with(mqtt=7)
    types.learn("gossip")
    taken = f"address type number {number} is already used by '{owner}'"
    with pytest.raises(LocalError, match=taken) as caught:
        types.register("kafka", number)
    assert caught.value.rule == "AD-2"
    assert "kafka" not in types.numbers
    assert types.name(number) == owner


@pytest.mark.rule("AD-1")
@pytest.mark.parametrize("number", [-1, 256, 1_000])
def test_a_number_out_of_range_is_an_error(number: int) -> None:
    types = AddressTypes()
    with pytest.raises(LocalError, match=f"{number} of 'mqtt' is out of range") as caught:
        types.register("mqtt", number)
    assert caught.value.rule == "AD-1"
    assert "mqtt" not in types.numbers


@pytest.mark.rule("AD-3")
@pytest.mark.parametrize("name", ["", "7up", "two words", "mqtt5!", "größe", "a" * 33, "a\n"])
def test_what_is_no_name_is_an_error(name: str) -> None:
    types = AddressTypes()
    with pytest.raises(LocalError, match="invalid address type name") as caught:
        types.register(name)
    assert caught.value.rule == "AD-3"
    assert repr(name) in str(caught.value)
    assert types.learn(name) is None  # what a peer says is no error of ours
    assert dict(types.numbers) == {"local": 0}


@pytest.mark.rule("AD-3")
@pytest.mark.parametrize("name", ["a", "Mqtt5", "a" * 32])
def test_a_name_is_letters_and_digits_with_a_letter_first(name: str) -> None:
    types = AddressTypes()
    assert types.name(types.register(name)) == name


@pytest.mark.rule("AD-3")
def test_standard_types_have_their_standard_numbers() -> None:
    types = AddressTypes()
    registered = {name: types.register(name) for name in ("tcp", "udp", "ws", "uds")}
    assert registered == {"tcp": 1, "udp": 2, "ws": 3, "uds": 5}


@pytest.mark.rule("AD-3")
def test_other_types_never_get_a_standard_number() -> None:
    types = AddressTypes()
    assert [types.register(name) for name in ("mqtt", "gossip", "kafka")] == [6, 7, 8]


@pytest.mark.rule("AD-3")
def test_a_standard_type_whose_number_is_taken_gets_another() -> None:
    types = types_with(mqtt=1)
    assert types.register("tcp") == 6
    assert types.name(1) == "mqtt"


@pytest.mark.rule("AD-2")
def test_an_unregistered_type_is_not_routed_and_keeps_its_number() -> None:
    types = types_with(mqtt=7)
    types.unregister("mqtt")
    assert not types.routes(7)
    assert types.name(7) == "mqtt"
    assert types.numbers["mqtt"] == 7
    with pytest.raises(LocalError, match="'mqtt' already has the number 7, not 8") as caught:
        types.register("mqtt", 8)
    assert caught.value.rule == "AD-2"
    assert types.register("mqtt") == 7
    assert types.routes(7)


@pytest.mark.rule("AD-2")
def test_unregistering_what_is_not_there_is_no_error() -> None:
    types = types_with(mqtt=7)
    types.unregister("kafka")
    types.learn("gossip")
    types.unregister("gossip")
    assert types.routes(0)
    assert types.routes(7)


@pytest.mark.rule("AD-3")
def test_a_type_that_a_peer_spoke_of_has_a_number_and_is_not_routed() -> None:
    types = AddressTypes()
    assert types.learn("gossip") == types.learn("gossip") == 255
    assert types.learn("tcp") == 1
    assert types.learn("local") == 0
    assert types.name(255) == "gossip"
    assert not types.routes(255)
    assert not types.routes(1)


@pytest.mark.rule("AD-3")
def test_peers_take_numbers_from_above_and_the_node_its_own_from_below() -> None:
    types = types_with(mqtt=254)
    assert [types.learn("gossip"), types.register("kafka"), types.learn("nats")] == [255, 6, 253]


@pytest.mark.rule("AD-2")
@pytest.mark.parametrize("number", [None, 255])
def test_a_type_that_a_peer_spoke_of_can_be_registered(number: int | None) -> None:
    types = AddressTypes()
    types.learn("gossip")
    assert types.register("gossip", number) == 255
    assert types.routes(255)


@pytest.mark.rule("AD-2")
def test_when_the_numbers_are_used_up_that_is_an_error() -> None:
    types = full()
    with pytest.raises(LocalError, match="no free number for address type 'onemore'") as caught:
        types.register("onemore")
    assert caught.value.rule == "AD-2"
    assert types.learn("onemore") is None
    assert "onemore" not in types.numbers
    assert types.register("tcp") == 1  # the standard types have kept theirs
    assert types.register("bluetooth", 4) == 4


@pytest.mark.rule("AD-2")
@pytest.mark.rule("AD-3")
def test_what_peers_speak_of_never_keeps_a_node_from_registering_its_own() -> None:
    types = AddressTypes()
    learnt = [types.learn(name) for name in FLOOD]
    assert learnt == [*range(255, 255 - MAX_LEARNED, -1), *[None] * (len(FLOOD) - MAX_LEARNED)]
    assert types.learn("x0") == 255  # what is known stays known
    own = [types.register(f"own{number}") for number in range(len(FREE) - MAX_LEARNED)]
    assert own == FREE[:-MAX_LEARNED]
    assert [types.register(name) for name in ("tcp", "udp", "ws", "uds")] == [1, 2, 3, 5]
    assert types.register("x0") == 255


@pytest.mark.rule("AD-2")
def test_a_type_that_was_one_too_many_for_peers_can_be_registered() -> None:
    types = AddressTypes()
    for name in FLOOD:
        types.learn(name)
    assert types.register("x299") == 6
    assert types.register("x298", 98) == 98


NAMES = ["local", "tcp", "ws", "mqtt", "gossip", "kafka", "not a name"]
OPERATIONS = st.tuples(
    st.sampled_from(["register", "learn", "unregister"]),
    st.sampled_from(NAMES),
    st.none() | st.sampled_from([-1, 0, 1, 3, 4, 6, 7, 254, 255, 256]),
)


def expected_number(
    known: Mapping[str, int], name: str, wanted: int | None, candidates: list[int]
) -> int | None:
    """The number that a type must get, or None when it can get none."""
    if name in known:
        return known[name] if wanted in (None, known[name]) else None
    if wanted is None:
        first_choice = [STANDARD_TYPES[name]] if name in STANDARD_TYPES else []
        wanted = next(n for n in first_choice + candidates if n not in known.values())
    taken = wanted in known.values()
    return None if taken or not 0 <= wanted <= 255 or name == "not a name" else wanted


@pytest.mark.rule("AD-2")
@pytest.mark.rule("AD-3")
@given(st.lists(OPERATIONS, max_size=20))
def test_types_agree_with_two_plain_tables(
    operations: list[tuple[str, str, int | None]],
) -> None:
    types = AddressTypes()
    known = {"local": 0}
    routed = {"local"}
    for operation, name, wanted in operations:
        if operation == "unregister":
            types.unregister(name)
            routed -= {name} - {"local"}
        elif operation == "learn":
            number = expected_number(known, name, None, FREE[::-1])
            assert types.learn(name) == number
            known |= {} if number is None else {name: number}
        else:
            number = expected_number(known, name, wanted, FREE)
            if number is None or name in routed:
                with pytest.raises(LocalError):
                    types.register(name, wanted)
            else:
                assert types.register(name, wanted) == number
                known[name] = number
                routed.add(name)
        assert dict(types.numbers) == known
        assert {types.name(number): number for number in known.values()} == known
        assert {number for number in ALL if types.routes(number)} == {known[n] for n in routed}


# Two nodes


@pytest.mark.rule("AD-3")
def test_nodes_that_number_a_type_differently_understand_each_other() -> None:
    ours = types_with(mqtt=7, gossip=9)
    peer = accepted(ours, {"local": 0, "mqtt": 9, "gossip": 7})
    theirs = Route.parse("9#a/topic => 7#fleet => echo")
    assert str(peer.from_peer(theirs)) == "7#a/topic => 9#fleet => 0#echo"
    assert peer.to_peer(peer.from_peer(theirs)) == theirs
    assert peer.from_peer(Route()) == peer.to_peer(Route()) == Route()


@pytest.mark.rule("AD-3")
def test_the_side_that_opened_the_session_translates_nothing() -> None:
    ours = types_with(mqtt=7, gossip=9)
    peer = PeerTypes.of_session(ours, {"mqtt": 9, "gossip": 7, "kafka": 11}, opened_here=True)
    hops = route(*ALL)
    assert peer.from_peer(hops) is hops
    assert peer.to_peer(hops) is hops
    assert dict(ours.numbers) == {"local": 0, "mqtt": 7, "gossip": 9}


@pytest.mark.rule("AD-3")
@pytest.mark.parametrize("opened_here", [True, False])
def test_a_peer_without_a_table_uses_the_standard_numbers(opened_here: bool) -> None:
    ours = types_with(mqtt=1, tcp=11, udp=12)
    peer = PeerTypes.of_session(ours, None, opened_here=opened_here)
    assert str(peer.from_peer(Route.parse("1#a:1 => 2#b:2 => 3#c => 0#d"))) == (
        "11#a:1 => 12#b:2 => 3#c => 0#d"
    )
    assert types_of(peer.to_peer(route(11, 12, 3, 5, 0))) == [1, 2, 3, 5, 0]
    assert types_of(peer.to_peer(route(1))) not in ([1], [2], [3], [5])  # there is no mqtt there
    assert_lossless(peer)


@pytest.mark.rule("AD-3")
@pytest.mark.parametrize("opened_here", [True, False])
def test_no_flood_of_names_takes_the_standard_numbers_away(opened_here: bool) -> None:
    ours = AddressTypes()
    accepted(ours, FLOOD)
    plain = PeerTypes.of_session(ours, None, opened_here=opened_here)
    standard = route(*STANDARD_TYPES.values())
    assert plain.from_peer(standard) == plain.to_peer(standard) == standard


@pytest.mark.rule("AD-3")
def test_a_type_that_only_the_peer_has_travels_and_is_not_routed() -> None:
    ours = types_with(mqtt=6)
    peer = accepted(ours, {"gossip": 6})
    inside = peer.from_peer(route(6))
    assert types_of(inside) == [ours.numbers["gossip"]] != [6]
    assert not ours.routes(ours.numbers["gossip"])
    assert peer.to_peer(inside) == route(6)


@pytest.mark.rule("AD-3")
@pytest.mark.parametrize(
    "table",
    [None, {}, {"local": 0}, {"local": 0, "tcp": 1, "mqtt": 7}],
    ids=["none", "empty", "local", "same"],
)
def test_with_identical_tables_nothing_is_copied(table: Mapping[str, int] | None) -> None:
    peer = accepted(types_with(tcp=1, mqtt=7), table)
    hops = route(0, 1, 7, 200)
    assert peer == PeerTypes()
    assert peer.from_peer(hops) is hops
    assert peer.to_peer(hops) is hops


@pytest.mark.rule("AD-1")
@pytest.mark.rule("AD-3")
@pytest.mark.parametrize("table", [{"mqtt": 0}, {"local": 9}, {"mqtt": 0, "local": 9}])
def test_no_peer_gives_type_0_another_meaning(table: Mapping[str, int]) -> None:
    peer = accepted(types_with(mqtt=7), table)
    assert types_of(peer.from_peer(route(0))) == [0]
    assert types_of(peer.to_peer(route(0))) == [0]
    assert types_of(peer.from_peer(route(9))) != [0]


@pytest.mark.rule("AD-1")
@pytest.mark.rule("AD-3")
@pytest.mark.parametrize("number", [-1, 256, 300, 10**30])
def test_a_number_that_cannot_be_written_is_never_used(number: int) -> None:
    ours = types_with(mqtt=7, ws=9)
    peer = accepted(ours, {"mqtt": number, "gossip": number, "ws": 3})
    assert types_of(peer.from_peer(route(3))) == [9]
    assert "gossip" not in ours.numbers
    assert_lossless(peer)


@pytest.mark.rule("AD-3")
def test_of_two_names_for_one_number_the_first_counts() -> None:
    ours = types_with(mqtt=7, gossip=8)
    peer = accepted(ours, {"mqtt": 9, "gossip": 9})
    assert types_of(peer.from_peer(route(9))) == [7]
    assert_lossless(peer)


@pytest.mark.rule("AD-3")
def test_a_type_whose_name_cannot_be_learned_is_not_taken_for_another() -> None:
    ours = types_with(mqtt=7)
    peer = accepted(ours, {"not a name": 7, "mqtt": 9})
    inside = peer.from_peer(route(7, 9))
    unknown, mqtt = types_of(inside)
    assert mqtt == 7
    assert ours.name(unknown) is None
    assert peer.to_peer(inside) == route(7, 9)


@pytest.mark.rule("AD-3")
def test_an_own_type_that_the_peer_does_not_know_comes_back_as_itself() -> None:
    ours = types_with(mqtt=7, gossip=9)
    peer = accepted(ours, {"mqtt": 9})
    outside = peer.to_peer(route(9))
    assert types_of(outside) != [9]  # there, 9 is mqtt
    assert peer.from_peer(outside) == route(9)


@pytest.mark.rule("AD-3")
def test_a_peer_with_more_types_than_fit_is_understood_as_far_as_they_do() -> None:
    ours = full()
    peer = accepted(ours, {"type6": 7, "onemore": 8, "type7": 6})
    assert "onemore" not in ours.numbers
    assert types_of(peer.from_peer(route(7, 6))) == [6, 7]
    assert ours.name(*types_of(peer.from_peer(route(8)))) is None
    assert_lossless(peer)


@pytest.mark.rule("AD-3")
def test_no_type_of_a_flood_is_taken_for_one_that_is_routed() -> None:
    ours = types_with(mqtt=7, tcp=1)
    flood = {name: number for name, number in FLOOD.items() if number <= 250}
    peer = accepted(ours, flood | {"mqtt": 251})
    assert types_of(peer.from_peer(route(251))) == [7]
    assert not any(map(ours.routes, types_of(peer.from_peer(route(*range(1, 251))))))
    assert_lossless(peer)


@pytest.mark.rule("AD-1")
@pytest.mark.rule("AD-3")
@pytest.mark.parametrize("ours", [AddressTypes, lambda: types_with(mqtt=7), full])
@pytest.mark.parametrize(
    "table",
    [
        FLOOD,
        dict.fromkeys(FLOOD, 9),
        FLOOD | dict.fromkeys((f"y{number}" for number in range(300)), 200),
        {"not a name": 9, "mqtt": 9},
        {"not a name": 9, "nor this": 9},
        {"mqtt": 9, "not a name": 9},
        {"local": 9, "not a name": 9, "": 7},
    ],
    ids=["flood", "one number", "both", "bad first", "bad twice", "bad last", "local"],
)
def test_a_table_that_makes_no_sense_loses_no_route(
    ours: Callable[[], AddressTypes], table: Mapping[str, int]
) -> None:
    types = ours()
    routed = [number for number in ALL if types.routes(number)]
    for _ in range(2):  # the second time, the names of the first are known
        assert_lossless(accepted(types, table))
    assert [number for number in ALL if types.routes(number)] == routed


SHARED = ["tcp", "ws", "mqtt", "gossip", "kafka"]
TYPE_NAMES = st.sampled_from([*SHARED, "udp", "uds", "amqp", "nats"])
SMALL = st.integers(1, 12) | st.integers(1, 255)  # small, so that both sides often use the same
PLAIN_TABLES = st.dictionaries(TYPE_NAMES, SMALL)
SHARED_NUMBERS = st.lists(SMALL, min_size=len(SHARED), max_size=len(SHARED), unique=True)
WILD_TABLES = st.dictionaries(
    TYPE_NAMES | st.just("local") | st.text(max_size=40),
    SMALL | st.integers() | st.sampled_from([0, -1, 255, 256]),
)


def node(table: Mapping[str, int]) -> AddressTypes:
    """A node that numbers its types like this, as far as no number stands there twice."""
    types = AddressTypes()
    for name, number in table.items():
        with suppress(LocalError):
            types.register(name, number)
    return types


def sharing(numbers: list[int]) -> AddressTypes:
    """A node that knows the shared types, under these numbers."""
    return node(dict(zip(SHARED, numbers, strict=True)))


def names(types: AddressTypes, numbers: Iterable[int]) -> list[str | None]:
    return [types.name(number) for number in numbers]


def session(
    one: AddressTypes, other: AddressTypes, *, opened_by_one: bool
) -> tuple[PeerTypes, PeerTypes]:
    """Both ends of a session, which tell each other their tables when it opens."""
    tables = dict(one.numbers), dict(other.numbers)
    return (
        PeerTypes.of_session(one, tables[1], opened_here=opened_by_one),
        PeerTypes.of_session(other, tables[0], opened_here=not opened_by_one),
    )


def sent(hops: Route, *path: tuple[PeerTypes, PeerTypes]) -> Route:
    """How a route reads at the end of a path: each session's near end first, then its far end."""
    for near, far in path:
        hops = far.from_peer(near.to_peer(hops))
    return hops


@pytest.mark.rule("AD-3")
@given(PLAIN_TABLES, PLAIN_TABLES, st.booleans())
def test_both_ends_of_a_session_understand_each_other_by_name_and_lose_nothing(
    our_table: dict[str, int], their_table: dict[str, int], opened_here: bool
) -> None:
    ours, theirs = node(our_table), node(their_table)
    our_names, their_names = set(ours.numbers), set(theirs.numbers)
    ends = session(ours, theirs, opened_by_one=opened_here)
    assert ends[0 if opened_here else 1] == PeerTypes()
    for near, far, there, back in (
        (ours, theirs, ends, ends[::-1]),
        (theirs, ours, ends[::-1], ends),
    ):
        every = route(*ALL)
        arrived = sent(every, there)
        assert sorted(types_of(arrived)) == list(ALL)
        assert [hop.data for hop in arrived] == [hop.data for hop in every]
        assert types_of(arrived)[0] == 0
        assert sent(arrived, back) == every
        for name in our_names & their_names:
            assert types_of(sent(route(near.numbers[name]), there)) == [far.numbers[name]]
        for name in our_names ^ their_names:  # what one does not know it takes for nothing else
            if name in near.numbers:
                (number,) = types_of(sent(route(near.numbers[name]), there))
                assert far.name(number) in (None, name)


@pytest.mark.rule("AD-3")
@given(PLAIN_TABLES, PLAIN_TABLES)
def test_what_a_peer_wrote_is_read_by_name_and_goes_back_unchanged(
    our_table: dict[str, int], their_table: dict[str, int]
) -> None:
    ours, theirs = node(our_table), node(their_table)
    peer = accepted(ours, theirs.numbers)
    hops = route(*theirs.numbers.values())
    inside = peer.from_peer(hops)
    assert names(ours, types_of(inside)) == list(theirs.numbers)
    assert [hop.data for hop in inside] == [hop.data for hop in hops]
    assert peer.to_peer(inside) == hops


@pytest.mark.rule("AD-3")
@given(PLAIN_TABLES, st.booleans())
def test_a_peer_without_a_table_is_read_by_the_standard_names(
    our_table: dict[str, int], opened_here: bool
) -> None:
    ours = node(our_table)
    peer = PeerTypes.of_session(ours, None, opened_here=opened_here)
    inside = peer.from_peer(route(*STANDARD_TYPES.values()))
    assert names(ours, types_of(inside)) == list(STANDARD_TYPES)
    assert_lossless(peer)


@pytest.mark.rule("AD-3")
@given(PLAIN_TABLES, PLAIN_TABLES | st.none(), st.booleans())
def test_what_we_wrote_comes_back_from_a_peer_unchanged(
    our_table: dict[str, int], their_table: dict[str, int] | None, opened_here: bool
) -> None:
    ours = node(our_table)
    theirs = None if their_table is None else node(their_table).numbers
    peer = PeerTypes.of_session(ours, theirs, opened_here=opened_here)
    hops = route(*ours.numbers.values())
    assert peer.from_peer(peer.to_peer(hops)) == hops


@pytest.mark.rule("AD-1")
@pytest.mark.rule("AD-3")
@given(PLAIN_TABLES, st.lists(WILD_TABLES, min_size=1, max_size=3))
def test_no_tables_of_peers_raise_or_break_a_route(
    our_table: dict[str, int], wild: list[dict[str, int]]
) -> None:
    ours = node(our_table)
    before = dict(ours.numbers)
    routed = [number for number in ALL if ours.routes(number)]
    for peer in [accepted(ours, table) for table in wild]:
        assert_lossless(peer)
    assert before.items() <= ours.numbers.items()
    assert set(ours.numbers.values()) <= set(ALL)
    assert [number for number in ALL if ours.routes(number)] == routed


# Three nodes


@pytest.mark.rule("AD-3")
@given(SHARED_NUMBERS, SHARED_NUMBERS, SHARED_NUMBERS, st.booleans(), st.booleans())
def test_a_node_behind_a_node_is_understood_by_name(
    a: list[int], b: list[int], c: list[int], a_opened: bool, b_opened: bool
) -> None:
    first, middle, last = sharing(a), sharing(b), sharing(c)
    near = session(first, middle, opened_by_one=a_opened)
    far = session(middle, last, opened_by_one=b_opened)
    assert types_of(sent(route(0, *a), near, far)) == [0, *c]
    assert types_of(sent(route(0, *c), far[::-1], near[::-1])) == [0, *a]
    every = route(*ALL)
    assert sent(sent(every, near, far), far[::-1], near[::-1]) == every


@pytest.mark.rule("AD-3")
@given(SHARED_NUMBERS, PLAIN_TABLES, SHARED_NUMBERS)
def test_a_node_that_both_called_passes_on_by_name_what_it_does_not_know_itself(
    a: list[int], b: dict[str, int], c: list[int]
) -> None:
    first, middle, last = sharing(a), node(b), sharing(c)
    near = session(first, middle, opened_by_one=True)
    far = session(middle, last, opened_by_one=False)
    assert types_of(sent(route(0, *a), near, far)) == [0, *c]
    assert types_of(sent(route(0, *c), far[::-1], near[::-1])) == [0, *a]


def test_usual_types_are_known_by_their_numbers_where_those_are_free() -> None:
    types = AddressTypes()
    types.register("mine", 7)
    types.reserve_usual("ws#a:1 => mqtt#topic => gossip#group/member => ws#b:1")
    assert types.numbers == {"local": 0, "mine": 7, "ws": 3, "gossip": 6}
    assert (types.usual("ws"), types.usual("http"), types.usual("mqtt")) == (None, 8, None)
    assert types.usual("other") is None
    assert not types.routes(3)


def test_names_of_sessions_have_a_type_and_sixteen_digits() -> None:
    assert is_session_name("tcp-0123456789abcdef")
    others = ("", "tcp", "tcp-0123456789abcdeg", "truck-0123456789abcdef", "tcp0123456789abcdef")
    assert not any(map(is_session_name, others))
