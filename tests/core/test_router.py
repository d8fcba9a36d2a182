from __future__ import annotations

import pytest

from tests.rule_errors import breaks
from waystation.core.address import Address, Route
from waystation.core.address_types import AddressTypes
from waystation.core.expiry import NEVER
from waystation.core.message import HOP_LIMIT, Arrival, Message
from waystation.core.multicast import Subscriptions
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.core.router import FanOut, Router
from waystation.core.routing import RoutingEntry, RoutingTable
from waystation.errors import LocalError

HUB = Address(1, b"10.0.0.1:4000")
LEAF = Address(3, b"leaf-1")


def message(onward: str, *, hops: int = 1, expiry: float = NEVER) -> Message:
    back = Route((Address(0, b"app"),) * hops)
    return Message(Route.parse(onward), back, b"payload", expiry=expiry)


def router_with(*entries: RoutingEntry) -> Router:
    types = AddressTypes()
    types.register("tcp")
    router = Router(types, RoutingTable(), Subscriptions())
    for entry in entries:
        assert router.table.put(entry, now=0).accepted
    return router


def dropped(reason: Reason, recipient: str | None = None) -> Verdict:
    return Verdict(Outcome.DROPPED, reason, recipient)


ECHO = RoutingEntry("echo", Address(0, b"echo"), local=True)
TRUCK = RoutingEntry("truck", HUB, local=False, expiry=5_000)


@pytest.mark.rule("AD-5")
@pytest.mark.rule("OB-1")
def test_a_message_goes_to_the_first_address_and_is_not_changed() -> None:
    router = router_with(ECHO, TRUCK)
    sent = message("echo => truck")
    before = str(sent)
    assert router.decide(sent, now=1) == Verdict(Outcome.DELIVERED, None, "echo", ECHO.address)
    assert router.decide(message("truck => echo"), now=1) == Verdict(
        Outcome.FORWARDED, None, "truck", HUB
    )
    assert router.decide(message("tcp#10.0.0.9:1 => echo"), now=1) == Verdict(
        Outcome.FORWARDED, address=Address(1, b"10.0.0.9:1")
    )
    assert str(sent) == before


SESSION = Address(0, b"tcp-1")
ENTRIES = {
    "worker": (ECHO,),
    "alias": (RoutingEntry("echo-2", Address(0, b"echo"), local=True), ECHO),
    "alias of nobody": (RoutingEntry("echo-2", Address(0, b"echo"), local=True),),
    "alias of an alias": (
        RoutingEntry("echo-3", Address(0, b"echo-2"), local=True),
        RoutingEntry("echo-2", Address(0, b"echo"), local=True),
        ECHO,
    ),
    "remote alias": (RoutingEntry("echo-2", Address(0, b"echo"), local=False), ECHO),
    "behind a leaf": (
        RoutingEntry("leaf-a", SESSION, local=True),
        RoutingEntry("tcp-1", LEAF, local=False),
    ),
    "at a place": (RoutingEntry("leaf-a", LEAF, local=True),),
    "session": (RoutingEntry("tcp-1", LEAF, local=False),),
}


@pytest.mark.rule("OB-1")
@pytest.mark.parametrize(
    ("case", "first_version", "outcome"),
    [
        ("worker", Outcome.DELIVERED, Outcome.DELIVERED),
        ("alias", Outcome.DELIVERED, Outcome.DELIVERED),
        ("alias of nobody", Outcome.DELIVERED, Outcome.FORWARDED),
        ("alias of an alias", Outcome.DELIVERED, Outcome.FORWARDED),
        ("remote alias", Outcome.FORWARDED, Outcome.FORWARDED),
        ("behind a leaf", Outcome.DELIVERED, Outcome.FORWARDED),
        ("at a place", Outcome.DELIVERED, Outcome.FORWARDED),
        ("session", Outcome.FORWARDED, Outcome.FORWARDED),
    ],
)
def test_delivered_is_what_somebody_here_gets(
    case: str, first_version: Outcome, outcome: Outcome
) -> None:
    entries = ENTRIES[case]
    name, address = entries[0].participant, entries[0].address
    router = router_with(*entries)
    assert router.decide(message(name), now=1) == Verdict(outcome, None, name, address)
    then = Router(table=router.table, version=1)
    assert then.decide(message(name), now=1) == Verdict(first_version, None, name, address)


