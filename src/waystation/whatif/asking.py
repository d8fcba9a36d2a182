"""Ask a journal what would have been: from changes to a frame of verdicts, and sentences (SP-9).

The rules decide again node by node, without a shuffle. Only messages of which they decide otherwise
at some node are looked at as a whole, and only their copies that go elsewhere are followed, one hop
in each round. What changes passes through the driver; all other rows stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
from msgspec import structs
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.storagelevel import StorageLevel

from waystation.core.outcome import Outcome, Reason
from waystation.core.visits import VANISHED, Step, step_of
from waystation.journal.read import instants_as_integers
from waystation.journal.schema import MESSAGES, SCHEMAS, TEXT
from waystation.pipeline.journal import Journal
from waystation.pipeline.kernels.evidence import Known
from waystation.pipeline.kernels.node_data import FileData
from waystation.pipeline.schema import spark_schema
from waystation.pipeline.steps import traces
from waystation.pipeline.surveying import known_of
from waystation.pipeline.tables import WHATIF
from waystation.whatif.changes import Changes
from waystation.whatif.copies import Copy, Diverged, Told, encode
from waystation.whatif.deciding import diverged
from waystation.whatif.following import (
    MINUTE,
    Delays,
    Followed,
    followed,
    followed_to_the_end,
    link,
)
from waystation.whatif.past import (
    ChangedNode,
    Elsewhere,
    Noticed,
    Outage,
    check_found,
    keeps_names,
    leaves_sessions_open,
    missing,
    noticed_of,
    outages_of,
)
from waystation.whatif.stories import told
from waystation.whatif.verdicts import SAME, VOID, Sentence, verdicts

_DELIVERED: Final = str(Outcome.DELIVERED)
_DROPPED: Final = str(Outcome.DROPPED)
_FORWARDED: Final = str(Outcome.FORWARDED)
_EVERY_TABLE: Final = (MESSAGES, *(table for table in SCHEMAS if table != MESSAGES))
_DIVERGED: Final = pa.schema({"message_id": TEXT, "diverged": pa.binary()})
_TOLD: Final = pa.schema({"told": pa.binary()})


def whatif(journal: Journal, changes: Changes) -> DataFrame:
    """What would have become of each message, for each recipient, had the past been changed.

    ```text
    changes = read_changes("longer-ttl.toml")
    whatif(journal, changes).groupBy("verdict").count().show()
    ```
    """
    return Asked(journal).frame(changes)


class Asked:
    """A journal that is asked about several changes: what they have in common is found once."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    @cached_property
    def known(self) -> Known:
        """What its nodes tell of themselves."""
        return known_of(self.journal)

    @cached_property
    def whole(self) -> DataFrame:
        """The traces of its messages, which are kept."""
        found = traces(self.journal.messages, known=self.known)
        return found.persist(StorageLevel.MEMORY_AND_DISK)

    @cached_property
    def delays(self) -> Delays:
        """How long its links take."""
        return _delays(self.whole)

    def has_what_is_left_out(self, changes: Changes) -> bool:
        """Whether the crashes and stops happened that changes leave out."""
        outages = outages_of(changes, self.known.lives)
        return not missing(changes, outages)

    def frame(self, changes: Changes) -> DataFrame:
        """What would have become of each message."""
        changes.check()
        journal, outages = self.journal, outages_of(changes, self.known.lives)
        check_found(journal.listing.nodes, changes, outages)
        elsewhere = _elsewhere(journal, changes, Elsewhere.of(outages, self.known.lives))
        changed = _diverged(journal, changes, elsewhere).persist(StorageLevel.MEMORY_AND_DISK)
        affected = changed.select("message_id")
        if outages:
            affected = affected.unionAll(_vanished(self.whole, outages))
        about = Circumstances(changes, outages, self.known)
        stories = _stories(journal, affected.distinct(), changed, about)
        changed.unpersist()

        def visit(arriving: dict[str, list[Copy]]) -> Iterable[Followed]:
            return _visited(journal, arriving, changes, elsewhere, self.delays)

        ends = followed_to_the_end(stories, journal.listing.nodes, changes, visit)
        rows = verdicts(stories, ends, changes)
        others = {row["message_id"] for row in rows if row["verdict"] not in (SAME, VOID)}
        frame = _together(journal, self.whole, rows, sorted(others))
        return frame.withColumn("change", f.lit(str(changes)))


def is_counted() -> Column:
    """Whether a row is about an application's message rather than what nodes say to each other."""
    return ~f.coalesce(f.col("internal"), f.lit(False))


def summary(changes: Changes, frame: DataFrame) -> Sentence:
    """What changes would have brought, in one sentence."""
    counted = (
        frame.where(is_counted())
        .groupBy("verdict")
        .agg(
            f.count("*").alias("rows"),
            f.sum((f.col("before_outcome") == _DROPPED).cast("long")).alias("lost"),
        )
        .collect()
    )
    lost = sum(row["lost"] or 0 for row in counted)
    return Sentence.of(changes, {row["verdict"]: row["rows"] for row in counted}, lost)


