"""SIGHUP: real nodes, brokers and gossip routers read their files again while they run (ID-5)."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Self

import pytest
import trustme
from mqtt5 import ConnAckReasonCode, ConnectPacket

from tests.cli.live_commands import PATIENCE, started
from tests.gossip_router.clients import uuid
from tests.mqtt.broker.test_broker import Peer as MqttPeer
from waystation import Node, NoReplyError, UndeliverableError, UnreachableError
from waystation.mqtt.broker import password_line
from waystation.net.place import parse_place
from waystation.net.tls import Tls
from waystation.node import keyfile
from waystation.node.channels import ANYONE
from waystation.testing import async_test, until
from waystation.transports.http import Http
from waystation.transports.tcp import Tcp
from waystation.wire.jgroups5 import Heartbeat, Register, encode

ECHO = '[[worker]]\nnames = "echo"\nhandler = "waystation.config.workers:echo"\n'


class Running:
    """A process that serves; `places` are where, as it has said."""

    def __init__(self, process: subprocess.Popen[str], lines: list[str]) -> None:
        self._process = process
        self.places = [line.split()[-1] for line in lines if line.startswith("listening on")]

    def hang_up(self) -> str:
        """Have it read its files again; the line that says what came of it."""
        self._process.send_signal(signal.SIGHUP)
        return self.line_with("read again", "not reloaded: ")

    def line_with(self, *words: str) -> str:
        """The next line with one of these words; others tell of those whom it has refused."""
        assert self._process.stdout
        return next(line for line in self._process.stdout if any(word in line for word in words))

    async def reload(self) -> None:
        """Have it read its files again, which succeeds."""
        said = await asyncio.to_thread(self.hang_up)
        assert "read again" in said, said

    async def fail_to_reload(self) -> str:
        """Have it read its files again, which fails; the line that says why."""
        said = await asyncio.to_thread(self.hang_up)
        assert "not reloaded: " in said, said
        return said


@contextmanager
def serving(*arguments: str, ready: str = "listening on") -> Iterator[Running]:
    with started(*arguments, ready=ready) as (process, lines):
        yield Running(process, lines)


@contextmanager
def serving_node(file: Path) -> Iterator[Running]:
    with serving("node", "--config", str(file), ready="is ready") as running:
        yield running


# --- Nodes ----------------------------------------------------------------------------------------


@pytest.mark.rule("ID-4", "ID-5")
@async_test
async def test_a_node_has_secure_listeners_by_its_file_and_trusts_whom_it_says_now(
    tmp_path: Path,
) -> None:
    hub, office = keyfile.create(tmp_path / "key"), keyfile.create(tmp_path / "office")
    head = '[node]\nname = "hub"\nidentity = "key"\n[[listen]]\nurl = "tcp://127.0.0.1:0"\n' + ECHO
    trusted = head + f'[[secure]]\nname = "secure"\ntrust = "{office.identifier}"\n'
    file = tmp_path / "node.toml"
    file.write_text(trusted)
    with serving_node(file) as running:
        async with Node("office", identity=office) as node, Node("other") as other:
            for each in (node, other):
                await each.connect(running.places[0], name="hub", wait=PATIENCE)
            channel = await node.secure_channel("hub => secure", trust=hub.identifier)
            assert channel.identity == hub.identifier
            assert (await channel.request("echo", b"sealed")).payload == b"sealed"
            stranger = await other.secure_channel("hub => secure", trust=hub.identifier)
            with pytest.raises(NoReplyError):
                await stranger.request("echo", b"", timeout=0.5)
            file.write_text(trusted.replace(f'"{office.identifier}"', '"office"'))
            assert "'office' is no identifier" in await running.fail_to_reload()
            assert (await channel.request("echo", b"still")).payload == b"still"
            file.write_text(trusted.replace(office.identifier, other.identifier))
            await running.reload()
            await until(lambda: channel.closed)
            stranger = await other.secure_channel("hub => secure", trust=hub.identifier)
            assert (await stranger.request("echo", b"now")).payload == b"now"
            file.write_text(head + '[[secure]]\nname = "secure"\nanyone = true\n')
            await running.reload()
            channel = await node.secure_channel("hub => secure", trust=ANYONE)
            assert (await channel.request("echo", b"again")).payload == b"again"


@pytest.mark.rule("ID-5")
@async_test
async def test_a_node_takes_over_tokens_of_its_own_of_names_and_of_a_listener(
    tmp_path: Path,
) -> None:
    for name, secret in (("all", "one"), ("trucks", "two"), ("door", "three")):
        (tmp_path / name).write_text(f"{secret}\n")
    file = tmp_path / "node.toml"
    text = (
        '[node]\nname = "hub"\ntoken_file = "all"\n'
        '[[token]]\nnames = "truck-*"\ntoken_file = "trucks"\n'
        '[[listen]]\nurl = "tcp://127.0.0.1:0"\n'
        '[[listen]]\nurl = "tcp://localhost:0"\ntoken_file = "door"\n'
    )
    file.write_text(text + ECHO)

    async def is_admitted(name: str, secret: str, place: str) -> bool:
        async with Node(name, token=secret) as node:
            try:
                await node.connect(place, name="hub", wait=PATIENCE, keep=False)
                return (await node.request("hub => echo", b"x", timeout=PATIENCE)).payload == b"x"
            except (UnreachableError, UndeliverableError, NoReplyError):
                return False

    with serving_node(file) as running:
        main, door = running.places
        async with Node("visitor", token="three") as visitor:  # noqa: S106
            session = await visitor.connect(door, name="hub", wait=PATIENCE)
            assert await is_admitted("car", "one", main)
            assert await is_admitted("truck-7", "two", main)
            for name, secret in (("all", "1"), ("trucks", "2"), ("door", "3")):
                (tmp_path / name).write_text(f"{secret}\n")
            (tmp_path / "door").write_text("")
            assert "the first line of door is empty" in await running.fail_to_reload()
            assert await is_admitted("car", "one", main)  # nothing was taken over
            assert session.is_open
            (tmp_path / "door").write_text("3\n")
            await running.reload()
            await until(lambda: not session.is_open)
        assert await is_admitted("car", "1", main)
        assert await is_admitted("truck-7", "2", main)
        assert await is_admitted("anybody", "3", door)
        for name, secret, place in (
            ("car", "one", main),
            ("truck-7", "two", main),
            ("anybody", "three", door),
            ("anybody", "1", door),
        ):
            assert not await is_admitted(name, secret, place)


@pytest.mark.rule("ID-5")
@async_test
async def test_a_node_takes_over_its_limits_and_says_what_it_cannot(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    text = '[node]\nname = "hub"\n[[listen]]\nurl = "tcp://127.0.0.1:0"\n' + ECHO
    file.write_text(text)
    with serving_node(file) as running:
        async with Node("one") as one, Node("two") as two:
            await one.connect(running.places[0], name="hub", wait=PATIENCE)
            file.write_text(text + "[limits]\nsessions = 0\n")
            assert "limits.sessions" in await running.fail_to_reload()
            file.write_text(text + "[limits]\nsessions = 1\n[limits.tcp]\nframe = 100000\n")
            await running.reload()
            said = await asyncio.to_thread(running.line_with, "restart")
            assert said.endswith("only a restart takes over: limits.tcp\n")
            with pytest.raises(UnreachableError):
                await two.connect(running.places[0], name="hub", wait=PATIENCE, keep=False)
            assert (await one.request("hub => echo", b"x")).payload == b"x"
            file.write_text(text)
            await running.reload()
            await two.connect(running.places[0], name="again", wait=PATIENCE)
            assert (await two.request("again => echo", b"x")).payload == b"x"


class Authorities:
    """Two of them, and the files of a server that trusts one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.old, self.new = trustme.CA(), trustme.CA()

    def install(self, authority: trustme.CA) -> None:
        """Give the server a new certificate, and have it trust this authority alone."""
        issued = authority.issue_cert("127.0.0.1")
        issued.private_key_pem.write_to_path(self._folder / "key.pem")
        issued.cert_chain_pems[0].write_to_path(self._folder / "cert.pem")
        authority.cert_pem.write_to_path(self._folder / "ca.pem")

    def client(self, authority: trustme.CA, server: trustme.CA) -> Tls:
        """The TLS of a client whose certificate one authority signed, and the server's another."""
        name = "old" if authority is self.old else "new"
        issued = authority.issue_cert(name)
        paths = [self._folder / f"{name}.{end}" for end in ("pem", "key")]
        issued.cert_chain_pems[0].write_to_path(paths[0])
        issued.private_key_pem.write_to_path(paths[1])
        trusted = self._folder / f"{name}-trusts.pem"
        server.cert_pem.write_to_path(trusted)
        return Tls(certificate=paths[0], key=paths[1], authorities=trusted)


