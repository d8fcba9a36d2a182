"""Sessions that prove who is at their ends: over TCP and TLS, with and without those who cannot."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.node.carriers import SCHEMES, carrier
from tests.node.live import QUICK, RawPeer, runs_on_every_loop, serving
from tests.transports.certificates import authority
from waystation.core.record import SessionKind, SessionRecord
from waystation.core.tokens import Token
from waystation.errors import LocalError, UnreachableError
from waystation.journal.read import JournalReader
from waystation.net.tls import Tls
from waystation.node import Limits, Node, keyfile
from waystation.node.identities import Identities
from waystation.node.metrics import NodeMetrics
from waystation.node.status import Status
from waystation.testing import Recorder, async_test, until
from waystation.testing.simulation import Simulation
from waystation.transports.tcp import Tcp
from waystation.transports.websocket import WebSocket
from waystation.wire.hello import CAPABILITY, Greeting, Hello
from waystation.wire.identity import PrivateIdentity

HOST = "127.0.0.1"
NOW = keyfile.now()
ALICE = PrivateIdentity.create(b"\x01" * 32, NOW)
BOB = PrivateIdentity.create(b"\x02" * 32, NOW)


def sessions_of(journal: Recorder, kind: SessionKind) -> list[SessionRecord]:
    return [record for record in journal.sessions if record.kind is kind]


def entries(directory: Path, table: str) -> list[dict[str, Any]]:
    every = JournalReader(directory, lambda *_: None).entries()
    return [entry.fields for entry in every if entry.table == table]


@pytest.mark.rule("ID-2")
@runs_on_every_loop
async def test_both_sides_know_who_the_other_is_before_the_first_message() -> None:
    async with (
        serving(identity=BOB) as (server, journal, place),
        Node("client", identity=ALICE, limits=QUICK) as client,
    ):
        session = await client.connect(f"tcp://{place}", name="hub")
        await client.request("hub => echo", b"hello")
        (accepted,) = server.sessions
        assert (session.identity, accepted.identity) == (BOB.identifier, ALICE.identifier)
        (opened,) = sessions_of(journal, SessionKind.OPENED)
        assert (opened.peer, opened.identity) == ("client", ALICE.identifier)
        assert server.handshakes == {"proven": 1}
        assert client.identity == ALICE.identifier


@pytest.mark.rule("ID-2")
@pytest.mark.parametrize("kind", [Tcp, WebSocket])
@async_test
async def test_over_tls_the_proof_is_for_the_certificate_of_the_listener(
    kind: type[Tcp | WebSocket],
) -> None:
    carried: Any = kind(tls=authority().tls(HOST))
    scheme = kind.type_name
    async with (
        Node("server", transports=[carried], identity=BOB, limits=QUICK) as server,
        Node(
            "client", transports=[kind(tls=authority().tls())], identity=ALICE, limits=QUICK
        ) as client,
    ):
        listening = await server.listen(f"{scheme}://{HOST}:0")
        session = await client.connect(listening.url)
        await until(lambda: any(each.identity for each in server.sessions))
        (accepted,) = server.sessions
        assert (session.identity, accepted.identity) == (BOB.identifier, ALICE.identifier)


@pytest.mark.rule("ID-2")
@pytest.mark.parametrize("scheme", SCHEMES)
@async_test
async def test_identities_are_proven_over_every_transport(scheme: str) -> None:
    async with (
        carrier(scheme) as over,
        Node("server", identity=BOB, limits=QUICK, **over.options()) as server,
        Node("client", identity=ALICE, limits=QUICK, **over.options()) as client,
    ):
        listening = await server.listen(over.url)
        session = await client.connect(listening.url)
        await until(lambda: any(each.identity for each in server.sessions))
        assert server.sessions[0].identity == ALICE.identifier
        await until(lambda: session.identity == BOB.identifier)


async def _relay(place: str, tls_in: Tls, tls_out: Tls) -> tuple[asyncio.Server, str]:
    """Somebody between two ends, who has a certificate that the dialler believes."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = place.rsplit(":", 1)
        onward = await asyncio.open_connection(
            host, int(port), ssl=tls_out.for_dialler(), server_hostname=HOST
        )
        await asyncio.gather(
            pump(reader, onward[1]), pump(onward[0], writer), return_exceptions=True
        )

    server = await asyncio.start_server(serve, HOST, 0, ssl=tls_in.for_listener())
    return server, "{}:{}".format(*server.sockets[0].getsockname()[:2])


