"""The live node: workers, routes and requests in one process (asyncio)."""

from waystation.node.node import Context, Node, Record
from waystation.node.policy import FAIL, WAIT, Fail, Policy, Queue, Wait

__all__ = ["FAIL", "WAIT", "Context", "Fail", "Node", "Policy", "Queue", "Record", "Wait"]
