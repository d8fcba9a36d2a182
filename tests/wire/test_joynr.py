"""joynr's headers, payloads and topics."""

import inspect
import json
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rule_errors import breaks
from waystation.errors import DecodeError, LocalError
from waystation.wire import smrf
from waystation.wire.joynr import (
    BACKEND,
    CORRELATION,
    MAX_DEPTH,
    MAX_ITEMS,
    MAX_TOPIC,
    PAYLOADS,
    BroadcastFilterParameters,
    BroadcastSubscriptionRequest,
    JoynrHeaders,
    MessageType,
    MqttAddress,
    MulticastPublication,
    OnChangeSubscriptionQos,
    OnChangeWithKeepAliveSubscriptionQos,
    OneWayRequest,
    Payload,
    PeriodicSubscriptionQos,
    RemoteException,
    Reply,
    Request,
    SubscriptionPublication,
    SubscriptionQos,
    SubscriptionReply,
    SubscriptionRequest,
    SubscriptionStop,
    decode_address,
    decode_payload,
    encode_address,
    encode_payload,
    multicast_filter,
    multicast_topic,
    unicast_filter,
    unicast_topic,
)

VECTORS: dict[str, dict[str, Any]] = {
    vector["name"]: vector["fields"]
    for vector in json.loads(
        (Path(__file__).parent / "vectors" / "joynr-smrf.json").read_text("utf-8")
    )["vectors"]
    if vector.get("fields") and "_typeName" in vector["fields"]["bodyUtf8"]
}
ADDRESS = MqttAddress("joynrdefaultgbid", "consumerchannel")
WRITTEN_ADDRESS = (
    '{"_typeName":"joynr.system.RoutingTypes.MqttAddress",'
    '"brokerUri":"joynrdefaultgbid","topic":"consumerchannel"}'
)
BOOM = RemoteException.of("boom")
ON_CHANGE = OnChangeSubscriptionQos()

EXPECTED: dict[str, Payload] = {
    "request": Request(
        method_name="add",
        param_datatypes=("Integer", "Integer"),
        params=(1, 2),
        request_reply_id="rrid-0001",
    ),
    "reply": Reply(request_reply_id="rrid-0001", response=(3,)),
    "reply-error": Reply(request_reply_id="rrid-0001", error=BOOM),
    "oneway-best-effort": OneWayRequest(
        method_name="fire", param_datatypes=("String",), params=("x",)
    ),
    "multicast": MulticastPublication(
        multicast_id="provider-1/locationUpdate/EU/DE", response=(48.1, 11.5)
    ),
    "multicast-no-partition": MulticastPublication(
        multicast_id="provider-1/locationUpdate", response=("v",)
    ),
    "attribute-subscription-request": SubscriptionRequest(
        qos=ON_CHANGE, subscribed_to_name="volume", subscription_id="subid-1"
    ),
    "broadcast-subscription-request": BroadcastSubscriptionRequest(
        filter_parameters=BroadcastFilterParameters(filter_parameters={"level": "HIGH"}),
        qos=OnChangeSubscriptionQos(min_interval_ms=0),
        subscribed_to_name="alarm",
        subscription_id="subid-2",
    ),
    "subscription-reply": SubscriptionReply(subscription_id="subid-1"),
    "publication": SubscriptionPublication(subscription_id="subid-1", response=(7,)),
    "subscription-stop": SubscriptionStop(subscription_id="subid-1"),
    "compressed": Request(
        method_name="echo",
        param_datatypes=("String",),
        params=("a" * 200,),
        request_reply_id="rrid-2",
    ),
    "routing-addNextHop-ws": Request(
        method_name="addNextHop",
        param_datatypes=(
            "String",
            "joynr.system.RoutingTypes.WebSocketClientAddress",
            "Boolean",
        ),
        params=(
            "proxy-1",
            {
                "_typeName": "joynr.system.RoutingTypes.WebSocketClientAddress",
                "id": "libjoynr.messaging.participantid_0123456789abcdef",
            },
            False,
        ),
        request_reply_id="rrid-3",
    ),
    "routing-addMulticastReceiver": Request(
        method_name="addMulticastReceiver",
        param_datatypes=("String", "String", "String"),
        params=("provider-1/locationUpdate/EU/*", "proxy-1", "provider-1"),
        request_reply_id="rrid-4",
    ),
}


