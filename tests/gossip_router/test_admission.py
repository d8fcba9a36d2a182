"""TLS, and who is let into which group."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme

from tests.gossip_router.clients import HERE, PATIENCE, Client2, Client5, Raw, serving, uuid
from tests.node.live import runs_on_every_loop
from waystation.core.grants import Grant, Grants
from waystation.core.tokens import Token
from waystation.errors import LocalError
from waystation.gossip_router import Admission, Door, GossipServer, GrantedAdmission, RouterMetrics
from waystation.gossip_router.server import DENIALS
from waystation.gossip_router.settings import Settings
from waystation.journal import Journal
from waystation.journal.read import JournalReader
from waystation.net.place import parse_place
from waystation.net.tls import Tls
from waystation.testing import async_test, until
from waystation.wire import jgroups2, jgroups5
from waystation.wire.jgroups5 import GetMembers, Members, Message, PingData, Register


class Certificates:
    """An authority, a certificate for the router, and contexts for clients."""

    def __init__(self, folder: Path) -> None:
        self._authority = trustme.CA()
        self.authorities = folder / "authorities.pem"
        self._authority.cert_pem.write_to_path(str(self.authorities))
        self.certificate, self.key = folder / "router.pem", folder / "router.key"
        issued = self._authority.issue_cert("localhost", "127.0.0.1")
        issued.cert_chain_pems[0].write_to_path(str(self.certificate))
        issued.private_key_pem.write_to_path(str(self.key))

    def tls(self, *, mutual: bool = False) -> Tls:
        return Tls(
            certificate=self.certificate,
            key=self.key,
            authorities=self.authorities if mutual else None,
            mutual=mutual,
        )

    def client(self, name: str | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authorities))
        if name is not None:
            self._authority.issue_cert(name).configure_cert(context)
        return context

    def expired_client(self) -> ssl.SSLContext:
        """With a certificate whose time is over."""
        context = self.client()
        past = datetime(2017, 1, 1, tzinfo=UTC)
        self._authority.issue_cert("old", not_after=past).configure_cert(context)
        return context

    def unknown_client(self) -> ssl.SSLContext:
        """With a certificate of another authority."""
        context = self.client()
        trustme.CA().issue_cert("stranger").configure_cert(context)
        return context

    def doubtful_client(self) -> ssl.SSLContext:
        """Which does not trust the router's authority."""
        context = ssl.create_default_context()
        self._authority.issue_cert("truck-7").configure_cert(context)
        return context


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@runs_on_every_loop
async def test_both_generations_work_over_tls(certificates: Certificates) -> None:
    context = certificates.client()
    async with (
        serving(tls=certificates.tls()) as (server, _),
        await Client5.open(server, ssl=context) as five,
        await Client2.open(server, ssl=context) as two,
    ):
        await five.join("g", 1)
        await two.join("g", 1)
        large = Message("g", uuid(1), None, bytes(3_000_000))
        five.say(large)
        assert await five.frame() == large
        two.say(jgroups2.Message("g", uuid(1), bytes(3_000_000)))
        assert await two.answer() == jgroups2.Message(None, uuid(1), bytes(3_000_000))


@async_test
async def test_who_speaks_no_tls_or_brings_no_certificate_gets_nowhere(
    certificates: Certificates,
) -> None:
    async with (
        serving(tls=certificates.tls(mutual=True)) as (server, _),
        await Raw.open(server) as plain,
    ):
        plain.send(jgroups5.encode(Register("g", uuid(1))))
        await plain.ended()
        try:
            nameless = await Raw.open(server, ssl=certificates.client())
            assert await nameless.ended() == b""
            nameless.writer.close()
        except (ssl.SSLError, ConnectionError):
            pass
        async with await Client5.open(server, ssl=certificates.client("truck-7")) as known:
            await known.join("g", 1)
        assert server.counts.opened == 1


