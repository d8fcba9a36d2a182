from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.rule_errors import breaks
from waystation.core.multicast import (
    MAX_SEGMENTS,
    MulticastId,
    SubscriptionChange,
    SubscriptionKind,
    Subscriptions,
    check_pattern,
    is_multicast_id,
    mqtt_filter,
    pattern_of,
)
from waystation.errors import LocalError


def matches(pattern: list[str], id: list[str]) -> bool:
    """Whether a pattern matches an id: slow and obvious."""
    if pattern == ["*"]:
        return True
    if not pattern or not id:
        return pattern == id
    return pattern[0] in ("+", id[0]) and matches(pattern[1:], id[1:])


def receivers_of(id: str, *patterns: str) -> set[str]:
    """Subscribe to each pattern under its own name, and publish."""
    subscriptions = Subscriptions()
    for pattern in patterns:
        subscriptions.subscribe(pattern, pattern)
    found = subscriptions.match(id)
    assert len(found) == len(set(found))
    return set(found)


@pytest.mark.rule("MC-1")
def test_an_id_is_provider_broadcast_and_partition() -> None:
    id = MulticastId.parse("garage/temperature/eu/de")
    assert id == MulticastId("garage", "temperature", ("eu", "de"))
    assert id == MulticastId.of("garage", "temperature", "eu/de")
    assert id == MulticastId.of("garage", "temperature", ["eu", "de"])
    assert str(id) == "garage/temperature/eu/de"
    assert str(MulticastId.of("garage", "temperature")) == "garage/temperature"
    assert str(MulticastId.of("garage", "temperature", "")) == "garage/temperature"
    assert str(MulticastId.of("X-1.2_", "Z", "AZaz09")) == "X-1.2_/Z/AZaz09"
    assert pattern_of("garage", "temperature", "eu/+") == "garage/temperature/eu/+"
    assert pattern_of("garage", "temperature", ["*"]) == "garage/temperature/*"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "p/b/+",
            (
                "multicast id 'p/b/+' has the wildcard '+'; "
                "name every segment; wildcards are for subscriptions"
            ),
        ),
        (
            "garage",
            (
                "invalid multicast id 'garage'; "
                "write provider/broadcast or provider/broadcast/partition"
            ),
        ),
        (
            "p/b/a-b",
            (
                "invalid segment 'a-b' in 'p/b/a-b'; "
                "use one or more of the characters A-Z, a-z and 0-9"
            ),
        ),
        (
            "p/b c",
            (
                "invalid provider or broadcast 'b c' in 'p/b c'; "
                "use printable characters without space, '/', '+', '*' or '#'"
            ),
        ),
        (
            "/".join(["a"] * 65),
            f"multicast id '{'a/' * 29}a… has more than 64 segments; use a shallower partition",
        ),
    ],
)
def test_a_bad_id_gets_a_whole_sentence(text: str, complaint: str) -> None:
    with pytest.raises(LocalError) as caught:
        MulticastId.parse(text)
    assert str(caught.value) == complaint


@pytest.mark.parametrize(
    ("pattern", "complaint"),
    [
        (
            "p/*/a",
            (
                "pattern 'p/*/a' has '*' before its end; "
                "use '+' for a single segment, and '*' only as the last segment"
            ),
        ),
        (
            "garage",
            (
                "invalid multicast pattern 'garage'; write provider/broadcast[/partition], "
                "with wildcards for whole segments"
            ),
        ),
    ],
)
def test_a_bad_pattern_gets_a_whole_sentence(pattern: str, complaint: str) -> None:
    with pytest.raises(LocalError) as caught:
        check_pattern(pattern)
    assert str(caught.value) == complaint


@pytest.mark.rule("MC-1")
@pytest.mark.parametrize("text", ["", "garage", "/", "garage/", "/brod", "a b/brod", "a#/brod"])
def test_what_is_no_id_is_refused_by_name_and_rule(text: str) -> None:
    with pytest.raises(LocalError, check=breaks("MC-1")) as caught:
        MulticastId.parse(text)
    assert repr(text) in str(caught.value)