def refused(body: bytes, max_size: int = smrf.MAX_SIZE) -> DecodeError:
    with pytest.raises(DecodeError) as caught:
        decode_payload(body, max_size=max_size)
    assert caught.value.format == "joynr"
    assert len(str(caught.value)) < 200
    return caught.value


# -- payloads --------------------------------------------------------------------------------------


def test_every_payload_of_the_vectors_is_expected() -> None:
    assert VECTORS.keys() == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_every_payload_of_the_vectors_is_read(name: str) -> None:
    fields = VECTORS[name]
    kind = JoynrHeaders.read(fields["headers"]).type
    assert decode_payload(fields["bodyUtf8"].encode(), kind) == EXPECTED[name]


@pytest.mark.parametrize("name", EXPECTED)
def test_every_payload_of_the_vectors_is_written(name: str) -> None:
    written = encode_payload(EXPECTED[name])
    theirs = VECTORS[name]["bodyUtf8"].encode()
    assert decode_payload(written) == EXPECTED[name]
    assert json.loads(written) == json.loads(theirs)
    if isinstance(EXPECTED[name], Request | OneWayRequest | SubscriptionStop | SubscriptionReply):
        assert written == theirs  # here the order of properties is the same in all languages


def assert_in_order(value: Any) -> None:
    if isinstance(value, dict) and "_typeName" in value:
        first, *others = value
        assert first == "_typeName"
        assert others == sorted(others)
    for inner in value.values() if isinstance(value, dict) else ():
        assert_in_order(inner)


QOS: list[SubscriptionQos] = [
    ON_CHANGE,
    OnChangeWithKeepAliveSubscriptionQos(),
    PeriodicSubscriptionQos(),
]
ALL_PROPERTIES: list[Payload] = [
    *EXPECTED.values(),
    *(SubscriptionRequest(qos=qos, subscribed_to_name="a", subscription_id="1") for qos in QOS),
    Reply(
        request_reply_id="1",
        error=RemoteException(
            type_name="joynr.exceptions.ApplicationException",
            detail_message="no",
            error={"_typeName": "joynr.Errors.Bad", "name": "WORSE"},
            provider_version={"majorVersion": 1, "minorVersion": 0},
            subscription_id="7",
        ),
        response=(),
    ),
    SubscriptionReply(subscription_id="1", error=BOOM),
    SubscriptionPublication(subscription_id="1", error=BOOM),
    MulticastPublication(multicast_id="p/b", error=BOOM, response=(1,)),
]


@pytest.mark.parametrize("payload", ALL_PROPERTIES)
def test_properties_are_written_in_the_order_of_java_and_read_back(payload: Payload) -> None:
    body = encode_payload(payload)
    assert_in_order(json.loads(body))
    assert b"null" not in body
    assert b" " not in body
    assert decode_payload(body) == payload


def test_defaults_of_a_qos_are_written() -> None:
    body = encode_payload(
        SubscriptionRequest(qos=ON_CHANGE, subscribed_to_name="a", subscription_id="1")
    )
    assert b'"expiryDateMs":0,"minIntervalMs":1000,"publicationTtlMs":10000' in body


def test_a_reply_with_nothing_differs_from_no_response() -> None:
    assert b'"response":[]' in encode_payload(Reply(request_reply_id="1", response=()))
    assert b"response" not in encode_payload(Reply(request_reply_id="1", error=BOOM))


