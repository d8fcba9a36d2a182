"""Topics and filters: the fast matchers against a slow and obvious one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.mqtt.broker.topics import MAX_LEVELS, TopicTrie, is_filter, is_topic

LEVEL = st.sampled_from(["", "a", "b", "$x", "c"])
TOPIC = st.lists(LEVEL, min_size=1, max_size=4).map("/".join).filter(bool)
FILTER = st.builds(
    lambda levels, rest: "/".join([*levels, *rest]),
    st.lists(st.one_of(LEVEL, st.just("+")), max_size=4),
    st.sampled_from([[], ["#"]]),
).filter(bool)


def matches(filter: str, topic: str) -> bool:
    """The standard's words, one after the other."""
    wanted, found = filter.split("/"), topic.split("/")
    if topic.startswith("$") and wanted[0] in ("+", "#"):
        return False
    if wanted[-1] == "#":
        wanted = wanted[:-1]
        if len(found) < len(wanted):
            return False
        found = found[: len(wanted)]
    return len(wanted) == len(found) and all(
        level in ("+", name) for level, name in zip(wanted, found, strict=True)
    )


@given(st.lists(FILTER, max_size=12), st.lists(FILTER, max_size=6), TOPIC)
def test_filters_match_as_the_standard_says(put: list[str], removed: list[str], topic: str) -> None:
    filters: TopicTrie[str] = TopicTrie()
    kept = set(put)
    for filter in put:
        filters.put(filter, "somebody", filter)
    for filter in set(removed) & kept:
        filters.remove(filter, "somebody")
        kept.discard(filter)
    assert sorted(filters.match_topic(topic)) == sorted(f for f in kept if matches(f, topic))
    for filter in kept:
        filters.remove(filter, "somebody")
    assert not filters


@given(st.lists(TOPIC, max_size=12), FILTER)
def test_topics_are_found_by_a_filter(put: list[str], filter: str) -> None:
    tree: TopicTrie[str] = TopicTrie()
    for topic in put:
        tree.put(topic, "", topic)
    assert sorted(tree.match_filter(filter)) == sorted(t for t in set(put) if matches(filter, t))
    for topic in set(put):
        assert tree.get(topic, "") == topic
        tree.remove(topic, "")
        assert tree.get(topic, "") is None
    assert not tree


@pytest.mark.parametrize("text", ["", "a/+", "#", "a\0b", "/" * MAX_LEVELS])
def test_what_is_no_topic(text: str) -> None:
    assert not is_topic(text)


@pytest.mark.parametrize("text", ["", "a/#/b", "a+/b", "a#", "b\0", "/" * MAX_LEVELS])
def test_what_is_no_filter(text: str) -> None:
    assert not is_filter(text)
