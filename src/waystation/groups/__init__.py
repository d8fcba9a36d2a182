"""Groups: members whose identity outlives their addresses (LA)."""

from waystation.groups.group import Changes, Group
from waystation.groups.member import GroupLimits, Member

__all__ = ["Changes", "Group", "GroupLimits", "Member"]