def test_nulls_unknown_properties_and_any_order_are_read() -> None:
    body = (
        b'{"response":[1], "error":null, "statelessAsyncCallbackMethodId":"x", '
        b'"deep":{"er":[{}]}, "requestReplyId":"7", "_typeName":"joynr.Reply"}'
    )
    assert decode_payload(body) == Reply(request_reply_id="7", response=(1,))


def test_exceptions_that_nobody_knows_are_read() -> None:
    body = (
        b'{"_typeName":"joynr.Reply","requestReplyId":"7","error":'
        b'{"_typeName":"com.example.Odd","cause":{"a":1},"detailMessage":"m"}}'
    )
    expected = RemoteException(type_name="com.example.Odd", detail_message="m")
    assert decode_payload(body) == Reply(request_reply_id="7", error=expected)


def test_a_type_name_among_the_parameters_stays_a_plain_value() -> None:
    inner = b'{"_typeName":"joynr.Reply"}'
    payload = decode_payload(
        b'{"_typeName":"joynr.OneWayRequest","methodName":"m","params":[%b]}' % inner
    )
    assert isinstance(payload, OneWayRequest)
    assert payload.params == ({"_typeName": "joynr.Reply"},)


@pytest.mark.parametrize(("kind", "payload_type"), PAYLOADS.items())
def test_the_payload_must_fit_the_type_of_the_message(
    kind: MessageType, payload_type: type[Payload]
) -> None:
    for payload in ALL_PROPERTIES:
        body = encode_payload(payload)
        if isinstance(payload, payload_type):
            assert decode_payload(body, kind) == payload
        else:
            with pytest.raises(DecodeError, match=f"of type {kind} holds a"):
                decode_payload(body, kind)


def test_no_payload_is_known_for_what_nobody_sends() -> None:
    assert set(MessageType) - set(PAYLOADS) == {MessageType.MULTICAST_SUBSCRIPTION_REQUEST}
    with pytest.raises(DecodeError):
        decode_payload(
            encode_payload(EXPECTED["request"]), MessageType.MULTICAST_SUBSCRIPTION_REQUEST
        )


SUBSCRIPTION = (
    b'{"_typeName":"joynr.SubscriptionRequest","qos":%b,'
    b'"subscribedToName":"a","subscriptionId":"1"}'
)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"methodName":"m","requestReplyId":"1"}',
        b'{"_typeName":"joynr.Unheard"}',
        b'{"_typeName":"' + b"x" * 10_000 + b'"}',
        b'{"_typeName":["joynr.Reply"]}',
        b'{"_typeName":"joynr.Reply"}',
        b'{"_typeName":"joynr.Reply","requestReplyId":7}',
        b'{"_typeName":"joynr.Reply","requestReplyId":"7","response":{}}',
        b'{"_typeName":"joynr.Reply","requestReplyId":"7","error":"boom"}',
        b'{"_typeName":"joynr.Reply","requestReplyId":"7","error":{}}',
        b'{"_typeName":"joynr.SubscriptionStop","subscriptionId":"\xff"}',
        b'{"_typeName":"joynr.\xff"}',
        b'{"_typeName":"joynr.SubscriptionStop","subscriptionId":"\\ud800"}',
        b'{"_typeName":"joynr.SubscriptionStop","subscriptionId":"1"} x',
        b'{"_typeName":"joynr.OneWayRequest","methodName":"m","params":[NaN]}',
        b'{"_typeName":"joynr.OneWayRequest","methodName":"m","params":[1e999]}',
        b'{"_typeName":"joynr.OneWayRequest","methodName":"m","params":[' + b"1" * 5000 + b"]}",
        SUBSCRIPTION % b'{"_typeName":"joynr.Unheard"}',
        SUBSCRIPTION
        % b'{"_typeName":"joynr.PeriodicSubscriptionQos","periodMs":9223372036854775808}',
    ],
    ids=lambda body: body[:60].decode("latin-1"),
)
def test_what_is_no_payload_is_refused(body: bytes) -> None:
    assert not refused(body).too_large


