"""Groups: members whose identity outlives their addresses (LA)."""

from waystation.core.membership import Member
from waystation.groups.group import Changes, Group
from waystation.groups.jgroups_peer import JGroupsPeer, PlainMessage
from waystation.groups.settings import GroupLimits

__all__ = ["Changes", "Group", "GroupLimits", "JGroupsPeer", "Member", "PlainMessage"]
