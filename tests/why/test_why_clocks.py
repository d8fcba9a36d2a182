"""Hops at nodes whose clocks differ are told in the order in which they happened."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.why.test_why import QUIET, one, story
from waystation.core.record import PeerClockRecord, Record
from waystation.node import Node
from waystation.node.peer_clock import PeerClockMeter
from waystation.testing import async_test, collect, echo, until
from waystation.why import explain

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
    assert "hops are in the order in which it passed" in story(explanation)


@pytest.mark.rule("TM-3")
@async_test
async def test_where_no_session_measured_the_traffic_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, noon = time.monotonic_ns(), 1_700_049_600 * 10**9

    def right() -> int:
        return noon + time.monotonic_ns() - begin

    def wrong() -> int:
        return right() + HOUR * 1000

    monkeypatch.setattr(PeerClockMeter, "begin", lambda _meter, _hello: None)
    async with (
        Node("server", journal=tmp_path, limits=QUIET, clock=wrong) as server,
        Node("client", journal=tmp_path, limits=QUIET, clock=right) as client,
    ):
        echo(server)
        got = collect(server, "sink")
        listening = await server.listen("tcp://127.0.0.1:0")
        await client.connect(listening.url, name="there")
        for _ in range(12):
            await client.request("there => echo", b"hello")
        id = await one(client, "there => sink")
        await until(lambda: got)
    explanation = explain(tmp_path, id)
    assert [hop.node for hop in explanation.hops] == ["client", "server"]
    first, second = explanation.hops
    assert abs(second.clock_ahead_us - first.clock_ahead_us - HOUR) < 60 * 10**6
