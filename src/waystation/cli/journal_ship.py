"""`waystation journal ship`: copy a journal to an archive until it is told to stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event
from typing import Any

import click

from waystation.cli.options import print_json
from waystation.cli.peer import node_for
from waystation.cli.process import log_to_stderr
from waystation.cli.serving import announce, monitoring
from waystation.core.address import Route
from waystation.core.spoken import plural
from waystation.journal.archive import Archive, opened_archive
from waystation.journal.filesystems import file_system
from waystation.journal.ship import TROUBLE, Pass, Shipper, check_journal
from waystation.locations import is_route
from waystation.net.tasks import subtask
from waystation.node import Node
from waystation.node.archive import FabricArchive
from waystation.node.runner import run, stop_signals
from waystation.node.shipping import ShipMetrics


def run_shipping(journal: Path, options: dict[str, Any]) -> int:
    """Ship a journal as the options say; returns the exit code."""
    log_to_stderr(verbose=False)
    target: str = options.pop("to")
    if is_route(target):
        target = str(Route.parse(target))
    else:
        check_journal(journal, target)
        file_system(target)  # raises an error that says what is not supported
    return run(_ship(journal, target, options))


async def _ship(journal: Path, target: str, options: dict[str, Any]) -> int:
    once, every = options.pop("once"), options.pop("every")
    as_json, place = options.pop("as_json"), options.pop("metrics")
    async with _archive_at(target, options) as opened:
        shipper = Shipper(journal, target, opened)
        try:
            async with monitoring(ShipMetrics(shipper), place) as metrics:
                if metrics is not None:
                    announce(metrics, as_json=as_json)
                if once:
                    return await _once(shipper, as_json=as_json)
                return await _until_stopped(shipper, every)
        finally:
            shipper.close()


@asynccontextmanager
async def _archive_at(target: str, options: dict[str, Any]) -> AsyncIterator[Callable[[], Archive]]:
    name = options.pop("name")
    if not is_route(target):
        yield lambda: opened_archive(target)
        return
    node: Node
    async with node_for(name, [], options) as node:
        loop = asyncio.get_running_loop()
        yield lambda: FabricArchive(node, target, loop)


async def _once(shipper: Shipper, *, as_json: bool) -> int:
    try:
        done = await asyncio.to_thread(shipper.ship)
    except TROUBLE as error:
        raise click.ClickException(f"not everything has arrived: {error}") from error
    if as_json:
        print_json(done)
    else:
        click.echo(_told(done))
    return 1 if done.refused else 0


async def _until_stopped(shipper: Shipper, every: float) -> int:
    stop = Event()
    with stop_signals() as asked:
        shipping = subtask(asyncio.to_thread(shipper.run, stop, every), "ship")
        await asked.wait()
        stop.set()
        await shipping
    return 0


def _told(done: Pass) -> str:
    said = f"{plural(done.files, 'file has', 'files have')} arrived ({plural(done.bytes, 'byte')})"
    for node in done.refused:
        said += f"; nothing more of {node}: another machine uses that name"
    return said