def test_a_body_over_the_limit_is_refused() -> None:
    body = encode_payload(SubscriptionStop(subscription_id="1"))
    assert decode_payload(body, max_size=len(body))
    assert refused(body, max_size=len(body) - 1).too_large


def nested(depth: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    """A one-way request, which is as deep as this: itself, its parameters, and what is in them."""
    inside = opening * (depth - 2) + b"1" + closing * (depth - 2)
    return b'{"_typeName":"joynr.OneWayRequest","methodName":"m","params":[' + inside + b"]}"


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_depth_is_bounded(opening: bytes, closing: bytes) -> None:
    payload = decode_payload(nested(MAX_DEPTH, opening, closing))
    assert decode_payload(encode_payload(payload)) == payload
    for depth in (MAX_DEPTH + 1, 500, 5_000, 90_000):
        assert "nested deeper than 64" in refused(nested(depth, opening, closing)).problem
        refused(nested(depth, opening, closing)[: -depth // 2])


def test_depth_is_bounded_where_nobody_looks() -> None:
    unknown = b'{"_typeName":"joynr.SubscriptionStop","unknown":%b,"subscriptionId":"1"}'
    deep = b"[" * 90_000 + b"]" * 90_000
    assert "nested deeper" in refused(unknown % deep).problem
    error = b'{"_typeName":"joynr.SubscriptionReply","subscriptionId":"1","error":'
    error += b'{"_typeName":"x","error":%b}}'
    assert "nested deeper" in refused(error % (b"[" * 100 + b"]" * 100)).problem


def test_depth_is_bounded_close_to_the_end_of_the_stack() -> None:
    def at_depth(frames: int) -> None:
        if frames:
            at_depth(frames - 1)
        else:
            refused(nested(500))

    at_depth(sys.getrecursionlimit() - len(inspect.stack(0)) - 100)


def test_wide_is_not_deep() -> None:
    payload = OneWayRequest(method_name="m", params=([[]] * 1_000, {"a": "[" * 1_000}))
    assert decode_payload(encode_payload(payload)) == payload


def test_too_deep_is_not_written() -> None:
    deep: list[Any] = []
    for _ in range(MAX_DEPTH - 3):
        deep = [deep]
    assert encode_payload(OneWayRequest(method_name="m", params=(deep,)))
    with pytest.raises(LocalError, match=r"nested deeper than 64", check=breaks("WK-10")):
        encode_payload(OneWayRequest(method_name="m", params=([deep],)))
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(LocalError, match="nested deeper than 64"):
        encode_payload(OneWayRequest(method_name="m", params=(circle,)))


@pytest.mark.parametrize("value", [object(), "\ud800", {(1,): 2}, 1j])
def test_what_json_cannot_say_is_not_written(value: Any) -> None:
    with pytest.raises(LocalError, match="a OneWayRequest cannot be written"):
        encode_payload(OneWayRequest(method_name="m", params=(value,)))


# -- headers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXPECTED)
def test_the_headers_of_the_vectors(name: str) -> None:
    theirs = VECTORS[name]["headers"]
    headers = JoynrHeaders.read(theirs)
    assert headers.type == theirs["t"]
    assert headers.id == theirs["id"]
    assert headers.reply_to == (ADDRESS if "re" in theirs else None)
    assert headers.best_effort == ("ef" in theirs)
    assert headers.custom.get(CORRELATION) == theirs.get("c-z4")
    assert headers.written() == theirs


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"t": "rq"},
        {"id": "1"},
        {"id": "1", "t": "te"},
        {"id": "1", "t": "RQ"},
        {"id": "1", "t": "x" * 10_000},
        {"id": "1", "t": "rq", "re": ""},
        {"id": "1", "t": "rq", "re": "mqtt"},
        {"id": "1", "t": "arq", "re": '{"_typeName":"joynr.system.RoutingTypes.UdsAddress"}'},
    ],
)
def test_headers_without_a_meaning_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(DecodeError) as caught:
        JoynrHeaders.read(headers)
    assert len(str(caught.value)) < 200


