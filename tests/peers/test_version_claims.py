"""Names that are claimed more than once, where some nodes know claims and some do not (UP-1)."""

from __future__ import annotations

import pytest

from tests.peers.version_peer import NEW, OLD, TEST_SECONDS, built, children, with_children

pytestmark = [
    pytest.mark.peer,
    pytest.mark.timeout(TEST_SECONDS),
]

DIAMONDS = [(OLD, NEW, OLD), (OLD, NEW, NEW), (NEW, OLD, OLD), (NEW, OLD, NEW), (OLD, OLD, NEW)]
PAIRS = [(OLD, OLD), (OLD, NEW), (NEW, OLD)]


@pytest.fixture(scope="module", autouse=True)
def _first_version() -> None:
    built()


@pytest.mark.rule("UP-1")
@pytest.mark.parametrize("versions", DIAMONDS, ids="-".join)
@with_children
async def test_a_leaf_with_two_parents_is_reached_over_the_one_that_is_left(
    versions: tuple[str, str, str],
) -> None:
    async with children() as fleet:
        top = await fleet.hub(NEW, "top")
        left = await fleet.hub(versions[0], "left", top)
        right = await fleet.hub(versions[1], "right", top)
        leaf = await fleet.start(versions[2], "leaf")
        await leaf.ask("join", left.place, "left")
        await leaf.ask("join", right.place, "right")
        await leaf.ask("serve", "echo")
        for hub in (top, left, right):
            await hub.until("knows", "echo")
        await top.until("request", "echo", "hello", 1.0, answer="leaf: hello")
        await left.kill()
        await top.until("request", "echo", "again", 1.0, answer="leaf: again")


@pytest.mark.rule("UP-1")
@pytest.mark.parametrize("versions", PAIRS, ids="-".join)
@pytest.mark.parametrize("gone", ["one", "two"])
@with_children
async def test_of_two_that_want_a_name_the_one_that_is_left_has_it(
    versions: tuple[str, str], gone: str
) -> None:
    async with children() as fleet:
        hub = await fleet.hub(NEW, "hub")
        one = await fleet.leaf(versions[0], "one", hub)
        await one.ask("serve", "echo")
        await hub.until("request", "echo", "hello", 1.0, answer="one: hello")
        two = await fleet.leaf(versions[1], "two", hub)
        await two.ask("serve", "echo", "other")
        await hub.until("knows", "other")
        ends, stays = (one, two) if gone == "one" else (two, one)
        await ends.kill()
        await hub.until("request", "echo", "again", 1.0, answer=f"{stays.name}: again")
