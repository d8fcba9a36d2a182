"""The gossip router: a meeting point for members that cannot reach each other directly (GR)."""

from waystation.gossip_router.admission import Admission, Door, GrantedAdmission
from waystation.gossip_router.metrics import RouterMetrics
from waystation.gossip_router.server import GossipServer
from waystation.gossip_router.settings import Settings

__all__ = ["Admission", "Door", "GossipServer", "GrantedAdmission", "RouterMetrics", "Settings"]
