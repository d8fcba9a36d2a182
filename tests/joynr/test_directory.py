"""The global directory: what it lists, for how long, and who asks it over a broker."""

from __future__ import annotations

import json

import pytest

from tests.joynr.app import app, controller, frame, request
from tests.transports.mqtt_live import broker_here
from waystation.core.grants import Grant, Grants
from waystation.errors import UndeliverableError
from waystation.joynr import ClusterController, JoynrDirectory
from waystation.joynr.directory import LIFETIME, GlobalEntries
from waystation.node import Node
from waystation.testing import async_test, collect, until
from waystation.transports.mqtt import Mqtt
from waystation.wire.joynr import Reply, decode_payload, encode_payload
from waystation.wire.joynr_frames import DIRECTORY
from waystation.wire.joynr_services import (
    CallError,
    GlobalDiscoveryEntry,
    call_of,
    global_address,
)


def listed(name: str, topic: str = "cars/7", domain: str = "fleet") -> GlobalDiscoveryEntry:
    return GlobalDiscoveryEntry(
        domain=domain,
        interface_name="way/Door",
        participant_id=name,
        address=global_address(topic),
    )


def found(entries: GlobalEntries, now: int, *domains: str) -> list[str]:
    return [e.participant_id for e in entries.lookup(domains or ("fleet",), "way/Door", now)]


def test_providers_are_found_until_they_are_removed_or_expire() -> None:
    entries = GlobalEntries(limit=3)
    entries.add(listed("a"), 1_000)
    entries.add(listed("b"), 2_000)
    entries.add(listed("c", "cars/8", "yard"), 2_000)
    assert found(entries, 3_000) == ["a", "b"]
    assert found(entries, 3_000, "fleet", "yard") == ["a", "b", "c"]
    assert entries.find("a", 3_000) is not None
    assert entries.find("z", 3_000) is None
    with pytest.raises(CallError, match="full"):
        entries.add(listed("d"), 3_000)
    entries.add(listed("a", "cars/9"), 3_000)  # it has moved
    entries.remove(["b", "nobody"])
    assert found(entries, 3_000) == ["a"]
    assert found(entries, 3_000 + LIFETIME) == []
    assert entries.find("a", 3_000 + LIFETIME) is None
    entries.add(listed("d"), 3_000 + LIFETIME)
    assert len(entries) == 1


def test_a_cluster_controller_says_what_lives() -> None:
    entries = GlobalEntries()
    for name in ("a", "b"):
        entries.add(listed(name), 1_000)
    entries.add(listed("c", "cars/8"), 1_000)
    entries.touch("cars/7", ["b", "c", "nobody"], 5_000)
    entries.remove(entries.stale("cars/7", 5_000))
    assert found(entries, 6_000) == ["b", "c"]
    entries.touch("cars/8", None, 9_000)
    entries.touch("cars/99", None, 9_000)
    entries.remove(entries.stale("cars/8", 9_000))
    assert found(entries, 5_000 + LIFETIME) == ["c"]
    entries.add(listed("d"), 5_000 + LIFETIME)
    assert len(entries) == 2


def test_only_who_is_at_a_broker_is_listed() -> None:
    with pytest.raises(CallError, match="no address at a broker"):
        GlobalEntries().add(
            GlobalDiscoveryEntry(domain="d", interface_name="i", participant_id="p"), 0
        )


@async_test
async def test_every_call_of_java_s_is_served() -> None:
    async def call(method: str, *parameters: object) -> Reply:
        asked = call_of("r1", method, [("", value) for value in parameters])
        reply = decode_payload((await node.request(DIRECTORY, encode_payload(asked))).payload)
        assert isinstance(reply, Reply)
        return reply

    async with Node("hub") as node:
        directory = JoynrDirectory(node)
        directory.start()
        await call("add", listed("a"), ["joynrdefaultgbid"])
        await call("add", [listed("b"), listed("c", "cars/8")])
        reply = await call("lookup", ["fleet"], "way/Door", ["joynrdefaultgbid"])
        assert reply.response is not None
        assert [entry["participantId"] for entry in reply.response[0]] == ["a", "b", "c"]
        one = await call("lookup", "b")
        assert one.response is not None
        assert one.response[0]["_typeName"] == "joynr.types.GlobalDiscoveryEntry"
        assert (await call("lookup", "b", ["joynrdefaultgbid"])).response is not None
        await call("touch", "cars/7")
        await call("touch", "cars/7", ["a"])
        await call("remove", "a", ["joynrdefaultgbid"])
        await call("remove", ["b"])
        await call("removeStale", "cars/8", node.now() + 1)
        assert len(directory.entries) == 0
        missing = await call("lookup", "b")
        assert missing.error is not None
        assert missing.error.error["name"] == "NO_ENTRY_FOR_PARTICIPANT"
        unknown = await call("burn")
        assert unknown.error is not None
        await directory.stop()


