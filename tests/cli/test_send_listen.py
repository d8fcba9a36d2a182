"""`waystation send` and `waystation listen`: to try things, and in scripts."""

from __future__ import annotations

import io
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.cli.live_commands import PATIENCE, Commands, Served, served, started
from waystation.testing import wait_until

HUB = """\
[node]
name = "hub"
hub = true
[[listen]]
url = "tcp://127.0.0.1:0"
[[worker]]
names = "echo"
handler = "waystation.config.workers:echo"
[[access]]
deny = "*"
to = "admin"
[[access]]
allow = "*"
to = "*"
"""


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capsys)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("hub"), HUB) as node:
        yield node


def test_a_request_prints_the_answer_and_nothing_else(hub: Served, call: Commands) -> None:
    assert call("send", "echo", "hello", "--via", hub.url, "--request") == (0, "hello\n", "")


def test_a_route_can_name_the_place_itself(hub: Served, call: Commands) -> None:
    place = hub.url.removeprefix("tcp://")
    assert call("send", f"tcp#{place} => echo", "hello", "--request") == (0, "hello\n", "")


def test_a_message_prints_its_outcome_and_its_id(hub: Served, call: Commands) -> None:
    code, out, err = call("send", "echo", "hello", "--via", hub.url)
    outcome, id = out.split()
    assert (code, outcome, len(id), err) == (0, "FORWARDED", 32, "")


def test_many_messages_print_a_sum(hub: Served, call: Commands) -> None:
    code, out, _ = call("send", "echo", "x", "--via", hub.url, "--count", "50", "--rate", "5000")
    assert code == 0
    assert out.startswith("50 messages in ")
    assert out.endswith(": FORWARDED 50\n")


def test_json_tells_all_and_nothing_else(hub: Served, call: Commands) -> None:
    arguments = ("--via", hub.url, "--count", "3", "--request", "--json")
    code, out, err = call("send", "echo", "hi", *arguments)
    told = json.loads(out)
    assert (code, err) == (0, "")
    assert told["messages"] == 3
    assert told["outcomes"] == {"FORWARDED": 3}
    assert told["dropped"] == 0
    assert told["answers"] == [{"payload": "hi"}] * 3


def test_the_payload_can_come_from_stdin_as_it_is(
    hub: Served, call: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = bytes(range(256))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
    code, out, _ = call("send", "echo", "-", "--via", hub.url, "--request", "--json")
    assert code == 0
    [answer] = json.loads(out)["answers"]
    assert list(answer) == ["payload_base64"]


def test_a_drop_is_exit_1_with_its_reason(hub: Served, call: Commands) -> None:
    for name, reason in [("admin", "REFUSED"), ("nobody", "NO_ROUTE")]:
        code, out, err = call("send", name, "x", "--via", hub.url, "--request")
        assert (code, out) == (1, "")
        assert reason in err
        assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("send",), 2, "ROUTE"),
        (("send", "echo", "x", "--via", "nowhere"), 2, "start with tcp://"),
        (("send", "echo", "x", "--via", "tcp://127.0.0.1"), 2, "host:port"),
        (("send", "echo", "x", "--count", "0"), 2, "--count"),
        (("send", "a/b", "x", "--publish", "--request"), 2, "exclude each other"),
        (("send", "a/b", "x", "--publish"), 2, "--via"),
        (("send", "tcp#a:1", "--token", "a", "--token-file", __file__), 2, "--token-file"),
        (("send", "tcp#a:1", "--token-file", "/dev/null"), 2, "--token-file"),
        (("send", "e cho", "x"), 2, "white space"),
        (("send", "echo", "--tls-certificate", __file__, "--via", "tcp://127.0.0.1:1"), 1, "TLS"),
        (("send", "echo", "--tls", "--via", "udp://127.0.0.1:1"), 2, "udp does not support TLS"),
        (("send", "echo", "--via", "tcp://127.0.0.1:1", "--wait", "0.2"), 1, "cannot connect"),
        (("listen", "me"), 2, "--parent"),
        (("listen", "me", "--at", "tcp://127.0.0.1:0", "--subscribe", "a"), 2, "--subscribe"),
        (
            ("listen", "me", "--at", "tcp://127.0.0.1:0", "--subscribe", "*"),
            2,
            "does not name a broadcast",
        ),
        (("listen", "waystation.me", "--at", "tcp://127.0.0.1:0"), 1, "cannot be the name"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_is_wrong(
    call: Commands, arguments: tuple[str, ...], code: int, words: str
) -> None:
    ended, out, err = call(*arguments)
    assert (ended, out) == (code, "")
    assert words in err
    assert len(err.splitlines()) == 1


def test_a_listener_prints_what_comes_and_answers(call: Commands) -> None:
    arguments = ("listen", "desk", "--at", "tcp://127.0.0.1:0", "--echo", "--count", "2")
    with started(*arguments, ready="listening on") as (process, lines):
        url = lines[-1].removeprefix("listening on ")
        assert call("send", "desk", "ring\x1b[31m", "--via", url, "--request")[0] == 0
        call("send", "desk", "x" * 1000, "--via", url)
        assert process.wait(PATIENCE) == 0
        assert process.stdout
        first, second = process.stdout.read().splitlines()
        assert " desk from tcp-" in first
        assert first.rpartition(": ")[2].endswith("b'ring\\x1b[31m'")
        assert second.endswith("x… (1000 bytes)")


def test_a_leaf_is_reached_through_its_hub_and_hears_broadcasts(
    hub: Served, call: Commands
) -> None:
    arguments = ("listen", "truck-7", "--parent", hub.url, "--subscribe", "fleet/news/*", "--json")
    with started(*arguments, ready="connected to hub") as (process, _):
        assert process.stdout
        assert hub.node
        router = hub.node.router
        wait_until(lambda: router.table.lookup("truck-7", 0) and router.subscriptions.patterns())
        call("send", "truck-7", "hello", "--via", hub.url)
        told = json.loads(process.stdout.readline())
        assert (told["payload"], told["onward"]) == ("hello", ["0#truck-7"])
        code, out, _ = call("send", "fleet/news/eu", "snow", "--publish", "--via", hub.url)
        assert (code, out.split()[0]) == (0, "FORWARDED")
        told = json.loads(process.stdout.readline())
        assert (told["payload"], told["subscription"]) == ("snow", "fleet/news/*")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0


def test_tokens_and_certificates_are_options(tmp_path: Path, call: Commands) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "hub.pem")
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    (tmp_path / "token").write_text("secret\n")
    text = HUB.replace('"hub"', '"hub"\ntoken = "secret"', 1)
    with served(tmp_path, f'{text}[tls]\ncertificate = "hub.pem"\n') as hub:
        arguments = ["send", "echo", "hi", "--via", hub.url, "--request"]
        trust = ["--tls-authorities", str(tmp_path / "authority.pem")]
        for token in (["--token", "secret"], ["--token-file", str(tmp_path / "token")]):
            assert call(*arguments, *trust, *token) == (0, "hi\n", "")
        for wrong in ([*trust, "--token", "guess"], ["--token", "secret"]):
            code, _, err = call(*arguments, *wrong, "--wait", "0.5")
            assert (code, "cannot connect" in err) == (1, True)