@pytest.mark.rule("ID-5")
@pytest.mark.parametrize("kind", [Tcp, Http])
@async_test
async def test_a_node_uses_a_new_certificate_and_no_longer_trusts_an_old_authority(
    tmp_path: Path, kind: type[Tcp | Http]
) -> None:
    made = Authorities(tmp_path)
    made.install(made.old)
    tls = (
        '[tls]\ncertificate = "cert.pem"\nkey = "key.pem"\nauthorities = "ca.pem"\nmutual = true\n'
    )
    file = tmp_path / "node.toml"
    head = f'[node]\nname = "hub"\n[[listen]]\nurl = "{kind.type_name}://127.0.0.1:0"\n'
    file.write_text(head + tls + ECHO)

    async def is_served(tls: Tls) -> bool:
        async with Node("client", transports=[kind(tls=tls)]) as node:
            try:
                await node.connect(running.places[0], name="hub", wait=PATIENCE, keep=False)
                return (await node.request("hub => echo", b"x", timeout=PATIENCE)).payload == b"x"
            except UnreachableError:
                return False

    with serving_node(file) as running:
        assert await is_served(made.client(made.old, made.old))
        (tmp_path / "cert.pem").write_text("no certificate")
        said = await running.fail_to_reload()
        assert "cert.pem" in said
        assert await is_served(made.client(made.old, made.old))
        made.install(made.new)
        await running.reload()
        assert await is_served(made.client(made.new, made.new))
        assert not await is_served(made.client(made.old, made.new))


