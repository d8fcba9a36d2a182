"""`waystation node`: run the node that a configuration file describes."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final

import click
import msgspec

from waystation.cli.options import FILE, SETTINGS, json_option
from waystation.cli.process import allow_files, log_to_stderr
from waystation.cli.serving import announce, metrics_option
from waystation.config import Plan, Problem, check_file, reload, running
from waystation.config.running import Running
from waystation.core.grants import action_of
from waystation.core.tokens import Token, Tokens
from waystation.core.who import NOBODY, Who
from waystation.node.runner import hangup_signals, run, stop_signals
from waystation.wire.identity import check_identifier

_log = logging.getLogger("waystation.node")
_LOOKS_LIKE_AN_IDENTIFIER: Final = re.compile("I[0-9a-fA-F]{16,}").fullmatch

_HELP: Final = """Run a node from a TOML file: listeners, parents, workers, limits, TLS, journal,
access rules.

SIGTERM and SIGINT stop it after its workers have finished the messages they hold. SIGHUP reads
grants, tokens, the identity, certificates and limits again; a file with a problem changes nothing.

\b
Examples:
  waystation node --config node.toml
  waystation node --config node.toml --check
  waystation node --config node.toml --check --may token:truck-* announce truck-7
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
@click.option("--check", is_flag=True, help="Check the file, explain its grants, and exit.")
@click.option(
    "--may",
    nargs=3,
    metavar="WHO ACTION NAME",
    help="With --check: whether WHO (an identifier, certificate:NAME, token:NAMES, anyone, or the "
    "name of a peer) may announce, subscribe, publish, register or send NAME.",
)
@click.option("--verbose", is_flag=True, help="Log sessions that open and close to stderr.")
@json_option
def node(
    config: Path,
    *,
    metrics: str | None,
    check: bool,
    may: tuple[str, str, str] | None,
    verbose: bool,
    as_json: bool,
) -> int:
    """Run a node, or check its configuration file."""
    log_to_stderr(verbose=verbose)
    plan, problems = check_file(config)
    if plan is None:
        return _refuse(config, problems, as_json=as_json)
    if check:
        click.echo("[]" if as_json else f"{config}: no problems")
        if not as_json:
            _explain(plan, may)
        return 0
    if metrics is not None:
        plan = msgspec.structs.replace(plan, metrics=metrics)
    allow_files(plan.limits.sessions)
    run(_serve(plan, config, as_json=as_json))
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


async def _serve(plan: Plan, config: Path, *, as_json: bool) -> None:
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
            with hangup_signals(partial(_reload, _Current(plan), live, config)):
                await stopping


class _Current:
    """The plan that a node runs by now."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan


def _reload(current: _Current, live: Running, config: Path) -> None:
    """Take over what the file says now, and say what came of it."""
    done = reload(live, current.plan, config)
    current.plan = done.plan
    for problem in done.problems:
        _log.error("not reloaded: %s", problem)
    if not done.problems:
        _log.warning("%s was read again", config)
    if done.restart:
        _log.warning("changed, but only a restart takes over: %s", ", ".join(done.restart))


def _explain(plan: Plan, may: tuple[str, str, str] | None) -> None:
    """Say what is granted, or whether something is."""
    grants = plan.grants
    if may is not None:
        who, action, name = may
        if grants is None:
            click.echo(f"{who} may {action} {name}: there are no grants, so nothing is asked")
        else:
            asker = _who(who, plan.tokens)
            called = None if asker or who == "anyone" else who
            click.echo(grants.explain(asker, action_of(action), name, called))
        return
    for grant in grants or ():
        click.echo(f"  {grant}")


def _who(text: str, tokens: Iterable[Token]) -> Who:
    """What somebody can prove: by an identifier, certificate:NAME, token:NAMES, or by a name."""
    kind, mark, name = text.partition(":")
    if mark and kind == "certificate":
        return Who(certificate=(name,))
    if mark and kind == "token":
        return Who(token=name)
    if _LOOKS_LIKE_AN_IDENTIFIER(text):
        return Who(identity=check_identifier(text))
    own = [] if text == "anyone" else Tokens(tokens).of(text)
    return Who(token=own[0].names) if own else NOBODY


def _announce(plan: Plan, live: Running, *, as_json: bool) -> None:
    name = plan.settings.node.name
    metrics = None if live.monitor is None else f"http://{live.monitor.place}/metrics"
    urls = [listening.url for listening in live.listening]
    announce(metrics, *urls, as_json=as_json, node=name)
    if not as_json:
        click.echo(f"node {name} is ready")
