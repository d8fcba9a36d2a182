"""A node as a cluster controller: what it serves beside the routes of its applications."""

from __future__ import annotations

from waystation.errors import LocalError
from waystation.joynr.discovery import DiscoveryProvider
from waystation.joynr.global_directory import GlobalDirectory
from waystation.node import Node, Scope
from waystation.wire.joynr_frames import name_of
from waystation.wire.joynr_services import (
    CallError,
    DiscoveryEntry,
    ProviderQos,
    ProviderScope,
    Version,
)


class ClusterController:
    """Lets joynr's applications that are connected to a hub find providers, and be found.

    `topic` is that of the node's MQTT transport with joynr's format, if it has one: then what is
    known there is found as well, and globally visible providers are told there.
    """

    def __init__(self, node: Node, *, topic: str | None = None) -> None:
        self._node = node
        self._beyond = None if topic is None else GlobalDirectory(node, topic)
        self._discovery = DiscoveryProvider(node, self._beyond)

    def start(self) -> None:
        """Serve applications from now on."""
        if not self._node.is_hub:
            raise LocalError(
                f"node {self._node.name} is not a hub",
                rule="RE-12",
                hint="joynr's applications connect to a hub: create it with hub=True",
            )
        self._discovery.start()

    async def stop(self) -> None:
        """Serve no more."""
        await self._discovery.stop()

    async def register(
        self,
        participant: str,
        domain: str,
        interface: str,
        *,
        version: tuple[int, int] = (1, 0),
        priority: int = 0,
        everywhere: bool = False,
    ) -> None:
        """List a worker of this node, so that joynr's applications find it: here, or everywhere."""
        entry = DiscoveryEntry(
            domain=domain,
            interface_name=interface,
            participant_id=participant,
            provider_version=Version(major_version=version[0], minor_version=version[1]),
            qos=ProviderQos(priority=priority, scope=_SCOPES[everywhere]),
        )
        await self._discovery.enter(entry, wait=True)

    async def discover(
        self, domain: str, interface: str, scope: Scope = Scope.LOCAL_THEN_GLOBAL
    ) -> list[str]:
        """The participants that offer an interface; each can then be sent to by its name."""
        found = await self._discovery.lookup([domain], interface, scope)
        return [name_of(entry.participant_id) for entry in found]

    async def find(self, participant: str) -> bool:
        """Find the way to a participant whose id is known; False if nobody knows it."""
        try:
            await self._discovery.find(participant, Scope.LOCAL_THEN_GLOBAL)
        except CallError:
            return False
        return True


_SCOPES = {False: ProviderScope.LOCAL, True: ProviderScope.GLOBAL}
