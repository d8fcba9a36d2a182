"""Tables in a store, replaced atomically: a reader sees the old tables or the new ones (SP-7).

Only this module and `watching` write tables. Where there are renames (a local disk, NFS, HDFS), a
table of plain Parquet files is written to a hidden directory beside its final one, which one rename
then replaces; those of a build are replaced together, when all are complete. Delta tables need no
renames: tasks write files with unique names, one commit for each table makes them the table, and
`_build.json`, written last, names the versions that belong together. So a build that fails changes
nothing that our readers read. What a killed build leaves, a later one removes: hidden directories
at once, files that no version of a Delta table has after seven days.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import pyarrow as pa
from msgspec import Struct

from waystation.errors import LocalError, quote
from waystation.journal.filesystems import (
    complaining,
    exists,
    file_system,
    files_below,
    required,
    storage_options,
)
from waystation.locations import S3, is_remote, located, scheme_of
from waystation.pipeline.tables import STORED, TABLES
from waystation.why.finished import (
    ASIDE,
    Build,
    mark_finished,
    mark_unfinished,
    read_build,
    write_build,
)

Format = Literal["parquet", "delta"]
PARQUET: Final = "parquet"
DELTA: Final = "delta"
FORMATS: Final = (PARQUET, DELTA)

VACUUM_HOURS: Final = 7 * 24
"""How long the files of former versions of Delta tables are kept."""

_HIDDEN: Final = "."
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2


class PartFile(Struct, frozen=True):
    """A file of a table that a task wrote, and what is in it."""

    name: str
    rows: int
    size: int
    stats: str = "{}"  # as Delta has them


class Store(Protocol):
    """A place for tables."""

    out: str

    def prepare(self, table: str) -> str:
        """The place that tasks write the files of a table to."""

    def keep(self, table: str, files: Iterable[PartFile]) -> None:
        """Take these files, and none of those that other attempts of the same tasks left."""

    def written(self, table: str, files: Iterable[PartFile]) -> list[str]:
        """Where these files of a table are that is not published yet."""

    def publish(self, tables: Mapping[str, list[PartFile]]) -> None:
        """Make these files the tables, all at once."""


def opened_store(out: str | Path, format: str | None = None) -> Store:
    """The store for tables at a place; raises a LocalError if they cannot be written there.

    By default tables in object stores are of Delta, and plain Parquet files everywhere else.
    """
    place = located(out)
    chosen = format or (DELTA if scheme_of(place) == S3 else PARQUET)
    if chosen not in FORMATS:
        raise LocalError(
            f"unknown format {quote(chosen)}", rule="SP-7", hint=f"give {' or '.join(FORMATS)}"
        )
    if chosen == PARQUET and scheme_of(place) == S3:
        raise LocalError(
            f"plain Parquet files in {place} cannot be replaced at once: S3 has no renames",
            rule="SP-7",
            hint="give --format delta",
        )
    if chosen == DELTA:
        required("deltalake", "the format delta")
    with complaining(place, "write to"):
        check_format(place, chosen)
        return DeltaStore(place) if chosen == DELTA else RenamingStore(place)


def check_format(place: str, chosen: str) -> None:
    """Refuse to mix formats: a reader would not know which files are the table."""
    is_delta = read_build(place) is not None
    if is_delta and chosen == PARQUET:
        raise LocalError(
            f"the tables in {place} are Delta tables",
            rule="SP-7",
            hint="give another directory, or --format delta",
        )
    if chosen == DELTA and not is_delta:
        system, path = file_system(place)
        if any(exists(system, f"{path}/{table}") for table in TABLES):
            raise LocalError(
                f"the tables in {place} are not Delta tables",
                rule="SP-7",
                hint="give another directory, or --format parquet",
            )


# Plain Parquet files


class RenamingStore:
    """Tables that renames replace."""

    def __init__(self, out: str) -> None:
        self.out = prepared_directory(out)

    def prepare(self, table: str) -> str:
        """The hidden place of a table."""
        place = Place(self.out, table)
        place.prepare()
        place.create()
        return f"{self.out}/{place.hidden.name}"

    def keep(self, table: str, files: Iterable[PartFile]) -> None:
        """Show the files, which are hidden until then, and remove what is left."""
        place = Place(self.out, table)
        for file in files:
            name = file.name.removeprefix(_HIDDEN)
            place.system.move(f"{place.hidden}/{file.name}", f"{place.hidden}/{name}")
        for left in files_below(place.system, str(place.hidden)):
            if left.base_name.startswith(_HIDDEN):
                place.system.delete_file(left.path)

    def written(self, table: str, files: Iterable[PartFile]) -> list[str]:
        """The files in the hidden place."""
        hidden = f"{self.out}/{Place(self.out, table).hidden.name}"
        return [f"{hidden}/{file.name.removeprefix(_HIDDEN)}" for file in files]

    def publish(self, tables: Mapping[str, list[PartFile]]) -> None:
        """Rename the directories."""
        replace_all(self.out, tables)


class Place:
    """The directory of one table, and the hidden one where it is written."""

    def __init__(self, out: str | Path, table: str) -> None:
        self.system, root = file_system(out)
        self._is_local = not is_remote(str(out))
        self.path = Path(root, table)
        self.hidden = Path(root, f".{table}{ASIDE}")
        self._former = Path(root, f".{table}.former")

    def prepare(self) -> str:
        """Remove what a killed run left; returns the directory to write to."""
        if self._exists(self._former) and not self._exists(self.path):
            self._rename(self._former, self.path)  # it was killed between two renames
        for left in (self.hidden, self._former):
            self._remove(left)
        return str(self.hidden)

    def create(self) -> None:
        """Create the directory to write to."""
        self.system.create_dir(str(self.hidden), recursive=True)

    def replace(self) -> None:
        """Move the written table to its final directory."""
        if not self._exists(self.path):
            self._rename(self.hidden, self.path)
            return
        if self._is_local and _exchange(self.hidden, self.path):
            self._rename(self.hidden, self._former)
        else:
            self._rename(self.path, self._former)
            self._rename(self.hidden, self.path)
        self._remove(self._former)

    def _exists(self, path: Path) -> bool:
        return exists(self.system, str(path))

    def _rename(self, path: Path, target: Path) -> None:
        self.system.move(str(path), str(target))

    def _remove(self, path: Path) -> None:
        if self._is_local:
            shutil.rmtree(path, ignore_errors=True)
        elif self._exists(path):
            self.system.delete_dir(str(path))


def replace_all(out: str | Path, tables: Iterable[str]) -> None:
    """Move the written tables to their final directories; who reads meanwhile is told (SP-7)."""
    names = list(tables)
    mark_unfinished(out, names)
    for table in names:
        Place(out, table).replace()
    mark_finished(out, names)


def prepared_directory(out: str | Path) -> str:
    """The directory for the tables, absolute, created if it does not exist."""
    place = located(out)
    system, path = file_system(place)
    try:
        system.create_dir(path, recursive=True)
    except (OSError, pa.ArrowException) as error:
        told = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise LocalError(
            f"cannot write the tables to {quote(str(out))}: {told}",
            rule="SP-5",
            hint="give a writable directory",
        ) from None
    return place


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two directories atomically; False if the system does not support it."""
    if not sys.platform.startswith("linux"):
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    names = [os.fsencode(path) for path in (one, other)]
    return bool(rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0)


