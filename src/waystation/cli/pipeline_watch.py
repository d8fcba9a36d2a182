"""`waystation pipeline watch`: keep tables up to date with a growing journal, and raise alerts.

Spark is an optional extra, so it is imported only when the command runs.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.request import Request, urlopen

import click
import msgspec
from rich.console import Console
from rich.live import Live
from rich.text import Text

from waystation.cli.options import (
    DIRECTORY,
    OUTPUT,
    SETTINGS,
    Checked,
    LocalPath,
    Numbers,
    master_option,
)
from waystation.cli.peer import node_for, peer_options
from waystation.cli.spark import spark_session
from waystation.core.address import Route
from waystation.errors import LocalError, WaystationError, quote

if TYPE_CHECKING:
    from waystation.pipeline.watching import Alert, Batch, Watched

_HELP: Final = """Keep the tables up to date with a growing journal.

After each batch the tables in OUT equal those that `pipeline build` would make from the same files.
CHECKPOINT holds the progress; after a crash, run the same command again. Ctrl-C stops it after the
current batch. Alerts go to stderr, and to --alert-file, --alert-route and --alert-webhook if given.
Each incident is reported when it is found, with the command that explains it, and when it is over.

\b
Examples:
  waystation pipeline watch --journal J --out T --checkpoint C
  waystation pipeline watch --journal J --out T --checkpoint C --once --json
  waystation pipeline watch --journal J --out T --checkpoint C --every 1 \\
      --alert-drops 0.05 --alert-file alerts.jsonl --alert-route "tcp#10.0.0.5:4000 => ops"
"""
_SCHEMES: Final = ("http://", "https://")


def _check_url(text: str) -> None:
    if not text.startswith(_SCHEMES):
        raise LocalError(
            f"invalid URL {quote(text)}", rule="OB-5", hint="give one that begins with https://"
        )


_ALERT_TTL: Final = 60.0
_ALERT_WAIT: Final = 5.0


@click.command(help=_HELP, context_settings=SETTINGS)
@click.option(
    "--journal",
    metavar="DIR",
    required=True,
    type=DIRECTORY,
    help="Journal to read; it is not modified.",
)
@click.option(
    "--out",
    metavar="DIR",
    required=True,
    type=OUTPUT,
    help="Output directory of the tables; existing ones are replaced.",
)
@click.option(
    "--checkpoint",
    metavar="DIR",
    required=True,
    type=OUTPUT,
    help="Directory for the progress; use one per journal and output directory.",
)
@click.option("--once", is_flag=True, help="Exit when all files that exist now are processed.")
@click.option(
    "--every",
    type=Numbers(min=0),
    default=5.0,
    metavar="SECONDS",
    help="Seconds between the starts of batches, if there are new files.",
)
@click.option(
    "--files",
    type=click.IntRange(min=1),
    default=1_000,
    metavar="N",
    help="Maximum number of files in a batch.",
)
@master_option
@click.option(
    "--alert-drops",
    type=Numbers(0, 1),
    default=0.1,
    metavar="SHARE",
    help="Alert if a node drops more than this fraction of a batch's messages; 0 to disable.",
)
@click.option(
    "--alert-flaps",
    type=click.IntRange(min=0),
    default=30,
    metavar="N",
    help="Alert if a route changes more often than this per minute; 0 to disable.",
)
@click.option(
    "--alert-missing",
    type=click.IntRange(min=0),
    default=1,
    metavar="N",
    help="Alert if a node records no outcome for this many messages; 0 to disable.",
)
@click.option(
    "--alert-incidents",
    type=click.IntRange(min=0),
    default=1,
    metavar="N",
    help="Alert once for each incident that cost this many messages; 0 to disable.",
)
@click.option(
    "--alert-file",
    metavar="FILE",
    type=LocalPath(dir_okay=False, path_type=Path),
    help="File to append each alert to, as a line of JSON.",
)
@click.option(
    "--alert-route",
    metavar="ROUTE",
    type=Checked("route", Route.parse),
    help="Route to send each alert along, as JSON.",
)
@click.option(
    "--alert-webhook",
    metavar="URL",
    type=Checked("URL", _check_url),
    help="URL to post each alert to, as JSON.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    envvar="WAYSTATION_JSON",
    help="Print only a line of JSON per batch.",
)
@peer_options
def watch(
    *,
    journal: Path,
    out: Path,
    checkpoint: Path,
    once: bool,
    every: float,
    files: int,
    master: str,
    alert_drops: float,
    alert_flaps: int,
    alert_missing: int,
    alert_incidents: int,
    alert_file: Path | None,
    alert_route: str | None,
    alert_webhook: str | None,
    as_json: bool,
    **peer: Any,
) -> None:
    """Keep the tables up to date."""
    with ExitStack() as held:
        tellers: list[Callable[[Alert], None]] = [_print_alert]
        if alert_file is not None:
            tellers.append(_Lines(held.enter_context(alert_file.open("a", encoding="utf-8"))))
        if alert_route is not None:
            tellers.append(held.enter_context(_fabric(alert_route, peer)))
        if alert_webhook is not None:
            tellers.append(partial(_post, alert_webhook))
        spark = held.enter_context(spark_session(master))
        from waystation.pipeline.watching import Alerts  # noqa: PLC0415 - needs Spark
        from waystation.pipeline.watching import watch as follow  # noqa: PLC0415

        def send_all(alert: Alert) -> None:
            for teller in tellers:
                teller(alert)

        display = held.enter_context(_display(as_json=as_json))
        stop = held.enter_context(_stopped_by_signals())
        done = follow(
            journal,
            out,
            checkpoint,
            spark=spark,
            once=once,
            every=every,
            files_at_once=files,
            alerts=Alerts(
                send_all, alert_drops, alert_flaps, alert_missing, incidents=alert_incidents
            ),
            progress=display,
            stop=stop,
        )
    if as_json:
        click.echo(_json({"done": done}))
    else:
        click.echo(_summary(done))


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets; a second Ctrl-C interrupts at once."""
    stop = threading.Event()

    def ask(number: int, frame: Any) -> None:
        del frame
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        signal.signal(number, ask)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# Progress


