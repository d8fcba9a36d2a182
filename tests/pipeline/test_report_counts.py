"""The counts of the report: links, losses, latency, changes of routes, time ranges."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.test_report import (
    MINUTE,
    SECOND,
    START,
    Row,
    id_of,
    judged,
    step,
    trace,
    window,
    write_all,
)
from waystation.core.incidents import Incident
from waystation.report.arrays import BROADCAST, ELSEWHERE, PLACES
from waystation.report.changes import LATER, Changes, count_changes
from waystation.report.facts import BANDS, Facts, bands_of, gather
from waystation.report.hops import Hops, follow
from waystation.report.numbers import percentile
from waystation.report.reading import NO_ID, Tables
from waystation.report.times import Band, Bins
from waystation.report.topology import ADDRESS, SILENT, graph_of

BINS = Bins(START, MINUTE, 10)


def facts(directory: Path, **tables: list[Row]) -> Facts:
    return gather(Tables(write_all(directory, **tables)), lambda _: None)


def followed(directory: Path, *traces: Row) -> Hops:
    return follow(Tables(write_all(directory, traces=[*traces])), [], None)


def links(hops: Hops) -> dict[tuple[str, str], int]:
    places = {PLACES - number: address for address, number in hops.places.items()}
    names = dict(enumerate(hops.names)) | {ELSEWHERE: "elsewhere"} | places
    found: dict[tuple[str, str], int] = {}
    for (a, b, _), number in hops.sent.items():
        found[names[a], names[b]] = found.get((names[a], names[b]), 0) + number
    return found


def vanished(hops: Hops) -> dict[tuple[str, str], int]:
    return {(hops.names[a], hops.names[b]): n for (a, b), n in hops.vanished.items()}


def chain(number: int, *nodes: str, at: int = 0) -> Row:
    """A message that was forwarded from node to node and delivered at the last."""
    steps = [
        step(node, at + 1_000 * place, "FORWARDED", to=nodes[place + 1])
        for place, node in enumerate(nodes[:-1])
    ]
    return trace(number, *steps, step(nodes[-1], at + 1_000 * len(steps), "DELIVERED"))


def test_a_link_is_counted_for_each_copy(tmp_path: Path) -> None:
    hops = followed(
        tmp_path, chain(0, "a", "hub", "b"), chain(1, "a", "hub", "b"), chain(2, "b", "hub")
    )
    assert links(hops) == {("a", "hub"): 2, ("hub", "b"): 2, ("b", "hub"): 1}
    assert not hops.vanished
    assert hops.places == {}


def test_a_copy_for_several_receivers_is_one_copy(tmp_path: Path) -> None:
    shared = trace(
        0,
        *(step("hub", 0, "FORWARDED", to="a") for _ in range(3)),
        step("hub", 0, "FORWARDED", to="b"),
        step("a", 9, "DELIVERED"),
        step("b", 9, "DELIVERED"),
    )
    hops = followed(tmp_path, shared)
    assert links(hops) == {("hub", "a"): 1, ("hub", "b"): 1}
    assert not hops.vanished


def test_a_copy_of_a_broadcast_can_vanish(tmp_path: Path) -> None:
    broadcast = trace(
        9,
        *(step("hub", 0, "FORWARDED", to=node) for node in ("a", "b", "c")),
        step("c", 10, "DELIVERED"),
        step("a", 20, "DELIVERED"),
        step("a", 21, "DELIVERED"),
        outcome="DROPPED",
        reason="VANISHED",
        lost_copies=1,
        complete=False,
    )
    hops = followed(tmp_path, broadcast)
    assert links(hops) == {("hub", "a"): 1, ("hub", "b"): 1, ("hub", "c"): 1}
    assert vanished(hops) == {("hub", "b"): 1}
    assert hops.deliveries == {3: 1}
    assert hops.widest == [(3, id_of(9))]


def test_rows_of_version_1_lead_to_an_address(tmp_path: Path) -> None:
    old = trace(0, step("hub", 0, "FORWARDED", hop="1#a:4000"), step("a", 5, "DELIVERED"))
    found = facts(tmp_path, traces=[old], health=[window("hub", 0, "FORWARDED", 1)])
    assert links(found.hops) == {("hub", "1#a:4000"): 1}
    assert not found.hops.vanished
    graph = graph_of(found)
    [address] = [vertex for vertex in graph.vertices if vertex.foreign]
    assert (address.name, address.foreign) == ("1#a:4000", ADDRESS)


def test_a_copy_to_a_node_without_a_journal_is_no_loss(tmp_path: Path) -> None:
    far = {"outcome": "FORWARDED", "reason": None, "lost_copies": 0, "left_fleet": 1}
    gone = trace(0, step("hub", 0, "FORWARDED", to="far"), **far)
    found = facts(tmp_path, traces=[gone])
    assert links(found.hops) == {("hub", "far"): 1}
    assert not found.hops.vanished
    [vertex] = [vertex for vertex in graph_of(found).vertices if vertex.name == "far"]
    assert vertex.foreign == SILENT


def test_of_a_broadcast_only_the_copy_that_vanished_has(tmp_path: Path) -> None:
    """Another left the fleet, and what became of the third is unknown."""
    broadcast = trace(
        9,
        *(step("hub", 0, "FORWARDED", to=node) for node in ("a", "silent", "late")),
        fates=["vanished", "left the fleet", "unknown"],
        lost_copies=1,
        unknown_copies=1,
        left_fleet=1,
    )
    assert vanished(followed(tmp_path, broadcast)) == {("hub", "a"): 1}


def test_a_copy_that_never_arrived_has_vanished(tmp_path: Path) -> None:
    hops = followed(tmp_path, chain(0, "hub", "a"), trace(1, step("hub", 0, "FORWARDED", to="a")))
    assert vanished(hops) == {("hub", "a"): 1}
    assert hops.lost == {"VANISHED": 1}


def test_a_copy_whose_fate_is_unknown_has_not_vanished(tmp_path: Path) -> None:
    unknown = {"outcome": "FORWARDED", "reason": None, "lost_copies": 0, "unknown_copies": 1}
    hops = followed(tmp_path, trace(1, step("hub", 0, "FORWARDED", to="a"), **unknown))
    assert not hops.vanished
    assert (hops.lost, hops.unknown) == ({}, 1)


def test_a_copy_sent_back_to_the_first_node_can_vanish_too(tmp_path: Path) -> None:
    gone = trace(1, step("a", 0, "FORWARDED", to="hub"), step("hub", 5, "FORWARDED", to="a"))
    hops = followed(tmp_path, chain(0, "a", "hub", "a"), gone)
    assert links(hops) == {("a", "hub"): 2, ("hub", "a"): 2}
    assert vanished(hops) == {("hub", "a"): 1}


def test_losses_are_those_of_traces_without_the_traffic_of_nodes_themselves(
    tmp_path: Path,
) -> None:
    hops = followed(
        tmp_path,
        trace(0, step("a", 0, "DROPPED", "NO_ROUTE"), recipient="truck"),
        trace(1, step("a", 0, "DROPPED", "QUEUE_FULL"), lost_copies=3),
        trace(2, step("a", 0, "DROPPED", "NO_ROUTE"), internal=True),
        trace(3, step("a", 0, "FORWARDED", to="b"), internal=True),
        trace(4, step("a", 0, "DROPPED", "DUPLICATE"), lost_copies=0),
    )
    assert hops.lost == {"NO_ROUTE": 1, "QUEUE_FULL": 3}
    assert hops.internal == 2
    assert not hops.vanished
    assert links(hops) == {("a", "b"): 1}  # traffic it is all the same


def test_second_copies_are_no_drops(tmp_path: Path) -> None:
    found = facts(tmp_path, health=[window("a", 0, "DROPPED", 5, "DUPLICATE")])
    assert (found.total.dropped, found.total.reasons) == (0, {})
    assert found.total.messages == 5


def lost_behind(number: int, node: str, next_node: str) -> Row:
    """A message that was sent on to a node which did not know the name."""
    return trace(
        number,
        step(node, number, "FORWARDED", to=next_node),
        step(next_node, number + 5, "DROPPED", "NO_ROUTE"),
    )


def ruled(number: int, node: str, recipient: str | None) -> Row:
    """The rules' decision on a forwarded message: by an entry, or by an address in its route."""
    said = {"recipient": recipient, "address": "1#a", "outcome": "FORWARDED"}
    return {"message_id": id_of(number), "node": node, "at": START, **said}


