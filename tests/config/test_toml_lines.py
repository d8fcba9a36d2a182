from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.config.toml_lines import KeyPath, key_lines, path_text

ROOT = Path(__file__).resolve().parents[2]

EVERYTHING = '''\
# a comment = "with a key"
title = "a # no comment [no.table]"
dotted.key."quo.ted" . 'lit"eral' = 1

[ table ] # comment
text = """
[not.a.table]
key = \\"""not a key\\"""
"quoted" """""
other = \'\'\'
[[no]]
'it''s' \'\'\'
list = [ 1, # one
  2, "x, ]",
  [3,
   4], { a = 1, b = [ 5,
  6 ] },
]
when = 2026-05-01 12:00:00 # with a space
inline = { x = "}", "y z" = { k = 'v' } }
empty = []
nothing = {}
[[many]]
a = 1
[many.sub]
b = 1
[[many.deep]]
c = 1
[[many.deep]]
c = 2
[[many]]
a = 2
[[many.deep]]
c = 3
[a."b c".d]
"\\u00e9" = true
last = -0.5e3'''


def paths_in(value: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    if path:
        yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from paths_in(inner, (*path, key))
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            yield from paths_in(inner, (*path, position))


def line(text: str, path: KeyPath) -> str:
    return text.split("\n")[key_lines(text)[path] - 1]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_every_value_of_a_text_has_a_line_and_nothing_else_has(newline: str) -> None:
    text = EVERYTHING.replace("\n", newline)
    assert set(key_lines(text)) == set(paths_in(tomllib.loads(text)))


@pytest.mark.parametrize(
    ("path", "start"),
    [
        (("title",), "title"),
        (("dotted", "key", "quo.ted", 'lit"eral'), "dotted"),
        (("table",), "[ table ]"),
        (("table", "other"), "other ="),
        (("table", "list", 0), "list = [ 1"),
        (("table", "list", 2), '  2, "x'),
        (("table", "list", 3, 1), "   4]"),
        (("table", "list", 4, "b", 1), "  6 ]"),
        (("table", "inline", "y z", "k"), "inline ="),
        (("many",), "[[many]]"),
        (("many", 0, "sub", "b"), "b = 1"),
        (("many", 0, "deep", 1, "c"), "c = 2"),
        (("many", 1, "deep", 0, "c"), "c = 3"),
        (("a", "b c", "d", "é"), '"\\u00e9"'),
        (("a", "b c", "d", "last"), "last"),
    ],
)
def test_the_line_is_the_one_where_the_value_stands(path: KeyPath, start: str) -> None:
    assert line(EVERYTHING, path).startswith(start)


def test_files_from_life_are_understood() -> None:
    for path in (ROOT / "pyproject.toml", ROOT / "src/waystation/rules/rules.toml"):
        text = path.read_text("utf-8")
        assert set(key_lines(text)) == set(paths_in(tomllib.loads(text)))


def test_a_text_without_keys_has_no_lines() -> None:
    assert key_lines("") == {}
    assert key_lines("# only a comment") == {}


def test_a_path_reads_as_in_a_program() -> None:
    assert path_text(("listen", 0, "tls", "key")) == "listen[0].tls.key"


SPACES = ["", " ", "\t "]
BREAKS = ["", " ", "\n", "\n# ] } =\n"]
KEYS = ["a", "b-1", "2", '"q k"', "'l.t'", '"e\\"s"', '"\\u0041"', '""', "'#'", '"[x]"']
PLAIN = ["1", "-2.5e3", "true", "1979-05-27 07:32:00", "inf", '"# ] }"', "'\\'", '"\\""', "''"]
LONG = ['"""\n[a]\nk = 1 # "" \\""" x"""', "'''\n[[b]]\n'' x'''", '""""a"""""', '"""a\\\n b"""']


def a_key(random: Random) -> str:
    return " . ".join(random.choice(KEYS) for _ in range(random.randint(1, 3)))


def a_value(random: Random, depth: int = 0) -> str:
    kind = random.random()
    if kind < 0.5 or depth > 3:
        return random.choice(PLAIN + LONG)
    count = random.randint(0, 3)
    if kind < 0.8:
        inside = [a_value(random, depth + 1) for _ in range(count)]
        gap = random.choice(BREAKS)
        return f"[{gap}{f'{gap},{gap}'.join(inside)}{gap}]"
    pairs = [f"{a_key(random)} = {a_value(random, depth + 1)}" for _ in range(count)]
    return f"{{ {' , '.join(pairs)} }}"


def a_line(random: Random) -> str:
    space, kind = random.choice(SPACES), random.random()
    if kind < 0.2:
        return f"{space}[{space}{a_key(random)}{space}]{space}# [c]\n"
    if kind < 0.5:
        return f"{space}[[{space}{a_key(random)}{space}]]\n"
    return f"{space}{a_key(random)}{space}={space}{a_value(random)}{space}\n"


@given(st.randoms(use_true_random=False))
def test_whatever_tomllib_reads_has_its_lines(random: Random) -> None:
    text = "".join(a_line(random) for _ in range(random.randint(0, 6)))
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError:  # as when a key comes twice
        return
    assert set(key_lines(text)) == set(paths_in(found))