class Circumstances(NamedTuple):
    """What a message's story depends on beside its rows."""

    changes: Changes
    outages: list[Outage]
    known: Known


def _elsewhere(journal: Journal, changes: Changes, first: Elsewhere) -> Elsewhere:
    """The same with what nodes would not have told each other."""
    if not (leaves_sessions_open(changes) or keeps_names(changes)):
        return first

    def work(data: FileData) -> Iterator[pa.Table]:
        found = ChangedNode(data, changes, first).noticed()
        yield pa.table({"told": [encode(found)]}, schema=_TOLD)

    rows = journal.work(_EVERY_TABLE, work, _TOLD, split=False).collect()
    return noticed_of(first, (msgspec.msgpack.decode(bytes(row[0]), type=Noticed) for row in rows))


def _diverged(journal: Journal, changes: Changes, elsewhere: Elsewhere) -> DataFrame:
    def work(data: FileData) -> Iterator[pa.Table]:
        found = list(diverged(data, changes, elsewhere))
        if found:
            ids, visits = zip(*found, strict=True)
            columns = {"message_id": pa.array(ids, TEXT), "diverged": list(map(encode, visits))}
            yield pa.table(columns, schema=_DIVERGED)

    return journal.work(_EVERY_TABLE, work, _DIVERGED, frugal=True)


def _vanished(whole: DataFrame, outages: list[Outage]) -> DataFrame:
    """The messages that may have vanished on their way to a node that was away."""
    away = f.array(*(f.lit(node) for node in sorted({one.node for one in outages})))
    there = f.exists("path", lambda step: f.array_contains(away, step.next_node))
    astray = (f.col("lost_copies") > 0) | (f.col("unknown_copies") > 0)
    return whole.where(astray & there).select("message_id")


# Messages as a whole