@pytest.mark.rule("MC-1")
def test_parts_with_slashes_are_refused_by_name_and_rule() -> None:
    with pytest.raises(LocalError) as caught:
        MulticastId.of("a/b", "brod")
    assert str(caught.value) == (
        "'a/b' has a slash; give provider, broadcast and partition separately"
    )
    with pytest.raises(LocalError, match=r"'c/d' has a slash", check=breaks("MC-1")):
        pattern_of("a", "c/d")


@pytest.mark.rule("MC-1")
def test_an_id_of_a_million_segments_is_refused_before_it_is_split() -> None:
    deepest = "/".join(["a"] * MAX_SEGMENTS)
    assert str(MulticastId.parse(deepest)) == deepest
    with pytest.raises(
        LocalError, match=rf"more than {MAX_SEGMENTS} segments", check=breaks("MC-1")
    ):
        MulticastId.parse("/".join(["a"] * 30_000))
    with pytest.raises(LocalError) as caught:
        MulticastId.parse("/".join(["a"] * 1_000_000))
    assert str(caught.value) == (
        f"multicast id '{'a/' * 29}a… is too long: 1999999 characters; use at most 65535"
    )


@pytest.mark.rule("MC-1")
@pytest.mark.parametrize("text", [None, b"a/b", MulticastId("a", "b")])
def test_what_is_no_text_is_refused_by_name_and_rule(text: Any) -> None:
    for act in (MulticastId.parse, check_pattern):
        with pytest.raises(LocalError) as caught:
            act(text)
        assert str(caught.value) == (f"invalid multicast id {text!r}; give text, such as str(id)")


LONGEST = "a/" + "b" * 65_533


@pytest.mark.rule("MC-1")
@pytest.mark.parametrize(
    "text", ["p/b", "p-1.x/b_2", "p/b/a", "p/b/a/B/9", "ä/ö", LONGEST, "/".join("a" * 64)]
)
def test_these_are_ids(text: str) -> None:
    assert str(MulticastId.parse(text)) == text
    assert is_multicast_id(text)


@pytest.mark.rule("MC-1")
@pytest.mark.rule("MC-2")
@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "p",
            "/",
            "p/",
            "/b",
            "//",
            "p//a",
            "p/b/",
            "p/b//a",
            "p/b/a//c",
            "p/b/a/",
            "p/b//",
            "p/b///a",
        ),
        *("p/b/ä", "p/b/a-b", "p/b/a/-", "p/b/-/a", "p/b\n", "p\x00/b", "p /b", "p/b a", "p/b/a b"),
        *("+/b", "p/+", "p/b+", "p/b/+", "p/b/a+", "*", "p/*", "p*/b", "p/b/*", "p#/b", "p/#"),
        *(LONGEST + "b", "/".join("a" * 65), "p/b/ab#", "p/b/a#"),
    ],
)
def test_these_are_no_ids(text: str) -> None:
    assert not is_multicast_id(text)
    with pytest.raises(LocalError):
        MulticastId.parse(text)


@pytest.mark.rule("MC-2")
def test_an_empty_segment_is_not_lost() -> None:
    for partition in ([""], ["a", ""], "/", "a//b", "a/"):
        with pytest.raises(LocalError, match="invalid segment '' in"):
            MulticastId.of("p", "b", partition)


@pytest.mark.rule("MC-8")
@pytest.mark.parametrize("receiver", ["", None, 7])
def test_nobody_cannot_subscribe(receiver: Any) -> None:
    with pytest.raises(LocalError) as caught:
        Subscriptions().subscribe("p/b", receiver)
    assert str(caught.value) == f"invalid receiver {receiver!r}; name the participant"


@pytest.mark.rule("MC-5")
@given(
    st.text(alphabet="ab/+*# -ä\n", max_size=10)
    | st.just("a/b/" + "c" * 70_000)
    | st.just("a/b" + "/c" * 70)
)
def test_nobody_receives_what_is_published_under_no_id(text: str) -> None:
    subscriptions = Subscriptions()
    for pattern in ("*", "+/+", "+/+/+", "a/b/+", "a/b/*"):
        subscriptions.subscribe(pattern, "r")
    try:
        MulticastId.parse(text)
    except LocalError:
        assert not is_multicast_id(text)
        assert subscriptions.match(text) == ()
    else:
        assert is_multicast_id(text)
        assert subscriptions.match(text) == ("r",)


