"""What a server logs about peers that it refuses or gives up: never more than a line in a while."""

from __future__ import annotations

import logging
from typing import Final

QUIET: Final = 60.0
"""Seconds for which complaints of one sort are only counted, after one was logged."""


class Complaints:
    """The complaints of one server, by sort."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._told: dict[str, tuple[float, int]] = {}  # when, and how many since

    def add(self, now: float, sort: str, who: str, detail: str) -> None:
        """Log the first of its sort; of the others, within a while, only the number."""
        last, more = self._told.get(sort, (now - QUIET, 0))
        if now - last < QUIET:
            self._told[sort] = (last, more + 1)
            return
        self._told[sort] = (now, 0)
        others = f" (and {more} more like it)" if more else ""
        self._log.warning("%s: %s: %s%s", sort, who, detail, others)
