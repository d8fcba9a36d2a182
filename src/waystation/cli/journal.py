"""`waystation journal`: print, check, seal and compact a journal, for people and for programs.

The journal is an extra (pyarrow): it is imported by the commands that need it, not by this module.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import msgspec

from waystation.cli.lazy import HelpfulGroup
from waystation.cli.options import (
    DIRECTORY,
    TABLES,
    Checked,
    Instant,
    Numbers,
    check_is_journal,
    choice,
    json_option,
    print_json,
)
from waystation.cli.peer import peer_options
from waystation.cli.serving import metrics_option
from waystation.core.message import check_message_id
from waystation.core.outcome import Outcome, Reason
from waystation.errors import quote

if TYPE_CHECKING:
    from waystation.journal.read import Entry, JournalReader

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_INSTANTS: Final = ("at", "expiry", "received_at")
_FOLLOW_SECONDS: Final = 0.2

Command = TypeVar("Command", bound=Callable[..., Any])

_HELP: Final = """Read, check, seal and compact a journal.

\b
Examples:
  waystation journal cat J --outcome DROPPED
  waystation journal tail J --follow
  waystation journal check J
"""


@click.group(cls=HelpfulGroup, help=_HELP)
def journal() -> None:
    """Read, check, seal and compact a journal."""


_directory = click.argument(
    "directory",
    metavar="JOURNAL",
    envvar="WAYSTATION_JOURNAL",
    type=DIRECTORY,
)


def _filters(command: Command) -> Command:
    """The options that select rows."""
    options = [
        click.option(
            "--table",
            multiple=True,
            type=click.Choice(TABLES),
            help="Only this table (repeatable).",
        ),
        click.option("--node", multiple=True, help="Only this node (repeatable)."),
        click.option(
            "--message",
            metavar="ID",
            type=Checked("id", check_message_id),
            help="Only the message with this id.",
        ),
        click.option(
            "--outcome",
            multiple=True,
            type=choice(Outcome),
            help="Only messages with this outcome (repeatable).",
        ),
        click.option(
            "--reason",
            multiple=True,
            metavar="REASON",
            type=choice(Reason),
            help="Only messages dropped for this reason, such as NO_ROUTE (repeatable).",
        ),
        click.option("--participant", help="Only rows about this participant."),
        click.option(
            "--since",
            type=Instant(),
            help="Only rows from this time on (2026-05-01T12:00, or 15m: 15 minutes ago).",
        ),
        click.option("--until", type=Instant(), help="Only rows before this time."),
        json_option,
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _reader(directory: Path, options: dict[str, Any]) -> JournalReader:
    from waystation.journal.read import JournalReader, RowFilter  # noqa: PLC0415

    rows = RowFilter(
        tables=frozenset(options["table"]),
        nodes=frozenset(options["node"]),
        message=options["message"],
        outcomes=frozenset(options["outcome"]),
        reasons=frozenset(options["reason"]),
        participant=options["participant"],
        since=options["since"],
        until=options["until"],
    )
    return JournalReader(directory, _report, rows)


_CAT: Final = """Print the rows of a journal, sealed or not, one line each.

\b
Examples:
  waystation journal cat J --table routes --participant truck-7
  waystation journal cat J --message 4bf92f3577b34da6a3ce929d0e0e4736
  waystation journal cat J --outcome DROPPED --since 15m --json
"""


@journal.command(help=_CAT, context_settings={"auto_envvar_prefix": "WAYSTATION"})
@_directory
@_filters
def cat(directory: Path, *, as_json: bool, **options: Any) -> None:
    """Print the rows that pass the filters."""
    check_is_journal(directory)
    reader = _reader(directory, options)
    show = _json_line if as_json else Columns().line
    for entry in reader.entries():
        click.echo(show(entry))


_TAIL: Final = """Print the last rows of a journal; with -f, also new ones as they come.

\b
Examples:
  waystation journal tail J
  waystation journal tail J -n 100 --node hub --table messages
  waystation journal tail J --follow --outcome DROPPED --json
"""


@journal.command(help=_TAIL, context_settings={"auto_envvar_prefix": "WAYSTATION"})
@_directory
@click.option(
    "-n",
    "--lines",
    default=10,
    show_default=True,
    type=click.IntRange(0, 10**9),
    help="Number of rows to print at first.",
)
@click.option("-f", "--follow", is_flag=True, help="Keep printing new rows until interrupted.")
@_filters
def tail(directory: Path, *, lines: int, follow: bool, as_json: bool, **options: Any) -> None:
    """Print the last rows of a journal; with -f, also new ones as they come."""
    show = _json_line if as_json else Columns().line
    if not follow:  # a journal that is followed may not exist yet
        check_is_journal(directory)
    reader = _reader(directory, options)
    last = list(deque(reader.entries(), maxlen=lines))
    while True:
        for entry in last:
            click.echo(show(entry))
        sys.stdout.flush()
        if not follow:
            return
        try:
            time.sleep(_FOLLOW_SECONDS)
            last = list(reader.entries())
        except KeyboardInterrupt:  # the normal end
            return


_CHECK: Final = """Verify every file and row of a journal; exit with 1 if there is a problem.

\b
Examples:
  waystation journal check J
  waystation journal check J --json
"""


@journal.command(help=_CHECK)
@_directory
@json_option
def check(directory: Path, *, as_json: bool) -> int:
    """Verify every file and row of a journal; exit with 1 if there is a problem."""
    from waystation.journal.check import check as check_journal  # noqa: PLC0415

    check_is_journal(directory)
    problems = check_journal(directory)
    for problem in problems:
        click.echo(msgspec.json.encode(problem).decode() if as_json else str(problem))
    if not problems and not as_json:
        click.echo("no problems")
    return 1 if problems else 0


_SEAL: Final = """Seal the tails of nodes that no longer run, as their next start would.

