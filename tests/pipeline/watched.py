"""The reference for `watch`: the tables of a journal built at once, without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.pipeline.frames import assert_same
from waystation.journal.schema import MESSAGES, ROUTES
from waystation.pipeline import TABLES
from waystation.pipeline.clocks import clocks_by_hour
from waystation.pipeline.inprocess import incident_table, loss_table, survey_files
from waystation.pipeline.kernels.comparing import compare, route_differences, waiting_ids
from waystation.pipeline.kernels.deciding import decide
from waystation.pipeline.kernels.evidence import Facts
from waystation.pipeline.kernels.health import counted, health_of
from waystation.pipeline.kernels.node_data import FileData, Share
from waystation.pipeline.kernels.node_tables import as_rejects, judged_rows, past_of, strays
from waystation.pipeline.kernels.passing import delays_in
from waystation.pipeline.kernels.tracing import steps, trace
from waystation.pipeline.listing import Wanted, list_journal
from waystation.pipeline.surveying import (
    all_links,
    combined,
    facts_of,
    strangers_in,
    with_estimates,
)
from waystation.pipeline.tables import BUILT, REGISTRY, WATCHED, maker
from waystation.pipeline.watching.engine import Batch, Engine, Task


def here(task: Task, orders: list[bytes]) -> list[bytes]:
    """Run tasks in this process."""
    return [task(order) for order in orders]


def engine(journal: Path, place: Path, *, buckets: int = 3) -> Engine:
    return Engine(str(journal), place / "tables", place / "checkpoint", here, buckets=buckets)


def every_file(journal: Path) -> list[str]:
    """All files of a journal, relative to its directory, including those of no node."""
    listing = list_journal(str(journal), Wanted())
    return [*listing.files(), *(stray.path for stray in listing.strays)]


def take_in(found: Engine, journal: Path) -> Batch | None:
    """One more batch with all existing files."""
    return found.take_in(every_file(journal))


def made_at_once(journal: Path, tables: Collection[str] = TABLES) -> dict[str, pa.Table]:
    """The tables as `build` makes them, node by node, by the same functions, without Spark.

    With `tables`, what takes long is made for these alone.
    """
    listing = list_journal(str(journal), Wanted())
    found: dict[str, list[pa.Table]] = {table: [BUILT[table].empty_table()] for table in TABLES}
    told, facts = [], []
    for node, files in listing.nodes.items():
        if {"traces", "clocks"} & set(tables):
            facts.append(facts_of(FileData(str(journal), Share(node, files), Wanted())))
        data = FileData(str(journal), Share(node, files), Wanted())
        if "rejects" in tables:
            rejected = FileData(str(journal), Share(node, files), Wanted()).all_rejects()
            found["rejects"].append(as_rejects(rejected))
        rows = data.events(MESSAGES)
        judged = judged_rows(data).cast(rows.schema)
        found["route_history"].append(data.route_history)
        found["subscription_history"].append(data.subscription_history)
        ruled = list(decide(node, judged, past_of(data, judged)))
        whole = pa.concat_tables([BUILT["expected"].empty_table(), *ruled])
        found["expected"].append(whole)
        later = data.later_entries(waiting_ids(judged))
        found["audit"].append(compare(node, whole, judged, later))
        found["audit"].append(route_differences(node, data.events(ROUTES)))
        named = rows.append_column("node", pa.repeat(pa.scalar(node), rows.num_rows))
        found["health"].append(health_of(counted(named)))
        told.append(steps(named))
    found["rejects"].append(strays(listing))
    for table in REGISTRY:
        if table.name in tables and not table.exchange and not found[table.name][1:]:
            for node, files in listing.nodes.items():
                unsealed = listing.unsealed.get(node, [])
                data = FileData(str(journal), Share(node, files, unsealed=unsealed), Wanted())
                found[table.name] += maker(table.made_by)(data, {table.name})
    whole = [FileData(str(journal), Share(*node), Wanted()) for node in listing.nodes.items()]
    known = combined(facts, delays_in(whole, strangers_in(facts)))
    found["clocks"].append(clocks_by_hour(with_estimates(all_links(facts), known.estimated)))
    found["traces"].append(
        trace(pa.concat_tables(told), paths=True, facts=Facts(known))
        if told and "traces" in tables
        else found["traces"][0]
    )
    told_of = survey_files(listing).found
    found["losses"].append(loss_table(told_of.losses))
    found["incidents"].append(incident_table(told_of.incidents))
    return {table: pa.concat_tables(parts) for table, parts in found.items()}


def table_in(out: Path, table: str) -> pa.Table:
    """A table as any reader of Parquet sees it."""
    return pq.read_table(out / table)


def assert_up_to_date(out: Path, journal: Path, tables: tuple[str, ...] = WATCHED) -> None:
    """The tables hold exactly the rows that are made of the whole journal."""
    wanted = made_at_once(journal, tables)
    for table in tables:
        found = table_in(out, table)
        assert found.schema.equals(BUILT[table]), table
        differing = _counted(found) != _counted(wanted[table])
        if differing:
            assert_same(found.to_pylist(), wanted[table].to_pylist())


def _counted(table: pa.Table) -> Counter[str]:
    return Counter(map(str, table.to_pylist()))


def sliced(source: Path, target: Path, rows: int) -> list[str]:
    """The journal in files of this many rows; their paths in the order of their first event."""
    found = []
    for path in sorted(source.glob("*/node=*/*.parquet")):
        whole = pq.read_table(path, partitioning=None)
        incarnation = path.name.partition("-")[0]
        for first in range(0, whole.num_rows, rows):
            part = whole.slice(first, rows)
            name = f"{incarnation}-{part.column('seq')[0].as_py()}.parquet"
            place = target / path.parent.relative_to(source) / name
            place.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(part, place)
            found.append((part.column("at")[-1].as_py(), str(place.relative_to(target))))
    return [name for _, name in sorted(found)]
