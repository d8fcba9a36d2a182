from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.core.access import Access, AccessRule, matches
from waystation.core.address import Address, Route
from waystation.errors import LocalError


def allow(senders: str, *to: str) -> AccessRule:
    return AccessRule(True, (senders,), to)


def deny(senders: str, *to: str) -> AccessRule:
    return AccessRule(False, (senders,), to)


@pytest.mark.rule("OB-2")
def test_the_first_rule_that_fits_decides() -> None:
    access = Access([allow("chief", "admin"), deny("*", "admin"), allow("*", "*")])
    assert access.allows("chief", "admin")
    assert not access.allows("truck-7", "admin")
    assert access.allows("truck-7", "telemetry")


def test_what_no_rule_speaks_of_is_refused() -> None:
    access = Access([allow("truck-*", "telemetry")])
    assert access.allows("truck-7", "telemetry")
    assert not access.allows("truck-7", "admin")
    assert not access.allows("car-7", "telemetry")
    assert not access.allows("", "telemetry")
    assert not Access([]).allows("truck-7", "telemetry")


def test_answers_to_requests_of_the_node_pass_unless_a_rule_says_no() -> None:
    assert Access([]).allows("truck-7", "request-12")
    assert not Access([deny("*", "*")]).allows("truck-7", "request-12")


def test_every_address_of_a_route_must_be_allowed() -> None:
    access = Access([allow("*", "hop", "echo")])
    assert access.admits("truck-7", Route.parse("echo"))
    assert access.admits("truck-7", Route.parse("hop => echo"))
    assert not access.admits("truck-7", Route.parse("hop => admin"))
    assert not access.admits("truck-7", Route.parse("hop => tcp#10.0.0.1:4000"))


def test_types_are_written_by_name_or_number() -> None:
    access = Access([allow("*", "tcp#10.*", "3#hub:80", "0#echo", "local#log", "lora#*")])
    allowed = ["1#10.0.0.1:4000", "3#hub:80", "echo", "log"]
    assert all(access.allows("a", address) for address in allowed)
    assert not access.allows("a", "1#11.0.0.1:4000")
    assert not access.allows("a", "10.0.0.1:4000")
    of_a_node = Access([allow("*", "lora#*")], {"lora": 128})
    assert of_a_node.admits("a", Route((Address(128, b"x"),)))


def test_a_local_name_never_passes_for_an_address_of_a_type() -> None:
    access = Access([allow("*", "tcp#*")])
    for name in (b"tcp#10.0.0.1:4000", b"1#10.0.0.1:4000"):
        assert not access.admits("a", Route((Address(0, name),)))
        assert Access([allow("*", f"0#{name.decode()}")]).admits("a", Route((Address(0, name),)))


def test_publications_are_named_by_their_multicast_id() -> None:
    for pattern in ("fleet/*", "255#fleet/*"):
        access = Access([allow("truck-*", pattern)])
        assert access.admits("truck-7", Route((Address(255, b"fleet/position/eu"),)))
        assert not access.admits("truck-7", Route((Address(255, b"garage/position/eu"),)))
        assert not access.admits("car", Route((Address(255, b"fleet/position/eu"),)))


@pytest.mark.parametrize(
    ("pattern", "text", "fits"),
    [
        ("", "", True),
        ("a", "a", True),
        ("a", "b", False),
        ("*", "", True),
        ("*", "a/b", True),
        ("fleet/*", "fleet/eu/de", True),
        ("fleet/*", "fleet", False),
        ("a*a", "a", False),
        ("a*b*c", "a-b-c", True),
        ("a*b*c", "acb", False),
        ("a*b*c", "a-c", False),
        ("*ab*ab*", "abab", True),
        ("*ab*ab*", "abb", False),
        ("a.c", "abc", False),
        ("[ab]?", "a1", False),
    ],
)
def test_a_star_stands_for_any_characters(pattern: str, text: str, fits: bool) -> None:
    assert matches(pattern, text) is fits


@given(st.text("ab*", max_size=8), st.text("ab", max_size=12))
def test_patterns_match_as_the_regular_expression_would(pattern: str, text: str) -> None:
    expression = ".*".join(re.escape(part) for part in pattern.split("*"))
    assert matches(pattern, text) is bool(re.fullmatch(expression, text))


@pytest.mark.parametrize("rule", [AccessRule(True, (), ("a",)), AccessRule(True, ("a",), ("",))])
def test_a_rule_about_nobody_is_a_mistake(rule: AccessRule) -> None:
    with pytest.raises(LocalError, match="access rule") as error:
        Access([rule])
    assert error.value.rule == "OB-2"


def test_the_cache_is_bounded() -> None:
    access = Access([allow("truck-*", "*")], cached=4)
    for number in range(20):
        route = Route.parse(f"a{number} => b{number}")
        for _ in range(2):
            assert access.admits("truck-7", route)
            assert not access.admits("car", route)
    assert len(access._addresses) <= 4
    assert len(access._routes) <= 4


def test_decisions_about_long_addresses_are_not_cached() -> None:
    access = Access([allow("*", "*")])
    assert access.admits("a", Route((Address(0, b"x" * 100_000),)))
    assert not access._addresses
    assert not access._routes
