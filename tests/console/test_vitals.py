"""The fleet in a few numbers, and what counts as traffic."""

from __future__ import annotations

from typing import Any

from tests.console.live import hub, shown
from tests.console.test_topology import session, watched
from waystation.console.fleet import State, Watched
from waystation.console.vitals import vitals
from waystation.node.status import SessionStatus, Snapshot
from waystation.testing import async_test


def seen(uptime: float, counts: dict[str, int], *sessions: SessionStatus) -> Snapshot:
    return Snapshot(
        node="hub", at=0, uptime=uptime, counts=counts, rates={}, bytes=0, bytes_rate=0,
        routes_total=0, routes=[], sessions_total=len(sessions), sessions=list(sessions),
        session_events={}, journal_lost=None,
    )  # fmt: skip


def watching() -> Any:
    return Watched("tcp://hub:1", None, "console")  # type: ignore[arg-type]


def asking(times: int) -> SessionStatus:
    """The session of the console, which asked and was answered so often."""
    return session("console", messages_in=times, messages_out=times)


def test_what_the_console_asks_is_no_traffic() -> None:
    one = watching()
    one.update(seen(10, {"DELIVERED": 5, "FORWARDED": 5}, asking(5)))
    one.update(seen(11, {"DELIVERED": 6, "FORWARDED": 6}, asking(6)))
    assert list(one.traffic) == [(0, 0)]
    assert one.outcomes == {}
    one.update(seen(12, {"DELIVERED": 17, "FORWARDED": 7, "NO_ROUTE": 3}, asking(7)))
    assert one.traffic[-1] == (13, 3)
    assert one.outcomes == {"DELIVERED": 10, "NO_ROUTE": 3}


def test_a_node_that_was_started_again_has_no_traffic_at_once() -> None:
    one = watching()
    one.update(seen(500, {"NO_ROUTE": 70}))
    one.update(seen(1, {"NO_ROUTE": 71}))
    assert list(one.traffic) == [(0, 0)]
    assert one.rates == {}


def test_the_numbers_are_sums_over_all_nodes() -> None:
    fleet = [
        watched("a", session("b", waiting=3), traffic=[(1, 0), (2, 0)], contested_total=1),
        watched("b", session("a", waiting=4), traffic=[(40, 4)], state=State.AWAY),
    ]
    found = vitals(fleet)
    assert (found.nodes, found.here, found.waiting, found.contested) == (2, 1, 7, 1)
    assert (found.rate, found.drops) == (42, 4)
    assert vitals([]).rate == vitals([]).drops == 0


@async_test
async def test_the_head_of_each_page_has_them() -> None:
    async with hub() as top, shown(top.url, "tcp://127.0.0.1:1") as browser:
        text = await browser.until("/why", lambda text: "<b>1 of 2</b> nodes" in text)
        assert 'id="vitals"' in text
        async with browser.events() as events:
            name, told = await anext(events)
            assert name == "fleet"
            assert told["html"].index('id="vitals"') < told["html"].index('id="topology"')
