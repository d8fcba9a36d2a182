"""Messages in joynr's frames: what they become, what is passed on untouched, what replies get."""

from __future__ import annotations

import pytest

from waystation.core.address import Address, Route
from waystation.core.expiry import NEVER
from waystation.core.message import Message
from waystation.core.multicast import ADDRESS_TYPE as MULTICAST
from waystation.errors import DecodeError, LocalError
from waystation.wire import smrf
from waystation.wire.joynr import CORRELATION, JoynrHeaders, MessageType, MqttAddress
from waystation.wire.joynr_frames import (
    BACKEND,
    DIRECTORY,
    DISCOVERY,
    FramedPayload,
    OpenRequests,
    custom_headers,
    decode_frame,
    encode_multicast,
    encode_unicast,
    id_of,
    is_route,
    joynr_name_of,
    message_of,
    message_type,
    name_of,
    participant_of,
    route_of,
)

ID = "4bf9" * 8
REQUEST = b'{"_typeName":"joynr.Request","methodName":"ping","requestReplyId":"r7"}'
REPLY = b'{"_typeName":"joynr.Reply","requestReplyId":"r7","response":[]}'
LIMIT = 1 << 20


def framed(
    body: bytes = REQUEST,
    kind: MessageType = MessageType.REQUEST,
    *,
    recipient: str = "radio",
    reply_to: str = "",
    compressed: bool = False,
    expiry: float = 5_000,
    signed: bool = False,
    custom: dict[str, str] | None = None,
) -> tuple[bytes, smrf.SmrfMessage, JoynrHeaders]:
    address = MqttAddress(BACKEND, reply_to) if reply_to else None
    headers = JoynrHeaders(kind, "message-1", address, False, custom or {})
    message = smrf.SmrfMessage(
        recipient, "proxy", expiry, headers.written(), body, is_compressed=compressed
    )
    data = smrf.encode(message, (lambda part: part[:8]) if signed else None)
    return data, *decode_frame(data, limit=LIMIT)


def onward(text: str = "link => radio") -> Route:
    return Route.parse(text)


def arrived(data: bytes, read: smrf.SmrfMessage, headers: JoynrHeaders) -> Message:
    message = message_of(data, read, headers, onward())
    return message.arrived(Address(0, b"ws-1"))


@pytest.mark.rule("AD-4")
@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (REQUEST, MessageType.REQUEST),
        (REPLY, MessageType.REPLY),
        (b'{"_typeName":"joynr.OneWayRequest","methodName":"x"}', MessageType.ONE_WAY_REQUEST),
    ],
)
@pytest.mark.parametrize("signed", [False, True])
def test_a_frame_is_passed_on_to_the_letter(body: bytes, kind: MessageType, signed: bool) -> None:
    frame = framed(body, kind, signed=signed, custom={"tenant": "7"})
    message = arrived(*frame)
    assert message.payload == body
    written = encode_unicast(message)
    assert written.data == frame[0]
    assert (written.recipient, written.expiry) == ("radio", 5_000)


def test_a_frame_for_another_recipient_is_written_anew() -> None:
    message = arrived(*framed())
    elsewhere = message.rerouted(onward("link => other"), message.return_route)
    read = smrf.decode(encode_unicast(elsewhere).data)
    assert (read.recipient, read.sender) == ("other", "0#ws-1 => 0#proxy")


def test_a_request_that_leaves_says_where_the_reply_goes() -> None:
    plain = arrived(*framed(custom={"tenant": "7"}, compressed=True))
    written = encode_unicast(plain, reply_to="hubs/a")
    read, headers = decode_frame(written.data, limit=LIMIT)
    assert headers.reply_to == MqttAddress(BACKEND, "hubs/a")
    assert headers.custom == {"tenant": "7"}
    assert (read.sender, read.body, read.is_compressed) == ("proxy", REQUEST, True)
    said = framed(reply_to="hubs/a")
    assert encode_unicast(arrived(*said), reply_to="hubs/a").data == said[0]
    other = encode_unicast(arrived(*framed(reply_to="cars/7")), reply_to="hubs/a")
    assert decode_frame(other.data, limit=LIMIT)[1].reply_to == MqttAddress(BACKEND, "hubs/a")
    reply = framed(REPLY, MessageType.REPLY)
    assert encode_unicast(arrived(*reply), reply_to="hubs/a").data == reply[0]


def test_a_signed_request_keeps_its_signature() -> None:
    frame = framed(signed=True)
    assert encode_unicast(arrived(*frame), reply_to="hubs/a").data == frame[0]


def test_a_reply_has_the_headers_and_the_expiry_of_its_request() -> None:
    asked = OpenRequests()
    _, read, headers = framed(compressed=True, custom={"tenant": "7", CORRELATION: "r7"})
    asked.note(read, headers)
    asked.note(*framed(REPLY, MessageType.REPLY, custom={CORRELATION: "x"})[1:])  # gets none
    asked.note(*framed()[1:])  # says nothing by which its reply could be known
    assert len(asked) == 1
    reply = Message(onward("link => proxy"), Route.parse("radio"), REPLY, ID)
    written = encode_unicast(reply, asked=asked)
    there, replied = decode_frame(written.data, limit=LIMIT)
    assert replied.custom == {"tenant": "7", CORRELATION: "r7"}
    assert (written.expiry, there.ttl, there.is_compressed) == (5_000, 5_000, True)
    assert not len(asked)
    second = encode_unicast(reply, asked=asked)
    assert second.expiry == NEVER
    assert second.headers.custom == {CORRELATION: "r7"}


