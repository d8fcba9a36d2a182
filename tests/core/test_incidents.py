"""Each loss goes to the first cause that explains it, with a sentence for people."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest

from waystation.core.corrections import HOUR
from waystation.core.incidents import (
    JOINED,
    SECOND,
    SLACK,
    Covered,
    Entry,
    Found,
    Loss,
    Missing,
    Past,
    Session,
    as_sentence,
    found_in,
    lasted,
)
from waystation.core.losses import Lost

NOW = 1_700_000_000_000_000
MS = 1_000


def lost(reason: str, at: int = NOW, **more: Any) -> Loss:
    """A loss at the hub, for truck-7 unless it says otherwise."""
    step: dict[str, Any] = {
        "recipient": "truck-7",
        "reason": reason,
        "node": "hub",
        "incarnation": 1,
        "at": at,
        "received_at": at,
        "outcome": "DROPPED",
    }
    of_trace = {
        name: more.pop(name) for name in ("message_id", "origin", "multicast_id") if name in more
    }
    step |= more
    return Loss(
        message_id=of_trace.pop("message_id", "a" * 32),
        origin=of_trace.pop("origin", "leaf/1"),
        **of_trace,
        lost=Lost(**step),
    )


def entry(since: int, until: int | None, why: str | None, **more: Any) -> Entry:
    found = Entry("hub", 1, "truck-7", "0#tcp-1", since, until, why)
    return found._replace(**more)


def session(opened: int, closed: int | None, why: str | None, **more: Any) -> Session:
    found = Session("hub", 1, "tcp-1", "leaf", "1#10.0.0.7:1", "truck-7", opened, closed, why)
    return found._replace(**more)


def life(node: str, since: int, until: int, why: str | None, incarnation: int = 1) -> Covered:
    return Covered(node, incarnation, since, until, why)


def only(found: Found) -> tuple[str, str]:
    """The kind of the only incident with a loss, and the sentence of that."""
    [one] = found.losses
    [incident] = [row for row in found.incidents if row.incident_id == one.incident_id]
    assert incident.lost == 1
    assert incident.evidence == ["a" * 32]
    return incident.kind, one.cause


def test_a_route_that_had_expired() -> None:
    history = [
        entry(NOW - 9 * SECOND, NOW - 163 * MS, "expired"),
        entry(NOW + 96 * MS, None, None),
    ]
    found = found_in([lost("NO_ROUTE")], Past(history))
    assert only(found) == (
        "route_expired",
        "its route had expired 163 ms before; a new one came 96 ms after",
    )
    [incident] = found.incidents
    key = f"route_expired|hub|truck-7|{NOW - 163 * MS}"
    assert incident.incident_id == sha256(key.encode()).hexdigest()[:16]
    assert (incident.started, incident.ended) == (NOW - 163 * MS, NOW + 96 * MS)
    assert incident.participants == ["truck-7"]


def test_a_name_that_was_never_known() -> None:
    told = only(found_in([lost("NO_ROUTE")], Past()))
    assert told == ("never_registered", "truck-7 was never known at hub")
    later = [entry(NOW + 5 * SECOND, None, None)]
    told = only(found_in([lost("NO_ROUTE")], Past(later)))
    assert told == ("never_registered", "truck-7 was not known at hub yet; it came 5.0 s after")


def test_a_participant_that_left() -> None:
    history = [entry(NOW - 9 * SECOND, NOW - SECOND, "removed")]
    told = only(found_in([lost("NO_ROUTE")], Past(history)))
    assert told == ("other", "truck-7 had left 1.0 s before")


def test_the_crash_behind_the_session_behind_the_entry() -> None:
    closed = NOW - SECOND
    past = Past(
        [entry(NOW - 9 * SECOND, closed + MS, "removed")],
        [session(NOW - 9 * SECOND, closed, "lost")],
        [
            life("truck-7", NOW - 10 * SECOND, closed - MS, "crash"),
            life("truck-7", NOW + SECOND, NOW + 9 * SECOND, None, 2),
            life("hub", NOW - 10 * SECOND, NOW + 9 * SECOND, None),
        ],
    )
    assert only(found_in([lost("NO_ROUTE")], past)) == (
        "node_crashed",
        "truck-7 crashed 1.0 s before; truck-7 was back 1.0 s after",
    )


@pytest.mark.parametrize("at", [NOW - 10 * MS, NOW + SECOND])
def test_a_link_that_broke_is_one_incident_of_both_sides(at: int) -> None:
    lives = [life(node, NOW - HOUR, NOW + HOUR, None) for node in ("hub", "truck-7")]
    sides = [
        session(NOW - HOUR, NOW, "lost"),
        session(NOW + 9 * SECOND, None, None, session="tcp-2"),
        session(NOW - HOUR + MS, NOW + 2 * SECOND, "lost", node="truck-7", peer="hub",
                role="parent", session="hub", place=None),
    ]  # fmt: skip
    loss = lost("TRANSPORT_DOWN", at, out="tcp-1", next_node="truck-7")
    found = found_in([loss], Past((), sides, lives))
    kind, text = only(found)
    assert kind == "link_lost"
    assert text.startswith("the session of truck-7 with hub broke ")
    [incident] = found.incidents
    assert incident.node == "truck-7"  # it dialled


def test_what_vanished_long_before_a_link_broke_is_not_explained_by_it() -> None:
    sides = [session(NOW - HOUR, NOW + HOUR, "lost")]
    loss = lost("VANISHED", outcome="FORWARDED", out="tcp-1", next_node="truck-7")
    kind, text = only(found_in([loss], Past((), sides)))
    assert (kind, text) == ("other", "it left for truck-7, and did not arrive")


def test_a_message_that_waited_when_its_node_stopped() -> None:
    lives = [life("hub", NOW - HOUR, NOW + SECOND, "stop")]
    loss = lost("VANISHED", outcome="QUEUED")
    assert only(found_in([loss], Past((), (), lives))) == (
        "node_stopped",
        "hub was stopped 1.0 s after",
    )


@pytest.mark.parametrize(
    ("after", "told"),
    [
        (SLACK, ("node_crashed", "truck-7 crashed 1.0 s before")),
        (SLACK + 1, ("link_lost", "the session of hub with truck-7 broke 3.0 s before")),
    ],
)
def test_a_peer_that_crashed_later_did_not_end_the_session(
    after: int, told: tuple[str, str]
) -> None:
    closed = NOW - 3 * SECOND
    past = Past(
        (),
        [session(NOW - HOUR, closed, "lost")],
        [life("truck-7", NOW - 2 * HOUR, closed + after, "crash")],
    )
    assert only(found_in([lost("TRANSPORT_DOWN", out="tcp-1")], past)) == told


@pytest.mark.parametrize(
    ("loser", "out", "other"), [("hub", "tcp-1", "truck-7"), ("truck-7", "tcp-9", "hub")]
)
def test_a_link_of_equals_is_named_by_the_smaller_name(loser: str, out: str, other: str) -> None:
    sides = [
        session(NOW - HOUR, NOW - SECOND, "lost", role="peer"),
        session(NOW - HOUR, NOW - SECOND, "lost", role="peer",
                node="truck-7", peer="hub", session="tcp-9"),
    ]  # fmt: skip
    lives = [life(node, NOW - HOUR, NOW + HOUR, None) for node in ("hub", "truck-7")]
    loss = lost("TRANSPORT_DOWN", node=loser, out=out, next_node=other)
    found = found_in([loss], Past((), sides, lives))
    assert only(found) == ("link_lost", "the session of hub with truck-7 broke 1.0 s before")
    [incident] = found.incidents
    assert incident.node == "hub"


def test_a_session_with_a_peer_without_a_name_counts_only_if_it_cost_something() -> None:
    sides = [
        session(NOW - HOUR, NOW - SECOND, "lost", peer=None),
        session(NOW + 2 * SECOND, None, None, peer=None),
    ]
    past = Past((), sides)
    assert found_in([], past).incidents == []
    found = found_in([lost("TRANSPORT_DOWN", out="tcp-1")], past)
    assert only(found) == (
        "link_lost",
        "the session of hub with 1#10.0.0.7:1 broke 1.0 s before; a new one opened 2.0 s after",
    )
    [incident] = found.incidents
    assert incident.cause == "the link of hub with 1#10.0.0.7:1 broke and was back 3.0 s later"
    assert (incident.started, incident.ended) == (NOW - SECOND, NOW + 2 * SECOND)


def test_a_session_that_never_opened_is_down_since_the_former_one_with_that_peer() -> None:
    loss = lost("TRANSPORT_DOWN", out="tcp-2", next_node="truck-7")
    former = session(NOW - HOUR, NOW - SECOND, "lost")
    assert only(found_in([loss], Past((), [former]))) == (
        "link_lost",
        "the session of hub with truck-7 broke 1.0 s before",
    )


def test_a_session_that_is_open_explains_nothing() -> None:
    loss = lost("TRANSPORT_DOWN", out="tcp-1", next_node="truck-7")
    told = only(found_in([loss], Past((), [session(NOW - HOUR, None, None)])))
    assert told == ("other", "there was no session with truck-7")


@pytest.mark.parametrize("address", ["0#tcp-1", "1#10.0.0.7:1"])
def test_what_vanished_while_it_waited_goes_to_the_session_behind_its_entry(address: str) -> None:
    past = Past(
        [entry(NOW - HOUR, None, None, address=address)],
        [session(NOW - HOUR, NOW + 30 * SECOND, "lost")],
        [life("hub", NOW - HOUR, NOW + HOUR, None)],  # it runs on
    )
    assert only(found_in([lost("VANISHED", outcome="QUEUED")], past)) == (
        "link_lost",
        "the session of hub with truck-7 broke 30.0 s after",
    )


def test_a_route_that_names_a_session_which_has_ended() -> None:
    past = Past((), [session(NOW - HOUR, NOW - SECOND, "lost")])
    assert only(found_in([lost("NO_ROUTE", recipient="tcp-1")], past)) == (
        "link_lost",
        "the session of hub with truck-7 broke 1.0 s before",
    )


def test_no_route_to_nobody_in_particular() -> None:
    found = found_in([lost("NO_ROUTE", recipient=None)], Past())
    assert only(found) == ("other", "there was no way to where its route led")
    [incident] = found.incidents
    assert (incident.cause, incident.participants) == ("NO_ROUTE at hub", [])


@pytest.mark.parametrize(
    ("sessions", "told"),
    [
        (
            [session(NOW - HOUR, NOW - 20 * SECOND, "lost")],
            ("link_lost", "the session of hub with truck-7 broke 20.0 s before"),
        ),
        ([session(NOW - HOUR, None, None)], ("other", "it waited for 30.0 s and expired")),
        ([], ("other", "it waited for 30.0 s and expired")),
    ],
)
def test_a_message_that_waited_in_vain_though_there_was_a_route(
    sessions: list[Session], told: tuple[str, str]
) -> None:
    loss = lost(
        *("EXPIRED", NOW), outcome="QUEUED", received_at=NOW - 30 * SECOND, expiry=NOW - SECOND
    )
    assert only(found_in([loss], Past([entry(NOW - HOUR, None, None)], sessions))) == told


@pytest.mark.parametrize(
    ("before", "why", "ended_by", "told"),
    [
        (5 * SECOND, "restart", "crash", ("node_crashed", "hub crashed 5.0 s before")),
        (5 * SECOND, "stopped", "stop", ("node_stopped", "hub was stopped 5.0 s before")),
        (5 * SECOND + SLACK, "removed", "stop", ("node_stopped", "hub was stopped 5.0 s before")),
        (6 * SECOND + SLACK, "removed", "stop", ("other", "truck-7 had left 8.0 s before")),
        (6 * SECOND, "removed", "crash", ("other", "truck-7 had left 6.0 s before")),
        (6 * SECOND, "expired", "stop", ("route_expired", "its route had expired 6.0 s before")),
    ],
)
def test_an_entry_that_ended_with_its_own_node(
    before: int, why: str, ended_by: str, told: tuple[str, str]
) -> None:
    lives = [
        life("hub", NOW - HOUR, NOW - 5 * SECOND, ended_by),
        life("hub", NOW - 4 * SECOND, NOW + HOUR, None, 2),
    ]
    past = Past([entry(NOW - HOUR, NOW - before, why)], (), lives)
    assert only(found_in([lost("NO_ROUTE", incarnation=2)], past)) == told


@pytest.mark.parametrize(
    ("closed", "until", "why", "told"),
    [
        (8, 1, "expired", ("link_lost", "the session of hub with truck-7 broke 8.0 s before")),
        (8, 1, "removed", ("other", "truck-7 had left 1.0 s before")),
        (1, 5, "removed", ("other", "truck-7 had left 5.0 s before")),
        (1, 5, "expired", ("route_expired", "its route had expired 5.0 s before")),
        (None, 5, "expired", ("route_expired", "its route had expired 5.0 s before")),
    ],
)
def test_an_entry_that_ended_apart_from_its_session(
    closed: int | None, until: int, why: str, told: tuple[str, str]
) -> None:
    side = session(NOW - HOUR, None, None)
    if closed is not None:
        side = session(NOW - HOUR, NOW - closed * SECOND, "lost")
    past = Past([entry(NOW - HOUR, NOW - until * SECOND, why)], [side])
    assert only(found_in([lost("NO_ROUTE")], past)) == told


def test_losses_of_a_slow_receiver_that_are_near_are_one_incident() -> None:
    times = [NOW, NOW + JOINED - 1, NOW + 3 * JOINED]
    losses = [lost("QUEUE_FULL", at, message_id=f"{at:032d}") for at in times]
    first, second = found_in(losses, Past()).incidents
    assert (first.kind, first.lost, second.lost) == ("slow_receiver", 2, 1)
    assert (first.started, first.ended) == (NOW, NOW + JOINED - 1)


def test_a_topic_that_nobody_hears_and_a_loop() -> None:
    losses = [
        lost("NO_SUBSCRIBER", recipient=None, multicast_id="a/b"),
        lost("HOP_LIMIT", NOW + 1, onward="0#x"),
        lost("REFUSED", NOW + 2),
    ]
    assert [one.kind for one in found_in(losses, Past()).incidents] == [
        *("no_subscriber", "loop", "refused"),
    ]


def test_a_message_that_expired_only_by_a_wrong_clock() -> None:
    hour = NOW // HOUR * HOUR
    past = Past(corrections={("leaf", hour): -60 * SECOND})
    kind, text = only(found_in([lost("EXPIRED", expiry=NOW - 20 * SECOND)], past))
    assert kind == "clock"
    assert text == (
        "the clock of leaf was 60.0 s behind; by the clock of its sender it had not expired"
    )
    assert only(found_in([lost("EXPIRED", expiry=NOW - 5 * MS)], Past())) == (
        "other",
        "it had expired 5 ms before it came",
    )


def test_hours_in_a_row_of_a_wrong_clock_are_one_incident() -> None:
    hour = NOW // HOUR * HOUR
    ahead = {
        ("hub", hour): 2 * SECOND,  # wrong as well, but by less
        ("leaf", hour - 3 * HOUR): -90 * SECOND,
        ("leaf", hour - HOUR): -60 * SECOND,
        ("leaf", hour): -61 * SECOND,
    }
    found = found_in([lost("EXPIRED", expiry=NOW - 20 * SECOND)], Past(corrections=ahead))
    assert only(found) == (
        "clock",
        "the clock of leaf was 60.0 s behind; by the clock of its sender it had not expired",
    )
    assert [(one.node, one.started, one.ended, one.lost) for one in found.incidents] == [
        ("leaf", hour - 3 * HOUR, hour - 2 * HOUR, 0),
        ("leaf", hour - HOUR, hour + HOUR, 1),
        ("hub", hour, hour + HOUR, 0),
    ]


@pytest.mark.parametrize(
    ("behind", "more"),
    [
        (60 * SECOND, {"origin": None}),  # nobody knows whose clock set the expiry
        (10 * SECOND, {}),  # it had expired by the clock of its sender, too
        (SECOND, {"expiry": NOW - 500 * MS}),  # as far off as clocks may be
    ],
)
def test_a_wrong_clock_that_a_message_did_not_expire_by(behind: int, more: dict[str, Any]) -> None:
    hour = NOW // HOUR * HOUR
    loss = lost("EXPIRED", **{"expiry": NOW - 20 * SECOND} | more)
    told = only(found_in([loss], Past(corrections={("leaf", hour): -behind})))
    late = lasted(NOW - (loss.lost.expiry or 0))
    assert told == ("other", f"it had expired {late} before it came")


def test_a_message_that_had_expired_at_a_time_which_is_not_on_record() -> None:
    assert only(found_in([lost("EXPIRED")], Past())) == ("other", "it had expired")


def test_incidents_without_losses() -> None:
    past = Past(
        (),
        [session(NOW, None, None, peer="ghost")],
        [
            life("hub", NOW, NOW + 1, "crash"),
            life("hub", NOW + 9, NOW + 10, "stop", 2),  # for good, and it cost nothing
        ],
        [Missing("hub", NOW, NOW + 1)],
    )
    found = found_in([], past).incidents
    assert {(one.kind, one.node) for one in found} == {
        *(("node_crashed", "hub"), ("journal_gap", "hub"), ("journal_gap", "ghost")),
    }
    assert all(one.lost == 0 and not one.evidence for one in found)


def test_internal_losses_are_kept_and_not_counted() -> None:
    [incident] = found_in([lost("FAILED", internal=True)], Past()).incidents
    assert (incident.lost, incident.evidence) == (0, ["a" * 32])


def test_a_cause_becomes_a_sentence_that_leaves_names_as_they_are() -> None:
    assert as_sentence("the route to truck-7 expired") == "The route to truck-7 expired."
    assert as_sentence("hub was stopped") == "hub was stopped."


def test_durations() -> None:
    assert [lasted(us) for us in (7_200 * SECOND, 172_800 * SECOND, 119 * SECOND)] == [
        *("2 h", "2 d", "119.0 s"),
    ]
