"""The opening of an application, and the calls of cluster controllers."""

from __future__ import annotations

import json

import pytest

from waystation.core.directory import Scope
from waystation.errors import DecodeError, RemoteError
from waystation.wire.joynr import RemoteException, Reply, Request, decode_payload, encode_payload
from waystation.wire.joynr_services import (
    MAX_OPENING,
    CallError,
    DiscoveryEntry,
    DiscoveryQos,
    GlobalDiscoveryEntry,
    Parameters,
    ProviderQos,
    ProviderScope,
    Version,
    answer_to,
    call_of,
    encode_opening,
    entries_in,
    error_to,
    failed_call,
    global_address,
    no_entry,
    read_opening,
    unknown_call,
)

PREFIX = b'{"_typeName":"joynr.system.RoutingTypes.WebSocketClientAddress"'


def test_the_opening_of_a_java_application() -> None:
    said = PREFIX + b',"id":"libjoynr.messaging.participantid_fvvbFfCTSAOYJ6__PXFxoA"}'
    assert read_opening(said) == "libjoynr.messaging.participantid_fvvbFfCTSAOYJ6__PXFxoA"
    assert encode_opening("x") == PREFIX + b',"id":"x"}'


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"", "not the address"),
        (b'{"id":"x","_typeName":"joynr.system.RoutingTypes.WebSocketClientAddress"}', "not the"),
        (PREFIX, "cannot be read"),
        (PREFIX + b',"id":7}', "cannot be read"),
        (PREFIX + b',"id":"\xff"}', "cannot be read"),
        (PREFIX + b',"id":""}', "is empty"),
        (encode_opening("x" * MAX_OPENING), "is over"),
    ],
)
def test_what_is_no_opening(said: bytes, words: str) -> None:
    with pytest.raises(DecodeError, match=words) as caught:
        read_opening(said)
    assert caught.value.too_large == (words == "is over")


def test_where_a_cluster_controller_is_reached() -> None:
    assert json.loads(global_address("hub-1"))["topic"] == "hub-1"


def request(method: str, *params: object) -> Request:
    return Request(method_name=method, params=params, request_reply_id="r1")


ENTRY = {
    "_typeName": "joynr.types.DiscoveryEntry",
    "domain": "fleet",
    "interfaceName": "way/Door",
    "participantId": "door-1",
    "providerVersion": {"_typeName": "joynr.types.Version", "majorVersion": 2, "minorVersion": 1},
    "qos": {
        "_typeName": "joynr.types.ProviderQos",
        "customParameters": [],
        "priority": 1,
        "scope": "LOCAL",
        "supportsOnChangeSubscriptions": True,
    },
    "lastSeenDateMs": 5,
    "expiryDateMs": 9_007_199_254_740_991,
    "publicKeyId": "",
    "unknown": 1,
}


def test_parameters_are_what_java_writes() -> None:
    parameters = Parameters(request("add", ENTRY, True, ["joynrdefaultgbid"]))
    assert len(parameters) == 3
    assert parameters.entry(0) == DiscoveryEntry(
        domain="fleet",
        interface_name="way/Door",
        participant_id="door-1",
        provider_version=Version(major_version=2, minor_version=1),
        qos=ProviderQos(priority=1, scope=ProviderScope.LOCAL),
        last_seen_date_ms=5,
        expiry_date_ms=9_007_199_254_740_991,
    )
    assert parameters.optional(1, bool, False)
    assert parameters.optional(7, bool, True)
    assert parameters.texts(2) == ("joynrdefaultgbid",)
    assert Parameters(request("remove", "a")).texts(0) == ("a",)
    qos = {"_typeName": "joynr.types.DiscoveryQos", "discoveryScope": "LOCAL_ONLY"}
    found = Parameters(request("lookup", ["fleet"], "way/Door", qos))
    assert found.at(2, DiscoveryQos).discovery_scope is Scope.LOCAL_ONLY
    assert found.is_text(1)
    assert not found.is_text(0)
    assert not found.is_text(9)
    assert found.is_list(0)
    assert not found.is_list(1)
    assert not found.is_list(9)


@pytest.mark.parametrize(
    ("params", "words"), [((), "too few"), ((7,), "parameter 1"), (({},), "parameter 1")]
)
def test_wrong_parameters_are_told_to_the_caller(params: tuple[object, ...], words: str) -> None:
    with pytest.raises(CallError, match=words) as caught:
        Parameters(request("removeNextHop", *params)).at(0, str)
    assert caught.value.exception.type_name == "joynr.exceptions.MethodInvocationException"


def test_replies_and_errors() -> None:
    asked = request("remove", "a")
    assert answer_to(asked, ()) == Reply(request_reply_id="r1", response=())
    assert error_to(asked, failed_call("no")).error == RemoteException.of("no")
    unknown = error_to(asked, unknown_call(asked))
    assert unknown.error is not None
    assert "remove" in str(unknown.error.detail_message)
    written = json.loads(encode_payload(error_to(asked, no_entry("door-1"))))
    assert written["error"]["error"]["name"] == "NO_ENTRY_FOR_PARTICIPANT"
    assert str(CallError(RemoteException(type_name="joynr.X"))) == "joynr.X"


def test_a_call_of_ours_is_one_that_joynr_reads() -> None:
    call = call_of("7", "lookup", [("String[]", ["fleet"]), ("String", "way/Door")])
    assert decode_payload(encode_payload(call)) == call
    assert call.param_datatypes == ("String[]", "String")


def test_what_the_global_directory_returns() -> None:
    entry = ENTRY | {"_typeName": "joynr.types.GlobalDiscoveryEntry", "address": "{}"}
    one = Reply(request_reply_id="1", response=(entry,))
    several = Reply(request_reply_id="1", response=([entry, entry],))
    assert len(entries_in(one, GlobalDiscoveryEntry)) == 1
    assert [found.address for found in entries_in(several, GlobalDiscoveryEntry)] == ["{}", "{}"]
    assert entries_in(Reply(request_reply_id="1", response=()), GlobalDiscoveryEntry) == []
    with pytest.raises(RemoteError, match="cannot be read"):
        entries_in(Reply(request_reply_id="1", response=([7],)), GlobalDiscoveryEntry)
    for error, words in (
        (RemoteException.of("no entry"), "no entry"),
        (RemoteException(type_name="joynr.X"), r"joynr\.X"),
    ):
        with pytest.raises(RemoteError, match=words):
            entries_in(Reply(request_reply_id="1", error=error), GlobalDiscoveryEntry)
