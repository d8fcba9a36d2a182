"""Options that many commands share, and how all of them read theirs.

No command lives here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click

from waystation.errors import LocalError, quote

SETTINGS: Final = {"auto_envvar_prefix": "WAYSTATION", "show_default": True}
"""How a command reads its options."""


class Numbers(click.FloatRange):
    """Numbers in a range; click's own lets through what is no number at all."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number."""
        found: float = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value!r} is no number", param, ctx)
        return found


SECONDS: Final = Numbers(min=0, min_open=True, max=10**9, max_open=True)
TABLES: Final = ("members", "messages", "nodes", "routes", "subscriptions")
"""What a journal has."""

DIRECTORY: Final = click.Path(exists=True, file_okay=False, path_type=Path)
FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)

json_option = click.option(
    "--json", "as_json", is_flag=True, envvar="WAYSTATION_JSON", help="Print JSON and nothing else."
)
journal_option = click.option(
    "--journal",
    metavar="DIR",
    required=True,
    type=DIRECTORY,
    help="The journal to read; nothing in it is changed.",
)
tables_option = click.option(
    "--out",
    metavar="DIR",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the tables go; those that are there are replaced.",
)
master_option = click.option(
    "--master", metavar="URL", default="local[*]", help="The Spark to run on, as spark://host:7077."
)


def nodes_in(directory: Path) -> set[str]:
    """The nodes that a journal has anything of."""
    import_module("waystation.journal")  # it says what to install
    from waystation.journal.layout import all_nodes  # noqa: PLC0415 - it needs pyarrow

    return set(all_nodes(directory))


def check_is_journal(directory: Path) -> set[str]:
    """Refuse a directory that no node has ever kept a journal in; the nodes that it has."""
    nodes = nodes_in(directory)
    begun = directory.glob(".node=*.lock")  # by a node that has told of nothing yet
    if not nodes and not any(begun):
        raise LocalError(
            f"{quote(str(directory))} is no journal: it has none of {', '.join(TABLES)}",
            rule="OB-5",
            hint="give the directory that nodes keep their journal in",
        )
    return nodes


class Checked(click.ParamType[str]):
    """A text that stays as it is, if `check` has nothing against it."""

    def __init__(self, name: str, check: Callable[[str], object]) -> None:
        self.name = name
        self._check = check

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text; a LocalError of the check tells what is wrong, and what to do."""
        try:
            self._check(value)
        except LocalError as error:
            self.fail(f"{error.problem}; {error.hint}", param, ctx)
        return str(value)
