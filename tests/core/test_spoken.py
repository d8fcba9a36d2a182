"""How people speak of names and addresses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.core.address_types import GENERATED
from waystation.core.spoken import is_internal, place, plural, receiver, receivers

DIGITS = st.text("0123456789abcdef", min_size=GENERATED, max_size=GENERATED)
SUBSCRIBERS = [f"subscriber-{number:0{GENERATED}x}" for number in (0x67C5, 0x7098)]
REQUEST = f"request-{0xF00:0{GENERATED}x}"


@given(st.sampled_from(["subscriber", "request"]), DIGITS)
def test_names_that_nodes_make_up_are_told_in_words(word: str, digits: str) -> None:
    assert receiver(f"{word}-{digits}") == f"a {word}"
    assert is_internal(f"{word}-{digits}")


@pytest.mark.parametrize(
    "name",
    ["truck-7", "subscriber", "subscriber-7", f"subscriber-{'x' * GENERATED}", f"request{'0' * 8}"],
)
def test_names_that_people_gave_stay_as_they_are(name: str) -> None:
    assert receiver(name) == name
    assert receivers([name]) == [name]
    assert not is_internal(name)


@pytest.mark.parametrize("name", ["waystation.status", "tcp-67c5dc23c9d6c3fe"])
def test_services_and_sessions_of_nodes_are_internal(name: str) -> None:
    assert is_internal(name)


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("1#10.0.0.7:4000", "tcp 10.0.0.7:4000"),
        ("77#x", "77 x"),
        ("0#echo", "echo"),
        ("echo", "echo"),
        ("0#", "0#"),
    ],
)
def test_an_address_is_told_with_its_transport_by_name(address: str, told: str) -> None:
    assert place(address) == told


def test_several_receivers_are_told_once_each_and_the_nameless_last() -> None:
    names = [SUBSCRIBERS[0], "truck-7", REQUEST, SUBSCRIBERS[1], "hub", "truck-7"]
    assert receivers(names) == ["truck-7", "hub", "2 subscribers", "a request"]
    assert receivers([]) == []


@pytest.mark.parametrize(
    ("told", "number"), [("0 copies", 0), ("1 copy", 1), ("3,412 copies", 3_412)]
)
def test_a_number_has_its_noun(told: str, number: int) -> None:
    assert plural(number, "copy", "copies") == told
    assert plural(number, "node") == told.replace("copies", "nodes").replace("copy", "node")
