"""`waystation node`: run the node that a configuration file describes."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import click
import msgspec

from waystation.cli.options import FILE, SETTINGS, json_option
from waystation.cli.process import allow_files, log_to_stderr
from waystation.cli.serving import metrics_option
from waystation.config import Plan, Problem, check_file, running
from waystation.config.running import Running
from waystation.node.runner import run, stop_signals

_HELP: Final = """Run a node from a TOML file: listeners, parents, workers, limits, TLS, journal,
access rules.

SIGTERM and SIGINT stop it after its workers have finished the messages they hold.

\b
Examples:
  waystation node --config node.toml
  waystation node --config node.toml --check
"""


@click.command(help=_HELP, context_settings=SETTINGS)
@click.option(
    "--config",
    metavar="FILE",
    required=True,
    type=FILE,
    help="Configuration file of the node.",
)
@metrics_option
@click.option("--check", is_flag=True, help="Check the file and exit.")
@click.option("--verbose", is_flag=True, help="Log sessions that open and close to stderr.")
@json_option
def node(config: Path, *, metrics: str | None, check: bool, verbose: bool, as_json: bool) -> int:
    """Run a node, or check its configuration file."""
    log_to_stderr(verbose=verbose)
    plan, problems = check_file(config)
    if plan is None:
        return _refuse(config, problems, as_json=as_json)
    if check:
        click.echo("[]" if as_json else f"{config}: no problems")
        return 0
    if metrics is not None:
        plan = msgspec.structs.replace(plan, metrics=metrics)
    allow_files(plan.limits.sessions)
    run(_serve(plan, as_json=as_json))
    return 0


def _refuse(config: Path, problems: list[Problem], *, as_json: bool) -> int:
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(problems), indent=1))
        return 1
    if len(problems) == 1:
        raise click.ClickException(str(problems[0]))
    for problem in problems:
        click.echo(str(problem), err=True)
    raise click.ClickException(f"{config} has {len(problems)} problems")


async def _serve(plan: Plan, *, as_json: bool) -> None:
    with stop_signals() as stop:
        async with AsyncExitStack() as ends:
            starting = asyncio.create_task(ends.enter_async_context(running(plan)))
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():  # still waiting for a peer: give up
                starting.cancel()
                await asyncio.wait({starting})
                return
            try:
                live = starting.result()
            finally:
                if starting.exception():
                    stopping.cancel()
            _announce(plan, live, as_json=as_json)
            await stopping


def _announce(plan: Plan, live: Running, *, as_json: bool) -> None:
    name = plan.settings.node.name
    urls = [listening.url for listening in live.listening]
    metrics = None if live.monitor is None else f"http://{live.monitor.place}/metrics"
    if as_json:
        more = {} if metrics is None else {"metrics": metrics}
        fields = {"node": name, "listening": urls, **more}
        click.echo(msgspec.json.encode(fields).decode())
        return
    if metrics is not None:
        click.echo(f"metrics on {metrics}")
    for url in urls:
        click.echo(f"listening on {url}")
    click.echo(f"node {name} is ready")