@pytest.mark.rule("ID-3")
@async_test
async def test_the_global_directory_lists_what_is_granted() -> None:
    grants = Grants([Grant(anyone=True, send=(DIRECTORY,), register=("door-*",))])
    async with Node("hub", grants=grants) as node, Node("peer") as peer:
        directory = JoynrDirectory(node)
        directory.start()
        await peer.connect((await node.listen("tcp://127.0.0.1:0")).url, name="hub")

        async def objection(method: str, *parameters: object) -> str:
            asked = call_of("r1", method, [("", value) for value in parameters])
            answer = await peer.request(f"hub => {DIRECTORY}", encode_payload(asked))
            reply = decode_payload(answer.payload)
            assert isinstance(reply, Reply)
            return "" if reply.error is None else reply.error.detail_message or ""

        directory.entries.add(listed("lamp-1", "cars/8"), node.now())
        assert not await objection("add", listed("door-1"))
        for call in (
            ("add", [listed("door-2"), listed("lamp-2")]),
            ("remove", ["door-1", "lamp-1"]),
            ("removeStale", "cars/8", node.now() + 1_000),
            ("touch", "cars/8"),
        ):
            assert "is not granted" in await objection(*call)
        assert found(directory.entries, node.now()) == ["lamp-1", "door-1"]
        assert not await objection("removeStale", "cars/7", node.now() + 1_000)
        assert found(directory.entries, node.now()) == ["lamp-1"]
        assert node.denied == {"register": 4}
        await directory.stop()


@pytest.mark.rule("ID-5")
@pytest.mark.parametrize("is_away", [True, False])
@async_test
async def test_the_global_directory_takes_back_what_is_no_longer_granted(is_away: bool) -> None:
    both = Grant(anyone=True, send=(DIRECTORY,), register=("door-*", "lamp-*"))
    async with Node("hub", grants=Grants([both])) as node, Node("peer") as peer:
        directory = JoynrDirectory(node)
        directory.start()
        session = await peer.connect((await node.listen("tcp://127.0.0.1:0")).url, name="hub")
        added = call_of("r1", "add", [("", [listed("door-1"), listed("lamp-1")])])
        await peer.request(f"hub => {DIRECTORY}", encode_payload(added))
        directory.entries.add(listed("bell-1"), node.now())  # the node's own
        if is_away:
            await session.close()
            await until(lambda: not node.sessions)
        less = Grant(anyone=True, send=(DIRECTORY,), register=("door-*",))
        node.change_grants(Grants([less]))
        assert found(directory.entries, node.now()) == ["door-1", "bell-1"]
        await directory.stop()
        node.change_grants(Grants([Grant(anyone=True, send=(DIRECTORY,))]))
        assert found(directory.entries, node.now()) == ["door-1", "bell-1"]


@async_test
async def test_applications_at_two_hubs_meet_over_a_broker() -> None:
    async with broker_here() as broker:
        mqtts = [
            Mqtt(f"mqtt://{broker.place}", topic=f"hubs/{name}", format="joynr", prefix="fleet/")
            for name in ("left", "right")
        ]
        async with (
            controller("left", transports=mqtts[:1], topic="hubs/left", directory=True) as (
                left,
                at_left,
                _,
            ),
            controller("right", transports=mqtts[1:], topic="hubs/right") as (right, at_right, _),
        ):
            await left.listen("mqtt://hubs/left", outside=True)
            await left.listen("mqtt://discoverydirectory_channelid", outside=True)
            await right.listen("mqtt://hubs/right", outside=True)
            async with app(at_left, "alice") as alice, app(at_right, "bob") as bob:
                await alice.provide("door-1", everywhere=True)
                (entry,) = await bob.lookup(scope="GLOBAL_ONLY")
                assert (entry["participantId"], entry["isLocal"]) == ("door-1", False)
                qos = {"_typeName": "joynr.types.DiscoveryQos", "discoveryScope": "GLOBAL_ONLY"}
                assert (await bob.discovery("lookup", "door-1", qos, []))["isLocal"] is False
                asked = frame("door-1", "bob-1", "rq", request("open"), z4="r1", tenant="7")
                await bob.send(asked)
                await until(lambda: alice.frames)
                assert alice.frames[0].headers["c-tenant"] == "7"
                assert json.loads(alice.frames[0].headers["re"])["topic"] == "hubs/right"
                reply = {"_typeName": "joynr.Reply", "requestReplyId": "r1", "response": []}
                answer = frame("bob-1", "door-1", "rp", reply, z4="r1")
                await alice.send(answer)
                await until(lambda: bob.raw)
                assert bob.raw == [answer]
                await bob.announce("bob-1")
                await bob.route("addMulticastReceiver", "door-1/bell/*", "bob-1", "door-1")
                await until(lambda: mqtts[1].client.subscriptions.is_settled)
                id = "door-1/bell/eu"
                body = {"_typeName": "joynr.MulticastPublication", "multicastId": id}
                rang = frame(id, "door-1", "m", body)
                await alice.send(rang)
                await until(lambda: len(bob.raw) == 2)
                assert bob.raw[1] == rang
                serving = ClusterController(right, topic="hubs/right")
                assert await serving.find("door-1")
                assert not await serving.find("nobody")
                assert await serving.discover("fleet", "way/Door") == ["door-1"]
                collect(right, "lamp-1")
                await serving.register("lamp-1", "yard", "way/Door", everywhere=True)
                (lamp,) = await alice.lookup("yard", scope="LOCAL_THEN_GLOBAL")
                assert lamp["participantId"] == "lamp-1"
                await alice.discovery("remove", "door-1")
                while await bob.lookup(scope="GLOBAL_ONLY"):
                    pass


@async_test
async def test_without_a_global_directory_local_ones_are_found_all_the_same() -> None:
    mqtt = Mqtt("mqtt://127.0.0.1:1", topic="hubs/hub", format="joynr")
    async with (
        controller(transports=[mqtt], topic="hubs/hub") as (node, place, _),
        app(place, "alice") as alice,
    ):
        await alice.announce("door-1")
        await alice.provide("door-2")
        assert len(await alice.lookup(scope="LOCAL_THEN_GLOBAL")) == 1
        with pytest.raises(UndeliverableError):
            await node.request(DIRECTORY, b"{}", timeout=1)
