"""What clients may do at the broker, by the same grants as at a node (ID-3)."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import pytest
from mqtt5 import (
    ConnAckReasonCode,
    ConnectPacket,
    PingReqPacket,
    PingRespPacket,
    PubAckReasonCode,
    SubAckReasonCode,
    Will,
)

from tests.mqtt.broker.test_broker import client, reach, refused, serving
from tests.transports.certificates import authority
from waystation.core.grants import Grant, Grants
from waystation.mqtt.broker import Passwords, password_line
from waystation.testing import async_test

USERS = Passwords.parse(
    "\n".join(password_line(user, "secret", iterations=10) for user in ("truck", "mallory"))
)
GRANTS = Grants(
    [
        Grant(token=("truck",), publish=("truck-7/*",), subscribe=("hub/alerts/*",)),
        Grant(anyone=True, subscribe=("news/+",)),
    ]
)
DENIED = int(SubAckReasonCode.NOT_AUTHORIZED)


@pytest.mark.rule("ID-3")
@async_test
async def test_a_client_publishes_and_subscribes_what_is_granted_to_its_user() -> None:
    async with serving(authenticate=USERS.allows, grants=GRANTS) as broker:
        truck = client(broker, "t", username="truck", password=b"secret")
        mallory = client(broker, "m", username="mallory", password=b"secret")
        async with truck as own, mallory as other:
            filters = ("hub/alerts/#", "hub/alerts/+/x", "hub/#", "#", "news/a", "news/#")
            assert await own.subscribe(*filters) == [1, 1, DENIED, DENIED, 1, DENIED]
            assert await other.subscribe("hub/alerts/#", "news/a") == [DENIED, 1]
            accepted = await own.publish("truck-7/position")
            assert accepted.reason_code is not PubAckReasonCode.NOT_AUTHORIZED
            for peer in (own, other):
                answer = await peer.publish("hub/alerts/fire")
                assert answer.reason_code is PubAckReasonCode.NOT_AUTHORIZED
            assert broker.counts.refused["not_authorized"] == 6


@pytest.mark.rule("ID-3")
@async_test
async def test_nobody_leaves_a_will_that_it_may_not_publish() -> None:
    async with serving(authenticate=USERS.allows, grants=GRANTS) as broker:
        will = Will("hub/alerts/fire")
        packet = ConnectPacket("m", username="mallory", password=b"secret", will=will)
        assert await refused(broker, packet) is ConnAckReasonCode.NOT_AUTHORIZED


@pytest.mark.rule("ID-3")
@async_test
async def test_a_shared_subscription_is_granted_by_its_filter() -> None:
    async with (
        serving(authenticate=USERS.allows, grants=GRANTS) as broker,
        client(broker, "t", username="truck", password=b"secret") as own,
    ):
        filters = ("$share/some/hub/alerts/#", "$share/some/secret", "$share/news/secret")
        assert await own.subscribe(*filters) == [1, DENIED, DENIED]


@pytest.mark.rule("ID-3")
@async_test
async def test_nobody_takes_over_the_session_of_another_certificate() -> None:
    """The client id is the word of a client; what waits in a session is for who opened it."""
    grants = Grants([Grant(certificate=("truck",), subscribe=("orders/*",))])
    made = authority()
    async with serving(tls=made.tls("127.0.0.1", mutual=True), grants=grants) as broker:

        async def connect(name: str) -> tuple[Any, Any]:
            context = made.tls(name).for_dialler()
            context.check_hostname = False
            peer = await ends.enter_async_context(reach(broker, ssl=context))
            packet = ConnectPacket("t", clean_start=False, session_expiry_interval=1_000)
            return peer, await peer.ask(packet)

        async with AsyncExitStack() as ends:
            truck, answer = await connect("truck")
            assert not answer.session_present
            assert await truck.subscribe("orders/#") == [1]
            other, answer = await connect("mallory")
            assert not answer.session_present
            assert await other.subscribe("orders/#") == [DENIED]
            truck.say(PingReqPacket())  # it was not taken over
            assert isinstance(await truck.hear(), PingRespPacket)
            assert broker.sessions() == 2
