"""The directory of providers: who offers what, until when, and what is freed (RE-10, RE-14)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rule_errors import breaks
from waystation.core.directory import Directory, Lister, Provider, Scope
from waystation.core.expiry import NEVER, Deadlines
from waystation.errors import LocalError

SLOT = Deadlines.SLOT_MS
NAMES = ("a", "b", "c")
OFFERS = (("fleet", "position"), ("fleet", "fuel"), ("yard", "position"))


def found(directory: Directory, now: float = 0, offer: tuple[str, str] = OFFERS[0]) -> list[str]:
    return [provider.participant for provider in directory.lookup(*offer, now)]


def test_providers_are_found_by_domain_and_name_the_longest_listed_first() -> None:
    directory = Directory()
    for name in ("b", "a", "c"):
        directory.register(Provider(name, "fleet", "position"))
    directory.register(Provider("d", "fleet", "fuel"))
    assert found(directory) == ["b", "a", "c"]
    assert found(directory, offer=("fleet", "fuel")) == ["d"]
    assert found(directory, offer=("yard", "position")) == []


def test_a_participant_is_listed_once_and_its_newest_word_counts() -> None:
    directory = Directory()
    directory.register(Provider("a", "fleet", "position", "tcp#10.0.0.1:4000"))
    directory.register(Provider("a", "fleet", "fuel", "tcp#10.0.0.2:4000"))
    assert len(directory) == 1
    assert found(directory) == []
    [provider] = directory.lookup("fleet", "fuel", 0)
    assert provider.address == "tcp#10.0.0.2:4000"


@pytest.mark.rule("RE-10")
def test_a_provider_is_gone_at_the_very_instant_of_its_expiry() -> None:
    directory = Directory()
    directory.register(Provider("a", "fleet", "position", expiry=5_000))
    assert found(directory, 4_999) == ["a"]
    assert directory.find("a", 4_999) is not None
    assert found(directory, 5_000) == []
    assert directory.find("a", 5_000) is None


def test_registering_again_may_extend_and_may_shorten_what_was_said_before() -> None:
    directory = Directory()
    directory.register(Provider("a", "fleet", "position", expiry=5_000))
    directory.register(Provider("a", "fleet", "position", expiry=9_000))
    assert found(directory, 8_999) == ["a"]
    directory.register(Provider("a", "fleet", "position", expiry=6_000))
    assert found(directory, 6_000) == []


@pytest.mark.rule("RE-16")
def test_a_provider_without_an_expiry_never_ends() -> None:
    directory = Directory()
    directory.register(Provider("a", "fleet", "position"))
    assert directory.find("a", 10**15) is not None
    assert Provider("a", "fleet", "position").ends() == NEVER
    assert directory.purge(10**15) == []
    assert len(directory) == 1


def test_who_leaves_is_found_no_more_and_leaving_twice_is_no_error() -> None:
    directory = Directory()
    mine = Provider("a", "fleet", "position")
    directory.register(mine)
    directory.register(Provider("b", "fleet", "position"))
    assert directory.leave("a") == mine
    assert directory.leave("a") is None
    assert directory.leave("nobody") is None
    assert found(directory) == ["b"]
    assert directory.find("a", 0) is None
    directory.leave("b")
    assert directory._offers == {}  # nothing is kept of offers that nobody makes any more


@pytest.mark.rule("RE-17")
def test_purging_frees_the_dead_and_only_them() -> None:
    directory = Directory()
    directory.register(Provider("dead", "fleet", "position", expiry=1))
    directory.register(Provider("left", "fleet", "position", expiry=1))
    directory.register(Provider("again", "fleet", "position", expiry=1))
    directory.register(Provider("later", "fleet", "position", expiry=10 * SLOT))
    directory.leave("left")
    directory.register(Provider("again", "fleet", "position"))
    assert directory.purge(2 * SLOT) == ["dead"]
    assert len(directory) == 2
    assert directory.purge(2 * SLOT) == []
    assert found(directory, 2 * SLOT) == ["later", "again"]


def test_what_is_not_yet_freed_is_dead_all_the_same() -> None:
    directory = Directory()
    directory.register(Provider("a", "fleet", "position", expiry=10))
    assert directory.purge(11) == []  # it comes out with its slot
    assert len(directory) == 1
    assert found(directory, 11) == []


@pytest.mark.parametrize("bad", ["", "two words", "a=>b", "0xff", "line\nbreak"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_name_that_cannot_be_written_in_a_route_is_refused(bad: str, place: int) -> None:
    participant, domain, name = (
        bad if number == place else text for number, text in enumerate(("a", "fleet", "position"))
    )
    directory = Directory()
    with pytest.raises(LocalError, match="invalid participant, domain or name"):
        directory.register(Provider(participant, domain, name))
    assert len(directory) == 0


@pytest.mark.parametrize("bad", [-1, 10**30])
def test_an_expiry_that_is_no_instant_is_refused_and_what_was_known_stays(bad: int) -> None:
    directory = Directory()
    directory.register(Provider("a", "fleet", "position"))
    with pytest.raises(LocalError, check=breaks("RE-14")):
        directory.register(Provider("a", "fleet", "fuel", expiry=bad))
    assert found(directory) == ["a"]


@pytest.mark.rule("CL-5")
def test_what_is_listed_tells_who_listed_it_until_it_is_gone() -> None:
    directory = Directory()
    first, other = Lister("o1", "o1", "a"), Lister("o2", "o2", "b")
    assert directory.listed_by_another("a", other, 0) is None
    directory.register(Provider("a", "fleet", "position", expiry=5_000), first)
    assert directory.listed_by_another("a", first, 0) is None
    assert directory.listed_by_another("a", other, 4_999) == first
    assert directory.listed_by_another("a", other, 5_000) is None
    directory.register(Provider("a", "fleet", "position"), other)
    assert directory.listed_by_another("a", first, 0) == other
    directory.leave("a")
    assert directory.listed_by_another("a", first, 0) is None


@pytest.mark.rule("CL-5")
@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (Lister("o1", "s1"), Lister("o1", "s2"), True),  # an owner that moved to another hub
        (Lister("o1", "s1"), Lister("o2", "s1"), True),  # a hub knows its leaves
        (Lister("o1", "s1"), Lister("o2", "s2"), False),
        (Lister("", ""), Lister("o2", ""), False),  # of nobody knows who spoke
        (Lister("", ""), Lister("", ""), True),
        (Lister("o1", "s1", "a"), Lister("o2", "s2", "a"), False),  # a name proves nothing
    ],
)
def test_a_listing_is_its_owners_and_its_speakers(one: Lister, other: Lister, same: bool) -> None:
    assert one.is_same(other) is same
    assert other.is_same(one) is same


def test_scopes_are_written_as_their_names() -> None:
    assert [str(scope) for scope in Scope] == [
        "LOCAL_ONLY",
        "LOCAL_THEN_GLOBAL",
        "LOCAL_AND_GLOBAL",
        "GLOBAL_ONLY",
    ]


providers = st.builds(
    lambda name, offer, expiry: Provider(name, offer[0], offer[1], expiry=expiry),
    st.sampled_from(NAMES),
    st.sampled_from(OFFERS),
    st.one_of(st.none(), st.integers(0, 6 * SLOT)),
)
moves = st.lists(
    st.one_of(
        st.tuples(st.just("register"), providers),
        st.tuples(st.just("leave"), st.sampled_from(NAMES)),
        st.tuples(st.just("pass"), st.integers(0, 2 * SLOT)),
        st.tuples(st.just("purge"), st.none()),
    ),
    max_size=40,
)


@given(moves=moves)
def test_a_directory_answers_as_a_plain_list_would(moves: list[tuple[str, object]]) -> None:
    directory, listed, now = Directory(), dict[str, Provider](), 0
    for move, value in moves:
        if isinstance(value, Provider):
            directory.register(value)
            listed.pop(value.participant, None)
            listed[value.participant] = value
        elif move == "leave":
            assert isinstance(value, str)
            assert directory.leave(value) == listed.pop(value, None)
        elif isinstance(value, int):
            now += value
        else:
            for name in directory.purge(now):
                assert listed.pop(name).ends() <= now
        for offer in OFFERS:
            alive = [
                provider.participant
                for provider in listed.values()
                if (provider.domain, provider.name) == offer and now < provider.ends()
            ]
            assert found(directory, now, offer) == alive
    assert len(directory) == len(listed)


def test_it_tells_over_which_session_each_was_listed() -> None:
    directory = Directory()
    directory.register(Provider("a", "fleet", "position"))
    directory.register(Provider("b", "fleet", "position"), Lister("o", "s", "n", b"tcp-1"))
    assert [(name, by.session) for name, by in directory.listers()] == [("a", b""), ("b", b"tcp-1")]
