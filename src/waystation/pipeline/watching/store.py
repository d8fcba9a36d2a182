"""Where files are: what tasks write, what the driver links, and the ledger of batches.

    OUT/<table>/                 what people read: links to files of the store, and `_version`
    OUT/.watch/<shelf>/          the store: Parquet files that never change
    OUT/.watch/states/           what is remembered of nodes
    OUT/.watch/exchange/         from the tasks of nodes to those of traces, for one batch
    CHECKPOINT/batches/          the last batch that is done (and Spark's own files beside it)

What names a file is written after the file is on disk: the ledger names files of the store, and
`_version` those of a table. Files that a table no longer has stay for a while, for readers that
began before. Names and files only; nothing here knows what is in a table.
"""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct, field

from waystation.errors import LocalError, quote
from waystation.journal.files import sync_path
from waystation.pipeline.store import Place
from waystation.pipeline.tables import BUILT, WATCHED
from waystation.why.finished import EMPTY, VERSION, Version

KEPT_SECONDS: Final = 300.0
"""How long a file stays after a batch left it out, for readers that began before."""

KEPT_BATCHES: Final = 60
"""Of how many batches such files stay at most, so that quick batches do not fill the disk."""

_STORE: Final = ".watch"
_EXCHANGE: Final = "exchange"
_STATES: Final = "states"
_SYNCED_AT_ONCE: Final = 8  # a file system writes what several ask for together
_NO_SYNC: Final = (errno.EINVAL, errno.ENOTSUP)


class LeftOut(Struct, frozen=True):
    """Files that tables had before a batch, and when it was (in seconds since 1970)."""

    at: float
    files: list[str]


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
    left_out: list[LeftOut] = field(default_factory=list)  # of this batch and earlier ones

    def of_table(self, table: str) -> list[str]:
        """The files of one table."""
        return sorted(name for names in self.files.get(table, {}).values() for name in names)

    def of_tables(self) -> set[str]:
        """The files of all tables."""
        return {name for table in self.files for name in self.of_table(table)}

    def leave_out(self, last: Manifest, now: float) -> None:
        """Note which files of the last batch no table has any more, and forget those of old."""
        gone = sorted(last.of_tables() - self.of_tables())
        recent = [left for left in last.left_out if left.at > now - KEPT_SECONDS]
        self.left_out = [*recent, LeftOut(now, gone)][-KEPT_BATCHES:]

    def kept_files(self) -> set[str]:
        """Everything in the store that must stay, also for readers that began before."""
        return self.all_files().union(*(left.files for left in self.left_out))

    def all_files(self) -> set[str]:
        """Everything in the store that is still needed."""
        beside = [name for names in self.beside.values() for name in names]
        names = [*self.states.values(), *self.traces.values(), self.facts, self.known]
        states = [f"{_STATES}/{name}" for name in names if name is not None]
        return {*self.of_tables(), *beside, *states}


class Store:
    """The files of a watched journal's tables; for the driver and for tasks."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.root = out / _STORE

    def shelf(self, name: str) -> Path:
        """The directory of a shelf."""
        return self.root / name

    def write_state(self, name: str, state: bytes) -> str:
        """Write the state of a bucket, which nobody reads before it is named; returns its name."""
        unique = f"{name}-{uuid.uuid4().hex[:12]}"
        shelf = self.shelf(_STATES)
        shelf.mkdir(parents=True, exist_ok=True)
        (shelf / unique).write_bytes(state)
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

    def sync(self, manifest: Manifest, last: Manifest) -> None:
        """Wait until the files that a batch added, whoever wrote them, are on disk."""
        _sync_all(self.root / name for name in manifest.all_files() - last.all_files())
        _sync(self.root)

    def clear_away(self, manifest: Manifest) -> None:
        """Remove files that no reader needs any more, and those of killed runs."""
        shutil.rmtree(self.root / _EXCHANGE, ignore_errors=True)
        needed = manifest.kept_files()
        for shelf in self.root.iterdir():
            if shelf.is_dir():
                for path in shelf.iterdir():
                    if f"{shelf.name}/{path.name}" not in needed:
                        path.unlink(missing_ok=True)

    def publish(self, manifest: Manifest) -> None:
        """Publish the tables of a batch; those that are unchanged stay."""
        places, written = [], []
        for table in WATCHED:
            names = manifest.of_table(table)
            if {*map(_shown, names), EMPTY, VERSION} != _names_in(self.out / table):
                place = Place(self.out, table)
                places.append(place)
                written += self._write(table, Path(place.prepare()), names, manifest.batch)
        if places:
            _sync_all(written)
            for place in places:
                place.replace()
            _sync(self.out)

    def _write(self, table: str, hidden: Path, names: list[str], batch: int) -> list[Path]:
        """Write a table to a hidden directory; returns the files that are not of the store."""
        hidden.mkdir()
        own = [hidden / EMPTY, hidden / VERSION]
        pq.write_table(BUILT[table].empty_table(), own[0])  # for its columns
        stored = [f"{table}/{EMPTY}", *(f"{_STORE}/{name}" for name in names)]
        version = Version(batch, sorted(map(_shown, names)), stored)
        own[1].write_bytes(msgspec.json.encode(version))
        for name in names:
            copy = hidden / _shown(name)
            if not _link(self.root / name, copy):
                own.append(copy)
        return own


def _shown(name: str) -> str:
    """The name in the directory of a table of a file in the store."""
    return name.replace("/", "-")


def _names_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} if directory.is_dir() else set()


def _link(source: Path, target: Path) -> bool:
    """Make the same file known under another name; False if it had to be copied."""
    try:
        os.link(source, target)
    except OSError:
        if not source.exists():
            raise
        shutil.copy2(source, target)  # a file system without hard links
        return False
    return True


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically and durably, even if the power fails."""
    _make_directory(path.parent)
    hidden = path.with_name(f".{path.name}.new")
    hidden.write_bytes(content)
    _sync(hidden)
    hidden.replace(path)
    _sync(path.parent)


def _make_directory(directory: Path) -> None:
    if not directory.is_dir():
        _make_directory(directory.parent)
        directory.mkdir(exist_ok=True)
        _sync(directory.parent)


def _sync_all(files: Iterable[Path]) -> None:
    """Wait until files are on disk, then the directories in which they are."""
    every = sorted(files)
    with ThreadPoolExecutor(_SYNCED_AT_ONCE) as pool:
        list(pool.map(_sync, every))
    for directory in sorted({path.parent for path in every}):
        _sync(directory)


def _sync(path: Path) -> None:
    """Wait until a file or directory is on disk, where the file system can tell."""
    try:
        sync_path(path)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


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
