"""`waystation broker` as a process: it listens, says what is wrong, and drains when told to end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.mqtt.broker.behaviour import Client
from waystation.mqtt.broker import password_line

PROGRAM = (
    "import waystation.cli as cli; cli.COMMANDS = ('broker',); cli.main()"  # the command alone
)
WAYSTATION = (sys.executable, "-c", PROGRAM)
PATIENCE = 30


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_broker_serves_and_ends_cleanly(tmp_path: Path, how: signal.Signals) -> None:
    passwords = tmp_path / "passwords"
    passwords.write_text(password_line("garage", "secret", iterations=10) + "\n")
    with subprocess.Popen(
        [*WAYSTATION, "broker", "--passwords", str(passwords), "--metrics", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"WAYSTATION_LISTEN": "127.0.0.1:0"},
    ) as process:
        try:
            assert process.stdout
            metrics = process.stdout.readline().split()[-1]
            place = process.stdout.readline().split()[-1]
            client = Client(place)
            assert client.connect()[1] == 0x86
            client.close()
            client = Client(place)
            client.paho.username_pw_set("garage", "secret")
            client.paho.reconnect_delay_set(60, 60)
            assert client.connect()[1] == 0
            client.subscribe("a")
            client.publish("a", b"x", 1)
            assert client.next().payload == b"x"
            with urllib.request.urlopen(metrics, timeout=PATIENCE) as response:  # noqa: S310 - http
                text = response.read().decode()
            assert "waystation_broker_messages_received_total 1" in text.splitlines()
            process.send_signal(how)
            assert client.ended.get(timeout=PATIENCE).value in (0x8B, 0x80)
            words, _, counts = process.stdout.readline().partition(" ")
            assert words == "counted"
            assert json.loads(counts)["received"] == 1
            assert process.wait(PATIENCE) == 0
            client.close()
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, "--listen"),
        (("--listen", "nowhere"), 2, "host:port"),
        (("--listen", "127.0.0.1:0", "--queue", "0"), 2, "--queue"),
        (("--listen", "127.0.0.1:0", "--tls-key", __file__), 2, "--tls-certificate"),
        (("--listen", "127.0.0.1:0", "--passwords", __file__), 1, "line 1"),
        (("--listen", "192.0.2.1:1"), 1, "192.0.2.1"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_is_wrong(
    arguments: tuple[str, ...], code: int, words: str
) -> None:
    done = subprocess.run(
        [*WAYSTATION, "broker", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == code
    assert len(done.stderr.splitlines()) == 1
    assert words in done.stderr