@pytest.mark.rule("OB-1")
def test_a_verdict_is_remembered_as_long_as_the_entry_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("waystation.core.router.REMEMBERED", 2)
    names = ["a", "b", "c"]
    at_home = [RoutingEntry(name, Address(0, name.encode()), local=True) for name in names]
    router = router_with(*at_home)
    for _ in range(2):
        for name in names:
            delivered = Verdict(Outcome.DELIVERED, None, name, Address(0, name.encode()))
            assert router.decide(message(name), now=1) == delivered
    assert router.table.put(RoutingEntry("b", HUB, local=True), now=2).accepted
    assert router.decide(message("b"), now=3) == Verdict(Outcome.FORWARDED, None, "b", HUB)
    assert router.table.remove("c", now=3) is not None
    assert router.decide(message("c"), now=4) == dropped(Reason.NO_ROUTE, "c")


@pytest.mark.rule("AD-6")
@pytest.mark.rule("OB-2")
def test_what_cannot_be_routed_is_dropped_with_a_reason() -> None:
    router = router_with(ECHO, TRUCK)
    assert router.decide(message(""), now=1) == dropped(Reason.NO_ROUTE)
    assert router.decide(message("200#x"), now=1) == dropped(Reason.UNKNOWN_TYPE)
    assert router.decide(message("udp#x"), now=1) == dropped(Reason.UNKNOWN_TYPE)
    assert router.decide(message("nobody"), now=1) == dropped(Reason.NO_ROUTE, "nobody")
    assert router.decide(message("truck"), now=5_000) == dropped(Reason.NO_ROUTE, "truck")


@pytest.mark.rule("OB-2")
def test_the_reasons_are_these() -> None:
    assert {reason.value for reason in Reason} == {
        "NO_ROUTE",
        "UNKNOWN_TYPE",
        "NO_SUBSCRIBER",
        "EXPIRED",
        "HOP_LIMIT",
        "QUEUE_FULL",
        "REFUSED",
        "TRANSPORT_DOWN",
        "TOO_LARGE",
        "MALFORMED",
        "FAILED",
        "DUPLICATE",
    }


@pytest.mark.rule("OB-1")
def test_the_outcomes_are_these() -> None:
    assert {outcome.value for outcome in Outcome} == {
        "DELIVERED",
        "FORWARDED",
        "QUEUED",
        "DROPPED",
    }


@pytest.mark.rule("AD-2")
def test_type_zero_is_always_routed_and_others_once_they_are_registered() -> None:
    router = Router()
    router.table.put(ECHO, now=0)
    assert router.decide(message("echo"), now=0).outcome is Outcome.DELIVERED
    assert router.decide(message("tcp#x"), now=0) == dropped(Reason.UNKNOWN_TYPE)
    router.types.register("tcp")
    assert router.decide(message("tcp#x"), now=0).outcome is Outcome.FORWARDED


@pytest.mark.rule("WK-11")
def test_a_message_at_the_hop_limit_goes_no_further() -> None:
    router = router_with(ECHO)
    arrival = Arrival(message("echo", hops=HOP_LIMIT), received_at=0)
    assert router.decide(message("echo", hops=HOP_LIMIT - 1), now=0).reason is None
    assert router.decide(arrival.message, now=0) == dropped(Reason.HOP_LIMIT)
    assert router.fan_out("p/b", arrival, now=0) == FanOut((dropped(Reason.HOP_LIMIT),))
    short = Router(hop_limit=2)
    assert short.decide(message("echo", hops=2), now=0) == dropped(Reason.HOP_LIMIT)