def test_what_does_not_matter_in_headers_is_passed_over() -> None:
    headers = {
        "t": "rp",
        "id": "1",
        "re": "broken",
        "ef": "NORMAL",
        "x": "y",
        "c-": "",
        "c-gb": "b",
    }
    assert JoynrHeaders.read(headers) == JoynrHeaders(
        MessageType.REPLY, "1", custom={"": "", BACKEND: "b"}
    )


def test_only_those_who_ask_have_a_reply_to_address() -> None:
    headers = JoynrHeaders(MessageType.REQUEST, "1", ADDRESS, custom={CORRELATION: "7"})
    assert headers.written() == {"t": "rq", "id": "1", "re": WRITTEN_ADDRESS, "c-z4": "7"}
    with pytest.raises(LocalError, match="a message of type rp has a reply-to address"):
        JoynrHeaders(MessageType.REPLY, "1", ADDRESS).written()


def test_an_answer_keeps_effort_and_custom_headers() -> None:
    question = JoynrHeaders(MessageType.REQUEST, "1", ADDRESS, True, {CORRELATION: "7", "a": "b"})
    assert question.for_reply("2").written() == {
        "t": "rp",
        "id": "2",
        "ef": "BEST_EFFORT",
        "c-z4": "7",
        "c-a": "b",
    }
    assert question.for_reply("2", MessageType.SUBSCRIPTION_REPLY).type == "srp"


# -- addresses -------------------------------------------------------------------------------------


def test_an_address_is_written_as_the_vectors_have_it() -> None:
    assert encode_address(ADDRESS) == WRITTEN_ADDRESS
    assert decode_address(WRITTEN_ADDRESS) == ADDRESS


def written_address(topic: str) -> str:
    return WRITTEN_ADDRESS.replace('"consumerchannel"', json.dumps(topic))


@pytest.mark.parametrize("topic", ["", "#", "a/#", "a/+/b", "a\0b", "$SYS/a", "a" * 65_532])
def test_a_peer_cannot_make_us_publish_to_what_is_no_topic(topic: str) -> None:
    with pytest.raises(DecodeError, match="cannot be published to"):
        decode_address(written_address(topic))


def test_the_longest_topic_of_a_peer() -> None:
    topic = "a" * (MAX_TOPIC - 4)
    assert unicast_topic(decode_address(written_address(topic)).topic) == topic + "/low"


def test_an_address_that_cannot_be_written() -> None:
    with pytest.raises(LocalError, match="MqttAddress cannot be written"):
        encode_address(MqttAddress("\ud800", "t"))
    for topic in ("\ud800", "", "#", "a/+", "$SYS", "x" * MAX_TOPIC):
        with pytest.raises(LocalError, match=r"MQTT has no topic", check=breaks("MC-12")):
            encode_address(MqttAddress("b", topic))


# -- topics ----------------------------------------------------------------------------------------


@pytest.mark.rule("MC-12")
def test_the_topic_of_a_multicast_is_its_id() -> None:
    assert multicast_topic("p/b/EU/DE") == "p/b/EU/DE"
    assert multicast_topic("p/b", "fleet/") == "fleet/p/b"


@pytest.mark.rule("MC-12")
@pytest.mark.parametrize(
    ("pattern", "topic_filter"),
    [
        ("x/y", "x/y"),
        ("x/y/*", "x/y/#"),
        ("x/y/+", "x/y/+"),
        ("x/y/+/+/*", "x/y/+/+/#"),
        ("x/+/z/*", "x/+/z/#"),
    ],
)
def test_the_filter_of_a_subscription_has_a_hash_for_a_star(
    pattern: str, topic_filter: str
) -> None:
    assert multicast_filter(pattern) == topic_filter
    assert multicast_filter(pattern, "fleet/") == "fleet/" + topic_filter