def test_long_ids_that_match_nobody_fill_no_memory() -> None:
    subscriptions = Subscriptions(remember=10_000)
    for number in range(200):
        subscriptions.match(f"p/b/{number}" + "x" * 60_000)
    assert sum(map(len, subscriptions._remembered)) < 100_000


@pytest.mark.rule("MC-2")
@pytest.mark.parametrize("segment", ["", "a-b", "a b", "ä", "a+", "a*", "#", "٣", "++", "+a"])
def test_a_segment_of_other_characters_is_refused_by_name_and_rule(segment: str) -> None:
    for text in (f"garage/brod/{segment}", f"garage/brod/x/{segment}/y"):
        with pytest.raises(LocalError, match=r"invalid segment", check=breaks("MC-2")) as caught:
            MulticastId.parse(text)
        assert repr(segment) in str(caught.value)
        with pytest.raises(LocalError, check=breaks("MC-2")):
            check_pattern(text)


@pytest.mark.rule("MC-2")
def test_what_follows_a_wildcard_is_checked_too() -> None:
    with pytest.raises(LocalError, match="segment 'a-b'"):
        check_pattern("p/b/+/a-b")
    with pytest.raises(LocalError, match="'c#' in"):
        check_pattern("+/c#/+")


@pytest.mark.rule("MC-2")
def test_case_matters() -> None:
    assert receivers_of("p/b/a", "p/b/A", "p/b/a", "P/b/a", "p/B/a") == {"p/b/a"}


@pytest.mark.rule("MC-3")
def test_plus_is_exactly_one_segment_anywhere() -> None:
    patterns = ("p/b/+", "p/+/a", "+/b/a", "p/b/a/+", "+/+/+")
    assert receivers_of("p/b/a", *patterns) == {"p/b/+", "p/+/a", "+/b/a", "+/+/+"}
    assert receivers_of("p/b", "p/b/+") == set()
    assert receivers_of("p/b/x/y", "p/b/+") == set()
    assert receivers_of("p/b/a/b/c", "p/b/a/+/c") == {"p/b/a/+/c"}
    assert receivers_of("p/b/a/b/d", "p/b/a/+/c") == set()


@pytest.mark.rule("MC-4")
def test_a_last_star_is_any_number_of_segments_and_none() -> None:
    pattern = "p/m/a/b/*"
    for id in ("p/m/a/b", "p/m/a/b/c", "p/m/a/b/c/d"):
        assert receivers_of(id, pattern) == {pattern}
    for id in ("p/m/a/c/d", "p/m/a/bc", "p/m/a", "p/m"):
        assert receivers_of(id, pattern) == set()
    assert receivers_of("p/m", "p/m/*", "p/*", "*") == {"p/m/*", "p/*", "*"}


@pytest.mark.rule("MC-4")
@pytest.mark.parametrize("pattern", ["p/*/a", "*/b/a", "p/b/*/*"])
def test_a_star_before_the_end_is_refused_by_name_and_rule(pattern: str) -> None:
    with pytest.raises(
        LocalError, match=r"has '\*' before its end", check=breaks("MC-4")
    ) as caught:
        Subscriptions().subscribe(pattern, "r")
    assert repr(pattern) in str(caught.value)


@pytest.mark.rule("MC-4")
def test_a_single_segment_is_a_pattern_only_as_a_star() -> None:
    assert check_pattern("*") == ["*"]
    for pattern in ("+", "garage"):
        with pytest.raises(LocalError, match=r"invalid multicast pattern", check=breaks("MC-1")):
            check_pattern(pattern)


@pytest.mark.rule("MC-5")
@pytest.mark.parametrize(("text", "wildcard"), [("p/b/+", "+"), ("p/b/*", "*"), ("+/b", "+")])
def test_publishing_with_a_wildcard_is_an_error(text: str, wildcard: str) -> None:
    with pytest.raises(LocalError, check=breaks("MC-5")) as caught:
        MulticastId.parse(text)
    assert f"{text!r} has the wildcard {wildcard!r}" in str(caught.value)


