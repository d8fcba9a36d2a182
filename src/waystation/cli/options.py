"""Options and parameter types that several commands share.

No command is defined here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click
from msgspec import json

from waystation.core.outcome import Outcome, Reason
from waystation.errors import LocalError, quote
from waystation.locations import is_remote, local_directory, located

SETTINGS: Final = {"auto_envvar_prefix": "WAYSTATION", "show_default": True}
"""Context settings of every command: environment variables, and defaults shown in the help."""


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_AGO: Final = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class Numbers(click.FloatRange):
    """A number in a range, without NaN, which click's own type accepts."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number, if it is a valid one."""
        found: float = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value!r} is not a number", param, ctx)
        return found


class Instant(click.ParamType[int]):
    """A timestamp: ISO 8601 (UTC by default), or how long ago (90s, 15m, 2h, 1d)."""

    name = "time"

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,  # noqa: ARG002
        ctx: click.Context | None,  # noqa: ARG002
    ) -> int:
        """Microseconds since the epoch."""
        if isinstance(value, int):
            return value
        ago = _AGO.fullmatch(value)
        try:
            if ago:
                moment = datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: float(ago[1])})
            else:
                moment = datetime.fromisoformat(value)
        except (ValueError, OverflowError):
            self.fail(
                f"invalid timestamp {value!r}; write 2026-05-01T12:00:00, or 15m for 15 minutes ago"
            )
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return (moment - _EPOCH) // timedelta(microseconds=1)


SECONDS: Final = Numbers(min=0, min_open=True, max=10**9, max_open=True)
TABLES: Final = ("claims", "members", "messages", "nodes", "routes", "sessions", "subscriptions")
"""The tables of a journal."""


class LocalPath(click.Path):
    """A path on this machine; `file://` is understood, the URI of a store is refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path, if it is a local one."""
        try:
            found = local_directory(value, "this")
        except LocalError as error:
            self.fail(f"{error.problem}; {error.hint}", param, ctx)
        return super().convert(found, param, ctx)


class StoredPath(LocalPath):
    """A directory on this machine, as a Path, or a place in a store, as its URI."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The place, if it is in a store that is supported."""
        if not is_remote(value):
            return super().convert(value, param, ctx)
        try:
            return located(value)
        except LocalError as error:
            self.fail(f"{error.problem}; {error.hint}", param, ctx)


def choice(kind: type[Outcome | Reason]) -> click.Choice[str]:
    """One of the words of a kind, in any case."""
    return click.Choice([str(word) for word in kind], case_sensitive=False)


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    click.echo(json.encode(value).decode())


DIRECTORY: Final = LocalPath(exists=True, file_okay=False, path_type=Path)
OUTPUT: Final = LocalPath(file_okay=False, path_type=Path)
PLACE: Final = StoredPath(exists=True, file_okay=False, path_type=Path)
FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)

json_option = click.option(
    "--json", "as_json", is_flag=True, envvar="WAYSTATION_JSON", help="Print JSON only."
)
journal_option = click.option(
    "--journal",
    metavar="DIR|URI",
    required=True,
    type=PLACE,
    help="Journal to read; it is not modified.",
)
tables_option = click.option(
    "--out",
    metavar="DIR|URI",
    required=True,
    type=StoredPath(file_okay=False, path_type=Path),
    help="Output directory of the tables; existing ones are replaced.",
)
conf_option = click.option(
    "--conf",
    multiple=True,
    metavar="KEY=VALUE",
    callback=lambda _, __, given: _settings(given),
    help="Setting of Spark (repeatable).",
)
master_option = click.option(
    "--master", metavar="URL", default="local[*]", help="Spark master, such as spark://host:7077."
)


def _settings(given: tuple[str, ...]) -> dict[str, str]:
    """Settings by their keys."""
    for setting in given:
        if not setting.partition("=")[0].strip() or "=" not in setting:
            raise click.BadParameter(f"{setting!r} is not KEY=VALUE", param_hint="--conf")
    return {key.strip(): value for key, _, value in (text.partition("=") for text in given)}


def nodes_in(place: str | Path) -> set[str]:
    """The names of the nodes that a journal has files of."""
    import_module("waystation.journal")  # raises an error that says what to install
    if isinstance(place, str):
        from waystation.journal.remote import nodes_in_store  # noqa: PLC0415 - it needs pyarrow

        return nodes_in_store(place)
    from waystation.journal.layout import all_nodes  # noqa: PLC0415 - it needs pyarrow

    return set(all_nodes(place))


def check_is_journal(directory: str | Path) -> set[str]:
    """Return the nodes of a journal, or raise a LocalError if the directory is not a journal."""
    nodes = nodes_in(directory)
    # The locks are of nodes that have not written a record yet.
    begun = isinstance(directory, Path) and any(directory.glob(".node=*.lock"))
    if not nodes and not begun:
        raise LocalError(
            f"{quote(str(directory))} is not a journal: it has none of {', '.join(TABLES)}",
            rule="OB-5",
            hint="give the directory that the nodes write their journal to",
        )
    return nodes


class Checked(click.ParamType[str]):
    """Text that must pass `check`, and is passed on unchanged."""

    def __init__(self, name: str, check: Callable[[str], object]) -> None:
        self.name = name
        self._check = check

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text; a LocalError raised by the check becomes a usage error."""
        try:
            self._check(value)
        except LocalError as error:
            self.fail(f"{error.problem}; {error.hint}", param, ctx)
        return str(value)
