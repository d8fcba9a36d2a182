"""Where files are: what tasks write, what the driver links, and the ledger of batches.

    OUT/<table>/                 what people read: links to files of the store, and `_version`
    OUT/.watch/<shelf>/          the store: Parquet files that never change
    OUT/.watch/states/           what is remembered of nodes
    OUT/.watch/exchange/         from the tasks of nodes to those of traces, for one batch
    CHECKPOINT/batches/          the last batch that is done (and Spark's own files beside it)

Names and files only; nothing here knows what is in a table.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct, field

from waystation.errors import LocalError, quote
from waystation.pipeline.store import Place
from waystation.pipeline.tables import BUILT, WATCHED

VERSION: Final = "_version"
_EMPTY: Final = "empty.parquet"
_STORE: Final = ".watch"
_EXCHANGE: Final = "exchange"
_STATES: Final = "states"


class Manifest(Struct):
    """The result of a batch: the state of each bucket, and the files of each table.

    `files` maps table and bucket to names, each with its shelf in front.
    """

    batch: int
    buckets: int
    journal: str
    tables: list[str] = field(default_factory=list)  # those that are kept
    states: dict[int, str] = field(default_factory=dict)
    traces: dict[int, str] = field(default_factory=dict)
    files: dict[str, dict[int, list[str]]] = field(default_factory=dict)  # by table, bucket
    beside: dict[int, list[str]] = field(default_factory=dict)  # of no table, by bucket
    strays: list[str] = field(default_factory=list)
    facts: str | None = None  # what each node tells beside messages
    known: str | None = None  # what all nodes tell together
    open: list[int] = field(default_factory=list)  # buckets with traces that may still change

    def of_table(self, table: str) -> list[str]:
        """The files of one table."""
        return sorted(name for names in self.files.get(table, {}).values() for name in names)

    def all_files(self) -> set[str]:
        """Everything in the store that is still needed."""
        tables = [name for table in self.files for name in self.of_table(table)]
        beside = [name for names in self.beside.values() for name in names]
        names = [*self.states.values(), *self.traces.values(), self.facts, self.known]
        states = [f"{_STATES}/{name}" for name in names if name is not None]
        return {*tables, *beside, *states}


class Store:
    """The files of a watched journal's tables; for the driver and for tasks."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.root = out / _STORE

    def shelf(self, name: str) -> Path:
        """The directory of a shelf."""
        return self.root / name

    def write_state(self, name: str, state: bytes) -> str:
        """Write the state of a bucket; returns its name."""
        unique = f"{name}-{uuid.uuid4().hex[:12]}"
        write_whole(self.root / _STATES / unique, state)
        return unique

    def read_state(self, name: str) -> bytes:
        """Read a state."""
        return (self.root / _STATES / name).read_bytes()

    def exchange(self) -> Path:
        """A new directory for what one kind of task writes for the other."""
        directory = self.root / _EXCHANGE / uuid.uuid4().hex[:12]
        directory.mkdir(parents=True)
        return directory

    def has_all(self, manifest: Manifest) -> bool:
        """Whether all files of a batch exist."""
        return all((self.root / name).exists() for name in manifest.all_files())

    def clear_away(self, manifest: Manifest) -> None:
        """Remove files that no table needs any more, and those of killed runs."""
        shutil.rmtree(self.root / _EXCHANGE, ignore_errors=True)
        needed = manifest.all_files()
        for shelf in self.root.iterdir():
            if shelf.is_dir():
                for path in shelf.iterdir():
                    if f"{shelf.name}/{path.name}" not in needed:
                        path.unlink(missing_ok=True)

    def publish(self, manifest: Manifest) -> None:
        """Publish the tables of a batch; those that are unchanged stay."""
        for table in WATCHED:
            names = manifest.of_table(table)
            links = {name.replace("/", "-"): self.root / name for name in names}
            if {*links, _EMPTY, VERSION} != _names_in(self.out / table):
                self._replace(table, links, manifest.batch)

    def _replace(self, table: str, links: Mapping[str, Path], batch: int) -> None:
        place = Place(self.out, table)
        hidden = Path(place.prepare())
        hidden.mkdir()
        pq.write_table(BUILT[table].empty_table(), hidden / _EMPTY)  # for its columns
        for name, source in links.items():
            _link(source, hidden / name)
        version = {"batch": batch, "files": sorted(links)}
        (hidden / VERSION).write_bytes(msgspec.json.encode(version))
        place.replace()


def _names_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} if directory.is_dir() else set()


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        if not source.exists():
            raise
        shutil.copy2(source, target)  # a file system without hard links


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically and durably, even if the power fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{path.name}.new")
    with hidden.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    hidden.replace(path)


class Ledger:
    """The last completed batch, in the directory of the checkpoint."""

    def __init__(self, checkpoint: Path) -> None:
        self._path = checkpoint / "batches" / "last"

    def read(self) -> Manifest | None:
        """The result of the last batch; None if there is none yet."""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return msgspec.msgpack.decode(content, type=Manifest)
        except msgspec.MsgspecError as error:
            raise LocalError(
                f"{quote(str(self._path))} is damaged: {error}",
                rule="SP-3",
                hint="use a new checkpoint directory; the tables are then rebuilt",
            ) from None

    def write(self, manifest: Manifest) -> None:
        """Make this batch the last one."""
        write_whole(self._path, msgspec.msgpack.encode(manifest))


def write_part(
    directory: Path, name: str, rows: pa.Table, *, compression: str | None = None
) -> None:
    """Write rows that only these tasks read again: faster than Parquet, and larger."""
    directory.mkdir(parents=True, exist_ok=True)
    hidden = directory / f".{name}"
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with (
        pa.OSFile(str(hidden), "wb") as file,
        pa.ipc.new_file(file, rows.schema, options=options) as writer,
    ):
        writer.write_table(rows)
    hidden.rename(directory / name)


def read_part(path: Path) -> pa.Table:
    """The rows of such a file."""
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).read_all()