@pytest.mark.rule("MC-6")
def test_wildcards_work_side_by_side() -> None:
    assert receivers_of("p/m/x/y/c", "p/m/+/+/c") == {"p/m/+/+/c"}
    assert receivers_of("p/m/x/y/z", "p/m/+/+/+", "p/m/+/+/*") == {"p/m/+/+/+", "p/m/+/+/*"}
    assert receivers_of("p/m/x/y", "p/m/+/+/*") == {"p/m/+/+/*"}
    assert receivers_of("p/m/x", "p/m/+/*", "p/m/+/+/*") == {"p/m/+/*"}


@pytest.mark.rule("MC-6")
@pytest.mark.parametrize("provider", ["p.q", "p(q", "p[q]", "^p$", "p?q", "p|q", "p\\q", "{p}"])
def test_no_character_is_special(provider: str) -> None:
    pattern = f"{provider}/m/a"
    assert receivers_of(pattern, pattern, f"{provider}/+/a") == {pattern, f"{provider}/+/a"}
    assert receivers_of("pXq/m/a", pattern) == set()


@pytest.mark.rule("MC-7")
@pytest.mark.parametrize(
    ("published", "receivers"),
    [
        ("brod", "*"),
        ("brod/a", "+ a a/* *"),
        ("brod/a/z", "a/+ a/* * +/+/*"),
        ("brod/a/b/a", "a/* * +/+/a +/+/*"),
        ("brod/a/z/b", "a/+/b a/* * +/+/*"),
        ("brod/z", "+ *"),
        ("anotherBrod", ""),
    ],
)
def test_the_reference_table(published: str, receivers: str) -> None:
    subscriptions = Subscriptions()
    for partition in ["+", "a", "a/+", "a/+/b", "a/*", "*", "+/+/a", "+/+/*"]:
        subscriptions.subscribe(f"provider/brod/{partition}", partition)
    assert set(subscriptions.match(f"provider/{published}")) == set(receivers.split())


@pytest.mark.rule("MC-8")
def test_subscribing_twice_is_as_once() -> None:
    subscriptions = Subscriptions()
    first = subscriptions.subscribe("p/b/+", "r")
    assert first == SubscriptionChange(SubscriptionKind.SUBSCRIBE, "p/b/+", "r", edge=True)
    assert subscriptions.subscribe("p/b/+", "r") is None
    assert subscriptions.match("p/b/a") == ("r",)
    gone = subscriptions.unsubscribe("p/b/+", "r")
    assert gone == SubscriptionChange(SubscriptionKind.UNSUBSCRIBE, "p/b/+", "r", edge=True)
    assert subscriptions.match("p/b/a") == ()


@pytest.mark.rule("MC-8")
def test_unsubscribing_what_is_not_there_is_no_error() -> None:
    subscriptions = Subscriptions()
    assert subscriptions.unsubscribe("p/b", "r") is None
    subscriptions.subscribe("p/b", "r")
    assert subscriptions.unsubscribe("p/b", "other") is None
    assert subscriptions.match("p/b") == ("r",)
    assert subscriptions.unsubscribe_all("other") == []


@pytest.mark.rule("MC-8")
def test_a_receiver_that_goes_takes_all_its_subscriptions() -> None:
    subscriptions = Subscriptions()
    for pattern in ("p/b", "p/b/+", "p/b/*"):
        subscriptions.subscribe(pattern, "goes")
    subscriptions.subscribe("p/b/+", "stays")
    assert subscriptions.patterns_of("goes") == ["p/b", "p/b/+", "p/b/*"]
    changes = subscriptions.unsubscribe_all("goes")
    assert [(change.pattern, change.edge) for change in changes] == [
        ("p/b", True),
        ("p/b/+", False),
        ("p/b/*", True),
    ]
    assert subscriptions.snapshot() == [("p/b/+", "stays")]
    assert subscriptions.patterns_of("goes") == []


@pytest.mark.rule("MC-9")
def test_a_receiver_with_several_matching_patterns_is_found_once() -> None:
    subscriptions = Subscriptions()
    for pattern in ("p/b/a", "p/b/+", "p/b/*", "+/b/a", "*"):
        subscriptions.subscribe(pattern, "r")
    assert subscriptions.match("p/b/a") == ("r",)


@pytest.mark.rule("MC-12")
def test_a_pattern_is_an_mqtt_filter_with_another_star() -> None:
    assert mqtt_filter("p/b/a") == "p/b/a"
    assert mqtt_filter("p/b/+/*") == "p/b/+/#"
    assert mqtt_filter("*") == "#"


