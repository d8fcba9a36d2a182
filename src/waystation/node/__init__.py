"""The live node: workers, routes, requests and sessions (asyncio)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from waystation.core.access import Access
from waystation.core.directory import Provider, Scope
from waystation.core.record import ChangeRecord, MessageRecord, Record, SessionRecord
from waystation.node.broadcasts import Subscription
from waystation.node.connecting import leaf
from waystation.node.kernel import Carrier, Observer
from waystation.node.links import Limits, Listening
from waystation.node.node import Node
from waystation.node.policy import FAIL, WAIT, Fail, Policy, Queue, Wait
from waystation.node.runner import run
from waystation.node.sent import Published, Sent
from waystation.node.session import Session
from waystation.node.store import StoreSettings
from waystation.node.worker import Context, Handler

if TYPE_CHECKING:
    from waystation.node.channels import ANYONE, ChannelCounts, SecureChannel, SecureListener

__all__ = [
    "ANYONE",
    "FAIL",
    "WAIT",
    "Access",
    "Carrier",
    "ChangeRecord",
    "ChannelCounts",
    "Context",
    "Fail",
    "Handler",
    "Limits",
    "Listening",
    "MessageRecord",
    "Node",
    "Observer",
    "Policy",
    "Provider",
    "Published",
    "Queue",
    "Record",
    "Scope",
    "SecureChannel",
    "SecureListener",
    "Sent",
    "Session",
    "SessionRecord",
    "StoreSettings",
    "Subscription",
    "Wait",
    "leaf",
    "run",
]

_OF_CHANNELS: Final = ("ANYONE", "ChannelCounts", "SecureChannel", "SecureListener")


def __getattr__(name: str) -> Any:
    """Import secure channels on demand: few nodes have any."""
    if name not in _OF_CHANNELS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("waystation.node.channels"), name)
