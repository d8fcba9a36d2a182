"""The line number of each key of a TOML text, which tomllib does not report.

The text must be valid TOML, which tomllib has checked before: this scanner only tells keys from
values. No file is opened here.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from typing import Final, TypeAlias

KeyPath: TypeAlias = tuple[str | int, ...]
"""The path from the top of a file to a value: `("listen", 0, "url")`."""

_blanks: Final = re.compile(r"(?:[ \t\r\n,]+|#[^\n]*)*").match
_bare_key: Final = re.compile(r"[A-Za-z0-9_-]+").match
_plain_value: Final = re.compile(r"[^,\]}#\n]*").match
_long_string: Final = re.compile(
    r'"""(?:[^"\\]|\\.|"{1,2}(?!"))*"{3,5}'
    r"|'''(?:[^']|'{1,2}(?!'))*'{3,5}",
    re.DOTALL,
).match
_short_string: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"' r"|'[^'\n]*'").match


def key_lines(text: str) -> dict[KeyPath, int]:
    r"""The line number of every key, table and array element, counted from 1.

    >>> key_lines('[node]\nname = "hub"\n\n[[listen]]\nurl = "…"')[("listen", 0, "url")]
    5
    """
    scanner = _Scanner(text)
    scanner.document()
    return scanner.found


def path_text(path: KeyPath) -> str:
    """A path as text.

    >>> path_text(("listen", 0, "url"))
    'listen[0].url'
    """
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(steps).removeprefix(".")


class _Scanner:
    """A single pass over a text; `_at` is the current position."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._line_ends = [match.start() for match in re.finditer("\n", text)]
        self._elements: dict[
            KeyPath, int
        ] = {}  # number of tables that each array of tables has so far
        self._at = 0
        self.found: dict[KeyPath, int] = {}

    def document(self) -> None:
        """Scan the whole text."""
        table: KeyPath = ()
        while self._skip_blanks():
            if self._text.startswith("[", self._at):
                table = self._header()
            else:
                self._pair(table)

    def _header(self) -> KeyPath:
        start = self._at
        is_array = self._text.startswith("[[", start)
        self._at += 2 if is_array else 1
        *parents, name = self._key()
        path: KeyPath = ()
        for parent in parents:
            path = self._entered((*path, parent), start)
        path = (*path, name)
        if is_array:
            self._elements[path] = self._elements.get(path, 0) + 1
            self._note(path, start)
            path = (*path, self._elements[path] - 1)
        self._note(path, start)
        self._skip_blanks()
        self._at += 2 if is_array else 1
        return path

    def _entered(self, path: KeyPath, start: int) -> KeyPath:
        """The path of a table in a header; for an array of tables, that of its last element."""
        self._note(path, start)
        return (*path, self._elements[path] - 1) if path in self._elements else path

    def _pair(self, table: KeyPath) -> None:
        start = self._at
        path = table
        for name in self._key():
            path = (*path, name)
            self._note(path, start)
        self._skip_blanks()
        self._at += 1  # =
        self._value(path)

    def _key(self) -> list[str]:
        """The parts of a dotted key."""
        parts = []
        while True:
            self._skip_blanks()
            match = _bare_key(self._text, self._at)
            if match:
                parts.append(match[0])
            else:
                match = _short_string(self._text, self._at)
                assert match, "the text is valid TOML"
                parts.append(next(iter(tomllib.loads(f"{match[0]} = 0"))))
            self._at = match.end()
            self._skip_blanks()
            if not self._text.startswith(".", self._at):
                return parts
            self._at += 1

    def _value(self, path: KeyPath) -> None:
        self._skip_blanks()
        self._note(path, self._at)
        if self._text.startswith("[", self._at):
            self._array(path)
        elif self._text.startswith("{", self._at):
            self._inline_table(path)
        else:
            match = (
                _long_string(self._text, self._at)
                or _short_string(self._text, self._at)
                or _plain_value(self._text, self._at)
            )
            assert match  # may be empty, but always matches
            self._at = match.end()

    def _array(self, path: KeyPath) -> None:
        self._at += 1
        position = 0
        while self._skip_blanks() and not self._text.startswith("]", self._at):
            self._value((*path, position))
            position += 1
        self._at += 1

    def _inline_table(self, path: KeyPath) -> None:
        self._at += 1
        while self._skip_blanks() and not self._text.startswith("}", self._at):
            self._pair(path)
        self._at += 1

    def _skip_blanks(self) -> bool:
        """Skip blanks, commas and comments; return whether any text is left."""
        match = _blanks(self._text, self._at)
        assert match  # may be empty, but always matches
        self._at = match.end()
        return self._at < len(self._text)

    def _note(self, path: KeyPath, at: int) -> None:
        self.found.setdefault(path, bisect_right(self._line_ends, at - 1) + 1)
