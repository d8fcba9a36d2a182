"""What tests of configuration files share."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from waystation.config import Plan, Problem, check_file

NODE = '[node]\nname = "hub"\n'
ECHO = '[[worker]]\nnames = "echo"\nhandler = "waystation.config.workers:echo"\n'
LISTEN = '[[listen]]\nurl = "tcp://127.0.0.1:0"\n'


def write(directory: Path, text: str, *, name: str = "node.toml") -> Path:
    """A file with this text."""
    path = directory / name
    path.write_text(dedent(text), "utf-8")
    return path


def problems(directory: Path, text: str) -> list[Problem]:
    """What is wrong with a file."""
    plan, found = check_file(write(directory, text))
    assert (plan is None) == bool(found)
    return found


def plan(directory: Path, text: str) -> Plan:
    """The plan of a file that is right."""
    made, found = check_file(write(directory, text))
    assert made is not None, found
    return made