@pytest.mark.rule("MC-12")
@pytest.mark.rule("OB-4")
def test_a_broker_is_told_of_the_first_receiver_and_of_the_last() -> None:
    subscriptions = Subscriptions()
    edges = []
    for act, receiver in [
        (subscriptions.subscribe, "a"),
        (subscriptions.subscribe, "a"),
        (subscriptions.subscribe, "b"),
        (subscriptions.unsubscribe, "a"),
        (subscriptions.unsubscribe, "a"),
        (subscriptions.unsubscribe, "b"),
        (subscriptions.unsubscribe, "b"),
        (subscriptions.subscribe, "c"),
    ]:
        change = act("p/b", receiver)
        edges.append((subscriptions.count("p/b"), change.edge if change else None))
    assert edges == [
        (1, True),
        (1, None),
        (2, False),
        (1, False),
        (1, None),
        (0, True),
        (0, None),
        (1, True),
    ]
    assert subscriptions.patterns() == ["p/b"]


@pytest.mark.rule("MC-16")
def test_a_match_walks_only_where_patterns_agree() -> None:
    """Counts the places of the trie that a walk visits, with more and more strangers in it."""
    visited = []
    for strangers in (0, 10, 1_000):
        subscriptions = Subscriptions(remember=0)
        subscriptions.subscribe("p/b/+/x", "r")
        for number in range(strangers):
            subscriptions.subscribe(f"other{number}/b/+/x", "s")
            subscriptions.subscribe(f"p/b{number}/+/*", "s")
            subscriptions.subscribe(f"p/b/a{number}/+/z", "s")
        looks = 0

        class Counting(dict[str, object]):
            def get(self, *args: object) -> object:
                nonlocal looks
                looks += 1
                return super().get(*args)  # type: ignore[call-overload]

        places = [subscriptions._wildcards]
        for place in places:
            places += [*place.children.values(), *([place.one] if place.one else [])]
            place.children = Counting(place.children)  # type: ignore[assignment]
        assert subscriptions.match("p/b/a/x") == ("r",)
        visited.append(looks)
    assert visited[0] == visited[1] == visited[2]


def test_what_an_id_matched_is_remembered_until_a_subscription_changes() -> None:
    subscriptions = Subscriptions()
    subscriptions.subscribe("p/b", "r")
    for _ in range(3):
        assert subscriptions.match("p/b") == ("r",)
        assert subscriptions.match("p/c") == ()
    assert subscriptions.walks == 2
    subscriptions.subscribe("p/+", "s")
    assert subscriptions.match("p/b") == ("r", "s")
    assert subscriptions.match("p/c") == ("s",)
    subscriptions.unsubscribe("p/b", "r")
    assert subscriptions.match("p/b") == ("s",)
    assert subscriptions.walks == 5


def test_what_is_remembered_is_bounded_by_receivers() -> None:
    subscriptions = Subscriptions(remember=100)
    for number in range(40):
        subscriptions.subscribe("p/b/*", f"r{number}")
    for number in range(1_000):
        assert len(subscriptions.match(f"p/b/{number}")) == 40
        assert len(subscriptions._remembered) <= 2
    for number in range(100):
        subscriptions.subscribe("p/b/*", f"s{number}")
    assert len(subscriptions.match("p/b")) == 140
    assert not subscriptions._remembered
    exactly = Subscriptions(remember=2)
    exactly.subscribe("p/b", "r")
    assert [exactly.match("p/b") for _ in range(3)] == [("r",)] * 3
    assert exactly.walks == 1
    found = [exactly.match(id) for id in ("p/c", "p/b", "p/b", "p/b", "p/c")]
    assert found == [(), ("r",), ("r",), ("r",), ()]
    assert exactly.walks == 4
    both = Subscriptions(remember=4)
    for receiver, pattern in ("r", "p/b"), ("s", "p/c"):
        both.subscribe(pattern, receiver)
    assert [both.match(id) for id in ("p/b", "p/c") * 3] == [("r",), ("s",)] * 3
    assert both.walks == 2
    forgetful = Subscriptions(remember=0)
    forgetful.subscribe("p/b", "r")
    assert [forgetful.match("p/b") for _ in range(3)] == [("r",)] * 3
    assert forgetful.walks == 3


