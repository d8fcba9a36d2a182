"""Where built tables are, and whether the build that wrote them came to its end (SP-7).

Tables of plain Parquet files are written aside, and replace the former ones together when all of
them are complete. Until the last is replaced a hidden file names them: who finds it looks at a
mixture. Tables of Delta are committed one by one, and a file written last names the version of each
that belongs together: whoever reads these versions never sees a mixture, whatever became of a
later build.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
from msgspec import Struct
from pyarrow.fs import FileSelector, FileType

from waystation.errors import LocalError, quote
from waystation.journal.filesystems import (
    complaining,
    exists,
    file_system,
    read_whole,
    required,
    storage_options,
    write_whole,
)
from waystation.locations import located

UNFINISHED: Final = ".unfinished"
"""The hidden file that names the tables of a build which has not ended, one in each line."""

ASIDE: Final = ".new"
"""How the name of a hidden directory ends in which a table is written."""

BUILD: Final = "_build.json"
"""The file that names the versions of Delta tables."""

DAYS: Final = "_state/days.json"
"""The file that says which days were built, where tables are kept by day."""


VERSION: Final = "_version"
"""The file in a table that `pipeline watch` keeps up to date which says what it consists of."""

EMPTY: Final = "empty.parquet"
"""The file in such a table that has its columns, and no rows."""


T = TypeVar("T")


class Version(Struct, frozen=True):
    """What `_version` says: the batch, and the files of the table by two names each.

    `files` are in its directory, which the next batch may replace; `stored` are relative to the
    directory of all tables, and stay for a while. Only the latter name the file without rows.
    """

    batch: int
    files: list[str]
    stored: list[str] = []


class Build(Struct, frozen=True):
    """What `_build.json` says: the version of each table that belongs to the last whole build."""

    tables: dict[str, int] = {}
    format: Literal["delta"] = "delta"


def read_build(out: str | Path) -> Build | None:
    """What the last build of Delta tables says; None where there are no Delta tables."""
    return read_told(out, BUILD, Build, rule="SP-7")


def read_told(out: str | Path, name: str, type: type[T], *, rule: str) -> T | None:
    """What a JSON file among the tables says; None if there is none."""
    system, path = file_system(out)
    with complaining(out, "read"):
        content = read_whole(system, f"{path}/{name}")
    try:
        return None if content is None else msgspec.json.decode(content, type=type)
    except msgspec.MsgspecError as error:
        raise LocalError(
            f"{out}/{name} is damaged: {error}", rule=rule, hint="build the tables elsewhere"
        ) from None


def write_build(out: str | Path, build: Build) -> None:
    """Say which versions belong together from now on."""
    system, path = file_system(out)
    write_whole(system, f"{path}/{BUILD}", msgspec.json.format(msgspec.json.encode(build)))


def mark_unfinished(directory: str | Path, tables: Iterable[str]) -> None:
    """Say that these tables are being replaced, beside those of a build that did not end."""
    _mark(directory, _unfinished(directory) | set(tables))


def mark_finished(directory: str | Path, tables: Iterable[str]) -> None:
    """Say that these tables were replaced."""
    _mark(directory, _unfinished(directory) - set(tables))


def _mark(directory: str | Path, names: set[str]) -> None:
    system, path = file_system(directory)
    mark = f"{path}/{UNFINISHED}"
    if names:
        write_whole(system, mark, "".join(f"{name}\n" for name in sorted(names)).encode())
    elif exists(system, mark):
        system.delete_file(mark)


def check_finished(directory: str | Path) -> None:
    """Raise a LocalError if the last build there was killed, and left a mixture or nothing."""
    build = read_build(directory)
    if build is not None:
        unfinished = not build.tables
    else:
        names = _names_in(directory)
        only_aside = not any(not name.startswith((".", "_")) for name in names)
        was_begun = any(name.startswith(".") and name.endswith(ASIDE) for name in names)
        unfinished = UNFINISHED in names or (only_aside and was_begun)
    if unfinished:
        raise LocalError(
            f"the build in {directory} did not finish",
            rule="SP-7",
            hint=f"run `waystation pipeline build --journal JOURNAL --out {directory}`",
        )


def _names_in(directory: str | Path) -> list[str]:
    system, path = file_system(directory)
    with complaining(directory, "list"):
        found = system.get_file_info(FileSelector(path, allow_not_found=True))
    return [info.base_name for info in found]


def _unfinished(directory: str | Path) -> set[str]:
    system, path = file_system(directory)
    return set((read_whole(system, f"{path}/{UNFINISHED}") or b"").decode().split())


_BY_DAY: Final = ds.partitioning(pa.schema({"day": pa.date32()}), flavor="hive")
"""How the directories of a table tell the day of their rows, which is not in the files."""


class StoredTables:
    """The tables of one build, wherever they are; a build that is made meanwhile changes nothing.

    Raises a LocalError if the last build did not finish.
    """

    def __init__(self, out: str | Path) -> None:
        self.out = out
        check_finished(out)
        self.system, self._path = file_system(out)
        self._build = read_build(out)
        self._by_day = exists(self.system, f"{self._path}/{DAYS}")

    def dataset(self, table: str, **options: Any) -> Any | None:
        """A table as a dataset of Arrow's; None if it was not built.

        `options` are those of the Parquet format. What Arrow raises is not caught here.
        """
        files = self.files(table)
        if files is None:
            return None
        format = ds.ParquetFileFormat(**options)
        if not self._by_day:
            return ds.dataset(files, filesystem=self.system, format=format)
        if isinstance(files, str):
            return ds.dataset(files, filesystem=self.system, format=format, partitioning=_BY_DAY)
        found = ds.FileSystemFactoryOptions(f"{self._path}/{table}", partitioning=_BY_DAY)
        return ds.FileSystemDatasetFactory(self.system, files, format, found).finish()

    def files(self, table: str) -> str | list[str] | None:
        """The files of a table that others replace, or its directory; None if it was not built."""
        path = f"{self._path}/{table}"
        if self._build is None:
            is_there = self.system.get_file_info(path).type is FileType.Directory
            return (self._watched(path) or path) if is_there else None
        version = self._build.tables.get(table)
        if version is None:
            return None
        return [f"{path}/{name}" for name in delta_files(self.out, table, version)]

    def _watched(self, path: str) -> list[str] | None:
        """The files of a table that is kept up to date, where they stay; None of any other."""
        content = read_whole(self.system, f"{path}/{VERSION}")
        try:
            version = msgspec.json.decode(content or b"", type=Version)
        except msgspec.MsgspecError:
            return None
        stored = [f"{self._path}/{name}" for name in version.stored]
        found = self.system.get_file_info(stored)
        if any(info.type is FileType.NotFound for info in found):
            return None  # it was copied without the store
        return stored or None  # an older program did not say


def delta_files(out: str | Path, table: str, version: int) -> list[str]:
    """The files of a version of a Delta table, relative to its directory."""
    required("deltalake", f"reading the table {table}, which is a Delta table,")
    from deltalake import DeltaTable  # noqa: PLC0415 - an extra
    from deltalake.exceptions import DeltaError  # noqa: PLC0415

    place = f"{located(out)}/{table}"
    try:
        found = DeltaTable(place, version=version, storage_options=storage_options(place))
        return [str(uri).removeprefix(f"{place}/") for uri in found.file_uris()]
    except (DeltaError, OSError) as error:
        told = " ".join(str(error).split())
        raise LocalError(
            f"version {version} of the table {table} in {quote(str(out))} cannot be read: {told}",
            rule="SP-7",
            hint="build the tables again with `waystation pipeline build`",
        ) from error
