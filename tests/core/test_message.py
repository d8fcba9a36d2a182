from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rule_errors import breaks
from waystation.core.address import Address, Route
from waystation.core.expiry import NEVER
from waystation.core.message import Arrival, Message, Sized, check_message_id, message_id
from waystation.errors import LocalError

ID = "4bf92f3577b34da6a3ce929d0e0e4736"


def message(onward: str, back: str, payload: bytes = b"hello") -> Message:
    return Message(Route.parse(onward), Route.parse(back), payload, ID, 9_000, '{"a":"b"}')


def routes(sent: Message) -> tuple[str, str]:
    return str(sent.onward_route), str(sent.return_route)


@pytest.mark.rule("WK-2")
def test_forwarding_moves_the_own_address_to_the_return_route() -> None:
    received = message("forwarder => next", "sender")
    sent = received.forwarded()
    assert routes(sent) == ("0#next", "0#forwarder => 0#sender")
    assert sent.payload is received.payload
    assert (sent.id, sent.expiry, sent.trace_context) == (ID, 9_000, '{"a":"b"}')
    assert routes(received) == ("0#forwarder => 0#next", "0#sender")


@pytest.mark.rule("WK-2")
def test_forwarding_may_put_another_own_address_on_the_return_route() -> None:
    sent = message("outer => next", "sender").forwarded(Address(0, b"inner"))
    assert routes(sent) == ("0#next", "0#inner => 0#sender")


@pytest.mark.rule("WK-2")
def test_a_message_without_onward_route_cannot_be_forwarded() -> None:
    with pytest.raises(LocalError, check=breaks("WK-2")):
        message("", "sender").forwarded()


@pytest.mark.rule("WK-3")
def test_an_answer_goes_along_the_return_route() -> None:
    received = message("responder", "something => sender")
    answer = received.reply_from(Address(0, b"responder"), b"fine", id="1" * 32, expiry=77)
    assert routes(answer) == ("0#something => 0#sender", "0#responder")
    assert (answer.payload, answer.expiry) == (b"fine", 77)
    assert received.reply_from(Address(0, b"x"), b"", id=ID).expiry == NEVER


@pytest.mark.rule("WK-3")
def test_an_answer_has_an_id_of_its_own_and_says_what_it_answers() -> None:
    received = message("responder", "sender")
    one, other = (received.reply_from(Address(0, b"x"), b"", id=digit * 32) for digit in "12")
    assert len({received.id, check_message_id(one.id), check_message_id(other.id)}) == 3
    assert one.replies_to(received.id)
    assert other.replies_to(received.id)
    assert not one.replies_to("3" * 32)


@pytest.mark.rule("WK-2")
@pytest.mark.rule("WK-3")
def test_the_documents_example_of_forwarding_and_replies() -> None:
    first = message("B => C", "A")
    second = first.forwarded()
    third = second.reply_from(Address(0, b"C"), b"reply", id=ID)
    fourth = third.forwarded()
    assert routes(second) == ("0#C", "0#B => 0#A")
    assert routes(third) == ("0#B => 0#A", "0#C")
    assert routes(fourth) == ("0#A", "0#B => 0#C")


@pytest.mark.rule("WK-10")
def test_a_transport_is_one_worker_in_two_places() -> None:
    at_a = message("transportA => receiver", "sender")
    on_the_wire = at_a.departed()
    at_b = on_the_wire.arrived(Address(0, b"transportB"))
    assert routes(on_the_wire) == ("0#receiver", "0#sender")
    assert routes(at_b) == ("0#receiver", "0#transportB => 0#sender")


@pytest.mark.rule("AD-4")
@given(st.binary(max_size=100))
def test_no_move_changes_a_byte_of_the_payload(payload: bytes) -> None:
    received = message("a => b", "c", payload)
    moves = [
        received.forwarded(),
        received.departed(),
        received.arrived(Address(0, b"t")),
        received.rerouted(Route.parse("x"), Route.parse("y")),
    ]
    assert all(moved.payload is received.payload for moved in moves)
    assert all((moved.id, moved.expiry) == (ID, 9_000) for moved in moves)
    assert routes(moves[-1]) == ("0#x", "0#y")