@pytest.mark.rule("ID-2")
@async_test
async def test_who_sits_between_two_ends_of_tls_cannot_pass_the_proof_on() -> None:
    limits = Limits(heartbeat=0.0)
    carried = Tcp(tls=authority().tls(HOST))
    async with (
        serving(transports=[carried], identity=BOB, limits=limits) as (server, journal, place),
        Node(
            "client", transports=[Tcp(tls=authority().tls())], identity=ALICE, limits=limits
        ) as client,
    ):
        seen = Recorder(client)
        mallory = authority().tls(HOST, "mallory.example")  # which the client believes
        relay, between = await _relay(place, mallory, authority().tls())
        await client.connect(f"tcp://{between}", wait=None, keep=False)
        await until(lambda: sessions_of(journal, SessionKind.CLOSED))
        (closed,) = sessions_of(journal, SessionKind.CLOSED)
        assert closed.identity is None
        assert server.handshakes["proven"] == 0
        assert all(
            each.identity != BOB.identifier for each in sessions_of(seen, SessionKind.OPENED)
        )
        relay.close()
        await relay.wait_closed()


@pytest.mark.rule("ID-2")
@runs_on_every_loop
async def test_mutual_tls_proves_the_names_of_the_certificate() -> None:
    certificate, key = authority().issue("truck-7.example")
    here = Tls(certificate=certificate, key=key, authorities=authority().file)
    carried = Tcp(tls=authority().tls(HOST, mutual=True))
    async with (
        serving(transports=[carried]) as (server, journal, place),
        Node("client", transports=[Tcp(tls=here)], limits=QUICK) as client,
    ):
        await client.connect(f"tcp://{place}", name="hub")
        await client.request("hub => echo", b"hello")
        (opened,) = sessions_of(journal, SessionKind.OPENED)
        assert opened.identity == "certificate:truck-7.example"
        assert server.sessions[0].who.certificate == ("truck-7.example",)


@pytest.mark.rule("ID-2", "UP-1")
@async_test
async def test_a_peer_without_identity_works_and_is_unproven() -> None:
    async with (
        serving(identity=BOB) as (server, journal, place),
        Node("client", limits=QUICK) as client,
    ):
        await client.connect(f"tcp://{place}", name="hub")
        assert (await client.request("hub => echo", b"hello")).payload == b"hello"
        (opened,) = sessions_of(journal, SessionKind.OPENED)
        assert (opened.peer, opened.identity) == ("client", None)
        assert server.handshakes == {"unproven": 1}


@pytest.mark.rule("ID-2", "UP-1")
@async_test
async def test_a_stranger_and_a_node_of_the_first_version_are_served_unproven() -> None:
    async with serving(identity=BOB) as (server, journal, place):
        for hello in (None, Hello("old", {"tcp": 1})):
            peer = await RawPeer.dial(place)
            if hello is not None:
                peer.control(msgspec.json.encode(hello))
            peer.send("echo", b"well?", "me")
            assert (await peer.hear()).payload == b"well?"
            peer.close()
        await until(lambda: not server.sessions)
        opened = sessions_of(journal, SessionKind.OPENED)
        assert [record.identity for record in opened] == [None, None]


async def _greet(place: str, identity: PrivateIdentity) -> tuple[RawPeer, bytes]:
    """A raw peer that has sent its hello, and the proof that it would send next."""
    peer = await RawPeer.dial(place)
    hello = Hello("peer", {"tcp": 1}, nonce="n", can=(CAPABILITY,), proves=True)
    greeting = Greeting(hello, None, initiator=True, identity=identity)
    peer.control(greeting.first())
    said = await peer.hear_control()
    proof = greeting.hear(said)
    assert proof is not None
    return peer, proof


@pytest.mark.rule("ID-2")
@async_test
async def test_a_proof_of_another_session_is_refused_and_counted() -> None:
    async with serving() as (server, journal, place):
        (first, proof), (second, _) = await _greet(place, ALICE), await _greet(place, ALICE)
        second.control(proof)
        await until(lambda: sessions_of(journal, SessionKind.CLOSED))
        (closed,) = sessions_of(journal, SessionKind.CLOSED)
        assert "for another session" in closed.detail
        first.control(proof)
        await until(lambda: any(each.identity for each in server.sessions))
        first.close()
        await second.ended()


