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
    write,
    write_all,
)
from waystation.pipeline.report.arrays import BROADCAST, ELSEWHERE
from waystation.pipeline.report.changes import LATER, Changes, count_changes
from waystation.pipeline.report.facts import Facts, gather
from waystation.pipeline.report.hops import Hops, follow
from waystation.pipeline.report.numbers import percentile
from waystation.pipeline.report.reading import NO_ID, Tables
from waystation.pipeline.report.times import Bins
from waystation.pipeline.report.topology import graph_of

BINS = Bins(START, MINUTE, 10)


def facts(directory: Path, **tables: list[Row]) -> Facts:
    return gather(Tables(write_all(directory, **tables)), lambda _: None)


def followed(directory: Path, *traces: Row) -> Hops:
    return follow(Tables(write_all(directory, traces=[*traces])), [], None)


def links(hops: Hops) -> dict[tuple[str, str], int]:
    names = [*hops.names, "elsewhere"]
    found: dict[tuple[str, str], int] = {}
    for (a, b, _), number in hops.sent.items():
        found[names[a], names[b]] = found.get((names[a], names[b]), 0) + number
    return found


def chain(number: int, *nodes: str, at: int = 0) -> Row:
    """A message that was forwarded from node to node and delivered at the last."""
    steps = [
        step(node, at + 1_000 * place, "FORWARDED", hop=f"1#{nodes[place + 1]}")
        for place, node in enumerate(nodes[:-1])
    ]
    return trace(number, *steps, step(nodes[-1], at + 1_000 * len(steps), "DELIVERED"))


def test_a_link_is_counted_for_each_copy(tmp_path: Path) -> None:
    hops = followed(
        tmp_path, chain(0, "a", "hub", "b"), chain(1, "a", "hub", "b"), chain(2, "b", "hub")
    )
    assert links(hops) == {("a", "hub"): 2, ("hub", "b"): 2, ("b", "hub"): 1}
    assert not hops.vanished


def test_copies_of_a_broadcast_go_where_unicasts_to_the_same_address_went(tmp_path: Path) -> None:
    learnt = [chain(n, "hub", node) for n, node in enumerate(("a", "b", "c"))]
    broadcast = trace(
        9,
        *(step("hub", 0, "FORWARDED", hop=f"1#{node}") for node in ("a", "b", "c")),
        step("c", 10, "DELIVERED"),
        step("a", 20, "DELIVERED"),
        step("a", 21, "DELIVERED"),
    )
    hops = followed(tmp_path, *learnt, broadcast)
    assert links(hops) == {("hub", "a"): 2, ("hub", "b"): 2, ("hub", "c"): 2}
    assert {(hops.names[a], hops.names[b]): n for (a, b), n in hops.vanished.items()} == {
        ("hub", "b"): 1
    }
    assert hops.deliveries == {1: 3, 3: 1}
    assert hops.widest == [(3, id_of(9))]


def test_copies_to_unknown_addresses_are_matched_in_order(tmp_path: Path) -> None:
    broadcast = trace(
        0,
        *(step("hub", n, "FORWARDED", hop=f"1#{n}") for n in range(2)),
        step("a", 10, "DELIVERED"),
        step("b", 20, "DELIVERED"),
    )
    assert links(followed(tmp_path, broadcast)) == {("hub", "a"): 1, ("hub", "b"): 1}


def test_a_copy_to_a_node_without_a_journal_went_elsewhere(tmp_path: Path) -> None:
    hops = followed(tmp_path, trace(0, step("hub", 0, "FORWARDED", hop="1#far")))
    assert links(hops) == {("hub", "elsewhere"): 1}
    assert [to for _, to, _ in hops.sent] == [ELSEWHERE]
    assert not hops.vanished


def test_a_copy_that_never_arrived_at_a_known_node_has_vanished(tmp_path: Path) -> None:
    hops = followed(
        tmp_path, chain(0, "hub", "a"), trace(1, step("hub", 0, "FORWARDED", hop="1#a"))
    )
    assert list(hops.vanished.values()) == [1]


def test_a_copy_sent_back_to_the_first_node_can_vanish_too(tmp_path: Path) -> None:
    gone = trace(1, step("a", 0, "FORWARDED", hop="1#hub"), step("hub", 5, "FORWARDED", hop="1#a"))
    hops = followed(tmp_path, chain(0, "a", "hub", "a"), gone)
    assert links(hops) == {("a", "hub"): 2, ("hub", "a"): 2}
    assert {(hops.names[a], hops.names[b]): n for (a, b), n in hops.vanished.items()} == {
        ("hub", "a"): 1
    }


