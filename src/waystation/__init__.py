"""Waystation: messages that find their way, and a record of every step.

>>> from waystation import Route
>>> str(Route.parse("tcp#10.0.0.2:4000 => hop => echo"))
'1#10.0.0.2:4000 => 0#hop => 0#echo'
"""

from waystation.core.address import Address, Route
from waystation.core.expiry import NEVER
from waystation.core.message import Message
from waystation.core.multicast import MulticastId
from waystation.core.outcome import Outcome, Reason
from waystation.errors import DecodeError, LocalError, RemoteError, WaystationError

__version__ = "0.1.0"

__all__ = [
    "NEVER",
    "Address",
    "DecodeError",
    "LocalError",
    "Message",
    "MulticastId",
    "Outcome",
    "Reason",
    "RemoteError",
    "Route",
    "WaystationError",
    "__version__",
]