A node that was killed leaves its last records in tails, which Spark does not see. Running nodes
are left alone.

\b
Examples:
  waystation journal seal J
  waystation journal seal J --node hub --json
"""


@journal.command(help=_SEAL, context_settings={"auto_envvar_prefix": "WAYSTATION"})
@_directory
@click.option("--node", help="Only this node; an error if it is running.")
@json_option
def seal(directory: Path, *, node: str | None, as_json: bool) -> None:
    """Seal what nodes that no longer run left unsealed."""
    known = check_is_journal(directory)
    if node is not None and node not in known:
        raise click.UsageError(f"{directory} has no node {quote(node)}")
    from waystation.journal.seal import seal_all_left, seal_left_tails  # noqa: PLC0415

    done = seal_all_left(directory) if node is None else [seal_left_tails(directory, node)]
    for sealed in done:
        click.echo(msgspec.json.encode(sealed).decode() if as_json else str(sealed))
    if not done and not as_json:
        click.echo("nothing to seal")


_SHIP: Final = """Copy a journal to an archive, and keep it up to date.

TO is a directory, s3://BUCKET/PREFIX, hdfs://HOST:PORT/DIR, or the route of a hub's archive worker,
such as "tcp#10.0.0.5:4000 => waystation.archive". Sealed files are copied once and verified by
their checksum, tails while they grow. It can be killed and started again at any time.

\b
Examples:
  waystation journal ship J --to s3://fleet/journal
  waystation journal ship J --to /mnt/archive --once
  waystation journal ship J --to "tcp#10.0.0.5:4000 => waystation.archive"
"""


@journal.command(help=_SHIP, context_settings={"auto_envvar_prefix": "WAYSTATION"})
@_directory
@click.option("--to", required=True, metavar="URI|ROUTE", help="Where to copy it to.")
@click.option("--once", is_flag=True, help="Exit when everything that exists now has arrived.")
@click.option(
    "--every",
    type=Numbers(min=0, min_open=True, max=86_400),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Seconds between checks for new files.",
)
@click.option("--name", default="ship", show_default=True, help="Name of this node, for a route.")
@metrics_option
@json_option
@peer_options
def ship(directory: Path, **options: Any) -> int:
    """Copy a journal to an archive."""
    check_is_journal(directory)
    from waystation.cli.journal_ship import run_shipping  # noqa: PLC0415 - it needs pyarrow

    return run_shipping(directory, options)


_COMPACT: Final = """Merge small sealed files; safe while the journal is written and read.

\b
Examples:
  waystation journal compact J
  waystation journal compact J --node hub --target-bytes 16777216
"""


@journal.command(help=_COMPACT, context_settings={"auto_envvar_prefix": "WAYSTATION"})
@_directory
@click.option("--node", help="Only this node.")
@click.option(
    "--target-bytes",
    default=128 * 2**20,
    show_default=True,
    type=click.IntRange(min=1),
    help="Maximum size of a merged file.",
)
@json_option
def compact(directory: Path, *, node: str | None, target_bytes: int, as_json: bool) -> None:
    """Merge small sealed files; safe while the journal is written and read."""
    check_is_journal(directory)
    from waystation.journal.housekeeping import compact as compact_journal  # noqa: PLC0415

    done = compact_journal(directory, _report, node=node, target_bytes=target_bytes)
    if as_json:
        print_json(done)
    else:
        click.echo(f"{done.before} files before, {done.after} after, {done.rows} rows moved")


def _report(path: Path, problem: str) -> None:
    click.echo(f"waystation: {path}: {problem}", err=True)


def _time(microseconds: int) -> str:
    try:
        moment = _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:  # a file may contain any number
        return f"{microseconds} us"
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _json_line(entry: Entry) -> str:
    fields = dict(entry.fields)
    for name in _INSTANTS:
        if fields.get(name) is not None:
            fields[name] = _time(fields[name])
    return msgspec.json.encode({"table": entry.table, "node": entry.node, **fields}).decode()


class Columns:
    """Rows as lines of text, when, where, what; the first three columns are aligned.

    Rows are not held back to be measured: a column grows when something longer comes.
    """

    def __init__(self) -> None:
        self._widths = [0, 0, len("messages")]

    def line(self, entry: Entry) -> str:
        """A row as one line."""
        fields = dict(entry.fields)
        incarnation, seq = entry.position
        for name in ("incarnation", "seq", "at"):
            del fields[name]
        what = _message(fields) if entry.table == "messages" else _change(fields)
        first = (entry.node, f"{incarnation}-{seq}", entry.table)
        self._widths = [max(pair) for pair in zip(self._widths, map(len, first), strict=True)]
        cells = [cell.ljust(width) for cell, width in zip(first, self._widths, strict=True)]
        return " ".join([_time(entry.at), *cells, what])


def _change(fields: dict[str, Any]) -> str:
    return " ".join([str(fields.pop("kind")), *_pairs(fields)])


def _message(fields: dict[str, Any]) -> str:
    verdict = [fields.pop("outcome"), fields.pop("reason")]
    onward, back = (" => ".join(fields.pop(name) or ()) or "-" for name in ("onward", "return"))
    first = [*filter(None, verdict), fields.pop("message_id"), fields.pop("kind")]
    return " ".join([*map(str, first), f"[{onward}] from [{back}]", *_pairs(fields)])


def _pairs(fields: dict[str, Any]) -> list[str]:
    pairs = []
    for name, value in fields.items():
        if value is None or value is False or value == "":
            continue
        text = _time(value) if name in _INSTANTS else value
        if isinstance(text, list):
            text = ",".join(text)
        pairs.append(name if value is True else f"{name}={text}")
    return pairs