def missed(number: int, node: str, recipient: str) -> Row:
    """The rules' decision on a message to an unknown recipient."""
    said = {"recipient": recipient, "outcome": "DROPPED", "reason": "NO_ROUTE"}
    return {"message_id": id_of(number), "node": node, "at": START, **said}


def test_a_route_to_a_node_that_does_not_know_the_name_is_stale(tmp_path: Path) -> None:
    found = facts(
        tmp_path,
        traces=[chain(90, "hub", "a"), *(lost_behind(n, "hub", "a") for n in range(4))],
        expected=[
            *(ruled(n, "hub", "truck") for n in (0, 2, 3, 90)),
            ruled(1, "hub", None),
            *(missed(n, "a", "truck") for n in range(4)),
        ],
    )
    [(pair, lost)] = found.nowhere.items()
    assert [found.hops.names[node] for node in pair] == ["hub", "a"]
    assert (lost.messages, lost.examples) == (3, [id_of(0), id_of(3)])


def test_a_message_whose_sender_named_the_node_used_no_stale_route(
    tmp_path: Path,
) -> None:
    found = facts(
        tmp_path,
        traces=[lost_behind(n, "hub", "a") for n in range(3)],
        expected=[
            ruled(0, "hub", None),
            ruled(1, "other", "truck"),
            ruled(2, "hub", "a"),  # an entry for the node, which was to forward it
            *(missed(n, "a", "truck") for n in range(3)),
        ],
    )
    assert found.nowhere == {}