def _stories(
    journal: Journal,
    affected: DataFrame,
    changed: DataFrame,
    about: Circumstances,
) -> list[Told]:
    """What is known of each message of which something changes."""
    rows = journal.messages.join(affected, "message_id", "left_semi")
    both = rows.unionByName(changed, allowMissingColumns=True)
    both = both.repartition("message_id").sortWithinPartitions("message_id")
    facts, outages, ttl = about.known.encoded(), about.outages, about.changes.ttl

    def tell(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        evidence = Known.decoded(facts).evidence()
        for id, steps, visits in _by_message(batches):
            found = told(id, steps, visits, outages, evidence, ttl)
            yield pa.RecordBatch.from_pydict({"told": [encode(found)]}, schema=_TOLD)

    found = both.mapInArrow(tell, spark_schema(_TOLD)).collect()
    return [msgspec.msgpack.decode(bytes(row[0]), type=Told) for row in found]


def _by_message(
    batches: Iterator[pa.RecordBatch],
) -> Iterator[tuple[str, list[Step], list[Diverged]]]:
    """The steps and changed visits of each message; batches are sorted by its id."""
    current: str | None = None
    steps: list[Step] = []
    visits: list[Diverged] = []
    for batch in batches:
        for row in instants_as_integers(batch).to_pylist():
            if row["message_id"] != current:
                if current is not None:
                    yield current, steps, visits
                current, steps, visits = row["message_id"], [], []
            blob = row.pop("diverged")
            if blob is not None:
                visits.append(msgspec.msgpack.decode(blob, type=Diverged))
            else:
                steps.append(step_of(row))
    if current is not None:
        yield current, steps, visits


# Copies that go elsewhere


def _visited(
    journal: Journal,
    arriving: Mapping[str, list[Copy]],
    changes: Changes,
    elsewhere: Elsewhere,
    delays: Delays,
) -> Iterator[Followed]:
    nodes = {node: journal.listing.nodes[node] for node in arriving}
    some = Journal(journal.spark, structs.replace(journal.listing, nodes=nodes), journal.wanted)
    parcels = {node: encode(copies) for node, copies in arriving.items()}

    def work(data: FileData) -> Iterator[pa.Table]:
        copies = msgspec.msgpack.decode(parcels[data.node], type=list[Copy])
        found = followed(data, copies, changes, elsewhere, delays)
        yield pa.table({"told": [encode(found)]}, schema=_TOLD)

    for row in some.work(_EVERY_TABLE, work, _TOLD, split=False).collect():
        yield msgspec.msgpack.decode(bytes(row[0]), type=Followed)


def _delays(whole: DataFrame) -> Delays:
    """The median delay of each link in each minute, from the visits of all traces."""
    steps = whole.select("path", f.explode("path").alias("step")).where(
        "step.from_node is not null"
    )
    former = f.filter(
        "path",
        lambda one: (
            (one.node == f.col("step.from_node"))
            & (one.next_node == f.col("step.node"))
            & (one.outcome == _FORWARDED)
        ),
    )
    sent = f.get(former, f.lit(0)).getField("received_at")
    micros = f.unix_micros("received") - f.unix_micros("sent")
    minute = (f.unix_micros("sent") / MINUTE).cast("long")
    found = (
        steps.select(
            f.col("step.from_node").alias("from_node"),
            f.col("step.node").alias("to_node"),
            f.col("step.received_at").alias("received"),
            sent.alias("sent"),
        )
        .where("sent is not null")
        .groupBy("from_node", "to_node", minute.alias("minute"))
        .agg(f.percentile_approx(micros, 0.5).alias("delay"))
        .collect()
    )
    links: dict[str, dict[int, int]] = {}
    for row in found:
        links.setdefault(link(row["from_node"], row["to_node"]), {})[row["minute"]] = row["delay"]
    return Delays(links)


def _together(
    journal: Journal, whole: DataFrame, rows: list[dict[str, Any]], changed: list[str]
) -> DataFrame:
    """The rows of messages that change, and those of all others."""
    spark = journal.spark
    names = WHATIF.names
    table = pa.table(
        [pa.array([row[name] for row in rows], WHATIF.field(name).type) for name in names],
        schema=WHATIF,
    )
    mine = spark.createDataFrame(table)
    ids = spark.createDataFrame(
        pa.table({"id": pa.array(sorted({r["message_id"] for r in rows}), TEXT)})
    )
    requests = spark.createDataFrame(pa.table({"request": pa.array(changed, TEXT)}))
    others = whole.join(f.broadcast(ids), f.col("message_id") == f.col("id"), "left_anti")
    others = others.join(f.broadcast(requests), f.col("answers") == f.col("request"), "left")
    return mine.unionByName(_unchanged(others))


def _was_lost_upward() -> Column:
    """Whether a copy that names nobody was dropped, and no other of its visit left."""

    def is_lost(step: Column) -> Column:
        reason = f.coalesce(step.reason, f.lit(""))
        ended = ~reason.isin(str(Reason.DUPLICATE), str(Reason.NO_SUBSCRIBER))
        went_up = f.exists(
            "path",
            lambda other: (
                (other.node == step.node)
                & (other.received_at == step.received_at)
                & other.recipient.isNull()
                & (other.outcome == _FORWARDED)
            ),
        )
        return step.recipient.isNull() & (step.outcome == _DROPPED) & ended & ~went_up

    return f.exists("path", is_lost)


def _unchanged(whole: DataFrame) -> DataFrame:
    """The rows of messages of which no node decides otherwise, out of their traces."""
    named = f.array_compact(f.array_distinct(f.transform("path", lambda step: step.recipient)))
    nobody = f.array(f.lit(None).cast("string"))
    nothing = f.slice(nobody, 1, 0)
    upward = f.when((f.size(named) == 0) | _was_lost_upward(), nobody).otherwise(nothing)
    each = whole.withColumn("recipient", f.explode(f.concat(named, upward)))
    own = f.filter(
        "path",
        lambda step: (
            step.recipient.eqNullSafe(f.col("recipient"))
            & (f.coalesce(step.reason, f.lit("")) != "DUPLICATE")
        ),
    )
    arrived = f.filter("own", lambda step: step.outcome == _DELIVERED)
    last = f.coalesce(f.try_element_at("arrived", f.lit(-1)), f.try_element_at("own", f.lit(-1)))
    ended = each.withColumn("own", own).withColumn("arrived", arrived).withColumn("last", last)
    came = f.exists(
        "path",
        lambda step: (
            (step.node == f.col("last.next_node")) & (step.from_node == f.col("last.node"))
        ),
    )
    left = f.col("last.outcome") == _FORWARDED
    ended = ended.where(
        ~(left & f.coalesce(came, f.lit(False)))
    )  # somebody else's row tells how it went on
    vanished = left & f.col("reason").isin(VANISHED, str(Reason.EXPIRED))
    unheard = f.exists("lost", lambda one: one.recipient.isNull())
    untold = (f.col("last.reason") == str(Reason.NO_SUBSCRIBER)) & ~unheard
    outcome = f.when(vanished, f.lit(_DROPPED)).otherwise(
        f.when(~f.coalesce(untold, f.lit(False)), f.col("last.outcome"))
    )
    reason = f.when(vanished, f.col("reason")).otherwise(f.col("last.reason"))
    void = f.col("request").isNotNull()
    same: Mapping[str, Any] = {
        "before_outcome": outcome,
        "before_reason": reason,
        "before_node": f.col("last.node"),
        "hops_before": f.col("last.depth"),
    }
    after = {name.replace("before", "after"): f.when(~void, value) for name, value in same.items()}
    why = f.when(
        void, f.concat(f.lit("the fate of "), "request", f.lit(", which it answers, changes"))
    )
    columns = {
        "message_id": f.col("message_id"),
        "origin": f.col("origin"),
        "recipient": f.col("recipient"),
        **same,
        **after,
        "verdict": f.when(void, f.lit(VOID)).otherwise(f.lit(SAME)),
        "why": why,
        "internal": f.col("internal"),
        "change": f.lit(None).cast("string"),  # it is the same in all rows, and added at the end
    }
    return ended.select(*(columns[name].alias(name) for name in WHATIF.names))