# --- The broker -----------------------------------------------------------------------------------


class MqttClients:
    """Clients of a broker, all of which end with the block."""

    def __init__(self, place: str) -> None:
        self._place = parse_place(place)
        self._peers: list[MqttPeer] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for peer in self._peers:
            peer.writer.transport.abort()
        await asyncio.sleep(0)

    async def connect(self, user: str, password: str, tls: ssl.SSLContext) -> MqttPeer | None:
        """A client that is let in; None if it is not."""
        try:
            peer = MqttPeer(*await asyncio.open_connection(*self._place, ssl=tls))
        except ssl.SSLError:
            return None
        self._peers.append(peer)
        packet = ConnectPacket(f"c-{user}", username=user, password=password.encode())
        answer = await peer.ask(packet)
        return peer if answer.reason_code is ConnAckReasonCode.SUCCESS else None


@pytest.mark.rule("ID-5")
@async_test
async def test_a_broker_reads_passwords_grants_and_certificates_again(tmp_path: Path) -> None:
    made = Authorities(tmp_path)
    made.install(made.old)
    passwords, grants = tmp_path / "passwords", tmp_path / "grants.toml"

    def write_users(**users: str) -> None:
        lines = (password_line(user, word, iterations=10) for user, word in users.items())
        passwords.write_text("\n".join(lines) + "\n")

    write_users(truck="a", car="b")
    lines = passwords.read_text()
    grants.write_text('[[grant]]\ntoken = ["truck", "car"]\nsubscribe = "news/*"\n')
    options = ["--passwords", str(passwords), "--grants", str(grants)]
    options += ["--tls-certificate", str(tmp_path / "cert.pem")]
    options += ["--tls-key", str(tmp_path / "key.pem")]
    old, new = ssl.create_default_context(), ssl.create_default_context()
    made.old.configure_trust(old)
    made.new.configure_trust(new)
    async with AsyncExitStack() as ends:
        running = ends.enter_context(serving("broker", "--listen", "127.0.0.1:0", *options))
        clients = await ends.enter_async_context(MqttClients(running.places[0]))
        truck = await clients.connect("truck", "a", old)
        car = await clients.connect("car", "b", old)
        assert truck is not None
        assert car is not None
        assert await truck.subscribe("news/#") == [1]
        assert await car.subscribe("news/a", "$share/some/news/a", "$share/news/secret") == [
            1,
            1,
            0x87,
        ]
        grants.write_text('[[grant]]\ntoken = "truck"\nsubcribe = "news/*"\n')
        assert "subcribe" in await running.fail_to_reload()
        passwords.write_text("truck\n")
        grants.write_text('[[grant]]\ntoken = ["truck", "car"]\nsubscribe = "news/+"\n')
        assert "invalid line 1" in await running.fail_to_reload()
        assert await truck.subscribe("news/b/#") == [1]  # as before
        passwords.write_text(lines)
        await running.reload()
        await truck.ended()  # it had subscribed to more than that
        assert await car.subscribe("news/b", "news/#") == [1, 0x87]
        assert await clients.connect("truck", "a", old) is not None
        made.install(made.new)
        write_users(truck="new", car="b")
        await running.reload()
        assert await clients.connect("truck", "new", old) is None  # its certificate is new too
        assert await clients.connect("truck", "a", new) is None
        assert await clients.connect("truck", "new", new) is not None
        await car.ended()  # the same password was written anew, with another salt


