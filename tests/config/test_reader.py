"""Mistakes in a file: each is told with its line, its key, what is wrong and what to do."""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

import pytest
from msgspec import structs

from tests.config.files import ECHO, LISTEN, NODE, plan, problems, write
from waystation.config import check_file, plan_from
from waystation.config.reader import _types
from waystation.config.settings import Settings
from waystation.errors import LocalError

ROOT = Path(__file__).resolve().parents[2]


def test_a_small_file_is_enough(tmp_path: Path) -> None:
    made = plan(tmp_path, NODE)
    assert made.settings.node.name == "hub"
    assert made.access is None
    assert made.journal is None


@pytest.mark.parametrize(
    ("text", "line", "key", "said"),
    [
        ("", 0, "node", "missing; add [node]"),
        ("[node]", 1, "node.name", 'missing; add name = "…"'),
        ('[node]\nnam = "a"\nname = "b"', 2, "node.nam", "unknown key; did you mean `name`?"),
        (f"{NODE}zebra = 1", 3, "node.zebra", "unknown key; known keys: token, token_file"),
        (f"{NODE}[stattus]", 3, "stattus", "unknown key; did you mean `status`?"),
        (
            f"{NODE}hub = 'yes'",
            3,
            "node.hub",
            "expected true or false, found 'yes'; meaning: accept participants",
        ),
        (f"{NODE}hop_limit = 0", 3, "node.hop_limit", "a whole number from 1 on, found 0"),
        (f"{NODE}hop_limit = true", 3, "node.hop_limit", "whole number from 1 on, found true"),
        (f"{NODE}drain = -1", 3, "node.drain", "expected a number from 0 on, found -1"),
        (f"{NODE}drain = nan", 3, "node.drain", "expected a number from 0 on, found nan"),
        (f"{NODE}[listen]\nurl='a'", 3, "listen", "a list of tables, found a table; write [[li"),
        (f"{NODE}listen = 3", 3, "node.listen", "unknown key"),
        (f"listen = [3]\n{NODE}", 1, "listen[0]", "expected a table, found 3"),
        (f"{NODE}[[limits]]", 3, "limits", "expected a table, found a list; write [limits]"),
        (f"{NODE}[[parent]]\nurl = [\n'tcp://a:1',\n3]", 6, "parent[0].url[1]", "expected text or"),
        (f"{NODE}[[parent]]\nurl = []", 4, "parent[0].url", "expected text or a list of text"),
        (f"{NODE}[[parent]]\nurl='tcp://a:1'\ntls=3", 5, "parent[0].tls", "a table or true or fal"),
        (f"{NODE}[journal]\ndirectory='J'\nfsync='x'", 5, "journal.fsync", '"never" or "seal"'),
        (f"{NODE}[journal]\ndirectory='J'\nsample=2", 5, "journal.sample", "a number from 0 to 1"),
        (f"{NODE}x = = 1", 3, "", "invalid TOML: Invalid value"),
        (f"{NODE}x = '", 3, "", "invalid TOML:"),
        (f"{NODE}[node]", 3, "", "invalid TOML: Cannot declare"),
        (f"{NODE}token = 12", 3, "node.token", "expected text, found another type"),
    ],
)
def test_a_mistake_is_told_with_its_line_and_its_key(
    tmp_path: Path, text: str, line: int, key: str, said: str
) -> None:
    [problem] = problems(tmp_path, text)
    assert (problem.line, problem.key) == (line, key)
    assert said in str(problem)
    assert str(problem).startswith(f"{tmp_path}/node.toml:{line}: {key}" if line else str(tmp_path))
    assert "\n" not in str(problem)


def test_secrets_are_not_repeated_in_a_mistake(tmp_path: Path) -> None:
    [problem] = problems(tmp_path, f"{NODE}token = 8472")
    assert "8472" not in str(problem)


def test_all_mistakes_are_told_together_in_the_order_of_the_lines(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        """\
        [node]
        nam = "hub"
        [[listen]]
        url = 3
        [[worker]]
        handler = "a:b"
        [status]
        enabled = "on"
        """,
    )
    assert [(problem.line, problem.key) for problem in found] == [
        (1, "node.name"),
        (2, "node.nam"),
        (4, "listen[0].url"),
        (5, "worker[0].names"),
        (8, "status.enabled"),
    ]


def test_a_file_that_cannot_be_read_is_told_of_too(tmp_path: Path) -> None:
    [missing] = check_file(tmp_path / "none.toml")[1]
    assert "No such file" in str(missing)
    (tmp_path / "latin.toml").write_bytes(b'[node]\nname = "\xe9"')
    [foreign] = check_file(tmp_path / "latin.toml")[1]
    assert "not valid UTF-8" in str(foreign)


def test_a_caller_gets_one_error_with_all_mistakes(tmp_path: Path) -> None:
    file = write(tmp_path, "[node]\nhub = 1\n")
    with pytest.raises(LocalError) as error:
        plan_from(file)
    assert f"{file}:1: node.name" in str(error.value)
    assert f"{file}:2: node.hub" in str(error.value)
    assert plan_from(write(tmp_path, NODE + LISTEN + ECHO)).listeners


def test_the_example_is_right() -> None:
    made, found = check_file(ROOT / "examples/node.toml")
    assert found == []
    assert made is not None


STRANGE = [
    *(
        "0",
        "-1",
        "1e400",
        "nan",
        '""',
        '"x"',
        '"\\u0000"',
        "true",
        "[]",
        "[[]]",
        "[1]",
        '["a", "b"]',
    ),
    *("{}", "{a = 1}", "1979-05-27", "07:32:00", "99999999999999999999", '"' + "x" * 300 + '"'),
]


USUAL = {
    "node": ['name = "hub"'],
    "listen": ['url = "tcp://127.0.0.1:0"'],
    "connect": ['url = "tcp://127.0.0.1:1"'],
    "parent": ['url = "tcp://127.0.0.1:1"'],
    "worker": ['names = "a"', 'handler = "waystation.config.workers:echo"'],
    "access": ['allow = "*"', 'to = "*"'],
    "journal": ['directory = "J"'],
    "mqtt": ['url = "mqtt://127.0.0.1:1"', 'topic = "a"'],
    "groups": ['via = "gossip://127.0.0.1:1"'],
}


@pytest.mark.parametrize("field", structs.fields(Settings), ids=lambda field: field.name)
def test_no_value_of_any_key_is_more_than_a_mistake(
    tmp_path: Path, field: structs.FieldInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    many = str(field.type).startswith("tuple")
    header = f"[[{field.name}]]" if many else f"[{field.name}]"
    [table] = {kind for kind in _types(field.type) if kind not in (type(None), ...)}
    node = "" if field.name == "node" else NODE
    for inner, value in product(structs.fields(table), STRANGE):
        others = "\n".join(
            line for line in USUAL.get(field.name, ()) if not line.startswith(f"{inner.name} ")
        )
        file = write(tmp_path, f"{node}{header}\n{inner.name} = {value}\n{others}\n")
        made, found = check_file(file)
        assert (made is None) == bool(found)
        assert all(problem.key for problem in found)