# Delta


class DeltaStore:
    """Delta tables, committed without a JVM."""

    def __init__(self, out: str) -> None:
        self.out = out if is_remote(out) else prepared_directory(out)
        if read_build(self.out) is None:
            write_build(self.out, Build())  # from now on these are Delta tables, and it can write

    def prepare(self, table: str) -> str:
        """The directory of a table itself: what is not committed is not seen."""
        place = f"{self.out}/{table}"
        if scheme_of(place) != S3:
            system, path = file_system(place)
            system.create_dir(path, recursive=True)
        return place

    def keep(self, table: str, files: Iterable[PartFile]) -> None:
        """Nothing: only files that are committed belong to a table."""

    def written(self, table: str, files: Iterable[PartFile]) -> list[str]:
        """The files, which are where they stay."""
        return [f"{self.out}/{table}/{file.name}" for file in files]

    def publish(self, tables: Mapping[str, list[PartFile]]) -> None:
        """Commit each table, then name the versions; a kill in between leaves the old ones."""
        with complaining(self.out, "write to"):
            versions = {table: self._commit(table, files) for table, files in tables.items()}
            former = read_build(self.out)
            kept = {} if former is None else former.tables
            write_build(self.out, Build({**kept, **versions}))
            for table, version in versions.items():
                self._vacuum(table, version)

    def _commit(self, table: str, files: list[PartFile]) -> int:
        """Make these files the table; returns its version."""
        from deltalake import CommitProperties, DeltaTable, Schema  # noqa: PLC0415 - an extra
        from deltalake.exceptions import DeltaError, TableNotFoundError  # noqa: PLC0415
        from deltalake.transaction import (  # noqa: PLC0415
            AddAction,
            create_table_with_add_actions,
        )

        place, schema = f"{self.out}/{table}", Schema.from_arrow(STORED[table])
        now = time.time_ns() // 1_000_000
        actions = [AddAction(file.name, file.size, {}, now, True, file.stats) for file in files]
        options = storage_options(place)
        # Without retries: a retried overwrite would keep the files of whoever came in between.
        once = CommitProperties(max_commit_retries=0)
        try:
            try:
                there = DeltaTable(place, storage_options=options)
            except TableNotFoundError:
                create_table_with_add_actions(
                    place, schema, actions, storage_options=options, commit_properties=once
                )
                return 0
            version = there.version() + 1
            there.create_write_transaction(
                list(actions), "overwrite", schema, commit_properties=once
            )
        except DeltaError as error:
            raise LocalError(
                f"the table {table} in {self.out} cannot be committed: {_one_line(error)}",
                rule="SP-7",
                hint="run one build at a time in a directory, and this one again",
            ) from error
        return version

    def _vacuum(self, table: str, version: int) -> None:
        from deltalake import DeltaTable  # noqa: PLC0415 - an extra

        place = f"{self.out}/{table}"
        there = DeltaTable(place, storage_options=storage_options(place))
        there.vacuum(VACUUM_HOURS, dry_run=False, full=True, keep_versions=[version])


def _one_line(error: Any) -> str:
    return " ".join(str(error).split())[:300]
