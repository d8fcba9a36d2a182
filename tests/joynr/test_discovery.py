"""The discovery provider: who registers, who is found, and by whom."""

from __future__ import annotations

import json

import pytest

from tests.joynr.app import app, controller, entry, frame
from waystation.core.grants import Grant, Grants
from waystation.core.message import Message
from waystation.core.outcome import Reason
from waystation.core.record import SessionKind
from waystation.joynr import ClusterController
from waystation.node import Context, Limits, Node, Scope
from waystation.testing import async_test, collect, until
from waystation.transports.tcp import Tcp
from waystation.wire.joynr_frames import DISCOVERY
from waystation.wire.joynr_services import DISCOVERY_PROVIDER


@async_test
async def test_a_provider_is_found_as_it_registered() -> None:
    async with (
        controller() as (node, place, _),
        app(place, "alice") as alice,
        app(place, "bob") as bob,
    ):
        assert await bob.lookup() == []
        await alice.provide("door-1")
        (found,) = await bob.lookup()
        assert found["_typeName"] == "joynr.types.DiscoveryEntryWithMetaInfo"
        assert found["isLocal"] is True
        given = entry("door-1")
        for key in ("domain", "interfaceName", "participantId", "providerVersion", "qos"):
            assert found[key] == given[key]
        assert (await bob.discovery("lookup", "door-1"))["participantId"] == "door-1"
        assert await bob.lookup("elsewhere") == []
        assert [p.participant for p in await node.discover("fleet", "way/Door")] == ["door-1"]
        assert await alice.discovery("remove", "door-1") is None
        assert await bob.lookup() == []
        missing = await bob.discovery("lookup", "door-1")
        assert missing["error"]["name"] == "NO_ENTRY_FOR_PARTICIPANT"


@async_test
async def test_who_is_gone_is_not_found_until_it_is_back() -> None:
    async with controller() as (_, place, _), app(place, "bob") as bob:
        async with app(place, "alice") as alice:
            await alice.provide("door-1")
        while await bob.lookup():
            pass
        async with app(place, "alice"):
            while not await bob.lookup():
                pass


@pytest.mark.rule("CL-5")
@async_test
async def test_nobody_speaks_for_a_participant_of_somebody_else() -> None:
    async with (
        controller() as (node, place, _),
        app(place, "alice") as alice,
        app(place, "mallory") as mallory,
    ):
        collect(node, "lamp-1")
        await alice.provide("door-1")
        for name in ("door-1", "lamp-1"):
            refused = await mallory.discovery("add", entry(name, domain="evil"), False, [])
            assert "somebody else" in refused["detailMessage"]
            assert "somebody else" in (await mallory.discovery("remove", name))["detailMessage"]
        assert len(await mallory.lookup()) == 1


@pytest.mark.rule("ID-3", "ID-5")
@async_test
async def test_an_application_lists_what_is_granted_until_it_is_taken_back() -> None:
    all_but = Grant(anyone=True, announce=("*",), send=("*",))
    grants = Grants([all_but, Grant(anyone=True, register=("door-*",))])
    async with (
        controller(grants=grants) as (node, place, recorder),
        app(place, "alice") as alice,
    ):
        await alice.provide("door-1")
        await alice.announce("lamp-1")
        add = await alice.discovery("add", entry("lamp-1"), False, [])
        remove = await alice.discovery("remove", "lamp-1")
        for refused in (add, remove):
            assert refused["detailMessage"] == "to register 'lamp-1' is not granted"
        assert [each["participantId"] for each in await alice.lookup()] == ["door-1"]
        assert node.denied == {"register": 2}
        (told,) = [each for each in recorder.sessions if each.kind is SessionKind.DENIED]
        assert (told.detail, told.reason) == ("register lamp-1", Reason.REFUSED)
        node.change_grants(Grants([all_but]))
        assert await alice.lookup() == []


@async_test
async def test_a_worker_is_found_and_an_application_by_a_leaf() -> None:
    async def door(message: Message, context: Context) -> None:
        del message, context

    async with (
        controller() as (node, place, _),
        Node("leaf", transports=[Tcp()], limits=Limits(heartbeat=0.0)) as leaf,
        app(place, "alice") as alice,
    ):
        await leaf.connect((await node.listen("tcp://127.0.0.1:0")).url, parent=True)
        node.start_worker(("door-1",), door)
        await ClusterController(node).register("door-1", "fleet", "way/Door", version=(3, 1))
        (found,) = await alice.lookup()
        assert found["providerVersion"]["majorVersion"] == 3
        leaf.start_worker(("door-2",), door)
        await leaf.register("door-2", "yard", "way/Door")
        (other,) = await alice.lookup("yard", scope="LOCAL_THEN_GLOBAL")
        assert (other["participantId"], other["isLocal"]) == ("door-2", True)
        assert other["providerVersion"]["majorVersion"] == 1
        await alice.provide("door-3", domain="garage", everywhere=True)
        (provider,) = await leaf.discover("garage", "way/Door", Scope.LOCAL_ONLY)
        assert provider.participant == "door-3"


@async_test
async def test_applications_at_two_hubs_find_each_other_in_the_directory_of_the_fleet() -> None:
    async with (
        controller("left") as (left, at_left, _),
        controller("right") as (right, at_right, _),
        app(at_left, "alice") as alice,
        app(at_right, "bob") as bob,
    ):
        left.host_directory()
        where = (await left.listen("tcp://127.0.0.1:0")).url.replace("://", "#")
        right.ask_directory(where)
        await alice.provide("door-1", everywhere=True)
        (found,) = await bob.lookup(scope="LOCAL_AND_GLOBAL")
        assert (found["participantId"], found["isLocal"]) == ("door-1", False)
        assert found["qos"]["priority"] == 4
        await bob.send(frame("door-1", "bob-1", "o", {"_typeName": "joynr.OneWayRequest"}))
        await until(lambda: alice.frames)
        assert await bob.lookup(scope="LOCAL_ONLY") == []


@async_test
async def test_what_the_discovery_provider_does_not_know_is_told() -> None:
    async with controller() as (node, place, recorder), app(place, "alice") as alice:
        unknown = await alice.discovery("forgetEverything")
        assert unknown["_typeName"] == "joynr.exceptions.MethodInvocationException"
        wrong = await alice.discovery("add", {"_typeName": "joynr.types.Version"})
        assert "parameter 1" in wrong["detailMessage"]
        odd = await alice.discovery("add", entry("door 1", domain="two words"), False, [])
        assert "invalid participant, domain or name" in odd["detailMessage"]
        body = {"_typeName": "joynr.OneWayRequest", "methodName": "remove", "params": ["x"]}
        await alice.send(frame(DISCOVERY_PROVIDER, "alice-1", "o", body))
        stop = {"_typeName": "joynr.SubscriptionStop", "subscriptionId": "1"}
        await alice.send(frame(DISCOVERY_PROVIDER, "alice-1", "sst", stop))
        await node.send(DISCOVERY, b"no JSON")
        assert await alice.lookup() == []
        assert json.loads(await alice.route("getGlobalAddress"))
        assert recorder.counts()["DELIVERED"] >= 5
