"""Groups: the gossip router that JGroups' members meet at (GR)."""

from waystation.groups.admission import Admission, Door
from waystation.groups.router import GossipServer
from waystation.groups.settings import Settings

__all__ = ["Admission", "Door", "GossipServer", "Settings"]