@runs_on_every_loop
async def test_failed_handshakes_are_counted_and_logged_once(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tls=certificates.tls(mutual=True)) as (server, _):
        for _ in range(3):
            async with await Raw.open(server) as plain:
                plain.send(jgroups5.encode(Register("g", uuid(1))))
                await plain.ended()
        await until(lambda: server.counts.refused["tls"] == 3)
        try:
            nameless = await Raw.open(server, ssl=certificates.client())
            await nameless.ended()
            nameless.writer.close()
        except (ssl.SSLError, ConnectionError):
            pass
        await until(lambda: server.counts.refused["tls"] == 4)
        async with await Raw.open(server):
            pass  # a probe that says nothing has not failed
        async with await Client5.open(server, ssl=certificates.client("truck-7")) as known:
            await known.join("g", 1)
        assert server.counts.refused == {"tls": 4}
        assert 'refusals_total{cause="tls"} 4' in RouterMetrics(server).metrics()
    logged = [record.getMessage() for record in caplog.records if "tls" in record.getMessage()]
    assert len(logged) == 1
    assert logged[0].startswith("refused: tls: 127.0.0.1:")


def shake_hands(place: str, context: ssl.SSLContext) -> None:
    """Try; asyncio's own clients would not say what they have against the other side."""
    plain = socket.create_connection(parse_place(place), PATIENCE)
    with (
        plain,
        suppress(OSError),
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
    ):
        secured.recv(1)


EXPIRED = "its certificate is not accepted: certificate has expired"
REFUSALS = [
    ("expired", EXPIRED),
    ("stranger", "its certificate is not accepted: "),
    ("doubtful", "it refused us: unknown ca"),
]


@pytest.mark.rule("GR-2")
@pytest.mark.parametrize(("kind", "why"), REFUSALS)
@runs_on_every_loop
async def test_a_refused_handshake_is_logged_with_who_and_why(
    kind: str, why: str, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tls=certificates.tls(mutual=True)) as (server, _):
        context = {
            "expired": certificates.expired_client,
            "stranger": certificates.unknown_client,
            "doubtful": certificates.doubtful_client,
        }[kind]()
        await asyncio.to_thread(shake_hands, server.place, context)
        await until(lambda: server.counts.refused["tls"] == 1)
    [line] = [record.getMessage() for record in caplog.records if "tls" in record.getMessage()]
    assert line.startswith("refused: tls: 127.0.0.1:")
    assert why in line


@pytest.mark.rule("GR-6")
@runs_on_every_loop
async def test_a_certificate_opens_the_groups_that_name_it(certificates: Certificates) -> None:
    doors = Admission({"fleet": Door(certificates=("truck-7",)), "news": Door(open=True)})
    async with (
        serving(tls=certificates.tls(mutual=True), admission=doors) as (server, _),
        await Client5.open(server, ssl=certificates.client("truck-7")) as truck,
        await Client5.open(server, ssl=certificates.client("stranger")) as stranger,
        await Client2.open(server, ssl=certificates.client("stranger")) as old_stranger,
    ):
        await truck.join("fleet", 1)
        await stranger.join("news", 2)
        stranger.say(Register("fleet", uuid(3)), Message("fleet", None, None, b"psst"))
        stranger.say(GetMembers("fleet"), GetMembers(None))
        member = PingData(uuid(2), "m", HERE)
        assert await stranger.sync() == [
            Members("fleet", last=False),
            Members(jgroups5.ALL_GROUPS + "news", (member,)),
        ]
        old_stranger.say(jgroups2.Connect("fleet", uuid(4)), jgroups2.GossipGet("fleet"))
        assert await old_stranger.answer() == jgroups2.ConnectAnswer(ok=False)
        assert await old_stranger.answer() == jgroups2.Members()
        assert await truck.sync() == []
        assert server.counts.dropped == {"REFUSED": 1}
        assert server.counts.refused == {"registration": 2}


@async_test
async def test_a_token_opens_its_group_for_the_connection_that_brings_it() -> None:
    async with (
        serving(admission=Admission({"fleet": Door(tokens=("sesame",))})) as (server, _),
        await Client5.open(server) as member,
        await Client5.open(server) as stranger,
    ):
        member.say(Register("fleet", uuid(1), "m", HERE, b"sesame"), GetMembers("fleet"))
        assert await member.frame() == Members("fleet", (PingData(uuid(1), "m", HERE),), last=False)
        stranger.say(
            Message("fleet", None, None, b"psst"), Register("fleet", uuid(2), "m", HERE, b"x")
        )
        assert await stranger.ended() == b""
        assert await member.sync() == []
        await until(lambda: server.counts.dropped == {"REFUSED": 1})


