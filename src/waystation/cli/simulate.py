"""`waystation simulate`: write the journal of a simulated fleet of any size.

Spark is an optional extra, so it is imported only when the command runs.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import click
import msgspec

from waystation.cli.options import OUTPUT, SETTINGS, json_option, master_option
from waystation.cli.spark import progress_display, spark_session

_count = click.IntRange(min=0, max=10**12)

_HELP: Final = """Write the journal of a simulated fleet, and what really happened in it.

The same numbers and the same seed give the same journal. The true fate of each message and the
faults behind the losses are written to OUT/_truth, which readers of the journal ignore.

\b
Examples:
  waystation simulate --nodes 20 --participants 1000 --messages 100000 --out J
  waystation simulate --nodes 10000 --participants 1000000 --messages 50000000 --out J --seed 7
"""


@click.command(help=_HELP, context_settings=SETTINGS)
@click.option(
    "--nodes", type=click.IntRange(min=2), required=True, help="Number of nodes: hubs and leaves."
)
@click.option(
    "--participants",
    type=_count,
    required=True,
    help="Number of participants, which join, move and leave.",
)
@click.option(
    "--messages",
    type=_count,
    required=True,
    help="Number of messages; each makes about three rows.",
)
@click.option(
    "--out",
    metavar="JOURNAL",
    required=True,
    type=OUTPUT,
    help="Output directory; it must not exist.",
)
@click.option("--seed", type=int, default=0, help="Seed of the random numbers.")
@click.option(
    "--gaps",
    is_flag=True,
    help="Let some nodes keep no journal, a sample, or lose the last second before a crash.",
)
@master_option
@json_option
def simulate(
    *,
    nodes: int,
    participants: int,
    messages: int,
    out: Path,
    seed: int,
    gaps: bool,
    master: str,
    as_json: bool,
) -> None:
    """Write the journal of a simulated fleet."""
    start = time.monotonic()
    with spark_session(master) as spark, progress_display() as display:
        from waystation.simulate.simulate import simulate as write_fleet  # noqa: PLC0415

        bar = display.add_task("fleet", total=None, done="")
        done = write_fleet(
            spark,
            out,
            nodes=nodes,
            participants=participants,
            messages=messages,
            seed=seed,
            gaps=gaps,
            progress=lambda done, of: display.update(
                bar, completed=done, total=of, done=f"{done:,} of {of:,} cells"
            ),
        )
    seconds = time.monotonic() - start
    if as_json:
        fields = {**msgspec.to_builtins(done), "seconds": round(seconds, 3)}
        click.echo(msgspec.json.encode(fields).decode())
        return
    rows = ", ".join(f"{count:,} {table}" for table, count in done.rows.items())
    click.echo(f"wrote {out} in {seconds:.1f} s: {rows}")
    click.echo(f"{done.losses:,} losses; what was behind them is in {out / '_truth'}")