@pytest.mark.rule("ID-2")
@async_test
async def test_a_handshake_that_stays_half_open_holds_nothing_but_its_own_session() -> None:
    async with serving(identity=BOB) as (server, journal, place):
        peers = [await _greet(place, ALICE) for _ in range(20)]
        assert len(server.sessions) == 20
        assert all(session.identity is None for session in server.sessions)
        for peer, _ in peers:
            peer.close()
        await until(lambda: not server.sessions)
        assert {record.identity for record in sessions_of(journal, SessionKind.OPENED)} == {None}


@pytest.mark.rule("ID-2")
@async_test
async def test_a_token_of_its_own_proves_a_name() -> None:
    tokens = [Token(b"shared"), Token(b"trucks", "truck-*")]
    async with serving(tokens=tokens) as (server, journal, place):
        async with Node("truck-7", token=b"trucks", limits=QUICK) as truck:
            await truck.connect(f"tcp://{place}", name="hub")
            await truck.request("hub => echo", b"hello")
            assert [session.identity for session in server.sessions] == ["token:truck-*"]
        async with Node("truck-8", token=b"shared", limits=QUICK) as thief:
            with pytest.raises(UnreachableError, match="different token"):
                await thief.connect(f"tcp://{place}", wait=2.0, keep=False)
        async with Node("garage", token=b"shared", limits=QUICK) as garage:
            await garage.connect(f"tcp://{place}")
            await until(lambda: any(each.peer == "garage" for each in server.sessions))
        identities = [record.identity for record in sessions_of(journal, SessionKind.OPENED)]
        assert identities == ["token:truck-*", None]
        assert server.handshakes["refused"] >= 1


@pytest.mark.rule("ID-2")
@async_test
async def test_the_journal_tells_who_sent_a_message_and_claims_of_a_proven_peer(
    tmp_path: Path,
) -> None:
    async with (
        serving("hub", hub=True, identity=BOB, journal=tmp_path) as (hub, recorder, place),
        Node("truck", identity=ALICE, limits=QUICK) as truck,
        Node("car", limits=QUICK) as car,
    ):
        for node in (truck, car):

            @node.worker(f"at-{node.name}")
            async def handle(message: Any, context: Any) -> None:
                await context.reply(message.payload)

            await node.connect(f"tcp://{place}", name="hub", parent=True)
            await node.ready()
        await truck.request("hub => echo", b"proven")
        await car.request("hub => echo", b"unproven")
        await truck.request("hub => at-car", b"through the hub")
        await hub.close()
        assert {record.participant: record.proven for record in recorder.claims} == {
            "at-truck": True,
            "at-car": False,
        }
    rows = entries(tmp_path, "messages")
    to_echo = {(row["from_node"], row["sender"]) for row in rows if row["recipient"] == "echo"}
    assert to_echo == {("truck", ALICE.identifier), ("car", None)}
    sessions = entries(tmp_path, "sessions")
    opened = {(row["peer"], row["identity"]) for row in sessions if row["kind"] == "open"}
    assert opened == {("truck", ALICE.identifier), ("car", None)}


@pytest.mark.rule("ID-2")
@async_test
async def test_who_relays_for_others_is_not_their_sender(tmp_path: Path) -> None:
    async with (
        Node("top", hub=True, identity=BOB, journal=tmp_path, limits=QUICK) as top,
        Node("hub", hub=True, identity=ALICE, limits=QUICK) as hub,
        Node("leaf", limits=QUICK) as leaf,
    ):
        got: list[bytes] = []

        @top.worker("sink")
        async def sink(message: Any, context: Any) -> None:  # noqa: ARG001
            got.append(message.payload)

        above = await top.listen(f"tcp://{HOST}:0")
        below = await hub.listen(f"tcp://{HOST}:0")
        await hub.connect(above.url, name="top", parent=True)
        await leaf.connect(below.url, name="hub", parent=True)
        await leaf.send("hub => top => sink", b"relayed")
        await hub.send("top => sink", b"of the hub itself")
        await until(lambda: len(got) == 2)
        await top.close()
    rows = entries(tmp_path, "messages")
    senders = {row["bytes"]: row["sender"] for row in rows if row["recipient"] == "sink"}
    assert senders == {len(b"relayed"): None, len(b"of the hub itself"): ALICE.identifier}


