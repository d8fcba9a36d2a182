"""Grants at a live hub: what is not granted is refused, recorded, and can be taken back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.node.carriers import SCHEMES, carrier
from tests.node.live import QUICK, RawPeer, serving
from waystation.core.grants import Action, Grant, Grants
from waystation.core.outcome import Reason
from waystation.core.record import ClaimKind, SessionKind
from waystation.core.tokens import Token
from waystation.errors import LocalError, UndeliverableError
from waystation.journal.read import JournalReader
from waystation.node import Limits, Node, keyfile
from waystation.node.metrics import NodeMetrics
from waystation.testing import Recorder, async_test, echo, until
from waystation.testing.fleet import has_route
from waystation.wire.hello import Hello
from waystation.wire.identity import PrivateIdentity

NOW = keyfile.now()
TRUCK = PrivateIdentity.create(b"\x01" * 32, NOW)
MALLORY = PrivateIdentity.create(b"\x02" * 32, NOW)

OF_TRUCK = Grant(
    identity=(TRUCK.identifier,),
    announce=("truck", "truck-7"),
    send=("echo", "truck-7"),
    publish=("truck/*",),
    subscribe=("hub/alerts/*",),
    register=("truck-7",),
)
FOR_ALL = Grant(anyone=True, send=("echo",))
GRANTS = Grants([OF_TRUCK, FOR_ALL])


@asynccontextmanager
async def leaf(
    name: str, place: str, identity: PrivateIdentity | None = None, **options: Any
) -> AsyncIterator[Node]:
    async with Node(name, identity=identity, limits=QUICK, **options) as node:
        await node.connect(f"tcp://{place}", name="hub", parent=True)
        yield node


def work(node: Node, name: str) -> None:
    @node.worker(name)
    async def answer(message: Any, context: Any) -> None:
        await context.reply(node.name.encode() + b": " + message.payload)


def denied(recorder: Recorder) -> list[tuple[str | None, str | None, str]]:
    records = [each for each in recorder.sessions if each.kind is SessionKind.DENIED]
    return [(each.peer, each.identity, each.detail) for each in records]


@pytest.mark.rule("ID-3")
@async_test
async def test_a_name_goes_to_who_it_is_granted_and_to_nobody_else() -> None:
    async with serving("hub", hub=True, grants=GRANTS) as (hub, recorder, place):
        async with leaf("mallory", place, MALLORY) as mallory:
            work(mallory, "truck-7")
            await until(lambda: denied(recorder))
            assert denied(recorder) == [("mallory", MALLORY.identifier, "announce truck-7")]
            assert not has_route(hub, "truck-7")
            refused = [each for each in recorder.claims if each.kind is ClaimKind.REFUSED]
            assert [(each.participant, each.reason) for each in refused] == [
                ("truck-7", Reason.REFUSED)
            ]
            async with leaf("truck", place, TRUCK) as truck:
                work(truck, "truck-7")
                await truck.ready()
                assert (await hub.request("truck-7", b"who?")).payload == b"truck: who?"
            await until(lambda: not has_route(hub, "truck-7"))  # and no standby inherits it
        assert hub.denied["announce"] >= 1


@pytest.mark.rule("ID-3")
@async_test
async def test_a_message_to_what_is_not_granted_is_refused_with_who_asked(tmp_path: Path) -> None:
    async with serving("hub", hub=True, grants=GRANTS, journal=tmp_path) as (hub, _, place):
        work(hub, "admin")
        async with Node("client", identity=TRUCK, limits=QUICK) as client:
            await client.connect(f"tcp://{place}", name="hub")
            assert (await client.request("hub => echo", b"hello")).payload == b"hello"
            for route in ("hub => admin", "hub => echo => admin"):
                with pytest.raises(UndeliverableError, match="REFUSED"):
                    await client.request(route, b"hello")
        assert hub.denied == {"send": 2}
        metrics = NodeMetrics(hub).metrics()
        assert 'waystation_node_denied_total{action="send"} 2' in metrics
        await hub.close()
    entries = list(JournalReader(tmp_path, lambda *_: None).entries())
    messages = [entry.fields for entry in entries if entry.table == "messages"]
    refused = [row for row in messages if row["reason"] == "REFUSED"]
    assert [row["sender"] for row in refused] == [TRUCK.identifier] * 2
    sessions = [entry.fields for entry in entries if entry.table == "sessions"]
    told = [row for row in sessions if row["kind"] == "denied"]
    assert [(row["identity"], row["reason"], row["detail"]) for row in told] == [
        (TRUCK.identifier, "REFUSED", "send admin")
    ]


@pytest.mark.rule("ID-3", "UP-1")
@async_test
async def test_who_proves_nothing_has_what_anyone_has() -> None:
    async with serving("hub", hub=True, grants=GRANTS) as (hub, recorder, place):
        work(hub, "admin")
        for hello in (None, Hello("truck", {"tcp": 1})):
            peer = await RawPeer.dial(place)
            if hello is not None:
                peer.control(msgspec.json.encode(hello))
            peer.send("admin", b"no", "me")
            peer.send("echo", b"yes", "me")
            peer.control(b'{"waystation":"announce","participants":[["truck-7",true,null]]}')
            while (await peer.hear()).payload != b"yes":
                pass
            await until(lambda: ("announce truck-7") in {each[2] for each in denied(recorder)})
            peer.close()
            recorder.sessions.clear()
        assert not has_route(hub, "truck-7")


@pytest.mark.rule("ID-3")
@async_test
async def test_answers_need_no_grant() -> None:
    grants = Grants([OF_TRUCK, Grant(identity=(MALLORY.identifier,), send=("truck-7",))])
    async with (
        serving("hub", hub=True, grants=grants) as (_, _, place),
        leaf("truck", place, TRUCK) as truck,
        leaf("mallory", place, MALLORY) as asker,
    ):
        work(truck, "truck-7")
        await truck.ready()
        assert (await asker.request("hub => truck-7", b"well?")).payload == b"truck: well?"


@pytest.mark.rule("ID-3")
@async_test
async def test_broadcasts_are_granted_by_what_they_can_match() -> None:
    grants = Grants([OF_TRUCK, Grant(identity=(MALLORY.identifier,), announce=("mallory",))])
    async with (
        serving("hub", hub=True, grants=grants) as (hub, recorder, place),
        leaf("truck", place, TRUCK) as truck,
        leaf("mallory", place, MALLORY) as mallory,
    ):
        allowed = truck.subscribe("hub", "alerts", "fire")
        too_much = truck.subscribe("hub", "secrets")
        await until(
            lambda: ("truck", TRUCK.identifier, "subscribe hub/secrets") in denied(recorder)
        )
        await until(lambda: hub.router.subscriptions.match("hub/alerts/fire"))
        assert not hub.router.subscriptions.match("hub/secrets")
        heard = hub.subscribe("truck", "position")
        forged = hub.subscribe("mallory", "position")
        await mallory.publish("position", b"forged")
        await truck.publish("position", b"here")
        await hub.publish("alerts", b"fire!", partition="fire")
        async with heard, allowed:
            assert (await anext(aiter(heard))).payload == b"here"
            assert (await anext(aiter(allowed))).payload == b"fire!"
        await until(lambda: hub.denied["publish"] == 1)
        for each in (too_much, forged):
            await each.close()


@pytest.mark.rule("ID-3")
@async_test
async def test_listings_are_granted() -> None:
    async with (
        serving("hub", hub=True, grants=GRANTS) as (hub, _, place),
        leaf("truck", place, TRUCK) as truck,
        leaf("mallory", place, MALLORY) as mallory,
    ):
        work(truck, "truck-7")
        await truck.ready()
        await truck.register("truck-7", "fleet", "position")
        assert [each.participant for each in await hub.discover("fleet", "position")] == ["truck-7"]
        with pytest.raises((LocalError, UndeliverableError)):
            await mallory.register("mallory", "fleet", "position")
        hub.change_grants(Grants([FOR_ALL]))
        assert await hub.discover("fleet", "position") == []


@pytest.mark.rule("ID-3", "ID-5")
@async_test
async def test_a_listing_that_is_no_longer_granted_goes_while_its_peer_is_away() -> None:
    less = Grants([msgspec.structs.replace(OF_TRUCK, register=()), FOR_ALL])
    async with (
        serving("top", hub=True) as (top, _, above),
        serving("hub", hub=True, grants=GRANTS) as (hub, _, place),
    ):
        await hub.connect(f"tcp://{above}", parent=True)
        async with leaf("truck", place, TRUCK) as truck:
            work(truck, "truck-7")
            await truck.ready()
            await truck.register("truck-7", "fleet", "position")
        await until(lambda: not has_route(hub, "truck-7") and not has_route(top, "truck-7"))
        hub.change_grants(less)
        async with leaf("truck", place, TRUCK) as truck:
            work(truck, "truck-7")
            await truck.ready()
            await until(lambda: has_route(top, "truck-7"))
            assert await hub.discover("fleet", "position") == []
            assert await top.discover("fleet", "position") == []


@pytest.mark.rule("ID-5")
@async_test
async def test_what_the_node_lists_itself_is_not_asked_of_grants() -> None:
    async with serving("hub", hub=True, grants=GRANTS) as (hub, _, _):
        work(hub, "scale")
        await hub.register("scale", "fleet", "weight")
        hub.change_grants(Grants([FOR_ALL]))
        assert [one.participant for one in await hub.discover("fleet", "weight")] == ["scale"]


@pytest.mark.rule("ID-5")
@async_test
async def test_what_is_no_longer_granted_is_taken_back_at_once() -> None:
    async with (
        serving("hub", hub=True, grants=GRANTS) as (hub, recorder, place),
        leaf("truck", place, TRUCK) as truck,
    ):
        work(truck, "truck-7")
        alerts = truck.subscribe("hub", "alerts")
        await truck.ready()
        await until(lambda: hub.router.subscriptions.match("hub/alerts"))
        assert has_route(hub, "truck-7")
        less = msgspec.structs.replace(OF_TRUCK, announce=("truck",), subscribe=("hub/news",))
        hub.change_grants(Grants([less, FOR_ALL]))
        assert not has_route(hub, "truck-7")
        assert not hub.router.subscriptions.match("hub/alerts")
        assert {each[2] for each in denied(recorder)} >= {
            "announce truck-7",
            "subscribe hub/alerts",
        }
        with pytest.raises(UndeliverableError):
            await truck.request("hub => truck-8", b"?")
        hub.change_grants(None)
        assert hub.grants is None
        await alerts.close()


@pytest.mark.rule("CL-4")
@async_test
async def test_a_request_from_outside_leaves_no_way_to_a_name_that_is_given_to_others() -> None:
    async with Node("hub", hub=True, grants=GRANTS, limits=QUICK) as hub:
        work(hub, "echo")
        outside = await hub.listen("tcp://127.0.0.1:0", outside=True)
        peer = await RawPeer.dial(outside.place)
        peer.control(msgspec.json.encode(Hello("stranger", {"tcp": 1})))
        for name in ("truck-7", "somebody"):
            peer.send("echo", b"hello", name)
            await peer.hear()
        assert not has_route(hub, "truck-7")
        assert has_route(hub, "somebody")
        peer.close()


@pytest.mark.rule("ID-5")
@async_test
async def test_a_token_that_is_taken_away_ends_the_sessions_that_proved_it() -> None:
    old, new = Token(b"old", "truck-*"), Token(b"new", "truck-*")
    async with serving("hub", tokens=[old, new]) as (hub, recorder, place):
        async with (
            Node("truck-7", token=b"old", limits=QUICK) as one,
            Node("truck-8", token=b"new", limits=QUICK) as other,
        ):
            await one.connect(f"tcp://{place}", name="hub", keep=False)
            await other.connect(f"tcp://{place}", name="hub")
            await until(lambda: len(hub.sessions) == 2)
            hub.change_tokens(None, [new])
            await until(lambda: [each.peer for each in hub.sessions] == ["truck-8"])
            assert (await other.request("hub => echo", b"still here")).payload == b"still here"
        closed = [each for each in recorder.sessions if each.kind is SessionKind.CLOSED]
        assert "no longer valid" in closed[0].detail


@pytest.mark.rule("ID-5")
@async_test
async def test_a_key_rolls_over_while_messages_flow_and_loses_none() -> None:
    grants = Grants([OF_TRUCK])
    async with (
        serving("hub", hub=True, grants=grants, limits=Limits()) as (_, recorder, place),
        leaf("truck", place, TRUCK) as truck,
    ):
        for number in range(60):
            if number == 20:
                truck.change_identity(TRUCK.rotated(b"\x07" * 32, NOW))
            if number == 40:  # its next session proves the new key
                session = next(each for each in truck.sessions if each.name == "hub")
                session.abort_link()
            answer = await truck.request("hub => echo", str(number).encode())
            assert answer.payload == str(number).encode()
        opened = [each for each in recorder.sessions if each.kind is SessionKind.OPENED]
        assert [each.identity for each in opened] == [TRUCK.identifier] * 2
        async with Node("thief", identity=TRUCK, limits=QUICK) as thief:  # with the old key
            await thief.connect(f"tcp://{place}", wait=None, keep=False)
            await until(lambda: any("was replaced" in each.detail for each in recorder.sessions))


@pytest.mark.rule("ID-5")
def test_limits_change_for_what_comes() -> None:
    node = Node("node")
    node.change_limits(Limits(budget=1_000_000, sessions=3))
    assert node.flow.limit == 1_000_000


@pytest.mark.rule("ID-3")
@async_test
async def test_a_flood_of_denials_is_counted_and_not_all_recorded() -> None:
    async with serving("hub", hub=True, grants=GRANTS) as (hub, recorder, place):
        peer = await RawPeer.dial(place)
        for number in range(300):
            peer.send(f"nobody-{number}", b"", "")
        await until(lambda: hub.denied[Action.SEND] == 300)
        assert len(denied(recorder)) == 100
        peer.close()


@pytest.mark.rule("ID-3")
@pytest.mark.parametrize("scheme", SCHEMES)
@async_test
async def test_grants_hold_over_every_transport(scheme: str) -> None:
    grants = Grants([Grant(identity=(TRUCK.identifier,), send=("echo",))])
    async with (
        carrier(scheme) as over,
        Node("hub", grants=grants, identity=MALLORY, **over.options()) as hub,
    ):
        echo(hub)
        echo(hub, "admin")
        url = (await hub.listen(over.url)).url
        async with (
            Node("truck", identity=TRUCK, **over.options()) as truck,
            Node("stranger", **over.options()) as stranger,
        ):
            for node in (truck, stranger):
                await node.connect(url, name="hub")
            await until(lambda: any(each.identity for each in hub.sessions))
            assert (await truck.request("hub => echo", b"mine")).payload == b"mine"
            for node, name in ((truck, "admin"), (stranger, "echo")):
                with pytest.raises(UndeliverableError, match="REFUSED"):
                    await node.request(f"hub => {name}", b"", timeout=20)
