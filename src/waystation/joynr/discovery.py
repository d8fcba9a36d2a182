"""The discovery provider of a cluster controller: who offers an interface in a domain.

An application registers its providers here and looks for those of others. They stand in the list
that every hub has (node/directory.py), so that Waystation's own nodes find them as well, and what
joynr says of a provider beside that stands in its details. Globally visible ones are also told to
the global directory, if there is one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import structs

from waystation.core.directory import Provider, Scope
from waystation.core.expiry import LAST_INSTANT
from waystation.core.message import Message
from waystation.errors import WaystationError, quote
from waystation.joynr.global_directory import GlobalDirectory
from waystation.joynr.service import Service
from waystation.node import Node
from waystation.wire.joynr_frames import DISCOVERY, joynr_name_of, name_of
from waystation.wire.joynr_services import (
    DiscoveryEntry,
    DiscoveryEntryWithMetaInfo,
    DiscoveryQos,
    Entry,
    Parameters,
    ProviderQos,
    ProviderScope,
    Version,
    failed_call,
    no_entry,
)

_encode: Final = msgspec.json.Encoder().encode
_FOR_EVER: Final = 10 * 365 * 24 * 3_600_000  # milliseconds
_details: Final = msgspec.json.Decoder(DiscoveryEntry)
_FIELDS: Final = tuple(field.name for field in structs.fields(DiscoveryEntry))

_log = logging.getLogger("waystation.joynr")


class DiscoveryProvider(Service):
    """Answers what applications ask `CC.DiscoveryProvider.ParticipantId`."""

    name = DISCOVERY

    def __init__(self, node: Node, beyond: GlobalDirectory | None) -> None:
        super().__init__(node)
        self._beyond = beyond

    async def call(self, method: str, parameters: Parameters, message: Message) -> Any:
        """Serve a call of an application."""
        if method in ("add", "addToAll"):
            entry = parameters.entry(0)
            self.check_granted((entry.participant_id,), message)
            self._check_owner(name_of(entry.participant_id), message)
            await self.enter(entry, wait=parameters.optional(1, bool, False), asked=message)
            return None
        if method == "lookup" and parameters.is_text(0):
            qos = parameters.optional(1, DiscoveryQos, DiscoveryQos())
            return await self.find(parameters.at(0, str), qos.discovery_scope)
        if method == "lookup":
            qos = parameters.at(2, DiscoveryQos)
            domains, interface = parameters.texts(0), parameters.at(1, str)
            return await self.lookup(domains, interface, qos.discovery_scope)
        if method == "remove":
            await self._remove(parameters.at(0, str), message)
            return None
        return NotImplemented

    # Registering

    async def enter(self, entry: Entry, *, wait: bool, asked: Message | None = None) -> None:
        """List a provider, here and as far as its scope says, for this node or who asked for it."""
        name = name_of(entry.participant_id)
        is_global = entry.qos.scope is ProviderScope.GLOBAL
        left = entry.expiry_date_ms - self.node.now()
        await self.node.register(
            name,
            entry.domain,
            entry.interface_name,
            everywhere=is_global and self.node.lists_everywhere,
            ttl=left / 1000 if 0 < left < _FOR_EVER else None,
            details=details_of(entry),
            asked=asked,
        )
        if is_global and self._beyond is not None:
            await self._tell_beyond(self._beyond.add(entry), wait=wait)

    async def _remove(self, participant: str, message: Message) -> None:
        name = name_of(participant)
        self.check_granted((participant,), message)
        self._check_owner(name, message)
        listed = self.node.listed(name)
        await self.node.unregister(name)
        is_global = listed is None or _entry_of(listed).qos.scope is ProviderScope.GLOBAL
        if is_global and self._beyond is not None:
            await self._tell_beyond(self._beyond.remove(participant), wait=False)

    async def _tell_beyond(self, telling: Any, *, wait: bool) -> None:
        """Tell the global directory, and wait for its answer if the application wants that."""
        if wait:
            await telling
        else:
            self._open.start(self._tell(telling), self.name)

    async def _tell(self, telling: Any) -> None:
        try:
            await telling
        except WaystationError as error:
            _log.warning("the global directory was not told: %s", error)

    def _check_owner(self, name: str, message: Message) -> None:
        """Let an application speak for its own participants only."""
        entry = self.node.router.table.lookup(name, self.node.now())
        if entry is not None and entry.local and entry.address != message.return_route.first:
            raise failed_call(f"{quote(name)} is a participant of somebody else")

    # Looking

    async def lookup(
        self, domains: Sequence[str], interface: str, scope: Scope
    ) -> list[DiscoveryEntryWithMetaInfo]:
        """Who offers an interface in one of these domains."""
        found: dict[str, DiscoveryEntryWithMetaInfo] = {}
        for domain in domains:
            for provider in await self.node.discover(domain, interface, scope):
                entry = found_entry(provider)
                found[entry.participant_id] = entry
        enough = scope is Scope.LOCAL_ONLY or (scope is Scope.LOCAL_THEN_GLOBAL and bool(found))
        if self._beyond is not None and not enough:
            for there in await self._beyond.lookup(domains, interface):
                found.setdefault(there.participant_id, _with_meta_info(there, is_local=False))
        return list(found.values())

    async def find(self, participant: str, scope: Scope) -> DiscoveryEntryWithMetaInfo:
        """The entry of a participant; CallError if there is none."""
        listed = self.node.listed(name_of(participant))
        if listed is not None and scope is not Scope.GLOBAL_ONLY:
            return found_entry(listed)
        if self._beyond is not None and scope is not Scope.LOCAL_ONLY:
            there = await self._beyond.find(participant)
            if there is not None:
                return _with_meta_info(there, is_local=False)
        raise no_entry(participant)


def details_of(entry: Entry) -> str:
    """What joynr says of a provider, for the list of a hub."""
    return _encode(DiscoveryEntry(**{name: getattr(entry, name) for name in _FIELDS})).decode()


def found_entry(provider: Provider) -> DiscoveryEntryWithMetaInfo:
    """A provider from the list of a hub, as an application finds it."""
    return _with_meta_info(_entry_of(provider), is_local=provider.address is None)


def _entry_of(provider: Provider) -> DiscoveryEntry:
    """The entry of a provider; one that is not joynr's own has no details."""
    participant = joynr_name_of(provider.participant)
    expiry = LAST_INSTANT if provider.expiry is None else provider.expiry
    try:
        entry = _details.decode(provider.details)
    except msgspec.DecodeError:
        return DiscoveryEntry(
            domain=provider.domain,
            interface_name=provider.name,
            participant_id=participant,
            expiry_date_ms=expiry,
            provider_version=Version(major_version=1),
            qos=ProviderQos(scope=ProviderScope.LOCAL),
        )
    return structs.replace(
        entry, domain=provider.domain, interface_name=provider.name, participant_id=participant
    )


def _with_meta_info(entry: Entry, *, is_local: bool) -> DiscoveryEntryWithMetaInfo:
    known = {name: getattr(entry, name) for name in _FIELDS}
    return DiscoveryEntryWithMetaInfo(is_local=is_local, **known)