@pytest.mark.rule("ID-3")
@async_test
async def test_grants_open_groups_as_they_give_names(certificates: Certificates) -> None:
    grants = Grants(
        [
            Grant(certificate=("truck-*",), register=("fleet",)),
            Grant(token=("members",), register=("club-*",)),
            Grant(anyone=True, register=("news",)),
        ]
    )
    admission = GrantedAdmission(grants, [Token(b"sesame", "members"), Token(b"x", "others")])
    assert admission.by_name("fleet", {"truck-7"})
    assert not admission.by_name("fleet", {"stranger"})
    assert admission.by_name("news", set())
    assert admission.by_token("club-1", b"sesame")
    assert not admission.by_token("club-1", b"x")
    assert not admission.by_token("fleet", b"sesame")
    async with (
        serving(tls=certificates.tls(mutual=True), admission=admission) as (server, _),
        await Client5.open(server, ssl=certificates.client("truck-7")) as truck,
        await Client5.open(server, ssl=certificates.client("stranger")) as stranger,
    ):
        await truck.join("fleet", 1)
        await stranger.join("news", 2)
        stranger.say(Register("fleet", uuid(3)), GetMembers("fleet"))
        assert await stranger.sync() == [Members("fleet", last=False)]
        assert server.counts.refused == {"registration": 1}
    with pytest.raises(LocalError, match="mutual"):
        GossipServer(admission=admission)


@pytest.mark.rule("ID-3")
@async_test
async def test_who_is_not_admitted_is_journalled_with_who_asked(
    tmp_path: Path, certificates: Certificates
) -> None:
    fleet = Grant(certificate=("truck-*",), register=("fleet",))
    grants = Grants([fleet, Grant(anyone=True, register=("news",))])
    with Journal(tmp_path, "router") as journal:
        server = GossipServer(
            Settings(linger=1.0),
            tls=certificates.tls(mutual=True),
            admission=GrantedAdmission(grants, []),
            observe_denials=journal.note,
        )
        await server.start("127.0.0.1:0")
        async with await Client5.open(server, ssl=certificates.client("stranger")) as stranger:
            await stranger.join("news", 2)
            for _ in range(2):
                stranger.say(Register("fleet", uuid(3), "truck-7"))
            for number in range(2 * DENIALS):
                stranger.say(Register(f"group-{number}", uuid(3)))
            await stranger.sync()
            assert server.counts.refused == {"registration": 2 + 2 * DENIALS}
        await server.drain()
    entries = JournalReader(tmp_path, lambda *_: None).entries()
    rows = [entry.fields for entry in entries if entry.table == "sessions"]
    assert len(rows) == DENIALS
    told = rows[0]
    assert (told["kind"], told["reason"], told["detail"]) == ("denied", "REFUSED", "register fleet")
    assert (told["identity"], told["peer"]) == ("certificate:stranger", "truck-7")


def test_the_file_of_admission_is_read_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "admission.toml"
    path.write_text('[groups.fleet]\ncertificates = ["a"]\n[groups."*"]\nopen = true\n', "utf-8")
    admission = Admission.load(path)
    assert admission.by_name("fleet", {"a"})
    assert not admission.by_name("fleet", {"b"})
    assert admission.by_name("others", set())
    for text in ("", "x = 1", "[groups.g]\nopen = 3", "[groups.g]\nfoo = 1", "["):
        path.write_text(text, "utf-8")
        with pytest.raises(LocalError, match=r"admission\.toml"):
            Admission.load(path)
    with pytest.raises(LocalError, match="nowhere"):
        Admission.load(tmp_path / "nowhere")


def test_certificates_cannot_be_asked_for_without_mutual_tls() -> None:
    with pytest.raises(LocalError, match="mutual"):
        GossipServer(admission=Admission({"g": Door(certificates=("a",))}))
