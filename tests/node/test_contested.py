"""Names that several owners claim: who has them, who stands by, since when, and how many."""

from __future__ import annotations

import pytest

from waystation.core.claims import Claim, Claims
from waystation.core.damping import Damping
from waystation.core.expiry import NEVER, Expiry
from waystation.node import Node
from waystation.node.contested import ClaimsSnapshot, Contest, ContestedNames, Standby
from waystation.node.metrics import NodeMetrics
from waystation.node.status import Question, Status
from waystation.testing import async_test


class Claimed:
    """Claims, and what is told of them."""

    def __init__(self) -> None:
        self.claims = Claims("hub")
        self.damping = Damping()
        self.names = ContestedNames(self.claims, self.damping)

    def announce(self, name: str, node: str, at: int, expiry: Expiry = NEVER) -> None:
        session = f"tcp-{node}".encode()
        claim = Claim(name, session, node, f"of {node}", 1, (node,), expiry=expiry)
        change = self.claims.announce(claim, at)
        assert change is not None
        self.names.note(change, at)

    def end(self, node: str, at: int) -> None:
        for change in self.claims.session_ended(f"tcp-{node}".encode(), at):
            self.names.note(change, at)


@pytest.mark.rule("CL-4")
def test_a_contested_name_has_a_holder_standbys_and_a_beginning() -> None:
    told = Claimed()
    told.announce("truck-7", "a", at=10)
    assert ("truck-7" in told.names, told.names.about("truck-7", 11)) == (False, None)
    told.announce("truck-7", "b", at=20)
    told.announce("truck-7", "c", at=30)
    told.announce("truck-8", "c", at=31)
    standbys = (Standby("b", "tcp-b"), Standby("c", "tcp-c"))
    assert told.names.about("truck-7", 40) == Contest("truck-7", "a", "tcp-a", 20, standbys)
    assert (told.names.listed(), len(told.names)) == (["truck-7"], 1)
    assert told.names.snapshot() == ClaimsSnapshot(claims=4, standbys=2, contested=1)


@pytest.mark.rule("CL-4")
def test_a_contest_ends_with_the_last_who_stands_by_not_with_its_holder() -> None:
    told = Claimed()
    for node in "abc":
        told.announce("truck-7", node, at=10)
    told.end("a", at=20)
    assert told.names.about("truck-7", 21) == Contest(
        "truck-7", "b", "tcp-b", 10, (Standby("c", "tcp-c"),)
    )
    assert told.names.snapshot().standbys == 1
    told.end("c", at=30)
    assert told.names.about("truck-7", 31) is None
    assert told.names.snapshot() == ClaimsSnapshot(claims=1)


def test_a_standby_that_has_expired_is_not_told() -> None:
    told = Claimed()
    told.announce("truck-7", "a", at=10)
    told.announce("truck-7", "b", at=10, expiry=50)
    assert told.names.about("truck-7", 49) is not None
    assert told.names.about("truck-7", 50) is None


@pytest.mark.rule("CL-3")
def test_names_that_change_too_often_are_counted() -> None:
    told = Claimed()
    for at in range(5):
        told.damping.changed("truck-7", at)
    assert told.names.snapshot().held_back == 1


def claim_twice(count: int, patch: pytest.MonkeyPatch) -> ContestedNames:
    """Let nodes have this many names that two owners claim."""
    told = Claimed()
    for number in range(count):
        told.announce(f"truck-{number}", "a", at=10)
        told.announce(f"truck-{number}", "b", at=20)
    patch.setattr(Node, "contested", told.names)
    return told.names


@async_test
async def test_a_status_lists_contested_names_in_pages() -> None:
    with pytest.MonkeyPatch.context() as patch:
        claim_twice(12, patch)
        async with Node("hub") as node:
            status = Status(node)
            totals = status.snapshot()
            assert (totals.contested_total, totals.contested) == (12, [])
            assert totals.contested_fitting is None
            assert totals.claims == ClaimsSnapshot(claims=24, standbys=12, contested=12)
            some = Question(contested=2, skip_contested=1, find_contested="truck-1*")
            seen = status.snapshot(some)
            assert [contest.participant for contest in seen.contested] == ["truck-10", "truck-11"]
            assert seen.contested_fitting == 3
            of_node = status.snapshot(Question(contested=20, find_contested="b"))
            assert of_node.contested_fitting == 12  # who stands by is found too


@async_test
async def test_metrics_tell_claims_standbys_contests_probes_and_refusals() -> None:
    with pytest.MonkeyPatch.context() as patch:
        names = claim_twice(3, patch)
        names.probes, names.silent = 5, 1
        names.refused["its path names this node"] = 2
        async with Node("hub") as node:
            lines = NodeMetrics(node).metrics().splitlines()
    for line in (
        "waystation_node_claims 6",
        "waystation_node_standby_claims 3",
        "waystation_node_contested_names 3",
        "waystation_node_held_back_names 0",
        'waystation_node_probes_total{event="sent"} 5',
        'waystation_node_probes_total{event="unanswered"} 1',
        'waystation_node_claims_refused_total{reason="its path names this node"} 2',
    ):
        assert line in lines
