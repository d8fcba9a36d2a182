"""`waystation console` as a process: it serves, reports errors, and ends when told to."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.cli.live_commands import PATIENCE, Commands, served, started

HUB = """\
[node]
name = "hub"
[[listen]]
url = "tcp://127.0.0.1:0"
[status]
enabled = true
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_it_shows_a_fleet_and_ends_cleanly(tmp_path: Path, how: signal.Signals) -> None:
    with served(tmp_path, HUB) as hub:
        options = ("--listen", "127.0.0.1:0", "--interval", "0.05")
        variables = {"WAYSTATION_CONNECT": hub.url}
        with started("console", *options, ready="console is at", **variables) as (process, lines):
            url = lines[-1].split()[-1]
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", url)
            with urllib.request.urlopen(url, timeout=PATIENCE) as page:  # noqa: S310
                assert hub.url in page.read().decode()
            process.send_signal(how)
            assert process.stdout
            assert process.stdout.read() == ""
            assert process.wait(PATIENCE) == 0


def test_on_other_addresses_than_loopback_a_token_is_generated_and_printed() -> None:
    # Another spelling of a loopback address does not count as loopback, like any name.
    options = ("--listen", "127.1:0", "--connect", "tcp://127.0.0.1:1")
    with started("console", *options, ready="console is at") as (process, lines):
        found = re.search(r"(http://127\.0\.0\.1:\d+/login\?token=)(\S{20,})$", lines[-1])
        assert found
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"{found[1]}guess", timeout=PATIENCE)  # noqa: S310
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capsys)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, "--connect"),
        (("--connect", "nowhere"), 2, "tcp://"),
        (("--connect", "tcp://a:1", "--listen", "nowhere"), 2, "host:port"),
        (("--connect", "tcp://a:1", "--journal", "/no/such"), 2, "--journal"),
        (("--connect", "tcp://a:1", "--page-token", "short"), 1, "16 characters"),
        (("--connect", "tcp://a:1", "--listen", "192.0.2.1:1"), 1, "192.0.2.1"),
    ],
)
def test_a_mistake_is_one_line(
    call: Commands, arguments: tuple[str, ...], code: int, words: str
) -> None:
    found, out, line = call("console", *arguments)
    assert (found, out, len(line.splitlines())) == (code, "", 1)
    assert words in line


def test_a_port_in_use_is_one_line(call: Commands) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        code, out, line = call("console", "--connect", "tcp://127.0.0.1:1", "--listen", place)
    assert (code, out, len(line.splitlines())) == (1, "", 1)
    assert "cannot listen" in line


def test_without_the_extra_it_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['jinja2'] = None\n"
        "import importlib.util as util; found = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'jinja2' else found(name, *rest)\n"
        "from waystation.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "console", "--connect", "tcp://127.0.0.1:1"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
    assert "pip install 'waystation[console]'" in done.stderr
