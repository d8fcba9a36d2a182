from __future__ import annotations

import pytest

from waystation.core.address import Route
from waystation.core.grants import Action, Grant, Grants, action_of, covers, is_answer
from waystation.core.who import NOBODY, Who
from waystation.errors import LocalError

IDENTIFIER = "I" + "7" * 64
HUB = Who(identity=IDENTIFIER)
TRUCK = Who(None, (), "truck-*")
SHOP = Who(certificate=("shop.example", "till-1"))

GRANTS = Grants(
    [
        Grant(identity=(IDENTIFIER,), announce=("*",), send=("*",), publish=("*",)),
        Grant(
            token=("truck-*",),
            announce=("truck-*",),
            publish=("truck-*/position/*",),
            subscribe=("hub/alerts/*",),
            send=("telemetry", "tcp#10.*", "1#10.*"),
            register=("truck-*",),
        ),
        Grant(certificate=("*.example",), announce=("shop",), send=("telemetry",)),
        Grant(anyone=True, send=("news",)),
    ]
)


@pytest.mark.rule("ID-3")
@pytest.mark.parametrize(
    ("who", "action", "name", "allowed"),
    [
        (HUB, Action.ANNOUNCE, "anything", True),
        (HUB, Action.SUBSCRIBE, "hub/alerts", False),
        (TRUCK, Action.ANNOUNCE, "truck-7", True),
        (TRUCK, Action.ANNOUNCE, "hub", False),
        (TRUCK, Action.PUBLISH, "truck-7/position/eu", True),
        (TRUCK, Action.PUBLISH, "hub/position", False),
        (TRUCK, Action.SUBSCRIBE, "hub/alerts/+/fire", True),
        (TRUCK, Action.SUBSCRIBE, "hub/*", False),
        (TRUCK, Action.REGISTER, "truck-7", True),
        (SHOP, Action.ANNOUNCE, "shop", True),
        (Who(certificate=("till-1",)), Action.ANNOUNCE, "shop", False),
        (NOBODY, Action.ANNOUNCE, "truck-7", False),
        (NOBODY, Action.SEND, "news", True),
        (Who(None, (), "truck-7"), Action.ANNOUNCE, "truck-7", False),
    ],
)
def test_grants_go_by_what_is_proven(who: Who, action: Action, name: str, allowed: bool) -> None:
    for _ in range(2):  # also as remembered
        assert GRANTS.allows(who, action, name) is allowed


@pytest.mark.rule("ID-3")
@pytest.mark.parametrize(
    ("granted", "asked", "covered"),
    [
        ("*", "a/b/*", True),
        ("a/*", "a", True),
        ("a/*", "a/+/*", True),
        ("a/*", "b", False),
        ("a/+", "a/+", True),
        ("a/+", "a/b", True),
        ("a/+", "a/*", False),
        ("a/+", "a/b/c", False),
        ("a/+", "a", False),
        ("a/b", "a/+", False),
        ("a/b", "a/b", True),
        ("a/b", "a/*", False),
        ("a*/b", "ab/b", True),
        ("a*/b", "+/b", False),
        ("a/b/*", "a", False),
    ],
)
def test_a_subscription_is_granted_if_all_that_it_can_match_is(
    granted: str, asked: str, covered: bool
) -> None:
    assert covers(granted, asked) is covered


@pytest.mark.rule("ID-3")
@pytest.mark.parametrize(
    ("who", "route", "refused"),
    [
        (TRUCK, "telemetry", None),
        (TRUCK, "telemetry => admin", (Action.SEND, "admin")),
        (TRUCK, "admin => telemetry", (Action.SEND, "admin")),
        (TRUCK, "tcp-0123456789abcdef => request-12", None),
        (TRUCK, "tcp-0123456789abcdef => admin", (Action.SEND, "admin")),
        (TRUCK, "1#10.0.0.1:4000", None),
        (TRUCK, "1#11.0.0.1:4000", (Action.SEND, "1#11.0.0.1:4000")),
        (TRUCK, "255#truck-7/position/eu", None),
        (TRUCK, "255#hub/alerts", (Action.PUBLISH, "hub/alerts")),
        (TRUCK, "waystation.directory", None),
        (SHOP, "waystation.directory", (Action.SEND, "waystation.directory")),
        (NOBODY, "request-12", None),
    ],
)
def test_every_name_in_a_route_is_to_be_granted_but_those_of_answers(
    who: Who, route: str, refused: tuple[Action, str] | None
) -> None:
    parsed = Route.parse(route)
    assert GRANTS.refused_in(who, parsed) == refused
    for _ in range(2):
        assert GRANTS.admits(who, parsed) is (refused is None)


@pytest.mark.rule("CL-4")
def test_a_name_that_is_given_to_somebody_is_known() -> None:
    trucks = Grants([Grant(token=("t",), announce=("truck-*",))])
    assert trucks.gives_name("truck-7")
    assert not trucks.gives_name("garage")


@pytest.mark.rule("ID-3")
def test_what_is_refused_is_explained() -> None:
    told = GRANTS.explain(TRUCK, Action.ANNOUNCE, "truck-7")
    assert told.startswith(
        "token:truck-* may announce truck-7: token truck-* may announce truck-*;"
    )
    grants = Grants(
        [Grant(certificate=("a", "b"), announce=("x",)), Grant(anyone=True, send=("y",))]
    )
    assert grants.explain(NOBODY, Action.ANNOUNCE, "x") == (
        "an unproven peer may not announce x: that is granted to certificate a or b only"
    )
    assert grants.explain(TRUCK, Action.ANNOUNCE, "z") == (
        "token:truck-* may not announce z: no grant gives it to anybody"
    )
    assert [str(grant) for grant in grants] == [
        "certificate a or b may announce x",
        "anyone may send y",
    ]


def test_decisions_are_remembered_within_bounds() -> None:
    grants = Grants([Grant(anyone=True, send=("a*",))], cached=2)
    for number in range(10):
        assert grants.allows(NOBODY, Action.SEND, f"a{number}")
        assert grants.admits(NOBODY, Route.parse(f"a{number}"))
        assert len(grants._decided) <= 2
        assert len(grants._routes) <= 2
    assert grants.allows(NOBODY, Action.SEND, "a" * 5_000)
    assert grants.admits(NOBODY, Route.parse("a" * 5_000))
    assert all(len(name) < 5_000 for _, _, name in grants._decided)


def test_a_grant_is_for_somebody_and_of_something() -> None:
    with pytest.raises(LocalError, match="for nobody"):
        Grant(send=("x",))
    with pytest.raises(LocalError, match="of nothing to anyone"):
        Grant(anyone=True)
    assert action_of("send") is Action.SEND
    with pytest.raises(LocalError, match="cannot be granted"):
        action_of("fly")


def test_equal_grants_are_equal() -> None:
    one, other = (Grants([Grant(anyone=True, send=("x",))]) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert one != GRANTS
    assert one != "x"


@pytest.mark.rule("ID-4")
def test_answers_have_addresses_that_were_drawn_by_chance() -> None:
    route = Route.parse("request-5 => tcp-0123456789abcdef => secure-channel-7 => brakes => 1#a:1")
    assert list(map(is_answer, route.addresses)) == [True, True, True, False, False]


@pytest.mark.rule("ID-3")
def test_who_asks_can_be_called_by_its_name() -> None:
    told = GRANTS.explain(NOBODY, Action.ANNOUNCE, "truck-7", "mallory")
    assert told.startswith("mallory may not announce truck-7: ")
