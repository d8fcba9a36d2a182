"""`waystation pipeline report`: write an HTML report about the built tables.

Its dependencies are an optional extra, so they are imported only when the command runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from waystation.cli.options import PLACE, SETTINGS, LocalPath, json_option, print_json
from waystation.cli.spark import progress_display
from waystation.core.spoken import plural

if TYPE_CHECKING:
    from waystation.report import Progress

_HELP: Final = """Write an HTML report with charts about the tables that `build` wrote.

It shows the topology with traffic and drops, drops by reason over time, expected against actual
outcomes, the health of each node, latency by hop and transport, route churn, stale routes and
fan-out. The page is a single file and needs no network.

Every row is counted; nothing is sampled. Latency percentiles are accurate to within three percent.
Where there is more data than a page can show, the page says how much of it is shown.

\b
Examples:
  waystation pipeline report --tables T --out report.html
  waystation pipeline report --tables T --out tuesday.html --title "Tuesday, all trucks"
"""


@click.command(help=_HELP, context_settings=SETTINGS)
@click.option(
    "--tables",
    metavar="DIR|URI",
    required=True,
    type=PLACE,
    help="Tables built by `waystation pipeline build`; they are not modified.",
)
@click.option(
    "--out",
    metavar="FILE.html",
    required=True,
    type=LocalPath(dir_okay=False, path_type=Path),
    help="HTML file to write; an existing file is replaced.",
)
@click.option("--title", help="Title of the report; the name of the directory by default.")
@json_option
def report(*, tables: str | Path, out: Path, title: str | None, as_json: bool) -> None:
    """Write the report."""
    from waystation.report import write_report  # noqa: PLC0415

    with progress_display() as display:
        line = display.add_task("report", total=None, done="")

        def show(step: Progress) -> None:
            display.update(line, completed=step.number - 1, total=step.of, done=step.stage)

        written = write_report(tables, out, title=title, progress=show)
    if as_json:
        print_json(written)
        return
    found = (
        plural(written.nodes, "node"),
        plural(written.messages, "message"),
        plural(written.losses, "loss", "losses"),
    )
    click.echo(f"wrote {written.out} ({written.bytes / 1e3:,.0f} kB): {', '.join(found)}")
