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
from collections.abc import Container, Iterable, Iterator, Mapping
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
    delta_files,
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

NO_DAY: Final = "__HIVE_DEFAULT_PARTITION__"
"""In the name of a directory: the day of its rows is unknown, as Hive writes it."""

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

    def prepare_days(self, table: str, days: Iterable[str]) -> str:
        """The place that tasks write the files of these days to, each in its directory."""

    def publish_days(
        self, tables: Mapping[str, list[PartFile]], gone: Mapping[str, Container[str]]
    ) -> None:
        """Put these files in the place of those of some days of each table, all at once."""

    def stored(self, table: str) -> list[str]:
        """The files of a table as it is."""


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
            shown = _shown(file.name)
            place.system.move(f"{place.hidden}/{file.name}", f"{place.hidden}/{shown}")
        for left in files_below(place.system, str(place.hidden)):
            if left.base_name.startswith(_HIDDEN):
                place.system.delete_file(left.path)

    def written(self, table: str, files: Iterable[PartFile]) -> list[str]:
        """The files in the hidden place."""
        hidden = f"{self.out}/{Place(self.out, table).hidden.name}"
        return [f"{hidden}/{_shown(file.name)}" for file in files]

    def publish(self, tables: Mapping[str, list[PartFile]]) -> None:
        """Rename the directories."""
        replace_all(self.out, tables)

    def prepare_days(self, table: str, days: Iterable[str]) -> str:
        """The hidden place of a table, with a directory for each of these days."""
        hidden = self.prepare(table)
        system, path = file_system(hidden)
        for day in days:
            system.create_dir(f"{path}/{day}", recursive=True)
        return hidden

    def publish_days(
        self, tables: Mapping[str, list[PartFile]], gone: Mapping[str, Container[str]]
    ) -> None:
        """Take over the days that stay, then rename the directories."""
        for table in tables:
            Place(self.out, table).take_over(gone[table])
        replace_all(self.out, tables)

    def stored(self, table: str) -> list[str]:
        """The files of the table as it is."""
        place = Place(self.out, table)
        place.recover()
        below = [
            str(Path(info.path).relative_to(place.path))
            for info in files_below(place.system, str(place.path))
            if not is_hidden(info.base_name)
        ]
        return [f"{self.out}/{table}/{name}" for name in below]


def _shown(name: str) -> str:
    """The name of a file that is hidden no longer; it may be in a directory."""
    directory, separator, base = name.rpartition("/")
    return f"{directory}{separator}{base.removeprefix(_HIDDEN)}"


