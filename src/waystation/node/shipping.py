"""Ships the journal of a node while it runs, and tells how much of it waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

from waystation.journal.archive import Archive, opened_archive
from waystation.journal.ship import EVERY_SECONDS, TROUBLE, Shipper
from waystation.locations import is_route
from waystation.net.metrics import Family, exposition, gauge
from waystation.net.monitor import Health
from waystation.node.archive import FabricArchive

if TYPE_CHECKING:
    from waystation.node.node import Node

_LAST_SECONDS: Final = 10.0  # for what is sealed at the end
_LOG: Final = logging.getLogger("waystation.journal")


class Shipping:
    """A thread that ships a journal to a directory, a store, or along a route of the node."""

    def __init__(
        self, node: Node, journal: Path, target: str, *, every: float = EVERY_SECONDS
    ) -> None:
        self._target = target
        loop = asyncio.get_running_loop()

        def opened() -> Archive:
            if is_route(target):
                return FabricArchive(node, target, loop)
            return opened_archive(target)

        self.shipper = Shipper(journal, target, opened)
        self._stop = Event()
        self._thread = Thread(
            target=self.shipper.run,
            args=(self._stop, every),
            name=f"journal-ship-{node.name}",
            daemon=True,
        )
        self._thread.start()

    def families(self) -> Iterator[Family]:
        """How much of the journal waits, for Prometheus."""
        return families(self.shipper)

    async def stop(self) -> None:
        """End, while the node still runs; a copy that is under way is not waited for long."""
        self._stop.set()
        await asyncio.to_thread(self._thread.join, _LAST_SECONDS)

    async def finish(self) -> None:
        """Ship what was sealed at the end, unless it goes along a route; the node is closed."""
        if not is_route(self._target) and not self._thread.is_alive():
            last = Thread(target=self._last_pass, name="journal-ship-last", daemon=True)
            last.start()
            await asyncio.to_thread(last.join, _LAST_SECONDS)
        self.shipper.close()

    def _last_pass(self) -> None:
        try:
            self.shipper.ship()
        except TROUBLE as error:
            _LOG.warning("the end of the journal waits for the next start: %s", error)


def families(shipper: Shipper) -> Iterator[Family]:
    """How much of a journal waits to be shipped."""
    waiting, refused = shipper.last.waiting, len(shipper.last.refused)
    yield gauge("journal_unshipped_files", "Sealed files that have not arrived.", waiting.files)
    yield gauge("journal_unshipped_bytes", "Bytes that have not arrived.", waiting.bytes)
    oldest = "Seconds that the oldest file has waited."
    yield gauge("journal_unshipped_seconds", oldest, waiting.seconds)
    yield gauge("journal_refused_nodes", "Nodes whose name another machine uses.", refused)
    failing = "Whether the target cannot be reached."
    yield gauge("journal_ship_failing", failing, int(bool(shipper.trouble)))


class ShipMetrics:
    """What is monitored of a program that only ships."""

    def __init__(self, shipper: Shipper) -> None:
        self._shipper = shipper

    def metrics(self) -> str:
        """The text for Prometheus."""
        return exposition("waystation_node", families(self._shipper))

    def health(self) -> Health:
        """It always takes what there is."""
        return Health(draining=False, listening=[])
