"""`waystation node`: --check explains grants, SIGHUP reads them again, and no secret is shown."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from mqtt5 import ConnectPacket

from tests.cli.live_commands import PATIENCE, Commands, started
from tests.gossip_router.clients import uuid
from waystation.journal.read import JournalReader
from waystation.mqtt.broker import password_line
from waystation.net.place import parse_place
from waystation.node import keyfile
from waystation.wire.jgroups5 import Heartbeat, Register, encode

CANARY = "c4n4ry-swordfish-e7d1"
FILE = """\
[node]
name = "hub"
hub = true
identity = "key"
token_env = "HUB_TOKEN"
metrics = "127.0.0.1:0"
[[listen]]
url = "tcp://127.0.0.1:0"
[[token]]
names = "truck-*"
token_file = "trucks"
[[grant]]
token = "truck-*"
announce = "truck-*"
send = ["echo"]
[[grant]]
anyone = true
send = "echo"
[[worker]]
names = "echo"
handler = "waystation.config.workers:echo"
[journal]
directory = "J"
flush_seconds = 0.05
"""


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capsys)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    keyfile.create(tmp_path / "key")
    (tmp_path / "trucks").write_text(f"{CANARY}-trucks\n")
    monkeypatch.setenv("HUB_TOKEN", f"{CANARY}-hub")
    path = tmp_path / "node.toml"
    path.write_text(FILE)
    return path


@pytest.mark.rule("ID-3")
def test_check_explains_what_is_granted(file: Path, call: Commands) -> None:
    code, out, _ = call("node", "--config", str(file), "--check")
    assert code == 0
    assert "  token truck-* may announce truck-*; send echo\n  anyone may send echo\n" in out
    asked = ("node", "--config", str(file), "--check", "--may")
    _, out, _ = call(*asked, "anyone", "announce", "truck-7")
    assert "an unproven peer may not announce truck-7: that is granted to token truck-* only" in out
    _, out, _ = call(*asked, "token:truck-*", "announce", "truck-7")
    assert "token:truck-* may announce truck-7" in out
    _, out, _ = call(*asked, "certificate:car", "send", "admin")
    assert "certificate:car may not send admin: no grant gives it to anybody" in out
    _, out, _ = call(*asked, "mallory", "announce", "truck-7")
    assert "mallory may not announce truck-7: that is granted to token truck-* only" in out
    _, out, _ = call(*asked, "truck-7", "announce", "truck-7")
    assert "token:truck-* may announce truck-7: token truck-* may announce truck-*" in out
    code, _, error = call(*asked, "I" + "0" * 63, "announce", "truck-7")
    assert (code, "is no identifier" in error) == (1, True)
    code, _, error = call(*asked, "anyone", "fly", "truck-7")
    assert (code, "cannot be granted" in error) == (1, True)
    file.write_text('[node]\nname = "hub"\n')
    _, out, _ = call(*asked, "anyone", "announce", "truck-7")
    assert "there are no grants" in out


@pytest.mark.rule("ID-5")
def test_sighup_reads_the_file_again(file: Path, call: Commands) -> None:
    with started("node", "--config", str(file), ready="is ready") as (process, lines):
        url = next(line for line in lines if line.startswith("listening")).split()[-1]
        sent = ("send", "echo", "hello", "--via", url, "--request", "--token", f"{CANARY}-hub")
        assert call(*sent)[:2] == (0, "hello\n")
        assert process.stdout
        file.write_text(FILE.replace('send = "echo"', "send = 3"))
        process.send_signal(signal.SIGHUP)
        assert "not reloaded" in process.stdout.readline()
        assert call(*sent)[:2] == (0, "hello\n")
        file.write_text(FILE.replace('send = "echo"', 'send = "other"'))
        process.send_signal(signal.SIGHUP)
        assert "was read again" in process.stdout.readline()
        code, _, error = call(*sent)
        assert (code, "REFUSED" in error) == (1, True)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


@pytest.mark.rule("ID-5")
def test_no_secret_is_in_logs_journals_errors_or_process_lists(file: Path, call: Commands) -> None:
    key = json.loads((file.parent / "key").read_text())["key"]
    secrets = (CANARY, key)
    seen: list[str] = []
    with started("node", "--config", str(file), "--verbose", ready="is ready") as (process, lines):
        url = next(line for line in lines if line.startswith("listening")).split()[-1]
        sent = ("send", "echo", "hello", "--via", url, "--request")
        os.environ["WAYSTATION_TOKEN"] = f"{CANARY}-hub"
        try:
            assert call(*sent)[:2] == (0, "hello\n")
            os.environ["WAYSTATION_TOKEN"] = f"{CANARY}-wrong"
            seen += map(str, call(*sent))
        finally:
            del os.environ["WAYSTATION_TOKEN"]
        file.write_text(FILE + "[nonsense]\n")
        process.send_signal(signal.SIGHUP)
        keyfile.rotate(file.parent / "key")
        file.write_text(FILE)
        process.send_signal(signal.SIGHUP)
        listed = subprocess.run(["ps", "axww"], capture_output=True, text=True, check=False)  # noqa: S607
        seen.append(listed.stdout or Path(f"/proc/{process.pid}/cmdline").read_text())
        process.send_signal(signal.SIGTERM)
        assert process.stdout
        seen += [*lines, process.stdout.read()]
        assert process.wait(PATIENCE) == 0
    seen.append(repr(call("node", "--config", str(file), "--check")))
    seen.append(repr(call("identity", "show", str(file.parent / "key"))))
    (file.parent / "key").chmod(0o644)
    seen.append(repr(call("node", "--config", str(file), "--check")))
    text = "\n".join(seen).encode()
    text += b"".join(each.read_bytes() for each in (file.parent / "J").rglob("*") if each.is_file())
    key = json.loads((file.parent / "key").read_text())["key"]
    for secret in (*secrets, key):
        assert secret.encode() not in text
        if secret != CANARY:
            assert bytes.fromhex(secret) not in text


def test_no_secret_is_in_what_a_broker_or_a_gossip_router_say(tmp_path: Path) -> None:
    """Verbose ones, which are shown wrong secrets and read bad files again."""
    grants, passwords = tmp_path / "grants.toml", tmp_path / "passwords"
    secret = tmp_path / "secret"
    secret.write_text(f"{CANARY}-token\n")
    passwords.write_text(password_line("truck", f"{CANARY}-password", iterations=10) + "\n")
    grants.write_text(
        '[[token]]\nnames = "truck"\ntoken_file = "secret"\n'
        '[[grant]]\ntoken = "truck"\nregister = "club"\nsubscribe = "news/*"\n'
    )
    listen = ("--listen", "127.0.0.1:0", "--grants", str(grants), "--verbose")
    said = []
    for command in (("router", *listen), ("broker", *listen, "--passwords", str(passwords))):
        with started(*command, ready="listening on") as (process, lines):
            place = parse_place(lines[-1].split()[-1])
            for word in ("token", "wrong"):
                _show(command[0], place, f"{CANARY}-{word}")
            grants.write_text(grants.read_text() + f'token = "{CANARY}"\n')
            process.send_signal(signal.SIGHUP)
            assert process.stdout
            said += [*lines, next(line for line in process.stdout if "not reloaded" in line)]
            said.append(Path(f"/proc/{process.pid}/cmdline").read_text())
            process.send_signal(signal.SIGTERM)
            said.append(process.stdout.read())
            assert process.wait(PATIENCE) == 0
        grants.write_text(grants.read_text().replace(f'token = "{CANARY}"\n', ""))
    assert CANARY not in "\n".join(said)


@pytest.mark.rule("ID-3")
@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--grants", '[[grant]]\nanyone = true\nregister = "news"\n'),
        ("--admission", "[groups.news]\nopen = true\n"),
    ],
)
def test_a_gossip_router_journals_whom_it_does_not_admit(
    tmp_path: Path, option: str, text: str
) -> None:
    file, journal = tmp_path / "groups.toml", tmp_path / "J"
    file.write_text(text)
    kept = ("--journal", str(journal), "--name", "gate")
    command = ("router", "--listen", "127.0.0.1:0", option, str(file), *kept)
    with started(*command, ready="listening on") as (process, lines):
        place = parse_place(lines[-1].split()[-1])
        _show("router", place, "guess")  # it asks for the group club
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    entries = list(JournalReader(journal, lambda *_: None).entries())
    assert {entry.node for entry in entries} == {"gate"}
    [denied] = [entry.fields for entry in entries if entry.table == "sessions"]
    assert (denied["kind"], denied["reason"]) == ("denied", "REFUSED")
    assert (denied["detail"], denied["identity"]) == ("register club", None)
    assert "127.0.0.1" in denied["place"]


def _show(kind: str, place: tuple[str, int], secret: str) -> None:
    """Show a secret to a gossip router or a broker."""
    if kind == "router":
        shown = encode(Register("club", uuid(1), token=secret.encode())) + encode(Heartbeat())
    else:
        shown = ConnectPacket("c", username="truck", password=secret.encode()).write()
    with socket.create_connection(place, PATIENCE) as peer:
        peer.settimeout(PATIENCE)
        peer.sendall(shown)
        peer.recv(1000)
