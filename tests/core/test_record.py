"""Records are values: they compare and print as such."""

from __future__ import annotations

from waystation.core.address import Route
from waystation.core.message import Arrival, Message
from waystation.core.outcome import Outcome, Verdict
from waystation.core.record import MessageRecord


def test_a_record_says_what_became_of_a_message_and_when() -> None:
    arrival = Arrival(Message(Route.parse("echo"), Route(), b""), 5, multicast_id="a/b")
    record = MessageRecord(arrival, Verdict(Outcome.DELIVERED), 7)
    assert record == MessageRecord(arrival, Verdict(Outcome.DELIVERED), 7)
    assert (record.arrival.multicast_id, record.at - record.arrival.received_at) == ("a/b", 2)


def test_a_record_without_payload_knows_its_length() -> None:
    arrival = Arrival(Message(Route.parse("echo"), Route(), b"12345", "4bf9" * 8), 5)
    record = MessageRecord(arrival, Verdict(Outcome.DELIVERED), 7)
    slim = record.without_payload()
    payload = slim.arrival.message.payload
    assert (len(payload), bytes(payload)) == (5, b"")
    assert (slim.at, slim.verdict, slim.arrival.received_at) == (7, record.verdict, 5)
    assert slim.arrival.message.id == "4bf9" * 8