@pytest.mark.rule("AD-7")
def test_a_message_is_expired_from_the_instant_of_its_expiry() -> None:
    assert not message("a", "b").expired(8_999)
    assert message("a", "b").expired(9_000)
    assert not Message(Route(), Route(), b"").expired(10**15)


@pytest.mark.rule("AD-7")
def test_the_flag_of_global_reception_is_no_part_of_a_message() -> None:
    assert "from_global" not in Message.__struct_fields__
    arrival = Arrival(message("a", "b"), received_at=5, from_global=True)
    assert b"global" not in msgspec.msgpack.encode(msgspec.structs.asdict(arrival.message))
    assert not Arrival(message("a", "b"), received_at=5).from_global


@pytest.mark.rule("AD-4")
@pytest.mark.rule("AD-7")
def test_a_message_from_unchecked_values() -> None:
    onward, back = Route.parse("a"), Route.parse("b")
    assert Message.of(onward, back, b"x", id=ID, expiry=5) == Message(onward, back, b"x", ID, 5)
    for fields, rule in (
        ({"payload": "text"}, "AD-4"),
        ({"id": "zz"}, "AD-7"),
        ({"id": None}, "AD-7"),
        ({"expiry": -5}, "AD-7"),
        ({"onward_route": "a"}, "AD-1"),
        ({"return_route": ["b"]}, "AD-1"),
    ):
        good = {"onward_route": onward, "return_route": back, "payload": b"", "id": ID}
        with pytest.raises(LocalError, check=breaks(rule)):
            Message.of(**{**good, **fields})  # type: ignore[arg-type]


@pytest.mark.rule("AD-7")
def test_an_id_is_a_trace_id() -> None:
    assert check_message_id(ID) == ID
    assert message_id(int(ID, 16)) == ID
    assert message_id(int(ID, 16) + (1 << 128)) == ID
    assert check_message_id(message_id(0)) == "0" * 31 + "1"


@pytest.mark.rule("AD-7")
@pytest.mark.parametrize("id", ["", "0" * 32, "4BF9" * 8, "4bf9" * 9, "4bg9" * 8, "x" * 10**6])
def test_what_is_no_trace_id_is_refused_by_name_and_rule(id: str) -> None:
    with pytest.raises(LocalError, match=r"invalid message id", check=breaks("AD-7")) as caught:
        check_message_id(id)
    assert len(str(caught.value)) < 200


def test_a_message_prints_its_routes_and_its_size() -> None:
    assert str(message("a => b", "c")) == "0#a => 0#b | 0#c | 5 B"


def test_a_size_stands_for_bytes_that_nobody_keeps() -> None:
    assert len(Sized.of(10**9)) == 10**9
    assert bytes(Sized.of(3)) == b""


@pytest.mark.parametrize(
    ("onward", "back", "internal"),
    [
        ("waystation.status", "app", True),
        ("hub => waystation.status", "", True),
        ("request-1", "tcp-1 => waystation.directory", True),
        ("echo", "app", False),
        ("tcp#waystation.example:4000 => echo", "", False),
        ("", "", False),
    ],
)
def test_what_nodes_say_to_each_other_is_internal(onward: str, back: str, internal: bool) -> None:
    message = Message(Route.parse(onward, {"tcp": 1}), Route.parse(back), b"")
    assert message.is_internal is internal


@pytest.mark.parametrize(
    ("route", "parts"),
    [
        ("multicast#garage/temperature/eu/de", ("garage", "temperature", "eu/de")),
        ("multicast#garage/temperature", ("garage", "temperature", "")),
        ("echo", (None, None, None)),
        ("", (None, None, None)),
    ],
)
def test_a_broadcast_tells_its_topic(route: str, parts: tuple[str | None, ...]) -> None:
    message = Message(Route.parse(route, {"multicast": 255}), Route(), b"")
    assert (message.provider, message.broadcast, message.partition) == parts
