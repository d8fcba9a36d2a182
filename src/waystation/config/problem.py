"""Problems of a configuration file: line, key, what is wrong, and what to do."""

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
"""The rule behind all of them: what is not understood is reported, never ignored."""

_FAULTS: Final = (
    WaystationError,
    OSError,
    ValueError,
)  # ValueError: file names that contain a null character


class Problem(Struct, frozen=True):
    """One problem of a file; `line` is 0 if it has no line.

    >>> print(Problem("node.toml", 3, "node.nam", "unknown key", "did you mean `name`?"))
    node.toml:3: node.nam: unknown key; did you mean `name`?
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
    """The problems found in one file so far."""

    def __init__(self, file: Path, lines: dict[KeyPath, int]) -> None:
        self.file = file
        self.lines = lines
        self.found: list[Problem] = []

    def add(self, path: KeyPath, what: str, hint: str) -> None:
        """Add a problem at a key, or at its nearest table if the file does not have the key."""
        self.found.append(self.at(path, what, hint))

    def at(self, path: KeyPath, what: str, hint: str) -> Problem:
        """The problem as a value, without adding it."""
        written = path
        while written and written not in self.lines:
            written = written[:-1]
        line = self.lines.get(written, 0)
        return Problem(str(self.file), line, path_text(path), what, hint)

    def in_order(self) -> list[Problem]:
        """All problems in the order of their lines."""
        return sorted(self.found, key=lambda problem: problem.line)

    @contextmanager
    def collecting(self, path: KeyPath) -> Iterator[None]:
        """Add an exception raised inside as a problem at a key, and continue."""
        try:
            yield
        except _FAULTS as error:
            self.add(path, *_parts(error))

    @contextmanager
    def locating(self, path: KeyPath) -> Iterator[None]:
        """Re-raise an exception raised inside, with the file, line and key it is about."""
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
        return f"{error.filename}: {error.strerror}", "give one that this process can use"
    return str(error) or type(error).__name__, "change the value, or what it refers to"
