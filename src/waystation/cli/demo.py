"""`waystation demo`: run a small fleet on this machine, break it on purpose, and explain it.

The demonstration needs optional extras (pyarrow, mqtt5, websockets), and Spark for its tables: all
of them are imported only when the command runs.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from waystation.cli.options import OUTPUT, SETTINGS, Numbers, json_option, master_option, print_json
from waystation.cli.serving import check_place
from waystation.cli.spark import progress_display, spark_session
from waystation.errors import LocalError
from waystation.interruptions import interruptible

if TYPE_CHECKING:
    from rich.console import Console

    from waystation.demo.comparison import Comparison
    from waystation.demo.console import DemoConsole
    from waystation.demo.directory import DemoDirectory
    from waystation.demo.run import DemoRun
    from waystation.demo.summary import Conclusion, Summary
    from waystation.pipeline import Progress

_EXTRAS: Final = {"pyarrow": "journal", "mqtt5": "mqtt", "websockets": "ws"}
_CONSOLE_EXTRAS: Final = {"jinja2": "console", "starlette": "console", "uvicorn": "console"}
_TITLE: Final = "The demonstration"

_HELP: Final = """Run a small fleet on this machine, break it on purpose, and explain what happened.

The fleet is a gossip router, an MQTT broker, two hubs and six leaves, connected over TCP,
WebSocket, MQTT and a tunnel; each runs in a process of its own. A node is killed, a route expires,
a receiver stalls, a hub is restarted, and messages are published without subscribers. Then the
pipeline finds all of this in the journals, and a report is written. All files go to one directory.
Ctrl-C stops the demo at any time and leaves no process behind.

\b
Examples:
  waystation demo
  waystation demo --console
  waystation demo --out /tmp/demo --seconds 60
  waystation demo --no-report --json
