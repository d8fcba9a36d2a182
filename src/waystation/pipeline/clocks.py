"""How far the clocks of nodes differ, hour by hour, by their sessions or their traffic (TM-3).

Each node journals how far the clocks of its peers are ahead of its own. Of the measurements of one
peer in an hour that with the least round trip counts: its error is at most half of that. Where they
do not connect nodes that had traffic with each other, the messages tell (surveying.py). How offsets
add up is in the core, for `why` too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame

from waystation.core.corrections import HOUR, Link, corrections
from waystation.core.visits import DAY
from waystation.journal.schema import INSTANT, SESSIONS
from waystation.pipeline.journal import Journal
from waystation.pipeline.kernels.links import LINKS, links_of, links_table
from waystation.pipeline.schema import spark_schema
from waystation.pipeline.surveying import known_of
from waystation.pipeline.tables import BUILT
from waystation.pipeline.work import mapped

NAME: Final = "clocks"


def clocks(journal: Journal) -> DataFrame:
    """The table of a journal: the measurements of an hour, from all nodes, meet in one task."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        held = [pa.Table.from_batches([batch]) for batch in batches]
        if held:
            yield clocks_of(pa.concat_tables(held))

    links = journal.work((SESSIONS,), links_of, LINKS, split=False)
    estimated = links_table(known_of(journal).estimated).to_pylist()
    if estimated:
        rows = [tuple(row.values()) for row in estimated]
        links = links.unionAll(journal.spark.createDataFrame(rows, spark_schema(LINKS)))
    return mapped(links.repartition("hour"), work, BUILT[NAME])


def clocks_of(links: pa.Table) -> pa.Table:
    """The table for what is known of some hours; that of an hour is all here."""
    hours: dict[int, list[Link]] = {}
    for row in links.to_pylist():
        hours.setdefault(row.pop("hour"), []).append(Link(**row))
    return clocks_by_hour(hours)


def clocks_by_hour(hours: Mapping[int, Iterable[Link]]) -> pa.Table:
    """The table for all that is known of each hour."""
    rows = []
    for hour, measured in sorted((hour, list(links)) for hour, links in hours.items()):
        found = corrections(measured)
        rows += [
            (
                *(link.node, link.peer, hour, hour + HOUR, link.offset_us, link.rtt_us),
                *(link.source, found[link.node], hour // DAY),
            )
            for link in sorted(measured, key=lambda link: (link.node, link.peer))
        ]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(BUILT[NAME])
    return pa.table(
        [
            pa.array(values, pa.int64()).view(INSTANT)
            if field.type == INSTANT
            else pa.array(values, field.type)
            for values, field in zip(columns, BUILT[NAME], strict=True)
        ],
        schema=BUILT[NAME],
    )