# --- The gossip router ----------------------------------------------------------------------------


@pytest.mark.rule("ID-5")
@async_test
async def test_a_gossip_router_reads_grants_and_tokens_again(tmp_path: Path) -> None:
    file, secret = tmp_path / "grants.toml", tmp_path / "secret"
    secret.write_text("sesame\n")
    first = '[[token]]\nnames = "members"\ntoken_file = "secret"\n'
    rest = '[[grant]]\nanyone = true\nregister = "news"\n'
    text = first + '[[grant]]\ntoken = "members"\nregister = "club"\n' + rest
    file.write_text(text)

    def join(group: str, number: int, token: bytes = b"") -> socket.socket | None:
        """A member of a group; None if the router ends its connection."""
        peer = socket.create_connection(parse_place(running.places[0]), PATIENCE)
        peer.settimeout(PATIENCE)
        peer.sendall(encode(Register(group, uuid(number), token=token)) + encode(Heartbeat()))
        if peer.recv(100):
            return peer
        peer.close()
        return None

    with serving("router", "--listen", "127.0.0.1:0", "--grants", str(file)) as running:
        member, reader = join("club", 1, b"sesame"), join("news", 2)
        assert member is not None
        assert reader is not None
        assert join("club", 3, b"guess") is None
        secret.write_text("\n")
        assert "the first line of secret is empty" in await running.fail_to_reload()
        again = join("club", 4, b"sesame")
        assert again is not None
        again.close()
        secret.write_text("changed\n")
        await running.reload()
        while member.recv(1000):  # it is told, and let go
            pass
        assert join("club", 5, b"sesame") is None
        fresh = join("club", 6, b"changed")
        assert fresh is not None
        file.write_text(text.replace('register = "news"', 'register = "other"'))
        await running.reload()
        while reader.recv(1000):
            pass
        assert join("news", 7) is None
        for peer in (member, reader, fresh):
            peer.close()