def test_latency_is_reported_by_transport_and_hop(tmp_path: Path) -> None:
    slow = trace(7, step("a", 0, "FORWARDED", hop="7#t", to="b"), step("b", 50_000, "DELIVERED"))
    hops = followed(tmp_path, *(chain(n, "a", "hub", "b") for n in range(5)), slow)
    types = [*hops.types]
    told = {
        (types[type], hop): percentile({bucket: number}, 0.5)
        for (type, hop, bucket), number in hops.travel.items()
    }
    assert told[("tcp", 1)] == pytest.approx(1_000, rel=0.03)
    assert told[("tcp", 2)] == pytest.approx(1_000, rel=0.03)
    assert told[("mqtt", 1)] == pytest.approx(50_000, rel=0.03)


def test_travel_is_timed_by_corrected_clocks(tmp_path: Path) -> None:
    ahead = 180 * SECOND
    path = step("a", ahead, "FORWARDED", to="b"), step("b", 2_000, "DELIVERED")
    clock = {
        "node": "a",
        "peer": "b",
        "from_time": START,
        "to_time": START + 60 * MINUTE,
        "offset_us": -ahead,
        "rtt_us": 9,
        "source": "session",
        "correction_us": ahead,
    }
    found = facts(tmp_path, traces=[trace(0, *path)], clocks=[clock])
    [(_, hop, bucket)] = found.hops.travel
    assert hop == 1
    assert percentile({bucket: 1}, 0.5) == pytest.approx(2_000, rel=0.03)


def test_copies_published_on_a_broker_have_no_receiving_node(tmp_path: Path) -> None:
    hops = followed(
        tmp_path,
        trace(0, step("a", 0, "FORWARDED", hop="255#p/b"), step("b", 5, "DELIVERED")),
    )
    assert [to for _, to, _ in hops.sent] == [BROADCAST]
    assert "multicast" in hops.types
    assert not hops.vanished


def test_traces_without_paths_are_counted(tmp_path: Path) -> None:
    bare = {**chain(0, "a", "b"), "path": None, "fates": None}
    hops = followed(tmp_path, bare, chain(1, "a", "b"))
    assert hops.without_path == 1
    assert links(hops) == {("a", "b"): 1}