@pytest.mark.rule("MC-14")
@pytest.mark.rule("AD-7")
def test_a_message_past_its_time_is_dropped_before_anything_else() -> None:
    router = router_with(ECHO)
    router.subscriptions.subscribe("p/b", "echo")
    late = message("echo", hops=HOP_LIMIT, expiry=100)
    assert router.decide(message("echo", expiry=100), now=99).reason is None
    assert router.decide(late, now=100) == dropped(Reason.EXPIRED)
    in_time = Arrival(message("", expiry=100), received_at=99)
    assert router.fan_out("p/b", in_time, now=99).verdicts[0].outcome is Outcome.DELIVERED
    assert router.fan_out("p/b", in_time, now=100) == FanOut((dropped(Reason.EXPIRED),))


def arrival(*, from_global: bool = False, via: str | None = None) -> Arrival:
    return Arrival(message(""), received_at=0, from_global=from_global, via=via)


@pytest.mark.rule("MC-9")
def test_several_receivers_behind_one_address_share_a_copy() -> None:
    router = router_with(
        ECHO,
        RoutingEntry("leaf-a", LEAF, local=True),
        RoutingEntry("leaf-b", LEAF, local=True),
        TRUCK,
    )
    for receiver in ("leaf-a", "truck", "leaf-b", "echo", "lost"):
        router.subscriptions.subscribe("p/b/*", receiver)
    fan_out = router.fan_out("p/b/x", arrival(), now=1)
    assert fan_out.copies == (LEAF, HUB, ECHO.address)
    assert fan_out.verdicts == (
        Verdict(Outcome.FORWARDED, None, "leaf-a", LEAF),
        Verdict(Outcome.FORWARDED, None, "truck", HUB),
        Verdict(Outcome.FORWARDED, None, "leaf-b", LEAF),
        Verdict(Outcome.DELIVERED, None, "echo", ECHO.address),
        dropped(Reason.NO_ROUTE, "lost"),
    )
    assert not fan_out.upward


@pytest.mark.rule("MC-10")
def test_a_leaf_sends_a_multicast_to_its_parent_too() -> None:
    leaf = router_with(ECHO)
    leaf.has_parent = True
    leaf.subscriptions.subscribe("p/b", "echo")
    fan_out = leaf.fan_out("p/b", arrival(), now=1)
    assert (fan_out.copies, fan_out.upward) == ((ECHO.address,), True)
    assert leaf.fan_out("p/c", arrival(), now=1) == FanOut((), (), upward=True)


@pytest.mark.rule("MC-11")
def test_what_a_parent_sent_down_does_not_go_up_again() -> None:
    hub = router_with(RoutingEntry("leaf-a", LEAF, local=True))
    hub.subscriptions.subscribe("p/b", "leaf-a")
    leaf = router_with(ECHO)
    leaf.has_parent = True
    leaf.subscriptions.subscribe("p/b", "echo")
    at_leaf, steps = arrival(), 0
    while leaf.fan_out("p/b", at_leaf, now=1).upward:
        assert hub.fan_out("p/b", arrival(), now=1).copies == (LEAF,)
        at_leaf, steps = (
            arrival(from_global=True),
            steps + 1,
        )  # as a leaf marks what its parent sent
    assert steps == 1


@pytest.mark.rule("MC-5")
@pytest.mark.parametrize("id", ["p/b/+", "p/b/*", "p/b/", "p/b/a-b", "p", ""])
def test_what_is_published_under_no_id_is_malformed_and_goes_nowhere(id: str) -> None:
    leaf = router_with(ECHO)
    leaf.has_parent = True
    leaf.subscriptions.subscribe("p/b/+", "echo")
    assert leaf.fan_out(id, arrival(), now=1) == FanOut((dropped(Reason.MALFORMED),))


def test_a_hop_limit_that_stops_everything_is_a_mistake() -> None:
    with pytest.raises(LocalError, match=r"invalid hop limit 0", check=breaks("WK-11")):
        Router(hop_limit=0)


