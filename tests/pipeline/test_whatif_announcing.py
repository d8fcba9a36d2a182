"""Names whose end is left out, and which nodes above would have been told of them (SP-9)."""

from __future__ import annotations

import pytest

from waystation.journal.schema import SUBSCRIPTIONS
from waystation.whatif.announcing import Announced, Kept, Opened, announced

LATER = 1_000


def both(node: str, parent: str, since: int, until: int) -> list[Opened]:
    """A session of a node with its parent, as both have recorded it."""
    up = Opened(node, f"to-{parent}", "parent", parent, since, until)
    return [up, Opened(parent, f"{node}-{since}", "child", node, since, until)]


def kept(since: int, until: int = LATER) -> Kept:
    return Kept(SUBSCRIPTIONS, "me", "+/news/*", "leaf", since, until)


def told(node: str, at: int, session: str | None) -> Announced:
    return Announced(SUBSCRIPTIONS, "me", "+/news/*", node, at, session)


@pytest.mark.rule("SP-9")
def test_a_name_that_stays_is_announced_when_a_session_opens_again() -> None:
    sessions = [*both("leaf", "hub", 0, 20), *both("leaf", "hub", 30, LATER)]
    assert announced([kept(25)], sessions) == [
        told("hub", 30, "leaf-30"),
        told("hub", LATER, None),
    ]


@pytest.mark.rule("SP-9")
def test_a_name_that_stays_goes_everywhere_when_its_session_ends() -> None:
    sessions = [*both("leaf", "hub", 0, 20), *both("hub", "top", 0, LATER)]
    assert announced([kept(10)], sessions) == [
        told("hub", 10, "leaf-0"),
        told("top", 10, "hub-0"),
        told("hub", 20, None),
        told("top", 20, None),
    ]


@pytest.mark.rule("SP-9")
def test_a_name_is_announced_no_more_when_its_node_has_ended() -> None:
    sessions = [*both("leaf", "hub", 0, 20), *both("leaf", "hub", 40, LATER)]
    assert {one.at for one in announced([kept(10, 20)], sessions)} == {10, 20}


@pytest.mark.rule("SP-9")
def test_nodes_may_be_parents_of_each_other() -> None:
    sessions = [*both("leaf", "hub", 0, LATER), *both("hub", "top", 0, LATER)]
    sessions += [*both("top", "hub", 0, LATER)]
    told_of = [one for one in announced([kept(10)], sessions) if one.session is not None]
    assert told_of == [told("hub", 10, "leaf-0"), told("top", 10, "hub-0")]