def test_the_size_of_batches_makes_no_difference(tmp_path: Path) -> None:
    traces = [chain(n, "a", "hub", f"leaf-{n % 3}", at=n) for n in range(50)]
    directory = write_all(tmp_path, traces=traces, route_history=_renewals(50))
    tables, small = Tables(directory), Tables(directory, batch_rows=7)
    whole, changes = follow(tables, [], BINS), count_changes(tables, BINS)
    parts, changed = follow(small, [], BINS), count_changes(small, BINS)
    for name in ("sent", "travel", "deliveries", "latency", "flow", "nodes"):
        assert getattr(whole, name) == getattr(parts, name), name
    for name in ("entries", "opened", "ended", "by_node", "standing", "oldest"):
        assert getattr(changes, name) == getattr(changed, name), name


# Routes


def entry(participant: str, begin: int, end: int | None, closed: str | None, **more: object) -> Row:
    return {
        "node": "hub",
        "incarnation": 1,
        "participant": participant,
        "address": "1#a",
        "local": False,
        "visible": True,
        "sticky": False,
        "valid_from": START + begin,
        "valid_to": None if end is None else START + end,
        "closed_by": closed,
        **more,
    }


def _renewals(number: int) -> list[Row]:
    return [
        entry("truck", n * SECOND, (n + 1) * SECOND, "replaced", address=f"1#{n // 10}")
        for n in range(number)
    ]


def changed(directory: Path, *entries: Row) -> Changes:
    return count_changes(Tables(write_all(directory, route_history=[*entries])), BINS)


def test_an_entry_at_the_same_address_is_renewed_and_at_another_it_moved(tmp_path: Path) -> None:
    changes = changed(
        tmp_path,
        entry("truck", 0, MINUTE, "replaced"),
        entry("truck", MINUTE, 2 * MINUTE, "replaced"),
        entry("truck", 2 * MINUTE, 3 * MINUTE, "expired", address="1#b"),
        entry("van", 0, MINUTE, "replaced"),  # its successor is not adjacent
        entry("bus", 0, MINUTE, "removed"),
        entry("request-1", 0, MINUTE, "removed", local=True),
    )
    assert changes.ended == {
        (1, "renewed"): 1,
        (2, "moved"): 1,
        (3, "expired"): 1,
        (1, "replaced"): 1,
        (1, "removed"): 1,
        (1, "ended"): 1,
    }
    assert changes.by_node["hub", "renewed"] == 1
    assert changes.restless.most_common(9) == [("truck", 2), ("bus", 1), ("van", 1)]


def test_a_lease_that_outlives_the_journal_exists_at_the_end(tmp_path: Path) -> None:
    changes = changed(
        tmp_path,
        entry("truck", 0, 11 * MINUTE, "expired", expiry=START + 11 * MINUTE),
        entry("van", 9 * MINUTE + 1, None, None),
        entry("worker", 0, None, None, local=True),
    )
    assert changes.ended == {(LATER, "expired"): 1}
    assert not changes.by_node
    assert changes.standing == {("under a minute", False): 1, ("under an hour", True): 1}
    assert [one.participant for one in changes.oldest] == ["truck", "van"]


def test_entries_that_a_node_made_for_itself_are_not_listed_as_the_oldest(tmp_path: Path) -> None:
    changes = changed(
        tmp_path,
        entry("tcp-c377b447797953a6", 0, None, None),
        entry("subscriber-c377b447797953a6", 0, None, None),
        entry("truck", 9 * MINUTE, None, None),
    )
    assert sum(changes.standing.values()) == 3
    assert [one.participant for one in changes.oldest] == ["truck"]


def test_a_sticky_entry_past_its_expiry_is_reported(tmp_path: Path) -> None:
    changes = changed(
        tmp_path,
        entry("truck", 0, None, None, sticky=True, expiry=START + MINUTE),
        entry("van", 0, None, None, sticky=True),
    )
    assert changes.overdue == 1
    assert [one.participant for one in changes.oldest_overdue] == ["truck"]


