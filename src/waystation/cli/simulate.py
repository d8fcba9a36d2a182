"""`waystation simulate`: write the journal of a simulated fleet of any size.

Spark is an optional extra, so it is imported only when the command runs.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from waystation.cli.options import OUTPUT, SETTINGS, json_option, master_option, print_json
from waystation.cli.spark import progress_display, spark_session
from waystation.errors import LocalError

if TYPE_CHECKING:
    from waystation.simulate.fleet import Otherwise
    from waystation.whatif.changes import Changes, Ttl

_count = click.IntRange(min=0, max=10**12)

_HELP: Final = """Write the journal of a simulated fleet, and what really happened in it.

The same numbers and the same seed give the same journal. The true fate of each message and the
faults behind the losses are written to OUT/_truth, which readers of the journal ignore.

With --change, the fleet of the same seed has something that is different: how long routes and
messages live, sticky routes, the hop limit, or crashes, stops and broken links that do not happen.
Compare it with what `waystation pipeline whatif` says of the journal without the change.

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
@click.option(
    "--change",
    metavar="FILE.toml",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Change file, as for `waystation pipeline whatif`: what is different.",
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
    change: Path | None,
    master: str,
    as_json: bool,
) -> None:
    """Write the journal of a simulated fleet."""
    start = time.monotonic()
    if change is not None and not change.exists():
        raise click.UsageError(f"{change} does not exist")
    otherwise = None if change is None else _otherwise(change)
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
            otherwise=otherwise,
            progress=lambda done, of: display.update(
                bar, completed=done, total=of, done=f"{done:,} of {of:,} cells"
            ),
        )
    seconds = time.monotonic() - start
    if as_json:
        fields = {**msgspec.to_builtins(done), "seconds": round(seconds, 3)}
        print_json(fields)
        return
    rows = ", ".join(f"{count:,} {table}" for table, count in done.rows.items())
    click.echo(f"wrote {out} in {seconds:.1f} s: {rows}")
    click.echo(f"{done.losses:,} losses; what was behind them is in {out / '_truth'}")


def _otherwise(file: Path) -> Otherwise:
    """The change in a file, as a simulated fleet can have it."""
    from waystation.simulate.fleet import LEASE, Otherwise  # noqa: PLC0415
    from waystation.whatif.changes import read_changes  # noqa: PLC0415

    changes = read_changes(file)
    _check_whole(changes, file)
    routes = [one for one in changes.ttl if one.routes]
    lease = LEASE
    for one in routes:
        lease = _lengthened(one, lease)
    life = 1.0
    for one in changes.ttl:
        if one.messages and one.factor is not None:
            life *= one.factor
        elif one.messages:
            raise _not_simulated(file, "[[ttl]] of messages other than by a factor")
    return Otherwise(
        lease=lease,
        sticky=bool(changes.sticky),
        hop_limit=changes.limits.hop_limit or Otherwise().hop_limit,
        life=life,
        without=tuple(sorted({one.kind for one in changes.without})),
    )


def _lengthened(change: Ttl, lease: int) -> int:
    from waystation.simulate.fleet import DURATION  # noqa: PLC0415
    from waystation.whatif.changes import lengthened  # noqa: PLC0415

    return min(lengthened(change, 0, lease), 2 * DURATION)


def _check_whole(changes: Changes, file: Path) -> None:
    """Refuse what only single nodes and names can have: those of a simulated fleet are drawn."""
    for name in ("put", "remove", "room", "grant"):
        if getattr(changes, name):
            raise _not_simulated(file, f"[[{name}]]")
    selectors = [(one.node, one.participant) for one in changes.ttl]
    selectors += [(one.node, one.participant) for one in changes.sticky]
    selectors += [(one.node, one.participant) for one in changes.without]
    if any(selector != ("*", "*") for selector in selectors):
        raise _not_simulated(file, "a change of single nodes or participants")
    for without in changes.without:
        if without.kind in ("remove", "unsubscribe") or without.since or without.until:
            raise _not_simulated(file, f"[[without]] {without.kind} of that sort")


def _not_simulated(file: Path, what: str) -> LocalError:
    return LocalError(
        f"{file}: {what} cannot be simulated",
        rule="SP-9",
        hint="give [[ttl]], [[sticky]], [limits], or [[without]] crash, stop or close, for all",
    )
