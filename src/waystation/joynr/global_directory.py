"""What a cluster controller asks the directory of all joynr nodes at its broker.

The directory is a participant like any other. The node knows the way to it: a worker of its own
(directory.py), or a topic at the broker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec import structs

from waystation.core.address import Address
from waystation.core.expiry import LAST_INSTANT
from waystation.core.routing import RoutingEntry
from waystation.errors import DecodeError, LocalError, RemoteError
from waystation.node import Node
from waystation.wire.joynr import Reply, decode_address, decode_payload, encode_payload
from waystation.wire.joynr_frames import BACKEND, DIRECTORY
from waystation.wire.joynr_services import (
    GLOBAL_DIRECTORY_TOPIC,
    Entry,
    GlobalDiscoveryEntry,
    call_of,
    entries_in,
    global_address,
)

TIMEOUT: Final = 30.0
"""Seconds that the directory has for an answer."""

_GBIDS: Final = ("String[]", (BACKEND,))
_ENTRY: Final = "joynr.types.GlobalDiscoveryEntry"


class GlobalDirectory:
    """The global directory, as one node reaches it over the broker; `topic` is the node's own."""

    def __init__(self, node: Node, topic: str) -> None:
        self._node = node
        self._topic = topic
        if not node.router.table.contains(DIRECTORY, node.now()):  # else it is hosted here
            way = Address.parse(f"mqtt#{GLOBAL_DIRECTORY_TOPIC}", node.router.types.numbers)
            node.put_route(RoutingEntry.of(DIRECTORY, way, local=False, sticky=True))

    async def add(self, entry: Entry) -> None:
        """Register a provider that is reached through this node."""
        known = {name: getattr(entry, name) for name in _SHARED}
        listed = GlobalDiscoveryEntry(address=global_address(self._topic), **known)
        await self._call("add", (_ENTRY, listed), _GBIDS)

    async def remove(self, participant: str) -> None:
        """Take a provider off the list."""
        await self._call("remove", ("String", participant), _GBIDS)

    async def lookup(self, domains: Sequence[str], interface: str) -> list[GlobalDiscoveryEntry]:
        """Who offers something; the way to each of them is known afterwards (RE-14)."""
        reply = await self._call(
            "lookup", ("String[]", tuple(domains)), ("String", interface), _GBIDS
        )
        return self._learn(entries_in(reply, GlobalDiscoveryEntry))

    async def find(self, participant: str) -> GlobalDiscoveryEntry | None:
        """The entry of a participant; None if there is none."""
        try:
            reply = await self._call("lookup", ("String", participant), _GBIDS)
            found = self._learn(entries_in(reply, GlobalDiscoveryEntry))
        except RemoteError:  # that is how it says that there is none
            return None
        return found[0] if found else None

    async def _call(self, method: str, *parameters: tuple[str, Any]) -> Reply:
        request = call_of(self._node.new_id(), method, parameters)
        answer = await self._node.request(DIRECTORY, encode_payload(request), timeout=TIMEOUT)
        reply = decode_payload(answer.payload)
        if not isinstance(reply, Reply):
            raise RemoteError("the global directory replied with something else")
        if reply.error is not None:
            raise RemoteError(reply.error.detail_message or reply.error.type_name)
        return reply

    def _learn(self, entries: list[GlobalDiscoveryEntry]) -> list[GlobalDiscoveryEntry]:
        """Remember the ways to providers elsewhere; returns those that can be reached."""
        node, reached = self._node, []
        for entry in entries:
            try:
                topic = decode_address(entry.address).topic
                if topic != self._topic:
                    way = Address.parse(f"mqtt#{topic}", node.router.types.numbers)
                    ends = entry.expiry_date_ms
                    expiry = ends if 0 < ends <= LAST_INSTANT else node.expiry_in(TIMEOUT)
                    node.put_route(RoutingEntry.of_discovery(entry.participant_id, way, expiry))
            except (DecodeError, LocalError):
                continue  # an address of a kind that nobody here knows, or a name that is ours
            reached.append(entry)
        return reached


_SHARED: Final = tuple(
    name
    for name in (field.name for field in structs.fields(GlobalDiscoveryEntry))
    if name != "address"
)
