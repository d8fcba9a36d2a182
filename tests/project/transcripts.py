"""Plays the terminal sessions of a page: what stands behind `$ ` is typed, the rest must come out.

A page may hold, in this order of reading:

    Save this as `hub.toml`:        the block below it becomes that file
    ```console                      commands that end, each with what it prints
    ```console title="hub"          one command in a terminal of its own, which goes on; later
                                    `^C` in that terminal ends it, and a block without a command
                                    is what has come out there since

All of it happens in one empty directory. Ports of 127.0.0.1 are exchanged for free ones. Message
ids are those of the page: where one is printed, it, or its first eight digits, stands for that of
the page from then on.
Instants, spans of time and random names may be others.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PATIENCE = 60.0
"""Seconds after which whatever a command should print will not come any more."""

_BLOCK = re.compile(
    r"^(?P<before>[^\n]*\n)?\n?"
    r'```(?P<kind>\w+)(?: title="(?P<terminal>[^"\n]+)")?\n'
    r"(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_SAVED = re.compile(r"`([\w.-]+)`:$")
_ID = re.compile(r"\b[0-9a-f]{32}\b")
_BEGINNING = re.compile(r"\b[0-9a-f]{8}\b")
_PLACE = re.compile(r"127\.0\.0\.1:([1-9]\d*)")
_CHANGING = (
    (re.compile(r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?(Z|\b)"), "INSTANT"),
    (re.compile(r"\b\d\d:\d\d:\d\d(\.\d+)?"), "TIME"),
    (re.compile(r"\b\d+(\.\d+)?(e-?\d+)? (ms|s)\b"), "SPAN"),
    (re.compile(r"\b\d{13}-\d+\b"), "POSITION"),
    (re.compile(r"\bI[0-9a-f]{64}\b"), "IDENTIFIER"),
    (re.compile(r"\b(tcp|ws|udp|http|request)-[0-9a-f]{16}\b"), r"\1-NAME"),
)


class Step(NamedTuple):
    """One thing that a page does: save a file, type a command, press Ctrl-C, look at a terminal."""

    kind: str
    text: str
    output: str = ""
    terminal: str = ""


def steps_of(page: str) -> Iterator[Step]:
    """What a page does, in order."""
    for block in _BLOCK.finditer(page):
        kind, text = block["kind"], block["text"]
        saved = _SAVED.search((block["before"] or "").strip())
        if kind == "console":
            yield from _commands(text, block["terminal"] or "")
        elif saved:
            yield Step("file", text, saved[1])


def _commands(text: str, terminal: str) -> Iterator[Step]:
    for part in re.split(r"^(?=\$ |\^C)", text, flags=re.MULTILINE):
        line, _, output = part.partition("\n")
        if line.startswith("$ "):
            yield Step("command", line[2:], output, terminal)
        elif line == "^C":
            yield Step("interrupt", "", output, terminal)
        elif part:
            assert terminal, f"behind no command: {line!r}"
            yield Step("output", "", part, terminal)


class Desk:
    """An empty directory with terminals, in which a page is played."""

    def __init__(self, directory: Path, page: str) -> None:
        self._directory = directory
        self._ports = {port: str(_free_port()) for port in set(_PLACE.findall(page))}
        self._ids: dict[str, str] = {}
        self._running: dict[str, Running] = {}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        quiet = {name: value for name, value in os.environ.items() if "WAYSTATION" not in name}
        self._environment = {**quiet, "PATH": path}

    def play(self, step: Step) -> None:
        """Do what the page does, and see that the same comes of it."""
        if step.kind == "file":
            (self._directory / step.output).write_text(self._ours(step.text), "utf-8")
        elif step.kind == "interrupt":
            self._compare(step, self._running.pop(step.terminal).interrupt())
        elif step.kind == "output":
            self._running[step.terminal].wait_for(step.output.count("\n"))
            self._compare(step, self._running[step.terminal].said())
        elif step.terminal:
            running = Running(self._start(step.text))
            self._running[step.terminal] = running
            running.wait_for(step.output.count("\n"))
            self._compare(step, running.said())
        else:
            self._compare(step, self._run(step.text))

    def end(self) -> None:
        """End whatever is still running."""
        for running in self._running.values():
            running.kill()

    def _run(self, command: str) -> str:
        return subprocess.run(
            ["/bin/bash", "-c", self._ours(command)],
            cwd=self._directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=PATIENCE,
        ).stdout

    def _start(self, command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["/bin/bash", "-c", f"exec {self._ours(command)}"],
            cwd=self._directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _ours(self, text: str) -> str:
        """The page's words with our ports and ids."""
        text = _PLACE.sub(lambda place: f"127.0.0.1:{self._ports[place[1]]}", text)
        text = _ID.sub(lambda found: self._ids.get(found[0], found[0]), text)
        beginnings = {theirs[:8]: ours[:8] for theirs, ours in self._ids.items()}
        return _BEGINNING.sub(lambda found: beginnings.get(found[0], found[0]), text)

    def _compare(self, step: Step, said: str) -> None:
        for theirs, ours in zip(_ID.findall(step.output), _ID.findall(said), strict=False):
            self._ids.setdefault(theirs, ours)
        wanted, got = steady(self._ours(step.output)), steady(said)
        assert got == wanted, f"$ {step.text}\nprinted\n{said}\nand not\n{step.output}"


class Running:
    """A command that goes on; what it says is kept."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: list[str] = []
        self._more = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout
        with self._process.stdout:
            for line in self._process.stdout:
                with self._more:
                    self._lines.append(line)
                    self._more.notify()

    def wait_for(self, lines: int) -> None:
        """Return when it has said so many lines, or when it has had time enough."""
        with self._more:
            self._more.wait_for(lambda: len(self._lines) >= lines, PATIENCE)

    def said(self) -> str:
        """What it has said since it was last asked."""
        with self._more:
            said, self._lines = "".join(self._lines), []
        return said

    def interrupt(self) -> str:
        """Press Ctrl-C; what it had still to say, up to its end."""
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(PATIENCE)
        finally:
            self.kill()
        return self.said()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)


def steady(text: str) -> str:
    """A text without what is different each time."""
    for changing, word in _CHANGING:
        text = changing.sub(word, text)
    return "\n".join(line.rstrip() for line in text.strip().split("\n"))


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
