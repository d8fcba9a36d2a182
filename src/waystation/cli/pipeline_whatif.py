"""`waystation pipeline whatif`: what would have become of each message otherwise.

Spark is an optional extra, so it is imported only when the command runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from waystation.cli.options import (
    OUTPUT,
    SETTINGS,
    check_is_journal,
    journal_option,
    json_option,
    master_option,
    print_json,
)
from waystation.cli.pipeline import seal_left
from waystation.cli.spark import progress_display, spark_session

if TYPE_CHECKING:
    from waystation.pipeline import Journal
    from waystation.whatif.verdicts import Sentence

_HELP: Final = """Ask what would have become of every message if something had been different.

A change file (TOML) says what would have been different: longer lives of routes, a crash that did
not happen, a subscription that was there. The rules decide again, and messages whose fate changes
are followed hop by hop. The table `whatif` has a row for each message and recipient with a
verdict: same, saved, lost, moved, void (it answers a request that now ends otherwise) or unknown.

With --suggest no file is needed: a set of usual changes is tried, and those that would have saved
messages are listed, the best first, and for each kind of incident the smallest that saves most.

\b
Examples:
  waystation pipeline whatif --journal J --change longer-ttl.toml --out T
  waystation pipeline whatif --journal J --suggest
"""


@click.command(help=_HELP, context_settings=SETTINGS)
@journal_option
@click.option(
    "--change",
    metavar="FILE.toml",
    type=click.Path(dir_okay=False, path_type=Path),
    help="What would have been different.",
)
@click.option(
    "--out",
    metavar="DIR",
    type=OUTPUT,
    help="Directory for the table `whatif`; without it only the summary is printed.",
)
@click.option("--suggest", is_flag=True, help="Try usual changes, and list those that help.")
@master_option
@json_option
def whatif(
    *,
    journal: str | Path,
    change: Path | None,
    out: str | Path | None,
    suggest: bool,
    master: str,
    as_json: bool,
) -> None:
    """Ask what would have been."""
    if (change is None) == (not suggest):
        raise click.UsageError("give --change FILE.toml, or --suggest")
    if suggest and out is not None:
        raise click.UsageError("--suggest writes no table; leave out --out")
    check_is_journal(journal)
    if change is not None and not change.exists():
        raise click.UsageError(f"{change} does not exist")
    seal_left(journal)
    with spark_session(master) as spark:
        from waystation.pipeline import read_journal  # noqa: PLC0415

        found = read_journal(spark, journal)
        if change is None:
            _suggest(found, as_json=as_json)
        else:
            _print(_asked(found, change, out), as_json=as_json)


def _asked(journal: Journal, change: Path, out: str | Path | None) -> Sentence:
    from waystation.pipeline.store import opened_store  # noqa: PLC0415
    from waystation.pipeline.writing import write_tables  # noqa: PLC0415
    from waystation.whatif.asking import summary  # noqa: PLC0415
    from waystation.whatif.asking import whatif as ask  # noqa: PLC0415
    from waystation.whatif.changes import read_changes  # noqa: PLC0415

    changes = read_changes(change)
    store = None if out is None else opened_store(out)
    with progress_display() as display:
        display.add_task("whatif", total=None, done="")
        frame = ask(journal, changes).persist()
        if store is not None:
            store.publish(write_tables(frame, store, ["whatif"]).files)
        return summary(changes, frame)


def _print(sentence: Sentence, *, as_json: bool) -> None:
    click.echo(msgspec.json.encode(sentence).decode() if as_json else str(sentence))


def _suggest(journal: Journal, *, as_json: bool) -> None:
    from waystation.whatif.suggesting import suggestion_lines, suggestions  # noqa: PLC0415

    with progress_display() as display:
        line = display.add_task("suggest", total=None, done="")
        found = suggestions(
            journal, lambda number, of: display.update(line, completed=number, total=of)
        )
    if as_json:
        print_json(found)
        return
    for text in suggestion_lines(found):
        click.echo(text)
