"""Real channels of JGroups 2.12 and 5.x through our router: they meet, talk, leave, die, return."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

import pytest
import trustme

from tests.peers import jgroups_peer
from tests.peers.jgroups_peer import SOURCES, Generation, Member, shipped
from waystation.demo.processes import WAYSTATION
from waystation.net.place import parse_place

pytestmark = [pytest.mark.peer, pytest.mark.timeout(jgroups_peer.FETCH_SECONDS + 300)]

Start = Callable[[Generation, str, str, str], Member]
GENERATIONS: tuple[Generation, ...] = (2, 5)


class Router:
    """Our router in a process of its own, on a port that stays."""

    def __init__(self, *options: str) -> None:
        self.port = 0  # until it has chosen one
        self._options = options
        self.start()

    def start(self) -> None:
        listen = f"127.0.0.1:{self.port}"
        self.process = subprocess.Popen(
            [*WAYSTATION, "router", "--listen", listen, *self._options],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout
        with self.process.stdout as output:  # it says nothing more
            said = output.readline()
        assert said.startswith("listening on "), said
        self.port = parse_place(said.split()[-1])[1]

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(20)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(20)


@contextmanager
def routing(*options: str) -> Iterator[Router]:
    router = Router(*options)
    try:
        yield router
    finally:
        router.kill()


@pytest.fixture(scope="module", autouse=True)
def _java() -> None:
    jgroups_peer.built()


@pytest.fixture
def router() -> Iterator[Router]:
    with routing() as running:
        yield running


@pytest.fixture
def start() -> Iterator[Start]:
    with jgroups_peer.members() as starter:
        yield starter


def at(router: Router, config: str) -> str:
    """A configuration with the router's address in it, and nothing else changed."""
    place = f"127.0.0.1[{router.port}]"
    changed, count = re.subn(
        r'(gossip_router_hosts|initial_hosts)="[^"]*"', rf'\1="{place}"', config
    )
    assert count == 1
    return changed


def tunnel(generation: Generation, router: Router) -> str:
    return at(router, shipped(generation, "tunnel.xml"))


def quick(config: str) -> str:
    """The same with members that look for the router, and for each other, more often."""
    changed = re.sub("<TUNNEL", '<TUNNEL reconnect_interval="500"', config)
    changed = re.sub(r"<MERGE3/>", '<MERGE3 min_interval="1000" max_interval="3000"/>', changed)
    often = 'max_interval="3000" min_interval="1000"'
    return re.sub(r'max_interval="20000"\s+min_interval="5000"', often, changed)


def gossip(generation: Generation, router: Router) -> str:
    if generation == 2:
        return at(router, shipped(2, "tcpgossip.xml"))
    return at(router, (SOURCES / "tcpgossip5.xml").read_text("utf-8"))


def pattern(size: int) -> bytes:
    """What Member5.java sends as a large message."""
    return b"L" + bytes((i * 31 + (i >> 8)) & 0xFF for i in range(1, size))


@pytest.mark.ci
@pytest.mark.parametrize("generation", GENERATIONS)
def test_channels_talk_through_the_tunnel_with_the_shipped_configuration(
    generation: Generation, router: Router, start: Start
) -> None:
    config = tunnel(generation, router)
    a = start(generation, config, "demo", "A")
    b = start(generation, config, "demo", "B")
    for member in (a, b):
        member.views("A", "B")
    b.say("to A hello A")
    a.got("B hello A")
    a.say("all hello all")
    for member in (a, b):
        member.got("A hello all")
    a.say("burst 500 ")
    b.got("A 499")
    assert b.heard_from("A")[1:] == [str(number) for number in range(500)]
    a.say("large B 3000000")
    expected = f"large A 3000000 {crc32(pattern(3_000_000))}"
    b.until(lambda lines: expected in lines)
    b.leave()
    a.views("A")


@pytest.mark.parametrize("generation", GENERATIONS)
def test_three_channels_one_is_killed_and_the_others_go_on(
    generation: Generation, router: Router, start: Start
) -> None:
    config = tunnel(generation, router)
    a, b, c = (start(generation, config, "demo", name) for name in "ABC")
    for member in (a, b, c):
        member.views("A", "B", "C")
    c.say("large * 1000000")
    expected = f"large C 1000000 {crc32(pattern(1_000_000))}"
    for member in (a, b, c):
        member.until(lambda lines: expected in lines)
    c.kill()
    for member in (a, b):
        member.views("A", "B")
    b.say("all still here")
    for member in (a, b):
        member.got("B still here")


@pytest.mark.parametrize("how", ["killed", "ended"])
@pytest.mark.parametrize("generation", GENERATIONS)
def test_channels_go_on_after_the_router_was_away(
    generation: Generation, how: str, router: Router, start: Start
) -> None:
    config = quick(tunnel(generation, router))
    a, b = (start(generation, config, "demo", name) for name in "AB")
    for member in (a, b):
        member.views("A", "B")
    a.say("all before")
    b.got("A before")
    if how == "killed":
        router.kill()
    else:
        assert router.end() == 0
    router.start()
    a.say("all after")
    b.got("A after")
    for member in (a, b):
        member.views("A", "B")


