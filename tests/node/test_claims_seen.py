"""Live contests as they are seen from outside: records, status, metrics, logs, `why`."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from waystation.core.record import ClaimKind
from waystation.journal.check import check
from waystation.node import Limits, Node
from waystation.node.metrics import NodeMetrics
from waystation.node.status import Question, Status
from waystation.testing import Fleet, collect, until
from waystation.why import explain

HASTY = Limits(heartbeat=0.0, contest=0.2)
"""Who has a name is soon taken for gone."""

NAME = "truck-7"


async def contest(fleet: Fleet, hub: Node) -> tuple[Node, Node]:
    """Let two leaves claim a name, one after the other; the first has it."""
    first, second = await fleet.leaf("truck-7a", hub), await fleet.leaf("truck-7b", hub)
    collect(first, NAME)
    await fleet.knows(hub, NAME)
    collect(second, NAME)
    await until(lambda: NAME in hub.contested)
    return first, second


def kinds(fleet: Fleet, hub: Node) -> list[tuple[str, str]]:
    claims = fleet.recorder(hub).claims
    return [(str(record.kind), record.origin) for record in claims if record.participant == NAME]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


@pytest.mark.rule("CL-4")
@pytest.mark.rule("CL-7")
def test_a_contest_is_recorded_counted_and_listed_until_it_is_over() -> None:
    async def scenario(fleet: Fleet) -> None:
        hub = await fleet.hub("hub-a")
        status = Status(hub)
        first, _ = await contest(fleet, hub)
        assert kinds(fleet, hub) == [("claim", "truck-7a"), ("contested", "truck-7b")]
        puts = [change for change in fleet.recorder(hub).routes if change.entry.participant == NAME]
        assert len(puts) == 1  # claims that stand by are no routes
        seen = status.snapshot(Question(filter=NAME, contested=5))
        [contested], [route] = seen.contested, seen.routes
        assert (contested.participant, contested.holder) == (NAME, "truck-7a")
        assert [standby.node for standby in contested.standbys] == ["truck-7b"]
        assert route.contested
        assert route.address == f"0#{contested.session}"
        assert seen.claims is not None
        assert (seen.claims.standbys, seen.claims.contested) == (1, 1)
        assert seen.claims.probes >= 1
        await fleet.stop(first)
        await until(lambda: NAME not in hub.contested)
        ended = fleet.recorder(hub).claims[-1]
        assert (ended.kind, ended.origin) == (ClaimKind.WITHDRAW, "truck-7a")
        over = status.snapshot(Question(filter=NAME, contested=5))
        assert (over.contested, over.contested_total) == ([], 0)
        assert not over.routes[0].contested

    Fleet().run(scenario)


@pytest.mark.rule("CL-6")
def test_a_holder_that_is_silent_is_counted_and_the_journal_says_so() -> None:
    async def scenario(fleet: Fleet) -> None:
        hub = await fleet.hub("hub-a")
        first = await fleet.leaf("truck-7a", hub)
        second = await fleet.leaf("truck-7b", hub)
        collect(first, NAME)
        await fleet.knows(hub, NAME)
        fleet.freeze(first)
        collect(second, NAME)
        claims = fleet.recorder(hub).claims
        await until(lambda: [r for r in claims if r.kind is ClaimKind.WITHDRAW])
        [ended] = [r for r in claims if r.kind is ClaimKind.WITHDRAW and r.participant == NAME]
        assert ended.detail.startswith("its session ended (silent for 0.2 s")
        lines = NodeMetrics(hub).metrics().splitlines()
        assert 'waystation_node_probes_total{event="unanswered"} 1' in lines
        assert "waystation_node_contested_names 0" in lines
        fleet.heal()

    Fleet(limits=HASTY).run(scenario)


@pytest.mark.rule("CL-4")
def test_a_claim_to_a_name_of_the_hub_is_refused_counted_and_recorded() -> None:
    async def scenario(fleet: Fleet) -> None:
        hub = await fleet.hub("hub-a")
        collect(hub, NAME)
        leaf = await fleet.leaf("truck-7a", hub)
        collect(leaf, NAME)
        await until(lambda: fleet.recorder(hub).claims)
        [refused] = fleet.recorder(hub).claims
        assert refused.kind is ClaimKind.REFUSED
        assert "is a name of node hub-a itself" in refused.detail
        counted = hub.contested.snapshot().refused
        assert counted == {"the name cannot be claimed over that session": 1}

    Fleet().run(scenario)


@pytest.mark.rule("CL-4")
def test_a_contest_is_logged_once_at_the_hub_and_at_the_leaf(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(fleet: Fleet) -> None:
        hub = await fleet.hub("hub-a")
        _, second = await contest(fleet, hub)
        for _ in range(2):
            await until(lambda: any("this node stands by" in line for line in warnings(caplog)))
            await second.stop_worker(NAME)
            await until(lambda: NAME not in hub.contested)
            collect(second, NAME)
            await until(lambda: NAME in hub.contested)

    with caplog.at_level(logging.WARNING, "waystation.node"):
        Fleet().run(scenario)
    told = warnings(caplog)
    at_hub = "'truck-7' is claimed by two owners: node 'truck-7a' has it, node 'truck-7b' stands by"
    at_leaf = "'truck-7' is held by node 'truck-7a' at hub 'hub-a'; this node stands by"
    [line] = [line for line in told if "claimed by two" in line]
    assert line.endswith(at_hub)
    assert [line for line in told if "this node" in line] == [f"session hub-a: {at_leaf}"]


@pytest.mark.rule("CL-4")
def test_why_tells_a_contest_of_a_live_fleet(tmp_path: Path) -> None:
    sent: list[str] = []

    async def scenario(fleet: Fleet) -> None:
        hub = await fleet.hub("hub-a", journal=tmp_path)
        first, second = await contest(fleet, hub)
        await hub.send(NAME, b"kept")
        await second.stop_worker(NAME)
        await until(lambda: NAME not in hub.contested)
        await fleet.stop(first)
        await fleet.forgets(hub, NAME)
        await hub.send(NAME, b"nobody has it")
        sent.extend(r.arrival.message.id for r in fleet.recorder(hub).messages)

    Fleet().run(scenario)
    kept, lost = (explain(tmp_path, id) for id in sent)
    whose = "hub-a kept it for node truck-7a (unproven), and truck-7b (unproven) stood by"
    assert kept.remarks == (
        f"truck-7 was claimed by 2 owners; {whose}",
        "truck-7a keeps no journal here: what happened there is not known",
    )
    assert lost.summary.startswith("dropped at hub-a, NO_ROUTE: truck-7 had left ")
    assert lost.summary.endswith("its session ended (closed)")
    assert check(tmp_path) == []
