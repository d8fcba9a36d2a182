"""Identity, tokens and grants in a configuration file, and reading it again while a node runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from tests.config.files import ECHO, LISTEN, NODE, plan, problems, write
from waystation.config import plan_from, read_grants, reload, running
from waystation.core.grants import Action
from waystation.core.tokens import Token
from waystation.core.who import Who
from waystation.errors import LocalError, UndeliverableError
from waystation.net.tls import Tls
from waystation.node import Node, keyfile
from waystation.node.channels import ANYONE
from waystation.testing import async_test, until
from waystation.transports.tcp import Tcp

TRUCKS = '[[token]]\nnames = "truck-*"\ntoken_file = "trucks"\n'
GRANT = '[[grant]]\ntoken = "truck-*"\nannounce = "truck-*"\nsend = ["echo"]\n'


@pytest.fixture(autouse=True)
def secrets(tmp_path: Path) -> None:
    (tmp_path / "trucks").write_text("swordfish\n")


@pytest.mark.rule("ID-1")
def test_a_node_has_the_identity_in_its_file(tmp_path: Path) -> None:
    made = keyfile.create(tmp_path / "key")
    found = plan(tmp_path, NODE + 'identity = "key"\n').identity
    assert found is not None
    assert found.identifier == made.identifier
    (tmp_path / "key").chmod(0o640)
    (problem,) = problems(tmp_path, NODE + 'identity = "key"\n')
    assert (problem.line, problem.key) == (3, "node.identity")
    assert "has mode 0640" in problem.what


@pytest.mark.rule("ID-3")
def test_tokens_and_grants_are_read(tmp_path: Path) -> None:
    made = plan(tmp_path, NODE + TRUCKS + GRANT)
    assert made.tokens == (Token(b"swordfish", "truck-*"),)
    assert made.grants is not None
    assert made.grants.allows(Who(None, (), "truck-*"), Action.ANNOUNCE, "truck-7")
    assert plan(tmp_path, NODE).grants is None


@pytest.mark.rule("ID-3")
@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('[[grant]]\nsend = "x"\n', "a grant for nobody"),
        ("[[grant]]\nanyone = true\n", "a grant of nothing to anyone"),
        ('[[grant]]\nidentity = "truck"\nsend = "x"\n', "'truck' is no identifier"),
        ('[[grant]]\ntoken = "car"\nsend = "x"\n', "there is no [[token]] with names = 'car'"),
        ('[[token]]\nnames = "car"\n', "has no token"),
        ('[[token]]\nnames = "car"\ntoken_file = "nowhere"\n', "No such file"),
    ],
)
def test_mistakes_in_grants_and_tokens_are_found(tmp_path: Path, text: str, what: str) -> None:
    (problem,) = problems(tmp_path, NODE + text)
    assert what in problem.what


@pytest.mark.rule("ID-3")
def test_a_file_of_grants_is_read_for_brokers_and_routers(tmp_path: Path) -> None:
    grants, tokens = read_grants(write(tmp_path, TRUCKS + GRANT))
    assert (len(list(grants)), tokens) == (1, (Token(b"swordfish", "truck-*"),))
    read_grants(write(tmp_path, GRANT), users=True)
    for text in (GRANT, "", "[[grant]]\nfly = 1\n"):
        with pytest.raises(LocalError, match=r"node\.toml"):
            read_grants(write(tmp_path, text))


@pytest.mark.rule("ID-5")
@async_test
async def test_a_file_is_read_again_and_a_mistake_in_it_changes_nothing(tmp_path: Path) -> None:
    before = keyfile.create(tmp_path / "key")
    head = NODE + 'identity = "key"\n' + LISTEN + ECHO + TRUCKS
    file = write(tmp_path, head + GRANT)
    first = plan_from(file)
    async with running(first) as live, Node("truck-7", token="swordfish") as truck:  # noqa: S106
        node = live.node
        await truck.connect(live.listening[0].url, name="hub")
        assert (await truck.request("hub => echo", b"hello")).payload == b"hello"
        write(tmp_path, head + GRANT + "[[grant]]\nsend = 7\n")
        done = reload(live, first, file)
        assert done.plan is first
        assert [problem.line for problem in done.problems] == [17]
        assert node.grants == first.grants
        rotated = keyfile.rotate(tmp_path / "key")
        text = head + GRANT.replace('"echo"', '"other"') + "[limits]\nbudget = 1000000\n"
        write(tmp_path, text + '[[access]]\nallow = "*"\nto = "*"\n')
        done = reload(live, first, file)
        assert (done.problems, done.restart) == ([], ["access"])
        assert node.flow.limit == 1_000_000
        assert node.identity == before.identifier == rotated.identifier
        with pytest.raises(UndeliverableError, match="REFUSED"):
            await truck.request("hub => echo", b"hello")
        (tmp_path / "trucks").write_text("marlin\n")
        assert reload(live, done.plan, file).problems == []
        await until(lambda: not node.sessions)


@pytest.mark.rule("ID-5")
@async_test
async def test_listeners_use_a_new_certificate_as_soon_as_the_file_is_read_again(
    tmp_path: Path,
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")

    def issue() -> None:
        issued = authority.issue_cert("127.0.0.1")
        issued.private_key_pem.write_to_path(tmp_path / "key.pem")
        issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")

    issue()
    keyfile.create(tmp_path / "key")
    tls = '[tls]\ncertificate = "cert.pem"\nkey = "key.pem"\nauthorities = "ca.pem"\n'
    file = write(tmp_path, NODE + 'identity = "key"\n' + LISTEN + tls + ECHO)
    first = plan_from(file)
    client_key = keyfile.create(tmp_path / "client")
    here = Tls(authorities=tmp_path / "ca.pem")
    async with running(first) as live:
        url = live.listening[0].url
        for _ in range(2):  # the proof of identities names the certificate that is in use
            async with Node("client", transports=[Tcp(tls=here)], identity=client_key) as client:
                session = await client.connect(url, name="hub")
                assert session.identity == live.node.identity
                assert (await client.request("hub => echo", b"hello")).payload == b"hello"
            issue()
            assert reload(live, first, file).problems == []
        (tmp_path / "cert.pem").write_text("no certificate")
        assert reload(live, first, file).problems
        async with Node("client", transports=[Tcp(tls=here)]) as client:
            await client.connect(url)


@pytest.mark.rule("ID-4")
def test_secure_listeners_are_read_and_checked(tmp_path: Path) -> None:
    made = keyfile.create(tmp_path / "key")
    node = NODE + 'identity = "key"\n'
    trust = f'[[secure]]\nname = "secure"\ntrust = "{made.identifier}"\n'
    (found,) = plan(tmp_path, node + trust).secure
    assert (found.name, found.trust) == ("secure", {made.identifier})
    (found,) = plan(tmp_path, node + '[[secure]]\nname = "secure"\nanyone = true\n').secure
    assert found.trust is ANYONE
    for text, what in (
        (node + trust + "anyone = true\n", "needs either trust or anyone"),
        (node + '[[secure]]\nname = "secure"\n', "needs either trust or anyone"),
        (NODE + trust, "the node has no identity"),
        (node + trust.replace('"I', '"x'), "is no identifier"),
        (node + trust + ECHO.replace('"echo"', '"secure"'), "already in use"),
        (node + "[[secure]]\nanyone = true\n", "secure[0].name: missing"),
    ):
        (problem,) = problems(tmp_path, text)
        assert what in str(problem)


@pytest.mark.rule("ID-5")
@async_test
async def test_a_secret_that_only_a_restart_takes_over_is_named(tmp_path: Path) -> None:
    (tmp_path / "router").write_text("one\n")
    groups = '[groups]\nvia = "gossip://127.0.0.1:1"\ntoken_file = "router"\n'
    file = write(tmp_path, NODE + LISTEN + groups)
    first = plan_from(file)
    async with running(first) as live:
        assert reload(live, first, file).restart == []
        (tmp_path / "router").write_text("two\n")
        done = reload(live, first, file)
        assert (done.problems, done.restart) == ([], ["groups"])
        assert "one" not in repr(first.services)
        write(tmp_path, NODE + LISTEN.replace(":0", ":1") + groups)
        assert reload(live, done.plan, file).restart == ["listen"]
        write(tmp_path, NODE + LISTEN + 'token = "x"\n' + groups)
        assert reload(live, done.plan, file).restart == []
