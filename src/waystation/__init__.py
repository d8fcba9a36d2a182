"""Waystation routes messages between nodes and records every hop.

>>> from waystation import Route
>>> str(Route.parse("tcp#10.0.0.2:4000 => hop => echo"))
'1#10.0.0.2:4000 => 0#hop => 0#echo'
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from waystation.core.address import Address, Route
from waystation.core.expiry import NEVER
from waystation.core.message import Message
from waystation.core.multicast import MulticastId
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.core.routing import RoutingEntry
from waystation.errors import (
    DecodeError,
    LocalError,
    NameTaken,
    NoReplyError,
    NotReadyError,
    NotTrusted,
    RemoteError,
    UndeliverableError,
    UnreachableError,
    WaystationError,
)

if TYPE_CHECKING:
    from waystation.groups import Group
    from waystation.node import (
        ANYONE,
        FAIL,
        WAIT,
        Access,
        Context,
        Fail,
        Limits,
        Listening,
        Node,
        Policy,
        Provider,
        Queue,
        Scope,
        SecureChannel,
        Session,
        Subscription,
        Wait,
        leaf,
        run,
    )

__version__ = "0.2.0.dev0"

__all__ = [
    "ANYONE",
    "FAIL",
    "NEVER",
    "WAIT",
    "Access",
    "Address",
    "Context",
    "DecodeError",
    "Fail",
    "Group",
    "Limits",
    "Listening",
    "LocalError",
    "Message",
    "MulticastId",
    "NameTaken",
    "NoReplyError",
    "Node",
    "NotReadyError",
    "NotTrusted",
    "Outcome",
    "Policy",
    "Provider",
    "Queue",
    "Reason",
    "RemoteError",
    "Route",
    "RoutingEntry",
    "Scope",
    "SecureChannel",
    "Session",
    "Subscription",
    "UndeliverableError",
    "UnreachableError",
    "Verdict",
    "Wait",
    "WaystationError",
    "__version__",
    "leaf",
    "run",
]

_HOMES: Final = {"Group": "waystation.groups"}
"""Where a name is that needs an event loop; the others are in `waystation.node`."""


def __getattr__(name: str) -> Any:
    """Import the parts that need an event loop on first use."""
    if name not in __all__:
        raise AttributeError(f"module 'waystation' has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "waystation.node")), name)
