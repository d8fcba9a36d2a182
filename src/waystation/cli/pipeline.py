"""`waystation pipeline`: build tables from a journal with Spark, and query them.

Spark is an optional extra, so it is imported only when a command runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import msgspec

from waystation.cli.lazy import LazyGroup
from waystation.cli.lost import reach_fields
from waystation.cli.options import (
    SETTINGS,
    Instant,
    Numbers,
    check_is_journal,
    conf_option,
    journal_option,
    json_option,
    master_option,
    tables_option,
)
from waystation.cli.spark import progress_display, spark_session
from waystation.errors import quote

if TYPE_CHECKING:
    from rich.progress import Progress as Display
    from rich.progress import TaskID

    from waystation.pipeline import Progress, Summary

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Command = TypeVar("Command", bound=Callable[..., Any])


_GROUP: Final = """Build history tables from a journal, keep them up to date, and report on them.

\b
Examples:
  waystation pipeline build --journal J --out T
  waystation pipeline watch --journal J --out T --checkpoint C
  waystation pipeline table --journal J --at 15m
  waystation pipeline report --tables T --out report.html
  waystation pipeline whatif --journal J --suggest
"""


@click.group(
    cls=LazyGroup,
    help=_GROUP,
    modules={
        "report": "waystation.cli.pipeline_report",
        "watch": "waystation.cli.pipeline_watch",
        "whatif": "waystation.cli.pipeline_whatif",
    },
)
def pipeline() -> None:
    """The commands that need Spark or the tables it built."""


_BUILD: Final = """Read a journal and write all tables, which replace the former ones together.

\b
Examples:
  waystation pipeline build --journal J --out T
  waystation pipeline build --journal J --out T --since 2026-05-01T00:00:00 --node hub-0001
  waystation pipeline build --journal J --out T --master spark://10.0.0.5:7077 --json
  waystation pipeline build --journal s3://fleet/journal --out s3://fleet/tables
  waystation pipeline build --journal J --out T --day yesterday
  waystation pipeline build --journal J --out T --changed --keep-days 30
"""


@pipeline.command(help=_BUILD, context_settings=SETTINGS)
@journal_option
@tables_option
@master_option
@click.option(
    "--since",
    type=Instant(),
    help="Only messages from this time on (2026-05-01T12:00, or 2h: two hours ago).",
)
@click.option("--until", type=Instant(), help="Only events before this time.")
@click.option("--node", multiple=True, help="Only this node (repeatable).")
@click.option(
    "--format",
    type=click.Choice(("parquet", "delta")),
    show_default="delta in object stores, else parquet",
    help="Plain Parquet files, or Delta tables.",
)
@click.option(
    "--day",
    multiple=True,
    metavar="DAY",
    help="Only this day: 2026-11-16, 2026-11-01..2026-11-16, or yesterday (UTC; repeatable).",
)
@click.option("--changed", is_flag=True, help="Only days that are new or have other files now.")
@click.option(
    "--keep-days",
    type=click.IntRange(min=1),
    metavar="N",
    help="Remove days of the tables that are earlier than the last N.",
)
@click.option(
    "--lookahead",
    type=Numbers(min=0, max=10**9),
    metavar="SECONDS",
    help="Ignore records that are later than this after the last day. Default: read all.",
)
@conf_option
@json_option
def build(
    *,
    journal: str | Path,
    out: str | Path,
    master: str,
    format: str | None,
    conf: dict[str, str],
    since: int | None,
    until: int | None,
    node: tuple[str, ...],
    day: tuple[str, ...],
    changed: bool,
    keep_days: int | None,
    lookahead: float | None,
    as_json: bool,
) -> None:
    """Build all tables."""
    _check_days(day, changed, (keep_days, lookahead), (since, until, node or None))
    _check_selection(journal, node, since, until)
    _check_output(out, format, by_day=bool(day) or changed)
    with spark_session(master, conf) as spark:
        from waystation.pipeline import build as build_tables  # noqa: PLC0415

        with progress_display() as display:
            summary = build_tables(
                journal,
                out,
                spark=spark,
                nodes=node or None,
                since=_moment(since),
                until=_moment(until),
                format=format,
                progress=_Stages(display),
                days=day,
                changed=changed,
                keep_days=keep_days,
                lookahead=lookahead,
            )
    for line in summary.sealed:
        click.echo(f"waystation: {line}", err=True)
    if as_json:
        click.echo(_summary_json(summary))
    else:
        for line in _summary_lines(summary):
            click.echo(line)


def _check_days(
    days: tuple[str, ...], changed: bool, limits: Sequence[object], others: Sequence[object]
) -> None:
    """Refuse options that do not go together, before Spark is started."""
    if not days and not changed:
        if any(limit is not None for limit in limits):
            raise click.UsageError("--keep-days and --lookahead need --day or --changed")
        return
    if any(other is not None for other in others):
        raise click.UsageError("--day and --changed do not go with --since, --until or --node")
    from waystation.pipeline.days import day_numbers  # noqa: PLC0415 - it needs pyarrow

    day_numbers(days)


def _check_output(out: str | Path, format: str | None, *, by_day: bool) -> None:
    """Refuse a place that tables cannot be written to, before Spark is started."""
    from waystation.pipeline.days import checked_state, refuse_days  # noqa: PLC0415
    from waystation.pipeline.store import opened_store  # noqa: PLC0415 - it needs pyarrow

    check = checked_state if by_day else refuse_days
    check(opened_store(out, format).out)


def seal_left(journal: str | Path) -> None:
    """Let Spark see the last records of nodes that were killed, and say so."""
    if isinstance(journal, str):
        return  # what is in a store was shipped there, and is not changed
    from waystation.journal.seal import seal_all_left  # noqa: PLC0415

    for sealed in seal_all_left(journal):
        if not sealed.running:
            click.echo(f"waystation: {sealed}", err=True)


def _check_selection(
    journal: str | Path, nodes: tuple[str, ...], since: int | None, until: int | None
) -> None:
    """Reject options that cannot match anything, before Spark is started."""
    import_module("waystation.pipeline").check_spark_installed()
    known = check_is_journal(journal)
    for node in nodes:
        if node not in known:
            raise click.UsageError(f"{journal} has no node {quote(node)}")
    if since is not None and until is not None and since >= until:
        raise click.UsageError("--since must be before --until")


class _Stages:
    """Displays the progress of a build: one line per table, with its rows."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._lines: dict[str, TaskID] = {}

    def __call__(self, step: Progress) -> None:
        line = self._lines.get(step.table)
        if line is None:
            stage = f"{step.number}/{step.of} {step.table}"
            line = self._lines[step.table] = self._display.add_task(stage, total=None, done="")
        done = f"{step.rows:,} rows" if step.rows else ""
        if step.state == "done":
            self._display.update(line, completed=1, total=1, done=done)
        else:
            self._display.update(line, done=done)


