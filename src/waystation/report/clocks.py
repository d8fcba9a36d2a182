"""How far the clocks of the nodes were ahead, as the table `clocks` has it, hour by hour."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow.compute as pc
from msgspec import Struct

from waystation.report.arrays import Array
from waystation.report.reading import Tables, micros

_HOUR: Final = 3_600_000_000
_NODES: Final = 1 << 24


class Corrections(Struct):
    """Corrections by hour and node, sorted; a node without one has a right clock."""

    keys: Array
    values: Array

    @classmethod
    def of(cls, tables: Tables, nodes: dict[str, int]) -> Corrections:
        """Read the table; `nodes` are the numbers of nodes, and new ones get one."""
        keys = {"hour": micros("from_time"), "node": pc.field("node")}
        values = {"ahead": (pc.field("correction_us"), "max")}
        found = sorted(
            (
                row["hour"] // _HOUR * _NODES + nodes.setdefault(row["node"], len(nodes)),
                row["ahead"],
            )
            for row in tables.grouped("clocks", keys, values)
            if row["node"] is not None and row["ahead"] is not None
        )
        columns = np.array(found, np.int64).reshape(-1, 2)
        return cls(columns[:, 0], columns[:, 1])

    def ahead(self, node: Array, at: Array) -> Array:
        """How far the clocks of nodes were ahead at times of theirs."""
        if not len(self.keys):
            return np.zeros(len(node), np.int64)
        wanted = at // _HOUR * _NODES + node
        place = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        ahead: Array = np.where(self.keys[place] == wanted, self.values[place], 0)
        return ahead
