"""Run the node of a plan, and close it at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from waystation.config.plan import Endpoint, Plan, PlannedSecure
from waystation.config.settings import ConnectTable, ListenTable
from waystation.config.workers import make_handler
from waystation.joynr import ClusterController, JoynrDirectory
from waystation.net.monitor import Monitor
from waystation.node import Listening, Node, Session
from waystation.node.channels import SecureListener
from waystation.node.metrics import NodeMetrics
from waystation.node.status import Status
from waystation.wire.joynr_services import GLOBAL_DIRECTORY_TOPIC

if TYPE_CHECKING:
    from waystation.journal import Journal
    from waystation.node.shipping import Shipping


class Running(Struct, frozen=True):
    """A running node with its listeners; `monitor` is its HTTP port, if it has one."""

    node: Node
    listening: list[Listening]
    monitor: Monitor | None
    sessions: list[Session]  # of the tables [[connect]] and [[parent]], in this order
    secure: list[SecureListener]


@asynccontextmanager
async def running(plan: Plan) -> AsyncIterator[Running]:
    """Run the node of a plan; at the end the node is closed, then its journal.

    Raises a LocalError that names the file, the line and the key if something cannot be done, such
    as listening on a port in use or connecting to a peer in time.
    """
    journal = _open_journal(plan)
    shipping: Shipping | None = None
    try:
        async with _node(plan) as node:
            if journal is not None:
                node.observe(journal.note, incarnation=journal.incarnation)
            shipping = _shipping(node, plan, journal)
            async with (
                _observed(node, plan, journal, shipping) as monitor,
                _joynr(node, plan),
            ):
                yield await _start(node, plan, monitor)
                if shipping is not None:
                    await shipping.stop()
                await node.close(drain=plan.settings.node.drain)
    finally:
        if journal is not None:
            await asyncio.to_thread(journal.close)
        if shipping is not None:
            await shipping.finish()


def _shipping(node: Node, plan: Plan, journal: Journal | None) -> Shipping | None:
    if plan.ship is None or journal is None or plan.settings.journal is None:
        return None
    from waystation.node.shipping import Shipping  # noqa: PLC0415 - it needs pyarrow

    every = plan.settings.journal.ship_seconds
    with plan.problems.locating(("journal", "ship")):
        return Shipping(node, journal.directory, plan.ship, every=every)


@asynccontextmanager
async def _observed(
    node: Node, plan: Plan, journal: Journal | None, shipping: Shipping | None
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
            shipped = None if shipping is None else shipping.families
            monitor = Monitor(NodeMetrics(node, status, shipped))
            with plan.problems.locating(("node", "metrics")):
                await monitor.start(plan.metrics)
        yield monitor
    finally:
        status.stop()
        if monitor is not None:
            monitor.close()


@asynccontextmanager
async def _joynr(node: Node, plan: Plan) -> AsyncIterator[None]:
    """Serve joynr's applications and nodes, as far as the file says so."""
    services: list[ClusterController | JoynrDirectory] = []
    if plan.settings.node.joynr_directory:
        services.append(JoynrDirectory(node))
        services[0].start()
    urls = [url for endpoint in plan.listeners for url in endpoint.urls]
    if any(url.startswith("joynr+ws://") for url in urls):
        mqtt = plan.settings.mqtt
        topic = mqtt.topic if mqtt is not None and mqtt.format == "joynr" else None
        services.append(ClusterController(node, topic=topic))
        services[-1].start()
    try:
        yield
    finally:
        for service in services:
            await service.stop()


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
            tokens=plan.tokens,
            identity=plan.identity,
            limits=plan.limits,
            hop_limit=table.hop_limit,
            dial_for_peers=table.dial_for_peers,
            hub=table.hub,
            access=plan.access,
            grants=plan.grants,
            store=plan.store,
        )


async def _start(node: Node, plan: Plan, monitor: Monitor | None) -> Running:
    for worker in plan.workers:
        with plan.problems.locating(worker.path):
            node.start_worker(
                worker.names,
                make_handler(worker.handler, worker.options),
                inbox=worker.inbox,
                visible=worker.visible,
                passing=worker.passing,
            )
    secure = [_listen_securely(node, plan, one) for one in plan.secure]
    if plan.archive is not None:
        from waystation.node.archive import start_archive  # noqa: PLC0415 - it needs pyarrow

        with plan.problems.locating(("archive", "directory")):
            start_archive(node, plan.archive)
    listening = [await _listen(node, plan, endpoint) for endpoint in plan.listeners]
    mqtt = plan.settings.mqtt
    if mqtt is not None and mqtt.listen:
        with plan.problems.locating(("mqtt", "url")):
            listening.append(await node.listen(f"mqtt://{mqtt.topic}", outside=True))
    if plan.settings.node.joynr_directory:
        with plan.problems.locating(("node", "joynr_directory")):
            listening.append(await node.listen(f"mqtt://{GLOBAL_DIRECTORY_TOPIC}", outside=True))
    sessions = [await _connect(node, plan, endpoint) for endpoint in plan.connections]
    sessions += [await _connect(node, plan, endpoint, parent=True) for endpoint in plan.parents]
    _find_directory(node, plan)
    return Running(node, listening, monitor, sessions, secure)


def _listen_securely(node: Node, plan: Plan, one: PlannedSecure) -> SecureListener:
    with plan.problems.locating((*one.path, "name")):
        return node.secure_listener(one.name, trust=one.trust)


async def _listen(node: Node, plan: Plan, endpoint: Endpoint) -> Listening:
    assert isinstance(endpoint.table, ListenTable)
    with plan.problems.locating((*endpoint.path, "url")):
        return await node.listen(
            endpoint.urls[0], token=endpoint.token, outside=endpoint.table.outside
        )


async def _connect(node: Node, plan: Plan, endpoint: Endpoint, **options: Any) -> Session:
    table = endpoint.table
    assert isinstance(table, ConnectTable)
    with plan.problems.locating((*endpoint.path, "url")):
        return await node.connect(
            *endpoint.urls, name=table.name, token=endpoint.token, wait=table.wait, **options
        )


def _find_directory(node: Node, plan: Plan) -> None:
    directory = plan.settings.directory
    with plan.problems.locating(("directory",)):
        if directory.host:
            node.host_directory()
        elif directory.ask:
            node.ask_directory(directory.ask)
