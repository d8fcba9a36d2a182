"""Configuration: check a TOML file completely, and run the node that it describes.

It depends on the node, the transports and the journal; only the command line depends on it.
"""

from waystation.config.plan import Plan, check_file, plan_from, read_grants
from waystation.config.problem import Problem
from waystation.config.reloading import reload
from waystation.config.running import running

__all__ = ["Plan", "Problem", "check_file", "plan_from", "read_grants", "reload", "running"]