"""


@click.command(help=_HELP, context_settings=SETTINGS)
@click.option(
    "--out",
    metavar="DIR",
    default="waystation-demo",
    type=OUTPUT,
    help="Output directory; the results of an earlier demo in it are replaced.",
)
@click.option(
    "--seconds",
    default=24.0,
    type=Numbers(1, 3600),
    help="Minimum duration of the traffic.",
)
@click.option("--report/--no-report", default=True, help="Write OUT/report.html.")
@click.option(
    "--console",
    "with_console",
    is_flag=True,
    envvar="WAYSTATION_CONSOLE",
    help="Serve the console as well, and keep it after the run until Ctrl-C.",
)
@click.option(
    "--console-listen",
    metavar="HOST:PORT",
    default="127.0.0.1:8480",
    callback=check_place,
    help="Address to serve the console on.",
)
@master_option
@json_option
def demo(
    *,
    out: Path,
    seconds: float,
    report: bool,
    with_console: bool,
    console_listen: str,
    master: str,
    as_json: bool,
) -> int:
    """Run the demonstration."""
    _check_extras(_EXTRAS | (_CONSOLE_EXTRAS if with_console else {}))
    from rich.console import Console  # noqa: PLC0415

    from waystation.demo.console import DemoConsole  # noqa: PLC0415
    from waystation.demo.directory import SUMMARY_FILE, prepared  # noqa: PLC0415
    from waystation.demo.summary import summarize  # noqa: PLC0415

    console = Console(stderr=True)
    with ExitStack() as ends:
        ends.enter_context(interruptible())
        directory = ends.enter_context(prepared(out))
        page = DemoConsole(directory, console_listen) if with_console else None
        if page is not None:
            ends.callback(page.close)
        demo_run = _run(directory, seconds, console, page)
        end = _conclude(directory, demo_run, master, console, report=report)
        summary = summarize(directory, demo_run, end)
        directory.write(SUMMARY_FILE, summary)
        _print(summary, end.comparison, as_json=as_json)
        if page is not None:
            _stay(page, console)
    if end.missing is not None:
        raise click.ClickException(end.missing)
    if not all(found.found for found in summary.faults):
        raise click.ClickException("the journals do not show every fault that was injected")
    return 0


def _stay(page: DemoConsole, console: Console) -> None:
    """Keep the console until Ctrl-C, which is then no failure."""
    console.print(f"The console stays at {page.url} until Ctrl-C; see its Past.", highlight=False)
    with suppress(KeyboardInterrupt):
        page.stay()


def _check_extras(extras: Mapping[str, str]) -> None:
    missing = sorted({extra for module, extra in extras.items() if find_spec(module) is None})
    if missing:
        raise LocalError(
            "the demonstration needs extras that are not installed",
            rule="OB-4",
            hint="pip install 'waystation[demo]'",
        )


def _run(
    directory: DemoDirectory, seconds: float, console: Console, page: DemoConsole | None
) -> DemoRun:
    from waystation.demo.fleet import Pace  # noqa: PLC0415
    from waystation.demo.run import run_demo  # noqa: PLC0415
    from waystation.demo.view import view_on  # noqa: PLC0415

    with view_on(console) as view:
        return run_demo(directory, Pace(seconds), view, page)


def _conclude(
    directory: DemoDirectory, demo_run: DemoRun, master: str, console: Console, *, report: bool
) -> Conclusion:
    """Build the tables, compare them with what was done, and write the report."""
    from waystation.demo.summary import Conclusion  # noqa: PLC0415

    console.print("the pipeline is reading the journals", highlight=False)
    try:
        tables = _build(directory, master)
    except (LocalError, click.ClickException) as error:
        return Conclusion(missing=f"the tables were not built: {error}")
    from waystation.demo.remedies import remedies  # noqa: PLC0415 - it needs pyarrow

    comparison = _compare(directory, demo_run)
    helpful = list(remedies(directory.journal, comparison))
    try:
        written = _write_report(directory) if report else None
    except (LocalError, OSError) as error:
        missing = f"the report was not written: {error}"
        return Conclusion(comparison, tables, missing=missing, remedies=helpful)
    return Conclusion(comparison, tables, written, remedies=helpful)


def _build(directory: DemoDirectory, master: str) -> dict[str, int]:
    with spark_session(master) as spark, progress_display() as display:
        from waystation.pipeline import TABLES, build  # noqa: PLC0415

        bar = display.add_task("", total=len(TABLES), done="")

        def show(step: Progress) -> None:
            if step.state == "done":
                line = f"  {step.table}: {step.rows:,} rows in {step.seconds:.1f} s"
                display.console.print(line, highlight=False)
            completed = step.number - (step.state != "done")
            display.update(bar, description=step.table, completed=completed)

        summary = build(directory.journal, directory.tables, spark=spark, progress=show)
    return {name: table.rows for name, table in summary.tables.items()}


def _compare(directory: DemoDirectory, demo_run: DemoRun) -> Comparison:
    from waystation.demo.comparison import compare  # noqa: PLC0415
    from waystation.demo.evidence import read_evidence  # noqa: PLC0415
    from waystation.why import explain  # noqa: PLC0415

    def why(message_id: str) -> str | None:
        return explain(directory.journal, message_id).hops[-1].explanation

    return compare(read_evidence(directory.tables, directory.journal), demo_run.faults, why)


def _write_report(directory: DemoDirectory) -> Path:
    from waystation.report import write_report  # noqa: PLC0415

    write_report(directory.tables, directory.report, title=_TITLE)
    return directory.report


def _print(summary: Summary, comparison: Comparison | None, *, as_json: bool) -> None:
    from waystation.demo.comparison import comparison_lines  # noqa: PLC0415
    from waystation.demo.summary import next_lines  # noqa: PLC0415

    if as_json:
        print_json(summary)
        return
    lines = [] if comparison is None else ["", *comparison_lines(comparison), ""]
    lines += [*summary.remedies, ""] if summary.remedies else []
    for line in (*lines, *next_lines(summary, _command())):
        click.echo(line)


def _command() -> str:
    """How to call this command: by its name alone if the shell finds it."""
    called = Path(sys.argv[0])
    if called.name != "waystation":
        return "waystation"
    found = shutil.which("waystation")
    return "waystation" if found and Path(found).samefile(called) else str(called)
