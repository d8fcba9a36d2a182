"""Options of the data source, parsed and checked; errors say what to write.

Spark passes options as strings with case-insensitive names. Only their form is checked here;
whether a journal exists, or a node can be reached, is checked when they are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
from msgspec import Struct

from waystation.errors import LocalError, quote
from waystation.journal.schema import MESSAGES
from waystation.pipeline.schema import JOURNAL, journal_schema
from waystation.pipeline.source.pieces import BYTES_PER_PARTITION
from waystation.pipeline.tables import BUILT, REGISTRY

BY_NODE: Final = tuple(table.name for table in REGISTRY if not table.exchange)
TABLES: Final = (*JOURNAL, *BY_NODE)
"""The tables that can be read: those of the journal, and those that are made node by node."""

_SPARKS_OWN: Final = frozenset({"path", "checkpointlocation", "queryname", "outputmode"})
_UNITS: Final = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30}


class Reading(Struct, frozen=True, kw_only=True):
    """How to read a journal."""

    path: str
    table: str = MESSAGES
    pushdown: bool = True
    partition_bytes: int = BYTES_PER_PARTITION
    most_files: int | None = None  # in one batch of a stream
    most_bytes: int | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Reading:
        """The options of a read.

        >>> Reading.of({"path": "/journal", "table": "route"})
        Traceback (most recent call last):
        waystation.errors.LocalError: unknown table 'route'; give one of nodes, routes, ...
        """
        given = known_options(
            options,
            ("table", "pushdown", "partitionBytes", "maxFilesPerTrigger", "maxBytesPerTrigger"),
        )
        table = given.get("table", MESSAGES)
        if table not in TABLES:
            raise _wrong(f"unknown table {quote(table)}", f"give one of {', '.join(TABLES)}")
        return cls(
            path=_path(options),
            table=table,
            pushdown=flag(given, "pushdown", default=True),
            partition_bytes=size(given, "partitionBytes") or BYTES_PER_PARTITION,
            most_files=number(given, "maxFilesPerTrigger"),
            most_bytes=size(given, "maxBytesPerTrigger"),
        )

    @property
    def is_built(self) -> bool:
        """Whether the table is made from the journal, not read from it."""
        return self.table in BUILT

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table."""
        return BUILT[self.table] if self.is_built else journal_schema(self.table)


def known_options(options: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """The options by their full names; raises a LocalError that names an unknown one."""
    full = {name.lower(): name for name in names}
    for name in options:
        if name.lower() not in full and name.lower() not in _SPARKS_OWN:
            raise _wrong(f"unknown option {quote(name)}", f"use {', '.join(names)}")
    return {full[name.lower()]: text for name, text in options.items() if name.lower() in full}


def flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """An option that is true or false."""
    text = options.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise _wrong(f"the option {name} is {quote(options[name])}", "write true or false")
    return text == "true"


def number(options: Mapping[str, str], name: str) -> int | None:
    """An option that is a number, at least 1."""
    return _counted(options, name, {"": 1}, "give 1 or more")


def seconds(options: Mapping[str, str], name: str, default: float) -> float:
    """An option in seconds."""
    try:
        found = float(options.get(name, default))
    except ValueError:
        found = -1.0
    if 0 < found < 10**9:
        return found
    raise _wrong(f"the option {name} is {quote(options[name])}", "give seconds above 0")


def size(options: Mapping[str, str], name: str) -> int | None:
    """An option in bytes, with an optional unit."""
    return _counted(options, name, _UNITS, "give a number of bytes, such as 4096, 64k or 8m")


def _counted(
    options: Mapping[str, str], name: str, units: Mapping[str, int], hint: str
) -> int | None:
    if name not in options:
        return None
    text = options[name].strip().lower()
    digits = text.rstrip("bkmg")
    unit = units.get(text[len(digits) :])
    if not (digits.isascii() and digits.isdigit()) or unit is None or int(digits) < 1:
        raise _wrong(f"the option {name} is {quote(options[name])}", hint)
    return int(digits) * unit


def _path(options: Mapping[str, str]) -> str:
    path = options.get("path", "")
    if not path:
        raise _wrong("the path of the journal is missing", "give its directory to load()")
    return path if "://" in path else str(Path(path).absolute())


def _wrong(problem: str, hint: str) -> LocalError:
    return LocalError(problem, rule="SP-4", hint=hint)
