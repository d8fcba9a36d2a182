"""Groups: the gossip router that members meet at, and the members themselves (GR, LA)."""

from waystation.groups.admission import Admission, Door
from waystation.groups.group import Changes, Group
from waystation.groups.member import GroupLimits, Member
from waystation.groups.router import GossipServer
from waystation.groups.settings import Settings
from waystation.groups.transport import Gossip

__all__ = [
    "Admission",
    "Changes",
    "Door",
    "Gossip",
    "GossipServer",
    "Group",
    "GroupLimits",
    "Member",
    "Settings",
]
