"""Which steps of a trace somebody went without by, and what is kept of them (OB-2)."""

from __future__ import annotations

import pytest

from tests.core.journeys import BEGIN, LATER, SECOND
from tests.core.test_visits import Rows
from waystation.core.losses import Lost, is_internal, lost_in


def test_a_copy_that_was_dropped() -> None:
    rows = Rows().add(
        *("hub", 0, "DROPPED"),
        reason="NO_ROUTE",
        incarnation=4,
        onward=("0#sink", "1#10.0.0.7:1"),
        expiry=LATER,
    )
    assert lost_in(rows.trace()) == [
        Lost(
            recipient="sink",
            reason="NO_ROUTE",
            node="hub",
            incarnation=4,
            at=BEGIN + SECOND,
            received_at=BEGIN,
            outcome="DROPPED",
            expiry=LATER,
            onward="0#sink 1#10.0.0.7:1",
        )
    ]


def test_a_copy_that_vanished_is_lost_where_it_left() -> None:
    rows = Rows().add("a", 0, "FORWARDED", out="tcp-1", next_node="hub")
    [lost] = lost_in(rows.trace())
    assert (lost.reason, lost.outcome, lost.node) == ("VANISHED", "FORWARDED", "a")
    assert (lost.out, lost.next_node) == ("tcp-1", "hub")


def test_a_copy_that_waited_in_vain() -> None:
    rows = Rows().add("hub", 0, "QUEUED", expiry=BEGIN + 2 * SECOND)
    [lost] = lost_in(rows.trace())
    assert (lost.reason, lost.outcome, lost.expiry) == ("EXPIRED", "QUEUED", BEGIN + 2 * SECOND)


def test_only_who_got_no_copy_went_without_in_causal_order() -> None:
    rows = Rows()
    rows.add("a", 0, "DROPPED", recipient="one", reason="QUEUE_FULL", multicast_id="t")
    rows.add("a", 0, "DROPPED", recipient="two", reason="QUEUE_FULL", multicast_id="t")
    rows.add(*("a", 0, "FORWARDED"), recipient=None, multicast_id="t", out="tcp-1", next_node="hub")
    below = {"multicast_id": "t", "back": ("0#a",), "via": "tcp-1", "from_node": "a"}
    rows.add("hub", 1, "DELIVERED", recipient="two", **below)
    rows.add("hub", 1, "DROPPED", recipient="three", reason="FAILED", **below)
    rows.add("hub", 2, "DROPPED", recipient=None, reason="DUPLICATE", **below)
    found = [(lost.node, lost.recipient, lost.reason) for lost in lost_in(rows.trace())]
    assert found == [("a", "one", "QUEUE_FULL"), ("hub", "three", "FAILED")]


def test_nothing_is_lost_of_what_was_delivered() -> None:
    assert lost_in(Rows().add("hub", 0, "DELIVERED").trace()) == []


@pytest.mark.parametrize(
    ("onward", "back", "internal"),
    [
        (("0#hub", "0#waystation.status"), (), True),  # a question
        (("0#a",), ("0#waystation.status",), True),  # its answer
        (("0#waystation",), ("0#a",), False),
        (("0#sink",), (), False),
    ],
)
def test_what_nodes_say_to_each_other_is_internal(
    onward: tuple[str, ...], back: tuple[str, ...], internal: bool
) -> None:
    rows = Rows().add("hub", 0, "DROPPED", reason="NO_ROUTE", onward=onward, back=back)
    [lost] = lost_in(rows.trace())
    assert lost.internal is internal
    assert is_internal((*onward, *back)) is internal
