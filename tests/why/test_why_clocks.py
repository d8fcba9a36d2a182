"""Hops at nodes whose clocks differ are told in the order in which they happened."""

from __future__ import annotations

import time
from pathlib import Path
from typing import cast

import pytest

from tests.why.test_why import QUIET, one, story
from waystation.core.record import PeerClockRecord, Record
from waystation.node import Node
from waystation.testing import async_test, collect, until
from waystation.why import explain
from waystation.why.clocks import corrections
from waystation.why.lookup import MessageLookup, Row

HOUR = 3600 * 10**6


@pytest.mark.rule("TM-3")
@pytest.mark.parametrize("hours", [-1, 1])
@async_test
async def test_hops_are_in_order_of_corrected_times(tmp_path: Path, hours: int) -> None:
    def wrong() -> int:
        return time.time_ns() + hours * HOUR * 1000

    async with (
        Node("server", journal=tmp_path, limits=QUIET, clock=wrong) as server,
        Node("client", journal=tmp_path, limits=QUIET) as client,
    ):
        told: list[Record] = []
        client.observe(told.append)
        got = collect(server, "sink")
        listening = await server.listen("tcp://127.0.0.1:0")
        await client.connect(listening.url, name="there")
        await until(lambda: any(isinstance(record, PeerClockRecord) for record in told))
        id = await one(client, "there => sink")
        await until(lambda: got)
    explanation = explain(tmp_path, id)
    assert [hop.node for hop in explanation.hops] == ["client", "server"]
    first, second = explanation.hops
    assert abs(second.clock_ahead_us - first.clock_ahead_us - hours * HOUR) < 10**6
    took = explanation.summary.partition("delivered at server after ")[2].split()
    assert took[1] == "ms" or float(took[0]) < 60
    assert "the clocks of the nodes differ (" in story(explanation)
    assert "hops are in order of corrected times" in story(explanation)


class Measured:
    """What nodes have measured of the clocks of their peers."""

    def __init__(self, rows: dict[str, list[Row]]) -> None:
        self._rows = rows

    def clocks(self, node: str, incarnation: int) -> list[Row]:
        assert incarnation == 1
        return self._rows.get(node, [])


def row(peer: str | None, offset: int, rtt: int | None, at: int = 0) -> Row:
    return {"peer": peer, "offset_us": offset, "rtt_us": rtt, "at": at}


def corrected(rows: dict[str, list[Row]], *nodes: str, at: int = 0) -> dict[str, int]:
    lookup = cast("MessageLookup", Measured(rows))
    return dict(corrections(lookup, [(node, 1, at) for node in nodes]))


def test_offsets_add_up_along_the_way_of_the_least_round_trips() -> None:
    rows = {
        "hub": [row("a", 5_000, 100), row("b", -7_000, 100), row("c", 1, 900)],
        "b": [row("c", 20_000, 200)],
    }
    nodes = ("a", "b", "c", "hub")
    assert corrected(rows, *nodes) == {"a": 5_000, "b": -7_000, "c": 13_000, "hub": 0}


def test_the_measurement_nearest_in_time_counts() -> None:
    rows = {"hub": [row("a", 5_000, 100, 0), row("a", 90_000, 100, 1_000)]}
    assert corrected(rows, "a", "hub", at=100)["hub"] == -5_000
    assert corrected(rows, "a", "hub", at=900)["hub"] == -90_000


def test_without_offsets_that_matter_nothing_is_corrected() -> None:
    assert corrected({}, "a", "hub") == {}
    assert corrected({"hub": [row("a", 900, 100)]}, "a", "hub") == {}
    assert corrected({"hub": [row("a", 9_000, 100)]}, "hub") == {}
    assert corrected({"hub": [row("a", 9_000, None), row(None, 9_000, 1)]}, "a", "hub") == {}


def test_a_node_that_nobody_measured_is_left_as_it_is() -> None:
    rows = {"hub": [row("a", 5_000, 100)]}
    assert corrected(rows, "a", "hub", "lonely") == {"a": 0, "hub": -5_000, "lonely": 0}
