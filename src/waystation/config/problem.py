"""What is wrong with a file: which line, which key, what, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct

from waystation.config.toml_lines import KeyPath, path_text
from waystation.errors import LocalError, WaystationError

RULE: Final = "OB-3"
"""The rule behind: what is not understood is said at once, not left out in silence."""

_FAULTS: Final = (WaystationError, OSError, ValueError)  # the last from names with a zero in them


class Problem(Struct, frozen=True):
    """One mistake in a file; `line` is 0 where no line is to blame.

    >>> print(Problem("node.toml", 3, "node.nam", "there is no such key", "did you mean `name`?"))
    node.toml:3: node.nam: there is no such key; did you mean `name`?
    """

    file: str
    line: int
    key: str
    what: str
    hint: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        parts = [where, self.key, f"{self.what}; {self.hint}" if self.hint else self.what]
        return re.sub(r"\s+", " ", ": ".join(part for part in parts if part))


class Problems:
    """The mistakes found in one file so far."""

    def __init__(self, file: Path, lines: dict[KeyPath, int]) -> None:
        self.file = file
        self.lines = lines
        self.found: list[Problem] = []

    def add(self, path: KeyPath, what: str, hint: str) -> None:
        """Note a mistake at a key, or at the nearest table around it that is written there."""
        self.found.append(self.at(path, what, hint))

    def at(self, path: KeyPath, what: str, hint: str) -> Problem:
        """The mistake, without collecting it."""
        written = path
        while written and written not in self.lines:
            written = written[:-1]
        line = self.lines.get(written, 0)
        return Problem(str(self.file), line, path_text(path), what, hint)

    def in_order(self) -> list[Problem]:
        """All of them, as one reads the file."""
        return sorted(self.found, key=lambda problem: problem.line)

    @contextmanager
    def collecting(self, path: KeyPath) -> Iterator[None]:
        """Take down what goes wrong inside as a mistake at a key, and go on behind it."""
        try:
            yield
        except _FAULTS as error:
            self.add(path, *_parts(error))

    @contextmanager
    def locating(self, path: KeyPath) -> Iterator[None]:
        """Say of what goes wrong inside which key is behind it."""
        try:
            yield
        except _FAULTS as error:
            what, hint = _parts(error)
            rule = error.rule if isinstance(error, LocalError) else RULE
            problem = self.at(path, what, "")
            raise LocalError(str(problem), rule=rule, hint=hint) from error


def _parts(error: Exception) -> tuple[str, str]:
    if isinstance(error, LocalError):
        return error.problem, error.hint
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}", "give one that this process may use"
    return str(error) or type(error).__name__, "change it, or what it names"
