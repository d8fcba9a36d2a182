"""Batch after batch: which files are new, which tasks process them, and when a batch is done.

A batch counts from the moment at which it is in the ledger. A process that is killed before that
leaves nothing that counts; one that is killed later is repaired by publishing the batch again. So
a batch may be repeated at any time, and tasks may be run by anything that can call a function with
bytes: Spark, or a test. No Spark here.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from waystation.core.corrections import Delay, Link
from waystation.core.incidents import Incident
from waystation.errors import LocalError, quote
from waystation.journal.files import FileLock
from waystation.pipeline.clocks import clocks_by_hour
from waystation.pipeline.kernels.evidence import Known, changed_nodes
from waystation.pipeline.kernels.node_data import FileData, Share
from waystation.pipeline.kernels.node_tables import strays as strays_of
from waystation.pipeline.kernels.passing import delays_in
from waystation.pipeline.listing import File, Listing, Wanted, list_journal
from waystation.pipeline.store import prepared_directory
from waystation.pipeline.surveying import (
    NodeFacts,
    Strangers,
    all_links,
    combined,
    strangers_in,
    with_estimates,
)
from waystation.pipeline.tables import WATCHED
from waystation.pipeline.watching.buckets import BucketDone, BucketOrder, bucket_of, take_in
from waystation.pipeline.watching.losses import LossKeeper
from waystation.pipeline.watching.node_step import Report
from waystation.pipeline.watching.segments import write_rows
from waystation.pipeline.watching.state import Files, decoded
from waystation.pipeline.watching.store import Ledger, Manifest, Store
from waystation.pipeline.watching.traces import TraceDone, TraceOrder, take_steps

Task: TypeAlias = Callable[[bytes], bytes]
Run: TypeAlias = Callable[[Task, list[bytes]], list[bytes]]
"""Runs a task once for each order, anywhere, and returns the results in the same order."""

NO_BATCH: Final = -1
_STRAYS: Final = -1  # the bucket of files that belong to no node, or to all


class Batch(Struct, frozen=True):
    """The result of one batch."""

    number: int
    files: int
    rows: int
    messages: int
    dropped: dict[str, int]  # by reason
    missing: int
    rejected: int
    seconds: float
    lag: float  # seconds since the latest event in the tables
    reports: dict[str, Report] = field(default_factory=dict)  # by node
    incidents: list[Incident] = field(default_factory=list)  # all that are known now

    @property
    def rows_per_second(self) -> float:
        """Rows processed per second."""
        return self.rows / max(self.seconds, 1e-6)


class Engine:
    """The tables of one journal, kept up to date."""

    def __init__(
        self, journal: str, out: Path, checkpoint: Path, run: Run, *, buckets: int
    ) -> None:
        self._journal = journal
        self._run = run
        listing = list_journal(journal, Wanted())  # it says if there is none
        self._store = Store(Path(prepared_directory(out)))
        self._losses = LossKeeper(self._store)
        self._store.root.mkdir(exist_ok=True)
        self._lock = FileLock(self._store.root / "lock", "keeps these tables up to date")
        try:
            self._ledger = Ledger(Path(prepared_directory(checkpoint)))
            found = self._ledger.read()
            self._last = found or Manifest(NO_BATCH, buckets, journal, list(WATCHED))
            self._check_journal()
            self._known: dict[str, int] = {}  # size by path
            self._paths: dict[str, set[str]] = {}  # by node
            if self._store.has_all(self._last) and self._last.tables == list(WATCHED):
                self._remember_files()
                self._store.clear_away(self._last)
                self._store.publish(self._last)
            else:
                self._start_over(listing)
        except BaseException:
            self._lock.release()
            raise

    @property
    def batch(self) -> int:
        """The number of the last batch that is done."""
        return self._last.batch

    def close(self) -> None:
        """Release the lock."""
        self._lock.release()

    def take_in(self, paths: Iterable[str]) -> Batch | None:
        """Process some files of the journal, by their paths in it; None if all are known."""
        wanted = set(paths)
        strays = {stray.partition("\n")[2] for stray in self._last.strays}
        if wanted <= self._known.keys() | strays:
            return None
        return self._advance(self._last.batch + 1, wanted)

    def _advance(self, batch: int, wanted: set[str]) -> Batch:
        began = time.monotonic()
        listing = list_journal(self._journal, Wanted())
        files, replaced = self._what_is_new(listing, wanted)
        manifest = self._next(batch)
        reports = self._carry_out(manifest, files, replaced, listing.unsealed)
        self._note_strays(manifest, listing)
        incidents = self._losses.take(manifest, listing)
        manifest.leave_out(self._last, time.time())
        self._store.sync(manifest, self._last)
        self._ledger.write(manifest)
        self._last = manifest
        self._note_known(files, replaced)
        self._store.publish(manifest)
        self._store.clear_away(manifest)
        done = _summed_up(batch, files, reports, time.monotonic() - began)
        return replace(done, incidents=incidents)

    def _next(self, batch: int) -> Manifest:
        last = self._last
        return Manifest(
            batch,
            last.buckets,
            self._journal,
            list(WATCHED),
            dict(last.states),
            dict(last.traces),
            {table: dict(found) for table, found in last.files.items()},
            dict(last.beside),
            last.strays,
            last.facts,
            last.known,
            list(last.open),
        )

    def _what_is_new(self, listing: Listing, wanted: set[str]) -> tuple[dict[str, Files], set[str]]:
        """The files to process by node, and the nodes whose complete list of files is given.

        A file that is gone or has another size was compacted or removed: then its node is processed
        again, with all its current files.
        """
        sizes: dict[str, int] = {}
        files: dict[str, Files] = {}
        for node, tables in listing.nodes.items():
            for table, found in tables.items():
                for file in found:
                    sizes[file.path] = file.size
                    if file.path in wanted and file.path not in self._known:
                        files.setdefault(node, {}).setdefault(table, []).append(file)
        changed = {path for path, size in self._known.items() if sizes.get(path) != size}
        replaced = {node for node, paths in self._paths.items() if not changed.isdisjoint(paths)}
        for node in replaced:
            files[node] = {
                table: list(found) for table, found in listing.nodes.get(node, {}).items()
            }
        return files, replaced

    def _note_known(self, files: Mapping[str, Files], replaced: set[str]) -> None:
        for node, tables in files.items():
            if node in replaced:
                for path in self._paths.pop(node, set()):
                    del self._known[path]
            for file in _each(tables):
                self._known[file.path] = file.size
                self._paths.setdefault(node, set()).add(file.path)

    def _carry_out(
        self,
        manifest: Manifest,
        files: Mapping[str, Files],
        replaced: set[str],
        unsealed: Mapping[str, list[int]],
    ) -> dict[str, Report]:
        """Run all tasks, and record what they wrote."""
        if not files:
            return {}
        exchange = self._store.exchange()
        by_bucket: dict[int, dict[str, Files]] = {}
        for node, tables in files.items():
            by_bucket.setdefault(bucket_of(node, manifest.buckets), {})[node] = tables
        orders = [
            BucketOrder(
                bucket,
                manifest.buckets,
                manifest.batch,
                self._journal,
                str(self._store.out),
                str(exchange),
                manifest.states.get(bucket),
                nodes,
                replaced & set(nodes),
                {node: unsealed[node] for node in nodes if node in unsealed},
            )
            for bucket, nodes in sorted(by_bucket.items())
        ]
        results = self._run(take_in, [msgspec.msgpack.encode(order) for order in orders])
        done = [msgspec.msgpack.decode(result, type=BucketDone) for result in results]
        for found in done:
            manifest.states[found.bucket] = found.state
            manifest.beside[found.bucket] = found.beside
            for table, names in found.files.items():
                manifest.files.setdefault(table, {})[found.bucket] = names
        self._carry_on_traces(manifest, exchange, done)
        return {node: report for found in done for node, report in found.reports.items()}

    def _carry_on_traces(self, manifest: Manifest, exchange: Path, done: list[BucketDone]) -> None:
        retracted = [node for found in done for node in found.retracted]
        retold = self._note_facts(manifest, [facts for found in done for facts in found.facts])
        sources = [found.bucket for found in done]
        concerned = {int(path.name[:4]) for path in exchange.iterdir()} | set(manifest.open)
        if retracted or retold:
            concerned |= set(manifest.traces)
        answers = self._store.exchange()
        order = TraceOrder(
            bucket=0,
            buckets=manifest.buckets,
            batch=manifest.batch,
            out=str(self._store.out),
            exchange=str(exchange),
            sources=sources,
            retracted=retracted,
            state=None,
            known=manifest.known or "",
            retold=retold,
            answers_to=str(answers),
        )
        self._run_traces(manifest, order, concerned)
        told = {int(path.name[:4]) for path in answers.iterdir()}
        order = replace(
            order,
            sources=sorted(concerned),
            retracted=[],
            retold=[],
            answers_to=None,
            answers_from=str(answers),
        )
        self._run_traces(manifest, order, told)

    def _run_traces(self, manifest: Manifest, order: TraceOrder, buckets: set[int]) -> None:
        orders = [
            replace(order, bucket=bucket, state=manifest.traces.get(bucket))
            for bucket in sorted(buckets)
        ]
        results = self._run(take_steps, [msgspec.msgpack.encode(order) for order in orders])
        for result in results:
            found = msgspec.msgpack.decode(result, type=TraceDone)
            manifest.traces[found.bucket] = found.state
            manifest.files.setdefault("traces", {})[found.bucket] = found.traces
            manifest.beside[manifest.buckets + found.bucket] = found.beside
            manifest.open = sorted({*manifest.open} - {found.bucket})
            if found.open:
                manifest.open.append(found.bucket)

    def _note_facts(self, manifest: Manifest, new: list[NodeFacts]) -> list[str]:
        """Note what nodes tell beside messages; returns those of which it changes traces.

        How far records reach concerns only traces that are open, which are made again anyway.
        """
        facts: dict[str, NodeFacts] = {}
        if manifest.facts is not None:
            told = self._store.read_state(manifest.facts)
            facts = msgspec.msgpack.decode(told, type=dict[str, NodeFacts])
        former, measured = Known(), all_links(facts.values())
        if manifest.known is not None:
            former = Known.decoded(self._store.read_state(manifest.known))
        facts |= {found.node: found for found in new}
        known = combined(facts.values(), self._delays(manifest, strangers_in(facts.values())))
        now = all_links(facts.values())
        if (now, known.estimated) != (measured, former.estimated):
            self._note_clocks(manifest, with_estimates(now, known.estimated))
        manifest.facts = self._store.write_state("facts", msgspec.msgpack.encode(facts))
        manifest.known = self._store.write_state("known", known.encoded())
        return changed_nodes(former, known)

    def _delays(self, manifest: Manifest, apart: Strangers) -> list[Delay]:
        """The delays of messages between nodes that nothing else connects, from all their files."""
        data = [
            FileData(self._journal, Share(node, state.all_files()), Wanted())
            for name in (manifest.states.values() if apart else ())
            for node, state in decoded(self._store.read_state(name)).nodes.items()
            if node in apart
        ]
        return delays_in(data, apart)

    def _note_clocks(self, manifest: Manifest, known: Mapping[int, Iterable[Link]]) -> None:
        """Write what is known of the nodes' clocks, which is little, as one file."""
        written = write_rows(self._store.shelf("clocks"), "all", clocks_by_hour(known))
        manifest.files["clocks"] = {_STRAYS: [f"clocks/{written}"]}

    def _note_strays(self, manifest: Manifest, listing: Listing) -> None:
        """Record files that belong to no node as rejects."""
        strays = [f"{stray.table}\n{stray.path}" for stray in listing.strays]
        if strays == manifest.strays:
            return
        manifest.strays = strays
        written = write_rows(self._store.shelf("rejects"), "strays", strays_of(listing))
        manifest.files.setdefault("rejects", {})[_STRAYS] = [f"rejects/{written}"]

    # Earlier runs

    def _check_journal(self) -> None:
        if self._last.journal != self._journal:
            raise LocalError(
                f"the checkpoint belongs to the journal {quote(self._last.journal)}",
                rule="SP-3",
                hint="use a separate checkpoint and output directory for each journal",
            )

    def _remember_files(self) -> None:
        for name in self._last.states.values():
            for node, state in decoded(self._store.read_state(name)).nodes.items():
                for file in _each(state.all_files()):
                    self._known[file.path] = file.size
                    self._paths.setdefault(node, set()).add(file.path)

    def _start_over(self, listing: Listing) -> None:
        """Rebuild everything, because the tables were removed, or others were kept before."""
        wanted = {file.path for tables in listing.nodes.values() for file in _each(tables)}
        batch = self._last.batch
        self._last = Manifest(batch, self._last.buckets, self._journal, list(WATCHED))
        self._advance(batch, wanted)


def _each(tables: Files) -> Iterable[File]:
    return (file for files in tables.values() for file in files)


def _summed_up(
    batch: int, files: Mapping[str, Files], reports: dict[str, Report], seconds: float
) -> Batch:
    dropped: Counter[str] = Counter()
    for report in reports.values():
        dropped.update(report.dropped)
    newest = max((report.newest for report in reports.values()), default=0)
    return Batch(
        batch,
        sum(1 for tables in files.values() for _ in _each(tables)),
        sum(report.rows for report in reports.values()),
        sum(report.messages for report in reports.values()),
        dict(dropped.most_common()),
        sum(report.missing for report in reports.values()),
        sum(report.rejected for report in reports.values()),
        seconds,
        max(0.0, time.time() - newest / 1e6) if newest else 0.0,
        reports,
    )
