"""`waystation router` as a process: it listens, keeps a journal, and drains when told to end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest

from tests.gossip_router.clients import uuid
from waystation.demo.processes import WAYSTATION
from waystation.net.place import parse_place
from waystation.wire.jgroups5 import Heartbeat, Message, Register, Value, encode

PATIENCE = 30


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*WAYSTATION, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env=os.environ | variables,
    )


@pytest.mark.rule("OB-4")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_router_serves_keeps_a_journal_and_ends_cleanly(
    tmp_path: Path, how: signal.Signals
) -> None:
    journal = tmp_path / "J"
    with subprocess.Popen(
        [*WAYSTATION, "router", "--metrics", "127.0.0.1:0", "--journal", str(journal)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"WAYSTATION_LISTEN": "127.0.0.1:0"},
    ) as process:
        try:
            assert process.stdout
            metrics = process.stdout.readline().split()[-1]
            place = process.stdout.readline().split()[-1]
            with socket.create_connection(parse_place(place), PATIENCE) as client:
                client.settimeout(PATIENCE)
                said = Register("g", uuid(1), "A"), Message("g", uuid(2), None, b""), Heartbeat()
                client.sendall(b"".join([encode(value) for value in said]))
                assert client.recv(100) == encode(Heartbeat())
                with urllib.request.urlopen(metrics, timeout=PATIENCE) as answer:  # noqa: S310
                    assert b'members{dialect="JGroups 5"} 1' in answer.read()
                process.send_signal(how)
                assert client.recv(100) == b""
                assert client.recv(100) == b""
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
    shown = run("journal", "cat", str(journal)).stdout
    assert [line.split()[3:5] for line in shown.splitlines()] == [
        ["nodes", "start"],
        ["members", "join"],
        ["messages", "DROPPED"],
        ["nodes", "stop"],
    ]


@pytest.mark.rule("OB-4")
def test_a_journal_has_all_messages_when_it_is_asked_to(tmp_path: Path) -> None:
    journal = tmp_path / "J"
    arguments = ("--listen", "127.0.0.1:0", "--journal", str(journal), "--journal-messages")
    with subprocess.Popen(
        [*WAYSTATION, "router", *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout
            place = process.stdout.readline().split()[-1]
            with socket.create_connection(parse_place(place), PATIENCE) as client:
                client.settimeout(PATIENCE)
                said: tuple[Value, ...] = (
                    Register("g", uuid(1), "A"),
                    Message("g", uuid(1), None, b"to myself"),
                    Message("g", uuid(2), None, b"to nobody"),
                )
                client.sendall(b"".join([encode(value) for value in said]))
                assert client.recv(100) == encode(said[1])
                process.send_signal(signal.SIGTERM)
                assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
    shown = run("journal", "cat", str(journal), "--table", "messages", "--json").stdout
    rows = [json.loads(line) for line in shown.splitlines()]
    assert [row["reason"] or row["outcome"] for row in rows] == [
        "FORWARDED",
        "NO_ROUTE",
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, "--listen"),
        (("--listen", "127.0.0.1:0", "--journal-messages"), 2, "needs --journal"),
        (("--listen", "nowhere"), 2, "host:port"),
        (("--listen", "127.0.0.1:0", "--queue", "0"), 2, "--queue"),
        (("--listen", "127.0.0.1:0", "--tls-key", __file__), 2, "--tls-certificate"),
        (("--listen", "127.0.0.1:0", "--tls-certificate", __file__), 1, "TLS files"),
        (("--listen", "127.0.0.1:0", "--admission", __file__), 1, "admission file"),
        (("--listen", "192.0.2.1:1"), 1, "192.0.2.1"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_is_wrong(
    arguments: tuple[str, ...], code: int, words: str
) -> None:
    done = run("router", *arguments)
    assert done.returncode == code
    assert len(done.stderr.splitlines()) == 1
    assert words in done.stderr
