"""Accounts of bytes within one budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.core.budget import Account


@pytest.mark.rule("FL-1")
def test_an_empty_account_takes_one_message_of_any_size() -> None:
    account = Account(10)
    assert account.has_room(1_000)
    account.take(1_000)
    assert account.is_over
    assert not account.has_room(1)


@pytest.mark.rule("FL-3")
def test_senders_wait_at_half_and_go_on_at_a_quarter() -> None:
    account = Account(100)
    seen = []
    for change in (49, 1, -25):
        account.take(change)
        seen.append((account.is_half_full, account.is_nearly_empty))
    assert seen == [(False, False), (True, False), (False, True)]


@pytest.mark.rule("FL-1")
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10_000)), max_size=50))
def test_a_budget_holds_what_its_accounts_hold(taken: list[tuple[int, int]]) -> None:
    budget = Account(100_000)
    accounts = [Account(1_000, budget) for _ in range(4)]
    for number, size in taken:
        accounts[number].take(size)
        assert budget.used == sum(account.used for account in accounts)
    for number, size in taken:
        accounts[number].give_back(size)
    assert budget.used == 0
    assert all(account.used == 0 for account in accounts)
