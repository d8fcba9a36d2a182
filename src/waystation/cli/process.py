"""Process-wide settings of a command: the limit of open files, and logging."""

from __future__ import annotations

import logging
import resource
from typing import Final

_SPARE_FILES: Final = 64


def allow_files(connections: int) -> None:
    """Raise the limit of open files towards this many connections, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _SPARE_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def log_to_stderr(*, verbose: bool) -> None:
    """Log warnings to stderr, one line each; with `verbose`, details as well."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(message)s",
    )