def test_a_fan_out_keeps_its_order() -> None:
    subscriptions = Subscriptions()
    names = [f"r{number}" for number in range(50)]
    for name in names:
        subscriptions.subscribe("p/b/+", name)
    assert subscriptions.match("p/b/a") == tuple(names)


SEGMENTS = st.sampled_from(["a", "b", "c"])
IDS = st.lists(SEGMENTS, min_size=2, max_size=5)
PATTERNS = st.builds(
    lambda segments, star: [*segments, *(["*"] if star else [])],
    st.lists(st.sampled_from(["a", "b", "c", "+"]), min_size=2, max_size=5),
    st.booleans(),
) | st.just(["*"])


@pytest.mark.rule("MC-3")
@pytest.mark.rule("MC-4")
@given(st.lists(PATTERNS, max_size=12), IDS)
def test_every_match_is_as_brute_force_says(patterns: list[list[str]], id: list[str]) -> None:
    texts = {"/".join(pattern): pattern for pattern in patterns}
    expected = {text for text, pattern in texts.items() if matches(pattern, id)}
    assert receivers_of("/".join(id), *texts) == expected


class SubscriptionsBesideTheirOracle(RuleBasedStateMachine):
    """The trie against a set of pairs and brute force."""

    def __init__(self) -> None:
        super().__init__()
        self.subscriptions = Subscriptions(remember=50)
        self.pairs: dict[tuple[str, str], None] = {}

    @rule(pattern=PATTERNS, receiver=st.sampled_from("xyz"))
    def subscribe(self, pattern: list[str], receiver: str) -> None:
        pair = ("/".join(pattern), receiver)
        edge = all(held != pair[0] for held, _ in self.pairs)
        change = self.subscriptions.subscribe(*pair)
        if pair in self.pairs:
            assert change is None
        else:
            assert change == SubscriptionChange(SubscriptionKind.SUBSCRIBE, *pair, edge)
        self.pairs[pair] = None

    @rule(pattern=PATTERNS, receiver=st.sampled_from("xyz"))
    def unsubscribe(self, pattern: list[str], receiver: str) -> None:
        pair = ("/".join(pattern), receiver)
        there = pair in self.pairs
        self.pairs.pop(pair, None)
        edge = all(held != pair[0] for held, _ in self.pairs)
        change = self.subscriptions.unsubscribe(*pair)
        if there:
            assert change == SubscriptionChange(SubscriptionKind.UNSUBSCRIBE, *pair, edge)
        else:
            assert change is None

    @rule(receiver=st.sampled_from("xyz"))
    def go(self, receiver: str) -> None:
        gone = [pattern for pattern, name in self.pairs if name == receiver]
        changes = self.subscriptions.unsubscribe_all(receiver)
        assert sorted(change.pattern for change in changes) == sorted(gone)
        for pattern in gone:
            del self.pairs[pattern, receiver]

    @rule(id=IDS)
    def publish(self, id: list[str]) -> None:
        expected = {name for pattern, name in self.pairs if matches(pattern.split("/"), id)}
        found = self.subscriptions.match("/".join(id))
        assert set(found) == expected
        assert len(found) == len(expected)

    @invariant()
    def nothing_drifts(self) -> None:
        assert set(self.subscriptions.snapshot()) == set(self.pairs)
        assert len(self.subscriptions) == len(self.pairs)
        patterns = {pattern for pattern, _ in self.pairs}
        assert set(self.subscriptions.patterns()) == patterns
        for pattern in patterns:
            there = sum(1 for held, _ in self.pairs if held == pattern)
            assert self.subscriptions.count(pattern) == there
        if not self.pairs:
            assert self.subscriptions._wildcards.unused()
            assert not self.subscriptions._patterns


TestSubscriptions = SubscriptionsBesideTheirOracle.TestCase


@pytest.mark.rule("MC-1")
@pytest.mark.parametrize("parts", [(7, "b"), ("a", None), ("a", "b", 7), ("a", "b", ["c", 7])])
def test_what_is_not_text_is_told(parts: Any) -> None:
    with pytest.raises(LocalError, match="give provider, broadcast and partition as text"):
        MulticastId.of(*parts)
