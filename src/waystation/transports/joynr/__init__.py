"""joynr's applications over WebSockets: this node as their cluster controller."""

from waystation.transports.joynr.websocket import JoynrLimits, JoynrWebSocket

__all__ = ["JoynrLimits", "JoynrWebSocket"]
