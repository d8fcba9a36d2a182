"""Waystation routes messages between nodes and records every hop.

>>> from waystation import Route
>>> str(Route.parse("tcp#10.0.0.2:4000 => hop => echo"))
'1#10.0.0.2:4000 => 0#hop => 0#echo'
"""

from typing import TYPE_CHECKING, Any

from waystation.core.address import Address, Route
from waystation.core.expiry import NEVER
from waystation.core.message import Message
from waystation.core.multicast import MulticastId
from waystation.core.outcome import Outcome, Reason
from waystation.errors import DecodeError, LocalError, NameTaken, RemoteError, WaystationError

if TYPE_CHECKING:
    from waystation.groups import Group
    from waystation.node import Node, run

__version__ = "0.2.0.dev0"

__all__ = [
    "NEVER",
    "Address",
    "DecodeError",
    "Group",
    "LocalError",
    "Message",
    "MulticastId",
    "NameTaken",
    "Node",
    "Outcome",
    "Reason",
    "RemoteError",
    "Route",
    "WaystationError",
    "__version__",
    "run",
]


def __getattr__(name: str) -> Any:
    """Import the parts that need an event loop on first use."""
    if name in ("Node", "run"):
        from waystation import node  # noqa: PLC0415

        return getattr(node, name)
    if name == "Group":
        from waystation import groups  # noqa: PLC0415

        return groups.Group
    raise AttributeError(f"module 'waystation' has no attribute {name!r}")
