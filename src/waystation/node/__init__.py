"""The live node: workers, routes, requests and sessions (asyncio)."""

from waystation.core.access import Access
from waystation.core.directory import Provider, Scope
from waystation.core.record import ChangeRecord, MessageRecord, Record, SessionRecord
from waystation.node.broadcasts import Subscription
from waystation.node.kernel import Carrier, Observer
from waystation.node.links import Limits, Listening
from waystation.node.node import Node
from waystation.node.policy import FAIL, WAIT, Fail, Policy, Queue, Wait
from waystation.node.runner import run
from waystation.node.session import Session
from waystation.node.worker import Context, Handler

__all__ = [
    "FAIL",
    "WAIT",
    "Access",
    "Carrier",
    "ChangeRecord",
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
    "Queue",
    "Record",
    "Scope",
    "Session",
    "SessionRecord",
    "Subscription",
    "Wait",
    "run",
]
