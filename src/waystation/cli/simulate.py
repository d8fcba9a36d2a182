"""`waystation simulate`: the journal of a fleet that never was, as large as one likes.

Spark is an extra: it is imported when the command runs, not by this module.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import click
import msgspec

from waystation.cli.options import SETTINGS, json_option, master_option
from waystation.cli.spark import drawn, spark_session

_count = click.IntRange(min=0, max=10**12)

_HELP: Final = """Write the journal of a made-up fleet, and why each lost message was lost.

The same numbers and the same seed give the same journal. The truth about the losses lies beside
it, in OUT/_truth, where no reader of the journal sees it.

\b
Examples:
  waystation simulate --nodes 20 --participants 1000 --messages 100000 --out J
  waystation simulate --nodes 10000 --participants 1000000 --messages 50000000 --out J --seed 7
"""


@click.command(help=_HELP, context_settings=SETTINGS)
@click.option("--nodes", type=click.IntRange(min=2), required=True, help="Hubs and leaves.")
@click.option("--participants", type=_count, required=True, help="They come, move and go.")
@click.option("--messages", type=_count, required=True, help="Each leaves about three rows.")
@click.option(
    "--out",
    metavar="JOURNAL",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="A directory that is not there yet.",
)
@click.option("--seed", type=int, default=0, help="Another one gives another fleet.")
@master_option
@json_option
def simulate(
    *,
    nodes: int,
    participants: int,
    messages: int,
    out: Path,
    seed: int,
    master: str,
    as_json: bool,
) -> None:
    """Write the journal of a made-up fleet."""
    start = time.monotonic()
    with spark_session(master) as spark, drawn() as display:
        from waystation.pipeline.simulate import simulate as write_fleet  # noqa: PLC0415

        bar = display.add_task("fleet", total=None, done="")
        done = write_fleet(
            spark,
            out,
            nodes=nodes,
            participants=participants,
            messages=messages,
            seed=seed,
            progress=lambda done, of: display.update(
                bar, completed=done, total=of, done=f"{done:,} of {of:,} cells"
            ),
        )
    seconds = time.monotonic() - start
    if as_json:
        told = {**msgspec.to_builtins(done), "seconds": round(seconds, 3)}
        click.echo(msgspec.json.encode(told).decode())
        return
    rows = ", ".join(f"{count:,} {table}" for table, count in done.rows.items())
    click.echo(f"wrote {out} in {seconds:.1f} s: {rows}")
    click.echo(f"{done.losses:,} losses; {out / '_truth'} tells why")
