from __future__ import annotations

import pytest

from waystation.core.tokens import Token, Tokens

SHARED, TRUCKS, SEVEN = Token(b"shared"), Token(b"trucks", "truck-*"), Token(b"seven", "truck-7")
TOKENS = Tokens([SHARED, TRUCKS, SEVEN])


@pytest.mark.rule("ID-2")
def test_where_a_name_has_a_token_of_its_own_the_shared_one_is_not_enough() -> None:
    assert TOKENS.of("garage") == (SHARED,)
    assert TOKENS.of("truck-8") == (TRUCKS,)
    assert TOKENS.of("truck-7") == (TRUCKS, SEVEN)
    assert Tokens([TRUCKS]).of("garage") == ()


def test_a_single_token_is_for_everybody() -> None:
    tokens = Tokens.shared(b"shared")
    assert tokens is not None
    assert tokens.of("anybody") == (SHARED,)
    assert Tokens.shared(None) is None


def test_tokens_know_what_is_among_them() -> None:
    assert all(TOKENS.has(token) for token in (SHARED, TRUCKS, SEVEN))
    assert not TOKENS.has(Token(b"other"))


def test_no_secret_is_shown() -> None:
    shown = f"{SHARED} {TRUCKS!r} {TOKENS}"
    assert shown == "<token of everybody> <token of truck-*> <3 tokens>"