def test_a_reply_that_ends_sooner_than_its_request_stays_so() -> None:
    asked = OpenRequests()
    asked.note(*framed(custom={CORRELATION: "r7"})[1:])
    reply = Message(onward("link => proxy"), Route.parse("radio"), REPLY, ID, 4_000)
    assert encode_unicast(reply, asked=asked).expiry == 4_000


def test_requests_without_replies_are_not_kept_for_ever() -> None:
    asked = OpenRequests(limit=2)
    for number in range(5):
        asked.note(*framed(custom={CORRELATION: f"r{number}"})[1:])
    assert len(asked) == 2
    assert asked.take("r2") is None
    assert asked.take("r4") is not None


def test_a_message_of_ours_becomes_a_frame() -> None:
    message = Message(onward(), Route.parse("tcp-1 => app"), REQUEST, ID, 9_000)
    written = encode_unicast(message, reply_to="hubs/a", best_effort=True)
    read, headers = decode_frame(written.data, limit=LIMIT)
    assert (read.recipient, read.sender, read.ttl) == ("radio", "0#tcp-1 => 0#app", 9_000)
    assert headers == JoynrHeaders(
        MessageType.REQUEST, ID, MqttAddress(BACKEND, "hubs/a"), True, {CORRELATION: "r7"}
    )
    local = encode_unicast(message)
    assert local.headers.reply_to is None
    one_way = b'{"_typeName":"joynr.OneWayRequest","methodName":"x"}'
    assert encode_unicast(Message(onward(), Route.parse("app"), one_way, ID)).headers.custom == {}


@pytest.mark.parametrize(
    ("route", "back", "payload"),
    [
        ("link => radio", "proxy", b"no JSON"),
        ("link => radio", "proxy", b'{"_typeName":"joynr.Unheard"}'),
        ("link => radio", "proxy", b'{"_typeName":"joynr.Reply","requestReplyId":"\xff"}'),
        ("link", "proxy", REPLY),
        ("link => radio", "", REPLY),
    ],
)
def test_what_joynr_has_no_words_for_is_refused(route: str, back: str, payload: bytes) -> None:
    way_back = Route.parse(back) if back else Route()
    with pytest.raises(LocalError):
        encode_unicast(Message(Route.parse(route), way_back, payload, ID))


def test_a_broadcast_is_passed_on_to_the_letter_and_ours_is_written() -> None:
    topic = Address(MULTICAST, b"p/bell/eu")
    publication = b'{"_typeName":"joynr.MulticastPublication","multicastId":"p/bell/eu"}'
    frame = framed(publication, MessageType.MULTICAST, recipient="p/bell/eu")
    route = Route((Address(0, b"link"), topic))
    came = message_of(*frame, route)
    assert encode_unicast(came).data == frame[0]
    assert encode_multicast("p/bell/eu", came).data == frame[0]
    ours = Message(route, Route(), publication, ID)
    read, headers = decode_frame(encode_unicast(ours).data, limit=LIMIT)
    assert (read.recipient, read.sender) == ("p/bell/eu", "p")
    assert headers.type is MessageType.MULTICAST


@pytest.mark.parametrize(
    "name", ["radio", "0xab", "two words", "a=>b", "CC.DiscoveryProvider.ParticipantId", "joynr%zz"]
)
def test_every_participant_has_a_name_here_and_gets_its_own_back(name: str) -> None:
    assert joynr_name_of(name_of(name)) == name


def test_names_that_mean_something_at_one_node_only() -> None:
    assert name_of("capabilitiesdirectory_participantid") == DIRECTORY
    assert participant_of(Route.parse(DISCOVERY)) == "CC.DiscoveryProvider.ParticipantId"
    assert route_of("a => b => ") == Route((Address(0, name_of("a => b => ").encode()),))
    assert is_route("0#a => 0#b")
    assert not is_route("radio")
    assert participant_of(Route.parse("1#x")) == "1#x"


def test_ids_are_ours_or_made_from_theirs() -> None:
    assert id_of(ID) == ID
    assert id_of("message-1") == id_of("message-1") != id_of("message-2")


def test_custom_headers_are_those_of_the_application() -> None:
    message = arrived(*framed(custom={"tenant": "7", CORRELATION: "r7"}))
    assert isinstance(message.payload, FramedPayload)
    assert custom_headers(message) == {"tenant": "7"}
    assert custom_headers(Message(Route(), Route(), b"")) == {}


def test_frames_that_no_joynr_router_takes() -> None:
    headers = JoynrHeaders(MessageType.REQUEST, "1").written()
    relative = smrf.SmrfMessage("a", "b", 60, headers, REQUEST, ttl_absolute=False)
    with pytest.raises(DecodeError, match="relative"):
        decode_frame(smrf.encode(relative), limit=LIMIT)
    assert message_type(b"") is None
