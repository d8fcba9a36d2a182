"""The tables `losses` and `incidents`: what was lost and why, in Spark SQL over the other tables.

Each statement is a file in the folder `sql`; core/incidents.py is the reference that they agree
with. The last entry or session before a loss is found by sorting both into one line, key by key,
never by comparing every loss with every entry.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files
from typing import Any, Final

import pyarrow as pa
from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession

from waystation.core import incidents as rules
from waystation.core.corrections import HOUR
from waystation.core.incidents import Cause, clock_incidents
from waystation.core.visits import DAY
from waystation.journal.schema import MEMBERS, MESSAGES
from waystation.pipeline.inprocess import (
    corrections_of,
    gaps_of,
    incident_table,
    loss_table,
    survey_files,
)
from waystation.pipeline.journal import Journal
from waystation.pipeline.kernels.evidence import Known
from waystation.pipeline.kernels.gossip import DROPPED, gossip_losses
from waystation.pipeline.making import built
from waystation.pipeline.surveying import known_of
from waystation.pipeline.tables import BUILT
from waystation.pipeline.work import mapped

OfTable = Callable[[str], DataFrame]
"""Another table of the same journal, by its name."""

_LIMITS: Final = {
    "DAY": DAY,
    "SLACK": rules.SLACK,
    "NOTICED": rules.NOTICED,
    "TOGETHER": rules.TOGETHER,
    "TWINS": rules.TWINS,
    "JOINED": rules.JOINED,
    "OFF": rules.OFF,
    "EVIDENCE": rules.EVIDENCE,
}
SMALL: Final = 8 * 2**20
"""Bytes of messages up to which the core finds losses faster than Spark plans to."""

_ORDER: Final = {"losses": ("recipient", "event_time"), "incidents": ("started",)}
_MACRO: Final = re.compile(r"\b(HOUR|LASTED|EXPLAINS|PLAINLY)\[([^\]]*)\]")


def losses(journal: Journal, of: OfTable | None = None) -> DataFrame:
    """What somebody went without, and why: a row for each.

    ```text
    pipeline.built(journal, "losses").where("not internal").groupBy("reason").count().show()
    ```
    """
    if _is_small(journal):
        return _found_here(journal, "losses")
    view = _View.of(journal, of)
    return _fitted("losses", view.run("losses", explained=view.explained))


def incidents(journal: Journal, of: OfTable | None = None) -> DataFrame:
    """The causes of losses, and what they cost.

    ```text
    pipeline.built(journal, "incidents").orderBy("started").show(truncate=False)
    ```
    """
    if _is_small(journal):
        return _found_here(journal, "incidents")
    view = _View.of(journal, of)
    found = view.run(
        "incidents",
        explained=view.explained,
        node_ends=view.node_ends,
        session_ends=view.session_ends,
        session_history=view.session_history,
        coverage=view.coverage,
        corrections=view.corrections,
        clocks=view.clocks,
        gaps=view.gaps,
    )
    return _fitted("incidents", found)


def _is_small(journal: Journal) -> bool:
    tables = journal.listing.nodes.values()
    return sum(file.size for files in tables for file in files.get(MESSAGES, ())) <= SMALL


def _found_here(journal: Journal, table: str) -> DataFrame:
    """A table of a small journal, found in this process: the same rows."""
    found = survey_files(journal.listing, journal.wanted).found
    rows = loss_table(found.losses) if table == "losses" else incident_table(found.incidents)
    return _fitted(table, journal.spark.createDataFrame(rows))


class _View(Struct, frozen=True, dict=True):
    """The frames that both tables are made of."""

    spark: SparkSession
    corrections: DataFrame
    clocks: DataFrame
    gaps: DataFrame
    session_history: DataFrame
    coverage: DataFrame
    node_ends: DataFrame
    session_ends: DataFrame
    explained: DataFrame

    @classmethod
    def of(cls, journal: Journal, of: OfTable | None) -> _View:
        spark, known = journal.spark, known_of(journal)

        def table(name: str) -> DataFrame:
            return built(journal, name) if of is None else of(name)

        corrections, clocks, gaps = _told(spark, known)
        sessions, coverage = table("session_history"), table("coverage")
        ends = run(spark, "node_ends", coverage=coverage, corrections=corrections)
        session_ends = run(
            spark,
            "session_ends",
            session_history=sessions,
            coverage=coverage,
            corrections=corrections,
            node_ends=ends,
        )

        def lost() -> DataFrame:
            return run(
                spark,
                "lost",
                traces=table("traces"),
                gossip=journal.work((MEMBERS, MESSAGES), gossip_losses, DROPPED, split=False),
                corrections=corrections,
            )

        def explain() -> DataFrame:
            asked = run(
                spark,
                "asked",
                lost=journal.shared("lost", lost),
                route_history=table("route_history"),
            )
            asked = run(spark, "with_sessions", asked=asked, session_ends=session_ends)
            return run(spark, "explained", asked=asked, node_ends=ends, clocks=clocks)

        explained = journal.shared("explained", explain)
        return cls(
            *(spark, corrections, clocks, gaps, sessions, coverage, ends, session_ends, explained)
        )

    def run(self, name: str, **frames: DataFrame) -> DataFrame:
        """The result of a statement."""
        return run(self.spark, name, **frames)


def run(spark: SparkSession, name: str, **frames: DataFrame) -> DataFrame:
    """The result of a statement of the folder `sql`, for these frames."""
    given: dict[str, Any] = dict(frames)
    return spark.sql(_statement(name), **given)


@cache
def _statement(name: str) -> str:
    text = (files("waystation.pipeline") / "sql" / f"{name}.sql").read_text("utf-8")
    text = re.sub(r"--[^\n]*", "", text)
    text = _MACRO.sub(lambda found: _MACROS[found[1]](found[2]), text)
    for word, limit in _LIMITS.items():
        text = re.sub(rf"\b{word}\b", str(limit), text)
    return text


def _hour(at: str) -> str:
    return f"({at}) div {HOUR} * {HOUR}"


def _lasted(span: str) -> str:
    """A duration for people, as core/incidents.py writes it."""
    x = f"({span})"
    return (
        f"CASE WHEN {x} >= 172800000000 THEN concat({x} div 86400000000, ' d') "
        f"WHEN {x} >= 7200000000 THEN concat({x} div 3600000000, ' h') "
        f"WHEN {x} >= 120000000 THEN concat({x} div 60000000, ' min') "
        f"WHEN {x} >= 1000000 THEN concat({x} div 1000000, '.', {x} div 100000 % 10, ' s') "
        f"ELSE concat(greatest({x}, 0) div 1000, ' ms') END"
    )


def _explains(session: str) -> str:
    """Whether the end of a session explains what was lost."""
    ended = f"{session}.ended"
    return (
        f"coalesce({ended} IS NOT NULL AND (coalesce({session}.corrected_closed <= corrected, "
        f"false) OR corrected >= {ended}.corrected - "
        f"IF({ended}.kind = 'link_lost', NOTICED, SLACK)), false)"
    )


def _plainly(reason: str) -> str:
    cases = " ".join(f"WHEN '{name}' THEN '{text}'" for name, text in rules.TEXTS.items())
    return f"CASE {reason} {cases} ELSE {reason} END"


_MACROS: Final = {"HOUR": _hour, "LASTED": _lasted, "EXPLAINS": _explains, "PLAINLY": _plainly}


def _told(spark: SparkSession, known: Known) -> tuple[DataFrame, DataFrame, DataFrame]:
    """How far clocks were off, the incidents of clocks by hour, and the gaps of journals."""
    ahead = corrections_of(known)
    corrections = [(node, hour, off) for (node, hour), off in sorted(ahead.items()) if off]
    clocks = [
        (str(cause.node), hour, cause.started, cause.ended, cause.text)
        for cause in clock_incidents(ahead)
        for hour in _hours(cause)
    ]
    gaps = [tuple(gap) for gap in gaps_of(known)]
    return (
        spark.createDataFrame(corrections, "node string, hour long, ahead long"),
        spark.createDataFrame(
            clocks, "node string, hour long, started long, ended long, cause string"
        ),
        spark.createDataFrame(gaps, "node string, since long, until long"),
    )


def _hours(cause: Cause) -> range:
    assert cause.ended is not None
    return range(cause.started, cause.ended, HOUR)


def _fitted(table: str, frame: DataFrame) -> DataFrame:
    """A frame with the columns of its table, which our own tasks can write, in its order."""

    def as_they_are(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        return (pa.Table.from_batches([batch]) for batch in batches)

    fitted = frame.select(*BUILT[table].names).sortWithinPartitions(*_ORDER[table])
    return mapped(fitted, as_they_are, BUILT[table])
