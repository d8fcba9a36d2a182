"""A journal as Spark frames, and which part of it is read.

Frames made here keep the list of their files, so that the steps can work node by node. A frame
that is filtered or changed is a new frame without that list; steps accept it as well, and
shuffle its rows by node first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Final

import pyarrow as pa
from msgspec import Struct
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from waystation.journal.schema import (
    CLAIMS,
    MEMBERS,
    MESSAGES,
    NODES,
    ROUTES,
    SESSIONS,
    SUBSCRIPTIONS,
)
from waystation.pipeline.instants import instant
from waystation.pipeline.kernels.columns import repeated
from waystation.pipeline.kernels.evidence import Known
from waystation.pipeline.kernels.node_data import FileData
from waystation.pipeline.listing import Listing, Wanted, list_journal
from waystation.pipeline.schema import journal_schema
from waystation.pipeline.work import FromFiles, Through, from_files

_ORIGIN: Final = "_waystation_origin"


class Journal:
    """The tables of a journal as frames, without invalid rows, which `rejects(journal)` returns.

    Every frame has the columns of CONTRACT, `node` first. Nothing is read until a frame is used.
    """

    def __init__(self, spark: SparkSession, listing: Listing, wanted: Wanted) -> None:
        self.spark = spark
        self.listing = listing
        self.wanted = wanted
        self.known: Known | None = None  # what its nodes tell, once somebody asked (surveying.py)
        self._shared: dict[str, DataFrame] | None = None

    def __repr__(self) -> str:
        sizes = Counter[str]()
        for tables in self.listing.nodes.values():
            for table, files in tables.items():
                sizes[table] += sum(file.size for file in files)
        told = ", ".join(f"{table} {size_text(size)}" for table, size in sizes.most_common())
        number = len(self.listing.nodes)
        nodes = f"{number:,} node{'s' * (number != 1)}"
        return f"<Journal {self.path}: {nodes}, {len(self.files):,} files; {told or 'empty'}>"

    @property
    def path(self) -> str:
        """The directory of the journal."""
        return self.listing.root

    @property
    def files(self) -> list[str]:
        """The files that may be read, relative to the journal's directory."""
        return self.listing.files()

    @cached_property
    def nodes(self) -> DataFrame:
        """When each node started, stopped, and lost records."""
        return self._table(NODES)

    @cached_property
    def routes(self) -> DataFrame:
        """Every put and remove of a routing entry."""
        return self._table(ROUTES)

    @cached_property
    def subscriptions(self) -> DataFrame:
        """Every change of a subscription."""
        return self._table(SUBSCRIPTIONS)

    @cached_property
    def members(self) -> DataFrame:
        """Every change of the membership of groups."""
        return self._table(MEMBERS)

    @cached_property
    def sessions(self) -> DataFrame:
        """Every opening and end of a session, and what was measured of the peers' clocks."""
        return self._table(SESSIONS)

    @cached_property
    def claims(self) -> DataFrame:
        """Every claim to a name that a hub heard of, and what became of it."""
        return self._table(CLAIMS)

    @cached_property
    def messages(self) -> DataFrame:
        """Every outcome of every message at every node."""
        return self._table(MESSAGES)

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """Compute what several tables are made of only once, until the end of the block."""
        self._shared = {}
        try:
            yield
        finally:
            for frame in self._shared.values():
                frame.unpersist()
            self._shared = None

    def shared(self, name: str, make: Callable[[], DataFrame]) -> DataFrame:
        """A frame that several tables are made of; it is kept on disk while they are `sharing`."""
        if self._shared is None:
            return make()
        if name not in self._shared:
            self._shared[name] = make().persist(StorageLevel.DISK_ONLY)
        return self._shared[name]

    def work(
        self,
        tables: tuple[str, ...],
        work: FromFiles,
        schema: pa.Schema,
        *,
        split: bool = True,
        frugal: bool = False,
        through: Through | None = None,
    ) -> DataFrame:
        """A frame with the results of `work` for each node with one of these tables (work.py)."""
        return from_files(
            self.spark,
            self.listing,
            self.wanted,
            tables,
            work,
            schema,
            split=split,
            frugal=frugal,
            through=through,
        )

    def _table(self, table: str) -> DataFrame:
        def read(data: FileData) -> Iterator[pa.Table]:
            for rows in data.coded_batches(table, every=True):
                yield rows.add_column(0, "node", repeated(data.node, rows.num_rows))

        # Time ranges of messages are read separately; other tables are small.
        frame = self.work((table,), read, journal_schema(table), split=table == MESSAGES)
        return marked(frame, Origin(self, table))


class Origin(Struct, frozen=True):
    """What a frame represents: a table of a journal, or one that a step builds from it."""

    journal: Journal
    table: str
    hop_limit: int = 0  # given to `expected`


def marked(frame: DataFrame, origin: Origin) -> DataFrame:
    """Attach to the frame what it represents."""
    setattr(frame, _ORIGIN, origin)
    return frame


def origin_of(frame: DataFrame, table: str) -> Origin | None:
    """What a frame represents, if it is this table of a journal and unchanged."""
    origin = frame.__dict__.get(_ORIGIN)
    return origin if isinstance(origin, Origin) and origin.table == table else None


def read_journal(
    spark: SparkSession,
    path: str | Path,
    *,
    nodes: Iterable[str] | None = None,
    since: str | datetime | None = None,
    until: str | datetime | None = None,
) -> Journal:
    """Read the journal in a directory as it is now; files sealed later are not included.

    `nodes` limits it to some nodes; `until` to records before that time; `since` to messages
    from that time on, with everything that is needed to decide them. Files and row groups outside
    are not read: file names contain the incarnation, footers the range of timestamps.

    ```text
    journal = pipeline.read_journal(spark, "journal/", since="2026-11-15T12:00:00Z")
    journal.messages.where("outcome = 'DROPPED'").groupBy("node", "reason").count().show()
    ```
    """
    names = None if nodes is None else frozenset([nodes] if isinstance(nodes, str) else nodes)
    wanted = Wanted(
        names,
        None if since is None else instant(since),
        None if until is None else instant(until),
    )
    return Journal(spark, list_journal(str(path), wanted), wanted)


def size_text(size: int) -> str:
    """A number of bytes for people.

    >>> size_text(0), size_text(2_048), size_text(5 * 2**30)
    ('0 B', '2.0 KiB', '5.0 GiB')
    """
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
