"""Claims that identities signed: proven also where a hub relays them, and nobody forges them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from tests.node.live import QUICK, RawPeer
from waystation.core.record import ClaimKind, ClaimRecord
from waystation.node import Node, keyfile
from waystation.testing import Recorder, async_test, until
from waystation.testing.fleet import has_route
from waystation.wire.hello import Hello
from waystation.wire.hierarchy import Announce
from waystation.wire.identity import PrivateIdentity
from waystation.wire.vouchers import Voucher, vouch

NOW = keyfile.now()
TRUCK = PrivateIdentity.create(b"\x01" * 32, NOW)
TYPES = {"local": 0, "tcp": 1}


def work(node: Node, *names: str) -> None:
    for name in names:

        @node.worker(name)
        async def answer(message: Any, context: Any) -> None:
            await context.reply(node.name.encode() + b": " + message.payload)


@asynccontextmanager
async def tree(identity: PrivateIdentity | None) -> AsyncIterator[tuple[Node, Node, Node]]:
    async with (
        Node("top", hub=True, limits=QUICK) as top,
        Node("hub", hub=True, limits=QUICK) as hub,
        Node("truck", identity=identity, limits=QUICK) as truck,
    ):
        above, below = [await node.listen("tcp://127.0.0.1:0") for node in (top, hub)]
        await hub.connect(above.url, name="top", parent=True)
        await truck.connect(below.url, name="hub", parent=True)
        yield top, hub, truck


def claims(recorder: Recorder) -> dict[str, ClaimRecord]:
    return {each.participant: each for each in recorder.claims if each.kind is ClaimKind.CLAIM}


@pytest.mark.rule("ID-2")
@async_test
async def test_a_signed_claim_is_proven_at_every_hub() -> None:
    async with tree(TRUCK) as (top, hub, truck):
        seen = {node: Recorder(node) for node in (top, hub)}
        work(truck, "truck-7", "truck-7-doors")
        await truck.ready()
        await until(lambda: has_route(top, "truck-7"))
        for recorder in seen.values():
            claim = claims(recorder)["truck-7"]
            assert (claim.owner, claim.proven) == (TRUCK.identifier, True)
        assert claims(seen[top])["truck-7"].path == ("truck", "hub")
        assert (await top.request("truck-7", b"?")).payload == b"truck: ?"


@pytest.mark.rule("ID-2")
@async_test
async def test_a_claim_without_identity_is_unproven_at_every_hub() -> None:
    async with tree(None) as (top, hub, truck):
        seen = [Recorder(node) for node in (top, hub)]
        work(truck, "truck-7")
        await truck.ready()
        await until(lambda: has_route(top, "truck-7"))
        assert [claims(recorder)["truck-7"].proven for recorder in seen] == [False, False]


@asynccontextmanager
async def forger() -> AsyncIterator[tuple[Node, Recorder, RawPeer]]:
    """A hub, and one below it that relays what it likes."""
    async with Node("top", hub=True, limits=QUICK) as top:
        recorder = Recorder(top)
        listening = await top.listen("tcp://127.0.0.1:0")
        peer = await RawPeer.dial(listening.place)
        peer.control(msgspec.json.encode(Hello("hub", TYPES, can=("claims",), session=1)))
        yield top, recorder, peer
        peer.close()


def relay(name: str, number: int, *vouchers: Voucher, lowest: int = 0) -> bytes:
    return msgspec.json.encode(
        Announce(
            [(name, False, None)],
            owners=[(TRUCK.identifier, lowest)],
            claims=[(0, number, ["truck", "hub"])],
            vouchers=list(vouchers),
            vouched=[0] if vouchers else [],
        )
    )


GOOD = vouch(TRUCK, 5, 5, ["truck-7"])


@pytest.mark.rule("ID-2")
@pytest.mark.parametrize(
    ("name", "number", "vouchers"),
    [
        ("truck-7", 5, ()),
        ("truck-8", 5, (GOOD,)),
        ("truck-7", 6, (GOOD,)),
        ("truck-7", 5, (msgspec.structs.replace(GOOD, signature=bytes(64)),)),
        ("truck-7", 5, (vouch(PrivateIdentity.create(b"\x02" * 32, NOW), 5, 5, ["truck-7"]),)),
    ],
    ids=["no signature", "another name", "another number", "a broken one", "somebody else's"],
)
@async_test
async def test_a_hub_cannot_speak_for_an_identity(
    name: str, number: int, vouchers: tuple[Voucher, ...]
) -> None:
    async with forger() as (top, recorder, peer):
        peer.control(relay(name, number, *vouchers))
        await until(lambda: has_route(top, name))
        claim = claims(recorder)[name]
        assert (claim.owner, claim.proven) == (f"unproven:{TRUCK.identifier}", False)


@pytest.mark.rule("ID-2")
@async_test
async def test_nobody_but_its_owner_ends_the_older_sessions_of_an_identity() -> None:
    async with forger() as (top, recorder, peer):
        peer.control(relay("truck-7", 5, GOOD))
        await until(lambda: has_route(top, "truck-7"))
        assert claims(recorder)["truck-7"].proven
        ended = Announce([], owners=[(TRUCK.identifier, 900)])
        peer.control(msgspec.json.encode(ended))
        forged = vouch(PrivateIdentity.create(b"\x02" * 32, NOW), 900, 900, [])
        peer.control(msgspec.json.encode(msgspec.structs.replace(ended, vouchers=[forged])))
        peer.control(relay("other", 5))
        await until(lambda: has_route(top, "other"))
        assert has_route(top, "truck-7")
        own = vouch(TRUCK, 900, 900, [])
        peer.control(msgspec.json.encode(msgspec.structs.replace(ended, vouchers=[own])))
        await until(lambda: not has_route(top, "truck-7"))


@async_test
async def test_a_list_of_vouchers_that_does_not_fit_is_declined() -> None:
    async with forger() as (top, _, peer):
        told = msgspec.json.decode(relay("truck-7", 5, GOOD), type=Announce)
        peer.control(msgspec.json.encode(msgspec.structs.replace(told, vouched=[0, 0])))
        peer.control(msgspec.json.encode(msgspec.structs.replace(told, vouched=[7])))
        await until(lambda: has_route(top, "truck-7"))
        (session,) = top.sessions
        assert any("2 vouchers" in complaint for complaint in session.complaints)
        many = msgspec.structs.replace(told, vouchers=[GOOD] * 257)
        peer.control(msgspec.json.encode(many))
        await until(lambda: any("257 vouchers" in each for each in session.complaints))


@pytest.mark.rule("ID-2", "CL-1")
@async_test
async def test_who_restarts_with_its_identity_has_its_names_at_once() -> None:
    async with Node("hub", hub=True, limits=QUICK) as hub:
        url = (await hub.listen("tcp://127.0.0.1:0")).url
        recorder = Recorder(hub)
        async with Node("truck", identity=TRUCK, limits=QUICK) as first:
            work(first, "truck-7")
            await first.connect(url, parent=True)
            await first.ready()
            async with Node("truck-again", identity=TRUCK, limits=QUICK) as second:
                work(second, "truck-7")
                await second.connect(url, parent=True)
                await second.ready()
                assert (await hub.request("truck-7", b"?")).payload == b"truck-again: ?"
        assert all(each.kind is not ClaimKind.CONTESTED for each in recorder.claims)
