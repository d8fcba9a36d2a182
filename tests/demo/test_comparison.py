"""The comparison: each kind of trouble is found in the evidence, and told in a sentence."""

from __future__ import annotations

from msgspec import structs

from tests.demo.samples import at, drop, entry, evidence, fault, message_outcome, no_explanation
from waystation.demo.comparison import Comparison, compare, comparison_lines
from waystation.demo.evidence import AuditRow, Evidence
from waystation.demo.faults import FaultKind
from waystation.demo.findings import Finding, find


def found(given: Evidence) -> list[Finding]:
    return find(given, no_explanation)


def expired_route() -> Evidence:
    messages = [drop("hub-b", 3 + n / 10, "NO_ROUTE", to="truck-3") for n in range(17)]
    routes = [
        entry("hub-b", "truck-3", 0, 1.8, "expired", address="1#a:1", local=False),
        entry("hub-b", "truck-3", 5.6, address="1#a:1", local=False),
    ]
    return evidence(messages, routes)


def test_messages_to_an_expired_route() -> None:
    [finding] = found(expired_route())
    assert (finding.kind, finding.subject, finding.lost) == (FaultKind.EXPIRED, "truck-3", 17)
    assert finding.sentences == [
        (
            "17 messages to truck-3 were dropped at hub-b between 12:00:03.000 and 12:00:04.600 "
            "(NO_ROUTE): its route had expired 1.2 s before the first; a new one came 1 s after "
            "the last."
        )
    ]


def test_a_route_that_expires_when_nobody_needs_it_is_no_news() -> None:
    assert found(evidence([], [entry("hub-b", "truck-3", 0, 1, "expired")])) == []


def test_a_route_that_was_renewed_in_time_is_no_news() -> None:
    routes = [
        entry("hub-b", "truck-3", 0, 1, "replaced", address="1#a:1", local=False),
        entry("hub-b", "truck-3", 1, 4, "replaced", address="1#a:1", local=False),
    ]
    assert found(evidence([message_outcome("hub-b", 2, to="truck-3")], routes)) == []


def killed_truck() -> Evidence:
    routes = [
        entry("truck-2", "truck-2", 0, 6, "restart"),
        entry("truck-2", "truck-2", 6, life=2),
        entry("hub-a", "truck-2", 0, 3.1, "removed", address="0#ws-1"),
        entry("hub-a", "truck-2", 6.5, address="0#ws-2"),
    ]
    messages = [
        message_outcome("truck-2", 3, to="truck-2"),
        drop("hub-a", 3.5, "NO_ROUTE", to="truck-2", id="a" * 32),
        drop("hub-a", 4.5, "NO_ROUTE", to="truck-2"),
        message_outcome("truck-2", 7, to="truck-2", life=2),
    ]
    return evidence(messages, routes)


def test_a_node_that_ended_without_a_word() -> None:
    [finding] = found(killed_truck())
    assert (finding.kind, finding.subject, finding.lost) == (FaultKind.KILLED, "truck-2", 2)
    assert finding.example == "a" * 32
    assert finding.sentences == [
        (
            "truck-2 crashed: its journal breaks off at 12:00:03.000; other nodes noticed "
            "100 ms later. It restarted at 12:00:06.000."
        ),
        (
            "2 messages to truck-2 were lost between 12:00:03.500 and 12:00:04.500: 2 at hub-a "
            "(NO_ROUTE)."
        ),
    ]


def restarted_hub() -> Evidence:
    routes = [
        entry("hub-b", "hub-b-worker", 0, 10, "removed"),
        entry("hub-b", "truck-3", 0, 9.9, "removed", address="0#mqtt-1"),
        entry("hub-b", "truck-4", 0, 9.9, "removed", address="0#gossip-1"),
        entry("hub-b", "hub-b-worker", 12, life=2),
        entry("hub-b", "truck-3", 12.5, address="0#mqtt-2", life=2),
        entry("hub-b", "truck-4", 13.5, address="0#gossip-2", life=2),
        entry("truck-3", "hub-b", 0, address="5#hubs/hub-b", local=False),
    ]
    messages = [
        message_outcome("hub-b", 10, to="truck-3"),
        drop("hub-a", 10.5, "TRANSPORT_DOWN", to="truck-4"),
        drop("hub-a", 11, "TRANSPORT_DOWN", to="truck-3"),
        drop("truck-3", 11, "TRANSPORT_DOWN", under="truck-3/position"),
        drop("hub-b", 12.4, "NO_ROUTE", to="truck-3", life=2),
    ]
    return evidence(messages, routes)


def test_a_hub_that_was_restarted() -> None:
    [finding] = found(restarted_hub())
    assert (finding.kind, finding.subject, finding.lost) == (FaultKind.RESTARTED, "hub-b", 4)
    assert finding.sentences == [
        (
            "hub-b stopped at 12:00:10.000 and restarted at 12:00:12.000. 1.5 s later it knew "
            "truck-3 and truck-4 again."
        ),
        (
            "4 messages were lost between 12:00:10.500 and 12:00:12.400: 2 at hub-a "
            "(TRANSPORT_DOWN), 1 at truck-3 (TRANSPORT_DOWN), 1 at hub-b (NO_ROUTE)."
        ),
    ]


def test_a_receiver_without_room_and_that_others_were_not_held_up() -> None:
    missed = [drop("archive", 13 + n, "QUEUE_FULL", under="t/p", id=f"{n:032x}") for n in range(3)]
    heard = [message_outcome("dispatcher", 13.1, under="t/p", id=f"{n:032x}") for n in range(2)]
    [finding] = found(evidence([*missed, *heard]))
    assert (finding.kind, finding.subject, finding.lost) == (FaultKind.STALLED, "archive", 3)
    assert finding.sentences == [
        (
            "3 messages were dropped at archive between 12:00:13.000 and 12:00:15.000 "
            "(QUEUE_FULL): the receiver's queue was full. 2 of them were delivered "
            "elsewhere."
        )
    ]