def is_hidden(name: str) -> bool:
    """Whether readers of a table pass over a file."""
    return name.startswith((_HIDDEN, "_"))


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
        self.recover()
        for left in (self.hidden, self._former):
            self._remove(left)
        return str(self.hidden)

    def recover(self) -> None:
        """Bring back the table if a run was killed between two renames."""
        if self._exists(self._former) and not self._exists(self.path):
            self._rename(self._former, self.path)

    def create(self) -> None:
        """Create the directory to write to."""
        self.system.create_dir(str(self.hidden), recursive=True)

    def take_over(self, gone: Container[str]) -> None:
        """Add the files of the former table to the written one, without those of some days.

        Where there are links, nothing is copied.
        """
        for info in files_below(self.system, str(self.path)):
            below = Path(info.path).relative_to(self.path)
            day = below.parts[0]
            if day in gone or is_hidden(info.base_name):
                continue
            target = self.hidden / below
            self.system.create_dir(str(target.parent), recursive=True)
            if self._is_local:
                os.link(info.path, target)
            else:
                self.system.copy_file(info.path, str(target))

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
        self._publish(tables, {})

    def prepare_days(self, table: str, days: Iterable[str]) -> str:
        """The directory of the table, with one for each of these days where there are such."""
        place = self.prepare(table)
        if scheme_of(place) != S3:
            system, path = file_system(place)
            for day in days:
                system.create_dir(f"{path}/{day}", recursive=True)
        return place

    def publish_days(
        self, tables: Mapping[str, list[PartFile]], gone: Mapping[str, Container[str]]
    ) -> None:
        """Commit the days of each table, then name the versions."""
        self._publish(tables, gone)

    def stored(self, table: str) -> list[str]:
        """The files of the version that belongs to the last whole build."""
        build = read_build(self.out)
        version = None if build is None else build.tables.get(table)
        if version is None:
            return []
        place = f"{self.out}/{table}"
        return [f"{place}/{name}" for name in delta_files(self.out, table, version)]

    def _publish(
        self, tables: Mapping[str, list[PartFile]], gone: Mapping[str, Container[str]]
    ) -> None:
        with complaining(self.out, "write to"):
            versions = {
                table: self._commit(table, files, gone.get(table))
                for table, files in tables.items()
            }
            former = read_build(self.out)
            kept = {} if former is None else former.tables
            write_build(self.out, Build({**kept, **versions}))
            for table, version in versions.items():
                self._vacuum(table, version)

    def _commit(self, table: str, files: list[PartFile], gone: Container[str] | None = None) -> int:
        """Make these files the table, or the days that are gone of it; returns its version."""
        from deltalake import CommitProperties, DeltaTable, Schema  # noqa: PLC0415 - an extra
        from deltalake.exceptions import DeltaError, TableNotFoundError  # noqa: PLC0415
        from deltalake.transaction import (  # noqa: PLC0415
            AddAction,
            create_table_with_add_actions,
        )

        place, schema = f"{self.out}/{table}", Schema.from_arrow(STORED[table])
        now = time.time_ns() // 1_000_000
        actions = [
            AddAction(file.name, file.size, _partition(file.name), now, True, file.stats)
            for file in files
        ]
        by = None if gone is None else ["day"]
        options = storage_options(place)
        # Without retries: a retried overwrite would keep the files of whoever came in between.
        once = CommitProperties(max_commit_retries=0)
        try:
            try:
                there = DeltaTable(place, storage_options=options)
            except TableNotFoundError:
                create_table_with_add_actions(
                    *(place, schema, actions),
                    partition_by=by,
                    storage_options=options,
                    commit_properties=once,
                )
                return 0
            version = there.version() + 1
            if gone is None:
                there.create_write_transaction(
                    list(actions), "overwrite", schema, commit_properties=once
                )
            else:
                changes = [*actions, *self._differences(table, there, gone, now)]
                there.create_write_transaction(
                    changes, "append", schema, partition_by=by, commit_properties=once
                )
        except DeltaError as error:
            raise LocalError(
                f"the table {table} in {self.out} cannot be committed: {_one_line(error)}",
                rule="SP-7",
                hint="run one build at a time in a directory, and this one again",
            ) from error
        return version

    def _differences(self, table: str, there: Any, gone: Container[str], now: int) -> Iterator[Any]:
        """What makes of the latest version the one of the last whole build, without some days.

        The latest is another if a build was killed between its commits.
        """
        from deltalake.transaction import AddAction, RemoveAction  # noqa: PLC0415

        place = f"{self.out}/{table}"
        latest = {str(uri).removeprefix(f"{place}/") for uri in there.file_uris()}
        whole = {path.removeprefix(f"{place}/") for path in self.stored(table)}
        kept = {name for name in whole if name.partition("/")[0] not in gone}
        for name in sorted(latest - kept):
            yield RemoveAction(name, True, now, partition_values=_partition(name))
        system, path = file_system(place)
        for name in sorted(kept - latest):
            size = system.get_file_info(f"{path}/{name}").size
            yield AddAction(name, size, _partition(name), now, True, "{}")

    def _vacuum(self, table: str, version: int) -> None:
        from deltalake import DeltaTable  # noqa: PLC0415 - an extra

        place = f"{self.out}/{table}"
        there = DeltaTable(place, storage_options=storage_options(place))
        there.vacuum(VACUUM_HOURS, dry_run=False, full=True, keep_versions=[version])


def _partition(name: str) -> dict[str, str | None]:
    """The day that the directory of a file names, as Delta has it."""
    directory, separator, _ = name.partition("/")
    if not separator:
        return {}
    day = directory.partition("=")[2]
    return {"day": None if day == NO_DAY else day}


def _one_line(error: Any) -> str:
    return " ".join(str(error).split())[:300]
