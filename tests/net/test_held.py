"""What a server holds for slow receivers, measured a moment after it was written."""

from __future__ import annotations

import asyncio

import pytest

from waystation.net.held import FREE, REFRESH, HeldBytes
from waystation.testing import async_test, until


class Receivers:
    """Sizes by name, and who was given up."""

    def __init__(self, limit: int) -> None:
        self.sizes: dict[str, int] = {}
        self.gone: list[str] = []
        self.held: HeldBytes[str] = HeldBytes(limit, lambda name: self.sizes[name], self._give_up)

    def _give_up(self, name: str) -> None:
        self.gone.append(name)
        self.sizes[name] = 0

    async def hold(self, **sizes: int) -> None:
        self.sizes |= sizes
        for name in sizes:
            self.held.count_soon(name)
        await asyncio.sleep(0)

    def is_tight(self) -> bool:
        return self.held.is_tight


@pytest.mark.rule("FL-1")
@async_test
async def test_who_holds_most_is_given_up_unless_it_reads_in_the_next_moment() -> None:
    receivers = Receivers(1_000)
    await receivers.hold(a=900, b=500)
    assert receivers.is_tight()
    assert receivers.gone == []
    await until(lambda: receivers.gone == ["a"])
    assert not receivers.is_tight()
    await receivers.hold(c=2_000)
    receivers.sizes["c"] = 0  # it has read everything
    await asyncio.sleep(3 * REFRESH)
    assert receivers.gone == ["a"]
    assert receivers.held.shares.total.used == 500


@pytest.mark.rule("FL-3")
@async_test
async def test_while_the_budget_is_spent_everybody_has_an_equal_part() -> None:
    receivers = Receivers(100_000)
    assert receivers.held.limit_of(80_000) == 80_000
    await receivers.hold(a=70_000, b=40_000)
    assert receivers.is_tight()
    assert receivers.held.limit_of(80_000) == 50_000
    assert not receivers.held.allows("a", 1)
    assert receivers.held.allows("b", 10_000)
    receivers.sizes["a"] = 10  # and is measured anew when somebody asks
    assert receivers.held.allows("a", 10)
    receivers.held.measure_all()
    assert not receivers.is_tight()
    assert receivers.held.limit_of(80_000) == 80_000


@pytest.mark.rule("FL-3")
@async_test
async def test_a_part_is_never_less_than_what_need_not_be_counted() -> None:
    receivers = Receivers(10 * FREE)
    await receivers.hold(**{f"r{number}": FREE for number in range(12)})
    assert receivers.is_tight()
    assert receivers.held.limit_of(1 << 20) == FREE


@async_test
async def test_who_is_forgotten_is_not_measured() -> None:
    receivers = Receivers(100)
    receivers.sizes["a"] = 50
    receivers.held.count_soon("a")
    receivers.held.forget("a")
    await asyncio.sleep(0)
    assert receivers.held.shares.total.used == 0
    await receivers.hold(b=200)
    receivers.held.forget("b")
    assert not receivers.is_tight()
