"""Run the node of a plan, and close it at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from waystation.config.plan import Endpoint, Plan
from waystation.config.settings import ConnectTable, ListenTable
from waystation.config.workers import make_handler
from waystation.net.monitor import Monitor
from waystation.node import Listening, Node
from waystation.node.metrics import NodeMetrics
from waystation.node.status import Status

if TYPE_CHECKING:
    from waystation.journal import Journal


class Running(Struct, frozen=True):
    """A running node with its listeners; `monitor` is its HTTP port, if it has one."""

    node: Node
    listening: list[Listening]
    monitor: Monitor | None


@asynccontextmanager
async def running(plan: Plan) -> AsyncIterator[Running]:
    """Run the node of a plan; at the end the node is closed, then its journal.

    Raises a LocalError that names the file, the line and the key if something cannot be done, such
    as listening on a port in use or connecting to a peer in time.
    """
    journal = _open_journal(plan)
    try:
        async with _node(plan) as node:
            if journal is not None:
                node.observe(journal.note)
            async with _observed(node, plan, journal) as monitor:
                yield Running(node, await _start(node, plan), monitor)
                await node.close(drain=plan.settings.node.drain)
    finally:
        if journal is not None:
            await asyncio.to_thread(journal.close)


@asynccontextmanager
async def _observed(
    node: Node, plan: Plan, journal: Journal | None
) -> AsyncIterator[Monitor | None]:
    """Let peers and programs look at the node, as far as the file says so."""
    enabled = plan.settings.status.enabled
    if not enabled and plan.metrics is None:
        yield None
        return
    status = Status(node, journal)
    if enabled:
        status.start()
    monitor = None
    try:
        if plan.metrics is not None:
            monitor = Monitor(NodeMetrics(node, status))
            with plan.problems.locating(("node", "metrics")):
                await monitor.start(plan.metrics)
        yield monitor
    finally:
        status.stop()
        if monitor is not None:
            monitor.close()


def _open_journal(plan: Plan) -> Journal | None:
    if plan.journal is None:
        return None
    from waystation.journal import Journal  # noqa: PLC0415 - it needs pyarrow

    with plan.problems.locating(("journal", "directory")):
        return Journal(node=plan.settings.node.name, **plan.journal)


def _node(plan: Plan) -> Node:
    table = plan.settings.node
    with plan.problems.locating(("node",)):
        return Node(
            table.name,
            transports=plan.transports,
            token=plan.token,
            limits=plan.limits,
            hop_limit=table.hop_limit,
            dial_for_peers=table.dial_for_peers,
            hub=table.hub,
            access=plan.access,
        )


async def _start(node: Node, plan: Plan) -> list[Listening]:
    for worker in plan.workers:
        with plan.problems.locating(worker.path):
            node.start_worker(
                worker.names,
                make_handler(worker.handler, worker.options),
                inbox=worker.inbox,
                visible=worker.visible,
                passing=worker.passing,
            )
    listening = [await _listen(node, plan, endpoint) for endpoint in plan.listeners]
    mqtt = plan.settings.mqtt
    if mqtt is not None and mqtt.listen:
        with plan.problems.locating(("mqtt", "url")):
            listening.append(await node.listen(f"mqtt://{mqtt.topic}", outside=True))
    for endpoint in plan.connections:
        await _connect(node, plan, endpoint)
    for endpoint in plan.parents:
        await _connect(node, plan, endpoint, parent=True)
    _find_directory(node, plan)
    return listening


async def _listen(node: Node, plan: Plan, endpoint: Endpoint) -> Listening:
    assert isinstance(endpoint.table, ListenTable)
    with plan.problems.locating((*endpoint.path, "url")):
        return await node.listen(
            endpoint.urls[0], token=endpoint.token, outside=endpoint.table.outside
        )


async def _connect(node: Node, plan: Plan, endpoint: Endpoint, **options: Any) -> None:
    table = endpoint.table
    assert isinstance(table, ConnectTable)
    with plan.problems.locating((*endpoint.path, "url")):
        await node.connect(
            *endpoint.urls, name=table.name, token=endpoint.token, wait=table.wait, **options
        )


def _find_directory(node: Node, plan: Plan) -> None:
    directory = plan.settings.directory
    with plan.problems.locating(("directory",)):
        if directory.host:
            node.host_directory()
        elif directory.ask:
            node.ask_directory(directory.ask)
