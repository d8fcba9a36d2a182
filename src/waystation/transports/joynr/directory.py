"""What a node asks the directory of its hub (node/directory.py), as calls of a discovery provider.

Pure: a question of ours in, a call out; a reply in, an answer of ours out.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

from waystation.core.directory import Provider, Scope
from waystation.core.expiry import LAST_INSTANT
from waystation.errors import LocalError, RemoteError
from waystation.wire.joynr import Reply
from waystation.wire.joynr_frames import joynr_name_of, name_of
from waystation.wire.joynr_services import (
    DiscoveryEntry,
    DiscoveryEntryWithMetaInfo,
    DiscoveryQos,
    ProviderScope,
    Version,
    entries_in,
)

_TIMEOUT: Final = 30_000
_QOS: Final = "joynr.types.DiscoveryQos"
_ENTRY: Final = "joynr.types.DiscoveryEntry"


class _Question(Struct, frozen=True):
    """What is asked: to register, to leave or to look up."""

    ask: str
    provider: Provider | None = None
    participant: str = ""
    domain: str = ""
    name: str = ""
    scope: Scope = Scope.LOCAL_ONLY
    everywhere: bool = False


class _Answer(Struct, frozen=True):
    providers: list[Provider] = []
    error: str = ""


_questions: Final = msgspec.json.Decoder(_Question)
_details: Final = msgspec.json.Decoder(DiscoveryEntry)


def discovery_call(payload: bytes, ahead: int = 0) -> tuple[str, list[tuple[str, Any]]]:
    """The method and the parameters for a question; LocalError if it is none.

    The clock of the discovery provider is so many milliseconds `ahead` of ours.

    >>> discovery_call(b'{"ask":"leave","participant":"radio"}')
    ('remove', [('String', 'radio')])
    """
    try:
        asked = _questions.decode(payload)
    except msgspec.DecodeError as error:
        raise LocalError(
            f"no question for a directory: {error}", rule="RE-14", hint="use the node's own calls"
        ) from None
    if asked.provider is not None:
        entry = _entry(asked.provider, ahead, everywhere=asked.everywhere)
        return "add", [(_ENTRY, entry), ("Boolean", False), ("String[]", [])]
    if asked.participant:
        return "remove", [("String", joynr_name_of(asked.participant))]
    qos = DiscoveryQos(discovery_scope=asked.scope, discovery_timeout=_TIMEOUT)
    domains = ("String[]", [asked.domain])
    return "lookup", [domains, ("String", asked.name), (_QOS, qos), ("String[]", [])]


def directory_reply(reply: Reply) -> bytes:
    """The answer to a question, from what a discovery provider replied.

    >>> directory_reply(Reply(request_reply_id="1", response=()))
    b'{"providers":[],"error":""}'
    """
    try:
        found = entries_in(reply, DiscoveryEntryWithMetaInfo)
    except RemoteError as error:
        return msgspec.json.encode(_Answer(error=str(error)))
    providers = [
        Provider(name_of(entry.participant_id), entry.domain, entry.interface_name)
        for entry in found
    ]
    return msgspec.json.encode(_Answer(providers))


def _entry(provider: Provider, ahead: int, *, everywhere: bool) -> DiscoveryEntry:
    expiry = LAST_INSTANT if provider.expiry is None else provider.expiry + ahead
    scope = ProviderScope.GLOBAL if everywhere else ProviderScope.LOCAL
    try:
        said = _details.decode(provider.details)
    except msgspec.DecodeError:  # it says nothing of itself that joynr understands
        said = DiscoveryEntry(
            domain=provider.domain,
            interface_name=provider.name,
            participant_id="",
            provider_version=Version(major_version=1),
        )
    return msgspec.structs.replace(
        said,
        participant_id=joynr_name_of(provider.participant),
        expiry_date_ms=min(max(0, expiry), LAST_INSTANT),
        qos=msgspec.structs.replace(said.qos, scope=scope),
    )
