"""Identities and grants of fleets that are run twice."""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any

from waystation.core.grants import Grant, Grants
from waystation.testing.simulation.process import EPOCH
from waystation.testing.twins.script import Script, worker_of
from waystation.wire.identity import PrivateIdentity


@cache
def identity_of(name: str) -> PrivateIdentity:
    """The identity of a node, the same in every life and run."""
    seed = hashlib.sha256(f"twins {name}".encode()).digest()
    return PrivateIdentity.create(seed, EPOCH // 10**9 - 3600)


def grants_of(script: Script) -> Grants:
    """What the lower hubs grant: all that is needed, but no messages to some."""
    return Grants(Grant(**grant) for grant in told_grants(script))


def told_grants(script: Script) -> list[dict[str, Any]]:
    """The same as a change file has it."""
    reached = (name for name in script.names if name not in script.refused)
    send = (*(f"to-{hub}" for hub in script.hubs), *map(worker_of, reached), "waystation.*")
    return [
        {
            "identity": (identity_of(name).identifier,),
            "announce": ("*",),
            "send": send,
            "publish": ("*",),
            "subscribe": ("*",),
        }
        for name in script.names
    ]
