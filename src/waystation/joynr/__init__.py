"""A node as joynr's cluster controller: the providers that applications ask, and the directory.

node = Node("hub", hub=True, transports=[Tcp(), JoynrWebSocket()])
ClusterController(node).start()
await node.listen("joynr+ws://127.0.0.1:4242")
"""

from waystation.joynr.controller import ClusterController
from waystation.joynr.directory import JoynrDirectory
from waystation.wire.joynr_frames import custom_headers

__all__ = ["ClusterController", "JoynrDirectory", "custom_headers"]