@pytest.mark.rule("ID-5")
def test_a_key_that_was_replaced_or_has_expired_is_refused() -> None:
    identities = Identities(None, remembered=2)
    second = ALICE.rotated(b"\x04" * 32, NOW)
    stolen = ALICE.rotated(b"\x05" * 32, NOW)
    assert identities.objection(ALICE.public, NOW) == ""
    assert identities.objection(second.public, NOW) == ""
    assert "was replaced" in identities.objection(ALICE.public, NOW)
    assert "was replaced" in identities.objection(stolen.public, NOW)
    assert identities.objection(second.rotated(b"\x06" * 32, NOW).public, NOW) == ""
    assert "has expired" in identities.objection(BOB.public, BOB.public.valid_until)
    for seed in (b"\x07", b"\x08"):  # others are remembered, and these forgotten
        other = PrivateIdentity.create(seed * 32, NOW).rotated(b"\x09" * 32, NOW)
        assert identities.objection(other.public, NOW) == ""
    assert identities.objection(ALICE.public, NOW) == ""


@pytest.mark.rule("ID-1")
def test_a_node_takes_its_identity_from_a_file_that_only_its_owner_can_read(tmp_path: Path) -> None:
    made = keyfile.create(tmp_path / "key")
    assert Node("node", identity=tmp_path / "key").identity == made.identifier
    assert Node("node", identity=str(tmp_path / "key")).identity == made.identifier
    assert Node("node").identity is None
    (tmp_path / "key").chmod(0o644)
    with pytest.raises(LocalError, match="has mode 0644"):
        Node("node", identity=tmp_path / "key")


@async_test
async def test_status_and_metrics_tell_proven_from_unproven() -> None:
    async with (
        serving(identity=BOB) as (server, _, place),
        Node("truck", identity=ALICE, limits=QUICK) as truck,
        Node("car", limits=QUICK) as car,
    ):
        status = Status(server)
        for node in (truck, car):
            await node.connect(f"tcp://{place}", name="hub")
            await node.request("hub => echo", b"hello")
        told = {each.peer: each.identity for each in status.snapshot().sessions}
        assert told == {"truck": ALICE.identifier, "car": None}
        metrics = NodeMetrics(server, status).metrics()
        assert 'waystation_node_handshakes_total{result="proven"} 1' in metrics
        assert 'waystation_node_handshakes_total{result="unproven"} 1' in metrics


def _round_trips(*, proven: bool, token: str | None = None) -> float:
    """Round trips until a node that connects has its first answer; the network alone takes time."""
    one_way = 0.01

    async def main(simulation: Simulation) -> float:
        simulation.network.latency = (one_way, one_way)
        garage, truck = (simulation.network.machine(name) for name in ("garage", "truck"))
        seen: list[str | None] = []

        def made(name: str, seed: int) -> Node:
            key = PrivateIdentity.create(bytes([seed]) * 32, keyfile.now()) if proven else None
            return Node(name, identity=key, token=token)

        async def serve() -> None:
            node = made("garage", 1)

            @node.worker("echo")
            async def echo(message: Any, context: Any) -> None:
                seen.extend(session.identity for session in node.sessions)
                await context.reply(message.payload)

            await node.listen("tcp://garage:4000")
            await asyncio.Event().wait()

        async def ask() -> float:
            async with made("truck", 2) as node:
                begin = simulation.loop.time()
                session = await node.connect("tcp://garage:4000", name="garage")
                await node.request("garage => echo", b"")
                seen.append(session.identity)
                return simulation.loop.time() - begin

        garage.run(serve)
        await asyncio.sleep(0.1)
        took: float = await truck.run(ask)
        assert [bool(identity) for identity in seen] == [proven, proven]
        return took

    return Simulation(1).run(main) / (2 * one_way)


@pytest.mark.rule("ID-2")
def test_the_proof_of_a_session_takes_one_more_round_trip_at_most() -> None:
    plain, with_token = _round_trips(proven=False), _round_trips(proven=False, token="swordfish")  # noqa: S106
    proven, with_both = _round_trips(proven=True), _round_trips(proven=True, token="swordfish")  # noqa: S106
    assert proven - plain <= 1.01
    assert with_both - plain <= 1.01
    assert with_token - plain <= 1.01