def test_full_queues_far_apart_are_two_findings() -> None:
    drops = [drop("archive", seconds, "QUEUE_FULL") for seconds in (1, 2, 60)]
    assert [finding.lost for finding in found(evidence(drops))] == [2, 1]


def test_broadcasts_that_reached_nobody_are_explained() -> None:
    ids = [f"{n:032x}" for n in range(2)]
    drops = [
        drop(node, 20, "NO_SUBSCRIBER", under="desk/alarm/eu", id=id)
        for id in ids
        for node in ("desk", "hub-a")
    ]
    [finding] = find(evidence(drops), lambda lost: f"nobody wants {lost[-1]}")
    assert (finding.kind, finding.subject, finding.lost) == (FaultKind.UNHEARD, "desk", 2)
    assert finding.sentences == [
        (
            "2 broadcasts under desk/alarm/eu had no receiver (NO_SUBSCRIBER at desk and hub-a): "
            "nobody wants 1."
        )
    ]


def test_what_is_no_loss_is_no_finding() -> None:
    rows = [drop("hub-b", 1, "NO_SUBSCRIBER", under="truck-3/position")]
    comparison = compare(evidence(rows, losses=[]), [], no_explanation)
    assert (comparison.matched_faults, comparison.other, comparison.unexplained) == ([], [], [])


def test_what_was_on_its_way_to_a_node_that_crashed() -> None:
    given = killed_truck()
    lost = drop("hub-a", 3.05, "VANISHED", to="request-1", next_node="truck-2")
    [finding] = found(structs.replace(given, losses=[lost, *given.losses]))
    assert (finding.kind, finding.lost) == (FaultKind.KILLED, 3)
    assert finding.sentences[1] == (
        "3 messages were lost between 12:00:03.050 and 12:00:04.500: 2 at hub-a (NO_ROUTE), "
        "1 at hub-a (VANISHED)."
    )


def test_each_deed_stands_beside_its_finding() -> None:
    comparison = compare(
        expired_route(), [fault(FaultKind.EXPIRED, "truck-3", 0.5, 5.5)], no_explanation
    )
    [matched_fault] = comparison.matched_faults
    assert matched_fault.finding is not None
    assert comparison.other == []
    lines = list(comparison_lines(comparison))
    assert "Fault at 12:00:00.500: truck-3 is expired." in lines
    [begin] = [n for n, line in enumerate(lines) if line.startswith("  Found: 17 messages to")]
    end = lines.index("", begin)
    assert all(line.startswith("         ") for line in lines[begin + 1 : end])
    assert max(map(len, lines)) <= 100


def test_a_deed_that_left_no_trace_is_said_to_have_none() -> None:
    comparison = compare(evidence(), [fault(FaultKind.KILLED, "truck-2", 1, 2)], no_explanation)
    assert "  Found: nothing, although the journals should show it." in comparison_lines(comparison)


def test_what_nobody_did_is_told_as_such() -> None:
    other_time = fault(FaultKind.EXPIRED, "truck-3", 100, 110)
    comparison = compare(expired_route(), [other_time], no_explanation)
    assert [matched_fault.finding for matched_fault in comparison.matched_faults] == [None]
    assert [finding.subject for finding in comparison.other] == ["truck-3"]
    assert "Other findings:" in comparison_lines(comparison)


def test_a_loss_that_nothing_explains_is_left_over() -> None:
    id = "c" * 32
    comparison = compare(evidence([drop("hub-a", 1, "FAILED", id=id)]), [], no_explanation)
    assert comparison.unexplained == [f"1 lost at hub-a (FAILED), such as {id}"]


def judged(id: str, node: str) -> AuditRow:
    return AuditRow(id, node, "different", "DELIVERED", "DROPPED", "QUEUE_FULL")


def test_the_audit_is_explained_by_the_findings() -> None:
    id = "d" * 32
    rows = [drop("archive", 1, "QUEUE_FULL", id=id)]
    comparison = compare(evidence(rows, [], [judged(id, "archive")], 9), [], no_explanation)
    assert comparison.audit == [
        (
            "The audit compares every outcome with the rules: 9 are as the rules require, "
            "1 are not, and the findings above explain 1."
        )
    ]


def test_what_the_audit_says_and_no_finding_explains_is_listed() -> None:
    comparison = compare(evidence([], [], [judged("e" * 32, "hub-a")]), [], no_explanation)
    assert comparison.audit[1:] == [
        "1 at hub-a: different, expected DELIVERED, was DROPPED QUEUE_FULL"
    ]


def test_the_overview_counts_messages_and_connections() -> None:
    id = "f" * 32
    way = [
        message_outcome(node, n, id=id)
        for n, node in enumerate(("desk", "hub-a", "hub-b", "truck-3"))
    ]
    comparison: Comparison = compare(
        evidence([*way, drop("hub-a", 4, "FAILED")]), [], no_explanation
    )
    assert comparison.overview == [
        (
            "2 messages in 4 s: 1 arrived, 1 of them over three connections or more, and 1 did "
            "not reach everybody."
        )
    ]
    assert compare(evidence(), [], no_explanation).overview == ["The journal has no messages."]


def test_instants_are_of_the_day_that_was_made_up() -> None:
    assert at(0) % 86_400_000_000 == 43_200_000_000
