"""What a file leads to, and what is found wrong before anything runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import trustme

from tests.config.files import ECHO, LISTEN, NODE, plan, problems
from waystation.config.settings import LimitsTable
from waystation.config.workers import echo, make_handler
from waystation.core.address import Address, Route
from waystation.errors import LocalError
from waystation.node import Limits
from waystation.transports.tcp import Tcp


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(tmp_path / "hub.key")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "hub.pem")
    return tmp_path


TLS = '[tls]\ncertificate = "hub.pem"\nkey = "hub.key"\nauthorities = "authority.pem"\n'


@pytest.mark.parametrize(
    ("text", "line", "key", "said"),
    [
        ("[[listen]]\nurl = 'x'", 4, "listen[0].url", "start with tcp://, ws://"),
        ("[[listen]]\nurl = 'wss://a:1'", 4, "listen[0].url", "write ws:// and configure TLS"),
        ("[[listen]]\nurl = 'tcp://a'", 4, "listen[0].url", "write host:port"),
        ("[[connect]]\nurl = ['tcp://a:1', 'udp://a:1']", 4, "connect[0].url", "different schemes"),
        ("[[listen]]\nurl = 'tcp://a:1'\ntls = true", 4, "listen[0].url", "there is no [tls]"),
        ("token = 'a'\ntoken_env = 'B'", 1, "node", "has both token and token_env; give only one"),
        ("token_env = 'WAYSTATION_NO'", 3, "node.token_env", "variable WAYSTATION_NO is empty"),
        ("token_file = 'none'", 3, "node.token_file", "none: No such file or directory; give"),
        ("token_file = 'latin'", 3, "node.token_file", "'latin' cannot be read"),
        ("token_file = 'empty'", 3, "node.token_file", "the first line of empty is empty"),
        ("metrics = 'here'", 3, "node.metrics", "invalid address 'here'; write host"),
        ("[[access]]\nto = 'a'", 3, "access[0]", "needs either allow or deny"),
        ("[[access]]\nallow='a'\ndeny='b'\nto='a'", 3, "access[0]", "needs either allow or de"),
        ("[directory]\nhost = true\nask = 'a'", 5, "directory.ask", "hosts the directory itself"),
        ("[limits.tcp]\nfram = 1", 4, "limits.tcp.fram", "did you mean `frame`?"),
        ("[limits.tcp]\nframe = 'x'", 4, "limits.tcp.frame", "expected a whole number, found 'x'"),
        ("[limits.ws]\nfram = 1", 4, "limits.ws.fram", "did you mean `frame`?"),
        ("[journal]\ndirectory='J'\n[[parent]]\nurl='x'", 6, "parent[0].url", "unsupported URL"),
    ],
)
def test_what_cannot_work_is_told_before_the_node_runs(
    tmp_path: Path, text: str, line: int, key: str, said: str
) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "latin").write_bytes(b"\xe9")
    [problem] = problems(tmp_path, NODE + text)
    assert (problem.line, problem.key) == (line, key)
    assert said in str(problem)


@pytest.mark.parametrize(
    ("worker", "key", "said"),
    [
        ("handler = 'nowhere'", "handler", "write package.module:function"),
        ("handler = 'no_such_module_here:f'", "handler", "cannot be imported (ModuleNotFound"),
        ("handler = 'broken_worker_module:f'", "handler", "(ZeroDivisionError: division by zero)"),
        ("handler = 'tempfile:nothing'", "handler", "tempfile has no function or class 'nothing'"),
        ("handler = 'tempfile:tempdir'", "handler", "tempfile has no function or class 'tempdir'"),
        (
            "handler = 'waystation.config.workers:echo'\noptions = {speed = 3}",
            "options",
            "echo cannot be called with these options (got an unexpected keyword argument 'speed')",
        ),
    ],
)
def test_a_worker_that_cannot_be_found_is_a_mistake(
    tmp_path: Path, worker: str, key: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "broken_worker_module.py").write_text("1 / 0")
    [problem] = problems(tmp_path, f"{NODE}path = '.'\n[[worker]]\nnames = 'a'\n{worker}")
    assert problem.key == f"worker[0].{key}"
    assert said in str(problem)


def test_two_of_one_name_are_a_mistake(tmp_path: Path) -> None:
    connect = '[[connect]]\nurl = "tcp://127.0.0.1:1"\nname = "echo"\n'
    found = problems(tmp_path, NODE + ECHO + ECHO + connect + connect.replace("echo", "e e"))
    assert [problem.key for problem in found] == [
        "worker[1].names",
        "connect[0].name",
        "connect[1].name",
    ]
    assert "'echo' is already in use; choose another name" in str(found[0])


def test_a_node_that_cannot_have_a_journal_is_told_of(tmp_path: Path) -> None:
    [problem] = problems(tmp_path, f"[node]\nname = '{'x' * 300}'\n[journal]\ndirectory = 'J'")
    assert (problem.line, problem.key) == (2, "node.name")


def test_files_and_secrets_are_found(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYSTATION_TEST_SECRET", "from the environment")
    (certificates / "secret").write_text("from a file\nand more\n")
    made = plan(
        certificates,
        """\
        [node]
        name = "hub"
        token_file = "secret"
        [[listen]]
        url = "tcp://127.0.0.1:0"
        token_env = "WAYSTATION_TEST_SECRET"
        [[connect]]
        url = "tcp://127.0.0.1:1"
        token = "written down"
        [journal]
        directory = "J"
        keep_age = 60
        """
        + TLS.replace("\n", "\n        "),
    )
    assert made.token == "from a file"  # noqa: S105
    assert made.listeners[0].token == "from the environment"  # noqa: S105
    assert made.connections[0].token == "written down"  # noqa: S105
    assert made.journal is not None
    assert made.journal["directory"] == certificates / "J"
    assert made.journal["keep_age"] == 60


def test_every_listener_and_peer_may_have_its_own_tls(certificates: Path) -> None:
    listen = '[[listen]]\nurl = "tcp://127.0.0.1:{}"\n'
    plain = listen.format(1) + "tls = false\n"
    own = listen.format(2) + 'tls = {certificate = "hub.pem", key = "hub.key"}\n'
    made = plan(certificates, NODE + TLS + listen.format(0) + plain + own)
    [transport] = made.transports
    assert not isinstance(transport, Tcp)
    assert transport.type_name == "tcp"


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ('[[listen]]\nurl = "udp://127.0.0.1:0"', "listen[0].url", "udp does not support TLS"),
        (
            '[[listen]]\nurl = "tcp://127.0.0.1:0"\ntls = {certificate = "none.pem"}',
            "listen[0].tls",
            "the TLS files",
        ),
        (
            '[[listen]]\nurl = "tcp://127.0.0.1:0"\ntls = {authorities = "authority.pem"}',
            "listen[0].tls",
            "a TLS listener has no certificate",
        ),
        (
            '[[listen]]\nurl = "tcp://127.0.0.1:0"\ntls = {certificate = "\\u0000"}',
            "listen[0].tls",
            "null",
        ),
        (
            '[[listen]]\nurl = "tcp://a:1"\ntls = false\n[[listen]]\nurl = "tcp://a:1"\ntls = true',
            "listen[1].url",
            "conflicting TLS settings for a:1",
        ),
    ],
)
def test_certificates_that_cannot_work_are_told_of(
    certificates: Path, text: str, key: str, said: str
) -> None:
    [problem] = problems(certificates, NODE + TLS + text)
    assert problem.key == key
    assert said in str(problem)


def test_access_rules_know_the_types_of_the_node(tmp_path: Path) -> None:
    rules = '[[access]]\nallow = "a"\nto = ["tcp#10.*", "echo"]\n'
    access = plan(tmp_path, NODE + LISTEN + rules).access
    assert access is not None
    assert access.admits("a", Route((Address(1, b"10.0.0.1:1"), Address(0, b"echo"))))
    assert not access.admits("b", Route.parse("echo"))


def test_the_limits_of_the_file_are_those_of_the_node(tmp_path: Path) -> None:
    made = plan(tmp_path, f"{NODE}[limits]\nsessions = 7\nheartbeat = 0\n[limits.tcp]\nframe = 99")
    assert made.limits == Limits(sessions=7, heartbeat=0)
    [tcp] = made.transports
    assert isinstance(tcp, Tcp)
    assert tcp.limits.frame == 99
    of_transports = {"tcp", "ws", "udp", "http", "joynr"}
    assert set(LimitsTable.__struct_fields__) == {*Limits.__struct_fields__, *of_transports}


def test_options_reach_the_worker() -> None:
    class Counter:
        def __init__(self, start: int) -> None:
            if start < 0:
                raise ValueError("too small")
            self.value = start

        def __call__(self, message: object, context: object) -> None: ...

    assert make_handler(echo, {}) is echo
    assert make_handler(Counter, {"start": 3}).value == 3  # type: ignore[attr-defined]
    assert make_handler(echo, {"speed": 3}).keywords == {"speed": 3}  # type: ignore[attr-defined]
    with pytest.raises(LocalError, match="Counter cannot be created"):
        make_handler(Counter, {"start": -1})
