"""`waystation pipeline report`: the built tables as one page with pictures.

What it needs is an extra: it is imported when the command runs, not by this module.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from waystation.cli.options import DIRECTORY, SETTINGS
from waystation.cli.spark import drawn

if TYPE_CHECKING:
    from waystation.pipeline.report import Progress

_HELP: Final = """Write one page of HTML with pictures about the tables that `build` wrote.

It shows the topology with traffic and drops, drops by reason over time, what was expected against
what happened, the health of each node, latency by hop and transport, route churn, stale routes and
fan-out. The page needs no network and no other file.

Every row is counted; nothing is sampled. Percentiles of latency are right to within three percent.
Where there is more than a page can show, the page says how much of it is shown.

\b
Examples:
  waystation pipeline report --tables T --out report.html
  waystation pipeline report --tables T --out tuesday.html --title "Tuesday, all trucks"
"""


@click.command(help=_HELP, context_settings=SETTINGS)
@click.option(
    "--tables",
    metavar="DIR",
    required=True,
    type=DIRECTORY,
    help="What `waystation pipeline build` wrote; nothing in it is changed.",
)
@click.option(
    "--out",
    metavar="FILE.html",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The page; one that is there is replaced.",
)
@click.option("--title", help="What stands above it; the name of the directory, unless given.")
def report(*, tables: Path, out: Path, title: str | None) -> None:
    """Write the report."""
    from waystation.pipeline.report import write_report  # noqa: PLC0415

    with drawn() as display:
        line = display.add_task("report", total=None, done="")

        def tell(told: Progress) -> None:
            display.update(line, completed=told.number - 1, total=told.of, done=told.stage)

        written = write_report(tables, out, title=title, progress=tell)
    click.echo(
        f"wrote {written.out} ({written.bytes / 1e3:,.0f} kB): {written.nodes:,} nodes, "
        f"{written.messages:,} messages, {written.drops:,} drops"
    )
