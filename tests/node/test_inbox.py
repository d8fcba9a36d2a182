from __future__ import annotations

import asyncio

import pytest

from waystation.core.outcome import Outcome, Verdict
from waystation.node.inbox import Inbox, Pending

IN = Verdict(Outcome.DELIVERED)


def filled(capacity: int, *items: str) -> Inbox[str]:
    inbox: Inbox[str] = Inbox(capacity)
    for item in items:
        assert inbox.offer(item)
    return inbox


def wait(inbox: Inbox[str], item: str) -> Pending:
    pending = Pending()
    inbox.join(item, IN, pending)
    return pending


def test_items_come_out_in_order_and_room_is_bounded() -> None:
    inbox = filled(2, "a", "b")
    assert not inbox.offer("c")
    assert (inbox.take(), inbox.take(), len(inbox)) == ("a", "b", 0)
    assert inbox.offer("c")


@pytest.mark.rule("WK-5")
def test_who_waited_for_room_comes_before_who_comes_later() -> None:
    async def scenario() -> list[str]:
        inbox = filled(1, "a")
        first, second = wait(inbox, "b"), wait(inbox, "c")
        assert inbox.take() == "a"
        assert await first
        assert not inbox.offer("overtakes")
        taken = [inbox.take()]
        assert await second
        return [*taken, inbox.take()]

    assert asyncio.run(scenario()) == ["b", "c"]


def test_who_gave_up_leaves_no_gap() -> None:
    async def scenario() -> None:
        inbox = filled(1, "a")
        withdrawn, late, patient = (wait(inbox, item) for item in "bcd")
        withdrawn.cancel()
        late.set_result(None)
        assert inbox.take() == "a"
        assert await patient
        assert inbox.take() == "d"
        gone = wait(inbox, "e")
        gone.cancel()
        assert inbox.offer("f")
        assert inbox.take() == "f"

    asyncio.run(scenario())


def test_waiting_for_room_ends_at_the_deadline() -> None:
    async def scenario() -> tuple[Verdict | None, int]:
        inbox = filled(1, "a")
        pending = wait(inbox, "b")
        pending.expire_after(0.01)
        return await pending, len(inbox)

    assert asyncio.run(scenario()) == (None, 1)


def test_a_reader_sleeps_until_something_is_there() -> None:
    async def scenario() -> str:
        inbox: Inbox[str] = Inbox(5)
        reader = asyncio.create_task(inbox.filled())
        await asyncio.sleep(0)
        assert not reader.done()
        assert inbox.offer("a")
        assert inbox.offer("b")  # nobody sleeps any more
        await reader
        return inbox.take()

    assert asyncio.run(scenario()) == "a"


def test_a_reader_that_went_away_is_not_woken() -> None:
    async def scenario() -> None:
        inbox: Inbox[str] = Inbox(5)
        reader = asyncio.create_task(inbox.filled())
        await asyncio.sleep(0)
        reader.cancel()
        await asyncio.wait([reader])
        assert inbox.offer("a")
        await inbox.filled()

    asyncio.run(scenario())


def test_an_emptied_inbox_turns_away_who_waits() -> None:
    async def scenario() -> tuple[list[str], Verdict | None]:
        inbox = filled(2, "a", "b")
        room, withdrawn = wait(inbox, "c"), wait(inbox, "d")
        withdrawn.cancel()
        return inbox.empty(), await room

    assert asyncio.run(scenario()) == (["a", "b"], None)