@pytest.mark.rule("MC-5")
@pytest.mark.parametrize("multicast_id", ["p/b/*", "p/b/+/c", "p/+", "*/b"])
def test_nothing_is_published_to_a_wildcard(multicast_id: str) -> None:
    with pytest.raises(LocalError, check=breaks("MC-5")):
        multicast_topic(multicast_id)


@pytest.mark.parametrize(
    ("multicast_id", "prefix"),
    [
        ("p", ""),
        ("", ""),
        ("p/#", ""),
        ("p/b/#", ""),
        ("p#/b", ""),
        ("p\0/b", ""),
        ("$share/b", ""),
        ("p/b", "$share/g/"),
        ("p/b", "#/"),
        ("p/b", "+/"),
        ("p/b", "\ud800"),
        ("p/" + "b" * MAX_TOPIC, ""),
    ],
)
def test_what_mqtt_has_no_topic_for(multicast_id: str, prefix: str) -> None:
    for function in (multicast_topic, multicast_filter):
        with pytest.raises(LocalError):
            function(multicast_id, prefix)


@pytest.mark.parametrize("pattern", ["a/*/b", "a/b*", "a/+b", "p/b/c-d"])
def test_patterns_that_are_none_have_no_filter(pattern: str) -> None:
    with pytest.raises(LocalError):
        multicast_filter(pattern)


def test_unicast_topics() -> None:
    assert unicast_topic("channel-1") == "channel-1/low"
    assert unicast_filter("channel-1") == "channel-1/#"
    for topic in ("", "#", "a/+", "$SYS", "a" * MAX_TOPIC):
        with pytest.raises(LocalError, check=breaks("MC-12")):
            unicast_topic(topic)
        with pytest.raises(LocalError, check=breaks("MC-12")):
            unicast_filter(topic)


# -- properties ------------------------------------------------------------------------------------

TEXTS = st.text(st.characters(codec="utf-8"), max_size=10)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        TEXTS,
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=8,
)
RESPONSES = st.lists(VALUES, max_size=3).map(tuple)
PAYLOAD_VALUES: st.SearchStrategy[Payload] = st.one_of(
    st.builds(
        Request,
        method_name=TEXTS,
        param_datatypes=st.lists(TEXTS, max_size=3).map(tuple),
        params=RESPONSES,
        request_reply_id=TEXTS,
    ),
    st.builds(OneWayRequest, method_name=TEXTS, params=RESPONSES),
    st.builds(Reply, request_reply_id=TEXTS, response=st.none() | RESPONSES),
    st.builds(MulticastPublication, multicast_id=TEXTS, response=st.none() | RESPONSES),
    st.builds(SubscriptionPublication, subscription_id=TEXTS, response=st.none() | RESPONSES),
)


@given(PAYLOAD_VALUES)
def test_what_is_written_is_read(payload: Payload) -> None:
    body = encode_payload(payload)
    assert decode_payload(body) == payload


@given(
    st.sampled_from(MessageType),
    TEXTS,
    st.booleans(),
    st.dictionaries(TEXTS, TEXTS, max_size=4),
)
def test_headers_come_back_through_a_frame(
    kind: MessageType, id: str, best_effort: bool, custom: dict[str, str]
) -> None:
    headers = JoynrHeaders(kind, id, None, best_effort, custom)
    frame = smrf.encode(smrf.SmrfMessage("r", "s", headers=headers.written()))
    assert JoynrHeaders.read(smrf.decode(frame).headers) == headers