def test_nodes_with_a_session_are_linked_even_if_it_carried_nothing(tmp_path: Path) -> None:
    def session(node: str, peer: str | None) -> Row:
        return {"node": node, "incarnation": 1, "session": f"to-{peer}", "peer": peer}

    found = facts(
        tmp_path,
        traces=[chain(0, "hub", "a")],
        health=[window(node, 0, "DELIVERED", 1) for node in ("hub", "a", "archive")],
        session_history=[session("archive", "hub"), session("hub", "a"), session("hub", None)],
    )
    graph = graph_of(found)
    told = {
        tuple(sorted((graph.vertices[edge.one].name, graph.vertices[edge.other].name))): edge.sent
        for edge in graph.edges
    }
    assert told == {("a", "hub"): 1, ("archive", "hub"): 0}


# Facts


def test_many_windows_are_drawn_from_health_and_few_from_paths(tmp_path: Path) -> None:
    long = [window("hub", minute, "DROPPED", 2, "NO_ROUTE") for minute in range(30)]
    coarse = facts(tmp_path / "a", health=long, traces=[chain(0, "a", "b")])
    assert not coarse.fine
    assert (coarse.bins.width, coarse.bins.count) == (MINUTE, 30)
    assert coarse.flow[3, None, "DROPPED", "NO_ROUTE"] == 2
    assert coarse.flow[3, "hub", "DROPPED", "NO_ROUTE"] == 2
    brief = [chain(n, "a", "b", at=n * SECOND) for n in range(10)]
    fine = facts(tmp_path / "b", health=long[:1], traces=brief)
    assert fine.fine
    assert fine.bins.width < SECOND
    assert sum(n for (_, node, *_), n in fine.flow.items() if node is None) == 20


def test_a_clock_that_is_years_off_does_not_stretch_the_picture(tmp_path: Path) -> None:
    usual = [window("hub", minute, "DELIVERED", 1_000) for minute in range(30)]
    early = window("hub", -525_600, "DELIVERED", 1)
    found = facts(tmp_path, health=[*usual, early])
    assert (found.outside, found.bins.start) == (1, START)


def test_outcomes_and_latency_are_reported_by_node_and_reason(tmp_path: Path) -> None:
    found = facts(
        tmp_path,
        health=[
            window("a", 0, "DELIVERED", 5),
            window("a", 1, "DROPPED", 2, "EXPIRED"),
            window("b", 1, "DROPPED", 1, None),
        ],
    )
    assert (found.loads["a"].messages, found.loads["a"].dropped) == (7, 2)
    assert found.total.reasons == {"EXPIRED": 2, "unknown": 1}
    assert found.speeds["tcp"].worst == pytest.approx(3_500)


def test_messages_without_an_id_are_no_examples(tmp_path: Path) -> None:
    rows = [{**judged(0, "a", "DELIVERED", None, "missing"), "message_id": NO_ID}]
    [judgement] = facts(tmp_path / "a", audit=rows).judgements
    assert (judgement.found.messages, judgement.found.examples) == (1, [])
    [judgement] = facts(
        tmp_path / "b", audit=[*rows, judged(3, "a", "DELIVERED", None, "missing")]
    ).judgements
    assert (judgement.found.messages, judgement.found.examples) == (2, [id_of(3)])


def test_bands_are_of_the_costliest_incidents_and_those_that_overlap_are_one() -> None:
    def one(start: int, end: int | None, cause: str) -> Incident:
        ended = None if end is None else START + end * MINUTE
        return Incident(
            incident_id=cause,
            kind="link_lost",
            node="a",
            started=START + start * MINUTE,
            ended=ended,
            participants=[],
            lost=1,
            cause=cause,
            evidence=[],
        )

    long = one(0, 9, "covers the whole chart")
    found = bands_of(
        [one(4, 5, "c"), long, one(1, 2, "a"), one(2, 3, "b"), one(8, None, "d")], BINS
    )
    assert found == (
        Band(START + MINUTE, START + 3 * MINUTE, "a\nb"),
        Band(START + 4 * MINUTE, START + 5 * MINUTE, "c"),
        Band(START + 8 * MINUTE, START + 8 * MINUTE, "d"),
    )
    many = [one(number, number, str(number)) for number in range(100)]
    assert len(bands_of(many, Bins(START, MINUTE, 100))) == BANDS