def _summary_json(summary: Summary) -> str:
    fields: dict[str, Any] = msgspec.to_builtins(summary)
    fields["reach"] = None if summary.reach is None else reach_fields(summary.reach)
    return msgspec.json.encode(fields).decode()


def _summary_lines(summary: Summary) -> list[str]:
    lines = [] if summary.reach is None else [summary.reach.said()]
    if summary.days is None:
        read = [f"{rows:,} rows of {table}" for table, rows in summary.rows_in.items() if rows]
        lines.append(f"read {', '.join(read) or 'nothing: no rows in that time range'}")
    else:
        lines.append(f"built {', '.join(summary.days) or 'no day: nothing changed'}")
    if summary.removed:
        lines.append(f"removed {', '.join(summary.removed)}")
    built = [
        (name, f"{table.rows:,} rows", f"{table.bytes / 1e6:,.1f} MB", f"{table.seconds:.1f} s")
        for name, table in summary.tables.items()
    ]
    lines += [f"  {line}" for line in _aligned(built)]
    if summary.rejected:
        lines.append(f"{summary.rejected:,} rows or files were rejected; see {summary.out}/rejects")
    lines.append(f"wrote {summary.out} in {summary.seconds:.1f} s")
    return lines


_TABLE: Final = """Print the routing tables as they were at a point in time.

\b
Examples:
  waystation pipeline table --journal J --at 2026-05-01T12:00:00
  waystation pipeline table --journal J --at 15m --node hub-0001 --json
"""

_ENTRY: Final = ("node", "participant", "address", "local", "visible", "sticky")
_INSTANTS: Final = ("expiry", "valid_from")


@pipeline.command(help=_TABLE, context_settings=SETTINGS)
@journal_option
@click.option(
    "--at",
    required=True,
    type=Instant(),
    help="Point in time (2026-05-01T12:00, or 15m: 15 minutes ago).",
)
@click.option("--node", help="Only this node.")
@master_option
@conf_option
@json_option
def table(
    *,
    journal: str | Path,
    at: int,
    node: str | None,
    master: str,
    conf: dict[str, str],
    as_json: bool,
) -> None:
    """Print the routing tables at a point in time."""
    _check_selection(journal, () if node is None else (node,), None, None)
    with spark_session(master, conf) as spark:
        entries = _entries(spark, journal, at, node)
    if as_json:
        rows = ",\n ".join(msgspec.json.encode(entry).decode() for entry in entries)
        click.echo(f"[{rows}]")
        return
    for line in _table_lines(entries, at):
        click.echo(line)


def _entries(spark: Any, journal: str | Path, at: int, node: str | None) -> list[dict[str, Any]]:
    from pyspark.sql import functions as f  # noqa: PLC0415

    from waystation.pipeline import read_journal, route_history, routing_table  # noqa: PLC0415

    read = read_journal(spark, journal, nodes=None if node is None else [node])
    moment = _moment(at)
    assert moment is not None
    held = routing_table(route_history(read.routes), moment)
    shown = held.select(
        *_ENTRY, "incarnation", *(f.unix_micros(name).alias(name) for name in _INSTANTS)
    )
    entries = [row.asDict() for row in shown.collect()]
    for entry in entries:
        entry.update({name: _text(entry[name]) for name in _INSTANTS})
    return sorted(entries, key=lambda entry: (entry["node"], entry["participant"]))


def _table_lines(entries: list[dict[str, Any]], at: int) -> list[str]:
    lines = []
    for node in dict.fromkeys(entry["node"] for entry in entries):
        own = [entry for entry in entries if entry["node"] == node]
        lines.append(f"{node}: {len(own):,} entries at {_text(at)}")
        lines += [f"  {line}" for line in _aligned([_entry_cells(entry) for entry in own])]
    return lines or [f"no entries at {_text(at)}"]


def _entry_cells(entry: dict[str, Any]) -> tuple[str, ...]:
    marks = [name for name in ("visible", "sticky") if entry[name]]
    return (
        entry["participant"],
        entry["address"],
        "local" if entry["local"] else "remote",
        f"since {entry['valid_from']}",
        f"expires {entry['expiry']}" if entry["expiry"] else "never expires",
        " ".join(marks),
    )


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _moment(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else _EPOCH + timedelta(microseconds=microseconds)


def _text(microseconds: int | None) -> str | None:
    moment = _moment(microseconds)
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")