BODIES = [encode_payload(payload) for payload in ALL_PROPERTIES]


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    body = bytearray(draw(st.sampled_from(BODIES)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(body) - 1)))
        end = at + draw(st.integers(1, 30))
        match draw(st.sampled_from(["flip", "cut", "insert", "duplicate", "splice"])):
            case "flip":
                body[at : at + 1] = bytes([draw(st.integers(0, 255))])
            case "cut":
                del body[at:end]
            case "insert":
                body[at:at] = draw(st.sampled_from([b"[", b"}", b'"', b"null", b"\\u", b"\xff"]))
            case "duplicate":
                body[at:at] = body[at:end]
            case _:
                other = draw(st.sampled_from(BODIES))
                body[at:] = other[draw(st.integers(0, len(other))) :]
    return bytes(body)


@given(st.one_of(mutations(), st.binary(max_size=100)))
def test_any_body_is_a_payload_or_an_error(body: bytes) -> None:
    try:
        payload = decode_payload(body)
    except DecodeError:
        return
    assert decode_payload(encode_payload(payload)) == payload


@given(st.one_of(TEXTS, mutations().map(lambda body: body.decode("latin-1"))))
def test_any_text_is_an_address_or_an_error(text: str) -> None:
    for candidate in (text, written_address(text)):
        try:
            address = decode_address(candidate)
        except DecodeError:
            continue
        assert unicast_topic(address.topic)


# -- how much a payload may cost -------------------------------------------------------------------

ONE_WAY = b'{"_typeName":"joynr.OneWayRequest","methodName":"m","params":[%b]}'


def peak_of(body: bytes) -> int:
    tracemalloc.start()
    try:
        assert refused(body).too_large
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def many(item: bytes) -> bytes:
    return ONE_WAY % b",".join([item] * (3_900_000 // (len(item) + 1)))


@pytest.mark.parametrize("item", [b"[]", b"1", b"{}", b'"a"', b'{"a":[1,2]}', b'"\\"",1'])
def test_the_number_of_values_is_bounded(item: bytes) -> None:
    assert refused(many(item)).too_large


def test_the_number_of_values_is_bounded_before_any_is_made() -> None:
    assert peak_of(many(b"[]")) < 4 << 20


def test_the_most_values_are_read() -> None:
    payload = decode_payload(ONE_WAY % b",".join([b"1"] * (MAX_ITEMS - 5)))
    assert isinstance(payload, OneWayRequest)
    assert len(payload.params) == MAX_ITEMS - 5


def test_commas_and_brackets_in_a_text_are_no_values() -> None:
    text = '[{,"\\' * MAX_ITEMS
    payload = OneWayRequest(method_name="m", params=(text,))
    assert decode_payload(encode_payload(payload)) == payload


def test_a_text_without_an_end_costs_no_time() -> None:
    assert not refused(ONE_WAY[:-4] + b'"' + b'\\",' * 1_000_000).too_large


def test_payloads_come_in_any_kind_of_buffer() -> None:
    body = encode_payload(SubscriptionStop(subscription_id="7"))
    for kind in (bytearray, memoryview):
        assert decode_payload(kind(body)) == SubscriptionStop(subscription_id="7")


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 1.5, "1", None])
def test_numbers_that_no_reader_takes_are_not_written(number: Any) -> None:
    qos = OnChangeSubscriptionQos(expiry_date_ms=number)
    for kind in (SubscriptionRequest, BroadcastSubscriptionRequest):
        payload = kind(qos=qos, subscribed_to_name="a", subscription_id="1")
        with pytest.raises(LocalError, match=r"not a 64-bit number", check=breaks("WK-10")):
            encode_payload(payload)


CORPUS = sorted((Path(__file__).parent / "corpus" / "joynr").glob("*.json"))


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_corpus(path: Path) -> None:
    body = path.read_bytes()
    if path.stem.startswith("good-"):
        payload = decode_payload(body)
        assert decode_payload(encode_payload(payload)) == payload
    else:
        assert not refused(body).too_large


def test_there_is_a_corpus() -> None:
    assert len(CORPUS) >= 10