@contextmanager
def _display(*, as_json: bool) -> Iterator[Callable[[Batch], None]]:
    """On a terminal, a line that shows the last batch; otherwise one line per batch."""
    if as_json:
        yield lambda batch: click.echo(_json({"batch": _batch_fields(batch)}))
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda batch: click.echo(_line(batch))
        return
    waiting = Text("waiting for sealed files...")
    with Live(waiting, console=console, transient=True, auto_refresh=False) as live:
        live.refresh()
        yield lambda batch: live.update(_one_line(batch), refresh=True)


def _one_line(batch: Batch) -> Text:
    return Text(_line(batch), no_wrap=True, overflow="ellipsis")


def _line(batch: Batch) -> str:
    drops = ", ".join(f"{reason} {count:,}" for reason, count in batch.dropped.items())
    parts = [
        f"batch {batch.number}",
        f"{batch.rows:,} rows of {batch.files:,} files",
        f"{batch.rows_per_second:,.0f} rows/s",
        f"lag {_span(batch.lag)}",
        f"dropped {drops}" if drops else "nothing dropped",
    ]
    if batch.missing:
        parts.append(f"{batch.missing:,} missing")
    if batch.rejected:
        parts.append(f"{batch.rejected:,} rejected")
    return " | ".join(parts)


def _span(seconds: float) -> str:
    """A duration in a suitable unit.

    >>> _span(3.14), _span(400), _span(90_000)
    ('3.1 s', '6.7 min', '25.0 h')
    """
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.1f} s"


def _summary(done: Watched) -> str:
    return (
        f"processed {done.rows:,} rows of {done.files:,} files in {done.batches:,} batches, "
        f"{done.seconds:.1f} s; the tables are in {done.out}"
    )


def _batch_fields(batch: Batch) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(batch)
    del found["reports"], found["incidents"]
    return {**found, "rows_per_second": round(batch.rows_per_second, 1)}


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


# Alerts


def _print_alert(alert: Alert) -> None:
    print(f"waystation: {alert.text}", file=sys.stderr, flush=True)  # noqa: T201


class _Lines:
    """Appends alerts to a file, one line each."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def __call__(self, alert: Alert) -> None:
        self._file.write(_json(alert) + "\n")
        self._file.flush()


def _post(url: str, alert: Alert) -> None:
    """Post an alert to a webhook; who does not take it is complained about."""
    request = Request(  # noqa: S310 - the scheme is checked
        url, msgspec.json.encode(alert), {"Content-Type": "application/json"}
    )
    try:
        with urlopen(request, timeout=_ALERT_WAIT):  # noqa: S310
            pass
    except (OSError, HTTPException) as error:
        _complain(url, str(error))


@contextmanager
def _fabric(route: str, peer: dict[str, Any]) -> Iterator[Callable[[Alert], None]]:
    """Sends alerts as messages, from a node that runs in its own thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="waystation alerts", daemon=True)
    thread.start()

    async def leave() -> None:
        await node.__aexit__(None, None, None)

    def send(alert: Alert) -> None:
        payload = msgspec.json.encode(alert)
        sent = asyncio.run_coroutine_threadsafe(node.send(route, payload, ttl=_ALERT_TTL), loop)
        try:
            verdict = sent.result(_ALERT_WAIT)
        except (TimeoutError, WaystationError) as error:
            _complain(route, str(error) or "timed out while connecting")
        else:
            if verdict.outcome == "DROPPED":
                _complain(route, str(verdict.reason))

    async def enter() -> Any:
        return await node_for("watch", (), peer).__aenter__()

    try:
        node = asyncio.run_coroutine_threadsafe(enter(), loop).result()
        try:
            yield send
        finally:
            asyncio.run_coroutine_threadsafe(leave(), loop).result(_ALERT_WAIT)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _complain(route: str, problem: str) -> None:
    line = f"waystation: could not send an alert to {route}: {problem}"
    print(line, file=sys.stderr, flush=True)  # noqa: T201
