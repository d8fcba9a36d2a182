"""Configuration: a TOML file, checked to the last key, and the running node that it describes.

It stands on the node, its transports and the journal, and only the command line stands on it.
"""

from waystation.config.plan import Plan, check_file, plan_from
from waystation.config.problem import Problem
from waystation.config.running import running

__all__ = ["Plan", "Problem", "check_file", "plan_from", "running"]
