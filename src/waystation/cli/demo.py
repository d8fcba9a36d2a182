"""`waystation demo`: a small fleet on this machine, broken on purpose, and its story from Spark.

The demonstration needs extras (pyarrow, mqtt5, websockets), and Spark for its tables: all of them
are imported when the command runs, not by this module.
"""

from __future__ import annotations

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec
from rich.console import Console

from waystation.cli.options import SETTINGS, Numbers, json_option, master_option
from waystation.cli.spark import drawn, spark_session
from waystation.errors import LocalError
from waystation.interruptions import interruptible

if TYPE_CHECKING:
    from waystation.demo.facts import Conclusion, Facts
    from waystation.demo.performance import Performance
    from waystation.demo.place import Place
    from waystation.demo.story import Story
    from waystation.pipeline import Progress

_EXTRAS: Final = {"pyarrow": "journal", "mqtt5": "mqtt", "websockets": "ws"}
_TITLE: Final = "The demonstration"

_HELP: Final = """Run a small fleet on this machine, break it on purpose, and tell what happened.

A gossip router, an MQTT broker, two hubs and six leaves over TCP, WebSocket, MQTT and a tunnel:
each is a process of its own. A node is killed, a route expires, a receiver stalls, a hub is
restarted, and something is published to nobody. Then the pipeline finds all of it in the journals,
and a report is written. Everything lies in one directory. Ctrl-C ends it at any moment and leaves
no process.

\b
Examples:
  waystation demo
  waystation demo --out /tmp/demo --seconds 60
  waystation demo --no-report --json
"""


@click.command(help=_HELP, context_settings=SETTINGS)
@click.option(
    "--out",
    metavar="DIR",
    default="waystation-demo",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where everything goes; what an earlier demo left there is replaced.",
)
@click.option(
    "--seconds",
    default=24.0,
    type=Numbers(1, 3600),
    help="How long there is traffic, at least.",
)
@click.option("--report/--no-report", default=True, help="Write OUT/report.html.")
@master_option
@json_option
def demo(*, out: Path, seconds: float, report: bool, master: str, as_json: bool) -> int:
    """Run the demonstration."""
    _check_extras()
    from waystation.demo.facts import facts_of  # noqa: PLC0415
    from waystation.demo.place import MADE, prepared  # noqa: PLC0415

    console = Console(stderr=True)
    with interruptible(), prepared(out) as place:
        played = _play(place, seconds, console)
        end = _conclude(place, played, master, console, report=report)
        facts = facts_of(place, played, end)
        place.write(MADE, facts)
    _print(facts, end.story, as_json=as_json)
    if end.missing is not None:
        raise click.ClickException(end.missing)
    if not all(found.found for found in facts.faults):
        raise click.ClickException("the journals do not show everything that was done")
    return 0


def _check_extras() -> None:
    missing = sorted(extra for module, extra in _EXTRAS.items() if find_spec(module) is None)
    if missing:
        raise LocalError(
            "the demonstration needs parts of Waystation that are not installed",
            rule="OB-4",
            hint=f"pip install 'waystation[{','.join([*missing, 'spark'])}]'",
        )


def _play(place: Place, seconds: float, console: Console) -> Performance:
    from waystation.demo.fleet import Pace  # noqa: PLC0415
    from waystation.demo.performance import perform  # noqa: PLC0415
    from waystation.demo.view import view_on  # noqa: PLC0415

    with view_on(console) as view:
        return perform(place, Pace(seconds), view)


def _conclude(
    place: Place, played: Performance, master: str, console: Console, *, report: bool
) -> Conclusion:
    """Build the tables, read the story from them, and write the report."""
    from waystation.demo.facts import Conclusion  # noqa: PLC0415

    console.print("the pipeline reads the journals", highlight=False)
    try:
        tables = _build(place, master)
    except (LocalError, click.ClickException) as error:
        return Conclusion(missing=f"there are no tables: {error}")
    story = _read_story(place, played)
    try:
        written = _write_report(place) if report else None
    except (LocalError, OSError) as error:
        return Conclusion(story, tables, missing=f"there is no report: {error}")
    return Conclusion(story, tables, written)


def _build(place: Place, master: str) -> dict[str, int]:
    with spark_session(master) as spark, drawn() as display:
        from waystation.pipeline import TABLES, build  # noqa: PLC0415

        bar = display.add_task("", total=len(TABLES), done="")

        def show(told: Progress) -> None:
            if told.state == "done":
                line = f"  {told.table}: {told.rows:,} rows in {told.seconds:.1f} s"
                display.console.print(line, highlight=False)
            completed = told.number - (told.state != "done")
            display.update(bar, description=told.table, completed=completed)

        summary = build(place.journal, place.tables, spark=spark, progress=show)
    return {name: table.rows for name, table in summary.tables.items()}


def _read_story(place: Place, played: Performance) -> Story:
    from waystation.demo.evidence import read_evidence  # noqa: PLC0415
    from waystation.demo.story import tell_story  # noqa: PLC0415
    from waystation.why import explain  # noqa: PLC0415

    def why(message_id: str) -> str | None:
        return explain(place.journal, message_id).hops[-1].explanation

    return tell_story(read_evidence(place.tables, place.journal), played.deeds, why)


def _write_report(place: Place) -> Path:
    from waystation.pipeline.report import write_report  # noqa: PLC0415

    write_report(place.tables, place.report, title=_TITLE)
    return place.report


def _print(facts: Facts, story: Story | None, *, as_json: bool) -> None:
    from waystation.demo.facts import next_lines  # noqa: PLC0415
    from waystation.demo.story import story_lines  # noqa: PLC0415

    if as_json:
        click.echo(msgspec.json.encode(facts).decode())
        return
    told = [] if story is None else ["", *story_lines(story), ""]
    for line in (*told, *next_lines(facts, _command())):
        click.echo(line)


def _command() -> str:
    """How this command is called here: its name alone where the shell finds it."""
    called = Path(sys.argv[0])
    if called.name != "waystation":
        return "waystation"
    found = shutil.which("waystation")
    return "waystation" if found and Path(found).samefile(called) else str(called)