@pytest.mark.rule("MC-10")
@pytest.mark.parametrize(
    ("visible", "expiry", "upward"), [(True, NEVER, True), (False, NEVER, False), (True, 1, False)]
)
def test_a_hub_publishes_for_globally_visible_providers(
    visible: bool, expiry: float, upward: bool
) -> None:
    provider = RoutingEntry("p", LEAF, local=True, visible=visible, expiry=expiry)
    hub = router_with(provider, ECHO)
    hub.has_global_transport = True
    hub.subscriptions.subscribe("p/b", "echo")
    assert hub.fan_out("p/b", arrival(), now=1).upward is upward
    assert not hub.fan_out("unknown/b", arrival(), now=1).upward


@pytest.mark.rule("MC-11")
def test_what_came_from_a_global_transport_stays_here() -> None:
    for attribute in ("has_parent", "has_global_transport"):
        router = router_with(ECHO, RoutingEntry("p", LEAF, local=True, visible=True))
        setattr(router, attribute, True)
        router.subscriptions.subscribe("p/b", "echo")
        fan_out = router.fan_out("p/b", arrival(from_global=True), now=1)
        assert fan_out == FanOut(
            (Verdict(Outcome.DELIVERED, None, "echo", ECHO.address),), (ECHO.address,)
        )


@pytest.mark.rule("MC-13")
@pytest.mark.rule("MC-12")
def test_a_local_provider_needs_no_subscription_at_the_broker() -> None:
    hub = router_with(RoutingEntry("mine", LEAF, local=True, expiry=5_000), TRUCK)
    assert not hub.listens_globally("truck/b", now=1)
    hub.has_global_transport = True
    assert not hub.listens_globally("mine/b/+", now=1)
    assert hub.listens_globally("mine/b/+", now=5_000)
    assert hub.listens_globally("truck/b", now=1)
    assert hub.listens_globally("unknown/b", now=1)
    assert hub.listens_globally("+/b", now=1)


@pytest.mark.rule("MC-15")
def test_a_multicast_without_a_receiver_is_dropped() -> None:
    router = router_with(ECHO)
    assert router.fan_out("p/b", arrival(), now=1) == FanOut((dropped(Reason.NO_SUBSCRIBER),))


@pytest.mark.rule("MC-9")
def test_no_copy_goes_back_over_the_session_that_a_multicast_came_by() -> None:
    router = router_with(
        ECHO,
        RoutingEntry("leaf-a", SESSION, local=True),
        RoutingEntry("leaf-b", LEAF, local=True),
        RoutingEntry("tcp-1", LEAF, local=False),
        TRUCK,
    )
    for receiver in ("leaf-a", "leaf-b", "truck", "echo"):
        router.subscriptions.subscribe("p/b", receiver)
    assert router.fan_out("p/b", arrival(), now=1).copies == (SESSION, LEAF, HUB, ECHO.address)
    fan_out = router.fan_out("p/b", arrival(via="tcp-1"), now=1)
    assert fan_out.copies == (HUB, ECHO.address)
    assert [verdict.recipient for verdict in fan_out.verdicts] == ["truck", "echo"]
    then = Router(table=router.table, subscriptions=router.subscriptions, version=1)
    assert len(then.fan_out("p/b", arrival(via="tcp-1"), now=1).copies) == 4


@pytest.mark.rule("MC-9", "MC-15")
def test_a_multicast_whose_only_receivers_are_where_it_came_from_has_no_subscriber() -> None:
    hub = router_with(RoutingEntry("leaf-a", SESSION, local=True))
    hub.subscriptions.subscribe("p/b", "leaf-a")
    came = arrival(via="tcp-1")
    assert hub.fan_out("p/b", came, now=1) == FanOut((dropped(Reason.NO_SUBSCRIBER),))
    hub.has_parent = True
    assert hub.fan_out("p/b", came, now=1) == FanOut((), (), upward=True)


@pytest.mark.rule("MC-15")
def test_the_first_version_said_no_subscriber_of_what_went_up() -> None:
    leaf = Router(version=1)
    leaf.has_parent = True
    nobody_here = FanOut((dropped(Reason.NO_SUBSCRIBER),), (), upward=True)
    assert leaf.fan_out("p/b", arrival(), now=1) == nobody_here