def lost_behind(number: int, node: str, next_node: str) -> Row:
    """A message that was sent on to a node which did not know the name."""
    return trace(
        number,
        step(node, number, "FORWARDED", hop=f"1#{next_node}"),
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
    slow = trace(7, step("a", 0, "FORWARDED", hop="7#t"), step("b", 50_000, "DELIVERED"))
    hops = followed(tmp_path, *(chain(n, "a", "hub", "b") for n in range(5)), slow)
    types = [*hops.types]
    told = {
        (types[type], hop): percentile({bucket: number}, 0.5)
        for (type, hop, bucket), number in hops.travel.items()
    }
    assert told[("tcp", 1)] == pytest.approx(1_000, rel=0.03)
    assert told[("tcp", 2)] == pytest.approx(1_000, rel=0.03)
    assert told[("mqtt", 1)] == pytest.approx(50_000, rel=0.03)


def test_a_message_that_ended_before_its_sending_was_recorded_is_not_timed(tmp_path: Path) -> None:
    early = [
        trace(n, step("leaf", 0, "DELIVERED"), step("hub", 4_000, "FORWARDED", hop="1#leaf"))
        for n in range(3)
    ]
    local = trace(9, step("hub", 0, "DELIVERED"), step("hub", 1, "DELIVERED"))
    published = trace(
        8,
        step("leaf", 0, "DELIVERED"),
        step("leaf", 1, "FORWARDED", hop="1#hub"),
        step("hub", 9, "DROPPED", "NO_SUBSCRIBER"),
    )
    hops = followed(tmp_path, *early, local, published)
    assert hops.early == 3
    assert links(hops) == {("hub", "leaf"): 3, ("leaf", "hub"): 1}
    assert hops.travel.total() == 1
    assert not hops.vanished


def test_an_address_that_names_a_node_leads_there(tmp_path: Path) -> None:
    hops = followed(
        tmp_path,
        *(
            trace(
                n,
                step("a", 0, "FORWARDED", hop=hop),
                step("b", 5, "DELIVERED"),
                step("c", 6, "DELIVERED"),
            )
            for n, hop in enumerate(("0#c", "7#leaves/c", "6#fleet/c"))
        ),
    )
    assert links(hops) == {("a", "c"): 3}


def test_what_two_nodes_saw_counts_for_more_than_the_order_of_rows(tmp_path: Path) -> None:
    late = [
        trace(
            n,
            step("a", 0, "FORWARDED", hop="1#x"),
            step("far", 5, "DELIVERED"),  # the hub in between records it later
            step("hub", 9, "DELIVERED"),
        )
        for n in range(5)
    ]
    hops = followed(
        tmp_path,
        *late,
        trace(9, step("a", 0, "FORWARDED", hop="1#x"), step("hub", 3, "DELIVERED")),
    )
    assert links(hops) == {("a", "hub"): 6}
    assert hops.travel.total() == 1


def test_the_node_where_messages_to_an_address_arrive_has_that_address(tmp_path: Path) -> None:
    def relayed(number: int, far: str) -> Row:
        return trace(
            number,
            step("a", 0, "FORWARDED", hop="1#x"),
            step("b", 1, "FORWARDED", hop="1#y"),
            step(far, 5, "DELIVERED"),
            step("hub", 9, "DELIVERED"),
        )

    hops = followed(tmp_path, *(relayed(n, far) for n, far in enumerate(("c", "c", "c", "d"))))
    assert links(hops) == {("a", "b"): 4, ("b", "hub"): 4}


def test_a_copy_that_is_recorded_late_is_not_lost(tmp_path: Path) -> None:
    late = trace(
        0,
        step("hub", 0, "FORWARDED", hop="1#b"),
        step("b", 5, "DELIVERED"),
        step("a", 9, "FORWARDED", hop="0#hub"),
    )
    hops = followed(tmp_path, late)
    assert links(hops) == {("a", "hub"): 1, ("hub", "b"): 1}
    assert not hops.vanished


def test_what_is_learned_of_an_address_in_one_file_applies_to_others(tmp_path: Path) -> None:
    tables = write_all(tmp_path, traces=[chain(n, "hub", "a") for n in range(2)])
    vague = trace(
        9,
        *(step("hub", 0, "FORWARDED", hop=hop) for hop in ("1#y", "1#a")),
        step("a", 5, "DELIVERED"),
    )
    write(tables, "traces", [vague], name="other")
    hops = follow(Tables(tables), [], None)
    assert links(hops) == {("hub", "a"): 3, ("hub", "elsewhere"): 1}


def test_copies_published_on_a_broker_have_no_receiving_node(tmp_path: Path) -> None:
    hops = followed(
        tmp_path,
        trace(0, step("a", 0, "FORWARDED", hop="255#p/b"), step("b", 5, "DELIVERED")),
    )
    assert [to for _, to, _ in hops.sent] == [BROADCAST]
    assert [*hops.types] == ["multicast", "none"]
    assert not hops.vanished


def test_traces_without_paths_are_counted(tmp_path: Path) -> None:
    bare = {**chain(0, "a", "b"), "path": None}
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


def test_a_sticky_entry_past_its_expiry_is_reported(tmp_path: Path) -> None:
    changes = changed(
        tmp_path,
        entry("truck", 0, None, None, sticky=True, expiry=START + MINUTE),
        entry("van", 0, None, None, sticky=True),
    )
    assert changes.overdue == 1
    assert [one.participant for one in changes.oldest_overdue] == ["truck"]


def test_a_node_without_copies_is_linked_by_its_routing_entries(tmp_path: Path) -> None:
    found = facts(
        tmp_path,
        traces=[chain(0, "hub", "a")],
        health=[window(node, 0, "DELIVERED", 1) for node in ("hub", "a", "archive")],
        route_history=[
            {**entry("hub", 0, None, None), "node": node} for node in ("archive", "a", "hub")
        ],
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