@pytest.mark.parametrize("generation", GENERATIONS)
def test_channels_find_each_other_at_the_router_and_talk_directly(
    generation: Generation, router: Router, start: Start
) -> None:
    config = gossip(generation, router)
    a, b, c = (start(generation, config, "demo", name) for name in "ABC")
    for member in (a, b, c):
        member.views("A", "B", "C")
    a.say("all hello")
    c.say("to A back")
    for member in (b, c):
        member.got("A hello")
    a.got("C back")
    c.leave()
    for member in (a, b):
        member.views("A", "B")
    b.kill()
    a.views("A")


@pytest.mark.rule("GR-6")
def test_both_generations_on_one_port_never_see_one_another(router: Router, start: Start) -> None:
    twos = [start(2, tunnel(2, router), "demo", name) for name in "AB"]
    fives = [start(5, tunnel(5, router), "demo", name) for name in "CD"]
    for member in twos:
        member.views("A", "B")
    for member in fives:
        member.views("C", "D")
    twos[0].say("all from two")
    fives[0].say("all from five")
    twos[1].got("A from two")
    fives[1].got("C from five")
    assert twos[1].heard_from("C") == fives[1].heard_from("A") == []


@pytest.mark.parametrize("generation", GENERATIONS)
def test_with_two_routers_one_may_die(generation: Generation, start: Start) -> None:
    with routing() as first, routing() as second:
        places = f"127.0.0.1[{first.port}],127.0.0.1[{second.port}]"
        config = quick(tunnel(generation, first)).replace(f"127.0.0.1[{first.port}]", places)
        a, b = (start(generation, config, "demo", name) for name in "AB")
        for member in (a, b):
            member.views("A", "B")
        a.say("burst 100 before ")
        b.got("A before 99")
        first.kill()
        a.say("burst 100 after ")
        b.got("A after 99")
        assert b.heard_from("A") == [
            f"{when} {number}" for when in ("before", "after") for number in range(100)
        ]


@pytest.mark.ci
def test_channels_of_5_bring_a_certificate_and_talk_over_tls(tmp_path: Path, start: Start) -> None:
    authority = trustme.CA()
    router_pem, key_pem, authority_pem = (
        str(tmp_path / name) for name in ("router.pem", "router.key", "authority.pem")
    )
    authority.cert_pem.write_to_path(authority_pem)
    issued = authority.issue_cert("localhost", "127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(router_pem)
    issued.private_key_pem.write_to_path(key_pem)
    doors = tmp_path / "admission.toml"
    doors.write_text('[groups.demo]\ncertificates = ["truck.example"]\n', "utf-8")
    keys, trust = key_stores(tmp_path, authority, "truck.example")
    options = ("--tls-certificate", router_pem, "--tls-key", key_pem)
    with routing(*options, "--tls-authorities", authority_pem, "--admission", str(doors)) as router:
        tls = (
            f'<TUNNEL tls.enabled="true" tls.keystore_path="{keys}" tls.truststore_path="{trust}"'
            ' tls.keystore_password="secret" tls.truststore_password="secret"'
            ' tls.keystore_type="pkcs12" tls.truststore_type="pkcs12"'
        )
        config = tunnel(5, router).replace("<TUNNEL", tls)
        a, b = (start(5, config, "demo", name) for name in "AB")
        for member in (a, b):
            member.views("A", "B")
        a.say("large B 1000000")
        expected = f"large A 1000000 {crc32(pattern(1_000_000))}"
        b.until(lambda lines: expected in lines)


def key_stores(folder: Path, authority: trustme.CA, name: str) -> tuple[Path, Path]:
    """A member's key and certificate, and whom it believes, as Java keeps them."""
    issued = authority.issue_cert(name)
    issued.private_key_and_cert_chain_pem.write_to_path(str(folder / "member.pem"))
    keys, trust = folder / "keys.p12", folder / "trust.p12"
    openssl = ["openssl", "pkcs12", "-export", "-in", str(folder / "member.pem")]
    keytool = ["keytool", "-importcert", "-noprompt", "-file", str(folder / "authority.pem")]
    store = ["-alias", "authority", "-storetype", "pkcs12", "-storepass", "secret"]
    for command in (
        [*openssl, "-out", str(keys), "-passout", "pass:secret"],
        [*keytool, *store, "-keystore", str(trust)],
    ):
        subprocess.run(command, check=True, capture_output=True)
    return keys, trust


@pytest.mark.rule("OB-4")
def test_the_journal_tells_who_came_and_went(tmp_path: Path, start: Start) -> None:
    with routing("--journal", str(tmp_path / "J")) as router:
        config = tunnel(5, router)
        a, b = (start(5, config, "demo", name) for name in "AB")
        a.views("A", "B")
        b.kill()
        a.views("A")
        a.leave()
        assert router.end() == 0
    done = subprocess.run(
        [*WAYSTATION, "journal", "cat", str(tmp_path / "J"), "--table", "members", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    found = [(row["kind"], row["name"]) for row in rows if row["grp"] == "demo"]
    assert found == [("join", "A"), ("join", "B"), ("suspect", "B"), ("leave", "A")]
