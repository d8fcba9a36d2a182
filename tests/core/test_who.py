from __future__ import annotations

import pytest

from waystation.core.address import Route
from waystation.core.who import NOBODY, Who, is_first_hand

IDENTIFIER = "I" + "0" * 64


@pytest.mark.rule("ID-2")
def test_the_strongest_proof_is_told() -> None:
    every = Who(IDENTIFIER, ("truck-7.example", "t7"), "truck-*")
    assert every.text == IDENTIFIER
    assert Who(None, ("truck-7.example", "t7"), "truck-*").text == "certificate:truck-7.example"
    assert Who(None, (), "truck-*").text == "token:truck-*"
    assert NOBODY.text is None


def test_nobody_has_proven_nothing() -> None:
    assert not NOBODY
    assert all((Who(IDENTIFIER), Who(certificate=("a",)), Who(None, (), "a")))


@pytest.mark.rule("ID-2")
@pytest.mark.parametrize(
    ("back", "expected"),
    [
        ("", True),
        ("hub", True),
        ("hub => request-5", True),
        ("hub => worker", True),
        ("hub => tcp-0123456789abcdef", False),  # the session of who sent it to that hub
        ("hub => worker => other", False),
    ],
)
def test_what_a_peer_passes_on_for_others_is_not_its_own(back: str, expected: bool) -> None:
    assert is_first_hand(Route.parse(back) if back else Route()) is expected
